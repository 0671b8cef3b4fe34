// SPDX-License-Identifier: Apache-2.0
// Proves that chunked bodies are decoded strictly, and the same way wherever they are cut.
#include "test.h"

#include <stdio.h>
#include <string.h>

#include "http/http_private.h"

struct decoded {
    char text[65536];
    size_t len, used;
    enum http_chunked_step end;
};

// Feeds the bytes in pieces of `piece`. Each piece is a copy of its own, so that ASan finds reads
// past it.
static void decode(struct span bytes, size_t piece, struct decoded *ret)
{
    struct http_chunked c;
    http_chunked_init(&c);
    *ret = (struct decoded){.end = HTTP_CHUNKED_MORE};
    while (ret->used < bytes.len) {
        struct buf copy;
        size_t len = bytes.len - ret->used < piece ? bytes.len - ret->used : piece;
        buf_init(&copy, 1 << 20);
        buf_append(&copy, bytes.ptr + ret->used, len);
        struct span rest = buf_span(&copy), data = {NULL, 0};
        do {
            ret->end = http_chunked_next(&c, &rest, &data);
            if (ret->end == HTTP_CHUNKED_DATA) {
                cr_assert(ret->len + data.len <= sizeof(ret->text));
                memcpy(ret->text + ret->len, data.ptr, data.len);
                ret->len += data.len;
            }
        } while (ret->end == HTTP_CHUNKED_DATA);
        ret->used += len - rest.len;
        buf_done(&copy);
        if (ret->end != HTTP_CHUNKED_MORE) {
            return;
        }
    }
}

struct row {
    const char *bytes, *text; // text NULL: refused
};

static const struct row rows[] = {
    {"0\r\n\r\n", ""},
    {"5\r\nhello\r\n0\r\n\r\n", "hello"},
    {"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", "hello world"},
    {"00000005\r\nhello\r\n0\r\n\r\n", "hello"},
    {"a\r\n0123456789\r\n000\r\n\r\n", "0123456789"},
    {"A;ext=1;b=\"c\"\r\n0123456789\r\n0;x\r\n\r\n", "0123456789"},
    {"5\r\nhello\r\n0\r\nX-T: 1\r\nY: 2\r\n\r\n", "hello"},
    {"5\r\nhello\r\n0\r\nX:\r\n\r\n", "hello"},
    {"5\r\nhelloX\r\n0\r\n\r\n", NULL},
    {"5\nhello\r\n0\r\n\r\n", NULL},
    {"5\r\nhello\n0\r\n\r\n", NULL},
    {"5\rhello\r\n0\r\n\r\n", NULL},
    {"5\r\nhello\r0\r\n\r\n", NULL},
    {"0x5\r\nhello\r\n0\r\n\r\n", NULL},
    {"+5\r\nhello\r\n0\r\n\r\n", NULL},
    {"-5\r\nhello\r\n0\r\n\r\n", NULL},
    {" 5\r\nhello\r\n0\r\n\r\n", NULL},
    {"5 \r\nhello\r\n0\r\n\r\n", NULL},
    {"5 ;x\r\nhello\r\n0\r\n\r\n", NULL},
    {"5_\r\nhello\r\n0\r\n\r\n", NULL},
    {"\r\nhello\r\n0\r\n\r\n", NULL},
    {";x\r\nhello\r\n0\r\n\r\n", NULL},
    {"g\r\n", NULL},
    {"5;x\nhello\r\n0\r\n\r\n", NULL},
    {"5;x\ry\r\nhello\r\n0\r\n\r\n", NULL},
    {"5;\x01\r\nhello\r\n0\r\n\r\n", NULL},
    {"5;\x80\r\nhello\r\n0\r\n\r\n", NULL},
    {"10000000000000005\r\nhello\r\n0\r\n\r\n", NULL},
    {"00000000000000005\r\nhello\r\n0\r\n\r\n", NULL},
    {"8000000000000000\r\nhello", NULL},
    {"ffffffffffffffff\r\nhello", NULL},
    {"0\r\n\n", NULL},
    {"0\r\nX\r\n\r\n", NULL},
    {"0\r\nX Y: z\r\n\r\n", NULL},
    {"0\r\n: z\r\n\r\n", NULL},
    {"0\r\nX: a\r\n b\r\n\r\n", NULL},
    {"0\r\nX: a\nY: b\r\n\r\n", NULL},
    {"0\r\nX: a\rb\r\n\r\n", NULL},
    {"0\r\n\rX\r\n", NULL},
    {"5\r\nhello\r\nX\r\n", NULL},
};

// Each row, whole and in pieces of every size.
Test(http_chunked, table)
{
    static struct decoded d;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct span bytes = span_from_cstr(rows[i].bytes);
        for (size_t piece = 1; piece <= bytes.len; piece++) {
            decode(bytes, piece, &d);
            if (rows[i].text == NULL) {
                cr_assert(d.end == HTTP_CHUNKED_BAD, "row %zu in pieces of %zu", i, piece);
            } else {
                cr_assert(d.end == HTTP_CHUNKED_END, "row %zu in pieces of %zu", i, piece);
                cr_assert(d.used == bytes.len, "row %zu", i);
                cr_assert(span_equal_cstr((struct span){d.text, d.len}, rows[i].text), "row %zu",
                          i);
            }
        }
    }
}

// Bytes after the last chunk belong to the next request.
Test(http_chunked, rest_is_left)
{
    static struct decoded d;
    decode(SPAN("1\r\nx\r\n0\r\n\r\nGET /"), 100, &d);
    cr_assert(d.end == HTTP_CHUNKED_END && d.used == 11);
}

// Extensions: 256 bytes a chunk and 16 KiB a body are accepted, and one byte more is not. Trailers
// end at 16 KiB.
Test(http_chunked, bounds)
{
    static struct decoded d;
    struct buf b;
    for (int over = 0; over < 2; over++) {
        buf_init(&b, 1 << 20);
        buf_append_cstr(&b, "1;");
        for (int i = 0; i < 256 + over; i++) {
            buf_append_char(&b, 'e');
        }
        buf_append_cstr(&b, "\r\nx\r\n0\r\n\r\n");
        decode(buf_span(&b), 4096, &d);
        cr_assert(d.end == (over ? HTTP_CHUNKED_BAD : HTTP_CHUNKED_END));
        buf_done(&b);

        buf_init(&b, 1 << 20);
        for (int chunk = 0; chunk < 64 + over; chunk++) {
            buf_append_cstr(&b, "1;");
            for (int i = 0; i < 256; i++) {
                buf_append_char(&b, 'e');
            }
            buf_append_cstr(&b, "\r\nx\r\n");
        }
        buf_append_cstr(&b, "0\r\n\r\n");
        decode(buf_span(&b), 4096, &d);
        cr_assert(d.end == (over ? HTTP_CHUNKED_BAD : HTTP_CHUNKED_END));
        buf_done(&b);

        buf_init(&b, 1 << 20);
        buf_append_cstr(&b, "0\r\nT:");
        for (int i = 0; i < 16384 - 5 + over; i++) { // "T:", the line's end, the last CR
            buf_append_char(&b, 't');
        }
        buf_append_cstr(&b, "\r\n\r\n");
        decode(buf_span(&b), 4096, &d);
        cr_assert(d.end == (over ? HTTP_CHUNKED_BAD : HTTP_CHUNKED_END));
        buf_done(&b);
    }
}
