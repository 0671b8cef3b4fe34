// SPDX-License-Identifier: Apache-2.0
// Where bytes come from: drivers (s3://, http(s)://, dir:) behind one interface. There are two
// kinds of call. origin_fetch_start() gets one object; response_head.c verifies the answer, which
// is typed. Fills, HEAD and revalidation use it. origin_relay_start() sends any other S3 request,
// and streams both bodies. Neither ever blocks the loop. Retries, with back-off and a budget,
// happen here as long as no byte was handed to the caller.
#ifndef FOREBAY_ORIGIN_ORIGIN_H
#define FOREBAY_ORIGIN_ORIGIN_H

#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/headers.h"
#include "loop/loop.h"
#include "s3/s3.h"

enum origin_addressing {
    ORIGIN_ADDRESSING_AUTO,
    ORIGIN_ADDRESSING_PATH,
    ORIGIN_ADDRESSING_VIRTUAL
};
enum origin_credentials_source {
    // Tries in this order: key files given, environment, web identity, shared files, container,
    // IMDS.
    ORIGIN_CREDENTIALS_AUTO,
    ORIGIN_CREDENTIALS_CONFIG,
    ORIGIN_CREDENTIALS_ENV,
    ORIGIN_CREDENTIALS_IRSA,
    ORIGIN_CREDENTIALS_PROFILE,
    ORIGIN_CREDENTIALS_CONTAINER,
    ORIGIN_CREDENTIALS_IMDS,
    ORIGIN_CREDENTIALS_ANONYMOUS
};

struct origin_options {
    const char *name; // identity in cache keys and logs; unique
    // "https://host[:port]", "http://...", "dir:/path"; "{region}" is replaced.
    const char *endpoint;
    const char *region; // NULL: automatic
    enum origin_addressing addressing;
    enum origin_credentials_source credentials;
    // For CONFIG, and tried first for AUTO.
    const char *access_key_file, *secret_key_file, *session_token_file;
    const char *ca_file;
    unsigned connections;
    uint64_t keepalive_ms, connect_timeout_ms, first_byte_timeout_ms, idle_timeout_ms;
    unsigned retries;
    unsigned retry_budget_percent;
    bool probe; // origin_probe_start() probes it
};

struct origin;
// Creates an origin and finds its credentials. May block; called before loop_start(). Errors that
// end the start: ERR_NOT_FOUND (dir: missing), ERR_ORIGIN_CREDENTIALS (none found, and not
// anonymous), ERR_INVALID (endpoint), ERR_PERMISSION (key file unreadable, or readable by others).
// ret_why then has one line with the remedy. An S3 endpoint that does not answer is no error.
enum err origin_new(const struct origin_options *options, struct loop *loop,
                    struct origin **ret_origin, struct buf *ret_why) MUST_USE;
// The settings of an origin that may change while it runs: timeouts, retries, ca_file, and the key
// files, which are read again. origin_update_new() prepares them and changes nothing. It has the
// errors of origin_new() and may block. One thread, not a worker.
struct origin_update;
enum err origin_update_new(struct origin *origin, const struct origin_options *options,
                           struct origin_update **ret_update, struct buf *ret_why) MUST_USE;
// Applies the update to calls that start from then on. Takes ownership of it.
void origin_update_use(struct origin_update *update);
void origin_update_free(struct origin_update *update); // frees an unused update; accepts NULL
// Cancels all calls that run on any worker, and each call that starts later. Called before
// loop_stop(), which waits for their ends. Any thread; accepts NULL.
void origin_close(struct origin *origin);
// Records whether the configuration no longer names the origin (`rests`), or names it again. While
// it rests, its troubles are not reported, and unused connections are closed. Calls continue, and
// requests that began earlier may start new ones. One thread, not a worker.
void origin_rest(struct origin *origin, bool rests);
bool origin_rests(const struct origin *origin); // any thread
// Frees the origin after loop_stop(). Drops calls that have not ended: none of their callbacks runs
// any more.
void origin_free(struct origin *origin);
const char *origin_name(const struct origin *origin);
// Its name for people, which includes its region.
const char *origin_shown(const struct origin *origin);
const char *origin_endpoint(const struct origin *origin); // as configured
// Sets the number that is part of the names of its keys, in addition to its name; initially 0.
// Called before anything uses the origin.
void origin_set_number(struct origin *origin, uint64_t number);
uint64_t origin_number(const struct origin *origin);
// Returns the canonical endpoint: the same for all origins that reach the same buckets, whatever
// their credentials, region, addressing or spelling of the endpoint. It may equal the endpoint
// setting of another origin. An endpoint in another spelling is the canonical endpoint of no
// origin.
const char *origin_place(const struct origin *origin);
// Returns a description for the start line and the log, such as "dir:/data" or "s3
// http://127.0.0.1:8333 region us-east-1 path-style, credentials: environment".
const char *origin_describe(const struct origin *origin);
// The abilities of an origin, as its driver states them.
struct origin_capabilities {
    // It also relays GetObject and HeadObject. False: only origin_fetch_start() reads.
    bool relays_reads;
    bool has_parts;     // "-" in an ETag says that the object was uploaded in parts
    bool has_checksums; // keeps the checksums of uploads, and returns them
    bool is_remote;     // reached over a network, so at first without any answer
};
const struct origin_capabilities *origin_capabilities(const struct origin *origin);

