// SPDX-License-Identifier: Apache-2.0
// Shared by the files that answer operators: inspect.c (one object), inspect_list.c (a page of
// them), evict.c, warm.c and list_call.c (a listing from the origin). On the worker that was chosen
// for the question.
#ifndef FOREBAY_PROXY_OPS_INSPECT_PRIVATE_H
#define FOREBAY_PROXY_OPS_INSPECT_PRIVATE_H

#include "proxy/ops/ops.h"

// --- inspect.c -----------------------------------------------------------------------------------

// The key as the common realm has it; the caller owns a reference.
struct object_key *inspect_key(struct proxy *proxy, const struct live *live, struct span realm,
                               struct span bucket, struct span key);

#define INSPECT_WINDOWS_MAX 64u // looked up in one turn
// Begins with live, bucket, key, range and, of a listing, size and etag hash (0: none).
struct inspect_look {
    struct proxy_object object;
    uint64_t listed_etag_hash;
    bool has_listed;
    struct object_key *key;  // a reference, until it is over
    const struct live *live; // in which its rule is; the caller's
    uint64_t at;
    uint64_t etag_hash, generation;
};
void inspect_look_begin(struct proxy_worker *pw, struct inspect_look *look, bool with_etag);
// False: call it again in another turn. *windows is how many look-ups are left in this one.
bool inspect_look_step(struct proxy_worker *pw, struct inspect_look *look, unsigned *windows);

// --- list_call.c ---------------------------------------------------------------------------------

struct list_entry {
    struct span key;
    uint64_t size_bytes;
    uint64_t etag_hash; // hash64() of it as sent; 0: it has none
};

// One page of ListObjectsV2. Embedded; belongs to the call until done().
struct list_call {
    void (*done)(struct list_call *call);
    enum err err; // ERR_CANCELLED, what the origin said, or why it could not be asked
    struct list_entry *entries;
    unsigned count;
    struct span next;        // token of the next page; empty: there is none
    struct arena *arena;     // owns all of these; list_call_release()
    struct proxy_worker *pw; // private from here
    unsigned capacity;
    struct origin_relay relay;
    struct s3_request request;
    struct headers headers;
    struct buf body;
    struct span after; // of this page
    struct list_entry entry;
    bool has_key, has_size, has_etag, is_truncated, is_running;
    enum err parse_err;
    struct task refusal;
};
void list_call_start(struct proxy_worker *pw, struct list_call *call, struct span bucket,
                     struct span prefix, struct span after, unsigned max);
void list_call_cancel(struct list_call *call);  // done() still runs; harmless when it is over
void list_call_release(struct list_call *call); // after done(); entries and next are gone

#endif
