// SPDX-License-Identifier: Apache-2.0
// Bytes we hold. Segments (files of fixed size, written front to back, freed as a whole) are the
// truth, the LMDB index is a hint that segments can rebuild. Survives kill -9; never above
// cache.size; whatever cannot be proved whole is dropped, not repaired.
//
// Threads: a call that takes a `struct worker *` runs on that worker, and its callback too. One
// index-writer thread owns the only write transaction. What workers share without a lock: segment
// refcounts, verified marks, and the index's memory side.
//
// Degraded: when the disk is full, failing, read-only or absent, look-ups miss and begins are
// refused; nothing else.
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
#include "loop/loop.h"
#include "stats/stats.h"

#define STORE_CHECKSUM_UNIT 65536u // payload bytes per CRC32C = CHUNK_SIZE
// Payload bytes of a run of several blocks; one block may be larger.
#define STORE_RUN_MAX (4u << 20)
#define STORE_RUN_BLOCKS_MAX 64u     // 4 MiB of 64 KiB blocks
#define STORE_WINDOW_MAX (16u << 20) // object bytes one look-up covers
#define STORE_VIEW_PLACES_MAX 256u   // 16 MiB of 64 KiB runs
#define STORE_SMALL_MAX 16384u       // bodies that go by the small way
#define STORE_READ_MAX 262144u       // bytes of one store_read (4 checksum units)
#define STORE_HEADERS_MAX 8192u      // rendered reply headers of an object
#define STORE_BLOCK_SIZE_MIN 65536u
#define STORE_BLOCK_SIZE_MAX (16u << 20)

struct store;

// Under whose name copies of keys may lie: a realm, or an origin by its name.
struct store_holder {
    struct span kind, name;
    bool is_origin;
    uint64_t number; // from the store: the caller puts it into the names of the holder's keys
};

enum store_policy {
    STORE_POLICY_LRU,   // all is stored, the oldest goes
    STORE_POLICY_EPOCH, // what is worth keeping is learnt: policy.h
};

// What a full cache rather keeps: 0 to 9, each step is worth twice the one below.
#define STORE_PRIORITIES 10u
#define STORE_PRIORITY_NORMAL 5u
// What a rule's runs count by: a priority alone is the group of its number; a rule with a pin or a
// share has a group of its own, STORE_PRIORITIES + its index in store_options.groups.
#define STORE_GROUPS_MAX 21u
// The group of what is pinned while the process runs.
#define STORE_GROUP_PINS (STORE_PRIORITIES + STORE_GROUPS_MAX)
struct store_group {
    unsigned priority;
    bool pin;               // what is read stays, as long as pins find room
    unsigned share_percent; // of a full cache so much at most; 0: no limit. Not with a pin
    uint64_t identity; // of the rule, by which a later process knows it again; 0: no rule has it
};

struct store_options {
    enum store_policy policy;
    const struct store_group *groups; // copied
    unsigned group_count;             // STORE_GROUPS_MAX at most
    const char *dir;                  // created (0700) when absent
    uint64_t size_bytes;              // 0: use size_percent
    unsigned size_percent;            // of (free space + what the cache already holds)
    unsigned headroom_percent;        // part of size kept for index and fills in flight
    unsigned min_free_percent;        // of the file system; below: fills stop, oldest segments go
    uint64_t scrub_bytes_per_s;       // what is held is verified in the background; 0: it is not
    bool verify_always;               // cache.verify: always
    bool must_begin;               // a place where there is no cache and cannot be one is an error
    uint64_t block_size_bytes_max; // largest block of any rule; segment size is at least twice this
    unsigned descriptors_max;      // for segments; 0 = 1,024
    // All that writes of this process reach; they get their numbers. What others hold is out of
    // reach when they come back.
    struct store_holder *holders;
    unsigned holder_count;
    // Where memory may be short, of what was written so much stays in the page cache; 0: all of it.
    uint64_t written_pages_bytes;
    bool (*memory_is_short)(void); // any thread
};

