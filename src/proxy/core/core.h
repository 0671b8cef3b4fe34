// SPDX-License-Identifier: Apache-2.0
// The per-worker context, the life of a request, and what all inner rooms of proxy ask of them.
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

#define PROXY_RESTARTS_MAX 8u // how often one request may restart before its first byte

struct request;
struct access_log;
struct access_log_live;
struct list_ask;
struct list_owner;
struct readahead;
struct series_table;
struct pins_room;

// --- places.c: where else copies of a bucket's keys may be ---------------------------------------

// An origin that a bucket has of its own, and the bucket's name there.
struct place {
    struct origin *origin;
    char *bucket;
};

// The places of all settings since the start, so that a write also finds copies under names that
// are not in use now. One thread adds places; any thread reads the first `count`.
struct places {
    struct place *items;
    atomic_uint count;
};

// --- list_cache.c: kept listings -----------------------------------------------------------------

// Memory of all kept listings and asks, on all workers.
struct list_room {
    _Atomic uint64_t bytes;                        // asks and pages, including those being sent
    _Atomic uint64_t kept_bytes[LOOP_WORKERS_MAX]; // pages in an owner's tables
    atomic_bool is_trimming[LOOP_WORKERS_MAX]; // a message in flight asks the owner to drop some
};

// The owner's answer to an ask.
enum list_verdict {
    LIST_WAITS, // nothing yet
    LIST_HIT,
    LIST_JOINED, // a page that another request fetched
    LIST_FETCH,  // the request fetches, for itself and for those that join it
    LIST_ALONE,  // the request asks the origin, for itself only
    LIST_FAILED  // the fetch that it had joined failed
};

// --- process and worker --------------------------------------------------------------------------

struct proxy {
    struct loop *loop;
    struct store *store;
    struct proxy_options options;
    struct places places;
    struct access_log *access_log; // NULL: not wanted so far. Read only if `live` wants a log.
    struct access_log_live *log_live;
    struct fill_room *fill_room;
    struct span realm;
    unsigned worker_count;
    struct proxy_worker *workers;
    atomic_uint doubt_count; // of all workers
    struct {
        atomic_uint runs; // requested, and not ended
        _Atomic uint64_t names_bytes, objects_bytes;
    } warm_room; // of all warm jobs
    struct list_room list_room;
    struct series_table *series;
    struct {
        pthread_mutex_t lock; // held while a change is sent to all workers; none is taken under it
        struct live *now;     // the settings after the last change
        void (*on_change)(struct proxy_worker *pw); // on each worker, after a change
    } live;
    struct pins_room *pins;
    char id_prefix[9];
    uint64_t reloads; // of the access keys; used only by the caller of proxy_set_access_keys()
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
    struct message message;   // brings it to the worker
    struct live_round *round; // ends when every worker has its copy
    struct proxy_settings settings;
    struct s3_domains domains;
    struct pins_table *pins; // the rules by command; NULL: none
    unsigned refs;
    struct arena *arena; // of everything it points to
};

// Gives each worker its first copy. Takes ownership of the reference to `pins`. Called before
// requests.
void live_start(struct proxy *proxy, struct pins_table *pins);
// Sends a new copy to each worker. NULL: settings, or pins, stay as they are. done() runs on the
// last worker that receives its copy. Workers receive changes in the order of these calls. Any
// thread.
void live_publish(struct proxy *proxy, const struct proxy_settings *settings,
                  struct pins_table *pins, void (*done)(void *ctx), void *ctx);
void live_stop(struct proxy *proxy); // called after the workers
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
struct origin *live_find_origin(const struct proxy *proxy, const struct live *live,
                                struct span bucket, struct span *ret_origin_bucket);

