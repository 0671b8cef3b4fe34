// SPDX-License-Identifier: Apache-2.0
// One call to an S3 origin, for the files that make it. origin_s3_call.c runs it,
// origin_s3_call_build.c builds and signs each attempt, and origin_s3_call_answer.c handles answers
// that are no success.
#ifndef FOREBAY_ORIGIN_S3_CALL_PRIVATE_H
#define FOREBAY_ORIGIN_S3_CALL_PRIVATE_H

#include "origin/origin_s3_private.h"
#include "origin/response_answer.h"

enum origin_s3_phase {
    PHASE_SLOT,
    PHASE_WAIT,
    PHASE_LOOK,
    PHASE_ASK,
    PHASE_COLLECT,
    PHASE_BODY,
    PHASE_HELD
};

struct origin_s3_call {
    struct origin_call call; // must be the first member
    struct origin_fetch *f;  // one of the two
    struct origin_relay *r;
    enum origin_s3_phase phase;
    struct arena *arena; // also the caller's: f->arena or r->arena

    bool paused, cancelled, head_seen, upload_has_left;
    bool has_spoken; // a line of an answer has come in this attempt
    bool looked, skew_corrected, credentials_renewed;
    bool wants_fresh;    // from here on each attempt has a connection of its own
    bool is_dead_answer; // the data on a reused connection is no answer: ask again
    bool is_cut_short;   // we did not wait for the end of the collected body
    // origin_s3_odd.c
    bool by_get;         // its HEAD is sent as a GET of the first byte
    bool by_whole;       // the object is empty, so that GET asks for all of it
    bool head_is_unfit;  // its HEAD was answered, but does not describe the object
    bool is_described;   // by_get: the caller has the head and wants no body
    bool omits_if_match; // we compare the ETag of the answer instead
    // The status of the refusal in this call; 0: not refused.
    unsigned refused_head, refused_if_match;
    unsigned replicas_asked; // because another version answered
    unsigned attempts, region_hops, redirects;
    enum err pending_err; // the deferred task ends the call with it

    struct transfer *transfer;
    struct origin_s3_pool *pool;
    struct credentials_set *set; // of this attempt; NULL with the caller's own credentials
    struct span region;          // the region for which this attempt was signed
    int64_t signed_skew_s;       // the clock skew with which this attempt was signed
    struct span host;            // the host of this attempt
    char *redirect_url;          // the URL of the next attempt; NULL: the endpoint
    // Reach of the host that sent the redirect; until then that of the current answer.
    enum transfer_reach redirect_reach;
    bool is_presigned; // this attempt uses a URL with its own signature
    struct response_head response_head;
    struct buf collected;
    uint64_t received, started_us, first_asked_us;

    struct timer timer;
    struct task task;
    struct credentials_waiter waiter;
};

static inline struct origin_s3_call *as_origin_s3_call(struct origin_call *call)
{
    return container_of(call, struct origin_s3_call, call);
}

static inline struct span origin_s3_call_method(const struct origin_s3_call *c)
{
    return c->r != NULL ? c->r->method : c->f->head && !c->by_get ? SPAN("HEAD") : SPAN("GET");
}

static inline struct span origin_s3_call_bucket(const struct origin_s3_call *c)
{
    return c->r != NULL ? c->r->bucket : c->f->bucket;
}

static inline bool origin_s3_call_is_head(const struct origin_s3_call *c)
{
    return c->phase == PHASE_LOOK || span_equal_cstr(origin_s3_call_method(c), "HEAD");
}

// Returns true if the call may be repeated after a failure, because it changes nothing.
static inline bool origin_s3_call_is_safe(const struct origin_s3_call *c)
{
    return span_equal_cstr(origin_s3_call_method(c), "GET") ||
           span_equal_cstr(origin_s3_call_method(c), "HEAD");
}

static inline const struct sigv4_credentials *
origin_s3_call_own_keys(const struct origin_s3_call *c)
{
    return c->r != NULL ? c->r->credentials : c->f->credentials;
}

// Returns true if the host name contains the bucket.
static inline bool origin_s3_call_is_virtual(const struct origin_s3_call *c)
{
    return origin_s3_endpoint_is_virtual(&origin_s3_state_of(c->call.ow)->endpoint,
                                         c->call.ow->origin->options.addressing,
                                         origin_s3_call_bucket(c));
}

// Returns true if this attempt carries a signature of ours.
static inline bool origin_s3_call_is_signed(const struct origin_s3_call *c)
{
    bool is_anonymous = c->set != NULL && c->set->is_anonymous;
    return !is_anonymous && !c->is_presigned &&
           (c->phase == PHASE_LOOK || c->r == NULL || !c->r->is_unsigned);
}

// --- origin_s3_call.c ----------------------------------------------------------------------------

// Starts the next attempt at once. Never calls back.
void origin_s3_call_attempt(struct origin_s3_call *c);
// Later attempts go to the endpoint again.
void origin_s3_call_leave_redirect(struct origin_s3_call *c);
// Waits for new credentials, then starts the next attempt; without any, ends the call.
void origin_s3_call_renew_credentials(struct origin_s3_call *c);
// Fills in the relay's answer from the received head; the caller hands it on.
enum err origin_s3_call_relay_prepare(struct origin_s3_call *c) MUST_USE;
// Reports the outcome to the caller and frees the call. No transfer may be running.
void origin_s3_call_end(struct origin_s3_call *c, enum err err);

// --- origin_s3_odd.c -----------------------------------------------------------------------------

// Called before each attempt: decides whether to avoid HEAD or If-Match with this origin.
void origin_s3_odd_prepare(struct origin_s3_call *c);
// If the answer refuses HEAD or If-Match, as some stores always do, or its HEAD does not describe
// the object, begins the next attempt without it. Returns true if it has begun.
bool origin_s3_odd_ask_otherwise(struct origin_s3_call *c);
// The answer denies the requested version, of which a client has bytes. Returns true if the next
// attempt has begun, on a connection of its own, which another replica may answer.
bool origin_s3_odd_ask_replica(struct origin_s3_call *c);
// Called when an attempt of a fetch was answered as requested.
void origin_s3_odd_learn(struct origin_s3_call *c);

// --- origin_s3_call_build.c ----------------------------------------------------------------------

// Builds the URL and the signed headers of the next attempt in the call's arena.
enum err origin_s3_call_build(struct origin_s3_call *c, struct origin_s3_url *ret_url,
                              struct headers *headers) MUST_USE;

// --- origin_s3_call_answer.c ---------------------------------------------------------------------
// Each of these continues the call: with another attempt, a wait before it, or the end.

// The transfer broke off before a final head; `detail` is curl's text.
void origin_s3_call_failed(struct origin_s3_call *c, enum err err, const char *detail);
// An answer that may not be final has come, and its body was collected.
void origin_s3_call_answered(struct origin_s3_call *c);
// PHASE_HELD: hands the collected body to a caller that resumed.
void origin_s3_call_held_body(struct origin_s3_call *c);

#endif
