// SPDX-License-Identifier: Apache-2.0
// Shared by the files of a request that passes through: its state, the body on its way to the
// origin, the key of a form upload, and cached listings.
#ifndef FOREBAY_PROXY_PASS_PASS_PRIVATE_H
#define FOREBAY_PROXY_PASS_PASS_PRIVATE_H

#include "proxy/pass/pass.h"

#define PASS_COLLECT_MAX (2u << 20) // bytes of a body that must be complete before it is forwarded
// Copies in memory of a body that is parsed and rendered again. The parsed form is in a counted
// arena.
#define PASS_COLLECT_COPIES 2u
#define PASS_COLLECT_SMALL 65536u // charged for a body of unknown length, until it is longer
#define PASS_FORM_HEAD_MAX 65536u // bytes of a form upload before its file

// --- pass_body.c ---------------------------------------------------------------------------------

// Forwards a request body: its headers, length and hash for the origin, and its bytes, verified in
// transit. The caller feeds the client's bytes in and takes the origin's bytes out. If the body can
// be checked, its end is held back until the check has passed, so the origin cannot complete a
// wrong body.
struct pass_body {
    // The plan, complete after pass_body_plan() (collected bodies: after pass_body_finish()).
    enum origin_body kind;
    uint64_t length; // bytes towards the origin
    struct span payload_hash;
    bool collect; // the body must be whole before the origin is asked

    // private
    bool decode, reframe;
    uint64_t decoded_length; // of aws-chunked
    struct aws_chunked_decoder *decoder;
    struct s3_checksum_state *sha256; // of the body; compared with x-amz-content-sha256
    uint8_t expected_sha256[32];
    struct s3_checksum_state *checksum; // of the payload; compared with its trailer
    struct span trailer_name;
    size_t trailer_value_len;
    bool must_verify;     // the body has a check, which must pass before its end is sent
    bool is_verified;     // pass_body_finish() has returned ERR_OK
    enum err too_large;   // the error of a collected body above its maximum
    uint64_t payload_fed; // decoded bytes so far
    uint64_t chunk_left;  // of the chunk being re-framed
    uint64_t taken;       // bytes that the origin has taken
    struct byte_queue queue;
    struct buf whole; // collected
    unsigned copies;
    uint64_t counted_bytes; // of one copy, as charged to the budget
};

struct pass_body_input {
    const struct http_request *http;
    const struct s3_request *s3;
    // The claim of a verified signature. NULL: chunk signatures are not checked.
    const struct sigv4_claim *claim;
    const uint8_t *signing_key;
    bool want_whole; // the caller needs the whole body
    // The origin takes no trailing checksums: bodies with them go on decoded, unsigned.
    bool no_trailers;
};

// `body` must be zero-initialised; call pass_body_done() after any outcome. `headers` is the copy
// for the origin: headers that describe the client's framing are removed or kept, as the plan
// needs. `arena` must outlive the body.
enum err pass_body_plan(struct pass_body *body, const struct pass_body_input *input,
                        struct arena *arena, struct headers *headers) MUST_USE;
enum err pass_body_feed(struct pass_body *body, struct span data) MUST_USE;
// Called when the client's body is complete. Returns ERR_OK if every check passed. The plan of a
// collected body is complete then.
enum err pass_body_finish(struct pass_body *body, struct arena *arena) MUST_USE;
// Called after pass_body_finish(): forwards `bytes` instead of the collected ones, and takes
// ownership of them.
enum err pass_body_replace(struct pass_body *body, struct arena *arena, struct buf *bytes) MUST_USE;
void pass_body_done(struct pass_body *body);
bool pass_body_full(const struct pass_body *body);
bool pass_body_low(const struct pass_body *body);
// Returns the number of bytes copied to `buf` for the origin. 0 with *ret_end set: it has all.
size_t pass_body_take(struct pass_body *body, char *buf, size_t max, bool *ret_end);
bool pass_body_ready(const struct pass_body *body); // would pass_body_take() give bytes or the end?

// --- pass_form.c ---------------------------------------------------------------------------------

