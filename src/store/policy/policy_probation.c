// SPDX-License-Identifier: Apache-2.0
// What is worth too little to be kept, and is stored all the same: because a part of it was wanted
// and the others will be, or because what is missed lately is asked for again at once, by readers
// side by side. It goes into segments of its own, on probation: they do not lower the bar, and go
// whole, the oldest first, as soon as another one is wanted. What is asked for after that has a
// past, and is judged by it.
//
// More of them are kept when something is asked for again, within its use or little later, that was
// there already: it went too soon. When nothing has been stored there for a while they are segments
// like all others.
#include "store/policy/policy_private.h"

#define KEEP_STEP_PART 256 // of the capacity: more, for each that went too soon
#define KEEP_MAX_PART 8    // of what pins leave of it
#define KEEP_LESS_PART 32  // of what is kept: less, after each period
#define IDLE_PART 16       // of the capacity asked for since something was stored there
#define SOON_OCTAVES 4u    // pairs of them, of ticks: a quarter of the capacity

static void probation_keep(struct policy *policy, uint64_t bytes)
{
    uint64_t capacity = policy->clock.capacity_bytes;
    uint64_t most = (capacity - min_u64(policy->groups.pinned_bytes, capacity)) / KEEP_MAX_PART;
    policy->probation.keep_bytes = min_u64(bytes, most);
    atomic_store_explicit(&policy->published.probation_fails, bytes >= most, memory_order_relaxed);
}

void policy_probation_stored(struct policy *policy, struct policy_segment *segment,
                             bool on_probation)
{
    segment->is_probation = on_probation && (segment->is_probation || segment->run_count == 0);
    if (on_probation) {
        policy->probation.fed_at = policy->clock.asked_bytes;
        policy->probation.is_used = true;
    }
}

static bool is_soon(unsigned reuse_class)
{
    return !policy_class_is_new(reuse_class) && (reuse_class - 1) % 8 < SOON_OCTAVES;
}

void policy_probation_missed(struct policy *policy, const struct policy_event *event)
{
    bool too_soon = event->stamp == POLICY_STAMP_SAME
                        ? event->on_probation
                        : event->is_part && is_soon(policy_stamp_class(event->stamp));
    if (too_soon) {
        uint64_t step = policy->clock.capacity_bytes / KEEP_STEP_PART;
        probation_keep(policy, policy->probation.keep_bytes + step);
    }
}

void policy_probation_tend(struct policy *policy)
{
    uint64_t bytes = policy->probation.keep_bytes;
    probation_keep(policy, bytes - bytes / KEEP_LESS_PART);
}

static void probation_end(struct policy *policy)
{
    struct policy_segments *segments = &policy->segments;
    for (uint32_t i = 0; i < segments->sealed_count; i++) {
        struct policy_segment *segment = &segments->table[segments->sealed[i].at];
        segments->sealed[i].cost = segment->is_probation ? 0 : segments->sealed[i].cost;
        segment->is_probation = false;
    }
    probation_keep(policy, 0);
    policy->probation.is_used = false;
    policy->probation.has_ended = true;
}

bool policy_probation_ended(struct policy *policy)
{
    bool ended = policy->probation.has_ended;
    policy->probation.has_ended = false;
    return ended;
}

// *ret_bytes: of all of them.
static struct policy_segment *probation_oldest(const struct policy *policy,
                                               bool (*may_go)(void *ctx, uint32_t number),
                                               void *ctx, uint64_t *ret_bytes)
{
    const struct policy_segments *segments = &policy->segments;
    struct policy_segment *oldest = NULL;
    *ret_bytes = 0;
    for (uint32_t i = 0; i < segments->sealed_count; i++) {
        struct policy_segment *segment = &segments->table[segments->sealed[i].at];
        if (!segment->is_probation) {
            continue;
        }
        *ret_bytes += segment->end;
        if ((oldest == NULL || segment->number < oldest->number) &&
            (may_go == NULL || may_go(ctx, segment->number))) {
            oldest = segment;
        }
    }
    return oldest;
}

struct policy_segment *policy_probation_due(struct policy *policy,
                                            bool (*may_go)(void *ctx, uint32_t number), void *ctx)
{
    const struct policy_clock *clock = &policy->clock;
    uint64_t bytes;
    if (policy->probation.is_used &&
        clock->asked_bytes - policy->probation.fed_at > clock->capacity_bytes / IDLE_PART) {
        probation_end(policy);
        return NULL;
    }
    // When it was over the last one was still open.
    struct policy_segment *oldest = probation_oldest(policy, may_go, ctx, &bytes);
    return bytes > policy->probation.keep_bytes ? oldest : NULL;
}

struct policy_segment *policy_probation_oldest(const struct policy *policy,
                                               bool (*may_go)(void *ctx, uint32_t number),
                                               void *ctx)
{
    uint64_t bytes;
    return probation_oldest(policy, may_go, ctx, &bytes);
}
