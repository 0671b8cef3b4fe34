// SPDX-License-Identifier: Apache-2.0
// Builds one attempt of a call to an S3 origin: its URL, its headers and its signature.
#include "base/clock.h"
#include "origin/origin_s3_call_private.h"

static bool add(struct origin_s3_call *c, struct headers *headers, const char *name,
                struct span value)
{
    return headers_add(headers, c->call.arena, span_from_cstr(name), value);
}

static enum err build_fetch_headers(struct origin_s3_call *c, struct headers *headers)
{
    const struct origin_fetch *f = c->call.f;
    bool ok = add(c, headers, "User-Agent", SPAN("forebay/" FOREBAY_VERSION));
    if (c->form == S3_FORM_BY_BYTE) {
        ok = ok && add(c, headers, "Range", SPAN("bytes=0-0"));
    } else if (f->kind == ORIGIN_GET_RANGE) {
        const char *range =
            f->suffix > 0
                ? arena_printf(c->call.arena, "bytes=-%llu", (unsigned long long)f->suffix)
            : f->last == UINT64_MAX
                ? arena_printf(c->call.arena, "bytes=%llu-", (unsigned long long)f->first)
                : arena_printf(c->call.arena, "bytes=%llu-%llu", (unsigned long long)f->first,
                               (unsigned long long)f->last);
        ok = ok && range != NULL && add(c, headers, "Range", span_from_cstr(range));
    }
    if (f->if_match.len > 0 && !c->omits_if_match) {
        ok = ok && add(c, headers, "If-Match", f->if_match);
    }
    if (f->if_none_match.len > 0) {
        ok = ok && add(c, headers, "If-None-Match", f->if_none_match);
    }
    if (f->condition != NULL && f->condition->kind != ORIGIN_CONDITION_NONE) {
        ok = ok && add(c, headers, origin_condition_name(f->condition->kind),
                       span_from_cstr(f->condition->value));
    }
    if (f->wants_checksums != ORIGIN_CHECKSUMS_NONE) {
        ok = ok && add(c, headers, "x-amz-checksum-mode", SPAN("ENABLED"));
    }
    if (f->trace != NULL && f->trace->traceparent[0] != '\0') {
        ok = ok && add(c, headers, "traceparent", span_from_cstr(f->trace->traceparent));
    }
    if (f->trace != NULL && f->trace->request_id[0] != '\0') {
        ok = ok && add(c, headers, "x-request-id", span_from_cstr(f->trace->request_id));
    }
    return ok ? ERR_OK : ERR_NO_MEMORY;
}

// Adds Accept-Encoding; see origin_s3_unpacks(). It is not signed, because proxies change it.
static bool add_accept_encoding(struct origin_s3_call *c, struct headers *headers)
{
    enum s3_operation operation = c->call.r != NULL ? c->call.r->request->operation : S3_Unknown;
    bool is_read =
        c->phase != S3_PHASE_LOOK && (operation == S3_GetObject || operation == S3_HeadObject);
    bool has_own = false, ok = true;
    for (unsigned i = 0; is_read && ok && i < c->call.r->headers->count; i++) {
        const struct header *h = &c->call.r->headers->items[i];
        if (span_equal_nocase(h->name, SPAN("Accept-Encoding")) && h->value.len > 0) {
            has_own = true;
            ok = add(c, headers, "Accept-Encoding", h->value);
        }
    }
    if (!has_own) {
        bool for_store = c->call.f != NULL && origin_s3_unpacks(c->call.ow);
        ok = add(c, headers, "Accept-Encoding", for_store ? SPAN("gzip") : SPAN("identity"));
    }
    return ok;
}

static struct span payload_hash_of(const struct origin_s3_call *c)
{
    if (c->call.r == NULL || c->phase == S3_PHASE_LOOK) {
        return SPAN(SIGV4_EMPTY_SHA256);
    }
    switch (c->call.r->body) {
    case ORIGIN_BODY_HASH:
        return c->call.r->payload_hash;
    case ORIGIN_BODY_UNSIGNED:
        return SPAN(SIGV4_UNSIGNED_PAYLOAD);
    case ORIGIN_BODY_UNSIGNED_TRAILER:
        return SPAN("STREAMING-UNSIGNED-PAYLOAD-TRAILER");
    case ORIGIN_BODY_NONE:
        break;
    }
    return SPAN(SIGV4_EMPTY_SHA256);
}

