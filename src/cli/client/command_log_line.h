// SPDX-License-Identifier: Apache-2.0
// Renders a line of the server's log for people. Pure.
#ifndef FOREBAY_CLI_COMMAND_LOG_LINE_H
#define FOREBAY_CLI_COMMAND_LOG_LINE_H

#include "base/bytes.h"

// Returns the name of the condition that a line reports, otherwise that of its event. The name is
// empty if the line has none.
struct span command_log_line_name(struct span line, bool *ret_is_condition);
// Appends a line of the form `ts=... level=... event=name key=value ...` in words: "NAME: TEXT;
// REMEDY". If the line has no text of its own, appends "NAME (key value, key value)", with units
// for keys that end in "_bytes".
void command_log_line_append(struct buf *out, struct span line);

#endif
