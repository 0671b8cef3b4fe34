// SPDX-License-Identifier: Apache-2.0
// One request to an S3 origin and its attempts: a fetch of an object, or a relay of any other
// request. Runs on the worker that started it.
//
// The life of a call:
//   PLACE     waits for its place among the worker's calls, at most PLACE_WAIT_MS
//   WAIT      between two attempts: back-off timer, or new credentials
//   LOOK      (an upload to a bucket of unknown region) HEAD of the bucket, for its region
//   ASK       a transfer runs, the final head has not come
//   COLLECT   the answer may not be final: its body is kept, at most ORIGIN_ERROR_BODY_MAX bytes
//   BODY      the head was handed on, the body follows; from here on nothing is asked again
//   HELD      a collected answer is handed on, its body waits for the caller to resume
// Each attempt is built and signed anew in the call's arena, which is emptied before it.
//
// What is repeated: a request the origin refused for its region, its clock or its token, once each
// (three regions), as long as no byte of an upload has left; and a safe request that failed,
// `retries` times with back-off, each taking one retry from the origin's budget. Bodies are never
// sent twice.
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "origin/response_gate.h"
#include "origin/s3_private.h"
#include "stats/stats.h"

#define REGION_HOPS_MAX 3u
#define SKEW_SEEN_S 600            // a HEAD's 403 has no code: this much says that it is the clock
#define PLACE_WAIT_MS 30000u       // then the origin is too slow for what is asked of it
#define SLOW_FIRST_BYTE_MS 600000u // for operations that answer when they are done

enum phase {
    PHASE_PLACE,
    PHASE_WAIT,
    PHASE_LOOK,
    PHASE_ASK,
    PHASE_COLLECT,
    PHASE_BODY,
    PHASE_HELD
};

struct s3_call {
    struct origin_call call; // first
    struct origin_fetch *f;  // one of the two
    struct origin_relay *r;
    enum phase phase;
    struct arena *arena; // the caller's too: f->arena or r->arena

    bool paused, cancelled, head_seen, upload_has_left;
    bool looked, skew_corrected, credentials_renewed;
    unsigned attempts, region_hops;
    enum err pending_err; // ends the call from the task

    struct transfer *transfer;
    struct s3_pool *pool;
    struct credential_set *set; // of this attempt; NULL with the caller's own credentials
    struct span region;         // this attempt was signed for
    struct response_gate gate;
    struct buf collected;
    uint64_t received, started_us;

    struct timer timer;
    struct task task;
    struct credentials_waiter waiter;
};

static struct s3_call *as_s3_call(struct origin_call *call)
{
    return container_of(call, struct s3_call, call);
}

static struct span method_of(const struct s3_call *c)
{
    return c->r != NULL ? c->r->method : c->f->head ? SPAN("HEAD") : SPAN("GET");
}

static struct span bucket_of(const struct s3_call *c)
{
    return c->r != NULL ? c->r->bucket : c->f->bucket;
}

static bool is_head(const struct s3_call *c)
{
    return c->phase == PHASE_LOOK || span_equal_cstr(method_of(c), "HEAD");
}

// May be asked again after a failure: it changes nothing.
static bool is_safe(const struct s3_call *c)
{
    return span_equal_cstr(method_of(c), "GET") || span_equal_cstr(method_of(c), "HEAD");
}

static const char *operation_name(const struct s3_call *c)
{
    if (c->r != NULL) {
        return s3_operation_name(c->r->request->operation);
    }
    return c->f->head ? "HeadObject" : "GetObject";
}

static const struct sigv4_credentials *own_credentials(const struct s3_call *c)
{
    return c->r != NULL ? c->r->credentials : c->f->credentials;
}

// --- The end -------------------------------------------------------------------------------------

static void call_free(void *ptr)
{
    struct s3_call *c = ptr;
    buf_done(&c->collected);
    credential_set_unref(c->set);
    free(c);
}

