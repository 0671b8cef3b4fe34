// SPDX-License-Identifier: Apache-2.0
// Sends pages of files to a socket without a copy, but only pages whose checksums were verified.
// Runs on the worker.
//
// A plain sendfile(2) would not be safe. After the check that the verified pages are in memory, the
// kernel may evict a page, and sendfile would then read it from the device again, unverified. So
// there are two steps. First, splice(2) moves the pages into a pipe of the worker. The pipe keeps
// these pages, whatever happens to the page cache. Then we check that they are the verified pages,
// and only then splice them to the socket.
//
// The check fails in two cases:
// - This thread has read blocks from a device during the first step. The kernel counts them
//   (getrusage). The count is read only after each splice into the pipe. That value serves as the
//   value before the next splice, unless io_uring may have read for this worker in between.
// - The owner of the pages has removed their "verified" mark. Each thread that reads such a page
//   from the device removes the mark first.
//
// The count is per thread, not per file. So any other read by this thread makes the check fail too.
// After a failed check, the caller reads and verifies the pages again.
//
// The pipe is empty between two calls, because bytes that the socket does not accept are discarded,
// and later taken from the file again. Without a pipe, a worker sends nothing in this way and
// returns -ESTALE. The caller then reads the bytes instead.
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "loop/loop_private.h"

#define PIPE_BYTES (1u << 20)
#define PIPE_BYTES_LEAST (64u << 10)
// The most bytes per splice. Those that the socket does not accept are wasted.
#define SPLICE_BYTES (512u << 10)

void file_send_init(struct file_send *fs)
{
    int ends[2];
    *fs = (struct file_send){.take = -1, .give = -1, .nowhere = -1};
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        return;
    }
    fs->give = ends[0];
    fs->take = ends[1];
    fs->nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    for (unsigned size = PIPE_BYTES; size > PIPE_BYTES_LEAST; size /= 2) {
        // This fails if the size exceeds the user's limit for pipes.
        if (fcntl(fs->take, F_SETPIPE_SZ, size) >= 0) {
            break;
        }
    }
}

void file_send_done(struct file_send *fs)
{
    int *const fds[] = {&fs->take, &fs->give, &fs->nowhere};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        if (*fds[i] >= 0) {
            (void)close(*fds[i]);
            *fds[i] = -1;
        }
    }
}

// Returns the number of blocks that this thread has read from devices. Always the same if the
// kernel does not count them.
static long blocks_read(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_inblock : 0;
}

static int range_fd(const struct file_range *range)
{
    return range->borrow != NULL ? range->borrow(range->release_ctx) : range->fd;
}

static void range_fd_done(const struct file_range *range)
{
    if (range->give_back != NULL) {
        range->give_back(range->release_ctx);
    }
}

bool file_send_ready(const struct file_range *range, uint64_t skip, uint64_t len)
{
    check(skip + len <= range->len);
    int fd = range_fd(range);
    if (fd < 0) {
        return false;
    }
    bool resident = disk_io_resident(fd, range->offset + skip, len);
    range_fd_done(range);
    return resident && (range->is_good == NULL || range->is_good(range, range->offset + skip, len));
}

// Discards the `len` bytes in the pipe. If that fails, replaces the pipe.
static void throw_away(struct file_send *fs, uint64_t len)
{
    while (len > 0) {
        ssize_t n = splice(fs->give, NULL, fs->nowhere, NULL, len, SPLICE_F_NONBLOCK);
        if (n <= 0) {
            file_send_done(fs);
            file_send_init(fs);
            return;
        }
        len -= (uint64_t)n;
    }
}

// Moves pages of [at, at + len) into the pipe, and checks them. Returns the number of bytes in the
// pipe, or 0 if none may be sent.
static uint64_t take(struct file_send *fs, const struct file_range *range, int fd, uint64_t at,
                     uint64_t len)
{
    off_t offset = (off_t)at;
    if (!fs->is_counted) {
        fs->blocks = blocks_read();
    }
    ssize_t n = splice(fd, &offset, fs->take, NULL, len, SPLICE_F_NONBLOCK);
    if (n <= 0) {
        fs->is_counted = false;
        return 0;
    }
    long before = fs->blocks;
    fs->blocks = blocks_read();
    fs->is_counted = true;
    bool good =
        fs->blocks == before && (range->is_good == NULL || range->is_good(range, at, (uint64_t)n));
    if (!good) {
        throw_away(fs, (uint64_t)n);
        return 0;
    }
    return (uint64_t)n;
}

static int64_t send_from(struct file_send *fs, const struct file_range *range, int fd,
                         uint64_t skip, uint64_t len, int socket)
{
    uint64_t sent = 0;
    while (sent < len) {
        uint64_t taken =
            take(fs, range, fd, range->offset + skip + sent, min_u64(len - sent, SPLICE_BYTES));
        if (taken == 0) {
            return sent > 0 ? (int64_t)sent : -ESTALE;
        }
        unsigned more = sent + taken < len ? SPLICE_F_MORE : 0;
        ssize_t n;
        do {
            n = splice(fs->give, NULL, socket, NULL, taken, SPLICE_F_NONBLOCK | more);
        } while (n < 0 && errno == EINTR);
        int error = n < 0 ? errno : 0;
        uint64_t gone = n > 0 ? (uint64_t)n : 0;
        sent += gone;
        if (gone < taken) {
            throw_away(fs, taken - gone);
            return sent > 0 ? (int64_t)sent : error != 0 ? -error : -EAGAIN;
        }
    }
    return (int64_t)sent;
}

int64_t file_send_range(struct worker *w, const struct file_range *range, uint64_t skip,
                        uint64_t len, int socket)
{
    check(worker_is_mine(w));
    check(skip + len <= range->len);
    struct file_send *fs = &w->file_send;
    int fd = fs->take < 0 || fs->nowhere < 0 ? -1 : range_fd(range);
    if (fd < 0) {
        return -ESTALE;
    }
    int64_t sent = send_from(fs, range, fd, skip, len, socket);
    // If the disk engine is busy, the ring may read for this worker before the next call.
    fs->is_counted = fs->is_counted && disk_io_is_quiet(w);
    range_fd_done(range);
    return sent;
}
