// SPDX-License-Identifier: Apache-2.0
// Handles requests: the only room that sees both the client's side and the bytes' side. A request
// is a table of steps (request.c). A GET is answered from the store, from a run in flight, or by
// starting one (serve_get.c, room fill). Everything else passes through (serve_pass.c).
#ifndef FOREBAY_PROXY_PROXY_H
#define FOREBAY_PROXY_PROXY_H

#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>

#include "auth/auth.h"
#include "base/bytes.h"
#include "base/error.h"
#include "http/http.h"
#include "loop/loop.h"
#include "origin/origin.h"
#include "s3/s3.h"
#include "stats/stats.h"
#include "store/store.h"

enum proxy_freshness { PROXY_FRESHNESS_TTL, PROXY_FRESHNESS_IMMUTABLE, PROXY_FRESHNESS_STRICT };

// One rule. Those of the configuration are complete (the caller fills in the defaults), and the
// last one of a table should match everything ("**"). A rule by command (proxy_pin()) has only
// `match`, `pin`, `group` and `until_s`.
struct proxy_rule {
    const char *match; // glob on "bucket/key": * within a segment, **, ?, {a,b}
    const char *where; // "FILE:LINE" for explanations, or "default"
    bool cache;
    enum proxy_freshness freshness;
    uint64_t ttl_ms, stale_if_error_ms, list_ttl_ms;
    uint64_t max_object_size_bytes; // 0: no limit
    uint32_t block_size_bytes;
    uint64_t readahead_bytes; // most that is fetched ahead of a sequential reader; 0: nothing
    unsigned group;           // the policy's group of its objects, see store.h
    // For explanations: what the rule says about that.
    unsigned priority, share_percent;
    bool pin;
    uint64_t until_s; // wall clock, when it ends; 0: never
};

// Returns the rule for an object, or for a bucket's listings (an empty key): the first that
// matches, else the last. Pure.
const struct proxy_rule *proxy_rules_find(const struct proxy_rule *rules, unsigned count,
                                          struct span bucket, struct span key);

struct proxy_bucket {
    const char *name; // that clients use
    struct origin *origin;
    const char *origin_bucket;
};

enum proxy_auth_mode { PROXY_AUTH_OPEN, PROXY_AUTH_VERIFY };
enum proxy_access_log_format { PROXY_ACCESS_LOG_JSON, PROXY_ACCESS_LOG_S3, PROXY_ACCESS_LOG_TEXT };

// Options that may change while the proxy runs. Texts and lists are copied.
struct proxy_settings {
    const struct proxy_rule *rules; // first match wins
    unsigned rule_count;
    const char *const *domains;
    unsigned domain_count;
    const char *const *allowed_origins; // of web pages, in open mode
    unsigned allowed_origin_count;
    bool relays_sts;   // to sts_origin, if there is one, from loopback and unix sockets
    bool sts_over_tls; // also from TLS listeners
    bool logs_access;
    enum proxy_access_log_format access_log_format;
    double access_log_sample;           // 0..1; errors are always logged
    bool obey_no_cache, obey_no_store;  // cache.client_directives
    const struct proxy_bucket *buckets; // their origins live as long as the proxy
    unsigned bucket_count;
};

// Limit of places (an origin and a bucket there) in all settings since the start together;
// proxy_set() refuses more. A place that a reload removed still counts: cached copies may have its
// name, and a write invalidates its key under each name of the same place.
#define PROXY_PLACES_MAX 1280u

struct proxy_options {
    struct loop *loop;
    struct store *store;
    struct origin *default_origin; // for buckets not listed
    enum proxy_auth_mode auth_mode;
    struct access_keys *access_keys; // verify; a reference is taken
    const char *realm;
    struct origin *sts_origin;   // where AssumeRoleWithWebIdentity goes; NULL: nowhere
    const char *access_log_path; // NULL: off; "-": stdout
    struct proxy_settings settings;
};

struct proxy;
enum err proxy_new(const struct proxy_options *options, struct proxy **ret_proxy,
                   struct buf *ret_why) MUST_USE;
