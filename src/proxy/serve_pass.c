// SPDX-License-Identifier: Apache-2.0
// What is not answered from the cache: listings, bucket operations, writes, multipart,
// sub-resources, everything unknown. Streamed in both directions, bounded each way by one
// byte_queue. Runs on the request's worker.
//
// Who owns what. A pass_state lives on the heap, because a write outlives its client: once the
// origin may have heard of it, the invalidation after it must run. Everything the relay looks at is
// a copy in pass_state.arena. It is freed when the exchange is over, the relay has ended and every
// key_write and the bucket_write have ended.
//
// The life of a request that changes keys (one that does not skips the two waits):
//
//   start     plan the body and read it: a batch delete whole, a form until its key is known
//   starting  invalidate_begin() for each key, or for the bucket ... until every on_ready
//   relay     the origin is asked, the body goes up; where the body is checked, its last byte
//             only after the check
//   known     the answer's head (its end where a 200 may still turn into an error), or a failure
//   closing   invalidate_end() for each of them ... until every on_ended
//   answer    the head to the client; one that came early is there already, and of its body the
//             last byte has been held back
//
// A client that leaves: before the origin has the whole body the upload is cut, so that nothing is
// written; after that the write runs to its end. Either way the invalidation follows the origin's
// last word. A request refused here (hash, framing, rights) is cut in front of its last byte in the
// same way.
#include "proxy/pass_private.h"

#include <stdlib.h>
#include <string.h>

// --- birth and end -------------------------------------------------------------------------------

static void pass_free(void *ptr)
{
    struct pass_state *p = as_pass(ptr);
    for (unsigned i = 0; i < p->write_count; i++) {
        object_key_unref(p->writes[i].key);
    }
    for (unsigned i = 0; i < p->late_count; i++) {
        object_key_unref(p->late_writes[i].key);
    }
    free(p->writes);
    free(p->late_writes);
    pass_preflight_end(p);
    pass_body_done(&p->body);
    buf_done(&p->form);
    buf_done(&p->location.document);
    byte_queue_done(&p->down);
    list_page_unref(p->list_page);
    credentials_unref(p->table);
    arena_free(p->arena);
    p->magic = 0;
    free(p);
}

static void maybe_free(struct pass_state *p)
{
    if (p->request == NULL && p->relay_phase != RELAY_RUNNING && !p->is_dead &&
        (p->write_phase == WRITES_NONE || p->write_phase == WRITES_ENDED)) {
        p->is_dead = true;
        worker_free_later(p->pw->worker, pass_free, p);
    }
}

static bool copy_span(struct arena *arena, struct span *s)
{
    if (s->len > 0) {
        *s = arena_copy(arena, *s);
    }
    return s->len == 0 || s->ptr != NULL;
}

static bool copy_request(struct arena *arena, const struct s3_request *from,
                         struct s3_request *ret_to)
{
    // All but the large array, of which only the first param_count count.
    size_t params = offsetof(struct s3_request, params);
    size_t behind = offsetof(struct s3_request, param_count);
    memcpy(ret_to, from, params + from->param_count * sizeof(from->params[0]));
    memcpy((char *)ret_to + behind, (const char *)from + behind, sizeof(*from) - behind);
    bool ok = copy_span(arena, &ret_to->method) && copy_span(arena, &ret_to->bucket) &&
              copy_span(arena, &ret_to->key) && copy_span(arena, &ret_to->raw_path) &&
              copy_span(arena, &ret_to->raw_query) && copy_span(arena, &ret_to->version_id);
    for (unsigned i = 0; ok && i < ret_to->param_count; i++) {
        struct s3_param *param = &ret_to->params[i];
        ok = copy_span(arena, &param->name) && copy_span(arena, &param->value) &&
             copy_span(arena, &param->raw_name) && copy_span(arena, &param->raw_value);
    }
    return ok;
}

static bool copy_headers(struct arena *arena, const struct headers *from, struct headers *to)
{
    for (unsigned i = 0; i < from->count; i++) {
        struct header copy = from->items[i];
        if (!copy_span(arena, &copy.name) || !copy_span(arena, &copy.value) ||
            !headers_add(to, arena, copy.name, copy.value)) {
            return false;
        }
    }
    return true;
}

