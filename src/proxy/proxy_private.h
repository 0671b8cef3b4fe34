// SPDX-License-Identifier: Apache-2.0
// What the files of this room share: the per-worker context, the life of a request, a reader's ask
// and its answer, and the messages between workers.
#ifndef FOREBAY_PROXY_PROXY_PRIVATE_H
#define FOREBAY_PROXY_PROXY_PRIVATE_H

#include <stdatomic.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "proxy/proxy.h"
#include "stats/stats.h"

#ifndef PROXY_STRIPE_BYTES // the protocol's unit tests use small stripes
#define PROXY_STRIPE_BYTES (64u << 20)
#endif
#define PROXY_MAP_BUCKETS 4096u
#define PROXY_DESCRIBED 1024u
#define PROXY_READER_QUEUE_MAX (1u << 20) // bytes a reader holds unsent before it goes on from disk
#define PROXY_RESTARTS_MAX 8u // how often one request may begin anew before its first byte
#define PROXY_ETAG_MAX 1024u

struct request;
struct reader;
struct fill;
struct fill_reader;
struct home_key;
struct access_log;
struct list_cache;

// --- tables keyed by the 128-bit object hash -----------------------------------------------------

struct key_map {
    struct list buckets[PROXY_MAP_BUCKETS];
    unsigned count;
};
static inline struct list *key_map_bucket(struct key_map *map, struct hash128 hash)
{
    return &map->buckets[hash.lo % PROXY_MAP_BUCKETS];
}
void key_map_init(struct key_map *map);

// --- process and worker --------------------------------------------------------------------------

struct proxy {
    struct loop *loop;
    struct store *store;
    struct proxy_options options;
    struct proxy_bucket *buckets;
    struct proxy_rule *rules;
    struct span *domain_spans;
    struct s3_domains domains;
    struct access_log *access_log;
    struct span realm;
    unsigned worker_count;
    struct proxy_worker *workers;
    char id_prefix[9];
    uint64_t reloads; // of the keys; touched by who calls proxy_set_credentials()
};

struct proxy_worker {
    struct proxy *proxy;
    struct store *store;
    struct worker *worker;
    unsigned index;
    struct key_map fills;     // struct fill.map_node: runs in flight, of stripes this worker owns
    struct fill *memory_lead; // goes on while memory is short, so that something does (fill.c)
    struct key_map homes;     // struct home_key.map_node
    struct key_map bars; // struct bar.map_node: floors not yet lifted (fill-protocol 5, 25, 26)
    struct credentials *credentials; // this worker's reference: who is let in; swapped by a message
    struct credentials *known; // the same, ahead of it: all workers know a table before one uses it
    uint64_t credentials_number, known_number; // of the reload that brought them
    struct list request_pool;
    unsigned request_pool_count;
    struct list_cache *list_cache;
    unsigned preflights;           // on their way
    struct whole_sums *whole_sums; // NULL until the first
    // By key hash: versions that a HEAD described, with checksums, which ranged reads come without.
    struct store_object *described[PROXY_DESCRIBED];
    uint64_t next_token;
    uint64_t next_request_id;
};

static inline struct proxy_worker *proxy_worker_of(struct worker *w)
{
    return worker_slot_get(w, WORKER_SLOT_PROXY);
}

// --- a key on its way between workers ------------------------------------------------------------

// Immutable, refcounted (atomic): everything needed to ask the origin for a key and to find it in
// the store.
struct object_key {
    atomic_uint refs;
    struct hash128 hash;
    struct span realm, bucket,
        key; // realm holds the origin's name and the bucket's epoch too; bucket as the origin calls it
    size_t realm_own_len; // of realm, without origin and epoch
    uint64_t epoch;
    struct origin *origin;
    const struct proxy_rule *rule;
    const struct sigv4_credentials *credentials; // towards the origin; NULL: its own
    struct credentials *table;                   // reference that keeps them alive, or NULL
};
// The same key in another realm, or in another epoch of its bucket.
struct object_key *object_key_in_realm(const struct proxy_worker *pw, const struct object_key *key,
                                       struct span realm);
struct object_key *object_key_in_epoch(const struct proxy_worker *pw, const struct object_key *key,
                                       uint64_t epoch);
struct object_key *object_key_ref(struct object_key *key);
void object_key_unref(struct object_key *key);
// The worker that owns the stripe of `first_byte`; stripe 0's is the key's home.
struct proxy_worker *object_key_owner(const struct proxy_worker *pw, const struct object_key *key,
                                      uint64_t first_byte);
static inline struct proxy_worker *object_key_home(const struct proxy_worker *pw,
                                                   const struct object_key *key)
{
    return object_key_owner(pw, key, 0);
}

