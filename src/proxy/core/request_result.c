// SPDX-License-Identifier: Apache-2.0
// Names the source of an answer, for the access log and the counters. Pure.
#include "proxy/core/core.h"

const char *request_source_name(const struct request *r)
{
    if (r->bytes_origin > 0) {
        return "origin";
    }
    if (r->bytes_disk > 0) {
        return "disk";
    }
    return r->bytes_memory > 0 ? "memory" : "";
}

const char *request_result_name(enum request_result result)
{
    static const char *const names[] = {[RESULT_NONE] = "",
                                        [RESULT_HIT] = "hit",
                                        [RESULT_PARTIAL] = "partial",
                                        [RESULT_MISS] = "miss",
                                        [RESULT_COALESCED] = "coalesced",
                                        [RESULT_REVALIDATED] = "revalidated",
                                        [RESULT_STALE] = "stale",
                                        [RESULT_BYPASS] = "bypass"};
    check((size_t)result < ARRAY_LEN(names));
    return names[result];
}
