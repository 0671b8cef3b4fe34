// SPDX-License-Identifier: Apache-2.0
// Shared by the files of a GET or HEAD that may be answered from the cache, on its worker.
#ifndef FOREBAY_PROXY_GET_GET_PRIVATE_H
#define FOREBAY_PROXY_GET_GET_PRIVATE_H

#include <assert.h>

#include "proxy/get/get.h"

#define GET_AGAIN_MAX 16u // failed attempts to find the next byte, before the reply is cut
#define GET_READ_BYTES STORE_READ_MAX

enum get_phase {
#define GET_PHASE(name, successors) GET_PHASE_##name,
#include "proxy/get/get_phases.def"
#undef GET_PHASE
    GET_PHASE_COUNT_
};

struct get_state {
    struct request *owner;
    enum get_phase phase; // written by get_phase_enter()
    bool needs_head;      // if the object is unknown, ask with HEAD first: a run cannot answer this
                          // request
    struct http_range range;
    struct http_conditions conditions;
    struct origin_condition condition; // the condition to send to the origin with a run
    bool is_doubted; // the bucket is in doubt, so cached versions must be confirmed

    // Result of the last look-up. view.age_ms is UINT64_MAX until a version is known.
    struct store_view view;
    uint64_t view_first, view_end; // bytes that the view covers; view_end 0: no view is open
    // Place that a run's answer named and the index may not show yet. Pinned.
    struct store_place extra;
    bool is_home_known; // the home knew the version, or had all bytes of a run of it
    bool is_confirmed;  // the origin has confirmed the version for this request

    struct store_object *object; // the version in the reply (reference)
    uint64_t etag_hash;          // of the version in the reply; 0: no version is chosen yet
    struct chunk *small_chunk;
    struct span small;

    struct object_key *key;            // created by the first look-up
    struct subscription *revalidation; // a question to the key's home in flight; or NULL
    struct subscription *runs[2];      // the run that is being sent, and the next one
    struct store_object *refused; // version to which the origin answered 412; the next ask names it
    bool skip_index;              // bytes that the index names could not be read: ask the origin
    unsigned restarts, again;     // attempts without progress: before the reply, and in the body

    uint64_t first, end, pos; // bytes of the object to send, and the next byte
    uint64_t missed_end;      // blocks below this number are already counted in blocks_missed
    uint32_t reply_block_size_bytes;
    uint64_t readahead_at; // call readahead_note() when the body reaches this byte
    unsigned track_serial; // serial of the request's track (readahead.c); 0: it has none
    unsigned track;        // index of the track
    uint64_t noted_end;    // store_note_read() was called for bytes below this offset
    uint64_t buffer_until; // bytes below could not be sent from a file: send them from memory

    bool has_asked; // the request asked for a run
    struct checksums_reply sum;

    struct store_read read;
    unsigned read_span; // index of the next span of `read` to send
};

static inline struct get_state *get_of(struct request *r)
{
    check(r->get != NULL);
    return r->get;
}

// --- get_phase.c ---------------------------------------------------------------------------------

// The only writer of the phase, except get_state_begin(). Aborts unless get_phases.def allows it.
void get_phase_enter(struct get_state *g, enum get_phase phase);

static inline bool get_phase_has_replied(const struct get_state *g)
{
    return g->phase != GET_PHASE_STEPS && g->phase != GET_PHASE_HEADER;
}
static inline bool get_phase_is_reading(const struct get_state *g) // a disk read is in flight
{
    return g->phase == GET_PHASE_HEADER || g->phase == GET_PHASE_READ;
}

// --- get_state.c ---------------------------------------------------------------------------------

void get_state_begin(struct request *r);
// Looks up a window of at most STORE_WINDOW_MAX bytes from `first_byte` in the index, into g->view.
void get_state_view(struct request *r, uint64_t first_byte, uint64_t end_byte);
// Sets g->is_doubted: whether a version that was validated `age_ms` ago must be confirmed although
// it is fresh by the cache rule.
void get_state_judge_doubt(struct request *r, uint64_t age_ms);
void get_state_view_done(struct get_state *g);
void get_state_leave(struct subscription **slot);
void get_state_drop_read(struct get_state *g);      // releases the unsent bytes of the last read
void get_state_cut(struct get_state *g);            // ends the body, and drops the read's bytes
void get_state_forget_version(struct get_state *g); // releases all that belongs to the version
// Releases everything at the request's end. Returns false if a disk read is in flight: its callback
// releases the rest.
bool get_state_release(struct request *r);
// Call it first in a read's callback. Returns NULL if the request is over, and now gone.
struct request *get_state_read_over(struct store_read *read);
// Passes the request through to the origin. Call it only if nothing has been sent to the client.
enum step_result get_state_bypass(struct request *r, const char *reason);
// Returns true if the index record in g->view is of the reply's version.
bool get_state_has_record(const struct get_state *g);
// Returns true if the first bytes of the reply come from a run that is still being fetched.
bool get_state_is_from_origin(const struct get_state *g);
// Returns true if `byte` has a place in the cache, or is in a run whose bytes have all come.
bool get_state_at_hand(struct get_state *g, uint64_t byte);
// Returns the place of `byte` of the reply's version, or NULL if no place is known.
const struct store_place *get_state_place(struct get_state *g, uint64_t byte);
// Returns true if all bytes that the client wants are in the view, which covers these bytes.
bool get_state_covers(struct get_state *g, uint64_t first_byte, uint64_t end_byte);
// Returns true if the subscription covers `byte`. It covers [first_byte, run end) until all its
// answers are in.
bool get_state_run_covers(const struct subscription *sub, uint64_t byte);
void get_state_release_passed(struct get_state *g); // unpins places that end before g->pos
uint32_t get_state_block_size(const struct request *r);
// Returns true if the client asked for checksums, which it gets with the whole object.
bool get_state_wants_checksums(const struct request *r);
// Returns true if the client's If-Match names another version than `etag`, maybe a newer one.
bool get_state_is_other(const struct get_state *g, struct span etag);
void get_state_check(const struct request *r); // asserts that the parts agree with each other

// --- get_ask.c -----------------------------------------------------------------------------------

// Returns the window to look up first for the client's Range, while the object's size is unknown.
void get_ask_wanted(const struct get_state *g, uint64_t *ret_first, uint64_t *ret_end);
// Asks for the run that begins at `byte`. The run ends before `end` and before the next cached
// block.
struct subscription *get_ask_run(struct request *r, uint64_t byte, uint64_t end);
// Asks the home whether the version, or which one, is current.
enum step_result get_ask_home(struct request *r);
// Asks the home for the checksums of the version, and waits for them.
enum step_result get_ask_checksums(struct request *r);
// Asks the home to learn the checksums for the next reader, and does not wait.
void get_ask_to_learn_checksums(struct request *r);

// --- readahead.c ---------------------------------------------------------------------------------

// Called when the reply has reached g->pos. Requests the bytes that its reader will want next, and
// sets g->readahead_at for the next call.
void readahead_note(struct request *r);
void readahead_leave(struct request *r); // the request is over

// --- get_reply.c ---------------------------------------------------------------------------------

// Returns true if the client asked for checksums and nobody knows those of the version.
bool get_reply_lacks_checksums(const struct request *r);
// Answers 304 with the origin's headers, packed as in origin_fetch.headers.
enum step_result get_reply_not_modified(struct request *r, struct span packed);

// --- get_body.c ----------------------------------------------------------------------------------

enum http_pull get_body_pull(struct http_source *source, struct http_slice *ret_slice);
void get_body_recall(struct http_source *source, uint64_t unsent);

#endif
