// SPDX-License-Identifier: Apache-2.0
// The segment log: the table of segments, their pins and marks, and the choice of the segment for
// the next run. It owns two threads: the supply thread creates segments (segment_supply.c), and the
// freeing thread removes them (segment_free.c).
#ifndef FOREBAY_STORE_SEGMENT_LOG_H
#define FOREBAY_STORE_SEGMENT_LOG_H

#include <pthread.h>

#include "store/disk/disk.h"
#include "store/disk/disk_thread.h"
#include "store/segment/segment_pool.h"
#include "store/segment/segment_scan.h"
#include "store/segment/segment_table.h"

#define SEGMENT_BAD_MAX 32u
#define SEGMENT_SPARE_MAX 96u
#define SEGMENT_TABLE_MAX (1u << 22)
#define SEGMENT_COUNT_MIN 3u // a cache needs at least this many segments

// segment_phases.def explains the states. They change only under the log's lock.
enum segment_state {
#define SEGMENT_PHASE(name, ...) SEGMENT_##name,
#include "store/segment/segment_phases.def"
};

// A request to the supply thread. The higher value includes the request of the lower one.
enum segment_wish {
    SEGMENT_WISH_NOTHING,
    SEGMENT_WISH_LOOK,  // compare spare segments and free space with what is needed
    SEGMENT_WISH_EVICT, // evict a segment, because the index needs room
};

#define SEGMENT_PIN_LIVE (1u << 31)     // new pins are allowed
#define SEGMENT_PIN_UNLINKED (1u << 30) // the file is unlinked; the last unpin queues its closing
#define SEGMENT_PIN_COUNT (SEGMENT_PIN_UNLINKED - 1)

// An entry of the segment table. It is never freed while the process runs, but reused for other
// segments. So a thread with an old pointer may pin the entry, and must then compare the number to
// see whether it still holds the same segment. An entry that was never used is all zero, so the
// table takes memory only where there are segments. `verified`, `bad` and `rows` are freed with the
// segment.
struct segment {
    atomic_uint number; // 0: the entry is free
    atomic_uint pins;   // the pin count and the two flags; 0: no segment
    // Number of runs that are being written or are not yet in the index. While not 0, the segment
    // is not evicted.
    atomic_uint holds;
    struct segment_file_use paged, direct; // the file's two descriptors
    _Atomic(_Atomic uint64_t *) verified;  // a bit per checksum unit; allocated on first use
    // Header offsets of bad runs; 0: the entry is free. Allocated on first use.
    _Atomic(atomic_uint *) bad;
    atomic_uint bad_count;
    atomic_uint last_used_s;
    struct segment_log *log;
    // The log's lock guards the fields from `state` to `given_bytes`. While the segment is OPEN,
    // the slot's lock also guards those from `state` to `run_count`.
    enum segment_state state;
    // `recovered`: the file existed at the start and recovery has not examined it yet.
    bool seal_written, recovered;
    uint64_t salt; // set once, under the log's lock and rows_guard
    uint32_t append_offset, unit_count, run_count;
    // Bytes of the file that were returned to the file system. Nothing is written to the segment
    // after that.
    uint32_t given_bytes;
    bool is_distrusted;   // DYING: a later process must not find the file, even after a crash
    bool index_forgotten; // DYING: the freeing thread has no entries to remove from the index
    uint64_t moved_blocks, moved_bytes; // blocks and bytes that were rewritten elsewhere
    struct segment *next;               // the next entry of the list `doomed` or `closable`
    // Rows of the complete runs, guarded by rows_guard. NULL: they are on disk, or unknown.
    struct segment_rows *rows;
};

// A slot has at most one open segment, in which runs get room one after the other. A worker stores
// runs in a slot of its own. In a small cache several workers share a slot.

// Slots for runs that are kept apart from the runs that workers store.
#define SEGMENT_SLOTS_APART 2u
#define SEGMENT_SLOT_SURVIVORS 0u // runs rewritten from a segment that is being evicted
#define SEGMENT_SLOT_PROBATION 1u // runs on probation, which are evicted soon (policy_probation.c)

