// SPDX-License-Identifier: Apache-2.0
// The words of the log and of the counters for where an answer came from. Pure.
#include "proxy/proxy_private.h"

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
