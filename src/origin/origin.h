// SPDX-License-Identifier: Apache-2.0
// Where bytes come from: drivers (s3://, http(s)://, dir:) behind one interface. Two kinds of call:
//   origin_fetch(): one object, typed answer, checked by response_head.c; used by fills,
//   HEAD, revalidation. origin_relay(): any other S3 request, streamed through in both directions.
// Never blocks the loop. Retries (with back-off and budget) happen here as long as nothing was
// handed on.
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
    ORIGIN_CREDENTIALS_AUTO, // files given, environment, web identity, shared files, container,
                             // IMDS
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
    const char
        *endpoint;      // "https://host[:port]", "http://...", "dir:/path"; "{region}" is replaced
    const char *region; // NULL = auto
    enum origin_addressing addressing;
    enum origin_credentials_source credentials;
    const char *access_key_file, *secret_key_file,
        *session_token_file; // for CONFIG (and first in AUTO)
    const char *ca_file;
    unsigned connections;
    uint64_t keepalive_ms, connect_timeout_ms, first_byte_timeout_ms, idle_timeout_ms;
    unsigned retries;
    unsigned retry_budget_percent;
    bool probe; // origin_probe_start() asks it
};

struct origin;
// Makes an origin and finds its credentials (may block; before loop_start). Errors for the start:
// ERR_NOT_FOUND (dir: missing), ERR_ORIGIN_CREDENTIALS (none found and not anonymous), ERR_INVALID
// (endpoint), ERR_PERMISSION (key file unreadable or readable by others); ret_why has one clear
// line with the remedy. An S3 endpoint that does not answer is no error.
enum err origin_new(const struct origin_options *options, struct loop *loop,
                    struct origin **ret_origin, struct buf *ret_why) MUST_USE;
// What of an origin may change while it runs: timeouts, retries, ca_file, and the files with its
// keys, which are read again. Prepared without changing anything, by the errors of origin_new();
// may block. One thread, not a worker.
struct origin_update;
enum err origin_update_new(struct origin *origin, const struct origin_options *options,
                           struct origin_update **ret_update, struct buf *ret_why) MUST_USE;
// Calls that start from then on go by it. Takes it.
void origin_update_use(struct origin_update *update);
void origin_update_free(struct origin_update *update); // one that is not used; NULL is fine
// On every worker: calls that run are cancelled, and so is each one that starts from then on.
// Before loop_stop(), which waits for their ends. Any thread; NULL is fine.
void origin_close(struct origin *origin);
// Nothing names it any more; false: something does again. While it rests its troubles are nobody's,
// and connections that no call has are closed. Calls go on, and new ones are made: by requests that
// began before. One thread, no worker.
void origin_rest(struct origin *origin, bool rests);
bool origin_rests(const struct origin *origin); // any thread
// After loop_stop(). Calls that have not ended are dropped: none of their callbacks runs any more.
void origin_free(struct origin *origin);
const char *origin_name(const struct origin *origin);
const char *origin_shown(const struct origin *origin); // the same for people: with its region in it
const char *origin_endpoint(const struct origin *origin); // as configured
// A part of the names of its keys, beside its name; 0 at first. Before anybody uses it.
void origin_set_number(struct origin *origin, uint64_t number);
uint64_t origin_number(const struct origin *origin);
// Where it is, however that is spelt: the same for all that reach the same buckets, whatever their
// credentials, region or way of addressing. Another origin's endpoint may read like it; an endpoint
// that is spelt otherwise is no place of any origin.
const char *origin_place(const struct origin *origin);
// "dir:/data", "s3 http://127.0.0.1:8333 region us-east-1 path-style, credentials: environment";
// for start line and log.
const char *origin_describe(const struct origin *origin);
// What an origin can, as its driver states it.
struct origin_capabilities {
    bool relays_reads;  // GetObject and HeadObject, too; false: they come by origin_fetch() alone
    bool has_parts;     // "-" in an ETag says that the object was uploaded in parts
    bool has_checksums; // keeps those that uploads carry, and answers with them
    bool is_remote;     // answers come over a network, none at all until it has been reached
};
const struct origin_capabilities *origin_capabilities(const struct origin *origin);

