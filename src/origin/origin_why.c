// SPDX-License-Identifier: Apache-2.0
// Words for logs. One set names the failures of an origin; forebay_origin_errors_total has the same
// words in its label `reason`. Another set names the reasons not to store an answer.
#include "base/check.h"
#include "origin/origin_private.h"
#include "stats/stats.h"

const struct origin_forbids_text *origin_forbids_text(enum origin_forbids forbids)
{
    static const struct origin_forbids_text rows[ORIGIN_FORBIDS_COUNT] = {
        [ORIGIN_FORBIDS_NOTHING] = {"", ""},
        [ORIGIN_FORBIDS_SHAPE] =
            {"answer", "the origin's answer cannot fill a cache: it has more than 8 KiB of "
                       "headers, or no length, or is the whole object for a range"},
        [ORIGIN_FORBIDS_FRAMING] =
            {"framing",
             "the origin sends it in chunks, or with headers that are not strictly HTTP"},
        [ORIGIN_FORBIDS_ETAG] = {"weak-etag", "the origin gives it no strong ETag"},
        [ORIGIN_FORBIDS_VARY] =
            {"vary", "the origin's header Vary says that other requests get other bytes"},
        [ORIGIN_FORBIDS_CUSTOMER_KEY] = {"customer-key",
                                         "it is encrypted with a key of its client (SSE-C)"},
        [ORIGIN_FORBIDS_COOKIE] = {"set-cookie",
                                   "the origin sends Set-Cookie, and no header of S3's"},
        [ORIGIN_FORBIDS_CACHE_CONTROL] = {"cache-control",
                                          "the origin's header Cache-Control says private or "
                                          "no-store, and no header that it is S3"},
        [ORIGIN_FORBIDS_CODING] = {"content-encoding",
                                   "the origin compressed it, and its headers do not show S3"},
        [ORIGIN_FORBIDS_VERSIONS] = {"versions",
                                     "the origin's replicas answer with several versions of it "
                                     "in turn"},
    };
    check(forbids < ORIGIN_FORBIDS_COUNT);
    return &rows[forbids];
}

struct failure {
    enum err err;
    const char *why;      // NULL: an answer to one request, no failure of the origin.
    enum counter counter; // COUNTER_COUNT_: the failure is counted elsewhere.
};

static const struct failure *failure_of(enum err err)
{
    static const struct failure rows[] = {
        {ERR_ORIGIN_DNS, "dns", COUNTER_origin_errors_dns},
        {ERR_ORIGIN_CONNECT, "connect", COUNTER_origin_errors_connect},
        {ERR_ORIGIN_TLS, "tls", COUNTER_origin_errors_tls},
        {ERR_ORIGIN_TIMEOUT, "timeout", COUNTER_origin_errors_timeout},
        {ERR_ORIGIN_RESET, "reset", COUNTER_origin_errors_reset},
        {ERR_ORIGIN_SLOWDOWN, "slowdown", COUNTER_origin_errors_slowdown},
        {ERR_ORIGIN_UNAVAILABLE, "5xx", COUNTER_origin_errors_5xx},
        {ERR_ORIGIN_5XX, "5xx", COUNTER_origin_errors_5xx},
        {ERR_ORIGIN_CREDENTIALS, "credentials", COUNTER_origin_errors_auth},
        {ERR_ORIGIN_REFUSED, "credentials", COUNTER_origin_errors_auth},
        {ERR_ACCESS_DENIED, NULL, COUNTER_origin_errors_auth},
        {ERR_ORIGIN_HEAD_TOO_LARGE, "head-too-large", COUNTER_origin_heads_too_large},
        {ERR_ORIGIN_PROTOCOL, "protocol", COUNTER_origin_errors_protocol},
        {ERR_ORIGIN_UNFIT, "protocol", COUNTER_origin_errors_protocol},
        {ERR_ORIGIN_FULL, "no-connection", COUNTER_COUNT_},
        {ERR_ORIGIN_BUSY, "retries-used-up", COUNTER_COUNT_},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (rows[i].err == err) {
            return &rows[i];
        }
    }
    return NULL;
}

const char *origin_why(enum err err)
{
    const struct failure *failure = failure_of(err);
    return failure != NULL ? failure->why : NULL;
}

void origin_count_error(enum err err)
{
    const struct failure *failure = failure_of(err);
    if (failure != NULL && failure->counter != COUNTER_COUNT_) {
        stats_add(failure->counter, 1);
    }
}