// Those of them that may change while the store is open.
struct store_limits {
    uint64_t size_bytes; // 0: use size_percent
    unsigned size_percent, headroom_percent, min_free_percent;
    uint64_t scrub_bytes_per_s;
    bool verify_always;
    uint64_t block_size_bytes_max; // largest block of any rule
};

// ERR_IN_USE (another process holds the lock), ERR_FORMAT (not ours: refused, never overwritten),
// ERR_INVALID (size below the minimum of 16 MiB) are for the caller to exit on; ret_why has one
// clear line with the remedy; with must_begin, ERR_PERMISSION, ERR_NOT_FOUND and ERR_IO for a place
// where no cache is and none can be. Any other unusable disk (full, EIO, a cache that is read-only
// now) is no error: the store opens degraded and says so in the log. Call before loop_start().
enum err store_open(const struct store_options *options, struct loop *loop,
                    struct store **ret_store, struct buf *ret_why) MUST_USE;
// After loop_stop(): commits, syncs, marks the clean stop, frees.
void store_close(struct store *store);
// Other rules, or the same: a group that keeps its identity keeps what it holds, what others held
// counts by their priority alone. Requests that began before may still name groups of before. Waits
// for the policy's lock, milliseconds at most. Not on a worker.
void store_set_groups(struct store *store, const struct store_group *groups, unsigned group_count);
// What a cache.size of these limits is cut to, since the process began with a smaller one: it is as
// large as it can become without a restart. 0: it is not cut. Any thread.
uint64_t store_size_cut(const struct store *store, const struct store_limits *limits);
// The largest block that segments of this cache have room for; a restart may change that. Any
// thread.
uint64_t store_block_size_max(const struct store *store);
// Goes by other limits from now on; what is too much then goes, a few segments at a time, while
// hits go on. ERR_INVALID: it cannot become that small while it runs, or has no segments for such
// blocks; nothing has changed, and ret_why says why.
// Not on a worker.
enum err store_set_limits(struct store *store, const struct store_limits *limits,
                          struct buf *ret_why) MUST_USE;
// More of them, which writes reach from now on: gives them their numbers, and lasts with ERR_OK.
// May block.
enum err store_holders_add(struct store *store, struct store_holder *holders,
                           unsigned count) MUST_USE;
struct store_summary {
    const char *dir;
    uint64_t capacity_bytes, used_bytes, segment_size_bytes;
    uint64_t objects, blocks; // may lag behind
    bool degraded;            // the directory, its disk or the index does not work
    bool is_blind;            // nothing is found in the cache
    enum refusal refusal; // why nothing is stored, or found, now; REFUSAL_none: no reason is known
    bool rebuilding;      // the index is being rebuilt from segments
};
// Of used_bytes, what holds runs; the rest is reserved for them. Not on a worker.
uint64_t store_held_bytes(struct store *store);
void store_summarize(const struct store *store, struct store_summary *ret_summary); // any thread
// Do readers hold so many evicted segments that only segments without readers are evicted now? Any
// thread.
bool store_waits_for_readers(struct store *store);
// 128-bit keyed hash of (realm, bucket, key); the hash key is the cache directory's own. Any
// thread.
struct hash128 store_hash(const struct store *store, struct span realm, struct span bucket,
                          struct span key);
// Generations only rise, over restarts too. Any thread.
uint64_t store_generation_next(struct store *store);

// --- epochs: changes of a bucket whose extent is not known ---------------------------------------

// A bucket's epoch is part of the name that its objects are held under (the caller puts it into
// their realm), so that raising it makes all of them unreachable for good. It only rises, over
// restarts too; 0 as long as it never was raised. Any thread, no lock, no system call.
uint64_t store_epoch(const struct store *store, struct span origin, struct span bucket);

