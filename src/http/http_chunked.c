// SPDX-License-Identifier: Apache-2.0
// Strict decoder of chunked request bodies: sizes of 1 to 16 hex digits, only CRLF as line end,
// bounded extensions, trailers checked like header lines and dropped. Pure: it accepts spans that
// are cut anywhere, and its result does not depend on where. It allocates nothing. One thread at a
// time.
#include "http/http_private.h"

#include <string.h>

#define EXTENSION_MAX 256         // maximum bytes of extensions per chunk
#define EXTENSION_TOTAL_MAX 16384 // maximum bytes of extensions per body
#define TRAILER_MAX 16384         // maximum bytes of all trailer lines together
#define SIZE_DIGITS_MAX 16

enum chunked_state {
    SIZE_FIRST,
    SIZE,
    EXTENSION,
    SIZE_LF,
    DATA,
    DATA_CR,
    DATA_LF,
    TRAILER_START,
    TRAILER_NAME,
    TRAILER_VALUE,
    TRAILER_LF,
    END_LF,
    END,
    BAD
};

void http_chunked_init(struct http_chunked *c)
{
    *c = (struct http_chunked){.state = SIZE_FIRST};
}

static enum chunked_state size_step(struct http_chunked *c, unsigned char b)
{
    int digit = hex_digit((char)b);
    if (digit >= 0) {
        // No client sends a chunk of 2^63 bytes or more, and some parsers would read the size as
        // negative.
        if (c->digits == SIZE_DIGITS_MAX || c->left >> 59 != 0) {
            return BAD;
        }
        c->digits++;
        c->left = c->left << 4 | (unsigned)digit;
        return SIZE;
    }
    if (c->digits == 0) {
        return BAD;
    }
    if (b == ';') {
        return EXTENSION;
    }
    return b == '\r' ? SIZE_LF : BAD;
}

static enum chunked_state extension_step(struct http_chunked *c, unsigned char b)
{
    if (b == '\r') {
        return SIZE_LF;
    }
    if ((b != '\t' && (b < 0x20 || b > 0x7e)) || ++c->extension_bytes > EXTENSION_MAX ||
        ++c->extension_total > EXTENSION_TOTAL_MAX) {
        return BAD;
    }
    return EXTENSION;
}

static enum chunked_state trailer_step(struct http_chunked *c, unsigned char b)
{
    if (++c->trailer_bytes > TRAILER_MAX) {
        return BAD;
    }
    switch (c->state) {
    case TRAILER_START:
        if (b == '\r') {
            return END_LF;
        }
        return request_head_byte_is_token(b) ? TRAILER_NAME : BAD;
    case TRAILER_NAME:
        if (b == ':') {
            return TRAILER_VALUE;
        }
        return request_head_byte_is_token(b) ? TRAILER_NAME : BAD;
    case TRAILER_VALUE:
        if (b == '\r') {
            return TRAILER_LF;
        }
        return request_head_byte_is_value(b) ? TRAILER_VALUE : BAD;
    default: // TRAILER_LF
        return b == '\n' ? TRAILER_START : BAD;
    }
}

static enum chunked_state frame_step(struct http_chunked *c, unsigned char b)
{
    switch (c->state) {
    case SIZE_FIRST:
        c->digits = 0;
        c->left = 0;
        c->extension_bytes = 0;
        return size_step(c, b);
    case SIZE:
        return size_step(c, b);
    case EXTENSION:
        return extension_step(c, b);
    case SIZE_LF:
        if (b != '\n') {
            return BAD;
        }
        return c->left > 0 ? DATA : TRAILER_START;
    case DATA_CR:
        return b == '\r' ? DATA_LF : BAD;
    case DATA_LF:
        return b == '\n' ? SIZE_FIRST : BAD;
    case END_LF:
        return b == '\n' ? END : BAD;
    default:
        return trailer_step(c, b);
    }
}

enum http_chunked_step http_chunked_next(struct http_chunked *c, struct span *rest,
                                         struct span *ret_data)
{
    while (c->state != END && c->state != BAD) {
        if (rest->len == 0) {
            return HTTP_CHUNKED_MORE;
        }
        if (c->state == DATA) {
            size_t len = (size_t)min_u64(c->left, rest->len);
            *ret_data = (struct span){rest->ptr, len};
            rest->ptr += len;
            rest->len -= len;
            c->left -= len;
            if (c->left == 0) {
                c->state = DATA_CR;
            }
            return HTTP_CHUNKED_DATA;
        }
        c->state = frame_step(c, (unsigned char)rest->ptr[0]);
        rest->ptr++;
        rest->len--;
    }
    return c->state == END ? HTTP_CHUNKED_END : HTTP_CHUNKED_BAD;
}
