// SPDX-License-Identifier: Apache-2.0
// The table of commands and options (commands.def), and the check of a command line against it.
// Main thread.
#ifndef FOREBAY_COMMANDS_COMMAND_LINE_H
#define FOREBAY_COMMANDS_COMMAND_LINE_H

#include <stdbool.h>

#include "base/bytes.h"

// Groups of common options that a command takes in addition to its own.
#define TAKES_SETTINGS 1u
#define TAKES_SERVER 2u
#define TAKES_OUTPUT 4u
#define TAKES_ALL 8u // options of every command; no row has to name them

// Another bit of `takes`: the command exits with the code of a program that it runs. A wrong
// command line therefore has another code than those of EXIT_CODE_*.
#define TAKES_EXIT_CODE 16u

#define COMMAND_OPERANDS_MANY 0xffffu

enum command_option_kind {
    OPTION_FLAG,
    OPTION_TEXT,
    OPTION_PATH,
    OPTION_NUMBER,
    OPTION_CHOICE,
    OPTION_TEXTS
};

struct command_option {
    const char *command; // NULL: an option of all commands that take a group in `takes`
    unsigned takes;
    const char *flag;
    enum command_option_kind kind;
    const char *value, *default_text, *help;
};

struct command {
    const char *name;
    unsigned takes, least, most;
    const char *operands, *summary, *details;
};

// Commands that help lists under one title: those from `first` to the next group.
struct command_group {
    const char *first, *title, *examples[2];
};

unsigned command_line_count(void); // returns the number of commands
const struct command *command_line_row(unsigned i);
unsigned command_line_number(const struct command *command); // returns its row number
const struct command *command_line_find(const char *name);   // NULL: no such command
// Returns the group that begins with this command; NULL if none does.
const struct command_group *command_line_group(const struct command *command);
// Returns the name of the command that is most like `name`; NULL if none is similar.
const char *command_line_suggest(const char *name);
// Returns the next option that the command takes, after the option `after`; the first one if
// `after` is NULL. Returns NULL after the last one. Options of the command itself come first.
const struct command_option *command_line_next_option(const struct command *command,
                                                      const struct command_option *after);
// Returns 2 if the value of the option at argv[0] is a word of its own, else 1. The command must
// take the option, and command_line_check() must have accepted it.
int command_line_words(const struct command *command, char *const *argv);
// Returns how many words at the start of argv are options that may be in front of the command's
// name. Returns -1, with the reason in *ret_why, if a value is missing.
int command_line_leading(int argc, char *const *argv, struct buf *ret_why);
// Returns true if the operands are another command line. The options end at its first word, even
// without "--".
bool command_line_runs_another(const struct command *command);
// Checks that argv has only options and settings that the command takes, with their values, and the
// right number of operands. If so, returns true, moves the operands to the front and removes "--".
// Otherwise returns false, with the reason in *ret_why. config_load() checks the names and values
// of settings later.
bool command_line_check(const struct command *command, int *argc, char **argv,
                        unsigned *ret_operand_count, struct buf *ret_why);

#endif
