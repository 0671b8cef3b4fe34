// SPDX-License-Identifier: Apache-2.0
// Spans, the bounded buffer, hex, percent coding, numbers. Pure; any thread. A buffer belongs to
// whoever initialised it.
#include "base/bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static unsigned char lower(char c)
{
    return (unsigned char)(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
}

bool bytes_equal_nocase(const char *a, const char *b, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (lower(a[i]) != lower(b[i])) {
            return false;
        }
    }
    return true;
}

bool span_ends_with(struct span s, struct span suffix)
{
    return s.len >= suffix.len &&
           (suffix.len == 0 || memcmp(s.ptr + s.len - suffix.len, suffix.ptr, suffix.len) == 0);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

struct span span_trim(struct span s)
{
    while (s.len > 0 && is_blank(s.ptr[0])) {
        s.ptr++;
        s.len--;
    }
    while (s.len > 0 && is_blank(s.ptr[s.len - 1])) {
        s.len--;
    }
    return s;
}

int span_compare(struct span a, struct span b)
{
    size_t len = a.len < b.len ? a.len : b.len;
    int order = len > 0 ? memcmp(a.ptr, b.ptr, len) : 0;
    if (order != 0) {
        return order;
    }
    return a.len < b.len ? -1 : a.len > b.len;
}

size_t span_find(struct span s, char c)
{
    const char *at = s.len > 0 ? memchr(s.ptr, c, s.len) : NULL;
    return at != NULL ? (size_t)(at - s.ptr) : s.len;
}

bool span_split(struct span *rest, char separator, struct span *ret_piece)
{
    if (rest->ptr == NULL) {
        return false;
    }
    size_t at = span_find(*rest, separator);
    *ret_piece = (struct span){rest->ptr, at};
    if (at == rest->len) {
        *rest = (struct span){NULL, 0};
    } else {
        rest->ptr += at + 1;
        rest->len -= at + 1;
    }
    return true;
}

bool span_to_u64(struct span s, uint64_t *ret_value)
{
    uint64_t value = 0;
    if (s.len == 0) {
        return false;
    }
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] < '0' || s.ptr[i] > '9' || !mul_u64(value, 10, &value) ||
            !add_u64(value, (uint64_t)(s.ptr[i] - '0'), &value)) {
            return false;
        }
    }
    *ret_value = value;
    return true;
}

struct span span_of_u64(uint64_t value, char ret_digits[U64_DIGITS_MAX])
{
    size_t at = U64_DIGITS_MAX;
    do {
        ret_digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    return (struct span){ret_digits + at, U64_DIGITS_MAX - at};
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    if (c >= 'A' && c <= 'F') {
        return c - 'A' + 10;
    }
    return -1;
}

bool span_to_hex(struct span s, uint8_t *ret_bytes, size_t bytes_len)
{
    if (s.len % 2 != 0 || s.len / 2 != bytes_len) {
        return false;
    }
    for (size_t i = 0; i < s.len; i++) {
        if (hex_digit(s.ptr[i]) < 0) {
            return false;
        }
    }
    for (size_t i = 0; i < bytes_len; i++) {
        ret_bytes[i] = (uint8_t)(hex_digit(s.ptr[2 * i]) << 4 | hex_digit(s.ptr[2 * i + 1]));
    }
    return true;
}

void hex_encode(const void *bytes, size_t len, char *ret_hex)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *from = bytes;
    for (size_t i = 0; i < len; i++) {
        ret_hex[2 * i] = digits[from[i] >> 4];
        ret_hex[2 * i + 1] = digits[from[i] & 15];
    }
    ret_hex[2 * len] = '\0';
}

bool add_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t sum;
    if (__builtin_add_overflow(a, b, &sum)) {
        return false;
    }
    *ret = sum;
    return true;
}

bool mul_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t product;
    if (__builtin_mul_overflow(a, b, &product)) {
        return false;
    }
    *ret = product;
    return true;
}

void buf_init(struct buf *b, size_t max)
{
    check(max < SIZE_MAX / 4);
    *b = (struct buf){.max = max};
}

void buf_done(struct buf *b)
{
    free(b->ptr);
    *b = (struct buf){.max = b->max};
}

bool buf_ok(const struct buf *b)
{
    return !b->failed;
}

// Makes room for `len` more bytes and the NUL that buf_cstr() writes behind them.
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
        (void)vsnprintf(b->ptr + b->len, (size_t)len + 1, format, again); // measured just above
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

bool uri_decode(struct span s, char *ret_bytes, size_t *ret_len)
{
    size_t len = 0;
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        if (c == '%') {
            if (s.len - i < 3 || hex_digit(s.ptr[i + 1]) < 0 || hex_digit(s.ptr[i + 2]) < 0) {
                return false;
            }
            c = (char)(hex_digit(s.ptr[i + 1]) << 4 | hex_digit(s.ptr[i + 2]));
            i += 2;
        }
        ret_bytes[len++] = c;
    }
    *ret_len = len;
    return true;
}
