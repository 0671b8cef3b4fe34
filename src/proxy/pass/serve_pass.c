// SPDX-License-Identifier: Apache-2.0
// Handles the requests that the cache does not answer: listings, bucket operations, writes,
// multipart, sub-resources, everything unknown. Both bodies are streamed, each through a bounded
// byte_queue. Runs on the request's worker.
//
// Ownership. A pass_state is on the heap, because a write outlives its client: once the write may
// have reached the origin, the invalidation after it must run. The relay uses only copies in
// pass_state.arena. The pass_state is freed when the exchange, the relay, every key_write and the
// bucket_write have ended.
//
// pass_phases.def lists the phases. A request that changes keys goes through these:
//
//   READ    plan the body, and read it: a batch delete whole, a form until its key is known
//   NOTE    note on disk that the bucket is written to, unless it is noted already
//   OPEN    hold the keys open, and invalidate every name of each (pass_writes.c), or the bucket
//   ASK     ask the origin, and send the body. If the body is verified, its last byte is sent only
//           after the check. The outcome is known when the answer's head comes, when the answer
//           ends (if an error may follow a 200), or when the call fails
//   CLOSE   invalidate the same names once more, if the origin was asked
//   ANSWER  send the head to the client. If the head was sent earlier, send the body's last byte
//   OVER    free
//
// If the client leaves before the origin has the whole body, the upload is cut, so that nothing is
// written. If it leaves later, the write runs to its end. Either way the invalidation follows the
// end of the call at the origin. If Forebay refuses a request (hash, framing, rights), it also cuts
// the upload before its last byte.
//
// The files:
//   pass_go.c       the driver of phases    pass_state.c    creates and frees the pass_state
//   pass_origin.c   pause, resume, cancel   pass_keys.c     what the request changes
//   pass_upload.c   sends the body          pass_direct.c   replaces the relay for a directory
//   pass_answer.c   answers the client      pass_relay.c    asks the origin by a relay
//   pass_writes.c   invalidates the keys    pass_phase.c    what each phase does and waits for
//   pass_doubt.c    an unknown outcome      pass_receive.c  receives the body
//   pass_version.c  tells the key's home    serve_pass.c    start; the client leaves
#include "proxy/pass/pass_private.h"

// Prepares the request for the origin: its copy, its sources, its body, and the keys that its head
// names.
static enum err plan(struct pass_state *p, struct span *ret_message)
{
    struct request *r = p->request;
    check(p->phase == PASS_READ);
    check(p->s3.param_count == 0 && p->headers.count == 0);
    if (!pass_state_copy_request(p->arena, &r->s3, &p->s3) ||
        !pass_state_copy_headers(p->arena, &r->http->headers, &p->headers)) {
        return ERR_NO_MEMORY;
    }
    enum err err = pass_sources_send(p, ret_message);
    if (err != ERR_OK) {
        return err;
    }
    struct pass_body_input input = {
        .http = r->http,
        .s3 = &r->s3,
        .claim = r->principal.verified ? &r->principal.claim : NULL,
        .signing_key = r->principal.signing_key,
        .want_whole = r->s3.operation == S3_DeleteObjects || r->s3.operation == S3_RestoreObject ||
                      p->kind == PASS_KIND_STS,
    };
    err = pass_body_plan(&p->body, &input, p->arena, &p->headers);
    if (err == ERR_OK) {
        err = pass_keys_of_head(p);
    }
    if (err == ERR_OK) {
        err = pass_listing_plan(p);
    }
    if (err == ERR_OK && gate_is_preflight(r)) {
        err = pass_preflight_plan(p);
    }
    if (err == ERR_OK && r->s3.operation == S3_PostObject && !http_request_has_body(r->http)) {
        err = ERR_INVALID_ARGUMENT;
    }
    if (err == ERR_OK && r->s3.operation == S3_DeleteObjects && !http_request_has_body(r->http)) {
        err = ERR_MALFORMED_XML;
    }
    return err;
}

static enum step_result serve_list_page(struct request *r, struct list_page *page)
{
    check(page != NULL);
    check(r->list_ask == NULL);
    unsigned status = list_cache_page_status(page);
    struct pass_state *p = pass_state_new(r, PASS_ROWS);
    p->list_page = page;
    r->pass = p;
    struct span body = list_cache_page_body(page);
    r->result = r->list_verdict == LIST_HIT ? RESULT_HIT : RESULT_COALESCED;
    r->collapsed = r->result == RESULT_COALESCED;
    r->reason = NULL;
    r->bytes_memory = body.len;
    r->status = status;
    pass_enter_answer(p, ANSWER_HEAD);
    pass_enter_answer(p, ANSWER_SENT);
    struct headers *headers = arena_alloc(r->arena, sizeof(*headers));
    if (headers != NULL) {
        const struct headers *kept = list_cache_page_headers(page);
        request_common_headers(r, headers);
        for (unsigned i = 0; i < kept->count; i++) {
            (void)!headers_add(headers, r->arena, kept->items[i].name, kept->items[i].value);
        }
    }
    struct http_reply reply = {.status = status,
                               .reason = s3_status_reason(status, (struct span){NULL, 0}),
                               .headers = headers,
                               .has_length = true,
                               .length = body.len,
                               .body = body};
    r->step = REQUEST_WAIT;
    http_reply_start(r->x, &reply);
    return STEP_DONE;
}

