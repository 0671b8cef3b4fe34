// SPDX-License-Identifier: Apache-2.0
// The cache directory. Used at start and stop, and by the supply thread and the blocking pool,
// which rewrite `format`. Never on a worker.
//
//   lock      the process holds flock() on this file and on the directory itself
//   format    text, replaced by rename; see below
//   index/    LMDB's files, and the file `bad` if the next start must drop the index
//   segments/ 00000001.seg ...
//   pins      the pins that operators have set (state_pins.c); renamed to `pins.bad` if damaged
//   origin    the default origin of the last start (state_origin.c)
//   policy    what the policy has learnt (retention_state.c); without it, it begins to learn again
//   condemned written by an earlier version only (state_condemned.c)
//
// A crash before a rename leaves a file whose name ends in `.new`. `policy.map` has no name while a
// process uses it (retention_region.c). The socket `admin.sock` is also here by default.
//
// `format` has one "name value" per line, in this order. Its last line is the CRC32C of all lines
// before that:
//
//   forebay-cache 2            format version; 3 while there are lines of condemned keys, 4 if
//                              there ever was a line of a former holder
//   id <32 hex>                creation id, repeated in segments and index
//   hash-key <16 hex>          seeds the hash of (realm, bucket, key)
//   segment-size <bytes>
//   next-segment <number>      lower ones may have been used
//   next-generation <number>   lower ones may have been used
//   boot-id <text>[+<number>]  the boot that opened the cache last; how many boots ended without a
//                              clean stop
//   state open|clean
//   index-txn <number>         an index whose last transaction is lower is an old copy
//   other-epochs <number>      the epoch of all buckets without a line of their own, if not 0
//   epoch <32 hex> <number>    the epoch of one bucket; the first value is its name's keyed hash
//   holders <number>           numbers of holders up to this may have been used
//   holder <32 hex> <number>   the number of one holder; the first value is its name's keyed hash
//   other-doubts <until ms> <0|1>     the doubt of all buckets without a line of their own, if any
//   doubt <32 hex> <until ms> <0|1>   the doubt of one bucket, by its name's keyed hash; 1: writes
//                              to it are in progress
//   other-condemned <number>   runs of all keys below this generation are wrong, wherever found
//   condemned <32 hex> <number>       the same for one key, by the keyed hash in its runs
//   other-former 1             there was a line of a former holder
//   former <32 hex> <number>   the number of a holder that starts named before, but no longer
//   append <number> <offset> <units> <runs> <rows> <table>
//                              after a clean stop, for each segment that the next process may
//                              continue: its content, and the id of its table (segment_table.c)
//   checksum <8 hex>
//
// state_table.def lists the kinds of the lines from `other-epochs` to `former`.
//
// Forebay refuses, and never overwrites, a directory with a `format` of another version or of
// another program. It also refuses a non-empty directory without `format`, because that belongs to
// somebody. Version 1 had no tables of runs.
//
// Other users can change the directory if another user owns it or others may write to it. A
// Kubernetes emptyDir is both. The entries above are then in its folder `forebay`, which belongs to
// this user and is closed to others. Others can still remove or rename the folder as a whole, but
// they cannot change its content. This process is not affected, because it keeps its files open. If
// others put another folder in its place, the next start refuses that.
#include "store/disk/store_dir.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/host.h"
#include "base/log.h"
#include "base/random.h"
#include "loop/loop.h"
#include "store/disk/store_links.h"

#define FORMAT_BYTES_MAX 131072u
#define OTHER_ENTRIES_MAX 10000u

// --- format

static_assert(STORE_FORMAT_VERSION_MIN < STORE_FORMAT_VERSION_CONDEMNED &&
                  STORE_FORMAT_VERSION_CONDEMNED < STORE_FORMAT_VERSION_MAX,
              "an earlier program refuses it");
// The longest row name has 9 bytes. The six numbers of an "append" line have up to 10 digits each.
static_assert(1024 + STATE_ROWS * (9 + 33 + 21 + 3) + STORE_APPEND_MAX * (6 + 66 + 1) <=
                  FORMAT_BYTES_MAX,
              "the longest text fits");

