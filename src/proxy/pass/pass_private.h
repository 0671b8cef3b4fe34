// SPDX-License-Identifier: Apache-2.0
// Shared by the files of a request that passes through: the state of the request, its body on the
// way to the origin, the key of a form upload, and cached listings.
#ifndef FOREBAY_PROXY_PASS_PASS_PRIVATE_H
#define FOREBAY_PROXY_PASS_PASS_PRIVATE_H

#include "proxy/pass/pass.h"

// Maximum bytes of a body that must be complete before it is forwarded.
#define PASS_COLLECT_MAX (2u << 20)
// How many copies of a body are in memory if it is parsed and rendered again. The parsed form is in
// a counted arena, and not one of these.
#define PASS_COLLECT_COPIES 2u
#define PASS_COLLECT_SMALL 65536u // charged for a body of unknown length, until it becomes longer
#define PASS_FORM_HEAD_MAX 65536u // maximum bytes of a form upload before its file

// --- pass_body.c ---------------------------------------------------------------------------------

// Forwards a request body. Sets the headers, length and hash that the origin gets, and verifies the
// bytes in transit. The caller feeds in the bytes from the client and takes out the bytes for the
// origin. If the body can be checked, its end is held back until the check has passed. So the
// origin never completes a wrong body.
struct pass_body {
    // The plan. Complete after pass_body_plan(), or for a collected body after pass_body_finish().
    enum origin_body kind;
    uint64_t length; // of the body that the origin gets
    struct span payload_hash;
    bool collect; // the body must be complete before the origin is asked

    // Private to pass_body.c:
    bool decode, reframe;
    uint64_t decoded_length; // length of an aws-chunked body without its framing
    struct aws_chunked_decoder *decoder;
    struct s3_checksum_state *sha256; // hash of the body; compared with x-amz-content-sha256
    uint8_t expected_sha256[32];
    struct s3_checksum_state *checksum; // checksum of the payload; compared with its trailer
    struct span trailer_name;
    size_t trailer_value_len;
    bool must_verify;     // there is a check, which must pass before the body's end is sent
    bool is_verified;     // pass_body_finish() has returned ERR_OK
    enum err too_large;   // the error if a collected body exceeds its maximum
    uint64_t payload_fed; // decoded bytes that were fed in
    uint64_t chunk_left;  // bytes left of the chunk that is being re-framed
    uint64_t taken;       // bytes that were taken for the origin
    struct byte_queue queue;
    struct buf whole; // the collected body
    unsigned copies;
    uint64_t counted_bytes; // size of one copy, as charged to the budget
};

struct pass_body_input {
    const struct http_request *http;
    const struct s3_request *s3;
    // The claim of a verified signature. NULL: signatures of chunks are not checked.
    const struct sigv4_claim *claim;
    const uint8_t *signing_key;
    bool want_whole; // the caller needs the whole body before it is forwarded
    // The origin supports no trailing checksums, so bodies with them are forwarded decoded and
    // unsigned.
    bool no_trailers;
};

// Plans how the body is forwarded. `body` must be zero-initialised. The caller calls
// pass_body_done() after any outcome. `headers` are those for the origin: headers that describe the
// client's framing are removed or kept, as the plan requires. `arena` must outlive the body.
enum err pass_body_plan(struct pass_body *body, const struct pass_body_input *input,
                        struct arena *arena, struct headers *headers) MUST_USE;
enum err pass_body_feed(struct pass_body *body, struct span data) MUST_USE;
// Called when the client has sent the whole body. Returns ERR_OK if every check passed. Completes
// the plan of a collected body.
enum err pass_body_finish(struct pass_body *body, struct arena *arena) MUST_USE;
// Called after pass_body_finish(). Forwards `bytes` instead of the collected ones, and takes
// ownership of them.
enum err pass_body_replace(struct pass_body *body, struct arena *arena, struct buf *bytes) MUST_USE;
void pass_body_done(struct pass_body *body);
bool pass_body_full(const struct pass_body *body);
bool pass_body_low(const struct pass_body *body);
// Copies bytes for the origin to `buf`, and returns how many. 0 with *ret_end set: all were taken.
size_t pass_body_take(struct pass_body *body, char *buf, size_t max, bool *ret_end);
// Returns true if pass_body_take() would return bytes or the end.
bool pass_body_ready(const struct pass_body *body);