void proxy_free(struct proxy *proxy); // after loop_stop()
// Returns the handler for http_options.handler.
struct http_handler proxy_handler(struct proxy *proxy);
void proxy_reopen_logs(struct proxy *proxy); // any thread
// Replaces the keys for auth.mode verify. Any thread.
void proxy_set_access_keys(struct proxy *proxy, struct access_keys *access_keys);

// Opens a file for the access log, for proxy_set(). NULL: off; "-": stdout. Blocks.
struct proxy_access_log_file;
enum err proxy_access_log_open(const char *path, struct proxy_access_log_file **ret_file,
                               struct buf *ret_why) MUST_USE;
void proxy_access_log_close(
    struct proxy_access_log_file *file); // only if proxy_set() did not get it; NULL is fine
// Changes the settings. Requests that begin after their worker has received the new settings use
// them; requests in flight keep the old ones. Takes over `log_file`; NULL: as before. Posts `told`
// when every worker has the settings; `told` must live until loop_stop(). One thread, not a worker.
void proxy_set(struct proxy *proxy, const struct proxy_settings *settings,
               struct proxy_access_log_file *log_file, sem_t *told);

// --- requests as they end (access_log_live.c) ----------------------------------------------------
//
// While this is turned on, each request that ends becomes a line of JSON, as with access_log.format
// json. One thread, not a worker, takes the lines. It waits until the descriptor is readable, which
// means that there are lines. It should then wait a little longer, so that many come at once.
int proxy_live_fd(const struct proxy *proxy);
void proxy_live_turn(struct proxy *proxy, bool is_on);
// Whole lines, valid during the call.
typedef void (*proxy_live_fn)(void *ctx, struct span lines);
// Passes the lines that have come to `on_lines`. Returns how many did not fit and are lost.
uint64_t proxy_live_take(struct proxy *proxy, proxy_live_fn on_lines, void *ctx);

// --- what operators ask and tell (inspect.c, evict.c, warm.c) ------------------------------------
//
// Any thread may call; the answer comes on a worker, and is valid during its call only. Callers
// name buckets as clients name them. The functions see the same bytes as clients without a realm of
// their own.

// Whether the next read of the cached bytes needs the origin, judging by the index's record only.
enum proxy_copy {
    PROXY_COPY_NONE,    // the index has no record
    PROXY_COPY_REBUILT, // recovery found it in segments: the origin confirms it before its first
                        // use
    PROXY_COPY_STALE,   // the origin confirms it, by its rule
    PROXY_COPY_FRESH
};

// The cached state of an object.
#define PROXY_MAP_CELLS 64u
struct proxy_object {
    struct span bucket, key;
    const struct proxy_rule *rule;
    const char *origin;             // as origin_describe() says it
    bool oddities[ORIGIN_ODDITIES]; // of its store
    struct span origin_bucket;
    unsigned home;        // the worker that decides for the key
    enum proxy_copy copy; // with NONE, nothing that follows is known of the object
    bool is_doubted;      // a write of unknown outcome may change it: the origin confirms it first
    bool is_changed;      // a listing has named another version or size
    uint64_t age_ms;      // since it was confirmed; UINT64_MAX: not known
    uint64_t size_bytes;  // if the object is not known: as a listing has it, else 0
    uint32_t block_size_bytes;
    char etag[80]; // as sent; "": what is cached could not be read without waiting
    // "known", "none" (the origin names none), or "unknown": the next reader that wants the
    // object's checksums asks the origin.
    const char *checksums;
    uint64_t block_count, cached_blocks, cached_bytes;
    enum origin_forbids forbids;   // why the origin's last answer is not stored; NOTHING: not known
    bool is_wanted;                // the bytes that are not cached would be kept if read now
    uint64_t first_byte, end_byte; // the range that was asked about
    uint64_t range_blocks, range_cached_blocks; // blocks that the range touches
    unsigned cell_count;                        // equal parts of the range, at most one per block
    uint32_t cell_blocks[PROXY_MAP_CELLS], cell_cached_blocks[PROXY_MAP_CELLS];
    const struct store_explain *policy; // of the range's first window; NULL: it was not asked
    // Set if the caller wants the origin to be asked about an object that is not cached as a whole.
    // `trouble` has texts while the origin cannot answer. Otherwise origin_err is the origin's
    // answer about an object without a record; ERR_CANCELLED: it took longer than
    // PROXY_EXPLAIN_ASK_MS.
    struct origin_trouble_text trouble;
    enum err origin_err;
};
// Returns true if the object is answered from the cache without asking the origin.
static inline bool proxy_object_is_fresh(const struct proxy_object *object)
{
    return object->copy == PROXY_COPY_FRESH && !object->is_doubted;
}
#define PROXY_EXPLAIN_ASK_MS 3000u
// Explains the cached state of an object. `end_byte` UINT64_MAX: to its end. `asks_origin`: if the
// object is not known, asks the origin whether it exists. `asks_policy`: also asks the policy why
// it is kept or not. That may wait for the cache directory, so another thread does it.
void proxy_explain(struct proxy *proxy, struct span bucket, struct span key, uint64_t first_byte,
                   uint64_t end_byte, bool asks_policy, bool asks_origin,
                   void (*done)(void *ctx, const struct proxy_object *object), void *ctx);

