// SPDX-License-Identifier: Apache-2.0
// The memory side of the index: changes that keys' homes have accepted and that LMDB does not hold
// yet. See index_memory.c.
#ifndef FOREBAY_STORE_INDEX_MEMORY_H
#define FOREBAY_STORE_INDEX_MEMORY_H

#include <pthread.h>

#include "store/store.h"

#define MEMORY_SHARDS 64u
#define MEMORY_BUCKETS 128u // buckets in each shard
#define MEMORY_READERS_MAX 64u
// Limit on pending changes: puts that are not durable yet, and deletes that the disk refused. At
// the limit no run begins. If there are more refused deletes than this, the index is dropped. The
// limit is lower if limits.max_buffer is small, because the memory side may use three eighths of
// it.
#define MEMORY_PENDING_MAX 8192u
// The writer commits without delay if 1/MEMORY_PENDING_HEAVY_PART of the allowed payload waits.
#define MEMORY_PENDING_HEAVY_PART 8u
#define MEMORY_PENDING_BYTES 2048u // measured memory of one pending put

// During a rebuild, durable floors stay until it ends, unless there are more entries than this.
// Removing a floor early only costs a request to the origin, because a run that the rebuild finds
// is revalidated before use.
#define MEMORY_FLOORS_MAX 32768u

// The first member of each item that a reader may still use after its removal.
struct memory_retired {
    struct memory_retired *next;
    uint64_t epoch;
};

struct memory_place {
    struct memory_retired retired;
    _Atomic(struct memory_place *) next;
    // The index writer's change owns the place's pin. A reader that uses the place takes another
    // pin.
    struct store_place place;
};

struct memory_version {
    struct memory_retired retired;
    uint64_t generation, size_bytes, etag_hash;
    uint32_t block_size_bytes;
    _Atomic uint64_t validated_mono_ms, validated_wall_ms;
    struct store_sums sums;               // checksums that came with the version's first put
    _Atomic(struct memory_place *) first; // list of places, newest first
};

// A key's entry. It never changes, except for `next`. A change publishes a new entry that replaces
// it.
struct memory_entry {
    struct memory_retired retired;
    _Atomic(struct memory_entry *) next;
    struct hash128 hash;
    uint64_t floor;   // LMDB's records below this generation do not count
    uint64_t deleted; // the highest floor that a delete, not a put, has set
    // True: the delete of the records below the floor is durable in LMDB. The floor is kept only
    // because recovery, which is still running, may add runs from before it.
    bool floor_durable;
    bool owed; // the disk refused to make the floor durable, and the index writer tries again
    // Its generation is `floor` or higher; NULL: there is no version.
    struct memory_version *version;
};

struct memory_shard {
    _Alignas(64) pthread_mutex_t lock; // guards all changes; no lock is taken under it
    _Atomic(struct memory_entry *) buckets[MEMORY_BUCKETS];
    struct memory_retired *retired; // items removed but not freed yet; guarded by the lock
};

// The epoch that a reader announces; 0 while it does not read.
struct memory_reader {
    _Alignas(64) _Atomic uint64_t epoch;
};

struct index_memory {
    atomic_uint count; // number of entries; 0: look-ups skip the memory side
    _Atomic uint64_t epoch;
    atomic_uint pending;            // number of pending puts and owed deletes
    _Atomic uint64_t pending_bytes; // payload of the pending puts
    _Atomic uint64_t pending_bytes_max;
    unsigned pending_max;
    atomic_bool recovering; // recovery adds runs of unknown age, so floors of deletes stay
    struct memory_reader *readers;
    unsigned reader_count;
    struct memory_shard *shards;
};

void index_memory_init(struct index_memory *memory, unsigned reader_count);
void index_memory_done(struct index_memory *memory);

// --- readers: no lock, no allocation

// Begins a read. Items that the reader finds stay valid until index_memory_leave(). Returns false
// if there are no entries. The caller then must not call index_memory_leave().
bool index_memory_enter(struct index_memory *memory, unsigned reader);
void index_memory_leave(struct index_memory *memory, unsigned reader);
const struct memory_entry *index_memory_find(const struct index_memory *memory,
                                             struct hash128 hash);
// Returns true if the memory side has room for another run.
bool index_memory_has_room(const struct index_memory *memory);
// Returns true if less than three quarters of the room are used, even after `asked` more puts.
bool index_memory_leaves_room(const struct index_memory *memory, unsigned asked);
// Returns true if so much payload waits for a commit that the index writer must commit at once. A
// segment with such payload cannot be evicted, so segments that the policy wants to keep would be
// evicted instead.
bool index_memory_is_heavy(const struct index_memory *memory);

// --- changes: called by the key's home, and by the index writer when they are durable

struct memory_put {
    struct hash128 hash;
    uint64_t generation, size_bytes, etag_hash;
    uint32_t block_size_bytes;
    uint64_t validated_mono_ms, validated_wall_ms;
    const struct store_place
        *place; // NULL: the run is lost, but the put still hides older versions
    struct store_sums sums;
};
// Enters a put. Returns false, and changes nothing, if a newer version or a delete hides it.
bool index_memory_put(struct index_memory *memory, const struct memory_put *put) MUST_USE;
// Enters a delete: hides all runs of the key below `floor`.
void index_memory_hide(struct index_memory *memory, struct hash128 hash, uint64_t floor);
// Records when the version was validated, if the memory side has this version.
void index_memory_renew(struct index_memory *memory, struct hash128 hash, uint64_t generation,
                        uint64_t mono_ms, uint64_t wall_ms);
// Returns true if there is an entry for the key.
bool index_memory_knows(struct index_memory *memory, struct hash128 hash);

// --- calls of the index writer

// Sets *ret_mono_ms and *ret_wall_ms to the time at which the version was last validated. Returns
// false if the memory side no longer has the version.
bool index_memory_validated(struct index_memory *memory, struct hash128 hash, uint64_t generation,
                            uint64_t *ret_mono_ms, uint64_t *ret_wall_ms) MUST_USE;
// Removes a place that is now durable, or whose put has failed.
void index_memory_drop_place(struct index_memory *memory, struct hash128 hash, uint64_t generation,
                             const struct store_place *place);
// Records that LMDB durably holds nothing below `floor`.
void index_memory_floor_durable(struct index_memory *memory, struct hash128 hash, uint64_t floor);
// Records that the disk refused to make the floor durable, so the key's delete is owed. Returns
// true if it was not owed before. The caller then retries the delete until index_memory_owed()
// returns 0.
bool index_memory_owe(struct index_memory *memory, struct hash128 hash, uint64_t floor);
// Returns the present floor of a key whose delete is owed; 0 if it is not owed.
uint64_t index_memory_owed(struct index_memory *memory, struct hash128 hash);
// Removes the floors of all owed keys, because LMDB is dropped with everything in it.
void index_memory_forgive(struct index_memory *memory);
// Returns the generation under which a run found in a segment may enter LMDB; 0 if it must not.
uint64_t index_memory_judge_rebuilt(struct index_memory *memory, const struct memory_put *found);
// Sets whether recovery is adding runs from segments. At the end, removes the floors that are
// durable.
void index_memory_recovering(struct index_memory *memory, bool recovering);
// Frees the items that no reader can use any more.
void index_memory_reclaim(struct index_memory *memory);

#endif
