// SPDX-License-Identifier: Apache-2.0
// What the files of this room share: the store, its parts and its per-worker context.
//
// Threads: the workers; the index writer (index_writer.c); the supply thread (segment_supply.c),
// which makes segments; the freeing thread (segment_free.c); the retention thread (retention.c);
// the recovery thread (recovery.c), which ends when its work behind serving is done; the scrub
// thread (scrub.c). Locks, each taken with none of the others held, unless said: a slot's lock, or
// the retention's, then the log's; the writer's; the renewals'; that of `format`; the epochs'. The
// hit path takes none.
#ifndef FOREBAY_STORE_STORE_PRIVATE_H
#define FOREBAY_STORE_STORE_PRIVATE_H

#include <time.h>

#include "store/disk_room.h"
#include "store/index.h"
#include "store/index_writer.h"
#include "store/page_window.h"
#include "store/recovery.h"
#include "store/retention.h"
#include "store/run_cache.h"
#include "store/scrub.h"
#include "store/segment_format.h"
#include "store/segment_log.h"
#include "store/segment_push.h"
#include "store/store.h"
#include "store/store_condemned.h"
#include "store/store_dir.h"
#include "store/store_doubt.h"
#include "store/store_epoch.h"
#include "store/store_holder.h"
#include "store/store_late.h"
#include "store/store_long.h"
#include "store/store_pins.h"
#include "store/store_size.h"
#include "store/store_unattached.h"
#include "store/write_backlog.h"

#define STORE_WORKERS_MAX 64u
#define STORE_SIZE_MIN (16u << 20)
#define STORE_SEGMENTS_MIN 3u                // fewer do not work
#define STORE_GENERATIONS_AHEAD (1ull << 36) // promised to one process

struct store_worker {
    struct worker *worker;
    struct store *store;
    struct index_reader reader;
    struct run_cache runs;
    struct segment_pusher pusher;
    char header_bytes[RUN_HEADER_MAX];
};

struct store {
    struct loop *loop;
    struct store_dir dir;
    // Set by the supply thread once there are threads: store_size.c.
    _Atomic uint64_t capacity_bytes;      // cache.size
    _Atomic uint64_t ceiling_bytes;       // never exceeded
    _Atomic uint64_t segment_limit_bytes; // what is used may reach this by making segments; the
                                          // rest is for the index
    atomic_uint min_free_percent;
    struct store_size size;
    struct disk_room room;
    atomic_uint segment_size_bytes; // as `format` has it
    uint64_t other_bytes;           // of the directory, beside segments and index
    unsigned descriptors_max;
    atomic_bool verify_always;
    atomic_bool attached; // false: the directory was unusable at the start, and nothing is held:
                          // for the life of the process, or until there is room (store_late.c)
    struct store_late late;
    atomic_bool is_disowned;     // nobody believes the index that lies there: store_unattached.c
    _Atomic uint64_t used_bytes; // reserved before it is written
    _Atomic uint64_t generation;
    _Atomic uint64_t filling_off_until_us; // monotonic; 0 = filling
    atomic_uint filling_off_ms;            // the pause, doubled from failure to failure
    atomic_int filling_off_errno;          // of the failure that began the pause
    _Atomic uint64_t read_errors_since_us;
    atomic_uint read_errors;
    _Atomic uint64_t reading_off_until_us;
    atomic_bool rebuilding;
    atomic_bool disk_trouble_told;
    atomic_uint late_deletes; // still queued, and nobody waits for them any more
    struct store_epochs epochs;
    struct store_doubts doubts;
    struct store_condemned condemned;
    struct store_pins pins;
    struct retention retention;
    struct write_backlog backlog;
    struct store_long longs;
    struct segment_log log;
    struct index index;
    struct index_writer writer;
    struct page_window written; // the index writer's
    struct recovery recovery;
    struct scrub scrub;
    unsigned worker_count;
    struct store_worker *workers[STORE_WORKERS_MAX];
};

static inline struct store_worker *store_worker_of(struct worker *w)
{
    struct store_worker *mine = worker_slot_get(w, WORKER_SLOT_STORE);
    check(mine != NULL);
    return mine;
}