// The first reason why the next read is answered from the cache, or is not; texts are constants.
struct proxy_verdict {
    const char *reason, *text, *remedy;
};
struct proxy_verdict proxy_verdict(const struct proxy_object *object,
                                   const struct store_summary *store);

// The last requests, the latest first. Texts are the server's own; bucket, key and client may hold
// any bytes.
#define PROXY_RECENT_MAX 50u
struct proxy_recent {
    uint64_t ended_us; // by the monotonic clock
    uint64_t first_byte_us, total_us, bytes;
    const char *op, *result, *reason, *source; // "": there is none
    unsigned status;
    char id[17], client[56], bucket[64], key[200]; // the key as log.keys shows it
    bool key_is_cut;
};
typedef void proxy_recent_fn(void *ctx, const struct proxy_recent *items, unsigned count);
// done() runs on a worker. Any thread.
void proxy_recent(struct proxy *proxy, proxy_recent_fn *done, void *ctx);

// Counters of each bucket since the start, in order of their names, at most 64; "_other" is the
// rest. Any thread.
struct proxy_bucket_sum {
    const char *name;
    uint64_t requests, hits, bypassed, memory_bytes, disk_bytes, origin_bytes;
};
typedef void proxy_bucket_fn(void *ctx, const struct proxy_bucket_sum *bucket);
void proxy_buckets(const struct proxy *proxy, proxy_bucket_fn *on_bucket, void *ctx);
void proxy_bucket_metrics(const struct proxy *proxy,
                          struct buf *out); // as Prometheus text; appended

// Returns a page of the origin's listing, and what is cached of each object. The index knows no
// names, so the origin is asked for them: an object that is gone at the origin is not listed.
#define PROXY_LIST_MAX 500u
struct proxy_listing {
    enum err err;
    const struct proxy_object *objects;
    unsigned count;
    struct span next; // `after` of the next page; empty: there is none
    bool has_realms;  // clients with a realm of their own may see more
    bool has_answers; // HEADs of objects that the cache does not have are kept, of these or others
};
void proxy_list(struct proxy *proxy, struct span bucket, struct span prefix, struct span after,
                unsigned max, void (*done)(void *ctx, const struct proxy_listing *listing),
                void *ctx);

// Evicts the object (an empty key: the whole bucket). Requests that begin after done() read none of
// the cached bytes. ERR_LIMIT: the eviction could not be written to the cache directory; a later
// process may find the bytes again.
void proxy_evict(struct proxy *proxy, struct span bucket, struct span key,
                 void (*done)(void *ctx, enum err err), void *ctx);