// --- is it there? --------------------------------------------------------------------------------

// After loop_start(), once: asks whether the origin answers and takes our credentials, without
// waiting; `told` is posted once that is known, or where there is nothing to ask, and lives until
// then. From then on it is asked again as long as something is wrong.
void origin_probe_start(struct origin *origin, sem_t *told);
struct origin_trouble_text {
    const char *why;    // "dns", "connect", "tls", "credentials" ...; "" for none
    const char *text;   // what is wrong, in words
    const char *remedy; // what to do about it
};
// Is nobody answered, or does it refuse our credentials, as far as the last calls tell? Any thread.
bool origin_in_trouble(const struct origin *origin, struct origin_trouble_text *ret_text);
struct origin_times {
    bool has_skew;                // it has answered with a Date
    int64_t skew_s;               // its clock less ours, as that says, within a second or two
    int64_t credentials_expire_s; // wall clock; 0: they do not
};
void origin_times(const struct origin *origin, struct origin_times *ret_times); // any thread
// What the instance metadata service makes of a request for a session token; *ret_endpoint is where
// it was asked. Blocks for a second at most; not on a worker.
enum origin_metadata { ORIGIN_METADATA_DISABLED, ORIGIN_METADATA_SILENT, ORIGIN_METADATA_ANSWERS };
enum origin_metadata origin_metadata_ask(const char **ret_endpoint);
// How an origin failed, in the words of forebay_origin_errors_total; NULL: it has not.
const char *origin_why(enum err err);

// --- fetch: one object, or a range of it ---------------------------------------------------------

// What joins the logs of a client with those of the origin. "": it named none that is passed on.
#define ORIGIN_ID_SIZE 64u
struct origin_trace {
    char traceparent[56];            // W3C trace context
    char request_id[ORIGIN_ID_SIZE]; // x-request-id
};
void origin_trace_read(const struct headers *client, struct origin_trace *ret_trace);

// What of an answer forbids to store it.
enum origin_forbids {
    ORIGIN_FORBIDS_NOTHING,
    ORIGIN_FORBIDS_SHAPE,         // it cannot fill a cache at all: ERR_ORIGIN_UNFIT
    ORIGIN_FORBIDS_FRAMING,       // in chunks, or with lines that are not strictly HTTP
    ORIGIN_FORBIDS_ETAG,          // weak, malformed, several, or none
    ORIGIN_FORBIDS_VARY,          // of a header that other requests may send otherwise
    ORIGIN_FORBIDS_CUSTOMER_KEY,  // SSE-C
    ORIGIN_FORBIDS_COOKIE,        // Set-Cookie, and nothing shows that this is S3
    ORIGIN_FORBIDS_CACHE_CONTROL, // private or no-store, likewise
    ORIGIN_FORBIDS_CODING,        // Content-Encoding, likewise
    ORIGIN_FORBIDS_VERSIONS,      // the store's replicas answer with several versions in turn
    ORIGIN_FORBIDS_COUNT
};
struct origin_forbids_text {
    const char *word; // in Cache-Status, explain and warm
    const char *text; // for people
};
const struct origin_forbids_text *origin_forbids_text(enum origin_forbids forbids);

// A condition of a client's request, which the origin judges together with the request.
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
    char value[ORIGIN_CONDITION_MAX]; // one quoted ETag, or a date as date_format_http() writes it
};
// "If-Match" and so on; "" for none.
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