// --- pass_form.c ---------------------------------------------------------------------------------

#define PASS_BOUNDARY_MAX 70u // maximum length of a boundary, by RFC 2046

enum pass_form_state {
    PASS_FORM_MORE, // incomplete: the head continues in bytes that have not come yet
    PASS_FORM_KEY,  // the file begins here; ${filename} in the key is replaced
    PASS_FORM_REFUSED,
};
struct pass_form {
    struct span key, boundary;
    bool is_signed;
    size_t file_at; // offset of the file's first byte in the head
};
// Reads a form up to its file. `bucket` is the bucket that the form is posted to. The spans in
// *ret_form point into `head`, `headers` or `arena`.
enum pass_form_state pass_form_read(struct arena *arena, const struct headers *headers,
                                    struct span bucket, struct span head,
                                    struct pass_form *ret_form);

enum pass_form_step {
    PASS_FORM_IN_FILE, // in the file, or in the value of a part after the file
    PASS_FORM_AT_MARK,
    PASS_FORM_AT_LINE_END,
    PASS_FORM_IN_LINES,
    PASS_FORM_AT_CLOSE
};
// Scans the rest of a form while it passes, from the first byte of the file on. Embedded in the
// caller's struct.
struct pass_form_tail {
    enum pass_form_step step;
    unsigned at;
    char mark[PASS_BOUNDARY_MAX + 4];
    size_t mark_len;
    char window[1024]; // the last bytes of the file, or the header lines of a part
    size_t window_len;
};
void pass_form_tail_init(struct pass_form_tail *tail, struct span boundary);
// ERR_INVALID_ARGUMENT: a part after the file may have a meaning for the origin, or the boundary is
// not on a well-formed delimiter line.
enum err pass_form_tail_feed(struct pass_form_tail *tail, struct span data) MUST_USE;
bool pass_form_tail_is_closed(const struct pass_form_tail *tail);

// --- list_cache.c --------------------------------------------------------------------------------

#define LIST_PAGE_MAX (1u << 20) // maximum bytes of a kept listing

// The origin's answer to a listing, byte for byte. All workers may use it.
struct list_page;
// A request's question for a page. After LIST_FETCH the request puts the origin's answer into the
// page.
struct list_ask;

// Asks the page's owner. The owner's answer sets r->list_verdict and runs request_go(). Returns
// false if the answer may not be kept or there is no memory for it. The request then asks the
// origin, for itself only.
bool list_cache_ask(struct request *r);
// After LIST_HIT or LIST_JOINED: returns a reference to the page, for list_cache_page_unref().
struct list_page *list_cache_take_page(struct request *r);
enum err list_cache_take_error(struct request *r); // after LIST_FAILED or LIST_ALONE
// After LIST_FETCH: returns the ask, which must end with list_cache_end() or
// list_cache_end_whole(). NULL: `r` has no ask.
struct list_ask *list_cache_take_fetch(struct request *r);
// Called when the client has gone. Does nothing if nothing was asked.
void list_cache_leave(struct request *r);

// list_cache_expect() announces the length of the answer, and list_cache_append() appends bytes of
// it. Each returns false if the page cannot be kept, because it is too large or there is no memory.
bool list_cache_expect(struct list_ask *ask, uint64_t length);
bool list_cache_append(struct list_ask *ask, struct span data);
void list_cache_end_whole(struct list_ask *ask, unsigned status, const struct headers *headers);
enum list_end {
    LIST_END_WHOLE,  // see list_cache_end_whole()
    LIST_END_LEFT,   // the client has gone, so another request fetches the page
    LIST_END_ALONE,  // the page cannot be kept, so each request asks the origin
    LIST_END_FAILED, // the fetch failed with an error that is also the answer to the others
};
void list_cache_end(struct list_ask *ask, enum list_end end, enum err err);

void list_cache_page_unref(struct list_page *page); // accepts NULL
struct span list_cache_page_body(const struct list_page *page);
const struct headers *list_cache_page_headers(const struct list_page *page);
unsigned list_cache_page_status(const struct list_page *page);

// --- list_question.c -----------------------------------------------------------------------------

