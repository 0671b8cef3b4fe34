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

// One cache rule. The configuration's rules are complete (the caller fills in the defaults), and
// the last rule of a table should match everything ("**"). A rule by command (proxy_pin()) has only
// `match`, `pin`, `group` and `until_s`.
struct proxy_rule {
    const char *match; // glob for "bucket/key"; its syntax is in rules.c
    const char *where; // position in the configuration, "FILE:LINE", or "default"; for explanations
    bool cache;
    enum proxy_freshness freshness;
    uint64_t ttl_ms, stale_if_error_ms, list_ttl_ms;
    uint64_t max_object_size_bytes; // 0: no limit
    uint32_t block_size_bytes;
    uint64_t readahead_bytes; // maximum bytes fetched ahead of a sequential reader; 0: none
    unsigned group;           // the policy's group of the rule's objects, see store.h
    // The settings that `group` was made from, for explanations.
    unsigned priority, share_percent;
    bool pin;
    uint64_t until_s; // Unix time at which the rule ends; 0: never
};

// Returns the first rule that matches an object, or a bucket's listings (an empty key). Returns the
// last rule if none matches. Pure.
const struct proxy_rule *proxy_rules_find(const struct proxy_rule *rules, unsigned count,
                                          struct span bucket, struct span key);

struct proxy_bucket {
    const char *name; // the name that clients use
    struct origin *origin;
    const char *origin_bucket;
};

enum proxy_auth_mode { PROXY_AUTH_OPEN, PROXY_AUTH_VERIFY };
enum proxy_access_log_format { PROXY_ACCESS_LOG_JSON, PROXY_ACCESS_LOG_S3, PROXY_ACCESS_LOG_TEXT };

// Options that may change while the proxy runs. Texts and lists are copied.
struct proxy_settings {
    const struct proxy_rule *rules; // the first that matches applies
    unsigned rule_count;
    const char *const *domains;
    unsigned domain_count;
    const char *const *allowed_origins; // origins of web pages that may send requests in open mode
    unsigned allowed_origin_count;
    bool relays_sts; // relay STS calls from loopback and unix sockets to sts_origin, if that is set
    bool sts_over_tls; // relay them also from TLS listeners
    bool logs_access;
    enum proxy_access_log_format access_log_format;
    double access_log_sample; // fraction of requests to log, 0..1; errors are always logged
    bool obey_no_cache, obey_no_store;  // cache.client_directives
    const struct proxy_bucket *buckets; // the origins in it must live as long as the proxy
    unsigned bucket_count;
};

// Maximum number of places in all settings since the start together. A place is an origin and a
// bucket name there. The caller of proxy_set() refuses settings with more (command_origins.c). A
// place that a reload removed still counts, because copies may be cached under its name. A write
// invalidates its key under every name of the same place.
#define PROXY_PLACES_MAX 1280u

struct proxy_options {
    struct loop *loop;
    struct store *store;
    struct origin *default_origin; // for buckets that the settings do not list
    enum proxy_auth_mode auth_mode;
    struct access_keys *access_keys; // for PROXY_AUTH_VERIFY; the proxy takes a reference
    const char *realm;
    struct origin *sts_origin; // receives AssumeRoleWithWebIdentity; NULL: the call is not relayed
    const char *access_log_path; // NULL: off; "-": stdout
    struct proxy_settings settings;
};

struct proxy;
enum err proxy_new(const struct proxy_options *options, struct proxy **ret_proxy,
                   struct buf *ret_why) MUST_USE;
void proxy_free(struct proxy *proxy); // called after loop_stop()
// Returns the handler for http_options.handler.
struct http_handler proxy_handler(struct proxy *proxy);
void proxy_reopen_logs(struct proxy *proxy); // any thread
// Replaces the keys for auth.mode verify. Any thread.
void proxy_set_access_keys(struct proxy *proxy, struct access_keys *access_keys);

// Returns by how much the clock of the last client that was refused for it differs from ours;
// positive: it is ahead. Any thread.
int64_t proxy_client_skew_s(const struct proxy *proxy);

// Opens a file for the access log, to be passed to proxy_set(). NULL: off; "-": stdout. Blocks.
struct proxy_access_log_file;
enum err proxy_access_log_open(const char *path, struct proxy_access_log_file **ret_file,
                               struct buf *ret_why) MUST_USE;
