// SPDX-License-Identifier: Apache-2.0
// Limits how fast a warm job requests runs, and keeps objects that the store refused for now. Runs
// on the job's worker.
//
// A job does not fetch bytes that the store would throw away. So it asks the store first
// (store_waits_for()), and the runs in flight of all jobs count as if they were stored. If the
// store refuses a run in spite of that, or if no connection to the origin comes free in time, the
// job halves its limit of requests in flight; each stored run raises it by one. The next request
// then waits BACKOFF_MS_MIN, doubled with each refusal up to BACKOFF_MS_MAX. A refused object waits
// in proxy_warm.later, where it counts among the job's objects. That list has a limit, and the job
// begins no new object while it is full.
//
//   waits      the store takes nothing for now
//   hopeless   the store takes nothing, and no run of the whole process was stored for
//              STUCK_MAX_US: the job refuses its objects without asking the origin, until a run
//              is stored
//
// The job tries an object TRIES_MAX times more; then the refusal is final. So it does with a page
// of a listing for which no connection comes free.
#include "proxy/ops/warm_private.h"

#define PAUSE_MS 20u
#define BACKOFF_MS_MIN 50u
#define BACKOFF_MS_MAX 4000u
#define STUCK_MAX_US (60u * 1000u * 1000u)
#define TRIES_MAX 8u

void warm_pace_begin(struct proxy_warm *job)
{
    check(job->options.concurrency > 0 && job->run_count == 0);
    job->pace.limit = job->options.concurrency;
}

// --- whether it may ask --------------------------------------------------------------------------

static uint64_t stored_count(void)
{
    return stats_sum(COUNTER_fills_stored);
}

// Called while the store takes no run. Notes since when nothing has been stored, and whether that
// is too long.
static void note_stuck(struct proxy_warm *job, uint64_t now_us)
{
    struct warm_pace *pace = &job->pace;
    uint64_t stored = stored_count();
    if (pace->stuck_us == 0 || pace->stored != stored) {
        pace->stuck_us = now_us;
        pace->stored = stored;
        pace->is_hopeless = false;
    }
    pace->is_hopeless |= now_us - pace->stuck_us >= STUCK_MAX_US;
}

static uint64_t wait_ms_of(struct proxy_warm *job, enum refusal *ret_why)
{
    struct warm_pace *pace = &job->pace;
    uint64_t now_us = worker_now_us(job->pw->worker);
    *ret_why = REFUSAL_none;
    if (pace->due_us > now_us) {
        pace->stuck_us = 0; // the job requests nothing, so it is not stuck
        return (pace->due_us - now_us) / 1000 + 1;
    }
    enum refusal why = store_waits_for(job->pw->worker, job->proxy->store,
                                       atomic_load(&job->proxy->warm_room.runs));
    if (why == REFUSAL_none && pace->held_until_us > now_us) {
        why = pace->held_why;
    }
    if (why != REFUSAL_none) {
        note_stuck(job, now_us);
    }
    pace->refuses = pace->is_hopeless ? why : REFUSAL_none;
    bool is_short = pace->refuses == REFUSAL_none && chunk_budget_is_short();
    *ret_why = why == REFUSAL_none && is_short ? REFUSAL_memory : why;
    return (why != REFUSAL_none && pace->refuses == REFUSAL_none) || is_short ? PAUSE_MS : 0;
}

uint64_t warm_pace_wait_ms(struct proxy_warm *job)
{
    enum refusal why;
    uint64_t wait_ms = wait_ms_of(job, &why);
    atomic_store(&job->published.waits, wait_ms > 0 ? why : REFUSAL_none);
    return wait_ms;
}

