// SPDX-License-Identifier: Apache-2.0
// Stores the cached bytes on disk. Segments are the truth: files of fixed size, written front to
// back, freed as a whole. The LMDB index is a hint that can be rebuilt from segments. The store
// survives kill -9 and never takes more than cache.size. It drops, and does not repair, anything
// that it cannot verify.
//
// Threads: a call that takes a `struct worker *` runs on that worker, and so does its callback. The
// index writer's thread owns the only write transaction. Workers share the following without a
// lock: segment reference counts, verified marks, and the memory side of the index.
//
// Degraded: if the disk is full, failing, read-only or absent, look-ups miss and no run may begin.
// Everything else works.
#ifndef FOREBAY_STORE_STORE_H
#define FOREBAY_STORE_STORE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "base/bytes.h"
#include "base/chunk.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/host.h"
#include "loop/loop.h"
#include "stats/stats.h"

#define STORE_CHECKSUM_UNIT 65536u // payload bytes per CRC32C; equals CHUNK_SIZE
// Maximum payload of a run of several blocks, in bytes. A single block may be larger.
#define STORE_RUN_MAX (4u << 20)
#define STORE_RUN_BLOCKS_MAX 64u     // 4 MiB, the longest run, of 64 KiB blocks
#define STORE_WINDOW_MAX (16u << 20) // maximum object bytes per look-up
#define STORE_VIEW_PLACES_MAX 256u   // 16 MiB, the largest window, of 64 KiB runs
#define STORE_SMALL_MAX 16384u       // maximum payload for store_read_small(), in bytes
#define STORE_READ_MAX 262144u       // maximum bytes per store_read (4 checksum units)
#define STORE_HEADERS_MAX 8192u      // maximum length of an object's rendered reply headers
#define STORE_BLOCK_SIZE_MIN 65536u
#define STORE_BLOCK_SIZE_MAX (16u << 20)

struct store;

// A realm or an origin under whose name copies of keys may be stored, or names of buckets at their
// origins. If a start no longer names one, each copy is revalidated once.
struct store_holder {
    struct span kind, name;
    bool is_origin;
    bool was_shared; // earlier versions may have stored copies of other stores under the name
    // The store assigns it; the caller makes it part of the names of the holder's keys.
    uint64_t number;
    // The store sets it if earlier starts named this origin and the last one did not. Its cached
    // objects count after a revalidation.
    bool is_back;
};

enum store_policy {
    STORE_POLICY_LRU,   // stores everything, evicts the oldest
    STORE_POLICY_EPOCH, // learns which runs are worth keeping: policy.h
};

// Priorities 0 to 9 of runs in a full cache. Each is worth twice the one below.
#define STORE_PRIORITIES 10u
#define STORE_PRIORITY_NORMAL 5u
// Groups of runs, for the policy. A rule that sets only a priority uses the group of that number. A
// rule with a pin or a share has its own group: STORE_PRIORITIES + its index in
// store_options.groups.
#define STORE_GROUPS_MAX 21u
// The group of objects that an operator pinned by command while the process runs.
#define STORE_GROUP_PINS (STORE_PRIORITIES + STORE_GROUPS_MAX)
struct store_group {
    unsigned priority;
    // The group's runs are not evicted, as long as all pinned runs together stay within one limit.
    bool pin;
    // Largest share of a full cache that the group may use; 0: no limit. Not combined with a pin.
    unsigned share_percent;
    // By this number a later process recognises the rule. 0: the group has no rule.
    uint64_t identity;
};

struct store_options {
    enum store_policy policy;
    const struct store_group *groups; // the store copies them
    unsigned group_count;             // at most STORE_GROUPS_MAX
    const char *dir;                  // created (0700) if it does not exist
    uint64_t size_bytes;              // 0: use size_percent
    unsigned size_percent;            // percent of the free space plus the cache's own size
    unsigned headroom_percent; // percent of the size kept free for the index and fills in flight
    // Percent of the file system. While less is free, nothing is stored and the oldest segments are
    // removed.
    unsigned min_free_percent;
    uint64_t scrub_bytes_per_s; // rate of the background scrub; 0: no scrub
    bool verify_always;         // the setting cache.verify is `always`
    bool must_begin;            // fail if the directory has no cache and cannot have one
    // Largest block of any rule. A segment is at least twice as large.
    uint64_t block_size_bytes_max;
    unsigned descriptors_max; // open file descriptors for segments; 0: 1,024
    // All holders under which this process invalidates copies. The store assigns their numbers.
    // Copies under other holders are unreachable, because they may miss writes. Copies under an
    // origin count again when it comes back.
    struct store_holder *holders;
    unsigned holder_count;
    const char *origin; // name of the default origin, for store_summary.former_origin; NULL: none
    // The memory that written bytes may take; 0: there is no limit. write_backlog.c bounds those
    // that the device does not have yet. While memory_is_short() returns true, only this many of
    // the bytes written last stay in the page cache.
    uint64_t written_pages_bytes;
    bool (*memory_is_short)(void); // called on any thread
    // The memory that the page cache can use. Hits that are not in memory go past the page cache if
    // the cached bytes do not fit into it. NULL: they never do. Called on any thread.
    bool (*memory)(struct host_memory *ret_memory);
};

