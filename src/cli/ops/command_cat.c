// SPDX-License-Identifier: Apache-2.0
// `forebay cat URI`: reads an object through the cache, to stdout.
#include "cli/client/command_fetch.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool on_bytes(void *ctx, struct span bytes)
{
    struct command_client *client = ctx;
    if (!commands_write_all(STDOUT_FILENO, bytes)) {
        command_client_error(client, "stdout: %s", strerror(errno));
        return false;
    }
    return true;
}

int command_cat(int argc, char **argv)
{
    struct command_client client;
    bool is_told = commands_common()->is_verbose;
    const char *range = commands_argument_take_value(&argc, argv, "--range");
    int code = command_client_open(&client, "cat");
    if (code == EXIT_CODE_OK) {
        struct command_fetch fetch = {
            .uri = argv[0], .range = range, .on_bytes = on_bytes, .ctx = &client};
        code = command_fetch(&client, &fetch);
        if (code == EXIT_CODE_OK && is_told) {
            command_fetch_tell(&client, &fetch);
        }
        command_client_close(&client);
    }
    return code;
}
