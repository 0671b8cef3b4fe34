// SPDX-License-Identifier: Apache-2.0
// What all commands share: one row of commands.def per subcommand, the command line judged by it,
// common options, and results. Main thread only, until command_serve() starts others.
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

// --- commands.c ----------------------------------------------------------------------------------

// Takes `flag` out of argv where it stands behind the operands; *argc shrinks. False when it is not
// there.
bool commands_argument_take(int *argc, char **argv, const char *flag);
// The same for `flag VALUE` and `flag=VALUE`; NULL when it is not there. *ret_bad becomes true when
// the value is missing.
const char *commands_argument_take_value(int *argc, char **argv, const char *flag, bool *ret_bad);
// What several commands are given in the same way; taken out of argv before the command runs.
struct commands_common {
    const char *admin; // NULL: not said
    unsigned timeout_ms;
    unsigned operand_count;             // words in front of argv
    bool is_json, is_quiet, is_verbose; // of the last two at most one
    bool has_no_colour;
};
const struct commands_common *commands_common(void);
struct command;
void commands_common_take(const struct command *command, unsigned operand_count, int *argc,
                          char **argv);
// Information on stderr: with -q nothing; more_, of what only -v asks for. What is wrong goes there
// without asking.
void commands_inform(const char *format, ...) PRINTF_LIKE(1, 2);
void commands_inform_more(const char *format, ...) PRINTF_LIKE(1, 2);
// Of a request to a running server, with -v; the same again with the same end is not said again.
void commands_inform_request(const char *method, const char *address, const char *path,
                             enum err err, unsigned status);
// Where stdout is a terminal, without --no-color or NO_COLOR.
bool commands_wants_colour(void);
// Says so, with the name that was probably meant; EXIT_CODE_USAGE.
int commands_unknown(const char *name);
// Says "forebay COMMAND: unexpected argument X" and where to find help.
int commands_usage_error(const char *command, const char *what);
// With --json stdout gets one object a line, each with a `type`, the last of type `result`. Bytes
// and seconds are plain numbers. Both functions take `json` over; NULL means no more members.

// Prints a line of this type with the members of `json`. Without --json it prints nothing.
void commands_line(const char *type, json_t *json);
// Prints the result with the members of `json`. Returns `code`, or EXIT_CODE_FAILED if stdout does
// not take all that was printed.
int commands_result(int code, json_t *json);

// For --json: prints a line of type "error", and the result.
void commands_usage_error_json(const char *what);
// config_load() with its errors and warnings on stderr; NULL when it failed.
struct config *commands_load_config(int argc, char **argv);
// Prints to stdout; EXIT_CODE_FAILED when that did not work (a full disk, a closed pipe).
int commands_print_result(const struct buf *text);

// --- commands_output.c ---------------------------------------------------------------------------

// An output FILE that is a device or a FIFO is written to, never replaced by a regular file. True:
// `path` is one, and *ret_fd is open for writing, or -1 and errno says why. Waits for the reader of
// a FIFO.
bool commands_open_special(const char *path, int *ret_fd);
// False: errno says why.
bool commands_write_all(int fd, struct span bytes);

// As it may stand on a terminal, which obeys control characters: these, and bytes that are no
// UTF-8, as \xNN. Until the second call after.
const char *commands_visible(const char *text, size_t text_len);
unsigned commands_setting(const char *key); // its row, which is there
// The directory itself, or the nearest one above it that is there.
void commands_nearest_directory(const char *path, char ret_path[PATH_MAX]);

// The URL by which clients on this machine reach a listener; false for unix sockets.
// commands_advertise.c
bool commands_advertise(const char *listen, char *ret_url, size_t size);

#define COMMANDS_ADDRESS_MAX 512

// Finds the address that `named` (NULL: nothing), --admin or FOREBAY_ADMIN give a server, in this
// order; "": none of them does. Returns false if it is too long.
bool commands_address(const char *named, char ret_address[COMMANDS_ADDRESS_MAX]);
// Asks a running server. If `address` is "", asks the socket and then the address of the
// configuration, and `address` becomes the one that answered. Sets request->address. Returns
// ERR_ORIGIN_CONNECT if no server answers.
enum err commands_ask(const struct config *config, struct admin_client_request *request,
                      char address[COMMANDS_ADDRESS_MAX], unsigned *ret_status,
                      struct buf *ret_body) MUST_USE;
// Asks with a GET at commands_address().
enum err commands_ask_server(const char *named, const struct config *config, const char *path,
                             unsigned *ret_status, struct buf *ret_body) MUST_USE;

#endif