// --- bars ----------------------------------------------------------------------------------------

struct bar {
    struct list_node map_node;
    struct hash128 hash;
    uint64_t floor;
};
uint64_t bar_floor(struct proxy_worker *pw, struct hash128 hash); // 0: none

// --- rules.c -------------------------------------------------------------------------------------

// First match; the table always ends in one that matches everything.
const struct proxy_rule *rules_find(const struct proxy *proxy, struct span bucket, struct span key);
bool rules_glob_match(const char *pattern, struct span text); // linear time, no recursion

// --- gate.c --------------------------------------------------------------------------------------

// Who asks. Only gate_check() makes one; every handler after it requires it.
struct principal {
    struct span name;                                // "open", or the access key
    const struct credentials_principal *credentials; // NULL in open mode
    struct credentials *table;                       // reference that keeps it alive
    struct sigv4_claim claim;
    uint8_t signing_key[32];
    bool verified;
};

// The one gate before routing: Host check in open mode, signature and allow rules in verify mode.
// On refusal fills `detail` for the error document.
enum err gate_check(struct request *r, struct principal *ret_principal,
                    struct s3_error_detail *ret_detail) MUST_USE;
void gate_release(struct principal *principal);

// --- request.c: a request as a table of steps ----------------------------------------------------

enum step_result { STEP_AGAIN, STEP_WAIT, STEP_DONE };

enum request_step {
#define STEP(name, fn) REQUEST_##name,
#include "proxy/steps.def"
#undef STEP
    REQUEST_STEP_COUNT_
};

// What the access log and Cache-Status say of the answer.
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

struct request {
    uint32_t magic;
    struct list_node pool_node;
    struct http_user user;
    struct http_source source;
    struct proxy_worker *pw;
    struct http_exchange *x;
    const struct http_request *http;
    struct arena *arena;
    enum request_step step;
    bool going; // request_go() is on the stack
    bool ended; // on_done has come
    struct s3_request s3;
    struct s3_effects effects; // of `s3`; the gate finds them
    struct principal principal;
    const struct proxy_rule *rule;
    struct origin *origin;
    struct span origin_bucket;
    unsigned hops; // other Forebays it came through
    char id[17];   // x-amz-request-id

    // what is told at the end
    enum request_result result;
    const char *reason; // why it was not answered from the cache; NULL: it was, or could be
    bool known;         // the cache had a record of the object
    enum err err;
    unsigned status;
    uint64_t object_size_bytes;
    unsigned blocks_hit, blocks_total;
    uint64_t bytes_memory, bytes_disk, bytes_origin;
    bool collapsed;
    uint64_t origin_us;
    unsigned attempts;

    struct get_state *get;   // serve_get.c
    struct pass_state *pass; // serve_pass.c
};

#define REQUEST_MAGIC 0x52455131u

// Runs steps until one waits or ends. Harmless when already running or ended.
void request_go(struct request *r);
void request_go_to(struct request *r, enum request_step step); // sets the step, then request_go()
void request_recycle(struct request *r);
void request_pool_free(struct proxy_worker *pw);
// Ends the request with an S3 error document (no body for HEAD). Nothing may have been sent. detail
// may be NULL.
enum step_result request_fail(struct request *r, enum err err, struct s3_error_detail *detail);
// The same in the words of the origin, as far as they are about this request. `packed` as in
// origin_fetch.error_answer; may be empty.
enum step_result request_fail_by_origin(struct request *r, enum err err, struct span packed);
// Headers every reply carries: x-amz-request-id, x-amz-id-2, Server, Cache-Status.
void request_common_headers(struct request *r, struct headers *headers);
void request_header(struct request *r, struct headers *headers, const char *name,
                    struct span value);
// "hit", "miss" and so on, as the access log and the counters say it; "" for RESULT_NONE.
const char *request_result_name(enum request_result result);
// "forebay; hit; detail=memory" for r's result; arena memory.
struct span request_cache_status(struct request *r);
// Makes the heap copy that messages carry; the caller owns one reference.
struct object_key *request_object_key(struct request *r);
// The same for any key of a bucket of an origin, as the principals of one realm see it.
struct object_key *request_object_key_in(struct request *r, struct origin *origin,
                                         struct span realm, struct span bucket, struct span key,
                                         const struct proxy_rule *rule);
// The epoch of the request's bucket now; what is remembered of the bucket is named by it.
uint64_t request_epoch(const struct request *r);
// Keys that are the principal's own towards the origin; NULL: the origin's.
const struct sigv4_credentials *request_origin_credentials(const struct request *r);

#define STEP(name, fn) enum step_result fn(struct request *r);
#include "proxy/steps.def"
#undef STEP

// --- serve_get.c ---------------------------------------------------------------------------------

