// SPDX-License-Identifier: Apache-2.0
// What is under way at the origin for a request that passes through: a relay, or a fetch of a direct
// read. On the request's worker.
#include "proxy/pass_private.h"

void pass_origin_pause(struct pass_state *p)
{
    p->relay_paused = true;
    if (p->direct.is_used) {
        origin_fetch_pause(&p->direct.fetch);
    } else {
        origin_relay_pause(&p->relay);
    }
}

void pass_origin_resume(struct pass_state *p)
{
    if (p->relay_paused) {
        p->relay_paused = false;
        if (p->direct.is_used) {
            origin_fetch_resume(&p->direct.fetch);
        } else {
            origin_relay_resume(&p->relay);
        }
    }
}

void pass_origin_cancel(struct pass_state *p)
{
    if (p->relay_phase == RELAY_RUNNING && !p->relay_cancelled) {
        p->relay_cancelled = true;
        if (p->direct.is_used) {
            origin_fetch_cancel(&p->direct.fetch);
        } else {
            origin_relay_cancel(&p->relay);
        }
    }
}
