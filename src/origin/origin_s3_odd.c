// SPDX-License-Identifier: Apache-2.0
// Stores that refuse what S3 promises, and how they are asked instead. Runs on the call's worker; what is
// learnt is the origin's, for all workers, and expires.
//
//   HEAD refused (405, 501; 400 and 403 unless the origin has answered a HEAD lately)
//       GET of one byte describes the object as HEAD would, except for its checksums. An empty object has no
//       first byte (416): it is asked for whole. A caller who wants checksums alone gets the refusal. The answer to that GET is the answer to the HEAD. It proves
//       that the store refuses HEAD as such if it succeeds: a key without rights is refused both.
//   HEAD differs from GET (origin_doubt.c)
//       The same.
//   If-Match fails (412, 400, 501)
//       The same GET without it. response_head_judge() compares the answer's ETag with the one expected, so no
//       other version is ever taken for it. The right ETag proves that the store fails its own.
#include "base/clock.h"
#include "base/log.h"
#include "origin/origin_s3_call_private.h"
#include "stats/stats.h"

#define ODD_US 600000000u // what is learnt holds for so long

static bool holds(const atomic_ulong *until_us)
{
    return clock_monotonic_us() < atomic_load_explicit(until_us, memory_order_relaxed);
}

// Memory that all workers share is written only when half of the time has passed.
static bool note(atomic_ulong *until_us)
{
    uint64_t now_us = clock_monotonic_us();
    uint64_t have_us = atomic_load_explicit(until_us, memory_order_relaxed);
    if (have_us < now_us + ODD_US / 2) {
        atomic_store_explicit(until_us, now_us + ODD_US, memory_order_relaxed);
    }
    return have_us < now_us;
}

void origin_s3_odd_prepare(struct origin_s3_call *c)
{
    const struct origin_s3_state *state = origin_s3_state_of(c->call.ow);
    if (c->f != NULL) {
        bool is_odd =
            origin_doubts_head(c->call.ow->origin) || holds(&state->head_refused_until_us);
        c->by_get |= c->f->head && (c->f->by_get || (is_odd && !c->f->for_checksums));
        c->omits_if_match |= c->f->if_match.len > 0 && holds(&state->if_match_fails_until_us);
    }
}

static bool head_is_refused(const struct origin_s3_call *c)
{
    unsigned status = c->response_head.status;
    bool is_unknown = status == 405 || status == 501;
    bool is_denied = status == 400 || status == 403;
    return is_unknown ||
           (is_denied && !holds(&origin_s3_state_of(c->call.ow)->head_answered_until_us));
}

static bool ask_head_otherwise(struct origin_s3_call *c)
{
    unsigned status = c->response_head.status;
    if (!c->by_get && !c->f->for_checksums && head_is_refused(c)) {
        c->by_get = true;
        c->refused_head = status;
        return true;
    }
    uint64_t size = 0;
    bool is_empty =
        status == 416 && (!response_head_unsatisfied_size(&c->response_head, &size) || size == 0);
    if (c->by_get && !c->by_whole && is_empty) {
        c->by_whole = true;
        return true;
    }
    return false;
}

bool origin_s3_odd_ask_otherwise(struct origin_s3_call *c)
{
    unsigned status = c->response_head.status;
    bool asks = false;
    if (c->f == NULL) {
        return false;
    }
    if (c->f->head) {
        asks = ask_head_otherwise(c);
    } else if (c->f->if_match.len > 0 && !c->omits_if_match &&
               (status == 412 || status == 400 || status == 501)) {
        c->omits_if_match = asks = true;
        c->refused_if_match = status;
    }
    if (asks) {
        origin_s3_call_attempt(c);
    }
    return asks;
}

void origin_s3_odd_learn(struct origin_s3_call *c)
{
    struct origin_s3_state *state = origin_s3_state_of(c->call.ow);
    const char *name = origin_shown(c->call.ow->origin);
    if (c->f->head && !c->by_get) {
        (void)note(&state->head_answered_until_us);
    }
    if (c->by_get) {
        stats_add(COUNTER_origin_heads_by_get, 1);
    }
    if (c->refused_head != 0 && note(&state->head_refused_until_us)) {
        log_warn_condition("origin_refuses_head", "origin=%s status=%u", name, c->refused_head);
    }
    if (c->omits_if_match) {
        stats_add(COUNTER_origin_if_match_omitted, 1);
    }
    if (c->refused_if_match != 0 && note(&state->if_match_fails_until_us)) {
        log_warn_condition("origin_if_match_fails", "origin=%s status=%u", name,
                           c->refused_if_match);
    }
}
