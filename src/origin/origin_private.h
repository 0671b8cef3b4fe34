// SPDX-License-Identifier: Apache-2.0
// The types that the files of this room share: the origin, its part on each worker, the head of
// every running call, and the interface of a driver.
//
// Threads: struct origin is immutable after origin_new() except for its atomics. struct
// origin_worker and every call belong to one worker. After loop_stop() all of it belongs to the
// thread that frees the origin.
#ifndef FOREBAY_ORIGIN_ORIGIN_PRIVATE_H
#define FOREBAY_ORIGIN_ORIGIN_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/list.h"
#include "origin/origin.h"

#define ORIGIN_MAGIC 0x6f726967u
#define ORIGIN_CALL_MAGIC 0x63616c6cu
// Slots of an origin, on all workers together, until demand needs more.
#define ORIGIN_SLOTS_FIRST 64u
#define ORIGIN_WAITERS_MAX 16384u // calls that wait for a slot, per worker
#define ORIGIN_LINES 64u          // waiting clients with a line of their own
// The longest wait for a slot; after it the origin counts as too slow for the demand.
#define ORIGIN_SLOT_WAIT_MS 30000u
// A request refused with SlowDown is retried for this long while the origin answers other requests.
// It does if it answered one within ORIGIN_ANSWERS_US.
#define ORIGIN_SLOWDOWN_WAIT_US 20000000u
#define ORIGIN_ANSWERS_US 5000000u
#define ORIGIN_KEPT_SHARE 8u           // 1/8 of the slots, at least one, is not for relays
#define ORIGIN_ERROR_BODY_MAX 65536u   // bytes kept of an error document
#define ORIGIN_ERROR_ANSWER_MAX 32768u // of one that each reader of a fill gets a copy of
#define ORIGIN_ARENA_MAX (1u << 20)    // memory of one call
#define ORIGIN_SERVER_HEADERS_MAX 16u  // different Server values remembered

struct origin_call;
struct origin_driver;
struct origin_worker;
struct origin_probe;

// The trouble of an origin as a whole; origin_trouble.c.
enum origin_trouble {
    ORIGIN_TROUBLE_NONE,
#define TROUBLE(name, why, component, text, remedy) ORIGIN_TROUBLE_##name,
#include "origin/troubles.def"
#undef TROUBLE
    ORIGIN_TROUBLE_COUNT_
};

// Calls are limited by kind. A fetch returns its slot if its reader is slow. A relay may be unable
// to: a slow upload, or a read whose version has no usable name. No client waits for a call AHEAD.
enum origin_call_kind {
    ORIGIN_CALL_FETCH,
    ORIGIN_CALL_RELAY,
    ORIGIN_CALL_AHEAD,
    ORIGIN_CALL_KINDS
};

// The functions of a driver for its running calls.
struct origin_call_ops {
    // One of these two runs later if origin_slot_enter() returned no slot: `ready` with one,
    // `refused` after ORIGIN_SLOT_WAIT_MS without.
    void (*ready)(struct origin_call *call);
    void (*refused)(struct origin_call *call, enum err err);
    void (*pause)(struct origin_call *call);
    void (*resume)(struct origin_call *call);
    void (*resume_upload)(struct origin_call *call);
    void (*cancel)(struct origin_call *call); // on_end comes later, once
    void (*free)(void *call);                 // frees the driver's struct; no callback
};

// The head of every running call; a driver embeds it first in its own struct.
struct origin_call {
    unsigned magic;
    const struct origin_call_ops *ops;
    struct origin_worker *ow;
    struct origin_fetch *f; // f or r, the other is NULL
    struct origin_relay *r;
    struct arena *arena;   // the caller's: f->arena or r->arena
    struct list_node live; // in origin_worker.live

    struct list_node waiting; // in origin_worker.waiters, in line number `line`
    unsigned line;
    uint64_t client;
    struct timer slot_timer;
    enum origin_call_kind kind;
    bool has_slot;
};

struct origin_driver {
    struct origin_capabilities capabilities;
    void (*fetch_start)(struct origin_worker *ow, struct origin_fetch *f);
    void (*relay_start)(struct origin_worker *ow, struct origin_relay *r);
    void (*rest)(struct origin_worker *ow); // releases what no call needs; may be NULL
    // After loop_stop(), before all else: ends the work of calls on other threads. May be NULL.
    void (*stop)(struct origin *origin);
    void (*free)(struct origin *origin);
};

