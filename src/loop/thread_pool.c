// SPDX-License-Identifier: Apache-2.0
// Threads that take work from one queue: of the disk engine `threads` and of blocking_pool.c. Work is
// a list node in an owner that the pool's run() knows; it belongs to the pool from the call that adds
// it until run() has it, on a thread of the pool.
//
// Threads that are nicer than the workers get next to nothing of cores that others want all of. So that
// their work is late and not lost, such a pool has threads of the workers' weight behind them, which
// take what has waited for PATIENCE_US.
#include "loop/loop_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_US 2000u
#define LATE_THREADS 2u

struct thread_pool {
    const char *name;
    int nice_by;
    void (*run)(struct list_node *work);
    unsigned thread_count, late_count; // the late ones come last in `threads`
    unsigned started_count;
    pthread_t *threads;
    // Guarded by its mutex. No other lock is taken while it is held.
    struct {
        pthread_mutex_t mutex;
        pthread_cond_t filled;
        pthread_cond_t begun;   // for late threads: the queue was empty
        pthread_cond_t stopped; // for those of them that wait out what is in it
        struct list queue;
        unsigned queued_count, idle_count;
        uint64_t added_count, taken_count;
        bool is_stopping;
    } shared;
};

// NULL where the queue is empty. The mutex is held.
static struct list_node *pool_pop(struct thread_pool *pool)
{
    struct list_node *work = list_pop_front(&pool->shared.queue);
    if (work != NULL) {
        check(pool->shared.queued_count > 0);
        pool->shared.queued_count--;
        pool->shared.taken_count++;
    }
    return work;
}

static struct list_node *pool_take(struct thread_pool *pool)
{
    check(pthread_mutex_lock(&pool->shared.mutex) == 0);
    pool->shared.idle_count++;
    while (list_empty(&pool->shared.queue) && !pool->shared.is_stopping) {
        check(pthread_cond_wait(&pool->shared.filled, &pool->shared.mutex) == 0);
    }
    pool->shared.idle_count--;
    struct list_node *work = pool_pop(pool);
    check(pthread_mutex_unlock(&pool->shared.mutex) == 0);
    return work;
}

static void pool_wait_patiently(struct thread_pool *pool)
{
    struct timespec until;
    check(clock_gettime(CLOCK_MONOTONIC, &until) == 0);
    uint64_t due_ns = (uint64_t)until.tv_nsec + PATIENCE_US * UINT64_C(1000);
    until.tv_sec += (time_t)(due_ns / 1000000000u);
    until.tv_nsec = (long)(due_ns % 1000000000u);
    int rc = 0;
    while (rc == 0 && !pool->shared.is_stopping) {
        rc = pthread_cond_timedwait(&pool->shared.stopped, &pool->shared.mutex, &until);
    }
    check(rc == 0 || rc == ETIMEDOUT);
}

// Only what has waited: all that was added up to `*upto`, a count that the caller keeps, from 0.
static struct list_node *pool_take_late(struct thread_pool *pool, uint64_t *upto)
{
    check(pthread_mutex_lock(&pool->shared.mutex) == 0);
    while (*upto <= pool->shared.taken_count && !pool->shared.is_stopping) {
        if (list_empty(&pool->shared.queue)) {
            check(pthread_cond_wait(&pool->shared.begun, &pool->shared.mutex) == 0);
        } else {
            uint64_t added_count = pool->shared.added_count;
            pool_wait_patiently(pool);
            *upto = added_count;
        }
    }
    struct list_node *work = pool_pop(pool);
    check(pthread_mutex_unlock(&pool->shared.mutex) == 0);
    return work;
}

// A nice value belongs to a thread on Linux (sched(7)). Where it is refused the work is done as well.
static void pool_step_back(int nice_by)
{
    pid_t tid = (pid_t)syscall(SYS_gettid);
    (void)setpriority(PRIO_PROCESS, (id_t)tid, getpriority(PRIO_PROCESS, (id_t)tid) + nice_by);
}

static void *pool_main(void *ctx)
{
    struct thread_pool *pool = ctx;
    if (pool->nice_by > 0) {
        pool_step_back(pool->nice_by);
    }
    (void)pthread_setname_np(pthread_self(), pool->name); // only a name for top
    struct list_node *work;
    while ((work = pool_take(pool)) != NULL) {
        pool->run(work);
    }
    return NULL;
}

