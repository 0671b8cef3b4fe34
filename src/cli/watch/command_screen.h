// SPDX-License-Identifier: Apache-2.0
// The screen of commands that show a sequence of frames. Main thread.
#ifndef FOREBAY_CLI_COMMAND_SCREEN_H
#define FOREBAY_CLI_COMMAND_SCREEN_H

#include "base/bytes.h"

// Returns true if stdout is a terminal and the output should be a screen.
bool command_screen_is_wanted(bool is_once);
// Prints the frame. On a screen it replaces the previous frame, and is cut to rows and columns so
// that no line wraps. Otherwise its first `rows` lines are printed.
void command_screen_show(struct span frame, bool is_screen, unsigned rows);

#endif