void warm_pace_asked(struct proxy_warm *job, uint64_t bytes)
{
    check(bytes > 0 && !job->is_over);
    if (job->options.bytes_per_s > 0) {
        uint64_t now_us = worker_now_us(job->pw->worker);
        job->pace.due_us =
            max_u64(job->pace.due_us, now_us) + bytes * 1000000 / job->options.bytes_per_s;
    }
    atomic_fetch_add(&job->proxy->warm_room.runs, 1);
    atomic_fetch_add(&job->published.inflight, 1);
    job->run_count++;
}

void warm_pace_ended(struct proxy_warm *job)
{
    check(job->run_count > 0);
    atomic_fetch_sub(&job->proxy->warm_room.runs, 1);
    atomic_fetch_sub(&job->published.inflight, 1);
    job->run_count--;
}

// --- results -------------------------------------------------------------------------------------

void warm_pace_stored(struct proxy_warm *job)
{
    struct warm_pace *pace = &job->pace;
    pace->limit = (unsigned)min_u64(pace->limit + 1, job->options.concurrency);
    check(pace->limit > 0);
    pace->backoff_ms = 0;
    pace->stuck_us = pace->held_until_us = 0;
    pace->is_hopeless = false;
    pace->refuses = REFUSAL_none;
}

void warm_pace_refused(struct proxy_warm *job, uint64_t asked_us, enum refusal why)
{
    check(why != REFUSAL_none);
    struct warm_pace *pace = &job->pace;
    uint64_t now_us = worker_now_us(job->pw->worker);
    note_stuck(job, now_us);
    if (asked_us < pace->shrunk_us) {
        return; // this run was in flight when an earlier refusal halved the limit
    }
    pace->limit = (unsigned)max_u64(pace->limit / 2, 1);
    check(pace->limit <= job->options.concurrency);
    pace->shrunk_us = now_us;
    uint64_t backoff_ms = max_u64(2ull * pace->backoff_ms, BACKOFF_MS_MIN);
    pace->backoff_ms = (unsigned)min_u64(backoff_ms, BACKOFF_MS_MAX);
    pace->held_until_us = now_us + pace->backoff_ms * 1000ull;
    pace->held_why = why;
}

// --- objects that wait ---------------------------------------------------------------------------

bool warm_pace_tries(const struct proxy_warm *job, unsigned tries)
{
    check(tries <= TRIES_MAX);
    return !job->pace.is_hopeless && tries < TRIES_MAX;
}

bool warm_pace_keep(struct proxy_warm *job, struct warm_object *o, unsigned wait_ms)
{
    check(o->phase == WARM_PHASE_LATER && o->run_count == 0);
    struct warm_pace *pace = &job->pace;
    if (!warm_pace_tries(job, o->tries)) {
        return false;
    }
    o->tries++;
    warm_phase_enter(o, WARM_PHASE_PAUSED);
    uint64_t least_ms = max_u64(pace->backoff_ms, BACKOFF_MS_MIN);
    o->due_us = worker_now_us(job->pw->worker) + max_u64(wait_ms, least_ms) * 1000;
    pace->later_due_us =
        list_empty(&job->later) ? o->due_us : min_u64(pace->later_due_us, o->due_us);
    list_remove(&o->node);
    list_push_back(&job->later, &o->node);
    return true;
}

uint64_t warm_pace_wake(struct proxy_warm *job)
{
    struct warm_pace *pace = &job->pace;
    uint64_t now_us = worker_now_us(job->pw->worker);
    if (list_empty(&job->later)) {
        return 0;
    }
    if (now_us >= pace->later_due_us) {
        pace->later_due_us = UINT64_MAX;
        list_for_each(node, &job->later)
        {
            struct warm_object *o = container_of(node, struct warm_object, node);
            check(o->phase == WARM_PHASE_PAUSED);
            if (o->due_us > now_us) {
                pace->later_due_us = min_u64(pace->later_due_us, o->due_us);
                continue;
            }
            list_remove(&o->node);
            list_push_back(&job->ready, &o->node);
        }
    }
    return list_empty(&job->later) ? 0 : (pace->later_due_us - now_us) / 1000 + 1;
}
