// SPDX-License-Identifier: Apache-2.0
// Whether the configuration's files have changed, for command_reload.c.
#ifndef FOREBAY_SERVER_COMMAND_WATCH_H
#define FOREBAY_SERVER_COMMAND_WATCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#define COMMAND_WATCH_FILES 2u

struct command_watch_file {
    bool is_there;
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec modified, changed;
};

struct command_watch {
    struct command_watch_file read[COMMAND_WATCH_FILES]; // as they were when they were read
    struct command_watch_file seen[COMMAND_WATCH_FILES]; // at the last look
    uint64_t looked_ms;
};

// That one is about to be read, or has been; the path may be NULL.
void command_watch_note(struct command_watch *watch, unsigned i, const char *path);
// To be called often. True: one is another than was read, and has not changed for two seconds.
bool command_watch_look(struct command_watch *watch, const char *const paths[COMMAND_WATCH_FILES]);

#endif
