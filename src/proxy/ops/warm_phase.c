// SPDX-License-Identifier: Apache-2.0
// The phases of an object of a warm job: which may follow which. Runs on the job's worker.
#include "proxy/ops/warm_private.h"

#define TO(name) (1u << WARM_PHASE_##name)

static const uint16_t SUCCESSORS[] = {
#define WARM_PHASE(name, successors) [WARM_PHASE_##name] = (successors),
#include "proxy/ops/warm_phases.def"
#undef WARM_PHASE
};
static_assert(ARRAY_LEN(SUCCESSORS) == WARM_PHASE_COUNT_, "each phase has its successors");
static_assert(WARM_PHASE_COUNT_ <= 16, "a phase is a bit of its predecessor's word");

void warm_phase_enter(struct warm_object *o, enum warm_phase phase)
{
    check_step(SUCCESSORS, o->phase, phase);
    check(phase != WARM_PHASE_FAILED || o->err != ERR_OK);
    check(phase != WARM_PHASE_REFUSED || o->why != NULL);
    check(phase != WARM_PHASE_LATER || o->later != REFUSAL_none);
    check((phase == WARM_PHASE_FETCH || phase == WARM_PHASE_CONFIRM || phase == WARM_PHASE_LATER ||
           phase == WARM_PHASE_REFUSED) ||
          o->run_count == 0);
    o->phase = phase;
}
