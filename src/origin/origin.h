// SPDX-License-Identifier: Apache-2.0
// Access to the stores that Forebay caches: drivers (s3://, http(s)://, dir:) behind one interface.
// There are two kinds of call. origin_fetch_start() gets one object or a range of it, for fills,
// HEAD and revalidation; response_head.c checks the answer, and its fields are in struct
// origin_fetch. origin_relay_start() sends any other S3 request, and streams both bodies. Neither
// ever blocks the loop. A failed call is retried here, with back-off and within a budget, as long
// as the caller has received no byte.
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
    // Tries in this order: configured key files, environment, web identity, shared files,
    // container, IMDS.
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
    const char *name; // unique; identifies the origin in cache keys and logs
    // "https://host[:port]", "http://...", "dir:/path"; "{region}" is replaced.
    const char *endpoint;
    const char *region; // NULL: automatic
    enum origin_addressing addressing;
    enum origin_credentials_source credentials;
    // Files with the keys. CONFIG reads only these; AUTO tries them first.
    const char *access_key_file, *secret_key_file, *session_token_file;
    const char *ca_file;
    unsigned connections;
    uint64_t keepalive_ms, connect_timeout_ms, first_byte_timeout_ms, idle_timeout_ms;
    unsigned retries;
    unsigned retry_budget_percent;
    bool probe; // origin_probe_start() sends probes to this origin
};

struct origin;
// Creates an origin and finds its credentials. May block; called before loop_start(). Errors that
// end the start: ERR_NOT_FOUND (dir: missing), ERR_ORIGIN_CREDENTIALS (none found, and not
// anonymous), ERR_INVALID (endpoint), ERR_PERMISSION (key file unreadable, or readable by others).
// ret_why then has one line with the remedy. It is no error if an S3 endpoint does not answer.
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
// Cancels all running calls on all workers, and each call that starts later. Called before
// loop_stop(), which waits until these calls have ended. Any thread; accepts NULL.
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
// Returns the name that messages show to people. It includes the region.
const char *origin_shown(const struct origin *origin);
const char *origin_endpoint(const struct origin *origin); // as configured
// Sets a number, initially 0, that the origin's cache keys contain in addition to its name. Called
// before anything uses the origin.
void origin_set_number(struct origin *origin, uint64_t number);
uint64_t origin_number(const struct origin *origin);
// Returns the canonical endpoint: the same for all origins that reach the same buckets, whatever
// their credentials, region, addressing or spelling of the endpoint. It may equal the endpoint
// setting of another origin. A spelling that is not canonical is never returned.
const char *origin_place(const struct origin *origin);
// Returns a description for the start line and the log, such as "dir:/data" or "s3
// http://127.0.0.1:8333 region us-east-1 path-style, credentials: environment".
const char *origin_describe(const struct origin *origin);
// The abilities of an origin; its driver states them.
struct origin_capabilities {
    // origin_relay_start() also accepts GetObject and HeadObject. If false, only
    // origin_fetch_start() can read objects.
    bool relays_reads;
    bool has_parts;     // "-" in an ETag says that the object was uploaded in parts
    bool has_checksums; // the store keeps the checksums of uploads, and returns them
    bool is_remote;     // reached over a network, so it may not answer
};
const struct origin_capabilities *origin_capabilities(const struct origin *origin);

// --- can it be reached? --------------------------------------------------------------------------

// Starts a probe that asks whether the origin answers and accepts our credentials. Returns at once.
// Called after loop_start(). Posts `told` when the answer is known, or when nothing has to be
// asked; `told` must live until then. The probe repeats its question while something is wrong.
void origin_probe_start(struct origin *origin, sem_t *told);
struct origin_trouble_text {
    const char *why;    // "dns", "connect", "tls", "credentials" ...; "" for no trouble
    const char *text;   // describes the trouble to people
    const char *remedy; // tells people how to remove it
};
// Returns true if the last calls got no answer, or the origin refused our credentials. Any thread.
bool origin_in_trouble(const struct origin *origin, struct origin_trouble_text *ret_text);
struct origin_times {
    bool has_skew;                // skew_s is known, because the origin has sent a Date
    int64_t skew_s;               // the origin's clock minus ours, exact to a second or two
    int64_t credentials_expire_s; // wall clock; 0: the credentials do not expire
};
void origin_times(const struct origin *origin, struct origin_times *ret_times); // any thread
// Asks the instance metadata service for a session token and returns how the service reacts. Sets
// *ret_endpoint to the service's URL. Blocks for at most a second; not on a worker.
enum origin_metadata { ORIGIN_METADATA_DISABLED, ORIGIN_METADATA_SILENT, ORIGIN_METADATA_ANSWERS };
enum origin_metadata origin_metadata_ask(const char **ret_endpoint);
// Returns the value of the label `reason` of forebay_origin_errors_total for `err`; NULL if `err`
// is not a failure of an origin.
const char *origin_why(enum err err);

