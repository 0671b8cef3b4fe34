// SPDX-License-Identifier: Apache-2.0
// Proves: header look-up, hop-by-hop rules, clean values, and every date format both ways.
#include "test.h"

#include "base/clock.h"
#include "base/date.h"
#include "base/headers.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

Test(headers, lookup_ignores_case_and_keeps_order)
{
    struct arena *arena = arena_new(1 << 16);
    struct headers h = {0};
    struct span value;
    cr_assert(headers_add(&h, arena, SPAN("ETag"), SPAN("1")));
    cr_assert(headers_add(&h, arena, SPAN("x-a"), SPAN("2")));
    cr_assert(headers_add(&h, arena, SPAN("etag"), SPAN("3")));
    cr_assert(headers_get(&h, SPAN("ETAG"), &value));
    cr_assert(span_equal(value, SPAN("1")));
    cr_assert_eq(headers_count(&h, SPAN("etag")), 2);
    headers_remove(&h, SPAN("Etag"));
    cr_assert_eq(h.count, 1);
    cr_assert_not(headers_get(&h, SPAN("etag"), &value));
    arena_free(arena);
}

Test(headers, reserved_room_is_used_and_the_list_grows_beyond_it)
{
    struct arena *arena = arena_new(1 << 16);
    struct headers h = {0};
    cr_assert(headers_reserve(&h, arena, 3));
    struct header *items = h.items;
    for (int i = 0; i < 3; i++) {
        cr_assert(headers_add(&h, arena, SPAN("a"), SPAN("b")));
    }
    cr_assert(h.items == items && headers_reserve(&h, arena, 0) && h.items == items);
    for (int i = 0; i < 40; i++) {
        cr_assert(headers_add(&h, arena, SPAN("c"), SPAN("d")));
    }
    cr_assert(headers_count(&h, SPAN("a")) == 3 && headers_count(&h, SPAN("c")) == 40);
    cr_assert(headers_reserve(&h, arena, UINT32_MAX) && h.cap == HEADERS_MAX);
    arena_free(arena);
}

Test(headers, count_is_bounded)
{
    struct arena *arena = arena_new(1 << 20);
    struct headers h = {0};
    for (unsigned i = 0; i < HEADERS_MAX; i++) {
        cr_assert(headers_add(&h, arena, SPAN("a"), SPAN("b")));
    }
    cr_assert_not(headers_add(&h, arena, SPAN("a"), SPAN("b")));
    cr_assert_eq(h.count, HEADERS_MAX);
    arena_free(arena);
    struct headers small = {0};
    arena = arena_new(64);
    cr_assert_not(headers_add(&small, arena, SPAN("a"), SPAN("b")));
    arena_free(arena);
}

// The summary of the names says "absent" only if the name is absent. This holds after removals, and
// in lists that other code has built.
Test(headers, look_ups_that_end_early)
{
    struct arena *arena = arena_new(1 << 20);
    struct span value, name = SPAN("x-amz-date");
    struct header items[] = {{SPAN("X-Amz-Date"), SPAN("a")}, {SPAN("x-amz-date"), SPAN("b")}};
    struct headers made = {.items = items, .count = 2, .cap = 2}, h = {0};
    cr_assert(headers_get(&made, name, &value) && span_equal_cstr(value, "a"));
    cr_assert_eq(headers_count(&made, name), 2);
    cr_assert(headers_add(&made, arena, SPAN("Range"), SPAN("c")));
    cr_assert_eq(headers_count(&made, name), 2);
    cr_assert_eq(headers_count(&made, SPAN("range")), 1);
    cr_assert_eq(headers_find(&made, name, &value), 2);
    cr_assert(span_equal_cstr(value, "a"));

    static char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    for (size_t from = 0; from < sizeof(letters) - 1; from++) {
        for (size_t len = 1; len < sizeof(letters) - from && h.count < HEADERS_MAX; len += 7) {
            struct span added = {letters + from, len};
            cr_assert(headers_add(&h, arena, added, SPAN("v")));
            char *other = arena_cstr(arena, added);
            other[0] = (char)(isalpha((unsigned char)other[0]) ? other[0] ^ 0x20 : other[0]);
            cr_assert(headers_get(&h, (struct span){other, len}, &value), "%s", other);
            if (len == 1) {
                headers_remove(&h, added);
                cr_assert_eq(headers_count(&h, added), 0);
                cr_assert(headers_add(&h, arena, added, SPAN("v")));
                cr_assert(headers_count(&h, added) == 1);
            }
        }
        headers_remove(&h, (struct span){letters + from, 8});
    }
    arena_free(arena);
}