#define PASS_BOUNDARY_MAX 70u // RFC 2046

enum pass_form_state {
    PASS_FORM_MORE, // the head is not complete yet
    PASS_FORM_KEY,  // the file begins; ${filename} in the key is filled in
    PASS_FORM_REFUSED,
};
struct pass_form {
    struct span key, boundary;
    bool is_signed;
    size_t file_at; // where in the head the file begins
};
// Reads a form up to its file; `bucket` is the one it is posted to. Views into `head`, `headers` or
// `arena`.
enum pass_form_state pass_form_read(struct arena *arena, const struct headers *headers,
                                    struct span bucket, struct span head,
                                    struct pass_form *ret_form);

enum pass_form_step {
    PASS_FORM_IN_FILE, // or in the value of a part after it
    PASS_FORM_AT_MARK,
    PASS_FORM_AT_LINE_END,
    PASS_FORM_IN_LINES,
    PASS_FORM_AT_CLOSE
};
// Scans the rest of a form as it passes, from the file's first byte on. Embedded.
struct pass_form_tail {
    enum pass_form_step step;
    unsigned at;
    char mark[PASS_BOUNDARY_MAX + 4];
    size_t mark_len;
    char window[1024]; // the last bytes, or the lines of a part
    size_t window_len;
};
void pass_form_tail_init(struct pass_form_tail *tail, struct span boundary);
// Scans the file and all that follows it. ERR_INVALID_ARGUMENT: a part after the file might change
// the request, or a delimiter line is missing.
enum err pass_form_tail_feed(struct pass_form_tail *tail, struct span data) MUST_USE;
bool pass_form_tail_is_closed(const struct pass_form_tail *tail);

// --- list_cache.c --------------------------------------------------------------------------------

#define LIST_PAGE_MAX (1u << 20) // bytes of a listing that is kept

// An answer to a listing, byte for byte, for all workers.
struct list_page;
// A request's question for a page. With LIST_FETCH the request puts the origin's answer into it.
struct list_ask;

// Asks the page's owner. The owner's answer sets r->list_verdict and runs request_go(). Returns
// false if the listing is not kept or memory is short. The request then asks the origin itself.
bool list_cache_ask(struct request *r);
// LIST_HIT, LIST_JOINED: returns the page, a reference for list_cache_page_unref().
struct list_page *list_cache_take_page(struct request *r);
enum err list_cache_take_error(struct request *r); // LIST_FAILED, LIST_ALONE
// LIST_FETCH: returns the question, which list_cache_end() or list_cache_end_whole() takes back.
// NULL: `r` has none.
struct list_ask *list_cache_take_fetch(struct request *r);
void list_cache_leave(struct request *r); // the client has gone; harmless where nothing was asked

// Announces the answer's length; then appends its bytes. False: it is too large, or there is no
// memory, and the page cannot be kept.
bool list_cache_expect(struct list_ask *ask, uint64_t length);
bool list_cache_append(struct list_ask *ask, struct span data);
void list_cache_end_whole(struct list_ask *ask, unsigned status, const struct headers *headers);
enum list_end {
    LIST_END_WHOLE,  // list_cache_end_whole()
    LIST_END_LEFT,   // the client has gone: another one fetches
    LIST_END_ALONE,  // it cannot be kept: each asks the origin
    LIST_END_FAILED, // with an error that holds for the others, too
};
void list_cache_end(struct list_ask *ask, enum list_end end, enum err err);

void list_cache_page_unref(struct list_page *page); // NULL is fine
struct span list_cache_page_body(const struct list_page *page);
const struct headers *list_cache_page_headers(const struct list_page *page);
unsigned list_cache_page_status(const struct list_page *page);

// --- list_question.c -----------------------------------------------------------------------------

// The name of the page that answers this request, in its arena; empty: the answer is not kept.
struct span list_question_name(const struct request *r);
// Is a header of that name part of the page's name? Then it goes on to the origin.
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