// The options that may change while the store is open.
struct store_limits {
    uint64_t size_bytes; // 0: use size_percent
    unsigned size_percent, headroom_percent, min_free_percent;
    uint64_t scrub_bytes_per_s;
    bool verify_always;
    uint64_t block_size_bytes_max; // largest block of any rule
};

// Opens the store. The caller must exit on these errors; ret_why then has one line with the remedy:
//
// - ERR_IN_USE: another process holds the lock.
// - ERR_FORMAT: the directory is not a Forebay cache. It is refused, never overwritten.
// - ERR_INVALID: the size is below the minimum of 16 MiB.
// - ERR_LIMIT: the system refuses a thread. Later no thread is created.
// - With must_begin, ERR_PERMISSION, ERR_NOT_FOUND and ERR_IO: there is no cache and there cannot
//   be one.
//
// Any other unusable disk (full, EIO, a cache that is now read-only) is no error: the store opens
// degraded and logs it. Call before loop_start().
enum err store_open(const struct store_options *options, struct loop *loop,
                    struct store **ret_store, struct buf *ret_why) MUST_USE;
// Commits, syncs, records the clean stop and frees the store. Call after loop_stop().
void store_close(struct store *store);
// Sets the groups of rules, when rules have changed. A group that keeps its identity keeps its
// runs. Runs of groups that no longer exist count by their priority alone. Requests in progress may
// still name former groups. Waits for the policy's lock, at most milliseconds. Not on a worker.
void store_set_groups(struct store *store, const struct store_group *groups, unsigned group_count);
// Returns the largest size that the cache can have without a restart, if that is below cache.size,
// because the process began with a smaller cache. Returns 0 if cache.size is not cut. Any thread.
uint64_t store_size_cut(const struct store *store, const struct store_limits *limits);
// The cache that `forebay plan` assumes: new, with the default cache.block_size, and with objects
// that are read whole.
struct store_plan {
    unsigned workers, headroom_percent;
    uint64_t object_bytes; // of a mean object, above 0
};
// Returns how many bytes of objects a cache of this size holds before it evicts any. Pure.
uint64_t store_plan_holds(const struct store_plan *plan, uint64_t size_bytes);
// Returns the least cache.size that holds the data whole, as do all larger ones. If there is none,
// returns 4 EiB. Pure.
uint64_t store_plan_size(const struct store_plan *plan, uint64_t data_bytes);
// Returns the largest block that fits into this cache's segments; a restart may change that. Any
// thread.
uint64_t store_block_size_max(const struct store *store);
// Applies new limits. If the cache is then too large, it evicts a few segments at a time, while
// hits continue. ERR_INVALID: the cache cannot become that small while it runs, or its segments are
// too small for such blocks. Nothing has changed then, and ret_why says why. Not on a worker.
enum err store_set_limits(struct store *store, const struct store_limits *limits,
                          struct buf *ret_why) MUST_USE;
// Adds holders and assigns their numbers. From now on writes invalidate copies under them, too.
// ERR_OK: the change is durable. May block.
enum err store_holders_add(struct store *store, struct store_holder *holders,
                           unsigned count) MUST_USE;
struct store_summary {
    const char *dir;
    uint64_t capacity_bytes, used_bytes, segment_size_bytes;
    uint64_t capacity_most_bytes; // largest capacity_bytes since cache.size was set
    uint64_t objects, blocks;     // numbers in the index; may be a little old
    bool degraded; // the directory, its disk or the index does not work at this moment
    bool is_blind; // look-ups find nothing
    // The reason why nothing is stored or found now. REFUSAL_none: none is known. Trouble with the
    // disk lasts until a write succeeds, so between two attempts this is set and `degraded` is not.
    enum refusal refusal;
    // "min_free", "inodes" or "space": the file system lacks it for a cache of cache.size. NULL: it
    // lacks nothing.
    const char *short_of;
    bool rebuilding; // the index is being rebuilt from segments
    // Why the directory could not be used at the start; NULL: it is in use.
    const char *unusable;
    int disk_errno;    // of the last failed write; 0: none
    uint64_t stuck_ms; // for how long the oldest call of the store's threads waits for the disk
    // The default origin of the last start, if this start has another one. NULL: it has the same,
    // or that is not known.
    const char *former_origin;
};
// Returns the part of used_bytes that is written to segments; the rest is reserved for runs. An
// evicted run counts until its segment is freed. Not on a worker.
uint64_t store_held_bytes(struct store *store);
void store_summarize(const struct store *store, struct store_summary *ret_summary); // any thread
// Returns true if readers hold too many evicted segments, so that only segments without readers are
// evicted. Any thread.
bool store_waits_for_readers(struct store *store);
// Returns the 128-bit keyed hash of (realm, bucket, key). Each cache directory has its own hash
// key. Any thread.
struct hash128 store_hash(const struct store *store, struct span realm, struct span bucket,
                          struct span key);
// Returns a new generation, above all earlier ones, including those before a restart. Any thread.
uint64_t store_generation_next(struct store *store);

// --- epochs: changes of a bucket whose extent is unknown -----------------------------------------

