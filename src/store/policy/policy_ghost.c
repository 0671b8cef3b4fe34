// SPDX-License-Identifier: Apache-2.0
// Remembers the past of runs that were dropped or refused, in a hash table with sets of four
// entries. An entry is a 16-bit print of the key and a stamp. A new entry replaces the oldest one
// of its set. For this choice, runs that were never read again age faster.
//
// Only the owner writes. A worker that reads an entry while the owner writes it may see the print
// of one run with the stamp of another. It then takes the past of the second run for that of the
// first. The same happens when two keys have the same print.
#include "store/policy/policy_private.h"

#define NEVER_AGAIN_AGES 4u // runs never read again age this many times faster

static struct policy_ghost_set *ghost_set(const struct policy_ghost *ghost, uint64_t key)
{
    check(ghost->set_count > 0);
    return &ghost->sets[(key & UINT32_MAX) * ghost->set_count >> 32];
}

static uint16_t ghost_print(uint64_t key)
{
    uint16_t print = (uint16_t)(key >> 32);
    return print == 0 ? 1 : print;
}

static unsigned ghost_way(const struct policy_ghost_set *set, uint16_t print)
{
    unsigned way = 0;
    while (way < POLICY_GHOST_WAYS &&
           atomic_load_explicit(&set->print[way], memory_order_relaxed) != print) {
        way++;
    }
    return way;
}

bool policy_ghost_find(const struct policy_ghost *ghost, uint64_t key, uint32_t *ret_stamp)
{
    const struct policy_ghost_set *set = ghost_set(ghost, key);
    unsigned way = ghost_way(set, ghost_print(key));
    if (way == POLICY_GHOST_WAYS) {
        return false;
    }
    *ret_stamp = atomic_load_explicit(&set->stamp[way], memory_order_relaxed);
    return policy_stamp_class(*ret_stamp) < POLICY_CLASSES; // false if the region is damaged
}

static unsigned ghost_least(const struct policy_ghost_set *set, uint32_t now_tick)
{
    unsigned least = 0;
    uint32_t least_age = 0;
    for (unsigned way = 0; way < POLICY_GHOST_WAYS; way++) {
        if (atomic_load_explicit(&set->print[way], memory_order_relaxed) == 0) {
            return way;
        }
        uint32_t stamp = atomic_load_explicit(&set->stamp[way], memory_order_relaxed);
        bool again = policy_stamp_class(stamp) != POLICY_CLASS_NEW;
        uint32_t age = (policy_stamp_age(stamp, now_tick) + 1) * (again ? 1 : NEVER_AGAIN_AGES);
        if (age > least_age) {
            least_age = age;
            least = way;
        }
    }
    return least;
}

void policy_ghost_put(struct policy_ghost *ghost, uint64_t key, uint32_t stamp, uint32_t now_tick)
{
    check(policy_stamp_class(stamp) < POLICY_CLASSES);
    struct policy_ghost_set *set = ghost_set(ghost, key);
    uint16_t print = ghost_print(key);
    unsigned way = ghost_way(set, print);
    if (way == POLICY_GHOST_WAYS) {
        way = ghost_least(set, now_tick);
    }
    atomic_store_explicit(&set->stamp[way], stamp, memory_order_relaxed);
    atomic_store_explicit(&set->print[way], print, memory_order_relaxed);
}

void policy_ghost_forget(struct policy_ghost *ghost, uint64_t key)
{
    struct policy_ghost_set *set = ghost_set(ghost, key);
    unsigned way = ghost_way(set, ghost_print(key));
    if (way < POLICY_GHOST_WAYS) {
        atomic_store_explicit(&set->print[way], 0, memory_order_relaxed);
    }
}

void policy_ghost_sweep(struct policy_ghost *ghost, uint32_t set_index, uint32_t now_tick)
{
    check(set_index < ghost->set_count);
    struct policy_ghost_set *set = &ghost->sets[set_index];
    for (unsigned way = 0; way < POLICY_GHOST_WAYS; way++) {
        uint32_t stamp = atomic_load_explicit(&set->stamp[way], memory_order_relaxed);
        if (policy_stamp_age(stamp, now_tick) > POLICY_AGE_MAX) {
            atomic_store_explicit(&set->print[way], 0, memory_order_relaxed);
        }
    }
}

// Workers may read the set while this function writes it.
void policy_ghost_restore(struct policy_ghost *ghost, uint32_t at, const char *saved,
                          const uint8_t *groups)
{
    check(at < ghost->set_count);
    struct policy_ghost_set *set = &ghost->sets[at];
    for (unsigned way = 0; way < POLICY_GHOST_WAYS; way++) {
        uint16_t print;
        uint32_t stamp;
        memcpy(&print, saved + offsetof(struct policy_ghost_set, print) + way * sizeof(print),
               sizeof(print));
        memcpy(&stamp, saved + offsetof(struct policy_ghost_set, stamp) + way * sizeof(stamp),
               sizeof(stamp));
        if (policy_stamp_class(stamp) >= POLICY_CLASSES) {
            continue; // the saved entry has no valid stamp
        }
        stamp = policy_stamp_grouped(stamp, groups[policy_stamp_group(stamp)]);
        atomic_store_explicit(&set->print[way], print, memory_order_relaxed);
        atomic_store_explicit(&set->stamp[way], stamp, memory_order_relaxed);
    }
}
