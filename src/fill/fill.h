// SPDX-License-Identifier: Apache-2.0
// The protocol between workers for one key. It decides which worker asks the origin, which version
// is current, which runs are published, and what a write invalidates. README.md in this folder
// holds the rules, the messages and drawings.
//
// A caller asks for bytes or for a confirmation with subscription_ask(). Every change runs the
// caller's callback on the caller's worker, never inside the call. A writer calls
// invalidate_begin() before it asks the origin, and invalidate_end() afterwards. Every look-up in
// the store ignores records below fill_floor().
#ifndef FOREBAY_FILL_FILL_H
#define FOREBAY_FILL_FILL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/chunk.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/list.h"
#include "fill/checksums.h"
#include "fill/fill_version.h"
#include "fill/object_key.h"
#include "loop/loop.h"
#include "origin/origin.h"
#include "s3/s3.h"
#include "store/store.h"

// --- the room ------------------------------------------------------------------------------------

struct fill_room;
struct fill_worker; // the room's state of one worker

struct fill_options {
    struct loop *loop;
    struct store *store;
    // Size of a stripe: neighbouring bytes of an object that have the same owner. 0: 64 MiB.
    uint64_t stripe_bytes;
    // Runs on each worker for each key that is invalidated. It must drop whatever else the worker
    // remembers of the key, such as listings. It must also prevent the worker from remembering
    // answers about the key that are in flight.
    void (*on_invalidated)(void *ctx, struct worker *w, const struct object_key *key);
    void *ctx;
};
struct fill_room *fill_room_new(const struct fill_options *options);
void fill_room_free(struct fill_room *room); // call it after loop_stop(); NULL is fine

static inline struct fill_worker *fill_worker_of(struct worker *w)
{
    return worker_slot_get(w, WORKER_SLOT_FILL);
}

// Returns the key's floor on this worker: records of a lower generation do not count. 0: no floor.
uint64_t fill_floor(struct fill_worker *fw, struct hash128 hash);
// Returns true if this block has been received completely by a run that the index does not show
// yet. It is a hint: use it to describe a reply, not to find the bytes. Any worker may call it.
bool fill_here_has(const struct fill_worker *fw, struct hash128 key, uint64_t etag_hash,
                   uint32_t block_size_bytes, uint64_t block);

// --- a subscription: one question, or one attachment to a run in flight --------------------------

enum fill_ask_kind {
    FILL_ASK_BYTES, // asks for the run that holds first_byte
    // As FILL_ASK_BYTES, for a reader that names no version. If the home knows the version, it
    // answers with the version and sends no bytes.
    FILL_ASK_BYTES_OR_VERSION,
    FILL_ASK_CURRENT, // asks for no bytes: is `object` still current?
    // As FILL_ASK_CURRENT, for a client that wants bytes: if the origin refuses the HEAD,
    // a GET decides.
    FILL_ASK_CURRENT_TO_READ,
    // Asks for the checksums of `object`. If the home does not have them, it answers without them,
    // and requests them from the origin for the next reader.
    FILL_ASK_CHECKSUMS,
    // As FILL_ASK_CHECKSUMS, but if the home does not have them, the reader waits for the origin.
    FILL_ASK_CHECKSUMS_NOW,
    // Not a question: tells the home that an answer which bypassed the cache named `object`. If
    // `object` is NULL, that answer named no version.
    FILL_ASK_TELL
};

static inline bool fill_ask_is_for_bytes(enum fill_ask_kind kind)
{
    return kind == FILL_ASK_BYTES || kind == FILL_ASK_BYTES_OR_VERSION;
}

static inline bool fill_ask_is_for_checksums(enum fill_ask_kind kind)
{
    return kind == FILL_ASK_CHECKSUMS || kind == FILL_ASK_CHECKSUMS_NOW;
}

enum fill_index {
    FILL_INDEX_COUNTS,
    FILL_INDEX_UNREADABLE, // the record in the index could not be read: ask the origin
    // The disk does not bring the bytes in time: ask the origin for them. They are not stored
    // again, because the disk has them.
    FILL_INDEX_SLOW
};

