// SPDX-License-Identifier: Apache-2.0
// Moves the state machines of this room from phase to phase. Each function aborts if phases.def
// does not name the new phase as a successor of the present one. Runs on the machine's worker.
#include "fill/fill_private.h"

void fill_enter(struct fill *fill, enum fill_phase to)
{
    static const unsigned next[] = {
#define NEXT(name) (1u << FILL_##name)
#define RUN_PHASE(name, successors, ...) [FILL_##name] = (successors),
#include "fill/phases.def"
#undef NEXT
    };
    check(fill->phase < ARRAY_LEN(next) && to < ARRAY_LEN(next));
    check((next[fill->phase] & 1u << to) != 0);
    fill->phase = to;
}

void fill_transfer_enter(struct fill *fill, enum transfer_phase to)
{
    static const unsigned next[] = {
#define NEXT(name) (1u << TRANSFER_##name)
#define TRANSFER_PHASE(name, successors, ...) [TRANSFER_##name] = (successors),
#include "fill/phases.def"
#undef NEXT
    };
    check(fill->transfer < ARRAY_LEN(next) && to < ARRAY_LEN(next));
    check((next[fill->transfer] & 1u << to) != 0);
    fill->transfer = to;
    timer_stop(&fill->timer); // it belonged to the phase that ends
}