// Waiting calls, by client.
struct origin_lines {
    struct list calls[ORIGIN_LINES];
    uint64_t client[ORIGIN_LINES]; // of the lines whose bit is set in `taken`
    uint64_t taken;
    unsigned turn; // the line whose turn is next
    unsigned count;
};

// An origin's part on one worker.
struct origin_worker {
    struct origin *origin;
    struct worker *w;
    struct list live;
    bool is_closed; // calls that start are cancelled at once
    bool rests;     // unused resources are released

    // origin_slots.c: `limit` is the number of calls that may run at once.
    struct origin_lines waiters[ORIGIN_CALL_KINDS];
    enum origin_call_kind turn; // the kind of waiters that is next; never ORIGIN_CALL_AHEAD
    unsigned waiting_count, running_count, relay_count;
    unsigned slots_max, slots_first, limit, successes, refusals;
    bool is_settled; // the origin has shown where its limit is
    // Times to the first byte of an answer.
    uint64_t usual_us, best_us, former_best_us, best_since_us;
    struct task wake;

    void *driver_state;
};

struct origin {
    unsigned magic;
    struct origin_options options; // we own its strings
    const struct origin_driver *driver;
    void *driver_state;
    struct loop *loop;
    char *description;
    char *shown; // its name for people; the driver may replace it
    char *place; // canonical endpoint, set by the driver
    uint64_t number;
    struct origin_worker *workers; // one per worker, by index
    unsigned worker_count;
    // The settings that origin_update_use() changes; `options` keeps the first ones.
    struct {
        _Atomic uint64_t keepalive_ms, connect_timeout_ms, first_byte_timeout_ms, idle_timeout_ms;
        atomic_uint retries, retry_budget_percent;
        atomic_uint number; // incremented last with each change
        bool has_key_files; // used by the thread that makes updates
        pthread_mutex_t lock;
        const char *ca_file; // guarded by the lock
    } live;

    // Retry budget in thousandths of a retry: each request adds its share, each retry takes 1000.
    atomic_long retry_tokens;
    atomic_ulong retry_floor_at_us; // when the floor last granted a retry

    atomic_bool rests;
    atomic_bool has_answered;    // hops.c
    atomic_ulong answered_at_us; // the last success of any call
    atomic_ulong heard_at_us;    // the last answer below 500
    atomic_uint trouble;         // enum origin_trouble
    atomic_uint trouble_told;    // the last one in the log; NONE: its end was logged, or nothing
    atomic_ulong trouble_since_us;
    atomic_ulong bucket_dns_at_us;     // a bucket's name was not resolved
    atomic_llong credentials_expire_s; // wall clock; 0: never
    atomic_llong date_skew_s;          // its clock minus ours, from the Date of its answers
    atomic_bool has_date_skew;
    // origin_doubt.c, origin_s3_odd.c; monotonic.
    atomic_ulong head_doubted_until_us, head_refused_until_us, if_match_fails_until_us,
        versions_differ_until_us;
    atomic_uint moved_dates;    // in a row
    struct origin_probe *probe; // NULL: it is not probed
    // Called on a worker when something is wrong; NULL: not called.
    void (*on_trouble)(struct origin *origin);

    // The origin's Server header; values are kept until the origin is freed.
    _Atomic(const char *) server_header;
    _Atomic(char *) server_headers[ORIGIN_SERVER_HEADERS_MAX];
};

static inline struct origin_call *as_origin_call(void *ptr)
{
    struct origin_call *call = ptr;
    check(call != NULL);
    check(call->magic == ORIGIN_CALL_MAGIC);
    return call;
}

// --- origin_call.c -------------------------------------------------------------------------------

// Begins a call for a fetch or a relay; the other one is NULL.
void origin_call_init(struct origin_call *call, const struct origin_call_ops *ops,
                      struct origin_worker *ow, struct origin_fetch *f, struct origin_relay *r);
// Returns the slot, reports the outcome to the caller, and frees the call later.
void origin_call_end(struct origin_call *call, enum err err);
// Counts a request towards the retry budget.
void origin_budget_request(struct origin *origin);
// Returns true if the origin has answered a call since then, and lately.
bool origin_answers_others(const struct origin *origin, uint64_t since_us);
// Returns the delay before retry number `attempt`, from 1: exponential, half of it random.
uint64_t origin_backoff_ms(unsigned attempt);
void origin_retry_init(struct origin *origin);

