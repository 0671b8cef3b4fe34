// SPDX-License-Identifier: Apache-2.0
// Declares the types that the files of this room share: the origin, its part on each worker, the
// common head of all calls, and the interface of a driver.
//
// Threads: struct origin is immutable after origin_new(), except for its atomics. struct
// origin_worker and every call belong to one worker. After loop_stop(), all of them belong to the
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
// Slots that an origin begins with, on all workers together. Demand may raise the number.
#define ORIGIN_SLOTS_FIRST 64u
#define ORIGIN_WAITERS_MAX 16384u // The most calls that wait for a slot, per worker.
#define ORIGIN_LINES 64u          // The most waiting clients with a queue of their own.
// The longest wait for a slot. A call that waits longer fails with ERR_ORIGIN_FULL.
#define ORIGIN_SLOT_WAIT_MS 30000u
// A request refused with SlowDown is retried for this long, as long as the origin answers other
// requests. The origin counts as answering if it answered one within ORIGIN_ANSWERS_US.
#define ORIGIN_SLOWDOWN_WAIT_US 20000000u
#define ORIGIN_ANSWERS_US 5000000u
#define ORIGIN_KEPT_SHARE 8u           // Relays leave 1/8 of the slots, at least one, to fetches.
#define ORIGIN_ERROR_BODY_MAX 65536u   // The most bytes kept of an error document.
#define ORIGIN_ERROR_ANSWER_MAX 32768u // The most bytes of an error that each reader gets.
#define ORIGIN_ARENA_MAX (1u << 20)    // The most bytes in the arena of one call.
#define ORIGIN_SERVER_HEADERS_MAX 16u  // The most Server headers remembered.
#define ORIGIN_PACE_WINDOWS 6u         // Windows of the last minute.
#define ORIGIN_PACE_STEPS 160u         // Steps of times, from 64 us to more than a minute.

struct origin_call;
struct origin_driver;
struct origin_worker;
struct origin_probe;

// Troubles that concern an origin as a whole; see origin_trouble.c.
enum origin_trouble {
    ORIGIN_TROUBLE_NONE,
#define TROUBLE(name, why, component, text, remedy) ORIGIN_TROUBLE_##name,
#include "origin/troubles.def"
#undef TROUBLE
    ORIGIN_TROUBLE_COUNT_
};

// The limit of calls depends on their kind. If its reader is slow, a fetch can return its slot. A
// relay may be unable to, for example a slow upload, or a read of a version without a usable ETag.
// No client waits for a call of kind AHEAD.
enum origin_call_kind {
    ORIGIN_CALL_FETCH,
    ORIGIN_CALL_RELAY,
    ORIGIN_CALL_AHEAD,
    ORIGIN_CALL_KINDS
};

// The functions of a driver for its running calls.
struct origin_call_ops {
    // If origin_slot_enter() returned no slot, one of these two runs later: `ready` when the call
    // has got a slot, or `refused` if it got none within ORIGIN_SLOT_WAIT_MS.
    void (*ready)(struct origin_call *call);
    void (*refused)(struct origin_call *call, enum err err);
    void (*pause)(struct origin_call *call);
    void (*resume)(struct origin_call *call);
    void (*resume_upload)(struct origin_call *call);
    void (*cancel)(struct origin_call *call); // on_end runs later, exactly once.
    void (*free)(void *call);                 // Frees the driver's struct. Runs no callback.
};

// The common head of every running call. A driver embeds it as the first member of its own struct.
struct origin_call {
    unsigned magic;
    const struct origin_call_ops *ops;
    struct origin_worker *ow;
    struct origin_fetch *f; // Exactly one of f and r is not NULL.
    struct origin_relay *r;
    struct arena *arena;   // The arena of the call: f->arena or r->arena.
    struct list_node live; // Links the call into origin_worker.live.

    struct list_node waiting; // Links a waiting call into its line, which has the index `line`.
    unsigned line;
    uint64_t client;
    struct timer slot_timer;
    enum origin_call_kind kind;
    bool has_slot;
    uint64_t rate_paid_us; // When the bytes that it has received are paid for. Monotonic.
};

struct origin_driver {
    struct origin_capabilities capabilities;
    void (*fetch_start)(struct origin_worker *ow, struct origin_fetch *f);
    void (*relay_start)(struct origin_worker *ow, struct origin_relay *r);
    void (*rest)(struct origin_worker *ow); // Closes unused connections; may be NULL.
    // Called first, after loop_stop(). Ends the transfers of all calls, without callbacks to their
    // callers. May be NULL.
    void (*stop)(struct origin *origin);
    void (*free)(struct origin *origin);
};

