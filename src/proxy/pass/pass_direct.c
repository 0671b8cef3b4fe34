// SPDX-License-Identifier: Apache-2.0
// Reads objects without the cache from an origin that cannot relay requests (a directory), for
// example under a rule `cache: false` or with no-store. First a HEAD fixes the version. Forebay
// judges conditions and range on it as on a hit, then fetches the range with If-Match and streams
// it. Nothing is stored. On the request's worker, in the sequence of serve_pass.c. p->relay is used
// here only to hold the answer.
//
// If the client of a relayed object is slow, the rest of that object is read in the same way.
#include "proxy/pass/pass_private.h"

#include <string.h>

bool pass_direct_wanted(const struct request *r)
{
    return !origin_capabilities(r->origin)->relays_reads &&
           (r->s3.operation == S3_GetObject || r->s3.operation == S3_HeadObject);
}

static enum err refuse(struct pass_state *p, enum err err, struct s3_error_detail *detail)
{
    check(err != ERR_OK);
    check(p->call.phase == CALL_ENDED);
    pass_enter_answer(p, ANSWER_REFUSED);
    (void)request_fail(p->request, err, detail);
    return err;
}

static void start_answer(struct pass_state *p)
{
    check(p->request != NULL);
    check(p->call.kind != PASS_BY_RELAY);
    pass_enter_answer(p, ANSWER_HEAD);
    if (!pass_version_tell(p)) {
        pass_answer_start(p);
    }
}

static enum err on_head(struct origin_fetch *f)
{
    struct pass_state *p = as_pass(f->ctx);
    check(f == &p->direct.fetch);
    check(pass_calls(p) && p->call.kind != PASS_BY_RELAY);
    struct request *r = p->request;
    if (r == NULL) {
        return ERR_OK;
    }
    if (p->call.kind == PASS_BY_RANGE) {
        if (p->answer == ANSWER_NONE) {
            p->call.may_park = true;
            start_answer(p);
        }
        return ERR_OK;
    }
    p->direct.size_bytes = f->size_bytes;
    p->direct.last_modified = f->last_modified;
    p->direct.etag = f->etag;
    if (!pass_state_copy_span(p->arena, &p->direct.etag)) {
        return ERR_NO_MEMORY;
    }
    for (unsigned i = 0; i < f->headers.count; i++) {
        struct header h = f->headers.items[i];
        if (!pass_state_copy_span(r->arena, &h.name) || !pass_state_copy_span(r->arena, &h.value) ||
            !headers_add(&p->answered, r->arena, h.name, h.value)) {
            return ERR_NO_MEMORY;
        }
    }
    return ERR_OK;
}

static enum err on_body(struct origin_fetch *f, struct span data)
{
    pass_answer_take(as_pass(f->ctx), data);
    return ERR_OK;
}

// Judges the conditions, then the range, as on a hit. ERR_OK: p->relay describes the answer.
static enum err judge(struct pass_state *p)
{
    check(p->call.kind == PASS_BY_HEAD);
    check(p->call.phase == CALL_ENDED);
    struct request *r = p->request;
    struct direct_read *d = &p->direct;
    struct http_conditions conditions;
    struct span value;
    http_conditions_parse(&r->http->headers, &conditions);
    switch (http_conditions_evaluate(&conditions, d->etag, d->last_modified)) {
    case HTTP_CONDITION_NOT_MODIFIED:
        p->relay.status = 304;
        return ERR_OK;
    case HTTP_CONDITION_FAILED: {
        struct s3_error_detail detail = {.condition = span_from_cstr(conditions.failed)};
        return refuse(p, ERR_PRECONDITION_FAILED, &detail);
    }
    case HTTP_CONDITION_PASS:
        break;
    }
    p->relay.status = 200;
    d->first = 0;
    d->last = d->size_bytes - 1; // wraps around for an empty object, which does not use it
    if (r->s3.has_part_number) {
        if (r->s3.part_number != 1) {
            return refuse(p, ERR_INVALID_PART_NUMBER, NULL);
        }
        p->relay.status = d->size_bytes > 0 ? 206 : 200;
    } else if (headers_get(&r->http->headers, SPAN("Range"), &value) &&
               http_if_range_holds(&conditions, d->etag)) {
        struct http_range range;
        http_range_parse(value, &range);
        switch (http_range_resolve(&range, d->size_bytes, &d->first, &d->last)) {
        case HTTP_RANGE_WHOLE:
            d->first = 0;
            d->last = d->size_bytes - 1;
            break;
        case HTTP_RANGE_PARTIAL:
            p->relay.status = 206;
            break;
        case HTTP_RANGE_UNSATISFIABLE: {
            struct s3_error_detail detail = {.range_requested = value,
                                             .has_actual_object_size = true,
                                             .actual_object_size = d->size_bytes};
            return refuse(p, ERR_INVALID_RANGE, &detail);
        }
        }
    }
    p->relay.has_length = true;
    check(d->size_bytes == 0 || d->first <= d->last);
    check(d->size_bytes == 0 || d->last < d->size_bytes);
    p->relay.length = d->size_bytes > 0 ? d->last - d->first + 1 : 0;
    return ERR_OK;
}

