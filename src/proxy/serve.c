// SPDX-License-Identifier: Apache-2.0
// The life of a request, on the connection's worker. It begins when http has accepted a request
// head. This file has the first steps of the table, up to GET_LOOKUP or PASS. The request ends in
// on_done(), which counts and logs it once.
#include "proxy/core/core.h"
#include "proxy/get/get.h"
#include "proxy/log/log.h"
#include "proxy/pass/pass.h"

#include <string.h>

#include "base/clock.h"
#include "base/random.h"

static request_step_fn *const STEPS[] = {
#define STEP(name, fn) [REQUEST_##name] = fn,
#include "proxy/steps.def"
#undef STEP
};

// --- the first steps -----------------------------------------------------------------------------

enum step_result serve_step_parse(struct request *r)
{
    enum err err = origin_hops_judge(&r->http->headers, &r->hops);
    if (err != ERR_OK) {
        stats_add(COUNTER_loops_refused, 1);
        return request_fail(r, err, NULL);
    }
    err = s3_request_parse(r->arena, r->http->method, r->http->host, r->http->target,
                           &r->http->headers, &r->live->domains, &r->s3);
    if (err != ERR_OK) {
        struct s3_error_detail detail = {0};
        const struct s3_param *part =
            r->s3.has_part_number ? s3_param_find(&r->s3, "partNumber") : NULL;
        if (err == ERR_INVALID_ARGUMENT && part != NULL) { // answer with the same message as S3
            detail.message = SPAN("Part number must be an integer between 1 and 10000, inclusive");
            detail.argument_name = part->name;
            detail.argument_value = part->value;
        }
        return request_fail(r, err, &detail);
    }
    r->origin = live_find_origin(r->pw->proxy, r->live, r->s3.bucket, &r->origin_bucket);
    r->step = REQUEST_AUTHORIZE;
    return STEP_AGAIN;
}

enum step_result serve_step_authorize(struct request *r)
{
    struct s3_error_detail detail = {0};
    enum err err = gate_authorize(r, &r->principal, &detail);
    if (err != ERR_OK) {
        return request_fail(r, err, &detail);
    }
    r->step = REQUEST_DISPATCH;
    return STEP_AGAIN;
}

// Returns the reason why this read may not be answered from the cache. NULL: it may.
static const char *bypass_reason(const struct request *r)
{
    bool says_that_we_pay = r->s3.bypass_reason != NULL && r->origin != NULL &&
                            strcmp(r->s3.bypass_reason, "payer") == 0 &&
                            origin_requester_pays(r->origin);
    if (r->s3.bypass_reason != NULL && !says_that_we_pay) {
        return r->s3.bypass_reason;
    }
    if ((r->s3.flags & S3_OP_CACHEABLE) == 0) {
        return (r->s3.flags & S3_OP_LISTING) != 0 ? "list" : "sub-resource";
    }
    if (headers_count(&r->http->headers, SPAN("Origin")) > 0) {
        return "cors"; // the bucket's CORS rules decide which headers the browser sees
    }
    if (!r->rule->cache) {
        return "rule";
    }
    if (r->s3.has_part_number && r->s3.part_number != 1) {
        return "part-number";
    }
    if (r->live->settings.obey_no_store &&
        headers_have_in_list(&r->http->headers, SPAN("Cache-Control"), SPAN("no-store"))) {
        return "no-store";
    }
    return NULL;
}

