// SPDX-License-Identifier: Apache-2.0
// Requests that must be refused: hand-written rows, and every byte value at the positions that
// matter.
#ifndef FOREBAY_TESTS_UNIT_HTTP_MALFORMED_H
#define FOREBAY_TESTS_UNIT_HTTP_MALFORMED_H

#include "base/bytes.h"
#include "base/error.h"

unsigned malformed_count(void);
// Appends request `i` to *out. *ret_want is the expected error; ERR_OK: any refusal.
void malformed_append(unsigned i, struct buf *out, enum err *ret_want);

#endif
