// SPDX-License-Identifier: Apache-2.0
// Segments: their table, pins and marks, where the next run goes; and the threads that make them
// (segment_supply.c) and free them (segment_free.c).
#ifndef FOREBAY_STORE_SEGMENT_LOG_H
#define FOREBAY_STORE_SEGMENT_LOG_H

#include <pthread.h>

#include "store/disk/disk.h"
#include "store/segment/segment_pool.h"
#include "store/segment/segment_scan.h"
#include "store/segment/segment_table.h"

#define SEGMENT_BAD_MAX 32u
#define SEGMENT_SPARE_MAX 96u
#define SEGMENT_TABLE_MAX (1u << 22)
#define SEGMENT_COUNT_MIN 3u // a cache of fewer does not work

// Changes only under the log's lock, in this order; FREE again at the end.
enum segment_state {
    SEGMENT_FREE,   // no file
    SEGMENT_SPARE,  // has room, nobody writes to it
    SEGMENT_OPEN,   // the current one of a slot
    SEGMENT_SEALED, // full; runs begun before may still be written
    SEGMENT_DYING,  // no new pins; entries, name and at last the file go
};

#define SEGMENT_PIN_LIVE (1u << 31)     // pins are given
#define SEGMENT_PIN_UNLINKED (1u << 30) // the last pin closes
#define SEGMENT_PIN_COUNT (SEGMENT_PIN_UNLINKED - 1)

// An entry of the table; never freed while the process runs, used again for other segments. So
// whoever has an old pointer may try to pin it; the number tells whether it is still the same one.
// One that is free and was never used is all zero: the table takes up memory where segments are.
// What hangs on it (verified, bad, rows) goes with the segment.
struct segment {
    atomic_uint number;    // 0: free
    atomic_uint pins;      // count and the two flags; 0: no segment
    atomic_uint holds;     // runs begun and places not yet visible: no candidate for eviction
    _Atomic uint64_t file; // its descriptor and who uses it: segment_pool.c
    _Atomic(_Atomic uint64_t *) verified; // a bit per checksum unit; made on first use
    _Atomic(atomic_uint *) bad; // header offsets of runs known bad; 0 = empty; made on first use
    atomic_uint bad_count;
    atomic_uint last_used_s;
    struct segment_log *log;
    // Under the log's lock; the four below too, or under the slot's while OPEN; given_bytes always.
    enum segment_state state;
    bool seal_written,
        recovered; // recovered: was there at the start and has not been looked at yet
    uint64_t salt; // set once, under rows_guard as well
    uint32_t append_offset, unit_count, run_count;
    uint32_t given_bytes; // of its file, back to the file system; nothing is written there any more
    bool is_distrusted;   // DYING: given up, and must not be found again
    bool index_forgotten; // DYING: its entries have left the index, or are to be left alone
    uint64_t moved_blocks, moved_bytes; // DYING: that have survived elsewhere
    struct segment *next;               // in `doomed` or `closable`
    struct segment_rows *rows; // under rows_guard: its whole runs; NULL: on disk, or not known
    unsigned pool_at;          // under the pool's lock, while it is open
};

// Runs that are kept apart from what workers store.
#define SEGMENT_SLOTS_APART 2u
#define SEGMENT_SLOT_SURVIVORS 0u // that outlive their segment
#define SEGMENT_SLOT_PROBATION 1u // that go soon (policy_probation.c)

struct segment_slot {
    struct {
        pthread_mutex_t lock;
        struct segment *current;
    } guarded;
};

// With fewer segments than this a survivor's segment would take too much of the cache.
#define SEGMENT_REWRITE_SEGMENTS_MIN 9u
// The same of segments for what is on probation.
#define SEGMENT_PROBATION_SEGMENTS_MIN 16u

// A run of a segment that goes.
struct segment_removal {
    struct hash128 hash;
    struct store_place place;
};

enum segment_pick {
    SEGMENT_PICK_NONE,     // none may go
    SEGMENT_PICK_GOES,     // *ret_number is to be freed
    SEGMENT_PICK_REWRITES, // it will be, once its survivors lie elsewhere
};

struct segment_file;
struct segment_slot;

