// SPDX-License-Identifier: Apache-2.0
// The words of logs for how an origin failed, the same as the `reason` of forebay_origin_errors_total.
// Pure.
#include "origin/origin.h"

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
