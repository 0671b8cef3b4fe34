// SPDX-License-Identifier: Apache-2.0
// Maps rules for cached bytes to the policy's groups. Keeps pinned runs when their segment is
// evicted. A pinned run is dropped only if
//   - all pinned runs exceed their limit, because cache.size shrank;
//   - several jobs in a row found no room to rewrite pinned runs; or
//   - the policy does not know the runs of the segment yet.
#include "store/retention/retention_pins.h"

#include "base/clock.h"
#include "base/log.h"
#include "stats/stats.h"
#include "store/retention/retention_review.h"
#include "store/segment/segment_log.h"

#define PINS_PERCENT 80u // limit of pinned bytes, in percent of the segments that pins may use
// Pins may not use the segments of slots and of probation, nor this many others: spare segments,
// the one for survivors, and one that is being freed.
#define PINS_OTHERS 4u
#define PINS_TELL_US 60000000u
#define STEP_RUNS 65536u // runs per policy_groups_step(): about 2 ms
// Identity of the group of runs that a command has pinned. It is even, and the identity of a rule
// is an odd hash, so they never collide.
#define PINS_IDENTITY UINT64_C(0x70696e7370696e2e)

static_assert(STORE_PRIORITIES + STORE_GROUPS_MAX <= STORE_GROUP_PINS, "no rule has its number");
static_assert(POLICY_GROUPS <= 32, "a bit each");
static_assert(PINS_PERCENT <= 100, "a part of what may be pinned");

static float priority_factor(unsigned priority)
{
    check(priority < STORE_PRIORITIES);
    return (float)(1u << priority) / (float)(1u << STORE_PRIORITY_NORMAL);
}

// Returns the bit set of groups whose rule was removed. Another rule may have the group's number
// now.
static uint32_t groups_gone(const struct retention *r, const struct store_group *groups,
                            unsigned count)
{
    uint32_t gone = 0;
    check(count <= STORE_GROUPS_MAX);
    for (unsigned i = 0; i < STORE_GROUPS_MAX; i++) {
        uint64_t was = policy_group_identity(r->policy, STORE_PRIORITIES + i);
        uint64_t now = i < count ? groups[i].identity : 0;
        gone |= was != 0 && was != now ? 1u << (STORE_PRIORITIES + i) : 0;
    }
    return gone;
}

// Calls policy_groups_step() until all segments are done. Each step holds the lock for a few
// milliseconds at most.
static void groups_go_through(struct retention *r)
{
    bool more = true;
    while (more) { // the loop ends, because no new run joins a group that is being vacated
        pthread_mutex_lock(&r->lock);
        more = policy_groups_step(r->policy, STEP_RUNS);
        pthread_mutex_unlock(&r->lock);
    }
}

static void groups_set_locked(struct retention *r, const struct store_group *groups, unsigned count)
{
    bool has_pins = false;
    for (unsigned i = 0; i < count; i++) {
        if (groups[i].identity == 0) {
            continue; // no rule uses this group now
        }
        check(groups[i].identity != PINS_IDENTITY);
        check(groups[i].share_percent <= 100);
        check(!groups[i].pin || groups[i].share_percent == 0);
        struct policy_group group = {
            .factor = priority_factor(groups[i].priority),
            .is_pinned = groups[i].pin,
            .share_percent = groups[i].share_percent,
            .plain = retention_policy_group(groups[i].priority),
            .identity = groups[i].identity,
        };
        policy_group_set(r->policy, STORE_PRIORITIES + i, &group);
        has_pins = has_pins || groups[i].pin;
    }
    struct policy_group listed = {
        .factor = priority_factor(STORE_PRIORITY_NORMAL),
        .is_pinned = true,
        .plain = retention_policy_group(STORE_PRIORITY_NORMAL),
        .identity = PINS_IDENTITY,
    };
    policy_group_set(r->policy, STORE_GROUP_PINS, &listed);
    r->pins.by_rules = has_pins;
}

void retention_pins_groups(struct retention *r, const struct store_group *groups, unsigned count)
{
    static_assert(STORE_GROUP_PINS + 1 == POLICY_GROUPS, "each has its number");
    check(count <= STORE_GROUPS_MAX);
    pthread_mutex_lock(&r->lock);
    for (unsigned priority = 0; priority < STORE_PRIORITIES; priority++) {
        struct policy_group plain = {.factor = priority_factor(priority)};
        policy_group_set(r->policy, retention_policy_group(priority), &plain);
    }
    policy_groups_vacate(r->policy, groups_gone(r, groups, count));
    pthread_mutex_unlock(&r->lock);
    groups_go_through(r);
    pthread_mutex_lock(&r->lock);
    groups_set_locked(r, groups, count);
    pthread_mutex_unlock(&r->lock);
    groups_go_through(r);
}

