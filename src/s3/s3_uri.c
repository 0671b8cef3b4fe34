// SPDX-License-Identifier: Apache-2.0
#include "s3/s3_uri.h"

#include "s3/s3.h"

#define BUCKET_MAX 255u
// Largest byte position in a range, so that arithmetic with positions cannot overflow.
#define BYTE_MAX ((uint64_t)INT64_MAX)

static bool parse_names(struct span text, struct s3_uri *ret_uri, const char **ret_why)
{
    bool has_scheme = span_starts_with(text, SPAN("s3://"));
    struct span rest = has_scheme ? (struct span){text.ptr + 5, text.len - 5} : text;
    size_t len = span_find(rest, '/');
    // A word without '/' is more likely a mistake than the name of a whole bucket.
    if (!has_scheme && (len == rest.len || span_find(rest, ':') < len)) {
        *ret_why = "expected s3://BUCKET/KEY or BUCKET/KEY";
        return false;
    }
    struct s3_uri uri = {.bucket = {rest.ptr, len}};
    if (len == 0 || len > BUCKET_MAX) {
        *ret_why = "the bucket name is empty or longer than 255 bytes";
        return false;
    }
    if (len < rest.len) {
        uri.key = (struct span){rest.ptr + len + 1, rest.len - len - 1};
    }
    *ret_uri = uri;
    return true;
}

static bool judge_key(const struct s3_uri *uri, const char **ret_why)
{
    *ret_why = "its key is longer than 1,024 bytes";
    return uri->key.len <= S3_KEY_MAX;
}

bool s3_uri_parse(struct span text, struct s3_uri *ret_uri, const char **ret_why)
{
    struct s3_uri uri;
    if (!parse_names(text, &uri, ret_why)) {
        return false;
    }
    uri.is_prefix = uri.key.len == 0 || uri.key.ptr[uri.key.len - 1] == '/';
    if (uri.key.len > 0 && uri.key.ptr[uri.key.len - 1] == '*') {
        uri.is_prefix = true;
        uri.key.len--;
    }
    *ret_uri = uri;
    return judge_key(&uri, ret_why);
}

bool s3_uri_has_star(struct span text, const struct s3_uri *uri, struct span *ret_prefix)
{
    size_t at = span_find(uri->key, '*');
    if (at < uri->key.len) {
        *ret_prefix = (struct span){text.ptr, (size_t)(uri->key.ptr + at + 1 - text.ptr)};
    }
    return at < uri->key.len;
}

bool s3_uri_parse_object(struct span text, struct s3_uri *ret_uri, const char **ret_why)
{
    if (!parse_names(text, ret_uri, ret_why)) {
        return false;
    }
    if (ret_uri->key.len == 0) {
        *ret_why = "expected an object, not a bucket";
        return false;
    }
    return judge_key(ret_uri, ret_why);
}

bool s3_uri_parse_range(struct span text, uint64_t *ret_first, uint64_t *ret_end)
{
    size_t dash = span_find(text, '-');
    uint64_t first, last = UINT64_MAX - 1;
    if (dash == text.len || !span_to_u64((struct span){text.ptr, dash}, &first) ||
        first > BYTE_MAX) {
        return false;
    }
    struct span rest = {text.ptr + dash + 1, text.len - dash - 1};
    if (rest.len > 0 && (!span_to_u64(rest, &last) || last < first)) {
        return false;
    }
    *ret_first = first;
    *ret_end = rest.len > 0 && last < BYTE_MAX ? last + 1 : UINT64_MAX;
    return true;
}
