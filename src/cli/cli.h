// SPDX-License-Identifier: Apache-2.0
// The public header of the command line. Main thread only.
#ifndef FOREBAY_CLI_CLI_H
#define FOREBAY_CLI_CLI_H

// Runs the command that `argv` of main() names. Returns the exit code of the process.
int cli_run(int argc, char **argv);

#endif
