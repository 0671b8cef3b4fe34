// SPDX-License-Identifier: Apache-2.0
// Shared by the files of a warm job: warm.c (the job's steps and its end), warm_object.c (one
// object, from the look-up in the index to its last run), warm_pace.c (pace and retries),
// warm_room.c (memory of all jobs). Runs on the job's worker, except where a comment says
// otherwise.
#ifndef FOREBAY_PROXY_OPS_WARM_PRIVATE_H
#define FOREBAY_PROXY_OPS_WARM_PRIVATE_H

#include <assert.h>

#include "base/circle.h"
#include "proxy/ops/inspect_private.h"

#define WARM_RESTARTS_MAX 8u
// Objects that each job may always have in memory.
#define WARM_OBJECTS_LEAST 16u
struct warm_item {
    struct list_node node; // in proxy_warm.items until the job begins the item
    unsigned refs;
    struct span bucket, key;
    bool is_prefix;
    uint64_t first_byte, end_byte;
    char names[];
};

enum warm_page_phase {
    WARM_PAGE_EMPTY,
    WARM_PAGE_RUNS,  // the origin is asked for it
    WARM_PAGE_LATER, // no connection came free in time; the job asks again
    WARM_PAGE_READY, // its entries are warmed
};

struct warm_page { // a page of the listing of proxy_warm.listed
    struct list_call call;
    struct proxy_warm *job;
    enum warm_page_phase phase; // written by page_enter()
    unsigned tries;             // number of retries
    uint64_t asked_us;
    unsigned next;  // index of the next entry to warm
    uint64_t bytes; // charged to the memory budget
};

// Progress of the job. The job's worker writes it; any thread reads it.
struct warm_published {
    atomic_int state;
    atomic_bool is_counted, is_idle;
    _Atomic uint64_t objects, bytes, objects_done, bytes_done, objects_cached, objects_failed,
        objects_missing, objects_refused, objects_excluded, prefixes_failed, bytes_fetched,
        began_us, ended_us;
    atomic_uint inflight, failure_count, reason_count;
    atomic_int waits;                        // enum refusal: why the job requests nothing now
    char *failures[PROXY_WARM_FAILURES_MAX]; // texts; those below failure_count never change
    struct warm_reason {
        char *why;   // written before reason_count grows
        char *first; // text of its first failure
        _Atomic uint64_t count;
    } reasons[PROXY_WARM_REASONS_MAX];
};

struct warm_pace {
    unsigned limit;         // maximum runs in flight; at most the job's concurrency
    uint64_t due_us;        // no request before this time, because of the job's rate limit
    uint64_t held_until_us; // no request before this time, because of the refusal held_why
    enum refusal held_why;
    uint64_t shrunk_us; // when `limit` was last halved
    unsigned backoff_ms;
    uint64_t stuck_us;     // time since which nothing could be stored; 0: not stuck
    uint64_t stored;       // runs that the process had stored at stuck_us
    bool is_hopeless;      // nothing was stored for STUCK_MAX_US or longer
    enum refusal refuses;  // why objects are refused now without asking the origin
    uint64_t later_due_us; // when the first object of proxy_warm.later is due
};

struct proxy_warm {
    // References of the caller, of messages in flight and, until the job ends, of the worker.
    atomic_uint refs;
    struct proxy *proxy;
    struct proxy_worker *pw;
    struct proxy_warm_options options;
    uint64_t client; // identifies the job as a client at the origin, where clients take turns
    atomic_uint pending;
    _Atomic uint64_t names_bytes;
    struct warm_published published;
    // Only the worker uses the members below.
    struct list items;         // struct warm_item: those that have not begun
    struct warm_item *listed;  // the item being listed (a reference); NULL: none
    struct warm_page pages[2]; // of the listing of `listed`: the current page and the next one
    unsigned page;             // index of the current one
    struct circle circle;      // detects a listing whose pages lead in a circle
    bool has_listed;           // a page of this listing had objects
    // struct warm_object: those that can take a step, and those that wait for an event.
    struct list ready, waiting;
    struct list later; // struct warm_object: refused for now, and tried again later
    unsigned object_count, run_count;
    struct warm_pace pace;
    struct task task;
    struct timer timer;
    bool is_closed, is_cancelled, is_over;
};

struct warm_run {
    struct warm_object *object;
    uint64_t asked_us;
    struct subscription *sub; // NULL: this slot is free
    uint64_t first_byte, end_byte;
};

enum warm_phase {
#define WARM_PHASE(name, successors) WARM_PHASE_##name,
#include "proxy/ops/warm_phases.def"
#undef WARM_PHASE
    WARM_PHASE_COUNT_
};

#define WARM_SIZE_UNKNOWN UINT64_MAX