static struct pass_state *pass_new(struct request *r)
{
    struct pass_state *p = calloc(1, sizeof(*p));
    check(p != NULL);
    p->magic = PASS_MAGIC;
    p->pw = r->pw;
    p->request = r;
    p->arena = arena_new(PASS_ARENA_MAX);
    p->table = r->principal.table != NULL ? credentials_ref(r->principal.table) : NULL;
    buf_init(&p->form, PASS_FORM_HEAD_MAX);
    byte_queue_init(&p->down);
    return p;
}

// --- the relay -----------------------------------------------------------------------------------

static void relay_pause(struct pass_state *p)
{
    p->relay_paused = true;
    if (p->direct.is_used) {
        origin_fetch_pause(&p->direct.fetch);
    } else {
        origin_relay_pause(&p->relay);
    }
}

static void relay_resume(struct pass_state *p)
{
    if (p->relay_paused) {
        p->relay_paused = false;
        if (p->direct.is_used) {
            origin_fetch_resume(&p->direct.fetch);
        } else {
            origin_relay_resume(&p->relay);
        }
    }
}

static void relay_cancel(struct pass_state *p)
{
    if (p->relay_phase == RELAY_RUNNING && !p->relay_cancelled) {
        p->relay_cancelled = true;
        if (p->direct.is_used) {
            origin_fetch_cancel(&p->direct.fetch);
        } else {
            origin_relay_cancel(&p->relay);
        }
    }
}

void pass_refuse(struct pass_state *p, enum err err, struct span message)
{
    if (p->err != ERR_OK) {
        return;
    }
    p->err = err;
    p->err_message = message;
    pass_upload_drop(p);
    relay_cancel(p);
    pass_settle(p);
}

static enum err on_upload(struct origin_relay *relay, char *buf, size_t max, size_t *ret_len)
{
    return pass_upload_take(as_pass(relay->ctx), buf, max, ret_len);
}

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
    return header_is_hop_by_hop(name);
}

// The origin's headers as the client may see them, in the exchange's memory.
static void take_headers(struct pass_state *p)
{
    struct arena *arena = p->request->arena;
    const struct headers *from = &p->relay.headers_answered;
    for (unsigned i = 0; i < from->count; i++) {
        struct header h = from->items[i];
        if ((p->is_preflight && !pass_preflight_keeps(h.name)) || is_ours(h.name) ||
            (span_equal_nocase(h.name, SPAN("content-encoding")) &&
             span_equal_nocase(h.value, SPAN("aws-chunked")))) {
            continue;
        }
        if (copy_span(arena, &h.name) && copy_span(arena, &h.value)) {
            (void)!headers_add(&p->answered, arena, h.name, h.value); // a full table drops the rest
        }
    }
}

static enum http_pull pull(struct http_source *source, struct http_slice *ret_slice)
{
    struct pass_state *p = as_pass(container_of(source, struct pass_state, source));
    uint64_t held = pass_changes_any(p) && !p->end_released ? 1 : 0;
    if (p->down.bytes > held) {
        byte_queue_slice(&p->down, p->down.bytes - held, ret_slice);
        if (byte_queue_low(&p->down)) {
            relay_resume(p);
        }
        return HTTP_PULL_SLICE;
    }
    if (p->relay_phase != RELAY_ENDED || held > 0) {
        return HTTP_PULL_WAIT;
    }
    bool is_whole =
        p->relay_err == ERR_OK || (p->relay.has_length && p->received_bytes == p->relay.length);
    return is_whole && p->err == ERR_OK ? HTTP_PULL_END : HTTP_PULL_CUT;
}

static bool answer_is_bodiless(const struct pass_state *p)
{
    return span_equal(p->relay.method, SPAN("HEAD")) || p->relay.status == 204 ||
           p->relay.status == 304 || (p->relay.has_length && p->relay.length == 0);
}

void pass_reply_start(struct pass_state *p)
{
    struct request *r = p->request;
    check(!p->is_answered);
    p->is_answered = true;
    struct headers *headers = arena_alloc(r->arena, sizeof(*headers));
    if (headers != NULL) {
        request_common_headers(r, headers); // first: the sandbox is not for an object to push out
        for (unsigned i = 0; i < p->answered.count; i++) {
            (void)!headers_add(headers, r->arena, p->answered.items[i].name,
                               p->answered.items[i].value); // as many as there is room for
        }
    }
    r->status = p->relay.status;
    r->step = REQUEST_WAIT;
    struct http_reply reply = {
        .status = p->relay.status,
        .reason = s3_status_reason(p->relay.status),
        .headers = headers,
        .has_length = p->relay.has_length && !p->location.is_used,
        .length = p->relay.length,
        .no_length = p->relay.status == 204 || p->relay.status == 304,
        .close = p->body_dropped, // the rest of the request's body is on its way
    };
    if (!answer_is_bodiless(p)) {
        p->source.pull = pull;
        reply.source = &p->source;
    }
    http_reply_start(r->x, &reply);
}

