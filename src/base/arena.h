// SPDX-License-Identifier: Apache-2.0
// Per-request memory: allocate freely, free once. Under ASan each piece is an allocation of its
// own. One thread at a time.
#ifndef FOREBAY_BASE_ARENA_H
#define FOREBAY_BASE_ARENA_H

#include <stddef.h>

#include "base/bytes.h"
#include "base/chunk.h"

struct arena;

// `max_bytes` bounds everything a peer can make us allocate; arena_alloc past it returns NULL.
struct arena *arena_new(size_t max_bytes);
// The same, for data that a peer can make large. Pages after the first one of 8 KiB are charged to
// the budget until the arena gives them back.
struct arena *arena_new_counted(size_t max_bytes, enum chunk_budget_kind kind);
void arena_free(struct arena *arena); // NULL is fine
// Empties for the next request, keeping the first page.
void arena_reset(struct arena *arena);

// Bytes of its pages, without a first one of 8 KiB.
size_t arena_page_bytes(const struct arena *arena);

// 16-byte aligned, zeroed; NULL past the maximum.
void *arena_alloc(struct arena *arena, size_t size);
// The same with whatever stood there before: for what is written before it is read.
void *arena_take(struct arena *arena, size_t size);
// Copies; always NUL-terminated after len. ptr NULL past the maximum.
struct span arena_copy(struct arena *arena, struct span s);
char *arena_cstr(struct arena *arena, struct span s);
char *arena_printf(struct arena *arena, const char *format, ...) PRINTF_LIKE(2, 3);

#endif