struct proxy_worker {
    struct proxy *proxy;
    struct store *store;
    struct worker *worker;
    unsigned index;
    struct fill_worker *fill;        // its part of the fill protocol
    struct access_keys *access_keys; // this worker's: the accepted keys; swapped by a message
    struct live *live;               // its reference; swapped by a message
    struct access_keys *known;       // the next ones: all workers know them before one uses them
    uint64_t access_keys_number, known_number; // of the reloads that brought them
    struct list request_pool;
    unsigned request_pool_count;
    struct list_owner *list_owner; // NULL until the first question
    struct readahead *readahead;   // NULL until the first reader
    struct list doubts;            // struct pass_doubt
    unsigned preflights;           // CORS preflights in flight
    struct list evictions;         // evict.c
    unsigned evicting;             // names in flight
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

// Returns the first rule that matches. There is one, because the last rule matches everything. It
// lives as long as `live`.
const struct proxy_rule *rules_find(const struct live *live, struct span bucket, struct span key);
// Returns the object's group, which decides its value in a full cache (store.h). `rule` is the
// object's rule. A pin by command takes precedence, unless the rule stores nothing or is a pin.
unsigned rules_group(const struct live *live, const struct proxy_rule *rule, struct span bucket,
                     struct span key);
bool rules_glob_match(const char *pattern, struct span text); // linear time, no recursion

// --- gate.c --------------------------------------------------------------------------------------

// The identity of the client. Only gate_authorize() makes one; every handler after it requires it.
struct principal {
    struct span name;                          // "open", or the access key
    const struct access_keys_principal *entry; // NULL in open mode
    struct access_keys *table;                 // reference that keeps it alive
    struct sigv4_claim claim;
    uint8_t signing_key[32];
    bool verified;
};

// The one gate before routing: Host check in open mode, signature and allow rules in verify mode.
// On refusal fills `detail` for the error document.
enum err gate_authorize(struct request *r, struct principal *ret_principal,
                        struct s3_error_detail *ret_detail) MUST_USE;
void gate_release(struct principal *principal);
// Returns true if the request's principal has these rights on the key in the request's bucket. For
// keys that the request does not name, or names only in its body (read-ahead, a batch delete, a
// form).
bool gate_allows(const struct request *r, unsigned rights, struct span key);

// --- gate_browser.c ------------------------------------------------------------------------------

// Open mode. Returns ERR_BROWSER_REFUSED if a browser sends the request for a page that is not
// listed.
enum err gate_authorize_browser(const struct request *r,
                                struct s3_error_detail *ret_detail) MUST_USE;

// --- gate_unsigned.c -----------------------------------------------------------------------------

// Verify mode accepts these without a signature. A browser asks whether a page may send a request:
bool gate_is_preflight(const struct request *r);
// A call of STS that carries its own proof:
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
    struct live *live; // settings at its start: a reference that keeps `rule` alive
    struct http_exchange *x;
    const struct http_request *http;
    struct arena *arena;
    request_step_fn *const *steps; // by enum request_step
    enum request_step step;
    bool going; // request_go() is on the stack
    bool ended; // on_done was called
    struct s3_request s3;
    struct s3_effects effects; // of `s3`; the gate finds them
    struct principal principal;
    const struct proxy_rule *rule;
    struct origin *origin;
    struct span origin_bucket;
    unsigned hops; // other Forebays it came through
    char id[17];   // x-amz-request-id

    // for the log, the counters and Cache-Status
    enum request_result result;
    const char *reason;       // why the cache did not answer it; NULL: it did, or could have
    bool known;               // the cache had a record of the object
    unsigned origin_status;   // of the answer that the reply is made from; 0: not known
    bool has_run;             // a fetch of a run began for this request
    const char *unstored_why; // why that run is not stored, in a word; NULL: it is
    const char *checksums;    // a word about them, for replies that may have any; NULL: none
    enum err err;
    const char *origin_error; // the code of the origin's error, if the client gets it; or NULL
    unsigned status;
    uint64_t object_size_bytes;
    unsigned blocks_hit, blocks_total;
    unsigned blocks_missed;  // of the blocks sent so far, those of which some came from the origin
    struct span claimed_key; // of a refused request: the access key that it names, whoever sent it
    uint64_t bytes_memory, bytes_disk, bytes_origin;
    bool collapsed;
    uint64_t origin_us;
    unsigned attempts;
    char origin_id[ORIGIN_ID_SIZE]; // x-amz-request-id of the origin's answer; "": none

    struct object_key *spare_key; // memory for the next one; stays with the pooled request
    struct get_state *get;        // serve_get.c
    struct pass_state *pass;      // serve_pass.c
    struct list_ask *list_ask; // list_cache.c; NULL: nothing was asked, or it is the pass_state's
    enum list_verdict list_verdict;
};

#define REQUEST_MAGIC 0x52455131u

// Runs steps until one waits or ends. Harmless when already running or ended.
void request_go(struct request *r);
struct request *request_new(struct proxy_worker *pw); // from the pool, or new
// Returns the request to the pool when no I/O of it is in flight: at its end, or after its last
// disk read.
void request_recycle(struct request *r);
void request_pool_free(struct proxy_worker *pw);
// Ends the request with an S3 error document (no body for HEAD). Nothing may have been sent. detail
// may be NULL.
enum step_result request_fail(struct request *r, enum err err, struct s3_error_detail *detail);
// The same, with the origin's error if that is about this request. `packed`: as in
// origin_fetch.error_answer; may be empty.
enum step_result request_fail_by_origin(struct request *r, enum err err, struct span packed);
// Adds the headers that every reply carries: x-amz-request-id, x-amz-id-2, Server, Cache-Status.
void request_common_headers(struct request *r, struct headers *headers);
// Returns the same headers as text in the arena: `before`, these headers, `behind`, and then those
// of the object (`stored`). Empty: there is no memory.
struct span request_lines(struct request *r, struct span before, struct span behind,
                          struct span stored);
// Adds headers so that a browser that opens an object does not run it with the browser's access to
// this listener.
void request_sandbox_headers(struct headers *headers, struct arena *arena);
void request_header(struct request *r, struct headers *headers, const char *name,
                    struct span value);