void store_format_render(const struct store_format *format, struct buf *out)
{
    char id[2 * CACHE_ID_LEN + 1];
    hex_encode(format->cache_id, CACHE_ID_LEN, id);
    size_t begin = out->len;
    check(format->append_count <= STORE_APPEND_MAX);
    check(memchr(format->boot_id, 0, sizeof(format->boot_id)) != NULL);
    check(format->segment_size_bytes > 0 && format->segment_size_bytes <= SEGMENT_SIZE_MAX);
    bool has_condemned = state_table_has(&format->state, STATE_CONDEMNED);
    unsigned version = state_table_has(&format->state, STATE_FORMER) ? STORE_FORMAT_VERSION_MAX
                       : has_condemned ? STORE_FORMAT_VERSION_CONDEMNED
                                       : STORE_FORMAT_VERSION_MIN;
    buf_printf(out, "forebay-cache %u\n", version);
    buf_printf(out, "id %s\n", id);
    buf_printf(out, "hash-key %016llx\n", (unsigned long long)format->hash_key);
    buf_printf(out, "segment-size %u\n", format->segment_size_bytes);
    buf_printf(out, "next-segment %u\n", format->next_segment);
    buf_printf(out, "next-generation %llu\n", (unsigned long long)format->next_generation);
    buf_printf(out, "boot-id %s", format->boot_id);
    if (format->cuts > 0) { // left out if 0, because older versions read this line too
        buf_printf(out, "+%u", format->cuts);
    }
    buf_append_cstr(out, "\n");
    buf_printf(out, "state %s\n", format->clean ? "clean" : "open");
    buf_printf(out, "index-txn %llu\n", (unsigned long long)format->index_txn);
    state_table_render(&format->state, out);
    for (unsigned i = 0; i < format->append_count; i++) {
        const struct store_append *a = &format->append[i];
        buf_printf(out, "append %u %u %u %u %u %u\n", a->number, a->offset, a->unit_count,
                   a->run_count, a->row_count, a->table_id);
    }
    if (buf_ok(out)) {
        buf_printf(out, "checksum %08x\n", disk_crc32c(out->ptr + begin, out->len - begin));
    }
}

static bool format_u64(struct span *rest, const char *name, uint64_t max, uint64_t *ret_value)
{
    struct span value;
    return disk_format_line(rest, name, &value) && span_to_u64(value, ret_value) &&
           *ret_value <= max;
}

static bool format_append(struct span value, struct store_append *ret_append)
{
    uint64_t n[6];
    for (unsigned i = 0; i < ARRAY_LEN(n); i++) {
        struct span word;
        if (!span_split(&value, ' ', &word) || !span_to_u64(word, &n[i]) || n[i] > UINT32_MAX) {
            return false;
        }
    }
    *ret_append = (struct store_append){(uint32_t)n[0], (uint32_t)n[1], (uint32_t)n[2],
                                        (uint32_t)n[3], (uint32_t)n[4], (uint32_t)n[5]};
    return value.ptr == NULL;
}

static void format_boot_id(struct span value, struct store_format *ret_format)
{
    check(value.len <= STORE_BOOT_ID_MAX);
    struct span word;
    uint64_t cuts = 0;
    if (span_split(&value, '+', &word) && value.ptr != NULL && !span_to_u64(value, &cuts)) {
        cuts = 0;
    }
    memcpy(ret_format->boot_id, word.ptr, word.len);
    ret_format->cuts = (uint8_t)cuts;
}

// Returns true if no number of the kind's rows is above the highest one that was ever assigned.
static bool holders_are_right(struct state_table *state, enum state_kind kind)
{
    const struct state_row *rows = state_table_rows(state, kind);
    for (unsigned i = 0; i < state->count[kind]; i++) {
        if (rows[i].number > state->others[STATE_HOLDERS].number) {
            return false;
        }
    }
    return true;
}

static bool format_checksum_is_right(struct span text, struct span *ret_body)
{
    const size_t line = sizeof("checksum 00000000\n") - 1;
    if (text.len < line) {
        return false;
    }
    struct span body = {text.ptr, text.len - line};
    char expected[32];
    int len =
        snprintf(expected, sizeof(expected), "checksum %08x\n", disk_crc32c(body.ptr, body.len));
    check(len == (int)line);
    *ret_body = body;
    return span_equal_cstr((struct span){text.ptr + body.len, line}, expected);
}