// Waiting calls in lines, which are the queues of single clients; see origin_slots.c.
struct origin_lines {
    struct list calls[ORIGIN_LINES];
    uint64_t client[ORIGIN_LINES]; // The clients of the lines whose bit in `taken` is set.
    uint64_t taken;
    unsigned turn; // The line whose turn is next.
    unsigned count;
};

// How soon the origin answered within one window, and within the last ones; see origin_pace.c.
struct origin_pace_window {
    atomic_ulong number; // 0: unused.
    atomic_uint counts[ORIGIN_PACE_STEPS];
};
// Requests within the present window and the one before it, and in the upper halves those that
// ended badly; see origin_failures.c.
struct origin_share {
    _Atomic uint64_t window, former;
    atomic_ulong began_us;
};
enum origin_share_of {
    ORIGIN_SHARE_FAILED,
    ORIGIN_SHARE_REFUSED,
    ORIGIN_SHARE_DENIED,
    ORIGIN_SHARES
};
enum origin_outcome { ORIGIN_OUTCOME_GOOD, ORIGIN_OUTCOME_FAILED, ORIGIN_OUTCOME_REFUSED };
struct origin_paces {
    struct origin_pace_window windows[ORIGIN_PACE_WINDOWS];
    atomic_ulong last;         // The number of the newest window.
    _Atomic uint64_t usual_us; // 0: not known.
    atomic_bool is_slow;       // The last result of origin_is_slow().
};

// An origin's part on one worker.
struct origin_worker {
    struct origin *origin;
    struct worker *w;
    struct list live;
    bool is_closed; // origin_close() was called, so new calls are cancelled at once.
    bool rests;     // The configuration no longer names the origin.

    // Used by origin_slots.c. `limit` is the maximum number of calls that run at the same time.
    struct origin_lines waiters[ORIGIN_CALL_KINDS];
    enum origin_call_kind turn; // The kind whose turn is next; never ORIGIN_CALL_AHEAD.
    unsigned waiting_count, running_count, relay_count;
    // origin_calls() reads `limit` and `lowered_from` from any thread.
    unsigned slots_max, slots_first, successes, refusals;
    atomic_uint limit;
    atomic_uint lowered_from; // `limit` before it was lowered; 0: it has reached that again.
    bool is_settled;          // A call met SlowDown, a timeout or a failed connection.
    uint64_t refused_at_us;   // The time of the last of these.
    // Times from a request to the first byte of its answer. `recent_us` is an average of the last
    // few answers.
    uint64_t recent_us, best_us, former_best_us, best_since_us;
    // While origin.max_rate delays calls: when the next call of a client may start. 0: none waits.
    uint64_t rate_turn_us;
    struct timer rate_timer;
    struct task wake;

    void *driver_state;
};

struct origin {
    unsigned magic;
    struct origin_options options; // The origin owns the strings.
    const struct origin_driver *driver;
    void *driver_state;
    struct loop *loop;
    char *description;
    char *name; // origin_name(), which the driver sets.
    bool name_was_shared;
    char *shown;                           // The origin's name for people, which the driver sets.
    char *place;                           // The canonical endpoint, which the driver sets.
    char *remedies[ORIGIN_TROUBLE_COUNT_]; // For each trouble, with the names of its settings.
    uint64_t number;
    struct origin_worker *workers; // The parts of the origin, one per worker.
    unsigned worker_count;
    // The current values of the settings that origin_update_use() changes. `options` keeps the
    // initial values.
    struct {
        _Atomic uint64_t keepalive_ms, connect_timeout_ms, first_byte_timeout_ms, idle_timeout_ms;
        atomic_uint retries, retry_budget_percent;
        _Atomic uint64_t max_rate_bytes_per_s;
        atomic_uint number; // Incremented at the end of each change.
        bool has_key_files; // Only for the thread that makes updates.
        pthread_mutex_t lock;
        const char *ca_file; // `lock` guards it.
    } live;

    // When the bytes received so far are paid for at origin.max_rate: those for clients, and all of
    // them; see origin_slots.c. Monotonic.
    _Atomic uint64_t rate_clients_paid_us, rate_paid_us;

    // The retry budget, in thousandths of a retry. Each request adds 10 * retry_budget_percent, and
    // each retry takes 1000.
    atomic_long retry_tokens;
    // When a retry was last granted although the budget was used up. One a second is.
    atomic_ulong retry_floor_at_us;

