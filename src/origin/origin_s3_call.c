// SPDX-License-Identifier: Apache-2.0
// One request to an S3 origin with its attempts: a fetch of an object, or a relay of any other
// request. Runs on the worker that started it.
//
// The phases of a call:
//   SLOT      waits for a slot, at most ORIGIN_SLOT_WAIT_MS
//   WAIT      between two attempts: back-off, a new slot, or new credentials
//   LOOK      (an upload to a bucket of unknown region) HEAD of the bucket, for its region
//   ASK       a transfer runs, the final head has not come
//   COLLECT   the answer may not be final: keeps its body, at most ORIGIN_ERROR_BODY_MAX bytes,
//             for at most COLLECT_IDLES, because an origin may send it for ever
//   BODY      the head was handed on, the body follows; no retries from here on
//   HELD      a collected answer was handed on, its body waits for the caller to resume
// Each attempt is built and signed again in the call's arena, which is emptied before.
//
// Retries. A request refused for its region, clock or token is corrected and repeated once for each
// (for up to three regions). A redirected request is repeated (origin_s3_redirect.c). Both hold
// only as long as no byte of an upload was sent. A safe request that failed is repeated `retries`
// times with back-off, and each retry takes one from the origin's budget.
//
// If the origin refuses a request with SlowDown while it answers others, the request came too
// early. It is retried for ORIGIN_SLOWDOWN_WAIT_US, bounded by the number of slots. Bodies are
// never sent twice. A status that no S3 store sends, on a reused connection, is not an answer to
// this request: if the request may be repeated, it is sent again on a new connection, outside these
// limits.
#include <stdlib.h>

#include "base/clock.h"
#include "base/date.h"
#include "base/log.h"
#include "origin/origin_s3_call_private.h"
#include "stats/stats.h"

#define COLLECT_IDLES 3u       // idle timeouts
#define SLOW_ANSWER_MS 600000u // silence allowed for operations that answer only when they are done

static const char *operation_name(const struct origin_s3_call *c)
{
    if (c->r != NULL) {
        return s3_operation_name(c->r->request->operation);
    }
    return c->f->head && !c->by_get ? "HeadObject" : "GetObject";
}

// --- The end of a call ---------------------------------------------------------------------------

static void call_free(void *ptr)
{
    struct origin_s3_call *c = ptr;
    buf_done(&c->collected);
    credentials_set_unref(c->set);
    free(c->redirect_url);
    free(c);
}

static void arena_free_later(void *ptr)
{
    arena_free(ptr);
}

void origin_s3_call_end(struct origin_s3_call *c, enum err err)
{
    struct worker *w = c->call.ow->w;
    struct origin_fetch *f = c->f;
    struct origin_relay *r = c->r;
    check(c->transfer == NULL);
    timer_done(&c->timer);
    worker_task_cancel(&c->task);
    credentials_waiter_cancel(&c->waiter);
    origin_call_done(&c->call);
    if (err == ERR_ORIGIN_PROTOCOL && c->head_seen) {
        log_warn_condition("origin_answer_refused", "origin=%s op=%s status=%u bucket=%s",
                           origin_shown(c->call.ow->origin), operation_name(c),
                           c->response_head.status, log_quote(origin_s3_call_bucket(c)));
    }
    worker_free_later(w, call_free, c);
    worker_free_later(w, arena_free_later, c->arena);
    if (f != NULL) {
        f->driver = NULL;
        f->on_end(f, err);
    } else {
        r->driver = NULL;
        r->on_end(r, err);
    }
}

// Ends the call later, outside the caller's stack.
static void call_end_later(struct origin_s3_call *c, enum err err)
{
    c->pending_err = err;
    worker_defer(c->call.ow->w, &c->task);
}

void origin_s3_call_leave_redirect(struct origin_s3_call *c)
{
    free(c->redirect_url);
    c->redirect_url = NULL;
}

// --- An attempt ----------------------------------------------------------------------------------

static enum err on_header_line(void *ctx, struct span line);
static enum err on_body(void *ctx, struct span data);
static enum err on_upload(void *ctx, char *buf, size_t max, size_t *ret_len);
static void on_transfer_end(void *ctx, enum err err, const char *detail);

