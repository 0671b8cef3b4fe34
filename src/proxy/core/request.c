// SPDX-License-Identifier: Apache-2.0
// Parts that every step of a request uses: the loop that runs the steps, the request's memory, the
// headers of every reply, and refusals. Only request_go() moves a request from step to step. A step
// returns AGAIN (run the next step now), WAIT (a callback will call request_go()) or DONE (the
// reply has begun, and only on_done remains). On the connection's worker.
#include "proxy/core/core.h"

#include <stdlib.h>
#include <string.h>

// Enough for hits, which reuse requests one after another. A burst of misses needs many requests of
// 32 KiB each; those are freed.
#define REQUEST_POOL_MAX 8u
// A request that takes more steps than this without waiting is in an endless loop.
#define REQUEST_STEPS_MAX 64u

void request_go(struct request *r)
{
    check(r->magic == REQUEST_MAGIC);
    if (r->going || r->ended) {
        return;
    }
    r->going = true;
    enum step_result result = STEP_AGAIN;
    for (unsigned i = 0; result == STEP_AGAIN; i++) {
        check(i < REQUEST_STEPS_MAX);
        enum request_step step = r->step;
        result = r->steps[step](r);
        check(r->magic == REQUEST_MAGIC);
        check(r->step < REQUEST_STEP_COUNT_);
        check(result != STEP_AGAIN || r->step != step);
        check(result != STEP_DONE || r->step == REQUEST_WAIT);
    }
    r->going = false;
}

// --- the pool ------------------------------------------------------------------------------------

struct request *request_new(struct proxy_worker *pw)
{
    check(pw->live != NULL);
    check(pw->request_pool_count <= REQUEST_POOL_MAX);
    struct list_node *node = list_pop_front(&pw->request_pool);
    struct request *r;
    struct get_state *get = NULL;
    struct object_key *spare_key = NULL;
    if (node != NULL) {
        pw->request_pool_count--;
        r = container_of(node, struct request, pool_node);
        check(r->magic == 0); // request_recycle() has cleared it
        get = r->get;
        spare_key = r->spare_key;
    } else {
        r = malloc(sizeof(*r));
        check(r != NULL);
    }
    // The large s3.params is written by the parser, and `effects` by the gate. All the rest is
    // zeroed.
    memset(r, 0, offsetof(struct request, s3));
    memset(&r->principal, 0, sizeof(*r) - offsetof(struct request, principal));
    s3_request_clear(&r->s3);
    r->effects.count = 0;
    r->effects.copy = r->effects.rename = (struct s3_source){.is_there = false};
    r->magic = REQUEST_MAGIC;
    list_node_init(&r->pool_node);
    r->get = get;
    r->spare_key = spare_key;
    r->pw = pw;
    r->live = live_ref(pw->live);
    return r;
}

static void request_free(struct request *r)
{
    free(r->spare_key);
    free(r->get);
    free(r);
}

void request_recycle(struct request *r)
{
    struct proxy_worker *pw = r->pw;
    check(r->magic == REQUEST_MAGIC);
    check(!r->going && r->pass == NULL);
    r->magic = 0;
    live_unref(r->live);
    r->live = NULL;
    if (pw->request_pool_count >= REQUEST_POOL_MAX) {
        request_free(r);
        return;
    }
    list_push_front(&pw->request_pool, &r->pool_node);
    pw->request_pool_count++;
}

void request_pool_free(struct proxy_worker *pw)
{
    struct list_node *node;
    while (pw->request_pool.head.next != NULL &&
           (node = list_pop_front(&pw->request_pool)) != NULL) {
        request_free(container_of(node, struct request, pool_node));
    }
}

// --- headers of every reply ----------------------------------------------------------------------

void request_header(struct request *r, struct headers *headers, const char *name, struct span value)
{
    // If the table is full, the headers added last are left out. They matter least.
    (void)!headers_add(headers, r->arena, span_from_cstr(name), value);
}

