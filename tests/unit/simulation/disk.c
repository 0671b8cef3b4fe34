// SPDX-License-Identifier: Apache-2.0
// Wraps the C library's calls. The linker lets a program's functions take the place of the C
// library's also for calls from other libraries, such as LMDB.
#include "disk.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "life.h"
#include "schedule.h"

#define SECTOR 512u
#define PATH_MAX_LEN 1024u
#define FULL_CALLS 30u // calls that find the disk full before there is room again

#define REAL(name)                                                                                 \
    ({                                                                                             \
        static void *real_;                                                                        \
        if (real_ == NULL) {                                                                       \
            real_ = dlsym(RTLD_NEXT, #name);                                                       \
        }                                                                                          \
        __typeof__(&(name)) function_;                                                             \
        memcpy(&function_, &real_, sizeof(function_));                                             \
        function_;                                                                                 \
    })

struct inode { // a file or a folder
    struct inode *next;
    dev_t device;
    ino_t number;
    int fd;          // of our own
    bool has_failed; // a sync of it did: the kernel forgets what it could not write
};

// A write, or a change of the size, that is not synced.
struct change {
    struct change *before, *after; // in time
    struct inode *file;
    bool is_size, is_hole;
    bool is_durable; // on the disk all the same
    bool is_dropped; // no later sync brings it there
    uint64_t offset, len;
    uint64_t old_size, new_size;
    char *old_bytes, *new_bytes;
};

enum rename_kind { NAME_MADE, NAME_GONE, NAME_MOVED };

// A change of names that is not synced.
struct name_change {
    struct name_change *before;
    struct inode *folder;
    enum rename_kind kind;
    char name[64], new_name[64];
    char hidden[24]; // the file that had this name before; "": none
};

static struct {
    bool is_on;
    struct disk_plan plan;
    dev_t device;
    int hidden_fd;
    unsigned hidden_count;
    bool has_holes; // there may be some
    struct inode *inodes;
    struct change *first, *last;
    struct name_change *names;
    unsigned calls, refusals, syncs, full_left;
    bool has_lied;
} disk;

// --- holes

// Notes for later lives how much of a file has been given back: in a hidden file of that size.
static void hole_set(ino_t number, uint64_t len)
{
    char name[32];
    (void)snprintf(name, sizeof(name), "hole.%lu", (unsigned long)number);
    if (len == 0) {
        (void)REAL(unlinkat)(disk.hidden_fd, name, 0); // mostly there is none
        return;
    }
    int fd = REAL(openat)(disk.hidden_fd, name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    check(fd >= 0);
    check(REAL(ftruncate)(fd, (off_t)len) == 0);
    (void)close(fd); // it has no bytes
    disk.has_holes = true;
}

static uint64_t hole_of(ino_t number)
{
    char name[32];
    struct stat st;
    (void)snprintf(name, sizeof(name), "hole.%lu", (unsigned long)number);
    bool is_there = disk.has_holes && REAL(fstatat)(disk.hidden_fd, name, &st, 0) == 0;
    return is_there ? (uint64_t)st.st_size : 0;
}

// Files are sparse here. Their space is their size without the parts that were given back.
static void play_blocks(struct stat *st)
{
    if (disk.is_on && st->st_dev == disk.device && S_ISREG(st->st_mode)) {
        uint64_t size = (uint64_t)st->st_size;
        st->st_blocks = (blkcnt_t)((size - min_u64(size, hole_of(st->st_ino))) / SECTOR);
    }
}

int fstat(int fd, struct stat *st)
{
    int rc = REAL(fstat)(fd, st);
    if (rc == 0) {
        play_blocks(st);
    }
    return rc;
}

int fstatat(int folder_fd, const char *path, struct stat *st, int flags)
{
    int rc = REAL(fstatat)(folder_fd, path, st, flags);
    if (rc == 0) {
        play_blocks(st);
    }
    return rc;
}

// --- what is not synced

static struct inode *inode_of(int fd)
{
    struct stat st;
    if (!disk.is_on || fd <= STDERR_FILENO || REAL(fstat)(fd, &st) != 0 ||
        st.st_dev != disk.device || !(S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))) {
        return NULL;
    }
    for (struct inode *i = disk.inodes; i != NULL; i = i->next) {
        if (i->number == st.st_ino && i->device == st.st_dev) {
            return i;
        }
    }
    struct inode *made = calloc(1, sizeof(*made));
    check(made != NULL);
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    bool is_folder = S_ISDIR(st.st_mode);
    *made = (struct inode){disk.inodes, st.st_dev, st.st_ino,
                           REAL(open)(path, (is_folder ? O_RDONLY : O_RDWR) | O_CLOEXEC), false};
    check(made->fd >= 0);
    disk.inodes = made;
    return made;
}

static uint64_t size_of(const struct inode *file)
{
    struct stat st;
    check(fstat(file->fd, &st) == 0);
    return (uint64_t)st.st_size;
}

static char *bytes_of(const struct inode *file, uint64_t offset, uint64_t len)
{
    char *bytes = calloc(1, len + 1);
    check(bytes != NULL);
    check(REAL(pread)(file->fd, bytes, len, (off_t)offset) >= 0);
    return bytes;
}

static struct change *remember(struct inode *file, struct change what)
{
    struct change *change = malloc(sizeof(*change));
    check(change != NULL);
    *change = what;
    change->file = file;
    change->old_size = size_of(file);
    change->before = disk.last;
    *(disk.last != NULL ? &disk.last->after : &disk.first) = change;
    disk.last = change;
    return change;
}

static struct change *remember_write(struct inode *file, uint64_t offset, uint64_t len)
{
    return remember(
        file,
        (struct change){.offset = offset, .len = len, .old_bytes = bytes_of(file, offset, len)});
}

static void remember_size(struct inode *file, uint64_t new_size)
{
    uint64_t size = size_of(file);
    struct change change = {.is_size = true, .new_size = new_size, .offset = new_size};
    if (new_size < size) {
        change.len = size - new_size;
        change.old_bytes = bytes_of(file, new_size, change.len);
    }
    (void)remember(file, change);
}

static void change_free(struct change *change)
{
    *(change->before != NULL ? &change->before->after : &disk.first) = change->after;
    *(change->after != NULL ? &change->after->before : &disk.last) = change->before;
    free(change->old_bytes);
    free(change->new_bytes);
    free(change);
}

// Changes that a failed sync has dropped stay listed, and so do later writes over them, so that the
// power cut can distinguish the two.
static void file_synced(struct inode *file)
{
    struct change *next;
    for (struct change *c = disk.first; c != NULL; c = next) {
        next = c->after;
        if (c->file != file || c->is_dropped) {
            continue;
        }
        if (file->has_failed) {
            c->is_durable = true;
        } else {
            change_free(c);
        }
    }
}

static void file_sync_failed(struct inode *file)
{
    for (struct change *c = disk.first; c != NULL; c = c->after) {
        c->is_dropped |= c->file == file && !c->is_durable;
    }
    file->has_failed = true;
}

static void folder_synced(const struct inode *folder)
{
    for (struct name_change **at = &disk.names; *at != NULL;) {
        struct name_change *n = *at;
        if (n->folder != folder) {
            at = &n->before;
            continue;
        }
        *at = n->before;
        if (n->hidden[0] != '\0') {
            (void)REAL(unlinkat)(disk.hidden_fd, n->hidden, 0);
        }
        free(n);
    }
}

static struct name_change *remember_name(struct inode *folder, enum rename_kind kind,
                                         const char *name)
{
    struct name_change *n = calloc(1, sizeof(*n));
    check(n != NULL);
    n->before = disk.names;
    n->folder = folder;
    n->kind = kind;
    check(snprintf(n->name, sizeof(n->name), "%s", name) < (int)sizeof(n->name));
    disk.names = n;
    return n;
}

static int hide(struct name_change *n, const char *name)
{
    (void)snprintf(n->hidden, sizeof(n->hidden), "%u", disk.hidden_count++);
    return REAL(renameat)(n->folder->fd, name, disk.hidden_fd, n->hidden);
}

// --- the end

static void write_back(const struct inode *file, const char *bytes, uint64_t offset, uint64_t len)
{
    check(REAL(pwrite)(file->fd, bytes, len, (off_t)offset) == (ssize_t)len);
}

static void change_undo(struct change *c)
{
    if (c->is_hole) {
        hole_set(c->file->number, 0);
        return;
    }
    if (!c->is_size) {
        c->new_bytes = bytes_of(c->file, c->offset, c->len);
    }
    uint64_t stood = c->is_size                ? c->len
                     : c->old_size > c->offset ? min_u64(c->len, c->old_size - c->offset)
                                               : 0;
    if (c->old_bytes != NULL) {
        write_back(c->file, c->old_bytes, c->offset, stood);
    }
    check(REAL(ftruncate)(c->file->fd, (off_t)c->old_size) == 0);
}

static void change_redo(const struct change *c, bool is_torn)
{
    if (c->is_hole) {
        hole_set(c->file->number, c->len);
        return;
    }
    if (c->is_size) {
        check(REAL(ftruncate)(c->file->fd, (off_t)c->new_size) == 0);
        return;
    }
    for (uint64_t at = c->offset; at < c->offset + c->len;) {
        uint64_t end = min_u64(at / SECTOR * SECTOR + SECTOR, c->offset + c->len);
        if (!is_torn || schedule_random(2) == 0) {
            write_back(c->file, c->new_bytes + (at - c->offset), at, end - at);
        }
        at = end;
    }
}

static void name_undo(const struct name_change *n)
{
    int fd = n->folder->fd;
    if (n->kind == NAME_MADE) {
        (void)REAL(unlinkat)(fd, n->name, 0);
    } else if (n->kind == NAME_MOVED) {
        (void)REAL(renameat)(fd, n->new_name, fd, n->name);
    }
    if (n->hidden[0] != '\0') {
        (void)REAL(renameat)(disk.hidden_fd, n->hidden, fd,
                             n->kind == NAME_MOVED ? n->new_name : n->name);
    }
}

// Undoes the newest changes of each folder: a random number of them, or all.
static void names_cut(bool all)
{
    for (struct inode *folder = disk.inodes; folder != NULL; folder = folder->next) {
        bool is_kept = false;
        for (struct name_change *n = disk.names; n != NULL; n = n->before) {
            if (n->folder == folder) {
                is_kept = is_kept || (!all && schedule_random(2) == 0);
                if (!is_kept) {
                    name_undo(n);
                }
            }
        }
    }
}

static void power_cut(bool all)
{
    for (struct change *c = disk.last; c != NULL; c = c->before) {
        change_undo(c);
    }
    unsigned mood = schedule_random(4); // the losses of one cut have something in common
    for (struct change *c = disk.first; c != NULL; c = c->after) {
        unsigned fate = schedule_random(4);
        bool is_torn = !all && !c->is_durable && fate == 0 && mood != 3;
        bool is_kept = mood == 2 ? fate == 1 : fate != 1;
        if (c->is_durable || is_torn || (!all && is_kept)) {
            change_redo(c, is_torn);
        }
    }
    names_cut(all);
}

static void __attribute__((noreturn)) strike(void)
{
    disk.is_on = false;
    if (disk.plan.end != DISK_END_KILL) {
        power_cut(disk.plan.end == DISK_END_ALL);
    }
    life_end();
}

// Called before a call that changes something. False: the call fails, and errno says how.
static bool may_change(bool takes_room)
{
    if (++disk.calls == disk.plan.strike_at) {
        strike();
    }
    if (disk.plan.slow_per_k != 0 && schedule_random(1000) < disk.plan.slow_per_k) {
        schedule_sleep_us(1000 + schedule_random(30000000));
    }
    schedule_point(3);
    if (!disk.is_on) {
        return true;
    }
    if (disk.full_left > 0 ||
        (disk.plan.full_per_k != 0 && schedule_random(1000) < disk.plan.full_per_k)) {
        disk.full_left = disk.full_left > 0 ? disk.full_left - 1 : FULL_CALLS;
        if (takes_room) {
            disk.refusals++;
            errno = ENOSPC;
            return false;
        }
    }
    if (disk.plan.fail_per_k != 0 && schedule_random(1000) < disk.plan.fail_per_k) {
        disk.refusals++;
        errno = EIO;
        return false;
    }
    return true;
}

// --- writes

static bool is_lie(void)
{
    disk.syncs++;
    if (disk.plan.lie_at == 0 || disk.syncs < disk.plan.lie_at ||
        disk.syncs >= disk.plan.lie_at + disk.plan.lie_count) {
        return false;
    }
    disk.has_lied = true;
    return true;
}

static uint64_t iov_bytes(const struct iovec *iov, int count)
{
    uint64_t len = 0;
    for (int i = 0; i < count; i++) {
        len += iov[i].iov_len;
    }
    return len;
}

// False, with errno: the call fails. *ret_change is for write_ends(): the change has to be on disk
// when the call returns.
static bool write_begins(struct inode *file, int fd, uint64_t offset, uint64_t len,
                         struct change **ret_change)
{
    *ret_change = NULL;
    if (!may_change(offset + len > size_of(file))) {
        return false;
    }
    struct change *change = remember_write(file, offset, len);
    if ((fcntl(fd, F_GETFL) & O_DSYNC) != 0) {
        *ret_change = change;
    }
    return true;
}

static void write_ends(struct change *synced)
{
    if (synced != NULL) {
        if (++disk.calls == disk.plan.strike_at) {
            strike(); // on its way
        }
        synced->is_durable = !is_lie();
    }
}

ssize_t pwritev(int fd, const struct iovec *iov, int count, off_t offset)
{
    struct inode *file = inode_of(fd);
    struct change *synced = NULL;
    if (file != NULL && !write_begins(file, fd, (uint64_t)offset, iov_bytes(iov, count), &synced)) {
        return -1;
    }
    ssize_t written = REAL(pwritev)(fd, iov, count, offset);
    write_ends(synced);
    return written;
}

ssize_t pwrite(int fd, const void *buf, size_t len, off_t offset)
{
    struct inode *file = inode_of(fd);
    struct change *synced = NULL;
    if (file != NULL && !write_begins(file, fd, (uint64_t)offset, len, &synced)) {
        return -1;
    }
    ssize_t written = REAL(pwrite)(fd, buf, len, offset);
    write_ends(synced);
    return written;
}

ssize_t writev(int fd, const struct iovec *iov, int count)
{
    struct inode *file = inode_of(fd);
    struct change *synced = NULL;
    if (file != NULL &&
        !write_begins(file, fd, (uint64_t)lseek(fd, 0, SEEK_CUR), iov_bytes(iov, count), &synced)) {
        return -1;
    }
    ssize_t written = REAL(writev)(fd, iov, count);
    write_ends(synced);
    return written;
}

ssize_t write(int fd, const void *buf, size_t len)
{
    struct inode *file = inode_of(fd);
    struct change *synced = NULL;
    if (file != NULL && !write_begins(file, fd, (uint64_t)lseek(fd, 0, SEEK_CUR), len, &synced)) {
        return -1;
    }
    ssize_t written = REAL(write)(fd, buf, len);
    write_ends(synced);
    return written;
}

// Takes no real space, so that a seed is cheap. It is counted by size.
int fallocate(int fd, int mode, off_t offset, off_t len)
{
    struct inode *file = inode_of(fd);
    if (file == NULL) {
        return REAL(fallocate)(fd, mode, offset, len);
    }
    if (!may_change(mode == 0)) {
        return -1;
    }
    if (mode != 0) { // in what nobody has written
        check(mode == (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE));
        (void)remember(
            file,
            (struct change){.is_hole = true, .offset = (uint64_t)offset, .len = (uint64_t)len});
        hole_set(file->number, (uint64_t)len);
        return REAL(fallocate)(fd, mode, offset, len);
    }
    hole_set(file->number, 0); // its number may have been another's
    uint64_t end = (uint64_t)offset + (uint64_t)len;
    if (end <= size_of(file)) {
        return 0;
    }
    remember_size(file, end);
    return REAL(ftruncate)(fd, (off_t)end);
}

int ftruncate(int fd, off_t len)
{
    struct inode *file = inode_of(fd);
    if (file != NULL) {
        if (!may_change((uint64_t)len > size_of(file))) {
            return -1;
        }
        remember_size(file, (uint64_t)len);
    }
    return REAL(ftruncate)(fd, len);
}

// --- syncs

static int sync_file(int fd)
{
    struct inode *inode = inode_of(fd);
    if (inode == NULL) {
        return REAL(fdatasync)(fd);
    }
    if (!may_change(false)) {
        file_sync_failed(inode);
        errno = EIO;
        return -1;
    }
    if (!is_lie()) { // the real disk need not spin
        file_synced(inode);
        folder_synced(inode);
    }
    return 0;
}

int fdatasync(int fd)
{
    return sync_file(fd);
}

int fsync(int fd)
{
    return sync_file(fd);
}

// --- names

static bool is_below(int folder_fd, const char *path)
{
    struct stat st;
    return disk.is_on && strchr(path, '/') == NULL && fstat(folder_fd, &st) == 0 &&
           st.st_dev == disk.device;
}

static int open_there(int folder_fd, const char *path, int flags, mode_t mode)
{
    if (!is_below(folder_fd, path) || (flags & O_ACCMODE) == O_RDONLY) {
        return REAL(openat)(folder_fd, path, flags, mode);
    }
    bool is_made = (flags & O_CREAT) != 0 && faccessat(folder_fd, path, F_OK, 0) != 0;
    if ((is_made || (flags & O_TRUNC) != 0) && !may_change(is_made)) {
        return -1;
    }
    is_made = is_made && faccessat(folder_fd, path, F_OK, 0) != 0;
    int fd = REAL(openat)(folder_fd, path, flags & ~O_TRUNC, mode);
    if (fd >= 0 && is_made) {
        (void)remember_name(inode_of(folder_fd), NAME_MADE, path);
    } else if (fd >= 0 && (flags & O_TRUNC) != 0) {
        remember_size(inode_of(fd), 0);
        check(REAL(ftruncate)(fd, 0) == 0);
    }
    return fd;
}

static mode_t mode_of(int flags, va_list *args)
{
    return (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(*args, mode_t) : 0;
}

int openat(int folder_fd, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, &args);
    va_end(args);
    return open_there(folder_fd, path, flags, mode);
}

// LMDB opens its files by their paths.
int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, &args);
    va_end(args);
    const char *name = strrchr(path, '/');
    char folder[PATH_MAX_LEN];
    if (!disk.is_on || name == NULL || (size_t)(name - path) >= sizeof(folder) ||
        (flags & O_ACCMODE) == O_RDONLY) {
        return REAL(open)(path, flags, mode);
    }
    memcpy(folder, path, (size_t)(name - path));
    folder[name - path] = '\0';
    int folder_fd = REAL(open)(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder_fd < 0) {
        return REAL(open)(path, flags, mode);
    }
    int fd = open_there(folder_fd, name + 1, flags, mode);
    int failed = errno;
    (void)close(folder_fd); // only looked into
    errno = failed;
    return fd;
}