// For whom the bytes of an ask are. Only FILL_TO_SEND delivers any; the others report the end.
enum fill_purpose {
    FILL_TO_SEND,       // this reader
    FILL_TO_READ_AHEAD, // a reader who comes soon; its first read counts as sent by the origin
    FILL_TO_WARM        // later readers, who get them from the cache
};

// The question. subscription_ask() copies it, and takes references of its own to the key and the
// versions. The caller still owns those that it has.
struct fill_ask {
    enum fill_ask_kind kind;
    struct object_key *key;
    uint64_t client;              // identifies the client, because clients take turns at the origin
    struct origin_trace trace;    // trace ids of the client's request
    struct store_object *object;  // the wanted version; NULL: the current one
    struct store_object *refused; // version to which the origin answered 412; or NULL
    uint64_t asked_us;            // for FILL_ASK_TELL: when the origin was asked
    bool strict;    // do not share a request that was sent to the origin before this ask
    bool has_sent;  // the client has received bytes of `object`
    bool has_stale; // the client gets `object`, although stale, if the origin fails
    enum fill_index index;
    bool no_pages; // bytes for this client cannot be sent from a file
    enum fill_purpose purpose;
    // For an unknown version only. `condition` is the client's condition, which the origin
    // evaluates. `suffix_bytes` is the number of bytes wanted from the object's end. 0: the reader
    // wants first_byte to end_byte.
    struct origin_condition condition;
    uint64_t suffix_bytes;
    uint64_t fresh_ms;   // maximum age of an answer kept at the home that may answer this ask
    bool with_checksums; // in an ask for bytes: the reader also wants the object's checksums
    uint64_t first_byte; // first byte wanted
    // End of the bytes wanted, exclusive. 0: the end of the run; UINT64_MAX: the object's end.
    uint64_t end_byte;
    uint64_t block;       // the block that holds first_byte
    uint32_t block_count; // maximum number of blocks wanted
    uint32_t block_size_bytes;
};

enum subscription_state {
#define SUBSCRIPTION_PHASE(name, ...) SUBSCRIPTION_##name,
#include "fill/phases.def"
};

// Whether a reader of a stored run has received every byte that the owner sent (rule 34).
enum subscription_flow {
    FLOW_FOLLOWS, // the reader has every byte that was sent
    FLOW_LAGS,    // bytes after next_byte were dropped
    FLOW_WANTS    // such bytes were dropped, and the reader has asked the owner to send them again
};

enum subscription_outcome {
    OUTCOME_NONE,
    OUTCOME_DONE,   // every byte up to the run's end was delivered, or is at `place`
    OUTCOME_REJOIN, // the reader must ask again
    OUTCOME_GONE,   // the version asked for is not current any more (412)
    // `err` says why. ERR_NOT_MODIFIED and ERR_PRECONDITION_FAILED: the origin evaluated the
    // condition. With ERR_NOT_MODIFIED, `error_answer` has the headers.
    OUTCOME_ERROR,
    // `answer` has the checksums of the version asked about. NULL: they are not available.
    OUTCOME_DESCRIBED,
    // ERR_NOT_MODIFIED: the version asked about is current, or `answer` if the ask named no
    // version. ERR_OK: `answer` is current. Any other error: the current version is unknown.
    OUTCOME_REVALIDATED
};

struct piece { // bytes of a run that were not sent to the client yet
    struct list_node node;
    struct chunk *chunk; // holds the bytes; NULL: they are in `pages`
    // Written part of the run, pinned. Pass it only to store_range_ready().
    struct store_place pages;
    uint32_t offset, len; // position and length in the chunk
    uint64_t first_byte;  // position in the object
};