// A read of an object by fetches: HEAD, then the range (pass_direct.c), or the rest of a relay
// whose client was slow (pass_origin.c).
struct direct_read {
    struct origin_fetch fetch;
    struct span etag;
    uint64_t size_bytes, first, last; // of the object; the wanted range
    time_t last_modified;
};

// The call at the origin, see pass_origin.c.
struct pass_call {
    enum call_phase phase;
    enum { PASS_BY_RELAY, PASS_BY_HEAD, PASS_BY_RANGE } kind;
    enum err err; // its result
    uint64_t started_us;
    uint64_t asked_us; // the same by the worker's clock
    bool may_park;     // the rest of its answer can be requested separately
    uint64_t asked_last, idle_since_us;
    struct timer timer;
};

// Rewrites locations and names in an answer, see pass_location.c.
struct pass_location {
    enum {
        LOCATION_UNUSED, // the document is forwarded as it comes
        LOCATION_MENDS,  // it is being collected, to be rewritten
        LOCATION_HIDES,  // it is being collected, for the names in it
        LOCATION_PASSES, // its beginning was forwarded, maybe longer than the origin sent it
    } phase;
    struct buf document; // the part that has arrived
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

// The keys, and the round of invalidations in progress, see pass_writes.c.
struct pass_writes {
    struct pass_key *keys; // in the arena
    size_t key_count, keys_max;
    size_t reading_count;   // readings of all keys: the keys and their paths (reading_at())
    struct open_keys *open; // from the first round to the end of the second
    struct access_keys
        *newest; // keys file whose realms count too; reference; NULL: the request's own
    unsigned place_count;
    struct {
        size_t key, realm;
        unsigned reading, origin;
    } at;                       // the next name
    bool is_through;            // all names of the round have begun
    enum err err;               // why the request must be refused, after the first round
    bool is_in_doubt;           // each name of the second round gets a doubt
    struct span doubted_bucket; // in doubt itself, because there was no room for more keys
    struct write_slot *slots;
    struct list idle; // slots
    unsigned in_flight;
    struct task task;
    void (*on_round)(struct pass_state *p, enum err err);
    uint64_t charged_bytes;
};

// The functions of a phase. The table is in pass_phase.c.
struct pass_row {
    // Called when the phase is entered. NULL: nothing to do.
    void (*begin)(struct pass_state *p);
    // Called whenever something has changed. NULL: nothing to do.
    void (*again)(struct pass_state *p);
    // Returns the phase that follows, or the same phase if the request must wait.
    enum pass_phase (*next)(const struct pass_state *p);
};

struct pass_state {
    uint32_t magic;
    enum pass_phase phase;
    enum pass_kind kind;
    const struct pass_row *rows; // by phase
    struct proxy_worker *pw;
    struct request *request; // NULL: the exchange is over
    struct arena *arena;
    struct access_keys *table; // keeps the principal's keys alive for the relay; NULL: open mode

    // towards the origin
    struct s3_request s3; // copy
    struct headers headers;
    struct origin_relay relay;
    struct pass_call call;
    struct direct_read direct; // replaces the relay, or reads the rest of its answer

    // the client's body
    struct http_sink sink;
    struct pass_body body;
    enum upload_phase upload;
    bool upload_waiting;              // the relay waits for pass_upload_wake()
    struct pass_form_tail *form_tail; // NULL: no form, or its file has not begun
    struct buf form;                  // a form's beginning, until its key is known
    size_t form_tried;                // bytes of it already looked at
    bool form_is_signed;

    // the keys it changes
    struct pass_writes writes;
    unsigned awaited; // operations of its phase that have not ended: the note, the keys, the bucket
    struct bucket_write bucket_write; // used with changes_bucket, in addition to the keys
    bool changes_bucket;              // it may change any key of the bucket
    struct origin *origin;            // NULL: what it changes is not known yet
    struct span bucket_place;         // origin_place() of its origin
    struct store_note note;           // that the bucket is written to
    struct timer note_timer;
    bool is_noting;  // the store still uses `note`
    bool waits_note; // `awaited` counts the note

