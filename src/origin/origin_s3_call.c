// SPDX-License-Identifier: Apache-2.0
// One call to an S3 origin, with all its attempts. A call is a fetch of an object, or a relay of
// any other request. It runs on the worker that started it.
//
// origin_s3_phases.def has the phases of a call. When a transfer has ended, origin_s3_call_answer.c
// decides the next step of the call, and call_go() carries it out.
//
// Each attempt is built and signed again. Its memory is the call's arena, which is emptied first.
//
// Retries. A request that is refused for its region, clock or token is corrected and repeated: for
// up to three regions, and once each for clock and token. A redirect is followed by the rules of
// origin_s3_redirect.c. Both happen only as long as no byte of an upload was sent. A safe request
// that failed is repeated up to `retries` times, with back-off. Each of these retries takes one
// from the origin's budget.
//
// If the origin refuses a request with SlowDown while it answers others, the request only came too
// early. It is retried for ORIGIN_SLOWDOWN_WAIT_US without the budget; the slots bound these
// retries. Bodies are never sent twice.
//
// On a reused connection, a status that no S3 store sends is no answer to our request. If the
// request may be repeated, it is sent again on a new connection, which does not count as a retry.
#include <assert.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "origin/origin_s3_call_private.h"
#include "stats/stats.h"

#define COLLECT_IDLES 3u // Longest time in COLLECT, in idle timeouts.
// A range of a known version that is at least this long gets a larger receive buffer.
#define LONG_RANGE_BYTES (1024u << 10)
#define SLOW_ANSWER_MS 600000u // Wait for operations that answer only at their end.

#define TO(name) (1u << S3_PHASE_##name)
static const uint16_t SUCCESSORS[] = {
#define PHASE(name, successors) [S3_PHASE_##name] = (successors),
#include "origin/origin_s3_phases.def"
#undef PHASE
};
static_assert(S3_PHASE_COUNT_ <= 16, "a phase is a bit of its predecessor's word");

void origin_s3_call_enter(struct origin_s3_call *c, enum origin_s3_phase phase)
{
    check_step(SUCCESSORS, c->phase, phase);
    bool has_transfer = phase == S3_PHASE_DEAD || phase == S3_PHASE_COLLECT ||
                        phase == S3_PHASE_CUT || phase == S3_PHASE_BODY ||
                        phase == S3_PHASE_DESCRIBED;
    check(phase == S3_PHASE_CANCELLED || has_transfer == (c->transfer != NULL));
    check(phase != S3_PHASE_ENDING || c->pending_err != ERR_OK);
    check(phase != S3_PHASE_HELD || c->call.r != NULL);
    check(phase != S3_PHASE_DESCRIBED || c->form != S3_FORM_ASKED);
    c->phase = phase;
}

static const char *operation_name(const struct origin_s3_call *c)
{
    if (c->call.r != NULL) {
        return c->call.r->is_probe ? STATS_ORIGIN_PROBE
                                   : s3_operation_name(c->call.r->request->operation);
    }
    return origin_fetch_is_head(c->call.f) && c->form == S3_FORM_ASKED ? "HeadObject" : "GetObject";
}

// --- The end of a call ---------------------------------------------------------------------------

static void call_free(void *ptr)
{
    struct origin_s3_call *c = ptr;
    timer_done(&c->timer);
    buf_done(&c->collected);
    credentials_set_unref(c->set);
    free(c->redirect_url);
    free(c);
}

static void call_end(struct origin_s3_call *c, enum err err)
{
    origin_s3_call_enter(c, S3_PHASE_OVER);
    timer_stop(&c->timer);
    worker_task_cancel(&c->task);
    credentials_waiter_cancel(&c->waiter);
    if (err == ERR_ORIGIN_PROTOCOL && origin_s3_call_has_head(c)) {
        log_warn_condition("origin_answer_refused", "origin=%s op=%s status=%u bucket=%s",
                           c->call.ow->origin->shown, operation_name(c), c->response_head.status,
                           log_quote(origin_s3_call_bucket(c)));
    }
    origin_call_end(&c->call, err);
}