// --- can it be reached? --------------------------------------------------------------------------

// Asks once, without waiting, whether the origin answers and accepts our credentials. Called after
// loop_start(). Posts `told`, which lives until then, when the answer is known or there is nothing
// to ask. Later the probe repeats the question as long as something is wrong.
void origin_probe_start(struct origin *origin, sem_t *told);
struct origin_trouble_text {
    const char *why;    // "dns", "connect", "tls", "credentials" ...; "" for none
    const char *text;   // the trouble, in words
    const char *remedy; // the remedy
};
// Returns true if the last calls got no answer, or the origin refused our credentials. Any thread.
bool origin_in_trouble(const struct origin *origin, struct origin_trouble_text *ret_text);
struct origin_times {
    bool has_skew;                // it has sent a Date
    int64_t skew_s;               // its clock minus ours, from that Date, within a second or two
    int64_t credentials_expire_s; // wall clock; 0: they do not expire
};
void origin_times(const struct origin *origin, struct origin_times *ret_times); // any thread
// Asks the instance metadata service for a session token and returns how it reacts. *ret_endpoint:
// where it was asked. Blocks for at most a second; not on a worker.
enum origin_metadata { ORIGIN_METADATA_DISABLED, ORIGIN_METADATA_SILENT, ORIGIN_METADATA_ANSWERS };
enum origin_metadata origin_metadata_ask(const char **ret_endpoint);
// Returns the word of forebay_origin_errors_total for an origin's failure; NULL if `err` is none.
const char *origin_why(enum err err);

// --- fetch: one object, or a range of it ---------------------------------------------------------

// Identifiers that join the logs of a client with those of the origin. "": the client sent none
// that is passed on.
#define ORIGIN_ID_SIZE 64u
struct origin_trace {
    char traceparent[56];            // W3C trace context
    char request_id[ORIGIN_ID_SIZE]; // x-request-id
};

// The property of an answer that forbids to store it.
enum origin_forbids {
    ORIGIN_FORBIDS_NOTHING,
    ORIGIN_FORBIDS_SHAPE,         // it cannot fill a cache at all: ERR_ORIGIN_UNFIT
    ORIGIN_FORBIDS_FRAMING,       // chunked, or with lines that are not strictly HTTP
    ORIGIN_FORBIDS_ETAG,          // weak, malformed, several, or none
    ORIGIN_FORBIDS_VARY,          // names a header that may differ between requests
    ORIGIN_FORBIDS_CUSTOMER_KEY,  // SSE-C
    ORIGIN_FORBIDS_COOKIE,        // Set-Cookie, and nothing shows that this is S3
    ORIGIN_FORBIDS_CACHE_CONTROL, // private or no-store, likewise
    ORIGIN_FORBIDS_CODING,        // Content-Encoding, likewise
    ORIGIN_FORBIDS_VERSIONS,      // the store's replicas answer with different versions
    ORIGIN_FORBIDS_COUNT
};
struct origin_forbids_text {
    const char *word; // in Cache-Status, explain and warm
    const char *text; // for people
};
const struct origin_forbids_text *origin_forbids_text(enum origin_forbids forbids);

// A condition of a client's request. The origin evaluates it together with the request.
#define ORIGIN_CONDITION_MAX 128u
enum origin_condition_kind {
    ORIGIN_CONDITION_NONE,
    ORIGIN_IF_MATCH,
    ORIGIN_IF_UNMODIFIED_SINCE,
    ORIGIN_IF_NONE_MATCH,
    ORIGIN_IF_MODIFIED_SINCE
};
struct origin_condition {
    enum origin_condition_kind kind;
    // One quoted ETag, or a date in the format of date_format_http().
    char value[ORIGIN_CONDITION_MAX];
};
// Returns "If-Match" and so on; "" for none.
static inline const char *origin_condition_name(enum origin_condition_kind kind)
{
    static const char *const names[] = {"", "If-Match", "If-Unmodified-Since", "If-None-Match",
                                        "If-Modified-Since"};
    return names[kind];
}
static inline bool origin_condition_equal(const struct origin_condition *a,
                                          const struct origin_condition *b)
{
    return a->kind == b->kind && strcmp(a->value, b->value) == 0;
}

