// SPDX-License-Identifier: Apache-2.0
// Implements the phases of a request that passes through. The table PASS_ROWS, at the end, has the
// functions of each phase: one begins it, one runs at each later step, and one returns the phase
// that follows, or the same phase if the request must wait. pass_go() calls them. pass_phases.def
// lists which phases may follow which. All of this runs on the request's worker.
//
// The order of the phases keeps the promise to clients. The origin is asked only after every cached
// copy of the changed keys has been invalidated. The client is answered only after every copy has
// been invalidated once more.
#include "proxy/pass/pass_private.h"

#include "stats/stats.h"

static void on_one_ended(struct pass_state *p);

// --- read ----------------------------------------------------------------------------------------

static enum pass_phase after_read(const struct pass_state *p)
{
    if (p->err != ERR_OK || p->request == NULL) {
        return PASS_ANSWER;
    }
    if (p->origin == NULL) {
        return PASS_READ;
    }
    if (!pass_changes_any(p)) {
        return PASS_ASK;
    }
    if (store_write_is_noted(p->pw->store, p->bucket_place, p->relay.bucket)) {
        return PASS_OPEN;
    }
    return count_if(store_notes_hang(p->pw->store), COUNTER_write_notes_late) ? PASS_OPEN
                                                                              : PASS_NOTE;
}

void pass_phase_start(struct pass_state *p)
{
    struct request *r = p->request;
    check(p->phase == PASS_READ);
    check(p->origin == NULL && r->origin != NULL);
    check(p->err == ERR_OK);
    p->relay.bucket = arena_copy(p->arena, r->origin_bucket);
    p->origin = r->origin; // a write continues when the client leaves, and `r` is then freed
    p->bucket_place = span_from_cstr(origin_place(r->origin));
    if (pass_changes_any(p)) {
        stats_add(COUNTER_writes_inflight, 1);
    }
    pass_go(p);
}

// --- note ----------------------------------------------------------------------------------------

// The wait for the note is over: in the phase NOTE, or in CLOSE.
static void note_over(struct pass_state *p)
{
    check(p->waits_note && p->awaited > 0);
    p->waits_note = false;
    if (p->phase == PASS_CLOSE) {
        on_one_ended(p);
        return;
    }
    check(p->phase == PASS_NOTE);
    p->awaited--;
    pass_go(p);
}

// If the note is not on disk in time, it counts as failed, and the write continues without it.
static void on_note_late(struct timer *timer)
{
    struct pass_state *p = as_pass(container_of(timer, struct pass_state, note_timer));
    check(p->is_noting);
    stats_add(COUNTER_write_notes_late, 1);
    note_over(p);
}

static void on_noted(struct store_note *note)
{
    struct pass_state *p = as_pass(container_of(note, struct pass_state, note));
    check(p->is_noting);
    p->is_noting = false;
    timer_done(&p->note_timer);
    if (p->waits_note) {
        note_over(p);
    } else {
        pass_go(p); // it was late, and the request may have waited to be freed
    }
}

static void note_start(struct pass_state *p, struct span place, struct span bucket)
{
    check(!p->is_noting && !p->waits_note);
    p->note.done = on_noted;
    p->is_noting = p->waits_note = true;
    p->awaited++;
    timer_init(p->pw->worker, &p->note_timer, on_note_late);
    timer_start(&p->note_timer, STORE_NOTE_WAIT_MS);
    store_write_note(p->pw->worker, p->pw->store, place, bucket, &p->note);
}

static void begin_note(struct pass_state *p)
{
    check(p->awaited == 0);
    note_start(p, p->bucket_place, p->relay.bucket);
}

static enum pass_phase after_note(const struct pass_state *p)
{
    return p->awaited > 0 ? PASS_NOTE : PASS_OPEN;
}

// --- open ----------------------------------------------------------------------------------------

static void on_one_ready(struct pass_state *p)
{
    check(p->phase == PASS_OPEN);
    check(p->awaited > 0);
    p->awaited--;
    pass_go(p);
}

static void on_keys_ready(struct pass_state *p, enum err err)
{
    check(p->phase == PASS_OPEN);
    if (err == ERR_NOT_RECORDED) {
        pass_upload_refuse(
            p, err,
            SPAN("The copy this request replaces could not be removed from the cache directory"));
    } else if (err != ERR_OK) {
        pass_upload_refuse(p, err, (struct span){NULL, 0});
    }
    on_one_ready(p);
}

static void on_bucket_ready(struct bucket_write *bw)
{
    struct pass_state *p = as_pass(bw->ctx);
    check(p->changes_bucket);
    if (bw->err != ERR_OK) {
        pass_upload_refuse(
            p, ERR_NOT_RECORDED,
            SPAN("The change of this request could not be noted in the cache directory"));
    }
    on_one_ready(p);
}

static void on_bucket_ended(struct bucket_write *bw);

// Returns how many invalidations OPEN and CLOSE wait for: of the keys, of the bucket, or both.
static unsigned count_writes(const struct pass_state *p)
{
    return (p->writes.key_count > 0 ? 1 : 0) + (p->changes_bucket ? 1 : 0);
}

static void begin_open(struct pass_state *p)
{
    check(p->call.phase == CALL_NONE);
    p->awaited = count_writes(p);
    check(p->awaited > 0);
    if (p->changes_bucket) {
        p->bucket_write.ctx = p;
        p->bucket_write.on_ready = on_bucket_ready;
        p->bucket_write.on_ended = on_bucket_ended;
        invalidate_bucket_begin(p->pw->fill, &p->bucket_write, p->origin, p->relay.bucket);
    }
    if (p->writes.key_count > 0) {
        pass_writes_open(p, on_keys_ready);
    }
}

