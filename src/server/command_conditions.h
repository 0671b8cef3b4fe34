// SPDX-License-Identifier: Apache-2.0
// Finds out which conditions of control/conditions.def hold.
#ifndef FOREBAY_SERVER_COMMAND_CONDITIONS_H
#define FOREBAY_SERVER_COMMAND_CONDITIONS_H

#include <stdatomic.h>

#include "control/control.h"
#include "loop/loop.h"
#include "server/command_cpu.h"
#include "server/command_origins.h"
#include "server/command_refused.h"
#include "server/command_reload.h"
#include "store/store.h"

// A limit that clients have reached: how often, and its value when that was last seen.
struct command_conditions_reached {
    uint64_t count, value;
};

struct command_conditions_parts {
    const struct store *store;
    const struct loop *loop;
    const struct command_origins *origins;
    struct command_reload *reload;
    struct command_refused *refused;
    struct control *control;
    const _Atomic bool *is_draining;
    struct {
        struct command_conditions_reached connections, inflight, source, memory;
        struct command_cpu cpu;
    } guarded; // by the lock of `conditions`
};

// A conditions_look_fn; ctx is a struct command_conditions_parts.
void command_conditions_look(void *ctx, struct conditions *conditions);
// Returns true if every worker has moved lately. Any thread.
bool command_conditions_moves(const struct loop *loop, uint64_t *ret_age_ms);

#endif
