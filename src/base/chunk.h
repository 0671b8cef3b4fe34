// SPDX-License-Identifier: Apache-2.0
// Chunks: payload memory with a reference count. Fills receive into chunks, readers on any worker
// send from them, and the store writes them. A chunk holds at most CHUNK_SIZE bytes. Only the
// thread that fills a chunk appends to it. Once bytes were announced to others by mailbox, they
// never change again, so others read them without a lock. The reference count is atomic.
//
// The budget bounds all memory between origins and clients. It covers all chunks of the process,
// and other memory of requests (chunk_budget_charge()), which leaves less for chunks. Above the
// budget, chunk_new() returns NULL, and the caller pauses its source until chunk_budget_wait()
// calls it back. chunk_new_forced() guarantees progress: its chunk is counted, but may exceed the
// budget.
//
// Every buffer between a source and its sink takes its limit from chunk_budget_share(), so the
// budget is exceeded only by bytes in transit. Above the budget, a reply holds one chunk that is
// being sent. Of each of the two runs that it may read, it holds one chunk that is being filled and
// two that wait.
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
    struct chunk *next; // only chunk.c uses it
};

enum chunk_budget_kind {
    BUDGET_PAYLOAD,  // chunks
    BUDGET_CLIENTS,  // requests that wait or are being answered, long heads, TLS
    BUDGET_RUNS,     // runs that are written and not yet durable in the index
    BUDGET_ORIGINS,  // transfers: curl handles and their receive buffers
    BUDGET_BODIES,   // bodies and documents that must be complete before they are used
    BUDGET_FOLDERS,  // listings of a `dir:` origin: the folder names they read, and their answers
    BUDGET_WARM,     // names and current objects of warm jobs, listings for internal use
    BUDGET_WRITES,   // keys of open writes, their invalidations in flight, doubts
    BUDGET_LISTINGS, // kept pages of listings, and requests for them between workers
    BUDGET_ANSWERS,  // kept answers to HEAD, for objects without stored runs
    BUDGET_KINDS
};

void chunk_budget_init(uint64_t max_bytes);
uint64_t chunk_budget_max_bytes(void);
uint64_t chunk_budget_used_bytes(void); // sum of all kinds
uint64_t chunk_budget_kind_bytes(enum chunk_budget_kind kind);
uint64_t chunk_budget_peak_bytes(void);
// Returns the bytes of resting chunks, which have no owner and are kept for reuse. The limit is the
// bytes of the chunks in use, but at least an eighth of the budget, and never more than the budget.
uint64_t chunk_budget_resting_bytes(void);

// Charges memory that is not a chunk. Never fails, because each caller has a limit of its own. An
// eighth of the budget always remains for chunks.
void chunk_budget_charge(enum chunk_budget_kind kind, uint64_t bytes);
void chunk_budget_discharge(enum chunk_budget_kind kind, uint64_t bytes);
// Charges `bytes` if two limits allow it: the kind may have a quarter of the budget, and all kinds
// except payload together may have seven eighths. `held` is what the caller has charged to the kind
// already. If no other caller has charged memory to the kind, the charge always succeeds, so that a
// request that is alone always fits. Returns false if nothing was charged; the caller then answers
// SlowDown or takes less.
bool chunk_budget_try_charge(enum chunk_budget_kind kind, uint64_t held, uint64_t bytes) MUST_USE;

// Starts a buffer whose memory is charged as it grows, until buf_done(). The charge never fails, so
// only `max` limits the buffer.
void buf_init_counted(struct buf *b, size_t max, enum chunk_budget_kind kind);

bool chunk_budget_kind_is_short(
    enum chunk_budget_kind kind);   // the kind has more than half of its quarter of the budget
bool chunk_budget_is_full(void);    // all kinds except payload have used up their seven eighths
bool chunk_budget_is_used_up(void); // there is no room for one more chunk
bool chunk_budget_is_short(void);   // more than half of the memory for chunks is in use
bool chunk_budget_is_ample(void);   // less than an eighth of the memory for chunks is in use
uint64_t chunk_budget_lean(uint64_t plenty); // `plenty`, or an eighth of it while memory is short
// Returns how many bytes a buffer of full size `plenty` may hold now: the result of
// chunk_budget_lean(), but 1 if the budget is used up. With 1, only an empty buffer accepts bytes.
uint64_t chunk_budget_share(uint64_t plenty);

struct chunk *chunk_new(void);        // returns NULL above the budget
struct chunk *chunk_new_forced(void); // ignores the budget
struct chunk *chunk_ref(struct chunk *chunk);
void chunk_unref(struct chunk *chunk); // accepts NULL

// Calls `fn(ctx)` once, when memory below the budget is free. The caller may be any thread that
// frees memory, so `fn` may only post a message. At most 4096 callbacks wait; any further one runs
// at once.
void chunk_budget_wait(void (*fn)(void *ctx), void *ctx);

#endif
