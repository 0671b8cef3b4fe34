// SPDX-License-Identifier: Apache-2.0
// The disk engine that uses io_uring. Each worker has a ring. One system call submits all
// operations of a turn. Completions are read from shared memory, without a system call. The event
// of the ring's descriptor only wakes the worker. All completions are collected before the first
// done() runs.
//
// loop_new() creates the rings disabled. So it learns before any thread runs whether the kernel
// refuses them. The worker's own thread enables its ring, and is the only thread that submits to it
// (SINGLE_ISSUER). Kernels before 6.0 do not know that flag, and get a ring without it.
//
// With COOP_TASKRUN, the kernel posts completions only when the thread enters the kernel. Each turn
// does that by epoll_wait.
#include "loop/loop_private.h"

#include <assert.h>
#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static_assert(sizeof(struct open_how) <= sizeof(((struct disk_op *)0)->engine_private),
              "open_how lives in the operation while the ring reads it");

// --- Opening -------------------------------------------------------------------------------------

static int ring_setup(unsigned entries, unsigned flags, struct io_uring *ring)
{
    static const unsigned wanted[] = {
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN,
        IORING_SETUP_COOP_TASKRUN,
        0,
    };
    int rc = -EINVAL;
    for (unsigned i = 0; i < ARRAY_LEN(wanted) && rc == -EINVAL; i++) {
        rc = io_uring_queue_init(entries, ring, flags | wanted[i]);
    }
    return rc;
}

static bool ring_knows_our_operations(struct io_uring *ring)
{
    static const int needed[] = {
        IORING_OP_READ,      IORING_OP_WRITE,           IORING_OP_READV, IORING_OP_WRITEV,
        IORING_OP_FSYNC,     IORING_OP_OPENAT2,         IORING_OP_STATX, IORING_OP_UNLINKAT,
        IORING_OP_FALLOCATE, IORING_OP_SYNC_FILE_RANGE,
    };
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    if (probe == NULL) {
        return false;
    }
    bool is_known = true;
    for (unsigned i = 0; i < ARRAY_LEN(needed); i++) {
        is_known &= io_uring_opcode_supported(probe, needed[i]) != 0;
    }
    io_uring_free_probe(probe);
    return is_known;
}

static bool ring_reads(struct io_uring *ring, int fd)
{
    static const char text[] = "forebay";
    char back[sizeof(text)] = "";
    if (pwrite(fd, text, sizeof(text), 0) != (ssize_t)sizeof(text)) {
        return false;
    }
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    if (sqe == NULL) {
        return false;
    }
    io_uring_prep_read(sqe, fd, back, sizeof(back), 0);
    struct io_uring_cqe *cqe = NULL;
    if (io_uring_submit_and_wait(ring, 1) != 1 || io_uring_peek_cqe(ring, &cqe) != 0) {
        return false;
    }
    bool is_right = cqe->res == (int)sizeof(back) && memcmp(back, text, sizeof(back)) == 0;
    io_uring_cqe_seen(ring, cqe);
    return is_right;
}

enum err disk_io_uring_probe(struct buf *why)
{
    struct io_uring ring;
    int rc = ring_setup(4, 0, &ring);
    if (rc < 0) {
        buf_printf(why, "io_uring_setup: %s", strerrorname_np(-rc));
        return ERR_INVALID;
    }
    enum err err = ERR_INVALID;
    int fd = memfd_create("forebay-probe", MFD_CLOEXEC);
    if (!ring_knows_our_operations(&ring)) {
        buf_append_cstr(why, "io_uring lacks operations (kernel before 5.11)");
    } else if (fd < 0 || !ring_reads(&ring, fd)) {
        buf_append_cstr(why, "a read through io_uring failed");
    } else {
        err = ERR_OK;
    }
    if (fd >= 0) {
        close(fd);
    }
    io_uring_queue_exit(&ring);
    return err;
}

static void on_ring_ready(evutil_socket_t fd, short what, void *ctx)
{
    // Nothing to do: the event has ended the wait, and each turn looks into the ring.
    (void)fd;
    (void)what;
    (void)ctx;
}

enum err disk_io_uring_open(struct worker *w, struct buf *why)
{
    struct disk_io *disk = &w->disk;
    int rc = ring_setup(disk->lanes[DISK_LANE_READS].depth, IORING_SETUP_R_DISABLED, &disk->ring);
    if (rc < 0) {
        buf_printf(why, "io_uring_setup for worker %u: %s", w->index, strerrorname_np(-rc));
        return ERR_INVALID;
    }
    disk->has_ring = true;
    disk->ring_event =
        event_new(w->base, disk->ring.ring_fd, EV_READ | EV_PERSIST, on_ring_ready, w);
    check(disk->ring_event != NULL);
    if (event_add(disk->ring_event, NULL) != 0) { // at the limit on epoll watches
        buf_printf(why, "epoll for the ring of worker %u: %s", w->index, strerrorname_np(errno));
        return ERR_INVALID;
    }
    return ERR_OK;
}

