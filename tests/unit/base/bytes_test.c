// SPDX-License-Identifier: Apache-2.0
// Proves: spans, numbers, hex, percent coding and the bounded buffer respect their bounds.
#include "test.h"

#include "base/bytes.h"

#include <stdlib.h>
#include <string.h>

Test(bytes, span_compare_orders_like_keys)
{
    cr_assert_lt(span_compare(SPAN("a-b"), SPAN("a/")), 0);
    cr_assert_lt(span_compare(SPAN("a"), SPAN("ab")), 0);
    cr_assert_gt(span_compare(SPAN("b"), SPAN("ab")), 0);
    cr_assert_eq(span_compare(SPAN("same"), SPAN("same")), 0);
    cr_assert_lt(span_compare((struct span){NULL, 0}, SPAN("x")), 0);
    cr_assert_gt(span_compare(SPAN("\xff"), SPAN("\x01")), 0);
}

Test(bytes, span_predicates)
{
    cr_assert(span_equal((struct span){NULL, 0}, SPAN("")));
    cr_assert(span_equal_nocase(SPAN("ETag"), SPAN("etAG")));
    cr_assert_not(span_equal_nocase(SPAN("["), SPAN("{")));
    cr_assert(span_starts_with(SPAN("abc"), SPAN("ab")));
    cr_assert_not(span_starts_with(SPAN("a"), SPAN("ab")));
    cr_assert(span_ends_with(SPAN("abc"), SPAN("bc")));
    cr_assert(span_equal(span_trim(SPAN(" \t x y\t")), SPAN("x y")));
    cr_assert_eq(span_trim(SPAN(" \t ")).len, 0);
    cr_assert_eq(span_find(SPAN("abc"), 'c'), 2);
    cr_assert_eq(span_find(SPAN("abc"), 'x'), 3);
    cr_assert(span_starts_with_nocase(SPAN("X-Amz-Date"), SPAN("x-amz-")));
    cr_assert_not(span_starts_with_nocase(SPAN("x-am"), SPAN("x-amz-")));
    cr_assert_eq(span_find_text(SPAN("abcbc"), SPAN("bc")), 1);
    cr_assert_eq(span_find_text(SPAN("abcbc"), SPAN("cc")), 5);
    cr_assert_eq(span_find_text((struct span){NULL, 0}, SPAN("c")), 0);
}

Test(bytes, span_split_gives_empty_pieces_too)
{
    struct span rest = SPAN("a,,b,"), piece;
    const char *expected[] = {"a", "", "b", ""};
    for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
        cr_assert(span_split(&rest, ',', &piece));
        cr_assert(span_equal_cstr(piece, expected[i]));
    }
    cr_assert_not(span_split(&rest, ',', &piece));
}

Test(bytes, numbers_refuse_signs_blanks_and_overflow)
{
    uint64_t value = 7;
    cr_assert(span_to_u64(SPAN("18446744073709551615"), &value));
    cr_assert_eq(value, UINT64_MAX);
    cr_assert(span_to_u64(SPAN("007"), &value));
    cr_assert_eq(value, 7);
    const char *bad[] = {
        "", "18446744073709551616", "99999999999999999999", "-1", "+1", " 1", "1 ", "0x1"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        cr_assert_not(span_to_u64(span_from_cstr(bad[i]), &value));
        cr_assert_eq(value, 7);
    }
    cr_assert_not(add_u64(UINT64_MAX, 1, &value));
    cr_assert_not(mul_u64(UINT64_MAX / 2 + 1, 2, &value));
    cr_assert_eq(value, 7);
    cr_assert_eq(align_up_u64(4097, 4096), 8192);
    cr_assert_eq(align_up_u64(4096, 4096), 4096);
}

Test(bytes, numbers_become_digits)
{
    static const struct {
        uint64_t value;
        const char *digits;
    } rows[] = {
        {0, "0"}, {9, "9"}, {10, "10"}, {1000, "1000"}, {UINT64_MAX, "18446744073709551615"}};
    char digits[U64_DIGITS_MAX];
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        cr_assert(span_equal_cstr(span_of_u64(rows[i].value, digits), rows[i].digits));
    }
    for (uint64_t value = 1, back; value < UINT64_MAX / 3; value *= 3) {
        cr_assert(span_to_u64(span_of_u64(value, digits), &back));
        cr_assert_eq(back, value);
    }
}

// Only letters have two cases, at every position of a word and after it.
Test(bytes, case_is_that_of_letters)
{
    char a[21], b[21];
    for (unsigned at = 0; at < 20; at++) {
        memset(a, 'x', sizeof(a));
        memset(b, 'X', sizeof(b));
        for (unsigned i = 0; i < 256; i++) {
            for (unsigned j = 0; j < 256; j++) {
                a[at] = (char)i;
                b[at] = (char)j;
                bool letters = (i | 0x20) == (j | 0x20) && (i | 0x20) >= 'a' && (i | 0x20) <= 'z';
                cr_assert_eq(span_bytes_equal_nocase(a, b, 20), i == j || letters, "%u %u at %u", i,
                             j, at);
                cr_assert(at < 19 || span_bytes_equal_nocase(a, b, 19));
            }
        }
    }
}

