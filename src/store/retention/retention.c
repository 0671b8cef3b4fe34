// SPDX-License-Identifier: Apache-2.0
// Connects the policy (policy.h) with the store. Workers put events into rings, without a lock or
// file I/O.
//
// The retention thread
//   - drains the rings, one at a time;
//   - rewrites survivors (retention_rewrite.c);
//   - tells the policy which runs are in the segments found at the start, unless the knowledge that
//     an earlier process saved includes those runs (retention_state.c);
//   - saves the policy's knowledge every few minutes.
//
// The supply thread picks the segment to evict. The freeing thread reports freed segments.
//
// If a ring is full, events are lost and counted. After a lost read the policy knows a little less.
// If the event of a stored run is lost, the retention thread finds the run in the list of the
// segment's runs when the segment is full.
//
// The policy's arrays are in memory that is mapped to an unlinked file (retention_region.c). They
// are lost when the process ends.
//
// Until the saved knowledge is loaded, the oldest segment is evicted. After that the policy names
// the victim. If it names none, the oldest segment that it does not know as full is evicted.
#include "store/retention/retention.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "stats/stats.h"
#include "store/retention/retention_pins.h"
#include "store/retention/retention_review.h"
#include "store/retention/retention_rewrite.h"
#include "store/retention/retention_state.h"
#include "store/segment/segment_list.h"

#define TICK_MS 1000u // interval at which the thread looks for segments that are not ranked yet
#define SAVE_EVERY_US 300000000u
#define BYTES_PER_RUN (4u << 10)     // capacity for each run that the policy can rank
#define BYTES_PER_FORMER (16u << 10) // capacity for each former run that it can remember
#define RUNS_MIN 4096u
// Limit on ranked runs, and on former runs, if the arrays are in plain memory. Both take 20 MiB.
#define RUNS_IN_MEMORY (1u << 20)
#define RUN_BYTES_MIN 1024u // least size of a run: a header and some payload
#define DROPPED_AT_ONCE 512u

// --- opening and closing

static uint64_t former_wanted(uint64_t capacity)
{
    return max_u64(RUNS_MIN, capacity / BYTES_PER_FORMER);
}

// Returns how many former runs to remember. The number stays as an earlier process saved it while
// it is about right, because the policy can load former runs only then. A percentage in cache.size
// gives another capacity at each start.
static uint32_t former_max(const struct store_disk *disk, uint64_t capacity)
{
    uint64_t wanted = former_wanted(capacity);
    uint64_t saved = retention_state_former(disk);
    bool is_right = saved >= wanted / 2 && saved <= wanted * 2;
    return (uint32_t)min_u64(UINT32_MAX, is_right ? saved : wanted);
}

// Returns the sizes of the policy's arrays, for a segment table with this many entries.
static struct policy_options array_sizes(uint64_t capacity, uint32_t entries, uint32_t former)
{
    return (struct policy_options){
        .kind = POLICY_EPOCH,
        // The policy's table has as many entries as the log's, so that no two segments share an
        // entry.
        .segment_max = entries,
        .run_max = (uint32_t)min_u64(UINT32_MAX, max_u64(RUNS_MIN, capacity / BYTES_PER_RUN)),
        .former_max = former,
    };
}

uint64_t retention_least_bytes(uint64_t capacity_bytes)
{
    uint32_t former = (uint32_t)min_u64(UINT32_MAX, former_wanted(capacity_bytes));
    uint64_t segments = capacity_bytes / segment_cost_bytes(segment_size_for(capacity_bytes, 0));
    struct policy_options options =
        array_sizes(capacity_bytes, segment_log_entries(segments), former);
    return policy_region_least(&options);
}

