// SPDX-License-Identifier: Apache-2.0
// Formats numbers for people. Pure; any thread.
#ifndef FOREBAY_BASE_HUMAN_H
#define FOREBAY_BASE_HUMAN_H

#include <stdint.h>

#define HUMAN_BYTES_MAX 32
#define HUMAN_TIME_MAX 32
// Formats bytes like "1.5 GiB" and returns the text.
const char *human_bytes(double bytes, char ret_text[HUMAN_BYTES_MAX]);
// The same in powers of 1000, like "1.5 GB".
const char *human_bytes_decimal(double bytes, char ret_text[HUMAN_BYTES_MAX]);
// Return the least number of bytes that the functions above show exactly and that is not below
// `bytes`.
double human_bytes_up(double bytes);
double human_bytes_decimal_up(double bytes);
// Formats a wait like "850 us", "30 ms" or "5.1 s".
const char *human_wait(uint64_t wait_us, char ret_text[HUMAN_TIME_MAX]);
// Formats a time in whole days, hours or minutes, like "3 days", if it has at least two of them.
const char *human_time(int64_t time_s, char ret_text[HUMAN_TIME_MAX]);
// Formats the time of day of a wall clock's time, like "12:34:56 UTC".
const char *human_clock(uint64_t wall_s, char ret_text[HUMAN_TIME_MAX]);

#endif
