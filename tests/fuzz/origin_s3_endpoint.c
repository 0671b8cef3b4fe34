// SPDX-License-Identifier: Apache-2.0
// Any text as an endpoint, with any bucket and key: no crash. It is refused with a reason, or its
// URL holds no byte that could end a line or the path.
#include "origin/origin_s3_private.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check_url(const struct origin_s3_endpoint *endpoint, struct span bucket,
                      struct span key)
{
    struct arena *arena = arena_new(1 << 20);
    struct origin_s3_url url;
    if (bucket.len <= 63 && key.len <= S3_KEY_MAX &&
        origin_s3_url_build(arena, endpoint, ORIGIN_ADDRESSING_AUTO, SPAN("us-east-1"), bucket, key,
                            (struct span){NULL, 0}, &url) == ERR_OK) {
        for (const char *c = url.url; *c != '\0'; c++) {
            check((unsigned char)*c > ' ' && (unsigned char)*c < 0x7f && *c != '#');
        }
        check(memchr(url.path.ptr, '?', url.path.len) == NULL);
    }
    arena_free(arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct span rest = {(const char *)bytes, len}, text, bucket;
    struct origin_s3_endpoint endpoint;
    struct buf why;
    if (len > 4096 || memchr(bytes, '\0', len) != NULL || !span_split(&rest, '\n', &text) ||
        !span_split(&rest, '\n', &bucket)) {
        return 0;
    }
    buf_init(&why, 4096);
    char *copy = strndup(text.ptr, text.len);
    if (origin_s3_endpoint_parse("origin.endpoint", copy, &endpoint, &why) == ERR_OK) {
        (void)origin_s3_endpoint_has_region(&endpoint);
        check_url(&endpoint, bucket, rest);
        origin_s3_endpoint_done(&endpoint);
    } else {
        check(why.len > 0);
    }
    free(copy);
    buf_done(&why);
    return 0;
}
