// SPDX-License-Identifier: Apache-2.0
// Facts about the packaged systemd unit: its variables and its log folder. Commands do
// not read its EnvironmentFile, because only root may read it and only systemd parses its syntax.
// Instead, they tell the user how to apply it.
#ifndef FOREBAY_CLI_COMMAND_UNIT_H
#define FOREBAY_CLI_COMMAND_UNIT_H

#include <stdbool.h>

#include "base/bytes.h"
#include "commands/commands.h"

#define COMMAND_UNIT_VARIABLES "/etc/forebay/env"
#define COMMAND_UNIT_LOGS "/var/log/forebay" // LogsDirectory= of the unit
#define COMMAND_UNIT_NAME_MAX 128u

// Returns true if the file sets a variable that this environment does not have. ret_name gets its
// name.
bool command_unit_sets(const char *path, char ret_name[COMMAND_UNIT_NAME_MAX]);
// Returns true if a command with this configuration is likely to be about the packaged unit, and
// lacks a variable that the unit has. ret_name gets its name.
bool command_unit_differs(const struct config *config, char ret_name[COMMAND_UNIT_NAME_MAX]);
// Returns true if root asks about the file that the unit reads: its server runs as another user.
bool command_unit_is_another_user(const struct config *config);
// Looks whether the access log can be opened, as a start would. Of the unit, only its own folder
// can be judged, which it makes itself, so another file gets a warning in ret_why, and ERR_OK.
enum err command_unit_check_access_log(const struct config *config, struct buf *ret_why) MUST_USE;

#endif
