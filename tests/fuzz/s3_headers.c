// SPDX-License-Identifier: Apache-2.0
// Any values of the headers to which S3 gives a meaning: no crash. A copy source names a valid key,
// is judged in addition to the target, and means the same as Forebay sends it on.
#include "s3/s3.h"

#include <stddef.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static bool find(struct arena *arena, const char *name, struct span value,
                 struct s3_effects *ret_effects)
{
    struct headers headers = {0};
    struct s3_request r;
    bool is_copy = strcmp(name, "x-amz-copy-source") == 0;
    struct span target = is_copy ? SPAN("/bkt/key") : SPAN("/bkt/key?renameObject");
    return headers_add(&headers, arena, span_from_cstr(name), value) &&
           s3_request_parse(arena, SPAN("PUT"), SPAN("127.0.0.1"), target, &headers, NULL, &r) ==
               ERR_OK &&
           s3_effects_find(arena, &r, &headers, SPAN("bkt"), ret_effects) == ERR_OK;
}

static const struct s3_source *source_of(const struct s3_effects *e)
{
    return e->copy.is_there ? &e->copy : &e->rename;
}

static void check_source(struct arena *arena, const char *name, struct span value)
{
    struct s3_effects effects, again;
    struct buf b;
    if (!find(arena, name, value, &effects) || !source_of(&effects)->is_understood) {
        return;
    }
    const struct s3_source *source = source_of(&effects);
    check(source->key.len > 0 && source->key.len <= S3_KEY_MAX && effects.count >= 2);
    buf_init(&b, 1 << 16);
    s3_source_render(source, source->bucket, &b);
    check(buf_ok(&b) && find(arena, name, buf_span(&b), &again));
    check(source_of(&again)->is_understood && source_of(&again)->is_rename == source->is_rename);
    check(span_equal(source_of(&again)->bucket, source->bucket));
    check(span_equal(source_of(&again)->key, source->key));
    check(span_equal(source_of(&again)->version, source->version));
    buf_done(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct arena *arena = arena_new(4 << 20);
    struct span value = {(const char *)bytes, len};
    struct headers headers = {0};
    enum sigv4_payload payload;
    struct span hash;
    char base64[128];
    if (len <= 8192) {
        check_source(arena, "x-amz-copy-source", value);
        check_source(arena, "x-amz-rename-source", value);
        struct s3_checksum_state *s = s3_checksum_new(s3_checksum_from_name(value));
        if (s != NULL) {
            s3_checksum_update(s, value);
            s3_checksum_final(s, base64);
            check(strlen(base64) < 64);
            s3_checksum_free(s);
        }
        if (headers_add(&headers, arena, SPAN("x-amz-content-sha256"), value) &&
            headers_add(&headers, arena, SPAN("Content-Encoding"), value) &&
            headers_add(&headers, arena, SPAN("Authorization"), value)) {
            (void)!sigv4_payload_parse(&headers, false, &payload, &hash);
            (void)!sigv4_payload_parse(&headers, true, &payload, &hash);
            (void)aws_chunked_detect(&headers);
        }
    }
    arena_free(arena);
    return 0;
}
