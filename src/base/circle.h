// SPDX-License-Identifier: Apache-2.0
// Detects a chain of steps that returns to an earlier step. Pure; any thread.
#ifndef FOREBAY_BASE_CIRCLE_H
#define FOREBAY_BASE_CIRCLE_H

#include <stdbool.h>
#include <stdint.h>

// State of the detection by Brent's algorithm; zero-initialise it. The caller passes the hash of
// each step. A circle is found within three times its length.
struct circle {
    uint64_t mark, steps, steps_max; // steps_max 0: no mark has been set yet
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