// Belongs to the worker that asked, and is freed when its reader has left and the last answer has
// arrived. The reader takes pieces from the front. It also takes over the place and those
// references that it wants to keep.
struct subscription {
    uint32_t magic;
    struct fill_ask ask;
    enum subscription_state state; // fill_subscription_enter() alone writes it
    enum subscription_outcome outcome;
    enum err err;
    bool joined;                 // the run was already in flight when this reader asked
    bool whole;                  // all bytes of the run had already been received when it asked
    uint64_t here_end_byte;      // up to this offset they had been; valid with `answer`
    struct store_object *answer; // the version that is delivered or was found (reference)
    bool weak;                   // no strong ETag, so a reply cannot continue with another run
    const char *unstored_why;    // one word: why the run is not stored; NULL: it is stored
    // Request id in the origin's answer that carries the bytes; "": the answer has none.
    char origin_id[ORIGIN_ID_SIZE];
    unsigned origin_status;   // HTTP status of that answer
    uint64_t run_end_byte;    // end of the run, exclusive; valid with `answer` while attached
    struct store_place place; // place of the run on disk, pinned
    uint64_t asked_us;        // when the reader asked
    // When the request that found `answer` was sent. 0: the origin was asked because of this ask.
    uint64_t validated_us;
    // How long the home kept this reader waiting for workers or the disk, not for the origin.
    uint64_t settle_us;
    // The answer is that of a check whose request had been sent already when this ask came.
    bool shares_check;
    struct span error_answer; // the origin's error answer, packed
    struct list pieces;       // struct piece, in order of first_byte

    // private from here
    void (*on_change)(void *ctx, struct subscription *subscription); // NULL: the reader has left
    void *ctx;
    struct fill_worker *at, *owner;
    // Links the ask in a list of the home while the home holds it. During that time only the home's
    // worker uses this node, `ask`, `settle_us` and `shares_check`.
    struct list_node held_node;
    // When the home began to hold it until the key is settled. 0: the home does not.
    uint64_t unsettled_us;
    // Token of the first request that was in flight when the home received this ask. 0: none.
    uint64_t met_token;
    struct attachment *attachment;
    struct store_object *described; // a version with its checksums (reference); or NULL
    bool stored;                    // the run is being stored, so its reader may fall behind
    bool no_pages;                  // the reader asked for no pages, or refused them
    enum subscription_flow flow;
    uint64_t next_byte;    // end of the last piece received
    uint64_t queued_bytes; // bytes in queued chunks
};

// Asks the worker that decides: the stripe's owner if a version is named, otherwise the key's home.
// on_change runs for every change until subscription_leave().
struct subscription *
subscription_ask(struct fill_worker *fw, const struct fill_ask *ask,
                 void (*on_change)(void *ctx, struct subscription *subscription), void *ctx);
// Returns true if the last `suffix_bytes` of an object of unknown size can be asked for with a
// suffix range. They must fit in one run, together with the rest of the block that they begin in.
// A run that is not stored may have any blocks.
bool subscription_takes_suffix(const struct store *store, uint32_t block_size_bytes,
                               uint64_t suffix_bytes);
void subscription_pop(struct subscription *subscription); // removes the first piece
// Call it when no piece is left and the reader needs `byte` next. If the reader has fallen behind
// its run, delivery continues from there (rule 34).
void subscription_want(struct subscription *subscription, uint64_t byte);
// Call it when the pages of the first piece cannot be sent. Drops all pieces; their bytes are
// delivered again without pages.
void subscription_refuse_pages(struct subscription *subscription);
// Ends the caller's interest. Everything is released now, or when the last answer has come. The
// caller must not use the pointer afterwards.
void subscription_leave(struct subscription *subscription);

// Call it when a reply sends these bytes of the version. Returns how many of them read-ahead
// fetched and no reply has sent before. Any worker.
uint64_t fill_ahead_read(struct fill_worker *fw, const struct object_key *key,
                         const struct store_object *object, uint64_t first_byte, uint64_t end_byte);

// Notes that a listing named the object and its size. A later fill of the object uses the size to
// decide whether one request can bring bytes and checksums.
void fill_describe_listed(struct fill_worker *fw, struct span bucket, struct span key,
                          uint64_t size_bytes);

// Remembers why the origin's last answer for this key was not stored, for a limited time. An
// invalidation of the key ends that time, except for ORIGIN_FORBIDS_VERSIONS. With
// ORIGIN_FORBIDS_SHAPE, requests that find nothing cached bypass the cache at once; with
// ORIGIN_FORBIDS_ETAG, reads do.
void fill_uncacheable_note(struct fill_worker *fw, struct hash128 hash, enum origin_forbids why);
enum origin_forbids fill_uncacheable(struct fill_worker *fw, struct hash128 hash);