void disk_io_uring_enable(struct worker *w)
{
    if (w->disk.has_ring && !w->disk.is_ring_enabled) {
        // A direct system call, because liburing 2.3 declares io_uring_enable_rings but does not
        // export it.
        check(syscall(SYS_io_uring_register, w->disk.ring.ring_fd, IORING_REGISTER_ENABLE_RINGS,
                      NULL, 0) == 0);
        w->disk.is_ring_enabled = true;
        // Allow one kernel thread for each operation that may block. Otherwise operations of one
        // lane could wait for those of another.
        unsigned most[2] = {0, 0}; // bounded and unbounded workers; 0: unchanged
        for (unsigned i = 0; i < DISK_LANE_COUNT; i++) {
            most[0] += w->disk.lanes[i].depth;
        }
        // This fails before Linux 5.15, where the limit is fixed at four threads for each CPU.
        (void)io_uring_register_iowq_max_workers(&w->disk.ring, most);
    }
}

void disk_io_uring_close(struct worker *w)
{
    struct disk_io *disk = &w->disk;
    if (disk->has_ring) {
        event_free(disk->ring_event);
        disk->ring_event = NULL;
        io_uring_queue_exit(&disk->ring);
        disk->has_ring = false;
    }
}

// --- Operations ----------------------------------------------------------------------------------

static void prepare_transfer(struct io_uring_sqe *sqe, struct disk_op *op)
{
    struct iovec one, *iov;
    unsigned count;
    bool is_single = disk_op_next_piece(op, &one, &iov, &count);
    uint64_t offset = op->offset + op->progress_bytes;
    if (op->kind == DISK_READ && is_single) {
        io_uring_prep_read(sqe, op->fd, one.iov_base, (unsigned)one.iov_len, offset);
    } else if (op->kind == DISK_READ) {
        io_uring_prep_readv(sqe, op->fd, iov, count, offset);
    } else if (is_single) {
        io_uring_prep_write(sqe, op->fd, one.iov_base, (unsigned)one.iov_len, offset);
    } else {
        io_uring_prep_writev(sqe, op->fd, iov, count, offset);
    }
}

static void prepare_open(struct io_uring_sqe *sqe, struct disk_op *op)
{
    struct open_how how = {
        .flags = (uint64_t)(unsigned)op->open_flags | O_CLOEXEC,
        .mode = (op->open_flags & (O_CREAT | O_TMPFILE)) != 0 ? op->open_mode : 0,
        .resolve = op->open_resolve,
    };
    memcpy(op->engine_private, &how, sizeof(how));
    io_uring_prep_openat2(sqe, op->fd, op->path, (struct open_how *)(void *)op->engine_private);
}

static bool uring_issue(struct worker *w, struct disk_op *op)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&w->disk.ring);
    if (sqe == NULL) {
        return false;
    }
    switch (op->kind) {
    case DISK_READ:
    case DISK_WRITE:
        prepare_transfer(sqe, op);
        if (op->kind == DISK_WRITE) {
            // With ASYNC, a kernel thread waits for a slow device, not this worker.
            sqe->flags |= IOSQE_ASYNC;
        }
        break;
    case DISK_SYNC:
        io_uring_prep_fsync(sqe, op->fd, IORING_FSYNC_DATASYNC);
        break;
    case DISK_OPEN:
        prepare_open(sqe, op);
        // With ASYNC, a kernel thread waits, not this worker. Without it, the submission itself may
        // wait: if the name is in the kernel's cache, the kernel asks the file server at once
        // whether it is still valid.
        sqe->flags |= IOSQE_ASYNC;
        break;
    case DISK_STATX:
        io_uring_prep_statx(sqe, op->fd, op->path,
                            op->at_flags | (op->path[0] == '\0' ? AT_EMPTY_PATH : 0),
                            STATX_BASIC_STATS, op->statx);
        break;
    case DISK_UNLINK:
        io_uring_prep_unlinkat(sqe, op->fd, op->path, op->at_flags);
        break;
    case DISK_FALLOCATE:
        io_uring_prep_fallocate(sqe, op->fd, 0, (off_t)op->offset, (off_t)op->length);
        break;
    case DISK_PUSH:
        check(op->length <= UINT32_MAX);
        io_uring_prep_sync_file_range(sqe, op->fd, (unsigned)op->length, op->offset,
                                      DISK_PUSH_FLAGS);
        break;
    }
    io_uring_sqe_set_data(sqe, op);
    return true;
}

static void uring_flush(struct worker *w)
{
    // Entries that the kernel does not accept now (EAGAIN, EBUSY, EINTR) stay in the ring.
    // disk_io_has_work() sees them, so the worker does not sleep, and the next turn submits them.
    int rc = io_uring_submit(&w->disk.ring);
    check(rc >= 0 || rc == -EAGAIN || rc == -EBUSY || rc == -EINTR);
}

static void uring_collect(struct worker *w, struct list *finished, struct list *again)
{
    struct io_uring *ring = &w->disk.ring;
    if (io_uring_cq_has_overflow(ring)) {
        (void)io_uring_get_events(
            // Fetches completions that did not fit into the ring; if it fails, the next turn tries
            // again.
            ring);
    }
    unsigned head, count = 0;
    struct io_uring_cqe *cqe;
    io_uring_for_each_cqe(ring, head, cqe)
    {
        struct disk_op *op = io_uring_cqe_get_data(cqe);
        list_push_back(disk_op_take_result(op, cqe->res) ? finished : again, &op->node);
        count++;
    }
    io_uring_cq_advance(ring, count);
}

const struct disk_engine_calls disk_io_uring_calls = {
    .issue = uring_issue,
    .flush = uring_flush,
    .collect = uring_collect,
};
