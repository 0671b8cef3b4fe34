// SPDX-License-Identifier: Apache-2.0
// Calls to STS that arrive here because a client was given one endpoint for all services. The one
// that carries its own proof, AssumeRoleWithWebIdentity, is unsigned and goes on to the region's
// STS as it came; every other one is signed for another host and is refused. On the
// request's worker, as a part of the sequence in serve_pass.c.
#include "proxy/pass_private.h"

#define STS_BODY_MAX 65536u

static const char FORM[] = "application/x-www-form-urlencoded";

bool pass_sts_wanted(const struct request *r)
{
    const struct proxy_options *options = &r->pw->proxy->options;
    const struct http_request *http = r->http;
    bool reaches = http->loopback || (r->live->settings.sts_over_tls && http->tls);
    struct span value;
    if (options->sts_origin == NULL || !r->live->settings.relays_sts || !reaches ||
        !span_equal(http->method, SPAN("POST")) || !span_equal(http->target, SPAN("/")) ||
        r->s3.bucket.len > 0 || headers_count(&http->headers, SPAN("authorization")) > 0) {
        return false;
    }
    struct span form = {FORM, sizeof(FORM) - 1};
    return http->has_body && !http->chunked && http->content_length <= STS_BODY_MAX &&
           headers_get(&http->headers, SPAN("content-type"), &value) && value.len >= form.len &&
           span_equal_nocase((struct span){value.ptr, form.len}, form);
}

enum err pass_sts_authorize(struct pass_state *p)
{
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
    p->err_message = SPAN("Of STS only the unsigned AssumeRoleWithWebIdentity is passed on. Other "
                          "calls arrive here when AWS_ENDPOINT_URL is set: set AWS_ENDPOINT_URL_S3 "
                          "instead");
    return ERR_NOT_IMPLEMENTED;
}