// on_done: gives back everything, leaves fills. False: a disk read is still out, request_recycle()
// follows.
bool serve_get_done(struct request *r);
struct span
serve_get_version(const struct request *r); // ETag of the version answered with; empty: none

// --- serve_pass.c --------------------------------------------------------------------------------

void serve_pass_done(struct request *r); // on_done: cancels the relay

// --- invalidate.c: a write that passes through ---------------------------------------------------

// One key that a write may change. Embedded in pass_state; heap-owned by the proxy until `on_ended`
// (so a request may be gone first). fill-protocol 27, 28.
struct key_write {
    struct list_node node; // in the home's lists
    struct object_key *key;
    struct proxy_worker *at; // who waits
    void *ctx;
    void (*on_ready)(
        struct key_write *kw); // the old record is gone for good: the origin may be asked
    void (*on_ended)(
        struct key_write *kw); // nothing older can be seen by anyone: the client may be answered
    uint64_t floor;            // private from here
    bool has_moved;            // to the epoch its bucket has now
};
void invalidate_begin(struct proxy_worker *pw, struct key_write *kw); // on_ready later
void invalidate_end(struct proxy_worker *pw,
                    struct key_write *kw); // after on_ready; on_ended later

// A change of a bucket that may touch any of its keys: every object and listing of it that is held,
// in every realm, is out of reach from on_ready on, and again from on_ended on. Ownership as above.
struct bucket_write {
    struct proxy_worker *at; // who waits
    void *ctx;
    // The origin may be asked; not when bw->err says that the cache directory cannot note it.
    void (*on_ready)(struct bucket_write *bw);
    void (*on_ended)(struct bucket_write *bw); // the client may be answered
    enum err err;
    struct store_epoch_change change; // private from here
    struct task task;
};
void invalidate_bucket_begin(struct proxy_worker *pw, struct bucket_write *bw,
                             const struct origin *origin, struct span origin_bucket);
// After on_ready, with err or without; on_ended later.
void invalidate_bucket_end(struct proxy_worker *pw, struct bucket_write *bw);

// --- list_cache.c --------------------------------------------------------------------------------

void list_cache_drop_key(struct proxy_worker *pw, const struct object_key *key);

// --- access_log.c --------------------------------------------------------------------------------

enum err access_log_new(const struct proxy_options *options, unsigned worker_count,
                        struct access_log **ret_log, struct buf *ret_why) MUST_USE;
void access_log_free(struct access_log *log); // drains the rings
void access_log_write(struct access_log *log, const struct request *r, enum http_outcome outcome);
void access_log_reopen(struct access_log *log);

// --- a reader's ask, and its answers (fill-protocol 7-10) ----------------------------------------

// One attachment of a request to a fill, or one question to the home. Heap; lives on the request's
// worker; freed when its last answer has come and it has left. The ask travels with the message:
// whoever holds the message may change it.
enum reader_state {
    READER_IDLE,
    READER_ASKED,    // ROUTE, JOIN or CHECK is on its way: exactly one answer will come
    READER_ATTACHED, // exactly one FINAL will come, exactly one LEAVE will be sent
    READER_ENDED     // answered or final; data may still be queued
};

enum reader_outcome {
    OUTCOME_NONE,
    OUTCOME_DONE,   // everything up to the run's end was delivered, or is at `place`
    OUTCOME_REJOIN, // ask again
    OUTCOME_GONE,   // that version is no more (412)
    OUTCOME_ERROR,  // err
    OUTCOME_CHECKED // CHECK's answer: err, object
};

struct piece { // bytes of a fill, on their way to the socket
    struct list_node node;
    struct chunk *chunk;
    uint32_t offset, len;
    uint64_t first_byte; // in the object
};

struct reader {
    uint32_t magic;
    struct request *request; // NULL: gone; touched on the reader's worker only
    struct proxy_worker *at;
    struct object_key *key;

    // the ask
    struct store_object *object;    // version wanted (reference); NULL: whatever is current
    struct store_object *refused;   // ROUTE: this version answered 412
    bool check;                     // CHECK instead of ROUTE/JOIN
    bool check_strict;              // ROUTE, CHECK: only a request not yet sent will do
    bool has_sent;                  // bytes of `object` have reached the client
    bool skip_index;                // what the index says could not be read: ask the origin
    struct store_object *described; // FIRST: has this version's checksums (reference); or NULL
    uint64_t first_byte;            // wanted from here
    uint64_t block;
    uint32_t block_count; // at most this many
    uint32_t block_size_bytes;

