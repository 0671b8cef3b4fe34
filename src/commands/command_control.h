// SPDX-License-Identifier: Apache-2.0
// The control interface of a running server: what the actions of admin/routes.def do. Its calls run
// on the admin thread; what only others can do goes to them.
#ifndef FOREBAY_COMMANDS_COMMAND_CONTROL_H
#define FOREBAY_COMMANDS_COMMAND_CONTROL_H

#include <stdatomic.h>

#include "admin/admin.h"
#include "commands/command_reload.h"
#include "proxy/proxy.h"
#include "store/store.h"

struct command_jobs;       // command_control_jobs.c
struct command_doctor_run; // command_control_doctor.c

struct command_control {
    struct proxy *proxy;
    struct store *store;
    struct command_reload *reload;
    struct command_jobs *jobs;
    struct command_doctor_run *doctor;
    _Atomic(struct admin_call *) reload_call; // waits for the main thread, and so does the next
    _Atomic(struct admin_call *) upgrade_call;
    atomic_bool is_draining;     // the main thread takes neither any more
    atomic_uint upgrade_wait_ms; // as asked for; 0: not
};

// Before the admin thread starts; proxy, store and reload are set.
void command_control_init(struct command_control *control);
// They get the control as their ctx.
void command_control_actions(admin_action_fn actions[ADMIN_ACTION_COUNT_]);
// The requests of a proxy, as they end.
struct admin_lines command_control_lines(struct proxy *proxy);
// SIGHUP, on the main thread: reloads, and answers who has asked for it.
void command_control_reload(struct command_control *control);
// On the main thread: how long an upgrade that has been asked for may take to get ready.
unsigned command_control_upgrade_wait_ms(struct command_control *control);
// Answers who has asked: `pid` follows; 0: none does, and why.
void command_control_upgraded(struct command_control *control, int pid, const char *why);
// On the main thread: jobs end, no new ones begin, and who asks for a reload or an upgrade is
// refused. Before the origins are closed; a zeroed one is fine.
void command_control_drain(struct command_control *control);
// After the admin thread has ended.
void command_control_done(struct command_control *control);

#endif
