// SPDX-License-Identifier: Apache-2.0
// Shared by the files of the control interface.
#ifndef FOREBAY_COMMANDS_COMMAND_CONTROL_PRIVATE_H
#define FOREBAY_COMMANDS_COMMAND_CONTROL_PRIVATE_H

#include "commands/command_control.h"
#include "commands/command_uri.h"

// --- command_control_take.c ----------------------------------------------------------------------

json_t *command_control_text(
    struct span text); // as a string; what is not UTF-8 or has a NUL in percent coding
bool command_control_is_text(struct span text);
// False: it is none, and the call is answered. command_uri_parse() or command_uri_parse_object().
bool command_control_take_uri(struct admin_call **call, struct span text,
                              struct command_uri *ret_uri);
bool command_control_take_object(struct admin_call **call, struct span text,
                                 struct command_uri *ret_uri);

// --- command_control_live.c ----------------------------------------------------------------------

void command_control_requests(void *ctx, struct admin_call *call);
void command_control_trace(void *ctx, struct admin_call *call);
void command_control_buckets(void *ctx, struct admin_call *call);

// --- command_control_doctor.c --------------------------------------------------------------------

struct command_doctor_run *command_control_doctor_new(int argc, char **argv);
void command_control_doctor_cancel(struct command_doctor_run *run); // for good; NULL is fine
void command_control_doctor_free(struct command_doctor_run *run);   // NULL is fine
void command_control_doctor(void *ctx, struct admin_call *call);
void command_control_doctor_last(void *ctx, struct admin_call *call); // lately, else as above

// --- command_control_jobs.c ----------------------------------------------------------------------

struct command_jobs *command_control_jobs_new(struct proxy *proxy);
void command_control_jobs_cancel(
    struct command_jobs *jobs); // all, and no new ones begin; NULL is fine
void command_control_jobs_free(struct command_jobs *jobs); // NULL is fine
void command_control_warm(void *ctx, struct admin_call *call);
void command_control_jobs(void *ctx, struct admin_call *call);
void command_control_job(void *ctx, struct admin_call *call);
void command_control_job_cancel(void *ctx, struct admin_call *call);

// --- command_control_scrub.c ---------------------------------------------------------------------

void command_control_scrub(void *ctx, struct admin_call *call);
void command_control_scrub_begin(void *ctx, struct admin_call *call);
void command_control_scrub_cancel(void *ctx, struct admin_call *call);

// --- command_control_pins.c ----------------------------------------------------------------------

void command_control_pin(void *ctx, struct admin_call *call);
void command_control_unpin(void *ctx, struct admin_call *call);
void command_control_pins(void *ctx, struct admin_call *call);

#endif
