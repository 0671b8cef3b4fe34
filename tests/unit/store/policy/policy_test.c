// SPDX-License-Identifier: Apache-2.0
// Proves: until the cache is full everything is admitted; then only what is worth more than the
// bar; what was refused is remembered, and stored when it is asked for again at once; a past
// outlives an overwriting and a full region; events of segments that are gone do no harm; the clock
// wraps.
#include "store/policy/policy_fixture.h"
#include "test.h"

#define SEGMENTS 64u
#define CAPACITY_RUNS (SEGMENTS * SEGMENT_RUNS)

// Reads twice the capacity `epochs` times. The first half is stored. Returns how many blocks of the
// other half would have been admitted in the last epoch.
static unsigned read_in_cycles(struct shelf *shelf, unsigned epochs)
{
    uint32_t stamp;
    unsigned admitted = 0;
    for (unsigned epoch = 0; epoch < epochs; epoch++) {
        admitted = 0;
        for (uint64_t block = 0; block < 2 * CAPACITY_RUNS; block++) {
            if (block >= CAPACITY_RUNS) {
                policy_set_full(shelf->policy, true);
                admitted += shelf_pass_by(shelf, block);
            } else if (epoch == 0) {
                (void)shelf_miss(shelf, block, 0, &stamp);
                shelf_store(shelf, block, stamp);
            } else {
                shelf_read(shelf, block, (uint32_t)block / SEGMENT_RUNS + 1, block % SEGMENT_RUNS);
            }
        }
    }
    return admitted;
}

Test(policy, admits_everything_while_there_is_room)
{
    struct shelf shelf;
    uint32_t stamp;
    shelf_init(&shelf, POLICY_EPOCH, SEGMENTS);
    cr_assert(policy_admit(shelf.policy, shelf_key(1), 0, false, &stamp));
    cr_assert_eq(policy_stamp_class(stamp), POLICY_CLASS_NEW);
    policy_set_full(shelf.policy, true);
    cr_assert_not(
        policy_admit(shelf.policy, shelf_key(1), 0, false, &stamp)); // nothing is known of it
    policy_set_full(shelf.policy, false);
    cr_assert(policy_admit(shelf.policy, shelf_key(1), 0, false, &stamp));
    shelf_done(&shelf);
}

Test(policy, a_cycle_larger_than_the_cache_changes_nothing)
{
    struct shelf shelf;
    struct policy_stats stats;
    shelf_init(&shelf, POLICY_EPOCH, SEGMENTS);
    cr_assert_lt(read_in_cycles(&shelf, 5), CAPACITY_RUNS / 50);
    policy_stats(shelf.policy, &stats);
    cr_assert_gt(stats.bar, 0.0f);
    cr_assert_gt(stats.known_share, 0.9f);
    cr_assert_gt(stats.refused_bytes, 2 * CAPACITY_RUNS * (uint64_t)RUN_BYTES);
    shelf_done(&shelf);
}

// Fills the cache. All runs that could be evicted are worth more than any run that is not well
// known.
static void become_full_of_the_dear(struct shelf *shelf)
{
    shelf->policy->reclaim.bar = 1;
    policy_set_full(shelf->policy, true);
}

Test(policy, a_refused_run_has_a_history)
{
    struct shelf shelf;
    uint32_t stamp;
    shelf_init(&shelf, POLICY_EPOCH, SEGMENTS);
    become_full_of_the_dear(&shelf);
    cr_assert_not(shelf_miss(&shelf, 1, 3, &stamp));
    (void)shelf_pass_by(&shelf, 1); // at once: a part of the same use
    (void)policy_admit(shelf.policy, shelf_key(1), 3, false, &stamp);
    cr_assert_eq(stamp, POLICY_STAMP_SAME);
    shelf_pass(&shelf, 500);
    (void)shelf_miss(&shelf, 1, 3, &stamp);
    cr_assert_eq(policy_stamp_class(stamp), policy_class_next(500, POLICY_CLASS_NEW));
    cr_assert_eq(policy_stamp_group(stamp), 3u);
    shelf_store(&shelf, 1, stamp); // and what is stored is no ghost any more
    uint32_t past;
    cr_assert_not(policy_ghost_find(&shelf.policy->ghost, shelf_key(1), &past));
    shelf_done(&shelf);
}