static bool answers_late(const struct origin_s3_call *c)
{
    enum s3_operation operation = c->r != NULL ? c->r->request->operation : S3_Unknown;
    return operation == S3_CompleteMultipartUpload || operation == S3_CopyObject ||
           operation == S3_UploadPartCopy;
}

static void transfer_begin(struct origin_s3_call *c, const struct origin_s3_url *url,
                           const struct headers *headers)
{
    static const struct transfer_calls calls = {.on_header_line = on_header_line,
                                                .on_body = on_body,
                                                .on_upload = on_upload,
                                                .on_end = on_transfer_end};
    bool looking = c->phase == PHASE_LOOK;
    uint64_t late_ms = answers_late(c)
                           ? max_u64(SLOW_ANSWER_MS, c->call.ow->origin->live.first_byte_timeout_ms)
                           : 0;
    bool has_body = !looking && c->r != NULL && c->r->body != ORIGIN_BODY_NONE;
    struct transfer_request request = {
        .method = looking ? SPAN("HEAD") : origin_s3_call_method(c),
        .url = url->url,
        .headers = headers->items,
        .header_count = headers->count,
        .has_body = has_body,
        .body_length = has_body ? c->r->body_length : 0,
        .fresh_connection = c->wants_fresh || (!looking && !origin_s3_call_is_safe(c) && !has_body),
        .first_byte_timeout_ms = late_ms,
        .late_timeout_ms = late_ms,
        .reach = c->redirect_url != NULL ? c->redirect_reach : TRANSFER_REACH_ANY,
    };
    response_head_init(&c->response_head, c->arena, origin_s3_call_is_head(c));
    c->head_seen = c->has_spoken = c->is_cut_short = false;
    c->received = 0;
    c->collected.len = 0;
    c->started_us = clock_monotonic_us();
    if (!looking) {
        c->phase = PHASE_ASK;
    }
    if (c->r != NULL && !looking) {
        c->r->is_unsure = true;
    }
    c->transfer = transfer_start(c->pool->pool, &request, &calls, c);
}

void origin_s3_call_renew_credentials(struct origin_s3_call *c)
{
    c->phase = PHASE_WAIT;
    credentials_renewer_ask(origin_s3_state_of(c->call.ow)->renewer, c->call.ow->w, c->set,
                            &c->waiter);
}

static bool must_look(const struct origin_s3_call *c)
{
    bool known = true;
    if (c->r == NULL || c->looked || c->r->body == ORIGIN_BODY_NONE || c->r->bucket.len == 0 ||
        !origin_s3_endpoint_has_region(&origin_s3_state_of(c->call.ow)->endpoint)) {
        return false;
    }
    (void)origin_s3_region_of(c->call.ow, c->r->bucket, &known);
    return !known;
}

void origin_s3_call_attempt(struct origin_s3_call *c)
{
    struct origin_worker *ow = c->call.ow;
    struct headers headers = {0};
    struct origin_s3_url url;
    check(c->transfer == NULL);
    arena_reset(c->arena);
    credentials_set_unref(c->set);
    c->set = NULL;
    if (origin_s3_call_own_keys(c) == NULL) {
        c->set =
            credentials_set_ref(credentials_renewer_get(origin_s3_state_of(ow)->renewer, ow->w));
        if (credentials_set_is_expired(c->set, clock_wall_s()) && !c->credentials_renewed) {
            c->credentials_renewed = true;
            origin_s3_call_renew_credentials(c);
            return;
        }
    }
    origin_s3_odd_prepare(c);
    c->phase = must_look(c) ? PHASE_LOOK : PHASE_ASK;
    c->looked = c->looked || c->phase == PHASE_LOOK;
    enum err err = origin_s3_call_build(c, &url, &headers);
    if (err == ERR_OK) {
        c->pool = origin_s3_pool_enter(ow, origin_s3_call_own_keys(c));
        err = c->pool != NULL ? ERR_OK : ERR_LIMIT;
    }
    if (err != ERR_OK) {
        call_end_later(c, err);
        return;
    }
    if (c->phase == PHASE_ASK) {
        c->attempts++;
        if (c->attempts == 1) {
            c->first_asked_us = clock_monotonic_us();
            origin_budget_request(ow->origin);
        }
    }
    transfer_begin(c, &url, &headers);
}

// --- A final head --------------------------------------------------------------------------------