// Statuses that would end a client's whole run are told as what they mean.
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
        return p->relay.status == 200 && !answer_is_bodiless(p);
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

static enum err on_head(struct origin_relay *relay)
{
    struct pass_state *p = as_pass(relay->ctx);
    if (p->err != ERR_OK || p->relay_cancelled) {
        return ERR_OK;
    }
    if (succeeds_too_early(p)) {
        pass_refuse(p, ERR_ORIGIN_PROTOCOL, (struct span){NULL, 0});
        return ERR_OK;
    }
    if (status_is_gateway_failure(relay->status)) {
        pass_refuse(p, ERR_ORIGIN_5XX, (struct span){NULL, 0});
        return ERR_OK;
    }
    if (p->is_preflight && !pass_preflight_is_yes(p)) {
        pass_refuse(p, ERR_ACCESS_DENIED, SPAN("This CORS request is not allowed by the bucket"));
        return ERR_OK;
    }
    p->head_came = true;
    p->is_streamed = pass_changes_any(p) && answers_early(p);
    if (relay->status >= 300 && p->body.taken < p->body.length) {
        pass_upload_drop(p);
        pass_upload_wake(p);
    }
    if (p->request == NULL) {
        if (!p->is_streamed && !answer_is_bodiless(p)) {
            relay_cancel(p);
        }
        pass_settle(p);
        return ERR_OK;
    }
    p->request->origin_us = clock_monotonic_us() - p->relay_started_us;
    take_headers(p);
    pass_location_begin(p);
    if (!pass_changes_any(p) || p->is_streamed) {
        pass_reply_start(p);
    } else {
        pass_settle(p);
    }
    return ERR_OK;
}

static void list_fill_end(struct pass_state *p, bool is_good)
{
    if (is_good) {
        list_fill_commit(p->list_fill, &p->answered);
    } else {
        list_fill_abort(p->list_fill);
    }
    p->list_fill = NULL;
}

void pass_take_body(struct pass_state *p, struct span data)
{
    p->received_bytes += data.len;
    if (p->request == NULL || !p->head_came) {
        return;
    }
    p->request->bytes_origin += data.len;
    if (p->location.is_open) {
        pass_location_take(p, data);
    } else {
        byte_queue_append(&p->down, data);
    }
    if (p->list_fill != NULL) {
        list_fill_append(p->list_fill, data);
        if (p->relay.has_length && p->received_bytes == p->relay.length) {
            list_fill_end(p, p->relay.status == 200);
        }
    }
    if (byte_queue_full(&p->down) && !p->relay_paused) {
        relay_pause(p);
    }
    if (p->is_answered) {
        http_reply_ready(p->request->x);
    }
}

static enum err on_body(struct origin_relay *relay, struct span data)
{
    pass_take_body(as_pass(relay->ctx), data);
    return ERR_OK;
}

static void on_relay_end(struct origin_relay *relay, enum err err)
{
    struct pass_state *p = as_pass(relay->ctx);
    check(p->relay_phase == RELAY_RUNNING);
    p->relay_phase = RELAY_ENDED;
    p->relay_err = err;
    p->relay_paused = false;
    pass_location_end(p);
    list_fill_end(p, err == ERR_OK && p->relay.status == 200 && p->head_came);
    pass_settle(p);
    if (p->request != NULL && p->is_answered && p->head_came) {
        http_reply_ready(p->request->x);
    }
}

