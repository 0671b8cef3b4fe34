// SPDX-License-Identifier: Apache-2.0
// A GET goes only from one phase to another that get_phases.def names after it.
#include "proxy/get/get_private.h"

#include <signal.h>

#include "test.h"

static struct get_state in_phase(enum get_phase phase)
{
    return (struct get_state){.phase = phase};
}

Test(get_phase, disk_read_is_followed_by_its_bytes)
{
    struct get_state g = in_phase(GET_PHASE_STEPS);
    static const enum get_phase path[] = {GET_PHASE_HEADER, GET_PHASE_STEPS,  GET_PHASE_CHOOSE,
                                          GET_PHASE_READ,   GET_PHASE_SPANS,  GET_PHASE_CHOOSE,
                                          GET_PHASE_RUN,    GET_PHASE_CHOOSE, GET_PHASE_CUT};
    for (size_t i = 0; i < ARRAY_LEN(path); i++) {
        get_phase_enter(&g, path[i]);
        cr_assert_eq(g.phase, path[i]);
        cr_assert_eq(get_phase_has_replied(&g), i > 1);
        cr_assert_eq(get_phase_is_reading(&g), i == 0 || i == 3);
    }
}

Test(get_phase, late_disk_read_races_a_run)
{
    static const enum get_phase winners[] = {GET_PHASE_SPANS, GET_PHASE_RUN, GET_PHASE_READ};
    for (size_t i = 0; i < ARRAY_LEN(winners); i++) {
        struct get_state g = in_phase(GET_PHASE_READ);
        get_phase_enter(&g, GET_PHASE_RACE);
        cr_assert(get_phase_is_reading(&g) && get_phase_has_replied(&g));
        get_phase_enter(&g, winners[i]);
    }
}

Test(get_phase, late_disk_read_of_a_header_races_the_home)
{
    static const enum get_phase winners[] = {GET_PHASE_STEPS, GET_PHASE_HEADER};
    for (size_t i = 0; i < ARRAY_LEN(winners); i++) {
        struct get_state g = in_phase(GET_PHASE_HEADER);
        get_phase_enter(&g, GET_PHASE_HEADER_RACE);
        cr_assert(get_phase_is_reading(&g) && !get_phase_has_replied(&g));
        get_phase_enter(&g, winners[i]);
    }
}

Test(get_phase, request_can_end_in_every_phase)
{
    for (unsigned phase = 0; phase < GET_PHASE_OVER; phase++) {
        struct get_state g = in_phase((enum get_phase)phase);
        get_phase_enter(&g, GET_PHASE_OVER);
        cr_assert_eq(g.phase, GET_PHASE_OVER);
    }
}

Test(get_phase, second_disk_read_while_one_is_in_flight_aborts, .signal = SIGABRT)
{
    struct get_state g = in_phase(GET_PHASE_READ);
    get_phase_enter(&g, GET_PHASE_READ);
}

Test(get_phase, run_cannot_be_left_for_a_disk_read, .signal = SIGABRT)
{
    struct get_state g = in_phase(GET_PHASE_RUN);
    get_phase_enter(&g, GET_PHASE_READ);
}

Test(get_phase, reply_cannot_return_to_the_steps, .signal = SIGABRT)
{
    struct get_state g = in_phase(GET_PHASE_CHOOSE);
    get_phase_enter(&g, GET_PHASE_STEPS);
}

Test(get_phase, nothing_follows_a_cut_body, .signal = SIGABRT)
{
    struct get_state g = in_phase(GET_PHASE_CUT);
    get_phase_enter(&g, GET_PHASE_CHOOSE);
}

Test(get_phase, nothing_follows_the_end_of_the_request, .signal = SIGABRT)
{
    struct get_state g = in_phase(GET_PHASE_OVER);
    get_phase_enter(&g, GET_PHASE_OVER);
}
