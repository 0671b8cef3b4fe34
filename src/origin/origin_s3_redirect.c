// SPDX-License-Identifier: Apache-2.0
// Redirects to another host or URL. Stores that spread objects over nodes (AIStore, Ozone, Ceph)
// answer 307 with the address of a node. The call follows such a redirect itself, so that neither
// fills nor clients see it.
//
// It follows a redirect only if all of these conditions are met. Otherwise the client gets the
// redirect unchanged.
//   - The method is GET or HEAD, or the status is 307 or 308. No byte of a body has been sent.
//   - The scheme stays the same, and the call has followed fewer than ORIGIN_S3_REDIRECTS_MAX
//     redirects.
//   - The address is none at which clouds hand out credentials, and is not more private than the
//     address of the host that sent the redirect. So a redirect cannot lead from the internet into
//     a private network, nor from either to this machine. A literal address is judged here. A name
//     is judged when the transfer connects to its addresses (transfer_connection.c).
//   - The request has no encryption key of the client (SSE-C), because the key is meant for one
//     store.
//   - The request is unsigned, or the new URL names the bucket and key of the call, in path or
//     virtual-hosted style. Otherwise a user who may set an object's redirect could use Forebay's
//     rights to read or delete another object.
//
// The call signs the request again for the new host, so that the signature is of no use at any
// other. A URL that carries its own signature (presigned) is sent without ours. Retries after a
// failure begin at the endpoint again. Pure; any thread.
#include <arpa/inet.h>
#include <string.h>

#include "origin/origin_s3_private.h"

static bool is_presigned(struct span query)
{
    static const char *const names[] = {"X-Amz-Signature", "X-Goog-Signature", "Signature", "sig"};
    struct span piece;
    while (span_split(&query, '&', &piece)) {
        struct span name = {piece.ptr, span_find(piece, '=')};
        for (size_t i = 0; i < ARRAY_LEN(names); i++) {
            if (span_equal_nocase(name, span_from_cstr(names[i]))) {
                return true;
            }
        }
    }
    return false;
}

bool origin_s3_host_is_within(struct span host, enum transfer_reach reach)
{
    bool is_v6 = host.len > 0 && host.ptr[0] == '[';
    struct span name = is_v6 ? (struct span){host.ptr + 1, span_find(host, ']') - 1}
                             : (struct span){host.ptr, span_find(host, ':')};
    char text[INET6_ADDRSTRLEN];
    if (name.len >= sizeof(text)) {
        return true; // longer than any address, so it is a name
    }
    memcpy(text, name.ptr, name.len);
    text[name.len] = '\0';
    enum transfer_reach own = transfer_reach_of_text(text);
    return own == TRANSFER_REACH_ANY || own <= reach;
}

static bool take_end(struct span *path, struct span end)
{
    bool is_there = path->len > end.len && path->ptr[path->len - end.len - 1] == '/' &&
                    span_equal((struct span){path->ptr + path->len - end.len, end.len}, end);
    if (is_there) {
        path->len -= end.len + 1;
    }
    return is_there;
}

bool origin_s3_redirect_is_to(const struct origin_s3_url *url, struct span bucket, struct span key)
{
    struct span path = url->path;
    struct buf encoded;
    buf_init(&encoded, 65536);
    buf_append_uri_encoded(&encoded, key, true);
    bool is_key = buf_ok(&encoded) && (take_end(&path, buf_span(&encoded)) || key.len == 0);
    buf_done(&encoded);
    bool is_virtual = url->host.len > bucket.len && url->host.ptr[bucket.len] == '.' &&
                      span_equal_nocase((struct span){url->host.ptr, bucket.len}, bucket);
    return is_key && (bucket.len == 0 || (is_virtual && path.len == 0) || take_end(&path, bucket));
}

static bool location_is_clean(struct span location)
{
    for (size_t i = 0; i < location.len; i++) {
        unsigned char c = (unsigned char)location.ptr[i];
        if (c <= ' ' || c >= 0x7f || c == '"' || c == '<' || c == '>' || c == '\\') {
            return false;
        }
    }
    return location.len > 0 && location.len <= ORIGIN_S3_LOCATION_MAX;
}

// Splits a location "scheme://host/path?query", or "/path?query" on `host`. Changes no byte.
static bool split(struct span location, bool is_https, struct span host, struct span *ret_host,
                  struct span *ret_path, struct span *ret_query)
{
    struct span scheme = is_https ? SPAN("https://") : SPAN("http://");
    location.len = span_find(location, '#');
    if (location.len > scheme.len &&
        span_equal_nocase((struct span){location.ptr, scheme.len}, scheme)) {
        struct span rest = {location.ptr + scheme.len, location.len - scheme.len};
        size_t end = min_u64(span_find(rest, '/'), span_find(rest, '?'));
        *ret_host = (struct span){rest.ptr, end};
        location = (struct span){rest.ptr + end, rest.len - end};
    } else if (span_starts_with(location, SPAN("/")) && !span_starts_with(location, SPAN("//"))) {
        *ret_host = host;
    } else {
        return false;
    }
    size_t mark = span_find(location, '?');
    *ret_path = mark > 0 ? (struct span){location.ptr, mark} : SPAN("/");
    *ret_query = mark < location.len
                     ? (struct span){location.ptr + mark + 1, location.len - mark - 1}
                     : (struct span){NULL, 0};
    return true;
}

// Makes path and query canonical: decodes them and encodes them again by S3's rules for signing.
static enum err canonical(struct arena *arena, struct span *path, struct span *query)
{
    char *decoded = arena_alloc(arena, path->len + 1);
    size_t len = 0;
    struct buf out;
    if (decoded == NULL) {
        return ERR_NO_MEMORY;
    }
    if (!span_uri_decode(*path, decoded, &len)) {
        return ERR_INVALID;
    }
    buf_init(&out, 65536);
    buf_append_uri_encoded(&out, (struct span){decoded, len}, true);
    *path = buf_ok(&out) ? arena_copy(arena, buf_span(&out)) : (struct span){NULL, 0};
    buf_done(&out);
    if (path->ptr == NULL) {
        return ERR_NO_MEMORY;
    }
    return query->len > 0 ? sigv4_canonical_query(arena, *query, false, query) : ERR_OK;
}

enum err origin_s3_redirect_build(struct arena *arena, bool is_https, struct span host,
                                  struct span location, struct origin_s3_url *ret_url,
                                  bool *ret_is_presigned)
{
    struct span path, query;
    if (!location_is_clean(location) || !split(location, is_https, host, &host, &path, &query) ||
        !origin_s3_host_is_valid(host, false)) {
        return ERR_INVALID;
    }
    *ret_is_presigned = is_presigned(query);
    enum err err = *ret_is_presigned ? ERR_OK : canonical(arena, &path, &query);
    if (err != ERR_OK) {
        return err;
    }
    struct span scheme = is_https ? SPAN("https://") : SPAN("http://");
    char *url = arena_printf(arena, "%.*s%.*s%.*s%s%.*s", (int)scheme.len, scheme.ptr,
                             (int)host.len, host.ptr, (int)path.len, path.ptr,
                             query.len > 0 ? "?" : "", (int)query.len, query.ptr);
    if (url == NULL) {
        return ERR_NO_MEMORY;
    }
    ret_url->url = url;
    ret_url->host = (struct span){url + scheme.len, host.len};
    ret_url->path = (struct span){url + scheme.len + host.len, path.len};
    ret_url->query = query;
    return ERR_OK;
}
