// SPDX-License-Identifier: Apache-2.0
// A body that is cut gives back what its disk read has left. A client of the played world sees no
// difference, so this is checked on the state of the GET itself.
#include "world.h"

#include "proxy/get/get_private.h"

#include "test.h"

Test(get_state, cut_body_gives_back_the_bytes_that_a_disk_read_has_left)
{
    struct get_state g = {.phase = GET_PHASE_SPANS};
    struct chunk *left = chunk_new_forced();
    g.read = calloc(1, sizeof(*g.read));
    cr_assert_not_null(g.read);
    g.read->state = GET_READ_OVER;
    g.read->read.chunks[1] = chunk_ref(left);
    get_state_cut(&g);
    cr_assert_eq(g.phase, GET_PHASE_CUT);
    cr_assert_null(g.read);
    cr_assert_eq(atomic_load(&left->refs), 1);
    chunk_unref(left);
}

Test(get_state, cut_body_without_a_disk_read_releases_nothing)
{
    struct get_state g = {.phase = GET_PHASE_RUN};
    get_state_cut(&g);
    cr_assert_eq(g.phase, GET_PHASE_CUT);
}