enum step_result serve_step_dispatch(struct request *r)
{
    r->rule = rules_find(r->live, r->s3.bucket, r->s3.key);
    const char *reason = bypass_reason(r);
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

enum step_result serve_step_wait(struct request *r)
{
    (void)r;
    return STEP_WAIT;
}

// --- birth and end -------------------------------------------------------------------------------

static void count(struct request *r)
{
    const char *op = s3_operation_name(r->s3.operation);
    uint64_t first_us = http_reply_first_byte_us(r->x);
    uint64_t now_us = max_u64(worker_now_us(r->pw->worker), first_us);
    bool hit =
        r->result == RESULT_HIT || r->result == RESULT_REVALIDATED || r->result == RESULT_STALE;
    // How long a failure takes says nothing about how fast the origin is.
    bool miss = r->status < 500 && (r->result == RESULT_MISS || r->result == RESULT_PARTIAL ||
                                    r->result == RESULT_COALESCED);
    stats_count_request(op, r->status);
    // Preflights have a limit of their own; all others that get these errors lack memory.
    if ((r->err == ERR_OVERLOAD || r->err == ERR_NO_MEMORY) && r->refused_why == NULL) {
        stats_add(COUNTER_http_shed_memory, 1);
        r->refused_why = stats_label(COUNTER_http_shed_memory);
    }
    if (r->err == ERR_ORIGIN_SLOWDOWN ||
        (r->err == ERR_OK && r->error_code != NULL && strcmp(r->error_code, "SlowDown") == 0)) {
        stats_add(COUNTER_http_throttled, 1);
    }
    if (r->result == RESULT_BYPASS) {
        stats_count_bypass(r->reason != NULL ? r->reason : "method");
    }
    if ((r->s3.flags & S3_OP_READ) != 0 && r->result != RESULT_NONE) {
        stats_count_result(op, request_result_name(r->result));
    }
    enum histogram whole = hit    ? HISTOGRAM_request_hit
                           : miss ? HISTOGRAM_request_miss
                                  : HISTOGRAM_request_other;
    stats_observe_us(whole, now_us - r->http->started_us);
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

static void note(const struct log_entry *entry)
{
    const struct request *r = entry->r;
    bucket_counts_note(r->pw->bucket_counts, r);
    recent_note(r->pw->recent, entry);
    if (r->live->settings.logs_access) {
        access_log_write(r->pw->proxy->access_log, entry);
    }
    access_log_live_write(r->pw->proxy->log_live, entry);
}

static struct log_entry entry_of(const struct request *r, enum http_outcome outcome)
{
    uint64_t now_us = clock_monotonic_us(), started_us = r->http->started_us;
    uint64_t first_us = http_reply_first_byte_us(r->x);
    check(r->magic == REQUEST_MAGIC);
    return (struct log_entry){
        .r = r,
        .outcome = outcome,
        .body_bytes = http_reply_body_bytes(r->x),
        .first_byte_us = first_us > started_us ? first_us - started_us : 0,
        .total_us = now_us > started_us ? now_us - started_us : 0,
    };
}

static void on_done(struct http_user *user, enum http_outcome outcome)
{
    struct request *r = container_of(user, struct request, user);
    check(r->magic == REQUEST_MAGIC);
    check(!r->ended);
    check(!r->going); // http never ends an exchange inside a call of the request
    serve_get_sum_up(r);
    count(r);
    const struct log_entry entry = entry_of(r, outcome);
    note(&entry);
    r->ended = true;
    gate_release(&r->principal);
    serve_pass_done(r);
    serve_get_done(r);
    request_recycle(r);
}

static struct request *begin(struct proxy_worker *pw, const struct http_request *http,
                             struct arena *arena)
{
    struct request *r = request_new(pw);
    r->steps = STEPS;
    r->http = http;
    r->arena = arena;
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
    struct request *r = begin(pw, http_exchange_request(x), http_exchange_arena(x));
    r->x = x;
    r->user.on_done = on_done;
    http_exchange_set_user(x, &r->user);
    request_go(r);
}

// Parses the request only for the logs, so an error does not matter.
static void parse_refused(struct request *r)
{
    if (r->http->method.len > 0) {
        (void)!s3_request_parse(r->arena, r->http->method, r->http->host, r->http->target,
                                &r->http->headers, &r->live->domains, &r->s3);
    }
}

static void render_refusal(struct request *r, struct headers *headers, struct buf *out)
{
    struct span id = arena_copy(r->arena, (struct span){r->id, 16});
    struct s3_error_detail detail = {.request_id = id, .host_id = id};
    s3_error_render(r->err, &detail, out);
    struct span server = span_from_cstr(origin_server_header(r->pw->proxy->options.default_origin));
    request_header(r, headers, "Content-Type", SPAN("application/xml"));
    request_header(r, headers, "x-amz-request-id", id);
    request_header(r, headers, "x-amz-id-2", id);
    request_header(r, headers, "Server", server);
    request_header(r, headers, "Cache-Status", SPAN("forebay"));
    request_sandbox_headers(headers, r->arena);
    r->status = error_row(r->err)->status;
}

// Counts and logs the request at once. Only its reply remains, which http sends alone.
static void on_refused(void *ctx, const struct http_refusal *refusal, struct headers *headers,
                       struct buf *out)
{
    (void)ctx;
    struct request *r = begin(proxy_worker_of(refusal->worker), refusal->request, refusal->arena);
    r->err = refusal->err;
    r->error_code = error_row(r->err)->s3_code;
    r->refused_why = stats_label(refusal->why);
    parse_refused(r);
    if (out != NULL) {
        render_refusal(r, headers, out);
        stats_count_request("Other", r->status);
    }
    uint64_t now_us = worker_now_us(refusal->worker), started_us = r->http->started_us;
    const struct log_entry entry = {.r = r,
                                    .outcome = HTTP_DONE,
                                    .body_bytes = out != NULL && !r->http->is_head ? out->len : 0,
                                    .total_us = now_us > started_us ? now_us - started_us : 0};
    note(&entry);
    r->ended = true;
    request_recycle(r);
}

static bool files_are_short(void *ctx)
{
    struct proxy *proxy = ctx;
    return store_waits_for_readers(proxy->store);
}

struct http_handler proxy_handler(struct proxy *proxy)
{
    return (struct http_handler){.ctx = proxy,
                                 .on_request = on_request,
                                 .on_refused = on_refused,
                                 .files_are_short = files_are_short};
}
