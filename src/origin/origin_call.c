// SPDX-License-Identifier: Apache-2.0
// Starts and ends a call, in the same way for every driver, and keeps the retry budget. Runs on the
// worker of the call. All workers share the budget, which is atomic.
//
// The retry budget is a token bucket, in thousandths of a retry. Each request adds as much of a
// retry as origin.retry_budget says (10%: 100), and each retry takes 1000. One retry per second is
// allowed even if the bucket is empty, so that an origin with few requests gets retries too.
#include "base/clock.h"
#include "base/random.h"
#include "origin/origin_private.h"
#include "stats/stats.h"

#define BACKOFF_FIRST_MS 100u
#define BACKOFF_MAX_MS 5000u
#define RETRY_TOKENS_MAX 100000 // The most that the bucket holds: 100 retries.
#define RETRY_TOKENS_START 10000
#define RETRY_FLOOR_US 1000000u

static struct origin_worker *part_of(struct worker *w, struct origin *origin)
{
    check(origin->magic == ORIGIN_MAGIC);
    check(worker_index(w) < origin->worker_count);
    return &origin->workers[worker_index(w)];
}

// --- The head of a call --------------------------------------------------------------------------

void origin_call_init(struct origin_call *call, const struct origin_call_ops *ops,
                      struct origin_worker *ow, struct origin_fetch *f, struct origin_relay *r)
{
    check((f == NULL) != (r == NULL));
    call->magic = ORIGIN_CALL_MAGIC;
    call->ops = ops;
    call->ow = ow;
    call->f = f;
    call->r = r;
    call->arena = f != NULL ? f->arena : r->arena;
    call->client = f != NULL ? f->client : r->client;
    call->kind = r != NULL ? ORIGIN_CALL_RELAY : f->ahead ? ORIGIN_CALL_AHEAD : ORIGIN_CALL_FETCH;
    *(f != NULL ? &f->driver : &r->driver) = call;
    list_node_init(&call->live);
    origin_slot_init(call);
    list_push_back(&ow->live, &call->live);
}

static void arena_free_later(void *ptr)
{
    arena_free(ptr);
}

void origin_call_end(struct origin_call *call, enum err err)
{
    struct origin_fetch *f = call->f;
    struct origin_relay *r = call->r;
    check(call->magic == ORIGIN_CALL_MAGIC);
    origin_slot_leave(call);
    timer_done(&call->slot_timer);
    list_remove(&call->live);
    call->magic = 0;
    worker_free_later(call->ow->w, call->ops->free, call);
    worker_free_later(call->ow->w, arena_free_later, call->arena);
    if (f != NULL) {
        f->driver = NULL;
        f->on_end(f, err);
    } else {
        r->driver = NULL;
        r->on_end(r, err);
    }
}

bool origin_has_room(struct worker *w, struct origin *origin, unsigned more)
{
    const struct origin_worker *ow = part_of(w, origin);
    return ow->waiting_count == 0 && ow->running_count + more + origin_slots_spared(ow) < ow->limit;
}

// A call is not made in place of a disk read if the origin has throttled within this time.
#define THROTTLED_S 10u

uint64_t origin_recent_us(struct worker *w, struct origin *origin)
{
    const struct origin_worker *ow = part_of(w, origin);
    bool is_in_trouble = atomic_load(&origin->trouble) != ORIGIN_TROUBLE_NONE;
    bool answers = !is_in_trouble && origin_has_answered(origin) &&
                   !origin_throttles(origin, THROTTLED_S) && origin_slot_is_free(ow);
    return answers ? ow->recent_us : UINT64_MAX;
}

// --- Retries -------------------------------------------------------------------------------------

void origin_retry_init(struct origin *origin)
{
    atomic_init(&origin->retry_tokens, RETRY_TOKENS_START);
}

void origin_budget_request(struct origin *origin)
{
    long share = (long)origin->live.retry_budget_percent * 10;
    if (atomic_fetch_add(&origin->retry_tokens, share) + share > RETRY_TOKENS_MAX) {
        atomic_fetch_sub(&origin->retry_tokens, share); // the bucket is full
    }
}

