// SPDX-License-Identifier: Apache-2.0
// The table of commands and options (commands.def), and what it says of a command line. Main
// thread.
#ifndef FOREBAY_COMMANDS_COMMAND_LINE_H
#define FOREBAY_COMMANDS_COMMAND_LINE_H

#include <stdbool.h>

#include "base/bytes.h"

// What a command takes besides its own options.
#define TAKES_SETTINGS 1u
#define TAKES_SERVER 2u
#define TAKES_OUTPUT 4u
#define TAKES_ALL 8u // every command, without its row saying so

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
    const char *command; // NULL: of all commands that take one of `takes`
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

unsigned command_line_count(void); // of commands
const struct command *command_line_row(unsigned i);
unsigned command_line_number(const struct command *command); // its row
const struct command *command_line_find(const char *name);   // NULL: no such command
// NULL: none is near.
const char *command_line_suggest(const char *name);
// The next option behind `after` (NULL: the first) that the command takes, its own ones first;
// NULL: that was the last.
const struct command_option *command_line_next_option(const struct command *command,
                                                      const struct command_option *after);
// How many words the option at argv[0] has, one that the command takes and command_line_check() has
// found good.
int command_line_words(const struct command *command, char *const *argv);
// How many words of argv are options that may stand in front of a command, whichever that is; -1:
// *ret_why says what is wrong with one.
int command_line_leading(int argc, char *const *argv, struct buf *ret_why);
// Are all of argv options and settings that the command takes, with the values they need, and as
// many operands as it takes? True: operands stand in front of the rest now, and "--" is gone.
// False: *ret_why says what is wrong. A setting's name and value are config_load()'s to judge.
bool command_line_check(const struct command *command, int *argc, char **argv,
                        unsigned *ret_operand_count, struct buf *ret_why);

#endif
