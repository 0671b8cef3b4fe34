// SPDX-License-Identifier: Apache-2.0
// Shared by the files of the control interface.
#ifndef FOREBAY_CONTROL_CONTROL_PRIVATE_H
#define FOREBAY_CONTROL_CONTROL_PRIVATE_H

#include "control/control.h"
#include "s3/s3.h"

// --- control_take.c ----------------------------------------------------------------------

bool control_is_text(struct span text);
// Parse a URI with s3_uri_parse() or s3_uri_parse_object(). If it is invalid, they answer the call
// and return false.
bool control_take_uri(struct admin_call **call, struct span text, struct s3_uri *ret_uri);
bool control_take_object(struct admin_call **call, struct span text, struct s3_uri *ret_uri);

// --- control_live.c ----------------------------------------------------------------------

void control_requests(void *ctx, struct admin_call *call);
void control_trace(void *ctx, struct admin_call *call);
void control_buckets(void *ctx, struct admin_call *call);

// --- control_doctor.c --------------------------------------------------------------------

struct command_doctor_run *control_doctor_new(int argc, char **argv);
// Kills a running doctor and allows no new one. Accepts NULL.
void control_doctor_cancel(struct command_doctor_run *run);
void control_doctor_free(struct command_doctor_run *run); // accepts NULL
void control_doctor(void *ctx, struct admin_call *call);
// Answers with recent findings if there are any, otherwise like control_doctor().
void control_doctor_last(void *ctx, struct admin_call *call);

// --- control_jobs.c ----------------------------------------------------------------------

struct command_jobs *control_jobs_new(struct proxy *proxy);
// Cancels all jobs and allows no new ones. Accepts NULL.
void control_jobs_cancel(struct command_jobs *jobs);
void control_jobs_free(struct command_jobs *jobs); // accepts NULL
void control_warm(void *ctx, struct admin_call *call);
void control_jobs(void *ctx, struct admin_call *call);
void control_job(void *ctx, struct admin_call *call);
void control_job_cancel(void *ctx, struct admin_call *call);

// --- control_scrub.c ---------------------------------------------------------------------

void control_scrub(void *ctx, struct admin_call *call);
void control_scrub_begin(void *ctx, struct admin_call *call);
void control_scrub_cancel(void *ctx, struct admin_call *call);

// --- control_pins.c ----------------------------------------------------------------------

void control_pin(void *ctx, struct admin_call *call);
void control_unpin(void *ctx, struct admin_call *call);
void control_pins(void *ctx, struct admin_call *call);

#endif
