// SPDX-License-Identifier: Apache-2.0
// Shows the rankings of `forebay top`.
#ifndef FOREBAY_CLI_COMMAND_TOP_RANK_H
#define FOREBAY_CLI_COMMAND_TOP_RANK_H

#include <stdbool.h>
#include <stdint.h>

// `by` is one of the words of the command; `where` is a filter as in log, or NULL. Returns an exit
// code.
int command_top_rank(const char *by, uint64_t interval_s, const char *where, bool is_once);

// Returns what would change that requests have this reason. Borrowed.
const char *command_top_remedy(const char *reason);

#endif
