// SPDX-License-Identifier: Apache-2.0
// The random schedules that a test runs. FOREBAY_SEED: this one alone. Otherwise FOREBAY_SEEDS of
// them (or the test's own number), from FOREBAY_FIRST_SEED on (1). And whether FOREBAY_TEST_SCALE
// wants full counts.
#ifndef FOREBAY_TESTS_UNIT_SEEDS_H
#define FOREBAY_TESTS_UNIT_SEEDS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct seeds {
    bool is_one;
    uint64_t first, last;
};

static inline uint64_t seeds_variable(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static inline struct seeds seeds_wanted(uint64_t count)
{
    uint64_t one = seeds_variable("FOREBAY_SEED", 0);
    if (one != 0) {
        return (struct seeds){true, one, one};
    }
    uint64_t first = seeds_variable("FOREBAY_FIRST_SEED", 1);
    return (struct seeds){false, first, first + seeds_variable("FOREBAY_SEEDS", count) - 1};
}

// Returns `full` if FOREBAY_TEST_SCALE is 1, which takes minutes, else `few`.
static inline unsigned seeds_scaled(unsigned full, unsigned few)
{
    const char *scale = getenv("FOREBAY_TEST_SCALE");
    return scale != NULL && strcmp(scale, "1") == 0 ? full : few;
}

#endif
