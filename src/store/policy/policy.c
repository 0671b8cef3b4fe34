// SPDX-License-Identifier: Apache-2.0
// Implements the functions of policy.h for the life of the policy and of segments, and takes the
// events. Events of reads, misses and stored runs come from the workers' rings. Those of one worker
// arrive in order, those of different workers in any order. A period ends when clients have
// requested as many bytes as about a sixteenth of the capacity. The policy then computes again what
// a run is worth (policy_rank.c), from how soon runs were read again (policy_monitor.c).
#include "store/policy/policy_private.h"

#include <stdlib.h>

#define PERIODS_PER_CAPACITY 16u
// A period has at least PERIOD_REQUESTS requests, because computing ranks would otherwise be most
// of the cost of each request. In a small cache, PERIOD_REQUESTS_MIN are enough if clients have
// requested 1/PERIOD_MAX_PART of the capacity. There, a pass over the data has few requests, and
// without ranks the runs to be read next are evicted.
#define PERIOD_REQUESTS 2048u
#define PERIOD_REQUESTS_MIN 64u
#define PERIOD_MAX_PART 5u
#define PERIOD_SWEEPS 3u // the monitor sweeps this many keys for each request of a period
#define HALF_LIFE_CAPACITIES 2.0
// Part of the unused rewrite credit that is left after a period.
#define CREDIT_KEPT 0.85
// The sweep visits every stamp once in this many ticks.
#define STAMP_SWEEP_TICKS (POLICY_AGE_MAX / 2)

static_assert(sizeof(struct policy) < 1u << 20, "the fixed part stays small");
static_assert(POLICY_AGE_MAX + STAMP_SWEEP_TICKS < POLICY_TICK_MASK / 2, "swept before they wrap");

static uint32_t ghost_set_count(const struct policy_options *options)
{
    return policy_ghost_sets(options->former_max != 0 ? options->former_max : options->run_max);
}

// The ghost has the first bytes of the region, because the part for runs, after it, may grow.
static size_t ghost_bytes(const struct policy_options *options)
{
    return align_up_u64(ghost_set_count(options) * sizeof(struct policy_ghost_set), 128);
}

size_t policy_region_bytes(const struct policy_options *options)
{
    return ghost_bytes(options) + policy_segments_bytes(options->segment_max, options->run_max);
}

size_t policy_region_least(const struct policy_options *options)
{
    return ghost_bytes(options) + policy_segments_bytes(options->segment_max, 0);
}

static bool on_segments_grow(void *ctx, size_t bytes)
{
    const struct policy *policy = ctx;
    const struct policy_options *options = &policy->options;
    return options->grow(options->grow_ctx, ghost_bytes(options) + bytes);
}

struct policy *policy_new(const struct policy_options *options, void *region)
{
    check(options->segment_max > 0);
    check(region != NULL);
    check(((uintptr_t)region & 63) == 0);
    // Pages from calloc() take no memory until they are written. A policy of the kind POLICY_LRU
    // writes few of them, so it needs no smaller struct.
    char *memory = calloc(1, sizeof(struct policy) + 64);
    check(memory != NULL);
    struct policy *policy = (struct policy *)(void *)(memory + (-(uintptr_t)memory & 63));
    policy->magic = POLICY_MAGIC;
    policy->memory = memory;
    policy->kind = options->kind;
    policy->options = *options;
    policy_segments_init(&policy->segments, options->segment_max, options->run_max,
                         (char *)region + ghost_bytes(options));
    if (options->grow != NULL) {
        policy_segments_may_grow(&policy->segments, on_segments_grow, policy);
    }
    policy->ghost.sets = region;
    policy->ghost.set_count = ghost_set_count(options);
    policy_clock_init(&policy->clock, options->capacity_bytes);
    policy_monitor_init(&policy->monitor);
    policy_ranks_init(&policy->ranks);
    policy_groups_init(policy);
    policy_publish(policy);
    return policy;
}

void policy_free(struct policy *policy)
{
    if (policy != NULL) {
        check(policy->magic == POLICY_MAGIC);
        policy->magic = 0;
        free(policy->memory);
    }
}

