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

enum err origin_directory_bucket(int root_fd, struct span bucket)
{
    struct buf name;
    int fd = -1;
    buf_init(&name, 512);
    buf_append_span(&name, bucket);
    if (origin_directory_bucket_is_valid(bucket)) {
        fd = origin_directory_file_open_blocking(root_fd, buf_cstr(&name), O_PATH | O_DIRECTORY);
    }
    buf_done(&name);
    if (fd < 0) {
        return ERR_NO_SUCH_BUCKET;
    }
    (void)close(fd);
    return ERR_OK;
}

static DIR *open_root(int root_fd)
{
    return origin_directory_file_names(openat(root_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

static int compare_buckets(const void *a, const void *b)
{
    const struct s3_bucket_entry *x = a, *y = b;
    return span_compare(x->name, y->name);
}

enum err origin_directory_buckets(int root_fd, struct arena *arena,
                                  struct s3_bucket_entry **ret_buckets, size_t *ret_count)
{
    DIR *dir = open_root(root_fd);
    if (dir == NULL) {
        return origin_directory_error(errno) == ERR_NO_SUCH_KEY ? ERR_ORIGIN_5XX
                                                                : origin_directory_error(errno);
    }
    struct s3_bucket_entry *buckets = NULL;
    size_t count = 0, cap = 0;
    enum err err = ERR_OK;
    struct dirent *entry;
    while (err == ERR_OK && (entry = readdir(dir)) != NULL) {
        struct stat stat;
        int fd =
            origin_directory_bucket_is_valid(span_from_cstr(entry->d_name))
                ? origin_directory_file_open_blocking(root_fd, entry->d_name, O_PATH | O_DIRECTORY)
                : -1;
        if (fd < 0) {
            continue;
        }
        int result = fstat(fd, &stat);
        (void)close(fd);
        if (result != 0) {
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
        buckets[count].created = stat.st_mtime;
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
    DIR *dir = open_root(root_fd);
    size_t count = 0;
    struct dirent *entry;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.' ||
            origin_directory_file_kind(root_fd, entry->d_name) == ORIGIN_DIRECTORY_FOLDER) {
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
