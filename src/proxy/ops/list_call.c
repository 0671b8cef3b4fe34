// SPDX-License-Identifier: Apache-2.0
// Fetches one page of a bucket's listing from the origin for Forebay itself: keys, sizes and ETags.
// It runs on one worker, and parses the page when it is complete. A page longer than BODY_MAX is an
// error. A call requests so few keys that no page should be that long. The memory is charged to
// BUDGET_WARM.
#include "proxy/ops/inspect_private.h"

#include <string.h>

#define BODY_MAX (4u << 20)
#define ARENA_MAX (8u << 20)

static struct list_call *call_of(struct origin_relay *relay)
{
    return container_of(relay, struct list_call, relay);
}

// --- reading it ----------------------------------------------------------------------------------

static void entry_end(struct list_call *call)
{
    check(call->count <= call->capacity);
    if (call->has_key && call->has_size && call->count < call->capacity) {
        call->entries[call->count++] = call->entry;
    } else if (call->has_key) {
        call->parse_err = ERR_ORIGIN_PROTOCOL;
    }
    call->has_key = call->has_size = call->has_etag = false;
    call->entry = (struct list_entry){0};
}

// Decodes a key, which the origin sends percent-encoded, with '+' for a blank.
static bool key_decode(struct list_call *call, struct span text, struct span *ret_key)
{
    char *bytes = arena_alloc(call->arena, text.len + 1);
    size_t len = 0;
    if (bytes == NULL) {
        return false;
    }
    for (size_t i = 0; i < text.len; i++) {
        bytes[i] = text.ptr[i] == '+' ? ' ' : text.ptr[i];
    }
    if (!span_uri_decode((struct span){bytes, text.len}, bytes, &len) || len > S3_KEY_MAX) {
        return false;
    }
    *ret_key = (struct span){bytes, len};
    return true;
}

static void on_leaf(void *ctx, const char *path, struct span text)
{
    struct list_call *call = ctx;
    static const char contents[] = "ListBucketResult/Contents/";
    bool ok = true;
    if (strcmp(path, "ListBucketResult/IsTruncated") == 0) {
        call->is_truncated = span_equal_cstr(text, "true");
    } else if (strcmp(path, "ListBucketResult/NextContinuationToken") == 0) {
        call->next = arena_copy(call->arena, text);
        ok = call->next.ptr != NULL;
    } else if (strncmp(path, contents, sizeof(contents) - 1) == 0) {
        const char *name = path + sizeof(contents) - 1;
        bool is_key = strcmp(name, "Key") == 0, is_size = strcmp(name, "Size") == 0;
        bool is_etag = strcmp(name, "ETag") == 0;
        if ((is_key && call->has_key) || (is_size && call->has_size) ||
            (is_etag && call->has_etag)) {
            entry_end(call); // the next entry begins
        }
        if (is_key) {
            ok = key_decode(call, text, &call->entry.key);
            call->has_key = true;
        } else if (is_size) {
            ok = span_to_u64(text, &call->entry.size_bytes);
            call->has_size = true;
        } else if (is_etag) {
            call->entry.etag_hash = hash64(text.ptr, text.len, 0);
            call->has_etag = true;
        }
    }
    call->parse_err = ok ? call->parse_err : ERR_ORIGIN_PROTOCOL;
}

static enum err read_page(struct list_call *call)
{
    call->parse_err = ERR_OK;
    enum err err = s3_xml_read(buf_span(&call->body), on_leaf, call);
    if (call->has_key) {
        entry_end(call);
    }
    if (!call->is_truncated) {
        call->next = (struct span){NULL, 0};
    } else if (call->next.len == 0 || span_equal(call->next, call->after)) {
        return ERR_ORIGIN_PROTOCOL; // the token is missing, or leads to this page again
    }
    return err != ERR_OK ? ERR_ORIGIN_PROTOCOL : call->parse_err;
}

static enum err read_error(const struct list_call *call)
{
    struct s3_error_body body = {0};
    if (s3_error_read(call->arena, buf_span(&call->body), &body) &&
        span_equal_cstr(body.code, "NoSuchBucket")) {
        return ERR_NO_SUCH_BUCKET;
    }
    switch (call->relay.status) {
    case 401:
    case 403:
        return ERR_ACCESS_DENIED;
    case 404:
        return ERR_NO_SUCH_BUCKET;
    default:
        return call->relay.status >= 500 ? ERR_ORIGIN_5XX : ERR_ORIGIN_UNFIT;
    }
}

// --- asking --------------------------------------------------------------------------------------

static enum err on_head(struct origin_relay *relay)
{
    (void)relay;
    return ERR_OK;
}