static void arena_free_later(void *ptr)
{
    arena_free(ptr);
}

static void call_end(struct s3_call *c, enum err err)
{
    struct worker *w = c->call.ow->w;
    struct origin_fetch *f = c->f;
    struct origin_relay *r = c->r;
    check(c->transfer == NULL);
    timer_done(&c->timer);
    task_cancel(&c->task);
    credentials_waiter_cancel(&c->waiter);
    origin_call_done(&c->call);
    if (err == ERR_ORIGIN_PROTOCOL) {
        log_warn("origin_answer_refused", "origin=%s op=%s status=%u bucket=%s",
                 c->call.ow->origin->options.name, operation_name(c), c->gate.status,
                 log_quote(bucket_of(c)));
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

// Ends the call from outside the caller's stack.
static void call_end_later(struct s3_call *c, enum err err)
{
    c->pending_err = err;
    worker_defer(c->call.ow->w, &c->task);
}

// --- Building an attempt -------------------------------------------------------------------------

static bool add(struct s3_call *c, struct headers *headers, const char *name, struct span value)
{
    return headers_add(headers, c->arena, span_from_cstr(name), value);
}

static enum err build_fetch_headers(struct s3_call *c, struct headers *headers)
{
    const struct origin_fetch *f = c->f;
    bool ok = add(c, headers, "User-Agent", SPAN("forebay/" FOREBAY_VERSION));
    if (f->has_range && !f->head) {
        const char *range =
            f->last == UINT64_MAX
                ? arena_printf(c->arena, "bytes=%llu-", (unsigned long long)f->first)
                : arena_printf(c->arena, "bytes=%llu-%llu", (unsigned long long)f->first,
                               (unsigned long long)f->last);
        ok = ok && range != NULL && add(c, headers, "Range", span_from_cstr(range));
    }
    if (f->if_match.len > 0) {
        ok = ok && add(c, headers, "If-Match", f->if_match);
    }
    if (f->if_none_match.len > 0) {
        ok = ok && add(c, headers, "If-None-Match", f->if_none_match);
    }
    if (f->ask_checksums) {
        ok = ok && add(c, headers, "x-amz-checksum-mode", SPAN("ENABLED"));
    }
    return ok ? ERR_OK : ERR_NO_MEMORY;
}

static struct span payload_hash_of(const struct s3_call *c)
{
    if (c->r == NULL || c->phase == PHASE_LOOK) {
        return SPAN(SIGV4_EMPTY_SHA256);
    }
    switch (c->r->body) {
    case ORIGIN_BODY_HASH:
        return c->r->payload_hash;
    case ORIGIN_BODY_UNSIGNED:
        return SPAN(SIGV4_UNSIGNED_PAYLOAD);
    case ORIGIN_BODY_UNSIGNED_TRAILER:
        return SPAN("STREAMING-UNSIGNED-PAYLOAD-TRAILER");
    case ORIGIN_BODY_NONE:
        break;
    }
    return SPAN(SIGV4_EMPTY_SHA256);
}

static enum err sign(struct s3_call *c, const struct s3_url *url, struct headers *headers)
{
    const struct sigv4_credentials *keys = own_credentials(c);
    struct span hash = payload_hash_of(c);
    bool is_anonymous = (keys == NULL && c->set->is_anonymous) ||
                        (c->phase != PHASE_LOOK && c->r != NULL && c->r->is_unsigned);
    // Unsigned requests say how the body is framed only where that is not the plain way.
    bool ok = true;
    if (!is_anonymous ||
        (c->phase != PHASE_LOOK && c->r != NULL && c->r->body == ORIGIN_BODY_UNSIGNED_TRAILER)) {
        ok = add(c, headers, "x-amz-content-sha256", hash);
    }
    if (!ok) {
        return ERR_NO_MEMORY;
    }
    if (is_anonymous) {
        return ERR_OK;
    }
    struct sigv4_scope scope = {.region = c->region, .service = SPAN("s3")};
    time_t now = (time_t)(clock_wall_s() + atomic_load(&s3_state_of(c->call.ow)->clock_skew_s));
    return sigv4_sign(c->arena, keys != NULL ? keys : &c->set->keys, &scope, now,
                      c->phase == PHASE_LOOK ? SPAN("HEAD") : method_of(c), url->path, url->query,
                      headers, hash, NULL);
}

static enum err build(struct s3_call *c, struct s3_url *ret_url, struct headers *headers)
{
    struct origin_worker *ow = c->call.ow;
    const struct s3_state *state = s3_state_of(ow);
    struct span key = {NULL, 0}, query = {NULL, 0};
    bool known = false;
    enum err err = ERR_OK;
    c->region = arena_copy(c->arena, s3_region_of(ow, bucket_of(c), &known));
    if (c->region.ptr == NULL) {
        return ERR_NO_MEMORY;
    }
    if (c->phase != PHASE_LOOK) {
        key = c->r != NULL ? c->r->request->key : c->f->key;
    }
    if (c->r != NULL && c->phase != PHASE_LOOK) {
        err = s3_query_forward(c->arena, c->r->request, &query);
    }
    if (err == ERR_OK) {
        err = s3_url_build(c->arena, &state->endpoint, ow->origin->options.addressing, c->region,
                           bucket_of(c), key, query, ret_url);
    }
    if (err == ERR_OK && !(add(c, headers, "Host", ret_url->host) &&
                           add(c, headers, "Accept-Encoding", SPAN("identity")))) {
        err = ERR_NO_MEMORY;
    }
    if (err == ERR_OK && c->f != NULL) {
        err = build_fetch_headers(c, headers);
    } else if (err == ERR_OK && c->phase != PHASE_LOOK) {
        err = s3_headers_forward(c->arena, c->r->headers,
                                 c->r->body == ORIGIN_BODY_UNSIGNED_TRAILER, headers);
    }
    return err == ERR_OK ? sign(c, ret_url, headers) : err;
}

// --- An attempt ----------------------------------------------------------------------------------

static enum err on_header_line(void *ctx, struct span line);
static enum err on_body(void *ctx, struct span data);
static enum err on_upload(void *ctx, char *buf, size_t max, size_t *ret_len);
static void on_transfer_end(void *ctx, enum err err, const char *detail);

static bool answers_late(const struct s3_call *c)
{
    enum s3_operation operation = c->r != NULL ? c->r->request->operation : S3_Unknown;
    return operation == S3_CompleteMultipartUpload || operation == S3_CopyObject ||
           operation == S3_UploadPartCopy;
}

static void transfer_begin(struct s3_call *c, const struct s3_url *url,
                           const struct headers *headers)
{
    static const struct transfer_calls calls = {.on_header_line = on_header_line,
                                                .on_body = on_body,
                                                .on_upload = on_upload,
                                                .on_end = on_transfer_end};
    bool looking = c->phase == PHASE_LOOK;
    bool has_body = !looking && c->r != NULL && c->r->body != ORIGIN_BODY_NONE;
    struct transfer_request request = {
        .method = looking ? SPAN("HEAD") : method_of(c),
        .url = url->url,
        .headers = headers->items,
        .header_count = headers->count,
        .has_body = has_body,
        .body_length = has_body ? c->r->body_length : 0,
        .fresh_connection = !looking && !is_safe(c) && !has_body,
        .first_byte_timeout_ms =
            answers_late(c)
                ? max_u64(SLOW_FIRST_BYTE_MS, c->call.ow->origin->options.first_byte_timeout_ms)
                : 0,
        .no_idle_timeout = answers_late(c),
    };
    response_gate_init(&c->gate, c->arena, is_head(c));
    c->head_seen = false;
    c->received = 0;
    c->collected.len = 0;
    c->started_us = clock_monotonic_us();
    if (!looking) {
        c->phase = PHASE_ASK;
    }
    c->transfer = transfer_start(c->pool->pool, &request, &calls, c);
}

static void wait_for_credentials(struct s3_call *c)
{
    c->phase = PHASE_WAIT;
    credentials_keeper_renew(s3_state_of(c->call.ow)->keeper, c->call.ow->w, c->set, &c->waiter);
}

static bool must_look(const struct s3_call *c)
{
    bool known = true;
    if (c->r == NULL || c->looked || c->r->body == ORIGIN_BODY_NONE || c->r->bucket.len == 0 ||
        !s3_endpoint_has_region(&s3_state_of(c->call.ow)->endpoint)) {
        return false;
    }
    (void)s3_region_of(c->call.ow, c->r->bucket, &known);
    return !known;
}

// Never calls back.
static void attempt(struct s3_call *c)
{
    struct origin_worker *ow = c->call.ow;
    struct headers headers = {NULL, 0, 0};
    struct s3_url url;
    check(c->transfer == NULL);
    arena_reset(c->arena);
    credential_set_unref(c->set);
    c->set = NULL;
    if (own_credentials(c) == NULL) {
        c->set = credential_set_ref(credentials_keeper_get(s3_state_of(ow)->keeper, ow->w));
        if (credential_set_is_expired(c->set, clock_wall_s()) && !c->credentials_renewed) {
            c->credentials_renewed = true;
            wait_for_credentials(c);
            return;
        }
    }
    c->phase = must_look(c) ? PHASE_LOOK : PHASE_ASK;
    c->looked = c->looked || c->phase == PHASE_LOOK;
    enum err err = build(c, &url, &headers);
    if (err == ERR_OK) {
        c->pool = s3_pool_enter(ow, own_credentials(c));
        err = c->pool != NULL ? ERR_OK : ERR_LIMIT;
    }
    if (err != ERR_OK) {
        call_end_later(c, err);
        return;
    }
    if (c->phase == PHASE_ASK) {
        c->attempts++;
        if (c->attempts == 1) {
            origin_budget_request(ow->origin);
        }
    }
    transfer_begin(c, &url, &headers);
}

// --- A final head --------------------------------------------------------------------------------

static void head_count(struct s3_call *c)
{
    stats_observe_us(HISTOGRAM_origin_first_byte, clock_monotonic_us() - c->started_us);
    if (c->paused) {
        transfer_pause(c->transfer);
    }
}

static enum err fetch_head(struct s3_call *c)
{
    struct origin_fetch *f = c->f;
    struct response_answer answer;
    struct response_asked asked = {.head = f->head,
                                   .has_range = f->has_range,
                                   .first = f->first,
                                   .last = f->last,
                                   .if_match = f->if_match};
    enum err err = response_gate_judge(&c->gate, &asked, &answer);
    if (err != ERR_OK) {
        return err;
    }
    f->status = c->gate.status;
    f->size_bytes = answer.size_bytes;
    f->body_first = answer.body_first;
    f->body_len = answer.body_len;
    f->etag = answer.etag;
    f->version_id = answer.version_id;
    f->weak_or_no_etag = answer.weak_or_no_etag;
    f->storable = answer.storable;
    f->last_modified = answer.last_modified;
    f->headers = answer.headers;
    f->checksums = answer.checksums;
    (void)headers_get(&c->gate.headers, SPAN("x-amz-bucket-region"), &f->bucket_region);
    origin_place_success(c->call.ow);
    c->phase = PHASE_BODY;
    head_count(c);
    return f->on_head(f);
}

// Fills in the answer's head; the caller hands it on.
static enum err relay_prepare(struct s3_call *c)
{
    struct origin_relay *r = c->r;
    r->status = c->gate.status;
    r->headers_answered = (struct headers){NULL, 0, 0};
    bool bodiless = c->gate.status == 204 || c->gate.status == 304;
    r->has_length = c->gate.has_length || bodiless;
    r->length = c->gate.has_length && !bodiless ? c->gate.length : 0;
    return s3_headers_answered(c->arena, &c->gate.headers, &r->headers_answered);
}

static enum err relay_head(struct s3_call *c)
{
    enum err err = relay_prepare(c);
    if (err != ERR_OK) {
        return err;
    }
    if (c->gate.status < 500) {
        origin_place_success(c->call.ow);
    }
    c->phase = PHASE_BODY;
    head_count(c);
    return c->r->on_head(c->r);
}

static enum err on_head_complete(struct s3_call *c)
{
    struct span server;
    if (headers_get(&c->gate.headers, SPAN("Server"), &server)) {
        origin_server_header_learn(c->call.ow->origin, server);
    }
    stats_count_origin(c->phase == PHASE_LOOK ? "HeadBucket" : operation_name(c), c->gate.status);
    if (c->phase == PHASE_LOOK) {
        return ERR_OK;
    }
    unsigned status = c->gate.status;
    if (c->f != NULL && (status == 200 || status == 206)) {
        return fetch_head(c);
    }
    if (c->r != NULL && !s3_status_must_collect(status)) {
        return relay_head(c);
    }
    c->phase = PHASE_COLLECT;
    return ERR_OK;
}

static enum err on_header_line(void *ctx, struct span line)
{
    struct s3_call *c = ctx;
    bool done = false;
    if (c->head_seen) {
        return ERR_OK;
    }
    enum err err = response_gate_line(&c->gate, line, &done);
    if (err == ERR_OK && done) {
        c->head_seen = true;
        err = on_head_complete(c);
    }
    return err;
}

static enum err on_body(void *ctx, struct span data)
{
    struct s3_call *c = ctx;
    stats_add(COUNTER_origin_received_bytes, data.len);
    c->received += data.len;
    if (c->phase == PHASE_COLLECT || c->phase == PHASE_LOOK) {
        size_t room = ORIGIN_ERROR_BODY_MAX - c->collected.len;
        buf_append(&c->collected, data.ptr, data.len < room ? data.len : room);
        if (data.len <= room || c->r == NULL || c->phase == PHASE_LOOK ||
            s3_status_is_hidden(c->gate.status)) {
            return ERR_OK;
        }
        // Too long for anything that we would act on: it goes on as it is.
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
    if (c->received > c->f->body_len) {
        return ERR_ORIGIN_PROTOCOL;
    }
    return c->f->on_body(c->f, data);
}

static enum err on_upload(void *ctx, char *buf, size_t max, size_t *ret_len)
{
    struct s3_call *c = ctx;
    enum err err = c->r->on_upload(c->r, buf, max, ret_len);
    if (err == ERR_OK && *ret_len > 0) {
        c->upload_has_left = true;
        stats_add(COUNTER_origin_sent_bytes, *ret_len);
    }
    return err;
}

// --- What to do about an answer that is no success -----------------------------------------------

static void on_timer(struct timer *timer)
{
    struct s3_call *c = container_of(timer, struct s3_call, timer);
    if (c->phase == PHASE_PLACE) {
        stats_add(COUNTER_origin_waiters_refused, 1);
        call_end(c, ERR_ORIGIN_TIMEOUT);
    } else {
        attempt(c);
    }
}

// Waits and asks again; false when that is not allowed any more.
static bool try_again(struct s3_call *c)
{
    struct origin *origin = c->call.ow->origin;
    if (c->attempts > origin->options.retries || !origin_retry_take(origin)) {
        return false;
    }
    c->phase = PHASE_WAIT;
    timer_start(&c->timer, origin_backoff_ms(c->attempts));
    return true;
}

static void on_failed(struct s3_call *c, enum err err)
{
    bool untouched = (err == ERR_ORIGIN_DNS || err == ERR_ORIGIN_CONNECT) && !c->upload_has_left;
    origin_count_error(err);
    if (error_row(err)->retry == RETRY_SAFE && (is_safe(c) || untouched) && try_again(c)) {
        return;
    }
    if (c->f != NULL) {
        c->f->status = c->head_seen ? c->gate.status : 0;
    }
    call_end(c, err);
}

// The answer stands. A fetch ends with its error, a relay hands the answer on.
static void answer_is_final(struct s3_call *c, enum err fetch_err)
{
    if (c->f != NULL) {
        struct origin_fetch *f = c->f;
        f->status = c->gate.status;
        f->error_document = arena_copy(c->arena, buf_span(&c->collected));
        (void)headers_get(&c->gate.headers, SPAN("x-amz-bucket-region"), &f->bucket_region);
        (void)headers_get(&c->gate.headers, SPAN("ETag"), &f->etag);
        (void)response_gate_unsatisfied_size(&c->gate, &f->size_bytes);
        call_end(c, fetch_err);
        return;
    }
    enum err err = relay_prepare(c);
    c->phase = PHASE_HELD;
    if (err == ERR_OK) {
        stats_observe_us(HISTOGRAM_origin_first_byte, clock_monotonic_us() - c->started_us);
        err = c->r->on_head(c->r);
    }
    if (err != ERR_OK || c->cancelled) {
        call_end(c, c->cancelled ? ERR_CANCELLED : err);
    } else if (!c->paused) {
        worker_defer(c->call.ow->w, &c->task);
    }
}

static void held_body(struct s3_call *c)
{
    enum err err = ERR_OK;
    if (c->paused) {
        return;
    }
    if (c->collected.len > 0) {
        err = c->r->on_body(c->r, buf_span(&c->collected));
    }
    call_end(c, c->cancelled ? ERR_CANCELLED : err);
}

// The answer refuses the request as it was sent, and another one may be right: its region, its
// clock, its token. True when that was dealt with.
static bool mend_region(struct s3_call *c, const struct s3_error_body *body)
{
    struct span hint = {NULL, 0};
    unsigned status = c->gate.status;
    bool redirect = status >= 300 && status < 400 && status != 304;
    (void)headers_get(&c->gate.headers, SPAN("x-amz-bucket-region"), &hint);
    if (hint.len == 0) {
        hint = body->region;
    }
    if ((!redirect && status != 400) || !s3_region_is_valid(hint) || span_equal(hint, c->region) ||
        c->region_hops == REGION_HOPS_MAX) {
        return false;
    }
    c->region_hops++;
    s3_region_learn(c->call.ow, bucket_of(c), hint);
    if (c->upload_has_left) {
        call_end(c, ERR_ORIGIN_RESET); // the client sends its body again, to the right place
    } else {
        attempt(c);
    }
    return true;
}

static bool mend_clock(struct s3_call *c, const struct s3_error_body *body)
{
    struct s3_state *state = s3_state_of(c->call.ow);
    struct span date;
    time_t origin_s = 0;
    if (c->skew_corrected || c->gate.status != 403 ||
        !headers_get(&c->gate.headers, SPAN("Date"), &date) || !http_date_parse(date, &origin_s)) {
        return false;
    }
    int64_t now_s = clock_wall_s();
    int64_t off_s = (int64_t)origin_s - (now_s + atomic_load(&state->clock_skew_s));
    bool says_so = span_equal_cstr(body->code, "RequestTimeTooSkewed");
    if (!says_so && !(is_head(c) && (off_s > SKEW_SEEN_S || off_s < -SKEW_SEEN_S))) {
        return false;
    }
    c->skew_corrected = true;
    atomic_store(&state->clock_skew_s, (long)((int64_t)origin_s - now_s));
    log_warn("origin_clock_differs", "origin=%s offset_s=%lld", c->call.ow->origin->options.name,
             (long long)((int64_t)origin_s - now_s));
    if (c->upload_has_left) {
        call_end(c, ERR_ORIGIN_CREDENTIALS);
    } else {
        attempt(c);
    }
    return true;
}

static bool mend_credentials(struct s3_call *c, const struct s3_error_body *body)
{
    if (c->set == NULL || c->set->is_anonymous || (c->r != NULL && c->r->is_unsigned) ||
        (c->gate.status != 400 && c->gate.status != 403)) {
        return false;
    }
    bool token_refused =
        s3_status_is_token_error(body->code) || span_equal_cstr(body->code, "InvalidAccessKeyId") ||
        (is_head(c) && c->gate.status == 400 && c->set->keys.session_token.len > 0);
    if (!token_refused || c->credentials_renewed) {
        if (s3_status_is_token_error(body->code)) {
            origin_count_error(ERR_ORIGIN_CREDENTIALS);
            call_end(c, ERR_ORIGIN_CREDENTIALS);
            return true;
        }
        return false;
    }
    c->credentials_renewed = true;
    wait_for_credentials(c);
    return true;
}

static void on_credentials(struct credentials_waiter *waiter, enum err err)
{
    struct s3_call *c = container_of(waiter, struct s3_call, waiter);
    if (err != ERR_OK || c->upload_has_left) {
        origin_count_error(ERR_ORIGIN_CREDENTIALS);
        call_end(c, ERR_ORIGIN_CREDENTIALS);
    } else {
        attempt(c);
    }
}

static void on_answer(struct s3_call *c)
{
    struct s3_error_body body = {{NULL, 0}, {NULL, 0}, {NULL, 0}, {NULL, 0}};
    unsigned status = c->gate.status;
    if (c->collected.len > 0) {
        (void)s3_error_read(c->arena, buf_span(&c->collected), &body);
    }
    if (mend_region(c, &body) || mend_clock(c, &body) || mend_credentials(c, &body)) {
        return;
    }
    if (status == 408 || status == 429 || (status >= 500 && status != 501)) {
        enum err err = s3_status_failure(status);
        origin_count_error(err);
        if (err == ERR_ORIGIN_SLOWDOWN) {
            origin_place_slow_down(c->call.ow);
        }
        if (is_safe(c) && try_again(c)) {
            return;
        }
        if (c->r != NULL && s3_status_is_hidden(status)) {
            call_end(c, err);
        } else {
            answer_is_final(c, err);
        }
        return;
    }
    if (c->r != NULL && s3_status_is_hidden(status)) {
        call_end(c, ERR_ORIGIN_PROTOCOL); // a redirect that leads nowhere we know
        return;
    }
    enum err err = c->f != NULL ? s3_status_error(c->f, c->gate.status, body.code) : ERR_OK;
    origin_count_error(err);
    answer_is_final(c, err);
}

static void on_looked(struct s3_call *c)
{
    struct span region;
    if (c->head_seen && headers_get(&c->gate.headers, SPAN("x-amz-bucket-region"), &region)) {
        s3_region_learn(c->call.ow, c->r->bucket, region);
    }
    attempt(c);
}

static void on_transfer_end(void *ctx, enum err err, const char *detail)
{
    struct s3_call *c = ctx;
    c->transfer = NULL;
    s3_pool_leave(c->pool);
    c->pool = NULL;
    if (atomic_load(&s3_state_of(c->call.ow)->is_stopping)) {
        return;
    }
    if (c->cancelled) {
        call_end(c, ERR_CANCELLED);
        return;
    }
    stats_observe_us(HISTOGRAM_origin_request, clock_monotonic_us() - c->started_us);
    if (err != ERR_OK && !c->head_seen && c->phase != PHASE_LOOK) {
        stats_count_origin(operation_name(c), 0);
    }
    if (err != ERR_OK) {
        log_debug("origin_attempt_failed", "origin=%s op=%s attempt=%u err=%s why=%s",
                  c->call.ow->origin->options.name, operation_name(c), c->attempts, error_name(err),
                  log_quote(span_from_cstr(detail)));
    }
    switch (c->phase) {
    case PHASE_LOOK:
        on_looked(c);
        break;
    case PHASE_BODY:
        if (err == ERR_OK && c->f != NULL && c->received != c->f->body_len) {
            err = ERR_ORIGIN_RESET;
        }
        origin_count_error(err);
        call_end(c, err);
        break;
    case PHASE_COLLECT:
        if (err == ERR_OK) {
            on_answer(c);
        } else {
            on_failed(c, err);
        }
        break;
    default:
        on_failed(c, err == ERR_OK ? ERR_ORIGIN_PROTOCOL : err);
    }
}

// --- Driver calls --------------------------------------------------------------------------------

static void on_task(struct task *task)
{
    struct s3_call *c = container_of(task, struct s3_call, task);
    if (c->transfer != NULL) {
        return; // its end comes by itself
    }
    if (c->cancelled) {
        call_end(c, ERR_CANCELLED);
    } else if (c->pending_err != ERR_OK) {
        call_end(c, c->pending_err);
    } else if (c->phase == PHASE_HELD) {
        held_body(c);
    }
}

static void on_ready(struct origin_call *call)
{
    struct s3_call *c = as_s3_call(call);
    if (!c->cancelled) {
        timer_stop(&c->timer);
        attempt(c);
    }
}

static void call_start(struct origin_worker *ow, struct origin_fetch *f, struct origin_relay *r)
{
    struct s3_call *c = calloc(1, sizeof(*c));
    check(c != NULL);
    origin_call_init(&c->call, ow);
    c->call.ready = on_ready;
    c->f = f;
    c->r = r;
    c->arena = f != NULL ? f->arena : r->arena;
    buf_init(&c->collected, ORIGIN_ERROR_BODY_MAX);
    timer_init(ow->w, &c->timer, on_timer);
    task_init(&c->task, on_task);
    credentials_waiter_init(&c->waiter, on_credentials);
    if (f != NULL) {
        f->driver = &c->call;
    } else {
        r->driver = &c->call;
    }
    bool now = false;
    enum err err = origin_place_enter(&c->call, &now);
    if (err != ERR_OK) {
        call_end_later(c, err);
    } else if (now) {
        attempt(c);
    } else {
        timer_start(&c->timer, PLACE_WAIT_MS);
    }
}

void s3_fetch_start(struct origin_worker *ow, struct origin_fetch *f)
{
    call_start(ow, f, NULL);
}

void s3_relay_start(struct origin_worker *ow, struct origin_relay *r)
{
    call_start(ow, NULL, r);
}

void s3_call_pause(struct origin_call *call)
{
    struct s3_call *c = as_s3_call(call);
    c->paused = true;
    if (c->transfer != NULL && c->phase == PHASE_BODY) {
        transfer_pause(c->transfer);
    }
}

void s3_call_resume(struct origin_call *call)
{
    struct s3_call *c = as_s3_call(call);
    c->paused = false;
    if (c->transfer != NULL && c->phase == PHASE_BODY) {
        transfer_resume(c->transfer);
    } else if (c->phase == PHASE_HELD) {
        worker_defer(c->call.ow->w, &c->task);
    }
}

void s3_call_resume_upload(struct origin_call *call)
{
    struct s3_call *c = as_s3_call(call);
    if (c->transfer != NULL) {
        transfer_resume_upload(c->transfer);
    }
}

void s3_call_cancel(struct origin_call *call)
{
    struct s3_call *c = as_s3_call(call);
    if (c->cancelled) {
        return;
    }
    c->cancelled = true;
    timer_stop(&c->timer);
    credentials_waiter_cancel(&c->waiter);
    if (c->transfer != NULL) {
        transfer_cancel(c->transfer);
    } else {
        worker_defer(c->call.ow->w, &c->task);
    }
}

void s3_call_abandon(struct origin_call *call)
{
    struct s3_call *c = as_s3_call(call);
    timer_done(&c->timer);
    arena_free(c->arena);
    call_free(c);
}
