// SPDX-License-Identifier: Apache-2.0
// Follows a task of a running server, and shows its progress. Main thread.
#ifndef FOREBAY_CLI_COMMAND_PROGRESS_H
#define FOREBAY_CLI_COMMAND_PROGRESS_H

#include "cli/client/command_client.h"

struct command_progress {
    const char *path; // GET of this path returns the state of the task
    // Returns true if the task has not ended.
    bool (*goes_on)(void *ctx, const json_t *state);
    // Describes the state as a text for people. Returns the members of its JSON line.
    json_t *(*describe)(const json_t *state, char *ret_text, size_t size);
    void *ctx;
};

// Asks for the state until the task ends. *state is the last state seen. The caller owns it before
// and after the call. Without -q it shows progress on stderr: on a terminal one line that changes,
// otherwise a line after 5 s, 10 s and so on, at last one a minute. With --json it also prints
// lines of type "progress". Returns an exit code.
int command_progress_follow(struct command_client *client, const struct command_progress *progress,
                            json_t **state);

#endif
