// SPDX-License-Identifier: Apache-2.0
// A private server for a command: a child process on a free loopback port, which ends with the
// command. Main thread of a process without other threads.
#ifndef FOREBAY_CLI_COMMAND_SERVER_H
#define FOREBAY_CLI_COMMAND_SERVER_H

#include <sys/types.h>

#include <jansson.h>

#include "base/bytes.h"

#define COMMAND_SERVER_PATH_MAX 128u // fits "unix:PATH" of a socket

struct command_server {
    pid_t pid; // 0: no server runs
    int listen_fd, notify_fd, log_fd, lock_fd;
    unsigned port;
    char folder[COMMAND_SERVER_PATH_MAX]; // holds the admin socket; removed at the end
    char admin[COMMAND_SERVER_PATH_MAX];  // "unix:PATH" of that socket
    char notify[64];
    off_t log_read; // how much of the log command_server_log_next() has returned
    // Words of the server's command line, ended by NULL.
    char **words;
    unsigned word_count;
};

// The value before command_server_init(), which command_server_done() accepts.
#define COMMAND_SERVER_NONE                                                                        \
    ((struct command_server){.listen_fd = -1, .notify_fd = -1, .log_fd = -1, .lock_fd = -1})

// Opens a port and all other resources, but starts nothing. Returns false, and the reason in
// *ret_why, on failure. The caller calls command_server_done() in any case.
bool command_server_init(struct command_server *server, struct buf *ret_why);
// Appends a word to the server's command line, after `serve`. The word must live as long as the
// server.
void command_server_word(struct command_server *server, const char *word);
// Appends the user's settings to the server's command line. Leaves out the flags in `skipped`
// (ended by NULL), which the command sets itself.
void command_server_settings(struct command_server *server, int argc, char **argv,
                             const char *const *skipped);
// Starts the server and waits until it serves, at most `timeout_ms`. If it has ended before, the
// same call may restart it on the same port. On failure returns false, and the server's output in
// *ret_why.
bool command_server_start(struct command_server *server, uint64_t timeout_ms, struct buf *ret_why);
// Returns the server's answer to `/api/v1/summary`, which the caller owns, or NULL if the server
// does not answer.
json_t *command_server_summary(struct command_server *server);
// Call it when waitpid() has reaped the server.
void command_server_ended(struct command_server *server);
// Appends the end of the server's log to *ret_text.
void command_server_log(struct command_server *server, struct buf *ret_text);
// Appends the lines that the server has logged since the last call, or since the start.
void command_server_log_next(struct command_server *server, struct buf *ret_text);
// Sends SIGTERM, and after `grace_ms` SIGKILL. Returns when the server has ended.
void command_server_stop(struct command_server *server, uint64_t grace_ms);
void command_server_done(struct command_server *server);

#endif
