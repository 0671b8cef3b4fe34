// SPDX-License-Identifier: Apache-2.0
// The door of the command line: it runs the command that the words name. Main thread only.
#ifndef FOREBAY_CLI_CLI_H
#define FOREBAY_CLI_CLI_H

// Runs the command that `argv` of main() names. Returns the exit code of the process.
int cli_run(int argc, char **argv);

#endif
