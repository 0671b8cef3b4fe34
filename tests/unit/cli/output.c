// SPDX-License-Identifier: Apache-2.0
// Captures the text that a command prints to stdout, in a file.
#include "output.h"

#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "base/check.h"
#include "cli/cli.h"
#include "commands/commands.h"

#define WORDS_MAX 16

const char *output_of_command(const char *const *words, int *ret_code)
{
    static char text[262144];
    char *argv[WORDS_MAX + 2] = {(char *)(uintptr_t) "forebay"};
    int argc = 1;
    for (; words[argc - 1] != NULL; argc++) {
        check(argc <= WORDS_MAX);
        argv[argc] =
            (char *)(uintptr_t)words[argc - 1]; // argv is not const, and nothing writes to it
    }
    FILE *file = tmpfile();
    int saved = dup(STDOUT_FILENO);
    check(file != NULL && saved >= 0);
    (void)fflush(stdout);
    check(dup2(fileno(file), STDOUT_FILENO) >= 0);
    *ret_code = cli_run(argc, argv);
    (void)fflush(stdout);
    check(dup2(saved, STDOUT_FILENO) >= 0);
    (void)close(saved);
    ssize_t len = pread(fileno(file), text, sizeof(text) - 1, 0);
    text[len > 0 ? len : 0] = '\0';
    (void)fclose(file);
    return text;
}
