// SPDX-License-Identifier: Apache-2.0
// A priority is a factor on what runs are worth: it decides which go, and which are let in.
#include "policy_fixture.h"
#include "test.h"

#define CLASS 5u

// Runs of one class are worth `rank` at each age.
static void rank_all(struct policy *policy, float rank)
{
    for (unsigned b = 0; b < POLICY_BUCKETS; b++) {
        policy->ranks.rank[CLASS][b] = rank;
        policy->ranks.level[CLASS][b] = 100;
    }
}

Test(policy_group, a_priority_moves_the_rank)
{
    struct shelf shelf;
    shelf_init(&shelf, POLICY_EPOCH, 4);
    rank_all(shelf.policy, 1);
    policy_group_set(shelf.policy, 1, 4);
    policy_group_set(shelf.policy, 2, 0.5f);
    cr_assert_eq(policy_level(shelf.policy, policy_stamp(0, CLASS, 0)), 100u);
    cr_assert_eq(policy_level(shelf.policy, policy_stamp(0, CLASS, 1)), 116u);
    cr_assert_eq(policy_level(shelf.policy, policy_stamp(0, CLASS, 2)), 92u);
    shelf_done(&shelf);
}

Test(policy_group, a_priority_opens_the_door)
{
    struct shelf shelf;
    uint32_t stamp;
    shelf_init(&shelf, POLICY_EPOCH, 4);
    policy_group_set(shelf.policy, 1, 100);
    atomic_store(&shelf.policy->published.worth[POLICY_CLASS_NEW], 0.1f);
    atomic_store(&shelf.policy->published.bar, 1);
    cr_assert_not(policy_admit(shelf.policy, shelf_key(1), 0, false, &stamp));
    cr_assert(policy_admit(shelf.policy, shelf_key(1), 1, false, &stamp));
    cr_assert_eq(policy_stamp_group(stamp), 1u);
    shelf_done(&shelf);
}
