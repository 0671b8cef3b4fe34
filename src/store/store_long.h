// SPDX-License-Identifier: Apache-2.0
// Long runs in a small cache; see store_long.c. Shared inside the room only.
#ifndef FOREBAY_STORE_STORE_LONG_H
#define FOREBAY_STORE_STORE_LONG_H

#include "store/store.h"

struct store_long {
    atomic_uint promised; // long runs that were promised and have not begun
    atomic_uint running;  // long runs that are being written
    // 1 + the number of segments that this process had created when the last long run came; 0: none
    // came yet.
    atomic_uint made_then;
};

// Records that a long run was requested, whether or not it is stored. Returns true if the supply
// thread must keep more spare segments from now on. Any thread; the store is attached.
bool store_long_note(struct store *store) MUST_USE;
// Returns true if long runs were requested lately, measured in segments created since.
bool store_long_are_used(const struct store *store);

#endif