// Returns the name of the page that answers this request, in its arena. Empty: the answer may not
// be kept.
struct span list_question_name(const struct request *r);
// Returns true if this header is part of the page's name. The origin then gets the header.
bool list_question_has(struct span header_name);

// --- serve_pass.c --------------------------------------------------------------------------------

#define PASS_ARENA_MAX (8u << 20)
#define PASS_MAGIC 0x50415353u

enum pass_phase {
#define PASS_PHASE(name, next) PASS_##name,
#include "proxy/pass/pass_phases.def"
    PASS_PHASE_COUNT_
};
enum call_phase {
#define CALL_PHASE(name, next) CALL_##name,
#include "proxy/pass/pass_phases.def"
    CALL_PHASE_COUNT_
};
enum upload_phase {
#define UPLOAD_PHASE(name, next) UPLOAD_##name,
#include "proxy/pass/pass_phases.def"
    UPLOAD_PHASE_COUNT_
};
enum answer_phase {
#define ANSWER_PHASE(name, next) ANSWER_##name,
#include "proxy/pass/pass_phases.def"
    ANSWER_PHASE_COUNT_
};

enum pass_kind {
    PASS_KIND_S3,
    PASS_KIND_STS,       // a call to STS, see pass_sts.c
    PASS_KIND_PREFLIGHT, // see pass_preflight.c
};

// A read of an object by fetches: of the range after a HEAD (pass_direct.c), or of the rest of a
// relayed answer whose client was slow (pass_origin.c).
struct direct_read {
    struct origin_fetch fetch;
    struct span etag;
    uint64_t size_bytes, first, last; // size of the object; first and last byte of the wanted range
    time_t last_modified;
};

// The call at the origin; see pass_origin.c.
struct pass_call {
    enum call_phase phase;
    enum { PASS_BY_RELAY, PASS_BY_HEAD, PASS_BY_RANGE } kind;
    enum err err; // the result of the call
    uint64_t started_us;
    uint64_t asked_us; // the same time by the worker's clock
    bool may_park;     // the rest of the answer can be requested separately
    uint64_t asked_last, idle_since_us;
    struct timer timer;
};

// State of rewriting locations and names in an answer; see pass_location.c.
struct pass_location {
    enum {
        LOCATION_UNUSED, // the document is forwarded unchanged
        LOCATION_MENDS,  // the document is collected, to rewrite its location
        LOCATION_HIDES,  // the document is collected, to remove names from it
        LOCATION_PASSES, // the collected part was forwarded, and its length may have changed
    } phase;
    struct buf document; // the part that was collected so far
};

// State of the scan of a document that reports the outcome of a write; see pass_doubt.c.
struct pass_document {
    bool has_text, is_unsure;
    size_t matched, code_len;
    char code[24];
};

// A key that the request changes. `bucket` is the origin's name for its bucket.
struct pass_key {
    struct span bucket, key;
};

// The keys that the request changes, and the round of invalidations in progress; see pass_writes.c.
struct pass_writes {
    struct pass_key *keys; // array in the arena
    size_t key_count, keys_max;
    struct open_keys *open; // from the beginning of the first round to the end of the second
    struct access_keys
        *newest; // keys file whose realms count too; reference; NULL: the request's own
    unsigned place_count;
    struct {
        size_t key, realm;
        unsigned reading, origin;
    } at;             // position of the next name
    bool is_through;  // the round has started all of its names
    enum err err;     // result of the first round: why the request must be refused
    bool is_in_doubt; // each name of the second round begins a doubt
    // A bucket that is in doubt itself, because there was no room for a doubt of another key.
    struct span doubted_bucket;
    struct write_slot *slots;
    struct list idle; // slots that are not in use
    unsigned in_flight;
    struct task task;
    void (*on_round)(struct pass_state *p, enum err err);
    uint64_t charged_bytes;
};

// The functions of a phase. pass_phase.c has the table.
struct pass_row {
    void (*begin)(struct pass_state *p); // runs when the phase is entered; NULL: nothing to do
    void (*again)(struct pass_state *p); // runs whenever something has changed; NULL: nothing to do
    enum pass_phase (*next)(const struct pass_state *p); // returns the same phase to wait
};

struct pass_state {
    uint32_t magic;
    enum pass_phase phase;
    enum pass_kind kind;
    const struct pass_row *rows; // indexed by phase
    struct proxy_worker *pw;
    struct request *request; // NULL: the exchange has ended
    struct arena *arena;
    // Keeps the principal's keys until the relay has ended. NULL: open mode.
    struct access_keys *table;