// The request of a fetch.
enum origin_fetch_kind {
    ORIGIN_GET_WHOLE,
    ORIGIN_GET_RANGE,  // `first` to `last`, or `suffix`
    ORIGIN_HEAD,       // no body
    ORIGIN_HEAD_BY_GET // no body, but sent as a GET of one byte; also set by this room if it did so
};
enum origin_checksums { ORIGIN_CHECKSUMS_NONE, ORIGIN_CHECKSUMS_TOO, ORIGIN_CHECKSUMS_ONLY };

struct origin_fetch {
    // The request; its views must live until on_end.
    enum origin_fetch_kind kind;
    struct span bucket; // at the origin
    struct span key;
    uint64_t first, last; // inclusive
    uint64_t suffix;      // instead of these: this many bytes at the end; 0: not used
    struct span if_match, if_none_match;      // full ETags as the origin sent them; empty: none
    const struct origin_condition *condition; // of a client, in addition to ours; or NULL
    // x-amz-checksum-mode: ENABLED unless NONE. ONLY: a HEAD returns them and a GET of a range does
    // not, so no GET replaces the HEAD.
    enum origin_checksums wants_checksums;
    const struct sigv4_credentials *credentials; // instead of the origin's own; or NULL
    uint64_t client; // the client it serves: clients whose calls wait for a slot take turns
    bool ahead;      // nobody waits for it: all other calls come first
    // The caller holds a version that it may use instead, so SlowDown ends the call sooner.
    bool is_check;
    // With a HEAD: the caller holds or wants bytes. If HEAD of this key is refused, a GET of one
    // byte decides. May be set while the answer is on its way.
    bool get_decides;
    // A client already has bytes of the version in if_match. If the store answers with another
    // version or none, its other replicas are asked before the fetch fails. May be set while the
    // answer is on its way.
    bool is_bound;
    const struct origin_trace *trace; // of the client that caused it; or NULL

    // Head of an accepted 200 or 206: status, range, length and ETag match the request. May pause.
    // Any result but ERR_OK ends the fetch with that error.
    enum err (*on_head)(struct origin_fetch *f);
    enum err (*on_body)(struct origin_fetch *f, struct span data);
    // Called exactly once:
    //
    // - ERR_OK: the body is complete.
    // - ERR_NOT_MODIFIED (304), ERR_NO_SUCH_KEY, ERR_NO_SUCH_BUCKET, ERR_ACCESS_DENIED,
    //   ERR_INVALID_RANGE (416).
    // - ERR_ORIGIN_REFUSED: 403 or 400, about our keys.
    // - ERR_ORIGIN_CHANGED: 412, or the ETag differs from if_match; for dir: the file changed.
    // - ERR_ORIGIN_RESET or ERR_ORIGIN_TIMEOUT after on_head: the body broke off. The caller
    //   resumes with Range and If-Match.
    // - Other ERR_ORIGIN_*.
    void (*on_end)(struct origin_fetch *f, enum err err);
    void *ctx;

    // The answer; set before on_head, or before on_end for errors.
    unsigned status;
    uint64_t size_bytes;           // of the whole object
    uint64_t body_first, body_len; // the part of the object in the body
    struct span etag;              // as sent; empty: none
    struct span version_id;
    bool weak_or_no_etag;
    time_t last_modified; // 0: unknown
    // The headers to replay: S3's list of Content-*, Cache-Control, Expires, ETag, Last-Modified,
    // x-amz-meta-*, x-amz-storage-class and others. x-amz-checksum-* are in `checksums`. For a 304
    // those that a 304 may carry.
    struct headers headers;
    struct headers checksums;    // x-amz-checksum-*, only for answers with the whole object
    enum origin_forbids forbids; // why it must not be stored
    bool too_young;              // dir: changed less than 2 s ago: stream it, do not store it
    struct span error_answer;    // the origin's error, packed by s3_error_pack(); empty: none
    struct span bucket_region;   // x-amz-bucket-region
    struct span origin_id;       // x-amz-request-id
    struct arena *arena;         // owns the views of the answer; freed after on_end returns

    void *driver; // private
};
static inline bool origin_fetch_is_head(const struct origin_fetch *f)
{
    return f->kind >= ORIGIN_HEAD;
}
// Starts on the calling worker. Callbacks never run inside this call.
void origin_fetch_start(struct worker *w, struct origin *origin, struct origin_fetch *f);
void origin_fetch_pause(struct origin_fetch *f);
void origin_fetch_resume(struct origin_fetch *f);
// A client now waits for bytes that were fetched ahead.
void origin_fetch_hasten(struct origin_fetch *f, uint64_t client);
void origin_fetch_cancel(struct origin_fetch *f); // on_end(ERR_CANCELLED) follows

