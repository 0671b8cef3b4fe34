// SPDX-License-Identifier: Apache-2.0
// Shared by the files of `forebay doctor`.
#ifndef FOREBAY_CLI_COMMAND_DOCTOR_H
#define FOREBAY_CLI_COMMAND_DOCTOR_H

#include <jansson.h>

#include "base/bytes.h"
#include "base/host.h"
#include "commands/commands.h"
#include "config/config.h"
#include "store/offline/offline.h"

enum doctor_state { DOCTOR_GREEN, DOCTOR_YELLOW, DOCTOR_RED };

struct doctor {
    struct buf out;
    const struct config *config;
    const char *const *buckets; // named by the user
    unsigned bucket_count;
    char *proxy_url;          // with its password; NULL: https origins are asked directly
    uint64_t timeout_ms;      // longest wait for an answer; see command_doctor_wait_ms()
    uint64_t origin_began_ms; // when the checks of origins began
    struct store_look *look;  // what is at cache.dir; during command_doctor_host()
    struct doctor_peer *peer; // the server that runs with these settings
    json_t *rows;             // gets the findings instead of the output; NULL: none
    unsigned count[3];        // findings by state
    int exit_code;            // exit code of the first red finding that sets one
    bool has_speed;
    bool is_local; // --local, as the server runs it: the limits of this process are the server's
};

// --- command_doctor_find.c

// Reports one finding. `remedy` is NULL for a green one.
void command_doctor_find(struct doctor *doctor, enum doctor_state state, const char *check_name,
                         const char *remedy, const char *format, ...) PRINTF_LIKE(5, 6);

// Reports findings that another process has made: rows as in its output with --json.
void command_doctor_repeat(struct doctor *doctor, const json_t *rows);

// Prints the verdict: the counts as text, or with --json as the last line. Returns the exit code of
// the command.
int command_doctor_verdict(struct doctor *doctor);

// Returns the longest wait for the next answer of an origin. Without --timeout it is as long as a
// server waits, until the checks of origins have taken long.
uint64_t command_doctor_wait_ms(const struct doctor *doctor);
// Returns the longest wait for a command_probe: as above, and a moment for the driver to give its
// verdict first.
uint64_t command_doctor_probe_ms(const struct doctor *doctor);
// Returns true if the answers to earlier checks came so late that no time is left for others.
bool command_doctor_is_out_of_time(const struct doctor *doctor);

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
// Measures the origin's speed by reading the object of `ask`, which has `size_bytes`. Does so once
// per report, for the first object that is large enough. Skips origins that are directories.
void command_doctor_speed(struct doctor *doctor, struct command_probe *probe,
                          const struct command_probe_ask *ask, uint64_t size_bytes);

// --- command_doctor_cpu.c: measurements, which a CPU limit spoils

struct doctor_cpu {
    struct host_cpu before;
    uint64_t began_us; // monotonic
};
// Begins a measurement.
void command_doctor_cpu_begin(struct doctor_cpu *ret_cpu);
// Reports a measurement: yellow with its remedy if it is slow. If a CPU limit has held this process
// back since the begin, names the limit, and the remedy is to raise that.
void command_doctor_cpu_find(struct doctor *doctor, const struct doctor_cpu *cpu,
                             const char *check_name, const char *slow_remedy, bool is_slow,
                             const char *found);

// --- command_doctor_ask.c

// Asks the server at the configured admin address for its findings, and reports them, or its
// refusal. Also reports the findings about clients in this environment. If no server answers,
// returns false, with the reason in *ret_why.
bool command_doctor_ask(struct doctor *doctor, struct buf *ret_why);

// --- command_doctor_apart.c

// Runs a check of this host in a process of its own. Reports its findings, or a red one if it did
// not end in time; then returns false.
bool command_doctor_apart(struct doctor *doctor, const char *check_name,
                          void (*check)(struct doctor *doctor), uint64_t limit_ms);

// --- command_doctor_server.c: the server that runs with the settings of the command

struct doctor_peer {
    char address[COMMANDS_ADDRESS_MAX]; // of its admin port; "": no server answers
    json_t *version;                    // its /version; NULL: no server answers
    json_t *conditions;                 // its /api/v1/conditions; NULL unless has_cache
    bool has_cache;                     // it uses cache.dir of the settings
    bool is_unknown;                    // a server may run, but it cannot be asked
};
void command_doctor_peer_find(struct doctor *doctor, struct doctor_peer *ret_peer);
void command_doctor_peer_done(struct doctor_peer *peer);
// Returns the row of a condition of the server; NULL if it does not hold.
const json_t *command_doctor_peer_condition(const struct doctor_peer *peer, const char *name);
// Returns the i-th address that a server listens on; NULL after the last one. `ctx`: its /version.
const char *command_doctor_peer_address(const void *ctx, unsigned i);
// Returns true if the server listens there.
bool command_doctor_peer_listens(struct doctor *doctor, const struct config_listen *at);
// Returns the configuration that the server of --admin runs with; NULL if it does not answer. The
// caller owns it.
struct config *command_doctor_running(const struct doctor *doctor);
// Reports its conditions. Reports nothing if no such server answers.
void command_doctor_server(struct doctor *doctor);

// --- the checks

void command_doctor_host(struct doctor *doctor); // disk, engine, limits, ports
// Checks the settings of clients that start from this environment. `address` and `ctx` say where
// the server listens.
void command_doctor_clients(struct doctor *doctor, commands_address_fn address, const void *ctx);
void command_doctor_exposure(struct doctor *doctor);
void command_doctor_origin(struct doctor *doctor); // network, clock, credentials, rights

#endif