// Returns the epoch of a bucket. The caller makes it part of the realm of the bucket's objects, so
// raising it makes all of them unreachable for good. It only rises, also across restarts, and is 0
// if it was never raised. Any thread; no lock, no system call.
uint64_t store_epoch(const struct store *store, struct span origin, struct span bucket);

// Embedded in the caller's struct; the store uses it from store_epoch_begin() to done(). The change
// is open between done() and store_epoch_end(). Runs stored under the epoch of that time are
// unreachable for later processes.
struct store_epochs;
struct store_epoch_slot;
struct store_epoch_change {
    // Called on the worker that began the change.
    void (*done)(struct store_epoch_change *change, enum err err);
    struct blocking_job job; // private from here on
    struct store_epochs *epochs;
    struct hash128 bucket;
    struct store_epoch_slot *slot;
};
// Raises the epoch. done() with ERR_OK: this and all later processes use the new epoch. done() with
// an error: the disk refused the new epoch and nothing has changed. The caller must then not change
// the bucket, because the next process would trust copies that the change makes untrue. If the
// store could not use its directory at the start, it raises the epoch in memory only, because no
// later process trusts its index.
void store_epoch_begin(struct worker *w, struct store *store, struct span origin,
                       struct span bucket, struct store_epoch_change *change);
// Ends the change, whether the bucket was changed or not: raises the epoch again, at once. Called
// only after done() with ERR_OK. Any thread.
void store_epoch_end(struct store_epoch_change *change);

// Returns the epoch under which a write to a single key must begin. Until store_epoch_release(),
// runs stored under another epoch are unreachable for later processes. Each call needs one
// store_epoch_release().
uint64_t store_epoch_hold(struct store *store, struct span origin, struct span bucket);
void store_epoch_release(struct store *store, struct span origin, struct span bucket);

// --- doubts: writes with an unknown outcome ------------------------------------------------------

// How long an origin may take to apply a request after its last sign of life.
#define STORE_DOUBT_MS 300000u
// Puts the bucket in doubt for STORE_DOUBT_MS, because any of its keys may change in that time. A
// record that the origin confirmed before the end of that time must be revalidated before use. Any
// thread.
void store_doubt(struct store *store, struct span origin, struct span bucket);
// As store_doubt(), for a caller that may soon know that no more keys change. If so, it calls
// store_doubt_end(). Records that were confirmed before that call are still revalidated, also by
// the next process if a write is sent or ends before this one ends. Of several such doubts, the
// last one is ended first. Any thread.
struct store_doubt_slot;
struct store_doubt_open {
    struct store_doubt_slot *slot;
    uint64_t before_ms, until_ms;
};
void store_doubt_begin(struct store *store, struct span origin, struct span bucket,
                       struct store_doubt_open *ret_open);
void store_doubt_end(struct store *store, const struct store_doubt_open *open);
// Returns true if a record that was confirmed `age_ms` ago must be revalidated before use. With an
// age of 0, returns true if the bucket is in doubt now. For a doubt about all buckets of an origin,
// `origin` is its name and `bucket` is empty. Any thread; no lock.
bool store_is_doubted(const struct store *store, struct span origin, struct span bucket,
                      uint64_t age_ms);
// Returns when the doubt of the bucket ends, in seconds of the wall clock. 0: it is not in doubt
// now. A later write can only postpone that. Any thread; no lock.
uint64_t store_doubt_until_s(const struct store *store, struct span origin, struct span bucket);
// The buckets that are in doubt now. An origin that is in doubt as a whole counts as a bucket.
struct store_doubted {
    unsigned buckets; // of those that have a doubt of their own
    bool has_others;  // all buckets without a doubt of their own are in doubt
    bool after_crash; // an earlier process ended without a clean stop while it was writing
    uint64_t until_s; // end of the last doubt, on the wall clock, maybe in the past; 0: none
};
void store_doubted(const struct store *store, struct store_doubted *ret_doubted); // any thread

// Before the caller sends a write to a bucket, it notes the bucket on disk, so that the next
// process knows of the write if this one ends abruptly. store_write_is_noted() returns true if the
// bucket is already noted (any thread, no lock). Otherwise the caller calls store_write_note().
// done() is also called if the directory cannot be written.
//
// The caller waits for a note only STORE_NOTE_WAIT_MS, and then sends the write without it. In that
// case, the doubt is lost only if the process is killed during the write. store_notes_hang()
// returns true if a note has already waited for that long. A caller then asks for no other note.
// Any thread.
#define STORE_NOTE_WAIT_MS 2000u
struct store_doubts;
struct store_note {
    void (*done)(struct store_note *note); // called on the worker that asked
    struct blocking_job job;               // private from here on
    struct store_doubts *doubts;
    struct hash128 bucket;
};
bool store_write_is_noted(const struct store *store, struct span origin, struct span bucket);
bool store_notes_hang(const struct store *store);
void store_write_note(struct worker *w, struct store *store, struct span origin, struct span bucket,
                      struct store_note *note);

// --- versions ------------------------------------------------------------------------------------

