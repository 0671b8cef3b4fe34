// SPDX-License-Identifier: Apache-2.0
// The headers of a client that name its request in its own logs and traces. What is longer than they are,
// or could not be sent as it is, is left out. Pure.
#include <string.h>

#include "origin/origin.h"

static void take(const struct headers *client, struct span name, char *ret_text, size_t size)
{
    struct span value;
    ret_text[0] = '\0';
    if (!headers_get(client, name, &value) || value.len == 0 || value.len >= size ||
        !headers_value_is_clean(value)) {
        return;
    }
    memcpy(ret_text, value.ptr, value.len);
    ret_text[value.len] = '\0';
}

void origin_trace_read(const struct headers *client, struct origin_trace *ret_trace)
{
    take(client, SPAN("traceparent"), ret_trace->traceparent, sizeof(ret_trace->traceparent));
    take(client, SPAN("x-request-id"), ret_trace->request_id, sizeof(ret_trace->request_id));
}