int unlinkat(int folder_fd, const char *name, int flags)
{
    if (!is_below(folder_fd, name) || (flags & AT_REMOVEDIR) != 0 ||
        faccessat(folder_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) != 0) {
        return REAL(unlinkat)(folder_fd, name, flags);
    }
    if (!may_change(false)) {
        return -1;
    }
    return hide(remember_name(inode_of(folder_fd), NAME_GONE, name), name);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    if (!is_below(from_fd, from) || !is_below(to_fd, to)) {
        return REAL(renameat)(from_fd, from, to_fd, to);
    }
    if (!may_change(false)) {
        return -1;
    }
    struct inode *folder = inode_of(from_fd);
    check(folder == inode_of(to_fd)); // the store moves nothing from folder to folder
    struct name_change *n = remember_name(folder, NAME_MOVED, from);
    check(snprintf(n->new_name, sizeof(n->new_name), "%s", to) < (int)sizeof(n->new_name));
    if (faccessat(to_fd, to, F_OK, AT_SYMLINK_NOFOLLOW) == 0 && hide(n, to) != 0) {
        return -1;
    }
    return REAL(renameat)(from_fd, from, to_fd, to);
}

// --- reads

static bool may_read(int fd)
{
    struct stat st;
    if (disk.is_on && disk.plan.read_fail_per_k != 0 && fstat(fd, &st) == 0 &&
        st.st_dev == disk.device && schedule_random(1000) < disk.plan.read_fail_per_k) {
        errno = EIO;
        return false;
    }
    return true;
}

