// SPDX-License-Identifier: Apache-2.0
// Finds the command that the command line names, and runs it.
#include "cli/cli.h"

#include "cli/cli_private.h"

#include <stdio.h>
#include <string.h>

#define TEXT_MAX_BYTES (256u << 10)

// The functions of the commands, in the order of commands.def.
static int (*const runs[])(int argc, char **argv) = {
#define COMMAND(name, takes, least, most, operands, summary, details) command_##name,
#include "commands/commands.def"
};

static bool has_flag(const struct command *command, int argc, char **argv, const char *flag)
{
    bool is_nested = command_line_runs_another(command);
    int i = 0;
    while (i < argc && strcmp(argv[i], "--") != 0 && strcmp(argv[i], flag) != 0 &&
           !(is_nested && argv[i][0] != '-')) {
        i += is_nested ? command_line_words(command, argv + i) : 1;
    }
    return i < argc && strcmp(argv[i], flag) == 0;
}

static int show_help(const struct command *command)
{
    struct buf out;
    buf_init(&out, TEXT_MAX_BYTES);
    command_help_render(command, &out);
    int code = commands_print_result(&out);
    buf_done(&out);
    return code;
}

static int run_command(const struct command *command, int argc, char **argv)
{
    struct buf why;
    bool is_json = (command->takes & TAKES_OUTPUT) != 0 && has_flag(command, argc, argv, "--json");
    if (has_flag(command, argc, argv, "--help") || has_flag(command, argc, argv, "-h")) {
        return show_help(command);
    }
    buf_init(&why, TEXT_MAX_BYTES);
    unsigned operand_count = 0;
    bool is_good = command_line_check(command, &argc, argv, &operand_count, &why);
    if (!is_good) {
        (void)commands_usage_error(command->name, commands_visible(buf_cstr(&why), why.len));
    }
    if (!is_good && is_json) {
        commands_usage_error_json(buf_cstr(&why));
    }
    buf_done(&why);
    if (!is_good) {
        bool has_own_codes = (command->takes & TAKES_EXIT_CODE) == 0;
        return has_own_codes ? EXIT_CODE_USAGE : EXIT_CODE_NOT_STARTED;
    }
    commands_common_take(command, operand_count, &argc, argv);
    return runs[command_line_number(command)](argc, argv);
}

static int show_hint(void)
{
    struct buf out;
    buf_init(&out, TEXT_MAX_BYTES);
    command_help_hint(&out);
    command_screen_tell(2, "%s", buf_cstr(&out));
    buf_done(&out);
    return EXIT_CODE_USAGE;
}

// Reports that only options were given. The value of the last one may have been meant as a command.
static int report_no_command(int argc, char **argv)
{
    bool is_eaten = argc > 2 && command_line_find(argv[argc - 1]) != NULL;
    command_screen_tell(2,
                        "forebay: no command follows the options%s%s%s%s; `forebay help` lists "
                        "them\n",
                        is_eaten ? ", because \"" : "", is_eaten ? argv[argc - 1] : "",
                        is_eaten ? "\" is the value of " : "", is_eaten ? argv[argc - 2] : "");
    return EXIT_CODE_USAGE;
}

// Moves the options that precede the command's name to after it. Returns the number of words that
// it moved. If an option is wrong, reports the error and returns -1.
static int move_leading(int argc, char **argv)
{
    struct buf why;
    buf_init(&why, TEXT_MAX_BYTES);
    int leading = argc > 1 ? command_line_leading(argc - 1, argv + 1, &why) : 0;
    if (leading < 0) {
        command_screen_tell(2, "forebay: %s; `forebay help` tells more\n", buf_cstr(&why));
    } else if (leading > 0 && leading + 1 < argc) {
        char *name = argv[leading + 1];
        memmove(argv + 2, argv + 1, (size_t)leading * sizeof(*argv));
        argv[1] = name;
    }
    buf_done(&why);
    return leading;
}

int cli_run(int argc, char **argv)
{
    static const char *const synonyms[][2] = {
        {"--help", "help"}, {"-h", "help"}, {"--version", "version"}, {"-V", "version"}};
    int leading = move_leading(argc, argv);
    const char *name = leading >= 0 && leading + 1 < argc ? argv[1] : NULL;
    if (leading < 0) {
        return EXIT_CODE_USAGE;
    }
    if (name == NULL) {
        return leading > 0 ? report_no_command(argc, argv) : show_hint();
    }
    for (size_t i = 0; i < ARRAY_LEN(synonyms); i++) {
        name = strcmp(name, synonyms[i][0]) == 0 ? synonyms[i][1] : name;
    }
    const struct command *command = command_line_find(name);
    if (command == NULL && name[0] == '-') {
        command_screen_tell(
            2, "forebay: %s: not an option that may precede a command; `forebay help` lists them\n",
            name);
        return EXIT_CODE_USAGE;
    }
    return command != NULL ? run_command(command, argc - 2, argv + 2) : commands_unknown(name);
}
