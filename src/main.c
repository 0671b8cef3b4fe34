// SPDX-License-Identifier: Apache-2.0
// argv[1] -> a row of the subcommand table; nothing else.
#include "commands/commands.h"

int main(int argc, char **argv)
{
    return commands_run(argc, argv);
}
