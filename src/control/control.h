// SPDX-License-Identifier: Apache-2.0
// The control interface of a running server: the actions of control/routes.def. Calls arrive on the
// admin thread and move to other threads if only those can answer.
#ifndef FOREBAY_CONTROL_CONTROL_H
#define FOREBAY_CONTROL_CONTROL_H

#include <stdatomic.h>

#include "control/admin.h"
#include "proxy/proxy.h"
#include "store/store.h"

// How long the new process of an upgrade may take to become ready. The maximum is below
// ADMIN_CALL_WAIT_MAX_MS, so that the caller gets the outcome instead of a timeout.
#define CONTROL_UPGRADE_MS_DEFAULT 30000u
#define CONTROL_UPGRADE_MS_MAX 50000u

struct command_jobs;       // control_jobs.c
struct command_doctor_run; // control_doctor.c

struct control {
    struct proxy *proxy;
    struct store *store;
    int argc; // argc and argv of this start, after `serve`
    char **argv;
    struct command_jobs *jobs;
    struct command_doctor_run *doctor;
    _Atomic(struct admin_call *) reload_call;  // waits for the main thread; NULL: none
    _Atomic(struct admin_call *) upgrade_call; // the same for an upgrade
    atomic_bool is_draining;     // the main thread no longer handles reload_call and upgrade_call
    atomic_uint upgrade_wait_ms; // as requested; 0: no upgrade was requested
};

// Call it before the admin thread starts. The caller sets proxy, store, argc and argv.
void control_init(struct control *control);
// Sets the actions of the control interface. The caller passes the struct control as their ctx.
void control_actions(admin_action_fn actions[ADMIN_ACTION_COUNT_]);
// Returns the source of a proxy's requests, for the log of the admin thread.
struct admin_lines control_lines(struct proxy *proxy);
// Answers the call that requested a reload, if there is one. Runs on the main thread, after the
// reload. Each span of the report holds lines of text.
struct control_reload_report {
    bool is_good;
    struct span errors, applied, needs_restart;
};
void control_reloaded(struct control *control, const struct control_reload_report *report);
// Returns true if a warm job of the last `window_s` seconds could not fetch or keep objects that
// the origin has, and no later job for the same items has succeeded. Any thread.
bool control_warm_failed(struct control *control, unsigned window_s);
// Returns a text as JSON. If it is not UTF-8 or contains NUL, returns it percent-coded.
json_t *control_text(struct span text);
// Returns how long a requested upgrade may take to become ready. Main thread.
unsigned control_upgrade_wait_ms(struct control *control);
// Answers the call that requested an upgrade. `pid` is the new process; 0: there is none, and `why`
// is the reason.
void control_upgraded(struct control *control, int pid, const char *why);
// Ends all jobs, starts no new ones, and refuses calls for a reload or an upgrade. Runs on the main
// thread, before the origins are closed. Accepts a zeroed control.
void control_drain(struct control *control);
// Frees everything. Call it after the admin thread has ended.
void control_done(struct control *control);

#endif
