// SPDX-License-Identifier: Apache-2.0
// Fits output to the terminal. Everything that a command prints for a person goes through it. Where
// the output is no terminal, nothing is cut or wrapped. Every call asks the terminal for its size,
// so output follows a resize. Main thread.
//
// Columns are counted without a locale: a character of East Asian scripts or an emoji counts as
// two, so that a line never becomes too long. Escape sequences that set colours count as none.
#ifndef FOREBAY_COMMANDS_COMMAND_SCREEN_H
#define FOREBAY_COMMANDS_COMMAND_SCREEN_H

#include "base/bytes.h"

// Returns true if stdout is a terminal and the output should be a screen.
bool command_screen_is_wanted(bool is_once);
#define COMMAND_SCREEN_COLUMNS 80u // of a terminal whose width is unknown
// Returns the width of the terminal; 0 if the descriptor is no terminal.
unsigned command_screen_columns(int fd);
// Returns true if the environment says that the terminal shows UTF-8.
bool command_screen_has_utf8(void);
// Returns how many columns the text takes.
unsigned command_screen_width(struct span text);
// Returns how many bytes of the line fit in `columns`; 0 columns: all.
size_t command_screen_fit(struct span line, unsigned columns);
// Appends the text. If it does not fit, appends ".." and its end, because the ends of keys differ.
void command_screen_append_end(struct buf *out, struct span text, unsigned columns);
// Appends the lines, wrapped at spaces. Further rows of a line begin with `indent` spaces.
void command_screen_wrap(struct buf *out, struct span text, unsigned columns, unsigned indent);
// Prints to stdout, wrapped as above.
void command_screen_print(unsigned indent, const char *format, ...) PRINTF_LIKE(2, 3);
// The same to stderr. The second function prints nothing with -q, the third one only with -v.
// Errors and warnings use the first.
void command_screen_tell(unsigned indent, const char *format, ...) PRINTF_LIKE(2, 3);
void command_screen_inform(unsigned indent, const char *format, ...) PRINTF_LIKE(2, 3);
void command_screen_inform_more(unsigned indent, const char *format, ...) PRINTF_LIKE(2, 3);
// Prints a line to stdout, cut to the terminal.
void command_screen_row(struct span line);
// Prints the line and the end of the name that fits in the terminal.
void command_screen_row_named(struct buf *line, const char *name);
// Prints the frame, each line cut to the terminal. On a screen it replaces the previous frame and
// has the terminal's rows. Otherwise its first `rows` lines are printed.
void command_screen_show(struct span frame, bool is_screen, unsigned rows);
// Returns the rows of a frame: those of the terminal without the last one, otherwise `rows`.
unsigned command_screen_rows(bool is_screen, unsigned rows);

#endif