void retention_pins_fit(struct retention *r)
{
    const struct segment_log *log = r->log;
    uint32_t segments = atomic_load(&log->segments_max);
    uint32_t others = log->slot_count + PINS_OTHERS + retention_has_probation(r);
    bool may_pin = segments >= SEGMENT_REWRITE_SEGMENTS_MIN && segments > others;
    uint64_t bytes = may_pin ? (uint64_t)(segments - others) * log->segment_size_bytes : 0;
    policy_pins_set_max(r->policy, bytes / 100 * PINS_PERCENT);
    if (r->pins.by_rules && !may_pin) {
        log_warn("pins_ignored", "segments=%u needed=%u", segments, SEGMENT_REWRITE_SEGMENTS_MIN);
    }
}

struct pinless {
    struct retention *retention;
    bool (*may_go)(void *ctx, uint32_t number);
    void *ctx;
};

static bool may_go_pinless(void *ctx, uint32_t number)
{
    const struct pinless *pinless = ctx;
    return policy_segment_pinned_count(pinless->retention->policy, number) == 0 &&
           pinless->may_go(pinless->ctx, number);
}

bool retention_pins_victim(struct retention *r, bool (*may_go)(void *ctx, uint32_t number),
                           void *ctx, uint32_t max, struct policy_victim *ret_victim)
{
    check(max <= r->survivor_max);
    check(retention_is_ready(r));
    struct policy_stats stats;
    policy_stats(r->policy, &stats);
    bool has_pins = stats.pinned_bytes > 0;
    atomic_store(&r->pins.keeps_spare, has_pins);
    if (has_pins && max == 0) {
        struct pinless pinless = {r, may_go, ctx};
        if (policy_victim(r->policy, may_go_pinless, &pinless, r->survivors, 0, ret_victim)) {
            return true;
        }
        if (atomic_load(&r->job) != NULL) {
            return false; // the end of the job wakes the supply thread
        }
        max = r->pins.tries < RETENTION_PINS_TRIES ? r->survivor_max : 0;
    }
    return policy_victim(r->policy, may_go, ctx, r->survivors, max, ret_victim);
}

bool retention_pins_any(struct retention *r)
{
    return r->pins.by_rules || r->pins.by_command;
}

void retention_pins_figures(struct retention *r, struct store_pins_figures *ret_figures)
{
    struct policy_stats stats;
    *ret_figures = (struct store_pins_figures){0};
    if (retention_learns(r)) {
        retention_drain(r); // so that the figures include runs that were stored just now
        pthread_mutex_lock(&r->lock);
        policy_stats(r->policy, &stats);
        pthread_mutex_unlock(&r->lock);
        ret_figures->are_kept = stats.pinned_max_bytes > 0;
        ret_figures->in_review = retention_review_is_wanted(r);
        ret_figures->bytes = stats.pinned_bytes;
        ret_figures->bytes_max = stats.pinned_max_bytes;
    }
}

void retention_pins_tell(struct retention *r)
{
    struct policy_stats stats;
    pthread_mutex_lock(&r->lock);
    policy_stats(r->policy, &stats);
    pthread_mutex_unlock(&r->lock);
    check(stats.pins_refused >= r->pins.refused); // both counters only rise
    check(stats.pins_lost >= r->pins.lost);
    uint64_t refused = stats.pins_refused - r->pins.refused, lost = stats.pins_lost - r->pins.lost;
    stats_add(COUNTER_cache_pinned_bytes, stats.pinned_bytes - r->pins.bytes);
    stats_add(COUNTER_pins_refused, refused);
    stats_add(COUNTER_pins_lost, lost);
    r->pins.bytes = stats.pinned_bytes;
    r->pins.refused = stats.pins_refused;
    r->pins.lost = stats.pins_lost;
    uint64_t now_us = disk_real_us();
    if (refused + lost > 0 && (r->pins.told_us == 0 || now_us - r->pins.told_us >= PINS_TELL_US)) {
        r->pins.told_us = now_us;
        log_warn("pins_full", "pinned_bytes=%llu at_most=%llu refused=%llu lost=%llu",
                 (unsigned long long)stats.pinned_bytes, (unsigned long long)stats.pinned_max_bytes,
                 (unsigned long long)stats.pins_refused, (unsigned long long)stats.pins_lost);
    }
}

unsigned retention_pins_spares(const struct retention *r, const struct segment_slot *slot)
{
    const struct segment_log *log = r->log;
    check(slot >= log->slots);
    bool is_survivors = slot == &log->slots[log->slot_max + SEGMENT_SLOT_SURVIVORS];
    return !is_survivors && atomic_load_explicit(&r->pins.keeps_spare, memory_order_relaxed) ? 1
                                                                                             : 0;
}
