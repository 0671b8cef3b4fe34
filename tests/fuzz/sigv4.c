// SPDX-License-Identifier: Apache-2.0
// Any request against claim parsing and verification: no crash, and nothing unsigned is accepted.
// The verifier accepts a signature by our signer over the same bytes, but not with one bit of the
// signed path or secret changed.
#include "s3/s3.h"

#include <stddef.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

#define NOW ((time_t)1369353600)

static void check_verify(struct arena *arena, struct span method, struct span target,
                         const struct headers *headers)
{
    struct s3_request r;
    struct sigv4_claim claim;
    struct sigv4_mismatch mismatch;
    if (s3_request_parse(arena, method, SPAN("127.0.0.1"), target, headers, NULL, &r) == ERR_OK &&
        sigv4_claim_parse(&r, headers, &claim) == ERR_OK && claim.present) {
        check(sigv4_verify(arena, &claim, SPAN("a secret nobody guesses"), claim.time, method,
                           r.raw_path, r.raw_query, headers, NULL, &mismatch) != ERR_OK);
    }
}

static void check_sign_and_verify(struct arena *arena, struct span method, struct span key,
                                  struct span raw_query, struct headers *headers)
{
    const struct sigv4_credentials credentials = {SPAN("AK"), SPAN("secret"), {NULL, 0}};
    const struct sigv4_scope scope = {.region = SPAN("r"), .service = SPAN("s3")};
    struct buf target;
    buf_init(&target, 1 << 18);
    buf_append_cstr(&target, "/bkt/");
    buf_append_uri_encoded(&target, key, true);
    struct span path = buf_span(&target);
    struct span query;
    struct s3_request r;
    struct sigv4_claim claim;
    if (buf_ok(&target) && sigv4_canonical_query(arena, raw_query, false, &query) == ERR_OK &&
        sigv4_sign(arena, &credentials, &scope, NOW, method, path, query, headers,
                   SPAN(SIGV4_UNSIGNED_PAYLOAD), NULL) == ERR_OK) {
        path = arena_copy(arena, path);
        check(path.ptr != NULL);
        buf_append_char(&target, '?');
        buf_append_span(&target, raw_query);
        if (s3_request_parse(arena, method, SPAN("127.0.0.1"), buf_span(&target), headers, NULL,
                             &r) == ERR_OK &&
            sigv4_claim_parse(&r, headers, &claim) == ERR_OK && claim.present && !claim.presigned) {
            enum err err = sigv4_verify(arena, &claim, SPAN("secret"), NOW, method, path, raw_query,
                                        headers, NULL, NULL);
            check(err == ERR_OK);
            err = sigv4_verify(arena, &claim, SPAN("Secret"), NOW, method, path, raw_query, headers,
                               NULL, NULL);
            check(err == ERR_SIGNATURE_MISMATCH);
            err =
                sigv4_verify(arena, &claim, SPAN("secret"), NOW, method,
                             (struct span){path.ptr, path.len - 1}, raw_query, headers, NULL, NULL);
            check(err == ERR_SIGNATURE_MISMATCH || err == ERR_INVALID_URI);
        }
    }
    buf_done(&target);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct arena *arena = arena_new(4 << 20);
    struct span rest = {(const char *)bytes, len};
    struct span method, target, line;
    struct headers headers = {0};
    if (len > 0 && len < 8192 && span_split(&rest, '\n', &method) &&
        span_split(&rest, '\n', &target)) {
        while (span_split(&rest, '\n', &line)) {
            size_t colon = span_find(line, ':');
            if (colon < line.len && headers.count < HEADERS_MAX - 8) {
                struct span value = {line.ptr + colon + 1, line.len - colon - 1};
                (void)!headers_add(&headers, arena, (struct span){line.ptr, colon}, value);
            }
        }
        check_verify(arena, method, target, &headers);
        size_t question = span_find(target, '?');
        struct span key = {target.ptr, question};
        struct span query = {NULL, 0};
        if (question < target.len) {
            query = (struct span){target.ptr + question + 1, target.len - question - 1};
        }
        headers_remove(&headers, SPAN("host"));
        headers_remove(&headers, SPAN("x-amz-content-sha256"));
        if (key.len > 0 && key.len <= S3_KEY_MAX &&
            headers_add(&headers, arena, SPAN("Host"), SPAN("127.0.0.1")) &&
            headers_add(&headers, arena, SPAN("x-amz-content-sha256"),
                        SPAN(SIGV4_UNSIGNED_PAYLOAD))) {
            bool tokens = true; // a name such as "a;b" cannot come out of an HTTP parser
            for (unsigned i = 0; i < headers.count; i++) {
                tokens = tokens && headers_name_is_token(headers.items[i].name);
            }
            if (tokens) {
                check_sign_and_verify(arena, method, key, query, &headers);
            }
        }
    }
    arena_free(arena);
    return 0;
}