enum err store_format_parse(struct span text, struct store_format *ret_format)
{
    struct span rest;
    struct store_format f = {0};
    uint64_t version, segment_size, next_segment;
    struct span id, hash_key, boot_id, state, append;
    uint8_t key[8];
    if (!format_checksum_is_right(text, &rest) ||
        !format_u64(&rest, "forebay-cache", STORE_FORMAT_VERSION_MAX, &version) ||
        version < STORE_FORMAT_VERSION_MIN || !disk_format_line(&rest, "id", &id) ||
        !hex_decode(id, f.cache_id, CACHE_ID_LEN) ||
        !disk_format_line(&rest, "hash-key", &hash_key) ||
        !hex_decode(hash_key, key, sizeof(key)) ||
        !format_u64(&rest, "segment-size", SEGMENT_SIZE_MAX, &segment_size) ||
        !format_u64(&rest, "next-segment", UINT32_MAX, &next_segment) ||
        !format_u64(&rest, "next-generation", STATE_NUMBER_MAX, &f.next_generation) ||
        !disk_format_line(&rest, "boot-id", &boot_id) || boot_id.len > STORE_BOOT_ID_MAX ||
        !disk_format_line(&rest, "state", &state) ||
        !format_u64(&rest, "index-txn", UINT64_MAX, &f.index_txn)) {
        return ERR_FORMAT;
    }
    if (!state_table_parse(&rest, &f.state) || !holders_are_right(&f.state, STATE_HOLDERS) ||
        !holders_are_right(&f.state, STATE_FORMER)) {
        return ERR_FORMAT;
    }
    while (f.append_count < STORE_APPEND_MAX && disk_format_line(&rest, "append", &append)) {
        if (!format_append(append, &f.append[f.append_count])) {
            return ERR_FORMAT;
        }
        f.append_count++;
    }
    bool ours = rest.len == 0 && segment_size > 0 &&
                (segment_size >= SEGMENT_SIZE_MIN || segment_size == disk_segment_size_fixed()) &&
                (segment_size & (segment_size - 1)) == 0 &&
                (span_equal_cstr(state, "clean") || span_equal_cstr(state, "open"));
    if (!ours) {
        return ERR_FORMAT;
    }
    f.clean = span_equal_cstr(state, "clean");
    f.segment_size_bytes = (uint32_t)segment_size;
    f.next_segment = (uint32_t)next_segment;
    f.hash_key = disk_u64_of_bytes(key);
    format_boot_id(boot_id, &f);
    *ret_format = f;
    return ERR_OK;
}

void store_boot_id(char ret_boot_id[STORE_BOOT_ID_MAX + 1])
{
    memset(ret_boot_id, 0, STORE_BOOT_ID_MAX + 1);
    (void)host_read_file("/proc/sys/kernel/random/boot_id", ret_boot_id, STORE_BOOT_ID_MAX + 1);
    size_t len = strlen(ret_boot_id);
    while (len > 0 && (ret_boot_id[len - 1] == '\n' || ret_boot_id[len - 1] == ' ')) {
        ret_boot_id[--len] = '\0';
    }
    if (len == 0) {
        memcpy(ret_boot_id, "unknown", sizeof("unknown"));
    }
    check(ret_boot_id[0] != 0 && ret_boot_id[STORE_BOOT_ID_MAX] == 0);
}

static enum err dir_refused(struct store_dir *dir, int errno_value)
{
    check(errno_value > 0);
    dir->failed_errno = errno_value;
    return error_from_errno(errno_value);
}

enum err store_dir_write_format(struct store_dir *dir)
{
    check(dir->fd >= 0 && dir->lock_fd >= 0); // the lock keeps other processes from writing it
    struct buf text;
    buf_init(&text, FORMAT_BYTES_MAX);
    pthread_mutex_lock(&dir->condemned_lock);
    store_format_render(&dir->format, &text);
    pthread_mutex_unlock(&dir->condemned_lock);
    check(buf_ok(&text));
    enum err err = ERR_OK;
    int fd = openat(dir->fd, "format.new",
                    O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0) {
        err = dir_refused(dir, errno);
        goto out;
    }
    ssize_t written = write(fd, text.ptr, text.len);
    if (written != (ssize_t)text.len) {
        err = written < 0 ? dir_refused(dir, errno) : ERR_DISK_FULL;
    } else if (fsync(fd) != 0) {
        err = dir_refused(dir, errno);
    }
    if (close(fd) != 0 && err == ERR_OK) {
        err = dir_refused(dir, errno);
    }
    if (err == ERR_OK && renameat(dir->fd, "format.new", dir->fd, "format") != 0) {
        err = dir_refused(dir, errno);
    }
    if (err != ERR_OK) {
        (void)unlinkat(dir->fd, "format.new", 0); // it may not exist
    } else if (fsync(dir->fd) != 0 &&
               errno != EINVAL) { // EINVAL: this file system cannot sync folders
        err = dir_refused(dir, errno);
    }
out:
    buf_done(&text);
    return err;
}

