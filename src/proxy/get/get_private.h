// SPDX-License-Identifier: Apache-2.0
// What the files of a GET share: a GET or HEAD that may be answered from the
// cache, on its worker.
#ifndef FOREBAY_PROXY_GET_GET_PRIVATE_H
#define FOREBAY_PROXY_GET_GET_PRIVATE_H

#include "proxy/get/get.h"

#define GET_AGAIN_MAX 16u // look-ups that lead nowhere without a byte of progress
#define GET_READ_BYTES STORE_READ_MAX

struct get_state {
    struct request *owner;
    bool is_head;
    bool needs_head; // an unknown object needs a HEAD first: a run cannot serve such a request
    struct http_range range;
    struct http_conditions conditions;
    struct origin_condition condition; // the one that goes to the origin with a run
    bool client_no_cache;
    bool is_doubted; // its bucket is in doubt: what is cached must be confirmed

    bool view_open;
    struct store_view view;
    uint64_t view_first, view_end; // bytes the view covers
    struct store_place extra;      // pinned by a fill's answer; before the index shows it
    bool have_record;              // the version is the index's
    bool have_known;               // it is one that the home knew, before the index shows it
    bool asked_checksums;          // what is not known of them was asked for
    bool confirmed;                // the origin has confirmed it for this request
    bool stale_allowed;

    struct store_object *object; // the version answered with (reference)
    uint64_t etag_hash;
    struct chunk *small_chunk;
    struct span small;

    struct object_key *key; // made on the first look-up
    struct subscription *revalidation;
    struct subscription *runs[2]; // the one that is sent now, and the next
    struct store_object *refused; // answered 412: the next ask says so
    bool skip_index;              // what the index names could not be read
    unsigned restarts, again;
    bool no_pages; // what a run has written could not be sent as it is: its bytes come another way

    bool replied;
    bool from_origin;         // first bytes come from a fill that is under way
    uint64_t first, end, pos; // bytes of the object to send, and how far
    uint64_t missed_end;      // blocks below are counted in blocks_missed, where they were missed
    uint32_t reply_block_size_bytes;
    uint64_t readahead_at; // readahead_note() is due from there on
    unsigned track_serial; // readahead.c; 0: not noted
    unsigned track;        // then: where it is
    bool is_of_series;     // series_begin() was called
    uint64_t noted_end;    // the store knows of the reading up to there
    uint64_t buffer_until; // a range was recalled: bytes below this go by the read way

    bool has_asked, is_whole; // something of it was asked for; all of the object is sent
    struct reply_sum sum;

    struct store_read read;
    bool reading, read_ready;
    unsigned read_span; // next span to hand out
    bool header_read;   // DESCRIBE has started it
};

static inline struct get_state *get_of(struct request *r)
{
    check(r->get != NULL);
    return r->get;
}

// --- get_state.c ---------------------------------------------------------------------------------

void get_state_begin(struct request *r);
void get_state_view(struct request *r, uint64_t first_byte, uint64_t end_byte); // looks a window up
// Must what was validated so long ago be confirmed, whatever the rule says?
void get_state_judge_doubt(struct request *r, uint64_t age_ms);
void get_state_view_done(struct get_state *g);
void get_state_leave(struct subscription **slot);
void get_state_drop_read(struct get_state *g);
void get_state_forget_version(struct get_state *g); // all that belongs to the version tried so far
// Everything, at the request's end. False: a disk read is out, whose callback does it.
bool get_state_release(struct request *r);
// First thing in a read's callback. NULL: the request is over, and now gone.
struct request *get_state_read_over(struct store_read *read);
// Nothing has been sent, and it is passed through.
enum step_result get_state_bypass(struct request *r, const char *reason);
// Is `byte` here: at a place, or in memory, of a run that has come whole?
bool get_state_at_hand(struct get_state *g, uint64_t byte);
// Where `byte` of this very version lies; NULL: nowhere we know.
const struct store_place *get_state_place(struct get_state *g, uint64_t byte);
// Is all that the client wants in the window that was looked up, which is of these bytes?
bool get_state_covers(struct get_state *g, uint64_t first_byte, uint64_t end_byte);
// A subscription covers [first_byte, run end) until its answers are all in.
bool get_state_run_covers(const struct subscription *sub, uint64_t byte);
void get_state_release_passed(struct get_state *g); // places in front of g->pos
uint32_t get_state_block_size(const struct request *r);
// Are the origin's checksums part of the answer, if it is of the whole object?
bool get_state_wants_checksums(const struct request *r);
// Does If-Match name another version? It may be a newer one.
bool get_state_is_other(const struct get_state *g, struct span etag);
void get_state_check(const struct request *r); // its parts agree with each other

// --- get_ask.c -----------------------------------------------------------------------------------

// The bytes that the Range asks for, before the size is known.
void get_ask_wanted(const struct get_state *g, uint64_t *ret_first, uint64_t *ret_end);
// Asks for the run that begins at `byte`: not past `end` or the next block that is there.
struct subscription *get_ask_run(struct request *r, uint64_t byte, uint64_t end);
// Asks the home whether the version, or which one, is current.
enum step_result get_ask_home(struct request *r);
// Asks the home for the checksums of the version, and waits for them.
enum step_result get_ask_checksums(struct request *r);
// Has the home learn them for the next reader.
void get_ask_to_learn_checksums(struct request *r);

// --- readahead.c ---------------------------------------------------------------------------------

// A reply has come to g->pos: what its reader will want next is asked for. Looks again from
// g->readahead_at on.
void readahead_note(struct request *r);
void readahead_leave(struct request *r); // the request is over

// --- get_reply.c ---------------------------------------------------------------------------------

// 304 with the headers of the origin's, as origin_fetch.headers has them, packed.
enum step_result get_reply_not_modified(struct request *r, struct span packed);

// --- get_body.c ----------------------------------------------------------------------------------

enum http_pull get_body_pull(struct http_source *source, struct http_slice *ret_slice);
void get_body_recall(struct http_source *source, uint64_t unsent);

#endif
