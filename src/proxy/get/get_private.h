// SPDX-License-Identifier: Apache-2.0
// Shared by the files of a GET or HEAD that may be answered from the cache. On the request's
// worker.
#ifndef FOREBAY_PROXY_GET_GET_PRIVATE_H
#define FOREBAY_PROXY_GET_GET_PRIVATE_H

#include <assert.h>

#include "proxy/get/get.h"

#define GET_AGAIN_MAX 16u // failed attempts to find the next byte, after which the reply is cut
#define GET_READ_BYTES STORE_READ_MAX

enum get_phase {
#define GET_PHASE(name, successors) GET_PHASE_##name,
#include "proxy/get/get_phases.def"
#undef GET_PHASE
    GET_PHASE_COUNT_
};

struct get_state {
    struct request *owner;
    enum get_phase phase; // changed only by get_phase_enter()
    // if the object is unknown, ask by HEAD, because a run cannot answer this request
    bool needs_head;
    struct http_range range;
    struct http_conditions conditions;
    struct origin_condition condition; // the condition that the origin gets with the first run
    // the bucket is in doubt: the origin must confirm a cached version before it is used
    bool is_doubted;

    // Result of the last look-up. Before any version is known, view.age_ms is UINT64_MAX.
    struct store_view view;
    uint64_t view_first, view_end; // bytes that the view covers; view_end 0: there is no view
    // A place that the owner of a run has sent. The index may not show it yet. Pinned.
    struct store_place extra;
    // The home knew the version, or all bytes of a run had come before this request.
    bool is_home_known;
    bool is_confirmed; // the origin has confirmed the version for this request

    struct store_object *object; // the version that the reply has (reference)
    uint64_t etag_hash;          // hash of the ETag in the reply; 0: no version is chosen yet
    struct chunk *small_chunk;
    struct span small;

    struct object_key *key;            // the request's key; created by the first look-up
    struct subscription *revalidation; // a question to the key's home; NULL: none is in flight
    struct subscription *runs[2];      // the run that is being sent, and the next one
    // Version to which the origin answered 412. The next ask tells the home.
    struct store_object *refused;
    enum fill_index index;    // for the next ask
    unsigned restarts, again; // attempts without progress, before the reply and in the body

    uint64_t first, end, pos; // range of the object to send, and the next byte to send
    uint64_t missed_end;      // blocks below this number are not counted in blocks_missed again
    uint32_t reply_block_size_bytes;
    uint64_t readahead_at; // readahead_note() is called when the body reaches this byte
    unsigned track_serial; // serial of the request's track (readahead.c); 0: it has none
    unsigned track;        // index of the track
    uint64_t noted_end;    // store_note_read() has been called up to this offset
    // The reply waited for these bytes, or will, while a run brought them. So they count as sent by
    // the origin, even if the cache holds them by the time they are sent.
    uint64_t awaited_first, awaited_end;
    uint64_t slice_origin; // how many bytes of the last file range count as sent by the origin
    // Bytes below this offset are sent from memory, because they could not be sent from a file.
    uint64_t buffer_until;

    bool has_asked; // the request has asked for a run
    // The origin failed to send the next bytes, which the cache has: the reply waits for the disk.
    bool has_origin_failed;
    uint64_t asked_us; // when a step last asked another worker, or got an answer
    struct checksums_reply sum;

    struct get_read *read; // the disk read of the next bytes; NULL: there is none
    unsigned read_span;    // index of the next span of `read` to send
};

enum get_read_state {
    GET_READ_PUT_OFF, // not started
    GET_READ_TIMED,   // in flight; the timer ends its time limit
    GET_READ_LATE,    // in flight, and its time limit has passed
    GET_READ_PATIENT, // in flight, without a time limit
    GET_READ_OVER     // has ended
};

struct get_read {
    struct store_read read;
    struct request *request; // NULL: the request has left, and nobody uses the result
    struct object_key *key;  // reference
    struct worker *worker;
    enum get_read_state state;
    bool insists; // PUT_OFF although the origin does not send the bytes: the disk is stuck
    // PUT_OFF: starts the read if the disk takes it. TIMED: declares it late.
    struct timer timer;
    void (*on_late)(struct request *r); // the origin should be asked, too
    void (*on_end)(struct request *r);
};

static inline struct get_state *get_of(struct request *r)
{
    check(r->get != NULL);
    return r->get;
}

// --- get_phase.c ---------------------------------------------------------------------------------

// Enters a phase. Nothing else changes it, except get_state_begin(). Aborts unless get_phases.def
// allows the change.
void get_phase_enter(struct get_state *g, enum get_phase phase);

static inline bool get_phase_has_replied(const struct get_state *g)
{
    return g->phase != GET_PHASE_STEPS && g->phase != GET_PHASE_HEADER &&
           g->phase != GET_PHASE_HEADER_RACE;
}
static inline bool get_phase_is_reading(const struct get_state *g) // waits for a disk read
{
    return g->phase == GET_PHASE_HEADER || g->phase == GET_PHASE_HEADER_RACE ||
           g->phase == GET_PHASE_READ || g->phase == GET_PHASE_RACE;
}

// --- get_read.c ----------------------------------------------------------------------------------

