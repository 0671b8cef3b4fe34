// SPDX-License-Identifier: Apache-2.0
// Selects headers by name: those of a client's request that are forwarded to the origin, and those
// of the origin's answer that the client gets. Removes the client's signature. Keeps all other
// x-amz-* headers, so that they are signed again.
//
// Headers that the client's Connection header names are not removed here, because the room http
// refuses a request whose Connection header names one that is meant for the origin. Pure; any
// thread.
#include <string.h>

#include "origin/origin_s3_private.h"

// Room for headers that are added to the client's. The list grows if there are more.
#define ADDED_MAX 16u

static bool is_one_of(struct span name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (span_equal_nocase(name, span_from_cstr(names[i]))) {
            return true;
        }
    }
    return false;
}

// Returns true for headers that are forwarded: those that S3 defines, those of HTTP that S3
// accepts, and those that join traces. All other headers concern only the client and its proxies.
// At the origin they could only change something that Forebay has not checked.
static bool is_sent_on(struct span name, bool framed)
{
    static const char *const known[] = {"Access-Control-Request-Headers",
                                        "Access-Control-Request-Method",
                                        "Cache-Control",
                                        "Content-Disposition",
                                        "Content-Encoding",
                                        "Content-Language",
                                        "Content-MD5",
                                        "Content-Type",
                                        "Expires",
                                        "If-Match",
                                        "If-Modified-Since",
                                        "If-None-Match",
                                        "If-Range",
                                        "If-Unmodified-Since",
                                        "Origin",
                                        "Range",
                                        "User-Agent",
                                        "traceparent",
                                        "tracestate",
                                        "x-request-id"};
    // Parts of the client's signature. The origin gets ours instead.
    static const char *const signature[] = {"X-Amz-Date", "X-Amz-Security-Token",
                                            "x-amz-content-sha256", "x-amz-s3session-token"};
    static const char *const framing[] = {"x-amz-decoded-content-length", "x-amz-trailer"};
    if (!span_starts_with_nocase(name, SPAN("x-amz-"))) {
        return is_one_of(name, known, ARRAY_LEN(known));
    }
    return !is_one_of(name, signature, ARRAY_LEN(signature)) &&
           (framed || !is_one_of(name, framing, ARRAY_LEN(framing)));
}

// Returns true if a Connection header names this header.
static bool is_named_by_connection(const struct headers *headers, struct span name)
{
    for (unsigned i = 0; i < headers->count; i++) {
        if (span_equal_nocase(headers->items[i].name, SPAN("Connection")) &&
            headers_list_has(headers->items[i].value, name)) {
            return true;
        }
    }
    return false;
}

enum err origin_s3_headers_forward(struct arena *arena, const struct headers *client, bool framed,
                                   struct headers *ret_headers)
{
    if (!headers_reserve(ret_headers, arena, client->count + ADDED_MAX)) {
        return ERR_NO_MEMORY;
    }
    for (unsigned i = 0; i < client->count; i++) {
        struct span name = client->items[i].name, value = client->items[i].value;
        if (!is_sent_on(name, framed)) {
            continue;
        }
        if (!headers_name_is_token(name) || !headers_value_is_clean(value)) {
            return ERR_INVALID;
        }
        if (!framed && span_equal_nocase(name, SPAN("Content-Encoding"))) {
            struct span encoding = value;
            if (!aws_chunked_strip(arena, encoding, &value)) {
                return ERR_NO_MEMORY;
            }
            if (value.len == 0 && encoding.len > 0) {
                continue;
            }
        }
        if (!headers_add(ret_headers, arena, name, value)) {
            return ERR_NO_MEMORY;
        }
    }
    return ERR_OK;
}

static bool is_presign_parameter(struct span name, bool version2)
{
    static const char *const names[] = {
        "X-Amz-Algorithm",      "X-Amz-Credential",     "X-Amz-Date",
        "X-Amz-Expires",        "X-Amz-SignedHeaders",  "X-Amz-Signature",
        "X-Amz-Security-Token", "X-Amz-Content-Sha256", "X-Amz-S3session-Token"};
    static const char *const names2[] = {"AWSAccessKeyId", "Signature", "Expires"};
    return is_one_of(name, names, ARRAY_LEN(names)) ||
           (version2 && is_one_of(name, names2, ARRAY_LEN(names2)));
}

enum err origin_s3_query_forward(struct arena *arena, const struct s3_request *request,
                                 struct span *ret_query)
{
    struct buf raw;
    bool version2 = s3_param_find(request, "AWSAccessKeyId") != NULL;
    enum err err = ERR_OK;
    buf_init(&raw, 65536);
    for (unsigned i = 0; i < request->param_count; i++) {
        const struct s3_param *param = &request->params[i];
        if (is_presign_parameter(param->name, version2)) {
            continue;
        }
        if (raw.len > 0) {
            buf_append_char(&raw, '&');
        }
        buf_append_span(&raw, param->raw_name);
        if (param->has_value) {
            buf_append_char(&raw, '=');
            buf_append_span(&raw, param->raw_value);
        }
    }
    *ret_query = (struct span){NULL, 0};
    if (!buf_ok(&raw)) {
        err = ERR_NO_MEMORY;
    } else if (raw.len > 0) {
        struct span copy = arena_copy(arena, buf_span(&raw));
        err =
            copy.ptr == NULL ? ERR_NO_MEMORY : sigv4_canonical_query(arena, copy, false, ret_query);
    }
    buf_done(&raw);
    return err;
}

enum err origin_s3_headers_answered(struct arena *arena, const struct headers *origin,
                                    struct headers *ret_headers)
{
    static const char *const names[] = {
        "Content-Length", "Date",    "x-amz-request-id",         "x-amz-id-2",
        "Set-Cookie",     "Alt-Svc", "Strict-Transport-Security"};
    for (unsigned i = 0; i < origin->count; i++) {
        struct span name = origin->items[i].name;
        if (headers_is_hop_by_hop(name) || is_one_of(name, names, ARRAY_LEN(names)) ||
            is_named_by_connection(origin, name)) {
            continue;
        }
        if (!headers_add(ret_headers, arena, name, origin->items[i].value)) {
            return ERR_NO_MEMORY;
        }
    }
    return ERR_OK;
}

enum err origin_s3_headers_of_error(struct arena *arena, const struct headers *origin,
                                    struct headers *ret_headers)
{
    static const char *const names[] = {"Allow", "Last-Modified", "Retry-After",
                                        "WWW-Authenticate"};
    for (unsigned i = 0; i < origin->count; i++) {
        struct span name = origin->items[i].name;
        bool ids =
            span_starts_with_nocase(name, SPAN("x-amz-id-2")); // x-amz-request-id is only logged
        if ((span_starts_with_nocase(name, SPAN("x-amz-")) ||
             is_one_of(name, names, ARRAY_LEN(names))) &&
            !ids && !is_named_by_connection(origin, name) &&
            !headers_add(ret_headers, arena, name, origin->items[i].value)) {
            return ERR_NO_MEMORY;
        }
    }
    return ERR_OK;
}
