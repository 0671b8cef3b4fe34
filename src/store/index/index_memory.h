// SPDX-License-Identifier: Apache-2.0
// The memory side of the index: what keys' homes have accepted and LMDB does not hold yet.
#ifndef FOREBAY_STORE_INDEX_MEMORY_H
#define FOREBAY_STORE_INDEX_MEMORY_H

#include <pthread.h>

#include "store/store.h"

#define MEMORY_SHARDS 64u
#define MEMORY_BUCKETS 128u // of a shard
#define MEMORY_READERS_MAX 64u
// Puts that are not durable yet, and deletes that the disk has refused: above, no run is begun, and
// of so many such deletes the index is given up. Fewer where limits.max_buffer is small: three
// eighths of it.
#define MEMORY_PENDING_MAX 8192u
#define MEMORY_PENDING_HEAVY_PART 8u // of the payload that may wait: it waits no longer
#define MEMORY_PENDING_BYTES 2048u   // what one holds, as measured

// Entries above which floors that are durable do not wait for a rebuild to end: they spare a
// question to the origin, since what the rebuild finds is confirmed before it is used.
#define MEMORY_FLOORS_MAX 32768u

// What a reader may still hold when it is taken out.
struct memory_retired {
    struct memory_retired *next;
    uint64_t epoch;
};

struct memory_place {
    struct memory_retired retired;
    _Atomic(struct memory_place *) next;
    struct store_place place; // the pin is its change's: whoever wants the place pins it anew
};

struct memory_version {
    struct memory_retired retired;
    uint64_t generation, size_bytes, etag_hash;
    uint32_t block_size_bytes;
    _Atomic uint64_t validated_mono_ms, validated_wall_ms;
    struct store_sums sums;               // as its first put brought them
    _Atomic(struct memory_place *) first; // newest first
};

// A key. Immutable but for `next`: a change publishes another one in its stead.
struct memory_entry {
    struct memory_retired retired;
    _Atomic(struct memory_entry *) next;
    struct hash128 hash;
    uint64_t floor;     // what LMDB holds below does not count
    uint64_t deleted;   // highest floor that a delete, not a put, has asked for
    bool floor_durable; // LMDB holds nothing below; kept because recovery puts old runs back
    bool owed;          // the disk refused to make the floor durable; tried again
    struct memory_version *version; // not below the floor; NULL: none
};

struct memory_shard {
    _Alignas(64) pthread_mutex_t lock; // of all that changes it; none is taken under it
    _Atomic(struct memory_entry *) buckets[MEMORY_BUCKETS];
    struct memory_retired *retired; // under the lock
};

// A reader's announcement: the epoch that it reads in, 0 outside.
struct memory_reader {
    _Alignas(64) _Atomic uint64_t epoch;
};

struct index_memory {
    atomic_uint count; // entries; 0: a look-up need not look
    _Atomic uint64_t epoch;
    atomic_uint pending;            // puts and owed deletes
    _Atomic uint64_t pending_bytes; // payload of those puts
    _Atomic uint64_t pending_bytes_max;
    unsigned pending_max;
    atomic_bool recovering; // runs of unknown age are being put back: floors stay
    struct memory_reader *readers;
    unsigned reader_count;
    struct memory_shard *shards;
};

void index_memory_init(struct index_memory *memory, unsigned reader_count);
void index_memory_done(struct index_memory *memory);

// --- readers: no lock, no allocation

// What it finds stays until index_memory_leave(). False: nothing is held, and there is nothing to
// leave.
bool index_memory_enter(struct index_memory *memory, unsigned reader);
void index_memory_leave(struct index_memory *memory, unsigned reader);
const struct memory_entry *index_memory_find(const struct index_memory *memory,
                                             struct hash128 hash);
// Room for another run?
bool index_memory_has_room(const struct index_memory *memory);
// Three quarters of it are not used up, not even when `asked` more have come.
bool index_memory_leaves_room(const struct index_memory *memory, unsigned asked);
// Do so many bytes wait to be durable that they are not to wait any longer? Their segments cannot
// be picked to go meanwhile, and in their place go those that the policy would keep.
bool index_memory_is_heavy(const struct index_memory *memory);

// --- changes: a key's from its home, and from the index writer when they have become durable

struct memory_put {
    struct hash128 hash;
    uint64_t generation, size_bytes, etag_hash;
    uint32_t block_size_bytes;
    uint64_t validated_mono_ms, validated_wall_ms;
    const struct store_place *place; // NULL: it is lost already, but what is older is hidden
    struct store_sums sums;
};
// False: something newer, or a delete, hides it; nothing has changed.
bool index_memory_put(struct index_memory *memory, const struct memory_put *put) MUST_USE;
void index_memory_hide(struct index_memory *memory, struct hash128 hash, uint64_t floor);
void index_memory_renew(struct index_memory *memory, struct hash128 hash, uint64_t generation,
                        uint64_t mono_ms, uint64_t wall_ms);
// Is anything known of the key?
bool index_memory_knows(struct index_memory *memory, struct hash128 hash);

// --- the index writer

// When the version was last validated; false: it is not here any more.
bool index_memory_validated(struct index_memory *memory, struct hash128 hash, uint64_t generation,
                            uint64_t *ret_mono_ms, uint64_t *ret_wall_ms) MUST_USE;
// The place has become durable, or never will: out of the list.
void index_memory_drop_place(struct index_memory *memory, struct hash128 hash, uint64_t generation,
                             const struct store_place *place);
// LMDB durably holds nothing below `floor`.
void index_memory_floor_durable(struct index_memory *memory, struct hash128 hash, uint64_t floor);
// The disk refused to make it so. True: the key was not owed before; one that is, is tried again
// until index_memory_owed(), the floor that its entry has by then, says 0.
bool index_memory_owe(struct index_memory *memory, struct hash128 hash, uint64_t floor);
uint64_t index_memory_owed(struct index_memory *memory, struct hash128 hash);
// No key is owed any more: LMDB is given up with all that it holds.
void index_memory_forgive(struct index_memory *memory);
// May a run found in a segment enter LMDB, and as which generation? 0: it may not.
uint64_t index_memory_judge_rebuilt(struct index_memory *memory, const struct memory_put *found);
// While runs are put back from segments; the end lets the floors go that are durable.
void index_memory_recovering(struct index_memory *memory, bool recovering);
// Frees what no reader can hold any more.
void index_memory_reclaim(struct index_memory *memory);

#endif