static void described(struct pass_state *p)
{
    check(p->answer == ANSWER_NONE);
    struct request *r = p->request;
    if (judge(p) != ERR_OK) {
        return;
    }
    if (p->relay.status != 304) {
        request_header(r, &p->answered, "Accept-Ranges", SPAN("bytes"));
        if (p->relay.status == 206) {
            char *range = arena_printf(
                r->arena, "bytes %llu-%llu/%llu", (unsigned long long)p->direct.first,
                (unsigned long long)p->direct.last, (unsigned long long)p->direct.size_bytes);
            request_header(r, &p->answered, "Content-Range", span_from_cstr(range));
        }
        response_overrides_apply(r, &p->answered);
    }
    r->object_size_bytes = p->direct.size_bytes;
    if (p->relay.status != 304 && !r->http->is_head && p->relay.length > 0) {
        p->call.kind = PASS_BY_RANGE;
        pass_origin_fetch(p);
        return;
    }
    start_answer(p);
}

static void on_end(struct origin_fetch *f, enum err err)
{
    struct pass_state *p = as_pass(f->ctx);
    check(p->call.kind != PASS_BY_RELAY);
    // If the object changed between the two calls, no condition of the client has failed.
    err = err == ERR_ORIGIN_CHANGED ? ERR_ORIGIN_BUSY : err;
    if (!pass_origin_end(p, err)) {
        return;
    }
    if (p->request != NULL) {
        p->request->origin_us += clock_monotonic_us() - p->call.started_us;
    }
    if (p->request != NULL && err == ERR_OK && p->call.kind == PASS_BY_HEAD) {
        described(p);
    } else if (p->request != NULL && err == ERR_NO_SUCH_KEY) {
        p->relay.status = error_row(err)->status;
        if (p->answer == ANSWER_NONE) {
            (void)pass_version_tell(p); // if true, on_told() continues
        }
    }
    pass_go(p);
}

static void fetch_init(struct origin_fetch *f, struct span bucket, struct span key)
{
    check(f->on_end == NULL);
    f->bucket = bucket;
    f->key = key;
    f->on_head = on_head;
    f->on_body = on_body;
    f->on_end = on_end;
}

void pass_direct_may_follow(struct pass_state *p)
{
    check(p->call.kind == PASS_BY_RELAY);
    check(p->answer != ANSWER_NONE);
    check(!p->call.may_park);
    struct direct_read *d = &p->direct;
    d->etag = p->relay.part_etag;
    // The rest is requested by key and range only, like a run. So nothing else in the request may
    // select the answer. A part number may, because a part is a range.
    bool is_plain =
        p->s3.operation == S3_GetObject &&
        (p->s3.bypass_reason == NULL || strcmp(p->s3.bypass_reason, "part-number") == 0);
    if (!is_plain || d->etag.len == 0 || !pass_state_copy_span(p->arena, &d->etag)) {
        return;
    }
    fetch_init(&d->fetch, p->relay.bucket, p->s3.key);
    d->first = p->relay.part_first;
    d->last = d->first + p->relay.length - 1;
    p->call.may_park = true;
}

enum err pass_direct_plan(struct pass_state *p)
{
    check(p->phase == PASS_READ);
    check(!pass_changes_any(p));
    struct request *r = p->request;
    if (r->s3.has_version_id) {
        return ERR_NOT_IMPLEMENTED; // a directory has no versions
    }
    enum err err = response_overrides_judge(r, &p->err_message);
    if (err != ERR_OK) {
        return err;
    }
    struct span bucket = r->origin_bucket, key = r->s3.key;
    if (!pass_state_copy_span(p->arena, &bucket) || !pass_state_copy_span(p->arena, &key)) {
        return ERR_NO_MEMORY;
    }
    fetch_init(&p->direct.fetch, bucket, key);
    p->relay.method = r->http->method;
    p->call.kind = PASS_BY_HEAD;
    return ERR_OK;
}
