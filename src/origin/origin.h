// SPDX-License-Identifier: Apache-2.0
// Access to the stores that Forebay caches. Each kind of store (s3://, http(s)://, dir:) has a
// driver, and all drivers have this one interface.
//
// There are two kinds of call. origin_fetch_start() gets one object or a range of it, for fills,
// HEAD and revalidation. The answer is checked by response_head.c and returned in the fields of
// struct origin_fetch. origin_relay_start() sends any other S3 request, and streams both bodies.
// Neither ever blocks the loop. A failed call is retried here, with back-off and within a budget,
// as long as the caller has received no byte.
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

// Settings that the configuration may have for a single bucket. Messages name them.
enum origin_setting {
    ORIGIN_SETTING_ENDPOINT,
    ORIGIN_SETTING_REGION,
    ORIGIN_SETTING_ADDRESSING,
    ORIGIN_SETTING_CREDENTIALS,
    ORIGIN_SETTING_COUNT
};
// The names of an origin's settings, such as "buckets[scratch].endpoint". NULL: the setting is that
// of the default origin, such as "origin.endpoint".
struct origin_settings {
    const char *names[ORIGIN_SETTING_COUNT];
};
// Returns the name of the setting, which is never NULL.
const char *origin_settings_name(const struct origin_settings *settings, enum origin_setting which);
// Appends the text, which names settings of the default origin, with the names of these instead.
void origin_settings_render(const struct origin_settings *settings, const char *text,
                            struct buf *out);

struct origin_options {
    const char *bucket; // Clients' name of the only bucket. NULL: the default origin.
    struct origin_settings settings;
    // The address: "https://host[:port]", "http://..." or "dir:/path". The region replaces
    // "{region}".
    const char *endpoint;
    const char *region; // NULL: Forebay finds the region.
    enum origin_addressing addressing;
    enum origin_credentials_source credentials;
    // Files with the keys. CONFIG reads only these; AUTO tries them first.
    const char *access_key_file, *secret_key_file, *session_token_file;
    const char *ca_file;
    // "http://HOST:PORT" of the proxy for https endpoints, and the file with USER:PASSWORD for it.
    // NULL: none.
    const char *proxy, *proxy_auth_file;
    bool requester_pays;           // Each signed request agrees to pay for its bucket.
    uint64_t max_rate_bytes_per_s; // Most bytes of bodies received per second. 0: no limit.
    unsigned connections;
    uint64_t keepalive_ms, connect_timeout_ms, first_byte_timeout_ms, idle_timeout_ms;
    unsigned retries;
    unsigned retry_budget_percent;
    bool probe; // origin_probe_start() sends probes to this origin.
};

// Returns `proxy` with the user and password of the file, for libcurl. The result is a secret, and
// the caller frees it. NULL if `proxy` is NULL. Errors are those of key files in origin_new().
enum err origin_proxy_url(const char *proxy, const char *auth_file, char **ret_url,
                          struct buf *ret_why) MUST_USE;

#define ORIGIN_CLIENT_TEXT_MAX 4096u
// A setting of the AWS SDKs.
struct origin_client_value {
    char text[ORIGIN_CLIENT_TEXT_MAX]; // "": not set. An endpoint may contain a password.
    char source[256];                  // "env NAME", or the profile, for messages
    char word[64];                     // how a shell writes it: "$NAME" in quotes, or URL
};
// Settings that the AWS SDKs of this process's environment use for S3.
struct origin_client {
    // The first of AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, and endpoint_url of the services of the
    // profile and of the profile itself. "": the endpoint of AWS.
    struct origin_client_value endpoint;
    // The first of AWS_REGION, AWS_DEFAULT_REGION and the profile's region that is a valid name.
    struct origin_client_value region;
    // AWS_CA_BUNDLE, or ca_bundle of the profile. "": the system's certificate authorities.
    struct origin_client_value ca_file;
    bool ignores_endpoints; // The SDKs ignore all endpoints of variables and shared files.
    // The endpoint of a profile in the config file that has another one, because a program may
    // choose that profile itself. "": there is none, or variables choose the endpoint or the
    // profile.
    struct origin_client_value other;
};
// Reads variables and the shared files. May block; not on a worker.
void origin_client_read(struct origin_client *ret_client);

