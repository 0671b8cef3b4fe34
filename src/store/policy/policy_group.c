// SPDX-License-Identifier: Apache-2.0
// Implements priorities, shares and pins as factors on rank, so that few other files depend on
// them.
//
// A share is a factor that falls when the group's bytes approach and exceed the share. It falls by
// four octaves for each 64th of the capacity, or for each half of the share if that is less. So the
// group's runs are worth no more than other runs when the group holds about its share. Within the
// group, a run still replaces a run of lower worth. The group may exceed its share while the cache
// has room, or while no other group needs the room. The excess is evicted first.
//
// A run on probation counts towards its group's share, because it takes room. The share never
// causes its refusal, because the run will be evicted soon.
//
// A pin is a rank above all others. All pinned runs together have one limit. Beyond it, a new run
// is treated as unpinned until a client reads it while pins have room. Segments on probation are
// evicted whole, so a run that is stored in one is treated as unpinned.
//
// When a rule is removed, or a group gains or loses its pin, tens of millions of stored runs may
// need a change. So policy_groups_step() processes them in steps, and the caller releases the
// policy's lock between steps. A run that is stored between two steps does not join a group that is
// being vacated. A segment's count of pinned runs may be wrong until a step has recounted it. Until
// then the segment may be kept longer than necessary, or its runs may be rewritten needlessly.
#include "store/policy/policy_private.h"

#include <math.h>

// A step is 1/SHARE_STEP_PARTS of the capacity. From one step below the group's share, the factor
// falls by SHARE_STEP_OCTAVES for each step. It falls by at most SHARE_OCTAVES_MAX, so that the
// group's runs keep their order.
#define SHARE_STEP_PARTS 64u
#define SHARE_STEP_OCTAVES 4.0f
#define SHARE_OCTAVES_MAX 12.0f

void policy_groups_init(struct policy *policy)
{
    for (unsigned i = 0; i < POLICY_GROUPS; i++) {
        policy_group_set(policy, i, &(struct policy_group){.factor = 1});
    }
}

static void segment_count_pins(const struct policy_segments *segments,
                               struct policy_segment *segment)
{
    segment->pinned_count = 0;
    for (uint32_t i = 0; i < segment->run_count; i++) {
        uint32_t stamp = policy_segments_run(segments, segment, i)->stamp;
        segment->pinned_count += stamp != POLICY_STAMP_GONE &&
                                 (segments->pinned_groups >> policy_stamp_group(stamp) & 1);
    }
}

void policy_group_set(struct policy *policy, unsigned group, const struct policy_group *options)
{
    struct policy_groups *groups = &policy->groups;
    check(group < POLICY_GROUPS);
    check(options->factor > 0);
    check(options->share_percent <= 100);
    check(!options->is_pinned || (options->plain < POLICY_GROUPS && options->plain != group));
    bool was_pinned = groups->of[group].options.is_pinned;
    uint32_t bit = 1u << group;
    if (options->identity == 0 || options->identity != groups->of[group].options.identity) {
        groups->now[group] = options->identity == 0 ? (uint8_t)group : 0;
    }
    groups->of[group].options = *options;
    groups->limited &= ~bit;
    groups->limited |= options->is_pinned || options->share_percent > 0 ? bit : 0;
    policy->segments.pinned_groups &= ~bit;
    policy->segments.pinned_groups |= options->is_pinned ? bit : 0;
    if (was_pinned != options->is_pinned && policy->segments.group_bytes[group] > 0) {
        groups->counts_pins = true;
        groups->step_at = 0;
    }
    groups->of[group].level_shift = policy_rank_levels(options->factor);
    groups->of[group].is_kept = false;
    atomic_store_explicit(&policy->published.factor[group], options->factor, memory_order_relaxed);
    policy_groups_tend(policy);
}

uint64_t policy_group_identity(const struct policy *policy, unsigned group)
{
    check(group < POLICY_GROUPS);
    return policy->groups.of[group].options.identity;
}

