// SPDX-License-Identifier: Apache-2.0
// The subcommand table. Main thread only.
#include "commands/commands.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *usage, *help;
} commands[] = {
    {"version", command_version, "[--json]",
     "what this binary is and which libraries it runs with"},
};

int commands_run(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "help";
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if (strcmp(commands[i].name, name) == 0) {
            return commands[i].run(argc - 2, argv + 2);
        }
    }
    (void)fprintf(stderr, "forebay: no such command: %s\n", name);
    return EXIT_CODE_USAGE;
}