// One immutable version, as run headers describe it. Has an atomic reference count.
struct store_object {
    atomic_uint refs;
    struct hash128 hash;
    uint64_t generation; // 0: the home has not assigned one yet
    // When the origin was asked for this description, on the workers' clock. 0: it was read from
    // disk.
    uint64_t learnt_us;
    uint64_t size_bytes;
    uint32_t block_size_bytes;
    time_t last_modified; // parsed from the header Last-Modified; 0: unknown
    struct span realm, bucket, key, etag, version_id; // etag as sent, with quotes
    // Rendered lines "Name: value\r\n" for replies, with ETag, Last-Modified and Content-Type.
    struct span headers;
};
// Returns a new object in one allocation, with copies of all arguments. Returns NULL if an argument
// exceeds one of the limits above.
struct store_object *store_object_new(struct hash128 hash, struct span realm, struct span bucket,
                                      struct span key, struct span etag, struct span version_id,
                                      struct span headers, uint64_t size_bytes,
                                      uint32_t block_size_bytes, time_t last_modified);
struct store_object *store_object_ref(struct store_object *object);
void store_object_unref(struct store_object *object); // accepts NULL
// Returns a copy of the version with another generation.
struct store_object *store_object_with_generation(const struct store_object *object,
                                                  uint64_t generation);
// Returns the number of blocks; an empty object has one block of 0 bytes.
uint64_t store_object_block_count(const struct store_object *object);

// --- places --------------------------------------------------------------------------------------

// The place of a run: its position on disk. Passed by value, also to other workers. If `segment` is
// set, the place holds one pin on it, which the receiver returns with store_place_unpin(). The file
// of a pinned segment is not removed. A dying segment remains readable as long as there are enough
// descriptors; after that its runs are misses.
struct segment;
struct store_place {
    struct segment *segment;
    uint32_t segment_number;
    uint32_t header_offset; // offset in the segment, in bytes
    uint32_t header_len;
    uint32_t payload_offset; // offset in the segment, in bytes
    uint32_t payload_len;
    uint64_t salt;
    uint64_t generation;
    uint64_t first_block;
    uint32_t block_count;
    uint32_t block_size_bytes;
    uint32_t first_unit; // number of the run's first checksum unit, counted in the segment
    bool is_described;   // the object's headers are in the index, not in the run's header
    bool has_no_pages;   // of a run just written: no payload went through the page cache
    // `hash` and `etag_hash` identify the object's version. Each header that is read is
    // compared with both.
    struct hash128 hash;
    uint64_t etag_hash;
};
// Adds one pin. Returns false if the segment is dying; the place is then a miss.
bool store_place_pin(struct store_place *place) MUST_USE;
// Returns the pin and sets `segment` to NULL. Accepts a NULL segment. Any worker.
void store_place_unpin(struct store_place *place);
// Adds one more pin to a place that has one, also if its segment is dying.
void store_place_pin_again(const struct store_place *place);

// --- look-up -------------------------------------------------------------------------------------

// The checksums of an object, packed by the caller. The store keeps them with the version's record
// and does not interpret them. Unused bytes are zero.
#define STORE_SUMS_MAX 71u
struct store_sums {
    uint8_t len; // 0: no checksum is known
    uint8_t bytes[STORE_SUMS_MAX];
};

// The result of a look-up: the places of an object within a window of its bytes. It holds no LMDB
// read transaction, because each look-up begins one and ends it.
struct store_view {
    bool found; // a record exists, and its generation is not below `floor`
    // LMDB could not be searched, because look-ups are off after read errors, or the index is being
    // reopened or rebuilt. The caller treats this as a miss, but the key may be cached. `found` may
    // be set as well, if the memory side has a recent put of the key.
    bool unknown;
    uint64_t generation, size_bytes;
    uint32_t block_size_bytes;
    uint64_t etag_hash; // hash64(etag, 0)
    // Time since the last validation. UINT64_MAX: unknown, so revalidate (rebuilt from segments, or
    // the clock went backwards).
    uint64_t age_ms;
    bool rebuilt;           // revalidate before the first use, whatever the rule says
    struct store_sums sums; // from its record; see store_renewal
    // Pinned places of the runs that overlap the window, ascending by first_block. Bad runs that
    // the store has already found are left out.
    unsigned place_count;
    struct store_place places[STORE_VIEW_PLACES_MAX];
    // If `found` and place_count is 0: another run of the object, pinned, so that its header can be
    // read. Its segment is NULL if no good run exists.
    struct store_place any;
};
// `first_byte` <= `end_byte` (exclusive), with a window of at most STORE_WINDOW_MAX. The object may
// be smaller than the window, because the caller may not know its size. Never fails: an error
// counts as a miss.
void store_lookup(struct worker *w, struct store *store, struct hash128 hash, uint64_t first_byte,
                  uint64_t end_byte, uint64_t floor, struct store_view *ret_view);
void store_view_done(struct store_view *view); // unpins the places that are still pinned

// --- reading -------------------------------------------------------------------------------------

// Returns the object of a run. Verifies the run's header and compares realm, bucket and key. Looks
// in the worker's run cache first, then reads with NOWAIT. ERR_CORRUPT: the header is bad or is of
// another object; the run is dropped and counted. ERR_AGAIN: the read would block, so the caller
// uses store_read_start() with `header`.
enum err store_object_get(struct worker *w, struct store *store, const struct store_place *place,
                          struct hash128 hash, struct span realm, struct span bucket,
                          struct span key, struct store_object **ret_object) MUST_USE;