// What the log asks of its host, and tells it. `ctx` is the first argument of each call. The thread
// that calls is named with each; none is called while a lock of the log is held, unless said
// otherwise.
struct segment_host {
    void *ctx;
    // At the opening: makes what the directory holds fit cache.size. The files that stay come first
    // and are counted in the answer.
    size_t (*fit)(void *ctx, struct segment_file *files, size_t count);
    // Supply thread: a turn begins, at least once a second.
    void (*turn)(void *ctx);
    // Supply thread: the entry is about to become segment `number`, made just now.
    void (*begin)(void *ctx, struct segment *segment, uint32_t number);
    // Supply thread: nothing needs to go for the next segment.
    void (*has_room)(void *ctx);
    // Supply thread: which segment goes? `may_rewrite`: nobody waits for its room. The host asks
    // may_go() for each candidate.
    enum segment_pick (*pick)(void *ctx, bool (*may_go)(void *picking, uint32_t number),
                              void *picking, bool may_rewrite, uint32_t *ret_number);
    // Supply thread: has nothing been stored on probation for a while? True once, after a pick.
    bool (*probation_ended)(void *ctx);
    // Supply thread: are survivors rewritten at all; is a segment's survivors' rewriting under way;
    // and have runs come lately that need a segment for themselves?
    bool (*has_survivors)(void *ctx);
    bool (*rewrites)(void *ctx);
    bool (*has_long_runs)(void *ctx);
    // Any thread, under the log's lock: how many spare segments are not for runs of this slot?
    unsigned (*spares_kept)(void *ctx, const struct segment_slot *slot);
    // Freeing thread: the segment loses its name next. `removals`: its runs, as far as they are
    // known.
    void (*dies)(void *ctx, struct segment *segment, const struct segment_removal *removals,
                 unsigned count);
    // Freeing thread: the index must forget these runs, which the host takes over (malloc'd). May
    // wait.
    void (*forget)(void *ctx, struct segment_removal *removals, unsigned count);
    // Freeing thread: the index holds places of a segment that is gone, and nobody knows which.
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
    uint32_t segment_size_bytes; // of the files
    uint32_t unit_max;
    uint64_t segment_cost_bytes; // the file and what the file system needs for it
    atomic_uint segments_max;    // that fit the limit
    uint32_t table_mask;
    struct segment *table;
    unsigned slot_max;
    atomic_uint slot_count;     // in use: fewer in a small cache
    struct segment_slot *slots; // of workers, and SEGMENT_SLOTS_APART behind slot_max
    struct segment_pool pool;
    pthread_mutex_t rows_guard; // of each segment's rows; held for a moment, none is taken under it
    pthread_mutex_t seal_lock;  // who writes tables or marks: blocks; then the log's or rows_guard
    pthread_t supply, freer;
    bool supply_runs, freer_runs;
    atomic_uint made;           // segments, since the start
    atomic_bool names_unsynced; // of segments made since the folder was synced
    atomic_uint segment_count;  // files, unlinked ones still open included
    atomic_uint room;           // spare segments; a hint for those without the lock
    atomic_bool examined; // what was there at the start has been looked at: eviction may begin
    atomic_bool no_holes; // the file system punches none: nothing of a segment goes back before it
    atomic_bool no_room;  // nothing spare, nothing that could be freed
    struct {
        pthread_mutex_t lock;
        pthread_cond_t wake, free_wake; // of the supply thread, of the freeing one
        struct segment *spare[SEGMENT_SPARE_MAX];
        unsigned spare_count;
        struct segment *doomed;   // DYING, still with a name
        struct segment *closable; // unlinked and unpinned
        unsigned doomed_count;    // DYING, until they have lost their name
        unsigned dying_count;     // until closed
        uint32_t next_number, number_limit;
        bool wanted, evict_wanted, stop;
        bool free_wanted, free_stop;
    } guarded;
};

// Bytes that a segment of this size, a power of two, may take up on disk.
uint64_t segment_cost_bytes(uint32_t segment_size_bytes);
// clamp(size / 64, 4 MiB, 256 MiB), a power of two, at least twice the largest block.
uint32_t segment_size_for(uint64_t capacity_bytes, uint64_t block_size_bytes_max);

// Takes stock of the files that are there. Sizes and limits of the disk are set before.
enum err segment_log_open(struct segment_log *log,
                          const struct segment_log_options *options) MUST_USE;
// After the workers: fills dir.format.append, closes everything, frees.
void segment_log_close(struct segment_log *log);

// Goes by the disk's limits. Before threads, or on the supply thread.
void segment_log_limit(struct segment_log *log);
// So many segments find an entry in the table, whatever their numbers.
uint64_t segment_log_most(const struct segment_log *log);