struct segment_slot {
    struct {
        pthread_mutex_t lock;
        struct segment *current;
    } guarded;
};

// A cache with fewer segments rewrites no survivors, because their segment would take too large a
// share of it.
#define SEGMENT_REWRITE_SEGMENTS_MIN 9u
// A cache with fewer segments stores no run on probation, for the same reason.
#define SEGMENT_PROBATION_SEGMENTS_MIN 16u

// A run of a segment that is being evicted.
struct segment_removal {
    struct hash128 hash;
    struct store_place place;
};

enum segment_pick {
    SEGMENT_PICK_NONE,     // no segment may be evicted
    SEGMENT_PICK_GOES,     // the log evicts *ret_number
    SEGMENT_PICK_REWRITES, // the host evicts the segment after it has rewritten the survivors
};

struct segment_file;

// The callbacks of the log to its host. `ctx` is the first argument of each call. Each comment
// names the calling thread. The log holds no lock during a call, unless the comment says otherwise.
struct segment_host {
    void *ctx;
    // While opening: removes files until the rest fits into cache.size. Moves the files that stay
    // to the front of the array and returns their number.
    size_t (*fit)(void *ctx, struct segment_file *files, size_t count);
    // Supply thread: reports that a turn of its loop begins. Called at least once a second.
    void (*turn)(void *ctx);
    // Supply thread: reports that `segment` now stands for the new segment file `number`.
    void (*begin)(void *ctx, struct segment *segment, uint32_t number);
    // Supply thread: reports that the next segment needs no eviction.
    void (*has_room)(void *ctx);
    // Supply thread: chooses the segment to evict. The host asks may_go() about each candidate.
    // `may_rewrite`: no thread waits for the space, so survivors may be rewritten first. The answer
    // may be SEGMENT_PICK_REWRITES even without it, if each candidate has pinned runs.
    enum segment_pick (*pick)(void *ctx, bool (*may_go)(void *picking, uint32_t number),
                              void *picking, bool may_rewrite, uint32_t *ret_number);
    // Supply thread, after a pick: returns whether no run was stored on probation for a while.
    bool (*probation_ended)(void *ctx);
    // Supply thread. has_survivors() returns whether the host ever rewrites survivors. rewrites()
    // returns whether it rewrites some now. has_long_runs() returns whether recent runs needed a
    // segment of their own.
    bool (*has_survivors)(void *ctx);
    bool (*rewrites)(void *ctx);
    bool (*has_long_runs)(void *ctx);
    // Any thread, under the log's lock: returns the number of spare segments that this slot may not
    // use.
    unsigned (*spares_kept)(void *ctx, const struct segment_slot *slot);
    // Freeing thread: reports that the segment's file is about to be unlinked. `removals`: those of
    // its runs that are known.
    void (*dies)(void *ctx, struct segment *segment, const struct segment_removal *removals,
                 unsigned count);
    // Freeing thread: has the index forget these runs. The host takes ownership of the malloc'd
    // array. May block.
    void (*forget)(void *ctx, struct segment_removal *removals, unsigned count);
    // Freeing thread: reports that the index still has entries of a segment that is gone, and that
    // they cannot be listed.
    void (*forget_unlisted)(void *ctx);
};

struct segment_log_options {
    struct store_disk *disk;
    struct segment_host host;
    unsigned worker_count;
    unsigned descriptors_max;
};

