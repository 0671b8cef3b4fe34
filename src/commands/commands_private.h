// SPDX-License-Identifier: Apache-2.0
// Shared by the files of the commands room.
#ifndef FOREBAY_COMMANDS_PRIVATE_H
#define FOREBAY_COMMANDS_PRIVATE_H

#include <limits.h>
#include <signal.h>
#include <stdbool.h>

#include "admin/admin.h"
#include "base/bytes.h"
#include "config/config.h"

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
// What --json gets of it, on stdout.
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
// A JSON text with its quotes.
void commands_append_json(struct buf *out, const char *text);
#define COMMANDS_BYTES_MAX 32
// "1.5 GiB"; returns its text.
const char *commands_human_bytes(double bytes, char ret_text[COMMANDS_BYTES_MAX]);
unsigned commands_setting(const char *key); // its row, which is there
// The directory itself, or the nearest one above it that is there.
void commands_nearest_directory(const char *path, char ret_path[PATH_MAX]);

// Who may have how many of the process's descriptors at once.
struct command_limits_plan {
    uint64_t descriptors;
    uint64_t least;              // with fewer it does not begin
    unsigned clients;            // connections, all listeners
    unsigned clients_max;        // so many there is room for
    unsigned origin_connections; // to each origin
    uint64_t origin_descriptors; // for all origins
    unsigned segments;           // files of the cache
    bool is_short;               // fewer than configured
};
// `more`: origins that a reload may add, where there is room for them.
struct command_limits_plan command_limits_plan_for(uint64_t descriptors, unsigned workers,
                                                   unsigned origins, unsigned clients,
                                                   unsigned origin_connections);
// What an origin with so many connections takes.
uint64_t command_limits_origin(unsigned connections, unsigned workers);
// Raises the soft limit.
struct command_limits_plan command_limits_plan(const struct config *config);
// Says in one line of the log what follows from it.
void command_limits_tell(const struct command_limits_plan *plan, const struct config *config);

// The URL by which clients on this machine reach a listener; false for unix sockets.
// commands_advertise.c
bool commands_advertise(const char *listen, char *ret_url, size_t size);

// Asks a running server: at `address`, else --admin, else FOREBAY_ADMIN, else the socket and then
// the address that the configuration (NULL: the built-in one) names. ERR_ORIGIN_CONNECT when none
// answers.
enum err commands_ask_server(const char *address, const struct config *config, const char *path,
                             unsigned *ret_status, struct buf *ret_body) MUST_USE;

// --- command_env.c -------------------------------------------------------------------------------

// All that points clients at `url`, one by one; false: it is no http://HOST:PORT or
// https://HOST:PORT.
typedef void command_env_variable_fn(void *ctx, const char *name, const char *value);
bool command_env_variables(const char *url, bool global, command_env_variable_fn *on_variable,
                           void *ctx);

// --- command_help.c ------------------------------------------------------------------------------

void command_help_list(struct buf *out); // all commands
void command_help_render(const struct command *command, struct buf *out);

// --- command_stop.c ------------------------------------------------------------------------------

// From now on, when the drain is over, the process ends within a bound, and soon after one more of
// `signals`, whatever still waits.
void command_stop_bound(const sigset_t *signals);
// There is no such bound any more, and the signals are blocked. True: one to stop came meanwhile.
bool command_stop_bound_end(const sigset_t *signals);

// --- command_memory.c: limits.max_buffer as a whole; main thread, but for the metrics ------------

void command_memory_begin(uint64_t max_buffer_bytes); // before any thread
// The part that requests may take, and as much long heads and TLS; the rest, and what they leave,
// is for payload.
uint64_t command_memory_clients_max(uint64_t max_buffer_bytes);
unsigned
command_memory_inflight_max(unsigned wanted,
                            uint64_t max_buffer_bytes); // requests at once within that part
// Once a second: after a burst, gives back what malloc kept of it. *high_bytes starts at 0.
void command_memory_trim(uint64_t *high_bytes);
void command_memory_metrics(struct buf *out);

#endif