// If the request is refused now, or its client has gone, the origin is not asked. Open writes are
// closed in any case.
static enum pass_phase after_open(const struct pass_state *p)
{
    if (p->awaited > 0) {
        return PASS_OPEN;
    }
    return p->err == ERR_OK && p->request != NULL ? PASS_ASK : PASS_CLOSE;
}

// --- ask -----------------------------------------------------------------------------------------

static void begin_ask(struct pass_state *p)
{
    check(p->request != NULL && p->err == ERR_OK);
    check(p->awaited == 0);
    check(p->call.phase == CALL_NONE);
    if (p->call.kind == PASS_BY_RELAY) {
        pass_relay_start(p);
    } else {
        pass_origin_fetch(p);
    }
}

// The outcome of a write is known once the head of the answer has come. Two cases need the whole
// answer: an outcome that is in the document, and a request that changes nothing.
static enum pass_phase after_ask(const struct pass_state *p)
{
    bool has_verdict =
        pass_has_head(p) && !p->is_streamed && p->err == ERR_OK && pass_changes_any(p);
    bool is_known = p->call.phase == CALL_ENDED || has_verdict;
    if (!is_known || p->telling != NULL) { // pass_version.c continues once the home has replied
        return PASS_ASK;
    }
    return pass_changes_any(p) ? PASS_CLOSE : PASS_ANSWER;
}

// --- close ---------------------------------------------------------------------------------------

static void on_one_ended(struct pass_state *p)
{
    check(p->phase == PASS_CLOSE);
    check(p->awaited > 0);
    if (--p->awaited == 0) {
        stats_sub(COUNTER_writes_inflight, 1);
        pass_go(p);
    }
}

static void on_keys_ended(struct pass_state *p, enum err err)
{
    (void)err; // on_keys_ready() has handled any error of the first round
    pass_writes_done(p);
    on_one_ended(p);
}

static void on_bucket_ended(struct bucket_write *bw)
{
    on_one_ended(as_pass(bw->ctx));
}

// A reload may have moved the bucket since the write began. The next process must know that too, if
// this one is killed once the client has its answer.
static void note_where_it_is(struct pass_state *p)
{
    struct span place, bucket;
    if (p->call.phase == CALL_NONE) {
        return;
    }
    pass_doubt_moved(p, &place, &bucket);
    if (!p->is_noting && !store_write_is_noted(p->pw->store, place, bucket) &&
        !store_notes_hang(p->pw->store)) {
        note_start(p, place, bucket);
    }
}

static void begin_close(struct pass_state *p)
{
    check(pass_changes_any(p));
    check(p->awaited == 0);
    p->awaited = count_writes(p);
    pass_doubt_begin(p);
    note_where_it_is(p);
    if (p->writes.key_count > 0) {
        pass_writes_close(p, on_keys_ended);
    }
    if (p->changes_bucket) {
        invalidate_bucket_end(p->pw->fill, &p->bucket_write);
    }
}

static enum pass_phase after_close(const struct pass_state *p)
{
    return p->awaited > 0 ? PASS_CLOSE : PASS_ANSWER;
}

// --- answer --------------------------------------------------------------------------------------

static void fail(struct pass_state *p)
{
    enum err err = p->err != ERR_OK ? p->err : p->call.err;
    struct s3_error_detail detail = {.message = p->err_message,
                                     .retry_after = p->relay.retry_after};
    pass_enter_answer(p, ANSWER_REFUSED);
    (void)request_fail(p->request, err != ERR_OK ? err : ERR_ORIGIN_PROTOCOL, &detail);
}

static void answer_again(struct pass_state *p)
{
    if (p->request == NULL) {
        return;
    }
    switch (p->answer) {
    case ANSWER_NONE:
        fail(p);
        break;
    case ANSWER_HEAD:
        if (p->err == ERR_OK) {
            pass_answer_start(p);
        } else {
            fail(p);
        }
        break;
    case ANSWER_SENT:
        if (p->err != ERR_OK) {
            http_reply_cut(p->request->x);
        } else {
            http_reply_ready(p->request->x);
        }
        break;
    case ANSWER_REFUSED:
    case ANSWER_PHASE_COUNT_:
        break;
    }
}

static enum pass_phase after_answer(const struct pass_state *p)
{
    bool is_needed = p->request != NULL || pass_calls(p) || p->is_noting;
    return is_needed ? PASS_ANSWER : PASS_OVER;
}

// --- over ----------------------------------------------------------------------------------------

static void begin_over(struct pass_state *p)
{
    check(p->request == NULL && !pass_calls(p));
    worker_free_later(p->pw->worker, pass_state_free, p);
}

static enum pass_phase after_over(const struct pass_state *p)
{
    (void)p;
    return PASS_OVER;
}

const struct pass_row PASS_ROWS[PASS_PHASE_COUNT_] = {
    [PASS_READ] = {NULL, NULL, after_read},
    [PASS_NOTE] = {begin_note, NULL, after_note},
    [PASS_OPEN] = {begin_open, NULL, after_open},
    [PASS_ASK] = {begin_ask, NULL, after_ask},
    [PASS_CLOSE] = {begin_close, NULL, after_close},
    [PASS_ANSWER] = {NULL, answer_again, after_answer},
    [PASS_OVER] = {begin_over, NULL, after_over},
};
