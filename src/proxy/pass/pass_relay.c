// SPDX-License-Identifier: Apache-2.0
// Asks the origin by a relay, and checks its response head. pass_answer.c receives the answer's
// bytes. pass_phase.c decides what the answer means for the request. On the request's worker.
#include "proxy/pass/pass_private.h"

// While memory is short, an answer to a read is refused if its headers are longer than this.
#define USUAL_HEADERS_BYTES 8192u

// --- the relay's callbacks -----------------------------------------------------------------------

static enum err on_upload(struct origin_relay *relay, char *buf, size_t max, size_t *ret_len)
{
    return pass_upload_take(as_pass(relay->ctx), buf, max, ret_len);
}

// Returns true if the outcome of the operation is in the body of the answer, after a status of 200.
static bool answers_early(const struct pass_state *p)
{
    switch (p->s3.operation) {
    case S3_CopyObject:
    case S3_CompleteMultipartUpload:
    case S3_DeleteObjects:
    case S3_RestoreObject:
    case S3_Unknown:
        return p->relay.status == 200 && !pass_is_bodiless(p);
    default:
        return false;
    }
}

// Returns true if the origin reports success before it has received the whole body. It cannot have
// stored the body, and Forebay may still refuse the rest.
static bool succeeds_too_early(const struct pass_state *p)
{
    return p->relay.status < 300 && p->body.taken < p->body.length &&
           (p->s3.operation == S3_PutObject || p->s3.operation == S3_UploadPart);
}

// Returns true if there is no memory for the answer's headers. They arrive long after the request
// was admitted, and use several times their length until they are sent to the client. Forebay can
// still answer a read with SlowDown now.
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

// Returns the error that the client gets instead of an answer with this head. ERR_OK: it gets the
// answer.
static enum err refuse_head(const struct pass_state *p, struct span *ret_message)
{
    check(p->answer == ANSWER_NONE);
    if (succeeds_too_early(p)) {
        return ERR_ORIGIN_PROTOCOL;
    }
    if (has_no_room(p)) {
        return ERR_OVERLOAD;
    }
    if (pass_listing_is_unreadable(p, ret_message)) {
        return ERR_ORIGIN_PROTOCOL;
    }
    if (p->kind == PASS_KIND_PREFLIGHT && !pass_preflight_is_yes(p)) {
        *ret_message = SPAN("This CORS request is not allowed by the bucket");
        return ERR_ACCESS_DENIED;
    }
    return ERR_OK;
}

static void head_without_client(struct pass_state *p)
{
    check(p->request == NULL);
    check(pass_changes_any(p));
    if (!p->is_streamed && !pass_is_bodiless(p)) {
        pass_origin_cancel(p);
    }
    pass_go(p);
}

static enum err on_head(struct origin_relay *relay)
{
    struct pass_state *p = as_pass(relay->ctx);
    pass_state_check(p);
    check(p->call.kind == PASS_BY_RELAY);
    check(pass_calls(p));
    if (p->err != ERR_OK || p->call.phase == CALL_CANCELLED) {
        return ERR_OK;
    }
    struct span message = {NULL, 0};
    enum err err = refuse_head(p, &message);
    if (err != ERR_OK) {
        pass_upload_refuse(p, err, message);
        return ERR_OK;
    }
    pass_enter_answer(p, ANSWER_HEAD);
    p->is_streamed = pass_changes_any(p) && answers_early(p);
    if (relay->status >= 300 && p->body.taken < p->body.length) {
        pass_upload_drop(p);
        pass_upload_wake(p);
    }
    if (p->request == NULL) {
        head_without_client(p);
        return ERR_OK;
    }
    p->request->origin_us += clock_monotonic_us() - p->call.started_us;
    span_to_text(relay->origin_id, p->request->origin_id, sizeof(p->request->origin_id));
    pass_answer_headers(p);
    if (p->list_ask != NULL && relay->has_length &&
        !list_cache_expect(p->list_ask, relay->length)) {
        pass_answer_list_end(p, LIST_END_ALONE, ERR_OK);
    }
    if (relay->status >= 300 && !pass_is_bodiless(p) && pass_listing_is_limited(p->request)) {
        // Names may be removed from this error document, so no other client may get it.
        pass_answer_list_end(p, LIST_END_ALONE, ERR_OK);
        pass_location_begin_error(p);
    } else {
        pass_location_begin(p);
    }
    pass_direct_may_follow(p);
    if (pass_changes_any(p) && !p->is_streamed) {
        pass_go(p);
    } else if (!pass_version_tell(p) && !pass_listing_is_judged(p)) {
        pass_answer_start(p);
    }
    return ERR_OK;
}

