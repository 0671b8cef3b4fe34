// SPDX-License-Identifier: Apache-2.0
// What the files of this room share: the origin, its part on each worker, the head of every running
// call, and the face of a driver.
//
// Threads: struct origin is immutable after origin_new() but for its atomics. struct origin_worker
// and every call belong to one worker. After loop_stop() all of it belongs to whoever frees the
// origin.
#ifndef FOREBAY_ORIGIN_ORIGIN_PRIVATE_H
#define FOREBAY_ORIGIN_ORIGIN_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/list.h"
#include "origin/origin.h"

#define ORIGIN_MAGIC 0x6f726967u
#define ORIGIN_CALL_MAGIC 0x63616c6cu
#define ORIGIN_SLOTS_FIRST 64u    // of an origin, of all workers, until demand wants more
#define ORIGIN_WAITERS_MAX 16384u // calls that wait for a slot, per worker
#define ORIGIN_LINES 64u          // clients that wait side by side
#define ORIGIN_SLOT_WAIT_MS                                                                        \
    30000u // for a slot; then the origin is too slow for what is asked of it
// So long a request that is refused with SlowDown is asked again while the origin answers others;
// it does if it has answered one this recently.
#define ORIGIN_SLOWDOWN_WAIT_US 20000000u
#define ORIGIN_ANSWERS_US 5000000u
#define ORIGIN_KEPT_SHARE 8u         // of the slots one in so many is not for relays; one at least
#define ORIGIN_ERROR_BODY_MAX 65536u // bytes of an error document that are kept
#define ORIGIN_ERROR_ANSWER_MAX 32768u // of one that each reader of a fill gets a copy of
#define ORIGIN_ARENA_MAX (1u << 20)    // memory of one call
#define ORIGIN_SERVER_HEADERS_MAX 16u  // different Server values remembered

struct origin_driver;
struct origin_worker;
struct origin_probe;

// What is wrong with an origin as a whole; origin_trouble.c.
enum origin_trouble {
    ORIGIN_TROUBLE_NONE,
#define TROUBLE(name, why, component, text, remedy) ORIGIN_TROUBLE_##name,
#include "origin/troubles.def"
#undef TROUBLE
    ORIGIN_TROUBLE_COUNT_
};

// A fetch gives its slot back when whoever reads from it is slow. A relay may not be able to: a
// slow upload, a read whose version cannot be named. Nobody waits for what is fetched ahead.
enum origin_call_kind {
    ORIGIN_CALL_FETCH,
    ORIGIN_CALL_RELAY,
    ORIGIN_CALL_AHEAD,
    ORIGIN_CALL_KINDS
};

// Head of every running call; a driver embeds it first in its own struct.
struct origin_call {
    unsigned magic;
    const struct origin_driver *driver;
    struct origin_worker *ow;
    struct list_node live; // in origin_worker.live

    // The slot among the worker's calls. One of the two runs later, never inside
    // origin_slot_enter(): `ready` once there is room, `refused` after ORIGIN_SLOT_WAIT_MS without.
    struct list_node waiting; // in origin_worker.waiters, there in this line
    unsigned line;
    uint64_t client;
    struct timer slot_timer;
    void (*ready)(struct origin_call *call);
    void (*refused)(struct origin_call *call, enum err err);
    enum origin_call_kind kind;
    bool has_slot;
};

struct origin_driver {
    struct origin_capabilities capabilities;
    void (*fetch_start)(struct origin_worker *ow, struct origin_fetch *f);
    void (*fetch_pause)(struct origin_call *call);
    void (*fetch_resume)(struct origin_call *call);
    void (*relay_start)(struct origin_worker *ow, struct origin_relay *r);
    void (*relay_pause)(struct origin_call *call);
    void (*relay_resume)(struct origin_call *call);
    void (*relay_resume_upload)(struct origin_call *call);
    void (*call_cancel)(struct origin_call *call); // its end comes later, once
    void (*rest)(struct origin_worker *ow);        // gives back what no call needs. May be NULL.
    // After loop_stop(), first of all: ends what calls have under way elsewhere. May be NULL.
    void (*stop)(struct origin *origin);
    // Frees a call that did not end in time, without calling anybody back; after loop_stop().
    void (*call_abandon)(struct origin_call *call);
    void (*free)(struct origin *origin);
};