struct origin_fetch {
    // asked; views must live until on_end
    bool head;          // HEAD, or a bodiless conditional GET's equal: no body wanted
    struct span bucket; // at the origin
    struct span key;
    bool has_range;
    uint64_t first, last;                     // inclusive
    uint64_t suffix;                          // instead of these: so many bytes at the end; 0: not
    struct span if_match, if_none_match;      // full ETags as the origin sent them; empty: none
    const struct origin_condition *condition; // of a client, in addition to ours; NULL
    bool ask_checksums;                       // x-amz-checksum-mode: ENABLED
    bool by_get; // head: ask by GET of one byte. Set too where the origin was asked so in any case
    const struct sigv4_credentials *credentials; // instead of the origin's own; NULL
    uint64_t client;    // for whom: where calls wait for a place, clients take turns
    bool ahead;         // nobody waits for it: all others come first
    bool for_checksums; // alone: HEAD tells them, a GET of a range does not
    bool is_check;      // its caller holds a version that may do: SlowDown ends it sooner
    // head: its caller holds or wants bytes. GET of one byte decides where HEAD of this key is
    // refused. May be set while the answer is on its way.
    bool get_decides;
    // A client has bytes of the version that if_match names: where the store answers with another
    // one, or none, its other replicas are asked before the fetch fails. May be set while the
    // answer is on its way.
    bool is_bound;
    const struct origin_trace *trace; // of who caused it; NULL

    // Head of a 200 or 206 that was accepted: status, range, length and ETag are what was asked
    // for. May pause. Anything but ERR_OK ends the fetch with that error.
    enum err (*on_head)(struct origin_fetch *f);
    enum err (*on_body)(struct origin_fetch *f, struct span data);
    // Exactly once. ERR_OK: body complete. ERR_NOT_MODIFIED (304), ERR_NO_SUCH_KEY,
    // ERR_NO_SUCH_BUCKET, ERR_ACCESS_DENIED, ERR_ORIGIN_REFUSED (403 or 400, about our keys),
    // ERR_ORIGIN_CHANGED (412, or the answer has another ETag than if_match; for dir: the file
    // changed), ERR_INVALID_RANGE (416), ERR_ORIGIN_*; a body that broke off after on_head:
    // ERR_ORIGIN_RESET/TIMEOUT (the caller resumes with Range + If-Match).
    void (*on_end)(struct origin_fetch *f, enum err err);
    void *ctx;

    // answered (before on_head, or before on_end for errors)
    unsigned status;
    uint64_t size_bytes;           // of the whole object
    uint64_t body_first, body_len; // what the body covers
    struct span etag;              // as sent; empty: none
    struct span version_id;
    bool weak_or_no_etag;
    time_t last_modified;        // 0 unknown
    struct headers headers;      // the ones to be replayed (S3's list: Content-*, Cache-Control,
                                 // Expires, ETag, Last-Modified, x-amz-meta-*, x-amz-storage-class,
                                 // ...), x-amz-checksum-* apart below; of a 304 those that it may
                                 // carry
    struct headers checksums;    // x-amz-checksum-*, only of whole-object answers
    enum origin_forbids forbids; // what of it forbids to store it
    bool too_young;              // dir: changed less than 2 s ago: stream, do not store
    struct span error_answer;    // of the origin, as s3_error_pack() makes it; empty: it gave none
    struct span bucket_region;   // x-amz-bucket-region
    struct span origin_id;       // x-amz-request-id
    struct arena *arena;         // owns the answer's views; freed after on_end returns

    void *driver; // private
};
// Starts on the calling worker. Callbacks never inside this call.
void origin_fetch_start(struct worker *w, struct origin *origin, struct origin_fetch *f);
void origin_fetch_pause(struct origin_fetch *f);
void origin_fetch_resume(struct origin_fetch *f);
// Somebody waits for what was fetched ahead.
void origin_fetch_hasten(struct origin_fetch *f, uint64_t client);
void origin_fetch_cancel(struct origin_fetch *f); // on_end(ERR_CANCELLED) follows

// --- stores that say something else without a change (origin_doubt.c) ----------------------------

