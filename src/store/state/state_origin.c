// SPDX-License-Identifier: Apache-2.0
// The file `origin` of the cache directory has one line: the name of the default origin of the last
// start. `format` has only the hashes of such names. A start with another origin finds nothing of
// the former one, so it tells operators both names. Nothing else depends on the file: it is not
// synced, and errors are ignored, because a wrong or missing line costs only that message.
//
// Thread: main, before the store's threads start; or the thread that attaches a directory late
// (store_late.c).
#include "store/state/state_origin.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ORIGIN_FILE "origin"
#define ORIGIN_FILE_NEW "origin.new"

static void name_read(int folder, char ret_name[STATE_ORIGIN_MAX + 1])
{
    int fd = openat(folder, ORIGIN_FILE, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    ssize_t len = fd >= 0 ? read(fd, ret_name, STATE_ORIGIN_MAX) : 0;
    ret_name[len > 0 ? len : 0] = '\0';
    ret_name[strcspn(ret_name, "\n")] = '\0';
    if (fd >= 0) {
        (void)close(fd); // only read, so an error loses nothing
    }
}

static void name_write(int folder, const char *name)
{
    char line[STATE_ORIGIN_MAX + 2];
    int len = snprintf(line, sizeof(line), "%s\n", name);
    int fd = openat(folder, ORIGIN_FILE_NEW, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
                    0600);
    if (fd < 0) {
        return;
    }
    bool is_whole = write(fd, line, (size_t)len) == len;
    if (close(fd) != 0 || !is_whole ||
        renameat(folder, ORIGIN_FILE_NEW, folder, ORIGIN_FILE) != 0) {
        (void)unlinkat(folder, ORIGIN_FILE_NEW, 0); // the next start replaces it
    }
}

void state_origin_exchange(const struct store_dir *dir, const char *now,
                           char ret_former[STATE_ORIGIN_MAX + 1])
{
    check(dir->fd >= 0);
    name_read(dir->fd, ret_former);
    if (strcmp(ret_former, now) == 0) {
        ret_former[0] = '\0';
    } else if (strlen(now) <= STATE_ORIGIN_MAX) {
        name_write(dir->fd, now);
    }
}
