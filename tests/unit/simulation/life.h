// SPDX-License-Identifier: Apache-2.0
// A life: one process of the store, from its start to its stop, or to its end by a kill or a power
// cut. It runs in a process of its own. State that outlives it is in memory shared with the test.
#ifndef FOREBAY_TESTS_UNIT_SIMULATION_LIFE_H
#define FOREBAY_TESTS_UNIT_SIMULATION_LIFE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"

// Reports that a promise is broken. The whole seed fails.
void life_fail(const char *format, ...) PRINTF_LIKE(1, 2) __attribute__((noreturn));
// The process is gone, as if by SIGKILL.
void life_end(void) __attribute__((noreturn));
// This process is a child of a life: the played disk does not affect it.
void life_is_bystander(void);

#endif
