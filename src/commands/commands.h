// SPDX-License-Identifier: Apache-2.0
// The door of the commands room: one row of commands.def per subcommand, one file per row. Main
// thread only, until command_serve() starts others.
#ifndef FOREBAY_COMMANDS_COMMANDS_H
#define FOREBAY_COMMANDS_COMMANDS_H

// Exit codes, the same for every command.
#define EXIT_CODE_OK 0
#define EXIT_CODE_FAILED 1
#define EXIT_CODE_USAGE 2
#define EXIT_CODE_CONFIGURATION 3
#define EXIT_CODE_ORIGIN 4
#define EXIT_CODE_PARTLY 5
#define EXIT_CODE_UNREACHABLE 6

// argv as main() got it; returns the exit code of the process.
int commands_run(int argc, char **argv);

// The rows. argv[0] is the first argument behind the subcommand's name; argv[argc] is NULL. All of
// it has been judged by commands.def: operands stand in front, options of several commands
// (commands_common()) are taken out. Each
// returns an exit code. Results go to stdout, everything else to stderr.
#define COMMAND(name, takes, least, most, operands, summary, details)                              \
    int command_##name(int argc, char **argv);
#define OPTION(command, flag, kind, value, default_text, help)
#define COMMON(takes, flag, kind, value, default_text, help)
#include "commands/commands.def"
#undef COMMAND
#undef OPTION
#undef COMMON

#endif
