// SPDX-License-Identifier: Apache-2.0
// A warm job of a running server, as commands show it. Main thread.
#ifndef FOREBAY_CLI_COMMAND_WARM_H
#define FOREBAY_CLI_COMMAND_WARM_H

#include "cli/client/command_client.h"

// Follows the job until it ends, or until it has counted all its objects and the share `least` of
// their bytes is cached. Shows progress, prints the result and returns the exit code.
int command_warm_follow(struct command_client *client, uint64_t job, double least);
// Calls add() with each URI that the variables of a Fluid DataLoad name, until a result is not
// EXIT_CODE_OK. Prints errors in the variables. Returns the last exit code. Defined in
// command_warm_fluid.c.
typedef int (*command_warm_add_fn)(void *ctx, const char *uri);
int command_warm_fluid(struct command_client *client, command_warm_add_fn add, void *ctx);
// Totals of the objects that one or several URIs name.
struct command_warm_count {
    uint64_t objects, objects_done; // objects_done are cached as a whole
    uint64_t bytes, bytes_done;
    uint64_t unsized; // objects of unknown size, which the bytes do not include
    // Objects that are not cached as a whole and that their rules do not store, and the bytes that
    // they lack. A job does not fetch them.
    uint64_t objects_refused, bytes_refused;
    uint64_t empty; // prefixes without objects, unless --allow-empty accepts them
};
double command_warm_share(const struct command_warm_count *count);

// Options of --node-features; see command_warm_features.c.
struct command_warm_features {
    struct command_client *client;
    const char *file;
    double least;       // cached share from which on the label is set
    uint64_t every_ms;  // time between two counts; 0: count once
    uint64_t stands_ms; // lifetime of a label that is not renewed
    // Adds the objects at `uri` to *count. Prints errors and returns an exit code.
    int (*count)(void *ctx, const char *uri, struct command_warm_count *count);
    void *ctx;
};
uint64_t command_warm_features_stands_ms(uint64_t every_ms); // the default lifetime
// Counts the data sets and writes the file. If `every_ms` is 0, does so once, prints the result and
// returns the exit code. Otherwise repeats it until a signal ends the process with EXIT_CODE_OK.
int command_warm_features(const struct command_warm_features *options, int argc, char **argv);

// Returns the state of a job for people. A job that has ended without objects is "failed", and one
// that lacks some is done "in part".
const char *command_warm_state(const json_t *job);
// Describes a warm job in one line for people.
void command_warm_line(const json_t *job, char *ret_text, size_t size);

#endif
