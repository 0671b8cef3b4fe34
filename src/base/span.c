// SPDX-License-Identifier: Apache-2.0
// Views of bytes: comparing, splitting, numbers, percent encoding. Pure; any thread.
#include <string.h>
#include <strings.h>

#include "base/bytes.h"

static unsigned char lower(char c)
{
    return (unsigned char)(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
}

#define EACH(byte) (0x0101010101010101u * (byte))

// Turns the upper-case letters of eight bytes into lower case at once. No sum carries into the next
// byte.
static uint64_t lower8(const char *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof(word));
    uint64_t low = word & EACH(0x7f);
    uint64_t from_a = low + EACH(0x80 - 'A'), behind_z = low + EACH(0x80 - 'Z' - 1);
    uint64_t upper = (from_a ^ behind_z) & ~word & EACH(0x80);
    return word | upper >> 2;
}

bool span_bytes_equal_nocase(const char *a, const char *b, size_t len)
{
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        if (lower8(a + i) != lower8(b + i)) {
            return false;
        }
    }
    if (i > 0) { // the last eight bytes; some of them have been compared already
        return lower8(a + len - 8) == lower8(b + len - 8);
    }
    for (; i < len; i++) {
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

struct span span_without_root_dot(struct span name)
{
    bool has_dot = name.len > 1 && name.ptr[name.len - 1] == '.';
    return (struct span){name.ptr, name.len - (has_dot ? 1 : 0)};
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

size_t span_find_text(struct span s, struct span what)
{
    check(what.len > 0);
    const char *at = s.len > 0 ? memmem(s.ptr, s.len, what.ptr, what.len) : NULL;
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
        unsigned digit = (unsigned char)s.ptr[i] - (unsigned)'0';
        if (digit > 9) {
            return false;
        }
        if (i < 19) { // 19 digits always fit
            value = value * 10 + digit;
        } else if (!mul_u64(value, 10, &value) || !add_u64(value, digit, &value)) {
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

bool span_uri_decode(struct span s, char *ret_bytes, size_t *ret_len)
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
