// SPDX-License-Identifier: Apache-2.0
// Proves: arena memory is zeroed, aligned, bounded, and cleanups run newest first exactly once.
#include "test.h"

#include "base/arena.h"

#include <string.h>

Test(arena, pieces_are_zeroed_and_aligned_also_after_reset)
{
    struct arena *arena = arena_new(1 << 20);
    for (int round = 0; round < 3; round++) {
        for (size_t size = 1; size < 9000; size = size * 2 + 1) {
            char *piece = arena_alloc(arena, size);
            cr_assert_not_null(piece);
            cr_assert_eq((uintptr_t)piece % 16, 0);
            for (size_t i = 0; i < size; i++) {
                cr_assert_eq(piece[i], 0);
            }
            memset(piece, 0xaa, size);
        }
        arena_reset(arena);
    }
    arena_free(arena);
}

// Pages for data that a peer can make large are charged. A reset gives them back, and so does the
// end.
Test(arena, counted_pages_are_charged_until_they_are_freed)
{
    chunk_budget_init(1 << 20);
    struct arena *arena = arena_new_counted(1 << 20, BUDGET_ORIGINS);
    for (unsigned round = 0; round < 2; round++) {
        cr_assert_not_null(arena_alloc(arena, 100));
        uint64_t small = chunk_budget_kind_bytes(BUDGET_ORIGINS);
        cr_assert_leq(small, 256); // under ASan each piece is a page
        cr_assert_not_null(arena_alloc(arena, 100000));
        cr_assert_geq(chunk_budget_kind_bytes(BUDGET_ORIGINS), 100000);
        arena_reset(arena);
        cr_assert_eq(chunk_budget_used_bytes(), 0);
    }
    cr_assert_not_null(arena_alloc(arena, 200000));
    arena_free(arena);
    cr_assert_eq(chunk_budget_used_bytes(), 0);
    chunk_budget_init(0);
}

// Whether a text fits into the current page or not, all of it is there.
Test(arena, texts_of_any_length_are_whole)
{
    struct arena *arena = arena_new(4 << 20);
    const char *before = "";
    for (int len = 0; len < 2000; len++) {
        const char *text = arena_printf(arena, "%*d", len, 7);
        cr_assert_eq(strlen(text), len > 1 ? (size_t)len : 1);
        cr_assert_eq(text[strlen(text) - 1], '7');
        cr_assert(before[0] == '\0' || before[strlen(before) - 1] == '7');
        before = text;
    }
    arena_free(arena);
}

Test(arena, refuses_past_its_maximum)
{
    struct arena *arena = arena_new(1000);
    cr_assert_not_null(arena_alloc(arena, 600));
    cr_assert_null(arena_alloc(arena, 401));
    cr_assert_null(arena_alloc(arena, SIZE_MAX));
    cr_assert_null(arena_copy(arena, (struct span){NULL, SIZE_MAX}).ptr);
    cr_assert_not_null(arena_alloc(arena, 400));
    cr_assert_null(arena_alloc(arena, 1));
    cr_assert_null(arena_printf(arena, "%d", 1));
    arena_reset(arena);
    cr_assert_not_null(arena_alloc(arena, 1000));
    arena_free(arena);
}

Test(arena, copies_end_with_nul)
{
    struct arena *arena = arena_new(1000);
    struct span copy = arena_copy(arena, (struct span){"abcdef", 3});
    cr_assert_eq(copy.len, 3);
    cr_assert_str_eq(copy.ptr, "abc");
    cr_assert_str_eq(arena_cstr(arena, (struct span){NULL, 0}), "");
    cr_assert_str_eq(arena_printf(arena, "%s-%d", "x", 7), "x-7");
    arena_free(arena);
    arena_free(NULL);
}
