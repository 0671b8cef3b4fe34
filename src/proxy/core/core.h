// SPDX-License-Identifier: Apache-2.0
// The context of each worker, the life of a request, and what all inner rooms of proxy need of
// both.
#ifndef FOREBAY_PROXY_CORE_CORE_H
#define FOREBAY_PROXY_CORE_CORE_H

#include <stdatomic.h>

#include "auth/auth.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "fill/fill.h"
#include "proxy/core/pins_table.h"
#include "proxy/proxy.h"
#include "stats/stats.h"

#define PROXY_RESTARTS_MAX 8u // how often one request may start over before its first byte

struct request;
struct access_log;
struct access_log_live;
struct list_ask;
struct list_owner;
struct readahead;
struct series_table;
struct pins_room;

// --- places.c: where else copies of a bucket's keys may be ---------------------------------------

// An origin that the configuration gives to a bucket, and the bucket's name at that origin.
struct place {
    struct origin *origin;
    char *bucket;
};

// All places that any settings have named since the start. A write also invalidates copies under
// places that no bucket uses now. One thread adds places; any thread reads the first `count`.
struct places {
    struct place *items;
    atomic_uint count;
};

// --- list_cache.c: kept listings -----------------------------------------------------------------

// Memory that all kept listings and asks take, on all workers.
struct list_room {
    _Atomic uint64_t bytes;                        // bytes of asks and pages, even while being sent
    _Atomic uint64_t kept_bytes[LOOP_WORKERS_MAX]; // bytes of the pages in each owner's tables
    atomic_bool is_trimming[LOOP_WORKERS_MAX]; // a message in flight asks this owner to drop pages
};

// How a page's owner has answered the request that asked for a listing's page.
enum list_verdict {
    LIST_WAITS, // not answered yet
    LIST_HIT,
    LIST_JOINED, // another request fetched the page
    LIST_FETCH,  // the request fetches the page, for itself and for those that join it
    LIST_ALONE,  // the request asks the origin, for itself only
    LIST_FAILED  // the request had joined a fetch, which failed
};

// --- process and worker --------------------------------------------------------------------------

struct proxy {
    struct loop *loop;
    struct store *store;
    struct proxy_options options;
    struct places places;
    struct access_log *access_log; // NULL: never turned on so far. Used only if `live` wants a log.
    struct access_log_live *log_live;
    struct fill_room *fill_room;
    struct span realm;
    unsigned worker_count;
    struct proxy_worker *workers;
    _Atomic int64_t client_skew_s; // see proxy_client_skew_s()
    atomic_uint doubt_count;       // keys in doubt, on all workers
    struct {
        atomic_uint runs; // runs that warm jobs have requested and that have not ended
        _Atomic uint64_t names_bytes, objects_bytes;
    } warm_room; // shared by all warm jobs
    struct list_room list_room;
    struct series_table *series;
    struct {
        // Held while a change is sent to all workers. No other lock is taken under it.
        pthread_mutex_t lock;
        struct live *now; // the settings in force after the last change
        // called on each worker after it has received a change
        void (*on_change)(struct proxy_worker *pw);
    } live;
    struct pins_room *pins;
    char id_prefix[9];
    // Count of access key reloads. Used only by the caller of proxy_set_access_keys().
    uint64_t reloads;
};

void places_add(struct proxy *proxy, const struct proxy_settings *settings);
void places_free(struct proxy *proxy);
static inline unsigned places_count(const struct proxy *proxy)
{
    return atomic_load_explicit(&proxy->places.count, memory_order_acquire);
}

// --- live.c: settings that may change ------------------------------------------------------------

// One worker's copy of the settings. It is immutable, and only that worker counts its references.
struct live {
    struct message message; // delivers this copy to the worker
    // the change that made this copy; the round ends when every worker has its copy
    struct live_round *round;
    struct proxy_settings settings;
    struct s3_domains domains;
    struct pins_table *pins; // pins by command; NULL: none
    unsigned refs;
    struct arena *arena; // memory of everything that this struct points to
};

