// SPDX-License-Identifier: Apache-2.0
// Probation: runs of low worth that are stored nevertheless, for one of two reasons. Either a
// client requested a part of the run and will probably request the other parts. Or clients have
// lately requested many missed runs again soon after the miss, as parallel readers of the same
// objects do.
//
// These runs are stored in separate segments, on probation. The bar ignores such segments. Up to
// KEEP_REQUESTS mean requests may stay on probation. If there are more when a segment must be
// evicted, the oldest segment on probation is evicted whole. When nothing has been stored on
// probation for a while, no run may stay.
#include "store/policy/policy_private.h"

// Bytes that may stay on probation, in mean requests. A parallel reader may lag behind the first
// one by this much, and still find its runs.
#define KEEP_REQUESTS 32.0
#define IDLE_PART 16u // probation is idle after 1/IDLE_PART of the capacity was requested

void policy_probation_stored(struct policy *policy, struct policy_segment *segment,
                             bool on_probation)
{
    check(segment->number != 0);
    segment->is_probation = on_probation && (segment->is_probation || segment->run_count == 0);
    if (on_probation) {
        policy->probation_fed_at = policy->clock.asked_bytes;
    }
}

bool policy_probation_is_idle(const struct policy *policy)
{
    const struct policy_clock *clock = &policy->clock;
    check(policy->probation_fed_at <= clock->asked_bytes);
    return clock->asked_bytes - policy->probation_fed_at > clock->capacity_bytes / IDLE_PART;
}

static bool are_kept(const struct policy *policy, uint64_t bytes)
{
    return !policy_probation_is_idle(policy) &&
           (double)bytes <= KEEP_REQUESTS * policy->clock.mean_bytes;
}

struct policy_segment *policy_probation_victim(const struct policy *policy, bool must_be_due,
                                               bool (*may_go)(void *ctx, uint32_t number),
                                               void *ctx)
{
    const struct policy_segments *segments = &policy->segments;
    struct policy_segment *oldest = NULL;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < segments->sealed_count; i++) {
        struct policy_segment *segment = &segments->table[segments->sealed[i].at];
        check(segment->state == POLICY_SEGMENT_SEALED);
        if (!segment->is_probation) {
            continue;
        }
        bytes += segment->end;
        if ((oldest == NULL || segment->number < oldest->number) &&
            (may_go == NULL || may_go(ctx, segment->number))) {
            oldest = segment;
        }
    }
    return must_be_due && are_kept(policy, bytes) ? NULL : oldest;
}