static enum err sign(struct origin_s3_call *c, const struct origin_s3_url *url,
                     struct headers *headers)
{
    const struct sigv4_credentials *keys = origin_s3_call_own_keys(c);
    struct span hash = payload_hash_of(c);
    bool is_anonymous = c->is_presigned || (keys == NULL && c->set->is_anonymous) ||
                        (c->phase != S3_PHASE_LOOK && c->call.r != NULL && c->call.r->is_unsigned);
    // An unsigned request has x-amz-content-sha256 only to announce a body that is aws-chunked.
    bool ok = true;
    if (!is_anonymous || (c->phase != S3_PHASE_LOOK && c->call.r != NULL &&
                          c->call.r->body == ORIGIN_BODY_UNSIGNED_TRAILER)) {
        ok = add(c, headers, "x-amz-content-sha256", hash);
    }
    if (!ok) {
        return ERR_NO_MEMORY;
    }
    if (is_anonymous) {
        return ERR_OK;
    }
    if (c->call.ow->origin->options.requester_pays &&
        headers_count(headers, SPAN("x-amz-request-payer")) == 0 &&
        !add(c, headers, "x-amz-request-payer", SPAN("requester"))) {
        return ERR_NO_MEMORY;
    }
    struct sigv4_scope scope = {.region = c->region, .service = SPAN("s3")};
    c->signed_skew_s = atomic_load(&origin_s3_state_of(c->call.ow)->clock_skew_s);
    time_t now = (time_t)(clock_wall_s() + c->signed_skew_s);
    return sigv4_sign(c->call.arena, keys != NULL ? keys : &c->set->keys, &scope, now,
                      c->phase == S3_PHASE_LOOK ? SPAN("HEAD") : origin_s3_call_method(c),
                      url->path, url->query, headers, hash, NULL);
}

// Builds the URL of this attempt, and stores its region and host in the call.
static enum err build_url(struct origin_s3_call *c, struct origin_s3_url *ret_url)
{
    struct origin_worker *ow = c->call.ow;
    const struct origin_s3_endpoint *endpoint = &origin_s3_state_of(ow)->endpoint;
    struct span key = {NULL, 0}, query = {NULL, 0};
    bool known = false;
    enum err err = ERR_OK;
    if (endpoint->is_aws && span_ends_with(origin_s3_call_bucket(c), SPAN("--x-s3"))) {
        return ERR_ORIGIN_EXPRESS; // it wants a session, another host and another signature
    }
    c->region =
        arena_copy(c->call.arena, origin_s3_region_of(ow, origin_s3_call_bucket(c), &known));
    if (c->region.ptr == NULL) {
        return ERR_NO_MEMORY;
    }
    c->is_presigned = false;
    if (c->phase != S3_PHASE_LOOK) {
        key = origin_s3_call_key(c);
    }
    if (c->call.r != NULL && c->phase != S3_PHASE_LOOK) {
        err = origin_s3_query_forward(c->call.arena, c->call.r->request, &query);
    }
    if (err == ERR_OK) {
        err = c->redirect_url != NULL
                  ? origin_s3_redirect_build(
                        c->call.arena, endpoint->is_https, (struct span){NULL, 0},
                        span_from_cstr(c->redirect_url), ret_url, &c->is_presigned)
                  : origin_s3_url_build(c->call.arena, endpoint, ow->origin->options.addressing,
                                        c->region, origin_s3_call_bucket(c), key, query, ret_url);
    }
    c->host = err == ERR_OK ? ret_url->host : c->host;
    return err;
}

enum err origin_s3_call_build(struct origin_s3_call *c, struct origin_s3_url *ret_url,
                              struct headers *headers)
{
    const struct origin_relay *r = c->call.r;
    enum err err = build_url(c, ret_url);
    if (err != ERR_OK) {
        return err;
    }
    if (!add(c, headers, "Host", ret_url->host) || !add_accept_encoding(c, headers)) {
        return ERR_NO_MEMORY;
    }
    if (r == NULL) {
        err = build_fetch_headers(c, headers);
    } else if (c->phase != S3_PHASE_LOOK) {
        err = origin_s3_headers_forward(c->call.arena, r->headers,
                                        r->body == ORIGIN_BODY_UNSIGNED_TRAILER, headers);
    }
    if (err == ERR_OK) {
        err = sign(c, ret_url, headers);
    }
    if (err != ERR_OK) {
        return err;
    }
    // Via is added after signing, because proxies may append to it.
    return origin_hops_add(c->call.arena, r != NULL ? r->headers : NULL, headers) ? ERR_OK
                                                                                  : ERR_NO_MEMORY;
}
