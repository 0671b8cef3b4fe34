// SPDX-License-Identifier: Apache-2.0
// The order of a GET's phases. On the request's worker.
#include "proxy/get/get_private.h"

#define TO(name) (1u << GET_PHASE_##name)

static const uint16_t SUCCESSORS[] = {
#define GET_PHASE(name, successors) [GET_PHASE_##name] = (successors) | TO(OVER),
#include "proxy/get/get_phases.def"
#undef GET_PHASE
};
static_assert(ARRAY_LEN(SUCCESSORS) == GET_PHASE_COUNT_, "each phase has its successors");
static_assert(GET_PHASE_COUNT_ <= 16, "a phase is a bit of its predecessor's word");

void get_phase_enter(struct get_state *g, enum get_phase phase)
{
    check(g->phase < GET_PHASE_OVER); // no phase follows OVER
    check_step(SUCCESSORS, g->phase, phase);
    g->phase = phase;
}
