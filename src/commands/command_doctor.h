// SPDX-License-Identifier: Apache-2.0
// Shared by the files of `forebay doctor`.
#ifndef FOREBAY_COMMANDS_COMMAND_DOCTOR_H
#define FOREBAY_COMMANDS_COMMAND_DOCTOR_H

#include "base/bytes.h"
#include "config/config.h"
#include "store/store.h"

enum doctor_state { DOCTOR_GREEN, DOCTOR_YELLOW, DOCTOR_RED };

struct doctor {
    struct buf out;
    const struct config *config;
    const char *const *buckets; // named by the user
    unsigned bucket_count;
    uint64_t timeout_ms;    // for each answer of an origin
    struct store_look look; // of cache.dir
    unsigned count[3];      // findings by state
    int exit_code;          // of the first red one that has its own
};

// --- command_doctor_find.c

// One line. `remedy` is NULL for a green one.
void command_doctor_find(struct doctor *doctor, enum doctor_state state, const char *check_name,
                         const char *remedy, const char *format, ...) PRINTF_LIKE(5, 6);

// As text or, with --json, the last line; the exit code of it all.
int command_doctor_verdict(struct doctor *doctor);

// --- the checks

void command_doctor_host(struct doctor *doctor);   // disk, engine, limits, ports
void command_doctor_use(struct doctor *doctor);    // clients here, exposure
void command_doctor_origin(struct doctor *doctor); // network, clock, credentials, rights

#endif