void retention_open(struct retention *r, const struct retention_options *o)
{
    const struct segment_log *log = o->log;
    uint64_t capacity = o->disk->capacity_bytes;
    check(o->worker_count > 0);
    check(o->host.drop != NULL);
    check((log->table_mask & (log->table_mask + 1)) == 0); // the table's size is a power of two
    check(log->segment_size_bytes >= RUN_BYTES_MIN);
    r->disk = o->disk;
    r->log = o->log;
    r->writer = o->writer;
    r->condemned = o->condemned;
    r->host = o->host;
    r->was_clean = o->was_clean;
    pthread_mutex_init(&r->lock, NULL);
    pthread_mutex_init(&r->names.lock, NULL);
    pthread_mutex_init(&r->guarded.lock, NULL);
    clock_cond_init(&r->guarded.wake);
    retention_enter(r, o->learns ? RETENTION_OPENED : RETENTION_OLDEST);
    if (!o->learns) {
        if (o->group_count > 0) {
            log_warn("pins_ignored", "policy=lru");
        }
        return;
    }
    struct policy_options options =
        array_sizes(capacity, log->table_mask + 1, former_max(o->disk, capacity));
    options.capacity_bytes = (uint64_t)log->segments_max * log->segment_size_bytes;
    options.grow = retention_region_grow;
    options.grow_ctx = &r->region;
    memcpy(&options.identity, o->disk->dir.format.cache_id, sizeof(options.identity));
    if (!retention_region_open(&r->region, o->disk, log->segments_max,
                               policy_region_least(&options), policy_region_bytes(&options))) {
        options.run_max = (uint32_t)min_u64(options.run_max, RUNS_IN_MEMORY);
        options.former_max = (uint32_t)min_u64(options.former_max, RUNS_IN_MEMORY);
        retention_region_in_memory(&r->region, policy_region_bytes(&options));
    }
    r->state_bytes = r->state_bytes_then = retention_state_bytes(o->disk);
    r->policy = policy_new(&options, r->region.map);
    r->segments = calloc((size_t)log->table_mask + 1, sizeof(*r->segments));
    check(r->segments != NULL);
    check(r->region.map_bytes >= policy_region_bytes(&options));
    retention_pins_groups(r, o->groups, o->group_count);
    retention_pins_fit(r);
    r->ring_count = o->worker_count + 1;
    r->rings = aligned_alloc(64, r->ring_count * sizeof(*r->rings));
    check(r->rings != NULL);
    memset(r->rings, 0, r->ring_count * sizeof(*r->rings));
    r->woken_us = calloc(o->worker_count, sizeof(*r->woken_us));
    check(r->woken_us != NULL);
    r->survivor_max = log->segment_size_bytes / RUN_BYTES_MIN;
    // Allocate the largest size that is ever needed, because untouched pages take no memory.
    r->survivors = calloc(r->survivor_max, sizeof(*r->survivors));
    check(r->survivors != NULL);
}

uint64_t retention_bytes(const struct retention *r)
{
    return retention_region_counted(&r->region) + atomic_load(&r->state_bytes) -
           r->state_bytes_then;
}

void retention_resize(struct retention *r)
{
    const struct segment_log *log = r->log;
    if (retention_learns(r)) {
        pthread_mutex_lock(&r->lock);
        policy_resize(r->policy, (uint64_t)log->segments_max * log->segment_size_bytes);
        retention_pins_fit(r);
        pthread_mutex_unlock(&r->lock);
    }
}

void retention_set_groups(struct retention *r, const struct store_group *groups,
                          unsigned group_count)
{
    if (retention_learns(r)) {
        retention_pins_groups(r, groups, group_count);
        pthread_mutex_lock(&r->lock);
        retention_pins_fit(r);
        pthread_mutex_unlock(&r->lock);
    }
}

void retention_set_group_of(struct retention *r, store_group_fn group_of, void *ctx)
{
    pthread_mutex_lock(&r->names.lock);
    r->names.group_of = group_of;
    r->names.ctx = ctx;
    pthread_mutex_unlock(&r->names.lock);
}