static void segment_leave_groups(struct policy *policy, struct policy_segment *segment,
                                 uint32_t groups)
{
    for (uint32_t i = 0; i < segment->run_count; i++) {
        uint32_t stamp = policy_segments_run(&policy->segments, segment, i)->stamp;
        unsigned group = policy_stamp_group(stamp);
        if (stamp != POLICY_STAMP_GONE && (groups >> group & 1) != 0) {
            stamp = policy_stamp_grouped(stamp, policy->groups.of[group].options.plain);
            policy_segments_set_stamp(&policy->segments, segment, i, stamp);
        }
    }
}

void policy_groups_vacate(struct policy *policy, uint32_t groups)
{
    for (uint32_t left = groups; left != 0; left &= left - 1) {
        unsigned group = (unsigned)__builtin_ctz(left);
        check((groups >> policy->groups.of[group].options.plain & 1) == 0);
    }
    policy->groups.vacating |= groups;
    policy->groups.step_at = 0;
}

static uint64_t vacating_bytes(const struct policy *policy)
{
    uint64_t bytes = 0;
    for (uint32_t left = policy->groups.vacating; left != 0; left &= left - 1) {
        bytes += policy->segments.group_bytes[__builtin_ctz(left)];
    }
    return bytes;
}

// Resets the vacated groups, which are empty now, to their initial settings.
static void vacating_end(struct policy *policy)
{
    check(vacating_bytes(policy) == 0);
    uint32_t groups = policy->groups.vacating;
    policy->groups.vacating = 0;
    for (uint32_t left = groups; left != 0; left &= left - 1) {
        policy_group_set(policy, (unsigned)__builtin_ctz(left),
                         &(struct policy_group){.factor = 1});
    }
}

bool policy_groups_step(struct policy *policy, uint32_t runs_max)
{
    struct policy_groups *groups = &policy->groups;
    struct policy_segments *segments = &policy->segments;
    check(runs_max > 0); // with 0, the steps would never end
    check(groups->step_at <= segments->table_size);
    if (vacating_bytes(policy) == 0 && !groups->counts_pins) {
        vacating_end(policy);
        return false;
    }
    uint64_t runs = 0;
    for (; groups->step_at < segments->table_size && runs < runs_max; groups->step_at++) {
        struct policy_segment *segment = &segments->table[groups->step_at];
        if (groups->vacating != 0) {
            segment_leave_groups(policy, segment, groups->vacating);
        }
        if (groups->counts_pins) {
            segment_count_pins(segments, segment);
        }
        runs += segment->run_count + 1; // + 1, because an empty segment takes time, too
    }
    if (groups->step_at < segments->table_size) {
        return true;
    }
    groups->counts_pins = false;
    // A second pass follows if survivors have moved to segments that this pass has already visited.
    groups->step_at = 0;
    if (vacating_bytes(policy) > 0) {
        return true;
    }
    vacating_end(policy);
    return false;
}

void policy_pins_set_max(struct policy *policy, uint64_t bytes)
{
    policy->groups.pinned_max_bytes = bytes;
    policy_groups_tend(policy);
}

static uint64_t share_bytes(const struct policy *policy, const struct policy_group *options)
{
    check(options->share_percent <= 100);
    return policy->clock.capacity_bytes / 100 * options->share_percent;
}

static float share_factor(const struct policy *policy, unsigned group)
{
    uint64_t share = share_bytes(policy, &policy->groups.of[group].options);
    uint64_t step = min_u64(policy->clock.capacity_bytes / SHARE_STEP_PARTS, share / 2) + 1;
    uint64_t held = policy->segments.group_bytes[group];
    if (held + step <= share) {
        return 1;
    }
    float octaves = (float)(held + step - share) / (float)step * SHARE_STEP_OCTAVES;
    return exp2f(octaves < SHARE_OCTAVES_MAX ? -octaves : -SHARE_OCTAVES_MAX);
}

static uint64_t pinned_bytes(const struct policy *policy)
{
    uint64_t bytes = 0;
    for (uint32_t left = policy->segments.pinned_groups; left != 0; left &= left - 1) {
        bytes += policy->segments.group_bytes[__builtin_ctz(left)];
    }
    return bytes;
}

