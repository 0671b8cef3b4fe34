// SPDX-License-Identifier: Apache-2.0
// Recognises the requests that verify mode accepts without a signature. pass_preflight.c and
// pass_sts.c relay them, and explain why they need none. Pure; on the request's worker.
#include "proxy/core/core.h"

#define STS_BODY_MAX 65536u

static const char FORM[] = "application/x-www-form-urlencoded";

bool gate_is_preflight(const struct request *r)
{
    const struct headers *headers = &r->http->headers;
    return span_equal(r->http->method, SPAN("OPTIONS")) && r->s3.bucket.len > 0 &&
           !http_request_has_body(r->http) && headers_count(headers, SPAN("Origin")) == 1 &&
           headers_count(headers, SPAN("Access-Control-Request-Method")) == 1 &&
           headers_count(headers, SPAN("Access-Control-Request-Headers")) <= 1 &&
           headers_count(headers, SPAN("Authorization")) == 0;
}

bool gate_is_sts(const struct request *r)
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
    return http_request_has_body(http) && http->framing != HTTP_BODY_CHUNKS &&
           http->content_length <= STS_BODY_MAX &&
           headers_get(&http->headers, SPAN("content-type"), &value) && value.len >= form.len &&
           span_equal_nocase((struct span){value.ptr, form.len}, form);
}
