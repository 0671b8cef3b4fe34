// SPDX-License-Identifier: Apache-2.0
// One object, or a range of it, read from a running server as any client reads it: for cat and get.
#ifndef FOREBAY_CLI_COMMAND_FETCH_H
#define FOREBAY_CLI_COMMAND_FETCH_H

#include "cli/client/command_client.h"

struct command_fetch {
    const char *uri, *range;                        // range NULL: all of it
    bool (*on_bytes)(void *ctx, struct span bytes); // false: they cannot be taken
    void *ctx;
    // What came.
    char cache_status[512], etag[128];
    uint64_t bytes;
    double first_s, total_s;
};

// An exit code; what went wrong is printed. on_bytes() gets bytes of the object alone, and what it
// got is whole only with EXIT_CODE_OK.
int command_fetch(struct command_client *client, struct command_fetch *fetch);
// For people: how it was answered, in a line on stderr.
void command_fetch_tell(const struct command_client *client, const struct command_fetch *fetch);

#endif