void retention_set_listed_pins(struct retention *r, bool has_pins)
{
    atomic_store(&r->pins.by_command, has_pins);
}

void retention_close(struct retention *r)
{
    if (r->phase == RETENTION_CLOSED) {
        return;
    }
    retention_enter(r, RETENTION_CLOSED);
    check(atomic_load(&r->job) == NULL);
    check(atomic_load(&r->review) == NULL);
    policy_free(r->policy);
    stats_sub(COUNTER_cache_pinned_bytes, r->pins.bytes);
    retention_region_close(&r->region);
    free(r->segments);
    free(r->rings);
    free(r->woken_us);
    free(r->survivors);
    pthread_mutex_destroy(&r->lock);
    pthread_mutex_destroy(&r->names.lock);
    pthread_mutex_destroy(&r->guarded.lock);
    pthread_cond_destroy(&r->guarded.wake);
    *r = (struct retention){0};
}

// --- segments

void retention_begin(struct retention *r, struct segment *segment, uint32_t number)
{
    if (!retention_learns(r)) {
        return;
    }
    check(number != 0);
    pthread_mutex_lock(&r->lock);
    struct retention_segment *known = retention_segment_of(r, segment);
    known->is_ranked = policy_segment_begin(r->policy, number);
    known->lost_runs_then = atomic_load(&r->lost_runs);
    pthread_mutex_unlock(&r->lock);
}

void retention_has_room(struct retention *r)
{
    if (retention_learns(r)) {
        atomic_store(&r->pins.keeps_spare, false);
        pthread_mutex_lock(&r->lock);
        policy_set_full(r->policy, false);
        pthread_mutex_unlock(&r->lock);
    }
}

// Returns whether the segment may be picked: it is full, no run of it is still being written, and
// recovery has examined it.
static bool is_settled(struct segment *segment)
{
    return segment_is_full(segment) && !segment_log_is_recovered(segment);
}

static void seal_settled_locked(struct retention *r)
{
    struct segment_log *log = r->log;
    check(retention_is_ready(r)); // before that, a segment that is being loaded might be picked
    for (uint32_t i = 0; i <= log->table_mask; i++) {
        struct segment *segment = &log->table[i];
        struct retention_segment *known = &r->segments[i];
        if (known->is_ranked && !known->is_rank_sealed && is_settled(segment)) {
            known->is_rank_sealed = true;
            policy_segment_seal(r->policy, atomic_load(&segment->number));
        }
    }
}

// Returns the number of the oldest segment that may be evicted and that the policy does not know as
// full; 0 if there is none.
static uint32_t oldest_locked(struct retention *r, bool (*may_go)(void *ctx, uint32_t number),
                              void *ctx)
{
    struct segment_log *log = r->log;
    uint32_t oldest = 0;
    for (uint32_t i = 0; i <= log->table_mask; i++) {
        struct segment *segment = &log->table[i];
        uint32_t number = atomic_load(&segment->number);
        bool is_older = number != 0 && (oldest == 0 || number < oldest);
        bool is_known = retention_is_ready(r) && r->segments[i].is_rank_sealed;
        if (is_older && !is_known && may_go(ctx, number)) {
            oldest = number;
        }
    }
    return oldest;
}

// Returns a job for the victim's survivors. The job names them by offset, because their indices may
// change before they are rewritten.
static struct retention_job *job_new_locked(struct retention *r, const struct policy_victim *victim)
{
    check(victim->number != 0);
    check(victim->survivor_count > 0 && victim->survivor_count <= r->survivor_max);
    struct retention_job *job = calloc(1, sizeof(*job));
    check(job != NULL);
    job->number = victim->number;
    job->starts = calloc(victim->survivor_count, sizeof(*job->starts));
    job->pinned = calloc(victim->survivor_count, sizeof(*job->pinned));
    check(job->starts != NULL);
    check(job->pinned != NULL);
    for (uint32_t i = 0; i < victim->survivor_count; i++) {
        uint32_t start;
        if (policy_segment_run(r->policy, victim->number, r->survivors[i], &start)) {
            job->pinned[job->count] =
                policy_segment_is_pinned(r->policy, victim->number, r->survivors[i]);
            // The offsets are ascending, because bsearch() needs that.
            check(job->count == 0 || job->starts[job->count - 1] <= start);
            job->starts[job->count++] = start;
        }
    }
    return job;
}