// --- origin_why.c --------------------------------------------------------------------------------

void origin_count_error(enum err err);

// --- origin_doubt.c, origin_s3_odd.c -------------------------------------------------------------

void origin_server_header_learn(struct origin *origin, struct span value);
// Returns true while something learnt about the store still holds.
static inline bool origin_holds(const atomic_ulong *until_us)
{
    return clock_monotonic_us() < atomic_load_explicit(until_us, memory_order_relaxed);
}

// --- origin_slots.c ------------------------------------------------------------------------------

// The call whose turn it is, or NULL.
struct origin_call *origin_lines_first(struct origin_lines *lines);
// The call has had its turn.
void origin_lines_next(struct origin_lines *lines, const struct origin_call *served);
// At most `most` calls run at once, `first` to begin with.
void origin_slots_init(struct origin_worker *ow, unsigned most, unsigned first);
unsigned origin_slots_spared(const struct origin_worker *ow); // slots kept for demand
void origin_slot_init(struct origin_call *call);
void origin_slot_leave(struct origin_call *call);        // returns the slot, or stops waiting
void origin_slot_stop_waiting(struct origin_call *call); // neither callback runs any more
// *ret_now: the call has a slot now. Otherwise ops->ready() or ops->refused() will run later.
// ERR_ORIGIN_FULL: too many calls wait.
enum err origin_slot_enter(struct origin_call *call, bool *ret_now) MUST_USE;
// A client now waits for what the call fetches ahead: from now on it counts as this client's call.
void origin_slot_hasten(struct origin_call *call, uint64_t client);
// Called before a retry. Returns true if there are now fewer slots than calls that have one. The
// slot is then gone, and ops->ready() or ops->refused() will run later.
bool origin_slot_yield(struct origin_call *call) MUST_USE;
// Adapt the number of slots to an answer.
void origin_slot_slow_down(struct origin_worker *ow);
void origin_slot_success(struct origin_worker *ow, uint64_t first_byte_us); // 0: no information

// --- hops.c --------------------------------------------------------------------------------------

// Adds Via to a request to an origin: the client's (NULL: none), then our own name.
bool origin_hops_add(struct arena *arena, const struct headers *client,
                     struct headers *headers) MUST_USE;
// The origin answered with this status; or it did not answer in time.
void origin_hops_learn(struct origin *origin, unsigned status);
void origin_hops_doubt(struct origin *origin);

// --- origin_trouble.c ----------------------------------------------------------------------------

// Returns the trouble behind a call that failed before any answer; `detail` is curl's text. NONE:
// it says nothing about the origin.
enum origin_trouble origin_trouble_of(enum err err, bool is_https, const char *detail);
// Returns the trouble behind a refusal with this S3 code, if it concerns our signature.
enum origin_trouble origin_trouble_of_code(struct span code);
// Records that a call, which asked at `asked_us`, met the trouble. On a worker.
void origin_trouble_met(struct origin *origin, enum origin_trouble trouble, uint64_t asked_us,
                        const char *detail);
// Records that the origin has answered below 500. takes_keys: the request was signed with the
// origin's own credentials, which were accepted. by_bucket_name: it was sent to a host name that
// begins with the bucket.
void origin_trouble_answered(struct origin *origin, bool takes_keys, bool by_bucket_name);
void origin_trouble_forget(struct origin *origin); // when the origin is freed or rests

// --- origin_probe.c ------------------------------------------------------------------------------

void origin_probe_new(struct origin *origin);   // if the options ask for a probe
void origin_probe_close(struct origin *origin); // on worker 0
void origin_probe_free(struct origin *origin);  // after loop_stop()

// --- drivers -------------------------------------------------------------------------------------

extern const struct origin_driver origin_directory_driver;
extern const struct origin_driver origin_s3_driver;
enum err origin_directory_open(struct origin *origin, struct buf *ret_why) MUST_USE;
enum err origin_s3_open(struct origin *origin, struct buf *ret_why) MUST_USE;
struct credentials_update;
// Finds the credentials of these options again, for credentials_update_use().
enum err origin_s3_credentials(struct origin *origin, const struct origin_options *options,
                               struct credentials_update **ret_update,
                               struct buf *ret_why) MUST_USE;

#endif
