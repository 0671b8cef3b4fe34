// SPDX-License-Identifier: Apache-2.0
// Names and versions of files below the root of a `dir:` origin. A version is identified by size,
// mtime, ctime and inode. Its ETag ends in "-1", so that no client takes it for an MD5. Any thread.
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "origin/origin_directory_private.h"

#define YOUNG_US 2000000u
#define PROBE_PATH_MAX (256u + S3_KEY_MAX) // the longest bucket and its '/', and the longest key

// Returns the errno that a test injects for the call `name`, or 0.
static int injected_errno(const char *name)
{
#ifdef FOREBAY_FAULTS
    return disk_fault_errno(name);
#else
    (void)name;
    return 0;
#endif
}

int origin_directory_file_open_blocking(int dir_fd, const char *path, int flags)
{
    struct open_how how = {.flags = (uint64_t)flags | O_CLOEXEC,
                           .resolve = ORIGIN_DIRECTORY_RESOLVE};
    int injected = injected_errno("tree.open");
    if (injected != 0) {
        errno = injected;
        return -1;
    }
    for (int tries = 0; tries < 16; tries++) {
        long fd = syscall(SYS_openat2, dir_fd, path, &how, sizeof(how));
        if (fd >= 0) {
            return (int)fd;
        }
        // EAGAIN: something on the path was renamed during the look-up
        if (errno != EINTR && errno != EAGAIN) {
            return -1;
        }
    }
    return -1;
}