    // The request that the origin gets:
    struct s3_request s3; // copy of the request's
    struct headers headers;
    struct origin_relay relay;
    struct pass_call call;
    struct direct_read direct; // used instead of the relay, or for the rest of its answer

    // The client's body:
    struct http_sink sink;
    struct pass_body body;
    enum upload_phase upload;
    bool upload_waiting;              // the relay has no bytes and waits for pass_upload_wake()
    struct pass_form_tail *form_tail; // NULL: the body is no form, or its file has not begun
    struct buf form;                  // the beginning of a form, until its key is known
    size_t form_tried;                // length of `form` when it was last parsed
    bool form_is_signed;

    // The changes that the request makes:
    struct pass_writes writes;
    unsigned awaited; // operations that the phase waits for: the note, the keys, the bucket
    struct bucket_write bucket_write; // used if changes_bucket is set, in addition to the keys
    bool changes_bucket;              // the request may change any key of the bucket
    struct origin *origin;            // NULL: the changes are not known yet
    struct span bucket_place;         // origin_place() of `origin`
    struct store_note note;           // notes on disk that the bucket is written to
    struct timer note_timer;
    bool is_noting; // the store uses `note`, so the pass_state cannot be freed

    // The answer that the client gets:
    enum answer_phase answer;
    enum err err; // why Forebay itself refuses the request; ERR_OK: not refused
    struct span err_message;
    struct subscription *telling;  // sends the version to the key's home; see pass_version.c
    bool is_streamed;              // the head of the answer came before the outcome was known
    struct pass_document document; // if is_streamed: this document reports the outcome
    struct http_source source;
    struct byte_queue down;
    uint64_t received_bytes;
    struct headers answered; // headers for the client, in the exchange's arena
    struct pass_location location;
    struct list_ask *list_ask;        // the page that also gets the answer; NULL: none
    struct s3_list_scan *list_scan;   // NULL: the answer is not scanned
    struct s3_list_names *list_names; // decides which names the client may see; NULL: all
    struct span list_former; // last large object in the listing; memory for the longest key
    struct list_page *list_page;
};

static inline struct pass_state *as_pass(struct pass_state *p)
{
    check(p != NULL);
    check(p->magic == PASS_MAGIC);
    return p;
}

static inline bool pass_changes_any(const struct pass_state *p)
{
    return p->writes.key_count > 0 || p->changes_bucket;
}
// Returns true if a call is in flight, or if the rest of its answer is still to be requested.
static inline bool pass_calls(const struct pass_state *p)
{
    return p->call.phase != CALL_NONE && p->call.phase != CALL_ENDED;
}
// Returns true if there is a response head for the client, whether it was sent or not.
static inline bool pass_has_head(const struct pass_state *p)
{
    return p->answer == ANSWER_HEAD || p->answer == ANSWER_SENT;
}
static inline bool pass_is_answered(const struct pass_state *p)
{
    return p->answer == ANSWER_SENT || p->answer == ANSWER_REFUSED;
}

// --- pass_state.c --------------------------------------------------------------------------------

// Returns a new pass_state in the phase READ. `rows` has the functions of each phase.
struct pass_state *pass_state_new(struct request *r, const struct pass_row *rows);
void pass_state_free(void *ptr);
// Each copies into `arena`, and returns false if the arena is full.
bool pass_state_copy_span(struct arena *arena, struct span *s);
bool pass_state_copy_request(struct arena *arena, const struct s3_request *from,
                             struct s3_request *ret_to);
bool pass_state_copy_headers(struct arena *arena, const struct headers *from, struct headers *to);

// --- pass_go.c -----------------------------------------------------------------------------------

// Runs from phase to phase until one must wait. Called whenever something has changed.
void pass_go(struct pass_state *p);
// Each of the three aborts if `next` may not follow the current phase.
void pass_enter_call(struct pass_state *p, enum call_phase next);
void pass_enter_upload(struct pass_state *p, enum upload_phase next);
void pass_enter_answer(struct pass_state *p, enum answer_phase next);
void pass_state_check(const struct pass_state *p); // aborts if the phases contradict each other

