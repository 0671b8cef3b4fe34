// SPDX-License-Identifier: Apache-2.0
// Shared by the files of this folder: the store, its parts and its per-worker context.
//
// Threads: the workers; the index writer (index_writer.c); the supply thread (segment_supply.c),
// which creates segments; the freeing thread (segment_free.c); the retention thread (retention.c);
// the recovery thread (recovery.c); the scrub thread (scrub.c).
//
// Locks: of the log, of its slots, of the retention, of the index writer, of the renewals, of
// `format` and of the epochs. A thread holds at most one lock, with two exceptions. A thread that
// holds the lock of a slot or of the retention may also take the log's lock. store_late.c opens the
// store while it holds its own lock and the lock of `format`. A hit takes no lock.
#ifndef FOREBAY_STORE_STORE_PRIVATE_H
#define FOREBAY_STORE_STORE_PRIVATE_H

#include <time.h>

#include "store/care/recovery.h"
#include "store/care/scrub.h"
#include "store/care/store_late.h"
#include "store/care/store_size.h"
#include "store/care/store_unattached.h"
#include "store/disk/disk.h"
#include "store/index/index.h"
#include "store/index/index_writer.h"
#include "store/retention/retention.h"
#include "store/segment/page_admission.h"
#include "store/segment/run_cache.h"
#include "store/segment/segment_format.h"
#include "store/segment/segment_log.h"
#include "store/segment/segment_push.h"
#include "store/segment/write_backlog.h"
#include "store/state/state_condemned.h"
#include "store/state/state_doubt.h"
#include "store/state/state_epoch.h"
#include "store/state/state_holder.h"
#include "store/state/state_origin.h"
#include "store/state/state_pins.h"
#include "store/store.h"
#include "store/store_long.h"

#define STORE_WORKERS_MAX 64u
#define STORE_SIZE_MIN (16u << 20)
#define STORE_GENERATIONS_AHEAD (1ull << 36) // how many generations a process reserves
static_assert(STORE_WORKERS_MAX <= MEMORY_READERS_MAX, "each worker reads the memory side");
static_assert(STORE_WORKERS_MAX < INDEX_READERS_MAX, "so does each in LMDB, and recovery");

struct store_worker {
    struct worker *worker;
    struct store *store;
    struct index_reader reader;
    struct run_cache runs;
    struct segment_pusher pusher;
    char header_bytes[RUN_HEADER_MAX];
};

#define STORE_UNUSABLE_MAX 256u

struct store {
    struct loop *loop;
    struct store_disk disk;
    struct store_size size;
    unsigned descriptors_max;
    atomic_bool verify_always;
    struct store_late late;
    _Atomic uint64_t generation;
    atomic_uint late_deletes; // number of queued deletes whose callers have timed out
    char former_origin[STATE_ORIGIN_MAX + 1]; // "": the last start had the same, or it is unknown
    struct store_epochs epochs;
    struct store_doubts doubts;
    struct store_condemned condemned;
    struct store_pins pins;
    struct retention retention;
    struct write_backlog backlog;
    struct store_long longs;
    struct page_admission page_admission;
    struct segment_log log;
    struct index index;
    struct index_writer writer;
    struct recovery recovery;
    struct scrub scrub;
    unsigned worker_count;
    struct store_worker *workers[STORE_WORKERS_MAX];
    char unusable[STORE_UNUSABLE_MAX]; // why the directory could not be used at the start
};

static inline struct store_worker *store_worker_of(struct worker *w)
{
    struct store_worker *mine = worker_slot_get(w, WORKER_SLOT_STORE);
    check(mine != NULL);
    return mine;
}

struct segment_file;
// Removes content of the directory that exceeds cache.size; see store_fit.c. Called before any
// segment or the index is open. Moves the segments that stay to the front of `files` and returns
// their number.
size_t store_fit(struct store *store, struct segment_file *files, size_t count) MUST_USE;
// Returns true if an index of this size may stay, although the cache holds more than cache.size.
bool store_fit_index(const struct store *store, uint64_t index_bytes);

// Return the store's callbacks for segments and for the index.
struct segment_host store_segment_host(struct store *store);
struct index_host store_index_host(struct store *store);

// Returns the error with which store_run_begin() refuses all runs now; ERR_OK if runs may be
// stored.
enum err store_shortage(const struct store *store);
// Drops a bad run. From now on it is a miss, and soon the index forgets it. Any worker.
void store_drop_place(struct store *store, const struct store_place *place, struct hash128 hash,
                      enum err why);
// Like store_drop_place(), but does not count a checksum failure or a read error. Any thread.
void store_drop_run(struct store *store, const struct store_place *place, struct hash128 hash,
                    enum err why);

#endif
