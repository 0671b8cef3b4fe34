// SPDX-License-Identifier: Apache-2.0
// Proves that ranges and conditions are read as S3 reads them, against tables and against a naive
// model.
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http/http.h"

struct range_row {
    const char *value;
    uint64_t size;
    enum http_range_result result;
    uint64_t first, last;
};

static const struct range_row range_rows[] = {
    {"bytes=0-0", 100, HTTP_RANGE_PARTIAL, 0, 0},
    {"bytes=00-01", 100, HTTP_RANGE_PARTIAL, 0, 1},
    {"bytes=10-19", 100, HTTP_RANGE_PARTIAL, 10, 19},
    {"bytes=0-99", 100, HTTP_RANGE_PARTIAL, 0, 99},
    {"bytes=0-", 100, HTTP_RANGE_PARTIAL, 0, 99},
    {"bytes=0-999999", 100, HTTP_RANGE_PARTIAL, 0, 99},
    {"bytes=99-", 100, HTTP_RANGE_PARTIAL, 99, 99},
    {"bytes=99-99", 100, HTTP_RANGE_PARTIAL, 99, 99},
    {"bytes=-1", 100, HTTP_RANGE_PARTIAL, 99, 99},
    {"bytes=-100", 100, HTTP_RANGE_PARTIAL, 0, 99},
    {"bytes=-101", 100, HTTP_RANGE_PARTIAL, 0, 99},
    {"bytes=-0", 100, HTTP_RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=100-", 100, HTTP_RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=100-110", 100, HTTP_RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=10-5", 100, HTTP_RANGE_WHOLE, 0, 0},
    {"bytes=abc", 100, HTTP_RANGE_WHOLE, 0, 0},
    {"bytes=,", 100, HTTP_RANGE_WHOLE, 0, 0},
    {"bytes=", 100, HTTP_RANGE_WHOLE, 0, 0},
    {"bytes", 100, HTTP_RANGE_WHOLE, 0, 0},
    {"", 100, HTTP_RANGE_WHOLE, 0, 0},
    {"bytes=-", 100, HTTP_RANGE_WHOLE, 0, 0},
    {"bytes= -1", 100, HTTP_RANGE_WHOLE, 0, 0},
    {"bytes=--1", 100, HTTP_RANGE_WHOLE, 0, 0},
    {"bytes=0--1", 100, HTTP_RANGE_WHOLE, 0, 0},
    {"bytes=0 -1", 100, HTTP_RANGE_WHOLE, 0, 0},
    {"bytes=0-1 ", 100, HTTP_RANGE_WHOLE, 0, 0},
    {"bytes=100-x", 100, HTTP_RANGE_WHOLE, 0, 0},
    {"bytes=+1-2", 100, HTTP_RANGE_WHOLE, 0, 0},
    {"bytes=0x1-2", 100, HTTP_RANGE_WHOLE, 0, 0},
    {"foo=0-1", 100, HTTP_RANGE_WHOLE, 0, 0},
    {"bytes =0-1", 100, HTTP_RANGE_WHOLE, 0, 0},
    {"bytes=0-0,1-2", 100, HTTP_RANGE_WHOLE, 0, 0},
    {"bytes=0-0, 1-2", 100, HTTP_RANGE_WHOLE, 0, 0},
    {"bytes=-1", 0, HTTP_RANGE_WHOLE, 0, 0},
    {"bytes=0-0", 0, HTTP_RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=0-", 0, HTTP_RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=-0", 0, HTTP_RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=00-01", 0, HTTP_RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=0-18446744073709551615", 100, HTTP_RANGE_PARTIAL, 0, 99},
    {"bytes=0-18446744073709551616", 100, HTTP_RANGE_PARTIAL, 0, 99},
    {"bytes=0-99999999999999999999999999999999", 100, HTTP_RANGE_PARTIAL, 0, 99},
    {"bytes=-99999999999999999999999999999999", 100, HTTP_RANGE_PARTIAL, 0, 99},
    {"bytes=99999999999999999999999999999999-", 100, HTTP_RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=18446744073709551615-18446744073709551615", UINT64_MAX, HTTP_RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=99999999999999999999999-99999999999999999999998", 100, HTTP_RANGE_WHOLE, 0, 0},
    {"bytes=5-9223372036854775808", UINT64_MAX, HTTP_RANGE_PARTIAL, 5, 9223372036854775808u},
    {"bytes=1-2147483648", 1ull << 32, HTTP_RANGE_PARTIAL, 1, 2147483648u},
};

// Each row of S3's table, and what lies beyond 64 bits.
Test(http_range, table)
{
    for (size_t i = 0; i < ARRAY_LEN(range_rows); i++) {
        const struct range_row *row = &range_rows[i];
        struct http_range range;
        uint64_t first = 0, last = 0;
        http_range_parse(span_from_cstr(row->value), &range);
        enum http_range_result result = http_range_resolve(&range, row->size, &first, &last);
        cr_assert(result == row->result && first == row->first && last == row->last,
                  "row %zu: %s of %llu", i, row->value, (unsigned long long)row->size);
    }
}

// Only several well-formed ranges are reported as several.
Test(http_range, several)
{
    struct http_range range;
    http_range_parse(SPAN("bytes=0-0,1-2"), &range);
    cr_assert(range.several && range.kind == HTTP_RANGE_NONE);
    http_range_parse(SPAN("bytes=0-0,x"), &range);
    cr_assert(!range.several);
    http_range_parse(SPAN("bytes=0-0"), &range);
    cr_assert(!range.several);
}

// For every a, b and size below 12: a satisfied range is inside the object and selects the same
// bytes as a naive loop.
Test(http_range, equals_naive_model)
{
    for (int a = -1; a < 12; a++) {
        for (int b = -1; b < 12; b++) {
            for (uint64_t size = 0; size < 12; size++) {
                char text[64], left[16] = "", right[16] = "";
                if (a >= 0) {
                    snprintf(left, sizeof(left), "%d", a);
                }
                if (b >= 0) {
                    snprintf(right, sizeof(right), "%d", b);
                }
                snprintf(text, sizeof(text), "bytes=%s-%s", left, right);
                uint64_t want_first = UINT64_MAX, want_last = 0;
                for (uint64_t i = 0; i < size; i++) {
                    bool in = a >= 0 ? i >= (uint64_t)a && (b < 0 || i <= (uint64_t)b)
                                     : b >= 0 && size - i <= (uint64_t)b;
                    if (in && want_first == UINT64_MAX) {
                        want_first = i;
                    }
                    want_last = in ? i : want_last;
                }
                struct http_range range;
                uint64_t first = 0, last = 0;
                http_range_parse(span_from_cstr(text), &range);
                enum http_range_result result = http_range_resolve(&range, size, &first, &last);
                bool ignored = (a < 0 && b < 0) || (a >= 0 && b >= 0 && a > b);
                if (ignored || (a < 0 && b > 0 && size == 0)) {
                    cr_assert(result == HTTP_RANGE_WHOLE, "%s", text);
                } else if (want_first == UINT64_MAX) {
                    cr_assert(result == HTTP_RANGE_UNSATISFIABLE, "%s of %d", text, (int)size);
                } else {
                    cr_assert(result == HTTP_RANGE_PARTIAL && first == want_first &&
                                  last == want_last,
                              "%s of %d", text, (int)size);
                }
            }
        }
    }
}

// Quotes and weakness marks in all the forms clients send.
Test(http_range, etags)
{
    struct span etag = SPAN("\"abc-1\"");
    cr_assert(http_etag_list_matches(SPAN("\"abc-1\""), etag));
    cr_assert(http_etag_list_matches(SPAN("abc-1"), etag));
    cr_assert(http_etag_list_matches(SPAN("\"\"abc-1\"\""), etag));
    cr_assert(http_etag_list_matches(SPAN("W/\"abc-1\""), etag));
    cr_assert(http_etag_list_matches(SPAN("*"), etag));
    cr_assert(http_etag_list_matches(SPAN("\"x\", \"abc-1\" ,\"y\""), etag));
    cr_assert(http_etag_list_matches(SPAN("\"a,b\""), SPAN("\"a,b\"")));
    cr_assert(!http_etag_list_matches(SPAN("\"abc\""), etag));
    cr_assert(!http_etag_list_matches(SPAN("\"x\",\"y\""), etag));
    cr_assert(!http_etag_list_matches(SPAN(""), etag));
    cr_assert(!http_etag_list_matches(SPAN("\"\""), SPAN("\"\"")));
    cr_assert(span_equal_cstr(http_etag_strip(SPAN(" W/\"q\" ")), "q"));
    cr_assert(span_equal_cstr(http_etag_strip(SPAN("\"")), ""));
}

#define EARLY "Sun, 06 Nov 1994 08:49:37 GMT"
#define LATE "Sun, 06 Nov 2044 08:49:37 GMT"
#define THEN ((time_t)1700000000)

struct condition_row {
    const char *name1, *value1, *name2, *value2;
    enum http_condition want;
    const char *failed;
};

static const struct condition_row condition_rows[] = {
    {"If-Match", "\"e\"", NULL, NULL, HTTP_CONDITION_PASS, NULL},
    {"If-Match", "\"x\"", NULL, NULL, HTTP_CONDITION_FAILED, "If-Match"},
    {"If-Match", "*", NULL, NULL, HTTP_CONDITION_PASS, NULL},
    {"If-Match", "W/\"e\"", NULL, NULL, HTTP_CONDITION_FAILED, "If-Match"},
    {"If-Match", "\"e\"", "If-Unmodified-Since", EARLY, HTTP_CONDITION_PASS, NULL},
    {"If-Match", "\"x\"", "If-Unmodified-Since", LATE, HTTP_CONDITION_FAILED, "If-Match"},
    {"If-Unmodified-Since", EARLY, NULL, NULL, HTTP_CONDITION_FAILED, "If-Unmodified-Since"},
    {"If-Unmodified-Since", LATE, NULL, NULL, HTTP_CONDITION_PASS, NULL},
    {"If-Unmodified-Since", "yesterday", NULL, NULL, HTTP_CONDITION_PASS, NULL},
    {"If-None-Match", "\"e\"", NULL, NULL, HTTP_CONDITION_NOT_MODIFIED, "If-None-Match"},
    {"If-None-Match", "*", NULL, NULL, HTTP_CONDITION_NOT_MODIFIED, "If-None-Match"},
    {"If-None-Match", "W/\"e\"", NULL, NULL, HTTP_CONDITION_NOT_MODIFIED, "If-None-Match"},
    {"If-None-Match", "\"x\"", NULL, NULL, HTTP_CONDITION_PASS, NULL},
    {"If-None-Match", "\"e\"", "If-Modified-Since", EARLY, HTTP_CONDITION_NOT_MODIFIED,
     "If-None-Match"},
    {"If-None-Match", "\"x\"", "If-Modified-Since", LATE, HTTP_CONDITION_PASS, NULL},
    {"If-Modified-Since", LATE, NULL, NULL, HTTP_CONDITION_NOT_MODIFIED, "If-Modified-Since"},
    {"If-Modified-Since", EARLY, NULL, NULL, HTTP_CONDITION_PASS, NULL},
    {"If-Modified-Since", "0", NULL, NULL, HTTP_CONDITION_PASS, NULL},
    {"If-Match", "\"e\"", "If-None-Match", "\"e\"", HTTP_CONDITION_NOT_MODIFIED, "If-None-Match"},
    {"If-Match", "\"x\"", "If-None-Match", "\"e\"", HTTP_CONDITION_FAILED, "If-Match"},
    {"X-Other", "x", NULL, NULL, HTTP_CONDITION_PASS, NULL},
};

// The precedence of the headers. A date that cannot be parsed counts as no header.
Test(http_range, conditions)
{
    for (size_t i = 0; i < ARRAY_LEN(condition_rows); i++) {
        const struct condition_row *row = &condition_rows[i];
        struct arena *arena = arena_new(65536);
        struct headers headers = {0};
        cr_assert(
            headers_add(&headers, arena, span_from_cstr(row->name1), span_from_cstr(row->value1)));
        if (row->name2 != NULL) {
            cr_assert(headers_add(&headers, arena, span_from_cstr(row->name2),
                                  span_from_cstr(row->value2)));
        }
        struct http_conditions c;
        http_conditions_parse(&headers, &c);
        enum http_condition got = http_conditions_evaluate(&c, SPAN("\"e\""), THEN);
        cr_assert(got == row->want, "row %zu", i);
        cr_assert((c.failed == NULL) == (row->failed == NULL), "row %zu", i);
        cr_assert(c.failed == NULL || strcmp(c.failed, row->failed) == 0, "row %zu", i);
        arena_free(arena);
    }
}

// An object without a date never counts as not modified.
Test(http_range, conditions_without_a_date)
{
    for (unsigned i = 0; i < 2; i++) {
        struct http_conditions c = {.has_if_modified_since = i == 0,
                                    .has_if_unmodified_since = i == 1,
                                    .if_modified_since = THEN,
                                    .if_unmodified_since = THEN};
        cr_assert_eq(http_conditions_evaluate(&c, SPAN("\"e\""), 0), HTTP_CONDITION_PASS);
    }
}

// Only a strong ETag allows a range. A date never does.
Test(http_range, if_range)
{
    struct http_conditions c = {0};
    cr_assert(http_if_range_holds(&c, SPAN("\"e\"")));
    cr_assert(!http_conditions_any(&c));
    c.has_if_range = true;
    c.if_range = SPAN("\"e\"");
    cr_assert(http_conditions_any(&c));
    cr_assert(http_if_range_holds(&c, SPAN("\"e\"")));
    cr_assert(!http_if_range_holds(&c, SPAN("\"f\"")));
    cr_assert(!http_if_range_holds(&c, SPAN("W/\"e\"")));
    c.if_range = SPAN("W/\"e\"");
    cr_assert(!http_if_range_holds(&c, SPAN("\"e\"")));
    c.if_range = SPAN(EARLY);
    cr_assert(!http_if_range_holds(&c, SPAN("\"e\"")));
}