enum err origin_directory_file_stat(int root_fd, const char *path, int flags,
                                    struct statx *ret_stat)
{
    enum err err = ERR_OK;
    int fd = origin_directory_file_open_blocking(root_fd, path, O_PATH | flags);
    if (fd < 0 || statx(fd, "", AT_EMPTY_PATH, ORIGIN_DIRECTORY_STATX_MASK, ret_stat) != 0) {
        err = origin_directory_tree_error(errno, path);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return err;
}

enum err origin_directory_file_kind(int root_fd, const char *path,
                                    enum origin_directory_kind *ret_kind)
{
    struct statx stat = {0};
    enum err err = origin_directory_file_stat(root_fd, path, 0, &stat);
    *ret_kind = S_ISREG(stat.stx_mode)   ? ORIGIN_DIRECTORY_FILE
                : S_ISDIR(stat.stx_mode) ? ORIGIN_DIRECTORY_FOLDER
                                         : ORIGIN_DIRECTORY_NEITHER;
    return err;
}

enum err origin_directory_file_names(int fd, const char *path, DIR **ret_dir)
{
    *ret_dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (*ret_dir != NULL) {
        return ERR_OK;
    }
    enum err err = origin_directory_tree_error(errno, path);
    if (fd >= 0) {
        (void)close(fd);
    }
    return err;
}

enum err origin_directory_file_next(DIR *dir, const char *path, struct dirent **ret_entry)
{
    int failed = injected_errno("tree.read");
    *ret_entry = NULL;
    if (failed == 0) {
        errno = 0; // readdir() returns NULL at the end too, and then leaves errno unchanged
        *ret_entry = readdir(dir);
        failed = *ret_entry == NULL ? errno : 0;
    }
    return failed == 0 ? ERR_OK : origin_directory_tree_error(failed, path);
}

bool origin_directory_file_is_dot(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

// Looks at one name of the folder `path`. *ret_found: it is a file, or a link to a folder, which is
// assumed to have one. Appends a subfolder to `folders`, as "path/" and a NUL.
static enum err probe_entry(int root_fd, const char *path, const struct dirent *entry,
                            struct buf *folders, bool *ret_found)
{
    size_t path_len = strlen(path), name_len = strlen(entry->d_name);
    char child[PROBE_PATH_MAX + 1];
    if (origin_directory_file_is_dot(entry->d_name) || path_len + name_len > PROBE_PATH_MAX) {
        return ERR_OK;
    }
    memcpy(child, path, path_len);
    memcpy(child + path_len, entry->d_name, name_len + 1);
    if (entry->d_type == DT_REG) {
        *ret_found = true;
    } else if (entry->d_type == DT_DIR) {
        buf_append(folders, child, path_len + name_len);
        buf_append(folders, "/", 2);
    } else {
        enum origin_directory_kind kind;
        enum err err = origin_directory_file_kind(root_fd, child, &kind);
        *ret_found = kind != ORIGIN_DIRECTORY_NEITHER;
        return origin_directory_left_out(err);
    }
    return ERR_OK;
}

// Looks into one folder, until a file is found.
static enum err probe_folder(int root_fd, const char *path, struct buf *folders, bool *ret_found)
{
    DIR *dir = NULL;
    enum err err = origin_directory_file_names(
        origin_directory_file_open_blocking(root_fd, path, O_RDONLY | O_DIRECTORY), path, &dir);
    if (err != ERR_OK) {
        return origin_directory_left_out(err);
    }
    struct dirent *entry = NULL;
    while (!*ret_found && err == ERR_OK &&
           (err = origin_directory_file_next(dir, path, &entry)) == ERR_OK && entry != NULL) {
        err = probe_entry(root_fd, path, entry, folders, ret_found);
    }
    (void)closedir(dir);
    return origin_directory_left_out(err);
}

enum err origin_directory_folder_has_file(int root_fd, const char *path, bool *ret_found)
{
    struct buf folders, current;
    enum err err = ERR_OK;
    buf_init(&folders, 1u << 20);
    buf_init(&current, 4096);
    buf_append(&folders, path, strlen(path) + 1);
    *ret_found = false;
    while (err == ERR_OK && !*ret_found && buf_ok(&folders) && folders.len > 0) {
        size_t start = folders.len - 1;
        while (start > 0 && folders.ptr[start - 1] != '\0') {
            start--;
        }
        current.len = 0;
        buf_append(&current, folders.ptr + start, folders.len - 1 - start);
        folders.len = start;
        err = probe_folder(root_fd, buf_cstr(&current), &folders, ret_found);
    }
    *ret_found = *ret_found || !buf_ok(&folders);
    buf_done(&current);
    buf_done(&folders);
    return err;
}

// Returns true if openat2 treats the component as a plain name.
static bool piece_is_valid(struct span piece)
{
    return piece.len > 0 && !span_equal_cstr(piece, ".") && !span_equal_cstr(piece, "..");
}

bool origin_directory_bucket_is_valid(struct span bucket)
{
    return bucket.len > 0 && bucket.len <= 255 && bucket.ptr[0] != '.' &&
           memchr(bucket.ptr, '/', bucket.len) == NULL &&
           memchr(bucket.ptr, '\0', bucket.len) == NULL;
}

bool origin_directory_key_is_valid(struct span key)
{
    if (key.len == 0 || key.len > S3_KEY_MAX || memchr(key.ptr, '\0', key.len) != NULL) {
        return false;
    }
    size_t start = 0;
    for (size_t i = 0; i <= key.len; i++) {
        if (i == key.len || key.ptr[i] == '/') {
            if (!piece_is_valid((struct span){key.ptr + start, i - start})) {
                return false;
            }
            start = i + 1;
        }
    }
    return true;
}

char *origin_directory_file_path(struct arena *arena, struct span bucket, struct span key)
{
    if (!origin_directory_bucket_is_valid(bucket) || !origin_directory_key_is_valid(key)) {
        return NULL;
    }
    char *path = arena_alloc(arena, bucket.len + 1 + key.len + 1);
    if (path != NULL) {
        memcpy(path, bucket.ptr, bucket.len);
        path[bucket.len] = '/';
        memcpy(path + bucket.len + 1, key.ptr, key.len);
        path[bucket.len + 1 + key.len] = '\0';
    }
    return path;
}

void origin_directory_file_etag(const struct statx *stat, char *ret_etag)
{
    uint64_t words[6] = {stat->stx_size,          (uint64_t)stat->stx_mtime.tv_sec,
                         stat->stx_mtime.tv_nsec, (uint64_t)stat->stx_ctime.tv_sec,
                         stat->stx_ctime.tv_nsec, stat->stx_ino};
    struct span piece = {(const char *)words, sizeof(words)};
    struct hash128 hash = hash128_of(&piece, 1, 0);
    hex_encode(&hash, sizeof(hash), ret_etag);
    memcpy(ret_etag + 32, "-1", 3);
}

bool origin_directory_file_same(const struct statx *a, const struct statx *b)
{
    return a->stx_size == b->stx_size && a->stx_ino == b->stx_ino &&
           a->stx_mtime.tv_sec == b->stx_mtime.tv_sec &&
           a->stx_mtime.tv_nsec == b->stx_mtime.tv_nsec &&
           a->stx_ctime.tv_sec == b->stx_ctime.tv_sec &&
           a->stx_ctime.tv_nsec == b->stx_ctime.tv_nsec;
}

static int64_t age_us(const struct statx_timestamp *t, uint64_t now_wall_us)
{
    if (t->tv_sec < 0 || t->tv_sec > INT64_MAX / 4000000) {
        return INT64_MAX; // no clock shows such a time
    }
    return (int64_t)now_wall_us - (t->tv_sec * 1000000 + (int64_t)t->tv_nsec / 1000);
}

bool origin_directory_file_too_young(const struct statx *stat, uint64_t now_wall_us)
{
    // The ctime comes from the file server's clock. If it is in our future, that clock is ahead, so
    // the age is unknown and the file counts as young. Users can set mtime to any value, so it
    // counts only if it is near our time.
    int64_t changed = age_us(&stat->stx_ctime, now_wall_us);
    int64_t modified = age_us(&stat->stx_mtime, now_wall_us);
    return changed < (int64_t)YOUNG_US ||
           (modified < (int64_t)YOUNG_US && modified > -(int64_t)YOUNG_US);
}

enum err origin_directory_error(int errno_value)
{
    switch (errno_value) {
    case ENOENT:
    case ENOTDIR:
    case ELOOP:
    case EXDEV: // a symbolic link leads out of the tree
    case ENAMETOOLONG:
    case EISDIR:
    case ENXIO: // a socket, or a pipe without a writer
    case ENODEV:
        return ERR_NO_SUCH_KEY;
    case EACCES:
    case EPERM:
        return ERR_ACCESS_DENIED;
    case ESTALE:
        return ERR_ORIGIN_CHANGED;
    case EMFILE:
    case ENFILE:
        return ERR_LIMIT;
    case ENOMEM:
        return ERR_NO_MEMORY;
    default:
        return ERR_ORIGIN_5XX; // the tree itself fails: an I/O error, or an unreachable file server
    }
}

enum err origin_directory_tree_error(int errno_value, const char *path)
{
    enum err err = origin_directory_error(errno_value);
    if (err != ERR_NO_SUCH_KEY) {
        log_warn_condition("directory_not_listed", "path=%s errno=%d",
                           log_key(span_from_cstr(path)), errno_value);
    }
    return err == ERR_ORIGIN_CHANGED ? ERR_ORIGIN_5XX : err;
}

enum err origin_directory_left_out(enum err err)
{
    return err == ERR_NO_SUCH_KEY || err == ERR_ACCESS_DENIED ? ERR_OK : err;
}

static const struct content_type {
    const char *extension, *type;
} content_types[] = {
    {"arrow", "application/vnd.apache.arrow.file"},
    {"avro", "application/avro"},
    {"bz2", "application/x-bzip2"},
    {"css", "text/css"},
    {"csv", "text/csv"},
    {"flac", "audio/flac"},
    {"gif", "image/gif"},
    {"gz", "application/gzip"},
    {"htm", "text/html"},
    {"html", "text/html"},
    {"jpeg", "image/jpeg"},
    {"jpg", "image/jpeg"},
    {"js", "text/javascript"},
    {"json", "application/json"},
    {"md", "text/markdown"},
    {"mp3", "audio/mpeg"},
    {"mp4", "video/mp4"},
    {"parquet", "application/vnd.apache.parquet"},
    {"pdf", "application/pdf"},
    {"png", "image/png"},
    {"svg", "image/svg+xml"},
    {"tar", "application/x-tar"},
    {"tif", "image/tiff"},
    {"tiff", "image/tiff"},
    {"tsv", "text/tab-separated-values"},
    {"txt", "text/plain"},
    {"wav", "audio/x-wav"},
    {"webm", "video/webm"},
    {"webp", "image/webp"},
    {"xml", "application/xml"},
    {"yaml", "application/yaml"},
    {"yml", "application/yaml"},
    {"zip", "application/zip"},
    {"zst", "application/zstd"},
};

struct span origin_directory_content_type(struct span key)
{
    for (size_t i = key.len; i > 0 && key.ptr[i - 1] != '/'; i--) {
        if (key.ptr[i - 1] != '.') {
            continue;
        }
        struct span extension = {key.ptr + i, key.len - i};
        for (size_t row = 0; row < ARRAY_LEN(content_types); row++) {
            if (span_equal_nocase(extension, span_from_cstr(content_types[row].extension))) {
                return span_from_cstr(content_types[row].type);
            }
        }
        break;
    }
    return SPAN("binary/octet-stream");
}