struct warm_object {
    struct list_node node; // in proxy_warm.ready, .waiting or .later
    struct proxy_warm *job;
    struct warm_item *item; // the item that names the object, or names a prefix of its key
    enum warm_phase phase;  // written by warm_phase_enter()
    struct object_key *key;
    struct live *live; // a reference; it contains `rule`
    const struct proxy_rule *rule;
    uint64_t first_byte, end_byte;     // wanted range
    uint64_t at;                       // all wanted bytes before this one are cached or requested
    uint64_t listed_size, listed_etag; // from the listing; listed_etag 0: it has no ETag
    uint64_t size_bytes;               // WARM_SIZE_UNKNOWN until a version is known
    uint64_t wanted_bytes, done_bytes;
    struct store_object *object; // the version that is fetched; NULL: not known yet
    uint64_t etag_hash;
    bool is_confirmed;  // the origin has confirmed the version for this job
    bool is_looked_for; // its bytes were looked up or requested at least once, even if it has none
    bool has_fetched;   // the job has fetched a part of it
    enum refusal later; // in LATER and PAUSED: why the object waits
    unsigned tries;     // number of retries
    uint64_t due_us;    // time of the next retry
    enum err err;       // in FAILED
    const char *why;    // in REFUSED, and in FAILED if it says more than err
    bool is_excluded;   // in REFUSED: its rule does not store it
    unsigned restarts;
    unsigned run_count;
    uint64_t held_bytes;
    struct list runs;
    struct subscription *check; // the request of CONFIRM or SUMS
    uint64_t checked_us;        // when CONFIRM sent it
    struct store_read read;     // the read of HEADER
};

enum warm_step {
    WARM_ASKED, // a request was sent; more may follow at once
    WARM_WAITS, // the object waits for a run, a read or an answer
    WARM_OVER   // nothing is left to do
};

// --- warm_phase.c --------------------------------------------------------------------------------

// The only writer of the phase. Aborts unless warm_phases.def allows the change.
void warm_phase_enter(struct warm_object *o, enum warm_phase phase);

// --- warm_object.c -------------------------------------------------------------------------------

// `entry`: the object's entry in the listing; NULL: no listing named it.
struct warm_object *warm_object_new(struct proxy_warm *job, struct warm_item *item, struct span key,
                                    const struct list_entry *entry);
enum warm_step warm_object_step(struct warm_object *o);
void warm_object_leave(struct warm_object *o); // ends all its subscriptions
void warm_object_free(struct warm_object *o);  // nothing of the object may be in flight

// --- warm_pace.c ---------------------------------------------------------------------------------

void warm_pace_begin(struct proxy_warm *job);
uint64_t warm_pace_wait_ms(struct proxy_warm *job); // returns 0 if a run may be requested now
static inline bool warm_pace_is_full(const struct proxy_warm *job)
{
    return job->run_count >= job->pace.limit;
}
void warm_pace_asked(struct proxy_warm *job, uint64_t bytes); // call it when a run was requested
void warm_pace_ended(struct proxy_warm *job);  // call it when a run ended, with any result
void warm_pace_stored(struct proxy_warm *job); // call it when a run of the job was stored
// Call it when a run that was requested at `asked_us` was refused, by the store or for want of a
// connection to the origin.
void warm_pace_refused(struct proxy_warm *job, uint64_t asked_us, enum refusal why);
// Returns true if something that was refused `tries` times may be tried again.
bool warm_pace_tries(const struct proxy_warm *job, unsigned tries);
// Schedules another try of the object after at least `wait_ms`. Returns false if there have been
// too many tries, or if nothing can be stored.
bool warm_pace_keep(struct proxy_warm *job, struct warm_object *o, unsigned wait_ms);
// Moves the objects whose time has come to `ready`. Returns the time in ms until the next one is
// due; 0: none waits.
uint64_t warm_pace_wake(struct proxy_warm *job);

// --- warm_room.c ---------------------------------------------------------------------------------

// Any thread may call it.
struct warm_item *warm_room_item_new(struct proxy_warm *job, const struct proxy_warm_item *from);
void warm_room_item_unref(struct proxy_warm *job, struct warm_item *item); // accepts NULL
void warm_room_page_come(struct warm_page *page); // charges the page's memory
void warm_room_page_gone(struct warm_page *page); // releases that charge
// Returns true if the page after the current one may be fetched.
bool warm_room_lists_ahead(const struct proxy_warm *job);
// Returns true if the job may begin one more object.
bool warm_room_takes_object(const struct proxy_warm *job);
void warm_room_object_come(struct warm_object *o); // charges the object's memory
void warm_room_object_gone(struct warm_object *o); // releases it, before the object is freed

#endif
