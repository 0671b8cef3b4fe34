// SPDX-License-Identifier: Apache-2.0
// Takes options out of the command line, and keeps those that several commands share.
#include "commands/commands.h"

#include <string.h>

#define ASK_TIMEOUT_MS 3000u
#define ASK_TIMEOUT_MAX_S 86400u

static struct commands_common common = {.timeout_ms = ASK_TIMEOUT_MS};

const struct commands_common *commands_common(void)
{
    return &common;
}

static void remove_arguments(int *argc, char **argv, int at, int count)
{
    for (int i = at; i + count <= *argc; i++) {
        argv[i] = argv[i + count]; // moves the NULL at the end too
    }
    *argc -= count;
}

// Returns the index of `flag` or "flag=VALUE" after the operands; -1 if it is not there. Skips the
// values of other options, which may look the same.
static int find_argument(int argc, char **argv, const char *flag)
{
    size_t len = strlen(flag);
    for (int i = (int)common.operand_count; i < argc;
         i += command_line_words(common.command, argv + i)) {
        if (strncmp(argv[i], flag, len) == 0 && (argv[i][len] == '\0' || argv[i][len] == '=')) {
            return i;
        }
    }
    return -1;
}

bool commands_argument_take(int *argc, char **argv, const char *flag)
{
    int i = find_argument(*argc, argv, flag);
    if (i >= 0) {
        remove_arguments(argc, argv, i, 1);
    }
    return i >= 0;
}

const char *commands_argument_take_value(int *argc, char **argv, const char *flag)
{
    int i = find_argument(*argc, argv, flag);
    if (i < 0) {
        return NULL;
    }
    bool is_joined = argv[i][strlen(flag)] == '=';
    check(is_joined || i + 1 < *argc); // command_line_check() refuses an option without its value
    const char *value = is_joined ? argv[i] + strlen(flag) + 1 : argv[i + 1];
    remove_arguments(argc, argv, i, is_joined ? 1 : 2);
    return value;
}

bool commands_argument_take_number(int *argc, char **argv, const char *flag, uint64_t least,
                                   uint64_t most, uint64_t *number)
{
    const char *text = commands_argument_take_value(argc, argv, flag);
    return text == NULL ||
           (span_to_u64(span_from_cstr(text), number) && *number >= least && *number <= most);
}

void commands_common_take(const struct command *command, unsigned operand_count, int *argc,
                          char **argv)
{
    uint64_t seconds = 0;
    common = (struct commands_common){
        .timeout_ms = ASK_TIMEOUT_MS, .command = command, .operand_count = operand_count};
    if ((command->takes & TAKES_SERVER) != 0) {
        const char *text = commands_argument_take_value(argc, argv, "--timeout");
        common.admin = commands_argument_take_value(argc, argv, "--admin");
        if ((command->takes & TAKES_SETTINGS) == 0) {
            common.file = commands_argument_take_value(argc, argv, "-c");
        }
        if (text != NULL && span_to_u64(span_from_cstr(text), &seconds)) {
            common.timeout_ms = (unsigned)(1000 * min_u64(seconds, ASK_TIMEOUT_MAX_S));
            common.has_timeout = true;
        }
    }
    if ((command->takes & TAKES_OUTPUT) != 0) {
        common.is_json = commands_argument_take(argc, argv, "--json");
    }
    common.is_quiet = commands_argument_take(argc, argv, "-q");
    common.is_verbose = commands_argument_take(argc, argv, "-v");
    common.has_no_colour = commands_argument_take(argc, argv, "--no-color");
}

void commands_common_want_json(void)
{
    common.is_json = true;
}