static void head_count(struct origin_s3_call *c)
{
    stats_observe_us(HISTOGRAM_origin_first_byte, clock_monotonic_us() - c->started_us);
    if (c->paused) {
        transfer_pause(c->transfer);
    }
}

static enum err fetch_head(struct origin_s3_call *c)
{
    struct origin_fetch *f = c->f;
    struct response_answer answer;
    bool has_range = c->by_get ? c->response_head.status == 206 : f->has_range;
    struct response_asked asked = {.head = f->head && !c->by_get,
                                   .has_range = has_range,
                                   .first = f->first,
                                   .last = f->last,
                                   .suffix = f->suffix,
                                   .if_match = f->if_match,
                                   .of_store = origin_s3_unpacks(c->call.ow)};
    enum err err = response_answer_judge(&c->response_head, &asked, &answer);
    if (err != ERR_OK) {
        return err;
    }
    f->status = c->response_head.status;
    f->by_get = c->by_get;
    f->size_bytes = answer.size_bytes;
    f->body_first = answer.body_first;
    f->body_len = f->head ? 0 : answer.body_len;
    f->etag = answer.etag;
    f->version_id = answer.version_id;
    f->weak_or_no_etag = answer.weak_or_no_etag;
    f->forbids = answer.forbids;
    f->last_modified = answer.last_modified;
    f->headers = answer.headers;
    f->checksums = answer.checksums;
    (void)headers_get(&c->response_head.headers, SPAN("x-amz-bucket-region"), &f->bucket_region);
    (void)headers_get(&c->response_head.headers, SPAN("x-amz-request-id"), &f->origin_id);
    origin_slot_success(c->call.ow, clock_monotonic_us() - c->started_us);
    c->phase = PHASE_BODY;
    head_count(c);
    origin_s3_odd_learn(c);
    err = f->on_head(f);
    c->is_described = c->by_get && err == ERR_OK;
    return err;
}

enum err origin_s3_call_relay_prepare(struct origin_s3_call *c)
{
    struct origin_relay *r = c->r;
    r->status = c->response_head.status;
    (void)headers_get(&c->response_head.headers, SPAN("x-amz-request-id"), &r->origin_id);
    r->headers_answered = (struct headers){0};
    bool bodiless = c->response_head.status == 204 || c->response_head.status == 304;
    r->has_length = c->response_head.has_length || bodiless;
    r->length = c->response_head.has_length && !bodiless ? c->response_head.length : 0;
    // If the client's Accept-Encoding made the origin compress the answer, a fetch must not
    // continue it: its own Accept-Encoding differs, so it would get other bytes.
    bool is_packed = headers_count(&c->response_head.headers, SPAN("Content-Encoding")) > 0 &&
                     headers_count(r->headers, SPAN("Accept-Encoding")) > 0;
    if (r->request->operation != S3_GetObject || is_packed ||
        !response_answer_names_part(&c->response_head, &r->part_etag, &r->part_first)) {
        r->part_etag = (struct span){NULL, 0};
    }
    return origin_s3_headers_answered(c->arena, &c->response_head.headers, &r->headers_answered);
}

static enum err relay_head(struct origin_s3_call *c)
{
    enum err err = origin_s3_call_relay_prepare(c);
    if (err != ERR_OK) {
        return err;
    }
    if (c->response_head.status < 500) {
        // The duration of an upload says nothing about the origin.
        origin_slot_success(c->call.ow, 0);
    }
    c->phase = PHASE_BODY;
    head_count(c);
    return c->r->on_head(c->r);
}

// Handles an answer on a reused connection that cannot be meant for this request.
static enum err dead_answer(struct origin_s3_call *c)
{
    bool is_unsent = c->r != NULL && c->r->body != ORIGIN_BODY_NONE && c->r->body_length > 0 &&
                     !c->upload_has_left;
    c->is_dead_answer = origin_s3_call_is_safe(c) || is_unsent;
    stats_add(COUNTER_origin_connections_status, 1);
    return ERR_ORIGIN_RESET;
}

static bool is_doubtful(const struct origin_s3_call *c)
{
    return c->phase == PHASE_ASK && transfer_reused_connection(c->transfer);
}