// Embedded; belongs to the store from begin to done(). Between done() and store_epoch_end() the
// change is open: what is put under the epoch of that time does not outlive this process.
struct store_epochs;
struct store_epoch_slot;
struct store_epoch_change {
    void (*done)(struct store_epoch_change *change, enum err err); // on the worker that began
    struct blocking_job job;                                       // private from here
    struct store_epochs *epochs;
    struct hash128 bucket;
    struct store_epoch_slot *slot;
};
// Raises the epoch. done(): ERR_OK = every later store_epoch() says so, and so does every later
// process. Otherwise the disk does not take it: nothing has changed, and the change must not be
// made, since the next process would believe what it makes untrue. A store that could not use its
// directory at the start raises the epoch in memory, where no later process believes its index.
void store_epoch_begin(struct worker *w, struct store *store, struct span origin,
                       struct span bucket, struct store_epoch_change *change);
// The change is made, or never will be: raises the epoch again, at once. Only after a done() with
// ERR_OK; any thread.
void store_epoch_end(struct store_epoch_change *change);

// A write to a single key is under way: says the epoch to begin it under. What is put under another
// epoch meanwhile does not outlive this process. One release for each.
uint64_t store_epoch_hold(struct store *store, struct span origin, struct span bucket);
void store_epoch_release(struct store *store, struct span origin, struct span bucket);

// --- doubts: writes whose outcome is not known ---------------------------------------------------

// How long the origin may take to apply a request after it was last heard of.
#define STORE_DOUBT_MS 300000u
// Any key of this bucket may change for so long: what was confirmed at the origin before that has
// passed is no more to be believed. Any thread.
void store_doubt(struct store *store, struct span origin, struct span bucket);
// Must a record that was confirmed so long ago be confirmed before it is used? With an age of 0: is
// the bucket in doubt now? Any thread, no lock.
bool store_is_doubted(const struct store *store, struct span origin, struct span bucket,
                      uint64_t age_ms);

// A write to this bucket is about to be sent. Whether that is noted already, so that the next
// process knows of it if this one ends without a word: any thread, no lock. Else it is noted before
// the write is sent; done() also where the directory does not take it.
struct store_doubts;
struct store_note {
    void (*done)(struct store_note *note); // on the worker that asked
    struct blocking_job job;               // private from here
    struct store_doubts *doubts;
    struct hash128 bucket;
};
bool store_write_is_noted(const struct store *store, struct span origin, struct span bucket);
void store_write_note(struct worker *w, struct store *store, struct span origin, struct span bucket,
                      struct store_note *note);

// --- versions ------------------------------------------------------------------------------------

// One immutable version, as run headers describe it. Refcounted (atomic), immutable once shared.
struct store_object {
    atomic_uint refs;
    struct hash128 hash;
    uint64_t generation; // 0 until the home has named it
    uint64_t learnt_us; // when the origin was asked that described it so, on the workers' clock; 0:
                        // found on disk
    uint64_t size_bytes;
    uint32_t block_size_bytes;
    time_t last_modified;                             // parsed from its header; 0 unknown
    struct span realm, bucket, key, etag, version_id; // etag as sent, quotes included
    struct span headers; // rendered lines "Name: value\r\n" to be replayed; ETag, Last-Modified,
                         // Content-Type included
};
// Copies everything into one allocation; NULL when the limits above are passed.
struct store_object *store_object_new(struct hash128 hash, struct span realm, struct span bucket,
                                      struct span key, struct span etag, struct span version_id,
                                      struct span headers, uint64_t size_bytes,
                                      uint32_t block_size_bytes, time_t last_modified);
struct store_object *store_object_ref(struct store_object *object);
void store_object_unref(struct store_object *object); // NULL is fine
// The same version with another generation (a copy).
struct store_object *store_object_with_generation(const struct store_object *object,
                                                  uint64_t generation);
// Number of blocks; an empty object has one block of 0 bytes.
uint64_t store_object_block_count(const struct store_object *object);

// --- places --------------------------------------------------------------------------------------

