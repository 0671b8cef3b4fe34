// SPDX-License-Identifier: Apache-2.0
// Examines the segment files in their folder before the log opens them: their names, their number,
// whether they hold runs, and their disk usage. Called before threads start.
#include "store/segment/segment_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/segment/segment_format.h"

#define EMPTY_FILES_MAX 64u // a cache with more files is assumed to hold runs
#define STAT_BLOCK 512u

struct file_bytes {
    int segments_fd;
    uint64_t sum;
};

// Returns the number in a name like 00000001.seg; 0 for any other name.
static uint32_t segment_name_number(const char *name)
{
    size_t digits = strspn(name, "0123456789");
    uint64_t number = 0;
    if (digits < 8 || digits > 10 || strcmp(name + digits, ".seg") != 0 ||
        !span_to_u64((struct span){name, digits}, &number) || number > UINT32_MAX) {
        return 0;
    }
    return (uint32_t)number;
}

void segment_name(uint32_t number, char ret_name[SEGMENT_NAME_LEN])
{
    check(number != 0);
    (void)snprintf(ret_name, SEGMENT_NAME_LEN, "%08u.seg", number);
}

// Calls fn for each regular file that is named like a segment.
static void segment_files_each(int segments_fd,
                               void (*fn)(void *ctx, const char *name, uint32_t number), void *ctx)
{
    int fd = openat(segments_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (folder == NULL) {
        if (fd >= 0) {
            (void)close(fd); // nothing was written, so an error loses nothing
        }
        return;
    }
    for (struct dirent *e = readdir(folder); e != NULL; e = readdir(folder)) {
        uint32_t number = segment_name_number(e->d_name);
        struct stat st;
        bool regular =
            e->d_type == DT_REG ||
            (e->d_type == DT_UNKNOWN && fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
             S_ISREG(st.st_mode));
        if (number != 0 && regular) {
            fn(ctx, e->d_name, number);
        }
    }
    (void)closedir(folder); // only read, so an error loses nothing
}

static void on_file_counted(void *ctx, const char *name, uint32_t number)
{
    (void)name;
    (void)number;
    ++*(uint32_t *)ctx;
}

static uint32_t files_count(int segments_fd)
{
    uint32_t count = 0;
    segment_files_each(segments_fd, on_file_counted, &count);
    return count;
}

static void on_file_wiped(void *ctx, const char *name, uint32_t number)
{
    (void)number;
    (void)unlinkat(*(int *)ctx, name, 0); // a file that stays is found again at the next start
}

void segment_files_wipe(int segments_fd)
{
    segment_files_each(segments_fd, on_file_wiped, &segments_fd);
}

struct file_list {
    struct segment_file *files;
    size_t count, max;
};

static void on_file_listed(void *ctx, const char *name, uint32_t number)
{
    (void)name;
    struct file_list *list = ctx;
    if (list->count < list->max) {
        list->files[list->count++] = (struct segment_file){.number = number};
    }
}

bool segment_file_is_empty(int segments_fd, uint32_t number)
{
    static const char nothing[SECTOR_SIZE];
    char name[SEGMENT_NAME_LEN];
    char sector[SECTOR_SIZE];
    segment_name(number, name);
    int fd = openat(segments_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        return true;
    }
    bool full = pread(fd, sector, sizeof(sector), SEGMENT_DATA_OFFSET) == (ssize_t)sizeof(sector) &&
                memcmp(sector, nothing, sizeof(sector)) != 0;
    (void)close(fd); // only read, so an error loses nothing
    return !full;
}

bool segment_files_are_empty(int segments_fd)
{
    struct segment_file files[EMPTY_FILES_MAX];
    struct file_list list = {.files = files, .max = EMPTY_FILES_MAX};
    if (files_count(segments_fd) > EMPTY_FILES_MAX) {
        return false;
    }
    segment_files_each(segments_fd, on_file_listed, &list);
    bool empty = true;
    for (size_t i = 0; i < list.count && empty; i++) {
        empty = segment_file_is_empty(segments_fd, files[i].number);
    }
    return empty;
}

// --- disk usage

static void on_file_measured(void *ctx, const char *name, uint32_t number)
{
    (void)number;
    struct file_bytes *bytes = ctx;
    struct stat st;
    if (fstatat(bytes->segments_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        bytes->sum += (uint64_t)st.st_blocks * STAT_BLOCK;
    }
}

uint64_t segment_files_bytes(int segments_fd)
{
    struct file_bytes bytes = {.segments_fd = segments_fd};
    segment_files_each(segments_fd, on_file_measured, &bytes);
    return bytes.sum;
}

uint32_t segment_file_missing(const struct stat *st, uint32_t size_bytes)
{
    uint64_t there = (uint64_t)st->st_blocks * STAT_BLOCK;
    bool is_ours = (uint64_t)st->st_size == size_bytes && there < size_bytes;
    return is_ours ? (uint32_t)(size_bytes - there) : 0;
}

// Returns the trimmed bytes of a file, as far as both its seal and the file system confirm them.
// The file system may not confirm them: after a copy of the directory, the file may be whole again.
static uint32_t file_given_bytes(const struct store_dir *dir, uint32_t number)
{
    char name[SEGMENT_NAME_LEN];
    char head[2 * SECTOR_SIZE];
    struct stat st;
    struct segment_header header;
    struct segment_seal seal;
    segment_name(number, name);
    uint32_t size = segment_file_bytes(dir->format.segment_size_bytes);
    if (fstatat(dir->segments_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0 ||
        segment_file_missing(&st, size) == 0) {
        return 0; // most files
    }
    int fd = openat(dir->segments_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        return 0;
    }
    bool is_sealed = pread(fd, head, sizeof(head), 0) == (ssize_t)sizeof(head) &&
                     segment_header_decode(head, &header) == ERR_OK && header.number == number &&
                     segment_seal_decode(head + SEGMENT_SEAL_OFFSET, &seal) == ERR_OK &&
                     seal.number == number && seal.salt == header.salt;
    (void)close(fd); // only read, so an error loses nothing
    return is_sealed ? (uint32_t)min_u64(seal.given_bytes, segment_file_missing(&st, size)) : 0;
}

struct segment_file *segment_files_list(const struct store_dir *dir, size_t *ret_count)
{
    struct file_list list = {.max = files_count(dir->segments_fd)};
    list.files = calloc(list.max + 1, sizeof(*list.files));
    check(list.files != NULL);
    segment_files_each(dir->segments_fd, on_file_listed, &list);
    check(list.count <= list.max);
    for (size_t i = 0; i < list.count; i++) {
        list.files[i].given_bytes = file_given_bytes(dir, list.files[i].number);
    }
    *ret_count = list.count;
    return list.files;
}