struct segment_log {
    struct store_disk *disk;
    struct segment_host host;
    uint32_t segment_size_bytes; // size of each segment's file
    uint32_t unit_max;
    uint64_t segment_cost_bytes; // disk space of a file with the file system's overhead
    atomic_uint segments_max;    // number of segments that fit into cache.size
    uint32_t table_mask;
    struct segment *table;
    unsigned slot_max;      // number of workers
    atomic_uint slot_count; // slots that workers use now: slot_max, or fewer in a small cache
    // First the slot_max slots of workers, then SEGMENT_SLOTS_APART others.
    struct segment_slot *slots;
    struct segment_pool pool;
    // Guards the rows of each segment. Held briefly; no lock is taken while it is held.
    pthread_mutex_t rows_guard;
    // Held by a thread while it writes tables or marks, so it may be held for long. Taken before
    // the log's lock or rows_guard.
    pthread_mutex_t seal_lock;
    atomic_uint made;           // number of segments created since the start
    atomic_bool names_unsynced; // segments were created since the folder was last synced
    atomic_uint segment_count;  // files, including unlinked ones that are still open
    atomic_uint room;           // number of spare segments; a hint for threads without the lock
    // Recovery has examined all files of the previous process, so eviction may begin.
    atomic_bool examined;
    // The file system cannot punch holes, so a segment's unused bytes are freed only with the file.
    atomic_bool no_holes;
    atomic_bool no_room; // there is no spare segment, and none could be evicted
    struct {
        pthread_mutex_t lock;
        pthread_cond_t wake, free_wake; // wake: for the supply thread; free_wake: the freeing one
        struct segment *spare[SEGMENT_SPARE_MAX];
        unsigned spare_count;
        struct segment *doomed; // list of DYING segments that are not unlinked yet
        // List of unlinked segments without pins, whose files the freeing thread closes.
        struct segment *closable;
        unsigned doomed_count; // number of DYING segments that are not unlinked
        unsigned dying_count;  // number of DYING segments, unlinked or not
        uint32_t next_number, number_limit;
        enum segment_wish wish;
        struct disk_thread supply, freer;
        bool free_wanted; // the freeing thread has something to do before its next tick
    } guarded;
};

// Returns the disk space that a segment of this size, a power of two, may take.
uint64_t segment_cost_bytes(uint32_t segment_size_bytes);
// Returns the segment size: a power of two, clamp(capacity / 64, 4 MiB, 256 MiB), and at least
// twice the largest block.
uint32_t segment_size_for(uint64_t capacity_bytes, uint64_t block_size_bytes_max);

// Opens the log and lists the existing files. The caller has set the sizes and limits of the disk.
void segment_log_open(struct segment_log *log, const struct segment_log_options *options);
// Records in dir.format.append which segments the next process may continue. Closes all segments
// and frees the log. Called when the workers have stopped.
void segment_log_close(struct segment_log *log);

// Applies the disk's limits. Called before the threads start, or on the supply thread.
void segment_log_limit(struct segment_log *log);
// Returns the number of entries of the table for this many segments.
uint32_t segment_log_entries(uint64_t segments);
// Returns the number of slots of a cache that has room for this many segments.
unsigned segment_log_slots(uint64_t segments, unsigned workers);
// Returns the number of segments for which the table always has free entries, whatever their
// numbers.
uint64_t segment_log_most(const struct segment_log *log);

// Returns the entry for segment `number`. It may currently hold another segment.
struct segment *segment_log_entry(struct segment_log *log, uint32_t number);
bool segment_pin(struct segment *segment, uint32_t number) MUST_USE;
void segment_pin_again(struct segment *segment); // the caller already has a pin
void segment_unpin(struct segment *segment);
void segment_hold_again(struct segment *segment); // the caller already has a hold
void segment_unhold(struct segment *segment);
// Returns true if no file has this number any more.
bool segment_log_lacks(struct segment_log *log, uint32_t number);

bool segment_is_verified(struct segment *segment, uint32_t first_unit, uint32_t unit_count);
void segment_set_verified(struct segment *segment, uint32_t first_unit, uint32_t unit_count,
                          bool verified);
// Clears the verified mark of the last unit before `offset` if both share a page. A header, an
// intent or a packed run may begin at `offset`. Called before a read that may load that page from
// the device, because such a read does not verify the unit's bytes in the page. `first_unit`: the
// first unit of the run at `offset`. `fd`: a descriptor of the segment.
void segment_unmark_neighbour(struct segment *segment, uint32_t offset, uint32_t first_unit,
                              int fd);
bool segment_is_bad(struct segment *segment, uint32_t header_offset);
void segment_set_bad(struct segment *segment, uint32_t header_offset);
void segment_clear_bad(struct segment *segment, uint32_t header_offset);

