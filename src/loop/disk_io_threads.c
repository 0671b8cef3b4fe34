// SPDX-License-Identifier: Apache-2.0
// Disk engine on a pool of threads doing the plain system calls, for where io_uring is refused:
// most containers. One pool serves all workers of a loop.
//
// A worker hands over what a pass started under one lock; a pool thread runs one operation to its
// end and pushes it onto its worker's stack of completed ones without a lock, waking the worker
// only when the stack was empty. An operation belongs to the pool between the two.
#include "loop/loop_private.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct disk_pool {
    unsigned thread_count, started_count;
    pthread_t *threads;
    // Guarded by its mutex. No other lock is taken while it is held.
    struct {
        pthread_mutex_t mutex;
        pthread_cond_t filled;
        struct list queue;
        unsigned idle_count;
        bool is_stopping;
    } shared;
    // Operations issued in this pass, per worker; touched by that worker only.
    struct list issued[WORKERS_MAX];
    unsigned issued_count[WORKERS_MAX];
};

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

static struct disk_op *pool_take(struct disk_pool *pool)
{
    check(pthread_mutex_lock(&pool->shared.mutex) == 0);
    pool->shared.idle_count++;
    while (list_empty(&pool->shared.queue) && !pool->shared.is_stopping) {
        check(pthread_cond_wait(&pool->shared.filled, &pool->shared.mutex) == 0);
    }
    pool->shared.idle_count--;
    struct list_node *node = list_pop_front(&pool->shared.queue);
    check(pthread_mutex_unlock(&pool->shared.mutex) == 0);
    return node == NULL ? NULL : container_of(node, struct disk_op, node);
}

static void *pool_main(void *ctx)
{
    struct disk_pool *pool = ctx;
    (void)pthread_setname_np(pthread_self(), "disk"); // only a name for top
    struct disk_op *op;
    while ((op = pool_take(pool)) != NULL) {
        run_to_its_end(op);
        push_completed(op);
    }
    return NULL;
}

// --- The pool ------------------------------------------------------------------------------------

struct disk_pool *disk_pool_new(unsigned thread_count)
{
    struct disk_pool *pool = calloc(1, sizeof(*pool));
    check(pool != NULL);
    pool->thread_count = thread_count;
    pool->threads = calloc(thread_count, sizeof(pool->threads[0]));
    check(pool->threads != NULL);
    list_init(&pool->shared.queue);
    for (unsigned i = 0; i < WORKERS_MAX; i++) {
        list_init(&pool->issued[i]);
    }
    check(pthread_mutex_init(&pool->shared.mutex, NULL) == 0);
    check(pthread_cond_init(&pool->shared.filled, NULL) == 0);
    return pool;
}

void disk_pool_start(struct disk_pool *pool)
{
    for (unsigned i = 0; i < pool->thread_count; i++) {
        if (pthread_create(&pool->threads[i], NULL, pool_main, pool) != 0) {
            break; // fewer threads serve as well, only slower
        }
        pool->started_count++;
    }
    check(pool->started_count > 0);
}

void disk_pool_stop(struct disk_pool *pool)
{
    check(pthread_mutex_lock(&pool->shared.mutex) == 0);
    pool->shared.is_stopping = true;
    check(pthread_cond_broadcast(&pool->shared.filled) == 0);
    check(pthread_mutex_unlock(&pool->shared.mutex) == 0);
    for (unsigned i = 0; i < pool->started_count; i++) {
        check(pthread_join(pool->threads[i], NULL) == 0);
    }
    pool->started_count = 0;
}

void disk_pool_free(struct disk_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    check(pool->started_count == 0);
    check(pthread_cond_destroy(&pool->shared.filled) == 0);
    check(pthread_mutex_destroy(&pool->shared.mutex) == 0);
    free(pool->threads);
    free(pool);
}

// --- The engine's face, on the worker ------------------------------------------------------------

static bool threads_issue(struct worker *w, struct disk_op *op)
{
    struct disk_pool *pool = w->loop->disk_pool;
    list_push_back(&pool->issued[w->index], &op->node);
    pool->issued_count[w->index]++;
    return true;
}

static void threads_flush(struct worker *w)
{
    struct disk_pool *pool = w->loop->disk_pool;
    check(pthread_mutex_lock(&pool->shared.mutex) == 0);
    list_append_all(&pool->shared.queue, &pool->issued[w->index]);
    unsigned wake_count = pool->issued_count[w->index];
    if (wake_count > pool->shared.idle_count) {
        wake_count = pool->shared.idle_count;
    }
    check(pthread_mutex_unlock(&pool->shared.mutex) == 0);
    // After the lock, so that who wakes does not run into it.
    for (unsigned i = 0; i < wake_count; i++) {
        check(pthread_cond_signal(&pool->shared.filled) == 0);
    }
    pool->issued_count[w->index] = 0;
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
        list_push_front(finished, node); // newest come first: turned round
        node = older;
    }
}

const struct disk_engine_calls disk_io_threads_calls = {
    .issue = threads_issue,
    .flush = threads_flush,
    .collect = threads_collect,
};
