// SPDX-License-Identifier: Apache-2.0
// Reads one object, or a range of it, through the S3 API of a running server, for cat and get.
#ifndef FOREBAY_CLI_COMMAND_FETCH_H
#define FOREBAY_CLI_COMMAND_FETCH_H

#include "cli/client/command_client.h"

struct command_fetch {
    const char *uri, *range;                        // range NULL: the whole object
    bool (*on_bytes)(void *ctx, struct span bytes); // returns false if it cannot take the bytes
    void *ctx;
    // Fields of the answer.
    char cache_status[512], etag[128];
    uint64_t bytes;
    double first_s, total_s;
};

// Fetches the object, prints errors, and returns an exit code. on_bytes() gets only bytes of the
// object. It has received all of them only if the result is EXIT_CODE_OK.
int command_fetch(struct command_client *client, struct command_fetch *fetch);
// Prints the size, the speed and the cache status of the answer, in one line on stderr.
void command_fetch_tell(const struct command_client *client, const struct command_fetch *fetch);

#endif
