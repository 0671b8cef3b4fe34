// SPDX-License-Identifier: Apache-2.0
// What the files of a warm job share: warm.c (the job: what comes next, pace, end), warm_object.c (one
// object, from the look into the index to its last run). On the job's worker but where it says otherwise.
#ifndef FOREBAY_PROXY_WARM_PRIVATE_H
#define FOREBAY_PROXY_WARM_PRIVATE_H

#include "proxy/inspect_private.h"

#define WARM_RESTARTS_MAX 8u

// What was asked for; freed with the last object that came of it.
struct warm_item {
    struct list_node node; // in proxy_warm.items
    unsigned refs;
    struct span bucket, key;
    bool is_prefix;
    uint64_t first_byte, end_byte;
    char names[];
};

struct warm_page { // of the listing of the item at hand
    struct list_call call;
    struct proxy_warm *job;
    bool is_running, is_ready;
    unsigned next; // entry
};

// Written by the job's worker, read by anybody.
struct warm_published {
    atomic_int state;
    atomic_bool is_counted, is_idle;
    _Atomic uint64_t objects, bytes, objects_done, bytes_done, objects_cached, objects_failed,
        objects_refused, bytes_fetched, began_us, ended_us;
    atomic_uint inflight, failure_count;
    char *failures[PROXY_WARM_FAILURES_MAX]; // below failure_count: immutable
};

struct proxy_warm {
    atomic_uint refs; // who asked, messages on their way, the worker until the end
    struct proxy *proxy;
    struct proxy_worker *pw;
    struct proxy_warm_options options;
    uint64_t client; // for turns at the origin
    atomic_uint pending;
    struct warm_published published;
    // The worker's.
    struct list items;          // not begun
    struct warm_item *listed;   // whose pages these are (reference); NULL: none
    struct warm_page pages[2];  // the one that is worked off, and the next
    unsigned page;              // which is the first
    struct circle circle;       // of the pages of `listed`
    struct list ready, waiting; // struct warm_object: may ask; waits for something
    unsigned object_count, run_count;
    uint64_t due_us; // nothing is asked for before
    struct task task;
    struct timer timer;
    bool is_closed, is_cancelled, is_over;
};

struct warm_run {
    struct warm_object *object;
    struct subscription *sub; // NULL: free
    uint64_t first_byte, end_byte;
};

struct warm_object {
    struct list_node node; // in proxy_warm.ready or .waiting
    struct proxy_warm *job;
    struct warm_item *item;
    struct object_key *key;
    struct live *live; // a reference, in which `rule` is
    const struct proxy_rule *rule;
    uint64_t first_byte, end_byte;     // wanted
    uint64_t at;                       // all before is cached or asked for
    bool is_listed;                    // and so:
    uint64_t listed_size, listed_etag; // listed_etag 0: it has none
    bool has_size;
    uint64_t size_bytes, wanted_bytes, done_bytes;
    struct store_object *object; // the version that is fetched; NULL: not known yet
    uint64_t etag_hash;
    bool is_confirmed; // by the origin, for this job
    bool has_fetched, is_refused;
    enum err err;
    const char *why; // in words, where err does not say it
    unsigned restarts;
    unsigned run_count;
    struct list runs;
    struct subscription *check; // is the version current?
    bool reading;
    struct store_read read;
};

enum warm_step {
    WARM_ASKED, // a request is out; more may follow at once
    WARM_WAITS, // for a run, a read, an answer
    WARM_OVER   // nothing is left to be done
};

// --- warm_object.c -------------------------------------------------------------------------------

struct warm_object *warm_object_new(struct proxy_warm *job, struct warm_item *item, struct span key,
                                    const struct list_entry *entry); // NULL: not listed
enum warm_step warm_object_step(struct warm_object *o);
void warm_object_leave(struct warm_object *o); // all its subscriptions
void warm_object_free(struct warm_object *o);  // nothing of it is out

#endif
