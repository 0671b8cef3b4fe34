// SPDX-License-Identifier: Apache-2.0
// What the policy (policy.h) needs of the store, and the store of the policy. Workers put what they
// see into rings, without a lock and without writing anything; the retention thread drains them, a
// ring at a time. It rewrites survivors (retention_rewrite.c), tells the policy what segments held
// at the start (from their tables, where a former process has not left what it knew:
// retention_state.c), and saves what is known every few minutes. The supply thread picks what goes,
// the freeing thread says what went.
//
// A ring that is full loses events, which are counted: reads make the policy a little blinder, runs
// are listed once more when their segment is full.
//
// The policy's arrays lie in a map (retention_region.c). What is in it does not outlive the
// process.
//
// Until what a former process knew has been read, and for segments of which nothing is known yet,
// the oldest goes.
#include "store/retention.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "stats/stats.h"
#include "store/index_forget.h"
#include "store/retention_pins.h"
#include "store/retention_review.h"
#include "store/retention_rewrite.h"
#include "store/retention_state.h"
#include "store/segment_list.h"
#include "store/store_private.h"

#define TICK_MS 1000u // segments that are not ranked yet are looked for
#define SAVE_EVERY_US 300000000u
#define WAKE_EVERY (POLICY_RING_EVENTS / 4) // events of one ring
#define TAKEN_AT_ONCE 64u
#define REFUSALS_WAIT_US 10000u      // at most, that who asks again is known to ask again
#define BYTES_PER_RUN (4u << 10)     // smaller runs than that are more than are ranked
#define BYTES_PER_FORMER (16u << 10) // so many runs that went are remembered
#define RUNS_MIN 4096u
#define RUNS_IN_MEMORY (1u << 20) // at most, and so many former ones: 20 MiB
#define RUN_BYTES_MIN 1024u       // a header and something
#define DROPPED_AT_ONCE 512u

// --- opening and closing

// What nothing is known of is in group 0: of normal priority.
unsigned retention_policy_group(unsigned group)
{
    check(group < POLICY_GROUPS);
    return group >= STORE_PRIORITIES
               ? group
               : (group + STORE_PRIORITIES - STORE_PRIORITY_NORMAL) % STORE_PRIORITIES;
}

unsigned retention_group_of_policy(unsigned policy_group)
{
    return policy_group >= STORE_PRIORITIES
               ? policy_group
               : (policy_group + STORE_PRIORITY_NORMAL) % STORE_PRIORITIES;
}

void retention_open(struct retention *r, struct store *store, bool learns,
                    const struct store_group *groups, unsigned group_count)
{
    const struct segment_log *log = &store->log;
    r->store = store;
    r->learns = learns;
    pthread_mutex_init(&r->lock, NULL);
    pthread_mutex_init(&r->names.lock, NULL);
    pthread_mutex_init(&r->guarded.lock, NULL);
    clock_cond_init(&r->guarded.wake);
    if (!learns) {
        if (group_count > 0) {
            log_warn("pins_ignored", "policy=lru");
        }
        return;
    }
    struct policy_options options = {
        .kind = POLICY_EPOCH,
        .capacity_bytes = (uint64_t)log->segments_max * log->segment_size_bytes,
        .segment_max = log->table_mask + 1, // so that no two are in one place
        .run_max =
            (uint32_t)min_u64(UINT32_MAX, max_u64(RUNS_MIN, store->capacity_bytes / BYTES_PER_RUN)),
        .former_max = (uint32_t)min_u64(
            UINT32_MAX, max_u64(RUNS_MIN, store->capacity_bytes / BYTES_PER_FORMER)),
        .grow = retention_region_grow,
        .grow_ctx = &r->region,
    };
    memcpy(&options.identity, store->dir.format.cache_id, sizeof(options.identity));
    if (!retention_region_open(&r->region, store, policy_region_least(&options),
                               policy_region_bytes(&options))) {
        options.run_max = (uint32_t)min_u64(options.run_max, RUNS_IN_MEMORY);
        options.former_max = (uint32_t)min_u64(options.former_max, RUNS_IN_MEMORY);
        retention_region_in_memory(&r->region, policy_region_bytes(&options));
    }
    r->state_bytes = r->state_bytes_then = retention_state_bytes(store);
    r->policy = policy_new(&options, r->region.map);
    retention_pins_groups(r, groups, group_count);
    retention_pins_fit(r);
    r->ring_count = store->worker_count + 1;
    r->rings = aligned_alloc(64, r->ring_count * sizeof(*r->rings));
    check(r->rings != NULL);
    memset(r->rings, 0, r->ring_count * sizeof(*r->rings));
    r->woken_us = calloc(store->worker_count, sizeof(*r->woken_us));
    check(r->woken_us != NULL);
    r->survivor_max = log->segment_size_bytes / RUN_BYTES_MIN;
    r->survivors = calloc(r->survivor_max, sizeof(*r->survivors)); // few are touched
    check(r->survivors != NULL);
}

