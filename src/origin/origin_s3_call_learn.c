// SPDX-License-Identifier: Apache-2.0
// Records what the head of an answer shows of the origin: its clock, its kind of server, that it
// can be reached and accepts our requests, and how soon it answers. Runs on the worker of the call.
#include "base/clock.h"
#include "base/date.h"
#include "origin/origin_s3_call_private.h"

// Records the origin's clock. Writes the atomics only when the value changes, because all workers
// read them.
static void learn_date(struct origin_s3_call *c)
{
    struct origin *origin = c->call.ow->origin;
    struct span date;
    time_t origin_s = 0;
    if (!headers_get(&c->response_head.headers, SPAN("Date"), &date) ||
        !date_parse_http(date, &origin_s)) {
        return;
    }
    long long skew_s = (long long)origin_s - (long long)clock_wall_s();
    long long held_s = atomic_load_explicit(&origin->date_skew_s, memory_order_relaxed);
    if (skew_s > held_s + 1 || skew_s < held_s - 1) {
        atomic_store(&origin->date_skew_s, skew_s);
    }
    if (!atomic_load_explicit(&origin->has_date_skew, memory_order_relaxed)) {
        atomic_store(&origin->has_date_skew, true);
    }
}

void origin_s3_call_learn(struct origin_s3_call *c)
{
    struct span server;
    if (headers_get(&c->response_head.headers, SPAN("Server"), &server)) {
        origin_server_header_learn(c->call.ow->origin, server);
    }
    learn_date(c);
    origin_s3_unpacks_learn(c->call.ow, &c->response_head.headers);
    origin_hops_learn(c->call.ow->origin, c->response_head.status);
}

void origin_s3_call_learn_answer(struct origin_s3_call *c)
{
    struct origin *origin = c->call.ow->origin;
    unsigned status = c->response_head.status;
    // Only the document of a refusal tells whether it is about the signature, so
    // refuses_credentials() looks at that. A store may say what it does not implement before it
    // looks at the signature.
    bool is_refusal = status == 400 || status == 401 || status == 403 || status == 501;
    bool takes_keys = !is_refusal && c->set != NULL && origin_s3_call_is_signed(c);
    if ((status >= 500 && status != 501) || status == 408 || status == 429) {
        return;
    }
    origin_failures_note(origin, ORIGIN_OUTCOME_GOOD);
    if (takes_keys) {
        origin_failures_note_access(origin, false);
    }
    origin_trouble_answered(origin, takes_keys, origin_s3_call_is_virtual(c), c->started_us);
    if (origin_s3_call_is_safe(c)) {
        origin_pace_note(origin, clock_monotonic_us() - c->started_us);
    }
}
