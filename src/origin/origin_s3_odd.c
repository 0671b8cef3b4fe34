// SPDX-License-Identifier: Apache-2.0
// Handles stores that refuse requests which S3 answers. Learns which requests a store refuses, and
// chooses the requests that replace them. Runs on the call's worker. All workers share the facts
// learnt about an origin, and each fact expires after some minutes.
//
// - The store refuses HEAD (405, 501; also 400 and 403, unless the origin has answered a HEAD
//   lately): the call sends a GET of one byte. Its answer describes the object as that of a HEAD
//   would, except for the checksums. An empty object has no first byte (416), so the whole object
//   is requested. A caller who wants only checksums gets the refusal; other callers get the GET's
//   answer. If the GET succeeds, the store refuses every HEAD, because with a key that lacks rights
//   it would refuse the GET too.
// - The store refuses HEAD of one key (400, 403, although it answers other HEADs): the call sends
//   the GET of one byte if the caller has bytes of the object or wants them (get_decides), because
//   a policy may refuse HEAD and grant GET. Forebay remembers the key, whatever the GET's answer
//   is, so that the next check costs one request. A client's own HEAD gets the refusal.
// - The answer to HEAD does not describe the object (no length, or another 2xx than 200): the call
//   sends the GET of one byte. If its answer describes the object, all HEADs to this origin are
//   replaced for some minutes.
// - HEAD and GET describe objects differently (origin_doubt.c): the call sends the GET of one byte.
// - A GET with If-Match fails (412, 400, 501): the call sends the same GET without If-Match.
//   response_answer_judge() compares the answer's ETag with the expected one, so no other version
//   is ever accepted. If the ETag is the expected one, the store fails If-Match for its own ETag.
//   But if it has accepted an If-Match lately, its replicas differ instead.
// - The store has another version or none, although clients have bytes of the requested version
//   (is_bound): the call sends the same GET again, on a new connection, so that another replica may
//   answer. If one has the requested version, the replicas differ, because a version that was
//   replaced does not come back. The answer must then not be stored (ORIGIN_FORBIDS_VERSIONS), and
//   reads of the key pass through for a while.
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "origin/origin_s3_call_private.h"
#include "stats/stats.h"

// How often one call asks again after the requested version was denied. The number is low, because
// most such answers are right: the object has changed.
#define REPLICAS_MAX 2u
#define REPLICAS_MAX_OF_ODD 8u // As REPLICAS_MAX, if the store's replicas have differed lately.
#define ODD_US 600000000u      // How long a learnt fact counts.
// The lowest bits of a key's entry are the time of the refusal, in these units.
#define KEY_TIME_US 10000000u
#define KEY_TIME_MASK 0xffffull

// Records a fact that counts for ODD_US from now on. Returns true if it is new. Writes the time,
// which all workers read, only if half of it has passed.
static bool note(atomic_ulong *until_us)
{
    uint64_t now_us = clock_monotonic_us();
    uint64_t have_us = atomic_load_explicit(until_us, memory_order_relaxed);
    if (have_us < now_us + ODD_US / 2) {
        atomic_store_explicit(until_us, now_us + ODD_US, memory_order_relaxed);
    }
    return have_us < now_us;
}

// Returns the key's entry in the table, and sets *ret_name to the part of it that identifies the
// key. Keys that share an entry replace each other.
static atomic_ulong *key_slot(const struct origin_s3_call *c, uint64_t *ret_name)
{
    struct origin_s3_state *state = origin_s3_state_of(c->call.ow);
    struct span bucket = c->call.f->bucket, key = c->call.f->key;
    uint64_t hash = hash64(key.ptr, key.len, hash64(bucket.ptr, bucket.len, 0));
    *ret_name = hash & ~KEY_TIME_MASK;
    return &state->heads_refused[hash % ORIGIN_S3_HEADS_REFUSED];
}

static uint64_t key_time(void)
{
    return clock_monotonic_us() / KEY_TIME_US & KEY_TIME_MASK;
}

static void note_key(const struct origin_s3_call *c)
{
    uint64_t name = 0;
    atomic_ulong *slot = key_slot(c, &name);
    atomic_store_explicit(slot, name | key_time(), memory_order_relaxed);
}

static bool key_is_noted(const struct origin_s3_call *c)
{
    uint64_t name = 0;
    uint64_t noted = atomic_load_explicit(key_slot(c, &name), memory_order_relaxed);
    uint64_t age = (key_time() - noted) & KEY_TIME_MASK;
    return noted != 0 && (noted & ~KEY_TIME_MASK) == name && age < ODD_US / KEY_TIME_US;
}