Test(policy, a_run_that_is_asked_for_again_at_once_is_stored)
{
    struct shelf shelf;
    uint32_t stamp, past;
    shelf_init(&shelf, POLICY_EPOCH, SEGMENTS);
    become_full_of_the_dear(&shelf);
    cr_assert_not(shelf_miss(&shelf, 1, 3, &stamp));
    cr_assert(shelf_miss(&shelf, 1, 3, &stamp));
    cr_assert(policy_ghost_find(&shelf.policy->ghost, shelf_key(1), &past));
    uint32_t number = shelf_fill(&shelf, 100, 0) + 1;
    shelf_store(&shelf, 1, stamp); // with the past it has, and its rule
    const struct policy_segment *segment = policy_segments_find(&shelf.policy->segments, number);
    uint32_t stored = policy_segments_run(&shelf.policy->segments, segment, 0)->stamp;
    cr_assert_eq(policy_stamp_class(stored), policy_stamp_class(past));
    cr_assert_eq(policy_stamp_group(stored), 3u);
    shelf_done(&shelf);
}

// Readers side by side ask again for most missed runs: probation is for the runs that they read.
Test(policy, runs_go_on_probation_where_most_are_asked_for_again_at_once)
{
    struct shelf shelf;
    uint32_t stamp;
    shelf_init(&shelf, POLICY_EPOCH, SEGMENTS);
    become_full_of_the_dear(&shelf);
    for (uint64_t block = 0; block < 1000; block++) {
        for (unsigned reader = 0; reader < 8; reader++) {
            enum policy_verdict verdict =
                policy_admit(shelf.policy, shelf_key(block), 0, false, &stamp);
            cr_assert(block < 900 || verdict == POLICY_PROBATION);
            (void)shelf_pass_by(&shelf, block);
        }
    }
    shelf_done(&shelf);
}

Test(policy, a_refused_run_is_admitted_as_soon_as_there_is_room)
{
    struct shelf shelf;
    uint32_t stamp;
    shelf_init(&shelf, POLICY_EPOCH, SEGMENTS);
    policy_set_full(shelf.policy, true);
    cr_assert_not(shelf_miss(&shelf, 1, 0, &stamp));
    policy_set_full(shelf.policy, false);
    cr_assert(shelf_miss(&shelf, 1, 0, &stamp)); // of the same use as it is
    shelf_done(&shelf);
}

// A manifest is written again and again, and read in between.
Test(policy, an_overwritten_run_keeps_its_past)
{
    struct shelf shelf;
    uint32_t stamp;
    shelf_init(&shelf, POLICY_EPOCH, SEGMENTS);
    uint32_t number = shelf_fill(&shelf, 0, 0);
    shelf_pass(&shelf, 600);
    shelf_read(&shelf, 4, number, 4);
    struct policy_event event = {
        .kind = POLICY_GONE, .key = shelf_key(4), .segment = number, .start = 4 * RUN_BYTES};
    policy_take(shelf.policy, &event, 1);
    (void)shelf_miss(&shelf, 4, 0, &stamp);
    cr_assert_neq(stamp, POLICY_STAMP_SAME); // the run that was read is gone
    cr_assert_eq(policy_stamp_class(stamp),
                 policy_class_next(shelf.policy->clock.same_use + 1,
                                   policy_class_next(600, POLICY_CLASS_NEW)));
    shelf_done(&shelf);
}

Test(policy, a_run_of_an_unknown_segment_keeps_its_history)
{
    struct shelf shelf;
    uint32_t stamp, past;
    shelf_init(&shelf, POLICY_EPOCH, SEGMENTS);
    (void)shelf_miss(&shelf, 1, 0, &stamp);
    struct policy_event event = {
        .kind = POLICY_STORED, .key = shelf_key(1), .segment = 77, .len = 1, .stamp = stamp};
    policy_take(shelf.policy, &event, 1); // of a segment that is not known
    shelf_pass(&shelf, 400);
    shelf_read(&shelf, 1, 77, 0);
    cr_assert(policy_ghost_find(&shelf.policy->ghost, shelf_key(1), &past));
    cr_assert_eq(policy_stamp_class(past), policy_class_next(400, POLICY_CLASS_NEW));
    shelf_done(&shelf);
}

// Each request a quarter of the cache.
Test(policy, stamps_do_not_wrap_where_requests_are_large)
{
    struct shelf shelf;
    shelf_init(&shelf, POLICY_EPOCH, SEGMENTS);
    uint32_t number = shelf_fill(&shelf, 0, 0);
    const struct policy_segment *segment = policy_segments_find(&shelf.policy->segments, number);
    struct policy_event event = {.kind = POLICY_READ, .segment = 7777};
    event.len = (uint32_t)(shelf.options.capacity_bytes / 4);
    uint32_t age = 0;
    for (unsigned i = 0; i < 8000; i++) {
        policy_take(shelf.policy, &event, 1);
        uint32_t before = age;
        age = policy_stamp_age(policy_segments_run(&shelf.policy->segments, segment, 3)->stamp,
                               shelf.policy->clock.tick);
        cr_assert(age >= before || age >= POLICY_AGE_MAX);
    }
    cr_assert_geq(age, POLICY_AGE_MAX);
    shelf_done(&shelf);
}