// Where a run lies. By value; may travel to another worker. While `segment` is set it holds one pin
// on it: whoever has the place gives it back with store_place_unpin(). A pinned segment is not
// given back; a dying one stays readable as long as there are enough descriptors, and is a miss
// then.
struct segment;
struct store_place {
    struct segment *segment;
    uint32_t segment_number;
    uint32_t header_offset; // in the segment, bytes
    uint32_t header_len;
    uint32_t payload_offset; // in the segment, bytes
    uint32_t payload_len;
    uint64_t salt;
    uint64_t generation;
    uint64_t first_block;
    uint32_t block_count;
    uint32_t block_size_bytes;
    uint32_t first_unit; // ordinal of its first checksum unit in the segment
    bool is_described;   // its object's headers are in the index, not in the run's header
    struct hash128 hash; // whose bytes these are; every header read is compared with both
    uint64_t etag_hash;
};
// Adds one pin; false when the segment is dying (then the place is a miss).
bool store_place_pin(struct store_place *place) MUST_USE;
void store_place_unpin(
    struct store_place *place); // any worker; NULL segment is fine; segment is NULL after

// --- look-up -------------------------------------------------------------------------------------

// An object's checksums, packed by the caller; the store keeps them with the record of one version
// and does not look into them. Unused bytes are zero.
#define STORE_SUMS_MAX 71u
struct store_sums {
    uint8_t len; // 0: nothing is known
    uint8_t bytes[STORE_SUMS_MAX];
};

// What the index knows of an object for a window of its bytes. Renewed LMDB view each call, none
// kept.
struct store_view {
    bool found;   // a record exists and is not below floor
    bool unknown; // what is durable could not be looked at (look-ups are off after read errors, the
                  // index is being reopened or put back): a miss, but nothing is known to be
                  // absent; with `found`: what has been put lately is known all the same
    uint64_t generation, size_bytes;
    uint32_t block_size_bytes;
    uint64_t etag_hash;     // hash64(etag, 0)
    uint64_t age_ms;        // since last validated; UINT64_MAX: must be revalidated (rebuilt from
                            // segments, clock went backwards, unknown)
    bool rebuilt;           // revalidate before first use, whatever the rule
    struct store_sums sums; // that its record names, see store_renewal
    unsigned place_count;   // pinned; ascending by first_block; only runs that overlap the window,
                            // not known bad
    struct store_place places[STORE_VIEW_PLACES_MAX];
    struct store_place
        any; // when found and place_count is 0: some other run of the object, pinned, so that its
             // header can be read; segment is NULL when there is none that is good
};
// `first_byte` <= `end_byte` (exclusive), window <= STORE_WINDOW_MAX; an object smaller than the
// window is fine (the size may be unknown to the caller). Never fails: trouble is a miss.
void store_lookup(struct worker *w, struct store *store, struct hash128 hash, uint64_t first_byte,
                  uint64_t end_byte, uint64_t floor, struct store_view *ret_view);
void store_view_done(struct store_view *view); // unpins what is still pinned

// --- reading -------------------------------------------------------------------------------------

// Object of a run, header verified, full realm/bucket/key compared (ERR_CORRUPT, dropped and
// counted when it differs or fails). First from a small per-worker cache of recent objects, then by
// a NOWAIT read; ERR_AGAIN: use store_read_start() with `header`.
enum err store_object_get(struct worker *w, struct store *store, const struct store_place *place,
                          struct hash128 hash, struct span realm, struct span bucket,
                          struct span key, struct store_object **ret_object) MUST_USE;

// The small way: header and whole payload in one NOWAIT read, both verified, full key compared.
// Only for runs with payload_len <= STORE_SMALL_MAX. *ret_chunk holds the bytes (payload at
// ret_payload); give it back with chunk_unref().
enum err store_read_small(struct worker *w, struct store *store, const struct store_place *place,
                          struct hash128 hash, struct span realm, struct span bucket,
                          struct span key, struct store_object **ret_object,
                          struct chunk **ret_chunk, struct span *ret_payload) MUST_USE;

// The fast way: the range (object bytes, inside the place) is verified and resident now. *ret_range
// carries a pin of its own. False: take store_read(). Always false under verify_always.
bool store_range_ready(struct worker *w, struct store *store, const struct store_place *place,
                       uint64_t first_byte, uint64_t len, struct file_range *ret_range);