// Ends the call later, outside the caller's stack.
static void call_end_later(struct origin_s3_call *c, enum err err)
{
    c->pending_err = err;
    origin_s3_call_enter(c, S3_PHASE_ENDING);
    worker_defer(c->call.ow->w, &c->task);
}

// --- An attempt ----------------------------------------------------------------------------------

static enum err on_header_line(void *ctx, struct span line);
static enum err on_body(void *ctx, struct span data);
static enum err on_upload(void *ctx, char *buf, size_t max, size_t *ret_len);
static void on_transfer_end(void *ctx, enum err err, const char *detail);

static bool answers_late(const struct origin_s3_call *c)
{
    enum s3_operation operation = c->call.r != NULL ? c->call.r->request->operation : S3_Unknown;
    return operation == S3_CompleteMultipartUpload || operation == S3_CopyObject ||
           operation == S3_UploadPartCopy;
}

// Returns true if the call asks for a long range of a version whose size is known.
static bool expects_long(const struct origin_s3_call *c)
{
    const struct origin_fetch *f = c->call.f;
    return f != NULL && f->kind == ORIGIN_GET_RANGE && f->if_match.len > 0 &&
           f->last - f->first >= LONG_RANGE_BYTES;
}

static void transfer_begin(struct origin_s3_call *c, const struct origin_s3_url *url,
                           const struct headers *headers)
{
    static const struct transfer_calls calls = {.on_header_line = on_header_line,
                                                .on_body = on_body,
                                                .on_upload = on_upload,
                                                .on_end = on_transfer_end};
    bool looking = c->phase == S3_PHASE_LOOK;
    uint64_t late_ms = answers_late(c)
                           ? max_u64(SLOW_ANSWER_MS, c->call.ow->origin->live.first_byte_timeout_ms)
                           : 0;
    bool has_body = !looking && c->call.r != NULL && c->call.r->body != ORIGIN_BODY_NONE;
    struct transfer_request request = {
        .method = looking ? SPAN("HEAD") : origin_s3_call_method(c),
        .url = url->url,
        .headers = headers->items,
        .header_count = headers->count,
        .has_body = has_body,
        .body_length = has_body ? c->call.r->body_length : 0,
        .expects_long = expects_long(c),
        .fresh_connection = c->wants_fresh || (!looking && !origin_s3_call_is_safe(c) && !has_body),
        .first_byte_timeout_ms = late_ms,
        .late_timeout_ms = late_ms,
        .reach = c->redirect_url != NULL ? c->redirect_reach : TRANSFER_REACH_ANY,
    };
    response_head_init(&c->response_head, c->call.arena, origin_s3_call_is_head(c));
    c->received = 0;
    c->collected.len = 0;
    c->started_us = clock_monotonic_us();
    if (c->call.r != NULL && !looking) {
        c->call.r->is_unsure = true;
    }
    c->transfer = transfer_start(c->pool->pool, &request, &calls, c);
}

static void renew_credentials(struct origin_s3_call *c)
{
    origin_s3_call_enter(c, S3_PHASE_RENEW);
    credentials_renewer_ask(origin_s3_state_of(c->call.ow)->renewer, c->call.ow->w, c->set,
                            &c->waiter);
}

static bool must_look(const struct origin_s3_call *c)
{
    bool known = true;
    if (c->call.r == NULL || c->mended.looked || c->call.r->body == ORIGIN_BODY_NONE ||
        c->call.r->bucket.len == 0 ||
        !origin_s3_endpoint_has_region(&origin_s3_state_of(c->call.ow)->endpoint)) {
        return false;
    }
    (void)origin_s3_region_of(c->call.ow, c->call.r->bucket, &known);
    return !known;
}