#ifdef FOREBAY_FAULTS
static void keep_half_locked(struct retention *r, struct policy_victim *victim, uint32_t max)
{
    uint32_t count =
        atomic_load(&r->keeps_half) ? policy_segment_run_count(r->policy, victim->number) : 0;
    for (uint32_t i = 0; i < count && i / 2 < max; i += 2) {
        r->survivors[i / 2] = i;
        victim->survivor_count = i / 2 + 1;
    }
}
#endif

static enum segment_pick pick_locked(struct retention *r,
                                     bool (*may_go)(void *ctx, uint32_t number), void *ctx,
                                     bool may_rewrite, uint32_t *ret_number,
                                     struct retention_job **ret_job)
{
    struct policy_victim victim;
    bool is_ready = retention_is_ready(r);
    if (is_ready) {
        seal_settled_locked(r);
    }
    uint32_t max = may_rewrite ? r->survivor_max : 0;
    if (!is_ready || !retention_pins_victim(r, may_go, ctx, max, &victim)) {
        *ret_number = oldest_locked(r, may_go, ctx);
        return *ret_number != 0 ? SEGMENT_PICK_GOES : SEGMENT_PICK_NONE;
    }
    check(victim.number != 0);
    *ret_number = victim.number;
#ifdef FOREBAY_FAULTS
    keep_half_locked(r, &victim, max);
#endif
    if (victim.survivor_count == 0) {
        return SEGMENT_PICK_GOES;
    }
    *ret_job = job_new_locked(r, &victim);
    return SEGMENT_PICK_REWRITES;
}

enum segment_pick retention_pick(struct retention *r, bool (*may_go)(void *ctx, uint32_t number),
                                 void *ctx, bool may_rewrite, uint32_t *ret_number)
{
    struct retention_job *job = NULL;
    enum segment_pick pick;
    may_rewrite = may_rewrite && retention_learns(r) && atomic_load(&r->job) == NULL &&
                  r->log->segments_max >= SEGMENT_REWRITE_SEGMENTS_MIN;
    if (retention_learns(r)) {
        retention_drain(r);
    }
    pthread_mutex_lock(&r->lock);
    if (retention_learns(r)) {
        pick = pick_locked(r, may_go, ctx, may_rewrite, ret_number, &job);
    } else {
        *ret_number = oldest_locked(r, may_go, ctx);
        pick = *ret_number != 0 ? SEGMENT_PICK_GOES : SEGMENT_PICK_NONE;
    }
    pthread_mutex_unlock(&r->lock);
    check((job != NULL) == (pick == SEGMENT_PICK_REWRITES));
    if (job != NULL) {
        check(atomic_exchange(&r->job, job) == NULL);
        retention_wake(r);
    }
    return pick;
}

bool retention_probation_ended(struct retention *r)
{
    bool ended = false;
    if (retention_learns(r)) {
        pthread_mutex_lock(&r->lock);
        ended = policy_probation_is_idle(r->policy);
        pthread_mutex_unlock(&r->lock);
    }
    return ended;
}

static void drop_locked(struct retention *r, const struct segment_removal *removal, uint32_t number)
{
    uint32_t index, age_ticks;
    if (policy_segment_find(r->policy, number, removal->place.header_offset, &index)) {
        if (policy_segment_age(r->policy, number, index, &age_ticks)) {
            retention_note_age_locked(r, age_ticks);
        }
        policy_segment_drop(r->policy, number, index,
                            policy_key(removal->hash, removal->place.first_block));
    }
}

