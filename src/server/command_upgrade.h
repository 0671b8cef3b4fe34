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
    int taken_fd;  // socket with the former process's connections; -1: none, or the caller has it
    // The members below describe the new process, from command_upgrade_begin() on.
    pid_t pid; // 0: none
    int control_fd, passing_fd, passed_fd;
    unsigned passed_at_once; // connections per message that the new process accepts
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
// Reports that requests are served, so the former process may end. Sets *ret_fd to the socket with
// the former process's connections, which the caller then owns, or to -1.
void command_upgrade_serving(struct command_upgrade *upgrade, int *ret_fd);

// --- the old process -----------------------------------------------------------------------------

// A listening socket that command_upgrade_begin() hands over.
struct command_upgrade_listener {
    int fd;
    const char *name; // as in LISTEN_FDNAMES
};
// Starts the new process, and waits until it is ready except for the cache directory. The wait ends
// after `wait_ms` or at a stop signal. On failure ends the new process, and returns false with the
// reason in *ret_why. Nothing has changed then.
bool command_upgrade_begin(struct command_upgrade *upgrade,
                           const struct command_upgrade_listener *listeners, unsigned count,
                           uint64_t wait_ms, struct buf *ret_why);
// Commits to the upgrade. The new process takes over from now on, even if this one dies.
void command_upgrade_commit(struct command_upgrade *upgrade);
// Cancels the upgrade: ends the new process, and closes the copies of the listening sockets that
// were made for it. Connections that were sent are in passed_fd, which stays open until
// command_upgrade_done().
void command_upgrade_call_off(struct command_upgrade *upgrade);
// Lets the new process open the cache. Call it when the cache directory is free, all threads have
// ended and signals are blocked. Returns when the new process serves. If that fails, this process
// restarts itself and the call does not return.
void command_upgrade_finish(struct command_upgrade *upgrade);
// Frees everything. Call it after an upgrade, or if there was none.
void command_upgrade_done(struct command_upgrade *upgrade);

#endif
