// SPDX-License-Identifier: Apache-2.0
// Captures the text that a command prints to stdout.
#ifndef FOREBAY_TESTS_COMMANDS_OUTPUT_H
#define FOREBAY_TESTS_COMMANDS_OUTPUT_H

// words[0] is the command's name, and NULL ends them. The text belongs to the callee and is valid
// until the next call.
const char *output_of_command(const char *const *words, int *ret_code);

#endif
