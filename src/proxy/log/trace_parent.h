// SPDX-License-Identifier: Apache-2.0
// The header traceparent of W3C trace context. Pure.
#ifndef FOREBAY_PROXY_LOG_TRACE_PARENT_H
#define FOREBAY_PROXY_LOG_TRACE_PARENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/headers.h"

// The trace id of a request whose client records the trace; false: it has none, more than one, a
// malformed one, or is not recorded.
bool trace_parent_sampled(const struct headers *headers, uint64_t ret_trace_id[2]);

#endif
