// SPDX-License-Identifier: Apache-2.0
// The date formats that HTTP, S3 and SigV4 use. Pure; any thread.
#ifndef FOREBAY_BASE_DATE_H
#define FOREBAY_BASE_DATE_H

#include <stdbool.h>
#include <time.h>

#include "base/bytes.h"

#define DATE_HTTP_LEN 29
// Writes "Sun, 06 Nov 1994 08:49:37 GMT". ret_date must have room for DATE_HTTP_LEN + 1 bytes.
void date_format_http(time_t t, char *ret_date);
// Parses the IMF-fixdate, rfc850 and asctime forms (RFC 9110 section 5.6.7).
bool date_parse_http(struct span s, time_t *ret_t) MUST_USE;
// Writes "2006-01-02T15:04:05.000Z". ret_date must have room for DATE_ISO_LEN + 1 bytes.
#define DATE_ISO_LEN 24
void date_format_iso(time_t t, unsigned ms, char *ret_date);
// Converts to and from "20060102T150405Z" (SigV4). ret_date must have room for DATE_AMZ_LEN + 1
// bytes.
#define DATE_AMZ_LEN 16
void date_format_amz(time_t t, char *ret_date);
bool date_parse_amz(struct span s, time_t *ret_t) MUST_USE;

#endif