// A refused signature gives 400, 401 or 403; the document of a 403 tells what it means.
static void note_answer(struct origin_s3_call *c)
{
    unsigned status = c->response_head.status;
    bool is_refusal = status == 400 || status == 401 || status == 403;
    if (status < 500 && status != 408 && status != 429) {
        origin_trouble_answered(c->call.ow->origin,
                                !is_refusal && c->set != NULL && origin_s3_call_is_signed(c),
                                origin_s3_call_is_virtual(c));
    }
}

// Writes the shared memory only if the value has changed, because all workers read it.
static void note_date(struct origin_s3_call *c)
{
    struct origin *origin = c->call.ow->origin;
    struct span date;
    time_t origin_s = 0;
    if (!headers_get(&c->response_head.headers, SPAN("Date"), &date) ||
        !date_parse_http(date, &origin_s)) {
        return;
    }
    long long skew_s = (long long)origin_s - (long long)clock_wall_s();
    long long held_s = atomic_load_explicit(&origin->date_skew_s, memory_order_relaxed);
    if (skew_s > held_s + 1 || skew_s < held_s - 1) {
        atomic_store(&origin->date_skew_s, skew_s);
    }
    if (!atomic_load_explicit(&origin->has_date_skew, memory_order_relaxed)) {
        atomic_store(&origin->has_date_skew, true);
    }
}

static enum err on_head_complete(struct origin_s3_call *c)
{
    struct span server;
    if (headers_get(&c->response_head.headers, SPAN("Server"), &server)) {
        origin_server_header_learn(c->call.ow->origin, server);
    }
    note_date(c);
    origin_s3_unpacks_learn(c->call.ow, &c->response_head.headers);
    origin_hops_learn(c->call.ow->origin, c->response_head.status);
    stats_count_origin(c->phase == PHASE_LOOK ? "HeadBucket" : operation_name(c),
                       c->response_head.status);
    if (c->phase == PHASE_LOOK) {
        return ERR_OK;
    }
    unsigned status = c->response_head.status;
    if (origin_s3_status_is_foreign(status) && is_doubtful(c)) {
        return dead_answer(c);
    }
    note_answer(c);
    if (c->r != NULL) {
        // Gateways do not know the outcome either; some send 408 when they have waited long enough.
        c->r->is_unsure = status == 408 || (status >= 500 && status != 501);
    }
    if (c->f != NULL && (status == 200 || status == 206)) {
        return fetch_head(c);
    }
    if (c->r != NULL && !origin_s3_status_must_collect(status)) {
        return relay_head(c);
    }
    if (status >= 300 && status < 400) {
        c->redirect_reach = transfer_reach_of_peer(c->transfer);
    }
    c->phase = PHASE_COLLECT;
    timer_start(&c->timer, COLLECT_IDLES * c->call.ow->origin->live.idle_timeout_ms);
    return ERR_OK;
}

static enum err on_header_line(void *ctx, struct span line)
{
    struct origin_s3_call *c = ctx;
    bool done = false;
    if (c->head_seen) {
        return ERR_OK;
    }
    c->has_spoken = true;
    enum err err = response_head_line(&c->response_head, line, &done);
    if (err == ERR_OK && done) {
        c->head_seen = true;
        err = on_head_complete(c);
    } else if (err == ERR_ORIGIN_PROTOCOL && c->response_head.state == RESPONSE_STATUS_LINE &&
               is_doubtful(c)) {
        err = dead_answer(c);
    }
    return err;
}

// Returns true if nobody needs the body of the answer.
static bool status_is_enough(const struct origin_s3_call *c)
{
    return c->r == NULL || origin_s3_status_is_hidden(c->response_head.status);
}

