// SPDX-License-Identifier: Apache-2.0
// Moves the state machines of this room from phase to phase. Each function aborts if phases.def
// does not name the new phase as a successor of the present one. Runs on the connection's worker.
#include "http/http_private.h"

void http_connection_enter(struct http_connection *c, enum connection_phase to)
{
    static const unsigned next[] = {
#define NEXT(name) (1u << CONNECTION_##name)
#define CONNECTION_PHASE(name, successors, ...) [CONNECTION_##name] = (successors),
#include "http/phases.def"
#undef NEXT
    };
    check_step(next, c->phase, to);
    c->phase = to;
    c->since_us = connection_now_us(c);
    c->drained_bytes = 0;
}

void http_run_enter(struct http_connection *c, enum run_phase to)
{
    static const unsigned next[] = {
#define NEXT(name) (1u << RUN_##name)
#define RUN_PHASE(name, successors, ...) [RUN_##name] = (successors),
#include "http/phases.def"
#undef NEXT
    };
    check_step(next, c->run, to);
    c->run = to;
}

void http_body_enter(struct http_exchange *x, enum body_phase to)
{
    static const unsigned next[] = {
#define NEXT(name) (1u << BODY_##name)
#define BODY_PHASE(name, successors, ...) [BODY_##name] = (successors),
#include "http/phases.def"
#undef NEXT
    };
    check_step(next, x->body, to);
    x->body = to;
}

void http_reply_enter(struct reply_state *r, enum reply_phase to)
{
    static const unsigned next[] = {
#define NEXT(name) (1u << REPLY_##name)
#define REPLY_PHASE(name, successors, ...) [REPLY_##name] = (successors),
#include "http/phases.def"
#undef NEXT
    };
    check_step(next, r->phase, to);
    r->phase = to;
}
