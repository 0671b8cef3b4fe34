// SPDX-License-Identifier: Apache-2.0
// A header list in order of arrival; names keep their spelling, look-up ignores case. Values are
// views into memory the caller keeps alive (usually an arena). Shared by http, s3, origin, proxy.
#ifndef FOREBAY_BASE_HEADERS_H
#define FOREBAY_BASE_HEADERS_H

#include <stdbool.h>
#include <time.h>

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
bool header_is_hop_by_hop(struct span name);
// Is `token` a member of the comma-separated list `value`? Case ignored.
bool header_list_has(struct span value, struct span token);
// Is the value free of CR, LF, NUL and other controls but tab? What is not must never be emitted.
bool header_value_is_clean(struct span value);
bool header_name_is_token(struct span name); // RFC 9110 tchar, not empty

#define HTTP_DATE_LEN 29
// "Sun, 06 Nov 1994 08:49:37 GMT"; buffer of HTTP_DATE_LEN + 1.
void http_date_format(time_t t, char *ret_date);
// IMF-fixdate, rfc850 and asctime forms (RFC 9110 section 5.6.7).
bool http_date_parse(struct span s, time_t *ret_t) MUST_USE;
// "2006-01-02T15:04:05.000Z"; buffer of ISO_DATE_LEN + 1.
#define ISO_DATE_LEN 24
void iso_date_format(time_t t, unsigned ms, char *ret_date);
// "20060102T150405Z" (SigV4); buffer of AMZ_DATE_LEN + 1.
#define AMZ_DATE_LEN 16
void amz_date_format(time_t t, char *ret_date);
bool amz_date_parse(struct span s, time_t *ret_t) MUST_USE;

#endif
