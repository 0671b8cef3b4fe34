// SPDX-License-Identifier: Apache-2.0
// The interface that all commands share: one row of commands.def for each subcommand, the check of
// the command line, common options, and results. Main thread only, until command_serve() starts
// others.
#ifndef FOREBAY_COMMANDS_COMMANDS_H
#define FOREBAY_COMMANDS_COMMANDS_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>

#include "base/bytes.h"
#include "commands/command_line.h"
#include "config/config.h"
#include "control/control.h"

// Exit codes, the same for every command.
#define EXIT_CODE_OK 0
#define EXIT_CODE_FAILED 1
#define EXIT_CODE_USAGE 2
#define EXIT_CODE_CONFIGURATION 3
#define EXIT_CODE_ORIGIN 4
#define EXIT_CODE_PARTLY 5
#define EXIT_CODE_UNREACHABLE 6

// One function for each row of commands.def. argv[0] is the first argument after the subcommand's
// name, and argv[argc] is NULL. The command line has been checked against commands.def. Operands
// come first, and common options (commands_common()) have been removed. Each function returns an
// exit code. Results go to stdout, everything else to stderr.
#define COMMAND(name, takes, least, most, operands, summary, details)                              \
    int command_##name(int argc, char **argv);
#define OPTION(command, flag, kind, value, default_text, help)
#define COMMON(takes, flag, kind, value, default_text, help)
#include "commands/commands.def"
#undef COMMAND
#undef OPTION
#undef COMMON

// --- commands.c ----------------------------------------------------------------------------------

// Removes `flag` from argv, after the operands, and decrements *argc. Returns false if there is no
// such flag.
bool commands_argument_take(int *argc, char **argv, const char *flag);
// Removes `flag VALUE` or `flag=VALUE`. Returns the value, or NULL if the flag is missing.
const char *commands_argument_take_value(int *argc, char **argv, const char *flag);
// Removes a flag whose value is a number, and sets *number to it. Does not change *number if the
// flag is missing. Returns false if the value is no number from `least` to `most`.
bool commands_argument_take_number(int *argc, char **argv, const char *flag, uint64_t least,
                                   uint64_t most, uint64_t *number) MUST_USE;
// Options that several commands share. They are removed from argv before the command runs.
struct commands_common {
    const char *admin; // NULL: not given
    unsigned timeout_ms;
    unsigned operand_count;             // words at the front of argv
    bool is_json, is_quiet, is_verbose; // at most one of the last two is set
    bool has_no_colour;
};
const struct commands_common *commands_common(void);
struct command;
void commands_common_take(const struct command *command, unsigned operand_count, int *argc,
                          char **argv);
// Prints information to stderr, unless -q is given; the second function prints only with -v. Errors
// and warnings go to stderr in any case.
void commands_inform(const char *format, ...) PRINTF_LIKE(1, 2);
void commands_inform_more(const char *format, ...) PRINTF_LIKE(1, 2);
// With -v, reports a request to a running server. It does not report the same request with the same
// outcome twice in a row.
void commands_inform_request(const char *method, const char *address, const char *path,
                             enum err err, unsigned status);
// Returns true if stdout is a terminal and neither --no-color nor NO_COLOR is set.
bool commands_wants_colour(void);
// Reports an unknown command, with the nearest name as a suggestion. Returns EXIT_CODE_USAGE.
int commands_unknown(const char *name);
// Reports "forebay COMMAND: unexpected argument X" and where to find help.
int commands_usage_error(const char *command, const char *what);
// With --json, stdout gets one object per line, each with a `type`. The last one has the type
// `result`. Bytes and seconds are plain numbers. Both functions take ownership of `json`; NULL
// means no more members.

// Prints a line of this type with the members of `json`. Without --json it prints nothing.
void commands_line(const char *type, json_t *json);
// Prints the result with the members of `json`. Returns `code`, or EXIT_CODE_FAILED if stdout does
// not take all that was printed.
int commands_result(int code, json_t *json);

// For --json: prints a line of type "error", and the result.
void commands_usage_error_json(const char *what);
// Calls config_load() and prints its errors and warnings to stderr. Returns NULL on failure.
struct config *commands_load_config(int argc, char **argv);
// Prints to stdout. Returns EXIT_CODE_FAILED if that fails (a full disk, a closed pipe).
int commands_print_result(const struct buf *text);

// --- commands_output.c ---------------------------------------------------------------------------

// Opens an output FILE that is a device or a FIFO, because a regular file must never replace it.
// Returns true if `path` is one. Then *ret_fd is open for writing, or is -1 and errno holds the
// reason. Waits for the reader of a FIFO.
bool commands_open_special(const char *path, int *ret_fd);
// Returns false, and the reason in errno, on failure.
bool commands_write_all(int fd, struct span bytes);

// Returns `text` in a form that is safe for a terminal. Control characters, and bytes that are not
// UTF-8, become \xNN. The result is valid until the second call after this one.
const char *commands_visible(const char *text, size_t text_len);
unsigned commands_setting(const char *key); // its row; the key must exist
// Writes `path`, or its nearest ancestor that exists.
void commands_nearest_directory(const char *path, char ret_path[PATH_MAX]);

// Writes the URL by which clients on this machine reach a listener. Returns false for unix sockets.
// commands_advertise.c
bool commands_advertise(const char *listen, char *ret_url, size_t size);

#define COMMANDS_ADDRESS_MAX 512

// Finds the server's address in --admin or FOREBAY_ADMIN, in this order. The result is "" if none
// of them has an address. Returns false if it is too long.
bool commands_address(char ret_address[COMMANDS_ADDRESS_MAX]);
// Sends a request to a running server. If `address` is "", tries the configured socket, then the
// configured address, and sets `address` to the one that answered. Sets request->address. Returns
// ERR_ORIGIN_CONNECT if no server answers.
enum err commands_ask(const struct config *config, struct admin_client_request *request,
                      char address[COMMANDS_ADDRESS_MAX], unsigned *ret_status,
                      struct buf *ret_body) MUST_USE;
// Sends a GET to the server at commands_address().
enum err commands_ask_server(const struct config *config, const char *path, unsigned *ret_status,
                             struct buf *ret_body) MUST_USE;

#endif
