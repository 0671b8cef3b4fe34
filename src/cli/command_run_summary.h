// SPDX-License-Identifier: Apache-2.0
// The lines that `forebay run` prints at the end.
#ifndef FOREBAY_CLI_COMMAND_RUN_SUMMARY_H
#define FOREBAY_CLI_COMMAND_RUN_SUMMARY_H

#include <jansson.h>

#include "base/bytes.h"

// Prints to stderr. `summary` is the server's, `log` the end of its log, `dir` its cache directory.
// `is_global`: the command also got the variables of --global.
void command_run_summary_print(const json_t *summary, struct span log, const char *dir,
                               bool is_global);

#endif