static struct span request_revalidated_status(struct request *r)
{
    check(r->result == RESULT_REVALIDATED && r->rule != NULL);
    if (r->reason != NULL) {
        return SPAN("forebay; fwd=request; fwd-status=304; detail=client-no-cache");
    }
    if (r->rule->freshness == PROXY_FRESHNESS_STRICT) {
        return SPAN("forebay; fwd=stale; fwd-status=304; ttl=0; detail=strict");
    }
    if (r->rule->freshness == PROXY_FRESHNESS_IMMUTABLE) {
        return SPAN("forebay; fwd=stale; fwd-status=304; detail=revalidated");
    }
    char *text = arena_printf(r->arena,
                              "forebay; fwd=stale; fwd-status=304; ttl=%llu; "
                              "detail=revalidated",
                              (unsigned long long)r->rule->ttl_ms / 1000);
    return text != NULL ? span_from_cstr(text) : SPAN("forebay");
}

// Returns the status of a miss: whether the fetched bytes are stored, and if not, why.
static const char *request_fetched_status(struct request *r, const char *how)
{
    if (!r->has_run || how == NULL) {
        return how;
    }
    return r->unstored_why == NULL
               ? arena_printf(r->arena, "%s; stored", how)
               : arena_printf(r->arena, "%s; stored=?0; detail=%s", how, r->unstored_why);
}

// Returns the status of a miss that the origin answered with an error, or not at all.
static const char *request_failed_status(struct request *r)
{
    check(r->err != ERR_OK && r->status >= 400);
    const char *how = r->known ? "miss" : "uri-miss", *why = origin_why(r->err);
    return why != NULL ? arena_printf(r->arena, "forebay; fwd=%s; detail=%s", how, why)
                       : arena_printf(r->arena, "forebay; fwd=%s; fwd-status=%u", how, r->status);
}

// Returns the value of Cache-Status for r->result, such as "forebay; hit". Arena memory.
static struct span request_cache_status(struct request *r)
{
    const char *text = NULL;
    switch (r->result) {
    case RESULT_HIT:
        return SPAN("forebay; hit");
    case RESULT_PARTIAL:
        text = arena_printf(r->arena,
                            "forebay; fwd=partial; fwd-status=206%s; detail=\"%u/%u blocks%s%s\"",
                            !r->has_run               ? ""
                            : r->unstored_why == NULL ? "; stored"
                                                      : "; stored=?0",
                            r->blocks_hit, r->blocks_total, r->unstored_why != NULL ? ", " : "",
                            r->unstored_why != NULL ? r->unstored_why : "");
        break;
    case RESULT_MISS:
        text = r->err != ERR_OK
                   ? request_failed_status(r)
                   : request_fetched_status(
                         r, arena_printf(r->arena, "forebay; fwd=%s; fwd-status=%u",
                                         r->known ? "miss" : "uri-miss",
                                         r->origin_status != 0 ? r->origin_status : 206));
        break;
    case RESULT_COALESCED:
        text = request_fetched_status(r, "forebay; fwd=miss; collapsed");
        break;
    case RESULT_REVALIDATED:
        return request_revalidated_status(r);
    case RESULT_STALE:
        return SPAN("forebay; hit; detail=stale-if-error");
    case RESULT_BYPASS:
        text = (r->s3.flags & S3_OP_READ) != 0
                   ? arena_printf(r->arena, "forebay; fwd=bypass; detail=%s",
                                  r->reason != NULL ? r->reason : "sub-resource")
                   : arena_printf(r->arena, "forebay; fwd=method; detail=%s",
                                  s3_operation_name(r->s3.operation));
        break;
    case RESULT_NONE:
        break;
    }
    return text != NULL ? span_from_cstr(text) : SPAN("forebay");
}

void request_sandbox_headers(struct headers *headers, struct arena *arena)
{
    (void)!headers_add(headers, arena, SPAN("Content-Security-Policy"), SPAN("sandbox"));
    (void)!headers_add(headers, arena, SPAN("X-Content-Type-Options"), SPAN("nosniff"));
}

static struct span request_server(const struct request *r)
{
    const struct origin *origin =
        r->origin != NULL ? r->origin : r->pw->proxy->options.default_origin;
    return origin != NULL ? span_from_cstr(origin_server_header(origin)) : SPAN("AmazonS3");
}

void request_common_headers(struct request *r, struct headers *headers)
{
    request_header(r, headers, "x-amz-request-id", (struct span){r->id, 16});
    request_header(r, headers, "x-amz-id-2", (struct span){r->id, 16});
    request_header(r, headers, "Server", request_server(r));
    request_header(r, headers, "Cache-Status", request_cache_status(r));
    request_sandbox_headers(headers, r->arena);
}