// Returns the epoch that is part of the names of this bucket's keys.
uint64_t fill_epoch(const struct store *store, const struct origin *origin, struct span bucket);
// Returns true if a record of this bucket that was confirmed `age_ms` ago must be revalidated
// before use, because the bucket or all of the origin is in doubt (store_is_doubted()).
bool fill_is_doubted(const struct store *store, const struct origin *origin, struct span bucket,
                     uint64_t age_ms);
// Returns when that doubt ends, in seconds of the wall clock. 0: neither is in doubt now, but a
// version that was confirmed before the end may still have to be confirmed.
uint64_t fill_doubt_until_s(const struct store *store, const struct origin *origin,
                            struct span bucket);

// --- a write that passes through -----------------------------------------------------------------

// One key that a write may change. The caller keeps the struct until on_ended.
struct key_write {
    struct list_node node; // in a list of the home
    struct object_key *key;
    struct fill_worker *at; // the worker that waits
    void *ctx;
    // The old record is deleted and the delete is durable, so the caller may ask the origin. If
    // kw->err is set, the cache directory did not take the delete, and the origin must not be
    // asked.
    void (*on_ready)(struct key_write *kw);
    // No reader can get an older version any more: the caller may answer the client.
    void (*on_ended)(struct key_write *kw);
    // This write asks nothing of the origin. It stands for a write whose outcome is unknown and
    // which the origin may still apply. Until it ends, readers of the key share only requests that
    // were sent after they asked.
    bool is_doubt;
    enum err err;
    // From on_ready on: the write dropped a kept answer, or a version that was being decided.
    bool had_version;
    bool has_moved; // private: the key was moved to the current epoch of its bucket
    bool is_listed; // private: open_keys holds the key open, not its home
};
// Begins a write; on_ready follows.
void invalidate_begin(struct fill_worker *fw, struct key_write *kw);
// Ends a write, after on_ready with or without an error; on_ended follows.
void invalidate_end(struct fill_worker *fw, struct key_write *kw);

// Holds the keys of one request open, at most `max` of them: each from its open_keys_add() until
// open_keys_close(). An entry covers its key under every name that cached copies may have.
struct open_keys;
size_t open_keys_bytes(size_t max);
// Returns NULL if memory is short.
struct open_keys *open_keys_new(struct fill_worker *fw, size_t max);
// `bucket` must stay valid until open_keys_close().
void open_keys_add(struct open_keys *keys, const struct origin *origin, struct span bucket,
                   struct span key);
// Any worker may call it; NULL is fine.
void open_keys_close(struct open_keys *keys);
// Begin and end a write to one name of a key that open_keys holds open. Each call needs a key_write
// of its own, which the caller gets back in its callback: on_ready after a begin, on_ended after an
// end. The key must carry the bucket's current epoch.
void invalidate_listed_begin(struct fill_worker *fw, struct key_write *kw);
void invalidate_listed_end(struct fill_worker *fw, struct key_write *kw);

// Invalidates a key whose stored bytes are wrong, so that soon no worker serves them. Call it if
// checksums_reply_is_wrong() cut a reply that began after an earlier verdict (its `verdicts` is not
// 0). The home does not invalidate such a key by itself, because it does not have all of the runs
// to judge.
void invalidate_wrong(struct fill_worker *fw, struct object_key *key);

// A write that may change any key of a bucket. on_ready runs when no reader can get a cached object
// or listing of the bucket any more, in any realm. on_ended runs when the same holds for everything
// cached since then. The caller keeps the struct until on_ended.
struct bucket_write {
    struct fill_worker *at; // the worker that waits
    void *ctx;
    // The origin may be asked, unless bw->err says that the cache directory cannot record the
    // change.
    void (*on_ready)(struct bucket_write *bw);
    void (*on_ended)(struct bucket_write *bw); // the client may be answered
    enum err err;
    struct store_epoch_change change; // private from here
    struct task task;
};
void invalidate_bucket_begin(struct fill_worker *fw, struct bucket_write *bw,
                             const struct origin *origin, struct span origin_bucket);
// Call it after on_ready, with or without an error; on_ended follows.
void invalidate_bucket_end(struct fill_worker *fw, struct bucket_write *bw);

#endif