// Real monotonic time: what pthread waits by, whatever a test has done to the clock.
static inline uint64_t store_real_us(void)
{
    struct timespec now;
    check(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static inline struct timespec store_timespec_of_us(uint64_t us)
{
    return (struct timespec){.tv_sec = (time_t)(us / 1000000),
                             .tv_nsec = (long)(us % 1000000 * 1000)};
}

// What store_open() does once the directory is open, in which the cache takes up `ours`; then the
// threads.
enum err store_begin(struct store *store, const struct store_options *options, uint64_t ours,
                     struct buf *ret_why) MUST_USE;
void store_begin_threads(struct store *store);
// Takes back as much of store_begin() as there is.
void store_give_up(struct store *store);
// The disk is in trouble, or is not any more: in metrics, and the end of it in the log.
void store_tell_trouble(struct store *store, bool trouble);

// Counts `bytes` against cache.size unless more than `limit_bytes` would be used then. Any thread.
bool store_space_reserve(struct store *store, uint64_t bytes, uint64_t limit_bytes) MUST_USE;
void store_space_give(struct store *store, uint64_t bytes);

struct segment_file;
// Makes what the directory holds fit cache.size: see store_fit.c. Before anything of it is open.
// `files` are the segments'; the ones that stay come first and are counted in the answer.
size_t store_fit(struct store *store, struct segment_file *files, size_t count) MUST_USE;
// May the index stay, being so large, in a cache that holds too much?
bool store_fit_index(const struct store *store, uint64_t index_bytes);

// A write, sync, allocation or commit failed: no filling for a while (5 s, doubled up to 60 s). Any
// thread.
// EMFILE and ENFILE are no failure of the disk: the descriptors are short for a second instead.
void store_filling_off(struct store *store, const char *what, int errno_value);
// One went well: the next failure begins with the short pause again.
void store_filling_well(struct store *store);
bool store_is_filling(const struct store *store);
// Why no run at all is stored now: the error that store_run_begin() gives for it. ERR_OK: runs may
// be.
enum err store_shortage(const struct store *store);
// Is the index looked at, or have too many reads failed lately?
bool store_is_reading(const struct store *store);
// A read failed in the device: above 100 in a minute nothing is looked up for 10 s.
void store_read_failed(struct store *store);
// A run is not what it should be: a miss from now on, and out of the index soon. Any worker.
void store_drop_place(struct store *store, const struct store_place *place, struct hash128 hash,
                      enum err why);
// The same, without a word about how that was found out. Any thread.
void store_drop_run(struct store *store, const struct store_place *place, struct hash128 hash,
                    enum err why);
// Is this the header that the place promises? ERR_CORRUPT.
enum err segment_read_accept(struct span bytes, const struct store_place *place,
                             struct run_header *ret_header) MUST_USE;
// The same object with the spans of a decoded header; NULL when limits are passed.
struct store_object *store_object_from_header(const struct run_header *header, uint64_t generation);

#ifdef FOREBAY_FAULTS
// Faults of the calls that the room's own threads make: the n-th call from now of that kind fails
// (1 = the next), or from then on all with `repeat`. Scripts (FOREBAY_DISK_FAULTS) know them as
// store.sync, store.commit and so on. Any thread; tests only.
enum store_fault {
    STORE_FAULT_SYNC,
    STORE_FAULT_COMMIT,
    STORE_FAULT_CREATE,
    STORE_FAULT_ALLOCATE,
    STORE_FAULT_UNLINK,
    STORE_FAULT_OPEN,
    STORE_FAULT_SCAN,
    STORE_FAULT_TABLE,
    STORE_FAULT_MARK,
    STORE_FAULT_NOTE,    // the line that a key is condemned
    STORE_FAULT_DISOWN,  // the marker that the index is not to be believed
    STORE_FAULT_REMOVE,  // removing the index instead
    STORE_FAULT_REWRITE, // writing a survivor
    STORE_FAULT_ROLL,    // reading a page of the index on its round
    STORE_FAULT_SCRUB,
    STORE_FAULT_PINS,    // writing the list of what is pinned; syncing its name
    STORE_FAULT_REBUILD, // putting the runs of a segment back; only stalls
    STORE_FAULT_TRIM,    // giving back what is left over of a segment
    STORE_FAULT_COUNT_
};
void store_fault_set(enum store_fault fault, unsigned nth, bool repeat, int errno_value);
int store_fault_strike(enum store_fault fault); // errno value or 0
// Calls of that kind wait until it is let go.
void store_fault_stall(enum store_fault fault, bool stall);
// Waits for the first to do so.
void store_fault_stall_reached(enum store_fault fault);
#else
#define store_fault_strike(fault) 0
#endif

#endif
