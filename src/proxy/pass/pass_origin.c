// SPDX-License-Identifier: Apache-2.0
// The call at the origin for a request that passes through. It is a relay, or a fetch of a direct
// read. On the request's worker.
//
// A transfer that is paused for a slow client occupies one of the few slots at the origin. If the
// rest of a read can be requested separately, the slot is freed, as it is for a run (fill_pause.c).
// The events in each phase, and the phase that follows:
//
//   RUNNING    paused: starts the timer, PAUSED
//   PAUSED     resumed in time: RUNNING. The timer fires: cancels the call, YIELDING
//   YIELDING   resumed: RETAKING. The call ends: PARKED
//   RETAKING   the call ends: PARKED, and resumed at once
//   PARKED     resumed: requests a piece, PIECE. If it was not parked for long: requests all the
//              rest, RUNNING
//   PIECE      the call ends: PARKED, and resumed at once if the queue is nearly empty
//
// The rest is requested in pieces that are never paused. If the client takes a piece quickly, all
// the rest is requested at once.
#include "proxy/pass/pass_private.h"

#include <string.h>

// Maximum time that a paused transfer occupies its slot.
#define PAUSE_MAX_MS 500u
#define PIECE_BYTES (1u << 20)

void pass_origin_begin(struct pass_state *p, enum call_phase phase)
{
    check(phase == CALL_RUNNING || phase == CALL_PIECE);
    check(p->request != NULL);
    pass_enter_call(p, phase);
    p->call.started_us = clock_monotonic_us();
    p->call.asked_us = worker_now_us(p->pw->worker);
}

static void fetch(struct pass_state *p, enum call_phase phase, uint64_t first, uint64_t last)
{
    struct origin_fetch *f = &p->direct.fetch;
    struct origin_fetch before = *f;
    bool is_head = p->call.kind == PASS_BY_HEAD;
    check(p->call.kind != PASS_BY_RELAY);
    check(before.on_end != NULL);
    check(is_head || (first <= last && last <= p->direct.last));
    *f = (struct origin_fetch){.bucket = before.bucket,
                               .key = before.key,
                               .on_head = before.on_head,
                               .on_body = before.on_body,
                               .on_end = before.on_end,
                               .ctx = p,
                               .credentials = request_origin_credentials(p->request),
                               .client = request_client(p->request),
                               .kind = is_head ? ORIGIN_HEAD : ORIGIN_GET_RANGE,
                               .first = first,
                               .last = last,
                               .if_match = p->direct.etag};
    pass_origin_begin(p, phase);
    p->request->attempts++;
    origin_fetch_start(p->pw->worker, p->request->origin, f);
}

void pass_origin_fetch(struct pass_state *p)
{
    fetch(p, CALL_RUNNING, p->direct.first, p->direct.last);
}

static void call_pause(struct pass_state *p)
{
    if (p->call.kind == PASS_BY_RELAY) {
        origin_relay_pause(&p->relay);
    } else {
        origin_fetch_pause(&p->direct.fetch);
    }
}

static void call_resume(struct pass_state *p)
{
    if (p->call.kind == PASS_BY_RELAY) {
        origin_relay_resume(&p->relay);
    } else {
        origin_fetch_resume(&p->direct.fetch);
    }
}

static void call_cancel(struct pass_state *p)
{
    if (p->call.kind == PASS_BY_RELAY) {
        origin_relay_cancel(&p->relay);
    } else {
        origin_fetch_cancel(&p->direct.fetch);
    }
}

// --- parking -------------------------------------------------------------------------------------

static void on_pause_timer(struct timer *timer)
{
    struct pass_state *p = as_pass(container_of(timer, struct pass_state, call.timer));
    check(p->call.may_park);
    stats_add(COUNTER_pass_parked, 1);
    pass_enter_call(p, CALL_YIELDING);
    call_cancel(p); // pass_origin_end() then parks the call
}

void pass_origin_init(struct pass_state *p)
{
    timer_init(p->pw->worker, &p->call.timer, on_pause_timer);
}

void pass_origin_done(struct pass_state *p)
{
    timer_done(&p->call.timer);
}

// Returns the offset in the object of the first byte that has not been received yet.
static uint64_t next_byte(const struct pass_state *p)
{
    return p->direct.first + p->received_bytes;
}

static void unpark(struct pass_state *p)
{
    check(p->call.phase == CALL_PARKED);
    uint64_t waited_us = worker_now_us(p->pw->worker) - p->call.idle_since_us;
    uint64_t piece = max_u64(chunk_budget_share(PIECE_BYTES), CHUNK_SIZE);
    bool is_slow = waited_us >= PAUSE_MAX_MS * 1000;
    p->call.asked_last =
        is_slow ? min_u64(next_byte(p) + piece - 1, p->direct.last) : p->direct.last;
    fetch(p, is_slow ? CALL_PIECE : CALL_RUNNING, next_byte(p), p->call.asked_last);
}

bool pass_origin_end(struct pass_state *p, enum err err)
{
    check(pass_calls(p) && p->call.phase != CALL_PARKED);
    bool is_piece =
        p->call.phase == CALL_PIECE && err == ERR_OK && next_byte(p) == p->call.asked_last + 1;
    bool is_retaking = p->call.phase == CALL_RETAKING;
    bool is_parked = p->call.phase == CALL_YIELDING || is_retaking || is_piece;
    timer_stop(&p->call.timer);
    if (!is_parked || p->request == NULL || p->err != ERR_OK || next_byte(p) > p->direct.last) {
        pass_enter_call(p, CALL_ENDED);
        p->call.err = err;
        return true;
    }
    pass_enter_call(p, CALL_PARKED);
    p->call.kind = PASS_BY_RANGE; // also if the first call was a relay
    if (is_piece) {
        p->call.idle_since_us = worker_now_us(p->pw->worker);
    }
    if (is_retaking || (is_piece && byte_queue_low(&p->down))) {
        unpark(p);
    }
    return false;
}

// --- pause, resume, cancel -----------------------------------------------------------------------

void pass_origin_pause(struct pass_state *p)
{
    if (p->call.phase != CALL_RUNNING) {
        return; // a piece always has room, and the other phases bring no more bytes
    }
    pass_enter_call(p, CALL_PAUSED);
    call_pause(p);
    if (p->call.may_park) {
        p->call.idle_since_us = worker_now_us(p->pw->worker);
        timer_start(&p->call.timer, PAUSE_MAX_MS);
    }
}

void pass_origin_resume(struct pass_state *p)
{
    if (p->call.phase == CALL_PAUSED) {
        pass_enter_call(p, CALL_RUNNING);
        timer_stop(&p->call.timer);
        call_resume(p);
    } else if (p->call.phase == CALL_YIELDING) {
        pass_enter_call(p, CALL_RETAKING);
    } else if (p->call.phase == CALL_PARKED) {
        unpark(p);
    }
}

void pass_origin_cancel(struct pass_state *p)
{
    enum call_phase phase = p->call.phase;
    if (!pass_calls(p) || phase == CALL_CANCELLED) {
        return;
    }
    timer_stop(&p->call.timer);
    pass_enter_call(p, phase == CALL_PARKED ? CALL_ENDED : CALL_CANCELLED);
    if (phase == CALL_PARKED) {
        p->call.err = ERR_CANCELLED;
    } else if (phase != CALL_YIELDING && phase != CALL_RETAKING) {
        call_cancel(p);
    }
}
