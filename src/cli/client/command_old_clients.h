// SPDX-License-Identifier: Apache-2.0
// Finds S3 clients of this environment that are too old for the variables of `forebay env`.
#ifndef FOREBAY_CLI_COMMAND_OLD_CLIENTS_H
#define FOREBAY_CLI_COMMAND_OLD_CLIENTS_H

#include <stdbool.h>

struct command_old_client {
    char what[512];
    const char *remedy;
};

#define COMMAND_OLD_CLIENTS 3u // two of Python, and the aws command

// Describes the client with that index. Returns false if it is new enough, is not there, or has a
// version that cannot be seen. `program`: its name or path; NULL: python3, or aws.
bool command_old_client(unsigned index, const char *program, struct command_old_client *ret_client);
// Prints warnings of the command `name`. If `program` is a Python or aws, only of that one.
void command_old_clients_warn(const char *name, const char *program);

#endif