bool origin_retry_take(struct origin *origin)
{
    long tokens = atomic_load(&origin->retry_tokens);
    while (tokens >= 1000) {
        if (atomic_compare_exchange_weak(&origin->retry_tokens, &tokens, tokens - 1000)) {
            stats_add(COUNTER_origin_retries, 1);
            return true;
        }
    }
    unsigned long now_us = clock_monotonic_us();
    unsigned long last_us = atomic_load(&origin->retry_floor_at_us);
    if ((last_us == 0 || (int64_t)(now_us - last_us) >= (int64_t)RETRY_FLOOR_US) &&
        atomic_compare_exchange_strong(&origin->retry_floor_at_us, &last_us, now_us)) {
        stats_add(COUNTER_origin_retries, 1);
        return true;
    }
    stats_add(COUNTER_origin_retry_refused, 1);
    return false;
}

bool origin_answers_others(const struct origin *origin, uint64_t since_us)
{
    uint64_t answered_us = atomic_load_explicit(&origin->answered_at_us, memory_order_relaxed);
    return answered_us > since_us && clock_monotonic_us() - answered_us < ORIGIN_ANSWERS_US;
}

uint64_t origin_backoff_ms(unsigned attempt)
{
    check(attempt > 0);
    uint64_t full = BACKOFF_MAX_MS;
    if (attempt < 7) {
        full = min_u64((uint64_t)BACKOFF_FIRST_MS << (attempt - 1), BACKOFF_MAX_MS);
    }
    return full / 2 + random_u64() % (full / 2 + 1);
}

// --- Starting ------------------------------------------------------------------------------------

void origin_fetch_start(struct worker *w, struct origin *origin, struct origin_fetch *f)
{
    check(f->on_head != NULL && f->on_body != NULL && f->on_end != NULL);
    f->status = 0;
    f->size_bytes = f->body_first = f->body_len = 0;
    f->etag = f->version_id = f->error_answer = f->bucket_region = f->origin_id =
        (struct span){NULL, 0};
    f->weak_or_no_etag = f->too_young = false;
    f->forbids = ORIGIN_FORBIDS_NOTHING;
    f->last_modified = 0;
    f->headers = f->checksums = (struct headers){0};
    f->arena = arena_new_counted(ORIGIN_ARENA_MAX, BUDGET_ORIGINS);
    f->driver = NULL;
    struct origin_worker *ow = part_of(w, origin);
    origin->driver->fetch_start(ow, f);
    if (ow->is_closed) {
        origin_fetch_cancel(f);
    }
}

void origin_relay_start(struct worker *w, struct origin *origin, struct origin_relay *r)
{
    check(r->on_head != NULL && r->on_body != NULL && r->on_end != NULL);
    check(r->body == ORIGIN_BODY_NONE || r->on_upload != NULL);
    r->status = 0;
    r->headers_answered = (struct headers){0};
    r->has_length = false;
    r->length = r->part_first = 0;
    r->part_etag = r->origin_id = r->retry_after = (struct span){NULL, 0};
    r->arena = arena_new_counted(ORIGIN_ARENA_MAX, BUDGET_ORIGINS);
    r->driver = NULL;
    struct origin_worker *ow = part_of(w, origin);
    origin->driver->relay_start(ow, r);
    if (ow->is_closed) {
        origin_relay_cancel(r);
    }
}

// --- Calls that run ------------------------------------------------------------------------------
// `driver` is NULL once the call has ended. Then these functions do nothing.

static void call_pause(void *driver)
{
    if (driver != NULL) {
        as_origin_call(driver)->ops->pause(driver);
    }
}

static void call_resume(void *driver)
{
    if (driver != NULL) {
        as_origin_call(driver)->ops->resume(driver);
    }
}

static void call_cancel(void *driver)
{
    if (driver != NULL) {
        as_origin_call(driver)->ops->cancel(driver);
    }
}

void origin_fetch_pause(struct origin_fetch *f)
{
    call_pause(f->driver);
}

void origin_fetch_resume(struct origin_fetch *f)
{
    call_resume(f->driver);
}

void origin_fetch_hasten(struct origin_fetch *f, uint64_t client)
{
    f->ahead = false;
    f->client = client;
    if (f->driver != NULL) {
        origin_slot_hasten(as_origin_call(f->driver), client);
    }
}

void origin_fetch_cancel(struct origin_fetch *f)
{
    call_cancel(f->driver);
}

void origin_relay_pause(struct origin_relay *r)
{
    call_pause(r->driver);
}

void origin_relay_resume(struct origin_relay *r)
{
    call_resume(r->driver);
}

void origin_relay_resume_upload(struct origin_relay *r)
{
    if (r->driver != NULL) {
        as_origin_call(r->driver)->ops->resume_upload(r->driver);
    }
}

void origin_relay_cancel(struct origin_relay *r)
{
    call_cancel(r->driver);
}