// Nobody validates these bytes afterwards. That is safe: ids are hexadecimal digits,
// origin_server_header_learn() accepts only clean values, and all words of Cache-Status are
// Forebay's own.
struct span request_lines(struct request *r, struct span before, struct span behind,
                          struct span stored)
{
    struct span server = request_server(r), status = request_cache_status(r), id = {r->id, 16};
    size_t size = 256 + server.len + status.len + before.len + behind.len + stored.len;
    char *text = arena_take(r->arena, size);
    if (text == NULL) {
        return (struct span){NULL, 0};
    }
    struct span_writer w = {text, text + size};
    span_writer_put(&w, before);
    span_writer_put(&w, SPAN("x-amz-request-id: "));
    span_writer_put(&w, id);
    span_writer_put(&w, SPAN("\r\nx-amz-id-2: "));
    span_writer_put(&w, id);
    span_writer_put(&w, SPAN("\r\nServer: "));
    span_writer_put(&w, server);
    span_writer_put(&w, SPAN("\r\nCache-Status: "));
    span_writer_put(&w, status);
    span_writer_put(&w, SPAN("\r\nContent-Security-Policy: sandbox\r\n"
                             "X-Content-Type-Options: nosniff\r\n"));
    span_writer_put(&w, behind);
    span_writer_put(&w, stored);
    check(w.at <= text + size);
    return (struct span){text, (size_t)(w.at - text)};
}

// --- refusal -------------------------------------------------------------------------------------

// Returns why the origin failed, if its calls fail by the same kind of error now. Empty: unknown.
static struct span origin_failure_text(struct request *r, enum err err)
{
    struct origin_trouble_text trouble;
    const char *why = origin_why(err);
    if (why == NULL || r->origin == NULL || !origin_in_trouble(r->origin, &trouble) ||
        strcmp(trouble.why, why) != 0) {
        return (struct span){NULL, 0};
    }
    const char *text = arena_printf(
        r->arena, "%s: %s. Remedy, where Forebay runs: %s.",
        err == ERR_ORIGIN_REFUSED ? "The origin refused the credentials that Forebay signs with"
                                  : "The origin cannot be used",
        trouble.text, trouble.remedy);
    return text != NULL ? span_from_cstr(text) : (struct span){NULL, 0};
}

static enum step_result fail(struct request *r, enum err err, struct s3_error_detail *detail,
                             unsigned status, const struct headers *more)
{
    struct s3_error_detail none = {0};
    if (detail == NULL) {
        detail = &none;
    }
    check(!http_reply_head_sent(r->x));
    check(err != ERR_OK && status >= 300 && status <= 599);
    if (detail->message.len == 0) {
        detail->message = origin_failure_text(r, err);
    }
    detail->request_id = (struct span){r->id, 16};
    detail->host_id = (struct span){r->id, 16};
    if (detail->resource.len == 0) {
        detail->resource = r->s3.raw_path.len > 0 ? r->s3.raw_path : r->http->target;
    }
    if (err == ERR_NO_SUCH_KEY && detail->key.len == 0) {
        detail->key = r->s3.key;
    }
    if (err == ERR_NO_SUCH_BUCKET && detail->bucket_name.len == 0) {
        detail->bucket_name = r->s3.bucket;
    }
    r->err = err;
    r->status = status;
    struct buf body;
    buf_init(&body, 65536);
    s3_error_render(err, detail, &body);
    struct headers *headers = arena_alloc(r->arena, sizeof(*headers));
    struct span code =
        detail->code.len > 0 ? detail->code : span_from_cstr(error_row(err)->s3_code);
    // An origin's answer to HEAD has no code. The error's own code might contradict the status.
    bool has_code = detail->code.len > 0 || status == error_row(err)->status;
    r->error_code = has_code ? arena_cstr(r->arena, code) : NULL;
    struct http_reply reply = {.status = r->status, .reason = s3_status_reason(r->status, code)};
    if (headers != NULL) {
        request_header(r, headers, "Content-Type", SPAN("application/xml"));
        if (err == ERR_INVALID_RANGE && detail->has_actual_object_size) {
            char *text = arena_printf(r->arena, "bytes */%llu",
                                      (unsigned long long)detail->actual_object_size);
            request_header(r, headers, "Content-Range", span_from_cstr(text));
        }
        if (detail->retry_after.len > 0) {
            request_header(r, headers, "Retry-After", detail->retry_after);
        }
        request_common_headers(r, headers);
        for (unsigned i = 0; more != NULL && i < more->count; i++) {
            (void)!headers_add(headers, r->arena, more->items[i].name,
                               more->items[i].value); // headers that do not fit are left out
        }
        reply.headers = headers;
    }
    reply.body = arena_copy(r->arena, buf_span(&body));
    reply.has_length = true;
    reply.length = reply.body.len;
    buf_done(&body);
    r->step = REQUEST_WAIT;
    http_reply_start(r->x, &reply);
    return STEP_DONE;
}

