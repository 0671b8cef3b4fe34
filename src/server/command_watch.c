// SPDX-License-Identifier: Apache-2.0
// Checks every two seconds whether the files that Forebay has read have changed. It looks them up
// by name, which detects these changes on any file system:
// - a file written in place
// - a file renamed over the old one
// - a changed symbolic link in the path, as in an update of a ConfigMap volume
//
// The kernel's notifications would be faster, but they watch inodes and their number is limited.
// A changed file counts only when it is the same in two consecutive checks, because a program may
// still be writing it. A missing file is not a change. Runs on the main thread.
#include "server/command_watch.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/check.h"
#include "base/clock.h"

#define LOOK_MS 2000u

static struct command_watch_file look_at(const char *path)
{
    struct stat st;
    if (path == NULL || stat(path, &st) != 0) {
        return (struct command_watch_file){.is_there = false};
    }
    return (struct command_watch_file){.is_there = true,
                                       .device = st.st_dev,
                                       .inode = st.st_ino,
                                       .size = st.st_size,
                                       .modified = st.st_mtim,
                                       .changed = st.st_ctim};
}

static bool is_same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

static bool is_same(const struct command_watch_file *a, const struct command_watch_file *b)
{
    return a->is_there == b->is_there && a->device == b->device && a->inode == b->inode &&
           a->size == b->size && is_same_time(a->modified, b->modified) &&
           is_same_time(a->changed, b->changed);
}

static void note(struct command_watch *watch, unsigned i)
{
    watch->read[i] = watch->seen[i] = look_at(watch->paths[i]);
    watch->looked_ms = clock_monotonic_ms();
}

void command_watch_set(struct command_watch *watch, unsigned i, const char *path)
{
    const char *was = watch->paths[i];
    check(i < COMMAND_WATCH_FILES);
    if (was == path || (was != NULL && path != NULL && strcmp(was, path) == 0)) {
        return;
    }
    free(watch->paths[i]);
    watch->paths[i] = path != NULL ? strdup(path) : NULL;
    check((watch->paths[i] != NULL) == (path != NULL));
    note(watch, i);
}

void command_watch_note(struct command_watch *watch)
{
    for (unsigned i = 0; i < COMMAND_WATCH_FILES; i++) {
        note(watch, i);
    }
}

void command_watch_done(struct command_watch *watch)
{
    for (unsigned i = 0; i < COMMAND_WATCH_FILES; i++) {
        free(watch->paths[i]);
        watch->paths[i] = NULL;
    }
}

const char *command_watch_look(struct command_watch *watch)
{
    uint64_t now_ms = clock_monotonic_ms();
    if (now_ms - watch->looked_ms < LOOK_MS) {
        return NULL;
    }
    watch->looked_ms = now_ms;
    const char *changed = NULL;
    bool is_settled = true;
    for (unsigned i = 0; i < COMMAND_WATCH_FILES; i++) {
        struct command_watch_file now = look_at(watch->paths[i]);
        changed = now.is_there && !is_same(&now, &watch->read[i]) ? watch->paths[i] : changed;
        is_settled &= is_same(&now, &watch->seen[i]);
        watch->seen[i] = now;
    }
    return is_settled ? changed : NULL;
}
