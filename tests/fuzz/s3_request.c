// SPDX-License-Identifier: Apache-2.0
// Routing of any bytes as method, host and target: no crash. A cacheable request is a plain read. A
// key that is encoded canonically and parsed again is the same key. Listing parameters have bounds.
// The effects of a request are never less than its method implies.
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

// A request that is not a known read must count as a change or be refused. A copy source that is
// understood must be sent on as it was read.
static void check_effects(struct arena *arena, const struct s3_request *r,
                          const struct headers *headers)
{
    struct s3_effects e;
    if (s3_effects_find(arena, r, headers, r->bucket, &e) != ERR_OK) {
        return;
    }
    check(e.count > 0 && e.items[0].rights != 0);
    for (unsigned i = 0; i < e.count; i++) {
        check(!e.items[i].changes || (r->flags & S3_OP_READ) == 0);
        check(e.items[i].scope != S3_SCOPE_KEY || e.items[i].key.len > 0);
    }
    if (!e.copy.is_understood) {
        return;
    }
    struct buf sent;
    buf_init(&sent, 1 << 16);
    s3_source_render(&e.copy, e.copy.bucket, &sent);
    check(buf_ok(&sent));
    struct headers only = {0};
    check(headers_add(&only, arena, SPAN("x-amz-copy-source"), buf_span(&sent)));
    struct s3_request put;
    struct s3_effects again;
    check(s3_request_parse(arena, SPAN("PUT"), SPAN("127.0.0.1"), SPAN("/b/k"), &only, NULL,
                           &put) == ERR_OK);
    check(s3_effects_find(arena, &put, &only, put.bucket, &again) == ERR_OK);
    check(span_equal(again.copy.bucket, e.copy.bucket) && span_equal(again.copy.key, e.copy.key));
    check(again.copy.has_version == e.copy.has_version &&
          span_equal(again.copy.version, e.copy.version));
    buf_done(&sent);
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
            size_t colon = span_find(name, ':');
            struct span value = SPAN("v");
            if (colon < name.len) {
                value = (struct span){name.ptr + colon + 1, name.len - colon - 1};
                name.len = colon;
            }
            if (!headers_add(&headers, arena, name, value)) {
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
                if (s3_listing_parse(arena, &r, &q, &(struct s3_error_detail){0}) == ERR_OK) {
                    check(q.max_keys <= 1000);
                }
            }
            check_effects(arena, &r, &headers);
            if (s3_request_plus_is_space(arena, &r) == ERR_OK) {
                check(r.key.len <= S3_KEY_MAX);
            }
        }
    }
    arena_free(arena);
    return 0;
}
