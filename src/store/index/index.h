// SPDX-License-Identifier: Apache-2.0
// The index: the LMDB environment, its memory side, look-ups in both, and renewals.
#ifndef FOREBAY_STORE_INDEX_H
#define FOREBAY_STORE_INDEX_H

#include <lmdb.h>
#include <pthread.h>

#include "store/disk/disk.h"
#include "store/index/index_format.h"
#include "store/index/index_memory.h"
#include "store/index/index_proof.h"

#define RENEWALS_MAX 16384u // table size; three quarters of it are used
#define RENEWAL_PROBES 8u
#define RENEWAL_SUMS (sizeof(struct store_sums) / sizeof(uint64_t))
#define INDEX_READERS_MAX 65u // the workers, and who rolls through it

// One open environment. Made and closed by the index writer (or before it starts); read by the
// workers.
struct index_env {
    MDB_env *env;
    MDB_dbi objects, places, meta;
    const char *map;
    size_t map_bytes;
    struct index_proof proof;
    uint64_t id; // of this opening
};

// A worker's side. `busy` is set while the worker is inside LMDB, so that the environment can be
// taken away.
struct index_reader {
    _Alignas(64) atomic_bool busy;
    struct index_env *env; // of txn; the worker's while busy, else the index writer's
    MDB_txn *txn;
    MDB_cursor *cursor; // on places
    unsigned number;    // of the worker
};

// A version found unchanged whose record does not say so yet. Written under the lock, read without:
// `sequence` is odd while it changes.
struct renewal {
    atomic_uint sequence;
    _Atomic uint64_t hi, lo, generation, validated_mono_ms; // generation 0: empty
    _Atomic uint64_t validated_wall_ms;
    _Atomic uint64_t sums[RENEWAL_SUMS]; // a struct store_sums
};
static_assert(sizeof(struct store_sums) % sizeof(uint64_t) == 0, "copied by words");

struct index_writer;
struct segment_log;

// What the index asks of its host, and tells it. `ctx` is the first argument of each call; each is
// called on the index writer's thread unless said otherwise.
struct index_host {
    void *ctx;
    // The index was dropped, or has lost something: put back what segments hold. Any thread.
    void (*want_rebuild)(void *ctx);
    // The index is injured: drop it, then the same. Any thread.
    void (*want_new_index)(void *ctx);
    // The index may hold places of segments that are gone: find them on a round.
    void (*want_round)(void *ctx);
    // May an index of so many bytes stay in a cache that holds too much?
    bool (*may_stay)(void *ctx, uint64_t index_bytes);
    // The index has forgotten this run.
    void (*gone)(void *ctx, struct hash128 hash, uint64_t first_block, uint32_t number,
                 uint32_t header_offset);
    // A condemned key's line must outlast this process; then all lines a power cut.
    enum err (*line_write)(void *ctx, unsigned line);
    enum err (*lines_sync)(void *ctx);
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
    _Atomic(struct index_env *) current; // NULL: none; look-ups miss
    uint32_t opener;                     // names this process in records
    uint8_t cuts;                        // power cuts that this directory has seen, modulo 256
    uint64_t map_bytes;
    uint64_t openings;
    uint64_t step_bytes;              // the file grows by this
    _Atomic uint64_t allocated_bytes; // of data.mdb; counted in used_bytes
    bool is_short; // cache.size, not the disk, had no room for the last growth; the index writer's
    _Atomic uint64_t full_until_us; // monotonic; see index_is_full()
    atomic_ulong objects, blocks;
    unsigned reader_count;
    struct index_reader *readers[INDEX_READERS_MAX];
    struct {
        pthread_mutex_t lock;
        unsigned count; // also readable as renewal_count
    } renewing;
    atomic_uint renewal_count;
    struct renewal *renewals;
    struct index_memory memory;
};

void index_init(struct index *index, const struct index_options *options);
// Look-ups of this number use this reader. Before threads.
void index_set_reader(struct index *index, unsigned number, struct index_reader *reader);
// The power cuts that this directory has seen. Before threads.
void index_set_cuts(struct index *index, uint8_t cuts);
// Bytes of runs that may wait for the index writer. Any thread.
void index_set_pending_max(struct index *index, uint64_t bytes);
void index_done(struct index *index);