// For small runs: reads the header and the whole payload with one NOWAIT read, verifies both and
// compares the key. Only for runs with payload_len <= STORE_SMALL_MAX. *ret_chunk holds the bytes,
// with the payload at ret_payload. The caller unrefs the chunk.
enum err store_read_small(struct worker *w, struct store *store, const struct store_place *place,
                          struct hash128 hash, struct span realm, struct span bucket,
                          struct span key, struct store_object **ret_object,
                          struct chunk **ret_chunk, struct span *ret_payload) MUST_USE;

// Avoids a read: returns true if the range (object bytes, inside the place) is verified and in
// memory now. *ret_range has its own pin. False: use store_read_start(). Always false with
// verify_always.
bool store_range_ready(struct worker *w, struct store *store, const struct store_place *place,
                       uint64_t first_byte, uint64_t len, struct file_range *ret_range);

// Where the general way found the bytes: in the page cache, on the device and now in the page
// cache, or on the device, past the page cache.
enum store_read_source { STORE_READ_MEMORY, STORE_READ_DEVICE, STORE_READ_DIRECT };

// The general way: an asynchronous read that verifies checksums and sets the verified marks. The
// caller embeds this struct and gets one callback.
struct store_read {
    struct store *store;
    struct store_place place; // borrowed: the caller keeps it pinned until done()
    // Object bytes inside the place; len <= STORE_READ_MAX. While the memory budget is used up, the
    // read may be shortened: done() finds the new length in `len`.
    uint64_t first_byte, len;
    bool header; // read and verify the run's header instead: sets `object`
    // If `header` is set, the read compares the run's header with `hash`, `realm`, `bucket` and
    // `key`.
    struct hash128 hash;
    struct span realm, bucket, key;
    void (*done)(struct store_read *read);
    // Results. The caller unrefs the chunks. ERR_CORRUPT: the run is bad; it is counted and
    // dropped, so it is a miss from now on. ERR_IO: the device failed, and the run is dropped.
    // ERR_UNREADABLE and ERR_DESCRIPTORS: the run cannot be read now, but it is not dropped.
    // ERR_CANCELLED: store_read_cancel() was called.
    enum err err;
    struct chunk *chunks[STORE_READ_MAX / CHUNK_SIZE + 1];
    // The requested bytes in the chunks, in order.
    struct span spans[STORE_READ_MAX / CHUNK_SIZE + 1];
    unsigned span_count;
    enum store_read_source source; // valid with ERR_OK and without `header`
    struct store_object *object;
    struct disk_op op; // private from here on
    struct task task;
    bool cancelled, repeated;
    struct iovec iov[STORE_READ_MAX / CHUNK_SIZE + 1];
    struct worker *worker;
    void *engine_private[3];
};
void store_read_start(struct worker *w, struct store_read *read);
void store_read_cancel(struct store_read *read); // done() still runs, later
// Returns true if a read of these bytes need not wait for the disk, because the page cache has them
// and their run's header.
bool store_is_in_memory(struct worker *w, const struct store_place *place, uint64_t first_byte,
                        uint64_t len);

// The caller knows how soon the origin would have sent the same bytes. It reports a read that takes
// longer, and later the end of that read. It also reports a read that came in time. After some late
// reads in a row the disk is slow, until reads come in time. Any thread.
void store_read_late(const struct store_read *read);
void store_read_late_over(const struct store_read *read);
void store_read_in_time(const struct store_read *read);
bool store_is_slow(const struct store *store);
bool store_is_stuck(const struct store *store); // slow, and with many late reads in flight
// Returns false if the origin should be asked in place of this read, because the disk is slow. Now
// and then it returns true, so that the read shows whether the disk is still slow.
bool store_takes_read(const struct store_read *read);
bool store_times_reads(void); // false: a test counts hits, whatever the speed of the machine

// Records a use of the run for the policy. Called once for each run and request, when the request
// begins to receive bytes of the run. `bytes`: how many it will receive in all. `group`: the group
// of the request's rule. The run now belongs to this group.
void store_note_read(struct worker *w, struct store *store, const struct store_place *place,
                     uint64_t bytes, unsigned group);

// --- pins given while the process runs: state_pins.c --------------------------------------------

// Loads the text that store_pins_save() last stored. ERR_OK with an empty text if there is none.
// ERR_CORRUPT: the file is damaged; this is logged and the file renamed. One thread at a time.
enum err store_pins_load(struct store *store, struct buf *ret_text) MUST_USE;
// Logs and renames a file whose text the caller cannot parse, like a damaged one.
void store_pins_put_aside(struct store *store, const char *why);
// Replaces the text; durable with ERR_OK. Otherwise the previous text stays. The exception: if only
// the last sync failed, the next process may find either text. ret_why says briefly what failed.
// Blocks. One thread at a time.
enum err store_pins_save(struct store *store, struct span text, struct buf *ret_why) MUST_USE;

