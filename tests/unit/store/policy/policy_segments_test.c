// SPDX-License-Identifier: Apache-2.0
// Proves: runs of any number are found by where they begin, in whatever order they came; pages come
// back; a full region refuses and goes on; one that is gone has nothing any more; memory is 16
// bytes a run at most.
#include "store/policy/policy_fixture.h"
#include "test.h"

#include <stdlib.h>

#define MANY 70000u

static void *segments_new(struct policy_segments *segments, uint32_t segment_max, uint32_t run_max)
{
    void *region = calloc(1, policy_segments_bytes(segment_max, run_max));
    cr_assert_not_null(region);
    memset(segments, 0, sizeof(*segments));
    policy_segments_init(segments, segment_max, run_max, region);
    return region;
}

Test(policy_segments, finds_every_run_of_a_large_segment)
{
    struct policy_segments segments;
    void *region = segments_new(&segments, 4, MANY);
    struct policy_segment *segment = policy_segments_begin(&segments, 9);
    cr_assert_not_null(segment);
    for (uint32_t i = 0; i < MANY; i++) {
        cr_assert(policy_segments_append(&segments, segment, i * 512, 500, i));
    }
    for (uint32_t i = 0; i < MANY; i++) {
        uint32_t index = 0;
        struct policy_run *run = policy_segments_run_at(&segments, segment, i * 512, &index);
        cr_assert_not_null(run);
        cr_assert_eq(index, i);
        cr_assert_eq(run->stamp, i);
        cr_assert_null(policy_segments_run_at(&segments, segment, i * 512 + 1, &index));
    }
    cr_assert_eq(policy_segments_run_len(&segments, segment, 5), 512u);
    cr_assert_eq(policy_segments_run_len(&segments, segment, MANY - 1), 500u);
    uint32_t used = segments.page_used;
    policy_segments_free(&segments, segment);
    cr_assert_null(policy_segments_find(&segments, 9));
    segment = policy_segments_begin(&segments, 13); // the same place of the table
    for (uint32_t i = 0; i < MANY; i++) {
        cr_assert(policy_segments_append(&segments, segment, i, 1, i));
    }
    cr_assert_eq(segments.page_used, used); // pages of the former one
    free(region);
}

Test(policy_segments, runs_may_come_out_of_order)
{
    struct policy_segments segments;
    void *region = segments_new(&segments, 4, 1000);
    struct policy_segment *segment = policy_segments_begin(&segments, 1);
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t at = i / 10 * 10 + 9 - i % 10;
        cr_assert(policy_segments_append(&segments, segment, at * 100, 100, at));
    }
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t index;
        cr_assert_eq(policy_segments_run_at(&segments, segment, i * 100, &index)->stamp, i);
        cr_assert_eq(index, i);
    }
    cr_assert_eq(segment->end, 30000u);
    free(region);
}

Test(policy_segments, a_full_region_refuses_and_continues)
{
    struct policy_segments segments;
    void *region = segments_new(&segments, 2, 64);
    struct policy_segment *segment = policy_segments_begin(&segments, 1);
    uint32_t count = 0;
    while (count < 10000 && policy_segments_append(&segments, segment, count, 1, count)) {
        count++;
    }
    cr_assert_geq(count, 64u);
    cr_assert_lt(count, 10000u);
    uint32_t index;
    cr_assert_eq(policy_segments_run_at(&segments, segment, count - 1, &index)->stamp, count - 1);
    cr_assert_null(policy_segments_begin(&segments, 3)); // its place is taken
    policy_segments_free(&segments, segment);
    segment = policy_segments_begin(&segments, 3);
    cr_assert(policy_segments_append(&segments, segment, 0, 1, 0));
    free(region);
}

Test(policy_segments, sealed_ones_are_a_list)
{
    struct policy_segments segments;
    void *region = segments_new(&segments, 8, 64);
    for (uint32_t n = 1; n <= 8; n++) {
        policy_segments_set_state(&segments, policy_segments_begin(&segments, n),
                                  POLICY_SEGMENT_SEALED);
    }
    policy_segments_free(&segments, policy_segments_find(&segments, 3));
    policy_segments_set_state(&segments, policy_segments_find(&segments, 8), POLICY_SEGMENT_OPEN);
    cr_assert_eq(segments.sealed_count, 6u);
    for (uint32_t i = 0; i < segments.sealed_count; i++) {
        struct policy_segment *segment = &segments.table[segments.sealed[i].at];
        cr_assert_eq(segment->state, POLICY_SEGMENT_SEALED);
        cr_assert_eq(segment->sealed_at, i);
    }
    free(region);
}

Test(policy_segments, old_stamps_stay_old)
{
    struct policy_segments segments;
    void *region = segments_new(&segments, 2, 64);
    struct policy_segment *segment = policy_segments_begin(&segments, 1);
    cr_assert(policy_segments_append(&segments, segment, 0, 1, policy_stamp(5, 7, 3)));
    for (uint32_t tick = 5; tick < 3u << POLICY_TICK_BITS; tick += POLICY_AGE_MAX / 2) {
        policy_segments_sweep(&segments, segment, tick);
        uint32_t stamp = policy_segments_run(&segments, segment, 0)->stamp;
        cr_assert_eq(policy_stamp_class(stamp), 7u);
        cr_assert_eq(policy_stamp_group(stamp), 3u);
        cr_assert(tick - 5 < POLICY_AGE_MAX || policy_stamp_age(stamp, tick) >= POLICY_AGE_MAX);
    }
    free(region);
}

// Pages of one that is gone belong to others.
Test(policy_segments, sweeping_a_place_that_is_free_changes_nothing)
{
    struct policy_segments segments;
    void *region = segments_new(&segments, 2, MANY);
    struct policy_segment *gone = policy_segments_begin(&segments, 1);
    for (uint32_t i = 0; i < MANY / 2; i++) {
        cr_assert(policy_segments_append(&segments, gone, i, 1, policy_stamp(0, 9, 0)));
    }
    policy_segments_free(&segments, gone);
    struct policy_segment *other = policy_segments_begin(&segments, 2);
    for (uint32_t i = 0; i < MANY / 2; i++) {
        cr_assert(policy_segments_append(&segments, other, i, 1, policy_stamp(0, 9, 0)));
    }
    cr_assert_eq(gone->run_count, 0u);
    policy_segments_sweep(&segments, gone, POLICY_AGE_MAX + 1);
    for (uint32_t i = 0; i < MANY / 2; i++) {
        cr_assert_eq(policy_segments_run(&segments, other, i)->stamp, policy_stamp(0, 9, 0));
    }
    free(region);
}

Test(policy_segments, each_segment_may_hold_a_few)
{
    struct policy_segments segments;
    void *region = segments_new(&segments, 64, 128);
    for (uint32_t n = 1; n <= 64; n++) {
        struct policy_segment *segment = policy_segments_begin(&segments, n);
        cr_assert(policy_segments_append(&segments, segment, 0, 1, n));
        cr_assert(policy_segments_append(&segments, segment, 1, 1, n));
    }
    free(region);
}

Test(policy_segments, sixteen_bytes_a_run)
{
    struct policy_options options = {
        .kind = POLICY_EPOCH, .segment_max = 1u << 14, .run_max = 1u << 20};
    cr_assert_leq(policy_region_bytes(&options), 16u << 20);
    cr_assert_lt(sizeof(struct policy), 1u << 20);
}
