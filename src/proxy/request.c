// SPDX-License-Identifier: Apache-2.0
// struct request and its step table. A request is born when a head has passed http's gate, on the
// connection's worker, and ends in on_done(); request_go() alone moves it. Steps return AGAIN (the
// next one at once), WAIT (a callback will go on) or DONE (the reply is on its way; only on_done is
// left).

#include "proxy/proxy_private.h"

#include <stdlib.h>
#include <string.h>

#include "base/random.h"

#define REQUEST_POOL_MAX 64u
// A request that moves more often without waiting is a mistake of ours.
#define REQUEST_STEPS_MAX 64u

typedef enum step_result step_fn(struct request *r);

static step_fn *const steps[] = {
#define STEP(name, fn) [REQUEST_##name] = fn,
#include "proxy/steps.def"
#undef STEP
};

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
        result = steps[r->step](r);
    }
    r->going = false;
}

// --- headers of every reply ----------------------------------------------------------------------

void request_header(struct request *r, struct headers *headers, const char *name, struct span value)
{
    (void)!headers_add(headers, r->arena, span_from_cstr(name),
                       value); // a full table drops the least important
}

static struct span request_revalidated_status(struct request *r)
{
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

// "forebay; hit; detail=memory" for r's result; arena memory.
static struct span request_cache_status(struct request *r)
{
    const char *text = NULL;
    switch (r->result) {
    case RESULT_HIT:
        return SPAN("forebay; hit");
    case RESULT_PARTIAL:
        text =
            arena_printf(r->arena, "forebay; fwd=partial; fwd-status=206; detail=\"%u/%u blocks\"",
                         r->blocks_hit, r->blocks_total);
        break;
    case RESULT_MISS:
        return r->known ? SPAN("forebay; fwd=miss; fwd-status=206")
                        : SPAN("forebay; fwd=uri-miss; fwd-status=206");
    case RESULT_COALESCED:
        return SPAN("forebay; fwd=miss; collapsed");
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

// A browser that opens an object must not run it with the rights of who reaches this listener.
static void add_sandbox(struct headers *headers, struct arena *arena)
{
    (void)!headers_add(headers, arena, SPAN("Content-Security-Policy"), SPAN("sandbox"));
    (void)!headers_add(headers, arena, SPAN("X-Content-Type-Options"), SPAN("nosniff"));
}

void request_common_headers(struct request *r, struct headers *headers)
{
    request_header(r, headers, "x-amz-request-id", (struct span){r->id, 16});
    request_header(r, headers, "x-amz-id-2", (struct span){r->id, 16});
    const struct origin *origin =
        r->origin != NULL ? r->origin : r->pw->proxy->options.default_origin;
    request_header(r, headers, "Server",
                   origin != NULL ? span_from_cstr(origin_server_header(origin))
                                  : SPAN("AmazonS3"));
    request_header(r, headers, "Cache-Status", request_cache_status(r));
    add_sandbox(headers, r->arena);
}

// --- refusal -------------------------------------------------------------------------------------

static enum step_result fail(struct request *r, enum err err, struct s3_error_detail *detail,
                             unsigned status, const struct headers *more)
{
    struct s3_error_detail none = {0};
    if (detail == NULL) {
        detail = &none;
    }
    check(!http_reply_head_sent(r->x));
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
    struct http_reply reply = {.status = r->status, .reason = s3_status_reason(r->status)};
    if (headers != NULL) {
        request_header(r, headers, "Content-Type", SPAN("application/xml"));
        if (err == ERR_INVALID_RANGE && detail->has_actual_object_size) {
            char *text = arena_printf(r->arena, "bytes */%llu",
                                      (unsigned long long)detail->actual_object_size);
            request_header(r, headers, "Content-Range", span_from_cstr(text));
        }
        request_common_headers(r, headers);
        for (unsigned i = 0; more != NULL && i < more->count; i++) {
            (void)!headers_add(headers, r->arena, more->items[i].name,
                               more->items[i].value); // as many as there is room for
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

// Does this error pass on what the origin has said about the request? The others are about the
// origin itself, or about a request that is not the client's.
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
    case ERR_ORIGIN_SLOWDOWN:
        return status == 503;
    default:
        return false;
    }
}

// The origin complains about our signature there: the client's was good.
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
    struct s3_error_detail detail = {0};
    struct s3_error_answer answer = {0};
    bool names_key = false, names_bucket = false;
    if (packed.len == 0 || !s3_error_unpack(r->arena, packed, &answer) ||
        !is_origins_verdict(err, answer.status)) {
        return request_fail(r, err, NULL);
    }
    // The packed bytes go away with whoever brought them.
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
        status = answer.status; // it has no document to differ from
    }
    return fail(r, err, &detail, status, &answer.headers);
}

// --- the first steps -----------------------------------------------------------------------------

static void request_find_origin(struct request *r)
{
    struct proxy *proxy = r->pw->proxy;
    r->origin = proxy->options.default_origin;
    r->origin_bucket = r->s3.bucket;
    for (unsigned i = 0; i < proxy->options.bucket_count; i++) {
        if (span_equal_cstr(r->s3.bucket, proxy->buckets[i].name)) {
            r->origin = proxy->buckets[i].origin;
            r->origin_bucket = span_from_cstr(proxy->buckets[i].origin_bucket);
            return;
        }
    }
}

enum step_result request_step_parse(struct request *r)
{
    enum err err = origin_hops_judge(&r->http->headers, &r->hops);
    if (err != ERR_OK) {
        stats_add(COUNTER_loops_refused, 1);
        return request_fail(r, err, NULL);
    }
    err = s3_request_parse(r->arena, r->http->method, r->http->host, r->http->target,
                           &r->http->headers, &r->pw->proxy->domains, &r->s3);
    if (err != ERR_OK) {
        return request_fail(r, err, NULL);
    }
    request_find_origin(r);
    r->step = REQUEST_AUTHORIZE;
    return STEP_AGAIN;
}

enum step_result request_step_authorize(struct request *r)
{
    struct s3_error_detail detail = {0};
    enum err err = gate_authorize(r, &r->principal, &detail);
    if (err != ERR_OK) {
        stats_add(COUNTER_auth_denied, 1);
        return request_fail(r, err, &detail);
    }
    r->step = REQUEST_DISPATCH;
    return STEP_AGAIN;
}

// Why this read may not be answered from the cache; NULL: it may.
static const char *request_bypass_reason(const struct request *r)
{
    if (r->s3.bypass_reason != NULL) {
        return r->s3.bypass_reason;
    }
    if ((r->s3.flags & S3_OP_CACHEABLE) == 0) {
        return (r->s3.flags & S3_OP_LISTING) != 0 ? "list" : "sub-resource";
    }
    if (headers_count(&r->http->headers, SPAN("Origin")) > 0) {
        return "cors"; // the bucket's rules decide what its answer says to a browser
    }
    if (!r->rule->cache) {
        return "rule";
    }
    if (r->s3.has_part_number && r->s3.part_number != 1) {
        return "part-number";
    }
    struct span value;
    if (r->pw->proxy->options.obey_no_store &&
        headers_get(&r->http->headers, SPAN("Cache-Control"), &value) &&
        headers_list_has(value, SPAN("no-store"))) {
        return "no-store";
    }
    return NULL;
}

enum step_result request_step_dispatch(struct request *r)
{
    r->rule = rules_find(r->pw->proxy, r->s3.bucket, r->s3.key);
    const char *reason = request_bypass_reason(r);
    if (reason == NULL) {
        if (r->s3.has_part_number && headers_count(&r->http->headers, SPAN("Range")) > 0) {
            struct s3_error_detail detail = {
                .message = SPAN("Cannot specify both Range header and partNumber query parameter")};
            return request_fail(r, ERR_INVALID, &detail);
        }
        r->step = REQUEST_GET_LOOKUP;
        return STEP_AGAIN;
    }
    r->reason = reason;
    r->result = RESULT_BYPASS;
    r->step = REQUEST_PASS;
    return STEP_AGAIN;
}

enum step_result request_step_wait(struct request *r)
{
    (void)r;
    return STEP_WAIT;
}

// --- birth and end -------------------------------------------------------------------------------

static void request_count(struct request *r)
{
    const char *op = s3_operation_name(r->s3.operation);
    uint64_t now_us = worker_now_us(r->pw->worker);
    uint64_t first_us = http_reply_first_byte_us(r->x);
    bool hit =
        r->result == RESULT_HIT || r->result == RESULT_REVALIDATED || r->result == RESULT_STALE;
    bool miss =
        r->result == RESULT_MISS || r->result == RESULT_PARTIAL || r->result == RESULT_COALESCED;
    stats_count_request(op, r->status);
    if (r->result == RESULT_BYPASS) {
        stats_count_bypass(r->reason != NULL ? r->reason : "method");
    }
    if ((r->s3.flags & S3_OP_READ) != 0 && r->result != RESULT_NONE) {
        stats_count_result(op, request_result_name(r->result));
    }
    stats_observe_us(hit    ? HISTOGRAM_request_hit
                     : miss ? HISTOGRAM_request_miss
                            : HISTOGRAM_request_other,
                     now_us - r->http->started_us);
    if (first_us != 0) {
        stats_observe_us(hit    ? HISTOGRAM_first_byte_hit
                         : miss ? HISTOGRAM_first_byte_miss
                                : HISTOGRAM_first_byte_other,
                         first_us - r->http->started_us);
    }
    stats_add(COUNTER_response_bytes_memory, r->bytes_memory);
    stats_add(COUNTER_response_bytes_disk, r->bytes_disk);
    stats_add(COUNTER_response_bytes_origin, r->bytes_origin);
}

// A request whose I/O is over goes back to the pool; serve_get.c calls it later when a disk read is
// still out.
void request_recycle(struct request *r)
{
    struct proxy_worker *pw = r->pw;
    r->magic = 0;
    if (pw->request_pool_count >= REQUEST_POOL_MAX) {
        free(r->get);
        free(r);
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
        struct request *r = container_of(node, struct request, pool_node);
        free(r->get);
        free(r);
    }
}

static void on_done(struct http_user *user, enum http_outcome outcome)
{
    struct request *r = container_of(user, struct request, user);
    check(r->magic == REQUEST_MAGIC && !r->ended);
    request_count(r);
    if (r->pw->proxy->access_log != NULL) {
        access_log_write(r->pw->proxy->access_log, r, outcome);
    }
    r->ended = true;
    gate_release(&r->principal);
    serve_pass_done(r);
    if (serve_get_done(r)) {
        request_recycle(r);
    }
}

static struct request *request_new(struct proxy_worker *pw, struct http_exchange *x)
{
    struct list_node *node = list_pop_front(&pw->request_pool);
    struct request *r;
    struct get_state *get = NULL;
    if (node != NULL) {
        pw->request_pool_count--;
        r = container_of(node, struct request, pool_node);
        get = r->get;
    } else {
        r = malloc(sizeof(*r));
        check(r != NULL);
    }
    // s3.params is large and written by the parser, effects by the gate; the rest starts at zero.
    memset(r, 0, offsetof(struct request, s3));
    memset(&r->principal, 0, sizeof(*r) - offsetof(struct request, principal));
    r->s3.operation = S3_Unknown;
    r->s3.flags = 0;
    r->s3.raw_path = r->s3.bucket = r->s3.key = (struct span){0};
    r->effects.count = 0;
    r->effects.copy = r->effects.rename = (struct s3_source){.is_there = false};
    r->magic = REQUEST_MAGIC;
    list_node_init(&r->pool_node);
    r->get = get;
    r->pw = pw;
    r->x = x;
    r->http = http_exchange_request(x);
    r->arena = http_exchange_arena(x);
    r->user.on_done = on_done;
    uint64_t number = (pw->next_request_id++ << 6) | pw->index;
    uint32_t low = (uint32_t)(number ^ (number >> 32));
    memcpy(r->id, pw->proxy->id_prefix, 8);
    for (unsigned i = 0; i < 8; i++) {
        r->id[15 - i] = "0123456789ABCDEF"[(low >> (4 * i)) & 15];
    }
    r->id[16] = '\0';
    return r;
}

static void on_request(void *ctx, struct http_exchange *x)
{
    (void)ctx;
    struct proxy_worker *pw = proxy_worker_of(http_exchange_worker(x));
    struct request *r = request_new(pw, x);
    http_exchange_set_user(x, &r->user);
    request_go(r);
}

static void on_refused(void *ctx, enum err err, struct arena *arena, struct headers *headers,
                       struct buf *out)
{
    struct proxy *proxy = ctx;
    char id[33];
    uint64_t random = random_u64();
    hex_encode(&random, sizeof(random), id);
    struct span request_id = arena_copy(arena, (struct span){id, 16});
    struct s3_error_detail detail = {.request_id = request_id, .host_id = request_id};
    s3_error_render(err, &detail, out);
    (void)!headers_add(headers, arena, SPAN("Content-Type"), SPAN("application/xml"));
    (void)!headers_add(headers, arena, SPAN("x-amz-request-id"), request_id);
    (void)!headers_add(headers, arena, SPAN("x-amz-id-2"), request_id);
    struct span server = span_from_cstr(origin_server_header(proxy->options.default_origin));
    (void)!headers_add(headers, arena, SPAN("Server"), server);
    (void)!headers_add(headers, arena, SPAN("Cache-Status"), SPAN("forebay"));
    add_sandbox(headers, arena);
    stats_count_request("Other", error_row(err)->status);
}

struct http_handler proxy_handler(struct proxy *proxy)
{
    return (struct http_handler){.ctx = proxy, .on_request = on_request, .on_refused = on_refused};
}
