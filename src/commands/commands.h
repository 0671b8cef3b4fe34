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
#include "commands/command_screen.h"
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
#define EXIT_CODE_NOT_STARTED 125 // of commands with TAKES_EXIT_CODE: the program did not start

// One function for each row of commands.def. argv[0] is the first argument after the subcommand's
// name, and argv[argc] is NULL. The command line has been checked against commands.def. Operands
// come first, and common options (commands_common()) have been removed. Each function returns an
// exit code. Results go to stdout, everything else to stderr.
#define COMMAND(name, takes, least, most, operands, summary, details)                              \
    int command_##name(int argc, char **argv);
#include "commands/commands.def"

// --- commands_arguments.c ------------------------------------------------------------------------

// Removes the first `flag` after the operands from argv, and decrements *argc. A word that is the
// value of another option is not a flag. Returns false if there is no such flag.
bool commands_argument_take(int *argc, char **argv, const char *flag);
// Removes `flag VALUE` or `flag=VALUE` in the same way. Returns the value; NULL if the flag is
// missing.
const char *commands_argument_take_value(int *argc, char **argv, const char *flag);
// Removes a flag whose value is a number, and sets *number to it. Leaves *number unchanged if the
// flag is missing. Returns false if the value is not a number from `least` to `most`.
bool commands_argument_take_number(int *argc, char **argv, const char *flag, uint64_t least,
                                   uint64_t most, uint64_t *number) MUST_USE;
// Options that several commands share. They are removed from argv before the command runs.
struct commands_common {
    const char *admin; // NULL: not given
    const char *file;  // of -c, for a command that takes no settings; NULL: not given
    unsigned timeout_ms;
    bool has_timeout; // --timeout was given
    const struct command *command;
    unsigned operand_count;             // operands at the front of argv
    bool is_json, is_quiet, is_verbose; // at most one of the last two is set
    bool has_no_colour;
};
const struct commands_common *commands_common(void);
void commands_common_take(const struct command *command, unsigned operand_count, int *argc,
                          char **argv);
void commands_common_want_json(void); // as if --json had been given

// --- commands.c ----------------------------------------------------------------------------------

// With -v, reports a request to a running server. Skips a request with the same outcome as the one
// before.
void commands_inform_request(const char *method, const char *address, const char *path,
                             enum err err, unsigned status);
// Returns true if stdout is a terminal and neither --no-color nor NO_COLOR is set.
bool commands_wants_colour(void);
// Reports an unknown command, with the nearest name as a suggestion. Returns EXIT_CODE_USAGE.
int commands_unknown(const char *name);
// Reports "forebay COMMAND: WHAT" and where to find help. With --json, also prints the error and
// the result. Returns EXIT_CODE_USAGE.
int commands_usage_error(const char *command, const char *what);
// With --json, stdout gets one object per line, each with a `type`. The last one has the type
// "result". Bytes and seconds are plain numbers. Both functions take ownership of `json`, which may
// be NULL for no further members.

// Prints a line of this type with the members of `json`. Without --json it prints nothing.
void commands_line(const char *type, json_t *json);
// Prints the result with the members of `json`. Returns `code`, or EXIT_CODE_FAILED if not
// everything could be written to stdout.
int commands_result(int code, json_t *json);

// For --json: prints a line of type "error", and the result with EXIT_CODE_USAGE.
void commands_usage_error_json(const char *what);
// Prints errors and warnings of config_load(). One about a flag or a variable begins with the
// command, and one about a file with its place in the file.
void commands_tell_errors(struct span errors);
// Calls config_load() and prints its errors and warnings to stderr. Returns NULL on failure.
struct config *commands_load_config(int argc, char **argv);
// As commands_load_config(), but does not judge the files that only a server reads.
struct config *commands_load_client(int argc, char **argv);
// As commands_load_client(), for a command that only has to know where a running server answers.
// Warns of a configuration that is not valid, and returns it with nothing but that. Returns NULL if
// a flag is wrong. *ret_is_guess: the file cannot be read, so the user may mean another server.
struct config *commands_load_admin(int argc, char **argv, bool *ret_is_guess);
// Prints to stdout. Returns EXIT_CODE_FAILED if that fails (a full disk, a closed pipe).
int commands_print_result(const struct buf *text);

