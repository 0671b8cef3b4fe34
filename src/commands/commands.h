// SPDX-License-Identifier: Apache-2.0
// The door of the commands room: one row per subcommand, one file per row.
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

// The rows: argc and argv begin behind the subcommand's own name (argv[0] is the first argument),
// argv is NULL-terminated. Each returns an exit code.
int command_version(int argc, char **argv);

#endif
