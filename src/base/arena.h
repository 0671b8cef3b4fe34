// SPDX-License-Identifier: Apache-2.0
// Memory for a request: many allocations that are freed together. Under ASan each piece is a
// separate allocation. Only one thread at a time may use an arena.
#ifndef FOREBAY_BASE_ARENA_H
#define FOREBAY_BASE_ARENA_H

#include <stddef.h>

#include "base/bytes.h"
#include "base/chunk.h"

struct arena;

// `max_bytes` limits what a peer can make us allocate. Beyond it, arena_alloc() returns NULL.
struct arena *arena_new(size_t max_bytes);
// Like arena_new(), for data that a peer can make large. All pages except a first one of 8 KiB are
// charged to the budget (chunk_budget_charge()) until they are freed.
struct arena *arena_new_counted(size_t max_bytes, enum chunk_budget_kind kind);
void arena_free(struct arena *arena); // accepts NULL
// Empties the arena for the next request and keeps the first page.
void arena_reset(struct arena *arena);

// Returns the bytes of all pages, except for a first page of 8 KiB.
size_t arena_page_bytes(const struct arena *arena);

// Returns zeroed memory, aligned to 16 bytes, or NULL beyond the maximum.
void *arena_alloc(struct arena *arena, size_t size);
// Like arena_alloc(), but without zeroing. For memory that is written before it is read.
void *arena_take(struct arena *arena, size_t size);
// Returns a copy with a NUL after it. Its ptr is NULL beyond the maximum.
struct span arena_copy(struct arena *arena, struct span s);
char *arena_cstr(struct arena *arena, struct span s);
char *arena_printf(struct arena *arena, const char *format, ...) PRINTF_LIKE(2, 3);

#endif
