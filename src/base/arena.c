// SPDX-License-Identifier: Apache-2.0
// An arena is a list of pages, the newest first. Pieces are cut from the end of the newest page.
// The oldest page survives arena_reset(), so that a keep-alive connection allocates nothing per
// request. Under ASan every piece is a page of its own, so that an overrun is detected. An arena is
// used by one thread at a time; its creator frees it.
#include "base/arena.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_MAGIC 0x6172656e61000001u
#define FIRST_PAGE_BYTES 8192u // enough for a request with a Range
#define PAGE_BYTES 16384u

struct page {
    struct page *next;
    size_t cap, used;
    _Alignas(16) char bytes[];
};

struct arena {
    uint64_t magic;
    struct page *pages; // newest first
    size_t used_bytes, max_bytes;
    bool is_counted;
    enum chunk_budget_kind kind;
    size_t charged_bytes;
};

static struct page *page_new(size_t cap)
{
    struct page *page = malloc(sizeof(*page) + cap);
    if (page != NULL) {
        page->next = NULL;
        page->cap = cap;
        page->used = 0;
    }
    return page;
}

struct arena *arena_new(size_t max_bytes)
{
    struct arena *arena = calloc(1, sizeof(*arena));
    check(arena != NULL);
    arena->magic = ARENA_MAGIC;
    arena->max_bytes = max_bytes;
    return arena;
}

struct arena *arena_new_counted(size_t max_bytes, enum chunk_budget_kind kind)
{
    struct arena *arena = arena_new(max_bytes);
    arena->is_counted = true;
    arena->kind = kind;
    return arena;
}

// Frees all pages. With `keep_first`, the oldest page stays if it has FIRST_PAGE_BYTES.
static void free_pages(struct arena *arena, bool keep_first)
{
    struct page *page = arena->pages;
    arena->pages = NULL;
    if (arena->charged_bytes > 0) {
        chunk_budget_discharge(arena->kind, arena->charged_bytes);
        arena->charged_bytes = 0;
    }
    while (page != NULL) {
        struct page *next = page->next;
        if (keep_first && next == NULL && page->cap == FIRST_PAGE_BYTES) {
            page->used = 0;
            arena->pages = page;
        } else {
            free(page);
        }
        page = next;
    }
}

void arena_free(struct arena *arena)
{
    if (arena == NULL) {
        return;
    }
    check(arena->magic == ARENA_MAGIC);
    free_pages(arena, false);
    arena->magic = 0;
    free(arena);
}

void arena_reset(struct arena *arena)
{
    check(arena->magic == ARENA_MAGIC);
    free_pages(arena, true);
    arena->used_bytes = 0;
}

size_t arena_page_bytes(const struct arena *arena)
{
    size_t bytes = 0;
    for (const struct page *page = arena->pages; page != NULL; page = page->next) {
        bytes += page->next == NULL && page->cap <= FIRST_PAGE_BYTES ? 0 : page->cap;
    }
    return bytes;
}

// Adds a page with room for `size` and returns it. Returns NULL if there is no memory.
static struct page *arena_grow(struct arena *arena, size_t size)
{
#ifdef FOREBAY_ASAN
    size_t cap = size;
#else
    size_t cap = arena->pages == NULL ? FIRST_PAGE_BYTES : PAGE_BYTES;
    if (size > cap) {
        cap = size;
    }
#endif
    struct page *page = page_new(cap);
    if (page != NULL) {
        if (arena->is_counted && (arena->pages != NULL || cap > FIRST_PAGE_BYTES)) {
            chunk_budget_charge(arena->kind, cap);
            arena->charged_bytes += cap;
        }
        page->next = arena->pages;
        arena->pages = page;
    }
    return page;
}

void *arena_take(struct arena *arena, size_t size)
{
    check(arena->magic == ARENA_MAGIC);
    if (size > arena->max_bytes || arena->max_bytes - size < arena->used_bytes) {
        return NULL;
    }
    size_t step = (size + 15) & ~(size_t)15;
    struct page *page = arena->pages;
#ifdef FOREBAY_ASAN
    step = size;
    page = NULL;
#endif
    if (page == NULL || page->cap - page->used < step) {
        page = arena_grow(arena, step);
        if (page == NULL) {
            return NULL;
        }
    }
    void *piece = page->bytes + page->used;
    page->used += step;
    arena->used_bytes += size;
    return piece;
}

void *arena_alloc(struct arena *arena, size_t size)
{
    void *piece = arena_take(arena, size);
    return piece != NULL ? memset(piece, 0, size) : NULL;
}

struct span arena_copy(struct arena *arena, struct span s)
{
    char *copy = s.len < SIZE_MAX ? arena_take(arena, s.len + 1) : NULL;
    if (copy == NULL) {
        return (struct span){NULL, 0};
    }
    if (s.len > 0) {
        memcpy(copy, s.ptr, s.len);
    }
    copy[s.len] = '\0';
    return (struct span){copy, s.len};
}

char *arena_cstr(struct arena *arena, struct span s)
{
    struct span copy = arena_copy(arena, s);
    return (char *)(uintptr_t)copy.ptr;
}

// Bytes that the next piece can have without a new page.
static size_t room_of(const struct arena *arena)
{
    const struct page *page = arena->pages;
    return page != NULL ? page->cap - page->used : 0;
}

char *arena_printf(struct arena *arena, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    // Most texts fit into the page, and are formatted once, where the piece is going to be.
    size_t room = room_of(arena);
    char *end = room > 0 ? arena->pages->bytes + arena->pages->used : NULL;
    int len = vsnprintf(end, room, format, args);
    va_end(args);
    char *text = len >= 0 ? arena_take(arena, (size_t)len + 1) : NULL;
    if (text != NULL && text != end) {
        (void)vsnprintf(text, (size_t)len + 1, format, again); // the first call measured it
    }
    va_end(again);
    return text;
}
