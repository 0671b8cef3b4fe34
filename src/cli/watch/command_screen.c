// SPDX-License-Identifier: Apache-2.0
#include "cli/watch/command_screen.h"

#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "commands/commands.h"

bool command_screen_is_wanted(bool is_once)
{
    return !is_once && !commands_common()->is_json && isatty(STDOUT_FILENO) == 1;
}

void command_screen_show(struct span frame, bool is_screen, unsigned rows)
{
    struct winsize size;
    struct span line;
    size_t width = frame.len;
    if (is_screen && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 1 &&
        size.ws_col > 0) {
        rows = size.ws_row - 1u; // the last row stays empty
        width = size.ws_col;
    }
    if (is_screen) {
        printf("\033[H\033[J");
    }
    for (unsigned i = 0; i < rows && frame.len > 0 && span_split(&frame, '\n', &line); i++) {
        printf("%.*s\n", (int)min_u64(line.len, width), line.ptr);
    }
    (void)fflush(stdout); // commands_result() reports a failure
}
