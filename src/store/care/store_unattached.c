// SPDX-License-Identifier: Apache-2.0
// A process that could not use its cache directory at the start holds nothing. But an index of one
// before it may lie there, and a later process would read it and believe what writes that pass this
// one have made untrue. So before the first such write is sent to the origin the index is disowned:
// marked or removed. Where the directory takes neither, because it is read-only or broken, the
// write is refused, and the next one tries anew; where no index can be found there is nothing to
// do.
//
// Where the directory has come into use meanwhile (store_late.c) it began empty, and there is
// nothing to do.
//
// On a thread of the blocking pool, under the lock of `format`.
#include "store/care/store_unattached.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/log.h"
#include "store/disk/disk.h"
#include "store/index/index.h"

// Nothing lies at dir/`name`, so far as can be seen by its path.
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

// The start failed before it came to the index: as far as it goes now.
static enum err disown_anew(const struct store_disk *disk)
{
    bool removed;
    struct buf why;
    struct store_dir *dir = malloc(sizeof(*dir));
    check(dir != NULL);
    buf_init(&why, 4000);
    enum err err = store_dir_open(dir, disk->dir.path, &why);
    if (err == ERR_OK) {
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
    pthread_mutex_lock(&disk->dir.format_lock);
    bool there = !disk->attached && !atomic_load(&disk->is_disowned) &&
                 !(is_absent(disk, "index/data.mdb") &&
                   is_absent(disk, STORE_DIR_PRIVATE "/index/data.mdb"));
    if (there) {
        err = disk->dir.index_fd >= 0 ? index_disown(disk->dir.index_fd, &removed)
                                      : disown_anew(disk);
        atomic_store(&disk->is_disowned, err == ERR_OK);
        log_warn("index_of_unusable_cache", "err=%s dir=%s", error_name(err),
                 log_quote(span_from_cstr(disk->dir.path)));
    }
    pthread_mutex_unlock(&disk->dir.format_lock);
    return err;
}
