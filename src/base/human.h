// SPDX-License-Identifier: Apache-2.0
// Formats numbers for people. Pure; any thread.
#ifndef FOREBAY_BASE_HUMAN_H
#define FOREBAY_BASE_HUMAN_H

#define HUMAN_BYTES_MAX 32
// Formats bytes like "1.5 GiB" and returns the text.
const char *human_bytes(double bytes, char ret_text[HUMAN_BYTES_MAX]);
// The same in powers of 1000, like "1.5 GB".
const char *human_bytes_decimal(double bytes, char ret_text[HUMAN_BYTES_MAX]);

#endif
