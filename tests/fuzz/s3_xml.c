// SPDX-License-Identifier: Apache-2.0
// Any document: no crash, and the depth is bounded. Escaped text is read back unchanged.
#include "s3/s3.h"

#include <stddef.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void on_leaf(void *ctx, const char *path, struct span text)
{
    unsigned *slashes_max = ctx;
    unsigned slashes = 0;
    for (const char *c = path; *c != '\0'; c++) {
        slashes += *c == '/';
    }
    *slashes_max = slashes > *slashes_max ? slashes : *slashes_max;
    check(text.len <= 2u * S3_XML_BODY_MAX);
}

static void on_only_leaf(void *ctx, const char *path, struct span text)
{
    (void)path;
    check(span_equal(text, *(const struct span *)ctx));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct span document = {(const char *)bytes, len};
    unsigned slashes_max = 0;
    (void)!s3_xml_read(document, on_leaf, &slashes_max);
    check(slashes_max < 16);

    struct arena *arena = arena_new(64 << 20);
    struct s3_error_body body;
    (void)s3_error_read(arena, document, &body);
    struct s3_delete first, second;
    if (s3_delete_read(arena, document, &first) == ERR_OK) {
        struct buf sent;
        buf_init(&sent, 8u << 20);
        s3_delete_render(&first, &sent);
        check(s3_delete_read(arena, buf_span(&sent), &second) == ERR_OK);
        check(first.count == second.count);
        for (size_t i = 0; i < first.count; i++) {
            check(span_equal(first.objects[i].key, second.objects[i].key));
        }
        buf_done(&sent);
    }
    struct buf out;
    buf_init(&out, 1 << 20);
    s3_xml_element(&out, "E", document);
    if (buf_ok(&out)) {
        // Bytes that XML cannot express end in an error, never in other bytes.
        (void)!s3_xml_read(buf_span(&out), on_only_leaf, &document);
    }
    buf_done(&out);
    arena_free(arena);
    return 0;
}
