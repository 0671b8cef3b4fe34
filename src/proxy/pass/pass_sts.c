// SPDX-License-Identifier: Apache-2.0
// Relays calls to STS, which arrive here if a client uses one endpoint for all services.
// AssumeRoleWithWebIdentity contains its own proof of identity, so it is unsigned. It is forwarded
// unchanged to the STS of the region. Every other call is refused, because its signature is for
// another host. On the request's worker, in the sequence of serve_pass.c.
#include "proxy/pass/pass_private.h"

enum err pass_sts_authorize(struct pass_state *p)
{
    check(p->kind == PASS_KIND_STS);
    check(p->body.collect && p->body.is_verified);
    struct span body = buf_span(&p->body.whole), piece;
    unsigned actions = 0;
    bool good = true;
    while (span_split(&body, '&', &piece)) {
        if (span_starts_with(piece, SPAN("Action="))) {
            actions++;
            good = good && span_equal(piece, SPAN("Action=AssumeRoleWithWebIdentity"));
        }
    }
    if (actions == 1 && good) {
        return ERR_OK;
    }
    p->err_message =
        SPAN("Forebay relays only one STS call, the unsigned AssumeRoleWithWebIdentity. Other "
             "calls arrive here when AWS_ENDPOINT_URL is set: set AWS_ENDPOINT_URL_S3 "
             "instead");
    return ERR_NOT_IMPLEMENTED;
}
