// SPDX-License-Identifier: Apache-2.0
// If a process could not use its cache directory at the start, it stores nothing. But the directory
// may contain the index of an earlier process. A later process would trust that index, although it
// does not know the writes that were proxied in the meantime. So before this process sends the
// first such write to the origin, it disowns the index: it marks or removes it. If a read-only or
// broken directory allows neither, the write is refused, and the next write tries again. If there
// is no index, there is nothing to do.
//
// There is also nothing to do if the directory has been attached since (store_late.c), because it
// then began empty.
//
// Runs on a thread of the blocking pool. That thread holds disk->opening_lock, which store_late.c
// holds while it opens the directory.
#include "store/care/store_unattached.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/log.h"
#include "store/disk/disk.h"
#include "store/index/index.h"

// Returns true if the directory has no file `name`, as far as its path shows.
static bool is_absent(const struct store_disk *disk, const char *name)
{
    struct buf path;
    struct stat st;
    buf_init(&path, 8192);
    buf_printf(&path, "%s/%s", disk->dir.path, name);
    bool absent =
        buf_ok(&path) && stat(buf_cstr(&path), &st) != 0 && (errno == ENOENT || errno == ENOTDIR);
    buf_done(&path);
    return absent;
}

// Opens the directory again, because the start failed before it opened the folder of the index.
static enum err disown_anew(const struct store_disk *disk)
{
    bool removed;
    struct buf why;
    check(disk->dir.index_fd < 0);
    struct store_dir *dir = malloc(sizeof(*dir));
    check(dir != NULL);
    buf_init(&why, 4000);
    enum err err = store_dir_open(dir, disk->dir.path, &why);
    if (err == ERR_OK) {
        check(dir->index_fd >= 0);
        err = index_disown(dir->index_fd, &removed);
    }
    store_dir_close(dir);
    buf_done(&why);
    free(dir);
    return err;
}

enum err store_unattached_disown(struct store_disk *disk)
{
    bool removed;
    enum err err = ERR_OK;
    check(disk->dir.path != NULL);
    pthread_mutex_lock(&disk->opening_lock);
    bool there = !disk->attached && !atomic_load(&disk->is_disowned) &&
                 !(is_absent(disk, "index/data.mdb") &&
                   is_absent(disk, STORE_DIR_PRIVATE "/index/data.mdb"));
    if (there) {
        err = disk->dir.index_fd >= 0 ? index_disown(disk->dir.index_fd, &removed)
                                      : disown_anew(disk);
        atomic_store(&disk->is_disowned, err == ERR_OK);
        log_warn_condition("index_of_unusable_cache", "err=%s dir=%s", error_name(err),
                           log_quote(span_from_cstr(disk->dir.path)));
    }
    pthread_mutex_unlock(&disk->opening_lock);
    return err;
}