// Every other way: asynchronous, checksum verified, bits set. Embedded; one callback.
struct store_read {
    struct store *store;
    struct store_place place; // borrowed: the caller keeps it pinned until done()
    uint64_t first_byte, len; // object bytes inside the place; len <= STORE_READ_MAX
    bool header;              // read and verify the run header instead: gives `object`
    struct hash128 hash;      // with header: what to compare
    struct span realm, bucket, key;
    void (*done)(struct store_read *read);
    // results; chunks are the caller's to unref
    // ERR_CORRUPT: dropped from the index, counted, remembered as bad at once. ERR_IO.
    // ERR_UNREADABLE, ERR_DESCRIPTORS: not now, nothing is dropped. ERR_CANCELLED.
    enum err err;
    struct chunk *chunks[STORE_READ_MAX / CHUNK_SIZE + 1];
    struct span spans[STORE_READ_MAX / CHUNK_SIZE + 1]; // the asked bytes, in order
    unsigned span_count;
    struct store_object *object;
    struct disk_op op; // private from here
    struct task task;
    bool cancelled, repeated;
    struct iovec iov[STORE_READ_MAX / CHUNK_SIZE + 1];
    struct worker *worker;
    void *engine_private[3];
};
void store_read_start(struct worker *w, struct store_read *read);
void store_read_cancel(struct store_read *read); // done() still runs

// A request has begun to be given bytes of the place, `bytes` in all: once for each run and
// request. `group`: of its rule, which the run belongs to from now on.
void store_note_read(struct worker *w, struct store *store, const struct store_place *place,
                     uint64_t bytes, unsigned group);

// --- pins that are given while it runs: state_pins.c
// ------------------------------------------------

// What is pinned, as a text of the caller's, which lasts: ERR_OK with an empty one when there is
// none. ERR_CORRUPT: what lies there is damaged, which is told in the log, and put aside. Under the
// caller's lock.
enum err store_pins_load(struct store *store, struct buf *ret_text) MUST_USE;
void store_pins_put_aside(struct store *store,
                          const char *why); // the same for one that the caller cannot read
// Replaces it; lasts with ERR_OK. Otherwise the one before stays, or (the disk failed at the last
// step) either may be found by the next process; ret_why says in a few words what is wrong. Blocks.
// Under the caller's lock.
enum err store_pins_save(struct store *store, struct span text, struct buf *ret_why) MUST_USE;

// Which group an object counts by, by the names that it is held under. Called by a thread of the
// store's; must not block. NULL: nobody knows any more, and none is on its way when the call
// returns.
typedef unsigned (*store_group_fn)(void *ctx, struct span realm, struct span bucket,
                                   struct span key);
void store_set_group_of(struct store *store, store_group_fn group_of, void *ctx);
// Is anything pinned so? Any thread.
void store_set_pins(struct store *store, bool has_pins);
enum store_review {
    STORE_REVIEW_PINNED = 1, // what is in STORE_GROUP_PINS, which may have left the list
    STORE_REVIEW_OTHERS = 2, // what is not pinned, which may have come to it
};
// The groups of runs that are held follow what group_of says now, behind everything else: a header
// read for each run. Any thread.
void store_review(struct store *store, unsigned reviews);

struct store_pins_figures {
    bool are_kept; // false: this store keeps no pins (`lru`, few segments, no directory)
    bool in_review;
    uint64_t bytes, bytes_max; // of all that is pinned; rules' pins are in it
};
// Waits for the policy's lock, milliseconds at most. Not on a worker.
void store_pins_figures(struct store *store, struct store_pins_figures *ret_figures);

// --- writing a run -------------------------------------------------------------------------------

