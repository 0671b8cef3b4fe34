// SPDX-License-Identifier: Apache-2.0
// The lines that `forebay run` prints at the end.
#ifndef FOREBAY_CLI_COMMAND_RUN_SUMMARY_H
#define FOREBAY_CLI_COMMAND_RUN_SUMMARY_H

#include <jansson.h>

#include "base/bytes.h"

#define COMMAND_RUN_CONDITIONS_MAX 16u

// The names of the conditions that command_run_conditions_tell() has printed.
struct command_run_conditions {
    char names[COMMAND_RUN_CONDITIONS_MAX][48];
    unsigned count;
};
// Prints the conditions that begin in these lines of the server's log, each name once in a run.
// `keys` says where the credentials come from, if the command has the same ones; else it is NULL.
void command_run_conditions_tell(struct command_run_conditions *told, struct span log,
                                 const char *keys);
// Prints to stderr. `summary` is the server's, `log` the end of its log, `dir` its cache directory.
// `is_global`: the command also got the variables of --global.
void command_run_summary_print(const json_t *summary, struct span log, const char *dir,
                               bool is_global);

#endif
