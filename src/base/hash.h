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
// Hash of the pieces with their lengths mixed in, so that ("a","bc") and ("ab","c") differ.
struct hash128 hash128_of(const struct span *pieces, unsigned count, uint64_t seed);
static inline bool hash128_equal(struct hash128 a, struct hash128 b)
{
    return a.hi == b.hi && a.lo == b.lo;
}

// Does a chain of steps, each known by its hash, lead in a circle? Found within three times the
// length of what goes round (Brent). Begins as zero.
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