void retention_forget(struct retention *r, struct segment *segment,
                      const struct segment_removal *removals, unsigned count)
{
    if (!retention_learns(r)) {
        return;
    }
    uint32_t number = atomic_load(&segment->number);
    retention_drain(r);
    for (unsigned i = 0; i < count; i += DROPPED_AT_ONCE) {
        pthread_mutex_lock(&r->lock);
        for (unsigned j = i; j < count && j < i + DROPPED_AT_ONCE; j++) {
            drop_locked(r, &removals[j], number);
        }
        pthread_mutex_unlock(&r->lock);
    }
    pthread_mutex_lock(&r->lock);
    policy_segment_free(r->policy, number);
    struct retention_segment *known = retention_segment_of(r, segment);
    known->is_ranked = known->is_rank_sealed = false;
    pthread_mutex_unlock(&r->lock);
}

// --- listing segments that were found at the start, or whose events were lost

struct ranking {
    struct retention *retention;
    uint32_t number;
    bool has_added;
};

static bool on_row_ranked(void *ctx, const struct segment_row *row)
{
    struct ranking *ranking = ctx;
    struct retention *r = ranking->retention;
    check(ranking->number != 0);
    uint32_t index;
    if (!row->is_bad) {
        pthread_mutex_lock(&r->lock);
        if (policy_segment_knows(r->policy, ranking->number) &&
            !policy_segment_find(r->policy, ranking->number, row->header_offset, &index)) {
            uint32_t len = segment_row_place(row, ranking->number, 0).payload_len;
            (void)policy_segment_append(r->policy, ranking->number, row->header_offset,
                                        retention_row_bytes(row, len),
                                        policy_key(row->hash, row->first_block), POLICY_STAMP_SAME);
            ranking->has_added = true;
        }
        pthread_mutex_unlock(&r->lock);
    }
    return true;
}

static void rank_segment(struct retention *r, struct segment *segment, uint32_t number)
{
    check(atomic_load(&segment->number) == number); // the caller has pinned the segment
    struct ranking ranking = {.retention = r, .number = number};
    struct retention_segment *known = retention_segment_of(r, segment);
    uint64_t salt;
    bool lists = true;
    pthread_mutex_lock(&r->lock);
    if ((atomic_load(&segment->pins) & SEGMENT_PIN_LIVE) == 0) { // the segment is being freed
        lists = false;
    } else if (!known->is_ranked) {
        known->is_ranked = policy_segment_begin(r->policy, number);
    }
    known->lost_runs_then = atomic_load(&r->lost_runs);
    pthread_mutex_unlock(&r->lock);
    if (lists && segment_list(segment, on_row_ranked, &ranking, &salt) != ERR_OK) {
        // Without the list, the segment's runs are not ranked.
        stats_add(COUNTER_retention_segments_unlisted, 1);
    }
    if (ranking.has_added &&
        retention_pins_any(r)) { // a review must find out which of these runs are pinned
        known->wants_review = true;
        retention_review_want(r, RETENTION_REVIEW_MARKED);
    }
}

static bool needs_ranking(struct retention *r, struct segment *segment)
{
    const struct retention_segment *known = retention_segment_of(r, segment);
    pthread_mutex_lock(&r->lock);
    bool needs = !known->is_ranked ||
                 (known->lost_runs_then != atomic_load(&r->lost_runs) && is_settled(segment));
    pthread_mutex_unlock(&r->lock);
    return needs && !segment_log_is_recovered(segment);
}

static void rank_all(struct retention *r)
{
    struct segment_log *log = r->log;
    for (uint32_t i = 0; i <= log->table_mask && !retention_stopping(r); i++) {
        struct segment *segment = &log->table[i];
        uint32_t number = atomic_load(&segment->number);
        if (number == 0 || !segment_pin(segment, number)) {
            continue;
        }
        if (needs_ranking(r, segment)) {
            rank_segment(r, segment, number);
            retention_drain(r);
        }
        segment_unpin(segment);
    }
}