void policy_resize(struct policy *policy, uint64_t capacity_bytes)
{
    check(policy->magic == POLICY_MAGIC);
    policy->options.capacity_bytes = capacity_bytes;
    policy_clock_resize(&policy->clock, capacity_bytes);
    policy_groups_tend(policy);
    policy_publish(policy);
}

void policy_set_full(struct policy *policy, bool is_full)
{
    if (policy->reclaim.is_full != is_full) {
        policy->reclaim.is_full = is_full;
        policy_publish(policy);
    }
}

// --- events --------------------------------------------------------------------------------------

// Returns how many of `count` items to sweep after a period of `ticks` ticks. A period takes many
// ticks if requests are large relative to the cache.
static uint32_t sweep_share(uint32_t count, uint32_t ticks)
{
    check(count > 0);
    uint64_t parts = min_u64(ticks, STAMP_SWEEP_TICKS);
    return (uint32_t)min_u64(count, count * parts / STAMP_SWEEP_TICKS + 1);
}

static void stamps_sweep(struct policy *policy, uint32_t ticks)
{
    uint32_t tick = policy->clock.tick;
    for (uint32_t i = sweep_share(policy->segments.table_size, ticks); i > 0; i--) {
        policy->swept_segment = (policy->swept_segment + 1) % policy->segments.table_size;
        policy_segments_sweep(&policy->segments, &policy->segments.table[policy->swept_segment],
                              tick);
    }
    for (uint32_t i = sweep_share(policy->ghost.set_count, ticks); i > 0; i--) {
        policy->swept_set = (policy->swept_set + 1) % policy->ghost.set_count;
        policy_ghost_sweep(&policy->ghost, policy->swept_set, tick);
    }
}

void policy_period_end(struct policy *policy)
{
    struct policy_clock *clock = &policy->clock;
    check(clock->asked_bytes >= policy->period_began);
    check(clock->capacity_bytes > 0);
    policy_monitor_sweep(&policy->monitor, clock->tick, PERIOD_SWEEPS * policy->period_requests);
    policy_renew(policy);
    double capacities =
        (double)(clock->asked_bytes - policy->period_began) / (double)clock->capacity_bytes;
    policy_monitor_decay(&policy->monitor, capacities / HALF_LIFE_CAPACITIES);
    policy->reclaim.rewrite_credit *= CREDIT_KEPT;
    stamps_sweep(policy, clock->tick - policy->period_tick);
    policy->period_tick = clock->tick;
    policy->period_began = clock->asked_bytes;
    policy->period_requests = 0;
}

static void take_request(struct policy *policy, uint32_t bytes)
{
    struct policy_clock *clock = &policy->clock;
    policy_clock_advance(clock, bytes);
    uint64_t period_bytes = clock->asked_bytes - policy->period_began;
    uint32_t requests = ++policy->period_requests;
    bool is_long =
        requests >= PERIOD_REQUESTS || (requests >= PERIOD_REQUESTS_MIN &&
                                        period_bytes >= clock->capacity_bytes / PERIOD_MAX_PART);
    if ((is_long && period_bytes >= clock->capacity_bytes / PERIODS_PER_CAPACITY) ||
        clock->tick - policy->period_tick >= STAMP_SWEEP_TICKS) {
        policy_period_end(policy);
    }
}

// Takes the event of a read whose run has been removed since. Updates the run's past in the ghost,
// as if the event had arrived before the removal.
static void take_late_read(struct policy *policy, uint64_t key)
{
    uint32_t past;
    if (policy_ghost_find(&policy->ghost, key, &past)) {
        uint32_t age = policy_stamp_age(past, policy->clock.tick);
        unsigned reuse_class = policy_stamp_class(past);
        if (age > policy->clock.same_use) {
            reuse_class = policy_class_next(age, reuse_class);
            policy_monitor_touch(&policy->monitor, &policy->clock, key, reuse_class, true, false);
        }
        policy_ghost_put(&policy->ghost, key,
                         policy_stamp(policy->clock.tick, reuse_class, policy_stamp_group(past)),
                         policy->clock.tick);
    }
}

