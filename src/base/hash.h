// SPDX-License-Identifier: Apache-2.0
// Keyed 128-bit and plain 64-bit hashes (XXH3). Any thread.
#ifndef FOREBAY_BASE_HASH_H
#define FOREBAY_BASE_HASH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"

struct hash128 {
    uint64_t hi, lo;
};

uint64_t hash64(const void *bytes, size_t len, uint64_t seed);
// Hashes the pieces together with their lengths, so that ("a","bc") and ("ab","c") differ.
struct hash128 hash128_of(const struct span *pieces, unsigned count, uint64_t seed);
static inline bool hash128_equal(struct hash128 a, struct hash128 b)
{
    return a.hi == b.hi && a.lo == b.lo;
}

// Detects a circle in a chain of steps, each identified by its hash. It needs at most three times
// the circle's length (Brent's algorithm). Zero-initialise it.
struct circle {
    uint64_t mark, steps, steps_max; // steps_max 0: there is no mark yet
};
static inline bool circle_closes(struct circle *circle, uint64_t hash)
{
    if (circle->steps_max > 0 && circle->mark == hash) {
        return true;
    }
    if (circle->steps++ == circle->steps_max) {
        circle->mark = hash;
        circle->steps = 0;
        circle->steps_max = circle->steps_max > 0 ? 2 * circle->steps_max : 1;
    }
    return false;
}

#endif
