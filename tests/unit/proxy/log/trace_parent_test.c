// SPDX-License-Identifier: Apache-2.0
// Proves: of traceparent only what W3C trace context allows, and only what is sampled, names a
// trace.
#include "test.h"

#include "proxy/log/trace_parent.h"

#include <stdlib.h>
#include <string.h>

#define ID "0af7651916cd43dd8448eb211c80319c"
#define PARENT "b7ad6b7169203331"

static bool is_sampled(const char *name, const char *first, const char *second, uint64_t id[2])
{
    struct arena *arena = arena_new(4096);
    struct headers headers = {0};
    cr_assert(headers_add(&headers, arena, SPAN("accept"), SPAN("*/*")));
    if (first != NULL) {
        cr_assert(headers_add(&headers, arena, span_from_cstr(name), span_from_cstr(first)));
    }
    if (second != NULL) {
        cr_assert(headers_add(&headers, arena, span_from_cstr(name), span_from_cstr(second)));
    }
    bool is = trace_parent_sampled(&headers, id);
    arena_free(arena);
    return is;
}

Test(trace_parent, a_sampled_one_is_read)
{
    static const char *const good[] = {"00-" ID "-" PARENT "-01", "00-" ID "-" PARENT "-ff",
                                       "cc-" ID "-" PARENT "-03",
                                       "01-" ID "-" PARENT "-01-what-else"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        uint64_t id[2];
        cr_assert(is_sampled("TraceParent", good[i], NULL, id), "%s", good[i]);
        cr_assert(id[0] == 0x0af7651916cd43ddull && id[1] == 0x8448eb211c80319cull);
    }
}

Test(trace_parent, all_else_is_none)
{
    static const char *const bad[] = {
        "",
        "00",
        "00-",
        "00-" ID "-" PARENT,
        "00-" ID "-" PARENT "-",
        "00-" ID "-" PARENT "-0",
        "00-" ID "-" PARENT "-00",
        "00-" ID "-" PARENT "-02", // not sampled
        "00-" ID "-" PARENT "-01-x",
        "00-" ID "-" PARENT "-011", // too long
        "01-" ID "-" PARENT "-01x", // no dash
        "ff-" ID "-" PARENT "-01",
        "0-" ID "-" PARENT "-01", // versions
        "0G-" ID "-" PARENT "-01",
        "00-" ID "-" PARENT "-0g",                            // digits
        "00-0AF7651916CD43DD8448EB211C80319C-" PARENT "-01",  // upper case
        "00-0af7651916cd43dd8448eb211c80319\"-" PARENT "-01", // what a label would end at
        "00-0af7651916cd43dd8448eb211c80319\n-" PARENT "-01",
        "00-0af7651916cd43dd8448eb211c8031\xc3\xa9-" PARENT "-01",
        "00-00000000000000000000000000000000-" PARENT "-01",
        "00-" ID "-0000000000000000-01",
        "00_" ID "-" PARENT "-01",
        "00-" ID "_" PARENT "-01",
        "00-" ID "-" PARENT "_01",
        " 00-" ID "-" PARENT "-01"};
    uint64_t id[2];
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        cr_assert_not(is_sampled("traceparent", bad[i], NULL, id), "%s", bad[i]);
    }
    cr_assert_not(is_sampled("traceparent", NULL, NULL, id));
    cr_assert_not(is_sampled("tracestate", "00-" ID "-" PARENT "-01", NULL, id));
    // which of two is meant nobody knows
    cr_assert_not(
        is_sampled("traceparent", "00-" ID "-" PARENT "-01", "00-" ID "-" PARENT "-01", id));
}

// Whatever bytes: the answer is one, and nothing behind them is read (each in memory of its own
// size).
Test(trace_parent, any_bytes)
{
    static const char good[] = "00-" ID "-" PARENT "-01";
    for (size_t len = 0; len < sizeof(good); len++) {
        for (unsigned byte = 0; byte < 256; byte++) {
            struct arena *arena = arena_new(4096);
            struct headers headers = {0};
            uint64_t id[2];
            char *value = malloc(len + 1);
            cr_assert_not_null(value);
            memcpy(value, good, len);
            value[len] = (char)byte; // behind the end of all but the longest
            cr_assert(
                headers_add(&headers, arena, SPAN("traceparent"), (struct span){value, len + 1}));
            bool is = trace_parent_sampled(&headers, id);
            cr_assert(!is || len == sizeof(good) - 2, "%zu %u", len, byte);
            arena_free(arena);
            free(value);
        }
    }
}
