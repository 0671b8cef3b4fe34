// SPDX-License-Identifier: Apache-2.0
// Long runs in a small cache; see store_long.c. Shared inside the room only.
#ifndef FOREBAY_STORE_STORE_LONG_H
#define FOREBAY_STORE_STORE_LONG_H

#include "store/store.h"

struct store_long {
    atomic_uint promised; // promised, and nothing is reserved yet
    atomic_uint running;  // being written
    // 1 + the number of segments created when the last long run came; 0: there was none.
    atomic_uint made_then;
};

// Records that a long run has come, stored or not. Returns true if more spare segments are needed
// from now on. Any thread; the store is attached.
bool store_long_note(struct store *store) MUST_USE;
// Returns true if only few segments have been created since the last long run.
bool store_long_are_used(const struct store *store);

#endif
