// SPDX-License-Identifier: Apache-2.0
// One call to an S3 origin: declarations for the files that carry it out. origin_s3_call.c runs the
// call, origin_s3_call_build.c builds and signs each attempt, and origin_s3_call_answer.c handles
// failures and answers that are no success.
#ifndef FOREBAY_ORIGIN_S3_CALL_PRIVATE_H
#define FOREBAY_ORIGIN_S3_CALL_PRIVATE_H

#include "origin/origin_s3_private.h"
#include "origin/response_answer.h"

enum origin_s3_phase {
#define PHASE(name, successors) S3_PHASE_##name,
#include "origin/origin_s3_phases.def"
#undef PHASE
    S3_PHASE_COUNT_
};

// The ways in which the HEAD of a fetch is sent; see origin_s3_odd.c.
enum origin_s3_form {
    S3_FORM_ASKED,   // Sent as a HEAD.
    S3_FORM_BY_BYTE, // Sent as a GET of the first byte.
    S3_FORM_BY_WHOLE // Sent as a GET of the object, which is empty and has no first byte.
};

// Corrections that the call has already made. The three flags stand for corrections that are made
// once; the two counters have a limit.
struct origin_s3_mended {
    bool looked, clock, credentials;
    unsigned regions, redirects;
};

struct origin_s3_call {
    struct origin_call call; // Must be the first member.
    enum origin_s3_phase phase;
    enum origin_s3_form form;
    struct origin_s3_mended mended;
    bool is_paused; // The caller has paused the call.
    bool is_held;   // origin.max_rate pauses the body until the timer fires.
    bool upload_has_left;
    bool wants_fresh;    // Each further attempt uses a new connection.
    bool omits_if_match; // If-Match is not sent; see origin_s3_odd.c.
    bool is_presigned;   // This attempt's URL has its own signature.
    // replaced_head: the status of the HEAD that a GET has replaced, because it was refused or did
    // not describe the object. refused_if_match: the status of the attempt whose If-Match was
    // refused. 0: none.
    unsigned replaced_head, refused_if_match;
    unsigned replicas_asked; // Repetitions because a replica denied the version.
    unsigned attempts;
    // The error with which the task ends the call in S3_PHASE_ENDING, and after the body in
    // S3_PHASE_HELD. In S3_PHASE_BODY: the error of the caller, for which the transfer was
    // cancelled.
    enum err pending_err;

    struct transfer *transfer;
    struct origin_s3_pool *pool;
    struct credentials_set *set; // Credentials of this attempt. NULL: those of the caller.
    struct span region;          // This attempt was signed for this region.
    int64_t signed_skew_s;       // This attempt was signed with this clock skew.
    struct span host;            // This attempt was sent to this host.
    char *redirect_url;          // The URL of the next attempt. NULL: the endpoint's.
    // The reach of the host that sent the redirect. The next attempt may not connect to a more
    // private address.
    enum transfer_reach redirect_reach;
    struct response_head response_head;
    struct buf collected; // Bytes of the body that the caller has not got.
    uint64_t received, started_us, first_asked_us;

    struct timer timer;
    struct task task;
    struct credentials_waiter waiter;
};

static inline struct span origin_s3_call_method(const struct origin_s3_call *c)
{
    return c->call.r != NULL                                             ? c->call.r->method
           : origin_fetch_is_head(c->call.f) && c->form == S3_FORM_ASKED ? SPAN("HEAD")
                                                                         : SPAN("GET");
}

static inline struct span origin_s3_call_bucket(const struct origin_s3_call *c)
{
    return c->call.r != NULL ? c->call.r->bucket : c->call.f->bucket;
}

static inline struct span origin_s3_call_key(const struct origin_s3_call *c)
{
    return c->call.r != NULL ? c->call.r->request->key : c->call.f->key;
}

static inline bool origin_s3_call_is_head(const struct origin_s3_call *c)
{
    return c->phase == S3_PHASE_LOOK || span_equal_cstr(origin_s3_call_method(c), "HEAD");
}

