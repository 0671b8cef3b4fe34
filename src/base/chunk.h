// SPDX-License-Identifier: Apache-2.0
// Chunks: payload memory with a reference count. Fills receive into chunks, readers on any worker
// send from them, and the store writes them. A chunk holds at most CHUNK_SIZE bytes. Only the
// thread that fills a
// chunk appends to it. Bytes that were announced to others by mailbox never change again, so others
// read them without a lock. The count is atomic.
//
// The budget bounds all memory between origins and clients: all chunks of the process, plus other
// memory of requests (chunk_budget_charge()), which leaves less for chunks. Above the budget
// chunk_new() returns NULL, and the caller pauses its source until the callback given to
// chunk_budget_wait() runs. A chunk from chunk_new_forced(), which guarantees progress, may exceed
// the budget and is counted.
//
// Every buffer between a source and its sink asks chunk_budget_share() for its limit, which bounds
// the excess. Above the budget that limit covers only bytes in transit: a reply holds one chunk
// that is being filled and one that is being sent.
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
    uint32_t len;       // bytes written so far; readers use the length that was announced to them
    char *data;         // CHUNK_SIZE bytes, 4096-aligned
    struct chunk *next; // private
};

enum chunk_budget_kind {
    BUDGET_PAYLOAD,  // chunks
    BUDGET_CLIENTS,  // requests that wait or are being answered, long heads, TLS
    BUDGET_RUNS,     // runs that are written and not yet durable in the index
    BUDGET_ORIGINS,  // transfers: curl handles and their receive buffers
    BUDGET_BODIES,   // bodies and documents that must be complete before they are used
    BUDGET_FOLDERS,  // folder names that listings of a `dir:` origin read, and their
                     // answers
    BUDGET_WARM,     // names and current objects of warm jobs, listings for internal use
    BUDGET_WRITES,   // keys of open writes, their invalidations in flight, doubts
    BUDGET_LISTINGS, // kept pages of listings, and requests for them between workers
    BUDGET_ANSWERS,  // kept answers to HEAD, for objects without stored runs
    BUDGET_KINDS
};

void chunk_budget_init(uint64_t max_bytes);
uint64_t chunk_budget_max_bytes(void);
uint64_t chunk_budget_used_bytes(void); // of all kinds
uint64_t chunk_budget_kind_bytes(enum chunk_budget_kind kind);
uint64_t chunk_budget_peak_bytes(void);
// Bytes of resting chunks, which have no owner and are kept for reuse. At most as many as are in
// use or an eighth of the budget, whichever is more, and within the budget.
uint64_t chunk_budget_resting_bytes(void);

// Charges memory that is not a chunk. Never fails, because each caller has a separate limit. An
// eighth of the budget is always left for chunks.
void chunk_budget_charge(enum chunk_budget_kind kind, uint64_t bytes);
void chunk_budget_discharge(enum chunk_budget_kind kind, uint64_t bytes);
// Charges `bytes`, unless the kind would then have more than a quarter of the budget, or all kinds
// except payload more than seven eighths. `held` is what the caller has charged to the kind
// already. If no other caller holds memory of the kind, the charge always succeeds, so that every
// request fits when it is alone. Returns false if nothing was charged; the caller then answers
// SlowDown or takes less.
bool chunk_budget_try_charge(enum chunk_budget_kind kind, uint64_t held, uint64_t bytes) MUST_USE;

// Starts a buffer whose memory is charged as it grows, until buf_done(). Only `max` bounds it.
void buf_init_counted(struct buf *b, size_t max, enum chunk_budget_kind kind);

bool chunk_budget_kind_is_short(
    enum chunk_budget_kind kind);            // the kind uses more than half of its quarter
bool chunk_budget_is_full(void);             // all kinds except payload use up their share
bool chunk_budget_is_short(void);            // more than half of the memory for chunks is in use
bool chunk_budget_is_ample(void);            // less than an eighth of it is in use
uint64_t chunk_budget_lean(uint64_t plenty); // `plenty`, or an eighth of it while memory is short
// Returns how many bytes a buffer of full size `plenty` may hold now: the result of
// chunk_budget_lean(), but 1 if the budget is used up. With 1, only an empty buffer accepts bytes.
uint64_t chunk_budget_share(uint64_t plenty);

// Returns the limit for one socket's buffer in the kernel, which counts against a cgroup of version
// 2. With it, 256 buffers hold no more than the budget. At least 128 KiB. Returns 0 if memory is
// plentiful, so that the kernel may choose.
uint64_t chunk_budget_socket_bytes(void);

struct chunk *chunk_new(void);        // NULL above the budget
struct chunk *chunk_new_forced(void); // ignores the budget; aborts if the kernel has no memory
struct chunk *chunk_ref(struct chunk *chunk);
void chunk_unref(struct chunk *chunk); // accepts NULL

// Runs `fn(ctx)` once, on any thread that frees memory below the budget, so it may only post a
// message. At most 4096 callers wait; beyond that it runs at once.
void chunk_budget_wait(void (*fn)(void *ctx), void *ctx);

#endif
