// SPDX-License-Identifier: Apache-2.0
// The first level of a `dir:` origin. Its folders are buckets. Anything else there is reported at
// the start. Blocks, so no worker runs it.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "origin/origin_directory_private.h"

enum err origin_directory_bucket_error(int errno_value, const char *name)
{
    enum err err = origin_directory_tree_error(errno_value, name);
    return err == ERR_NO_SUCH_KEY ? ERR_NO_SUCH_BUCKET : err;
}

enum err origin_directory_bucket(int root_fd, struct span bucket)
{
    struct buf name;
    enum err err = ERR_NO_SUCH_BUCKET;
    buf_init(&name, 512);
    buf_append_span(&name, bucket);
    if (origin_directory_bucket_is_valid(bucket)) {
        const char *path = buf_cstr(&name);
        int fd = origin_directory_file_open_blocking(root_fd, path, O_PATH | O_DIRECTORY);
        err = fd < 0 ? origin_directory_bucket_error(errno, path) : ERR_OK;
        if (fd >= 0) {
            (void)close(fd);
        }
    }
    buf_done(&name);
    return err;
}

static enum err open_root(int root_fd, DIR **ret_dir)
{
    return origin_directory_file_names(openat(root_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                                       ".", ret_dir);
}

static int compare_buckets(const void *a, const void *b)
{
    const struct s3_bucket_entry *x = a, *y = b;
    return span_compare(x->name, y->name);
}

enum err origin_directory_buckets(int root_fd, struct arena *arena,
                                  struct s3_bucket_entry **ret_buckets, size_t *ret_count)
{
    DIR *dir = NULL;
    enum err err = open_root(root_fd, &dir);
    if (err != ERR_OK) {
        return err == ERR_NO_SUCH_KEY ? ERR_ORIGIN_5XX : err;
    }
    struct s3_bucket_entry *buckets = NULL;
    size_t count = 0, cap = 0;
    struct dirent *entry = NULL;
    while (err == ERR_OK && (err = origin_directory_file_next(dir, ".", &entry)) == ERR_OK &&
           entry != NULL) {
        struct statx stat;
        if (!origin_directory_bucket_is_valid(span_from_cstr(entry->d_name))) {
            continue;
        }
        err = origin_directory_file_stat(root_fd, entry->d_name, O_DIRECTORY, &stat);
        if (err != ERR_OK) {
            err = origin_directory_left_out(err);
            continue;
        }
        if (count == cap) {
            cap = cap == 0 ? 32 : cap * 2;
            struct s3_bucket_entry *grown = arena_alloc(arena, cap * sizeof(*grown));
            if (grown == NULL) {
                err = ERR_LIMIT;
                break;
            }
            if (count > 0) {
                memcpy(grown, buckets, count * sizeof(*grown));
            }
            buckets = grown;
        }
        buckets[count].name = arena_copy(arena, span_from_cstr(entry->d_name));
        buckets[count].created = (time_t)stat.stx_mtime.tv_sec;
        err = buckets[count].name.ptr == NULL ? ERR_LIMIT : ERR_OK;
        count++;
    }
    (void)closedir(dir);
    if (err != ERR_OK) {
        return err;
    }
    if (count > 0) {
        qsort(buckets, count, sizeof(buckets[0]), compare_buckets);
    }
    *ret_buckets = buckets;
    *ret_count = count;
    return ERR_OK;
}

size_t origin_directory_top_files(int root_fd, struct buf *names)
{
    DIR *dir = NULL;
    size_t count = 0;
    struct dirent *entry = NULL;
    enum err err = open_root(root_fd, &dir);
    while (err == ERR_OK && (err = origin_directory_file_next(dir, ".", &entry)) == ERR_OK &&
           entry != NULL) {
        enum origin_directory_kind kind;
        if (entry->d_name[0] == '.' ||
            origin_directory_file_kind(root_fd, entry->d_name, &kind) != ERR_OK ||
            kind == ORIGIN_DIRECTORY_FOLDER) {
            continue;
        }
        if (count < 3) {
            buf_printf(names, "%s%s", count > 0 ? ", " : "", entry->d_name);
        }
        count++;
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    return count;
}
