// SPDX-License-Identifier: Apache-2.0
// A header list in order of arrival; names keep their spelling, look-up ignores case. Values are
// views into memory the caller keeps alive (usually an arena). Shared by http, s3, origin, proxy.
#ifndef FOREBAY_BASE_HEADERS_H
#define FOREBAY_BASE_HEADERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/bytes.h"

#define HEADERS_MAX                                                                                \
    1056u // an origin's answer (RESPONSE_HEADERS_MAX), and what a reply of ours adds

struct header {
    struct span name, value;
};

// Embedded; zero-initialised is empty. The items grow in `arena`.
struct headers {
    struct header *items;
    unsigned count, cap;
    // headers_bit() of all names that have been added; most look-ups are for what is not there, and
    // end at it. 0: not known, of a list that was not made by headers_add().
    uint64_t names;
};

#define HEADERS_NOTED (UINT64_C(1) << 63) // names are known

static inline uint64_t headers_bit(struct span name)
{
    unsigned first = name.len > 0 ? (unsigned char)name.ptr[0] & 0x1fu : 0; // in any case
    return UINT64_C(1) << ((name.len * 5 + first) & 63);
}

static inline bool headers_may_have(const struct headers *h, struct span name)
{
    return h->names == 0 || (h->names & headers_bit(name)) != 0;
}

// Makes room for `count` more at once, so that adding them leaves no outgrown arrays in the arena.
// False on arena exhaustion. Beyond it the list grows as without it.
bool headers_reserve(struct headers *h, struct arena *arena, unsigned count) MUST_USE;
// False past HEADERS_MAX or arena exhaustion.
bool headers_add(struct headers *h, struct arena *arena, struct span name,
                 struct span value) MUST_USE;
// How many there are of that name, and the first one's value.
unsigned headers_find(const struct headers *h, struct span name, struct span *ret_value);
// First value of that name; false when absent.
static inline bool headers_get(const struct headers *h, struct span name, struct span *ret_value)
{
    return headers_may_have(h, name) && headers_find(h, name, ret_value) > 0;
}
static inline unsigned headers_count(const struct headers *h, struct span name)
{
    struct span value;
    return headers_may_have(h, name) ? headers_find(h, name, &value) : 0;
}
void headers_remove(struct headers *h, struct span name); // all of that name
// Connection, HTTP2-Settings, Keep-Alive, Proxy-*, TE, Trailer, Transfer-Encoding, Upgrade (RFC
// 9110 section 7.6.1, RFC 7540 section 3.2.1).
bool headers_is_hop_by_hop(struct span name);
// Is `token` a member of the comma-separated list `value`? Case ignored.
bool headers_list_has(struct span value, struct span token);
// Of any of the lists in headers of that name?
bool headers_have_in_list(const struct headers *h, struct span name, struct span token);
// Is the value free of CR, LF, NUL and other controls but tab? What is not must never be emitted.
bool headers_value_is_clean(struct span value);
bool headers_name_is_token(struct span name); // RFC 9110 tchar, not empty

#endif
