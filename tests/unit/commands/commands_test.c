// SPDX-License-Identifier: Apache-2.0
// Proves: arguments are taken out wherever they stand, and usage errors have their exit code.
#include "test.h"

#include "commands/commands.h"
#include "commands/commands_private.h"

#include <string.h>

static char *word(const char *text)
{
    return (char *)(uintptr_t)text; // argv is not const, and nothing writes to it
}

Test(commands, arguments_are_taken_out)
{
    char *argv[] = {word("a"), word("-T"), word("--x"), word("1"), word("--y=2"), word("b"), NULL};
    int argc = 6;
    bool bad = false;
    cr_assert(argument_take(&argc, argv, "-T"));
    cr_assert_not(argument_take(&argc, argv, "-T"));
    cr_assert_str_eq(argument_take_value(&argc, argv, "--x", &bad), "1");
    cr_assert_str_eq(argument_take_value(&argc, argv, "--y", &bad), "2");
    cr_assert_null(argument_take_value(&argc, argv, "--z", &bad));
    cr_assert_not(bad);
    cr_assert_eq(argc, 2);
    cr_assert_str_eq(argv[0], "a");
    cr_assert_str_eq(argv[1], "b");
    cr_assert_null(argv[2]);
    cr_assert_null(argument_take_value(&argc, argv, "b", &bad));
    cr_assert(bad);
}

static int run(const char *a, const char *b)
{
    char *argv[] = {word("forebay"), word(a), b != NULL ? word(b) : NULL, NULL};
    return commands_run(b != NULL ? 3 : a != NULL ? 2 : 1, argv);
}

Test(commands, exit_codes)
{
    cr_assert_eq(run(NULL, NULL), EXIT_CODE_USAGE);
    cr_assert_eq(run("nonsense", NULL), EXIT_CODE_USAGE);
    cr_assert_eq(run("help", NULL), EXIT_CODE_OK);
    cr_assert_eq(run("help", "env"), EXIT_CODE_OK);
    cr_assert_eq(run("help", "nonsense"), EXIT_CODE_USAGE);
    cr_assert_eq(run("--version", NULL), EXIT_CODE_OK);
    cr_assert_eq(run("version", "--json"), EXIT_CODE_OK);
    cr_assert_eq(run("version", "x"), EXIT_CODE_USAGE);
    cr_assert_eq(run("config", "default"), EXIT_CODE_OK);
    cr_assert_eq(run("config", "nonsense"), EXIT_CODE_USAGE);
    cr_assert_eq(run("check", "--cache.ttl=5"), EXIT_CODE_CONFIGURATION);
    cr_assert_eq(run("env", "--endpoint=http://127.0.0.1:9000"), EXIT_CODE_OK);
    cr_assert_eq(run("env", "--endpoint=http://x';rm"), EXIT_CODE_USAGE);
    cr_assert_eq(run("env", "--shell=csh"), EXIT_CODE_USAGE);
}
