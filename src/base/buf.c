// SPDX-License-Identifier: Apache-2.0
// The bounded buffer. The caller of buf_init() owns it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/chunk.h"

void buf_init(struct buf *b, size_t max)
{
    check(max < SIZE_MAX / 4);
    *b = (struct buf){.max = max};
}

void buf_init_counted(struct buf *b, size_t max, enum chunk_budget_kind kind)
{
    buf_init(b, max);
    b->counted = (uint8_t)(kind + 1);
}

static void buf_charge(const struct buf *b, size_t bytes)
{
    if (b->counted != 0) {
        chunk_budget_charge((enum chunk_budget_kind)(b->counted - 1), bytes);
    }
}

void buf_done(struct buf *b)
{
    free(b->ptr);
    if (b->counted != 0) {
        chunk_budget_discharge((enum chunk_budget_kind)(b->counted - 1), b->cap);
    }
    *b = (struct buf){.max = b->max, .counted = b->counted};
}

bool buf_ok(const struct buf *b)
{
    return !b->failed;
}

// Makes room for `len` more bytes and for the NUL that buf_cstr() appends.
static bool buf_reserve(struct buf *b, size_t len)
{
    if (b->failed || len > b->max - b->len) {
        b->failed = true;
        return false;
    }
    size_t needed = b->len + len + 1;
    if (needed <= b->cap) {
        return true;
    }
    size_t cap = b->cap < 64 ? 64 : b->cap * 2;
    if (cap < needed) {
        cap = needed;
    }
    if (cap > b->max + 1) {
        cap = b->max + 1;
    }
    char *grown = realloc(b->ptr, cap);
    if (grown == NULL) {
        b->failed = true;
        return false;
    }
    buf_charge(b, cap - b->cap);
    b->ptr = grown;
    b->cap = cap;
    return true;
}

void buf_append(struct buf *b, const void *bytes, size_t len)
{
    if (buf_reserve(b, len) && len > 0) {
        memcpy(b->ptr + b->len, bytes, len);
        b->len += len;
    }
}

void buf_append_span(struct buf *b, struct span s)
{
    buf_append(b, s.ptr, s.len);
}

void buf_append_cstr(struct buf *b, const char *s)
{
    buf_append(b, s, strlen(s));
}

void buf_append_char(struct buf *b, char c)
{
    buf_append(b, &c, 1);
}

void buf_printf(struct buf *b, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    char small[256];
    int len = vsnprintf(small, sizeof(small), format, args);
    va_end(args);
    if (len < 0) {
        b->failed = true;
    } else if ((size_t)len < sizeof(small)) {
        buf_append(b, small, (size_t)len);
    } else if (buf_reserve(b, (size_t)len)) {
        (void)vsnprintf(b->ptr + b->len, (size_t)len + 1, format, again); // it fits
        b->len += (size_t)len;
    }
    va_end(again);
}

struct span buf_span(const struct buf *b)
{
    return (struct span){b->ptr, b->len};
}

const char *buf_cstr(struct buf *b)
{
    if (b->failed || b->ptr == NULL) {
        return "";
    }
    b->ptr[b->len] = '\0';
    return b->ptr;
}

static bool is_unreserved(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_' || c == '~';
}

void buf_append_uri_encoded(struct buf *b, struct span s, bool keep_slash)
{
    static const char digits[] = "0123456789ABCDEF";
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        if (is_unreserved(c) || (keep_slash && c == '/')) {
            buf_append_char(b, c);
        } else {
            const char escape[3] = {'%', digits[(unsigned char)c >> 4], digits[c & 15]};
            buf_append(b, escape, sizeof(escape));
        }
    }
}
