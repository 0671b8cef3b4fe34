// SPDX-License-Identifier: Apache-2.0
// Maps the HTTP status of an S3 origin to errors of a fetch and decisions of a relay. Pure; any
// thread.
#include "origin/origin_s3_private.h"

// 3xx may be redirects. The other statuses may have an error document that leads to another
// attempt.
bool origin_s3_status_must_collect(unsigned status)
{
    return (status >= 300 && status < 400 && status != 304) || status == 400 || status == 403 ||
           status == 408 || status == 429 || status >= 500;
}

// Clients retry after 500 and 503, but take 408, 429, 502 and 504 for fatal. So they never get
// those four.
bool origin_s3_status_is_hidden(unsigned status)
{
    return status == 408 || status == 429 || status == 502 || status == 504;
}

bool origin_s3_status_is_foreign(unsigned status)
{
    static const unsigned short known[] = {200, 201, 202, 204, 206, 207, 300, 301, 302, 303, 304,
                                           307, 308, 400, 401, 402, 403, 404, 405, 406, 408, 409,
                                           410, 411, 412, 413, 414, 415, 416, 417, 422, 424, 429,
                                           431, 451, 500, 501, 502, 503, 504, 505, 507, 508};
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (status == known[i]) {
            return false;
        }
    }
    return true;
}

bool origin_s3_status_is_token_error(struct span code)
{
    return span_equal_cstr(code, "ExpiredToken") || span_equal_cstr(code, "InvalidToken") ||
           span_equal_cstr(code, "TokenRefreshRequired");
}

// Returns true for the codes by which S3, MinIO and Azure gateways throttle: "SlowDownRead" and
// "RequestThrottledException" are among them.
static bool code_is_throttling(struct span code)
{
    static const char *const prefixes[] = {"SlowDown",     "Throttl",         "RequestThrottled",
                                           "RequestLimit", "TooManyRequests", "BandwidthLimit",
                                           "ServerBusy"};
    for (size_t i = 0; i < ARRAY_LEN(prefixes); i++) {
        if (span_starts_with_nocase(code, span_from_cstr(prefixes[i]))) {
            return true;
        }
    }
    return false;
}

enum err origin_s3_status_failure(unsigned status, struct span code)
{
    switch (status) {
    case 408:
        return ERR_ORIGIN_TIMEOUT;
    case 429:
        return ERR_ORIGIN_SLOWDOWN;
    case 503: // without an S3 code, it may come from a gateway or answer a HEAD
        return code_is_throttling(code) ? ERR_ORIGIN_SLOWDOWN : ERR_ORIGIN_UNAVAILABLE;
    default:
        return ERR_ORIGIN_5XX;
    }
}

// Returns true if the request had a condition that can lead to 304.
static bool may_be_unmodified(const struct origin_fetch *f)
{
    enum origin_condition_kind kind =
        f->condition != NULL ? f->condition->kind : ORIGIN_CONDITION_NONE;
    return f->if_none_match.len > 0 || kind == ORIGIN_IF_NONE_MATCH ||
           kind == ORIGIN_IF_MODIFIED_SINCE;
}

static bool may_have_failed(const struct origin_fetch *f)
{
    enum origin_condition_kind kind =
        f->condition != NULL ? f->condition->kind : ORIGIN_CONDITION_NONE;
    return f->if_match.len > 0 || kind == ORIGIN_IF_MATCH || kind == ORIGIN_IF_UNMODIFIED_SINCE;
}

enum err origin_s3_status_error(const struct origin_fetch *f, unsigned status, struct span code)
{
    switch (status) {
    case 304:
        return may_be_unmodified(f) ? ERR_NOT_MODIFIED : ERR_ORIGIN_PROTOCOL;
    case 403:
        return ERR_ACCESS_DENIED;
    case 401:
        return ERR_ACCESS_DENIED;
    case 404:
    case 410:
        return span_equal_cstr(code, "NoSuchBucket") ? ERR_NO_SUCH_BUCKET : ERR_NO_SUCH_KEY;
    case 405:
        return ERR_METHOD_NOT_ALLOWED;
    case 412:
        return may_have_failed(f) ? ERR_ORIGIN_CHANGED : ERR_ORIGIN_PROTOCOL;
    case 416:
        return f->kind == ORIGIN_GET_RANGE ? ERR_INVALID_RANGE : ERR_ORIGIN_PROTOCOL;
    case 501:
        return ERR_NOT_IMPLEMENTED;
    default:
        // A status below 400 is another success, or a redirect that is not followed.
        return status < 400 ? ERR_ORIGIN_UNFIT : status < 500 ? ERR_INVALID : ERR_ORIGIN_PROTOCOL;
    }
}