struct store_run;
// Longest payload of a run of several blocks that may begin in this cache without a promise:
// STORE_RUN_MAX, less in a small one, a quarter of a segment. A single block always fits.
uint64_t store_run_bytes_max(const struct store *store);
// Longest one with a promise.
uint64_t store_run_bytes_long(const struct store *store);
// Is there likely to be room for such a run by the time that it begins? Then the promise is
// released once it has begun, or will not. Any thread.
bool store_long_promise(struct store *store) MUST_USE;
void store_long_release(struct store *store);
// Asks the policy, reserves space for header and payload (evicting the oldest segments when full)
// and begins a run of whole blocks [first_block, first_block + block_count) of `object` (generation
// may still be 0: the index record names it; headers of runs whose generation is 0 carry a
// provisional one from store_generation_next()). payload at most max(store_run_bytes_long(), one
// block). is_part: who asks wants less than all of it; the policy takes it then, or the reader's
// next part would come from the origin with all the others once more. Errors: those of the rows of
// stats/refusals.def, counted here. The caller goes on without storing.
enum err store_run_begin(struct worker *w, struct store *store, struct store_object *object,
                         uint64_t first_block, uint32_t block_count, unsigned group, bool is_part,
                         struct store_run **ret_run) MUST_USE;
// Would the policy have a run stored that begins there, and not for a while only? A guess, and no
// access.
bool store_would_keep(const struct store *store, struct hash128 hash, uint64_t first_block,
                      unsigned group);
// The same, if only for a while: of what is read soon.
bool store_would_take(const struct store *store, struct hash128 hash, uint64_t first_block,
                      unsigned group);
// The next chunk of the payload, in order, complete: STORE_CHECKSUM_UNIT bytes but for the last.
// Takes a reference of its own until written. Never blocks; errors show at finish.
void store_run_append(struct store_run *run, struct chunk *chunk);
// Bytes appended and not yet written: their chunks are held.
uint64_t store_run_unwritten_bytes(const struct store_run *run);
// False: the disk is behind with what it was given, or slow: who can should not wait for it.
bool store_keeps_up(struct worker *w, const struct store *store);
// Why a run that begins now would not be stored, whatever it is worth; REFUSAL_none: nothing is
// known that would prevent it. Any thread.
enum refusal store_refuses(const struct store *store);
// The same for callers that can wait. They leave a quarter of the index's queue to callers that
// cannot, and count `asked` more runs, which were requested and are not stored yet.
enum refusal store_waits_for(struct worker *w, const struct store *store, unsigned asked);
// The disk is not waited for any longer: finish reports ERR_DISK_BUSY, and chunks are given back
// now but for those that are being written.
void store_run_give_up(struct store_run *run);
// on_written() runs on the worker whenever a write of the run has ended, until done() or abort.
// `pages`: the place of what is written so far, payload_len of it, for store_range_ready() only:
// there is no header yet (header_len 0). Borrowed: who keeps it pins it, and may until the bytes
// are not wanted any more, whatever becomes of the run. NULL: nothing is there.
void store_run_watch(struct store_run *run,
                     void (*on_written)(void *ctx, const struct store_place *pages), void *ctx);
// No more chunks: `block_count` whole blocks are there (fewer than begun is fine, at least 1).
// done(ctx, err, place): the bytes and the header are written (not yet synced), the place is pinned
// for the caller and held: its segment is no candidate for eviction until store_place_unhold(). On
// error there is no place. The run is gone after done.
void store_run_finish(struct store_run *run, uint32_t block_count,
                      void (*done)(void *ctx, enum err err, const struct store_place *place),
                      void *ctx);
void store_run_abort(struct store_run *run);        // nothing is kept; no callback; the run is gone
void store_place_unhold(struct store_place *place); // any worker; keeps the pin

// --- index changes: by a key's home only ---------------------------------------------------------

// They count for every look-up on every worker when the call returns; the disk follows in batches.
// After a crash what is on disk counts.

// Enters a run of a version, which object->generation names: everything older of the key is hidden.
// Takes a pin and a hold of its own until the disk has it; when the disk refuses it, it is a miss
// again (and what is older stays hidden). Refused when something newer, or a delete, is there.
// `validated_us`: worker time at which the request that brought it was sent; counts when the
// version is not known yet. `sums`: what is known of its checksums; NULL: nothing new.
void store_put(struct worker *w, struct store *store, const struct store_object *object,
               const struct store_place *place, const struct store_sums *sums,
               uint64_t validated_us);