// Returns the error that proxy_access_log_open() would return, but opens and creates nothing.
enum err proxy_access_log_check(const char *path, struct buf *ret_why) MUST_USE;
// Call it if proxy_set() has not taken the file. `file` may be NULL.
void proxy_access_log_close(struct proxy_access_log_file *file);
// Changes the settings. A request uses the settings that its worker has when the request begins.
// Takes ownership of `log_file`; NULL keeps the current one. Posts `told` when every worker has the
// settings; `told` must live until loop_stop(). Called by one thread, which is not a worker.
void proxy_set(struct proxy *proxy, const struct proxy_settings *settings,
               struct proxy_access_log_file *log_file, sem_t *told);

// --- requests as they end (access_log_live.c) ----------------------------------------------------
//
// While this is turned on, each request that ends becomes a line of JSON, as with access_log.format
// json. One thread, not a worker, takes the lines. It waits until the descriptor is readable, which
// means that there are lines. It should then wait a little longer, so that it takes many lines at
// once.
int proxy_live_fd(const struct proxy *proxy);
void proxy_live_turn(struct proxy *proxy, bool is_on);
// `lines` are whole lines. They are valid during the call.
typedef void (*proxy_live_fn)(void *ctx, struct span lines);
// Passes the waiting lines to `on_lines`. Returns how many lines were lost because they did not
// fit.
uint64_t proxy_live_take(struct proxy *proxy, proxy_live_fn on_lines, void *ctx);

// --- what operators ask and tell (inspect.c, evict.c, warm.c) ------------------------------------
//
// Any thread may call these functions. The answer arrives by a callback on a worker, and is valid
// during that callback only. Callers name buckets as clients name them. The functions see the same
// bytes as clients that have no realm of their own.

// Tells whether the next read of the cached bytes needs the origin, by the index's record alone.
enum proxy_copy {
    PROXY_COPY_NONE, // the index has no record of the object
    // recovery found the object in segments; the origin must confirm it before its first use
    PROXY_COPY_REBUILT,
    PROXY_COPY_STALE, // by its rule, the origin must confirm it
    PROXY_COPY_FRESH
};

// The cached state of an object.
#define PROXY_MAP_CELLS 64u
struct proxy_object {
    struct span bucket, key;
    const struct proxy_rule *rule;
    const char *origin;             // as origin_describe() renders it
    bool oddities[ORIGIN_ODDITIES]; // oddities of the origin's store
    struct span origin_bucket;
    unsigned home;        // index of the worker that is the key's home
    enum proxy_copy copy; // with PROXY_COPY_NONE, the fields below are unknown
    bool is_at_default;   // its origin is the default one
    // A write of unknown outcome may change it, or its origin was away for some starts. So the
    // origin must confirm it first.
    bool is_doubted;
    uint64_t doubted_until_s; // end of the doubt on the wall clock; 0: it is over, or none began
    bool may_be_stale; // while the origin fails, reads get the stale copy: cache.stale_if_error
    bool is_changed;   // a listing showed another version or size
    uint64_t age_ms;   // time since the origin confirmed it; UINT64_MAX: unknown
    // If the cache does not know the object: its size in a listing or at the origin, or 0.
    uint64_t size_bytes;
    uint32_t block_size_bytes;
    char etag[80]; // as sent; "": the cached header could not be read without waiting
    // "known", "none" (the origin has none), or "unknown" (the next reader that wants the object's
    // checksums asks the origin).
    const char *checksums;
    uint64_t block_count, cached_blocks, cached_bytes;
    bool has_realms;  // clients with a realm of their own may have other copies cached
    bool has_answers; // the cache keeps answers to HEAD without bytes, of this or other objects
    enum origin_forbids forbids;   // why the origin's last answer is not stored; NOTHING: unknown
    bool is_wanted;                // if the uncached bytes were read now, they would be kept
    uint64_t first_byte, end_byte; // the range that the caller asked about
    // blocks of the range, and how many of them are cached
    uint64_t range_blocks, range_cached_blocks;
    unsigned cell_count; // how many cells the range is divided into, at most one per block
    uint32_t cell_blocks[PROXY_MAP_CELLS], cell_cached_blocks[PROXY_MAP_CELLS];
    // The policy's view of the range's first window. NULL: the policy was not asked.
    const struct store_explain *policy;
    // `trouble` has texts if the next read needs the origin, and the origin cannot answer now.
    // Otherwise, if the caller wants the origin to be asked, origin_err is the origin's
    // answer about an object without a record. ERR_CANCELLED: the answer took longer than
    // PROXY_EXPLAIN_ASK_MS.
    struct origin_trouble_text trouble;
    enum err origin_err;
};
// Returns true if the object is answered from the cache without asking the origin.
static inline bool proxy_object_is_fresh(const struct proxy_object *object)
{
    return object->copy == PROXY_COPY_FRESH && !object->is_doubted;
}
// Returns why a rule does not store objects of this size, if it does not: REFUSAL_rule or
// REFUSAL_too_large.
static inline enum refusal proxy_rule_excludes(const struct proxy_rule *rule, uint64_t size_bytes)
{
    bool is_too_large = rule->max_object_size_bytes > 0 && size_bytes > rule->max_object_size_bytes;
    return !rule->cache ? REFUSAL_rule : is_too_large ? REFUSAL_too_large : REFUSAL_none;
}
#define PROXY_EXPLAIN_ASK_MS 3000u
// Explains the cached state of an object. `end_byte` UINT64_MAX: to the object's end.
// `asks_origin`: if the cache does not know the object, asks the origin whether it exists.
// `asks_policy`: also asks the policy why the object is kept or not. That may wait for the cache
// directory, so another thread does it.
void proxy_explain(struct proxy *proxy, struct span bucket, struct span key, uint64_t first_byte,
                   uint64_t end_byte, bool asks_policy, bool asks_origin,
                   void (*done)(void *ctx, const struct proxy_object *object), void *ctx);