    // towards the client
    enum answer_phase answer;
    enum err err; // why Forebay itself refuses the request; ERR_OK: it does not
    struct span err_message;
    struct subscription *telling;  // sends the key's home the version; see pass_version.c
    bool is_streamed;              // the answer's head came before the outcome was known
    struct pass_document document; // if is_streamed: reports the outcome
    struct http_source source;
    struct byte_queue down;
    uint64_t received_bytes;
    struct headers answered; // in the exchange's arena
    struct pass_location location;
    struct list_ask *list_ask;            // its page gets the answer, too; NULL: no page does
    struct s3_list_scan *list_scan;       // NULL: no listing
    struct s3_list_buckets *list_buckets; // leaves out buckets; NULL: all may be shown
    struct s3_list_names *list_names;     // judges which names may be shown; NULL: all may
    struct span list_former; // the last large object in it; the memory has room for any key
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
// Returns true if a call has not ended, or the rest of its answer has not been requested yet.
static inline bool pass_calls(const struct pass_state *p)
{
    return p->call.phase != CALL_NONE && p->call.phase != CALL_ENDED;
}
// Returns true if there is a response head for the client, sent or not.
static inline bool pass_has_head(const struct pass_state *p)
{
    return p->answer == ANSWER_HEAD || p->answer == ANSWER_SENT;
}
// Returns true if the response has no body.
static inline bool pass_is_bodiless(const struct pass_state *p)
{
    return span_equal(p->relay.method, SPAN("HEAD")) || p->relay.status == 204 ||
           p->relay.status == 304 || (p->relay.has_length && p->relay.length == 0);
}
static inline bool pass_is_answered(const struct pass_state *p)
{
    return p->answer == ANSWER_SENT || p->answer == ANSWER_REFUSED;
}

// --- pass_state.c --------------------------------------------------------------------------------

// Returns a state in the phase READ. `rows`: the functions of each phase, by phase.
struct pass_state *pass_state_new(struct request *r, const struct pass_row *rows);
void pass_state_free(void *ptr);
// Copies into `arena`. Returns false if it is full.
bool pass_state_copy_span(struct arena *arena, struct span *s);
bool pass_state_copy_request(struct arena *arena, const struct s3_request *from,
                             struct s3_request *ret_to);
bool pass_state_copy_headers(struct arena *arena, const struct headers *from, struct headers *to);

// --- pass_go.c -----------------------------------------------------------------------------------

// The driver: moves from phase to phase until one must wait. Call it whenever something has
// changed.
void pass_go(struct pass_state *p);
// Each aborts if `next` may not follow.
void pass_enter_call(struct pass_state *p, enum call_phase next);
void pass_enter_upload(struct pass_state *p, enum upload_phase next);
void pass_enter_answer(struct pass_state *p, enum answer_phase next);
void pass_state_check(const struct pass_state *p); // aborts if its phases contradict each other

// --- pass_origin.c -------------------------------------------------------------------------------

void pass_origin_init(struct pass_state *p);
void pass_origin_done(struct pass_state *p);
// Notes that a call starts. `phase`: CALL_RUNNING or CALL_PIECE.
void pass_origin_begin(struct pass_state *p, enum call_phase phase);
// Starts p->direct.fetch, whose bucket, key and callbacks are set: a HEAD, or the wanted range.
void pass_origin_fetch(struct pass_state *p);
// Called when a call ends. Returns false if another call will get the rest of the answer.
bool pass_origin_end(struct pass_state *p, enum err err) MUST_USE;
void pass_origin_pause(struct pass_state *p);
void pass_origin_resume(struct pass_state *p); // harmless when not paused
void pass_origin_cancel(struct pass_state *p); // harmless when no call is in flight

// --- pass_answer.c -------------------------------------------------------------------------------

void pass_answer_headers(struct pass_state *p); // keeps those that the client may see
void pass_answer_start(struct pass_state *p);   // sends the head to the client
void pass_answer_take(struct pass_state *p, struct span data); // bytes from the origin
// Ends the page of a listing that was to be kept, because it is not complete. Harmless if there is
// no such page.
void pass_answer_list_end(struct pass_state *p, enum list_end end, enum err err);
void pass_answer_list_end_whole(struct pass_state *p); // it is complete; harmless likewise

// --- pass_listing.c ------------------------------------------------------------------------------

// Prepares to filter a list of buckets, if the principal has rights in some of them only. Asks the
// origin for the whole list if its names will be judged.
// ERR_OVERLOAD: there is no memory for it.
enum err pass_listing_plan(struct pass_state *p) MUST_USE;
void pass_listing_done(struct pass_state *p);
// Called before the origin is asked. Harmless if the request is no listing.
void pass_listing_begin(struct pass_state *p);
// Called with bytes of the answer before they are forwarded. Returns false if the answer is
// refused, so that they are not forwarded.
bool pass_listing_take(struct pass_state *p, struct span data);
// Returns true if names may be left out, so that the head waits for the first bytes of the body.
bool pass_listing_is_judged(const struct pass_state *p);
// Returns true if the names in such an answer cannot be read as far as it has come, and why: it is
// a part of the list, has a Content-Encoding, or is not XML in UTF-8.
bool pass_listing_is_unreadable(const struct pass_state *p, struct span *ret_why);
// Returns true if the head of such an answer may be sent after these bytes. That of a filtered list
// waits for its end or a full queue, so that a short list is refused as a whole or not at all.
bool pass_listing_may_start(const struct pass_state *p);
// Returns true if the answer is a list of buckets, to be filtered. Its length is not known then.
bool pass_listing_is_filtered(const struct pass_state *p);
// Queues for the client what it may see of these bytes. Returns false if it has refused the
// request.
bool pass_listing_filter(struct pass_state *p, struct span data) MUST_USE;
// Called when the answer has ended. Refuses a list of buckets that is not complete.
void pass_listing_end(struct pass_state *p);
// Returns true if its principal has rights on a part of the bucket only. Then
// pass_listing_may_show() judges each name.
bool pass_listing_is_limited(const struct request *r);
bool pass_listing_may_show(void *ctx, struct span name); // ctx: a pass_state with its request
// Returns how many of the last bytes belong to a name that is not complete yet.
uint64_t pass_listing_pending(const struct pass_state *p);

// --- pass_version.c ------------------------------------------------------------------------------

// Called when the head of a read has come. If it names a version, sends that version to the key's
// home, whose reply starts the answer. Returns false if it names none.
bool pass_version_tell(struct pass_state *p);
void pass_version_leave(struct pass_state *p); // harmless when no message is out

// --- pass_upload.c -------------------------------------------------------------------------------

// Copies bytes for the relay to `buf`. 0 with ERR_OK: it has all. ERR_AGAIN: pass_upload_wake()
// resumes it.
enum err pass_upload_take(struct pass_state *p, char *buf, size_t max, size_t *ret_len) MUST_USE;
void pass_upload_wake(struct pass_state *p); // resumes a relay that waits, if there is something
void pass_upload_drop(struct pass_state *p); // drops the rest
// Ends the request with an error. Cancels the call at the origin, so the origin never gets a
// complete body. Does nothing if the request has an error already.
void pass_upload_refuse(struct pass_state *p, enum err err, struct span message);

// --- pass_phase.c --------------------------------------------------------------------------------

extern const struct pass_row PASS_ROWS[PASS_PHASE_COUNT_];
// Called when the request's changes are known: opens the writes, or asks the origin at once.
void pass_phase_start(struct pass_state *p);

// --- pass_doubt.c --------------------------------------------------------------------------------

#define PASS_DOUBTS_MAX 4096u // keys in doubt, on all workers
// Called when no more can be learnt about the outcome, before the writes end. If the outcome is not
// known, puts the keys and the bucket in doubt.
void pass_doubt_begin(struct pass_state *p);
// Called at the same time, if the origin was asked. Returns where the bucket is now. If that is
// another origin, puts it in doubt there.
void pass_doubt_moved(const struct pass_state *p, struct span *ret_place, struct span *ret_bucket);
// Begins a doubt of this name of a key, if the outcome is not known.
void pass_doubt_name(struct pass_state *p, struct object_key *name);
void pass_doubt_take(struct pass_state *p, struct span data);

// --- pass_relay.c --------------------------------------------------------------------------------

void pass_relay_start(struct pass_state *p); // asks the origin

// --- pass_receive.c ------------------------------------------------------------------------------

// Starts receiving the client's body. Called after pass_body_plan().
void pass_receive_start(struct pass_state *p);

// --- pass_sources.c ------------------------------------------------------------------------------

// Adds the headers that name the sources of a copy or rename, with the origin's bucket names.
enum err pass_sources_send(struct pass_state *p, struct span *ret_message) MUST_USE;

// --- pass_keys.c ---------------------------------------------------------------------------------

// Each adds the keys that the request changes to p->writes.keys: from its head, from a form, or
// from a collected body. If it may change any key of its bucket, sets p->changes_bucket.
// ERR_ACCESS_DENIED: the principal may not change one of the keys (p->err_message says so).
enum err pass_keys_of_head(struct pass_state *p) MUST_USE;
enum err pass_keys_of_form(struct pass_state *p, struct span key) MUST_USE;
enum err pass_keys_of_body(struct pass_state *p) MUST_USE;

// --- pass_writes.c -------------------------------------------------------------------------------

void pass_writes_init(struct pass_state *p);
// Adds a key, before pass_writes_open(). `bucket` and `key` must live as long as `p`.
enum err pass_writes_add(struct pass_state *p, struct span bucket, struct span key) MUST_USE;
// Holds the keys open and invalidates every name of each; then runs on_round, never inside the
// call. ERR_OVERLOAD: there is no memory for it; ERR_NOT_RECORDED: the cache directory does not
// take the removal.
void pass_writes_open(struct pass_state *p, void (*on_round)(struct pass_state *p, enum err err));
// Called when no more can be learnt about the outcome. Invalidates every name once more, if the
// origin was asked; then runs on_round.
void pass_writes_close(struct pass_state *p, void (*on_round)(struct pass_state *p, enum err err));
void pass_writes_done(struct pass_state *p); // closes the keys; may be called twice

// --- pass_xml.c ----------------------------------------------------------------------------------

// Judges the collected body and replaces it by the part that was understood. p->err_message may say
// why it is refused.
enum err pass_xml_delete(struct pass_state *p, struct s3_delete *ret_delete) MUST_USE;
enum err pass_xml_restore(struct pass_state *p) MUST_USE;

// --- pass_location.c -----------------------------------------------------------------------------

// Called when the answer's head has come. Rewrites its Location, and decides whether its document
// is collected.
void pass_location_begin(struct pass_state *p);
// The same for an error answer whose names are judged: it is collected first.
void pass_location_begin_error(struct pass_state *p);
bool pass_location_collects(const struct pass_state *p);         // the answer's bytes?
void pass_location_take(struct pass_state *p, struct span data); // while it collects
void pass_location_end(struct pass_state *p); // the answer is over; harmless when not used

// --- pass_direct.c -------------------------------------------------------------------------------

bool pass_direct_wanted(const struct request *r);
// Called before pass_phase_start(). Makes the call a HEAD. p->err_message may say why it cannot.
enum err pass_direct_plan(struct pass_state *p) MUST_USE;
// Called when the head of a relay's answer has come. Decides whether the rest may be read directly,
// if the client turns out to be slow.
void pass_direct_may_follow(struct pass_state *p);

// --- pass_preflight.c ----------------------------------------------------------------------------

// Chooses the headers to forward; ERR_OVERLOAD: too many are in flight.
enum err pass_preflight_plan(struct pass_state *p) MUST_USE;
void pass_preflight_end(struct pass_state *p);
bool pass_preflight_is_yes(const struct pass_state *p); // the answer's head is there
bool pass_preflight_keeps(struct span name);            // a header of a yes

// --- pass_sts.c ----------------------------------------------------------------------------------

// Called when the body is complete. Returns ERR_OK for the one call that is forwarded. Otherwise
// p->err_message says why it is refused.
enum err pass_sts_authorize(struct pass_state *p) MUST_USE;

#endif
