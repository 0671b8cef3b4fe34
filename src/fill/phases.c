// SPDX-License-Identifier: Apache-2.0
// Moves the state machines of this room from phase to phase. Each function aborts if phases.def
// does not name the new phase as a successor of the present one. Runs on the machine's worker.
#include "fill/home_private.h"

void fill_enter(struct fill *fill, enum fill_phase to)
{
    static const unsigned next[] = {
#define NEXT(name) (1u << FILL_##name)
#define RUN_PHASE(name, successors, ...) [FILL_##name] = (successors),
#include "fill/phases.def"
#undef NEXT
    };
    check_step(next, fill->phase, to);
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
    check_step(next, fill->transfer, to);
    fill->transfer = to;
    timer_stop(&fill->timer); // the timer belonged to the phase that ends
}

void fill_subscription_enter(struct subscription *sub, enum subscription_state to)
{
    static const unsigned next[] = {
#define NEXT(name) (1u << SUBSCRIPTION_##name)
#define SUBSCRIPTION_PHASE(name, successors, ...) [SUBSCRIPTION_##name] = (successors),
#include "fill/phases.def"
#undef NEXT
    };
    check_step(next, sub->state, to);
    sub->state = to;
}

void fill_home_enter(struct home_key *h, enum home_state to)
{
    static const unsigned next[] = {
#define NEXT(name) (1u << HOME_##name)
#define HOME_PHASE(name, successors, ...) [HOME_##name] = (successors),
#include "fill/phases.def"
#undef NEXT
    };
    check_step(next, h->state, to);
    h->state = to;
}