// Who waits for a delete is told after this time that the disk does not take it.
#define STORE_DELETE_WAIT_MS 20000u

// Embedded; belongs to the store until done().
struct store_delete {
    struct message message; // private, and the next
    struct worker *worker;
    struct hash128 hash;
    uint64_t floor;
    void (*done)(struct store_delete *d);
    enum err err;
    struct blocking_job job; // of a store that could not use its directory
    struct store *store;
};
// The version with this generation has other headers now, those of `object`, and keeps its runs:
// they go by `generation`, a new one, from one commit on, which also counts as a confirmation at
// `validated_us`. Until then look-ups find it as it was. False: its headers are too long for the
// index, or it has too many blocks; done() is not called. done(): ERR_OK: it is durable. Otherwise
// the version was not there any more, the disk does not take the change, or not in time; it may be
// made later all the same, so a delete below a newer floor has to follow. Not in time: after
// STORE_REDESCRIBE_WAIT_MS. To drop the bytes costs less then than to wait: that delete may take
// its own time.
#define STORE_DESCRIBED_MAX 768u
#define STORE_REDESCRIBE_WAIT_MS 2000u
#define STORE_REDESCRIBED_BLOCKS_MAX 16384u
struct store_redescription {
    struct hash128 hash;
    uint64_t from, generation, validated_us;
    const struct store_object *object;
    struct store_sums sums; // len 0: the record keeps those that it has
};
bool store_redescribe(struct worker *w, struct store *store, const struct store_redescription *r,
                      struct store_delete *d) MUST_USE;
// Hides every record and run of the key below `floor`, for good in this process. done(), on the
// worker that called: ERR_OK: no later process believes them either, also after kill -9 (nor the
// index of an earlier one, where this store could not use its directory). Otherwise the disk
// does not take that by any means there are, or not in time; the store goes on trying, without a
// second done().
void store_delete(struct worker *w, struct store *store, struct store_delete *d);

// What is held of this key is known to be wrong, though the origin's ETag fits: every run of it
// that was begun before, wherever it lies, the one at `place` (NULL: none; borrowed for the call)
// among them. Before the delete that takes them out of the index. No rebuild puts them back; no
// later process finds them either, also after kill -9, once a thread that may block has written one
// line, and after a power cut from that delete's done() on.
void store_condemn(struct worker *w, struct store *store, struct hash128 hash,
                   const struct store_place *place);
// The version was found unchanged at the origin now: renews validated-at (memory at once, disk in
// batches) and clears `rebuilt`. Many at once are one call. `began_us`: worker time the
// question was sent. `sums`: what the same answer says of the version's checksums; look-ups show
// them when the call returns. With a len of 0 the record keeps those that it has.
struct store_renewal {
    struct hash128 hash;
    uint64_t generation;
    struct store_sums sums;
};
void store_renew(struct worker *w, struct store *store, const struct store_renewal *renewals,
                 size_t count, uint64_t began_us);

// --- why it is here, or is not -------------------------------------------------------------------

#define STORE_EXPLAIN_RUNS_MAX STORE_VIEW_PLACES_MAX

enum store_explain_state {
    STORE_EXPLAIN_KEPT,     // held
    STORE_EXPLAIN_UNRANKED, // held, and nothing is known of it: it goes with its segment
    STORE_EXPLAIN_WANTED,   // not held: who asks next has it stored
    STORE_EXPLAIN_REFUSED,  // not held: it is worth less than what would go for it
};