// Starts the next attempt at once. Never runs a callback of the caller.
static void call_attempt(struct origin_s3_call *c)
{
    struct origin_worker *ow = c->call.ow;
    struct headers headers = {0};
    struct origin_s3_url url;
    check(c->transfer == NULL);
    if (origin_s3_call_has_stale(c) && origin_is_silent(ow->origin)) {
        call_end_later(c, ERR_ORIGIN_CONNECT);
        return;
    }
    arena_reset(c->call.arena);
    credentials_set_unref(c->set);
    c->set = NULL;
    if (origin_s3_call_own_keys(c) == NULL) {
        c->set =
            credentials_set_ref(credentials_renewer_get(origin_s3_state_of(ow)->renewer, ow->w));
        if (credentials_set_is_expired(c->set, clock_wall_s()) && !c->mended.credentials) {
            c->mended.credentials = true;
            renew_credentials(c);
            return;
        }
    }
    origin_s3_odd_prepare(c);
    origin_s3_call_enter(c, must_look(c) ? S3_PHASE_LOOK : S3_PHASE_ASK);
    c->mended.looked |= c->phase == S3_PHASE_LOOK;
    enum err err = origin_s3_call_build(c, &url, &headers);
    if (err == ERR_OK) {
        c->pool = origin_s3_pool_enter(ow, origin_s3_call_own_keys(c));
        err = c->pool != NULL ? ERR_OK : ERR_LIMIT;
    }
    if (err != ERR_OK) {
        call_end_later(c, err);
        return;
    }
    if (c->phase == S3_PHASE_ASK) {
        c->attempts++;
        if (c->attempts == 1) {
            c->first_asked_us = clock_monotonic_us();
            origin_budget_request(ow->origin);
        }
    }
    transfer_begin(c, &url, &headers);
}

// Continues the delivery of the body outside the caller's stack, unless the caller has paused the
// call: first the collected bytes, then those of the transfer.
static void call_go_on(struct origin_s3_call *c)
{
    if (c->is_paused) {
        return;
    }
    if (c->phase == S3_PHASE_HELD || c->collected.len > 0) {
        worker_defer(c->call.ow->w, &c->task);
    } else if (!c->is_held) {
        transfer_resume(c->transfer);
    }
}

// --- A final head --------------------------------------------------------------------------------

// Begins the delivery of the body. Records the time to the first byte, and pauses the transfer if
// the caller has already paused the call.
static void body_begin(struct origin_s3_call *c)
{
    stats_observe_us(HISTOGRAM_origin_first_byte, clock_monotonic_us() - c->started_us);
    if (c->is_paused) {
        transfer_pause(c->transfer);
    }
}