static void refuse_list(struct pass_state *p)
{
    struct span why;
    if (pass_listing_is_unreadable(p, &why)) {
        pass_upload_refuse(p, ERR_ORIGIN_PROTOCOL, why);
    } else {
        pass_upload_refuse(p, ERR_ACCESS_DENIED,
                           SPAN("The origin lists names that this access key may not list"));
    }
}

static enum err on_body(struct origin_relay *relay, struct span data)
{
    struct pass_state *p = as_pass(relay->ctx);
    pass_state_check(p);
    check(p->call.kind == PASS_BY_RELAY);
    pass_doubt_take(p, data);
    if (p->request != NULL && pass_has_head(p) && !pass_listing_take(p, data)) {
        pass_answer_list_end(p, LIST_END_ALONE, ERR_OK);
        refuse_list(p);
        return ERR_OK;
    }
    pass_answer_take(p, data);
    return ERR_OK;
}

static void on_relay_end(struct origin_relay *relay, enum err err)
{
    struct pass_state *p = as_pass(relay->ctx);
    check(p->call.kind == PASS_BY_RELAY);
    if (!pass_origin_end(p, err)) {
        return;
    }
    if (p->request != NULL && !pass_has_head(p)) {
        p->request->origin_us += clock_monotonic_us() - p->call.started_us;
    }
    (void)!pass_state_copy_span(p->arena, &relay->retry_after); // an advice: lost without memory
    pass_location_end(p);
    pass_listing_end(p);
    if (err == ERR_OK && pass_has_head(p)) {
        pass_answer_list_end_whole(p);
    } else if (pass_has_head(p)) {
        pass_answer_list_end(p, LIST_END_ALONE, ERR_OK); // the body is incomplete
    } else {
        pass_answer_list_end(p, LIST_END_FAILED, p->err != ERR_OK ? p->err : err);
    }
    pass_go(p);
    if (p->request != NULL && p->answer == ANSWER_SENT) {
        http_reply_ready(p->request->x);
    }
}

// --- the relay -----------------------------------------------------------------------------------

// Removes headers from a request whose answer becomes a kept page. That page also answers requests
// with other headers, so only the headers in its name are sent. Via is also sent, because it does
// not select an answer and reveals a loop of proxies.
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

void pass_relay_start(struct pass_state *p)
{
    struct request *r = p->request;
    struct origin_relay *relay = &p->relay;
    check(relay->on_end == NULL);
    check(p->list_ask == NULL);
    check(p->body.taken == 0);
    check(!p->body.collect || p->body.is_verified);
    relay->request = &p->s3;
    relay->method = p->s3.method;
    relay->headers = &p->headers;
    relay->body = p->body.kind;
    relay->body_length = p->body.length;
    relay->payload_hash = p->body.payload_hash;
    relay->credentials = request_origin_credentials(r);
    relay->client = request_client(r);
    relay->is_unsigned = p->form_is_signed || p->kind != PASS_KIND_S3;
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
    pass_origin_begin(p, CALL_RUNNING);
    r->attempts = 1;
    origin_relay_start(p->pw->worker, r->origin, relay);
}