// --- fetch: one object, or a range of it ---------------------------------------------------------

// Identifiers that join the logs of a client with those of the origin. "" means that the client
// sent no identifier that may be passed on.
#define ORIGIN_ID_SIZE 64u
struct origin_trace {
    char traceparent[56];            // W3C trace context
    char request_id[ORIGIN_ID_SIZE]; // x-request-id
};

// Why an answer must not be stored in the cache.
enum origin_forbids {
    ORIGIN_FORBIDS_NOTHING,
    ORIGIN_FORBIDS_SHAPE,         // ERR_ORIGIN_UNFIT: the answer cannot fill a cache at all
    ORIGIN_FORBIDS_FRAMING,       // chunked, or with lines that are not strictly HTTP
    ORIGIN_FORBIDS_ETAG,          // weak, malformed, several, or none
    ORIGIN_FORBIDS_VARY,          // names a header that may differ between requests
    ORIGIN_FORBIDS_CUSTOMER_KEY,  // SSE-C
    ORIGIN_FORBIDS_COOKIE,        // Set-Cookie, and nothing shows that this is S3
    ORIGIN_FORBIDS_CACHE_CONTROL, // private or no-store, and nothing shows that this is S3
    ORIGIN_FORBIDS_CODING,        // Content-Encoding, and nothing shows that this is S3
    ORIGIN_FORBIDS_VERSIONS,      // the store's replicas answer with different versions
    ORIGIN_FORBIDS_COUNT
};
struct origin_forbids_text {
    const char *word; // short form, for Cache-Status, explain and warm
    const char *text; // describes the reason to people
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
    ORIGIN_GET_RANGE, // `first` to `last`, or `suffix`
    ORIGIN_HEAD,      // no body
    // No body, but sent as a GET of one byte. src/origin also sets this kind when it sends a HEAD
    // that way.
    ORIGIN_HEAD_BY_GET
};
enum origin_checksums { ORIGIN_CHECKSUMS_NONE, ORIGIN_CHECKSUMS_TOO, ORIGIN_CHECKSUMS_ONLY };

struct origin_fetch {
    // The request. The caller fills it in; its views must live until on_end.
    enum origin_fetch_kind kind;
    struct span bucket; // the bucket's name at the origin
    struct span key;
    uint64_t first, last;                // inclusive
    uint64_t suffix;                     // if not 0: the last `suffix` bytes, not `first` to `last`
    struct span if_match, if_none_match; // full ETags as the origin sent them; empty: not sent
    const struct origin_condition *condition; // a client's condition, sent in addition; or NULL
    // Sends x-amz-checksum-mode: ENABLED unless NONE. With ONLY, no GET replaces the HEAD, because
    // a GET of a range does not return checksums.
    enum origin_checksums wants_checksums;
    const struct sigv4_credentials *credentials; // NULL: the origin's own
    uint64_t client; // number of the client, because clients take turns when calls wait for a slot
    bool ahead;      // read-ahead: no client waits for it, so all other calls take precedence
    // The caller holds a version that it may use instead, so the call is retried for a shorter time
    // when the origin answers SlowDown.
    bool is_check;
    // Only for a HEAD whose caller holds or wants bytes of the object: if the origin refuses the
    // HEAD, a GET of one byte decides. May be set while the request is in flight.
    bool get_decides;
    // A client already has bytes of the version in if_match. If the store answers with another
    // version or none, its other replicas are asked before the fetch fails. May be set while the
    // request is in flight.
    bool is_bound;
    const struct origin_trace *trace; // from the client that caused the fetch; or NULL