    // the answer
    enum reader_state state;
    enum reader_outcome outcome;
    enum err err;
    struct proxy_worker *owner;
    struct fill_reader *attachment;
    struct store_object *answer; // HEAD: the version being delivered (reference)
    bool stored;                 // the run is being stored: falling behind is fine
    bool weak;                   // no strong ETag: this run cannot be joined with another
    uint64_t run_end_byte;       // exclusive, known after HEAD
    struct store_place place;    // PLACE or FINAL with a place: pinned
    struct span error_answer;    // origin's, packed; heap, freed with the reader
    bool left;                   // LEAVE sent
    bool lagging;                // pieces are dropped; the rest comes from disk
    struct list pieces;
    uint64_t queued_bytes;
};
#define READER_MAGIC 0x52454144u

struct reader *reader_new(struct proxy_worker *pw, struct request *r, struct object_key *key);
void reader_route(struct reader *reader); // to the home
void reader_join(struct reader *reader);  // to the owner of the stripe of `block`
void reader_check(struct reader *reader); // conditional HEAD by the home
// The request is no longer interested: everything is given back, now or when the last answer has
// come. The pointer is dead.
void reader_drop(struct reader *reader);
// Called on the request's worker for every change of a reader that still has its request.
void serve_get_on_reader(struct request *r, struct reader *reader);
void reader_taken(struct reader *reader, uint64_t bytes); // consumed from its pieces

// --- messages ------------------------------------------------------------------------------------

enum wire_type {
#define WIRE(name, fn) WIRE_##name,
#include "proxy/wires.def"
#undef WIRE
    WIRE_COUNT_
};

// One struct for all messages of the protocol; unused fields are zero. References in it are given
// away with it.
struct wire {
    struct message message;
    enum wire_type type;
    struct proxy_worker *from;
    struct object_key *key; // reference
    struct reader *reader;
    struct fill_reader *attachment;
    struct fill *fill;
    uint64_t token, floor, generation;
    struct store_object *object; // reference
    struct store_place place;
    struct chunk *chunk; // reference
    uint64_t first_byte, end_byte;
    uint32_t offset, len;
    uint64_t block;
    uint32_t block_count;
    enum reader_outcome outcome;
    enum err err;
    bool flag;
    struct span document; // an origin's error, packed; heap
    struct key_write *write;
    struct s3_checksum_state *sum; // PUBLISH: of [first_byte, end_byte); owned; NULL: none is known
};
struct wire *wire_new(struct proxy_worker *from, enum wire_type type, struct object_key *key);
void wire_send(struct proxy_worker *to, struct wire *wire);
struct span span_heap_copy(struct span s); // for wire.document; empty when memory is short

#define WIRE(name, fn) void fn(struct proxy_worker *pw, struct wire *wire);
#include "proxy/wires.def"
#undef WIRE

// With their worker: keys whose delete the disk still refuses, and their bars.
void homes_free(struct proxy_worker *pw);
void bars_free(struct proxy_worker *pw);

// Called by home.c on INVAL for the fills of this worker.
void fill_doom(struct proxy_worker *pw, struct hash128 hash);

// Builds a version from an origin's answer; NULL when it cannot be described (headers too large).
// `known` may be NULL; the same version's checksums are kept where this answer has none.
struct store_object *freshness_object_from_fetch(const struct object_key *key,
                                                 const struct origin_fetch *f,
                                                 const struct store_object *known);
// The lines of a version's headers that are checksums of the whole object; they stand last. Empty:
// none are known.
struct span freshness_checksums(struct span headers);
// fresh, or how stale.
enum freshness_verdict { FRESHNESS_FRESH, FRESHNESS_STALE };
enum freshness_verdict freshness_check(const struct proxy_rule *rule,
                                       const struct store_view *view);
// May this stale record be served while the origin fails?
bool freshness_stale_allowed(const struct proxy_rule *rule, const struct store_view *view);

// --- whole_sum.c: what the origin says its objects add up to -------------------------------------

// Kind and value of a checksum of the whole object that can be computed here; NONE: there is none.
enum s3_checksum whole_sum_wanted(const struct store_object *object, struct span *ret_value);
// Is `sum`, of all bytes of `object`, what the origin says? If not that is counted and logged. Ends
// the sum.
bool whole_sum_is_right(struct proxy_worker *pw, const struct object_key *key,
                        const struct store_object *object, struct s3_checksum_state *sum) MUST_USE;
// One run of a larger object, on the key's home; takes `sum` over, whose kind combines. False: now
// the object is whole, and it is not what the origin says.
bool whole_sum_add(struct proxy_worker *pw, const struct object_key *key,
                   const struct store_object *object, uint64_t first_byte, uint64_t end_byte,
                   struct s3_checksum_state *sum) MUST_USE;
void whole_sums_free(struct whole_sums *sums); // with its worker; NULL is fine

#endif
