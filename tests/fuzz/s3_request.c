// SPDX-License-Identifier: Apache-2.0
// Routing of any bytes as method, host and target: no crash; what is cacheable is a plain read; a
// key that is encoded canonically and parsed again is the same key; listing parameters have bounds.
#include "s3/s3.h"

#include <stddef.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check_round_trip(struct arena *arena, const struct s3_request *r)
{
    static const struct headers NOTHING;
    struct buf target;
    buf_init(&target, 1 << 16);
    buf_append_char(&target, '/');
    buf_append_span(&target, r->bucket);
    buf_append_char(&target, '/');
    buf_append_uri_encoded(&target, r->key, true);
    check(buf_ok(&target));
    struct s3_request again;
    check(s3_request_parse(arena, r->method, SPAN("127.0.0.1"), buf_span(&target), &NOTHING, NULL,
                           &again) == ERR_OK);
    check(span_equal(again.bucket, r->bucket));
    check(span_equal(again.key, r->key));
    buf_done(&target);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static const struct span SUFFIX = {"s3.example.com", 14};
    static const struct s3_domains DOMAINS = {&SUFFIX, 1};
    struct arena *arena = arena_new(1 << 20);
    struct span rest = {(const char *)bytes, len};
    struct span method, host, target, name;
    struct headers headers = {0};
    struct s3_request r;
    if (len > 0 && span_split(&rest, '\n', &method) && span_split(&rest, '\n', &host) &&
        span_split(&rest, '\n', &target)) {
        while (span_split(&rest, '\n', &name)) {
            if (!headers_add(&headers, arena, name, SPAN("v"))) {
                break;
            }
        }
        if (s3_request_parse(arena, method, host, target, &headers, &DOMAINS, &r) == ERR_OK) {
            check(r.key.len <= S3_KEY_MAX);
            bool plain = (r.flags & S3_OP_CACHEABLE) != 0;
            check(!plain || r.operation == S3_GetObject || r.operation == S3_HeadObject);
            check(!plain || r.bypass_reason == NULL);
            if (r.bucket.len > 0) {
                check_round_trip(arena, &r);
            }
            if ((r.flags & S3_OP_LISTING) != 0) {
                struct s3_listing_query q;
                if (s3_listing_parse(arena, &r, &q) == ERR_OK) {
                    check(q.max_keys <= 1000);
                }
            }
            (void)s3_request_scope(&r);
            if (s3_request_plus_is_space(arena, &r) == ERR_OK) {
                check(r.key.len <= S3_KEY_MAX);
            }
        }
        struct span bucket, key, query;
        if (s3_copy_source_parse(arena, target, &bucket, &key, &query) == ERR_OK) {
            check(bucket.len > 0 && key.len > 0);
        }
    }
    arena_free(arena);
    return 0;
}