enum step_result request_fail(struct request *r, enum err err, struct s3_error_detail *detail)
{
    return fail(r, err, detail, error_row(err)->status, NULL);
}

// Returns true if the error is the origin's verdict on the client's request. Other errors are about
// the origin itself, or about a request that Forebay made on its own.
static bool is_origins_verdict(enum err err, unsigned status)
{
    switch (err) {
    case ERR_INVALID:
    case ERR_ACCESS_DENIED:
    case ERR_NO_SUCH_KEY:
    case ERR_NO_SUCH_BUCKET:
    case ERR_METHOD_NOT_ALLOWED:
    case ERR_NOT_IMPLEMENTED:
        return (status >= 400 && status <= 416 && status != 408) || status == 501;
    case ERR_ORIGIN_5XX:
        return status == 500;
    case ERR_ORIGIN_UNAVAILABLE:
    case ERR_ORIGIN_SLOWDOWN:
        return status == 503;
    default:
        return false;
    }
}

// Returns true if the error is about Forebay's signature to the origin, not about the client's.
static bool is_about_our_keys(struct span code)
{
    static const char *const codes[] = {"SignatureDoesNotMatch",        "InvalidAccessKeyId",
                                        "RequestTimeTooSkewed",         "InvalidSecurity",
                                        "AuthorizationHeaderMalformed", "NotSignedUp"};
    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        if (span_equal_cstr(code, codes[i])) {
            return true;
        }
    }
    return false;
}

enum step_result request_fail_by_origin(struct request *r, enum err err, struct span packed)
{
    check(err != ERR_OK && r->origin != NULL);
    struct s3_error_detail detail = {0};
    struct s3_error_answer answer = {0};
    if (r->result == RESULT_NONE) {
        r->result = RESULT_MISS; // the origin was asked
    }
    bool names_key = false, names_bucket = false;
    bool is_there = packed.len > 0 && s3_error_unpack(r->arena, packed, &answer);
    if (is_there) {
        struct span id = {NULL, 0};
        (void)headers_get(&answer.headers, SPAN("x-amz-request-id"), &id);
        span_to_text(id, r->origin_id, sizeof(r->origin_id));
        // The client gets Forebay's request id instead.
        headers_remove(&answer.headers, SPAN("x-amz-request-id"));
    }
    if (!is_there || !is_origins_verdict(err, answer.status)) {
        (void)headers_get(&answer.headers, SPAN("Retry-After"), &detail.retry_after);
        detail.retry_after = arena_copy(r->arena, detail.retry_after); // `packed` is freed earlier
        return request_fail(r, err, &detail);
    }
    // Copies the headers, because the packed bytes are freed with their subscription.
    for (unsigned i = 0; i < answer.headers.count; i++) {
        struct header *h = &answer.headers.items[i];
        h->name = arena_copy(r->arena, h->name);
        h->value = arena_copy(r->arena, h->value);
        if (h->name.ptr == NULL || h->value.ptr == NULL) {
            return request_fail(r, err, NULL);
        }
    }
    unsigned status = error_row(err)->status;
    if (s3_error_adopt(r->arena, answer.document, &detail, &names_key, &names_bucket)) {
        if (is_about_our_keys(detail.code)) {
            detail.code = detail.elements = (struct span){NULL, 0};
        } else {
            status = answer.status;
        }
        detail.key = names_key ? r->s3.key : detail.key;
        detail.bucket_name = names_bucket ? r->s3.bucket : detail.bucket_name;
    } else if (r->http->is_head) {
        status = answer.status; // a HEAD's reply has no document that could contradict this status
    }
    return fail(r, err, &detail, status, &answer.headers);
}