uint64_t retention_bytes(const struct retention *r)
{
    return retention_region_counted(&r->region) + atomic_load(&r->state_bytes) -
           r->state_bytes_then;
}

void retention_resize(struct retention *r)
{
    const struct segment_log *log = &r->store->log;
    if (r->learns) {
        pthread_mutex_lock(&r->lock);
        policy_resize(r->policy, (uint64_t)log->segments_max * log->segment_size_bytes);
        retention_pins_fit(r);
        pthread_mutex_unlock(&r->lock);
    }
}

void retention_set_groups(struct retention *r, const struct store_group *groups,
                          unsigned group_count)
{
    if (r->learns) {
        retention_pins_groups(r, groups, group_count);
        pthread_mutex_lock(&r->lock);
        retention_pins_fit(r);
        pthread_mutex_unlock(&r->lock);
    }
}

void retention_close(struct retention *r)
{
    if (r->store == NULL) {
        return;
    }
    policy_free(r->policy);
    stats_sub(COUNTER_cache_pinned_bytes, r->pinned_bytes);
    retention_region_close(&r->region);
    free(r->rings);
    free(r->woken_us);
    free(r->survivors);
    pthread_mutex_destroy(&r->lock);
    pthread_mutex_destroy(&r->names.lock);
    pthread_mutex_destroy(&r->guarded.lock);
    pthread_cond_destroy(&r->guarded.wake);
    *r = (struct retention){0};
}

// --- what is seen

static void retention_wake(struct retention *r)
{
    pthread_mutex_lock(&r->guarded.lock);
    r->guarded.wanted = true;
    pthread_cond_signal(&r->guarded.wake);
    pthread_mutex_unlock(&r->guarded.lock);
}

static void tell(struct retention *r, unsigned at, const struct policy_event *event)
{
    struct policy_ring *ring = &r->rings[at];
    if (!policy_ring_put(ring, event)) {
        stats_add(COUNTER_retention_events_lost, 1);
        if (event->kind == POLICY_STORED) {
            atomic_fetch_add(&r->lost_runs, 1);
        }
    } else if (policy_ring_put_count(ring) % WAKE_EVERY == 0) {
        retention_wake(r);
    }
}

static uint32_t event_bytes(uint64_t bytes)
{
    return (uint32_t)min_u64(bytes, UINT32_MAX);
}

bool retention_has_probation(const struct retention *r)
{
    return atomic_load(&r->store->log.segments_max) >= RETENTION_PROBATION_SEGMENTS_MIN;
}

enum policy_verdict retention_admit(const struct retention *r, struct hash128 hash,
                                    uint64_t first_block, unsigned group, bool is_part,
                                    struct retention_answer *ret_answer)
{
    *ret_answer =
        (struct retention_answer){.is_part = is_part, .group = retention_policy_group(group)};
    if (!r->learns) {
        return POLICY_STORE;
    }
    enum policy_verdict verdict = policy_admit(r->policy, policy_key(hash, first_block),
                                               ret_answer->group, is_part, &ret_answer->stamp);
    if (verdict == POLICY_PROBATION && !retention_has_probation(r)) {
        verdict = is_part ? POLICY_STORE : POLICY_REFUSE;
    }
#ifdef FOREBAY_FAULTS
    verdict = atomic_load(&r->keeps_half) ? POLICY_STORE : verdict;
#endif
    ret_answer->on_probation = verdict == POLICY_PROBATION;
    return verdict;
}

