// SPDX-License-Identifier: Apache-2.0
// The control interface of a running server: what the actions of control/routes.def do. Its calls
// run on the admin thread; what only others can do goes to them.
#ifndef FOREBAY_CONTROL_CONTROL_H
#define FOREBAY_CONTROL_CONTROL_H

#include <stdatomic.h>

#include "control/admin.h"
#include "proxy/proxy.h"
#include "store/store.h"

// How long a process that follows may take to get ready: as long as a caller may say at most, it
// is answered before ADMIN_CALL_WAIT_MAX_MS.
#define CONTROL_UPGRADE_MS_DEFAULT 30000u
#define CONTROL_UPGRADE_MS_MAX 50000u

struct command_jobs;       // control_jobs.c
struct command_doctor_run; // control_doctor.c

struct control {
    struct proxy *proxy;
    struct store *store;
    int argc; // of this start, behind `serve`; argv too
    char **argv;
    struct command_jobs *jobs;
    struct command_doctor_run *doctor;
    _Atomic(struct admin_call *) reload_call; // waits for the main thread, and so does the next
    _Atomic(struct admin_call *) upgrade_call;
    atomic_bool is_draining;     // the main thread takes neither any more
    atomic_uint upgrade_wait_ms; // as asked for; 0: not
};

// Before the admin thread starts; proxy, store, argc and argv are set.
void control_init(struct control *control);
// They get the control as their ctx.
void control_actions(admin_action_fn actions[ADMIN_ACTION_COUNT_]);
// The requests of a proxy, as they end.
struct admin_lines control_lines(struct proxy *proxy);
// On the main thread, after a reload: answers the call that asked for it, if one did. Texts of
// lines.
struct control_reload_report {
    bool is_good;
    struct span errors, applied, needs_restart;
};
void control_reloaded(struct control *control, const struct control_reload_report *report);
// A text as JSON; bytes that are no UTF-8, and NUL, in percent coding.
json_t *control_text(struct span text);
// On the main thread: how long an upgrade that has been asked for may take to get ready.
unsigned control_upgrade_wait_ms(struct control *control);
// Answers who has asked: `pid` follows; 0: none does, and why.
void control_upgraded(struct control *control, int pid, const char *why);
// On the main thread: jobs end, no new ones begin, and who asks for a reload or an upgrade is
// refused. Before the origins are closed; a zeroed one is fine.
void control_drain(struct control *control);
// After the admin thread has ended.
void control_done(struct control *control);

#endif