// Gives each worker its first copy. Takes ownership of the reference to `pins`. Called before
// requests.
void live_start(struct proxy *proxy, struct pins_table *pins);
// Sends a new copy to each worker. NULL leaves the settings, or the pins, as they are. done() runs
// on the last worker that receives its copy. Workers receive changes in the order of these calls.
// Any thread.
void live_publish(struct proxy *proxy, const struct proxy_settings *settings,
                  struct pins_table *pins, void (*done)(void *ctx), void *ctx);
void live_stop(struct proxy *proxy); // called after the workers have stopped
// Returns a reference to the pins after the last change. Any thread.
struct pins_table *live_pins(struct proxy *proxy);
// Returns NULL if the bucket is not listed.
static inline const struct proxy_bucket *live_bucket(const struct live *live, struct span name)
{
    for (unsigned i = 0; i < live->settings.bucket_count; i++) {
        if (span_equal_cstr(name, live->settings.buckets[i].name)) {
            return &live->settings.buckets[i];
        }
    }
    return NULL;
}
static inline struct live *live_ref(struct live *live)
{
    live->refs++;
    return live;
}
void live_unref(struct live *live); // NULL is fine
// Returns the origin of a bucket, by the name that clients use. *ret_origin_bucket is its name at
// that origin, and lives as long as `live` and `bucket`.
static inline struct origin *live_find_origin(const struct proxy *proxy, const struct live *live,
                                              struct span bucket, struct span *ret_origin_bucket)
{
    const struct proxy_bucket *listed = live_bucket(live, bucket);
    check(listed == NULL || (listed->origin != NULL && listed->origin_bucket != NULL));
    *ret_origin_bucket = listed != NULL ? span_from_cstr(listed->origin_bucket) : bucket;
    return listed != NULL ? listed->origin : proxy->options.default_origin;
}

struct proxy_worker {
    struct proxy *proxy;
    struct store *store;
    struct worker *worker;
    unsigned index;
    struct fill_worker *fill; // this worker's part of the fill protocol
    // the keys that this worker accepts (reference); swapped by a message
    struct access_keys *access_keys;
    struct live *live; // this worker's settings (reference); swapped by a message
    // the newest keys: every worker has them here before any accepts them
    struct access_keys *known;
    // Numbers of the reloads that brought `access_keys` and `known`.
    uint64_t access_keys_number, known_number;
    struct list request_pool;
    unsigned request_pool_count;
    struct list_owner *list_owner; // NULL until the first ask arrives
    struct readahead *readahead;   // NULL until the first sequential reader
    struct list doubts;            // doubts of this worker (struct pass_doubt)
    unsigned preflights;           // number of CORS preflights in flight
    struct list evictions;         // evictions with names that are not started yet (evict.c)
    unsigned evicting;             // names that are being evicted now
    struct task evict_task;
    uint64_t next_request_id;
    struct recent *recent;
    struct bucket_counts *bucket_counts;
};

static inline struct proxy_worker *proxy_worker_of(struct worker *w)
{
    return worker_slot_get(w, WORKER_SLOT_PROXY);
}

// --- rules.c -------------------------------------------------------------------------------------

// Returns the first rule that matches. One always does, because the last rule matches everything.
// The rule lives as long as `live`.
const struct proxy_rule *rules_find(const struct live *live, struct span bucket, struct span key);
// Returns the object's group, which decides its value in a full cache (store.h). `rule` is the
// object's rule. A pin by command takes precedence, unless the rule stores nothing or is a pin.
unsigned rules_group(const struct live *live, const struct proxy_rule *rule, struct span bucket,
                     struct span key);
bool rules_glob_match(const char *pattern, struct span text); // without recursion, in linear time

// --- gate.c --------------------------------------------------------------------------------------

// The identity of the client. Only gate_authorize() makes one. Every handler after it requires one.
struct principal {
    struct span name;                          // the access key; in open mode "open"
    const struct access_keys_principal *entry; // NULL in open mode
    struct access_keys *table;                 // the keys file that owns `entry` (reference)
    struct sigv4_claim claim;
    uint8_t signing_key[32];
    bool verified;
};