static void take_read(struct policy *policy, const struct policy_event *event)
{
    struct policy_clock *clock = &policy->clock;
    struct policy_segment *segment = policy_segments_find(&policy->segments, event->segment);
    uint32_t index;
    struct policy_run *run =
        segment != NULL ? policy_segments_run_at(&policy->segments, segment, event->start, &index)
                        : NULL;
    if (run == NULL) {
        take_late_read(policy, event->key);
        return;
    }
    check(event->group < POLICY_GROUPS);
    check(index < segment->run_count);
    if (event->group != policy_stamp_group(run->stamp)) {
        policy_group_move(policy, segment, index, event->group);
    }
    uint32_t age = policy_stamp_age(run->stamp, clock->tick);
    if (age <= clock->same_use) {
        policy_monitor_again(&policy->monitor, event->key);
        return;
    }
    unsigned reuse_class = policy_class_next(age, policy_stamp_class(run->stamp));
    policy_clock_hit(clock, age);
    policy_monitor_touch(&policy->monitor, clock, event->key, reuse_class, true, false);
    run->stamp = policy_stamp(clock->tick, reuse_class, policy_stamp_group(run->stamp));
}

static void take_miss(struct policy *policy, const struct policy_event *event)
{
    if (event->stamp == POLICY_STAMP_SAME) {
        policy_monitor_again(&policy->monitor, event->key);
        return;
    }
    unsigned reuse_class = policy_stamp_class(event->stamp);
    bool is_known = reuse_class != POLICY_CLASS_NEW && reuse_class != POLICY_CLASS_SILENT;
    check(reuse_class < POLICY_CLASSES);
    policy_monitor_touch(&policy->monitor, &policy->clock, event->key, reuse_class, is_known,
                         !event->is_part);
    if (event->kind == POLICY_REFUSED) {
        policy->stats.refused_bytes += event->len;
        policy_ghost_put(&policy->ghost, event->key, event->stamp, policy->clock.tick);
    }
}

// Removes a deleted or overwritten run. The ghost keeps the run's past, with an age so high that
// the next request counts as another use.
static void take_gone(struct policy *policy, const struct policy_event *event)
{
    const struct policy_clock *clock = &policy->clock;
    struct policy_segment *segment = policy_segments_find(&policy->segments, event->segment);
    uint32_t index;
    struct policy_run *run =
        segment != NULL ? policy_segments_run_at(&policy->segments, segment, event->start, &index)
                        : NULL;
    if (run != NULL) {
        uint32_t age = policy_stamp_age(run->stamp, clock->tick);
        uint32_t before = age > clock->same_use ? age : clock->same_use + 1;
        policy_ghost_put(&policy->ghost, event->key,
                         policy_stamp(clock->tick - before, policy_stamp_class(run->stamp),
                                      policy_stamp_group(run->stamp)),
                         clock->tick);
        policy_segments_set_stamp(&policy->segments, segment, index, POLICY_STAMP_GONE);
    }
}

static uint32_t segment_stamp_again(const struct policy *policy, uint64_t key);

static void take_stored(struct policy *policy, const struct policy_event *event)
{
    struct policy_segment *segment = policy_segments_find(&policy->segments, event->segment);
    if (segment != NULL) {
        policy_probation_stored(policy, segment, event->on_probation);
    }
    uint32_t stamp =
        event->stamp == POLICY_STAMP_SAME ? segment_stamp_again(policy, event->key) : event->stamp;
    unsigned group = policy_group_take(policy, segment, event->group, event->len);
    policy->stats.pins_refused += group != event->group;
    // A failure needs no action here, because policy_segment_append() counts it in unranked_runs.
    (void)policy_segment_append(policy, event->segment, event->start, event->len, event->key,
                                policy_stamp_grouped(stamp, group));
}

