// SPDX-License-Identifier: Apache-2.0
#include "store/policy/policy_fixture.h"
#include "test.h"

#include <stdlib.h>

void shelf_init(struct shelf *shelf, enum policy_kind kind, uint32_t segments)
{
    *shelf =
        (struct shelf){.options = {.kind = kind,
                                   .capacity_bytes = (uint64_t)segments * SEGMENT_RUNS * RUN_BYTES,
                                   .segment_max = segments,
                                   .run_max = segments * SEGMENT_RUNS,
                                   .identity = 7}};
    size_t bytes = align_up_u64(policy_region_bytes(&shelf->options), 64);
    shelf->region = aligned_alloc(64, bytes);
    cr_assert_not_null(shelf->region);
    memset(shelf->region, 0, bytes);
    shelf->policy = policy_new(&shelf->options, shelf->region);
}

void shelf_done(struct shelf *shelf)
{
    policy_free(shelf->policy);
    shelf->policy = NULL;
    free(shelf->region);
    shelf->region = NULL;
}

uint64_t shelf_key(uint64_t block)
{
    return policy_key((struct hash128){block, block * 0x2545f4914f6cdd1du}, block);
}

bool shelf_miss(struct shelf *shelf, uint64_t block, unsigned group, uint32_t *ret_stamp)
{
    bool admitted = policy_admit(shelf->policy, shelf_key(block), group, false, ret_stamp);
    struct policy_event event = {.kind = admitted ? POLICY_ADMITTED : POLICY_REFUSED,
                                 .key = shelf_key(block),
                                 .len = RUN_BYTES,
                                 .stamp = *ret_stamp};
    policy_take(shelf->policy, &event, 1);
    return admitted;
}

bool shelf_pass_by(struct shelf *shelf, uint64_t block)
{
    struct policy_event event = {.kind = POLICY_REFUSED, .key = shelf_key(block), .len = RUN_BYTES};
    bool admitted = policy_admit(shelf->policy, event.key, 0, false, &event.stamp);
    policy_take(shelf->policy, &event, 1);
    return admitted;
}

void shelf_store(struct shelf *shelf, uint64_t block, uint32_t stamp)
{
    if (shelf->run_count == 0) {
        cr_assert(policy_segment_begin(shelf->policy, ++shelf->number));
    }
    uint32_t past = stamp; // its rule is what it was
    if (stamp == POLICY_STAMP_SAME) {
        (void)policy_ghost_find(&shelf->policy->ghost, shelf_key(block), &past);
    }
    struct policy_event event = {.kind = POLICY_STORED,
                                 .key = shelf_key(block),
                                 .segment = shelf->number,
                                 .start = shelf->run_count * RUN_BYTES,
                                 .len = RUN_BYTES,
                                 .stamp = stamp,
                                 .group = policy_stamp_group(past)};
    policy_take(shelf->policy, &event, 1);
    if (++shelf->run_count == SEGMENT_RUNS) {
        policy_segment_seal(shelf->policy, shelf->number);
        shelf->run_count = 0;
    }
}

void shelf_read(struct shelf *shelf, uint64_t block, uint32_t number, uint32_t index)
{
    const struct policy_segments *segments = &shelf->policy->segments;
    const struct policy_segment *segment = policy_segments_find(segments, number);
    bool is_there = segment != NULL && index < segment->run_count;
    uint32_t stamp = is_there ? policy_segments_run(segments, segment, index)->stamp : 0;
    struct policy_event event = {.kind = POLICY_READ,
                                 .key = shelf_key(block),
                                 .segment = number,
                                 .start = index * RUN_BYTES,
                                 .len = RUN_BYTES,
                                 .group = policy_stamp_group(stamp)};
    policy_take(shelf->policy, &event, 1);
}

uint32_t shelf_fill(struct shelf *shelf, uint64_t first, unsigned group)
{
    for (unsigned i = 0; i < SEGMENT_RUNS; i++) {
        uint32_t stamp;
        (void)shelf_miss(shelf, first + i, group, &stamp); // stored whatever the answer
        shelf_store(shelf, first + i, stamp);
    }
    return shelf->number;
}

void shelf_pass(struct shelf *shelf, uint32_t ticks)
{
    shelf->policy->clock.tick += ticks;
    policy_publish(shelf->policy);
}