ssize_t pread(int fd, void *buf, size_t len, off_t offset)
{
    return may_read(fd) ? REAL(pread)(fd, buf, len, offset) : -1;
}

ssize_t preadv(int fd, const struct iovec *iov, int count, off_t offset)
{
    return may_read(fd) ? REAL(preadv)(fd, iov, count, offset) : -1;
}

// --- for the test

void disk_begin(const char *dir, const struct disk_plan *plan)
{
    struct stat st;
    char hidden[PATH_MAX_LEN];
    check(stat(dir, &st) == 0);
    (void)snprintf(hidden, sizeof(hidden), "%s/../hidden", dir);
    (void)mkdir(hidden, 0700);
    disk.hidden_fd = REAL(open)(hidden, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    check(disk.hidden_fd >= 0);
    disk.device = st.st_dev;
    disk.has_holes = true; // of former lives
    disk.plan = *plan;
    disk.is_on = true;
}

void disk_is_bystander(void)
{
    disk.is_on = false;
}

void disk_strike(void)
{
    strike();
}

bool disk_has_lied(void)
{
    return disk.has_lied;
}

unsigned disk_refusals(void)
{
    return disk.refusals;
}

unsigned disk_calls(void)
{
    return disk.calls;
}

static uint64_t counted_bytes;

static int on_counted(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)path;
    (void)ftw;
    if (kind == FTW_F) {
        counted_bytes +=
            (uint64_t)st->st_size - min_u64((uint64_t)st->st_size, hole_of(st->st_ino));
    }
    return 0;
}

uint64_t disk_used_bytes(const char *dir)
{
    counted_bytes = 0;
    (void)nftw(dir, on_counted, 16, FTW_PHYS);
    return counted_bytes;
}

static int on_removed(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

void disk_remove_all(const char *dir)
{
    (void)nftw(dir, on_removed, 16, FTW_DEPTH | FTW_PHYS);
}