struct origin;
// Creates an origin and finds its credentials. May block; not on a worker. It is no error if an S3
// endpoint does not answer. On an error, ret_why gets one line with the remedy:
//
// - ERR_NOT_FOUND: the directory of a dir: endpoint is missing.
// - ERR_ORIGIN_CREDENTIALS: no credentials were found, and requests are not to be anonymous.
// - ERR_INVALID: the endpoint or the region is not valid.
// - ERR_PERMISSION: a key file is unreadable, or other users may read it.
enum err origin_new(const struct origin_options *options, struct loop *loop,
                    struct origin **ret_origin, struct buf *ret_why) MUST_USE;
// A change of an origin's settings while it runs: timeouts, retries, the rate, ca_file and the key
// files.
// origin_update_new() reads the key files again and prepares the change, but changes nothing. It
// has the errors of origin_new() and may block. Only one thread calls it, which is not a worker.
struct origin_update;
enum err origin_update_new(struct origin *origin, const struct origin_options *options,
                           struct origin_update **ret_update, struct buf *ret_why) MUST_USE;
// Applies the update to calls that start later. Takes ownership of the update.
void origin_update_use(struct origin_update *update);
void origin_update_free(struct origin_update *update); // Frees an unused update; accepts NULL.
// Cancels all running calls on all workers, and each call that starts later. Call it before
// loop_stop(), which waits until these calls have ended. Any thread; accepts NULL.
void origin_close(struct origin *origin);
// Marks an origin that the configuration no longer names (`rests`), or unmarks one that it names
// again. While an origin rests, its troubles are not reported, and its unused connections are
// closed. Its calls continue, and requests that began earlier may start new ones. Only one thread
// calls this, which is not a worker.
void origin_rest(struct origin *origin, bool rests);
bool origin_rests(const struct origin *origin); // Any thread.
// Frees the origin after loop_stop(). Calls that have not ended are dropped, and none of their
// callbacks runs any more.
void origin_free(struct origin *origin);
// Returns the name, which is part of cache keys. Each store has another name. Without the bucket at
// its end, the name is the endpoint as configured, or as rendered where its regions are several
// stores.
const char *origin_name(const struct origin *origin);
// Returns true if earlier versions of Forebay may have given the name to another store, too.
bool origin_name_was_shared(const struct origin *origin);
// Returns the name for messages to people. It contains the region in place of "{region}".
const char *origin_shown(const struct origin *origin);
const char *origin_endpoint(const struct origin *origin); // Returns the endpoint as configured.
const struct origin_settings *origin_settings(const struct origin *origin);
// Sets the number that the origin's cache keys contain in addition to its name, initially 0. A new
// number puts all earlier copies out of reach (store/state/state_holder.c). Call it before anything
// uses the origin.
void origin_set_number(struct origin *origin, uint64_t number);
uint64_t origin_number(const struct origin *origin);
// Returns true if clients need not say that they pay, because Forebay's requests do.
bool origin_requester_pays(const struct origin *origin);
// Returns the canonical endpoint. It is the same for all origins that reach the same buckets,
// whatever their credentials, region, addressing or spelling of the endpoint. The result may equal
// the endpoint setting of another origin, but only if that setting is in canonical form.
const char *origin_place(const struct origin *origin);
// Returns a description for the start line and the log, such as "dir:/data" or "s3
// http://127.0.0.1:8333 region us-east-1 path-style, credentials: environment".
const char *origin_describe(const struct origin *origin);
// The abilities of an origin, which depend only on its driver.
struct origin_capabilities {
    // origin_relay_start() also accepts GetObject and HeadObject. If false, only
    // origin_fetch_start() can read objects.
    bool relays_reads;
    bool has_parts;     // "-" in an ETag means an upload in parts.
    bool has_checksums; // The store keeps the checksums of uploads and returns them.
    bool is_remote;     // The origin is reached over a network, so it may not answer.
};
const struct origin_capabilities *origin_capabilities(const struct origin *origin);

// --- can it be reached? --------------------------------------------------------------------------

