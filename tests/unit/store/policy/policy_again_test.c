// SPDX-License-Identifier: Apache-2.0
// Proves: refusals of one use are counted, those of the next from the start; of two keys that share
// a slot the one asked for more often has it.
#include "store/policy/policy_fixture.h"
#include "test.h"

#define OTHER ((1ull << 40) | 5) // in the slot of key 5
#define SOON 8u

static struct policy_again again;

static void note(uint64_t key, uint32_t past, unsigned times)
{
    for (unsigned i = 0; i < times; i++) {
        policy_again_note(&again, key, past);
    }
}

Test(policy_again, counts_within_a_use)
{
    memset(&again, 0, sizeof(again));
    uint32_t past = policy_stamp(77, 9, 2), next = policy_stamp(78, 9, 2);
    note(5, past, SOON - 1);
    cr_assert_not(policy_again_enough(&again, 5, past));
    note(5, past, 1);
    cr_assert(policy_again_enough(&again, 5, past));
    cr_assert_not(policy_again_enough(&again, 5, next));
    cr_assert_not(policy_again_enough(&again, OTHER, past));
    note(5, past, 10000); // and does not run over
    cr_assert(policy_again_enough(&again, 5, past));
    cr_assert_not(policy_again_enough(&again, 5, next));
    note(5, next, SOON);
    cr_assert(policy_again_enough(&again, 5, next));
}

Test(policy_again, the_one_asked_for_more_often_has_the_slot)
{
    memset(&again, 0, sizeof(again));
    uint32_t past = policy_stamp(1u << 19, POLICY_CLASS_NEW, 0);
    note(5, past, SOON + 3);
    note(OTHER, past, 2);
    cr_assert(policy_again_enough(&again, 5, past));
    note(OTHER, past, SOON);
    note(OTHER, past, SOON);
    cr_assert(policy_again_enough(&again, OTHER, past));
    cr_assert_not(policy_again_enough(&again, 5, past));
}