static bool take_one(struct policy *policy, const struct policy_event *event)
{
    switch (event->kind) {
    case POLICY_STORED:
        take_stored(policy, event);
        return false;
    case POLICY_GONE:
        take_gone(policy, event);
        return false;
    case POLICY_READ:
        take_request(policy, event->len);
        if (policy->kind != POLICY_LRU) {
            take_read(policy, event);
        }
        return false;
    case POLICY_ADMITTED:
    case POLICY_REFUSED:
        take_request(policy, event->len);
        if (policy->kind != POLICY_LRU) {
            take_miss(policy, event);
        }
        return true;
    }
    return false;
}

void policy_take(struct policy *policy, const struct policy_event *events, size_t count)
{
    check(policy->magic == POLICY_MAGIC);
    uint32_t miss_count = 0;
    for (size_t i = 0; i < count; i++) {
        miss_count += take_one(policy, &events[i]);
    }
    policy_groups_tend(policy);
    policy_reclaim_tend(policy, miss_count);
    policy_publish(policy);
}

// --- segments ------------------------------------------------------------------------------------

bool policy_segment_begin(struct policy *policy, uint32_t number)
{
    check(policy->magic == POLICY_MAGIC);
    struct policy_segment *segment = policy_segments_find(&policy->segments, number);
    if (segment != NULL) {
        check(segment->state == POLICY_SEGMENT_LOADED);
        policy_segments_set_state(&policy->segments, segment, POLICY_SEGMENT_OPEN);
        return true;
    }
    return policy_segments_begin(&policy->segments, number) != NULL;
}

bool policy_segment_knows(const struct policy *policy, uint32_t number)
{
    return policy_segments_find(&policy->segments, number) != NULL;
}

static bool segment_append(struct policy *policy, uint32_t number, uint32_t start, uint32_t len,
                           uint32_t stamp)
{
    struct policy_segment *segment = policy_segments_find(&policy->segments, number);
    check(stamp != POLICY_STAMP_GONE);
    if (segment == NULL || !policy_segments_append(&policy->segments, segment, start, len, stamp)) {
        policy->stats.unranked_runs++;
        return false;
    }
    return true;
}

// Returns the stamp of a run that is stored during a use that has already begun. It has the run's
// past from the ghost, or marks a new run if the ghost has none.
static uint32_t segment_stamp_again(const struct policy *policy, uint64_t key)
{
    uint32_t past;
    return policy_ghost_find(&policy->ghost, key, &past)
               ? policy_stamp(policy->clock.tick, policy_stamp_class(past),
                              policy_stamp_group(past))
               : policy_stamp(policy->clock.tick, POLICY_CLASS_NEW, 0);
}

bool policy_segment_append(struct policy *policy, uint32_t number, uint32_t start, uint32_t len,
                           uint64_t key, uint32_t stamp)
{
    check(policy->magic == POLICY_MAGIC);
    check(stamp != POLICY_STAMP_GONE);
    if (stamp == POLICY_STAMP_SAME) {
        stamp = segment_stamp_again(policy, key);
    }
    policy->stats.admitted_bytes += len;
    if (!segment_append(policy, number, start, len, stamp)) {
        policy_ghost_put(&policy->ghost, key, stamp, policy->clock.tick); // keep the run's past
        return false;
    }
    policy_ghost_forget(&policy->ghost, key);
    policy_reclaim_admitted(policy, stamp, len);
    return true;
}

void policy_segment_seal(struct policy *policy, uint32_t number)
{
    struct policy_segment *segment = policy_segments_find(&policy->segments, number);
    if (segment != NULL) {
        check(segment->state != POLICY_SEGMENT_NONE);
        policy_segments_set_state(&policy->segments, segment, POLICY_SEGMENT_SEALED);
        policy_reclaim_sealed(policy, segment);
    }
}

uint32_t policy_segment_run_count(const struct policy *policy, uint32_t number)
{
    const struct policy_segment *segment = policy_segments_find(&policy->segments, number);
    return segment != NULL ? segment->run_count : 0;
}

