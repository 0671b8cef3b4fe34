// SPDX-License-Identifier: Apache-2.0
// `forebay version [--json]`. Main thread only.
#include "commands/commands.h"

#include <stdio.h>

#include "base/version.h"

int command_version(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    printf("forebay %s (%s, %s)\n", version_text(), version_revision(), version_build());
    return EXIT_CODE_OK;
}
