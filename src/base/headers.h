// SPDX-License-Identifier: Apache-2.0
// A header list in order of arrival; names keep their spelling, look-up ignores case. Values are
// views into memory the caller keeps alive (usually an arena). Shared by http, s3, origin, proxy.
#ifndef FOREBAY_BASE_HEADERS_H
#define FOREBAY_BASE_HEADERS_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/bytes.h"

#define HEADERS_MAX 144

struct header {
    struct span name, value;
};

// Embedded; zero-initialised is empty. The items grow in `arena`.
struct headers {
    struct header *items;
    unsigned count, cap;
};

// False past HEADERS_MAX or arena exhaustion.
bool headers_add(struct headers *h, struct arena *arena, struct span name,
                 struct span value) MUST_USE;
// First value of that name; false when absent.
bool headers_get(const struct headers *h, struct span name, struct span *ret_value);
unsigned headers_count(const struct headers *h, struct span name);
void headers_remove(struct headers *h, struct span name); // all of that name
// Connection, Keep-Alive, Proxy-*, TE, Trailer, Transfer-Encoding, Upgrade (RFC 9110
// section 7.6.1).
bool headers_is_hop_by_hop(struct span name);
// Is `token` a member of the comma-separated list `value`? Case ignored.
bool headers_list_has(struct span value, struct span token);
// Of any of the lists in headers of that name?
bool headers_have_in_list(const struct headers *h, struct span name, struct span token);
// Is the value free of CR, LF, NUL and other controls but tab? What is not must never be emitted.
bool headers_value_is_clean(struct span value);
bool headers_name_is_token(struct span name); // RFC 9110 tchar, not empty

#endif
