// SPDX-License-Identifier: Apache-2.0
// The played door of loop: two workers on the first thread, whose messages, timers, disk operations
// and blocking jobs happen one at a time, in an order that the seed chooses.
#ifndef FOREBAY_TESTS_UNIT_SIMULATION_TURNS_H
#define FOREBAY_TESTS_UNIT_SIMULATION_TURNS_H

#include "loop/loop.h"

#define TURNS_WORKERS 2u

// `also`: lets another event happen; false: none is possible now. NULL: there are none.
void turns_begin(bool (*also)(void));
struct worker *turns_worker(unsigned index);
// fn(ctx) in a turn of this worker, now.
void turns_on_worker(unsigned index, void (*fn)(struct worker *w, void *ctx), void *ctx);
// Lets one event happen, or advances the time until one can, by at most `us`.
void turns_step(uint64_t us);
// Whether no operation, job or message is in flight.
bool turns_are_over(void);

#endif
