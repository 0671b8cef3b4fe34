// SPDX-License-Identifier: Apache-2.0
// A list of headers in order of arrival. Names keep their spelling; look-up ignores case. Values
// are views into memory that the caller keeps alive, usually an arena. http, s3, origin and proxy
// share it.
#ifndef FOREBAY_BASE_HEADERS_H
#define FOREBAY_BASE_HEADERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/bytes.h"

#define HEADERS_MAX                                                                                \
    1056u // an origin's answer (RESPONSE_HEADERS_MAX) and the headers that our reply adds

struct header {
    struct span name, value;
};

// A zeroed struct is an empty list. The array grows in the arena passed to headers_add().
struct headers {
    struct header *items;
    unsigned count, cap;
    // headers_bit() of all names that were added, combined by OR. Most look-ups are for absent
    // names, and this field answers them without a search. 0: unknown, because the list was not
    // made by headers_add().
    uint64_t names;
};

#define HEADERS_NOTED (UINT64_C(1) << 63) // flag in headers.names: the other bits are valid

static inline uint64_t headers_bit(struct span name)
{
    unsigned first =
        name.len > 0 ? (unsigned char)name.ptr[0] & 0x1fu : 0; // the same for upper and lower case
    return UINT64_C(1) << ((name.len * 5 + first) & 63);
}

static inline bool headers_may_have(const struct headers *h, struct span name)
{
    return h->names == 0 || (h->names & headers_bit(name)) != 0;
}

// Makes room for `count` more headers at once, because otherwise each outgrown array stays in the
// arena. Returns false if the arena is exhausted. The list still grows beyond `count` as usual.
bool headers_reserve(struct headers *h, struct arena *arena, unsigned count) MUST_USE;
// Returns false if the list has HEADERS_MAX headers already, or if the arena is exhausted.
bool headers_add(struct headers *h, struct arena *arena, struct span name,
                 struct span value) MUST_USE;
// Returns how many headers have that name. *ret_value becomes the value of the first.
unsigned headers_find(const struct headers *h, struct span name, struct span *ret_value);
// Finds the first value of that name. Returns false if there is none.
static inline bool headers_get(const struct headers *h, struct span name, struct span *ret_value)
{
    return headers_may_have(h, name) && headers_find(h, name, ret_value) > 0;
}
static inline unsigned headers_count(const struct headers *h, struct span name)
{
    struct span value;
    return headers_may_have(h, name) ? headers_find(h, name, &value) : 0;
}
void headers_remove(struct headers *h, struct span name); // removes all of that name
// Returns whether `name` is Connection, HTTP2-Settings, Keep-Alive, Proxy-*, TE, Trailer,
// Transfer-Encoding or Upgrade (RFC 9110 section 7.6.1, RFC 7540 section 3.2.1).
bool headers_is_hop_by_hop(struct span name);
// Returns whether the comma-separated list `value` contains `token`, ignoring case.
bool headers_list_has(struct span value, struct span token);
// Returns whether a list in any header of that name contains `token`.
bool headers_have_in_list(const struct headers *h, struct span name, struct span token);
// Returns whether the value has no CR, LF, NUL or other control character except tab. Other values
// must never be sent.
bool headers_value_is_clean(struct span value);
bool headers_name_is_token(struct span name); // RFC 9110 tchar, not empty

#endif