// Makes the heap copy that messages carry; the caller owns one reference.
struct object_key *request_object_key(struct request *r);
// The same for another key of the request's bucket, by the same rule.
struct object_key *request_object_key_beside(struct request *r, struct span key);
// Returns the present epoch of the request's bucket. Cached data of the bucket are named by it.
uint64_t request_epoch(const struct request *r);
// Returns true if the client sent Cache-Control: no-cache and the settings obey it.
static inline bool request_is_no_cache(const struct request *r)
{
    return r->live->settings.obey_no_cache &&
           headers_have_in_list(&r->http->headers, SPAN("Cache-Control"), SPAN("no-cache"));
}
// Returns the credentials of the principal for the origin; NULL: the origin's own are used.
const struct sigv4_credentials *request_origin_credentials(const struct request *r);
struct span request_realm(const struct request *r); // requests of one realm share cached bytes

#define STEP(name, fn) request_step_fn fn;
#include "proxy/steps.def"
#undef STEP

// --- request_client.c ----------------------------------------------------------------------------

struct span request_address(const struct request *r); // without the port
// Identifies the client for turns at the origin: its address and, where signatures are checked, its
// access key.
uint64_t request_client(const struct request *r);

// --- request_result.c ----------------------------------------------------------------------------

// Returns "hit", "miss" and so on, as in the access log and the counters; "" for RESULT_NONE.
const char *request_result_name(enum request_result result);
const char *
request_source_name(const struct request *r); // where its bytes came from; "": there were none

// --- response_overrides.c ------------------------------------------------------------------------

// Returns ERR_INVALID, and the message, for an unsigned request that asks for overrides.
enum err response_overrides_judge(const struct request *r, struct span *ret_message) MUST_USE;
// Overrides the headers of a 200 or 206 as the request asks. Harmless if it asks for none.
void response_overrides_apply(struct request *r, struct headers *headers);

// --- series.c: large objects that are read in the order of a listing; any thread -----------------

struct series_table *series_table_new(void);
void series_table_free(struct series_table *table); // NULL is fine
// Adds a large object that a listing names; `bucket` is the origin's name for the bucket.
// `follows`: the last large object before it in the listing is in the same folder.
void series_listed(struct series_table *table, const struct origin *origin, struct span bucket,
                   struct span key, bool follows);
// Called when a read of a large object begins at its first byte; series_end() must follow when the
// read ends. Never waits. Returns true if series_next() has named the object since a reader last
// began it.
bool series_begin(struct series_table *table, const struct object_key *key);
void series_end(struct series_table *table);
// Names the next object in the series that no reader has begun and that was not named before, both
// in this pass through the series. Returns false if there is none, or if the objects of the series
// are not read in order.
bool series_next(struct series_table *table, const struct object_key *key,
                 char ret_text[S3_KEY_MAX], struct span *ret_name) MUST_USE;
// The named object is missing, or the origin refuses it. It is not named again until a listing
// names it again.
void series_refuse(struct series_table *table, const struct object_key *key, bool is_gone);
// Called for a named object of which some bytes were fetched ahead. Returns true if no reader has
// begun it since. Then more objects must be read in order before the next one is named.
bool series_missed(struct series_table *table, const struct object_key *key);

// --- freshness.c ---------------------------------------------------------------------------------

enum freshness_verdict { FRESHNESS_FRESH, FRESHNESS_STALE };
enum freshness_verdict freshness_check(const struct proxy_rule *rule,
                                       const struct store_view *view);
// Returns the maximum age of an origin's answer that may be used without asking again. strict: 0.
uint64_t freshness_max_age_ms(const struct proxy_rule *rule);
// Returns true if this stale record may be served while the origin fails.
bool freshness_stale_allowed(const struct proxy_rule *rule, const struct store_view *view);

// --- byte_queue.c --------------------------------------------------------------------------------

// Bytes queued in one direction before its source is paused.
#define BYTE_QUEUE_HIGH (4u * CHUNK_SIZE)
#define BYTE_QUEUE_LOW (2u * CHUNK_SIZE)

// A FIFO of bytes in budgeted chunks, for one thread. It has no limit of its own: its user pauses
// the source when byte_queue_full() is true.
struct byte_queue {
    struct list pieces; // struct piece
    struct chunk *tail; // gets the next bytes (a reference); NULL: none yet
    uint64_t bytes;
};
void byte_queue_init(struct byte_queue *q);
void byte_queue_done(struct byte_queue *q);
void byte_queue_append(struct byte_queue *q, struct span data); // always appends all
bool byte_queue_full(const struct byte_queue *q);               // pause the source
bool byte_queue_low(const struct byte_queue *q);                // resume it
size_t byte_queue_read(struct byte_queue *q, char *buf, size_t max);
// Moves at most `max` bytes (> 0) of the first piece into a slice, which then owns them. The queue
// must not be empty.
void byte_queue_slice(struct byte_queue *q, uint64_t max, struct http_slice *ret_slice);

// --- keys that are invalidated together ----------------------------------------------------------

#define PROXY_KEYS_WINDOW 128u  // names of a request's keys that are being invalidated at once
#define PROXY_KEYS_PER_TURN 32u // of these, started in one turn of the loop
#define PROXY_KEYS_AT_ONCE 8u   // started without waiting for the next turn; never refused
#define PROXY_KEY_BYTES 4096u   // memory charged for each, including its home and its messages

#endif
