// SPDX-License-Identifier: Apache-2.0
// From the outcome to the answer: once it is known, at the origin or by a refusal here, every write
// is closed, and then the client is answered. Whatever may make it known calls
// pass_outcome_settle(). On the request's worker.
#include "proxy/pass/pass_private.h"

// Frees it once nothing needs it, after the callbacks that are on the stack.
void pass_outcome_free_unneeded(struct pass_state *p)
{
    if (p->request == NULL && p->relay_phase != RELAY_RUNNING && !p->is_dead && !p->is_noting &&
        (p->write_phase == WRITES_NONE || p->write_phase == WRITES_ENDED)) {
        p->is_dead = true;
        worker_free_later(p->pw->worker, pass_state_free, p);
    }
}

static void fail(struct pass_state *p)
{
    enum err err = p->err != ERR_OK ? p->err : p->relay_err;
    struct s3_error_detail detail = {.message = p->err_message};
    p->is_answered = p->is_refused = true;
    p->head_came = false;
    (void)request_fail(p->request, err != ERR_OK ? err : ERR_ORIGIN_PROTOCOL, &detail);
}

static void answer(struct pass_state *p)
{
    struct request *r = p->request;
    if (r == NULL) {
        pass_outcome_free_unneeded(p);
        return;
    }
    p->end_released = true;
    if (p->is_refused) {
        return;
    }
    if (!p->is_answered && p->err == ERR_OK && p->head_came) {
        pass_answer_start(p);
    } else if (!p->is_answered) {
        fail(p);
    } else if (p->err != ERR_OK) {
        http_reply_cut(r->x);
    } else {
        http_reply_ready(r->x);
    }
}

static void on_one_ended(struct pass_state *p)
{
    check(p->write_phase == WRITES_CLOSING && p->writes_pending > 0);
    if (--p->writes_pending == 0) {
        p->write_phase = WRITES_ENDED;
        stats_sub(COUNTER_writes_inflight, 1);
        pass_outcome_settle(p);
    }
}

static void on_keys_ended(struct pass_state *p, enum err err)
{
    (void)err; // of the first round
    pass_writes_done(p);
    on_one_ended(p);
}

void pass_outcome_on_bucket_ended(struct bucket_write *bw)
{
    on_one_ended(as_pass(bw->ctx));
}

static void close_writes(struct pass_state *p)
{
    p->write_phase = WRITES_CLOSING;
    p->writes_pending = pass_writes_total(p);
    pass_doubt_begin(p);
    if (p->writes.key_count > 0) {
        pass_writes_close(p, on_keys_ended);
    }
    if (p->changes_bucket) {
        invalidate_bucket_end(p->pw->fill, &p->bucket_write);
    }
}

static bool is_known(const struct pass_state *p)
{
    bool never_asked = p->relay_phase == RELAY_NONE && (p->err != ERR_OK || p->request == NULL);
    bool has_verdict = p->head_came && !p->is_streamed && p->err == ERR_OK && pass_changes_any(p);
    return p->relay_phase == RELAY_ENDED || never_asked || has_verdict;
}

void pass_outcome_settle(struct pass_state *p)
{
    pass_state_check(p);
    if (!is_known(p) || p->telling != NULL) { // on_told() starts the answer
        return;
    }
    switch (p->write_phase) {
    case WRITES_READY:
        close_writes(p);
        break;
    case WRITES_NONE:
    case WRITES_ENDED:
        answer(p);
        break;
    case WRITES_STARTING: // the last on_ready comes back here
    case WRITES_CLOSING:  // the last on_ended
        break;
    }
}

void pass_outcome_refuse(struct pass_state *p, enum err err, struct span message)
{
    if (p->err != ERR_OK) {
        return;
    }
    p->err = err;
    p->err_message = message;
    pass_upload_drop(p);
    pass_origin_cancel(p);
    pass_outcome_settle(p);
}