// Opens or makes the environment in index/; on success it is current. ERR_CORRUPT: to be dropped
// (damaged, another cache's, an old copy: behind `txn_least`). No room to grow is no error. Before
// threads, or on the index writer.
// What the file held before is not judged then, see index_proof.h.
enum err index_open(struct index *index, uint64_t txn_least, bool txn_exact) MUST_USE;
// Takes the environment away from the readers and closes it.
void index_close(struct index *index);
// Did the index lately drop a batch because cache.size has no room for it? Any thread.
bool index_is_full(const struct index *index);
// Removes everything in the folder index/.
void index_remove_files(int index_fd);
// What the index holds, for store_summarize() and the metrics. Before threads, on the index writer
// or after it.
void index_count(struct index *index, uint64_t objects, uint64_t blocks);
// Id of the last commit; 0 without an environment.
uint64_t index_last_txn(const struct index *index);
// The file may grow to `bytes`: reserved, then allocated. ERR_DISK_FULL.
enum err index_grow(struct index *index, struct index_env *env, uint64_t bytes) MUST_USE;
// Does cache.size have room for an index file of `bytes`?
bool index_has_room(const struct index *index, uint64_t bytes);
// Gives back what the file has and does not need. False: it is too large even so for the size that
// the cache has now, and a rebuild is ordered: it is to be dropped. On the index writer.
bool index_fit(struct index *index) MUST_USE;
// Leaves a marker for the next start when the map fails under a reader (SIGBUS), and when LMDB
// finds itself broken.
void index_guard_install(struct index *index, int index_fd);
void index_guard_remove(struct index *index);
#define INDEX_BAD_MARKER "bad"
// The next process does not believe what data.mdb holds, also after a power cut: a marker says so,
// or, when that cannot be written, the file has lost its name (*ret_removed).
// `index_fd`: of the folder index/. Blocks.
enum err index_disown(int index_fd, bool *ret_removed) MUST_USE;
// Is there no data.mdb, nor after a power cut?
bool index_is_gone(const struct index *index) MUST_USE;
// It may believe it again.
void index_own(struct index *index);

// Both sides as one; `durable` false: LMDB is not looked at, what it holds is unknown. The view is
// empty before.
void index_lookup(struct index *index, struct index_reader *reader, bool durable,
                  struct hash128 hash, uint64_t first_byte, uint64_t end_byte, uint64_t floor,
                  struct store_view *ret_view);
// The caller is inside LMDB with a fresh view until it leaves: for a moment, since who takes the
// index away waits for that. NULL: no index, or it cannot be read.
struct index_env *index_reader_enter(struct index *index, struct index_reader *reader);
void index_reader_leave(struct index_reader *reader);
// The description that the record of this generation has; false: it has none, or is not there. The
// worker's reader.
bool index_described(struct index *index, struct index_reader *reader, struct hash128 hash,
                     uint64_t generation, char ret_described[STORE_DESCRIBED_MAX],
                     size_t *ret_len) MUST_USE;
enum index_held { INDEX_ABSENT, INDEX_HELD, INDEX_UNKNOWN };
// Is there a record of the key in LMDB?
enum index_held index_lookup_durable(struct index *index, struct index_reader *reader,
                                     struct hash128 hash) MUST_USE;

// Renewals.
struct renewal_copy {
    struct hash128 hash;
    uint64_t generation, validated_mono_ms, validated_wall_ms;
    struct store_sums sums;
};
bool index_renewal_find(const struct index *index, struct hash128 hash, uint64_t generation,
                        struct renewal_copy *ret_copy);
unsigned index_renew(struct index *index, const struct store_renewal *renewals, size_t count,
                     uint64_t mono_ms,
                     uint64_t wall_ms); // how many were taken
// Copies up to `max` of them; index_renewed() takes those out that have not changed since.
// Checksums of a version whose put is not durable yet are left for later: there is no record that
// takes them.
unsigned index_renewals_take(struct index *index, struct renewal_copy *ret_copies, unsigned max);
void index_renewed(struct index *index, const struct renewal_copy *copies, unsigned count);

#endif
