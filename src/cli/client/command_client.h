// SPDX-License-Identifier: Apache-2.0
// What commands share that ask a running server: where it is, a question and its answer as JSON,
// what is printed. Main thread.
//
// What went wrong goes to stderr, and with --json to stdout as well, as a line of type `error`.
#ifndef FOREBAY_CLI_COMMAND_CLIENT_H
#define FOREBAY_CLI_COMMAND_CLIENT_H

#include <jansson.h>

#include "base/human.h"
#include "commands/commands.h"
#include "s3/s3.h"

struct command_client {
    const char *name; // of the command
    bool is_json;
    struct config *config;              // NULL: the server was named otherwise
    char address[COMMANDS_ADDRESS_MAX]; // where it answered last; "": nowhere yet
    const char *token;
    bool waits;      // while the server is too busy to take it, the same is asked again
    bool tells_wait; // and that is said, once
};

// EXIT_CODE_OK, or the exit code of a command that ends here; the reason is printed.
int command_client_open(struct command_client *client, const char *name);
void command_client_close(struct command_client *client);
// `body` (NULL: a GET, or DELETE with `is_delete`) is taken over. *ret_answer is the caller's.
// Otherwise an exit code, and the reason is printed.
int command_client_get(struct command_client *client, const char *path, json_t **ret_answer);
int command_client_post(struct command_client *client, const char *path, json_t *body,
                        json_t **ret_answer);
int command_client_delete(struct command_client *client, const char *path, json_t **ret_answer);
// GET of an answer without an end, line by line, until on_line() returns false or SIGINT or SIGTERM
// comes, both EXIT_CODE_OK. Empty lines are not told of.
int command_client_follow(struct command_client *client, const char *path,
                          admin_client_line_fn on_line, void *ctx);
// Returns false if SIGINT or SIGTERM came since the first call. They interrupt nothing else.
bool command_client_wait(uint64_t ms);
// Appends "NAME=VALUE", percent-coded, behind '?' or '&'.
void command_client_parameter(struct buf *path, const char *name, struct span value);

// The reason, for people and as type `error`.
void command_client_error(const struct command_client *client, const char *format, ...)
    PRINTF_LIKE(2, 3);
// What may not be what was meant: for people, and as type `warning`.
void command_client_warn(const struct command_client *client, const char *format, ...)
    PRINTF_LIKE(2, 3);
// Of a URI with a '*' inside, which is taken by the letter.
void command_client_warn_of_star(const struct command_client *client, const char *text,
                                 const struct s3_uri *uri);
// Prints the result as commands_result() does, and closes the client. Returns the exit
// code.
int command_client_end(struct command_client *client, int code, json_t *json);

// --- numbers in an answer; 0 or "" where they are not --------------------------------------------

uint64_t command_client_u64(const json_t *json, const char *name);
double command_client_double(const json_t *json, const char *name);
uint64_t command_client_sum(const json_t *object); // of all members
const char *command_client_text(const json_t *json, const char *name);
bool command_client_bool(const json_t *json, const char *name);

// --- for people ----------------------------------------------------------------------------------

// commands_visible() of it.
const char *command_client_visible(const char *text);
// The same of a text in an answer, which may have a NUL.
const char *command_client_shown(const json_t *json, const char *name);
// "2 d 3 h", "3 min 4 s", "12 s"
const char *command_client_time(double seconds, char ret_text[HUMAN_BYTES_MAX]);

#endif
