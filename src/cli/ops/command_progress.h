// SPDX-License-Identifier: Apache-2.0
// Follows work of a running server, and shows its progress. Main thread.
#ifndef FOREBAY_CLI_COMMAND_PROGRESS_H
#define FOREBAY_CLI_COMMAND_PROGRESS_H

#include "cli/client/command_client.h"

struct command_progress {
    const char *path; // GET returns the state of the work
    bool (*goes_on)(void *ctx, const json_t *state);
    // Writes the text for people. Returns the members of the JSON line.
    json_t *(*describe)(const json_t *state, char *ret_text, size_t size);
    void *ctx;
};

// Asks for the state until the work does not go on. *state is the state seen last, which belongs to
// the caller, before and after. Without -q shows progress on stderr: one line that changes on a
// terminal, else a line every five seconds; with --json also a line of type "progress". Returns an
// exit code.
int command_progress_follow(struct command_client *client, const struct command_progress *progress,
                            json_t **state);

#endif
