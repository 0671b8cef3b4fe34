// SPDX-License-Identifier: Apache-2.0
// Refcounted payload memory: what a fill receives, readers on any worker send, and the store
// writes. A chunk holds at most CHUNK_SIZE bytes. Its filler appends at the end; what has been
// announced to others (by mailbox) is never changed again, so they may read it without a lock. The
// count is atomic.
//
// All chunks of the process together are bounded by the budget: chunk_new() returns NULL above it,
// and the caller pauses its source until the callback given to chunk_budget_wait() runs. A chunk
// taken with chunk_new_forced() (so that progress never stops) may exceed it and is counted. How far:
// every buffer between a source and its sink asks chunk_budget_share() how much it may hold, which
// above the budget is what is on its way and no more: a reply then holds a chunk that is being filled
// and one that is being sent.
#ifndef FOREBAY_BASE_CHUNK_H
#define FOREBAY_BASE_CHUNK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHUNK_SIZE 65536u

struct chunk {
    atomic_uint refs;
    uint32_t len; // bytes the filler has written so far; others use the length they were told
    char *data;   // CHUNK_SIZE bytes, 4096-aligned
};

void chunk_budget_init(uint64_t max_bytes);
uint64_t chunk_budget_max_bytes(void);
uint64_t chunk_budget_used_bytes(void);
uint64_t chunk_budget_peak_bytes(void);
bool chunk_budget_is_short(void);            // more than half of it is in use
uint64_t chunk_budget_lean(uint64_t plenty); // all of it; an eighth while the budget is short
// How many bytes a buffer may hold now whose full size is `plenty`: as chunk_budget_lean() says, but
// 1 when the budget is used up: then only an empty buffer takes something.
uint64_t chunk_budget_share(uint64_t plenty);

struct chunk *chunk_new(void);        // NULL above the budget
struct chunk *chunk_new_forced(void); // aborts only when malloc fails
struct chunk *chunk_ref(struct chunk *chunk);
void chunk_unref(struct chunk *chunk); // NULL is fine

// `fn(ctx)` runs once, on whatever thread frees memory next below the budget (so it only posts a
// message). At most 4096 waiters; beyond that it runs at once.
void chunk_budget_wait(void (*fn)(void *ctx), void *ctx);

#endif
