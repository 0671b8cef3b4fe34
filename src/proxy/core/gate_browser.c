// SPDX-License-Identifier: Apache-2.0
// In open mode no signature protects the cache from a web page in a browser on this machine. The
// page's form could delete objects. Its script could read objects if a bucket's CORS rules are
// generous. Browsers mark such requests. They send Origin with every method but GET and HEAD, and
// with each request whose answer a script of another origin may read. They send Sec-Fetch-Site with
// all requests. No SDK sends either header. Pure; on the request's worker.
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
            // "none": the user typed the address. "same-site" means another port of this host, and
            // is refused.
            is_foreign = is_foreign || !(span_equal_nocase(value, SPAN("none")) ||
                                         span_equal_nocase(value, SPAN("same-origin")));
        }
    }
    if (has_origin ? is_listed : !is_foreign) {
        return ERR_OK;
    }
    ret_detail->message = span_from_cstr(error_row(ERR_BROWSER_REFUSED)->text);
    return ERR_BROWSER_REFUSED;
}
