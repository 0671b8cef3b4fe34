// SPDX-License-Identifier: Apache-2.0
// argv[1] -> a row of the subcommand table; nothing else.
#include "cli/cli.h"

int main(int argc, char **argv)
{
    return cli_run(argc, argv);
}
