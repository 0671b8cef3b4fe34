// SPDX-License-Identifier: Apache-2.0
// Any query of a listing, and a page whose names are any bytes: no crash. Limits hold, a
// continuation token gives the name that it was made from, and rendered XML can be parsed again.
#include "s3/s3.h"

#include <stddef.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void on_leaf(void *ctx, const char *path, struct span text)
{
    (void)path;
    (void)text;
    ++*(unsigned *)ctx;
}

static void check_token(struct arena *arena, struct span name)
{
    struct buf b;
    struct headers headers = {0};
    struct s3_request r;
    struct s3_listing_query q;
    struct s3_error_detail detail = {0};
    buf_init(&b, 1 << 16);
    buf_append_cstr(&b, "/bkt?list-type=2&continuation-token=");
    struct buf token;
    buf_init(&token, 1 << 16);
    s3_listing_token(name, &token);
    buf_append_uri_encoded(&b, buf_span(&token), false);
    if (name.len > 0 && name.len <= S3_KEY_MAX && buf_ok(&b) &&
        s3_request_parse(arena, SPAN("GET"), SPAN("127.0.0.1"), buf_span(&b), &headers, NULL, &r) ==
            ERR_OK) {
        check(s3_listing_parse(arena, &r, &q, &detail) == ERR_OK && span_equal(q.after, name));
    }
    buf_done(&token);
    buf_done(&b);
}

static void check_page(const struct s3_listing_query *q, struct span names)
{
    struct s3_listing_entry entries[16] = {0};
    struct span prefixes[4], name;
    struct s3_listing_page page = {.entries = entries, .common_prefixes = prefixes};
    struct buf out;
    unsigned leaves = 0;
    while (page.entry_count < ARRAY_LEN(entries) &&
           page.entry_count + page.common_prefix_count < q->max_keys &&
           span_split(&names, '\n', &name)) {
        if (name.len == 0) {
            continue;
        }
        if (page.common_prefix_count < ARRAY_LEN(prefixes) && span_ends_with(name, SPAN("/"))) {
            prefixes[page.common_prefix_count++] = name;
        } else {
            entries[page.entry_count++] = (struct s3_listing_entry){.key = name, .etag = name};
        }
        page.last_name = name;
        page.truncated = true;
    }
    buf_init(&out, 8u << 20);
    s3_listing_render(q, &page, &out);
    if (buf_ok(&out) && q->encoding_url) {
        (void)!s3_xml_read(buf_span(&out), on_leaf,
                           &leaves); // an ETag may hold what XML cannot say
    }
    check(memchr(out.ptr, '\0', out.len) == NULL || !q->encoding_url);
    buf_done(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct arena *arena = arena_new(4 << 20);
    struct span rest = {(const char *)bytes, len}, query;
    struct headers headers = {0};
    struct s3_request r;
    struct s3_listing_query q;
    struct s3_error_detail detail = {0};
    struct buf target;
    buf_init(&target, 1 << 16);
    if (len < 8192 && span_split(&rest, '\n', &query)) {
        buf_append_cstr(&target, "/bkt?");
        buf_append_span(&target, query);
        if (s3_request_parse(arena, SPAN("GET"), SPAN("127.0.0.1"), buf_span(&target), &headers,
                             NULL, &r) == ERR_OK &&
            (r.operation == S3_ListObjects || r.operation == S3_ListObjectsV2) &&
            s3_listing_parse(arena, &r, &q, &detail) == ERR_OK) {
            check(q.max_keys <= 1000);
            check_page(&q, rest);
        }
        check_token(arena, query);
    }
    buf_done(&target);
    arena_free(arena);
    return 0;
}
