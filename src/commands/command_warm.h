// SPDX-License-Identifier: Apache-2.0
// A warm job of a running server, as commands show it. Main thread.
#ifndef FOREBAY_COMMANDS_COMMAND_WARM_H
#define FOREBAY_COMMANDS_COMMAND_WARM_H

#include "commands/command_client.h"

// Until it has ended, or `least` of its bytes are cached and it has ended counting: progress on stderr, a bar
// on a terminal, else a line every five seconds. Prints the end and the result; returns the exit code.
int command_warm_follow(struct command_client *client, uint64_t job, double least, bool is_quiet);
// What the variables of a Fluid DataLoad name: add() with each URI, until one is not EXIT_CODE_OK. Returns
// the last exit code; what is wrong with them is printed. command_warm_fluid.c
typedef int (*command_warm_add_fn)(void *ctx, const char *uri);
int command_warm_fluid(struct command_client *client, command_warm_add_fn add, void *ctx);
// One line for people.
void command_warm_line(const json_t *job, char *ret_text, size_t size);

#endif