// A list may be spread over several header lines.
Test(headers, lists_in_several_lines)
{
    struct arena *arena = arena_new(65536);
    struct headers h = {0};
    cr_assert(headers_add(&h, arena, SPAN("Cache-Control"), SPAN("max-age=0")));
    cr_assert(headers_add(&h, arena, SPAN("Other"), SPAN("no-store")));
    cr_assert(headers_add(&h, arena, SPAN("cache-control"), SPAN("x, No-Cache")));
    cr_assert(headers_have_in_list(&h, SPAN("Cache-Control"), SPAN("no-cache")));
    cr_assert(headers_have_in_list(&h, SPAN("Cache-Control"), SPAN("max-age=0")));
    cr_assert_not(headers_have_in_list(&h, SPAN("Cache-Control"), SPAN("no-store")));
    arena_free(arena);
}

Test(headers, hop_by_hop_and_tokens)
{
    cr_assert(headers_is_hop_by_hop(SPAN("Connection")));
    cr_assert(headers_is_hop_by_hop(SPAN("Proxy-Authorization")));
    cr_assert(headers_is_hop_by_hop(SPAN("transfer-encoding")));
    cr_assert(headers_is_hop_by_hop(SPAN("HTTP2-Settings")));
    cr_assert_not(headers_is_hop_by_hop(SPAN("Content-Length")));
    cr_assert_not(headers_is_hop_by_hop(SPAN("proxy")));
    cr_assert(headers_list_has(SPAN("keep-alive, Close"), SPAN("close")));
    cr_assert_not(headers_list_has(SPAN("closed"), SPAN("close")));
    cr_assert(headers_value_is_clean(SPAN("a\tb \xc3\xa9")));
    cr_assert_not(headers_value_is_clean(SPAN("a\r\nb")));
    cr_assert_not(headers_value_is_clean((struct span){"a\0b", 3}));
    cr_assert_not(headers_value_is_clean(SPAN("\x7f")));
    cr_assert(headers_name_is_token(SPAN("x-amz-meta-a.b_c")));
    cr_assert_not(headers_name_is_token(SPAN("")));
    cr_assert_not(headers_name_is_token(SPAN("a b")));
    cr_assert_not(headers_name_is_token(SPAN("a:")));
    cr_assert_not(headers_name_is_token((struct span){"a\0", 2}));
    for (unsigned c = 0; c < 256; c++) {
        char byte = (char)c;
        bool alnum = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
        bool token = alnum || (c != 0 && strchr("!#$%&'*+-.^_`|~", (int)c) != NULL);
        cr_assert_eq(headers_name_is_token((struct span){&byte, 1}), token, "%02x", c);
        cr_assert_eq(headers_value_is_clean((struct span){&byte, 1}),
                     c == '\t' || (c >= 0x20 && c != 0x7f), "%02x", c);
    }
}

Test(headers, dates_format)
{
    char text[64];
    date_format_http(784111777, text);
    cr_assert_str_eq(text, "Sun, 06 Nov 1994 08:49:37 GMT");
    date_format_iso(1136214245, 7, text);
    cr_assert_str_eq(text, "2006-01-02T15:04:05.007Z");
    date_format_amz(1136214245, text);
    cr_assert_str_eq(text, "20060102T150405Z");
    date_format_http((time_t)INT64_MAX, text); // no year to print: the epoch
    cr_assert_str_eq(text, "Thu, 01 Jan 1970 00:00:00 GMT");
}

