// SPDX-License-Identifier: Apache-2.0
// Long runs in a small cache, see store_long.c. Shared inside the room only.
#ifndef FOREBAY_STORE_STORE_LONG_H
#define FOREBAY_STORE_STORE_LONG_H

#include "store/store.h"

struct store_long {
    atomic_uint promised;  // asked for, and nothing is reserved yet
    atomic_uint running;   // being written
    atomic_uint made_then; // segments made when the latest of them came, and one; 0: there was none
};

// One has come, whether it will be stored or not. True: more spare segments are wanted from now on.
// Any thread; the store is attached.
bool store_long_note(struct store *store) MUST_USE;
// Have few segments been made since one came?
bool store_long_are_used(const struct store *store);

#endif