// The first reason why the cache will or will not answer the next read. The texts are constants.
struct proxy_verdict {
    const char *reason, *text, *remedy;
};
struct proxy_verdict proxy_verdict(const struct proxy_object *object,
                                   const struct store_summary *store);

// The last requests, latest first. Error, bucket, key and client may contain any bytes; the other
// texts are the server's own.
#define PROXY_RECENT_MAX 50u
struct proxy_recent {
    uint64_t ended_us; // when the request ended, on the monotonic clock
    uint64_t first_byte_us, origin_us, total_us, bytes;
    const char *op, *result, *reason, *source; // "": none
    const char *why; // why an origin failed, or why Forebay refused the request; "": neither
    unsigned status;
    char error[64];                                // S3's code of an error reply; "": none
    char id[17], client[56], bucket[64], key[200]; // `key` is shown as log.keys says
    bool key_is_cut;
};
typedef void proxy_recent_fn(void *ctx, const struct proxy_recent *items, unsigned count);
// done() runs on a worker. Any thread.
void proxy_recent(struct proxy *proxy, proxy_recent_fn *done, void *ctx);

// Counters of each bucket since the start, sorted by name, at most 64 buckets. "_other" sums up all
// further buckets. Any thread.
struct proxy_bucket_sum {
    const char *name;
    uint64_t requests, hits, bypassed, memory_bytes, disk_bytes, origin_bytes;
};
typedef void proxy_bucket_fn(void *ctx, const struct proxy_bucket_sum *bucket);
void proxy_buckets(const struct proxy *proxy, proxy_bucket_fn *on_bucket, void *ctx);
void proxy_bucket_metrics(const struct proxy *proxy,
                          struct buf *out); // appends Prometheus text

// Lists a page of the origin's objects and tells what is cached of each. The origin is asked for
// the names, because the index does not contain them. An object that is gone at the origin is
// therefore not listed.
#define PROXY_LIST_MAX 500u
struct proxy_listing {
    enum err err;
    const struct proxy_object *objects;
    unsigned count;
    struct span next; // pass it as `after` to get the next page; empty: this is the last
};
void proxy_list(struct proxy *proxy, struct span bucket, struct span prefix, struct span after,
                unsigned max, void (*done)(void *ctx, const struct proxy_listing *listing),
                void *ctx);

// Evicts the object, or the whole bucket if the key is empty. Requests that begin after done() do
// not read the bytes that were cached. ERR_NOT_RECORDED: the eviction could not be written to the
// cache directory, so a later process may find the bytes again. `was_cached`: the cache had bytes
// or a kept answer of the object, in any realm. It is false for a bucket, which is not searched.
void proxy_evict(struct proxy *proxy, struct span bucket, struct span key,
                 void (*done)(void *ctx, enum err err, bool was_cached), void *ctx);

// Rules by command: each pins an object or a prefix until a given time, and outlasts restarts.
// Bytes that are already cached are pinned soon: when they are read, or when a low-priority review
// finds them.
#define PROXY_PINS_MAX 256u
#define PROXY_PINS_BYTES_MAX (2u << 20) // maximum size of the file that lists all pins
struct proxy_pin {
    struct span bucket, key; // is_prefix: all keys that begin with `key`; empty: the whole bucket
    bool is_prefix;
    uint64_t until_s; // Unix time at which the pin ends; 0: never
    bool is_changed;  // result: the call added the pin, changed its end, or removed it
};
// Pins all items, or with `pins` false removes their pins. On an error none is changed. The caller
// owns the items and their names, and keeps them until done(), which runs on any thread. ERR_OK:
// every worker uses the new list, and the list outlasts restarts. ERR_LIMIT: there would be too
// many pins. Any other error: the list could not be written to the cache directory. `why` is a text
// for people.
void proxy_pin(struct proxy *proxy, bool pins, struct proxy_pin *items, unsigned count,
               void (*done)(void *ctx, enum err err, const char *why), void *ctx);
