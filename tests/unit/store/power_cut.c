// SPDX-License-Identifier: Apache-2.0
// The C library's calls that write and sync, as they are linked into this program, in front of its
// own: the linker lets a program's functions answer for its libraries' calls too, LMDB's among
// them.
#include "power_cut.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define SECTOR 512u

struct undo { // what stood there before a write
    struct undo *before;
    dev_t device;
    ino_t inode;
    int fd; // a duplicate, to put it back with
    off_t offset;
    size_t len;
    char *bytes;
};

#define GONE_MAX 64u

struct gone { // a file that has lost its name
    int fd;   // a duplicate, of the folder
    char name[64];
};

static struct {
    pthread_mutex_t lock;
    bool armed, lies;
    struct gone gone[GONE_MAX];
    unsigned gone_count;
    struct undo *last;
    unsigned count;
} cut = {.lock = PTHREAD_MUTEX_INITIALIZER};

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

// Remembers what a write of `len` bytes at `offset` replaces.
static void remember_locked(int fd, off_t offset, size_t len)
{
    struct stat st;
    int flags = fcntl(fd, F_GETFL);
    if (!cut.armed || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || flags < 0 ||
        (flags & O_DSYNC) != 0 || len == 0) {
        return;
    }
    char name[64];
    (void)snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    struct undo *undo = calloc(1, sizeof(*undo));
    check(undo != NULL);
    *undo = (struct undo){cut.last, st.st_dev, st.st_ino,     open(name, O_RDWR | O_CLOEXEC),
                          offset,   len,       calloc(1, len)};
    check(undo->bytes != NULL);
    if (undo->fd < 0 || pread(undo->fd, undo->bytes, len, offset) < 0) {
        abort();
    }
    cut.last = undo;
    cut.count++;
}

static void forget_locked(int fd)
{
    struct stat st;
    if (cut.lies || fstat(fd, &st) != 0) {
        return;
    }
    for (struct undo **at = &cut.last; *at != NULL;) {
        struct undo *undo = *at;
        if (undo->device != st.st_dev || undo->inode != st.st_ino) {
            at = &undo->before;
            continue;
        }
        *at = undo->before;
        (void)close(undo->fd); // nothing was written by it
        free(undo->bytes);
        free(undo);
        cut.count--;
    }
}

ssize_t pwrite(int fd, const void *buf, size_t len, off_t offset)
{
    pthread_mutex_lock(&cut.lock);
    remember_locked(fd, offset, len);
    ssize_t written = REAL(pwrite)(fd, buf, len, offset);
    pthread_mutex_unlock(&cut.lock);
    return written;
}

static bool is_same_file(int a, int b)
{
    struct stat x, y;
    return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

// The names that have left this folder are gone for good.
static void folder_synced_locked(int fd)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < cut.gone_count && !cut.lies; i++) {
        struct gone gone = cut.gone[i];
        if (is_same_file(gone.fd, fd)) {
            (void)close(gone.fd); // a folder
        } else {
            cut.gone[kept++] = gone;
        }
    }
    cut.gone_count = cut.lies ? cut.gone_count : kept;
}

static size_t iov_len(const struct iovec *iov, int count)
{
    size_t len = 0;
    for (int i = 0; i < count; i++) {
        len += iov[i].iov_len;
    }
    return len;
}

ssize_t pwritev(int fd, const struct iovec *iov, int count, off_t offset)
{
    pthread_mutex_lock(&cut.lock);
    remember_locked(fd, offset, iov_len(iov, count));
    ssize_t written = REAL(pwritev)(fd, iov, count, offset);
    pthread_mutex_unlock(&cut.lock);
    return written;
}

ssize_t writev(int fd, const struct iovec *iov, int count)
{
    pthread_mutex_lock(&cut.lock);
    remember_locked(fd, cut.armed ? lseek(fd, 0, SEEK_CUR) : 0, iov_len(iov, count));
    ssize_t written = REAL(writev)(fd, iov, count);
    pthread_mutex_unlock(&cut.lock);
    return written;
}

// What is on its way at that moment is remembered, and synced by the next one.
int fdatasync(int fd)
{
    pthread_mutex_lock(&cut.lock);
    int rc = cut.armed ? 0 : REAL(fdatasync)(fd); // the cut is played: the real disk need not spin
    if (rc == 0) {
        forget_locked(fd);
    }
    pthread_mutex_unlock(&cut.lock);
    return rc;
}

int fsync(int fd)
{
    pthread_mutex_lock(&cut.lock);
    int rc = cut.armed ? 0 : REAL(fsync)(fd);
    if (rc == 0) {
        forget_locked(fd);
        folder_synced_locked(fd);
    }
    pthread_mutex_unlock(&cut.lock);
    return rc;
}

// Of a segment: until its folder is synced it may come back.
int unlinkat(int fd, const char *name, int flags)
{
    size_t len = strlen(name);
    char hidden[SECTOR];
    int rc;
    pthread_mutex_lock(&cut.lock);
    if (!cut.armed || cut.gone_count == GONE_MAX || len < 4 ||
        strcmp(name + len - 4, ".seg") != 0) {
        rc = REAL(unlinkat)(fd, name, flags);
    } else {
        (void)snprintf(hidden, sizeof(hidden), "%s.gone", name);
        rc = renameat(fd, name, fd, hidden);
        if (rc == 0) {
            struct gone *gone = &cut.gone[cut.gone_count++];
            gone->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
            (void)snprintf(gone->name, sizeof(gone->name), "%s", name);
        }
    }
    pthread_mutex_unlock(&cut.lock);
    return rc;
}

void power_cut_arm(void)
{
    pthread_mutex_lock(&cut.lock);
    cut.armed = true;
    pthread_mutex_unlock(&cut.lock);
}

void power_cut_lie(void)
{
    pthread_mutex_lock(&cut.lock);
    cut.lies = true;
    pthread_mutex_unlock(&cut.lock);
}

unsigned power_cut_pending(void)
{
    pthread_mutex_lock(&cut.lock);
    unsigned count = cut.count;
    pthread_mutex_unlock(&cut.lock);
    return count;
}

static uint64_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

void power_cut_strike(uint64_t seed)
{
    pthread_mutex_lock(&cut.lock); // for good
    uint64_t state = seed;
    for (struct undo *undo = cut.last; undo != NULL; undo = undo->before) { // the last one first
        unsigned fate = seed == 0 ? 0 : (unsigned)(draw(&state) % 4);
        for (size_t at = 0; at < undo->len && fate < 3;
             at += SECTOR) { // 3: it has come to the disk
            size_t len = min_u64(SECTOR, undo->len - at);
            bool lost = fate < 2 || draw(&state) % 2 == 0; // 2: torn
            if (lost &&
                REAL(pwrite)(undo->fd, undo->bytes + at, len, undo->offset + (off_t)at) < 0) {
                abort();
            }
        }
    }
    for (unsigned i = 0; i < cut.gone_count; i++) {
        char hidden[SECTOR];
        (void)snprintf(hidden, sizeof(hidden), "%s.gone", cut.gone[i].name);
        bool lost = seed == 0 || draw(&state) % 2 == 0;
        if (lost && renameat(cut.gone[i].fd, hidden, cut.gone[i].fd, cut.gone[i].name) != 0) {
            abort();
        }
    }
    (void)raise(SIGKILL);
    abort();
}
