// SPDX-License-Identifier: Apache-2.0
// Decides which listings may be answered from kept pages, and names them. Listings with the same
// name may share one answer of the origin. A page must fit every client, so it is fetched without
// the client's headers, except for the few that are part of its name. On the request's worker.
#include "proxy/pass/pass_private.h"

#include <stdatomic.h>

// Headers that select another answer, say who pays for it, or decide whether it is refused.
static const char *const SELECTING[] = {"x-amz-expected-bucket-owner",
                                        "x-amz-optional-object-attributes", "x-amz-request-payer"};

bool list_question_has(struct span header_name)
{
    for (size_t i = 0; i < ARRAY_LEN(SELECTING); i++) {
        if (span_equal_nocase(header_name, span_from_cstr(SELECTING[i]))) {
            return true;
        }
    }
    return false;
}

// Returns true if the header cannot prevent a kept page. A request with any other header is passed
// through with that header, and its answer is not kept.
static bool header_is_known(struct span name)
{
    if (span_starts_with_nocase(name, SPAN("x-amz-"))) {
        return s3_header_is_neutral(name) || list_question_has(name);
    }
    return !span_starts_with_nocase(name, SPAN("if-")) && !span_equal_nocase(name, SPAN("range")) &&
           !span_equal_nocase(name, SPAN("origin"));
}

// While the outcome of a write is unknown, a page that contains its key may become wrong at any
// time.
static bool may_change_silently(const struct request *r)
{
    return atomic_load(&r->pw->proxy->doubt_count) > 0 ||
           fill_is_doubted(r->pw->store, r->origin, r->origin_bucket, 0);
}

static bool may_be_kept(const struct request *r)
{
    if ((r->s3.flags & S3_OP_LISTING) == 0 || r->rule == NULL || r->rule->list_ttl_ms == 0 ||
        r->s3.presigned || !span_equal(r->http->method, SPAN("GET")) || may_change_silently(r)) {
        return false;
    }
    for (unsigned i = 0; i < r->http->headers.count; i++) {
        if (!header_is_known(r->http->headers.items[i].name)) {
            return false;
        }
    }
    return true;
}

// Appends each selecting header with the length of its value. Returns NULL if memory is short, or
// if such a header occurs twice.
static const char *name_headers(const struct request *r, const char *name)
{
    for (unsigned i = 0; i < ARRAY_LEN(SELECTING) && name != NULL; i++) {
        struct span value;
        unsigned count = headers_find(&r->http->headers, span_from_cstr(SELECTING[i]), &value);
        if (count == 1) {
            name = arena_printf(r->arena, "%s %u %zu %.*s", name, i, value.len, (int)value.len,
                                value.ptr);
        } else if (count > 1) {
            return NULL;
        }
    }
    return name;
}

// The name consists of the principal, its realm, the bucket, the bucket's origin and its name
// there, its epoch, headers and query. Lengths are included, so that different listings have
// different names. The origin and the bucket's name there are included because a reload may move
// the bucket. The address of an origin identifies it, because origins are freed after pages.
struct span list_question_name(const struct request *r)
{
    struct span query;
    if (!may_be_kept(r) ||
        sigv4_canonical_query(r->arena, r->s3.raw_query, false, &query) != ERR_OK) {
        return (struct span){NULL, 0};
    }
    struct span realm = request_realm(r);
    const char *name = arena_printf(
        r->arena, "%zu %zu %zu %.*s %.*s %.*s %p %zu %.*s %llx", r->principal.name.len, realm.len,
        r->s3.bucket.len, (int)r->principal.name.len, r->principal.name.ptr, (int)realm.len,
        realm.len > 0 ? realm.ptr : "", (int)r->s3.bucket.len, r->s3.bucket.ptr,
        (const void *)r->origin, r->origin_bucket.len, (int)r->origin_bucket.len,
        r->origin_bucket.ptr, (unsigned long long)request_epoch(r));
    name = name_headers(r, name);
    if (name != NULL) {
        name = arena_printf(r->arena, "%s q %.*s", name, (int)query.len,
                            query.len > 0 ? query.ptr : "");
    }
    return name != NULL ? span_from_cstr(name) : (struct span){NULL, 0};
}