// Removes pins that have ended from the list. Call it once a second, on one thread.
void proxy_pins_tend(struct proxy *proxy);
// Calls `on_pin` for each pin, sorted by name, on the calling thread. The pin is valid during the
// call.
void proxy_pins_list(struct proxy *proxy, void (*on_pin)(void *ctx, const struct proxy_pin *pin),
                     void *ctx);

// A job fills the cache before a client asks. All requests of clients take precedence. Each job
// runs on one worker. It does not fetch bytes that are cached and current, so a job that is started
// again continues where the last one stopped.
struct proxy_warm;
struct proxy_warm_options {
    unsigned concurrency; // maximum number of concurrent requests to the origin
    uint64_t bytes_per_s; // 0: no limit
    bool allows_empty;    // a prefix without objects is no failure
};
struct proxy_warm_item {
    struct span bucket, key;
    bool is_prefix;
    uint64_t first_byte, end_byte; // range of a single object; end_byte UINT64_MAX: to its end
};
enum proxy_warm_state { PROXY_WARM_RUNS, PROXY_WARM_DONE, PROXY_WARM_CANCELLED };
#define PROXY_WARM_PENDING_MAX 65536u // items of a job that have not begun yet
#define PROXY_WARM_FAILURES_MAX 16u   // failures with a text, per job
#define PROXY_WARM_REASONS_MAX 16u    // reasons of failures that a job counts
struct proxy_warm_progress {
    enum proxy_warm_state state;
    bool is_counted; // the job has found everything to do: `objects` and `bytes` are final
    bool is_idle;    // everything added so far is done, and more may be added
    uint64_t objects, bytes;
    uint64_t objects_done, bytes_done; // already cached
    uint64_t objects_cached;  // of objects_done: those that were cached before the job reached them
    uint64_t objects_failed;  // objects that could not be fetched, and prefixes_failed
    uint64_t objects_missing; // of objects_failed: those that the origin does not have
    uint64_t prefixes_failed; // prefixes that could not be listed, or have no objects
    uint64_t objects_refused; // objects that the cache could not keep
    uint64_t objects_excluded;     // of objects_refused: those that their rules do not store
    uint64_t bytes_fetched;        // bytes that this job fetched from the origin
    unsigned inflight;             // requests in flight
    enum refusal waits;            // why the job sends no request now
    uint64_t elapsed_us, ended_us; // ended_us is monotonic; 0: the job runs
    unsigned failure_count;
    const char *failures[PROXY_WARM_FAILURES_MAX]; // valid as long as the job
    unsigned reason_count;
    struct proxy_warm_reason {
        const char *first; // text of the first failure for this reason; valid as long as the job
        uint64_t count;    // objects and prefixes that failed or were not kept for this reason
    } reasons[PROXY_WARM_REASONS_MAX];
};
// Returns the caller's reference to a new job, which begins when items are added. All functions of
// jobs: any thread.
struct proxy_warm *proxy_warm_new(struct proxy *proxy, const struct proxy_warm_options *options);
// Returns the maximum memory that all jobs together use for names. A second limit of this size
// applies to the objects that they work on.
uint64_t proxy_warm_room_bytes(void);
// Returns true if the job (NULL: a new one) has room for these items. One thread at a time may call
// this and then add them.
bool proxy_warm_has_room(const struct proxy *proxy, const struct proxy_warm *job,
                         const struct proxy_warm_item *items, unsigned count);
// Adds the items. ERR_LIMIT: too many items are waiting, so none is added. There is room again once
// some of them have begun.
enum err proxy_warm_add(struct proxy_warm *job, const struct proxy_warm_item *items,
                        unsigned count) MUST_USE;
// Declares that no more items will be added. The job then ends when all are done.
void proxy_warm_close(struct proxy_warm *job);
void proxy_warm_cancel(struct proxy_warm *job);
void proxy_warm_read(const struct proxy_warm *job, struct proxy_warm_progress *ret_progress);
void proxy_warm_unref(struct proxy_warm *job); // drops a reference; the job continues; NULL is fine

#endif
