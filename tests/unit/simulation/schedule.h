// SPDX-License-Identifier: Apache-2.0
// The played threads and clock: the real threads of the code under test, of which one at a time
// runs. Where it stops (a lock, a condition, a call to the disk), the seed says which one
// continues. No thread waits for real time: when all wait, the clock moves to the next moment that
// one waits for. The linker puts this before the calls of pthread, poll, fork and the clock
// (CMakeLists.txt).
#ifndef FOREBAY_TESTS_UNIT_SIMULATION_SCHEDULE_H
#define FOREBAY_TESTS_UNIT_SIMULATION_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

// From here on; the caller is the first thread. Clocks in microseconds.
void schedule_begin(uint64_t seed, uint64_t monotonic_us, uint64_t wall_us);
bool schedule_is_on(void);
// Makes everything that follows depend on this seed alone.
void schedule_seed(uint64_t seed);
unsigned schedule_random(unsigned below);
uint64_t schedule_monotonic_us(void);
uint64_t schedule_wall_us(void);
// Another thread may go on here: once in `one_in`.
void schedule_point(unsigned one_in);
// The calling thread waits; the first thread also until schedule_wake().
void schedule_sleep_us(uint64_t us);
void schedule_wake(void);

#endif