// No look-up uses the object's stored names any more, for example since the epoch of its bucket was
// raised. A review removes its runs, so that they do not keep the room of objects that are read.
#define STORE_GROUP_GONE (STORE_GROUP_PINS + 1)
// Returns the group of an object, given the names under which it is stored. A thread of the store
// calls it; it must not block. store_set_group_of() with NULL makes the groups unknown from now on.
// When that call returns, no call of the former function is in progress.
typedef unsigned (*store_group_fn)(void *ctx, struct span realm, struct span bucket,
                                   struct span key);
void store_set_group_of(struct store *store, store_group_fn group_of, void *ctx);
// Sets whether any object is pinned by command. Any thread.
void store_set_pins(struct store *store, bool has_pins);
enum store_review {
    STORE_REVIEW_PINNED = 1, // runs in STORE_GROUP_PINS whose pins may have been removed
    STORE_REVIEW_OTHERS = 2, // other runs, which may have been pinned or may be gone
};
// Starts a background job that sets the groups of stored runs to what group_of() returns now, and
// removes those that are gone. It reads the header of each run. Any thread.
void store_review(struct store *store, unsigned reviews);

struct store_pins_figures {
    bool are_kept; // false: cache.policy is lru, or there are too few segments, or no directory
    bool in_review;
    uint64_t bytes, bytes_max; // pinned now, and their maximum, including pins by rules
};
// Waits for the policy's lock, at most milliseconds. Not on a worker.
void store_pins_figures(struct store *store, struct store_pins_figures *ret_figures);

// --- writing a run -------------------------------------------------------------------------------

struct store_run;
// Returns the longest payload of a run of several blocks that may begin without a promise:
// STORE_RUN_MAX, or a quarter of a segment in a small cache. A single block always fits.
uint64_t store_run_bytes_max(const struct store *store);
// Returns the longest payload of a run of several blocks that has a promise; see
// store_long_promise().
uint64_t store_run_bytes_long(const struct store *store);
// Promises room for a long run. Returns true if there will probably be room when the run begins.
// The caller then calls store_long_release() once the run has begun, or once it is clear that it
// will not begin. Any thread.
bool store_long_promise(struct store *store) MUST_USE;
void store_long_release(struct store *store);
// The purpose of a stored run.
struct store_run_use {
    unsigned group; // of the object's rule, up to STORE_GROUP_PINS
    // The reader wants less than the whole object. The policy then admits the run. Otherwise the
    // reader's next request, for another part, would fetch the whole run from the origin again.
    bool is_part;
    // No reader takes the bytes now, but one will want them soon.
    bool is_ahead;
};
// Begins a run of the whole blocks [first_block, first_block + block_count) of `object`. Asks the
// policy whether to store it, and reserves space for header and payload. The payload is at most
// max(store_run_bytes_long(), one block).
//
// object->generation may still be 0, because the index record names it later. The header then
// carries a provisional one from store_generation_next().
//
// Errors are those of stats/refusals.def, counted here. On an error the caller continues without
// storing.
enum err store_run_begin(struct worker *w, struct store *store, struct store_object *object,
                         uint64_t first_block, uint32_t block_count, struct store_run_use use,
                         struct store_run **ret_run) MUST_USE;
// Returns true if the policy would store a run that begins at `first_block`, and not only on
// probation. The answer is a guess. The call does not count as an access.
bool store_would_keep(const struct store *store, struct hash128 hash, uint64_t first_block,
                      unsigned group);
// Like store_would_keep(), but also returns true if the run would be stored only on probation. For
// blocks that will be read soon.
bool store_would_take(const struct store *store, struct hash128 hash, uint64_t first_block,
                      unsigned group);
// Tells the policy that these bytes of an object were requested and are not stored, so that it
// knows their value. Call it once for each run that they would have been. Counts no refusal.
void store_note_refused(struct worker *w, struct store *store, struct hash128 hash,
                        uint64_t first_block, uint64_t payload_len, unsigned group);
// Appends the next chunk of the payload, in order. Each chunk has STORE_CHECKSUM_UNIT bytes, except
// for the last. Takes its own reference until the chunk is written. Never blocks. Errors show at
// store_run_finish().
void store_run_append(struct store_run *run, struct chunk *chunk);
// Returns the bytes appended but not yet written; the run holds their chunks.
uint64_t store_run_unwritten_bytes(const struct store_run *run);
// Returns false if the disk lags behind or is slow. A caller that can wait should not store now.
bool store_keeps_up(struct worker *w, const struct store *store);
// Returns the reason why a run that begins now would not be stored, whatever its value to the
// policy. REFUSAL_none: there is no known reason. Any thread.
enum refusal store_refuses(const struct store *store);
// Returns the reason why the store takes no run at all, and will not when the origin has answered.
// A disk or an index that lags behind is not such a reason. Nor is a lack of spare segments,
// because the segments that are being written may have room.
enum refusal store_refuses_all(const struct store *store);
// Like store_refuses(), for callers that can wait. For them, the index's queue counts as full when
// only a quarter is free, so that the rest is left to callers that cannot wait. `asked`: the number
// of runs that were requested and are not stored yet; they count as queued.
enum refusal store_waits_for(struct worker *w, const struct store *store, unsigned asked);
// Stops waiting for the disk. store_run_finish() then reports ERR_DISK_BUSY. Releases all chunks
// now, except those that are being written.
void store_run_give_up(struct store_run *run);
// Writes all appended bytes as soon as possible. Otherwise the run may wait for more bytes, so that
// its writes are larger. Called when the caller cannot append more before some bytes are written.
void store_run_write_now(struct store_run *run);
// Sets on_written(), which runs on the worker each time a write of the run has ended, until done()
// or abort. `pages`: the place of the payload that was written into the page cache so far; NULL:
// there is none, and later readers wait for the run's end. The place is borrowed, and is for
// store_range_ready() only, because there is no header yet (header_len 0).
// A caller that keeps the place must pin it. It may then use the bytes for as long as it likes,
// whatever happens to the run.
void store_run_watch(struct store_run *run,
                     void (*on_written)(void *ctx, const struct store_place *pages), void *ctx);
