// SPDX-License-Identifier: Apache-2.0
// Follows the access log of a running server, for log and trace. Main thread.
#ifndef FOREBAY_CLI_COMMAND_ENTRIES_H
#define FOREBAY_CLI_COMMAND_ENTRIES_H

#include "cli/client/command_client.h"

struct command_entries {
    struct command_client client;
    // Printed after a number, such as "lines were dropped".
    const char *dropped_text;
    void (*print)(void *ctx, const json_t *entry); // prints one entry for people
    void *ctx;
    uint64_t max; // most entries to print; 0: no limit
    uint64_t count, dropped;
};

// Prints the entries that match `where` (NULL: all), until it has printed `max` or the command is
// interrupted. Returns an exit code.
int command_entries_follow(struct command_entries *entries, const char *where);

#endif
