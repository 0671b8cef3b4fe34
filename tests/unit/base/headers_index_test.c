// SPDX-License-Identifier: Apache-2.0
// Proves: the index finds the same headers as a walk over the list, in the same order, for any
// names.
#include "test.h"

#include "base/headers_index.h"

#include <stdio.h>
#include <string.h>

// Headers of `distinct` names, each again and again.
static void finds_every_header(unsigned count, unsigned distinct)
{
    struct arena *arena = arena_new(1 << 22);
    struct headers h = {0};
    struct headers_index index;
    for (unsigned i = 0; i < count; i++) {
        char *name = arena_printf(arena, i % 2 == 0 ? "x-Name-%u" : "X-NAME-%u", i % distinct);
        cr_assert(headers_add(&h, arena, span_from_cstr(name), SPAN("v")));
    }
    headers_index_build(&index, &h);
    for (unsigned i = 0; i <= distinct; i++) {
        char name[32];
        snprintf(name, sizeof(name), "x-nAME-%u", i);
        unsigned at = headers_index_find(&index, span_from_cstr(name));
        for (unsigned want = i; i < distinct && want < count; want += distinct) {
            cr_assert_eq(at, want, "%u of %u", count, distinct);
            at = headers_index_next(&index, at);
        }
        cr_assert_eq(at, HEADERS_INDEX_NONE, "%u of %u", count, distinct);
    }
    cr_assert_eq(headers_index_find(&index, SPAN("")), HEADERS_INDEX_NONE);
    arena_free(arena);
}

Test(headers_index, finds_every_header_of_a_name_in_order_of_arrival)
{
    static const unsigned counts[] = {
        0, 1, 31, HEADERS_INDEX_WALKED, HEADERS_INDEX_WALKED + 1, 200, HEADERS_MAX};
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
        finds_every_header(counts[i], 1);
        finds_every_header(counts[i], 13);
        finds_every_header(counts[i], 200);
    }
}

Test(headers_index, long_names_differ_in_any_byte)
{
    static char names[3][200];
    struct arena *arena = arena_new(1 << 16);
    struct headers h = {0};
    struct headers_index index;
    for (unsigned i = 0; i < HEADERS_INDEX_WALKED; i++) { // so that there is an index
        cr_assert(headers_add(&h, arena, SPAN("other"), SPAN("v")));
    }
    for (unsigned i = 0; i < 3; i++) {
        memset(names[i], 'n', sizeof(names[i]));
        names[i][i * 90] = 'M';
        cr_assert(headers_add(&h, arena, (struct span){names[i], sizeof(names[i])}, SPAN("v")));
    }
    headers_index_build(&index, &h);
    for (unsigned i = 0; i < 3; i++) {
        names[i][i * 90] = 'm';
        unsigned at = headers_index_find(&index, (struct span){names[i], sizeof(names[i])});
        cr_assert_eq(at, HEADERS_INDEX_WALKED + i);
        cr_assert_eq(headers_index_next(&index, at), HEADERS_INDEX_NONE);
    }
    arena_free(arena);
}
