// SPDX-License-Identifier: Apache-2.0
// One call to an S3 origin, for the files that make it. origin_s3_call.c runs it,
// origin_s3_call_build.c builds and signs each attempt, and origin_s3_call_answer.c handles answers
// that are no success.
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

// How the HEAD of a fetch is sent; origin_s3_odd.c.
enum origin_s3_form {
    S3_FORM_ASKED,   // as a HEAD
    S3_FORM_BY_BYTE, // as a GET of the first byte
    S3_FORM_BY_WHOLE // as a GET of the object, which is empty and has no first byte
};

// The corrections of a call: each is made once, or as often as its constant says.
struct origin_s3_mended {
    bool looked, clock, credentials;
    unsigned regions, redirects;
};

struct origin_s3_call {
    struct origin_call call; // must be the first member
    enum origin_s3_phase phase;
    enum origin_s3_form form;
    struct origin_s3_mended mended;
    bool is_paused; // by the caller
    bool upload_has_left;
    bool wants_fresh;    // from here on each attempt has a connection of its own
    bool omits_if_match; // we compare the ETag of the answer instead; origin_s3_odd.c
    bool is_presigned;   // this attempt uses a URL with its own signature
    // Status of the HEAD that a GET has replaced: a refusal, or a success that describes nothing.
    // Status of the attempt whose If-Match was refused. 0: there is none.
    unsigned replaced_head, refused_if_match;
    unsigned replicas_asked; // further replicas, because one denied the requested version
    unsigned attempts;
    enum err pending_err; // S3_PHASE_ENDING

    struct transfer *transfer;
    struct origin_s3_pool *pool;
    struct credentials_set *set; // of this attempt; NULL with the caller's own credentials
    struct span region;          // the region for which this attempt was signed
    int64_t signed_skew_s;       // the clock skew with which this attempt was signed
    struct span host;            // the host of this attempt
    char *redirect_url;          // the URL of the next attempt; NULL: the endpoint
    // Reach of the host that sent the redirect; until then that of the current answer.
    enum transfer_reach redirect_reach;
    struct response_head response_head;
    struct buf collected;
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
           (c->phase == S3_PHASE_LOOK || c->call.r == NULL || !c->call.r->is_unsigned);
}

// Returns true if the final head of this attempt has come.
static inline bool origin_s3_call_has_head(const struct origin_s3_call *c)
{
    return c->response_head.state == RESPONSE_DONE;
}

// The only writer of the phase. Aborts unless origin_s3_phases.def allows it.
void origin_s3_call_enter(struct origin_s3_call *c, enum origin_s3_phase phase);

// --- origin_s3_odd.c -----------------------------------------------------------------------------

// Called before each attempt: decides whether to avoid HEAD or If-Match with this origin.
void origin_s3_odd_prepare(struct origin_s3_call *c);
// Returns true if the call must ask again in another form. The store may refuse HEAD or If-Match,
// as some stores always do. Or its answer to a HEAD does not describe the object. Or another
// replica must be asked, see origin_s3_odd_ask_replica().
bool origin_s3_odd_ask_otherwise(struct origin_s3_call *c);
// Called when the answer denies the requested version. Returns true if a client has bytes of that
// version and the call must ask again, on a connection of its own, which another replica may
// answer.
bool origin_s3_odd_ask_replica(struct origin_s3_call *c);
// Called when an attempt of a fetch was answered as requested.
void origin_s3_odd_learn(struct origin_s3_call *c);

// --- origin_s3_call_build.c ----------------------------------------------------------------------

// Builds the URL and the signed headers of the next attempt in the call's arena.
enum err origin_s3_call_build(struct origin_s3_call *c, struct origin_s3_url *ret_url,
                              struct headers *headers) MUST_USE;

// --- origin_s3_call_answer.c ---------------------------------------------------------------------

// The next step of a call after an attempt.
enum origin_s3_next {
    S3_NEXT_ASK,   // make the next attempt at once
    S3_NEXT_WAIT,  // make the next attempt after wait_ms
    S3_NEXT_RENEW, // make the next attempt when there are new credentials
    S3_NEXT_HOLD,  // give the collected answer to the relay's caller
    S3_NEXT_END    // end the call with `err`
};
struct origin_s3_verdict {
    enum origin_s3_next next;
    enum err err;
    uint64_t wait_ms;
};
// Judges a transfer that broke off before a final head; `detail` is curl's text.
struct origin_s3_verdict origin_s3_call_failed(struct origin_s3_call *c, enum err err,
                                               const char *detail);
// Judges an answer that may not be final, and whose body was collected.
struct origin_s3_verdict origin_s3_call_answered(struct origin_s3_call *c);

#endif
