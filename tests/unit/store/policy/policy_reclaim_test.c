// SPDX-License-Identifier: Apache-2.0
// Proves: the segment whose cheapest half is worth least goes; that half is dropped at least, and
// the rest survives; rewriting is bounded by what is admitted; pinned runs stay whatever happens.
#include "store/policy/policy_fixture.h"
#include "test.h"

#define SEGMENTS 32u
#define OLD 9u // a class of some past

// All ranks are given: `rank` in every bucket of a class.
static void rank_set(struct shelf *shelf, unsigned reuse_class, unsigned level)
{
    struct policy_ranks *ranks = &shelf->policy->ranks;
    for (unsigned b = 0; b < POLICY_BUCKETS; b++) {
        ranks->level[reuse_class][b] = (uint8_t)level;
        ranks->rank[reuse_class][b] = ranks->level_rank[level];
    }
}

// Makes a sealed segment whose first `good` runs have class OLD + 1, and the others OLD.
static uint32_t fill_mixed(struct shelf *shelf, unsigned good, unsigned group)
{
    for (unsigned i = 0; i < SEGMENT_RUNS; i++) {
        shelf_store(shelf, shelf->number * 100 + i,
                    policy_stamp(shelf->policy->clock.tick, i < good ? OLD + 1 : OLD, group));
    }
    return shelf->number;
}

static void shelf_of_ranks(struct shelf *shelf)
{
    shelf_init(shelf, POLICY_EPOCH, SEGMENTS);
    rank_set(shelf, OLD, 50);
    rank_set(shelf, OLD + 1, 100);
    policy_set_full(shelf->policy, true);
    shelf->policy->reclaim.rewrite_credit = 1e9;
}

Test(policy_reclaim, the_cheapest_half_decides)
{
    struct shelf shelf;
    struct policy_victim victim;
    uint32_t survivors[SEGMENT_RUNS];
    shelf_of_ranks(&shelf);
    (void)fill_mixed(&shelf, 16, 0);
    uint32_t cheap = fill_mixed(&shelf, 8, 0); // its better half does not save it
    (void)fill_mixed(&shelf, 12, 0);
    (void)fill_mixed(&shelf, 16, 0);
    shelf.policy->reclaim.admitted_rank = 0;
    shelf.policy->reclaim.rewrite_credit = 1e9;
    cr_assert(policy_victim(shelf.policy, NULL, NULL, survivors, SEGMENT_RUNS, &victim));
    cr_assert_eq(victim.number, cheap);
    cr_assert_eq(victim.survivor_count, 8u);
    for (uint32_t i = 0; i < 8; i++) {
        cr_assert_eq(survivors[i], i);
    }
    struct policy_stats stats;
    policy_stats(shelf.policy, &stats);
    cr_assert_eq(stats.bar, shelf.policy->ranks.level_rank[50]);
    shelf_done(&shelf);
}

Test(policy_reclaim, of_equal_segments_the_oldest_is_evicted)
{
    struct shelf shelf;
    struct policy_victim victim;
    uint32_t survivors[SEGMENT_RUNS];
    shelf_of_ranks(&shelf);
    uint32_t oldest = fill_mixed(&shelf, 0, 0);
    for (unsigned i = 1; i < SEGMENTS; i++) {
        (void)fill_mixed(&shelf, 0, 0);
    }
    for (unsigned i = 0; i < 3 * SEGMENTS; i++, oldest++) {
        cr_assert(policy_victim(shelf.policy, NULL, NULL, survivors, 0, &victim));
        cr_assert_eq(victim.number, oldest);
        policy_segment_free(shelf.policy, victim.number);
        (void)fill_mixed(&shelf, 0, 0);
    }
    shelf_done(&shelf);
}

Test(policy_reclaim, of_equal_runs_half_are_evicted)
{
    struct shelf shelf;
    struct policy_victim victim;
    uint32_t survivors[SEGMENT_RUNS];
    shelf_of_ranks(&shelf);
    (void)fill_mixed(&shelf, 16, 0);
    shelf.policy->reclaim.admitted_rank = 0;
    shelf.policy->reclaim.rewrite_credit = 1e9;
    cr_assert(policy_victim(shelf.policy, NULL, NULL, survivors, SEGMENT_RUNS, &victim));
    cr_assert_eq(victim.survivor_count, 8u);
    cr_assert_eq(survivors[0], 8u);
    shelf_done(&shelf);
}

Test(policy_reclaim, runs_worth_no_more_than_newcomers_are_evicted_too)
{
    struct shelf shelf;
    struct policy_victim victim;
    uint32_t survivors[SEGMENT_RUNS];
    shelf_of_ranks(&shelf);
    (void)fill_mixed(&shelf, 8, 0);
    shelf.policy->reclaim.admitted_rank = shelf.policy->ranks.level_rank[120];
    cr_assert(policy_victim(shelf.policy, NULL, NULL, survivors, SEGMENT_RUNS, &victim));
    cr_assert_eq(victim.survivor_count, 0u);
    shelf_done(&shelf);
}

