// SPDX-License-Identifier: Apache-2.0
// Runs that are worth too little to be kept, and are stored all the same, for one of two reasons. A
// request wanted a part of the run, and others will want the rest. Or missed runs are often
// requested again at once, because several readers read the same data side by side.
//
// These runs are on probation, in segments of their own. Such a segment does not lower the bar. It
// is evicted whole, the oldest first, when a new segment is needed and more bytes are on probation
// than are kept. If no run has been stored on probation for a while, these segments are evicted
// before all others.
#include "store/policy/policy_private.h"

#define KEEP_REQUESTS 32.0 // the bytes of this many requests are kept on probation
#define IDLE_PART 16u      // idle after requests for this part of the capacity (divisor)

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