static void *pool_main_late(void *ctx)
{
    struct thread_pool *pool = ctx;
    (void)pthread_setname_np(pthread_self(), "late"); // only a name for top
    struct list_node *work;
    uint64_t upto = 0;
    while ((work = pool_take_late(pool, &upto)) != NULL) {
        pool->run(work);
    }
    return NULL;
}

enum err thread_pool_add(struct thread_pool *pool, struct list *work, unsigned count,
                         unsigned queued_max)
{
    enum err err = ERR_OK;
    unsigned wake_count = 0;
    bool has_begun = false;
    check(pthread_mutex_lock(&pool->shared.mutex) == 0);
    if (pool->shared.is_stopping) {
        err = ERR_SHUTDOWN;
    } else if (count > queued_max || pool->shared.queued_count > queued_max - count) {
        err = ERR_LIMIT;
    } else {
        has_begun = pool->shared.queued_count == 0;
        list_append_all(&pool->shared.queue, work);
        pool->shared.queued_count += count;
        pool->shared.added_count += count;
        wake_count = count < pool->shared.idle_count ? count : pool->shared.idle_count;
    }
    check(pthread_mutex_unlock(&pool->shared.mutex) == 0);
    // After the lock, so that who wakes does not run into it.
    for (unsigned i = 0; i < wake_count; i++) {
        check(pthread_cond_signal(&pool->shared.filled) == 0);
    }
    if (has_begun && pool->late_count > 0) {
        check(pthread_cond_broadcast(&pool->shared.begun) == 0);
    }
    return err;
}

struct thread_pool *thread_pool_new(const char *name, unsigned thread_count, int nice_by,
                                    void (*run)(struct list_node *work))
{
    struct thread_pool *pool = calloc(1, sizeof(*pool));
    check(pool != NULL);
    pool->name = name;
    pool->nice_by = nice_by;
    pool->run = run;
    pool->thread_count = thread_count;
    pool->late_count = nice_by > 0 ? LATE_THREADS : 0;
    pool->threads = calloc(thread_count + pool->late_count, sizeof(pool->threads[0]));
    check(pool->threads != NULL);
    list_init(&pool->shared.queue);
    check(pthread_mutex_init(&pool->shared.mutex, NULL) == 0);
    check(pthread_cond_init(&pool->shared.filled, NULL) == 0);
    check(pthread_cond_init(&pool->shared.begun, NULL) == 0);
    pthread_condattr_t attr;
    check(pthread_condattr_init(&attr) == 0);
    check(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0);
    check(pthread_cond_init(&pool->shared.stopped, &attr) == 0);
    check(pthread_condattr_destroy(&attr) == 0);
    return pool;
}

void thread_pool_start(struct thread_pool *pool)
{
    for (unsigned i = 0; i < pool->thread_count + pool->late_count; i++) {
        void *(*thread_main)(void *ctx) = i < pool->thread_count ? pool_main : pool_main_late;
        if (pthread_create(&pool->threads[i], NULL, thread_main, pool) != 0) {
            break; // fewer threads serve as well, only slower
        }
        pool->started_count++;
    }
    check(pool->started_count > 0);
}

void thread_pool_stop(struct thread_pool *pool)
{
    check(pthread_mutex_lock(&pool->shared.mutex) == 0);
    pool->shared.is_stopping = true;
    check(pthread_cond_broadcast(&pool->shared.filled) == 0);
    check(pthread_cond_broadcast(&pool->shared.begun) == 0);
    check(pthread_cond_broadcast(&pool->shared.stopped) == 0);
    check(pthread_mutex_unlock(&pool->shared.mutex) == 0);
    for (unsigned i = 0; i < pool->started_count; i++) {
        check(pthread_join(pool->threads[i], NULL) == 0);
    }
    pool->started_count = 0;
}

void thread_pool_free(struct thread_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    check(pool->started_count == 0);
    check(list_empty(&pool->shared.queue));
    check(pthread_cond_destroy(&pool->shared.filled) == 0);
    check(pthread_cond_destroy(&pool->shared.begun) == 0);
    check(pthread_cond_destroy(&pool->shared.stopped) == 0);
    check(pthread_mutex_destroy(&pool->shared.mutex) == 0);
    free(pool->threads);
    free(pool);
}