// The one gate before routing. In open mode it checks Host; in verify mode the signature and the
// allow rules. On refusal it fills `ret_detail` for the error document.
enum err gate_authorize(struct request *r, struct principal *ret_principal,
                        struct s3_error_detail *ret_detail) MUST_USE;
void gate_release(struct principal *principal);
// Returns true if the request's principal has these rights on the key in the request's bucket. Use
// it for keys that the request does not name (read-ahead), or names only in its body (a batch
// delete, a form).
bool gate_allows(const struct request *r, unsigned rights, struct span key);

// --- gate_browser.c ------------------------------------------------------------------------------

// For open mode. Returns ERR_BROWSER_REFUSED if a browser sends the request on behalf of a page
// that is not in the list of allowed origins.
enum err gate_authorize_browser(const struct request *r,
                                struct s3_error_detail *ret_detail) MUST_USE;

// --- gate_unsigned.c -----------------------------------------------------------------------------

// Returns true for a preflight, by which a browser asks whether a page may send a request. Verify
// mode accepts it without a signature.
bool gate_is_preflight(const struct request *r);
// Returns true for a call to STS, which carries its own proof of identity. Verify mode accepts it
// without a signature.
bool gate_is_sts(const struct request *r);

// --- request.c: a request as a table of steps ----------------------------------------------------

enum step_result { STEP_AGAIN, STEP_WAIT, STEP_DONE };

enum request_step {
#define STEP(name, fn) REQUEST_##name,
#include "proxy/steps.def"
#undef STEP
    REQUEST_STEP_COUNT_
};

// How the request was answered, for the access log and Cache-Status.
enum request_result {
    RESULT_NONE,
    RESULT_HIT,
    RESULT_PARTIAL,
    RESULT_MISS,
    RESULT_COALESCED,
    RESULT_REVALIDATED,
    RESULT_STALE,
    RESULT_BYPASS
};

typedef enum step_result request_step_fn(struct request *r);

struct request {
    uint32_t magic;
    struct list_node pool_node;
    struct http_user user;
    struct http_source source;
    struct proxy_worker *pw;
    struct live *live; // the settings when the request began (reference); they own `rule`
    struct http_exchange *x;
    const struct http_request *http;
    struct arena *arena;
    request_step_fn *const *steps; // the table of steps, by enum request_step
    enum request_step step;
    bool going; // request_go() is on the stack
    bool ended; // http has called on_done
    struct s3_request s3;
    struct s3_effects effects; // effects of `s3` on keys and buckets; the gate finds them
    struct principal principal;
    const struct proxy_rule *rule;
    struct origin *origin;
    struct span origin_bucket;
    unsigned hops; // number of other Forebays that the request passed through
    char id[17];   // value of x-amz-request-id in the reply

    // These fields are for the log, the counters and Cache-Status:
    enum request_result result;
    const char *reason;     // why the cache may not answer the request; NULL: it may
    bool known;             // the cache had a record of the object
    unsigned origin_status; // status of the origin's answer that the reply is made from; 0: unknown
    bool has_run;           // a fetch of a run began for this request
    const char *unstored_why; // why the fetched run is not stored, in a word; NULL: it is stored
    // "sent", "none" or "unknown", for a 200 whose client asked for checksums; else NULL
    const char *checksums;
    enum err err;
    // why Forebay refused the request, if it was not the request's fault or no head was accepted:
    // the label of the counter that counts it; NULL: another reason
    const char *refused_why;
    const char *error_code; // code of the error that the client gets; NULL: none
    unsigned status;
    uint64_t object_size_bytes;
    unsigned blocks_hit, blocks_total;
    unsigned blocks_missed;  // blocks sent so far with at least some bytes from the origin
    struct span requester;   // the access key that signed the request, verified; "": none
    struct span claimed_key; // the access key that a request names without a valid signature
    uint64_t bytes_memory, bytes_disk, bytes_origin;
    bool collapsed;
    uint64_t origin_us; // time that the request waited for the origin before its reply
    unsigned attempts;
    // x-amz-request-id of the origin's answer. "": the answer has none.
    char origin_id[ORIGIN_ID_SIZE];