void policy_groups_tend(struct policy *policy)
{
    struct policy_groups *groups = &policy->groups;
    if (groups->limited == 0) {
        return;
    }
    groups->pinned_bytes = pinned_bytes(policy);
    for (uint32_t left = groups->limited; left != 0; left &= left - 1) {
        unsigned group = (unsigned)__builtin_ctz(left);
        struct policy_group_state *state = &groups->of[group];
        const struct policy_group *options = &state->options;
        float factor = options->factor;
        if (options->share_percent > 0) {
            factor *= share_factor(policy, group);
        }
        check(factor > 0); // a negative value means a pin
        state->level_shift = policy_rank_levels(factor);
        state->is_kept = options->is_pinned && groups->pinned_bytes <= groups->pinned_max_bytes;
        bool takes = options->is_pinned && groups->pinned_bytes < groups->pinned_max_bytes;
        atomic_store_explicit(&policy->published.factor[group],
                              takes ? POLICY_FACTOR_PINNED : factor, memory_order_relaxed);
    }
}

unsigned policy_group_take(const struct policy *policy, const struct policy_segment *segment,
                           unsigned group, uint32_t len)
{
    check(group < POLICY_GROUPS);
    if ((policy->groups.vacating >> group & 1) != 0) {
        return policy->groups.of[group].options.plain; // the group must become empty
    }
    const struct policy_group *options = &policy->groups.of[group].options;
    if (!options->is_pinned) {
        return group;
    }
    check(options->plain < POLICY_GROUPS && options->plain != group);
    bool goes_soon = segment != NULL && segment->is_probation;
    bool is_over = pinned_bytes(policy) + len > policy->groups.pinned_max_bytes;
    return goes_soon || is_over ? options->plain : group;
}

void policy_group_move(struct policy *policy, struct policy_segment *segment, uint32_t index,
                       unsigned group)
{
    struct policy_segments *segments = &policy->segments;
    check(index < segment->run_count);
    uint32_t stamp = policy_segments_run(segments, segment, index)->stamp;
    uint32_t len = policy_segments_run_len(segments, segment, index);
    check(stamp != POLICY_STAMP_GONE);
    group = policy_group_take(policy, segment, group, len);
    policy_segments_set_stamp(segments, segment, index, policy_stamp_grouped(stamp, group));
}

unsigned policy_segment_group(const struct policy *policy, uint32_t number, uint32_t index)
{
    const struct policy_segment *segment = policy_segments_find(&policy->segments, number);
    if (segment == NULL || index >= segment->run_count) {
        return POLICY_GROUPS;
    }
    uint32_t stamp = policy_segments_run(&policy->segments, segment, index)->stamp;
    return stamp == POLICY_STAMP_GONE ? POLICY_GROUPS : policy_stamp_group(stamp);
}

void policy_segment_regroup(struct policy *policy, uint32_t number, uint32_t index, unsigned group)
{
    if (policy_segment_group(policy, number, index) != POLICY_GROUPS) {
        policy_group_move(policy, policy_segments_find(&policy->segments, number), index, group);
        policy_groups_tend(policy);
    }
}

void policy_group_figures(const struct policy *policy, unsigned group,
                          struct policy_group_figures *ret_figures)
{
    check(group < POLICY_GROUPS);
    const struct policy_group *options = &policy->groups.of[group].options;
    *ret_figures = (struct policy_group_figures){
        .bytes = options->is_pinned ? pinned_bytes(policy) : policy->segments.group_bytes[group],
        .is_pinned = options->is_pinned,
        .share_percent = options->share_percent,
        .plain = options->identity != 0 ? options->plain : group,
        .bytes_max =
            options->is_pinned ? policy->groups.pinned_max_bytes : share_bytes(policy, options),
    };
}

uint32_t policy_segment_pinned_count(const struct policy *policy, uint32_t number)
{
    const struct policy_segment *segment = policy_segments_find(&policy->segments, number);
    bool hold = policy->groups.pinned_bytes <= policy->groups.pinned_max_bytes;
    return segment != NULL && hold ? segment->pinned_count : 0;
}

bool policy_segment_is_pinned(const struct policy *policy, uint32_t number, uint32_t index)
{
    const struct policy_segment *segment = policy_segments_find(&policy->segments, number);
    if (segment == NULL || index >= segment->run_count) {
        return false;
    }
    uint32_t stamp = policy_segments_run(&policy->segments, segment, index)->stamp;
    return stamp != POLICY_STAMP_GONE && policy->groups.of[policy_stamp_group(stamp)].is_kept;
}
