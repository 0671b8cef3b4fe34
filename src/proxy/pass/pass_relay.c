// SPDX-License-Identifier: Apache-2.0
// The origin is asked: at once, or where keys change once every write is open. What the relay
// brings goes to pass_answer.c, what it means to pass_outcome.c. On the request's worker;
// serve_pass.c has the sequence.
#include "proxy/pass/pass_private.h"

#define USUAL_HEADERS_BYTES                                                                        \
    8192u // of an answer; one with more may be refused where memory is used up

// --- the relay's callbacks -----------------------------------------------------------------------

static enum err on_upload(struct origin_relay *relay, char *buf, size_t max, size_t *ret_len)
{
    return pass_upload_take(as_pass(relay->ctx), buf, max, ret_len);
}

// Statuses about the way to the origin: clients take some of them for final, so they become a 503.
static bool status_is_gateway_failure(unsigned status)
{
    return status == 408 || status == 429 || status == 502 || status == 504;
}

// Operations whose 200 may come before their outcome, which stands in the body.
static bool answers_early(const struct pass_state *p)
{
    switch (p->s3.operation) {
    case S3_CopyObject:
    case S3_CompleteMultipartUpload:
    case S3_DeleteObjects:
    case S3_RestoreObject:
    case S3_Unknown:
        return p->relay.status == 200 && !pass_answer_is_bodiless(p);
    default:
        return false;
    }
}

// An origin cannot have stored what it has not got: the rest may still be refused here.
static bool succeeds_too_early(const struct pass_state *p)
{
    return p->relay.status < 300 && p->body.taken < p->body.length &&
           (p->s3.operation == S3_PutObject || p->s3.operation == S3_UploadPart);
}

// An answer's headers are known when its request has been let in for long, and take several times
// their length until the client has them. A read may be told SlowDown even now.
static bool has_no_room(const struct pass_state *p)
{
    const struct headers *headers = &p->relay.headers_answered;
    size_t bytes = 0;
    for (unsigned i = 0; i < headers->count; i++) {
        bytes += headers->items[i].name.len + headers->items[i].value.len;
    }
    bool is_read =
        span_equal(p->relay.method, SPAN("GET")) || span_equal(p->relay.method, SPAN("HEAD"));
    return bytes > USUAL_HEADERS_BYTES && is_read && !pass_changes_any(p) && chunk_budget_is_full();
}

// Why an answer with this head is none for the client; ERR_OK: it is one.
static enum err refuse_head(const struct pass_state *p, struct span *ret_message)
{
    if (succeeds_too_early(p)) {
        return ERR_ORIGIN_PROTOCOL;
    }
    if (status_is_gateway_failure(p->relay.status)) {
        return ERR_ORIGIN_5XX;
    }
    if (has_no_room(p)) {
        stats_add(COUNTER_pass_answers_refused, 1);
        return ERR_OVERLOAD;
    }
    if (p->is_preflight && !pass_preflight_is_yes(p)) {
        *ret_message = SPAN("This CORS request is not allowed by the bucket");
        return ERR_ACCESS_DENIED;
    }
    return ERR_OK;
}

static void head_without_client(struct pass_state *p)
{
    if (!p->is_streamed && !pass_answer_is_bodiless(p)) {
        pass_origin_cancel(p);
    }
    pass_outcome_settle(p);
}

static enum err on_head(struct origin_relay *relay)
{
    struct pass_state *p = as_pass(relay->ctx);
    if (p->err != ERR_OK || p->relay_cancelled) {
        return ERR_OK;
    }
    struct span message = {NULL, 0};
    enum err err = refuse_head(p, &message);
    if (err != ERR_OK) {
        pass_outcome_refuse(p, err, message);
        return ERR_OK;
    }
    p->head_came = true;
    p->is_streamed = pass_changes_any(p) && answers_early(p);
    if (relay->status >= 300 && p->body.taken < p->body.length) {
        pass_upload_drop(p);
        pass_upload_wake(p);
    }
    if (p->request == NULL) {
        head_without_client(p);
        return ERR_OK;
    }
    p->request->origin_us = clock_monotonic_us() - p->relay_started_us;
    span_to_text(relay->origin_id, p->request->origin_id, sizeof(p->request->origin_id));
    pass_answer_headers(p);
    if (p->list_ask != NULL && relay->has_length &&
        !list_cache_expect(p->list_ask, relay->length)) {
        pass_answer_list_end(p, LIST_END_ALONE, ERR_OK);
    }
    if (relay->status >= 300 && !pass_answer_is_bodiless(p) &&
        pass_listing_is_limited(p->request)) {
        pass_answer_list_end(p, LIST_END_ALONE, ERR_OK); // a page would have what is left out
        pass_location_begin_error(p);
    } else {
        pass_location_begin(p);
    }
    pass_direct_may_follow(p);
    if (pass_changes_any(p) && !p->is_streamed) {
        pass_outcome_settle(p);
    } else if (!pass_version_tell(p) && !pass_listing_is_judged(p)) {
        pass_answer_start(p);
    }
    return ERR_OK;
}

static enum err on_body(struct origin_relay *relay, struct span data)
{
    struct pass_state *p = as_pass(relay->ctx);
    pass_doubt_take(p, data);
    if (p->request != NULL && p->head_came && !pass_listing_take(p, data)) {
        pass_answer_list_end(p, LIST_END_ALONE, ERR_OK);
        pass_outcome_refuse(p, ERR_ACCESS_DENIED,
                            SPAN("The origin lists names that this access key may not list"));
        return ERR_OK;
    }
    pass_answer_take(p, data);
    return ERR_OK;
}