Test(bytes, hex_round_trip)
{
    uint8_t bytes[4], back[4] = {0x00, 0x7f, 0x80, 0xff};
    char text[9];
    hex_encode(back, 4, text);
    cr_assert_str_eq(text, "007f80ff");
    cr_assert(hex_decode(SPAN("007F80fF"), bytes, 4));
    cr_assert_arr_eq(bytes, back, 4);
    cr_assert_not(hex_decode(SPAN("007f80f"), bytes, 4));
    cr_assert_not(hex_decode(SPAN("007f80fg"), bytes, 4));
    cr_assert_not(hex_decode(SPAN("007f80ff00"), bytes, 4));
    for (unsigned i = 0; i < 256; i++) {
        bool is_digit = (i >= '0' && i <= '9') || (i >= 'a' && i <= 'f') || (i >= 'A' && i <= 'F');
        char pair[2] = {'0', (char)i};
        cr_assert_eq(hex_digit((char)i) >= 0, is_digit);
        cr_assert_eq(hex_decode((struct span){pair, 2}, bytes, 1), is_digit);
    }
}

// Writing several bytes at once gives the same result as one by one, and each byte is checked at
// every position.
Test(bytes, hex_of_any_length)
{
    static const char digits[] = "0123456789abcdef";
    for (unsigned byte = 0; byte < 256; byte++) {
        uint8_t from[11];
        char text[23];
        memset(from, (int)(255 - byte), sizeof(from));
        for (size_t at = 0; at < sizeof(from); at++) {
            from[at] = (uint8_t)byte;
            for (size_t len = 0; len <= sizeof(from); len++) {
                hex_encode(from, len, text);
                cr_assert(strlen(text) == 2 * len);
                for (size_t i = 0; i < len; i++) {
                    cr_assert_eq(text[2 * i], digits[from[i] >> 4]);
                    cr_assert_eq(text[2 * i + 1], digits[from[i] & 15]);
                }
                cr_assert(hex_is_lower((struct span){text, 2 * len}));
            }
            from[at] = (uint8_t)(255 - byte);
        }
        bool is_lower = byte != 0 && strchr(digits, (int)byte) != NULL;
        for (size_t at = 0; at < sizeof(text); at++) {
            memset(text, 'f', sizeof(text));
            text[at] = (char)byte;
            cr_assert_eq(hex_is_lower((struct span){text, sizeof(text)}), is_lower, "%u at %zu",
                         byte, at);
        }
    }
}

Test(bytes, buffer_stops_at_its_maximum_and_stays_failed)
{
    struct buf b;
    buf_init(&b, 10);
    buf_append_cstr(&b, "12345678");
    buf_append_cstr(&b, "90");
    cr_assert(buf_ok(&b));
    cr_assert_str_eq(buf_cstr(&b), "1234567890");
    buf_append_char(&b, 'x');
    cr_assert_not(buf_ok(&b));
    cr_assert_eq(b.len, 10);
    buf_append(&b, "", 0);
    cr_assert_not(buf_ok(&b));
    cr_assert_str_eq(buf_cstr(&b), "");
    buf_done(&b);
    cr_assert(buf_ok(&b));
    cr_assert_eq(b.max, 10);
    cr_assert_str_eq(buf_cstr(&b), "");
    buf_done(&b);
}

Test(bytes, buffer_prints_short_and_long)
{
    struct buf b;
    char big[1001];
    memset(big, 'x', 1000);
    big[1000] = '\0';
    buf_init(&b, 2000);
    buf_printf(&b, "%s-%d", "a", 5);
    buf_printf(&b, "%s", big);
    cr_assert(buf_ok(&b));
    cr_assert_eq(b.len, 1003);
    buf_printf(&b, "%s", big);
    cr_assert_not(buf_ok(&b));
    buf_done(&b);
}

Test(bytes, percent_coding)
{
    struct buf b;
    buf_init(&b, 100);
    buf_append_uri_encoded(&b, SPAN("a b/+%~\xc3\xa9"), true);
    cr_assert_str_eq(buf_cstr(&b), "a%20b/%2B%25~%C3%A9");
    b.len = 0;
    buf_append_uri_encoded(&b, SPAN("a/b"), false);
    cr_assert_str_eq(buf_cstr(&b), "a%2Fb");
    buf_done(&b);
    char text[] = "a%20b%2fc+d";
    size_t len;
    cr_assert(span_uri_decode(span_from_cstr(text), text, &len));
    cr_assert(span_equal((struct span){text, len}, SPAN("a b/c+d")));
    char out[8];
    cr_assert_not(span_uri_decode(SPAN("%"), out, &len));
    cr_assert_not(span_uri_decode(SPAN("%4"), out, &len));
    cr_assert_not(span_uri_decode(SPAN("%4g"), out, &len));
}
