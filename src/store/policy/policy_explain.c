// SPDX-License-Identifier: Apache-2.0
// Reports the values that decide whether a run is kept or would be stored. Changes nothing.
#include "store/policy/policy_private.h"

// Intervals between two uses are counted in eight classes. Each class spans two octaves, a factor
// of four. Class 0 begins at one tick. Returns the lower bound of class `pair` in bytes.
static uint64_t interval_bytes(const struct policy_clock *clock, unsigned pair)
{
    check(pair < 8);
    return (uint64_t)(clock->tick_bytes * (double)(1u << (2 * pair)));
}

static void explain_past(const struct policy *policy, uint32_t stamp,
                         struct policy_explanation *why)
{
    const struct policy_clock *clock = &policy->clock;
    unsigned reuse_class = policy_stamp_class(stamp);
    check(stamp != POLICY_STAMP_GONE);
    check(reuse_class < POLICY_CLASSES);
    why->is_known = true;
    why->group = policy_stamp_group(stamp);
    why->age_bytes = (uint64_t)(clock->tick_bytes * policy_stamp_age(stamp, clock->tick));
    if (reuse_class != POLICY_CLASS_NEW && reuse_class < POLICY_CLASS_SILENT) {
        unsigned former = (reuse_class - 1) / 8;
        why->interval_bytes = interval_bytes(clock, (reuse_class - 1) % 8);
        why->former_interval_bytes = former == 0 ? 0 : interval_bytes(clock, former - 1);
    }
}

void policy_explain(const struct policy *policy, uint64_t key, unsigned group, uint32_t number,
                    uint32_t start, struct policy_explanation *ret_explanation)
{
    check(policy->magic == POLICY_MAGIC);
    struct policy_explanation why = {.group = group, .age_bytes = POLICY_UNKNOWN};
    const struct policy_segment *segment = policy_segments_find(&policy->segments, number);
    uint32_t stamp, past, index;
    const struct policy_run *run =
        segment != NULL ? policy_segments_run_at(&policy->segments, segment, start, &index) : NULL;
    why.would_be_taken = policy_admit(policy, key, group, false, &stamp) == POLICY_STORE;
    why.bar = atomic_load_explicit(&policy->published.bar, memory_order_relaxed);
    if (run != NULL) {
        explain_past(policy, run->stamp, &why);
        why.is_stored = true;
        why.is_on_probation = segment->is_probation;
        why.is_pinned = policy->groups.of[why.group].is_kept;
        why.rank = policy->ranks.level_rank[policy_level(policy, run->stamp)];
    } else {
        unsigned reuse_class = policy_stamp_class(stamp);
        if (policy_ghost_find(&policy->ghost, key, &past)) {
            explain_past(policy, past, &why);
            why.group = group;
            if (stamp == POLICY_STAMP_SAME) {
                reuse_class = policy_stamp_class(past);
            }
        }
        why.rank = policy_worth(policy, reuse_class, group);
        // If a run is requested a second time within one use, policy_admit() stores it, whatever
        // its worth. The explanation ignores this rule: it reports that the run would be stored
        // only if its worth exceeds the bar, or if the runs that would be evicted are worth
        // nothing.
        bool is_worth_it = why.rank > why.bar || policy_replaces_nothing(policy);
        why.would_be_taken = why.would_be_taken && (stamp != POLICY_STAMP_SAME || is_worth_it);
    }
    *ret_explanation = why;
}
