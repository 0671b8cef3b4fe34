// SPDX-License-Identifier: Apache-2.0
// The bytes of a benchmark's objects, the same at the origin that sends them and at the client that
// judges them. Byte i of the object at PATH is pattern[(start(PATH) + i) % PATTERN_BYTES]: the
// period is prime, so that a byte from another place or of another object is seen, and any part of
// an object is one or two spans.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

enum { PATTERN_BYTES = 1048573 };

// Two periods, so that a span of up to one period is contiguous from any start. Never freed.
static inline const unsigned char *pattern_make(void)
{
    unsigned char *p = malloc(2 * (size_t)PATTERN_BYTES);
    if (!p)
        abort();
    uint64_t x = 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < PATTERN_BYTES; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        p[i] = p[i + PATTERN_BYTES] = (unsigned char)(x >> 32);
    }
    return p;
}

// Where the object at PATH (LENGTH bytes, no query) begins in the pattern.
static inline uint64_t pattern_start(const char *path, size_t length)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < length; i++)
        h = (h ^ (unsigned char)path[i]) * 1099511628211u;
    return (h ^ (h >> 29)) % PATTERN_BYTES;
}
