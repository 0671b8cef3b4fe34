// SPDX-License-Identifier: Apache-2.0
// Proves: a transfer enters only a state that may follow its own.
#include <signal.h>

#include "net/transfer_private.h"
#include "test.h"

Test(transfer_states, transfer_starts_again_on_a_new_connection_and_ends)
{
    struct transfer t = {.state = STARTING};
    transfer_enter(&t, RUNNING);
    transfer_enter(&t, STARTING);
    transfer_enter(&t, RUNNING);
    transfer_enter(&t, ENDED);
    cr_assert_eq(t.state, ENDED);
}

Test(transfer_states, transfer_does_not_end_twice, .signal = SIGABRT)
{
    struct transfer t = {.state = ENDED};
    transfer_enter(&t, ENDED);
}

Test(transfer_states, ended_transfer_does_not_run, .signal = SIGABRT)
{
    struct transfer t = {.state = ENDED};
    transfer_enter(&t, RUNNING);
}
