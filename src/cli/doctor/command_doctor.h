// SPDX-License-Identifier: Apache-2.0
// Shared by the files of `forebay doctor`.
#ifndef FOREBAY_CLI_COMMAND_DOCTOR_H
#define FOREBAY_CLI_COMMAND_DOCTOR_H

#include "base/bytes.h"
#include "config/config.h"
#include "store/offline/offline.h"

enum doctor_state { DOCTOR_GREEN, DOCTOR_YELLOW, DOCTOR_RED };

struct doctor {
    struct buf out;
    const struct config *config;
    const char *const *buckets; // named by the user
    unsigned bucket_count;
    char *proxy_url;        // with its password; NULL: https origins are asked directly
    uint64_t timeout_ms;    // longest wait for an answer of an origin
    struct store_look look; // what is at cache.dir
    unsigned count[3];      // findings by state
    int exit_code;          // exit code of the first red finding that sets one
    bool has_speed;
};

// --- command_doctor_find.c

// Reports one finding. `remedy` is NULL for a green one.
void command_doctor_find(struct doctor *doctor, enum doctor_state state, const char *check_name,
                         const char *remedy, const char *format, ...) PRINTF_LIKE(5, 6);

// Prints the verdict: the counts as text, or with --json as the last line. Returns the exit code of
// the command.
int command_doctor_verdict(struct doctor *doctor);

// Reports "WHERE: WHAT" as a red finding about an origin. Sets the exit code to EXIT_CODE_ORIGIN,
// unless an earlier finding has set one.
void command_doctor_red_of_origin(struct doctor *doctor, const char *check_name, const char *remedy,
                                  const char *what, const char *where);

// --- command_doctor_keys.c: how long credentials last, and the instance metadata service

struct origin;
void command_doctor_expiry(struct doctor *doctor, const struct origin *origin);
// Checks the instance metadata service. `is_missed`: no other source has credentials.
void command_doctor_metadata(struct doctor *doctor, bool is_missed);

// --- command_doctor_speed.c: how fast the origin delivers an object, for a few seconds

struct command_probe;
struct command_probe_ask;
// Measures the origin with the object of `ask`, which has `size_bytes`. Measures only the first
// object of a report that is large enough, and no object of a directory.
void command_doctor_speed(struct doctor *doctor, struct command_probe *probe,
                          const struct command_probe_ask *ask, uint64_t size_bytes);

// --- command_doctor_ask.c

// Reports the findings of a server that answers at the configured admin address. Returns false if
// there are none.
bool command_doctor_ask(struct doctor *doctor);

// --- the checks

void command_doctor_host(struct doctor *doctor);   // disk, engine, limits, ports
void command_doctor_server(struct doctor *doctor); // what a running server reports about its cache
void command_doctor_use(struct doctor *doctor);    // clients here, exposure
void command_doctor_origin(struct doctor *doctor); // network, clock, credentials, rights

#endif