// Ends the run with `block_count` whole blocks: at least 1, maybe fewer than begun. The caller
// appends no more chunks. When done(ctx, err, place) is called, payload and header are written but
// not synced. The place is pinned for the caller and has a hold, so its segment is not evicted
// until store_place_unhold(). On an error there is no place. The store frees the run after done().
void store_run_finish(struct store_run *run, uint32_t block_count,
                      void (*done)(void *ctx, enum err err, const struct store_place *place),
                      void *ctx);
void store_run_abort(struct store_run *run); // discards and frees the run; no callback
// releases the hold and keeps the pin; any worker
void store_place_unhold(struct store_place *place);

// --- index changes: by a key's home only ---------------------------------------------------------

// When the call returns, the look-ups of all workers see the change. Changes are written to disk
// later, in batches. A crash loses those that are not on disk.

// Enters a run into the index, as a run of the version that has object->generation. Hides all older
// runs of the key. Takes its own pin and hold until the run is durable. If the disk refuses the
// run, the run becomes a miss again, and older ones stay hidden. Does nothing if the key has a
// newer version or a newer delete. `validated_us`: worker time when the request that fetched the
// run was sent; used if the index does not know the version yet. `sums`: known checksums of the
// version; NULL: none.
void store_put(struct worker *w, struct store *store, const struct store_object *object,
               const struct store_place *place, const struct store_sums *sums,
               uint64_t validated_us);

// Deletes time out after this long.
#define STORE_DELETE_WAIT_MS 20000u

// Embedded in the caller's struct; the store uses it until done().
struct store_delete {
    struct message message; // private, as is `worker`
    struct worker *worker;
    struct hash128 hash;
    uint64_t floor;
    // The place of the key's origin and its bucket there, for store_delete(); borrowed until
    // done().
    struct span origin, bucket;
    void (*done)(struct store_delete *d);
    void (*on_late)(struct store_delete *d); // called at most once, before done(); or NULL
    enum err err;
    struct blocking_job job; // used if the store could not use its directory
    struct store *store;
};
// store_redescribe() gives a version the headers of `object`; its runs stay. The version with
// generation `from` gets the new `generation` in one commit, which also counts as a confirmation at
// `validated_us`. Look-ups find the version unchanged until that commit. Returns false, without
// calling done(), if the headers are too long for the index, the version has too many blocks, or
// the disk has kept the index waiting for STORE_NOTE_WAIT_MS.
//
// done() with ERR_OK: the change is durable. Otherwise the version was gone, the disk refused the
// change, or it timed out after STORE_REDESCRIBE_WAIT_MS. The change may still be made later, so
// the caller must delete the key below a newer floor. The timeout is short because dropping the
// bytes then costs less than waiting. That delete has its own timeout.
#define STORE_DESCRIBED_MAX 768u
#define STORE_REDESCRIBE_WAIT_MS 2000u
#define STORE_REDESCRIBED_BLOCKS_MAX 16384u
struct store_redescription {
    struct hash128 hash;
    uint64_t from, generation, validated_us;
    const struct store_object *object;
    struct store_sums sums; // len 0: the record keeps its own checksums
};
bool store_redescribe(struct worker *w, struct store *store, const struct store_redescription *r,
                      struct store_delete *d) MUST_USE;
// Hides all records and runs of the key below `floor`, for good in this process. done() runs on the
// worker that called. ERR_OK: no later process trusts them either, even after kill -9. (If this
// store could not use its directory, the same holds for an earlier process's index.) An error: the
// delete timed out, or the disk refused it and also every way to make the next process distrust the
// index. The store then continues to try, without a second done().
//
// If the disk does not answer within STORE_NOTE_WAIT_MS, and the bucket is noted as written to,
// done() comes with ERR_OK: the next process then confirms all records of the bucket before use.
// The note stays until the delete is durable. If the bucket is not noted, on_late() comes then.
// Both come at once while the disk has kept the index waiting for that long.
void store_delete(struct worker *w, struct store *store, struct store_delete *d);

// Condemns the key, because its cached bytes are wrong although the origin's ETag matches. Covers
// each run of the key that began before now, wherever it is, including the one at `place` (NULL:
// none; borrowed for the call). Called before the delete that removes those runs from the index. No
// rebuild adds them again, and no later process finds them. After kill -9 this holds once a thread
// that may block has written one line. After a power cut it holds once done() of that delete has
// run.
void store_condemn(struct worker *w, struct store *store, struct hash128 hash,
                   const struct store_place *place);
