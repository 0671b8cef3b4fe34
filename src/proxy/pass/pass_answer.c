// SPDX-License-Identifier: Apache-2.0
// Forwards the answer to the client: its head, without the headers that the client may not see, and
// its bytes, through a queue. A full queue pauses the origin. If the request changes keys, the last
// byte is held back until every write has ended. On the request's worker; serve_pass.c has the
// sequence.
#include "proxy/pass/pass_private.h"

#define CODE_SHOWN_MAX 64u // maximum bytes of the origin's error code in the log

static bool is_ours(struct span name)
{
    static const char *const NAMES[] = {"content-length",
                                        "date",
                                        "server",
                                        "x-amz-request-id",
                                        "x-amz-id-2",
                                        "cache-status",
                                        "content-security-policy",
                                        "x-content-type-options"};
    for (size_t i = 0; i < ARRAY_LEN(NAMES); i++) {
        if (span_equal_nocase(name, span_from_cstr(NAMES[i]))) {
            return true;
        }
    }
    return headers_is_hop_by_hop(name);
}

// Returns true if the header holds only for the bytes that the origin sends.
static bool describes_bytes(struct span name)
{
    static const char *const NAMES[] = {"content-type",  "content-md5",    "etag",
                                        "digest",        "content-digest", "repr-digest",
                                        "last-modified", "accept-ranges"};
    for (size_t i = 0; i < ARRAY_LEN(NAMES); i++) {
        if (span_equal_nocase(name, span_from_cstr(NAMES[i]))) {
            return true;
        }
    }
    return span_starts_with_nocase(name, SPAN("x-amz-checksum-"));
}

// Copies those of the origin's headers that the client may see, in the exchange's memory.
void pass_answer_headers(struct pass_state *p)
{
    check(p->request != NULL);
    check(p->answered.count == 0);
    struct arena *arena = p->request->arena;
    const struct headers *from = &p->relay.headers_answered;
    bool is_filtered = pass_listing_is_filtered(p);
    if (is_filtered) { // it is written again, in UTF-8
        (void)!headers_add(&p->answered, arena, SPAN("Content-Type"), SPAN("application/xml"));
    }
    for (unsigned i = 0; i < from->count; i++) {
        struct header h = from->items[i];
        if ((p->kind == PASS_KIND_PREFLIGHT && !pass_preflight_keeps(h.name)) || is_ours(h.name) ||
            (is_filtered && describes_bytes(h.name)) ||
            (span_equal_nocase(h.name, SPAN("content-encoding")) &&
             span_equal_nocase(h.value, SPAN("aws-chunked")))) {
            continue;
        }
        if (pass_state_copy_span(arena, &h.name) && pass_state_copy_span(arena, &h.value)) {
            // Headers that do not fit are left out.
            (void)!headers_add(&p->answered, arena, h.name, h.value);
        }
    }
}

static enum http_pull pull(struct http_source *source, struct http_slice *ret_slice)
{
    struct pass_state *p = as_pass(container_of(source, struct pass_state, source));
    check(p->request != NULL);
    check(p->answer == ANSWER_SENT);
    uint64_t unjudged = pass_listing_pending(p);
    uint64_t held = pass_changes_any(p) && p->phase != PASS_ANSWER ? 1 : unjudged;
    if (p->down.bytes > held) {
        byte_queue_slice(&p->down, p->down.bytes - held, ret_slice);
        if (byte_queue_low(&p->down)) {
            pass_origin_resume(p);
        }
        return HTTP_PULL_SLICE;
    }
    if (unjudged > 0) {
        pass_origin_resume(p); // the rest of the name must come, even if the queue is full
    }
    if (p->call.phase != CALL_ENDED || held > unjudged) {
        return HTTP_PULL_WAIT;
    }
    bool is_whole =
        p->call.err == ERR_OK || (p->relay.has_length && p->received_bytes == p->relay.length);
    return is_whole && p->err == ERR_OK && unjudged == 0 ? HTTP_PULL_END : HTTP_PULL_CUT;
}