// Starts a probe that asks whether the origin answers and accepts our credentials. Returns at once.
// Call it after loop_start(). The probe posts `told` when the answer is known, or at once if the
// origin is not probed. `told` must live until then. The probe asks again as long as something is
// wrong.
void origin_probe_start(struct origin *origin, sem_t *told);
enum origin_trouble_kind {
    ORIGIN_KIND_SILENT,  // It cannot be reached, or does not answer as an S3 server.
    ORIGIN_KIND_FAILS,   // It answers with server errors, or nearly always with SlowDown.
    ORIGIN_KIND_REFUSES, // It answers, but does not accept our requests.
};
struct origin_failures {
    uint64_t failed, requests; // How many of the last requests ended badly.
};
struct origin_trouble_text {
    const char *why;    // The kind: "dns", "connect", "tls", "credentials" ... "": none.
    const char *text;   // Describes the trouble in a log line.
    const char *remedy; // Advises people what to change. The origin owns it.
    enum origin_trouble_kind kind;
    bool is_verdict;    // Requests get the origin's refusal, so no stale copy may take its place.
    bool is_throttling; // ORIGIN_KIND_FAILS: the requests are refused with SlowDown.
    struct origin_failures failures; // Only for ORIGIN_KIND_FAILS.
};
// Returns true while the origin is in trouble: its last calls got no answer, many of them ended
// with a server error, or it refused our credentials. Any thread.
bool origin_in_trouble(const struct origin *origin, struct origin_trouble_text *ret_text);
// Words for people about an origin that closes connections without an answer. `remedy` names
// settings of the default origin.
struct origin_advice {
    const char *text, *remedy;
};
struct origin_advice origin_advice_if_closed(void);
// Returns true while the origin answers no requests, if it has answered a probe before. The next
// answered probe ends this state. So a caller that has a stale version need not ask the origin. Any
// thread.
bool origin_is_silent(const struct origin *origin);
// Returns true if the origin refused a request with SlowDown within the last `window_s` seconds,
// and retries did not help. Any thread.
#define ORIGIN_THROTTLES "it throttles: SlowDown" // in words
bool origin_throttles(const struct origin *origin, unsigned window_s);
// Returns how many of the last requests ended so, after retries. Any thread.
struct origin_failures origin_throttled(const struct origin *origin);
// Returns how many of the last requests ended with another server error, after retries. Requests
// that ended with SlowDown do not count. Any thread.
struct origin_failures origin_failed(const struct origin *origin);
// Returns true while the origin refuses nearly all requests that Forebay signs with its own keys
// with 403 AccessDenied. *ret_denied: how many of the last ones. Any thread.
bool origin_denies(struct origin *origin, struct origin_failures *ret_denied);
// How soon the origin has answered reads within the last minute. The times are those from the
// request to the first byte of the answer, exact to a sixteenth.
struct origin_pace {
    uint64_t answers;           // 0: median_us and p99_us are 0, too.
    uint64_t median_us, p99_us; // Half of the answers, and 99 % of them, came within these times.
    uint64_t usual_us;          // The median of a longer time. 0: not known.
};
struct origin_pace origin_pace(const struct origin *origin); // Any thread.
// Returns true while the origin answers reads much later than usual. Any thread.
bool origin_is_slow(struct origin *origin, struct origin_pace *ret_pace);
// How many calls may run at once on all workers, and the setting. Forebay begins with few and
// allows more while calls wait.
struct origin_calls {
    unsigned limit, most;
    bool is_lowered; // By SlowDown, timeouts or failed connections, and not yet as high again.
};
struct origin_calls origin_calls(const struct origin *origin); // Any thread.
struct origin_times {
    bool has_skew;                // The origin has sent a Date, so skew_s is known.
    int64_t skew_s;               // The origin's clock minus ours, exact to a second or two.
    int64_t credentials_expire_s; // Wall clock. 0: the credentials do not expire.
};
void origin_times(const struct origin *origin, struct origin_times *ret_times); // Any thread.
// Asks the cloud's instance metadata service for a session token, and returns how the service
// reacts. Sets *ret_endpoint to the service's URL. Blocks for at most a second, so a worker must
// not call it.
enum origin_metadata { ORIGIN_METADATA_DISABLED, ORIGIN_METADATA_SILENT, ORIGIN_METADATA_ANSWERS };
enum origin_metadata origin_metadata_ask(const char **ret_endpoint);
// Returns the value for `err` of the label `reason` in forebay_origin_errors_total. Returns NULL if
// `err` is not a failure of an origin.
const char *origin_why(enum err err);

// --- fetch: one object, or a range of it ---------------------------------------------------------

