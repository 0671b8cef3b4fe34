// SPDX-License-Identifier: Apache-2.0
// The played door of origin. A fetch's first step is the moment in which the origin looks at its
// key. The second brings the answer, then the body comes piece by piece.
#ifndef FOREBAY_TESTS_UNIT_SIMULATION_ORIGIN_PLAY_H
#define FOREBAY_TESTS_UNIT_SIMULATION_ORIGIN_PLAY_H

#include <stdbool.h>

// One fetch moves one step; false: none can.
bool origin_play_step(void);
bool origin_play_is_over(void);

#endif
