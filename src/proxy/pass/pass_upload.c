// SPDX-License-Identifier: Apache-2.0
// The client's body on its way out: from the pass_body that has checked it into the relay.
// Whichever side is ahead waits. On the request's worker; pass_receive.c is the way in.
#include "proxy/pass/pass_private.h"

void pass_upload_drop(struct pass_state *p)
{
    p->body_dropped = true;
    if (p->request != NULL && p->body_paused) {
        p->body_paused = false;
        http_body_resume(p->request->x);
    }
}

void pass_upload_wake(struct pass_state *p)
{
    if (p->upload_waiting && (p->body_dropped || pass_body_ready(&p->body))) {
        p->upload_waiting = false;
        origin_relay_resume_upload(&p->relay);
    }
}

enum err pass_upload_take(struct pass_state *p, char *buf, size_t max, size_t *ret_len)
{
    *ret_len = 0;
    if (p->err != ERR_OK) {
        return p->err;
    }
    if (p->body_dropped) {
        return ERR_OK; // the origin has answered already and does not read on
    }
    bool is_end;
    *ret_len = pass_body_take(&p->body, buf, max, &is_end);
    if (*ret_len == 0 && !is_end) {
        p->upload_waiting = true;
        return ERR_AGAIN;
    }
    if (p->body_paused && p->request != NULL && pass_body_low(&p->body)) {
        p->body_paused = false;
        http_body_resume(p->request->x);
    }
    return ERR_OK;
}