// Identifiers by which an operator finds the same request in the logs of the client, Forebay and
// the origin. "": the client sent none that may be passed on.
#define ORIGIN_ID_SIZE 64u
struct origin_trace {
    char traceparent[56];            // The client's W3C trace context.
    char request_id[ORIGIN_ID_SIZE]; // The client's x-request-id.
};

// The reasons why an answer must not be stored in the cache.
enum origin_forbids {
    ORIGIN_FORBIDS_NOTHING,
    ORIGIN_FORBIDS_SHAPE,        // ERR_ORIGIN_UNFIT: the answer cannot fill a cache at all.
    ORIGIN_FORBIDS_FRAMING,      // The answer is chunked, or has lines that are not strictly HTTP.
    ORIGIN_FORBIDS_ETAG,         // The ETag is weak, malformed or missing, or there are several.
    ORIGIN_FORBIDS_VARY,         // Vary names a header that may differ between requests.
    ORIGIN_FORBIDS_CUSTOMER_KEY, // The client encrypts with its own key (SSE-C).
    ORIGIN_FORBIDS_COOKIE,       // The answer has Set-Cookie, and nothing shows that it is S3's.
    // The answer has Cache-Control: private or no-store, and nothing shows that it is S3's.
    ORIGIN_FORBIDS_CACHE_CONTROL,
    ORIGIN_FORBIDS_CODING,   // The answer has Content-Encoding, and nothing shows that it is S3's.
    ORIGIN_FORBIDS_VERSIONS, // The store's replicas answer with different versions.
    ORIGIN_FORBIDS_COUNT
};
struct origin_forbids_text {
    const char *word; // The reason in short, for Cache-Status, explain and warm.
    const char *text; // Describes the reason to people.
};
const struct origin_forbids_text *origin_forbids_text(enum origin_forbids forbids);

// A condition of a client's request, which the origin evaluates.
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
// Returns the name of the condition's header, such as "If-Match"; "" for none.
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

// The kind of request that a fetch sends.
enum origin_fetch_kind {
    ORIGIN_GET_WHOLE,
    ORIGIN_GET_RANGE, // Gets the bytes `first` to `last`, or the last `suffix` bytes.
    ORIGIN_HEAD,      // Gets the headers and no body.
    // Like ORIGIN_HEAD, but sent as a GET of one byte. src/origin also sets this kind when it
    // replaces a HEAD in this way.
    ORIGIN_HEAD_BY_GET
};
enum origin_checksums { ORIGIN_CHECKSUMS_NONE, ORIGIN_CHECKSUMS_TOO, ORIGIN_CHECKSUMS_ONLY };

struct origin_fetch {
    // The request. The caller fills in these fields. The spans must stay valid until on_end.
    enum origin_fetch_kind kind;
    struct span bucket; // The bucket's name at the origin.
    struct span key;
    uint64_t first, last;                     // Positions of bytes, both inclusive.
    uint64_t suffix;                          // Not 0: request the last `suffix` bytes instead.
    struct span if_match, if_none_match;      // Whole ETags with quotes. Empty: not sent.
    const struct origin_condition *condition; // A client's condition; or NULL.
    // Unless this is NONE, the request has x-amz-checksum-mode: ENABLED. With ONLY, the caller
    // needs nothing but checksums, so no GET replaces a refused HEAD: a GET of a range returns
    // none.
    enum origin_checksums wants_checksums;
    const struct sigv4_credentials *credentials; // NULL: the origin's own.
    // Identifies the client. When calls wait for a slot, the clients take turns.
    uint64_t client;
    bool ahead; // read-ahead: no client waits for it, so all other calls come first.
    // Each client that waits for the call gets its stale version if the call fails. So the call is
    // repeated at most once, and not after a timeout. It fails at once while origin_is_silent().
    // May be cleared while the request is in flight.
    bool has_stale;
    // Only for a HEAD, if its caller has or wants bytes of the object: when the origin refuses the
    // HEAD, a GET of one byte is sent instead, and its answer counts. May be set while the request
    // is in flight.
    bool get_decides;
    // A client already has bytes of the version in if_match. If the store answers that it has
    // another version or none, the fetch asks again a few times, because another replica may have
    // the version. Then it fails. May be set while the request is in flight.
    bool is_bound;
    const struct origin_trace *trace; // Identifiers of the client that caused the fetch, or NULL.