static enum step_result serve_direct(struct request *r)
{
    struct pass_state *p = pass_state_new(r, PASS_ROWS);
    r->pass = p;
    enum err err = pass_direct_plan(p);
    if (err != ERR_OK) {
        struct s3_error_detail detail = {.message = p->err_message};
        return request_fail(r, err, &detail);
    }
    pass_phase_start(p);
    return STEP_WAIT;
}

static enum step_result serve_relay(struct request *r, bool is_sts)
{
    struct s3_error_detail detail = {0};
    struct pass_state *p = pass_state_new(r, PASS_ROWS);
    p->kind = is_sts ? PASS_KIND_STS : PASS_KIND_S3;
    enum err err = plan(p, &detail.message);
    if (err != ERR_OK) {
        pass_state_free(p);
        return request_fail(r, err, &detail);
    }
    r->pass = p;
    bool has_body = p->body.collect || p->body.kind != ORIGIN_BODY_NONE;
    if (!p->body.collect && r->s3.operation != S3_PostObject) {
        pass_phase_start(p);
    }
    if (has_body) {
        pass_receive_start(p);
    }
    return STEP_WAIT;
}

// Chooses the origin to ask. Returns an error if there is none.
static enum err find_origin(struct request *r, bool is_sts, struct span *ret_message)
{
    bool has_bucket = r->s3.bucket.len > 0;
    if (is_sts) {
        r->origin = r->pw->proxy->options.sts_origin;
    }
    if (r->origin == NULL) {
        return has_bucket ? ERR_NO_SUCH_BUCKET : ERR_NOT_IMPLEMENTED;
    }
    if (!has_bucket && (r->s3.flags & S3_OP_READ) == 0 && !is_sts) {
        *ret_message = SPAN("This is no S3 operation. Calls to other services arrive here when "
                            "AWS_ENDPOINT_URL is set: set AWS_ENDPOINT_URL_S3 instead");
        return ERR_NOT_IMPLEMENTED;
    }
    return ERR_OK;
}

enum step_result serve_pass_step_start(struct request *r)
{
    check(r->pass == NULL);
    r->result = RESULT_BYPASS;
    if ((r->s3.flags & S3_OP_READ) == 0) {
        r->reason = NULL; // every write bypasses the cache, so the log needs no reason
    }
    struct s3_error_detail detail = {0};
    bool is_sts = gate_is_sts(r);
    enum err err = find_origin(r, is_sts, &detail.message);
    if (err != ERR_OK) {
        return request_fail(r, err, &detail);
    }
    if (pass_direct_wanted(r)) {
        return serve_direct(r);
    }
    if (list_cache_ask(r)) {
        r->step = REQUEST_PASS_LISTED;
        return STEP_WAIT;
    }
    return serve_relay(r, is_sts);
}

enum step_result serve_pass_step_listed(struct request *r)
{
    check(r->list_ask != NULL);
    switch (r->list_verdict) {
    case LIST_WAITS:
        return STEP_WAIT;
    case LIST_HIT:
    case LIST_JOINED:
        return serve_list_page(r, list_cache_take_page(r));
    case LIST_FAILED:
        return request_fail(r, list_cache_take_error(r), NULL);
    case LIST_ALONE:
        (void)list_cache_take_error(r);
        return serve_relay(r, false);
    case LIST_FETCH:
        return serve_relay(r, false);
    }
    check(false);
    return STEP_WAIT;
}

void serve_pass_done(struct request *r)
{
    struct pass_state *p = r->pass;
    list_cache_leave(r);
    if (p == NULL) {
        return;
    }
    as_pass(p);
    check(p->request == r);
    check(r->list_ask == NULL);
    r->pass = NULL;
    pass_answer_list_end(p, LIST_END_LEFT, ERR_OK);
    pass_version_leave(p);
    bool has_answer =
        pass_has_head(p) &&
        (pass_is_bodiless(p) || (p->relay.has_length && p->received_bytes == p->relay.length));
    p->request = NULL;
    byte_queue_done(&p->down);
    if (pass_calls(p)) {
        bool has_left = p->body.taken == p->body.length;
        bool is_known = pass_has_head(p) && !p->is_streamed; // nobody needs the rest of the answer
        if (has_answer || (pass_changes_any(p) && has_left && p->err == ERR_OK && !is_known)) {
            pass_origin_resume(p);
        } else {
            pass_origin_cancel(p);
        }
    }
    pass_go(p);
}
