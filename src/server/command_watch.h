// SPDX-License-Identifier: Apache-2.0
// Detects changes of the configuration, keys and certificate files, for command_reload.c.
#ifndef FOREBAY_SERVER_COMMAND_WATCH_H
#define FOREBAY_SERVER_COMMAND_WATCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#define COMMAND_WATCH_FILES 4u

struct command_watch_file {
    bool is_there;
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec modified, changed;
};

struct command_watch {
    char *paths[COMMAND_WATCH_FILES];                    // NULL: none
    struct command_watch_file read[COMMAND_WATCH_FILES]; // state of each file when Forebay read it
    struct command_watch_file seen[COMMAND_WATCH_FILES]; // state of each file at the last check
    uint64_t looked_ms;                                  // time of the last check
};

// Watches `path` as file `i`, instead of the former one. NULL: no file. Records its state, if it is
// another path. Call it before the file is read, so that a later change is detected.
void command_watch_set(struct command_watch *watch, unsigned i, const char *path);
// Records the states of all files. Call it before they are read again.
void command_watch_note(struct command_watch *watch);
// Returns the path of a file that differs from the one that was read, if no file changed since the
// last check; else NULL. Call it often: it checks every two seconds.
const char *command_watch_look(struct command_watch *watch);
void command_watch_done(struct command_watch *watch); // accepts zeros

#endif