    // Called for the head of a 200 or 206 whose status, range, length and ETag match the request.
    // The callback may pause the fetch. If it returns an error, the fetch ends with that error.
    enum err (*on_head)(struct origin_fetch *f);
    enum err (*on_body)(struct origin_fetch *f, struct span data);
    // Called exactly once, with one of these results:
    //
    // - ERR_OK: the body is complete.
    // - ERR_NOT_MODIFIED (304), ERR_NO_SUCH_KEY, ERR_NO_SUCH_BUCKET, ERR_ACCESS_DENIED,
    //   ERR_INVALID_RANGE (416).
    // - ERR_ORIGIN_REFUSED: 403 or 400, because of our credentials.
    // - ERR_ORIGIN_CHANGED: 412, or the ETag differs from if_match; for dir: the file changed.
    // - ERR_ORIGIN_RESET or ERR_ORIGIN_TIMEOUT after on_head: the body broke off. The caller
    //   resumes with Range and If-Match.
    // - Any other ERR_ORIGIN_*: the fetch failed.
    void (*on_end)(struct origin_fetch *f, enum err err);
    void *ctx;

    // The answer. These fields are set before on_head, or before on_end if the call fails.
    unsigned status;
    uint64_t size_bytes;           // Size of the whole object.
    uint64_t body_first, body_len; // Position and length of the body in the object.
    struct span etag;              // The ETag as the origin sent it. Empty: none.
    struct span version_id;
    bool weak_or_no_etag;
    time_t last_modified; // 0: unknown.
    // The headers to send to clients: Content-*, Cache-Control, Expires, ETag, Last-Modified,
    // x-amz-meta-*, x-amz-storage-class and others of S3's, but not x-amz-checksum-*. For a 304,
    // only the headers that a 304 may carry.
    struct headers headers;
    struct headers checksums;    // x-amz-checksum-*, only for answers with the whole object.
    enum origin_forbids forbids; // Why the answer must not be stored.
    bool too_young;              // A dir: file that changed less than 2 s ago. It is not stored.
    struct span error_answer;  // The origin's error answer, packed by s3_error_pack(). Empty: none.
    struct span bucket_region; // Value of the header x-amz-bucket-region.
    struct span origin_id;     // Value of the header x-amz-request-id.
    struct arena *arena;       // Memory of the answer. Freed after on_end returns.

    void *driver; // Private to the driver.
};
static inline bool origin_fetch_is_head(const struct origin_fetch *f)
{
    return f->kind >= ORIGIN_HEAD;
}
// Starts a fetch on the calling worker. Callbacks never run inside this call.
void origin_fetch_start(struct worker *w, struct origin *origin, struct origin_fetch *f);
void origin_fetch_pause(struct origin_fetch *f);
void origin_fetch_resume(struct origin_fetch *f);
// Records that this client now waits for the bytes of a read-ahead fetch.
void origin_fetch_hasten(struct origin_fetch *f, uint64_t client);
void origin_fetch_cancel(struct origin_fetch *f); // on_end(ERR_CANCELLED) follows.

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
bool origin_is_odd(const struct origin *origin, enum origin_oddity oddity); // Any thread.
struct origin_oddity_text {
    const char *word; // Names the oddity in the output of explain.
    const char *text; // Describes the oddity and its effect to people.
};
const struct origin_oddity_text *origin_oddity_text(enum origin_oddity oddity);
// Records that HEAD and GET have described one object differently. For some minutes every HEAD is
// then sent as a GET.
void origin_doubt_head(struct origin *origin);
bool origin_doubts_head(const struct origin *origin);
// Returns true if `last_modified` differs by at most two seconds from the present time by the
// origin's clock.
bool origin_is_now(const struct origin *origin, time_t last_modified);
// Records the result of a revalidation. has_moved: the object is unchanged, but its Last-Modified
// is now the present time. If that happens several times in a row, the store evidently dates every
// answer with the present time.
void origin_note_date(struct origin *origin, bool has_moved);
bool origin_dates_move(const struct origin *origin);

// --- relay: all other requests -------------------------------------------------------------------