void retention_missed(struct worker *w, struct retention *r, struct hash128 hash,
                      uint64_t first_block, uint64_t payload_len,
                      const struct retention_answer *answer, bool is_stored)
{
    if (r->learns) {
        struct policy_event event = {.kind = is_stored ? POLICY_ADMITTED : POLICY_REFUSED,
                                     .key = policy_key(hash, first_block),
                                     .len = event_bytes(payload_len),
                                     .stamp = answer->stamp,
                                     .is_part = answer->is_part,
                                     .on_probation = answer->on_probation && is_stored};
        tell(r, worker_index(w), &event);
        uint64_t *woken_us = &r->woken_us[worker_index(w)];
        if (!is_stored && worker_now_us(w) - *woken_us >= REFUSALS_WAIT_US) {
            *woken_us = worker_now_us(w);
            retention_wake(r);
        }
    }
}

// The room that a run takes, but for what it wastes.
static uint32_t row_bytes(const struct segment_row *row, uint32_t payload_len)
{
    return row->payload_offset - row->header_offset + payload_len;
}

void retention_stored(struct worker *w, struct retention *r, const struct segment_row *row,
                      uint32_t number, const struct retention_answer *answer)
{
    if (!r->learns) {
        return;
    }
    uint32_t payload_len = segment_row_place(row, number, 0).payload_len;
    struct policy_event event = {.kind = POLICY_STORED,
                                 .key = policy_key(row->hash, row->first_block),
                                 .segment = number,
                                 .start = row->header_offset,
                                 .len = row_bytes(row, payload_len),
                                 .stamp = answer->stamp,
                                 .group = answer->group,
                                 .on_probation = answer->on_probation};
    tell(r, worker_index(w), &event);
}

void retention_read(struct worker *w, struct retention *r, const struct store_place *place,
                    uint64_t bytes, unsigned group)
{
    if (!r->learns) {
        return;
    }
    struct policy_event event = {.kind = POLICY_READ,
                                 .key = policy_key(place->hash, place->first_block),
                                 .segment = place->segment_number,
                                 .start = place->header_offset,
                                 .len = event_bytes(bytes),
                                 .group = retention_policy_group(group)};
    tell(r, worker_index(w), &event);
}

void retention_gone(struct retention *r, struct hash128 hash, uint64_t first_block, uint32_t number,
                    uint32_t header_offset)
{
    if (r->learns) {
        struct policy_event event = {.kind = POLICY_GONE,
                                     .key = policy_key(hash, first_block),
                                     .segment = number,
                                     .start = header_offset};
        tell(r, r->ring_count - 1, &event);
    }
}

void retention_drain(struct retention *r)
{
    struct policy_event events[TAKEN_AT_ONCE];
    for (unsigned i = 0; i < r->ring_count; i++) {
        pthread_mutex_lock(&r->lock);
        size_t count = r->is_loaded ? TAKEN_AT_ONCE : 0;
        for (unsigned n = 0; count == TAKEN_AT_ONCE && n < POLICY_RING_EVENTS / TAKEN_AT_ONCE;
             n++) {
            count = policy_ring_take(&r->rings[i], events, TAKEN_AT_ONCE);
            policy_take(r->policy, events, count);
        }
        pthread_mutex_unlock(&r->lock);
    }
}

// --- segments

void retention_begin(struct retention *r, struct segment *segment, uint32_t number)
{
    if (!r->learns) {
        return;
    }
    pthread_mutex_lock(&r->lock);
    segment->is_ranked = policy_segment_begin(r->policy, number);
    segment->lost_runs_then = atomic_load(&r->lost_runs);
    pthread_mutex_unlock(&r->lock);
}

void retention_has_room(struct retention *r)
{
    if (r->learns) {
        atomic_store(&r->keeps_spare, false);
        pthread_mutex_lock(&r->lock);
        policy_set_full(r->policy, false);
        pthread_mutex_unlock(&r->lock);
    }
}

// Full, and nothing of it is on its way any more: it may be picked.
static bool is_settled(struct segment *segment)
{
    struct segment_log *log = segment->log;
    pthread_mutex_lock(&log->guarded.lock);
    bool settled = segment->state == SEGMENT_SEALED && !segment->recovered &&
                   atomic_load(&segment->holds) == 0;
    pthread_mutex_unlock(&log->guarded.lock);
    return settled;
}

static void seal_settled_locked(struct retention *r)
{
    struct segment_log *log = &r->store->log;
    for (uint32_t i = 0; i <= log->table_mask; i++) {
        struct segment *segment = &log->table[i];
        if (segment->is_ranked && !segment->is_rank_sealed && is_settled(segment)) {
            segment->is_rank_sealed = true;
            policy_segment_seal(r->policy, atomic_load(&segment->number));
        }
    }
}

