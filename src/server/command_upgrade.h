// SPDX-License-Identifier: Apache-2.0
// Replaces this process by a new one without refusing a request. command_upgrade.c describes the
// steps. Runs on the main thread.
#ifndef FOREBAY_SERVER_COMMAND_UPGRADE_H
#define FOREBAY_SERVER_COMMAND_UPGRADE_H

#include <limits.h>
#include <sys/types.h>

#include "base/bytes.h"
#include "config/config.h"

struct command_upgrade {
    char path[PATH_MAX]; // program to start: the path of the first process; "": unknown
    int argc;            // arguments of this process, after `serve`
    char **argv;
    pid_t former_pid;
    int former_fd; // socket to the former process; -1: none
    int taken_fd;  // socket with its connections; -1: none, or the caller has it
    // About the new process, from command_upgrade_begin() on.
    pid_t pid; // 0: none
    int control_fd, passing_fd, passed_fd;
    unsigned passed_at_once; // connections per message that it takes
    int listen_fds[CONFIG_INHERITED_MAX];
    char listen_names[CONFIG_INHERITED_MAX * 16];
    unsigned listen_count;
};

// Call it at the very start. Detects whether a former process has handed over its sockets.
void command_upgrade_init(struct command_upgrade *upgrade, int argc, char **argv);

// --- the new process -----------------------------------------------------------------------------

// Reports that this process is ready, and waits until the cache directory is free. Returns false if
// the former process continues instead. Returns true at once if there is no former process.
bool command_upgrade_wait_turn(struct command_upgrade *upgrade);
// Reports to the former process why this one does not become a server.
void command_upgrade_fail(struct command_upgrade *upgrade, const char *why);
// Reports that requests are served, so the former process may end. *ret_fd becomes the socket with
// its connections, which the caller owns, or -1.
void command_upgrade_serving(struct command_upgrade *upgrade, int *ret_fd);

// --- the old process -----------------------------------------------------------------------------

// One for each listening socket, for command_upgrade_begin().
struct command_upgrade_listener {
    int fd;
    const char *name; // as in LISTEN_FDNAMES
};
// Starts the new process. Waits until it needs the cache directory, at most `wait_ms` and until a
// stop signal comes. On failure the new process has ended and nothing has changed; returns false,
// and the reason in *ret_why.
bool command_upgrade_begin(struct command_upgrade *upgrade,
                           const struct command_upgrade_listener *listeners, unsigned count,
                           uint64_t wait_ms, struct buf *ret_why);
// From here on the new process takes over, even if this one dies.
void command_upgrade_commit(struct command_upgrade *upgrade);
// Cancels the upgrade: ends the new process. Listening sockets stay open where they are open
// elsewhere. Connections that were sent are in passed_fd, which stays open until
// command_upgrade_done().
void command_upgrade_call_off(struct command_upgrade *upgrade);
// Call it when the cache directory is free, all threads have ended and signals are blocked. Returns
// when the new process serves. If it fails to, this process restarts itself, and the call does not
// return.
void command_upgrade_finish(struct command_upgrade *upgrade);
// Frees everything when there was no upgrade or it is over.
void command_upgrade_done(struct command_upgrade *upgrade);

#endif