// Those who wait, by client.
struct origin_lines {
    struct list calls[ORIGIN_LINES];
    uint64_t client[ORIGIN_LINES]; // of the lines whose bit is set in `taken`
    uint64_t taken;
    unsigned turn; // whose line comes next
    unsigned count;
};

// An origin's part on one worker.
struct origin_worker {
    struct origin *origin;
    struct worker *w;
    struct list live;
    bool is_closed; // what starts is cancelled at once
    bool rests;     // what no call needs is given back

    // origin_slots.c: how many calls run at once is `limit`.
    struct origin_lines waiters[ORIGIN_CALL_KINDS];
    enum origin_call_kind turn; // whose waiters come first now; never those of what is ahead
    unsigned waiting_count, running_count, relay_count;
    unsigned slots_max, slots_first, limit, successes, refusals;
    bool is_settled; // the origin has said where its limit is
    uint64_t usual_us, best_us, former_best_us, best_since_us; // until the first byte of an answer
    struct task wake;

    void *driver_state;
};

struct origin {
    unsigned magic;
    struct origin_options options; // strings are ours
    const struct origin_driver *driver;
    void *driver_state;
    struct loop *loop;
    char *description;
    char *shown; // its name for people, set by the driver; NULL: as it is
    char *place; // set by the driver
    uint64_t number;
    struct origin_worker *workers; // one per worker, by index
    unsigned worker_count;
    // What origin_update_use() changes; options have what it was at first.
    struct {
        _Atomic uint64_t keepalive_ms, connect_timeout_ms, first_byte_timeout_ms, idle_timeout_ms;
        atomic_uint retries, retry_budget_percent;
        atomic_uint number; // rises with each change, last of all
        bool has_key_files; // of who makes updates
        pthread_mutex_t lock;
        const char *ca_file; // under it
    } live;

    // Retry budget in thousandths of a retry: each request adds its share, each retry takes 1000.
    atomic_long retry_tokens;
    atomic_ulong retry_floor_at_us; // when the floor gave its last retry