bool policy_segment_run(const struct policy *policy, uint32_t number, uint32_t index,
                        uint32_t *ret_start)
{
    const struct policy_segment *segment = policy_segments_find(&policy->segments, number);
    if (segment == NULL || index >= segment->run_count) {
        return false;
    }
    const struct policy_run *run = policy_segments_run(&policy->segments, segment, index);
    *ret_start = run->start;
    return run->stamp != POLICY_STAMP_GONE;
}

bool policy_segment_find(const struct policy *policy, uint32_t number, uint32_t start,
                         uint32_t *ret_index)
{
    const struct policy_segment *segment = policy_segments_find(&policy->segments, number);
    return segment != NULL &&
           policy_segments_run_at(&policy->segments, segment, start, ret_index) != NULL;
}

// Marks the run at this index as gone. Returns its former stamp, or POLICY_STAMP_GONE if there is
// no such run.
static uint32_t segment_take_out(struct policy *policy, uint32_t number, uint32_t index,
                                 uint32_t *ret_len)
{
    struct policy_segment *segment = policy_segments_find(&policy->segments, number);
    if (segment == NULL || index >= segment->run_count) {
        return POLICY_STAMP_GONE;
    }
    *ret_len = policy_segments_run_len(&policy->segments, segment, index);
    const struct policy_run *run = policy_segments_run(&policy->segments, segment, index);
    uint32_t stamp = run->stamp;
    policy_segments_set_stamp(&policy->segments, segment, index, POLICY_STAMP_GONE);
    return stamp;
}

void policy_segment_move(struct policy *policy, uint32_t from, uint32_t index, uint32_t to,
                         uint32_t start, uint32_t len)
{
    uint32_t old_len;
    uint32_t stamp = segment_take_out(policy, from, index, &old_len);
    if (stamp == POLICY_STAMP_GONE) { // a write has invalidated the run, and so its rewritten copy
        return;
    }
    check(from != to);
    policy->stats.rewritten_bytes += len;
    (void)segment_append(policy, to, start, len, stamp); // if this fails, the run is not ranked
}

bool policy_segment_age(const struct policy *policy, uint32_t number, uint32_t index,
                        uint32_t *ret_ticks)
{
    const struct policy_segment *segment = policy_segments_find(&policy->segments, number);
    if (segment == NULL || index >= segment->run_count) {
        return false;
    }
    uint32_t stamp = policy_segments_run(&policy->segments, segment, index)->stamp;
    if (stamp == POLICY_STAMP_GONE) {
        return false;
    }
    *ret_ticks = policy_stamp_age(stamp, policy->clock.tick);
    return true;
}

void policy_segment_drop(struct policy *policy, uint32_t number, uint32_t index, uint64_t key)
{
    uint32_t len;
    uint32_t stamp = segment_take_out(policy, number, index, &len);
    if (stamp == POLICY_STAMP_GONE) {
        return;
    }
    policy->stats.dropped_bytes += len;
    policy->stats.pins_lost += policy->groups.of[policy_stamp_group(stamp)].options.is_pinned;
    if (policy->kind != POLICY_LRU) {
        policy_ghost_put(&policy->ghost, key, stamp, policy->clock.tick);
    }
}

void policy_segment_free(struct policy *policy, uint32_t number)
{
    struct policy_segment *segment = policy_segments_find(&policy->segments, number);
    if (segment != NULL) {
        policy_segments_free(&policy->segments, segment);
    }
}

void policy_stats(const struct policy *policy, struct policy_stats *ret_stats)
{
    check(policy->magic == POLICY_MAGIC);
    *ret_stats = policy->stats;
    ret_stats->pinned_bytes = policy->groups.pinned_bytes;
    ret_stats->pinned_max_bytes = policy->groups.pinned_max_bytes;
    ret_stats->silences = policy->clock.silence_count;
    ret_stats->bar = policy->reclaim.bar;
    ret_stats->known_share = (float)policy->clock.known_share;
    ret_stats->tick = policy->clock.tick;
    ret_stats->is_full = policy->reclaim.is_full;
    ret_stats->is_silent = policy->clock.is_silent;
}