static void on_relay_end(struct origin_relay *relay, enum err err)
{
    struct pass_state *p = as_pass(relay->ctx);
    check(p->relay_phase == RELAY_RUNNING);
    if (pass_origin_has_more(p, err)) {
        return;
    }
    p->relay_phase = RELAY_ENDED;
    p->relay_err = err;
    p->relay_paused = false;
    pass_location_end(p);
    if (err == ERR_OK && p->head_came) {
        pass_answer_list_end_whole(p);
    } else if (p->head_came) {
        pass_answer_list_end(p, LIST_END_ALONE, ERR_OK); // its body broke off
    } else {
        pass_answer_list_end(p, LIST_END_FAILED, p->err != ERR_OK ? p->err : err);
    }
    pass_outcome_settle(p);
    if (p->request != NULL && p->is_answered && p->head_came) {
        http_reply_ready(p->request->x);
    }
}

// --- the relay -----------------------------------------------------------------------------------

// A kept page also answers requests with other headers, so it is asked for without any but those in
// its name. Via selects no answer, and without it a loop of proxies stays unseen.
static void keep_shared(struct headers *headers)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < headers->count; i++) {
        struct span name = headers->items[i].name;
        if (span_equal_nocase(name, SPAN("Via")) || list_question_has(name)) {
            headers->items[kept++] = headers->items[i];
        }
    }
    headers->count = kept;
}

static void relay_start(struct pass_state *p)
{
    struct request *r = p->request;
    struct origin_relay *relay = &p->relay;
    relay->request = &p->s3;
    relay->method = p->s3.method;
    relay->headers = &p->headers;
    relay->body = p->body.kind;
    relay->body_length = p->body.length;
    relay->payload_hash = p->body.payload_hash;
    relay->credentials = request_origin_credentials(r);
    relay->client = request_client(r);
    relay->is_unsigned = p->form_is_signed || p->is_sts || p->is_preflight;
    relay->on_upload = p->body.kind != ORIGIN_BODY_NONE ? on_upload : NULL;
    relay->on_head = on_head;
    relay->on_body = on_body;
    relay->on_end = on_relay_end;
    relay->ctx = p;
    p->list_ask = list_cache_take_fetch(r);
    if (p->list_ask != NULL) {
        keep_shared(&p->headers);
    }
    pass_listing_begin(p);
    p->relay_phase = RELAY_RUNNING;
    p->relay_started_us = clock_monotonic_us();
    p->asked_us = worker_now_us(p->pw->worker);
    r->attempts = 1;
    origin_relay_start(p->pw->worker, r->origin, relay);
}

// --- the writes around it ------------------------------------------------------------------------

static void on_one_ready(struct pass_state *p)
{
    check(p->write_phase == WRITES_STARTING && p->writes_pending > 0);
    if (--p->writes_pending > 0) {
        return;
    }
    p->write_phase = WRITES_READY;
    if (p->err == ERR_OK && p->request != NULL) {
        relay_start(p);
    } else {
        pass_outcome_settle(p);
    }
}

static void on_keys_ready(struct pass_state *p, enum err err)
{
    if (err == ERR_LIMIT) {
        pass_outcome_refuse(
            p, err,
            SPAN("What this request replaces could not be removed from the cache directory"));
    } else if (err != ERR_OK) {
        pass_outcome_refuse(p, err, (struct span){NULL, 0});
    }
    on_one_ready(p);
}

static void on_bucket_ready(struct bucket_write *bw)
{
    struct pass_state *p = as_pass(bw->ctx);
    if (bw->err != ERR_OK) {
        pass_outcome_refuse(
            p, ERR_LIMIT,
            SPAN("What this request may change could not be noted in the cache directory"));
    }
    on_one_ready(p);
}

static void begin_writes(struct pass_state *p)
{
    p->writes_pending = pass_writes_total(p);
    if (p->changes_bucket) {
        p->bucket_write.ctx = p;
        p->bucket_write.on_ready = on_bucket_ready;
        p->bucket_write.on_ended = pass_outcome_on_bucket_ended;
        invalidate_bucket_begin(p->pw->fill, &p->bucket_write, p->origin, p->relay.bucket);
    }
    if (p->writes.key_count > 0) {
        pass_writes_open(p, on_keys_ready);
    }
}

// A note that the disk does not take in time is one that failed: the write goes on without.
static void on_note_late(struct timer *timer)
{
    struct pass_state *p = as_pass(container_of(timer, struct pass_state, note_timer));
    p->is_note_late = true;
    stats_add(COUNTER_write_notes_late, 1);
    begin_writes(p);
}

static void on_noted(struct store_note *note)
{
    struct pass_state *p = as_pass(container_of(note, struct pass_state, note));
    p->is_noting = false;
    timer_done(&p->note_timer);
    if (p->is_note_late) {
        pass_outcome_free_unneeded(p);
    } else {
        begin_writes(p);
    }
}

void pass_relay_begin(struct pass_state *p)
{
    struct request *r = p->request;
    p->relay.bucket = arena_copy(p->arena, r->origin_bucket);
    if (!pass_changes_any(p)) {
        relay_start(p);
        return;
    }
    p->origin = r->origin; // the client may leave meanwhile
    p->bucket_place = span_from_cstr(origin_place(r->origin));
    p->write_phase = WRITES_STARTING;
    stats_add(COUNTER_writes_inflight, 1);
    if (store_write_is_noted(p->pw->store, p->bucket_place, r->origin_bucket)) {
        begin_writes(p);
    } else {
        p->note.done = on_noted;
        p->is_noting = true;
        timer_init(p->pw->worker, &p->note_timer, on_note_late);
        timer_start(&p->note_timer, STORE_DELETE_WAIT_MS);
        store_write_note(p->pw->worker, p->pw->store, p->bucket_place, r->origin_bucket, &p->note);
    }
}
