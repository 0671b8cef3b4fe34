// SPDX-License-Identifier: Apache-2.0
// Shared by the files that answer operators: inspect.c (one object), inspect_list.c (a page of
// objects), evict.c, warm.c and list_call.c (a listing from the origin). They run on the worker
// that received the operator's call.
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
// Continues the look. *windows is the number of look-ups that are left in this turn. Returns false
// if they were too few; then call it again in another turn.
bool inspect_look_step(struct proxy_worker *pw, struct inspect_look *look, unsigned *windows);

// --- list_call.c ---------------------------------------------------------------------------------

struct list_entry {
    struct span key;
    uint64_t size_bytes;
    uint64_t etag_hash; // hash64() of the ETag as the origin sent it; 0: it sent none
};

// Fetches one page of ListObjectsV2. The caller embeds it in a struct, and must not touch it until
// done() runs.
struct list_call {
    void (*done)(struct list_call *call);
    enum err err; // ERR_OK, ERR_CANCELLED, the origin's error, or why no request could be sent
    struct list_entry *entries;
    unsigned count;
    struct span next;        // token of the next page; empty: there is none
    struct arena *arena;     // memory of the entries and `next`; see list_call_release()
    struct proxy_worker *pw; // the members from here on are private
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
void list_call_cancel(struct list_call *call);  // done() still runs, if it has not yet
void list_call_release(struct list_call *call); // after done(); frees the entries and `next`

#endif