// The ways in which an upload's body is signed and framed for the origin.
enum origin_body {
    ORIGIN_BODY_NONE,
    ORIGIN_BODY_HASH /* x-amz-content-sha256 is payload_hash. */,
    ORIGIN_BODY_UNSIGNED,
    ORIGIN_BODY_UNSIGNED_TRAILER /* The bytes are aws-chunked already. */
};

struct origin_relay {
    // The request.
    // Operation, key and parameters. Parameters of a presigned URL are not sent on.
    const struct s3_request *request;
    struct span method;
    struct span bucket;            // The bucket's name at the origin.
    const struct headers *headers; // The client's headers. This room filters and signs them.
    enum origin_body body;
    uint64_t body_length;
    struct span payload_hash; // SHA-256 of the body in hex, for ORIGIN_BODY_HASH.
    const struct sigv4_credentials *credentials; // NULL: the origin's own.
    uint64_t client;                             // Number of the client, as in struct origin_fetch.
    bool is_unsigned; // Sent without our signature: a signed form, a call to STS or a preflight.
    bool is_probe;    // Never retried, because the caller wants to see each failure.
    // Writes the next bytes of the upload to `buf`, like on_upload of struct transfer_calls
    // (net.h).
    enum err (*on_upload)(struct origin_relay *r, char *buf, size_t max, size_t *ret_len);
    // Called with the head of the final answer, whatever its status. Redirects and region errors
    // are handled before, so the caller does not see them. If the origin cannot be reached, only
    // on_end is called, with an ERR_ORIGIN_*. `headers_answered` has the headers that a client may
    // see: no hop-by-hop headers, and not the origin's x-amz-request-id. If has_length is false,
    // the body's length is unknown.
    enum err (*on_head)(struct origin_relay *r);
    enum err (*on_body)(struct origin_relay *r, struct span data);
    void (*on_end)(struct origin_relay *r, enum err err);
    void *ctx;
    // Valid in on_head and on_end. True: it is unknown whether the origin has carried out the
    // request.
    bool is_unsure;
    // The answer.
    unsigned status;
    struct headers headers_answered;
    bool has_length;
    uint64_t length;
    // Only for GetObject: the body is `length` bytes, from part_first on, of the version with this
    // ETag. If the body breaks off, a fetch can get the rest. Empty: no fetch can.
    struct span part_etag;
    uint64_t part_first;
    struct span origin_id;  // Value of the header x-amz-request-id.
    struct span error_code; // Code in the error document. Empty: no document was read.
    // Valid in on_end. Value of the header Retry-After, if the status of the answer was 429 or
    // another one that clients do not get. Empty: none.
    struct span retry_after;
    struct arena *arena;
    void *driver; // Private to the driver.
};
void origin_relay_start(struct worker *w, struct origin *origin, struct origin_relay *r);
void origin_relay_pause(struct origin_relay *r);
void origin_relay_resume(struct origin_relay *r);
void origin_relay_resume_upload(struct origin_relay *r);
void origin_relay_cancel(struct origin_relay *r);

// Returns true if the origin has free slots for read-ahead, even after `more` calls that are about
// to start. Some slots are always kept for other calls. Call it on `w`.
bool origin_has_room(struct worker *w, struct origin *origin, unsigned more);
// Returns the time from a call to the first byte of this origin's answer, in us, as the average of
// the last few answers that `w` has got. 0: it is not known yet. UINT64_MAX: a call would wait
// longer, or fail. That is so if the origin is in trouble, throttles, or has no free slot or bytes.
// Call it on `w`.
uint64_t origin_recent_us(struct worker *w, struct origin *origin);
// Takes one retry from the origin's retry budget. A caller does this before it resumes a body that
// broke off. Returns false if the budget is used up; then the caller must not retry.
bool origin_retry_take(struct origin *origin) MUST_USE;

// Returns ERR_LOOP if the client's request has already passed through this process, or through too
// many Forebays. Otherwise sets *ret_hops to the number of other Forebays that it has passed
// through.
enum err origin_hops_judge(const struct headers *client, unsigned *ret_hops) MUST_USE;
// Returns false if the origin has never answered, or not since its last timeout or 508. Then a
// request from another Forebay may be in a loop, so it must not wait for other requests here.
bool origin_has_answered(const struct origin *origin);

// Returns the Server header for our own replies: the last one that the origin sent, or "AmazonS3"
// if it has sent none.
const char *origin_server_header(const struct origin *origin);

#endif