// Else each part would bring all of it from the origin.
Test(policy, a_run_that_is_read_in_parts_is_stored)
{
    struct shelf shelf;
    uint32_t stamp;
    shelf_init(&shelf, POLICY_EPOCH, SEGMENTS);
    policy_set_full(shelf.policy, true);
    cr_assert_not(policy_admit(shelf.policy, shelf_key(1), 0, false, &stamp));
    cr_assert(policy_admit(shelf.policy, shelf_key(1), 0, true, &stamp));
    cr_assert_not(shelf_miss(&shelf, 1, 3, &stamp));
    cr_assert(policy_admit(shelf.policy, shelf_key(1), 0, true, &stamp));
    cr_assert_eq(stamp, POLICY_STAMP_SAME);
    shelf_done(&shelf);
}

Test(policy, a_read_renews_the_stamp_once_a_use)
{
    struct shelf shelf;
    shelf_init(&shelf, POLICY_EPOCH, SEGMENTS);
    uint32_t number = shelf_fill(&shelf, 0, 0);
    const struct policy_segment *segment = policy_segments_find(&shelf.policy->segments, number);
    const struct policy_run *run = policy_segments_run(&shelf.policy->segments, segment, 4);
    uint32_t stamp = run->stamp;
    shelf_read(&shelf, 4, number, 4);
    cr_assert_eq(run->stamp, stamp);
    shelf_pass(&shelf, 600);
    shelf_read(&shelf, 4, number, 4);
    unsigned reuse_class = policy_stamp_class(run->stamp);
    cr_assert_eq(reuse_class, policy_class_next(600, POLICY_CLASS_NEW));
    shelf_read(&shelf, 4, number, 4);
    cr_assert_eq(policy_stamp_class(run->stamp), reuse_class);
    shelf_done(&shelf);
}

Test(policy, events_may_be_late)
{
    struct shelf shelf;
    uint32_t stamp, start;
    shelf_init(&shelf, POLICY_EPOCH, SEGMENTS);
    uint32_t number = shelf_fill(&shelf, 0, 0);
    policy_segment_drop(shelf.policy, number, 3, shelf_key(3));
    policy_segment_free(shelf.policy, number);
    policy_segment_free(shelf.policy, number);
    shelf_pass(&shelf, 400);
    shelf_read(&shelf, 3, number, 3); // dropped meanwhile: its past goes on
    cr_assert(policy_ghost_find(&shelf.policy->ghost, shelf_key(3), &stamp));
    cr_assert_eq(policy_stamp_class(stamp), policy_class_next(400, POLICY_CLASS_NEW));
    shelf_read(&shelf, 9, number, 9); // nothing is known of it any more
    struct policy_event events[] = {
        {.kind = POLICY_GONE, .segment = number, .start = 0},
        {.kind = POLICY_STORED, .segment = number, .start = 0, .len = 1, .stamp = stamp},
    };
    policy_take(shelf.policy, events, 2);
    struct policy_stats stats;
    policy_stats(shelf.policy, &stats);
    cr_assert_eq(stats.unranked_runs, 1u);
    cr_assert_not(policy_segment_run(shelf.policy, number, 0, &start));
    cr_assert_eq(policy_segment_run_count(shelf.policy, number), 0u);
    policy_segment_seal(shelf.policy, number);
    policy_segment_move(shelf.policy, number, 0, number, 0, 1);
    shelf_done(&shelf);
}

Test(policy, a_removed_run_stays_removed)
{
    struct shelf shelf;
    uint32_t start;
    shelf_init(&shelf, POLICY_EPOCH, SEGMENTS);
    uint32_t number = shelf_fill(&shelf, 0, 5);
    struct policy_event event = {.kind = POLICY_GONE, .segment = number, .start = 2 * RUN_BYTES};
    policy_take(shelf.policy, &event, 1);
    policy_take(shelf.policy, &event, 1);
    cr_assert_not(policy_segment_run(shelf.policy, number, 2, &start));
    cr_assert(policy_segment_run(shelf.policy, number, 3, &start));
    cr_assert_eq(start, 3 * RUN_BYTES);
    policy_segment_free(shelf.policy, number);
    shelf_done(&shelf);
}

