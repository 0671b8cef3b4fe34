// SPDX-License-Identifier: Apache-2.0
// Refcounted payload memory: what a fill receives, readers on any worker send, and the store
// writes. A chunk holds at most CHUNK_SIZE bytes. Its filler appends at the end; what has been
// announced to others (by mailbox) is never changed again, so they may read it without a lock. The
// count is atomic.
//
// The budget bounds what is held between origins and clients: all chunks of the process, and what
// else is held for a request (chunk_budget_charge()), which leaves less for chunks. chunk_new()
// returns NULL above it, and the caller pauses its source until the callback given to
// chunk_budget_wait() runs. A chunk taken with chunk_new_forced() (so that progress never stops)
// may exceed it and is counted. How far: every buffer between a source and its sink asks
// chunk_budget_share() how much it may hold, which above the budget is what is on its way and no
// more: a reply then holds a chunk that is being filled and one that is being sent.
#ifndef FOREBAY_BASE_CHUNK_H
#define FOREBAY_BASE_CHUNK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

#define CHUNK_SIZE 65536u

struct chunk {
    atomic_uint refs;
    uint32_t len;       // bytes the filler has written so far; others use the length they were told
    char *data;         // CHUNK_SIZE bytes, 4096-aligned
    struct chunk *next; // private
};

enum chunk_budget_kind {
    BUDGET_PAYLOAD,  // chunks
    BUDGET_CLIENTS,  // requests that wait or are being answered, long heads, TLS
    BUDGET_RUNS,     // runs that are written and not yet durable in the index
    BUDGET_ORIGINS,  // transfers: a handle of curl's and its receive buffer
    BUDGET_BODIES,   // bodies and documents that must be whole before they go on
    BUDGET_FOLDERS,  // names of folders that listings of a `dir:` origin walk through, and their
                     // answers
    BUDGET_WARM,     // names and objects at hand of warm jobs, listings for ourselves
    BUDGET_WRITES,   // keys that writes hold open, their invalidations in flight, doubts
    BUDGET_LISTINGS, // kept pages of listings, and questions for them
    BUDGET_ANSWERS,  // what HEADs have told of objects of which nothing is stored
    BUDGET_KINDS
};

void chunk_budget_init(uint64_t max_bytes);
uint64_t chunk_budget_max_bytes(void);
uint64_t chunk_budget_used_bytes(void); // of all kinds
uint64_t chunk_budget_kind_bytes(enum chunk_budget_kind kind);
uint64_t chunk_budget_peak_bytes(void);
// Nobody's, kept for the next: as much as is in use, within the budget; an eighth of it in any
// case.
uint64_t chunk_budget_resting_bytes(void);

// What is held and is no chunk. Never refused: who charges has a limit of its own. An eighth of the
// budget is left for chunks whatever happens.
void chunk_budget_charge(enum chunk_budget_kind kind, uint64_t bytes);
void chunk_budget_discharge(enum chunk_budget_kind kind, uint64_t bytes);
// Charges unless the kind would then have more than a quarter of the budget, or all kinds but
// payload more than seven eighths. `held`: what the caller has charged to the kind already. If
// nobody else holds any of it the caller gets what it asks for, so that every request fits when it
// is alone. False: nothing was charged; the caller answers SlowDown or takes less.
bool chunk_budget_try_charge(enum chunk_budget_kind kind, uint64_t held, uint64_t bytes) MUST_USE;

// A buffer whose memory is charged as it grows, until buf_done(). It is the maximum that bounds it.
void buf_init_counted(struct buf *b, size_t max, enum chunk_budget_kind kind);

bool chunk_budget_kind_is_short(
    enum chunk_budget_kind kind);            // more than half of its quarter is in use
bool chunk_budget_is_full(void);             // all kinds but payload hold what these may have
bool chunk_budget_is_short(void);            // more than half of what chunks may have is in use
bool chunk_budget_is_ample(void);            // less than an eighth of it is
uint64_t chunk_budget_lean(uint64_t plenty); // all of it; an eighth while the budget is short
// How many bytes a buffer may hold now whose full size is `plenty`: as chunk_budget_lean() says,
// but 1 when the budget is used up: then only an empty buffer takes something.
uint64_t chunk_budget_share(uint64_t plenty);

// What one socket's buffer in the kernel, which counts against a cgroup of version 2, may hold: so
// that 256 of them hold no more than the budget does. 128 KiB at least; 0: let the kernel choose,
// there is plenty.
uint64_t chunk_budget_socket_bytes(void);

struct chunk *chunk_new(void);        // NULL above the budget
struct chunk *chunk_new_forced(void); // aborts only when the kernel gives no memory
struct chunk *chunk_ref(struct chunk *chunk);
void chunk_unref(struct chunk *chunk); // NULL is fine

// `fn(ctx)` runs once, on whatever thread frees memory next below the budget (so it only posts a
// message). At most 4096 waiters; beyond that it runs at once.
void chunk_budget_wait(void (*fn)(void *ctx), void *ctx);

#endif