static enum err on_body(struct origin_relay *relay, struct span data)
{
    struct list_call *call = call_of(relay);
    buf_append_span(&call->body, data);
    return buf_ok(&call->body) ? ERR_OK : ERR_LIMIT;
}

static void on_end(struct origin_relay *relay, enum err err)
{
    struct list_call *call = call_of(relay);
    check(call->is_running && call->arena != NULL);
    call->is_running = false;
    call->err = err != ERR_OK ? err : relay->status == 200 ? read_page(call) : read_error(call);
    if (call->err != ERR_OK) {
        call->count = 0;
        call->next = (struct span){NULL, 0};
    }
    buf_done(&call->body);
    call->done(call);
}

static void on_refused(struct task *task)
{
    struct list_call *call = container_of(task, struct list_call, refusal);
    check(!call->is_running && call->err != ERR_OK && call->count == 0);
    buf_done(&call->body);
    call->done(call);
}

static struct span target_of(struct list_call *call, struct span bucket, struct span prefix,
                             struct span after, unsigned max)
{
    struct buf target;
    buf_init(&target, 16384);
    buf_append_char(&target, '/');
    buf_append_uri_encoded(&target, bucket, false);
    buf_printf(&target, "?list-type=2&encoding-type=url&max-keys=%u", max);
    if (prefix.len > 0) {
        buf_append_cstr(&target, "&prefix=");
        buf_append_uri_encoded(&target, prefix, false);
    }
    if (after.len > 0) {
        buf_append_cstr(&target, "&continuation-token=");
        buf_append_uri_encoded(&target, after, false);
    }
    struct span copy =
        buf_ok(&target) ? arena_copy(call->arena, buf_span(&target)) : (struct span){NULL, 0};
    buf_done(&target);
    return copy;
}

static void ask(struct list_call *call, struct span bucket)
{
    struct proxy_worker *pw = call->pw;
    check(!call->is_running);
    call->relay = (struct origin_relay){.request = &call->request,
                                        .method = SPAN("GET"),
                                        .headers = &call->headers,
                                        .body = ORIGIN_BODY_NONE,
                                        .client = (uint64_t)(uintptr_t)call,
                                        .on_head = on_head,
                                        .on_body = on_body,
                                        .on_end = on_end};
    struct origin *origin = live_find_origin(pw->proxy, pw->live, bucket, &call->relay.bucket);
    call->relay.bucket = arena_copy(call->arena, call->relay.bucket);
    check(call->relay.bucket.ptr != NULL);
    call->is_running = true;
    origin_relay_start(pw->worker, origin, &call->relay);
}

void list_call_start(struct proxy_worker *pw, struct list_call *call, struct span bucket,
                     struct span prefix, struct span after, unsigned max)
{
    static const struct s3_domains none = {0};
    check(call->done != NULL && max > 0 && max <= PROXY_LIST_MAX);
    check(!call->is_running && call->arena == NULL);
    check(bucket.len > 0);
    call->pw = pw;
    call->arena = arena_new_counted(ARENA_MAX, BUDGET_WARM);
    call->count = 0;
    call->capacity = max;
    call->next = (struct span){NULL, 0};
    call->is_truncated = call->has_key = call->has_size = call->has_etag = false;
    call->entries = arena_alloc(call->arena, max * sizeof(*call->entries));
    buf_init_counted(&call->body, BODY_MAX, BUDGET_WARM);
    call->headers = (struct headers){0};
    call->after = arena_copy(call->arena, after);
    struct span target = target_of(call, bucket, prefix, after, max);
    check(call->entries != NULL);
    worker_task_init(&call->refusal, on_refused);
    call->err = target.ptr == NULL
                    ? ERR_KEY_TOO_LONG
                    : s3_request_parse(call->arena, SPAN("GET"), SPAN("127.0.0.1"), target,
                                       &call->headers, &none, &call->request);
    if (call->err != ERR_OK) {
        worker_defer(pw->worker, &call->refusal);
        return;
    }
    ask(call, bucket);
}

void list_call_again(struct list_call *call, struct span bucket)
{
    check(call->err != ERR_OK && call->count == 0 && call->arena != NULL);
    buf_init_counted(&call->body, BODY_MAX, BUDGET_WARM);
    ask(call, bucket);
}

void list_call_cancel(struct list_call *call)
{
    if (call->is_running) {
        origin_relay_cancel(&call->relay);
    }
}

void list_call_release(struct list_call *call)
{
    check(!call->is_running);
    arena_free(call->arena);
    call->arena = NULL;
    call->entries = NULL;
    call->count = 0;
    call->next = (struct span){NULL, 0};
}