// Returns the version in a `format` of Forebay. Returns 0 if it is not a `format` of Forebay.
static uint64_t format_version(struct span text)
{
    struct span rest;
    uint64_t version;
    bool ours = format_checksum_is_right(text, &rest) &&
                format_u64(&rest, "forebay-cache", UINT32_MAX, &version);
    return ours ? version : 0;
}

// Reads `format`, at most FORMAT_BYTES_MAX. O_NONBLOCK, so that a pipe of that name cannot block.
// Returns 0 or an errno value.
static int format_read(int dir_fd, char *ret_text, size_t *ret_len, bool *ret_is_there)
{
    check(dir_fd >= 0);
    int fd = openat(dir_fd, "format", O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    *ret_is_there = fd >= 0;
    if (fd < 0) {
        return errno;
    }
    ssize_t len = read(fd, ret_text, FORMAT_BYTES_MAX);
    int errno_value = len < 0 ? errno : 0;
    (void)close(fd); // nothing was written, so an error loses nothing
    *ret_len = len < 0 ? 0 : (size_t)len;
    check(*ret_len <= FORMAT_BYTES_MAX);
    return errno_value;
}

unsigned store_dir_version(int fd)
{
    char text[FORMAT_BYTES_MAX];
    size_t len;
    bool is_there;
    return format_read(fd, text, &len, &is_there) == 0
               ? (unsigned)format_version((struct span){text, len})
               : 0;
}

static enum err dir_read_format(struct store_dir *dir, struct buf *ret_why)
{
    check(dir->lock_fd >= 0); // the lock keeps other processes from changing it
    char text[FORMAT_BYTES_MAX];
    size_t len = 0;
    int errno_value = format_read(dir->fd, text, &len, &dir->was_used);
    enum err err = errno_value == 0 ? store_format_parse((struct span){text, len}, &dir->format)
                                    : dir_refused(dir, errno_value);
    uint64_t version = err == ERR_FORMAT ? format_version((struct span){text, len}) : 0;
    bool is_older = version < STORE_FORMAT_VERSION_MIN;
    if (version != 0 && (is_older || version > STORE_FORMAT_VERSION_MAX)) {
        buf_printf(
            ret_why,
            "%s holds a cache of format version %llu, this program's is version %u: %s (what "
            "it held is fetched again), or choose another cache.dir",
            dir->path, (unsigned long long)version,
            is_older ? STORE_FORMAT_VERSION_MIN : STORE_FORMAT_VERSION_MAX,
            is_older ? "empty it with `forebay prepare DIR --wipe-older`"
                     : "remove the directory to start with an empty cache");
    } else if (err == ERR_FORMAT) {
        buf_printf(ret_why,
                   "%s/format is not one this version understands: choose another cache.dir, or "
                   "remove the directory to start with an empty cache",
                   dir->path);
    }
    return err;
}

bool store_dir_other(int fd, bool (*skip)(const char *name), char ret_name[NAME_MAX + 1])
{
    check(fd >= 0 && skip != NULL);
    int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *folder = again >= 0 ? fdopendir(again) : NULL;
    bool found = false;
    if (folder == NULL) {
        if (again >= 0) {
            (void)close(again); // nothing was written, so an error loses nothing
        }
        return false;
    }
    for (struct dirent *e = readdir(folder); e != NULL && !found; e = readdir(folder)) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && !skip(e->d_name)) {
            (void)snprintf(ret_name, NAME_MAX + 1, "%s", e->d_name);
            found = true;
        }
    }
    (void)closedir(folder); // nothing was written, so an error loses nothing
    return found;
}

static bool skip_in_empty(const char *name)
{
    return strcmp(name, "lost+found") == 0 || strcmp(name, "lock") == 0 ||
           strcmp(name, "format.new") == 0 || strcmp(name, "admin.sock") == 0;
}

bool store_dir_is_foreign(int fd, char ret_name[NAME_MAX + 1])
{
    return store_dir_other(fd, skip_in_empty, ret_name);
}

