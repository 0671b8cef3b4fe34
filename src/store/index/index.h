// SPDX-License-Identifier: Apache-2.0
// The index: the LMDB environment, the memory side, look-ups in both, and renewals.
#ifndef FOREBAY_STORE_INDEX_H
#define FOREBAY_STORE_INDEX_H

#include <lmdb.h>
#include <pthread.h>

#include "store/disk/disk.h"
#include "store/index/index_format.h"
#include "store/index/index_memory.h"
#include "store/index/index_proof.h"

#define RENEWALS_MAX 16384u // number of entries in the table of renewals
#define RENEWAL_PROBES 8u
#define RENEWAL_SUMS (sizeof(struct store_sums) / sizeof(uint64_t))
// One for each worker, and one for the thread that verifies the whole index.
#define INDEX_READERS_MAX 65u

// An open LMDB environment. The index writer creates and closes it, or the main thread before the
// writer starts. Workers read it.
struct index_env {
    MDB_env *env;
    MDB_dbi objects, places, meta;
    const char *map;
    size_t map_bytes;
    struct index_proof proof;
    uint64_t id; // how often this process has opened an environment, this one included
};

// The read state of one worker. `busy` is set while the worker is inside LMDB, so that
// index_close() can wait for it.
struct index_reader {
    _Alignas(64) atomic_bool busy;
    // The environment of `txn`. While `busy` is set, only the worker accesses it. At other times,
    // only the index writer does.
    struct index_env *env;
    MDB_txn *txn;
    MDB_cursor *cursor; // cursor of the table "places"
    unsigned number;    // the worker's number
};

// The origin has confirmed this version, but its record on disk does not say so yet. A thread that
// writes a renewal holds renewing.lock. Readers take no lock.
struct renewal {
    atomic_uint sequence; // odd during a change; a reader discards what it read if this has changed
    _Atomic uint64_t hi, lo, generation, validated_mono_ms; // generation 0: the entry is empty
    _Atomic uint64_t validated_wall_ms;
    _Atomic uint64_t sums[RENEWAL_SUMS]; // the words of a struct store_sums
};
static_assert(sizeof(struct store_sums) % sizeof(uint64_t) == 0, "copied by words");

struct index_writer;
struct segment_log;

// The callbacks of the index to its host. `ctx` is the first argument of each call. The index
// writer's thread calls them, unless the comment says otherwise.
struct index_host {
    void *ctx;
    // Requests a rebuild, because the index was dropped or has lost entries: the host must add the
    // runs that it finds in segments. Any thread.
    void (*want_rebuild)(void *ctx);
    // Requests a new index, because this one is damaged: the host must have it dropped and rebuilt.
    // Any thread.
    void (*want_new_index)(void *ctx);
    // Requests a round through the index, because it may have entries of segments that are gone.
    // The round finds and removes them.
    void (*want_round)(void *ctx);
    // Returns true if an index file of this size may stay although the cache holds more than
    // cache.size.
    bool (*may_stay)(void *ctx, uint64_t index_bytes);
    // Called when a run has left the index while its segment stays.
    void (*gone)(void *ctx, struct hash128 hash, uint64_t first_block, uint32_t number,
                 uint32_t header_offset);
    // Makes the list of condemned keys durable. May block.
    enum err (*condemned_save)(void *ctx);
};

struct index_options {
    struct store_disk *disk;
    struct segment_log *log;
    struct index_writer *writer;
    struct index_host host;
    unsigned worker_count;
};

struct index {
    struct store_disk *disk;
    struct segment_log *log;
    struct index_writer *writer;
    struct index_host host;
    _Atomic(struct index_env *) current; // NULL: no index, and look-ups miss
    // Random number of this process, by which records name the process that validated them.
    uint32_t opener;
    uint8_t cuts; // power cuts that this directory has seen, modulo 256
    uint64_t map_bytes;
    uint64_t openings;
    uint64_t step_bytes;              // the file grows in steps of this size
    _Atomic uint64_t allocated_bytes; // size of data.mdb, included in used_bytes
    // The last growth of the file failed because cache.size had no room, not because the disk
    // failed. Index writer only.
    bool is_short;
    _Atomic uint64_t full_until_us; // monotonic time until which index_is_full() returns true
    atomic_ulong objects, blocks;
    unsigned reader_count;
    struct index_reader *readers[INDEX_READERS_MAX];
    struct {
        pthread_mutex_t lock; // a thread holds it while it changes `renewals`
        unsigned count;       // number of renewals in the table
    } renewing;
    atomic_uint renewal_count; // copy of renewing.count, for readers without the lock
    struct renewal *renewals;
    struct index_memory memory;
};

void index_init(struct index *index, const struct index_options *options);
// Sets the reader of the thread with this number. Called before threads start.
void index_set_reader(struct index *index, unsigned number, struct index_reader *reader);
// Sets the number of power cuts that this directory has seen. Called before threads start.
void index_set_cuts(struct index *index, uint8_t cuts);
// Sets the limit on the bytes of runs that wait for the index writer. Any thread.
void index_set_pending_max(struct index *index, uint64_t bytes);
void index_done(struct index *index);