    // Called for the head of a 200 or 206 whose status, range, length and ETag match the request.
    // May pause the fetch. Any result but ERR_OK ends the fetch with that error.
    enum err (*on_head)(struct origin_fetch *f);
    enum err (*on_body)(struct origin_fetch *f, struct span data);
    // Called exactly once:
    //
    // - ERR_OK: the body is complete.
    // - ERR_NOT_MODIFIED (304), ERR_NO_SUCH_KEY, ERR_NO_SUCH_BUCKET, ERR_ACCESS_DENIED,
    //   ERR_INVALID_RANGE (416).
    // - ERR_ORIGIN_REFUSED: 403 or 400, because of our credentials.
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
    // The headers to send to clients: S3's list of Content-*, Cache-Control, Expires, ETag,
    // Last-Modified, x-amz-meta-*, x-amz-storage-class and others, but not x-amz-checksum-*. For a
    // 304, only the headers that a 304 may carry.
    struct headers headers;
    struct headers checksums;    // x-amz-checksum-*, only for answers with the whole object
    enum origin_forbids forbids; // why it must not be stored
    bool too_young;              // dir: the file changed less than 2 s ago, so it is not stored
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
// Records that this client now waits for the bytes of a read-ahead fetch.
void origin_fetch_hasten(struct origin_fetch *f, uint64_t client);
void origin_fetch_cancel(struct origin_fetch *f); // on_end(ERR_CANCELLED) follows

// --- stores whose answers differ without a change (origin_doubt.c) -------------------------------

// Ways in which a store breaks S3's promises, learnt from its answers.
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
// Records that HEAD and GET have described one object differently. For some minutes every HEAD is
// then sent as a GET.
void origin_doubt_head(struct origin *origin);
bool origin_doubts_head(const struct origin *origin);
// Returns true if `last_modified` is the present time by the origin's clock, within two seconds.
bool origin_is_now(const struct origin *origin, time_t last_modified);
// Records the Last-Modified that a check found. has_moved: the object is unchanged, but its date is
// the present time. If that happens several times in a row, the store dates every answer with the
// present time.
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
    const struct headers *headers; // the client's; filtered and signed again here by S3's rules
    enum origin_body body;
    uint64_t body_length;
    struct span payload_hash;                    // hex, with ORIGIN_BODY_HASH
    const struct sigv4_credentials *credentials; // NULL: the origin's own
    uint64_t client;                             // as in origin_fetch
    bool is_unsigned; // sent without a signature, because the form in its body is signed
    bool is_probe;    // not retried, because the caller wants to know how it fails
    // Returns upload bytes, by the rules for asynchronous calls in loop.h.
    enum err (*on_upload)(struct origin_relay *r, char *buf, size_t max, size_t *ret_len);
    // Head of the final answer, with any status. Redirects and region errors are resolved inside.
    // If the origin cannot be reached, only on_end is called, with an ERR_ORIGIN_*.
    // `headers_answered` has the headers that a client may see: no hop-by-hop headers, and not the
    // origin's x-amz-request-id. If has_length is false, the body's length is unknown.
    enum err (*on_head)(struct origin_relay *r);
    enum err (*on_body)(struct origin_relay *r, struct span data);
    void (*on_end)(struct origin_relay *r, enum err err);
    void *ctx;
    // Valid in on_head and on_end. True if the request was sent but its outcome is unknown.
    bool is_unsure;
    // The answer.
    unsigned status;
    struct headers headers_answered;
    bool has_length;
    uint64_t length;
    // GetObject: the body is the `length` bytes from part_first on of the version with this ETag,
    // so a fetch can get the rest if the body breaks off. Empty: no fetch can.
    struct span part_etag;
    uint64_t part_first;
    struct span origin_id;  // x-amz-request-id
    struct span error_code; // from the error document, if one was read; empty: none
    struct arena *arena;
    void *driver; // private
};
void origin_relay_start(struct worker *w, struct origin *origin, struct origin_relay *r);
void origin_relay_pause(struct origin_relay *r);
void origin_relay_resume(struct origin_relay *r);
void origin_relay_resume_upload(struct origin_relay *r);
void origin_relay_cancel(struct origin_relay *r);

// Returns true if slots are free beyond those kept for demand, even after `more` calls that are
// about to start. Call it on `w`.
bool origin_has_room(struct worker *w, struct origin *origin, unsigned more);
// Takes one retry from the origin's retry budget, for a caller that resumes a broken body. Returns
// false if the budget is used up, and the caller must not retry.
bool origin_retry_take(struct origin *origin) MUST_USE;

// Returns ERR_LOOP if the request has already come through this process, or through too many
// Forebays. Otherwise *ret_hops is the number of other Forebays on its way.
enum err origin_hops_judge(const struct headers *client, unsigned *ret_hops) MUST_USE;
// Returns false if the origin has not answered since its last timeout or 508, or never. A request
// from another Forebay may then be in a
// loop, so it must not wait for other requests here.
bool origin_has_answered(const struct origin *origin);

// Returns the Server header for our own replies: the last one that the origin sent, or "AmazonS3"
// if it has sent none.
const char *origin_server_header(const struct origin *origin);

#endif