    struct object_key *spare_key; // memory for the next object_key; stays with the pooled request
    struct get_state *get;        // used by serve_get.c
    struct pass_state *pass;      // used by serve_pass.c
    struct list_ask *list_ask;    // see list_cache.c; NULL: no ask, or it belongs to `pass`
    enum list_verdict list_verdict;
};

#define REQUEST_MAGIC 0x52455131u

// Runs steps until one waits or ends the request. Does nothing if already running or ended.
void request_go(struct request *r);
struct request *request_new(struct proxy_worker *pw); // takes it from the pool, or allocates it
// Returns the request to the pool. Called when no I/O of the request is in flight: at its end, or
// after its last disk read.
void request_recycle(struct request *r);
void request_pool_free(struct proxy_worker *pw);
// Ends the request with an S3 error document (no body for HEAD). Nothing may have been sent yet.
// `detail` may be NULL.
enum step_result request_fail(struct request *r, enum err err, struct s3_error_detail *detail);
// Like request_fail(), but sends the origin's own error if that error is about this request.
// `packed`: the origin's error answer, packed by s3_error_pack(). Empty: there is none.
enum step_result request_fail_by_origin(struct request *r, enum err err, struct span packed);
// Adds the headers that every reply carries: x-amz-request-id, x-amz-id-2, Server, Cache-Status.
void request_common_headers(struct request *r, struct headers *headers);
// Returns header lines in the arena, in this order: `before`, the headers of
// request_common_headers(), `behind`, and `stored`, which are the object's headers. Returns an
// empty span if there is no memory.
struct span request_lines(struct request *r, struct span before, struct span behind,
                          struct span stored);
// Adds headers that sandbox the object in a browser. If a browser opens it as a page, its scripts
// do not get the browser's access to this listener.
void request_sandbox_headers(struct headers *headers, struct arena *arena);
void request_header(struct request *r, struct headers *headers, const char *name,
                    struct span value);
// Makes the heap copy that messages carry; the caller owns one reference.
struct object_key *request_object_key(struct request *r);
// Like request_object_key(), for another key of the request's bucket, with the rule of the request.
struct object_key *request_object_key_beside(struct request *r, struct span key);
// Returns the current epoch of the request's bucket. It is part of the names of the bucket's cached
// data.
uint64_t request_epoch(const struct request *r);
// Returns true if the client sent Cache-Control: no-cache and the settings obey it.
static inline bool request_is_no_cache(const struct request *r)
{
    return r->live->settings.obey_no_cache &&
           headers_have_in_list(&r->http->headers, SPAN("Cache-Control"), SPAN("no-cache"));
}
// Returns the principal's credentials for the origin. NULL: Forebay uses the origin's own.
const struct sigv4_credentials *request_origin_credentials(const struct request *r);
// Returns the realm. Only requests of the same realm share cached bytes.
struct span request_realm(const struct request *r);

#define STEP(name, fn) request_step_fn fn;
#include "proxy/steps.def"
#undef STEP

// --- request_client.c ----------------------------------------------------------------------------

struct span request_address(const struct request *r); // the client's IP address, without the port
// Returns a hash of the client's address and access key. It identifies the client when clients take
// turns at the origin. In open mode, clients differ only by address.
uint64_t request_client(const struct request *r);

// --- request_result.c ----------------------------------------------------------------------------

// Returns "hit", "miss" and so on, as in the access log and the counters; "" for RESULT_NONE.
const char *request_result_name(enum request_result result);
const char *
request_source_name(const struct request *r); // where the bytes came from; "": there were none

// --- response_overrides.c ------------------------------------------------------------------------