// Opens or creates the environment in index/ and makes it current. Returns ERR_CORRUPT if the file
// is damaged, belongs to another cache, or is an old copy. The caller then drops it. A file is an
// old copy if its last transaction is before `txn_least`, or with `txn_exact` another one. Missing
// room to grow is no error. Called before threads start, or on the index writer. Does not verify
// the pages of an existing file; see index_proof.h.
enum err index_open(struct index *index, uint64_t txn_least, bool txn_exact) MUST_USE;
// Waits until no reader uses the environment, and closes it.
void index_close(struct index *index);
// Returns true if the index dropped a batch within the last second because cache.size had no room
// for it, and no commit has succeeded since. Any thread.
bool index_is_full(const struct index *index);
// Returns the disk usage of data.mdb in the folder index/; 0 if there is none.
uint64_t index_file_bytes(int index_fd);
// Removes everything in the folder index/.
void index_remove_files(int index_fd);
// Sets the numbers of objects and blocks that store_summarize() and the metrics report. Called
// before threads start, on the index writer, or after it has stopped.
void index_count(struct index *index, uint64_t objects, uint64_t blocks);
// Returns the id of the last commit; 0 without an environment.
uint64_t index_last_txn(const struct index *index);
// Reserves and allocates space so that the file may grow to `bytes`. Returns ERR_DISK_FULL if
// cache.size or the file system has no room.
enum err index_grow(struct index *index, struct index_env *env, uint64_t bytes) MUST_USE;
// Returns true if cache.size has room for an index file of `bytes`.
bool index_has_room(const struct index *index, uint64_t bytes);
// Truncates the unused end of the file. Returns false if the file is still too large for the
// present size of the cache. It has then requested a rebuild, and the caller must drop the index.
// Called on the index writer.
bool index_fit(struct index *index) MUST_USE;
// Installs a handler of SIGBUS, which the kernel raises when it cannot read a page of the map. The
// handler leaves a marker for the next start and ends the process. A failed assertion of LMDB ends
// the process in the same way.
void index_guard_install(int index_fd);
void index_guard_remove(void);
#define INDEX_BAD_MARKER "bad"
// Makes the next process discard data.mdb, even after a power cut. Writes a marker, or removes the
// file if the marker cannot be written (*ret_removed). `index_fd`: the folder index/. Blocks.
enum err index_disown(int index_fd, bool *ret_removed) MUST_USE;
// Returns true if there is no data.mdb and a power cut cannot bring it back.
bool index_is_gone(const struct index *index) MUST_USE;
// Removes the marker, so that the next process trusts data.mdb.
void index_own(struct index *index);

// Searches the memory side and LMDB for the key, and returns one answer in *ret_view, which must be
// empty. If `durable` is false, skips LMDB and sets ret_view->unknown.
void index_lookup(struct index *index, struct index_reader *reader, bool durable,
                  struct hash128 hash, uint64_t first_byte, uint64_t end_byte, uint64_t floor,
                  struct store_view *ret_view);
// Enters LMDB with a fresh read transaction until index_reader_leave(). The caller must leave soon,
// because index_close() waits for it. Returns NULL if there is no index or it cannot be read.
struct index_env *index_reader_enter(struct index *index, struct index_reader *reader);
void index_reader_leave(struct index_reader *reader);
// Copies the description from the key's record of this generation. Returns false if there is no
// such record, or if it has no description. Called with the worker's own reader.
bool index_described(struct index *index, struct index_reader *reader, struct hash128 hash,
                     uint64_t generation, char ret_described[STORE_DESCRIBED_MAX],
                     size_t *ret_len) MUST_USE;
enum index_held { INDEX_ABSENT, INDEX_HELD, INDEX_UNKNOWN };
// Looks for a record of the key in LMDB.
enum index_held index_lookup_durable(struct index *index, struct index_reader *reader,
                                     struct hash128 hash) MUST_USE;

// --- renewals
struct renewal_copy {
    struct hash128 hash;
    uint64_t generation, validated_mono_ms, validated_wall_ms;
    struct store_sums sums;
};
// Finds the key's renewal, whatever its generation. A look-up calls it before it opens its view of
// LMDB, because index_renewed() removes a renewal once LMDB has it.
bool index_renewal_find(const struct index *index, struct hash128 hash,
                        struct renewal_copy *ret_copy);
// Adds renewals, or replaces those of the same keys. Returns how many it stored. It stores none for
// which the table has no room.
unsigned index_renew(struct index *index, const struct store_renewal *renewals, size_t count,
                     uint64_t mono_ms, uint64_t wall_ms);
// Copies up to `max` renewals for a commit. Skips a renewal with checksums if the put of its
// version is not durable yet, because LMDB has no record to which it could add them.
unsigned index_renewals_take(struct index *index, struct renewal_copy *ret_copies, unsigned max);
// Removes these renewals after the commit, except those that have changed since they were copied.
void index_renewed(struct index *index, const struct renewal_copy *copies, unsigned count);

#endif
