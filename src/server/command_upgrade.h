// SPDX-License-Identifier: Apache-2.0
// A new process takes the place of this one without a refused request: see command_upgrade.c for
// the steps. Main thread.
#ifndef FOREBAY_SERVER_COMMAND_UPGRADE_H
#define FOREBAY_SERVER_COMMAND_UPGRADE_H

#include <limits.h>
#include <sys/types.h>

#include "base/bytes.h"
#include "config/config.h"

struct command_upgrade {
    char path[PATH_MAX]; // what is started: where the first of them was started from; "": not known
    int argc;            // of this start, behind `serve`
    char **argv;
    pid_t former_pid;
    int former_fd; // talks with the process before this one; -1: there is none
    int taken_fd;  // connections of that process; -1: none, or handed out
    // Of the process that follows, from command_upgrade_begin() on.
    pid_t pid; // 0: there is none
    int control_fd, passing_fd, passed_fd;
    unsigned passed_at_once; // connections of a message that it takes
    int listen_fds[CONFIG_INHERITED_MAX];
    char listen_names[CONFIG_INHERITED_MAX * 16];
    unsigned listen_count;
};

// At the very start. Says whether a process before this one has handed it its sockets.
void command_upgrade_init(struct command_upgrade *upgrade, int argc, char **argv);

// --- the process that follows --------------------------------------------------------------------

// All is well up to here, and the cache directory is wanted: returns when it is free. False: the
// process before goes on instead. True at once where there is none.
bool command_upgrade_wait_turn(struct command_upgrade *upgrade);
// It does not become a server: why, for who has asked for it.
void command_upgrade_fail(struct command_upgrade *upgrade, const char *why);
// Requests are served: the process before may end. *ret_fd gets its connections, or -1, and is the
// caller's.
void command_upgrade_serving(struct command_upgrade *upgrade, int *ret_fd);

// --- the process that goes -----------------------------------------------------------------------

// Of each listening socket, before command_upgrade_begin().
struct command_upgrade_listener {
    int fd;
    const char *name; // as in LISTEN_FDNAMES
};
// Starts the one that follows and waits until it wants the cache directory, at most `wait_ms` and
// not beyond a signal to stop. False: it is gone again, *ret_why says why, and nothing has changed.
bool command_upgrade_begin(struct command_upgrade *upgrade,
                           const struct command_upgrade_listener *listeners, unsigned count,
                           uint64_t wait_ms, struct buf *ret_why);
// From here on it takes over, even if this process dies.
void command_upgrade_commit(struct command_upgrade *upgrade);
// It is not to follow after all: it is ended, and listening sockets are as open as they are
// elsewhere. What was sent in passing is in passed_fd, which is open until command_upgrade_done().
void command_upgrade_call_off(struct command_upgrade *upgrade);
// The cache directory is free and all threads have ended. Returns when the one that follows serves;
// where that fails this process starts itself anew, and this does not return. The signals are to be
// blocked.
void command_upgrade_finish(struct command_upgrade *upgrade);
// Where there was none, or it will not be.
void command_upgrade_done(struct command_upgrade *upgrade);

#endif