// Reads `count` blocks once. Returns how many were admitted and evicted others. *ret_survivors: the
// number of evicted runs that would have been kept.
static unsigned read_once(struct shelf *shelf, uint64_t first, uint64_t count,
                          unsigned *ret_survivors)
{
    uint32_t stamp, survivors[SEGMENT_RUNS];
    unsigned admitted = 0;
    *ret_survivors = 0;
    for (uint64_t block = first; block < first + count; block++) {
        if (!shelf_miss(shelf, block, 0, &stamp)) {
            continue;
        }
        admitted++;
        if (shelf->run_count == 0) {
            struct policy_victim victim;
            cr_assert(policy_victim(shelf->policy, NULL, NULL, survivors, SEGMENT_RUNS, &victim));
            *ret_survivors += victim.survivor_count;
            policy_segment_free(shelf->policy, victim.number);
            shelf->number = victim.number + SEGMENTS - 1;
        }
        shelf_store(shelf, block, stamp);
    }
    return admitted;
}

Test(policy, a_new_data_set_replaces_the_old_one)
{
    struct shelf shelf;
    shelf_init(&shelf, POLICY_EPOCH, SEGMENTS);
    (void)read_in_cycles(&shelf, 4);
    unsigned survivors, admitted = read_once(&shelf, 1000000, 4 * CAPACITY_RUNS, &survivors);
    cr_assert_leq(survivors, SEGMENT_RUNS); // runs that were read earlier are suspect
    cr_assert_gt(admitted, CAPACITY_RUNS * 9 / 10);
    cr_assert_leq(admitted,
                  CAPACITY_RUNS * 9 / 8); // the suspects, and little of what took their room
    struct policy_stats stats;
    policy_stats(shelf.policy, &stats);
    cr_assert_geq(stats.silences, 1u);
    shelf_done(&shelf);
}

// It may be another whose key looks the same.
Test(policy, one_that_is_read_again_among_very_many_proves_nothing)
{
    struct shelf shelf;
    unsigned survivors;
    shelf_init(&shelf, POLICY_EPOCH, SEGMENTS);
    (void)read_in_cycles(&shelf, 1);
    (void)read_once(&shelf, 1000000, 2 * CAPACITY_RUNS, &survivors); // one capacity is given away
    (void)shelf_pass_by(&shelf, 1);
    (void)read_once(&shelf, 2000000, CAPACITY_RUNS / 2, &survivors);
    (void)shelf_pass_by(&shelf, 1);
    (void)read_once(&shelf, 3000000, CAPACITY_RUNS, &survivors);
    cr_assert_lt(read_once(&shelf, 4000000, 8 * CAPACITY_RUNS, &survivors), CAPACITY_RUNS / 8);
    shelf_done(&shelf);
}

// No cached run was ever read again, so a run that is asked for twice is worth more: at once, or
// after others.
Test(policy, a_run_read_again_is_stored_where_no_cached_run_ever_was)
{
    struct shelf shelf;
    unsigned survivors;
    uint32_t stamp;
    shelf_init(&shelf, POLICY_EPOCH, SEGMENTS);
    (void)read_in_cycles(&shelf, 1);
    (void)read_once(&shelf, 1000000, 8 * CAPACITY_RUNS, &survivors);
    for (uint64_t block = 2000000; block < 2000010; block++) {
        cr_assert_not(shelf_miss(&shelf, block, 0, &stamp));
        cr_assert(shelf_miss(&shelf, block, 0, &stamp), "%llu", (unsigned long long)block);
    }
    cr_assert_not(shelf_miss(&shelf, 3000000, 0, &stamp));
    (void)read_once(&shelf, 4000000, CAPACITY_RUNS / 2, &survivors);
    cr_assert(shelf_miss(&shelf, 3000000, 0, &stamp));
    shelf_done(&shelf);
}

// The cache holds objects of some worth. All but that one object keep it.
Test(policy, one_that_is_asked_for_again_at_once_opens_the_door_to_no_other)
{
    struct shelf shelf;
    uint32_t stamp;
    shelf_init(&shelf, POLICY_EPOCH, SEGMENTS);
    (void)read_in_cycles(&shelf, 5);
    cr_assert_not(shelf_miss(&shelf, 3000000, 0, &stamp));
    cr_assert(shelf_miss(&shelf, 3000000, 0, &stamp));
    cr_assert_not(shelf_miss(&shelf, 3000001, 0, &stamp));
    shelf_done(&shelf);
}

Test(policy, a_resize_changes_the_tick)
{
    struct shelf shelf;
    shelf_init(&shelf, POLICY_EPOCH, SEGMENTS);
    (void)shelf_fill(&shelf, 0, 0);
    uint32_t tick = shelf.policy->clock.tick;
    policy_resize(shelf.policy, shelf.options.capacity_bytes * 2);
    cr_assert_eq(shelf.policy->clock.tick_bytes,
                 (double)shelf.options.capacity_bytes * 2 / POLICY_CAPACITY_TICKS);
    cr_assert_eq(shelf.policy->clock.tick, tick); // the age of everything learnt is unchanged
    (void)shelf_fill(&shelf, 100, 0);
    shelf_done(&shelf);
}
