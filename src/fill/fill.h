// SPDX-License-Identifier: Apache-2.0
// The protocol between workers for one key: who asks the origin, who decides which version is
// current, who publishes, and what a write makes untrue. Rules, messages and drawings: README.md
// beside this file.
//
// A caller asks for bytes or for a confirmation with subscription_ask(); every change runs its
// callback, on its own worker, never inside the call. A write is announced with invalidate_begin()
// before the origin is asked and with invalidate_end() after. Every look-up in the store is made
// above fill_floor().
#ifndef FOREBAY_FILL_FILL_H
#define FOREBAY_FILL_FILL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/chunk.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/list.h"
#include "fill/fill_version.h"
#include "fill/object_key.h"
#include "loop/loop.h"
#include "origin/origin.h"
#include "s3/s3.h"
#include "store/store.h"

// --- the room ------------------------------------------------------------------------------------

struct fill_room;
struct fill_worker; // what the room keeps per worker

struct fill_options {
    struct loop *loop;
    struct store *store;
    uint64_t stripe_bytes; // of an object, per owner; 0: 64 MiB
    // Runs on each worker for each key that is invalidated: what else is remembered of it
    // (listings) must be dropped, and what of it is on its way not be kept.
    void (*on_invalidated)(void *ctx, struct worker *w, const struct object_key *key);
    void *ctx;
};
struct fill_room *fill_room_new(const struct fill_options *options);
void fill_room_free(struct fill_room *room); // after loop_stop(); NULL is fine

static inline struct fill_worker *fill_worker_of(struct worker *w)
{
    return worker_slot_get(w, WORKER_SLOT_FILL);
}

// Generation below which nothing of the key counts on this worker; 0: none.
uint64_t fill_floor(struct fill_worker *fw, struct hash128 hash);
// Has this block of this version come whole, in a run that the index does not show yet? As good as
// known: for what is said of a reply, not for its bytes. Any worker.
bool fill_here_has(const struct fill_worker *fw, struct hash128 key, uint64_t etag_hash,
                   uint32_t block_size_bytes, uint64_t block);

// --- a subscription: one question, or one attachment to a run in flight --------------------------

// What is wanted. References stay the caller's.
struct fill_ask {
    struct object_key *key;
    uint64_t client;              // who asks: clients take turns at the origin
    struct origin_trace trace;    // and for which request of theirs
    struct store_object *object;  // the version wanted; NULL: whatever is current
    struct store_object *refused; // this version answered 412
    bool revalidate;              // no bytes: is `object` still current?
    bool reads; // revalidate: the client wants bytes, so GET decides where the origin refuses HEAD
    bool told;  // no question: an answer past the cache named `object`, NULL: none
    uint64_t asked_us; // told: when the origin was asked
    bool strict;       // only a request to the origin not yet sent will do
    bool has_sent;     // bytes of `object` have reached the client
    bool skip_index;   // what the index says could not be read: ask the origin
    bool no_pages;     // file ranges cannot be sent to this client
    bool ahead;        // for who comes later: no bytes are given, only the end
    // Only for an unknown version: the client's condition, which the origin judges, and the number
    // of bytes that the reader wants from the object's end. 0: it wants first_byte to end_byte.
    struct origin_condition condition;
    uint64_t suffix_bytes;
    bool wants_version; // a version that the home knows is the answer, not a run of it
    uint64_t fresh_ms;  // how old what the home has kept may be for that
    // The reader wants the object's checksums too: with bytes, together with all of the object;
    // without bytes, those of `object`. A reader that does not insist gets no answer: the home
    // learns them for the next reader.
    bool with_checksums;
    bool insists;
    uint64_t first_byte;  // wanted from here
    uint64_t end_byte;    // to here; 0: all of the run
    uint64_t block;       // that holds it
    uint32_t block_count; // at most this many
    uint32_t block_size_bytes;
};

enum subscription_state {
    SUBSCRIPTION_ASKED,    // exactly one answer will come
    SUBSCRIPTION_ATTACHED, // exactly one end will come, exactly one LEAVE is sent
    SUBSCRIPTION_ENDED     // answered or ended; data may still be queued
};

