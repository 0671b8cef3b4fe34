// SPDX-License-Identifier: Apache-2.0
// Any text as the Location of a redirect: no crash. It is refused, or becomes a URL of the
// endpoint's scheme with a valid host. The URL holds no byte that could end a line, and is the same
// when it is built again from itself.
#include "origin/origin_s3_private.h"

#include <stddef.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check_url(struct arena *arena, bool is_https, const struct origin_s3_url *url)
{
    struct span text = span_from_cstr(url->url);
    check(span_starts_with(text, is_https ? SPAN("https://") : SPAN("http://")));
    check(origin_s3_host_is_valid(url->host, false));
    check(url->path.len > 0 && url->path.ptr[0] == '/');
    for (size_t i = 0; i < text.len; i++) {
        check((unsigned char)text.ptr[i] > ' ' && (unsigned char)text.ptr[i] < 0x7f);
        check(text.ptr[i] != '#');
    }
    (void)origin_s3_host_is_within(url->host, TRANSFER_REACH_PUBLIC);
    struct origin_s3_url again;
    bool is_presigned = false;
    enum err err =
        origin_s3_redirect_build(arena, is_https, SPAN("other"), text, &again, &is_presigned);
    check(err == ERR_OK ? span_equal_cstr(text, again.url) : text.len > ORIGIN_S3_LOCATION_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    if (len < 1 || len > 20000) {
        return 0;
    }
    struct arena *arena = arena_new(1 << 20);
    struct origin_s3_url url;
    bool is_https = (bytes[0] & 1) != 0, is_presigned = false;
    struct span location = {(const char *)bytes + 1, len - 1};
    if (origin_s3_redirect_build(arena, is_https, SPAN("asked:9000"), location, &url,
                                 &is_presigned) == ERR_OK) {
        check_url(arena, is_https, &url);
    }
    arena_free(arena);
    return 0;
}