// Rules by command: each pins an object or a prefix, until a time, and lasts over restarts. It soon
// holds for cached bytes too, as they are read or a low-priority review finds them.
#define PROXY_PINS_MAX 256u
#define PROXY_PINS_BYTES_MAX (2u << 20) // of all of them as text
struct proxy_pin {
    struct span bucket, key; // is_prefix: every key that begins with it; empty: the whole bucket
    bool is_prefix;
    uint64_t until_s; // wall clock; 0: for good
    bool is_changed;  // result: the pin was added, got another end, or was removed
};
// Pins the items or (`pins` false) removes their pins: all of them, or none. The items and their
// names stay the caller's, and must live until done(). done() is called on any thread. ERR_OK:
// every worker uses the new list, and it lasts over restarts. ERR_LIMIT: too many. Any other error:
// the list could not be written to the cache directory. `why` is a text for people.
void proxy_pin(struct proxy *proxy, bool pins, struct proxy_pin *items, unsigned count,
               void (*done)(void *ctx, enum err err, const char *why), void *ctx);
// Removes pins that have ended from the list. Call it once a second, on one thread.
void proxy_pins_tend(struct proxy *proxy);
// Calls `on_pin` for each pin, in the order of names, on the calling thread. The pin is valid
// during the call.
void proxy_pins_list(struct proxy *proxy, void (*on_pin)(void *ctx, const struct proxy_pin *pin),
                     void *ctx);

// Jobs that fill the cache before a client asks, at a lower priority than all demand, on one worker
// each. A job does not fetch bytes again that are cached and current, so a job that is started
// again goes on where the last one stopped.
struct proxy_warm;
struct proxy_warm_options {
    unsigned concurrency; // requests to the origin at once
    uint64_t bytes_per_s; // 0: no limit
};
struct proxy_warm_item {
    struct span bucket, key;
    bool is_prefix;
    uint64_t first_byte, end_byte; // of an object; UINT64_MAX: to its end
};
enum proxy_warm_state { PROXY_WARM_RUNS, PROXY_WARM_DONE, PROXY_WARM_CANCELLED };
#define PROXY_WARM_PENDING_MAX 65536u // items of a job that are not begun yet
#define PROXY_WARM_FAILURES_MAX 16u   // with a text each
struct proxy_warm_progress {
    enum proxy_warm_state state;
    bool is_counted; // all there is to do is known: objects and bytes are final
    bool is_idle;    // all that was added is done, and more may be
    uint64_t objects, bytes;
    uint64_t objects_done, bytes_done; // cached by now
    uint64_t objects_cached;           // of these, cached before the job came to them
    uint64_t objects_failed;           // could not be fetched
    uint64_t objects_refused;          // could not be kept
    uint64_t bytes_fetched;            // by this job
    unsigned inflight;                 // requests
    enum refusal waits;                // why it sends no request now
    uint64_t elapsed_us;
    unsigned failure_count;
    const char *failures[PROXY_WARM_FAILURES_MAX]; // live as long as the job
};
// Returns the caller's reference to a new job, which begins when something is added. All of these
// functions: any thread.
struct proxy_warm *proxy_warm_new(struct proxy *proxy, const struct proxy_warm_options *options);
// Returns the limit of memory that all jobs use for names. A second limit of this size is for the
// objects at hand.
uint64_t proxy_warm_room_bytes(void);
// Returns true if the job (NULL: a new one) has room for these items. One thread at a time may call
// this and then add them.
bool proxy_warm_has_room(const struct proxy *proxy, const struct proxy_warm *job,
                         const struct proxy_warm_item *items, unsigned count);
// Adds the items. ERR_LIMIT: too many are waiting already, so none is added. There is room again
// once some have begun.
enum err proxy_warm_add(struct proxy_warm *job, const struct proxy_warm_item *items,
                        unsigned count) MUST_USE;
void proxy_warm_close(struct proxy_warm *job); // no more will be added: it ends when all is done
void proxy_warm_cancel(struct proxy_warm *job);
void proxy_warm_read(const struct proxy_warm *job, struct proxy_warm_progress *ret_progress);
void proxy_warm_unref(struct proxy_warm *job); // the job goes on; NULL is fine

#endif
