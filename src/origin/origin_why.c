// SPDX-License-Identifier: Apache-2.0
// The words in logs for an origin's failures, which are also the `reason` of
// forebay_origin_errors_total, and for the reasons not to store an answer. Pure.
#include "base/check.h"
#include "origin/origin.h"

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
                                   "the origin has packed it, and sends no header of S3's"},
        [ORIGIN_FORBIDS_VERSIONS] = {"versions",
                                     "the origin's replicas answer with several versions of it "
                                     "in turn"},
    };
    check(forbids < ORIGIN_FORBIDS_COUNT);
    return &rows[forbids];
}

const char *origin_why(enum err err)
{
    switch (err) {
    case ERR_ORIGIN_DNS:
        return "dns";
    case ERR_ORIGIN_CONNECT:
        return "connect";
    case ERR_ORIGIN_TLS:
        return "tls";
    case ERR_ORIGIN_TIMEOUT:
        return "timeout";
    case ERR_ORIGIN_RESET:
        return "reset";
    case ERR_ORIGIN_SLOWDOWN:
        return "slowdown";
    case ERR_ORIGIN_5XX:
        return "5xx";
    case ERR_ORIGIN_CREDENTIALS:
    case ERR_ORIGIN_REFUSED:
        return "credentials";
    case ERR_ORIGIN_HEAD_TOO_LARGE:
        return "head-too-large";
    case ERR_ORIGIN_PROTOCOL:
    case ERR_ORIGIN_UNFIT:
        return "protocol";
    case ERR_ORIGIN_FULL:
        return "no-connection";
    case ERR_ORIGIN_BUSY:
        return "retries-used-up";
    default:
        return NULL;
    }
}