// --- pass_origin.c -------------------------------------------------------------------------------

void pass_origin_init(struct pass_state *p);
void pass_origin_done(struct pass_state *p);
// Records that a call starts. `phase` is CALL_RUNNING or CALL_PIECE.
void pass_origin_begin(struct pass_state *p, enum call_phase phase);
// Starts p->direct.fetch, whose bucket, key and callbacks are set. It is a HEAD, or a GET of the
// wanted range.
void pass_origin_fetch(struct pass_state *p);
// Called when a call has ended. Returns false if another call will fetch the rest of the answer.
bool pass_origin_end(struct pass_state *p, enum err err) MUST_USE;
void pass_origin_pause(struct pass_state *p);
void pass_origin_resume(struct pass_state *p); // does nothing if not paused
void pass_origin_cancel(struct pass_state *p); // does nothing if no call is in flight

// --- pass_answer.c -------------------------------------------------------------------------------

void pass_answer_headers(struct pass_state *p); // copies the headers that the client may see
void pass_answer_start(struct pass_state *p);   // sends the head to the client
void pass_answer_take(struct pass_state *p, struct span data); // receives bytes of the answer
bool pass_answer_is_bodiless(const struct pass_state *p);
// Ends the page that was to be kept, because the listing is not complete. Does nothing if there is
// no such page.
void pass_answer_list_end(struct pass_state *p, enum list_end end, enum err err);
// Ends the page as complete. Does nothing if there is none.
void pass_answer_list_end_whole(struct pass_state *p);

// --- pass_listing.c ------------------------------------------------------------------------------

// Called before the origin is asked. Does nothing if the request is no listing.
void pass_listing_begin(struct pass_state *p);
// Called with bytes of the answer before they are forwarded. Returns false if the answer is
// refused; the bytes must not be forwarded then.
bool pass_listing_take(struct pass_state *p, struct span data);
// Returns true if names may be left out. The head then waits for the first bytes of the body.
bool pass_listing_is_judged(const struct pass_state *p);
// Returns true if the request's principal has rights only on a part of the bucket.
// pass_listing_may_show() then decides about each name.
bool pass_listing_is_limited(const struct request *r);
bool pass_listing_may_show(void *ctx, struct span name); // `ctx` is a pass_state with its request
// Returns how many of the last bytes belong to a name that has not been received completely.
uint64_t pass_listing_pending(const struct pass_state *p);

// --- pass_version.c ------------------------------------------------------------------------------

// Called when the head of a read has come. If the head names a version, or says that there is no
// object, tells the key's home, whose reply starts the answer. Returns false otherwise.
bool pass_version_tell(struct pass_state *p);
void pass_version_leave(struct pass_state *p); // does nothing if no question is in flight

// --- pass_upload.c -------------------------------------------------------------------------------

// Copies bytes for the relay to `buf`. *ret_len 0 with ERR_OK: all were copied. ERR_AGAIN:
// pass_upload_wake() will resume the relay.
enum err pass_upload_take(struct pass_state *p, char *buf, size_t max, size_t *ret_len) MUST_USE;
// Resumes a waiting relay if it can get bytes or the end.
void pass_upload_wake(struct pass_state *p);
void pass_upload_drop(struct pass_state *p); // discards the rest of the client's body
// Ends the request with an error. The origin cannot complete the body from the bytes that it has.
// If called more than once, the first error counts.
void pass_upload_refuse(struct pass_state *p, enum err err, struct span message);

// --- pass_phase.c --------------------------------------------------------------------------------

extern const struct pass_row PASS_ROWS[PASS_PHASE_COUNT_];
// Called when the request's changes are known. Begins the writes, or asks the origin at once if
// there are none.
void pass_phase_start(struct pass_state *p);

// --- pass_doubt.c --------------------------------------------------------------------------------

#define PASS_DOUBTS_MAX 4096u // maximum number of keys in doubt, on all workers
// Called when nothing more can be learnt about the outcome, before the writes end. If the outcome
// is unknown, puts the keys and the bucket in doubt.
void pass_doubt_begin(struct pass_state *p);
// Begins a doubt of this name of a key, if the outcome is unknown.
void pass_doubt_name(struct pass_state *p, struct object_key *name);
void pass_doubt_take(struct pass_state *p, struct span data);

