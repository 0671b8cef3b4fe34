// SPDX-License-Identifier: Apache-2.0
// The variables of the packaged systemd unit. Its EnvironmentFile is for root and the unit alone,
// and systemd has a syntax of its own for it, so commands do not read it: they say how to.
#ifndef FOREBAY_CLI_COMMAND_UNIT_H
#define FOREBAY_CLI_COMMAND_UNIT_H

#include <stdbool.h>

#include "commands/commands.h"

#define COMMAND_UNIT_VARIABLES "/etc/forebay/env"
#define COMMAND_UNIT_NAME_MAX 128u

// Returns true if the file sets a variable that this environment does not have. ret_name gets its
// name.
bool command_unit_sets(const char *path, char ret_name[COMMAND_UNIT_NAME_MAX]);
// Returns true if a command with this configuration is likely to be about the packaged unit, and
// lacks a variable that the unit has. ret_name gets its name.
bool command_unit_differs(const struct config *config, char ret_name[COMMAND_UNIT_NAME_MAX]);

#endif
