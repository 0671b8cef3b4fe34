// SPDX-License-Identifier: Apache-2.0
// An object of a warm job goes only from one phase to another that warm_phases.def names after it.
#include "proxy/ops/warm_private.h"

#include <signal.h>

#include "test.h"

static struct warm_object in_phase(enum warm_phase phase)
{
    return (struct warm_object){.phase = phase};
}

Test(warm_phase, refused_object_begins_again_and_is_fetched)
{
    struct warm_object o = in_phase(WARM_PHASE_FETCH);
    static const enum warm_phase path[] = {WARM_PHASE_HEADER, WARM_PHASE_FETCH, WARM_PHASE_CONFIRM,
                                           WARM_PHASE_FETCH,  WARM_PHASE_LATER, WARM_PHASE_PAUSED,
                                           WARM_PHASE_FETCH,  WARM_PHASE_SUMS,  WARM_PHASE_DONE};
    o.later = REFUSAL_disk_busy;
    for (size_t i = 0; i < ARRAY_LEN(path); i++) {
        warm_phase_enter(&o, path[i]);
        cr_assert_eq(o.phase, path[i]);
    }
}

Test(warm_phase, nothing_follows_an_object_that_is_done, .signal = SIGABRT)
{
    struct warm_object o = in_phase(WARM_PHASE_DONE);
    warm_phase_enter(&o, WARM_PHASE_FETCH);
}

Test(warm_phase, failed_object_without_an_error_aborts, .signal = SIGABRT)
{
    struct warm_object o = in_phase(WARM_PHASE_FETCH);
    warm_phase_enter(&o, WARM_PHASE_FAILED);
}

Test(warm_phase, object_is_not_done_while_its_runs_are_in_flight, .signal = SIGABRT)
{
    struct warm_object o = in_phase(WARM_PHASE_FETCH);
    o.run_count = 1;
    warm_phase_enter(&o, WARM_PHASE_DONE);
}

Test(warm_phase, paused_object_cannot_be_refused, .signal = SIGABRT)
{
    struct warm_object o = in_phase(WARM_PHASE_PAUSED);
    o.why = "not stored";
    warm_phase_enter(&o, WARM_PHASE_REFUSED);
}
