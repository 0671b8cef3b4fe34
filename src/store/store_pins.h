// SPDX-License-Identifier: Apache-2.0
// What is pinned while the process runs, on disk: see store_pins.c.
#ifndef FOREBAY_STORE_STORE_PINS_H
#define FOREBAY_STORE_STORE_PINS_H

#include <stdatomic.h>
#include <stdint.h>

// Zeroed is right.
struct store_pins {
    _Atomic uint64_t bytes;      // of the file, as counted in used_bytes
    _Atomic uint64_t bytes_then; // of the one that was there at the start, which other_bytes has
    atomic_bool is_unread;       // it is not to be replaced: store_late.c
};

struct store;
// At the opening, behind the look at what else the directory holds.
void store_pins_open(struct store *store);
// What it takes of cache.size now, but for what lay there at the start. Any thread.
int64_t store_pins_bytes(const struct store *store);

#endif