// Of those that the policy does not know.
static uint32_t oldest_locked(struct retention *r, bool (*may_go)(void *ctx, uint32_t number),
                              void *ctx)
{
    struct segment_log *log = &r->store->log;
    uint32_t oldest = 0;
    for (uint32_t i = 0; i <= log->table_mask; i++) {
        struct segment *segment = &log->table[i];
        uint32_t number = atomic_load(&segment->number);
        bool is_older = number != 0 && (oldest == 0 || number < oldest);
        bool is_known = r->is_loaded && segment->is_rank_sealed;
        if (is_older && !is_known && may_go(ctx, number)) {
            oldest = number;
        }
    }
    return oldest;
}

// The runs that survive, by where they begin: indices may change until they are rewritten.
static struct retention_job *job_new_locked(struct retention *r, const struct policy_victim *victim)
{
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

static enum retention_pick pick_locked(struct retention *r,
                                       bool (*may_go)(void *ctx, uint32_t number), void *ctx,
                                       bool may_rewrite, uint32_t *ret_number,
                                       struct retention_job **ret_job)
{
    struct policy_victim victim;
    if (r->is_loaded) {
        seal_settled_locked(r);
    }
    uint32_t max = may_rewrite ? r->survivor_max : 0;
    if (!r->is_loaded || !retention_pins_victim(r, may_go, ctx, max, &victim)) {
        *ret_number = oldest_locked(r, may_go, ctx);
        return *ret_number != 0 ? RETENTION_GOES : RETENTION_NONE;
    }
    *ret_number = victim.number;
#ifdef FOREBAY_FAULTS
    keep_half_locked(r, &victim, max);
#endif
    if (victim.survivor_count == 0) {
        return RETENTION_GOES;
    }
    *ret_job = job_new_locked(r, &victim);
    return RETENTION_REWRITES;
}

enum retention_pick retention_pick(struct retention *r, bool (*may_go)(void *ctx, uint32_t number),
                                   void *ctx, bool may_rewrite, uint32_t *ret_number)
{
    struct retention_job *job = NULL;
    enum retention_pick pick;
    may_rewrite = may_rewrite && r->learns && !atomic_load(&r->rewrites) &&
                  r->store->log.segments_max >= RETENTION_REWRITE_SEGMENTS_MIN;
    if (r->learns) {
        retention_drain(r);
    }
    pthread_mutex_lock(&r->lock);
    if (r->learns) {
        pick = pick_locked(r, may_go, ctx, may_rewrite, ret_number, &job);
    } else {
        *ret_number = oldest_locked(r, may_go, ctx);
        pick = *ret_number != 0 ? RETENTION_GOES : RETENTION_NONE;
    }
    pthread_mutex_unlock(&r->lock);
    if (job != NULL) {
        atomic_store(&r->rewrites, true);
        pthread_mutex_lock(&r->guarded.lock);
        check(r->guarded.job == NULL);
        r->guarded.job = job;
        r->guarded.wanted = true;
        pthread_cond_signal(&r->guarded.wake);
        pthread_mutex_unlock(&r->guarded.lock);
    }
    return pick;
}

bool retention_probation_ended(struct retention *r)
{
    bool ended = false;
    if (r->learns) {
        pthread_mutex_lock(&r->lock);
        ended = policy_probation_ended(r->policy);
        pthread_mutex_unlock(&r->lock);
    }
    return ended;
}

static void drop_locked(struct retention *r, const struct index_removal *removal, uint32_t number)
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
                      const struct index_removal *removals, unsigned count)
{
    if (!r->learns) {
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
    segment->is_ranked = segment->is_rank_sealed = false;
    pthread_mutex_unlock(&r->lock);
}

// --- what segments hold that were there before, or of which events were lost

struct ranking {
    struct retention *retention;
    uint32_t number;
    bool has_added;
};

static bool on_row_ranked(void *ctx, const struct segment_row *row)
{
    struct ranking *ranking = ctx;
    struct retention *r = ranking->retention;
    uint32_t index;
    if (!row->is_bad) {
        pthread_mutex_lock(&r->lock);
        if (policy_segment_knows(r->policy, ranking->number) &&
            !policy_segment_find(r->policy, ranking->number, row->header_offset, &index)) {
            uint32_t len = segment_row_place(row, ranking->number, 0).payload_len;
            (void)policy_segment_append(r->policy, ranking->number, row->header_offset,
                                        row_bytes(row, len),
                                        policy_key(row->hash, row->first_block), POLICY_STAMP_SAME);
            ranking->has_added = true;
        }
        pthread_mutex_unlock(&r->lock);
    }
    return true;
}

// After a kill the segments that were open then hold more than what was saved: all are listed.
void retention_loaded(struct retention *r)
{
    struct segment_log *log = &r->store->log;
    unsigned behind = r->store->recovery.was_clean ? 0 : 1;
    pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0; i <= log->table_mask; i++) {
        struct segment *segment = &log->table[i];
        uint32_t number = atomic_load(&segment->number);
        bool is_loaded = !segment->is_ranked && policy_segment_knows(r->policy, number);
        if (is_loaded && segment_pin(segment, number)) {
            segment->is_ranked = policy_segment_begin(r->policy, number);
            segment->lost_runs_then = atomic_load(&r->lost_runs) - behind;
            segment_unpin(segment);
        }
    }
    policy_load_done(r->policy);
    r->is_loaded = true;
    pthread_mutex_unlock(&r->lock);
}