// Who else is answered with the page has sent other headers. The way the request came is not a
// matter of its answer; without it a circle would not be seen.
static void keep_way_only(struct headers *headers)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < headers->count; i++) {
        if (span_equal_nocase(headers->items[i].name, SPAN("Via"))) {
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
    relay->bucket = arena_copy(p->arena, r->origin_bucket);
    relay->headers = &p->headers;
    relay->body = p->body.kind;
    relay->body_length = p->body.length;
    relay->payload_hash = p->body.payload_hash;
    relay->credentials = request_origin_credentials(r);
    relay->is_unsigned = p->form_is_signed || p->is_sts || p->is_preflight;
    relay->on_upload = p->body.kind != ORIGIN_BODY_NONE ? on_upload : NULL;
    relay->on_head = on_head;
    relay->on_body = on_body;
    relay->on_end = on_relay_end;
    relay->ctx = p;
    p->list_fill = list_cache_begin(p->pw, r);
    if (p->list_fill != NULL) {
        keep_way_only(&p->headers);
    }
    p->relay_phase = RELAY_RUNNING;
    p->relay_started_us = clock_monotonic_us();
    r->attempts = 1;
    origin_relay_start(p->pw->worker, r->origin, relay);
}

// --- from what is known to the answer ------------------------------------------------------------

static unsigned writes_total(const struct pass_state *p)
{
    return p->write_count + (p->changes_bucket ? 1 : 0);
}

static void on_one_ready(struct pass_state *p)
{
    check(p->write_phase == WRITES_STARTING);
    if (++p->writes_ready < writes_total(p)) {
        return;
    }
    p->write_phase = WRITES_READY;
    if (p->err == ERR_OK && p->request != NULL) {
        relay_start(p);
    } else {
        pass_settle(p);
    }
}

static void on_one_ended(struct pass_state *p)
{
    check(p->write_phase == WRITES_CLOSING);
    if (++p->writes_ended == writes_total(p) + p->late_count) {
        p->write_phase = WRITES_ENDED;
        stats_sub(COUNTER_writes_inflight, 1);
        pass_settle(p);
    }
}

static void on_bucket_ready(struct bucket_write *bw)
{
    struct pass_state *p = as_pass(bw->ctx);
    if (bw->err != ERR_OK) {
        pass_refuse(p, ERR_LIMIT,
                    SPAN("What this request may change could not be noted in the cache directory"));
    }
    on_one_ready(p);
}

static void on_bucket_ended(struct bucket_write *bw)
{
    on_one_ended(as_pass(bw->ctx));
}

// All that can be found out here is: open the writes, or ask the origin at once.
void pass_begin(struct pass_state *p)
{
    if (!pass_changes_any(p)) {
        relay_start(p);
        return;
    }
    p->write_phase = WRITES_STARTING;
    stats_add(COUNTER_writes_inflight, 1);
    if (p->changes_bucket) {
        p->bucket_write.ctx = p;
        p->bucket_write.on_ready = on_bucket_ready;
        p->bucket_write.on_ended = on_bucket_ended;
        invalidate_bucket_begin(p->pw, &p->bucket_write, p->request->origin,
                                p->request->origin_bucket);
    }
    for (unsigned i = 0; i < p->write_count; i++) {
        invalidate_begin(p->pw, &p->writes[i]);
    }
}

void pass_on_write_ready(struct key_write *kw)
{
    on_one_ready(as_pass(kw->ctx));
}

void pass_on_write_ended(struct key_write *kw)
{
    on_one_ended(as_pass(kw->ctx));
}

static void answer(struct pass_state *p)
{
    struct request *r = p->request;
    if (r == NULL) {
        maybe_free(p);
        return;
    }
    p->end_released = true;
    if (p->is_refused) {
        return;
    }
    if (p->is_answered) {
        if (p->err != ERR_OK) {
            http_reply_cut(r->x);
        } else {
            http_reply_ready(r->x);
        }
        return;
    }
    if (p->err == ERR_OK && p->head_came) {
        pass_reply_start(p);
        return;
    }
    enum err err = p->err != ERR_OK ? p->err : p->relay_err;
    struct s3_error_detail detail = {.message = p->err_message};
    p->is_answered = p->is_refused = true;
    p->head_came = false;
    (void)request_fail(r, err != ERR_OK ? err : ERR_ORIGIN_PROTOCOL, &detail);
}

// Is the outcome known? Then every write is closed, and then the client is answered. Called
// whenever something changed.
void pass_settle(struct pass_state *p)
{
    bool is_known = p->relay_phase == RELAY_ENDED ||
                    (p->relay_phase == RELAY_NONE && (p->err != ERR_OK || p->request == NULL)) ||
                    (p->head_came && !p->is_streamed && p->err == ERR_OK && pass_changes_any(p));
    if (!is_known) {
        return;
    }
    switch (p->write_phase) {
    case WRITES_READY:
        p->write_phase = WRITES_CLOSING;
        pass_keys_of_new_realms(p);
        for (unsigned i = 0; i < p->late_count; i++) {
            invalidate_begin(p->pw, &p->late_writes[i]);
        }
        for (unsigned i = 0; i < p->write_count; i++) {
            invalidate_end(p->pw, &p->writes[i]);
        }
        if (p->changes_bucket) {
            invalidate_bucket_end(p->pw, &p->bucket_write);
        }
        break;
    case WRITES_NONE:
    case WRITES_ENDED:
        answer(p);
        break;
    case WRITES_STARTING:
    case WRITES_CLOSING:
        break;
    }
}

// --- start ---------------------------------------------------------------------------------------

static const struct proxy_bucket *bucket_find(const struct proxy *proxy, struct span name)
{
    for (unsigned i = 0; i < proxy->options.bucket_count; i++) {
        if (span_equal_cstr(name, proxy->buckets[i].name)) {
            return &proxy->buckets[i];
        }
    }
    return NULL;
}

// The header, as the judge has read it, instead of whatever stood in the header or the query.
static enum err send_source(struct pass_state *p, const char *name, const struct s3_source *source,
                            struct span origin_bucket)
{
    struct buf out;
    buf_init(&out, 8192);
    s3_source_render(source, origin_bucket, &out);
    struct span value =
        buf_ok(&out) ? arena_copy(p->arena, buf_span(&out)) : (struct span){NULL, 0};
    buf_done(&out);
    headers_remove(&p->headers, span_from_cstr(name));
    return value.ptr != NULL && headers_add(&p->headers, p->arena, span_from_cstr(name), value)
               ? ERR_OK
               : ERR_NO_MEMORY;
}

// A source that stood in the query goes on as a header; so does what the query says more of it.
static enum err move_source_params(struct pass_state *p)
{
    struct s3_request *s3 = &p->s3;
    enum err err = ERR_OK;
    unsigned kept = 0;
    for (unsigned i = 0; i < s3->param_count; i++) {
        const struct s3_param *param = &s3->params[i];
        if (s3_name_is_of_source(param->name)) {
            if (!header_name_is_token(param->name) || !header_value_is_clean(param->value)) {
                err = ERR_INVALID_ARGUMENT;
            } else if (!headers_add(&p->headers, p->arena, param->name, param->value)) {
                err = ERR_NO_MEMORY;
            }
        } else if (!s3_name_is_source(param->name)) {
            s3->params[kept++] = *param;
        }
    }
    s3->param_count = kept;
    return err;
}

// Sources name a bucket as clients know it; the origin may know it by another name.
static enum err send_sources(struct pass_state *p, struct span *ret_message)
{
    struct request *r = p->request;
    struct proxy *proxy = p->pw->proxy;
    const struct s3_source *copy = &r->effects.copy, *rename = &r->effects.rename;
    enum err err = ERR_OK;
    if (copy->is_understood) {
        const struct proxy_bucket *found = bucket_find(proxy, copy->bucket);
        struct origin *origin = found != NULL ? found->origin : proxy->options.default_origin;
        if (origin != r->origin) {
            *ret_message = SPAN("The copy's source and destination are at different origins");
            return ERR_NOT_IMPLEMENTED;
        }
        err = send_source(p, "x-amz-copy-source", copy,
                          found != NULL ? span_from_cstr(found->origin_bucket) : copy->bucket);
    }
    if (err == ERR_OK && rename->is_understood) {
        err = send_source(p, "x-amz-rename-source", rename, r->origin_bucket);
    }
    return err == ERR_OK && (copy->is_understood || rename->is_understood) ? move_source_params(p)
                                                                           : err;
}

static enum err plan(struct pass_state *p, struct span *ret_message)
{
    struct request *r = p->request;
    if (!copy_request(p->arena, &r->s3, &p->s3) ||
        !copy_headers(p->arena, &r->http->headers, &p->headers)) {
        return ERR_NO_MEMORY;
    }
    enum err err = send_sources(p, ret_message);
    if (err != ERR_OK) {
        return err;
    }
    struct pass_body_input input = {
        .http = r->http,
        .s3 = &r->s3,
        .claim = r->principal.verified ? &r->principal.claim : NULL,
        .signing_key = r->principal.signing_key,
        .want_whole =
            r->s3.operation == S3_DeleteObjects || r->s3.operation == S3_RestoreObject || p->is_sts,
    };
    err = pass_body_plan(&p->body, &input, p->arena, &p->headers);
    if (err == ERR_OK) {
        err = pass_keys_of_head(p);
    }
    p->find_form_key = r->s3.operation == S3_PostObject;
    return err;
}

static enum step_result serve_list_page(struct request *r, struct list_page *page)
{
    struct pass_state *p = pass_new(r);
    p->list_page = page;
    r->pass = p;
    struct span body = list_page_body(page);
    r->result = RESULT_HIT;
    r->reason = NULL;
    r->bytes_memory = body.len;
    r->status = 200;
    p->is_answered = true;
    struct headers *headers = arena_alloc(r->arena, sizeof(*headers));
    if (headers != NULL) {
        const struct headers *kept = list_page_headers(page);
        request_common_headers(r, headers);
        for (unsigned i = 0; i < kept->count; i++) {
            (void)!headers_add(headers, r->arena, kept->items[i].name, kept->items[i].value);
        }
    }
    struct http_reply reply = {.status = 200,
                               .reason = s3_status_reason(200),
                               .headers = headers,
                               .has_length = true,
                               .length = body.len,
                               .body = body};
    r->step = REQUEST_WAIT;
    http_reply_start(r->x, &reply);
    return STEP_DONE;
}

enum step_result serve_pass_step_start(struct request *r)
{
    check(r->pass == NULL);
    struct s3_error_detail detail = {0};
    enum err err;
    r->result = RESULT_BYPASS;
    if ((r->s3.flags & S3_OP_READ) == 0) {
        r->reason = NULL; // a write has no reason but being one
    }
    bool is_sts = pass_sts_wanted(r);
    if (is_sts) {
        r->origin = r->pw->proxy->options.sts_origin;
    }
    if (r->origin == NULL) {
        return request_fail(r, r->s3.bucket.len > 0 ? ERR_NO_SUCH_BUCKET : ERR_NOT_IMPLEMENTED,
                            NULL);
    }
    if (r->s3.bucket.len == 0 && (r->s3.flags & S3_OP_READ) == 0 && !is_sts) {
        detail.message = SPAN("This is no S3 operation. Calls to other services arrive here when "
                              "AWS_ENDPOINT_URL is set: set AWS_ENDPOINT_URL_S3 instead");
        return request_fail(r, ERR_NOT_IMPLEMENTED, &detail);
    }
    if (pass_direct_wanted(r)) {
        struct pass_state *direct = pass_new(r);
        r->pass = direct;
        err = pass_direct_start(direct);
        if (err != ERR_OK) {
            return request_fail(r, err, NULL);
        }
        return STEP_WAIT;
    }
    struct list_page *page = list_cache_find(r->pw, r);
    if (page != NULL) {
        return serve_list_page(r, page);
    }
    struct pass_state *p = pass_new(r);
    p->is_sts = is_sts;
    err = plan(p, &detail.message);
    if (err == ERR_OK && pass_preflight_wanted(r)) {
        err = pass_preflight_plan(p);
    }
    if (err == ERR_OK && p->find_form_key && !r->http->has_body) {
        err = ERR_INVALID_ARGUMENT;
    }
    if (err == ERR_OK && r->s3.operation == S3_DeleteObjects && !r->http->has_body) {
        err = ERR_MALFORMED_XML;
    }
    if (err != ERR_OK) {
        pass_free(p);
        return request_fail(r, err, &detail);
    }
    r->pass = p;
    bool has_body = p->body.collect || p->body.kind != ORIGIN_BODY_NONE;
    if (!p->body.collect && !p->find_form_key) {
        pass_begin(p);
    }
    if (has_body) {
        pass_upload_start(p);
    }
    return STEP_WAIT;
}

void serve_pass_done(struct request *r)
{
    struct pass_state *p = r->pass;
    if (p == NULL) {
        return;
    }
    as_pass(p);
    r->pass = NULL;
    list_fill_end(p, false);
    bool has_answer =
        p->head_came &&
        (answer_is_bodiless(p) || (p->relay.has_length && p->received_bytes == p->relay.length));
    p->request = NULL;
    byte_queue_done(&p->down);
    if (p->relay_phase == RELAY_RUNNING) {
        bool has_left = p->body.taken == p->body.length;
        bool is_known = p->head_came && !p->is_streamed; // nobody reads what else is said of it
        if (has_answer || (pass_changes_any(p) && has_left && p->err == ERR_OK && !is_known)) {
            relay_resume(p);
        } else {
            relay_cancel(p);
        }
    }
    pass_settle(p);
    maybe_free(p);
}