// store_renew() records that the origin has just confirmed versions. It sets their validation time
// to `began_us` (in memory at once, on disk in batches) and clears `rebuilt`. `began_us`: worker
// time when the request was sent. `sums`: the version's checksums from the same answer; look-ups
// return them from now on. With len 0 the record keeps its own.
struct store_renewal {
    struct hash128 hash;
    uint64_t generation;
    struct store_sums sums;
};
void store_renew(struct worker *w, struct store *store, const struct store_renewal *renewals,
                 size_t count, uint64_t began_us);

// --- why an object is cached or not --------------------------------------------------------------

#define STORE_EXPLAIN_RUNS_MAX STORE_VIEW_PLACES_MAX

enum store_explain_state {
    STORE_EXPLAIN_KEPT,     // cached
    STORE_EXPLAIN_UNRANKED, // cached, but the policy has no record of it: evicted with its segment
    STORE_EXPLAIN_WANTED,   // not cached: the next request stores it
    STORE_EXPLAIN_REFUSED,  // not cached: it is worth less than what would be evicted for it
};

struct store_explain_run {
    uint64_t first_block;
    uint32_t block_count; // adjacent uncached blocks without a history share one entry
    enum store_explain_state state;
    unsigned priority;       // the priority by which it is ranked
    bool is_pinned;          // a pin keeps it from eviction
    bool is_on_probation;    // stored in a segment of runs that are evicted soon
    uint32_t segment_number; // the segment in which it is stored; 0: it is not stored
    uint32_t header_offset;
    // About how many bytes were requested from the cache since its last known use. UINT64_MAX:
    // unknown, or never requested.
    uint64_t age_bytes;
    // Lower bound of the bytes requested from the cache between its last two uses; 0: it was not
    // used twice.
    uint64_t interval_bytes;
    float rank; // expected hits, relative to the space and time that the run takes
    float bar;  // runs with a higher rank are stored; below 0: all are
};

struct store_explain {
    struct hash128 hash;  // private, as is `group`
    unsigned group;       // the group of the object's rule
    enum refusal refusal; // the reason why nothing is stored now, whatever its worth
    bool keeps_up;        // false: the disk lags behind with its writes
    // From here to group_max_bytes, the values come from the policy. `learns` is false for
    // cache.policy lru: everything is stored and the oldest is evicted. Runs then have no data from
    // the policy.
    bool learns;
    bool is_full;   // nothing can be stored without an eviction
    bool is_silent; // only runs without a history are requested now: a scan, or new data
    // Cached bytes of the group (for pins: of all pins), and their maximum; 0: no limit.
    uint64_t group_bytes, group_max_bytes;
    unsigned run_count;
    // Ascending by block. Together the entries cover the whole requested range.
    struct store_explain_run runs[STORE_EXPLAIN_RUNS_MAX];
};

// Fills in what the index knows of the bytes from `first_byte` to `end_byte`, cut at the object's
// end if that is known. The window is at most STORE_WINDOW_MAX. `block_size_bytes` and `group` come
// from the object's rule. Makes one look-up, which does not count as an access. Leaves out what
// only the caller knows: that the rule says `cache: false`, or that the object is too large to be
// stored.
void store_explain_look(struct worker *w, struct store *store, struct hash128 hash,
                        uint64_t first_byte, uint64_t end_byte, uint64_t floor,
                        uint32_t block_size_bytes, unsigned group,
                        struct store_explain *ret_explain);
// Fills in the rest from the policy. Waits for the policy's lock, at most milliseconds. Any thread
// but a worker.
void store_explain_judge(struct store *store, struct store_explain *explain);

// --- scrub.c: verifies everything that is stored, on the device ----------------------------------

enum store_scrub_state {
    STORE_SCRUB_NONE,  // there was no round yet
    STORE_SCRUB_WAITS, // ordered; it begins when recovery has examined the segments
    STORE_SCRUB_RUNS,
    STORE_SCRUB_DONE,
    STORE_SCRUB_CANCELLED,
    STORE_SCRUB_GIVEN_UP // ended early: the device cannot be read, or only through the page cache
};
// Describes the last round, or the one in progress.
struct store_scrub {
    enum store_scrub_state state;
    uint64_t round; // counted from the start of the process, from 1
    uint32_t segments, segments_done;
    // How many of segments_done were skipped, because they are still being written or gone.
    uint32_t segments_left_out;
    uint64_t runs, bytes; // verified in this round
    uint64_t bad_runs;    // runs that failed, and were dropped
    uint64_t elapsed_us;
    uint64_t bytes_per_s; // current rate; 0: nothing is read
    bool is_impossible;   // this file system cannot bypass the page cache
};
// Begins a round at `bytes_per_s` (above 0) at once. A round in progress continues at that rate.
// ERR_INVALID: this file system cannot bypass the page cache. ERR_NOT_FOUND: there is no cache.
// ERR_AGAIN: the last round is about to end. All three functions: any thread but a worker.
enum err store_scrub_begin(struct store *store, uint64_t bytes_per_s) MUST_USE;
void store_scrub_cancel(struct store *store); // cancels a round that runs or waits, if any
void store_scrub_read(struct store *store, struct store_scrub *ret_scrub);

#endif