// --- stores whose answers differ without a change (origin_doubt.c) -------------------------------

// A deviation from S3's promises, learnt from a store's answers.
enum origin_oddity {
    ORIGIN_REFUSES_HEAD,
    ORIGIN_HEAD_DIFFERS,
    ORIGIN_FAILS_IF_MATCH,
    ORIGIN_DATES_MOVE,
    ORIGIN_VERSIONS_DIFFER,
    ORIGIN_ODDITIES
};
bool origin_is_odd(const struct origin *origin, enum origin_oddity oddity); // any thread
struct origin_oddity_text {
    const char *word; // names it in the answer of explain
    const char *text; // for people: the oddity, and its effect
};
const struct origin_oddity_text *origin_oddity_text(enum origin_oddity oddity);
// HEAD and GET have described one object differently, so for some minutes HEADs are sent as GETs.
void origin_doubt_head(struct origin *origin);
bool origin_doubts_head(const struct origin *origin);
// Returns true if this is the origin's own time, within two seconds.
bool origin_is_now(const struct origin *origin, time_t last_modified);
// Records that a check found an object unchanged except for a date of now (has_moved), or found an
// older date. A store that does the first several times in a row dates each answer with the present
// time.
void origin_note_date(struct origin *origin, bool has_moved);
bool origin_dates_move(const struct origin *origin);

// --- relay: all other requests -------------------------------------------------------------------

// How the upload body is signed and framed for the origin.
enum origin_body {
    ORIGIN_BODY_NONE,
    ORIGIN_BODY_HASH /* x-amz-content-sha256 = payload_hash */,
    ORIGIN_BODY_UNSIGNED,
    ORIGIN_BODY_UNSIGNED_TRAILER /* bytes are aws-chunked already */
};

struct origin_relay {
    // The request.
    // Operation, key and parameters; presign parameters are dropped here.
    const struct s3_request *request;
    struct span method;
    struct span bucket;            // at the origin
    const struct headers *headers; // of the client; filtered and signed again here by S3's rules
    enum origin_body body;
    uint64_t body_length;
    struct span payload_hash;                    // hex, with ORIGIN_BODY_HASH
    const struct sigv4_credentials *credentials; // NULL: the origin's own
    uint64_t client;                             // as in origin_fetch
    bool is_unsigned; // sent without a signature, because its body has one (a form's policy)
    bool is_probe;    // not retried, because the caller wants to know how it fails
    // as in loop.h
    enum err (*on_upload)(struct origin_relay *r, char *buf, size_t max, size_t *ret_len);
    // Head of the final answer, with any status. Redirects and region errors are resolved inside.
    // If the origin cannot be reached, only on_end is called, with an ERR_ORIGIN_*. `headers` are
    // those that a client may see: no hop-by-hop headers, and not the origin's x-amz-request-id.
    // has_length false: stream a body of unknown length.
    enum err (*on_head)(struct origin_relay *r);
    enum err (*on_body)(struct origin_relay *r, struct span data);
    void (*on_end)(struct origin_relay *r, enum err err);
    void *ctx;
    // In on_head and on_end: the request was sent, and its outcome is unknown.
    bool is_unsure;
    // The answer.
    unsigned status;
    struct headers headers_answered;
    bool has_length;
    uint64_t length;
    // GetObject: the body is `length` bytes from part_first on, of the version with this ETag. So a
    // fetch can get the rest. Empty: it cannot.
    struct span part_etag;
    uint64_t part_first;
    struct span origin_id;  // x-amz-request-id
    struct span error_code; // of an error document that was read on the way; empty: none
    struct arena *arena;
    void *driver; // private
};
void origin_relay_start(struct worker *w, struct origin *origin, struct origin_relay *r);
void origin_relay_pause(struct origin_relay *r);
void origin_relay_resume(struct origin_relay *r);
void origin_relay_resume_upload(struct origin_relay *r);
void origin_relay_cancel(struct origin_relay *r);

// Returns true if slots are free beyond those kept for demand, even after `more` calls that are
// about to start. On the worker in question.
bool origin_has_room(struct worker *w, struct origin *origin, unsigned more);
// Returns true if a caller that resumes a broken body may ask again. Takes one retry from the
// origin's retry budget.
bool origin_retry_take(struct origin *origin) MUST_USE;

// Returns ERR_LOOP if the request has already come through this process, or through too many
// Forebays. Otherwise *ret_hops is the number of other Forebays on its way.
enum err origin_hops_judge(const struct headers *client, unsigned *ret_hops) MUST_USE;
// Returns false if a request from another Forebay may be in a loop, so that it must not wait for
// others here.
bool origin_has_answered(const struct origin *origin);

// Returns the Server header for our own replies: the origin's last one, else "AmazonS3".
const char *origin_server_header(const struct origin *origin);

#endif
