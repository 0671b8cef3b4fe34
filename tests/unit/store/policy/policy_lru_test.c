// SPDX-License-Identifier: Apache-2.0
// Proves: `lru` admits everything and evicts the oldest segment, without survivors.
#include "store/policy/policy_fixture.h"
#include "test.h"

static bool may_go(void *ctx, uint32_t number)
{
    return number != *(uint32_t *)ctx;
}

Test(policy_lru, everything_is_admitted_and_the_oldest_segment_is_evicted)
{
    struct shelf shelf;
    struct policy_victim victim;
    uint32_t survivors[SEGMENT_RUNS], pinned = 0, stamp;
    shelf_init(&shelf, POLICY_LRU, 8);
    for (uint64_t i = 0; i < 4; i++) {
        (void)shelf_fill(&shelf, i * 100, 0);
    }
    shelf_read(&shelf, 0, 1, 0);
    cr_assert(policy_victim(shelf.policy, may_go, &pinned, survivors, SEGMENT_RUNS, &victim));
    cr_assert_eq(victim.number, 1u);
    cr_assert_eq(victim.survivor_count, 0u);
    policy_segment_free(shelf.policy, 1);
    pinned = 2;
    cr_assert(policy_victim(shelf.policy, may_go, &pinned, survivors, SEGMENT_RUNS, &victim));
    cr_assert_eq(victim.number, 3u);
    cr_assert(shelf_miss(&shelf, 1, 0, &stamp)); // full makes no difference
    shelf_done(&shelf);
}