static enum err on_body(void *ctx, struct span data)
{
    struct origin_s3_call *c = ctx;
    stats_add(COUNTER_origin_received_bytes, data.len);
    c->received += data.len;
    if (c->phase == PHASE_COLLECT || c->phase == PHASE_LOOK) {
        size_t room = ORIGIN_ERROR_BODY_MAX - c->collected.len;
        buf_append(&c->collected, data.ptr, data.len < room ? data.len : room);
        if (data.len <= room) {
            return ERR_OK;
        }
        if (c->phase == PHASE_LOOK || status_is_enough(c)) {
            c->is_cut_short = true;
            return ERR_ORIGIN_RESET;
        }
        // Too long to be a document that we act on: hand it on as it is.
        timer_stop(&c->timer);
        enum err err = relay_head(c);
        if (err == ERR_OK) {
            err = c->r->on_body(c->r, buf_span(&c->collected));
        }
        if (err != ERR_OK || data.len == room) {
            return err;
        }
        return c->r->on_body(c->r, (struct span){data.ptr + room, data.len - room});
    }
    check(c->phase == PHASE_BODY);
    if (c->f == NULL) {
        return c->r->on_body(c->r, data);
    }
    if (c->is_described) {
        return c->received > 1 ? ERR_CANCELLED : ERR_OK; // nobody wants the rest
    }
    if (c->received > c->f->body_len) {
        return ERR_ORIGIN_PROTOCOL;
    }
    return c->f->on_body(c->f, data);
}

static enum err on_upload(void *ctx, char *buf, size_t max, size_t *ret_len)
{
    struct origin_s3_call *c = ctx;
    enum err err = c->r->on_upload(c->r, buf, max, ret_len);
    if (err == ERR_OK && *ret_len > 0) {
        c->upload_has_left = true;
        stats_add(COUNTER_origin_sent_bytes, *ret_len);
    }
    return err;
}

// --- Ends of waits and transfers -----------------------------------------------------------------

static void on_timer(struct timer *timer)
{
    struct origin_s3_call *c = container_of(timer, struct origin_s3_call, timer);
    if (c->phase == PHASE_COLLECT) {
        c->is_cut_short = true;
        transfer_cancel(c->transfer);
    } else if (!origin_slot_yield(&c->call)) {
        origin_s3_call_attempt(c);
    }
}

static void on_credentials(struct credentials_waiter *waiter, enum err err)
{
    struct origin_s3_call *c = container_of(waiter, struct origin_s3_call, waiter);
    if (err != ERR_OK) {
        origin_trouble_met(c->call.ow->origin, ORIGIN_TROUBLE_KEYS_NONE, UINT64_MAX, "");
    }
    if (err != ERR_OK || c->upload_has_left) {
        origin_count_error(ERR_ORIGIN_CREDENTIALS);
        origin_s3_call_end(c, ERR_ORIGIN_CREDENTIALS);
    } else {
        origin_s3_call_attempt(c);
    }
}

static void on_looked(struct origin_s3_call *c)
{
    struct span region;
    if (c->head_seen &&
        headers_get(&c->response_head.headers, SPAN("x-amz-bucket-region"), &region)) {
        origin_s3_region_learn(c->call.ow, c->r->bucket, region);
    }
    origin_s3_call_attempt(c);
}

static void on_transfer_end(void *ctx, enum err err, const char *detail)
{
    struct origin_s3_call *c = ctx;
    c->transfer = NULL;
    origin_s3_pool_leave(c->call.ow, c->pool);
    c->pool = NULL;
    timer_stop(&c->timer);
    if (atomic_load(&origin_s3_state_of(c->call.ow)->is_stopping)) {
        return;
    }
    if (c->cancelled) {
        origin_s3_call_end(c, ERR_CANCELLED);
        return;
    }
    stats_observe_us(HISTOGRAM_origin_request, clock_monotonic_us() - c->started_us);
    if (c->is_dead_answer) {
        c->is_dead_answer = false;
        c->wants_fresh = true;
        c->attempts--;
        origin_s3_call_attempt(c);
        return;
    }
    if (err != ERR_OK && !c->head_seen && c->phase != PHASE_LOOK) {
        stats_count_origin(operation_name(c), 0);
    }
    if (err != ERR_OK) {
        log_debug("origin_attempt_failed", "origin=%s op=%s attempt=%u err=%s why=%s",
                  origin_shown(c->call.ow->origin), operation_name(c), c->attempts, error_name(err),
                  log_quote(span_from_cstr(detail)));
    }
    switch (c->phase) {
    case PHASE_LOOK:
        on_looked(c);
        break;
    case PHASE_BODY:
        if (c->is_described) {
            err = ERR_OK;
        } else if (err == ERR_OK && c->f != NULL && c->received != c->f->body_len) {
            err = ERR_ORIGIN_RESET;
        }
        origin_count_error(err);
        origin_s3_call_end(c, err);
        break;
    case PHASE_COLLECT:
        if (err == ERR_OK || (c->is_cut_short && status_is_enough(c))) {
            origin_s3_call_answered(c);
        } else {
            origin_s3_call_failed(c, c->is_cut_short ? ERR_ORIGIN_TIMEOUT : err, detail);
        }
        break;
    default:
        origin_s3_call_failed(c, err == ERR_OK ? ERR_ORIGIN_PROTOCOL : err, detail);
    }
}