static enum err fetch_head(struct origin_s3_call *c)
{
    struct origin_fetch *f = c->call.f;
    struct response_answer answer;
    bool by_get = c->form != S3_FORM_ASKED;
    bool has_range = by_get ? c->response_head.status == 206 : f->kind == ORIGIN_GET_RANGE;
    struct response_asked asked = {.head = origin_fetch_is_head(f) && !by_get,
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
    f->kind = by_get ? ORIGIN_HEAD_BY_GET : f->kind;
    f->size_bytes = answer.size_bytes;
    f->body_first = answer.body_first;
    f->body_len = origin_fetch_is_head(f) ? 0 : answer.body_len;
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
    origin_s3_call_enter(c, S3_PHASE_BODY);
    body_begin(c);
    origin_s3_odd_learn(c);
    err = f->on_head(f);
    if (by_get && err == ERR_OK && c->phase == S3_PHASE_BODY) {
        origin_s3_call_enter(c, S3_PHASE_DESCRIBED);
    }
    return err;
}

// Fills in the relay's answer from the received head.
static enum err relay_prepare(struct origin_s3_call *c)
{
    struct origin_relay *r = c->call.r;
    r->status = c->response_head.status;
    (void)headers_get(&c->response_head.headers, SPAN("x-amz-request-id"), &r->origin_id);
    r->headers_answered = (struct headers){0};
    bool bodiless = c->response_head.status == 204 || c->response_head.status == 304;
    r->has_length = c->response_head.has_length || bodiless;
    r->length = c->response_head.has_length && !bodiless ? c->response_head.length : 0;
    // A fetch sends another Accept-Encoding than this client. So if the origin compressed the
    // answer for the client, a fetch would get other bytes and must not continue the body.
    bool is_packed = headers_count(&c->response_head.headers, SPAN("Content-Encoding")) > 0 &&
                     headers_count(r->headers, SPAN("Accept-Encoding")) > 0;
    if (r->request->operation != S3_GetObject || is_packed ||
        !response_answer_names_part(&c->response_head, &r->part_etag, &r->part_first)) {
        r->part_etag = (struct span){NULL, 0};
    }
    return origin_s3_headers_answered(c->call.arena, &c->response_head.headers,
                                      &r->headers_answered);
}

static enum err relay_head(struct origin_s3_call *c)
{
    enum err err = relay_prepare(c);
    if (err != ERR_OK) {
        return err;
    }
    if (c->response_head.status < 500) {
        // 0: the time is not counted. With an upload it depends on the client, not on the origin.
        origin_slot_success(c->call.ow, 0);
    }
    origin_s3_call_enter(c, S3_PHASE_BODY);
    body_begin(c);
    return c->call.r->on_head(c->call.r);
}

// Handles an answer on a reused connection that cannot belong to this request. If the request may
// be repeated, the call asks again on a new connection. Otherwise it fails with the result.
static enum err dead_answer(struct origin_s3_call *c)
{
    bool is_unsent = c->call.r != NULL && c->call.r->body != ORIGIN_BODY_NONE &&
                     c->call.r->body_length > 0 && !c->upload_has_left;
    if (origin_s3_call_is_safe(c) || is_unsent) {
        origin_s3_call_enter(c, S3_PHASE_DEAD);
    }
    stats_add(COUNTER_origin_connections_status, 1);
    return ERR_ORIGIN_RESET;
}

static bool is_doubtful(const struct origin_s3_call *c)
{
    return c->phase == S3_PHASE_ASK && transfer_reused_connection(c->transfer);
}

static enum err on_head_complete(struct origin_s3_call *c)
{
    origin_s3_call_learn(c);
    stats_count_origin(c->phase == S3_PHASE_LOOK ? "HeadBucket" : operation_name(c),
                       c->response_head.status);
    if (c->phase == S3_PHASE_LOOK) {
        return ERR_OK;
    }
    unsigned status = c->response_head.status;
    if (origin_s3_status_is_foreign(status) && is_doubtful(c)) {
        return dead_answer(c);
    }
    origin_s3_call_learn_answer(c);
    if (c->call.r != NULL) {
        // With these statuses a gateway may answer although it does not know the outcome. Some
        // gateways send 408 when their own wait has timed out.
        c->call.r->is_unsure = status == 408 || (status >= 500 && status != 501);
    }
    if (c->call.f != NULL && (status == 200 || status == 206)) {
        return fetch_head(c);
    }
    if (c->call.r != NULL && !origin_s3_status_must_collect(status)) {
        return relay_head(c);
    }
    if (status >= 300 && status < 400) {
        c->redirect_reach = transfer_reach_of_peer(c->transfer);
    }
    origin_s3_call_enter(c, S3_PHASE_COLLECT);
    timer_start(&c->timer, COLLECT_IDLES * c->call.ow->origin->live.idle_timeout_ms);
    return ERR_OK;
}

static enum err on_header_line(void *ctx, struct span line)
{
    struct origin_s3_call *c = ctx;
    bool done = false;
    if (origin_s3_call_has_head(c)) {
        return ERR_OK; // a trailer
    }
    enum err err = response_head_line(&c->response_head, line, &done);
    if (err == ERR_OK && done) {
        err = on_head_complete(c);
    } else if (err == ERR_ORIGIN_PROTOCOL && c->response_head.state == RESPONSE_STATUS_LINE &&
               is_doubtful(c)) {
        err = dead_answer(c);
    }
    return err;
}

// Returns true if the call needs only the status of the answer, not its body.
static bool status_is_enough(const struct origin_s3_call *c)
{
    return c->call.r == NULL || origin_s3_status_is_hidden(c->response_head.status);
}

// Passes on unchanged an answer that is too long for an error document. Only the task passes on the
// collected bytes, because the caller may pause or cancel the call when it gets the head.
static enum err relay_collected(struct origin_s3_call *c)
{
    timer_stop(&c->timer);
    enum err err = relay_head(c);
    if (err != ERR_OK) {
        c->collected.len = 0; // the caller gets nothing more
    } else if (c->phase == S3_PHASE_BODY) {
        transfer_pause(c->transfer);
        call_go_on(c);
    }
    return err;
}

static enum err collect(struct origin_s3_call *c, struct span data)
{
    buf_append_span(&c->collected, data);
    if (!buf_ok(&c->collected)) {
        return ERR_NO_MEMORY;
    }
    if (c->collected.len <= ORIGIN_ERROR_BODY_MAX) {
        return ERR_OK;
    }
    if (status_is_enough(c)) {
        c->collected.len = ORIGIN_ERROR_BODY_MAX;
        timer_stop(&c->timer); // otherwise the timer could fire in this very turn
        origin_s3_call_enter(c, S3_PHASE_CUT);
        return ERR_ORIGIN_RESET;
    }
    return relay_collected(c);
}

static enum err on_body(void *ctx, struct span data)
{
    struct origin_s3_call *c = ctx;
    stats_add(COUNTER_origin_received_bytes, data.len);
    c->received += data.len;
    uint64_t wait_ms = origin_rate_received(&c->call, data.len);
    switch (c->phase) {
    case S3_PHASE_COLLECT:
        return collect(c, data);
    case S3_PHASE_DESCRIBED:
        return c->received > 1 ? ERR_CANCELLED : ERR_OK; // the caller needs only the head
    case S3_PHASE_BODY:
        if (wait_ms > 0) {
            c->is_held = true;
            transfer_pause(c->transfer);
            timer_start(&c->timer, wait_ms);
        }
        if (c->call.f == NULL) {
            return c->call.r->on_body(c->call.r, data);
        }
        return c->received > c->call.f->body_len ? ERR_ORIGIN_PROTOCOL
                                                 : c->call.f->on_body(c->call.f, data);
    default:
        return ERR_ORIGIN_PROTOCOL; // no body is allowed here: for a HEAD, or before the head
    }
}

static enum err on_upload(void *ctx, char *buf, size_t max, size_t *ret_len)
{
    struct origin_s3_call *c = ctx;
    enum err err = c->call.r->on_upload(c->call.r, buf, max, ret_len);
    if (err == ERR_OK && *ret_len > 0) {
        c->upload_has_left = true;
        stats_add(COUNTER_origin_sent_bytes, *ret_len);
    }
    return err;
}

// --- Ends of waits and transfers -----------------------------------------------------------------

// Passes the collected bytes to the caller. Then ends the call, or lets its transfer continue.
static void pass_collected(struct origin_s3_call *c)
{
    enum err err = ERR_OK;
    if (c->is_paused) {
        return;
    }
    if (c->collected.len > 0) {
        err = c->call.r->on_body(c->call.r, buf_span(&c->collected));
        c->collected.len = 0;
    }
    c->pending_err = err != ERR_OK ? err : c->pending_err;
    if (c->transfer == NULL) {
        call_end(c, c->phase == S3_PHASE_CANCELLED ? ERR_CANCELLED : c->pending_err);
    } else if (err != ERR_OK) {
        transfer_cancel(c->transfer);
    } else if (c->phase == S3_PHASE_BODY) {
        call_go_on(c);
    }
}

static void hold(struct origin_s3_call *c)
{
    enum err err = relay_prepare(c);
    origin_s3_call_enter(c, S3_PHASE_HELD);
    if (err == ERR_OK) {
        stats_observe_us(HISTOGRAM_origin_first_byte, clock_monotonic_us() - c->started_us);
        err = c->call.r->on_head(c->call.r);
    }
    if (c->phase == S3_PHASE_CANCELLED || err != ERR_OK) {
        call_end(c, c->phase == S3_PHASE_CANCELLED ? ERR_CANCELLED : err);
    } else {
        call_go_on(c);
    }
}

static void call_go(struct origin_s3_call *c, struct origin_s3_verdict verdict)
{
    switch (verdict.next) {
    case S3_NEXT_ASK:
        call_attempt(c);
        break;
    case S3_NEXT_WAIT:
        origin_s3_call_enter(c, S3_PHASE_WAIT);
        timer_start(&c->timer, verdict.wait_ms);
        break;
    case S3_NEXT_RENEW:
        renew_credentials(c);
        break;
    case S3_NEXT_HOLD:
        hold(c);
        break;
    case S3_NEXT_END:
        call_end(c, verdict.err);
        break;
    }
}

static void on_timer(struct timer *timer)
{
    struct origin_s3_call *c = container_of(timer, struct origin_s3_call, timer);
    if (c->phase == S3_PHASE_COLLECT) {
        origin_s3_call_enter(c, S3_PHASE_CUT);
        transfer_cancel(c->transfer);
        return;
    }
    if (c->phase == S3_PHASE_BODY) {
        uint64_t wait_ms = origin_rate_wait_ms(&c->call);
        if (wait_ms > 0) {
            timer_start(&c->timer, wait_ms);
        } else {
            c->is_held = false;
            call_go_on(c);
        }
        return;
    }
    check(c->phase == S3_PHASE_WAIT);
    if (!origin_slot_yield(&c->call)) {
        call_attempt(c);
    }
}

// Returns true if the last attempt was signed with the keys that the next one would have.
static bool has_current_keys(const struct origin_s3_call *c)
{
    return credentials_set_same_keys(
        c->set, credentials_renewer_get(origin_s3_state_of(c->call.ow)->renewer, c->call.ow->w));
}

static void on_credentials(struct credentials_waiter *waiter, enum err err)
{
    struct origin_s3_call *c = container_of(waiter, struct origin_s3_call, waiter);
    check(c->phase == S3_PHASE_RENEW);
    if (err != ERR_OK) {
        origin_trouble_met(c->call.ow->origin, ORIGIN_TROUBLE_KEYS_NONE, UINT64_MAX, "");
    }
    if (err == ERR_OK && c->upload_has_left && has_current_keys(c)) {
        call_end(c, origin_s3_call_keys_stay(c));
    } else if (err != ERR_OK || c->upload_has_left) {
        origin_count_error(ERR_ORIGIN_CREDENTIALS);
        call_end(c, ERR_ORIGIN_CREDENTIALS);
    } else {
        call_attempt(c);
    }
}

static void on_looked(struct origin_s3_call *c)
{
    struct span region;
    if (origin_s3_call_has_head(c) &&
        headers_get(&c->response_head.headers, SPAN("x-amz-bucket-region"), &region)) {
        origin_s3_region_learn(c->call.ow, c->call.r->bucket, region);
    }
    call_attempt(c);
}

static void on_collected(struct origin_s3_call *c, enum err err, const char *detail)
{
    bool is_cut = c->phase == S3_PHASE_CUT;
    bool has_answer = is_cut ? status_is_enough(c) : err == ERR_OK;
    call_go(c, has_answer ? origin_s3_call_answered(c)
                          : origin_s3_call_failed(c, is_cut ? ERR_ORIGIN_TIMEOUT : err, detail));
}

static void on_body_end(struct origin_s3_call *c, enum err err)
{
    if (c->phase == S3_PHASE_DESCRIBED) {
        err = ERR_OK;
    } else if (c->pending_err != ERR_OK) {
        err = c->pending_err;
    } else if (err == ERR_OK && c->call.f != NULL && c->received != c->call.f->body_len) {
        err = ERR_ORIGIN_RESET;
    }
    origin_count_error(err);
    if (c->collected.len > 0 && c->pending_err == ERR_OK) {
        c->pending_err = err;
        origin_s3_call_enter(c, S3_PHASE_HELD);
        call_go_on(c);
    } else {
        call_end(c, err);
    }
}

static void attempt_count(const struct origin_s3_call *c, enum err err, const char *detail)
{
    if (err != ERR_OK && !origin_s3_call_has_head(c) && c->phase != S3_PHASE_LOOK) {
        stats_count_origin(operation_name(c), 0);
    }
    if (err != ERR_OK) {
        log_debug("origin_attempt_failed", "origin=%s op=%s attempt=%u err=%s why=%s",
                  c->call.ow->origin->shown, operation_name(c), c->attempts, error_name(err),
                  log_quote(span_from_cstr(detail)));
    }
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
    if (c->phase == S3_PHASE_CANCELLED) {
        call_end(c, ERR_CANCELLED);
        return;
    }
    stats_observe_us(HISTOGRAM_origin_request, clock_monotonic_us() - c->started_us);
    if (c->phase == S3_PHASE_DEAD) {
        c->wants_fresh = true;
        c->attempts--;
        call_attempt(c);
        return;
    }
    attempt_count(c, err, detail);
    switch (c->phase) {
    case S3_PHASE_LOOK:
        on_looked(c);
        break;
    case S3_PHASE_BODY:
    case S3_PHASE_DESCRIBED:
        on_body_end(c, err);
        break;
    case S3_PHASE_COLLECT:
    case S3_PHASE_CUT:
        on_collected(c, err, detail);
        break;
    default:
        check(c->phase == S3_PHASE_ASK);
        call_go(c, origin_s3_call_failed(c, err == ERR_OK ? ERR_ORIGIN_PROTOCOL : err, detail));
    }
}

// --- Driver calls --------------------------------------------------------------------------------

static void on_task(struct task *task)
{
    struct origin_s3_call *c = container_of(task, struct origin_s3_call, task);
    check(c->phase == S3_PHASE_BODY || c->transfer == NULL);
    switch (c->phase) {
    case S3_PHASE_BODY:
    case S3_PHASE_HELD:
        pass_collected(c);
        break;
    case S3_PHASE_ENDING:
        call_end(c, c->pending_err);
        break;
    default:
        check(c->phase == S3_PHASE_CANCELLED);
        call_end(c, ERR_CANCELLED);
    }
}

static struct origin_s3_call *as_origin_s3_call(struct origin_call *call)
{
    return container_of(call, struct origin_s3_call, call);
}

static void on_ready(struct origin_call *call)
{
    call_attempt(as_origin_s3_call(call));
}

static void on_refused(struct origin_call *call, enum err err)
{
    call_end(as_origin_s3_call(call), err);
}

static bool hands_on_body(const struct origin_s3_call *c)
{
    return c->phase == S3_PHASE_BODY || c->phase == S3_PHASE_DESCRIBED;
}

static void call_pause(struct origin_call *call)
{
    struct origin_s3_call *c = as_origin_s3_call(call);
    c->is_paused = true;
    if (hands_on_body(c)) {
        transfer_pause(c->transfer);
    }
}

static void call_resume(struct origin_call *call)
{
    struct origin_s3_call *c = as_origin_s3_call(call);
    c->is_paused = false;
    if (hands_on_body(c) || c->phase == S3_PHASE_HELD) {
        call_go_on(c);
    }
}

static void call_resume_upload(struct origin_call *call)
{
    struct origin_s3_call *c = as_origin_s3_call(call);
    if (c->transfer != NULL) {
        transfer_resume_upload(c->transfer);
    }
}

static void call_cancel(struct origin_call *call)
{
    struct origin_s3_call *c = as_origin_s3_call(call);
    if (c->phase == S3_PHASE_CANCELLED) {
        return;
    }
    origin_s3_call_enter(c, S3_PHASE_CANCELLED);
    timer_stop(&c->timer);
    origin_slot_stop_waiting(call);
    credentials_waiter_cancel(&c->waiter);
    worker_task_cancel(&c->task); // may wait for its turn to pass on collected bytes
    if (c->transfer != NULL) {
        transfer_cancel(c->transfer);
    } else {
        worker_defer(c->call.ow->w, &c->task);
    }
}

static void call_start(struct origin_worker *ow, struct origin_fetch *f, struct origin_relay *r)
{
    static const struct origin_call_ops ops = {.ready = on_ready,
                                               .refused = on_refused,
                                               .pause = call_pause,
                                               .resume = call_resume,
                                               .resume_upload = call_resume_upload,
                                               .cancel = call_cancel,
                                               .free = call_free};
    struct origin_s3_call *c = calloc(1, sizeof(*c));
    check(c != NULL);
    origin_call_init(&c->call, &ops, ow, f, r);
    buf_init(&c->collected, ORIGIN_ERROR_BODY_MAX + TRANSFER_PIECE_MAX);
    timer_init(ow->w, &c->timer, on_timer);
    worker_task_init(&c->task, on_task);
    credentials_waiter_init(&c->waiter, on_credentials);
    bool now = false;
    enum err err = origin_slot_enter(&c->call, &now);
    if (err != ERR_OK) {
        call_end_later(c, err);
    } else if (now) {
        call_attempt(c);
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
