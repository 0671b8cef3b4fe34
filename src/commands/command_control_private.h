// SPDX-License-Identifier: Apache-2.0
// Shared by the files of the control interface.
#ifndef FOREBAY_COMMANDS_COMMAND_CONTROL_PRIVATE_H
#define FOREBAY_COMMANDS_COMMAND_CONTROL_PRIVATE_H

#include "commands/command_control.h"
#include "commands/command_uri.h"

json_t *control_text(struct span text); // as a string; what is not UTF-8 in percent coding
// False: it is none, and the call is answered.
bool control_take_uri(struct admin_call **call, struct span text, struct command_uri *ret_uri);
unsigned control_status_of(enum err err); // what the origin said, as this interface's status

#endif