// Sets g->read to a read of a place, put off. The caller sets the callbacks, and what to read.
struct get_read *get_read_new(struct request *r, const struct store_place *place);
// Returns how long a read may take before the origin is asked, too. 0: the origin cannot be asked.
uint64_t get_read_limit_ms(struct request *r);
// Starts the read, with a time limit unless `limit_ms` is 0. A read without one starts later while
// the disk is stuck. Returns false if the disk is slow. The
// caller then asks the origin at once, and the read starts when the time limit has passed.
bool get_read_begin(struct get_read *read, uint64_t limit_ms) MUST_USE;
// Starts the read if it is put off, because the origin does not send the bytes.
void get_read_insist(struct get_read *read);
// Leaves the read, and frees it now or when the device has ended it. Accepts an empty slot.
// `cancels`: the request ends. Otherwise the read goes on, so that its bytes come into memory.
void get_read_leave(struct get_read **slot, bool cancels);

// --- get_state.c ---------------------------------------------------------------------------------

void get_state_begin(struct request *r);
// Looks up the bytes from `first_byte` in the index, at most STORE_WINDOW_MAX of them, into
// g->view.
void get_state_view(struct request *r, uint64_t first_byte, uint64_t end_byte);
// Sets g->is_doubted. It is true if a version that was validated `age_ms` ago must be confirmed,
// even if the cache rule calls it fresh.
void get_state_judge_doubt(struct request *r, uint64_t age_ms);
void get_state_view_done(struct get_state *g);
void get_state_leave(struct subscription **slot);
void get_state_cut(struct get_state *g); // ends the body early
// Releases everything that belongs to the version.
void get_state_forget_version(struct get_state *g);
void get_state_release(struct request *r); // releases everything when the request ends
// Passes the request through to the origin. Called only if nothing has been sent to the client.
enum step_result get_state_bypass(struct request *r, const char *reason);
// Returns true if the index record in g->view is of the reply's version.
bool get_state_has_record(const struct get_state *g);
// Returns true if the first bytes of the reply come from a run that is still being fetched.
bool get_state_is_from_origin(const struct get_state *g);
// Returns true if `byte` has a place in the cache, or is in a run that has been received as a
// whole.
bool get_state_at_hand(struct get_state *g, uint64_t byte);
// Returns the place of `byte` of the reply's version, or NULL if no place is known.
const struct store_place *get_state_place(struct get_state *g, uint64_t byte);
// Returns true if the cache has all bytes that the client wants, and all are in the window
// [first_byte, end_byte) that was looked up.
bool get_state_covers(struct get_state *g, uint64_t first_byte, uint64_t end_byte);
// Returns true if the subscription covers `byte`. Before the head of the run has come, it covers
// all blocks that were asked for; afterwards it ends at the run's end, or before it with the blocks
// that were asked for if the run is stored.
bool get_state_run_covers(const struct subscription *sub, uint64_t byte);
// Unpins places whose bytes are all before g->pos.
void get_state_release_passed(struct get_state *g);
uint32_t get_state_block_size(const struct request *r);
// Returns true if the client asked for checksums and for the whole object, so that it gets them.
bool get_state_wants_checksums(const struct request *r);
// Returns true if the client may get the version at hand, although it is stale, because the origin
// fails.
bool get_state_may_be_stale(const struct request *r);
// Returns true if the client's If-Match names another version than `etag`. That may be a newer one.
bool get_state_is_other(const struct get_state *g, struct span etag);
void get_state_check(const struct request *r); // asserts that the fields agree with each other

// --- get_ask.c -----------------------------------------------------------------------------------

// Returns the bytes that the client's Range names. The object's size is not known yet, so the end
// may be UINT64_MAX.
void get_ask_wanted(const struct get_state *g, uint64_t *ret_first, uint64_t *ret_end);
// Asks for the run that begins at `byte`. It ends before `end`, and before the next cached block.
// If g->index is SLOW, it ends before the next block that is not cached.
struct subscription *get_ask_run(struct request *r, uint64_t byte, uint64_t end);
// Asks the home which version is current, or whether the request's version is.
enum step_result get_ask_home(struct request *r);
// Leaves the home's answer, and asks the home again. The next answer comes from a request to the
// origin that is sent after this call.
enum step_result get_ask_home_again(struct request *r);
// Asks the home for the version's checksums, and waits for them.
enum step_result get_ask_checksums(struct request *r);
// Makes the home fetch the checksums for later readers, and does not wait.
void get_ask_to_learn_checksums(struct request *r);

// --- readahead.c ---------------------------------------------------------------------------------

// Called when the reply has reached g->readahead_at. Requests the bytes that the reader will want
// next, and sets g->readahead_at for the next call.
void readahead_note(struct request *r);
void readahead_leave(struct request *r); // called when the request is over

// --- get_reply.c ---------------------------------------------------------------------------------

// Returns true if the client asked for checksums and neither the version nor the index has them.
bool get_reply_lacks_checksums(const struct request *r);
// Answers 304 with the origin's headers, packed as in origin_fetch.headers.
enum step_result get_reply_not_modified(struct request *r, struct span packed);

// --- get_body.c ----------------------------------------------------------------------------------

enum http_pull get_body_pull(struct http_source *source, struct http_slice *ret_slice);
void get_body_recall(struct http_source *source, uint64_t unsent);

#endif
