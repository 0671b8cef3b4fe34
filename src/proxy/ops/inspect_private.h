// SPDX-License-Identifier: Apache-2.0
// Shared by the files that answer operators: inspect.c (one object), inspect_list.c (a page of
// them), evict.c, warm.c and list_call.c (a listing from the origin). Runs on the worker that
// received the question.
#ifndef FOREBAY_PROXY_OPS_INSPECT_PRIVATE_H
#define FOREBAY_PROXY_OPS_INSPECT_PRIVATE_H

#include "proxy/ops/ops.h"

// --- inspect.c -----------------------------------------------------------------------------------

// Returns the object's key in `realm`. The caller owns the reference.
struct object_key *inspect_key(struct proxy *proxy, const struct live *live, struct span realm,
                               struct span bucket, struct span key);

#define INSPECT_WINDOWS_MAX 64u // maximum look-ups in one turn of the worker's loop
// A look at one object. Before it begins, the caller sets `live`, the object's bucket, key and
// range and, if a listing named the object, its size and ETag hash (0: no ETag).
struct inspect_look {
    struct proxy_object object;
    uint64_t listed_etag_hash;
    bool has_listed;
    struct object_key *key;  // a reference, until the look is over
    const struct live *live; // the settings that contain its rule; the caller keeps them valid
    uint64_t at;
    uint64_t etag_hash, generation;
};
void inspect_look_begin(struct proxy_worker *pw, struct inspect_look *look, bool with_etag);
// Returns false if it must be called again in another turn. *windows is the number of look-ups that
// are left in this turn.
bool inspect_look_step(struct proxy_worker *pw, struct inspect_look *look, unsigned *windows);

// --- list_call.c ---------------------------------------------------------------------------------

struct list_entry {
    struct span key;
    uint64_t size_bytes;
    uint64_t etag_hash; // hash64() of the ETag as the origin sent it; 0: it sent none
};

// Fetches one page of ListObjectsV2. Part of a struct of the caller, who must not touch it until
// done() runs.
struct list_call {
    void (*done)(struct list_call *call);
    enum err err; // result: ERR_OK, ERR_CANCELLED, the origin's error, or why it could not be asked
    struct list_entry *entries;
    unsigned count;
    struct span next;        // token of the next page; empty: there is none
    struct arena *arena;     // has the entries and `next`; see list_call_release()
    struct proxy_worker *pw; // private from here
    unsigned capacity;
    struct origin_relay relay;
    struct s3_request request;
    struct headers headers;
    struct buf body;
    struct span after; // token of this page
    struct list_entry entry;
    bool has_key, has_size, has_etag, is_truncated, is_running;
    enum err parse_err;
    struct task refusal;
};
void list_call_start(struct proxy_worker *pw, struct list_call *call, struct span bucket,
                     struct span prefix, struct span after, unsigned max);
// Asks for the same page again, after done() with an error. The bucket is the same.
void list_call_again(struct list_call *call, struct span bucket);
void list_call_cancel(struct list_call *call);  // done() still runs; harmless when it is over
void list_call_release(struct list_call *call); // after done(); entries and next are gone

#endif
