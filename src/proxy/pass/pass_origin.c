// SPDX-License-Identifier: Apache-2.0
// What is under way at the origin for a request that passes through: a relay, or a fetch of a
// direct read. On the request's worker.
//
// A transfer that is paused for a slow client keeps one of the few places at the origin. A read
// whose rest can be asked for by itself gives it back, as a run does (fill_pause.c):
//
//   running    pausing: paused, the timer runs
//   paused     resumed in time: running. Timer: the call is cancelled, ending
//   ending     the call's end: parked; or running, if it was resumed meanwhile
//   parked     resumed: the rest is asked for, running
//
// The rest is asked for in pieces that are never paused, each when the client has taken most of the
// one before; all at once again from a client that takes one quickly.
#include "proxy/pass/pass_private.h"

#include <string.h>

// How long a paused transfer keeps its place.
#define PAUSE_MAX_MS 500u
#define PIECE_BYTES (1u << 20)

void pass_origin_fetch(struct pass_state *p, uint64_t first, uint64_t last)
{
    struct origin_fetch *f = &p->direct.fetch;
    struct origin_fetch before = *f;
    *f = (struct origin_fetch){.bucket = before.bucket,
                               .key = before.key,
                               .on_head = before.on_head,
                               .on_body = before.on_body,
                               .on_end = before.on_end,
                               .ctx = p,
                               .credentials = request_origin_credentials(p->request),
                               .client = request_client(p->request),
                               .head = !p->direct.is_reading,
                               .has_range = p->direct.is_reading,
                               .first = first,
                               .last = last,
                               .if_match = p->direct.etag};
    p->relay_phase = RELAY_RUNNING;
    p->relay_started_us = clock_monotonic_us();
    p->asked_us = worker_now_us(p->pw->worker);
    p->request->attempts++;
    origin_fetch_start(p->pw->worker, p->request->origin, f);
}

static void call_pause(struct pass_state *p)
{
    if (p->direct.is_used) {
        origin_fetch_pause(&p->direct.fetch);
    } else {
        origin_relay_pause(&p->relay);
    }
}

static void call_resume(struct pass_state *p)
{
    if (p->direct.is_used) {
        origin_fetch_resume(&p->direct.fetch);
    } else {
        origin_relay_resume(&p->relay);
    }
}

static void call_cancel(struct pass_state *p)
{
    if (p->direct.is_used) {
        origin_fetch_cancel(&p->direct.fetch);
    } else {
        origin_relay_cancel(&p->relay);
    }
}

// --- parking -------------------------------------------------------------------------------------

static void on_pause_timer(struct timer *timer)
{
    struct pass_state *p = as_pass(container_of(timer, struct pass_state, park.timer));
    check(p->park.may && p->relay_paused && p->relay_phase == RELAY_RUNNING);
    check(!p->park.is_parked && !p->relay_cancelled);
    stats_add(COUNTER_pass_parked, 1);
    p->park.is_ending = true;
    call_cancel(p); // pass_origin_has_more() parks it
}

void pass_origin_init(struct pass_state *p)
{
    timer_init(p->pw->worker, &p->park.timer, on_pause_timer);
}

void pass_origin_done(struct pass_state *p)
{
    timer_done(&p->park.timer);
}

static void unpark(struct pass_state *p)
{
    uint64_t waited_us = worker_now_us(p->pw->worker) - p->park.idle_since_us;
    uint64_t next = p->direct.first + p->received_bytes;
    uint64_t piece = max_u64(chunk_budget_share(PIECE_BYTES), CHUNK_SIZE);
    p->park.is_parked = false;
    p->park.in_pieces = waited_us >= PAUSE_MAX_MS * 1000;
    p->park.asked_last =
        p->park.in_pieces ? min_u64(next + piece - 1, p->direct.last) : p->direct.last;
    pass_origin_fetch(p, next, p->park.asked_last);
}

bool pass_origin_has_more(struct pass_state *p, enum err err)
{
    bool was_ending = p->park.is_ending;
    uint64_t next = p->direct.first + p->received_bytes;
    bool piece_over = err == ERR_OK && p->park.in_pieces && next == p->park.asked_last + 1;
    timer_stop(&p->park.timer);
    p->park.is_ending = false;
    if (p->request == NULL || p->relay_cancelled || p->err != ERR_OK || next > p->direct.last ||
        !(was_ending || piece_over)) {
        return false;
    }
    p->park.is_parked = true;
    p->direct.is_used = p->direct.is_reading = true; // from here on, if it was a relay
    if (piece_over) {
        p->park.idle_since_us = worker_now_us(p->pw->worker);
        p->relay_paused = !byte_queue_low(&p->down);
    }
    if (!p->relay_paused) {
        unpark(p);
    }
    return true;
}

// --- pause, resume, cancel -----------------------------------------------------------------------

void pass_origin_pause(struct pass_state *p)
{
    if (p->park.in_pieces || p->park.is_ending) {
        return; // the piece has room; nothing more comes
    }
    p->relay_paused = true;
    call_pause(p);
    if (p->park.may) {
        p->park.idle_since_us = worker_now_us(p->pw->worker);
        timer_start(&p->park.timer, PAUSE_MAX_MS);
    }
}

void pass_origin_resume(struct pass_state *p)
{
    if (!p->relay_paused) {
        return;
    }
    p->relay_paused = false;
    timer_stop(&p->park.timer);
    if (p->park.is_parked) {
        unpark(p);
    } else if (!p->park.is_ending) {
        call_resume(p);
    }
}

void pass_origin_cancel(struct pass_state *p)
{
    if (p->relay_phase != RELAY_RUNNING || p->relay_cancelled) {
        return;
    }
    p->relay_cancelled = true;
    timer_stop(&p->park.timer);
    if (p->park.is_parked) {
        p->park.is_parked = false;
        p->relay_phase = RELAY_ENDED;
        p->relay_err = ERR_CANCELLED;
    } else if (!p->park.is_ending) {
        call_cancel(p);
    }
}