// --- Driver calls --------------------------------------------------------------------------------

static void on_task(struct task *task)
{
    struct origin_s3_call *c = container_of(task, struct origin_s3_call, task);
    if (c->transfer != NULL) {
        return; // on_transfer_end() follows
    }
    if (c->cancelled) {
        origin_s3_call_end(c, ERR_CANCELLED);
    } else if (c->pending_err != ERR_OK) {
        origin_s3_call_end(c, c->pending_err);
    } else if (c->phase == PHASE_HELD) {
        origin_s3_call_held_body(c);
    }
}

static void on_ready(struct origin_call *call)
{
    struct origin_s3_call *c = as_origin_s3_call(call);
    if (!c->cancelled) {
        origin_s3_call_attempt(c);
    }
}

static void on_refused(struct origin_call *call, enum err err)
{
    origin_s3_call_end(as_origin_s3_call(call), err);
}

static void call_start(struct origin_worker *ow, struct origin_fetch *f, struct origin_relay *r)
{
    struct origin_s3_call *c = calloc(1, sizeof(*c));
    check(c != NULL);
    origin_call_init(&c->call, ow, r != NULL ? ORIGIN_CALL_RELAY : origin_call_kind_of(f),
                     r != NULL ? r->client : f->client);
    c->call.ready = on_ready;
    c->call.refused = on_refused;
    c->f = f;
    c->r = r;
    c->arena = f != NULL ? f->arena : r->arena;
    buf_init(&c->collected, ORIGIN_ERROR_BODY_MAX);
    timer_init(ow->w, &c->timer, on_timer);
    worker_task_init(&c->task, on_task);
    credentials_waiter_init(&c->waiter, on_credentials);
    if (f != NULL) {
        f->driver = &c->call;
    } else {
        r->driver = &c->call;
    }
    bool now = false;
    enum err err = origin_slot_enter(&c->call, &now);
    if (err != ERR_OK) {
        call_end_later(c, err);
    } else if (now) {
        origin_s3_call_attempt(c);
    }
}

void origin_s3_fetch_start(struct origin_worker *ow, struct origin_fetch *f)
{
    call_start(ow, f, NULL);
}

void origin_s3_relay_start(struct origin_worker *ow, struct origin_relay *r)
{
    call_start(ow, NULL, r);
}

void origin_s3_call_pause(struct origin_call *call)
{
    struct origin_s3_call *c = as_origin_s3_call(call);
    c->paused = true;
    if (c->transfer != NULL && c->phase == PHASE_BODY) {
        transfer_pause(c->transfer);
    }
}

void origin_s3_call_resume(struct origin_call *call)
{
    struct origin_s3_call *c = as_origin_s3_call(call);
    c->paused = false;
    if (c->transfer != NULL && c->phase == PHASE_BODY) {
        transfer_resume(c->transfer);
    } else if (c->phase == PHASE_HELD) {
        worker_defer(c->call.ow->w, &c->task);
    }
}

void origin_s3_call_resume_upload(struct origin_call *call)
{
    struct origin_s3_call *c = as_origin_s3_call(call);
    if (c->transfer != NULL) {
        transfer_resume_upload(c->transfer);
    }
}

void origin_s3_call_cancel(struct origin_call *call)
{
    struct origin_s3_call *c = as_origin_s3_call(call);
    if (c->cancelled) {
        return;
    }
    c->cancelled = true;
    timer_stop(&c->timer);
    origin_slot_stop_waiting(call);
    credentials_waiter_cancel(&c->waiter);
    if (c->transfer != NULL) {
        transfer_cancel(c->transfer);
    } else {
        worker_defer(c->call.ow->w, &c->task);
    }
}

void origin_s3_call_abandon(struct origin_call *call)
{
    struct origin_s3_call *c = as_origin_s3_call(call);
    timer_done(&c->timer);
    arena_free(c->arena);
    call_free(c);
}
