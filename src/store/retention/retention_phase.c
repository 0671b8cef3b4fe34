// SPDX-License-Identifier: Apache-2.0
// Changes the phase of retention. retention_phases.def lists the successors of each phase.
#include "store/retention/retention.h"

void retention_enter(struct retention *r, enum retention_phase to)
{
    static const unsigned next[] = {
#define NEXT(name) (1u << RETENTION_##name)
#define RETENTION_PHASE(name, successors, ...) [RETENTION_##name] = (successors),
#include "store/retention/retention_phases.def"
#undef NEXT
    };
    check_step(next, r->phase, to);
    r->phase = to;
}

bool retention_is_ready(const struct retention *r)
{
    return r->phase == RETENTION_LEARNING || r->phase == RETENTION_ENDED;
}