struct store_explain_run {
    uint64_t first_block;
    uint32_t block_count; // what is not held, and of which nothing is known, is one piece
    enum store_explain_state state;
    unsigned priority;       // what it counts by
    bool is_pinned;          // and its pin keeps it
    bool is_on_probation;    // with others that go soon
    uint32_t segment_number; // where it lies; 0: nowhere
    uint32_t header_offset;
    // Since its last use that is known of: bytes that were asked of the cache (UINT64_MAX: nothing
    // is known, or it was never asked for), and the time that took, about (UINT64_MAX: longer than
    // is known).
    uint64_t age_bytes, age_ms;
    // At least so much was asked of the cache between its last two uses, and between the second
    // last and the one before; 0: there was none.
    uint64_t interval_bytes, former_interval_bytes;
    float rank;             // worth: further hits for the room and time that it takes
    float bar;              // what is worth more than this is stored; below 0: all is
    uint32_t refusals_left; // so many refusals more, soon, and it is stored whatever it is worth;
                            // 0: its last use is over
};

struct store_explain {
    struct hash128 hash; // private, and the next
    unsigned group;      // what its rule says
    // What the index says.
    bool found;   // of the current version
    bool unknown; // the index could not be looked at: what is said of runs is a guess
    bool rebuilt; // from segments: asked about at the origin before it is used
    uint64_t generation, size_bytes,
        age_ms; // age_ms: since it was last validated; UINT64_MAX: unknown
    uint32_t block_size_bytes;
    enum refusal refusal; // why nothing is stored now, whatever it is worth
    bool keeps_up;        // false: the disk is behind with its writes
    // What the policy goes by.
    bool learns;  // false (`lru`): all is stored and the oldest goes; of runs nothing more is known
    bool is_full; // something goes for what is stored
    bool is_silent;          // nothing that is known is asked for: a scan, or new data
    uint64_t capacity_bytes; // cache.size
    // What its rule says; of what counts as one with it (of pins: all of them) what is held, and at
    // most; 0: no limit.
    unsigned priority, share_percent;
    bool is_pinned;
    uint64_t group_bytes, group_max_bytes;
    unsigned run_count;
    struct store_explain_run
        runs[STORE_EXPLAIN_RUNS_MAX]; // ascending; all of the span that was asked for
};

// Bytes `first_byte` up to `end_byte` (a window of STORE_WINDOW_MAX at most) of the object, cut at
// its end when it is known; `block_size_bytes` and `group`: what its rule says. One look-up, no
// access. What only the caller knows (a rule says `cache: false`, the object is larger than may be
// stored) is not said here.
void store_explain_look(struct worker *w, struct store *store, struct hash128 hash,
                        uint64_t first_byte, uint64_t end_byte, uint64_t floor,
                        uint32_t block_size_bytes, unsigned group,
                        struct store_explain *ret_explain);
// The rest, by what the policy knows now. Waits for the policy's lock, milliseconds at most: any
// thread but a worker.
void store_explain_judge(struct store *store, struct store_explain *explain);

// --- scrub.c: all that is held, verified on the device -------------------------------------------

enum store_scrub_state {
    STORE_SCRUB_NONE,  // there was no round yet
    STORE_SCRUB_WAITS, // ordered; it begins when the start's own look at the segments is over
    STORE_SCRUB_RUNS,
    STORE_SCRUB_DONE,
    STORE_SCRUB_CANCELLED,
    STORE_SCRUB_GIVEN_UP // the device reads nothing, or not past the page cache
};
// Of the last round, or the one that runs.
struct store_scrub {
    enum store_scrub_state state;
    uint64_t round; // since the start of the process, from 1
    uint32_t segments, segments_done;
    uint32_t segments_left_out; // of those done: still written to, or gone meanwhile
    uint64_t runs, bytes;       // looked at
    uint64_t bad_runs;          // failed, and dropped
    uint64_t elapsed_us;
    uint64_t bytes_per_s; // now; 0: nothing is read
    bool is_impossible;   // this file system does not read past the page cache
};
// A round at that rate (above 0), at once; one that runs goes on at that rate. ERR_INVALID: it is
// impossible here; ERR_NOT_FOUND: there is no cache; ERR_AGAIN: the last one is about to end. Any
// thread but a worker; so are these two.
enum err store_scrub_begin(struct store *store, uint64_t bytes_per_s) MUST_USE;
void store_scrub_cancel(struct store *store); // the round that runs or waits; none is fine
void store_scrub_read(struct store *store, struct store_scrub *ret_scrub);

#endif