static void rank_segment(struct retention *r, struct segment *segment, uint32_t number)
{
    struct ranking ranking = {.retention = r, .number = number};
    uint64_t salt;
    bool lists = true;
    pthread_mutex_lock(&r->lock);
    if ((atomic_load(&segment->pins) & SEGMENT_PIN_LIVE) == 0) { // it is forgotten, or will be
        lists = false;
    } else if (!segment->is_ranked) {
        segment->is_ranked = policy_segment_begin(r->policy, number);
    }
    segment->lost_runs_then = atomic_load(&r->lost_runs);
    pthread_mutex_unlock(&r->lock);
    if (lists && segment_list(segment, on_row_ranked, &ranking, &salt) != ERR_OK) {
        stats_add(COUNTER_retention_segments_unlisted, 1); // what it holds goes unranked
    }
    if (ranking.has_added &&
        retention_pins_any(r)) { // a kill has cost what was known of their pins
        segment->wants_review = true;
        retention_review_want(r, RETENTION_REVIEW_MARKED);
    }
}

static bool needs_ranking(struct retention *r, struct segment *segment)
{
    pthread_mutex_lock(&r->lock);
    bool needs = !segment->is_ranked ||
                 (segment->lost_runs_then != atomic_load(&r->lost_runs) && is_settled(segment));
    pthread_mutex_unlock(&r->lock);
    return needs && !segment_log_is_recovered(segment);
}

bool retention_stopping(struct retention *r)
{
    pthread_mutex_lock(&r->guarded.lock);
    bool stop = r->guarded.stop;
    pthread_mutex_unlock(&r->guarded.lock);
    return stop;
}

static void rank_all(struct retention *r)
{
    struct segment_log *log = &r->store->log;
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

static struct retention_job *take_job(struct retention *r)
{
    pthread_mutex_lock(&r->guarded.lock);
    struct retention_job *job = r->guarded.job;
    r->guarded.job = NULL;
    pthread_mutex_unlock(&r->guarded.lock);
    return job;
}

static void do_job(struct retention *r)
{
    struct retention_job *job = take_job(r);
    if (job != NULL) {
        if (!retention_stopping(r)) { // else its segment stays
            retention_rewrite(r, job);
        }
        free(job->starts);
        free(job->pinned);
        free(job);
        atomic_store(&r->rewrites, false);
        segment_log_want(&r->store->log, false);
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
    if (retention_pins_any(r) || r->pinned_bytes > 0) {
        retention_pins_tell(r);
    }
    retention_note_time(r);
    if (atomic_load(&r->store->log.examined)) {
        rank_all(r);
    }
    uint64_t now_us = store_real_us();
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
    r->saved_us = store_real_us();
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
    if (r->learns) {
        retention_note_time(r);
        check(pthread_create(&r->thread, NULL, retention_main, r) == 0);
        r->runs = true;
    }
}

void retention_stop(struct retention *r)
{
    if (!r->runs) {
        return;
    }
    pthread_mutex_lock(&r->guarded.lock);
    r->guarded.stop = true;
    pthread_cond_signal(&r->guarded.wake);
    pthread_mutex_unlock(&r->guarded.lock);
    check(pthread_join(r->thread, NULL) == 0);
    r->runs = false;
    retention_drain(r);
    retention_state_save(r);
}