void segment_unmark_all(struct segment *segment); // clears the verified marks of all units

struct segment_want {
    uint32_t header_len, payload_len;
    bool is_long; // a long run (store_long.c): if it does not fit, the current segment stays open
};
struct segment_reservation {
    struct segment *segment; // the caller has a pin and a hold
    struct segment_slot *slot;
    struct run_layout layout;
    uint32_t number, first_unit;
    uint64_t salt;
};
// Reserves room for one run in the worker's slot. segment_log_reserve_apart() reserves it in one of
// SEGMENT_SLOTS_APART. Returns ERR_NO_SEGMENT if no segment has room now; the supply thread was
// woken. Returns ERR_LIMIT if the run is too long for any segment.
enum err segment_log_reserve(struct segment_log *log, unsigned worker_index,
                             const struct segment_want *want,
                             struct segment_reservation *ret_reservation) MUST_USE;
enum err segment_log_reserve_apart(struct segment_log *log, unsigned slot,
                                   const struct segment_want *want,
                                   struct segment_reservation *ret_reservation) MUST_USE;
// Shortens the reservation so that it ends at `end_offset`. Later runs may use the bytes after it.
// Returns false, and changes nothing, if the reservation is not the last one of its segment.
bool segment_log_shorten(const struct segment_reservation *reservation, uint32_t end_offset,
                         uint32_t unit_count);
// Abandons a segment, for example after a failed write. Nothing more is written to it, and the
// index forgets its runs.
void segment_log_abandon(struct segment_log *log, struct segment *segment);
// The state of a segment as recovery found it. Writes may continue at `end_offset`, unless the
// segment is full or `sealed`.
struct segment_found {
    uint64_t salt;
    uint32_t end_offset, unit_count, run_count;
    bool sealed;
    bool was_spare; // a clean stop left it for the next process to fill
    // Rows of all complete runs; NULL if `sealed`. segment_log_adopt() takes ownership and sets
    // NULL.
    struct segment_rows *rows;
};
// Takes over a segment that recovery has examined. If the segment is `sealed`, nothing more is
// written to it. Returns false if it is empty and there are enough empty segments. The caller then
// drops it.
bool segment_log_adopt(struct segment_log *log, struct segment *segment,
                       struct segment_found *found);
// Called when recovery has examined all files of the previous process. Eviction may begin.
void segment_log_set_examined(struct segment_log *log);
// Returns a limit some numbers above the next segment number. Numbers below it belong to this
// process, which must record the limit in `format`. Called before threads start.
uint32_t segment_log_promise(struct segment_log *log);
// Returns true if the segment is full and none of its runs is still being written. Any thread.
bool segment_is_full(struct segment *segment);
// Counts blocks and bytes that were rewritten from a segment that is being evicted. Called on the
// retention thread.
void segment_note_moved(struct segment *segment, uint64_t blocks, uint64_t bytes);
// Returns true if the file existed at the start and segment_log_adopt() has not taken it over yet.
bool segment_log_is_recovered(struct segment *segment);
// Removes a file found at the start that is not a segment of this cache. Leaves the index alone.
void segment_log_drop(struct segment_log *log, struct segment *segment);
// Wakes the supply thread, because space is wanted or was freed. `evict`: the index needs room.
void segment_log_want(struct segment_log *log, bool evict);
// Changes the state. Aborts if segment_phases.def does not allow it. Called under the log's lock,
// or while no other thread knows the segment.
void segment_enter_state(struct segment *segment, enum segment_state to);
// Scans the runs of a pinned segment; see segment_scan.h.
enum err segment_log_scan(struct segment *segment, uint64_t salt,
                          bool (*on_run)(void *ctx, const struct run_header *header), void *ctx,
                          struct segment_scan_result *ret_result) MUST_USE;
// Reads the segment's header and its seal; ret_seal->number is 0 if it has none. Returns ERR_FORMAT
// or ERR_CORRUPT if the file is not this segment of this cache.
enum err segment_log_identify(struct segment *segment, struct segment_header *ret_header,
                              struct segment_seal *ret_seal) MUST_USE;

#endif