Test(headers, dates_parse_in_all_forms)
{
    time_t t;
    cr_assert(date_parse_http(SPAN("Sun, 06 Nov 1994 08:49:37 GMT"), &t));
    cr_assert_eq(t, 784111777);
    cr_assert(date_parse_http(SPAN("Sunday, 06-Nov-94 08:49:37 GMT"), &t));
    cr_assert_eq(t, 784111777);
    cr_assert(date_parse_http(SPAN("Sun Nov  6 08:49:37 1994"), &t));
    cr_assert_eq(t, 784111777);
    cr_assert(date_parse_http(SPAN("Thu, 29 Feb 2024 00:00:00 GMT"), &t));
    cr_assert(date_parse_amz(SPAN("20060102T150405Z"), &t));
    cr_assert_eq(t, 1136214245);
    const char *bad[] = {"",
                         "Sun, 06 Nov 1994 08:49:37",
                         "Sun, 31 Feb 2023 08:49:37 GMT",
                         "Thu, 29 Feb 2023 00:00:00 GMT",
                         "Sun, 06 Nov 1994 24:49:37 GMT",
                         "Sun, 06 Nov 1994 08:60:37 GMT",
                         "Xun, 06 Nov 1994 08:49:37 GMT",
                         "Sun, 06 Nov 1994 08:49:37 GMTx",
                         "Sun, 00 Nov 1994 08:49:37 GMT"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        cr_assert_not(date_parse_http(span_from_cstr(bad[i]), &t));
    }
    cr_assert_not(date_parse_amz(SPAN("20061302T150405Z"), &t));
    cr_assert_not(date_parse_amz(SPAN("20060102T150405"), &t));
    cr_assert_not(date_parse_amz(SPAN("20060002T150405Z"), &t));
    cr_assert_not(date_parse_amz(SPAN("20060102T150460Z"), &t)); // no leap second
    cr_assert_not(date_parse_amz(SPAN("00000102T150405Z"), &t)); // no year 0
}

// Formats and parses every month of every year with a form, and compares with the C library.
Test(headers, times_are_those_of_the_calendar)
{
    for (int year = 1; year <= 9999; year++) {
        for (int month = 1; month <= 12; month++) {
            struct tm tm = {.tm_year = year - 1900,
                            .tm_mon = month - 1,
                            .tm_mday = 1 + (year + month) % 28,
                            .tm_hour = year % 24,
                            .tm_min = (year + month) % 60,
                            .tm_sec = (year * month) % 60};
            char text[64];
            snprintf(text, sizeof(text), "%04d%02d%02dT%02d%02d%02dZ", year, month, tm.tm_mday,
                     tm.tm_hour, tm.tm_min, tm.tm_sec);
            time_t got = 0;
            cr_assert(date_parse_amz(span_from_cstr(text), &got), "%s", text);
            cr_assert_eq(got, timegm(&tm), "%s", text);
        }
        time_t last = 0, next = 0;
        char text[64];
        snprintf(text, sizeof(text), "%04d1231T000000Z", year);
        cr_assert(date_parse_amz(span_from_cstr(text), &last));
        snprintf(text, sizeof(text), "%04d0229T000000Z", year);
        bool leaps = date_parse_amz(span_from_cstr(text), &next);
        cr_assert_eq(leaps, year % 4 == 0 && (year % 100 != 0 || year % 400 == 0), "%s", text);
        snprintf(text, sizeof(text), "%04d0101T000000Z", year);
        cr_assert(date_parse_amz(span_from_cstr(text), &next));
        cr_assert_eq(last - next, (365 + leaps - 1) * 86400, "%d", year);
    }
}

Test(headers, dates_round_trip_over_four_centuries)
{
    char text[64];
    for (time_t t = 0; t < (time_t)400 * 366 * 86400; t += 86400 * 13 + 3607) {
        time_t back = -1;
        date_format_http(t, text);
        cr_assert(date_parse_http(span_from_cstr(text), &back));
        cr_assert_eq(back, t);
        date_format_amz(t, text);
        cr_assert(date_parse_amz(span_from_cstr(text), &back));
        cr_assert_eq(back, t);
    }
}

#ifdef FOREBAY_FAULTS
Test(headers, clock_can_be_moved)
{
    uint64_t before = clock_monotonic_us(), wall = clock_wall_us();
    clock_test_advance_us(3600ull * 1000000);
    cr_assert_geq(clock_monotonic_us(), before + 3600ull * 1000000);
    cr_assert_geq(clock_wall_us(), wall + 3600ull * 1000000);
}
#endif