// Returns ERR_INVALID and sets *ret_message if an unsigned request asks for overrides.
enum err response_overrides_judge(const struct request *r, struct span *ret_message) MUST_USE;
// Replaces the headers of a 200 or 206 as the request asks. Does nothing if it asks for none.
void response_overrides_apply(struct request *r, struct headers *headers);

// --- series.c: large objects that are read in the order of a listing; any thread -----------------

struct series_table *series_table_new(void);
void series_table_free(struct series_table *table); // NULL is fine
// Adds a large object that a listing names. `bucket` is the origin's name for the bucket.
// `follows`: the last large object before it in the listing is in the same folder.
void series_listed(struct series_table *table, const struct origin *origin, struct span bucket,
                   struct span key, bool follows);
// Called when a read of a large object begins at its first byte. series_end() must follow when the
// read ends. Never waits. Returns true if series_next() has named this object since a reader last
// began it.
bool series_begin(struct series_table *table, const struct object_key *key);
void series_end(struct series_table *table);
// Names the next object of the series. In one pass of the readers through the series, it names no
// object twice, and none that a reader has begun. Returns false if there is none, or if readers do
// not read the series in order.
bool series_next(struct series_table *table, const struct object_key *key,
                 char ret_text[S3_KEY_MAX], struct span *ret_name) MUST_USE;
// Called when the named object is missing, or when the origin refuses it. The object is not named
// again until a listing contains it again.
void series_refuse(struct series_table *table, const struct object_key *key, bool is_gone);
// Called for a named object if some of its bytes were fetched ahead. Returns true if no reader has
// begun it since. After that, more objects must be read in order before the next one is named.
bool series_missed(struct series_table *table, const struct object_key *key);

// --- freshness.c ---------------------------------------------------------------------------------

enum freshness_verdict { FRESHNESS_FRESH, FRESHNESS_STALE };
enum freshness_verdict freshness_check(const struct proxy_rule *rule,
                                       const struct store_view *view);
// Returns the maximum age of an origin's answer that may be used without asking again; 0 for
// strict.
uint64_t freshness_max_age_ms(const struct proxy_rule *rule);
// Returns true if this stale record may be served while the origin fails.
bool freshness_stale_allowed(const struct proxy_rule *rule, const struct store_view *view);

// --- byte_queue.c --------------------------------------------------------------------------------

// A queue asks to pause its source from HIGH queued bytes on, and to resume it below LOW.
#define BYTE_QUEUE_HIGH (4u * CHUNK_SIZE)
#define BYTE_QUEUE_LOW (2u * CHUNK_SIZE)

// A FIFO of bytes in budgeted chunks, for one thread. The queue has no limit of its own: its user
// pauses the source when byte_queue_full() returns true.
struct byte_queue {
    struct list pieces; // unread bytes (struct piece)
    struct chunk *tail; // chunk that receives the next bytes (a reference); NULL: none yet
    uint64_t bytes;
};
void byte_queue_init(struct byte_queue *q);
void byte_queue_done(struct byte_queue *q);
void byte_queue_append(struct byte_queue *q, struct span data); // never fails or cuts
bool byte_queue_full(const struct byte_queue *q);               // true: pause the source
bool byte_queue_low(const struct byte_queue *q);                // true: resume the source
size_t byte_queue_read(struct byte_queue *q, char *buf, size_t max);
// Moves at most `max` bytes (> 0) of the first piece into a slice, which then owns them. The queue
// must not be empty.
void byte_queue_slice(struct byte_queue *q, uint64_t max, struct http_slice *ret_slice);

// --- keys that are invalidated together ----------------------------------------------------------

#define PROXY_KEYS_WINDOW 128u  // names of one request's keys that are invalidated at the same time
#define PROXY_KEYS_PER_TURN 32u // how many of these start in one turn of the loop
#define PROXY_KEYS_AT_ONCE 8u   // how many start without waiting for the next turn; never refused
#define PROXY_KEY_BYTES 4096u   // memory charged for each name, including its home and its messages

#endif
