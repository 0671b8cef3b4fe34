// SPDX-License-Identifier: Apache-2.0
// Any bytes as a chunked body: the verdict does not depend on where the bytes were cut. The same
// payload, framed in other chunks, is decoded to the same bytes.
#include <string.h>

#include "http/http_private.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BODY_MAX 65536u

struct decoded {
    enum http_chunked_step end;
    size_t len, used;
    char *payload;
};

static void decode(struct span bytes, size_t piece, struct decoded *d)
{
    struct http_chunked c;
    d->end = HTTP_CHUNKED_MORE;
    d->len = d->used = 0;
    http_chunked_init(&c);
    while (d->used < bytes.len && d->end == HTTP_CHUNKED_MORE) {
        size_t len = min_u64(bytes.len - d->used, piece);
        struct span rest = {bytes.ptr + d->used, len}, part;
        while ((d->end = http_chunked_next(&c, &rest, &part)) == HTTP_CHUNKED_DATA) {
            check(part.len > 0 && part.len <= bytes.len - d->len);
            memcpy(d->payload + d->len, part.ptr, part.len);
            d->len += part.len;
        }
        d->used += len - rest.len;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char payloads[3][2 * BODY_MAX];
    struct decoded whole = {.payload = payloads[0]}, cut = {.payload = payloads[1]},
                   again = {.payload = payloads[2]};
    if (size < 2 || size > BODY_MAX) {
        return 0;
    }
    struct span bytes = {(const char *)data + 1, size - 1};
    size_t piece = data[0] + 1u;
    decode(bytes, bytes.len, &whole);
    decode(bytes, piece, &cut);
    check(whole.end == cut.end && whole.used == cut.used && whole.len == cut.len);
    check(memcmp(whole.payload, cut.payload, whole.len) == 0);
    if (whole.end != HTTP_CHUNKED_END) {
        return 0;
    }
    struct buf b;
    buf_init(&b, 8 * BODY_MAX);
    for (size_t done = 0; done < whole.len; done += piece) {
        size_t len = min_u64(piece, whole.len - done);
        buf_printf(&b, "%zx\r\n", len);
        buf_append(&b, whole.payload + done, len);
        buf_append_cstr(&b, "\r\n");
    }
    buf_append_cstr(&b, "0\r\n\r\n");
    if (buf_ok(&b) && b.len <= 2 * BODY_MAX) {
        decode(buf_span(&b), b.len, &again);
        check(again.end == HTTP_CHUNKED_END && again.used == b.len && again.len == whole.len);
        check(memcmp(again.payload, whole.payload, whole.len) == 0);
    }
    buf_done(&b);
    return 0;
}
