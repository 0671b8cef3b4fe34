// SPDX-License-Identifier: Apache-2.0
// Proves: `forebay plan` names the bytes that fit into a cache of some size.
// tests/scenario/test_fit.py fills caches of the sizes that it names.
#include "store/store_private.h"
#include "test.h"

#define MIB (1ull << 20)
#define GIB (1ull << 30)

static struct store_plan plan_of(unsigned workers, uint64_t object_bytes)
{
    return (struct store_plan){
        .workers = workers, .headroom_percent = 10, .object_bytes = object_bytes};
}

// A cache of 1 TiB has segments of 256 MiB. Of 3,692 that fit, four slots have one open each, and
// seven are spare: one for each slot, two, and one for survivors.
Test(store_plan, open_and_spare_segments_are_no_room_for_data)
{
    struct store_plan four = plan_of(4, MIB), none = plan_of(4, MIB);
    uint64_t held = store_plan_holds(&four, 1024 * GIB);
    uint64_t cost = segment_cost_bytes(256u << 20), segments = held / (258 * MIB);
    none.headroom_percent = 0;
    cr_assert_lt(held, 1024 * GIB / 10 * 9 - 11 * cost);
    cr_assert_gt(held, 1024 * GIB / 10 * 9 / 100 * 98);
    cr_assert_gt(segments, 3600u);
    cr_assert_gt(store_plan_holds(&none, 1024 * GIB), held / 9 * 10 - 12 * cost);
    // Four more workers have four more slots and four more spare segments.
    struct store_plan eight = plan_of(8, MIB);
    uint64_t less = held - store_plan_holds(&eight, 1024 * GIB);
    cr_assert_eq((less + 4 * MIB) / (256 * MIB), 8u, "%llu", (unsigned long long)less);
}

// Segments of 4 MiB and a 64th have room for five objects of 700 KiB.
Test(store_plan, only_whole_objects_fit_into_a_segment)
{
    struct store_plan plan = plan_of(1, 700u << 10), smaller = plan_of(1, 70u << 10);
    uint64_t held = store_plan_holds(&plan, 128 * MIB);
    cr_assert_gt(held, 64 * MIB);
    cr_assert_eq(held % (5 * (700u << 10)), 0u);
    cr_assert_gt(store_plan_holds(&smaller, 128 * MIB), held);
}

Test(store_plan, the_planned_size_and_all_larger_ones_hold_the_data)
{
    static const uint64_t datas[] = {65536,   10 * MIB,  138 * MIB,          600 * MIB, 2 * GIB,
                                     4 * GIB, 100 * GIB, 64 * 1024ull * GIB, 1ull << 60};
    static const uint64_t objects[] = {1, 4096, 100000, 540000, 3 * MIB, 16 * GIB};
    for (size_t i = 0; i < ARRAY_LEN(datas); i++) {
        for (size_t k = 0; k < ARRAY_LEN(objects); k++) {
            for (unsigned workers = 1; workers <= 64; workers *= 4) {
                struct store_plan plan = plan_of(workers, objects[k]);
                uint64_t size = store_plan_size(&plan, datas[i]);
                cr_assert_geq(size, 16 * MIB);
                if (size == 1ull << 62) {
                    continue; // no cache is so large
                }
                for (uint64_t larger = size; larger < 4 * size; larger += size / 97) {
                    cr_assert_geq(store_plan_holds(&plan, larger), datas[i]);
                }
                bool is_least = size == 16 * MIB || store_plan_holds(&plan, size - 1) < datas[i];
                cr_assert(is_least, "%llu", (unsigned long long)size);
            }
        }
    }
}

Test(store_plan, a_small_cache_holds_what_its_segments_have_room_for)
{
    struct store_plan plan = plan_of(64, 100000);
    cr_assert_gt(store_plan_holds(&plan, 32 * MIB), 8 * MIB);
    cr_assert_lt(store_plan_holds(&plan, 32 * MIB), 24 * MIB);
    cr_assert_eq(store_plan_holds(&plan, MIB), 0u);
}
