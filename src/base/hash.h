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

#endif
