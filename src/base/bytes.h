// SPDX-License-Identifier: Apache-2.0
// Bytes in memory: views (struct span), a bounded growable buffer, hex, percent encoding, numbers,
// checked arithmetic. Pure; any thread.
#ifndef FOREBAY_BASE_BYTES_H
#define FOREBAY_BASE_BYTES_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"

// --- span.c --------------------------------------------------------------------------------------

// A view of bytes that it does not own. ptr may be NULL if len is 0.
struct span {
    const char *ptr;
    size_t len;
};

#define SPAN(literal) ((struct span){(literal), sizeof(literal) - 1})

// Returns an empty span for NULL. This function and the comparisons are inline, because the
// compiler then knows the length of a literal, and most comparisons end with the lengths.
static inline struct span span_from_cstr(const char *s)
{
    return (struct span){s, s != NULL ? strlen(s) : 0};
}

// Copies `s` with a final NUL into `ret_text`; copies "" if it does not fit.
static inline void span_to_text(struct span s, char *ret_text, size_t size)
{
    size_t len = s.len < size ? s.len : 0;
    if (len > 0) {
        memcpy(ret_text, s.ptr, len);
    }
    ret_text[len] = '\0';
}

static inline bool span_equal(struct span a, struct span b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

static inline bool span_equal_cstr(struct span a, const char *b)
{
    return span_equal(a, span_from_cstr(b));
}

bool span_bytes_equal_nocase(const char *a, const char *b, size_t len); // ASCII only

static inline bool span_equal_nocase(struct span a, struct span b)
{
    return a.len == b.len &&
           // the first bytes of most pairs differ
           (a.len == 0 ||
            (((a.ptr[0] ^ b.ptr[0]) & ~0x20) == 0 && span_bytes_equal_nocase(a.ptr, b.ptr, a.len)));
}

static inline bool span_starts_with(struct span s, struct span prefix)
{
    return s.len >= prefix.len && (prefix.len == 0 || memcmp(s.ptr, prefix.ptr, prefix.len) == 0);
}

static inline bool span_starts_with_nocase(struct span s, struct span prefix) // ASCII only
{
    return s.len >= prefix.len && span_equal_nocase((struct span){s.ptr, prefix.len}, prefix);
}

bool span_ends_with(struct span s, struct span suffix);
struct span span_trim(struct span s); // spaces and tabs at both ends
// Removes the final dot of a domain name: "a.example." and "a.example" are the same name.
struct span span_without_root_dot(struct span name);
// Compares in the order of memcmp(). A span comes before a longer one that begins with it. Returns
// < 0, 0 or > 0.
int span_compare(struct span a, struct span b);
// Returns the offset of the first `c`; s.len if there is none.
size_t span_find(struct span s, char c);
// Returns the offset of the first `what`, which must not be empty; s.len if there is none.
size_t span_find_text(struct span s, struct span what);
// Moves everything before the first `separator` from *rest to *ret_piece, and removes the
// separator. Without a separator, the piece is all of *rest, and rest->ptr becomes NULL. Returns
// false if it is NULL already.
bool span_split(struct span *rest, char separator, struct span *ret_piece);

// Parses decimal digits without sign or blanks. Returns false for an empty span, other bytes or
// overflow.
bool span_to_u64(struct span s, uint64_t *ret_value) MUST_USE;
// Formats a number. The returned span is somewhere inside ret_digits, not always at its beginning.
#define U64_DIGITS_MAX 20
struct span span_of_u64(uint64_t value, char ret_digits[U64_DIGITS_MAX]);
// Decodes %XX once; '+' stays '+'. Returns false for a broken escape. The result is not longer than
// `s`, and `ret_bytes` may be the memory of `s`.
bool span_uri_decode(struct span s, char *ret_bytes, size_t *ret_len) MUST_USE;

// --- Text of a known size ------------------------------------------------------------------------

// Writes into memory of a known size. The caller must provide enough, because a write that does not
// fit aborts.
struct span_writer {
    char *at, *end;
};

// Inline, so that writing a literal becomes a few store instructions.
static inline void span_writer_put(struct span_writer *w, struct span s)
{
    check((size_t)(w->end - w->at) >= s.len);
    if (s.len > 0) {
        memcpy(w->at, s.ptr, s.len);
        w->at += s.len;
    }
}

static inline void span_writer_put_u64(struct span_writer *w, uint64_t value)
{
    char digits[U64_DIGITS_MAX];
    span_writer_put(w, span_of_u64(value, digits));
}

// --- hex.c ---------------------------------------------------------------------------------------

int hex_digit(char c); // returns the value; -1 if `c` is no hex digit
// `s` must have exactly 2 * bytes_len digits
bool hex_decode(struct span s, uint8_t *ret_bytes, size_t bytes_len) MUST_USE;
bool hex_is_lower(struct span s); // only 0-9 and a-f; true for an empty span
// Writes 2 * len lower-case digits and a NUL.
void hex_encode(const void *bytes, size_t len, char *ret_hex);

// --- Arithmetic ----------------------------------------------------------------------------------

// Adds with a check, for numbers from outside. On overflow, returns false and leaves *ret
// untouched.
static inline bool MUST_USE add_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t sum;
    if (__builtin_add_overflow(a, b, &sum)) {
        return false;
    }
    *ret = sum;
    return true;
}

static inline bool MUST_USE mul_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t product;
    if (__builtin_mul_overflow(a, b, &product)) {
        return false;
    }
    *ret = product;
    return true;
}

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline uint64_t align_up_u64(uint64_t value, uint64_t power_of_two)
{
    return (value + power_of_two - 1) & ~(power_of_two - 1);
}

// --- buf.c ---------------------------------------------------------------------------------------

// A growable buffer with a maximum that is set at init. After an append has failed, the contents
// stay, and all later appends fail too. So a caller that appends many pieces checks only once, with
// buf_ok().
struct buf {
    char *ptr;
    size_t len, cap, max;
    bool failed;
    uint8_t counted; // 0: not counted; else 1 + the enum chunk_budget_kind
};

void buf_init(struct buf *b, size_t max);
void buf_done(struct buf *b); // frees; b is then as after buf_init() with the same maximum
bool buf_ok(const struct buf *b) MUST_USE;
void buf_append(struct buf *b, const void *bytes, size_t len);
void buf_append_span(struct buf *b, struct span s);
void buf_append_cstr(struct buf *b, const char *s);
void buf_append_char(struct buf *b, char c);
void buf_printf(struct buf *b, const char *format, ...) PRINTF_LIKE(2, 3);
struct span buf_span(const struct buf *b);
// Adds a NUL, which does not count in len, and returns ptr. Returns "" if the buffer has failed or
// is empty.
const char *buf_cstr(struct buf *b);

// Percent-encodes as S3 signatures do: everything except A-Za-z0-9-._~ (and '/' with keep_slash)
// becomes %XX, upper case.
void buf_append_uri_encoded(struct buf *b, struct span s, bool keep_slash);
#endif
