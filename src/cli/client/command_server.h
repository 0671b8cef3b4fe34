// SPDX-License-Identifier: Apache-2.0
// A server of a command's own: a child process on a free port of loopback, gone with the command.
// Main thread of a process without other threads.
#ifndef FOREBAY_CLI_COMMAND_SERVER_H
#define FOREBAY_CLI_COMMAND_SERVER_H

#include <sys/types.h>

#include "base/bytes.h"

#define COMMAND_SERVER_WORDS_MAX 512u
#define COMMAND_SERVER_PATH_MAX 100u // of a unix socket

struct command_server {
    pid_t pid; // 0: none runs
    int listen_fd, notify_fd, log_fd;
    unsigned port;
    char folder[COMMAND_SERVER_PATH_MAX];      // holds the admin socket; removed at the end
    char admin[COMMAND_SERVER_PATH_MAX + 24u]; // "unix:PATH" of it
    char notify[64];
    const char *words[COMMAND_SERVER_WORDS_MAX]; // of its command line, NULL behind the last
    unsigned word_count;
};

// Takes a port and what else it needs, and starts nothing. False: *ret_why says why not.
// command_server_done() in any case.
bool command_server_init(struct command_server *server, struct buf *ret_why);
// One more word of its command line, behind `serve`; must live as long as the server.
void command_server_word(struct command_server *server, const char *word);
// The user's settings, but for those in `skipped` (flags; NULL ends them), which the command
// decides itself.
void command_server_settings(struct command_server *server, int argc, char **argv,
                             const char *const *skipped);
// Starts it and waits until it serves, at most `timeout_ms`. Where it ended before, the same call
// may start it again: the port is kept. False: *ret_why has what it said.
bool command_server_start(struct command_server *server, uint64_t timeout_ms, struct buf *ret_why);
// Its metrics; false when it does not answer.
bool command_server_metrics(struct command_server *server, struct buf *ret_text);
// Sum of a metric's rows whose labels contain `label` (NULL: all).
double command_server_metric(struct span text, const char *name, const char *label);
// It has ended, says waitpid().
void command_server_ended(struct command_server *server);
// The end of what it has logged.
void command_server_log(struct command_server *server, struct buf *ret_text);
// SIGTERM, and after `grace_ms` SIGKILL; returns when it is gone.
void command_server_stop(struct command_server *server, uint64_t grace_ms);
void command_server_done(struct command_server *server);

#endif