// --- the thread

static void do_job(struct retention *r)
{
    struct retention_job *job = atomic_load(&r->job);
    if (job != NULL) {
        check(job->number != 0);
        check(job->count <= r->survivor_max);
        if (!retention_stopping(r)) { // during a stop, the job is dropped and its segment stays
            retention_rewrite(r, job);
        }
        atomic_store(&r->job, NULL);
        free(job->starts);
        free(job->pinned);
        free(job);
        segment_log_want(r->log, false);
    }
}

static struct timespec tick_after_now(void)
{
    struct timespec until;
    check(clock_gettime(CLOCK_MONOTONIC, &until) == 0);
    until.tv_sec += TICK_MS / 1000;
    return until;
}

static bool is_past(const struct timespec *until)
{
    struct timespec now;
    check(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return now.tv_sec != until->tv_sec ? now.tv_sec > until->tv_sec : now.tv_nsec >= until->tv_nsec;
}

static void tick(struct retention *r)
{
    if (retention_pins_any(r) || r->pins.bytes > 0) {
        retention_pins_tell(r);
    }
    retention_note_time(r);
    if (atomic_load(&r->log->examined)) {
        rank_all(r);
    }
    uint64_t now_us = disk_real_us();
    if (now_us - r->saved_us >= SAVE_EVERY_US) {
        retention_state_save(r);
        retention_review_again(r);
        r->saved_us = now_us;
    }
}

static void *retention_main(void *ctx)
{
    struct retention *r = ctx;
    thread_begin("store-retention", THREAD_BEHIND);
    retention_state_load(r);
    check(r->phase == RETENTION_LEARNING || r->phase == RETENTION_UNREAD);
    r->saved_us = disk_real_us();
    struct timespec until = tick_after_now();
    bool reviews = false;
    pthread_mutex_lock(&r->guarded.lock);
    while (!r->guarded.stop) {
        int rc = reviews && is_past(&until) ? ETIMEDOUT : 0;
        while (!r->guarded.stop && !r->guarded.wanted && !reviews && rc == 0) {
            rc = pthread_cond_timedwait(&r->guarded.wake, &r->guarded.lock, &until);
        }
        r->guarded.wanted = false;
        pthread_mutex_unlock(&r->guarded.lock);
        retention_drain(r);
        do_job(r);
        reviews = retention_review_step(r);
        if (rc != 0) {
            tick(r);
            until = tick_after_now();
        }
        pthread_mutex_lock(&r->guarded.lock);
    }
    pthread_mutex_unlock(&r->guarded.lock);
    do_job(r);
    retention_review_end(r);
    return NULL;
}

void retention_start(struct retention *r)
{
    if (retention_learns(r)) {
        retention_note_time(r);
        retention_enter(r, RETENTION_LOADING);
        r->thread = disk_spares_use(&r->disk->spares, retention_main, r);
    }
}

void retention_stop(struct retention *r)
{
    pthread_mutex_lock(&r->lock);
    bool has_thread = r->phase == RETENTION_LOADING || r->phase == RETENTION_LEARNING;
    pthread_mutex_unlock(&r->lock);
    if (!has_thread) {
        return;
    }
    pthread_mutex_lock(&r->guarded.lock);
    r->guarded.stop = true;
    pthread_cond_signal(&r->guarded.wake);
    pthread_mutex_unlock(&r->guarded.lock);
    check(pthread_join(r->thread, NULL) == 0);
    check(atomic_load(&r->review) == NULL); // the thread has ended the review
    retention_drain(r);
    retention_state_save(r);
    pthread_mutex_lock(&r->lock);
    retention_enter(r, RETENTION_ENDED);
    pthread_mutex_unlock(&r->lock);
}