Test(policy_reclaim, rewriting_is_bounded_by_the_admitted_bytes)
{
    struct shelf shelf;
    struct policy_victim victim;
    uint32_t survivors[SEGMENT_RUNS];
    shelf_of_ranks(&shelf);
    (void)fill_mixed(&shelf, 8, 0);
    shelf.policy->reclaim.admitted_rank = 0;
    shelf.policy->reclaim.rewrite_credit = 3 * RUN_BYTES;
    cr_assert(policy_victim(shelf.policy, NULL, NULL, survivors, SEGMENT_RUNS, &victim));
    cr_assert_eq(victim.survivor_count, 3u);
    cr_assert_leq(shelf.policy->reclaim.rewrite_credit, 0.0);
    shelf_done(&shelf);
}

Test(policy_reclaim, survivors_keep_their_past_elsewhere)
{
    struct shelf shelf;
    struct policy_victim victim;
    uint32_t survivors[SEGMENT_RUNS], index;
    shelf_of_ranks(&shelf);
    uint32_t from = fill_mixed(&shelf, 8, 4);
    shelf.policy->reclaim.admitted_rank = 0;
    shelf.policy->reclaim.rewrite_credit = 1e9;
    cr_assert(policy_victim(shelf.policy, NULL, NULL, survivors, SEGMENT_RUNS, &victim));
    cr_assert_not(policy_victim(shelf.policy, NULL, NULL, survivors, SEGMENT_RUNS, &victim));
    cr_assert(policy_segment_begin(shelf.policy, 20));
    policy_segment_move(shelf.policy, from, 2, 20, 0, RUN_BYTES);
    policy_segment_move(shelf.policy, from, 2, 20, RUN_BYTES, RUN_BYTES); // it is there already
    policy_segment_drop(shelf.policy, from, 9, shelf_key(9));
    policy_segment_free(shelf.policy, from);
    const struct policy_segment *to = policy_segments_find(&shelf.policy->segments, 20);
    struct policy_run *run = policy_segments_run_at(&shelf.policy->segments, to, 0, &index);
    cr_assert_eq(policy_stamp_class(run->stamp), OLD + 1);
    cr_assert_eq(to->run_count, 1u);
    uint32_t stamp;
    cr_assert(policy_ghost_find(&shelf.policy->ghost, shelf_key(9), &stamp));
    cr_assert_eq(policy_stamp_class(stamp), OLD);
    struct policy_stats stats;
    policy_stats(shelf.policy, &stats);
    cr_assert_eq(stats.rewritten_bytes, RUN_BYTES);
    cr_assert_eq(stats.dropped_bytes, RUN_BYTES);
    shelf_done(&shelf);
}

static bool may_go(void *ctx, uint32_t number)
{
    return number != *(uint32_t *)ctx;
}

Test(policy_reclaim, a_segment_that_may_not_be_evicted_stays_and_may_be_evicted_later)
{
    struct shelf shelf;
    struct policy_victim victim;
    uint32_t survivors[SEGMENT_RUNS];
    shelf_of_ranks(&shelf);
    uint32_t cheap = fill_mixed(&shelf, 0, 0);
    uint32_t other = fill_mixed(&shelf, 16, 0);
    cr_assert(policy_victim(shelf.policy, may_go, &cheap, survivors, SEGMENT_RUNS, &victim));
    cr_assert_eq(victim.number, other);
    policy_segment_seal(shelf.policy, other); // it has not gone after all
    cr_assert(policy_victim(shelf.policy, NULL, NULL, survivors, SEGMENT_RUNS, &victim));
    cr_assert_eq(victim.number, cheap);
    shelf_done(&shelf);
}

Test(policy_reclaim, removed_runs_cost_nothing)
{
    struct shelf shelf;
    struct policy_victim victim;
    uint32_t survivors[SEGMENT_RUNS];
    shelf_of_ranks(&shelf);
    (void)fill_mixed(&shelf, 0, 0);
    uint32_t number = fill_mixed(&shelf, 16, 0);
    for (uint32_t i = 0; i < 10; i++) {
        struct policy_event event = {
            .kind = POLICY_GONE, .segment = number, .start = i * RUN_BYTES};
        policy_take(shelf.policy, &event, 1);
    }
    cr_assert(policy_victim(shelf.policy, NULL, NULL, survivors, SEGMENT_RUNS, &victim));
    cr_assert_eq(victim.number, number);
    for (uint32_t i = 0; i < victim.survivor_count; i++) {
        cr_assert_geq(survivors[i], 10u);
    }
    shelf_done(&shelf);
}
