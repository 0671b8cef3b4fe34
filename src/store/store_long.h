// SPDX-License-Identifier: Apache-2.0
// Long runs in a small cache; see store_long.c. Used by the files of this folder only.
#ifndef FOREBAY_STORE_STORE_LONG_H
#define FOREBAY_STORE_STORE_LONG_H

#include "store/store.h"

struct store_long {
    atomic_uint promised; // long runs that were promised and have not begun
    atomic_uint running;  // number of long runs that are being written
    // 1 + the number of segments that this process had created when the last long run was
    // requested; 0: none was.
    atomic_uint made_then;
};

// Records that a long run was requested, whether or not it will be stored. Returns true if the
// supply thread must now keep more spare segments. Any thread; the store must be attached.
bool store_long_note(struct store *store) MUST_USE;
// Returns true if a long run was requested lately, measured in segments that were created since.
bool store_long_are_used(const struct store *store);

#endif