// The entry where segment `number` would be; it may hold another one.
struct segment *segment_log_entry(struct segment_log *log, uint32_t number);
bool segment_pin(struct segment *segment, uint32_t number) MUST_USE;
void segment_pin_again(struct segment *segment); // the caller has one
void segment_unpin(struct segment *segment);
void segment_hold_again(struct segment *segment); // the caller has one
void segment_unhold(struct segment *segment);
// Is there no file of this number any more?
bool segment_log_lacks(struct segment_log *log, uint32_t number);

bool segment_is_verified(struct segment *segment, uint32_t first_unit, uint32_t unit_count);
void segment_set_verified(struct segment *segment, uint32_t first_unit, uint32_t unit_count,
                          bool verified);
// A header, an intent or a packed run may begin at `offset` in the last page of the run before it.
// Bringing that page from the device takes the mark from that run's last unit, and this is called
// before: nobody has looked at those bytes. `first_unit`: of the run that begins there; `fd`: the
// segment's.
void segment_unmark_neighbour(struct segment *segment, uint32_t offset, uint32_t first_unit,
                              int fd);
bool segment_is_bad(struct segment *segment, uint32_t header_offset);
void segment_set_bad(struct segment *segment, uint32_t header_offset);
void segment_clear_bad(struct segment *segment, uint32_t header_offset);

void segment_unmark_all(struct segment *segment); // nothing in it counts as looked at

struct segment_want {
    uint32_t header_len, payload_len;
    bool is_long; // see store_long.c: where there is no room for it, shorter ones go on
};
struct segment_reservation {
    struct segment *segment; // pinned and held
    struct segment_slot *slot;
    struct run_layout layout;
    uint32_t number, first_unit;
    uint64_t salt;
};
// Room for one run in the slot of this worker, or (survivors: not on a worker) in one that is kept
// apart. ERR_NO_SEGMENT: none now (wakes the supply thread); ERR_LIMIT: never.
enum err segment_log_reserve(struct segment_log *log, unsigned worker_index,
                             const struct segment_want *want,
                             struct segment_reservation *ret_reservation) MUST_USE;
enum err segment_log_reserve_apart(struct segment_log *log, unsigned slot,
                                   const struct segment_want *want,
                                   struct segment_reservation *ret_reservation) MUST_USE;
// Gives back what lies behind `end_offset` when the reservation is the last one of its segment;
// else false.
bool segment_log_shorten(const struct segment_reservation *reservation, uint32_t end_offset,
                         uint32_t unit_count);
// Writing to it failed: nothing more is written there, and all it holds is forgotten.
void segment_log_abandon(struct segment_log *log, struct segment *segment);
// A segment found at the start: writing may go on behind `end_offset`, unless it is full or nothing
// is to be written there (`sealed`: no seal either). False: it holds nothing and there are enough
// such; to be dropped.
struct segment_found {
    uint64_t salt;
    uint32_t end_offset, unit_count, run_count;
    bool sealed;
    struct segment_rows *rows; // all of its whole runs, unless sealed; taken over, NULL after
};
bool segment_log_adopt(struct segment_log *log, struct segment *segment,
                       struct segment_found *found);
// What was there at the start has been looked at: eviction may begin.
void segment_log_set_examined(struct segment_log *log);
// Numbers up to some beyond the next one are promised to this process; `format` must say so. Before
// threads.
uint32_t segment_log_promise(struct segment_log *log);
// Is it full, and nothing of it on its way any more? Any thread.
bool segment_is_full(struct segment *segment);
// So much of a segment that goes has survived elsewhere. On the retention thread.
void segment_note_moved(struct segment *segment, uint64_t blocks, uint64_t bytes);
// Was it there at the start, and has not been adopted?
bool segment_log_is_recovered(struct segment *segment);
// A file found at the start is no segment of ours: it goes, without a look at the index.
void segment_log_drop(struct segment_log *log, struct segment *segment);
// Wakes the supply thread: space is wanted.
void segment_log_want(struct segment_log *log,
                      bool evict); // evict: one segment must go, the index needs room
// Lists the runs of a pinned segment; see segment_scan.h.
enum err segment_log_scan(struct segment *segment, uint64_t salt,
                          bool (*on_run)(void *ctx, const struct run_header *header), void *ctx,
                          struct segment_scan_result *ret_result) MUST_USE;
// Reads the segment's header and its seal, if there is one; ERR_FORMAT or ERR_CORRUPT: not this
// segment of this cache.
enum err segment_log_identify(struct segment *segment, struct segment_header *ret_header,
                              struct segment_seal *ret_seal) MUST_USE;

#endif
