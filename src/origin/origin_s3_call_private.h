// SPDX-License-Identifier: Apache-2.0
// One call to an S3 origin, for the files that make it: origin_s3_call.c runs it,
// origin_s3_call_build.c builds and signs each attempt, origin_s3_call_answer.c decides about those
// answers that are no success.
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
    struct origin_call call; // first
    struct origin_fetch *f;  // one of the two
    struct origin_relay *r;
    enum origin_s3_phase phase;
    struct arena *arena; // the caller's too: f->arena or r->arena

    bool paused, cancelled, head_seen, upload_has_left;
    bool has_spoken; // a line of an answer has come, in this attempt
    bool looked, skew_corrected, credentials_renewed;
    bool wants_fresh;    // from here on each attempt has a connection of its own
    bool is_dead_answer; // what came on a used connection is no answer: ask again
    bool is_cut_short;   // we did not wait for the end of what is collected
    // origin_s3_odd.c
    bool by_get;         // its HEAD is asked as a GET of the first byte ...
    bool by_whole;       // ... of an empty object, which has none: of all of it
    bool head_is_unfit;  // its HEAD was answered, and does not describe the object
    bool is_described;   // by_get: the caller has the head, and wants no body
    bool omits_if_match; // the ETag of the answer is judged instead
    unsigned refused_head, refused_if_match; // by that status, in this call; 0: not refused
    unsigned replicas_asked;                 // because another version answered
    unsigned attempts, region_hops, redirects;
    enum err pending_err; // ends the call from the task

    struct transfer *transfer;
    struct origin_s3_pool *pool;
    struct credentials_set *set; // of this attempt; NULL with the caller's own credentials
    struct span region;          // this attempt was signed for
    int64_t signed_skew_s;       // that this attempt was signed by
    struct span host;            // this attempt asks
    char *redirect_url;          // the next attempt asks here; NULL: the endpoint
    enum transfer_reach
        redirect_reach; // of whoever sent that redirect, at first of the current answer
    bool is_presigned;  // this attempt follows a URL with a signature of its own
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

// May be asked again after a failure: it changes nothing.
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

// Is the bucket asked for by the host's name?
static inline bool origin_s3_call_is_virtual(const struct origin_s3_call *c)
{
    return origin_s3_endpoint_is_virtual(&origin_s3_state_of(c->call.ow)->endpoint,
                                         c->call.ow->origin->options.addressing,
                                         origin_s3_call_bucket(c));
}

// Does this attempt carry a signature of ours?
static inline bool origin_s3_call_is_signed(const struct origin_s3_call *c)
{
    bool is_anonymous = c->set != NULL && c->set->is_anonymous;
    return !is_anonymous && !c->is_presigned &&
           (c->phase == PHASE_LOOK || c->r == NULL || !c->r->is_unsigned);
}

// --- origin_s3_call.c ----------------------------------------------------------------------------

// The next attempt, at once. Never calls back.
void origin_s3_call_attempt(struct origin_s3_call *c);
// Attempts from now on ask the endpoint again.
void origin_s3_call_leave_redirect(struct origin_s3_call *c);
// Waits for new credentials, then the next attempt; or the call's end where there are none.
void origin_s3_call_renew_credentials(struct origin_s3_call *c);
// Fills in the relay's answer from the head that has come; the caller hands it on.
enum err origin_s3_call_relay_prepare(struct origin_s3_call *c) MUST_USE;
// Tells the caller the outcome and frees the call. No transfer runs.
void origin_s3_call_end(struct origin_s3_call *c, enum err err);

// --- origin_s3_odd.c -----------------------------------------------------------------------------

// Before each attempt: is this origin to be asked otherwise than by HEAD or with If-Match?
void origin_s3_odd_prepare(struct origin_s3_call *c);
// If the answer refuses HEAD or If-Match, as an odd store always does, or its HEAD does not
// describe the object, begins the next attempt without it. Returns whether it has begun.
bool origin_s3_odd_ask_otherwise(struct origin_s3_call *c);
// The answer denies the version asked for, of which a client has bytes: true if the next attempt,
// on a connection of its own, has begun. Another replica may answer that one.
bool origin_s3_odd_ask_replica(struct origin_s3_call *c);
// An attempt of a fetch was answered as it was asked for.
void origin_s3_odd_learn(struct origin_s3_call *c);

// --- origin_s3_call_build.c ----------------------------------------------------------------------

// URL and signed headers of the next attempt, in the call's arena.
enum err origin_s3_call_build(struct origin_s3_call *c, struct origin_s3_url *ret_url,
                              struct headers *headers) MUST_USE;

// --- origin_s3_call_answer.c ---------------------------------------------------------------------
// Each goes on with the call: another attempt, a wait before it, or the call's end.

// The transfer broke before a final head; `detail` in curl's words.
void origin_s3_call_failed(struct origin_s3_call *c, enum err err, const char *detail);
// An answer that may not be final is here, its body collected.
void origin_s3_call_answered(struct origin_s3_call *c);
// PHASE_HELD: gives the collected body to a caller that takes it.
void origin_s3_call_held_body(struct origin_s3_call *c);

#endif