    atomic_bool rests;
    atomic_bool has_answered;     // The result of origin_has_answered(); see hops.c.
    atomic_ulong answered_at_us;  // When any call last succeeded.
    atomic_ulong heard_at_us;     // When an answer below 500, or a SlowDown, last came.
    atomic_ulong throttled_at_us; // When it last refused a request with SlowDown. 0: never.
    atomic_ulong denied_at_us;    // When it last refused Forebay's keys a right. 0: never.
    atomic_bool is_denied;        // The last result of origin_denies().
    atomic_uint trouble;          // The current enum origin_trouble.
    atomic_uint trouble_told;     // The logged trouble whose end is not logged yet, or NONE.
    atomic_ulong trouble_since_us;
    atomic_ulong trouble_at_us; // When the present trouble began. trouble_since_us: the first one.
    struct origin_share shares[ORIGIN_SHARES];
    struct origin_paces paces;
    atomic_ulong bucket_dns_at_us;     // When a host name with a bucket last failed.
    atomic_llong credentials_expire_s; // Wall clock. 0: the credentials do not expire.
    atomic_llong date_skew_s;          // The origin's clock minus ours, from Date headers.
    atomic_bool has_date_skew;
    // The times until which the oddities of the store count (origin_doubt.c, origin_s3_odd.c).
    // Monotonic.
    atomic_ulong head_doubted_until_us, head_refused_until_us, if_match_fails_until_us,
        versions_differ_until_us;
    atomic_uint moved_dates;    // Dates that moved, in a row; see origin_note_date().
    struct origin_probe *probe; // NULL if the origin is not probed.
    atomic_bool answers_probe;  // It has answered a probe, so a probe shows the end of a silence.
    // Called on a worker when a trouble begins or changes. NULL: nothing is called.
    void (*on_trouble)(struct origin *origin);

