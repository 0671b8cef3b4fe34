// SPDX-License-Identifier: Apache-2.0
// Runs the phases of a pass_state. Only the functions of this file change a phase. pass_phases.def
// has the legal changes, and pass_phase.c the functions of each phase. On the request's worker.
#include "proxy/pass/pass_private.h"

#define PASS_PHASE(name, next) [PASS_##name] = (next),
static const unsigned PASS_NEXT[] = {
#include "proxy/pass/pass_phases.def"
};
#define CALL_PHASE(name, next) [CALL_##name] = (next),
static const unsigned CALL_NEXT[] = {
#include "proxy/pass/pass_phases.def"
};
#define UPLOAD_PHASE(name, next) [UPLOAD_##name] = (next),
static const unsigned UPLOAD_NEXT[] = {
#include "proxy/pass/pass_phases.def"
};
#define ANSWER_PHASE(name, next) [ANSWER_##name] = (next),
static const unsigned ANSWER_NEXT[] = {
#include "proxy/pass/pass_phases.def"
};

static void drop_form(struct pass_state *p)
{
    buf_done(&p->form);
    chunk_budget_discharge(BUDGET_BODIES, PASS_FORM_HEAD_MAX);
}

static void enter(struct pass_state *p, enum pass_phase next)
{
    check_step(PASS_NEXT, p->phase, next);
    // A write must not skip its first or its second invalidation.
    check(next != PASS_ASK || p->phase == PASS_OPEN || !pass_changes_any(p));
    check(next != PASS_ANSWER || p->phase != PASS_ASK || !pass_changes_any(p));
    check(p->awaited == 0);
    p->phase = next;
}

void pass_enter_call(struct pass_state *p, enum call_phase next)
{
    check_step(CALL_NEXT, p->call.phase, next);
    check(p->call.phase != CALL_NONE || p->phase == PASS_ASK); // no call before ASK
    check(p->call.phase != CALL_ENDED || p->call.kind == PASS_BY_RANGE);
    p->call.phase = next;
}

void pass_enter_upload(struct pass_state *p, enum upload_phase next)
{
    check_step(UPLOAD_NEXT, p->upload, next);
    if (p->upload == UPLOAD_FORM_HEAD) {
        drop_form(p);
    }
    p->upload = next;
}

void pass_enter_answer(struct pass_state *p, enum answer_phase next)
{
    check_step(ANSWER_NEXT, p->answer, next);
    // The client of a write gets no answer before the second invalidation. The exception is an
    // outcome that is in the document: pass_answer.c holds the last byte of that document back.
    check(next == ANSWER_HEAD || !pass_changes_any(p) || p->is_streamed || p->phase == PASS_ANSWER);
    p->answer = next;
}

void pass_go(struct pass_state *p)
{
    as_pass(p);
    pass_state_check(p);
    for (;;) {
        if (p->rows[p->phase].again != NULL) {
            p->rows[p->phase].again(p);
        }
        enum pass_phase next = p->rows[p->phase].next(p);
        if (next == p->phase) {
            return;
        }
        enter(p, next);
        if (p->rows[next].begin != NULL) {
            p->rows[next].begin(p);
        }
    }
}

void pass_state_check(const struct pass_state *p)
{
    bool is_writing = p->phase == PASS_NOTE || p->phase == PASS_OPEN || p->phase == PASS_CLOSE;
    check(p->phase < PASS_OVER);
    check(p->awaited <= 3); // one for the keys, one for the bucket, one for the note
    check(p->awaited == 0 || is_writing);
    check(!is_writing || pass_changes_any(p));
    check(p->phase == PASS_READ || p->phase == PASS_ANSWER || p->origin != NULL);
    check(p->phase > PASS_OPEN || p->call.phase == CALL_NONE);
    check(p->phase != PASS_ASK || p->call.phase != CALL_NONE);
    check(p->phase < PASS_ANSWER || pass_changes_any(p) || !pass_calls(p));
    check(p->call.phase != CALL_NONE || p->answer != ANSWER_HEAD);
    check(p->telling == NULL || (p->request != NULL && p->phase == PASS_ASK));
    check(p->telling == NULL || !pass_is_answered(p));
    check(p->is_noting || p->phase != PASS_NOTE || p->awaited == 0);
    check(p->call.phase < CALL_YIELDING || p->call.phase > CALL_PARKED || p->call.may_park);
}
