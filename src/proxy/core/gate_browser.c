// SPDX-License-Identifier: Apache-2.0
// In open mode no signature protects against a page in a browser on this machine: its form could
// delete, and its script could read if a bucket's CORS rules are generous. Browsers mark such
// requests. They send Origin with each request whose answer a script of another origin may read,
// and with everything but GET and HEAD. They send Sec-Fetch-Site with all of them. No SDK sends
// either. Pure; on the request's worker.
#include "proxy/core/core.h"

#include "stats/stats.h"

static bool is_allowed(const struct proxy_settings *settings, struct span origin)
{
    for (unsigned i = 0; i < settings->allowed_origin_count; i++) {
        if (span_equal_nocase(origin, span_from_cstr(settings->allowed_origins[i]))) {
            return true;
        }
    }
    return false;
}

enum err gate_authorize_browser(const struct request *r, struct s3_error_detail *ret_detail)
{
    check(r->live != NULL && r->http != NULL);
    const struct headers *headers = &r->http->headers;
    bool has_origin = false, is_foreign = false, is_listed = true;
    for (unsigned i = 0; i < headers->count; i++) {
        struct span name = headers->items[i].name, value = headers->items[i].value;
        if (span_equal_nocase(name, SPAN("Origin"))) {
            has_origin = true;
            is_listed = is_listed && is_allowed(&r->live->settings, value);
        } else if (span_equal_nocase(name, SPAN("Sec-Fetch-Site"))) {
            // "none": typed by the user; "same-site": another port of this host.
            is_foreign = is_foreign || !(span_equal_nocase(value, SPAN("none")) ||
                                         span_equal_nocase(value, SPAN("same-origin")));
        }
    }
    if (has_origin ? is_listed : !is_foreign) {
        return ERR_OK;
    }
    stats_add(COUNTER_browser_refused, 1);
    ret_detail->message = span_from_cstr(error_row(ERR_BROWSER_REFUSED)->text);
    return ERR_BROWSER_REFUSED;
}