    // The Server header that the origin sent last, and all its values so far. None is freed before
    // the origin, because any worker may use one.
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

// Initialises the head of a call. Exactly one of `f` and `r` is NULL.
void origin_call_init(struct origin_call *call, const struct origin_call_ops *ops,
                      struct origin_worker *ow, struct origin_fetch *f, struct origin_relay *r);
// Ends a call: gives its slot back, calls on_end, and frees the call at the end of the turn.
void origin_call_end(struct origin_call *call, enum err err);
// Adds what one request adds to the retry budget; see retry_tokens.
void origin_budget_request(struct origin *origin);
// Returns true if the origin has answered any call since `since_us`, and within ORIGIN_ANSWERS_US.
bool origin_answers_others(const struct origin *origin, uint64_t since_us);
// Returns the delay before retry number `attempt`, which begins at 1. The delay grows
// exponentially, and half of it is random.
uint64_t origin_backoff_ms(unsigned attempt);
void origin_retry_init(struct origin *origin);

// --- origin_name.c -------------------------------------------------------------------------------

// Returns the endpoint followed by the bucket of the options, if any. The caller frees it.
char *origin_name_at(const struct origin *origin, const char *endpoint);

// --- origin_why.c --------------------------------------------------------------------------------

void origin_count_error(enum err err);

// --- origin_doubt.c, origin_s3_odd.c -------------------------------------------------------------

void origin_server_header_learn(struct origin *origin, struct span value);
// Returns true if an oddity of the store still counts, because *until_us has not passed.
static inline bool origin_holds(const atomic_ulong *until_us)
{
    return clock_monotonic_us() < atomic_load_explicit(until_us, memory_order_relaxed);
}

// --- origin_slots.c ------------------------------------------------------------------------------

// Returns the waiting call whose turn is next, or NULL.
struct origin_call *origin_lines_first(struct origin_lines *lines);
// Records that `served` has had its turn. The turn passes to the next client.
void origin_lines_next(struct origin_lines *lines, const struct origin_call *served);
// Sets the slots of a worker: `first` at the beginning, and never more than `most`.
void origin_slots_init(struct origin_worker *ow, unsigned most, unsigned first);
bool origin_slot_is_free(const struct origin_worker *ow);     // An ordinary fetch would not wait.
unsigned origin_slots_spared(const struct origin_worker *ow); // Slots that read-ahead leaves free.
void origin_slot_init(struct origin_call *call);
// Gives the call's slot back, or ends its wait for one.
void origin_slot_leave(struct origin_call *call);
// Ends the call's wait for a slot, so that ready() and refused() do not run.
void origin_slot_stop_waiting(struct origin_call *call);
// Asks for a slot. Sets *ret_now to true if the call has one now. Otherwise ops->ready() or
// ops->refused() will run later. Returns ERR_ORIGIN_FULL if too many calls wait.
enum err origin_slot_enter(struct origin_call *call, bool *ret_now) MUST_USE;
// Turns a call for read-ahead into an ordinary fetch of this client, because the client now waits
// for its bytes.
void origin_slot_hasten(struct origin_call *call, uint64_t client);
// Called before a retry. If fewer slots are left than calls hold, takes the call's slot away and
// returns true. Then ops->ready() or ops->refused() will run later.
bool origin_slot_yield(struct origin_call *call) MUST_USE;
// Called after a SlowDown or a timeout. Lowers the number of slots: the first time by half, later
// by one after every second such answer.
void origin_slot_slow_down(struct origin_worker *ow);
// Adapts the number of slots after any other answer. first_byte_us: time to its first byte; 0:
// unknown.
void origin_slot_success(struct origin_worker *ow, uint64_t first_byte_us);

// Records bytes that the call has received, for origin.max_rate. Returns when the call should ask
// origin_rate_wait_ms(), and receives nothing more until then; 0: it may go on.
uint64_t origin_rate_received(struct origin_call *call, uint64_t bytes);
// Returns when the call should ask again; 0: it may go on. Read-ahead waits until all bytes are
// paid for, so that it takes only what clients leave. Other calls wait for their own bytes.
uint64_t origin_rate_wait_ms(const struct origin_call *call);

// --- hops.c --------------------------------------------------------------------------------------

// Adds Via headers to a request to an origin: those of the client's request (NULL: none), then our
// own name.
bool origin_hops_add(struct arena *arena, const struct headers *client,
                     struct headers *headers) MUST_USE;
// Records for origin_has_answered() that the origin answered with this status, or that it did not
// answer in time.
void origin_hops_learn(struct origin *origin, unsigned status);
void origin_hops_doubt(struct origin *origin);

// --- origin_trouble.c ----------------------------------------------------------------------------

void origin_trouble_init(struct origin *origin); // Renders the remedies.
void origin_trouble_done(struct origin *origin);
// Returns the trouble that made a call fail before any answer; `detail` is curl's text. NONE: the
// failure says nothing about the origin.
enum origin_trouble origin_trouble_of(enum err err, bool is_https, const char *detail);
// Maps the S3 error code of a refusal to a trouble. Returns NONE if the code does not concern our
// credentials, our clock, or how we sign and address requests.
enum origin_trouble origin_trouble_of_code(struct span code);
// Records that a call whose request began at `asked_us` met the trouble. Call it on a worker.
void origin_trouble_met(struct origin *origin, enum origin_trouble trouble, uint64_t asked_us,
                        const char *detail);
// Records that the origin has answered a request with a status below 500. takes_keys: the request
// was signed with the origin's own credentials, and they were accepted. by_bucket_name: the request
// was sent to a host name that begins with the bucket. asked_us: when it was sent. The answer to a
// request from before a trouble does not end it.
void origin_trouble_answered(struct origin *origin, bool takes_keys, bool by_bucket_name,
                             uint64_t asked_us);
// Records that the origin refused a request with SlowDown for good. It can be reached, so a trouble
// on the way to it ends. If nearly all requests end so, that is a trouble. Call it on a worker.
void origin_trouble_throttled(struct origin *origin, bool by_bucket_name, uint64_t asked_us);
// Records that a request ended with a server error (5xx), after all retries. Many of them are a
// trouble. Call it on a worker.
void origin_trouble_failed(struct origin *origin);
void origin_trouble_forget(struct origin *origin); // Ends any trouble without a log line.

// --- origin_failures.c ---------------------------------------------------------------------------

// Counts a request by its last answer.
void origin_failures_note(struct origin *origin, enum origin_outcome outcome);
// Counts a request that Forebay signed with its own keys. was_denied: the origin answered that they
// lack the right.
void origin_failures_note_access(struct origin *origin, bool was_denied);
void origin_failures_forget(struct origin *origin);
struct origin_failures origin_failures_of(const struct origin *origin, enum origin_share_of which);
// Returns true if the share of failed or refused requests is a trouble. It takes fewer to go on
// than to begin, so that the trouble does not come and go.
bool origin_failures_are_many(const struct origin *origin, enum origin_share_of which,
                              bool were_many);

// --- origin_pace.c -------------------------------------------------------------------------------

// Counts an answer to a read, by the time from the request to the first byte of the answer.
void origin_pace_note(struct origin *origin, uint64_t first_byte_us);

// --- origin_probe.c ------------------------------------------------------------------------------

void origin_probe_new(struct origin *origin);   // Creates the probe if the options ask for one.
void origin_probe_close(struct origin *origin); // Stops the probe. On worker 0.
void origin_probe_free(struct origin *origin);  // Frees the probe after loop_stop().

// --- drivers -------------------------------------------------------------------------------------

extern const struct origin_driver origin_directory_driver;
extern const struct origin_driver origin_s3_driver;
enum err origin_directory_open(struct origin *origin, struct buf *ret_why) MUST_USE;
enum err origin_s3_open(struct origin *origin, struct buf *ret_why) MUST_USE;
struct credentials_update;
// Loads the credentials that these options name, for credentials_update_use().
enum err origin_s3_credentials(struct origin *origin, const struct origin_options *options,
                               struct credentials_update **ret_update,
                               struct buf *ret_why) MUST_USE;

#endif