void pass_answer_start(struct pass_state *p)
{
    struct request *r = p->request;
    check(r != NULL);
    check(p->telling == NULL);
    check(p->err == ERR_OK);
    pass_enter_answer(p, ANSWER_SENT);
    struct headers *headers = arena_alloc(r->arena, sizeof(*headers));
    if (headers != NULL) {
        // Forebay's own headers come first, so that a full table cannot leave out the sandbox
        // headers.
        request_common_headers(r, headers);
        for (unsigned i = 0; i < p->answered.count; i++) {
            (void)!headers_add(headers, r->arena, p->answered.items[i].name,
                               p->answered.items[i].value); // headers that do not fit are left out
        }
    }
    r->status = p->relay.status;
    if (p->relay.error_code.len > 0) {
        r->error_code =
            arena_printf(r->arena, "%.*s", (int)min_u64(p->relay.error_code.len, CODE_SHOWN_MAX),
                         p->relay.error_code.ptr);
    }
    r->step = REQUEST_WAIT;
    struct http_reply reply = {
        .status = p->relay.status,
        .reason = s3_status_reason(p->relay.status, p->relay.error_code),
        .headers = headers,
        .has_length = p->relay.has_length && p->location.phase == LOCATION_UNUSED &&
                      !pass_listing_is_filtered(p),
        .length = p->relay.length,
        .no_length = p->relay.status == 204 || p->relay.status == 304,
        .close = p->upload == UPLOAD_DROPPED, // the rest of the client's body was not read
    };
    if (!pass_is_bodiless(p)) {
        p->source.pull = pull;
        reply.source = &p->source;
    }
    http_reply_start(r->x, &reply);
}

void pass_answer_list_end(struct pass_state *p, enum list_end end, enum err err)
{
    struct list_ask *ask = p->list_ask;
    p->list_ask = NULL;
    if (ask != NULL) {
        list_cache_end(ask, end, err);
    }
}

void pass_answer_list_end_whole(struct pass_state *p)
{
    struct list_ask *ask = p->list_ask;
    p->list_ask = NULL;
    if (ask == NULL) {
        return;
    }
    check(!pass_changes_any(p));
    check(pass_has_head(p));
    if (pass_listing_pending(p) > 0) { // the listing ends within a name
        list_cache_end(ask, LIST_END_ALONE, ERR_OK);
    } else {
        list_cache_end_whole(ask, p->relay.status, &p->answered);
    }
}

// Gives bytes to the page, for which other clients may wait. So the listing is received as fast as
// the origin sends it, even if its own client is slow. The exception is when memory is short.
static void list_take(struct pass_state *p, struct span data)
{
    check(p->list_ask != NULL);
    check(!pass_changes_any(p));
    bool is_held_up = byte_queue_full(&p->down) && chunk_budget_is_short();
    if (is_held_up || !list_cache_append(p->list_ask, data)) {
        pass_answer_list_end(p, LIST_END_ALONE, ERR_OK);
    } else if (p->relay.has_length && p->received_bytes == p->relay.length) {
        pass_answer_list_end_whole(p);
    }
}

void pass_answer_take(struct pass_state *p, struct span data)
{
    check(pass_calls(p));
    check(p->call.phase != CALL_PARKED);
    check(p->phase >= PASS_ASK && p->phase < PASS_OVER);
    p->received_bytes += data.len;
    if (p->request == NULL || !pass_has_head(p)) {
        return;
    }
    p->request->bytes_origin += data.len;
    if (pass_location_collects(p)) {
        pass_location_take(p, data);
    } else if (pass_listing_is_filtered(p)) {
        if (!pass_listing_filter(p, data)) {
            return;
        }
    } else {
        byte_queue_append(&p->down, data);
    }
    if (p->list_ask != NULL) {
        list_take(p, data);
    }
    if (byte_queue_full(&p->down) && p->list_ask == NULL) {
        pass_origin_pause(p);
    }
    if (p->answer == ANSWER_SENT) {
        http_reply_ready(p->request->x);
    } else if (pass_listing_may_start(p)) {
        pass_answer_start(p); // the names received so far are judged
    }
}
