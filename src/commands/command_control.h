// SPDX-License-Identifier: Apache-2.0
// The control interface of a running server: what the actions of admin/routes.def do. Its calls run on the
// admin thread; what only others can do goes to them.
#ifndef FOREBAY_COMMANDS_COMMAND_CONTROL_H
#define FOREBAY_COMMANDS_COMMAND_CONTROL_H

#include <stdatomic.h>

#include "admin/admin.h"
#include "commands/command_reload.h"
#include "proxy/proxy.h"
#include "store/store.h"

struct command_control {
    struct proxy *proxy;
    struct store *store;
    struct command_reload *reload;
    _Atomic(struct admin_call *) reload_call; // waits for the main thread
};

void command_control_actions(admin_action_fn actions[ADMIN_ACTION_COUNT_]);
// Of the ctx that actions get; in command_serve.c.
struct command_control *command_control_of(void *ctx);
// SIGHUP, on the main thread: reloads, and answers who has asked for it.
void command_control_reload(struct command_control *control);
// No action begins any more (the admin thread has ended): jobs end. Before the origins are closed.
void command_control_stop(struct command_control *control);

#endif
