// SPDX-License-Identifier: Apache-2.0
// The disk engine that uses threads and plain system calls, for places where io_uring is not
// allowed, such as most containers. One pool per lane serves all workers of a loop. So a write that
// waits for the device delays no reads, and neither does a call that waits for an origin's file
// server.
//
// A worker passes all operations of a turn to the pools, and takes each pool's lock only once. A
// pool thread runs one operation to its end. Then it pushes the operation onto a lock-free stack of
// its worker, and wakes the worker only if the stack was empty. Until that push, the pool owns the
// operation.
#include "loop/loop_private.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// --- One operation, on a pool thread -------------------------------------------------------------

static int64_t run_transfer(struct disk_op *op)
{
    struct iovec one, *iov;
    unsigned count;
    bool is_single = disk_op_next_piece(op, &one, &iov, &count);
    off_t offset = (off_t)(op->offset + op->progress_bytes);
    if (op->kind == DISK_READ) {
        return is_single ? pread(op->fd, one.iov_base, one.iov_len, offset)
                         : preadv(op->fd, iov, (int)count, offset);
    }
    return is_single ? pwrite(op->fd, one.iov_base, one.iov_len, offset)
                     : pwritev(op->fd, iov, (int)count, offset);
}

static int64_t run_open(struct disk_op *op)
{
    int flags = op->open_flags | O_CLOEXEC;
    if (op->open_resolve == 0) {
        return openat(op->fd, op->path, flags, op->open_mode);
    }
    struct open_how how = {
        .flags = (uint64_t)(unsigned)flags,
        .mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? op->open_mode : 0,
        .resolve = op->open_resolve,
    };
    return syscall(SYS_openat2, op->fd, op->path, &how, sizeof(how));
}

static int64_t run_call(struct disk_op *op)
{
    switch (op->kind) {
    case DISK_READ:
    case DISK_WRITE:
        return run_transfer(op);
    case DISK_SYNC:
        return fdatasync(op->fd);
    case DISK_OPEN:
        return run_open(op);
    case DISK_STATX:
        return statx(op->fd, op->path, op->at_flags | (op->path[0] == '\0' ? AT_EMPTY_PATH : 0),
                     STATX_BASIC_STATS, op->statx);
    case DISK_UNLINK:
        return unlinkat(op->fd, op->path, op->at_flags);
    case DISK_FALLOCATE:
        return fallocate(op->fd, 0, (off_t)op->offset, (off_t)op->length);
    case DISK_PUSH:
        return sync_file_range(op->fd, (off_t)op->offset, (off_t)op->length, DISK_PUSH_FLAGS);
    }
    errno = EINVAL;
    return -1;
}

static void run_to_its_end(struct disk_op *op)
{
    int64_t result;
    do {
        result = run_call(op);
        if (result < 0) {
            result = -errno;
        }
    } while (!disk_op_take_result(op, result));
}

static void push_completed(struct disk_op *op)
{
    struct worker *w = op->worker;
    struct list_node *head = atomic_load_explicit(&w->disk.completed, memory_order_relaxed);
    do {
        op->node.next = head;
    } while (!atomic_compare_exchange_weak_explicit(&w->disk.completed, &head, &op->node,
                                                    memory_order_release, memory_order_relaxed));
    if (head == NULL) {
        worker_wake(w);
    }
}

static void run(struct list_node *node)
{
    struct disk_op *op = container_of(node, struct disk_op, node);
    run_to_its_end(op);
    push_completed(op);
}

struct thread_pool *disk_io_threads_pool_new(enum disk_lane_kind lane, unsigned thread_count)
{
    static const struct {
        const char *name;
        enum thread_kind kind;
    } lanes[DISK_LANE_COUNT] = {[DISK_LANE_READS] = {"disk", THREAD_HELPS},
                                [DISK_LANE_WRITES] = {"disk-write", THREAD_BEHIND},
                                [DISK_LANE_ORIGIN] = {"disk-origin", THREAD_HELPS}};
    return thread_pool_new(lanes[lane].name, lanes[lane].kind, thread_count, run);
}

// --- The engine's functions, on the worker -------------------------------------------------------

static bool threads_issue(struct worker *w, struct disk_op *op)
{
    struct disk_lane *lane = &w->disk.lanes[disk_op_lane(op)];
    list_push_back(&lane->issued, &op->node);
    lane->issued_count++;
    return true;
}

static void threads_flush(struct worker *w)
{
    for (unsigned i = 0; i < DISK_LANE_COUNT; i++) {
        struct disk_lane *lane = &w->disk.lanes[i];
        if (lane->issued_count > 0) {
            // This cannot fail: the lane's depth limits the count, and the pools stop after the
            // workers.
            enum err err = thread_pool_add(w->loop->disk_pools[i], &lane->issued,
                                           lane->issued_count, UINT_MAX);
            check(err == ERR_OK);
            lane->issued_count = 0;
        }
    }
}

static void threads_collect(struct worker *w, struct list *finished, struct list *again)
{
    (void)again;
    if (atomic_load_explicit(&w->disk.completed, memory_order_relaxed) == NULL) {
        return;
    }
    struct list_node *node =
        atomic_exchange_explicit(&w->disk.completed, NULL, memory_order_acquire);
    while (node != NULL) {
        struct list_node *older = node->next;
        list_node_init(node);
        // The stack has the newest first, so this restores the order.
        list_push_front(finished, node);
        node = older;
    }
}

const struct disk_engine_calls disk_io_threads_calls = {
    .issue = threads_issue,
    .flush = threads_flush,
    .collect = threads_collect,
};