// --- pass_relay.c --------------------------------------------------------------------------------

void pass_relay_start(struct pass_state *p); // asks the origin

// --- pass_receive.c ------------------------------------------------------------------------------

// Starts receiving the client's body. Called after pass_body_plan().
void pass_receive_start(struct pass_state *p);

// --- pass_sources.c ------------------------------------------------------------------------------

// Adds the headers that name the sources of a copy or rename, with the bucket names that the origin
// uses.
enum err pass_sources_send(struct pass_state *p, struct span *ret_message) MUST_USE;

// --- pass_keys.c ---------------------------------------------------------------------------------

// Each adds the keys that the request changes to p->writes.keys, and finds them in its head, in a
// form, or in a collected body. Sets p->changes_bucket if the request may change any key of its
// bucket. ERR_ACCESS_DENIED: the principal may not change one of the keys (p->err_message says so).
enum err pass_keys_of_head(struct pass_state *p) MUST_USE;
enum err pass_keys_of_form(struct pass_state *p, struct span key) MUST_USE;
enum err pass_keys_of_body(struct pass_state *p) MUST_USE;

// --- pass_writes.c -------------------------------------------------------------------------------

void pass_writes_init(struct pass_state *p);
// Adds a key. Called before pass_writes_open(). `bucket` and `key` must live as long as `p`.
enum err pass_writes_add(struct pass_state *p, struct span bucket, struct span key) MUST_USE;
// Holds the keys open and invalidates every name of each. Then runs on_round, never inside this
// call. ERR_OVERLOAD: there is no memory for the keys. ERR_LIMIT: the deletes cannot be written to
// the cache directory.
void pass_writes_open(struct pass_state *p, void (*on_round)(struct pass_state *p, enum err err));
// Called when nothing more can be learnt about the outcome. Invalidates every name once more if the
// origin was asked. Then runs on_round.
void pass_writes_close(struct pass_state *p, void (*on_round)(struct pass_state *p, enum err err));
void pass_writes_done(struct pass_state *p); // closes the keys; a second call does nothing

// --- pass_xml.c ----------------------------------------------------------------------------------

// Each checks the collected body, and replaces it by the part that Forebay understood. On an error,
// p->err_message may say why the body is refused.
enum err pass_xml_delete(struct pass_state *p, struct s3_delete *ret_delete) MUST_USE;
enum err pass_xml_restore(struct pass_state *p) MUST_USE;

// --- pass_location.c -----------------------------------------------------------------------------

// Called when the answer's head has come. Rewrites the header Location, and decides whether the
// document is collected.
void pass_location_begin(struct pass_state *p);
// Like pass_location_begin(), for an error answer whose names may be hidden. Its document is
// collected.
void pass_location_begin_error(struct pass_state *p);
// Returns true if the answer's bytes are collected and not forwarded at once.
bool pass_location_collects(const struct pass_state *p);
// Called while pass_location_collects() returns true.
void pass_location_take(struct pass_state *p, struct span data);
// Called when the answer has ended. Does nothing if the answer is not rewritten.
void pass_location_end(struct pass_state *p);

// --- pass_direct.c -------------------------------------------------------------------------------

bool pass_direct_wanted(const struct request *r);
// Called before pass_phase_start(). Makes the call a HEAD. On an error, p->err_message may say why.
enum err pass_direct_plan(struct pass_state *p) MUST_USE;
// Called when the head of a relay's answer has come. If the client turns out to be slow, the rest
// of the answer may be fetched separately; this call decides whether that is possible.
void pass_direct_may_follow(struct pass_state *p);

// --- pass_preflight.c ----------------------------------------------------------------------------

// Chooses the headers to forward. ERR_OVERLOAD: too many preflights are in flight.
enum err pass_preflight_plan(struct pass_state *p) MUST_USE;
void pass_preflight_end(struct pass_state *p);
bool pass_preflight_is_yes(const struct pass_state *p); // called once the answer's head has come
bool pass_preflight_keeps(struct span name);            // true: a positive answer keeps this header

// --- pass_sts.c ----------------------------------------------------------------------------------

// Called when the body is complete. Returns ERR_OK for the one call that is forwarded. Otherwise
// p->err_message says why the call is refused.
enum err pass_sts_authorize(struct pass_state *p) MUST_USE;

#endif
