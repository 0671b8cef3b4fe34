// SPDX-License-Identifier: Apache-2.0
// A played power cut: unsynced writes of this program and its libraries may be lost, and a segment
// whose folder was not synced may get its name back. It works with both disk engines, and only in a
// process that ends with it.
#ifndef FOREBAY_TESTS_UNIT_STORE_POWER_CUT_H
#define FOREBAY_TESTS_UNIT_STORE_POWER_CUT_H

#include "base/bytes.h"
#include "base/check.h"

// From now on writes are remembered until they are synced.
void power_cut_arm(void);
// Drives that lie: syncs forget nothing from now on.
void power_cut_lie(void);
// Takes unsynced writes back, sector by sector where they are to be torn, and kills the process.
// `seed` draws the lost writes; 0: all are lost.
void power_cut_strike(uint64_t seed) __attribute__((noreturn));
// Writes to the file `name` in a folder that are not yet synced.
unsigned power_cut_pending(int folder_fd, const char *name);

#endif