// What a store does against S3's promises, as its answers have shown.
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
    const char *word; // in explain
    const char *text; // for people: the oddity, and what follows
};
const struct origin_oddity_text *origin_oddity_text(enum origin_oddity oddity);
// HEAD and GET have described one object differently: HEADs are asked by GET for some minutes.
void origin_doubt_head(struct origin *origin);
bool origin_doubts_head(const struct origin *origin);
// Is this the origin's own time, give or take two seconds?
bool origin_is_now(const struct origin *origin, time_t last_modified);
// A check found an object as it was but for a date of now (has_moved), or an older date. A store
// that shows the first several times in a row gives each answer the time at which it answers.
void origin_note_date(struct origin *origin, bool has_moved);
bool origin_dates_move(const struct origin *origin);

// --- relay: everything else ----------------------------------------------------------------------

// How the upload body is bound and framed towards the origin.
enum origin_body {
    ORIGIN_BODY_NONE,
    ORIGIN_BODY_HASH /* x-amz-content-sha256 = payload_hash */,
    ORIGIN_BODY_UNSIGNED,
    ORIGIN_BODY_UNSIGNED_TRAILER /* bytes are aws-chunked already */
};

struct origin_relay {
    // asked
    const struct s3_request
        *request; // operation, key, parameters (presign parameters are dropped here)
    struct span method;
    struct span bucket;            // at the origin
    const struct headers *headers; // of the client; stripped and re-signed here by S3's rules
    enum origin_body body;
    uint64_t body_length;
    struct span payload_hash;                    // hex, with ORIGIN_BODY_HASH
    const struct sigv4_credentials *credentials; // NULL: the origin's own
    uint64_t client;                             // as in origin_fetch
    bool is_unsigned; // goes out without a signature: its body carries one (a form's policy)
    bool is_probe;    // is not repeated: how it fails is what is asked
    enum err (*on_upload)(struct origin_relay *r, char *buf, size_t max,
                          size_t *ret_len); // as in loop.h
    // Head of the final answer (any status; redirects and region errors are resolved inside;
    // failures to reach the origin end in on_end with an ERR_ORIGIN_*). `headers` are the ones a
    // client may see (no hop-by-hop, no x-amz-request-id of the origin). has_length false: length
    // unknown, stream.
    enum err (*on_head)(struct origin_relay *r);
    enum err (*on_body)(struct origin_relay *r, struct span data);
    void (*on_end)(struct origin_relay *r, enum err err);
    void *ctx;
    bool
        is_unsure; // in on_head and on_end: it was sent, and nothing says whether it is done or not
    // answered
    unsigned status;
    struct headers headers_answered;
    bool has_length;
    uint64_t length;
    // GetObject: the body is `length` bytes, from part_first on, of the version that this ETag
    // names, so its rest can be had by a fetch. Empty: it cannot.
    struct span part_etag;
    uint64_t part_first;
    struct span origin_id;  // x-amz-request-id
    struct span error_code; // of an error document that was read on the way; empty: there was none
    struct arena *arena;
    void *driver; // private
};
void origin_relay_start(struct worker *w, struct origin *origin, struct origin_relay *r);
void origin_relay_pause(struct origin_relay *r);
void origin_relay_resume(struct origin_relay *r);
void origin_relay_resume_upload(struct origin_relay *r);
void origin_relay_cancel(struct origin_relay *r);

// Are there places left at the origin beyond what demand may soon want, when `more` calls have
// started that are about to? On the worker asked about.
bool origin_has_room(struct worker *w, struct origin *origin, unsigned more);
// May a caller that resumes a broken body ask once more? Takes one retry from the origin's retry
// budget.
bool origin_retry_take(struct origin *origin) MUST_USE;

// ERR_LOOP: the request has come through this process before, or through too many Forebays. Else
// *ret_hops is the number of other Forebays it came through.
enum err origin_hops_judge(const struct headers *client, unsigned *ret_hops) MUST_USE;
// False: what came through another Forebay may have come in a circle, and waits for nobody here.
bool origin_has_answered(const struct origin *origin);

// Value for Server on replies of our own: the origin's last one, else "AmazonS3".
const char *origin_server_header(const struct origin *origin);

#endif