enum subscription_outcome {
    OUTCOME_NONE,
    OUTCOME_DONE,   // everything up to the run's end was delivered, or is at `place`
    OUTCOME_REJOIN, // ask again
    OUTCOME_GONE,   // that version is no more (412)
    // err. ERR_NOT_MODIFIED and ERR_PRECONDITION_FAILED: the origin's judgement of the condition;
    // with ERR_NOT_MODIFIED `error_answer` has the headers
    OUTCOME_ERROR,
    OUTCOME_DESCRIBED, // `answer` has the checksums of the version asked about; NULL: not to be had
    // err ERR_NOT_MODIFIED: the version asked about is current or, if none was, `answer`; ERR_OK:
    // `answer` is; else neither
    OUTCOME_REVALIDATED
};

struct piece { // bytes of a run, on their way to the client
    struct list_node node;
    struct chunk *chunk;      // NULL: they lie in pages that were written
    struct store_place pages; // then: pinned; for store_range_ready() only
    uint32_t offset, len;     // in the chunk
    uint64_t first_byte;      // in the object
};

// Lives on the worker that asked, until it has left and its last answer has come. A reader takes
// pieces from the front, and the place and the references it wants to keep.
struct subscription {
    uint32_t magic;
    struct fill_ask ask;
    enum subscription_state state;
    enum subscription_outcome outcome;
    enum err err;
    bool joined;                    // the run was in flight already
    bool whole;                     // and all of it had come
    struct store_object *answer;    // the version being delivered, or found (reference)
    bool weak;                      // no strong ETag: this run cannot be put together with another
    const char *unstored_why;       // why the run is not stored, in a word; NULL: it is
    char origin_id[ORIGIN_ID_SIZE]; // of the origin's answer that brings it; "": none
    unsigned origin_status;         // and its status
    uint64_t run_end_byte;          // exclusive, known with `answer` while attached
    struct store_place place;       // pinned
    uint64_t validated_us;          // `answer` was known, as of then; 0: the origin was asked now
    struct span error_answer;       // origin's, packed
    struct list pieces;             // struct piece

    // private from here
    void (*on_change)(void *ctx, struct subscription *subscription); // NULL: it has left
    void *ctx;
    struct fill_worker *at, *owner;
    uint64_t met_token; // of the first request that was out when the home was asked; 0: none was
    struct attachment *attachment;
    struct store_object *described; // has this version's checksums (reference); or NULL
    bool stored;                    // the run is being stored: falling behind is fine
    bool has_left;                  // LEAVE sent
    bool no_pages;                  // as asked, or pages were refused
    bool lagging;                   // what came behind next_byte was dropped
    bool wanting;                   // and has been asked for again
    uint64_t next_byte;             // behind the last piece
    uint64_t queued_bytes;          // of chunks
};

// Asks the worker that knows: with a version the owner of the stripe, else the key's home.
// on_change runs for every change until subscription_leave().
struct subscription *
subscription_ask(struct fill_worker *fw, const struct fill_ask *ask,
                 void (*on_change)(void *ctx, struct subscription *subscription), void *ctx);
// Can the last `suffix_bytes` of an object of unknown size be asked for as such? They and the rest
// of the block that they begin in must fit in one run.
bool subscription_takes_suffix(const struct store *store, uint32_t block_size_bytes,
                               uint64_t suffix_bytes);
void subscription_pop(struct subscription *subscription); // its first piece is used up
// No piece is left, and the reader is at `byte`: if it is behind its run it goes on from there
// (rule 34).
void subscription_want(struct subscription *subscription, uint64_t byte);
// The pages of its first piece cannot be sent: all pieces go, and what they were comes another way.
void subscription_refuse_pages(struct subscription *subscription);
// Nobody is interested any more: everything is given back, now or when the last answer has come.
// The pointer is dead.
void subscription_leave(struct subscription *subscription);

// Shall a hit have the key's home learn the checksums of `object`, for later readers? True: the
// caller asks the home now, by an ask `with_checksums` that does not insist. Until that is answered
// other hits of the version get false. Takes no memory and no lock, and sends no message.
bool fill_learn_claim(struct fill_worker *fw, const struct object_key *key,
                      const struct store_object *object) MUST_USE;

// A listing has named the object and its size: how it is best asked for, by who wants its
// checksums.
void fill_describe_listed(struct fill_worker *fw, struct span bucket, struct span key,
                          uint64_t size_bytes);

// Remembers why the origin's last answer for this key was not stored, for a time or until the key
// is invalidated. With ORIGIN_FORBIDS_SHAPE a request that finds nothing cached bypasses the cache
// at once, with ORIGIN_FORBIDS_ETAG a read does.
void fill_uncacheable_note(struct fill_worker *fw, struct hash128 hash, enum origin_forbids why);
enum origin_forbids fill_uncacheable(struct fill_worker *fw, struct hash128 hash);