void origin_s3_odd_prepare(struct origin_s3_call *c)
{
    const struct origin *origin = c->call.ow->origin;
    if (c->call.f != NULL) {
        bool is_odd = origin_doubts_head(origin) || origin_is_odd(origin, ORIGIN_REFUSES_HEAD) ||
                      (c->call.f->get_decides && key_is_noted(c));
        if (c->form == S3_FORM_ASKED && origin_fetch_is_head(c->call.f) &&
            (c->call.f->kind == ORIGIN_HEAD_BY_GET ||
             (is_odd && c->call.f->wants_checksums != ORIGIN_CHECKSUMS_ONLY))) {
            c->form = S3_FORM_BY_BYTE;
        }
        c->omits_if_match |=
            c->call.f->if_match.len > 0 && origin_is_odd(origin, ORIGIN_FAILS_IF_MATCH);
    }
}

// Returns true if the origin has answered other HEADs lately.
static bool answers_heads(const struct origin_s3_call *c)
{
    return origin_holds(&origin_s3_state_of(c->call.ow)->head_answered_until_us);
}

static bool head_is_refused(const struct origin_s3_call *c)
{
    unsigned status = c->response_head.status;
    bool is_unknown = status == 405 || status == 501;
    bool is_denied = status == 400 || status == 403;
    return is_unknown || (is_denied && (c->call.f->get_decides || !answers_heads(c)));
}

static bool ask_head_otherwise(struct origin_s3_call *c)
{
    unsigned status = c->response_head.status;
    bool is_unfit = status / 100 == 2;
    if (c->form == S3_FORM_ASKED && c->call.f->wants_checksums != ORIGIN_CHECKSUMS_ONLY &&
        (is_unfit || head_is_refused(c))) {
        c->form = S3_FORM_BY_BYTE;
        if (!is_unfit && answers_heads(c) && status != 405 && status != 501) {
            note_key(c);
        } else {
            c->replaced_head = status;
        }
        return true;
    }
    uint64_t size = 0;
    bool is_empty =
        status == 416 && (!response_answer_unsatisfied_size(&c->response_head, &size) || size == 0);
    if (c->form == S3_FORM_BY_BYTE && is_empty) {
        c->form = S3_FORM_BY_WHOLE;
        return true;
    }
    return false;
}

bool origin_s3_odd_ask_replica(struct origin_s3_call *c)
{
    struct origin *origin = c->call.ow->origin;
    bool is_odd = origin_is_odd(origin, ORIGIN_VERSIONS_DIFFER);
    unsigned max = is_odd ? REPLICAS_MAX_OF_ODD : REPLICAS_MAX;
    bool asks = c->call.f != NULL && c->call.f->is_bound && c->call.f->if_match.len > 0 &&
                c->replicas_asked < max && origin_retry_take(origin);
    if (asks) {
        c->replicas_asked++;
        c->omits_if_match = false;
        c->wants_fresh = true;
    }
    return asks;
}

bool origin_s3_odd_ask_otherwise(struct origin_s3_call *c)
{
    unsigned status = c->response_head.status;
    if (c->call.f == NULL) {
        return false;
    }
    if (origin_fetch_is_head(c->call.f)) {
        return ask_head_otherwise(c);
    }
    if (c->call.f->if_match.len > 0 && !c->omits_if_match && c->refused_if_match == 0 &&
        (status == 412 || status == 400 || status == 501)) {
        c->omits_if_match = true;
        c->refused_if_match = status;
        return true;
    }
    return (status == 412 || status == 404 || status == 416) && origin_s3_odd_ask_replica(c);
}

void origin_s3_odd_learn(struct origin_s3_call *c)
{
    struct origin_s3_state *state = origin_s3_state_of(c->call.ow);
    struct origin *origin = c->call.ow->origin;
    const char *name = origin->shown;
    if (c->form != S3_FORM_ASKED) {
        stats_add(COUNTER_origin_heads_by_get, 1);
    } else if (origin_fetch_is_head(c->call.f)) {
        (void)note(&state->head_answered_until_us);
    }
    if (c->replaced_head / 100 == 2) {
        origin_doubt_head(origin);
    } else if (c->replaced_head != 0 && note(&origin->head_refused_until_us)) {
        log_warn_condition("origin_refuses_head", "origin=%s status=%u", name, c->replaced_head);
    }
    if (c->omits_if_match) {
        stats_add(COUNTER_origin_if_match_omitted, 1);
    }
    bool differ = c->replicas_asked > 0 ||
                  (c->refused_if_match != 0 && origin_holds(&state->if_match_answered_until_us));
    if (differ) {
        c->call.f->forbids = ORIGIN_FORBIDS_VERSIONS;
        stats_add(COUNTER_origin_versions_differ, 1);
    }
    if (differ && note(&origin->versions_differ_until_us)) {
        log_warn_condition("origin_versions_differ", "origin=%s", name);
    }
    if (c->call.f->if_match.len > 0 && !c->omits_if_match) {
        (void)note(&state->if_match_answered_until_us);
    }
    if (!differ && c->refused_if_match != 0 && note(&origin->if_match_fails_until_us)) {
        log_warn_condition("origin_if_match_fails", "origin=%s status=%u", name,
                           c->refused_if_match);
    }
}
