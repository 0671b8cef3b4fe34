// SPDX-License-Identifier: Apache-2.0
// The door of the command line: it runs the command that the words name. Main thread only.
#ifndef FOREBAY_CLI_CLI_H
#define FOREBAY_CLI_CLI_H

// argv as main() got it; returns the exit code of the process.
int cli_run(int argc, char **argv);

#endif