// Refuses a non-empty directory without `format`. Called before this process creates anything.
// Looks for `format` last, because another process that starts now creates it first.
static enum err dir_refuse_foreign(const struct store_dir *dir, struct buf *ret_why)
{
    check(dir->lock_fd < 0 && dir->index_fd < 0);
    struct stat st;
    char name[NAME_MAX + 1];
    bool has_folders = fstatat(dir->fd, "segments", &st, AT_SYMLINK_NOFOLLOW) == 0 ||
                       fstatat(dir->fd, "index", &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (!store_dir_is_foreign(dir->fd, name) ||
        fstatat(dir->fd, "format", &st, AT_SYMLINK_NOFOLLOW) == 0) {
        return ERR_OK;
    }
    if (has_folders) {
        buf_printf(ret_why,
                   "%s holds segments or index but no file format, so it is no cache of this "
                   "version: choose another cache.dir, or remove the directory",
                   dir->path);
    } else {
        buf_printf(ret_why,
                   "%s is not empty (it contains \"%s\") and is not a Forebay cache: set cache.dir "
                   "to an empty directory or to one that does not exist",
                   dir->path, name);
    }
    return ERR_FORMAT;
}

static enum err dir_make_format(struct store_dir *dir)
{
    check(!dir->was_used && dir->lock_fd >= 0);
    struct store_format *f = &dir->format;
    *f = (struct store_format){.segment_size_bytes = SEGMENT_SIZE_MIN,
                               .next_segment = 1,
                               .next_generation = 1,
                               .clean = true};
    random_bytes(f->cache_id, CACHE_ID_LEN);
    f->hash_key = random_u64();
    store_boot_id(f->boot_id);
    dir->fresh = true;
    return store_dir_write_format(dir);
}

// --- opening

static enum err dir_make_path(struct store_dir *dir)
{
    char *path = dir->path;
    check(path[0] != '\0');
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        int failed = mkdir(path, 0755) != 0 && errno != EEXIST ? errno : 0;
        *slash = '/';
        if (failed != 0 && failed != EACCES && failed != EROFS) {
            return dir_refused(dir, failed);
        }
    }
    return mkdir(path, 0700) != 0 && errno != EEXIST ? dir_refused(dir, errno) : ERR_OK;
}

static bool folder_is_ours(const struct stat *st, mode_t closed)
{
    return S_ISDIR(st->st_mode) && st->st_uid == geteuid() && (st->st_mode & closed) == 0;
}

static enum err dir_make_private(struct store_dir *dir, const struct stat *outer,
                                 struct buf *ret_why)
{
    struct stat st;
    check(dir->fd >= 0 && ret_why != NULL);
    if (fstatat(dir->fd, "format", &st, AT_SYMLINK_NOFOLLOW) == 0) {
        buf_printf(ret_why,
                   "%s holds a cache that others may change (owner %u, mode %04o): make it this "
                   "user's alone (chown, chmod 700), or empty it",
                   dir->path, (unsigned)outer->st_uid, (unsigned)outer->st_mode & 07777);
        return ERR_FORMAT;
    }
    if (mkdirat(dir->fd, STORE_DIR_PRIVATE, 0700) != 0 && errno != EEXIST) {
        return dir_refused(dir, errno);
    }
    return ERR_OK;
}

// Enters the private folder if the directory needs one, or has one from an earlier start.
static enum err dir_enter_private(struct store_dir *dir, struct buf *ret_why)
{
    check(dir->fd >= 0 && dir->lock_fd < 0);
    struct stat outer, inner, format;
    if (fstat(dir->fd, &outer) != 0) {
        return dir_refused(dir, errno);
    }
    if (folder_is_ours(&outer, S_IWGRP | S_IWOTH)) {
        bool has_inner = fstatat(dir->fd, STORE_DIR_PRIVATE, &inner, AT_SYMLINK_NOFOLLOW) == 0 &&
                         fstatat(dir->fd, STORE_DIR_PRIVATE "/format", &format, 0) == 0 &&
                         fstatat(dir->fd, "format", &format, AT_SYMLINK_NOFOLLOW) != 0;
        if (!has_inner) {
            return ERR_OK;
        }
    } else {
        enum err err = dir_make_private(dir, &outer, ret_why);
        if (err != ERR_OK) {
            return err;
        }
    }
    int fd = openat(dir->fd, STORE_DIR_PRIVATE, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &inner) != 0 || !folder_is_ours(&inner, 077)) {
        buf_printf(ret_why,
                   "%s/" STORE_DIR_PRIVATE
                   " is not a folder that belongs to this user and is closed "
                   "to others: remove it, or choose another cache.dir",
                   dir->path);
        if (fd >= 0) {
            (void)close(fd); // nothing was written, so an error loses nothing
        }
        return ERR_FORMAT;
    }
    (void)close(dir->fd); // nothing was written, so an error loses nothing
    dir->fd = fd;
    size_t size = strlen(dir->path) + sizeof("/" STORE_DIR_PRIVATE);
    char *path = malloc(size);
    check(path != NULL);
    (void)snprintf(path, size, "%s/" STORE_DIR_PRIVATE, dir->path);
    free(dir->path);
    dir->path = path;
    return ERR_OK;
}