// --- an object in several runs, as a reply sends it (reply_sum.c) --------------------------------

// What its runs add up to, from its first byte on. Zeroed, then begun: nothing yet.
struct reply_sum {
    uint64_t verdicts; // that were known when the reply was begun
    bool has_kind;
    enum s3_checksum kind;
    struct s3_checksum_state *sum; // of the bytes below end_byte
    uint64_t end_byte;
};
// To be called before the reply looks for any of the object's bytes.
void reply_sum_begin(struct fill_worker *fw, struct hash128 key_hash, struct reply_sum *total);
// The reply has all bytes below `end_byte`, and does not send the last of them before
// this says false. True: these are all, and they are not what the origin says; that is counted and
// logged. What cannot be judged is not wrong.
bool reply_sum_is_wrong(struct fill_worker *fw, const struct store_object *object,
                        struct reply_sum *total, uint64_t end_byte) MUST_USE;
void reply_sum_done(struct reply_sum *total); // a zeroed one is fine

// The epoch that is part of the names of this bucket's keys.
uint64_t fill_epoch(const struct store *store, const struct origin *origin, struct span bucket);

// --- a write that passes through -----------------------------------------------------------------

// One key that a write may change. The caller's until `on_ended`.
struct key_write {
    struct list_node node; // in the home's lists
    struct object_key *key;
    struct fill_worker *at; // who waits
    void *ctx;
    // The old record is gone for good: the origin may be asked; not when kw->err says that the
    // cache directory does not take that.
    void (*on_ready)(struct key_write *kw);
    void (*on_ended)(
        struct key_write *kw); // nothing older can be seen by anyone: the client may be answered
    // Asks nothing of the origin: another one may still reach the key there. Until it ends no
    // reader of the key shares a request that was sent before it came.
    bool is_doubt;
    enum err err;
    bool has_moved; // private: to the epoch its bucket has now
    bool is_listed; // private: open_keys holds its key open, its home does not
};
void invalidate_begin(struct fill_worker *fw, struct key_write *kw); // on_ready later
void invalidate_end(struct fill_worker *fw,
                    struct key_write *kw); // after on_ready, with err or without; on_ended later

// The keys of one request, held open together from the first open_keys_add() to open_keys_close(),
// at most `max`. Each is one key of one bucket, under whatever names copies of it are held.
struct open_keys;
size_t open_keys_bytes(size_t max);
struct open_keys *open_keys_new(struct fill_worker *fw, size_t max); // NULL: no memory
// `bucket` stays the caller's, until the close.
void open_keys_add(struct open_keys *keys, const struct origin *origin, struct span bucket,
                   struct span key);
void open_keys_close(struct open_keys *keys); // any worker; NULL is fine
// Begins and ends a write to one name of a key that is held open, each with a key_write of its own.
// The caller gets the key_write back in its callback: on_ready after a begin, on_ended after an
// end. The key carries the bucket's current epoch.
void invalidate_listed_begin(struct fill_worker *fw, struct key_write *kw);
void invalidate_listed_end(struct fill_worker *fw, struct key_write *kw);

// What is kept of the key is wrong: soon no worker hands it out. For who was cut by
// reply_sum_is_wrong() though begun after a verdict (verdicts is not 0): the home, which has not
// all runs to judge, keeps them.
void invalidate_wrong(struct fill_worker *fw, struct object_key *key);

// A change of a bucket that may touch any of its keys: every object and listing of it that is held,
// in every realm, is out of reach from on_ready on, and again from on_ended on. Ownership as above.
struct bucket_write {
    struct fill_worker *at; // who waits
    void *ctx;
    // The origin may be asked; not when bw->err says that the cache directory cannot note it.
    void (*on_ready)(struct bucket_write *bw);
    void (*on_ended)(struct bucket_write *bw); // the client may be answered
    enum err err;
    struct store_epoch_change change; // private from here
    struct task task;
};
void invalidate_bucket_begin(struct fill_worker *fw, struct bucket_write *bw,
                             const struct origin *origin, struct span origin_bucket);
// After on_ready, with err or without; on_ended later.
void invalidate_bucket_end(struct fill_worker *fw, struct bucket_write *bw);

#endif
