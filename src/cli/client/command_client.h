// SPDX-License-Identifier: Apache-2.0
// The interface of commands that send requests to a running server: its address, requests and
// answers as JSON, and printing. Main thread.
//
// Errors go to stderr. With --json they also go to stdout, as a line of type `error`.
#ifndef FOREBAY_CLI_COMMAND_CLIENT_H
#define FOREBAY_CLI_COMMAND_CLIENT_H

#include <jansson.h>

#include "commands/commands.h"
#include "s3/s3.h"

struct command_client {
    const char *name; // the command's name
    bool is_json;
    struct config *config; // NULL: the address was found without a configuration
    bool is_guess; // the file cannot be read, so the server may be another than the user means
    char address[COMMANDS_ADDRESS_MAX]; // the address that answered last; "": none yet
    const char *token;
    bool waits;      // repeats a request while the server is too busy to accept it
    bool tells_wait; // reports a wait once
    bool keeps_why;  // a refusal is not reported: its reason goes into `why`
    char why[256];
    unsigned status; // status of the last answer; 0: no server answered
};

// Prepares the client for the command `name`. On failure prints the reason and returns the exit
// code of the command.
int command_client_open(struct command_client *client, const char *name);
void command_client_close(struct command_client *client);
// Send a GET, a POST or a DELETE. The POST takes ownership of `body`. The caller owns *ret_answer.
// On failure they print the reason and return an exit code.
int command_client_get(struct command_client *client, const char *path, json_t **ret_answer);
int command_client_post(struct command_client *client, const char *path, json_t *body,
                        json_t **ret_answer);
int command_client_delete(struct command_client *client, const char *path, json_t **ret_answer);
// Sends a GET with an endless answer and passes on each line. Ends with EXIT_CODE_OK when on_line()
// returns false or on SIGINT, SIGQUIT or SIGTERM. When the terminal changes size, on_line() gets an
// empty line.
int command_client_follow(struct command_client *client, const char *path,
                          admin_client_line_fn on_line, void *ctx);
// Like command_client_follow(), for a server that is about to end. Returns EXIT_CODE_OK only if the
// server has released its ports and its cache.
int command_client_follow_to_end(struct command_client *client, const char *path,
                                 admin_client_line_fn on_line, void *ctx);
// Makes the key q on the terminal send SIGQUIT, and echoes no keys, until the process ends.
void command_client_quit_by_key(void);
// Waits for `ms` milliseconds. Returns false if one of these signals has arrived since the first
// call. They end the wait early and interrupt nothing else. So does a new size of the terminal, for
// which it returns true.
bool command_client_wait(uint64_t ms);
// Appends "NAME=VALUE", percent-coded, after '?' or '&'.
void command_client_parameter(struct buf *path, const char *name, struct span value);

// Prints an error on stderr, and with --json also as a line of type `error`.
void command_client_error(const struct command_client *client, const char *format, ...)
    PRINTF_LIKE(2, 3);
// Warns on stderr, and with --json also with a line of type `warning`, that the user may have meant
// something else.
void command_client_warn(const struct command_client *client, const char *format, ...)
    PRINTF_LIKE(2, 3);
// Parses a URI that the user gave. Reports an error and returns false if it is malformed, or not
// UTF-8: requests to the server are JSON.
bool command_client_take_uri(const struct command_client *client, const char *text,
                             struct s3_uri *ret_uri);
// Warns if a URI contains a '*' inside, because that is an ordinary character there.
void command_client_warn_of_star(const struct command_client *client, const char *text,
                                 const struct s3_uri *uri);
// Prints the result as commands_result() does, and closes the client. Returns the exit
// code.
int command_client_end(struct command_client *client, int code, json_t *json);

// --- members of an answer; 0 or "" if they are missing -------------------------------------------

uint64_t command_client_u64(const json_t *json, const char *name);
double command_client_double(const json_t *json, const char *name);
uint64_t command_client_sum(const json_t *object); // the sum of all members
const char *command_client_text(const json_t *json, const char *name);
bool command_client_bool(const json_t *json, const char *name);

// --- for people ----------------------------------------------------------------------------------

// As commands_visible(), for a C string.
const char *command_client_visible(const char *text);
// As commands_visible(), for a text in an answer, which may contain NUL.
const char *command_client_shown(const json_t *json, const char *name);
// A result is valid until the eighth later call of either function.
const char *command_bytes(double bytes);  // "1.5 GiB"
const char *command_time(double seconds); // "2 d 3 h", "3 min 4 s", "12 s"
// Appends how soon an origin of a summary answers: "30 ms, p99 120 ms, usually 25 ms". Returns
// false, and appends nothing, if it answered no read within the last minute.
bool command_pace_append(struct buf *out, const json_t *origin);
// Appends the bytes and requests that were saved: "1.2 TiB and 240120 requests of the origin", or
// "0 B of the origin, and cost 12 more requests than without a cache".
void command_saved_append(struct buf *out, const json_t *savings);
// Appends what the bytes and requests of `savings` in a summary are worth: "$1.20 if the bytes
// leave the origin's region, else $0.02; 3 min 4 s of waiting summed over all readers, at 45 ms a
// miss". Leaves out what is zero, so it may append nothing.
void command_savings_append(struct buf *out, const json_t *savings);

#endif
