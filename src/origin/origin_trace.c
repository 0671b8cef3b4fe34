// SPDX-License-Identifier: Apache-2.0
// The headers by which a client identifies its request in its own logs and traces. They are sent
// with fetches that serve many clients, so a value is used only if it can be nothing but an
// identifier. Pure.
#include <string.h>

#include "origin/origin.h"

static bool is_of(const char *bytes, struct span value)
{
    for (size_t i = 0; i < value.len; i++) {
        if (value.ptr[i] == '\0' || strchr(bytes, value.ptr[i]) == NULL) {
            return false;
        }
    }
    return value.len > 0;
}

void origin_trace_read(const struct headers *client, struct origin_trace *ret_trace)
{
    struct span value;
    *ret_trace = (struct origin_trace){.traceparent = ""};
    if (headers_get(client, SPAN("traceparent"), &value) &&
        value.len == sizeof(ret_trace->traceparent) - 1 && is_of("0123456789abcdef-", value)) {
        span_to_text(value, ret_trace->traceparent, sizeof(ret_trace->traceparent));
    }
    if (headers_get(client, SPAN("x-request-id"), &value) &&
        is_of("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.:", value)) {
        span_to_text(value, ret_trace->request_id, sizeof(ret_trace->request_id));
    }
}
