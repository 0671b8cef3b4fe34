// SPDX-License-Identifier: Apache-2.0
// Runs that were refused and are asked for again within the same use. Each time they come from the
// origin once more, whatever their past says. Where most of what is asked for twice at once is
// asked for many times (small parts of one read, or several readers side by side) the second is
// admitted, and all that follow are hits; else whoever asks often.
//
// One slot for each print of a key, and one key in it: another one takes it when it has been asked
// for more often. Only the owner writes; workers read while it does.
#include "store/policy/policy_private.h"

#define ENOUGH 8u       // refusals in one use
#define MANY_SHARE 0.5f // from here on the first one is enough

// print of the key (32 bits) | tick of the use (20) | count (12)
#define COUNT_BITS 12u
#define COUNT_MAX ((1u << COUNT_BITS) - 1)

static uint64_t again_use(uint64_t key, uint32_t past)
{
    return (key >> 32 << POLICY_TICK_BITS | past >> (32 - POLICY_TICK_BITS)) << COUNT_BITS;
}

static size_t again_slot(uint64_t key)
{
    return key % POLICY_AGAIN_SLOTS;
}

void policy_again_note(struct policy_again *again, uint64_t key, uint32_t past)
{
    _Atomic uint64_t *slot = &again->slots[again_slot(key)];
    uint64_t seen = atomic_load_explicit(slot, memory_order_relaxed);
    uint64_t use = again_use(key, past);
    uint32_t count = (uint32_t)(seen & COUNT_MAX);
    if ((seen & ~(uint64_t)COUNT_MAX) == use) {
        seen += count < COUNT_MAX;
    } else if (count <= 1 || seen >> 32 == key >> 32) {
        seen = use | 1;
    } else {
        seen--;
    }
    atomic_store_explicit(slot, seen, memory_order_relaxed);
}

void policy_again_learn(struct policy_again *again, float many_share)
{
    atomic_store_explicit(&again->one_is_enough, many_share > MANY_SHARE, memory_order_relaxed);
}

bool policy_again_enough(const struct policy_again *again, uint64_t key, uint32_t past)
{
    uint64_t seen = atomic_load_explicit(&again->slots[again_slot(key)], memory_order_relaxed);
    return atomic_load_explicit(&again->one_is_enough, memory_order_relaxed) ||
           ((seen & ~(uint64_t)COUNT_MAX) == again_use(key, past) && (seen & COUNT_MAX) >= ENOUGH);
}

uint32_t policy_again_left(const struct policy_again *again, uint64_t key, uint32_t past)
{
    uint64_t seen = atomic_load_explicit(&again->slots[again_slot(key)], memory_order_relaxed);
    bool is_its = (seen & ~(uint64_t)COUNT_MAX) == again_use(key, past);
    uint32_t count = is_its ? (uint32_t)(seen & COUNT_MAX) : 0;
    bool is_enough = policy_again_enough(again, key, past);
    return is_enough || count >= ENOUGH ? 0 : ENOUGH - count;
}