static enum err dir_open_folder(struct store_dir *dir, const char *name, int *ret_fd)
{
    check(dir->fd >= 0 && *ret_fd < 0);
    if (mkdirat(dir->fd, name, 0700) != 0 && errno != EEXIST) {
        return dir_refused(dir, errno);
    }
    int fd = openat(dir->fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        return dir_refused(dir, errno);
    }
    *ret_fd = fd;
    return ERR_OK;
}

// Locks both the file and the folder. Somebody who cleans up may remove the file, but not a folder
// that is not empty. Some file systems, however, cannot lock folders. Cleaners like
// systemd-tmpfiles skip the content of a locked folder.
static enum err dir_lock(struct store_dir *dir, struct buf *ret_why)
{
    check(dir->fd >= 0 && dir->lock_fd < 0);
    dir->lock_fd = openat(dir->fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (dir->lock_fd < 0) {
        return dir_refused(dir, errno);
    }
    bool folder_is_taken = flock(dir->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (folder_is_taken || flock(dir->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (!folder_is_taken && errno != EWOULDBLOCK) {
            return dir_refused(dir, errno);
        }
        buf_printf(
            ret_why,
            "%s is in use by another process: stop it, or give this one a cache.dir of its own",
            dir->path);
        return ERR_IN_USE;
    }
    // Needed if admin.socket is in this directory, which is the default.
    unix_socket_folder_is_locked(dir->fd);
    return ERR_OK;
}

enum err store_dir_open(struct store_dir *dir, const char *path, struct buf *ret_why)
{
    *dir = (struct store_dir){.fd = -1, .lock_fd = -1, .segments_fd = -1, .index_fd = -1};
    check(pthread_mutex_init(&dir->format_lock, NULL) == 0);
    check(pthread_mutex_init(&dir->condemned_lock, NULL) == 0);
    dir->path = strdup(path);
    check(dir->path != NULL);
    enum err err = dir_make_path(dir);
    if (err != ERR_OK) {
        goto out;
    }
    dir->fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir->fd < 0) {
        err = dir_refused(dir, errno);
        goto out;
    }
    err = dir_enter_private(dir, ret_why);
    if (err == ERR_OK) {
        err = store_links_refuse(dir->fd, dir->path, ret_why);
    }
    if (err == ERR_OK) {
        err = dir_refuse_foreign(dir, ret_why);
    }
    if (err == ERR_OK) {
        err = dir_lock(dir, ret_why);
    }
    if (err == ERR_OK) {
        err = dir_read_format(dir, ret_why);
    }
    if (err == ERR_NOT_FOUND) {
        err = dir_make_format(dir);
    }
    if (err == ERR_OK) {
        err = dir_open_folder(dir, "index", &dir->index_fd);
    }
    if (err == ERR_OK) {
        err = dir_open_folder(dir, "segments", &dir->segments_fd);
    }
    check(err != ERR_OK || (dir->index_fd >= 0 && dir->segments_fd >= 0));
out:
    if (err != ERR_OK && err != ERR_IN_USE && err != ERR_FORMAT) {
        struct stat st;
        dir->was_used |= dir->fd >= 0 && fstatat(dir->fd, "format", &st, AT_SYMLINK_NOFOLLOW) == 0;
        buf_printf(ret_why, "%s: %s", path,
                   dir->failed_errno != 0 ? strerrordesc_np(dir->failed_errno)
                                          : error_row(err)->text);
    }
    check(err == ERR_OK || ret_why->len > 0 || !buf_ok(ret_why));
    return err;
}

static void fd_close(int *fd)
{
    if (*fd >= 0) {
        (void)close(*fd); // nothing was written, so an error loses nothing
        *fd = -1;
    }
}

static void dir_unlock(struct store_dir *dir)
{
    if (dir->fd >= 0) {
        (void)flock(dir->fd, LOCK_UN); // some file systems cannot lock folders
        unix_socket_folder_is_locked(-1);
    }
    fd_close(&dir->lock_fd);
}

void store_dir_give_up(struct store_dir *dir)
{
    check(dir->segments_fd < 0 || dir->index_fd >= 0); // `index` is opened before `segments`
    if (dir->index_fd < 0) {
        dir_unlock(dir);
    }
}

void store_dir_leave(struct store_dir *dir)
{
    dir_unlock(dir);
    fd_close(&dir->segments_fd);
    fd_close(&dir->index_fd);
    fd_close(&dir->fd);
}

void store_dir_close(struct store_dir *dir)
{
    store_dir_leave(dir);
    if (dir->path != NULL) {                            // the directory was opened
        (void)pthread_mutex_destroy(&dir->format_lock); // no thread uses it any more
        (void)pthread_mutex_destroy(&dir->condemned_lock);
    }
    free(dir->path);
    dir->path = NULL;
}

// LMDB opens files only by path. If /proc exists, the path refers to the open descriptor. So nobody
// who can rename a parent folder can put another index in its place. The child process of
// index_verify.c uses the plain path, because it keeps no descriptors.
void store_dir_index_path(const struct store_dir *dir, struct buf *out)
{
    check(dir->path != NULL && dir->index_fd >= 0);
    char path[40];
    struct stat st;
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", dir->index_fd);
    if (stat(path, &st) == 0) {
        buf_append_cstr(out, path);
    } else {
        buf_printf(out, "%s/index", dir->path);
    }
}

// --- space

// Returns the disk usage of a folder's entries, except those that `skip` names.
static uint64_t folder_bytes(int at_fd, const char *name, bool (*skip)(const char *name),
                             unsigned *budget)
{
    check(skip != NULL && *budget <= OTHER_ENTRIES_MAX);
    int fd = openat(at_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (folder == NULL) {
        fd_close(&fd);
        return 0;
    }
    uint64_t bytes = 0;
    for (struct dirent *e = readdir(folder); e != NULL && *budget > 0; e = readdir(folder)) {
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || skip(e->d_name)) {
            continue;
        }
        (*budget)--;
        if (fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
            bytes += (uint64_t)st.st_blocks * 512;
        }
    }
    (void)closedir(folder); // nothing was written, so an error loses nothing
    return bytes;
}

static bool skip_ours(const char *name)
{
    return strcmp(name, "lock") == 0 || strcmp(name, "format") == 0;
}

static bool skip_segments(const char *name)
{
    size_t len = strlen(name);
    return len > 4 && strcmp(name + len - 4, ".seg") == 0;
}

uint64_t store_dir_other_bytes(const struct store_dir *dir)
{
    check(dir->fd >= 0);
    unsigned budget = OTHER_ENTRIES_MAX;
    uint64_t bytes = STORE_OVERHEAD_BYTES + folder_bytes(dir->fd, ".", skip_ours, &budget);
    return bytes + folder_bytes(dir->fd, "segments", skip_segments, &budget);
}

enum err store_dir_space(const struct store_dir *dir, struct store_space *ret_space)
{
    check(dir->fd >= 0);
    struct statvfs st;
    if (fstatvfs(dir->fd, &st) != 0) {
        return error_from_errno(errno);
    }
    *ret_space = (struct store_space){
        .free_bytes = (uint64_t)st.f_bavail * st.f_frsize,
        .size_bytes = (uint64_t)st.f_blocks * st.f_frsize,
        .free_inodes = st.f_favail,
        .has_inodes = st.f_files > 0,
    };
    return ERR_OK;
}

bool store_dir_is_removed(const struct store_dir *dir)
{
    const int fds[] = {dir->fd, dir->segments_fd, dir->index_fd};
    struct stat st;
    bool is_removed = false;
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        is_removed = is_removed || (fstat(fds[i], &st) == 0 && st.st_nlink == 0);
    }
    return is_removed;
}