static inline bool origin_s3_call_has_stale(const struct origin_s3_call *c)
{
    return c->call.f != NULL && c->call.f->has_stale;
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
    return c->call.r != NULL ? c->call.r->credentials : c->call.f->credentials;
}

// Returns true if the call's requests have the bucket in the host name.
static inline bool origin_s3_call_is_virtual(const struct origin_s3_call *c)
{
    return origin_s3_endpoint_is_virtual(&origin_s3_state_of(c->call.ow)->endpoint,
                                         c->call.ow->origin->options.addressing,
                                         origin_s3_call_bucket(c));
}

// Returns true if Forebay signs this attempt.
static inline bool origin_s3_call_is_signed(const struct origin_s3_call *c)
{
    bool is_anonymous = c->set != NULL && c->set->is_anonymous;
    return !is_anonymous && !c->is_presigned &&
           (c->phase == S3_PHASE_LOOK || c->call.r == NULL || !c->call.r->is_unsigned);
}

// Returns true if this attempt has received its final response head.
static inline bool origin_s3_call_has_head(const struct origin_s3_call *c)
{
    return c->response_head.state == RESPONSE_DONE;
}

// Changes the phase; nothing else may. Aborts if origin_s3_phases.def does not allow the change.
void origin_s3_call_enter(struct origin_s3_call *c, enum origin_s3_phase phase);

// --- origin_s3_odd.c -----------------------------------------------------------------------------

// Called before each attempt. Decides whether the attempt avoids HEAD or If-Match, because this
// origin mishandles them.
void origin_s3_odd_prepare(struct origin_s3_call *c);
// Returns true if the call must ask again in another form, for one of these reasons:
//
// - The store may refuse HEAD or If-Match always, as some stores do.
// - The answer to a HEAD does not describe the object.
// - Another replica must be asked, see origin_s3_odd_ask_replica().
bool origin_s3_odd_ask_otherwise(struct origin_s3_call *c);
// Called when the answer denies the requested version. Returns true if the call must ask again,
// because a client already has bytes of that version. The call then uses a new connection, which
// may lead to another replica.
bool origin_s3_odd_ask_replica(struct origin_s3_call *c);
// Called when a fetch was answered as requested. Records oddities of the store that the attempts
// have shown.
void origin_s3_odd_learn(struct origin_s3_call *c);

// --- origin_s3_call_learn.c ----------------------------------------------------------------------

// Called for the head of each answer. Records what its headers show of the origin.
void origin_s3_call_learn(struct origin_s3_call *c);
// Called for the head of an answer that belongs to the call's request. Records that the origin
// answers, and how soon.
void origin_s3_call_learn_answer(struct origin_s3_call *c);

// --- origin_s3_call_build.c ----------------------------------------------------------------------

// Builds the URL and the signed headers of the next attempt in the call's arena.
enum err origin_s3_call_build(struct origin_s3_call *c, struct origin_s3_url *ret_url,
                              struct headers *headers) MUST_USE;

// --- origin_s3_call_answer.c ---------------------------------------------------------------------

// The next step of a call after an attempt.
enum origin_s3_next {
    S3_NEXT_ASK,   // Make the next attempt at once.
    S3_NEXT_WAIT,  // Make the next attempt after wait_ms.
    S3_NEXT_RENEW, // Make the next attempt with new credentials.
    S3_NEXT_HOLD,  // Pass the collected answer to the relay's caller.
    S3_NEXT_END    // End the call with `err`.
};
struct origin_s3_verdict {
    enum origin_s3_next next;
    enum err err;
    uint64_t wait_ms;
};
// Decides what follows a transfer that failed before its answer was complete; `detail` is curl's
// text.
struct origin_s3_verdict origin_s3_call_failed(struct origin_s3_call *c, enum err err,
                                               const char *detail);
// Decides what follows a collected answer, which may lead to another attempt.
struct origin_s3_verdict origin_s3_call_answered(struct origin_s3_call *c);
// Judges the collected refusal of an upload whose keys are still those of Forebay after a renewal.
// Returns the error that the call ends with.
enum err origin_s3_call_keys_stay(struct origin_s3_call *c);

#endif