// --- commands_output.c ---------------------------------------------------------------------------

// Opens an output FILE that exists and is neither a regular file nor a directory, such as a device
// or a FIFO. The caller must not replace it by a regular file. Returns true if `path` is such a
// file. Then *ret_fd is open for writing, or is -1 and errno has the reason. Waits until a FIFO has
// a reader.
bool commands_open_special(const char *path, int *ret_fd);
// Writes all of `bytes`. On failure, returns false with the reason in errno.
bool commands_write_all(int fd, struct span bytes);

// Returns `text` in a form that is safe for a terminal: control characters, and bytes that are not
// UTF-8, become \xNN. The result is valid until the second call after this one.
const char *commands_visible(const char *text, size_t text_len);
unsigned commands_setting(const char *key); // returns its row; the key must exist
// Sets ret_path to `path`, or to its nearest ancestor that exists.
void commands_nearest_directory(const char *path, char ret_path[PATH_MAX]);

// Returns the bytes that the files of a cache directory take on disk.
uint64_t commands_cache_bytes(const char *dir);
// Returns how large the cache can become: what its file system has free, less cache.min_free, and
// the `cache_bytes` that it takes already. UINT64_MAX: unknown.
uint64_t commands_cache_room(const struct config *config, uint64_t cache_bytes);

// Writes the URL by which clients on this machine reach a listener (commands_advertise.c). Returns
// false for a unix socket, and if the URL does not fit.
bool commands_advertise(const char *listen, char *ret_url, size_t size);
// Returns the i-th address that a server listens on, as `listen` has it; NULL after the last one.
typedef const char *(*commands_address_fn)(const void *ctx, unsigned i);
// Returns the addresses of the setting `listen`. `ctx`: the configuration.
const char *commands_listen_address(const void *ctx, unsigned i);
// Returns true if a user may expect this endpoint of S3 clients to be the origin, as with `forebay
// run`: the origin is the default, and the endpoint is none of the server's addresses.
bool commands_endpoint_is_unused(const struct config *config, const char *endpoint,
                                 commands_address_fn address, const void *ctx);

#define COMMANDS_ADDRESS_MAX 512
#define COMMANDS_UNIT_SOCKET "/run/forebay/forebay.sock" // of the packaged systemd unit

// Finds the server's address in --admin, else in FOREBAY_ADMIN. The result is "" if neither has
// one. Returns false if the address is too long.
bool commands_address(char ret_address[COMMANDS_ADDRESS_MAX]);
// Returns true if the configuration is what the packaged systemd unit has, as far as its file says.
bool commands_is_of_unit(const struct config *config);
// Sends a request to a running server. If `address` is "", tries the configured socket, then that
// of the packaged unit, then the configured address, and sets `address` to the one that answered.
// Also sets request->address. Returns an error of admin_client_send() if none answers.
enum err commands_ask(const struct config *config, struct admin_client_request *request,
                      char address[COMMANDS_ADDRESS_MAX], unsigned *ret_status,
                      struct buf *ret_body) MUST_USE;
// Returns the addresses that the last commands_ask() tried: " at A or B"; "" if the configuration
// names none.
const char *commands_tried(void);
// Makes a folder for the admin socket of a private server (commands_runs.c), and writes the
// socket's address. Both places have `size` bytes. Returns a descriptor with a lock, which the
// caller keeps open for as long as it uses the folder; -1, with errno, on failure. Removes the
// folders of this user's runs that were killed.
int commands_run_make(char *ret_folder, char *ret_admin, size_t size);
void commands_run_remove(const char *folder); // accepts ""
// Returns "; a forebay run of yours answers at --admin ADDRESS" if there is one, otherwise "".
const char *commands_run_hint(void);
// Sends a GET to the server at commands_address().
enum err commands_ask_server(const struct config *config, const char *path, unsigned *ret_status,
                             struct buf *ret_body) MUST_USE;

#endif