    atomic_bool rests;
    atomic_bool has_answered;    // hops.c
    atomic_ulong answered_at_us; // the last success of any call
    atomic_ulong heard_at_us;    // the last answer below 500
    atomic_uint trouble;         // enum origin_trouble
    atomic_uint trouble_told; // the one that the log ends with; NONE: that it is back, or nothing
    atomic_ulong trouble_since_us;
    atomic_ulong bucket_dns_at_us;     // a bucket's name was not resolved
    atomic_llong credentials_expire_s; // wall clock; 0: never
    atomic_llong date_skew_s;          // its clock less ours, by the Date of its answers
    atomic_bool has_date_skew;
    // origin_doubt.c, origin_s3_odd.c; monotonic
    atomic_ulong head_doubted_until_us, head_refused_until_us, if_match_fails_until_us,
        versions_differ_until_us;
    atomic_uint moved_dates;    // in a row
    struct origin_probe *probe; // NULL: it is not probed

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

// --- origin.c ------------------------------------------------------------------------------------

void origin_call_init(struct origin_call *call, struct origin_worker *ow,
                      enum origin_call_kind kind, uint64_t client);
static inline enum origin_call_kind origin_call_kind_of(const struct origin_fetch *f)
{
    return f->ahead ? ORIGIN_CALL_AHEAD : ORIGIN_CALL_FETCH;
}
// Takes the call off the lists and gives its slot back; its memory stays.
void origin_call_done(struct origin_call *call);
// Counts a request towards the retry budget; takes one retry from it.
void origin_budget_request(struct origin *origin);
// Has it answered a call since then, and lately?
bool origin_answers_others(const struct origin *origin, uint64_t since_us);
// Wait before retry number `attempt` (1 for the first): exponential, half of it random.
uint64_t origin_backoff_ms(unsigned attempt);
void origin_count_error(enum err err);
void origin_server_header_learn(struct origin *origin, struct span value);

// --- origin_doubt.c, origin_s3_odd.c -------------------------------------------------------------

// What was learnt of a store holds until then.
static inline bool origin_holds(const atomic_ulong *until_us)
{
    return clock_monotonic_us() < atomic_load_explicit(until_us, memory_order_relaxed);
}

// --- origin_slots.c ------------------------------------------------------------------------------

// Never more than `most` at once, `first` to begin with.
void origin_slots_init(struct origin_worker *ow, unsigned most, unsigned first);
unsigned origin_slots_spared(const struct origin_worker *ow); // places that are kept for demand
void origin_slot_init(struct origin_call *call);
void origin_slot_leave(struct origin_call *call);        // gives it back, or waits no longer
void origin_slot_stop_waiting(struct origin_call *call); // neither of the two runs any more
// *ret_now: the slot is taken now, else call->ready() or call->refused() will run later.
// ERR_ORIGIN_FULL: too many wait.
enum err origin_slot_enter(struct origin_call *call, bool *ret_now) MUST_USE;
// Somebody waits for what it fetches ahead: from now on it counts as this client's own.
void origin_slot_hasten(struct origin_call *call, uint64_t client);
// Before an attempt that follows a failure: true if there are fewer places now than calls that have
// one. Then the slot is gone, and call->ready() or call->refused() will run later.
bool origin_slot_yield(struct origin_call *call) MUST_USE;
// What the slot learns from an answer.
void origin_slot_slow_down(struct origin_worker *ow);
void origin_slot_success(struct origin_worker *ow, uint64_t first_byte_us); // 0: says nothing

// --- origin_line.c -------------------------------------------------------------------------------

void origin_lines_init(struct origin_lines *lines);
void origin_lines_push(struct origin_lines *lines, struct origin_call *call, bool is_first);
struct origin_call *origin_lines_first(struct origin_lines *lines); // whose turn it is; or NULL
void origin_lines_remove(struct origin_lines *lines, struct origin_call *call);
// It has had its turn.
void origin_lines_next(struct origin_lines *lines, const struct origin_call *served);

// --- hops.c --------------------------------------------------------------------------------------

// Via of a request to an origin: the client's (NULL: none), then our own name.
bool origin_hops_add(struct arena *arena, const struct headers *client,
                     struct headers *headers) MUST_USE;
// The origin answered with this status; it did not answer in time.
void origin_hops_learn(struct origin *origin, unsigned status);
void origin_hops_doubt(struct origin *origin);

// --- origin_trouble.c ----------------------------------------------------------------------------

// How a call failed before any answer, `detail` in curl's words; NONE: that says nothing of the
// origin.
enum origin_trouble origin_trouble_of(enum err err, bool is_https, const char *detail);
// Of a refusal, by its S3 code: is it about what we signed with?
enum origin_trouble origin_trouble_of_code(struct span code);
// A call that asked at `asked_us` has met it. On a worker.
void origin_trouble_met(struct origin *origin, enum origin_trouble trouble, uint64_t asked_us,
                        const char *detail);
// The origin has answered, below 500; the request was signed with its own credentials, and taken;
// and it was asked by its name with a bucket before it.
void origin_trouble_answered(struct origin *origin, bool takes_keys, bool by_bucket_name);
void origin_trouble_forget(struct origin *origin); // with the origin

// --- origin_probe.c ------------------------------------------------------------------------------

void origin_probe_new(struct origin *origin);   // where the options ask for one
void origin_probe_wake(struct origin *origin);  // something is wrong; on a worker
void origin_probe_close(struct origin *origin); // on worker 0
void origin_probe_free(struct origin *origin);  // after loop_stop()

// --- drivers -------------------------------------------------------------------------------------

extern const struct origin_driver origin_directory_driver;
extern const struct origin_driver origin_s3_driver;
enum err origin_directory_open(struct origin *origin, struct buf *ret_why) MUST_USE;
enum err origin_s3_open(struct origin *origin, struct buf *ret_why) MUST_USE;
struct credentials_update;
// Of these options: found anew, for credentials_update_use().
enum err origin_s3_credentials(struct origin *origin, const struct origin_options *options,
                               struct credentials_update **ret_update,
                               struct buf *ret_why) MUST_USE;

#endif
