// SPDX-License-Identifier: Apache-2.0
// Sends the client's body to the origin. The relay takes it from the pass_body that has checked it.
// The faster side waits for the slower one. On the request's worker; pass_receive.c receives the
// body.
#include "proxy/pass/pass_private.h"

void pass_upload_drop(struct pass_state *p)
{
    bool is_paused = p->upload == UPLOAD_PAUSED;
    if (p->upload == UPLOAD_DROPPED) {
        return;
    }
    pass_enter_upload(p, UPLOAD_DROPPED);
    if (is_paused && p->request != NULL) {
        http_body_resume(p->request->x);
    }
}

void pass_upload_wake(struct pass_state *p)
{
    if (p->upload_waiting && (p->upload == UPLOAD_DROPPED || pass_body_ready(&p->body))) {
        p->upload_waiting = false;
        origin_relay_resume_upload(&p->relay);
    }
}

enum err pass_upload_take(struct pass_state *p, char *buf, size_t max, size_t *ret_len)
{
    check(pass_calls(p));
    check(p->body.kind != ORIGIN_BODY_NONE);
    check(p->call.kind == PASS_BY_RELAY);
    *ret_len = 0;
    if (p->err != ERR_OK) {
        return p->err;
    }
    if (p->upload == UPLOAD_DROPPED) {
        return ERR_OK; // the origin has answered already, and ignores the rest
    }
    bool is_end;
    *ret_len = pass_body_take(&p->body, buf, max, &is_end);
    if (*ret_len == 0 && !is_end) {
        p->upload_waiting = true;
        return ERR_AGAIN;
    }
    if (p->upload == UPLOAD_PAUSED && p->request != NULL && pass_body_low(&p->body)) {
        pass_enter_upload(p, UPLOAD_FLOWS);
        http_body_resume(p->request->x);
    }
    return ERR_OK;
}

void pass_upload_refuse(struct pass_state *p, enum err err, struct span message)
{
    check(p->phase < PASS_OVER);
    check(err != ERR_OK);
    if (p->err != ERR_OK) {
        return;
    }
    p->err = err;
    p->err_message = message;
    pass_upload_drop(p);
    pass_origin_cancel(p);
    pass_go(p);
}
