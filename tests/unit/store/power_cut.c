// SPDX-License-Identifier: Apache-2.0
// Wraps the C library's calls that write and sync, and liburing's. The linker lets a program's
// functions take the place of a library's also for calls from other libraries, such as LMDB. Writes
// of a ring are recorded when they are submitted, and its syncs are answered here. A sync does not
// cover a write in flight. The ring of completions shows that a write has completed. An entry that
// the program has consumed stays there until the ring wraps.
#include "store/power_cut.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define SECTOR 512u

struct undo { // the bytes before a write
    struct undo *before;
    dev_t device;
    ino_t inode;
    int fd; // a duplicate, to put it back with
    off_t offset;
    size_t len;
    char *bytes;
    const struct io_uring
        *ring; // it is on its way there, as the operation `data`; NULL: it has arrived
    uint64_t data;
};

#define RINGS_MAX 16u
#define ARRIVE_MS_MAX 2000u // how long a cut waits for what is on its way

struct ring {
    struct io_uring *ring;
    unsigned seen;   // of its completions
    unsigned on_way; // of its operations
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
    struct ring rings[RINGS_MAX];
    unsigned ring_count;
    struct undo *last;
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

// Records the bytes that a write of `len` bytes at `offset` replaces. Returns NULL if it need not
// be recorded.
static struct undo *remember_locked(int fd, off_t offset, size_t len)
{
    struct stat st;
    int flags = fcntl(fd, F_GETFL);
    if (!cut.armed || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || flags < 0 ||
        (flags & O_DSYNC) != 0 || len == 0) {
        return NULL;
    }
    char name[64];
    (void)snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    struct undo *undo = calloc(1, sizeof(*undo));
    check(undo != NULL);
    *undo = (struct undo){.before = cut.last,
                          .device = st.st_dev,
                          .inode = st.st_ino,
                          .fd = open(name, O_RDWR | O_CLOEXEC),
                          .offset = offset,
                          .len = len,
                          .bytes = calloc(1, len)};
    check(undo->bytes != NULL);
    if (undo->fd < 0 || pread(undo->fd, undo->bytes, len, offset) < 0) {
        abort();
    }
    cut.last = undo;
    return undo;
}

// Notes the writes that have completed since the last call.
static void rings_look_locked(void)
{
    for (unsigned i = 0; i < cut.ring_count; i++) {
        struct ring *r = &cut.rings[i];
        const struct io_uring_cq *cq = &r->ring->cq;
        unsigned tail = io_uring_smp_load_acquire(cq->ktail);
        for (; r->seen != tail; r->seen++) {
            uint64_t data = cq->cqes[r->seen & *cq->kring_mask].user_data;
            for (struct undo *undo = cut.last; undo != NULL; undo = undo->before) {
                if (undo->ring == r->ring && undo->data == data) {
                    undo->ring = NULL;
                }
            }
            r->on_way--;
        }
    }
}

static void forget_locked(int fd)
{
    struct stat st;
    if (cut.lies || fstat(fd, &st) != 0) {
        return;
    }
    rings_look_locked();
    for (struct undo **at = &cut.last; *at != NULL;) {
        struct undo *undo = *at;
        if (undo->device != st.st_dev || undo->inode != st.st_ino || undo->ring != NULL) {
            at = &undo->before;
            continue;
        }
        *at = undo->before;
        (void)close(undo->fd); // nothing was written by it
        free(undo->bytes);
        free(undo);
    }
}

ssize_t pwrite(int fd, const void *buf, size_t len, off_t offset)
{
    pthread_mutex_lock(&cut.lock);
    (void)remember_locked(fd, offset, len);
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
    (void)remember_locked(fd, offset, iov_len(iov, count));
    ssize_t written = REAL(pwritev)(fd, iov, count, offset);
    pthread_mutex_unlock(&cut.lock);
    return written;
}

ssize_t writev(int fd, const struct iovec *iov, int count)
{
    pthread_mutex_lock(&cut.lock);
    (void)remember_locked(fd, cut.armed ? lseek(fd, 0, SEEK_CUR) : 0, iov_len(iov, count));
    ssize_t written = REAL(writev)(fd, iov, count);
    pthread_mutex_unlock(&cut.lock);
    return written;
}

// --- rings ---------------------------------------------------------------------------------------

static struct ring *ring_locked(struct io_uring *ring)
{
    for (unsigned i = 0; i < cut.ring_count; i++) {
        if (cut.rings[i].ring == ring) {
            return &cut.rings[i];
        }
    }
    check(cut.ring_count < RINGS_MAX);
    struct ring *r = &cut.rings[cut.ring_count++];
    // A ring that was used before the cut was armed has no operation in flight: it is new, or the
    // test has waited for it.
    *r = (struct ring){ring, io_uring_smp_load_acquire(ring->cq.ktail), 0};
    return r;
}

static void submitted_locked(struct ring *r, struct io_uring_sqe *sqe)
{
    const struct iovec *iov;
    struct undo *undo = NULL;
    r->on_way++;
    switch (sqe->opcode) {
    case IORING_OP_WRITE:
        undo = remember_locked(sqe->fd, (off_t)sqe->off, sqe->len);
        break;
    case IORING_OP_WRITEV:
        memcpy(&iov, &sqe->addr, sizeof(iov));
        undo = remember_locked(sqe->fd, (off_t)sqe->off, iov_len(iov, (int)sqe->len));
        break;
    case IORING_OP_FSYNC:
        forget_locked(sqe->fd);
        uint64_t data = sqe->user_data;
        io_uring_prep_nop(sqe); // as with fdatasync below
        sqe->user_data = data;
        break;
    case IORING_OP_UNLINKAT:
        abort(); // not played
    default:
        break;
    }
    if (undo != NULL) {
        undo->ring = r->ring;
        undo->data = sqe->user_data;
    }
}

int io_uring_submit(struct io_uring *ring)
{
    pthread_mutex_lock(&cut.lock);
    if (cut.armed) {
        struct ring *r = ring_locked(ring);
        rings_look_locked(); // before more is on its way than the ring of completions holds
        for (unsigned at = ring->sq.sqe_head; at != ring->sq.sqe_tail; at++) {
            submitted_locked(r, &ring->sq.sqes[at & *ring->sq.kring_mask]);
        }
    }
    int rc = REAL(io_uring_submit)(ring);
    pthread_mutex_unlock(&cut.lock);
    return rc;
}

void io_uring_queue_exit(struct io_uring *ring)
{
    pthread_mutex_lock(&cut.lock);
    rings_look_locked();
    for (unsigned i = 0; i < cut.ring_count; i++) {
        if (cut.rings[i].ring == ring) {
            check(cut.rings[i].on_way == 0);
            cut.rings[i] = cut.rings[--cut.ring_count];
            break;
        }
    }
    REAL(io_uring_queue_exit)(ring);
    pthread_mutex_unlock(&cut.lock);
}

// Waits for the writes in flight, so that none completes after the process is dead and its files
// are read. Writes that do not complete in time are left to chance.
static void rings_settle_locked(void)
{
    unsigned on_way = 1;
    for (unsigned ms = 0; on_way > 0 && ms < ARRIVE_MS_MAX; ms++) {
        on_way = 0;
        rings_look_locked();
        for (unsigned i = 0; i < cut.ring_count; i++) {
            on_way += cut.rings[i].on_way;
        }
        if (on_way > 0) {
            (void)usleep(1000);
        }
    }
}

// --- syncs ---------------------------------------------------------------------------------------

// A write in flight at that moment stays unsynced until the next call.
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

// A removed segment may come back until its folder is synced.
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

unsigned power_cut_pending(int folder_fd, const char *name)
{
    struct stat st;
    unsigned count = 0;
    check(fstatat(folder_fd, name, &st, 0) == 0);
    pthread_mutex_lock(&cut.lock);
    for (const struct undo *undo = cut.last; undo != NULL; undo = undo->before) {
        count += undo->device == st.st_dev && undo->inode == st.st_ino ? 1 : 0;
    }
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
    rings_settle_locked();
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
