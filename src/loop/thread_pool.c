// SPDX-License-Identifier: Apache-2.0
// Threads that take work from one queue, for the disk engine `threads` and for blocking_pool.c. A
// piece of work is a list node inside a struct that only the pool's run() knows. The pool owns it
// from thread_pool_add() until run() gets it.
#include "loop/loop_private.h"

#include <stdio.h>
#include <stdlib.h>

struct thread_pool {
    const char *name;
    enum thread_kind kind;
    void (*run)(struct list_node *work);
    unsigned thread_count, started_count;
    pthread_t *threads;
    // Guarded by `mutex`. No other lock is taken while it is locked.
    struct {
        pthread_mutex_t mutex;
        pthread_cond_t filled;
        struct list queue;
        unsigned queued_count, idle_count;
        bool is_stopping;
    } shared;
};

static struct list_node *pool_take(struct thread_pool *pool)
{
    check(pthread_mutex_lock(&pool->shared.mutex) == 0);
    pool->shared.idle_count++;
    while (list_empty(&pool->shared.queue) && !pool->shared.is_stopping) {
        check(pthread_cond_wait(&pool->shared.filled, &pool->shared.mutex) == 0);
    }
    pool->shared.idle_count--;
    struct list_node *work = list_pop_front(&pool->shared.queue);
    if (work != NULL) {
        check(pool->shared.queued_count > 0);
        pool->shared.queued_count--;
    }
    check(pthread_mutex_unlock(&pool->shared.mutex) == 0);
    return work;
}

static void *pool_main(void *ctx)
{
    struct thread_pool *pool = ctx;
    thread_begin(pool->name, pool->kind);
    struct list_node *work;
    while ((work = pool_take(pool)) != NULL) {
        pool->run(work);
    }
    return NULL;
}

enum err thread_pool_add(struct thread_pool *pool, struct list *work, unsigned count,
                         unsigned queued_max)
{
    enum err err = ERR_OK;
    unsigned wake_count = 0;
    check(pthread_mutex_lock(&pool->shared.mutex) == 0);
    if (pool->shared.is_stopping) {
        err = ERR_SHUTDOWN;
    } else if (count > queued_max || pool->shared.queued_count > queued_max - count) {
        err = ERR_LIMIT;
    } else {
        list_append_all(&pool->shared.queue, work);
        pool->shared.queued_count += count;
        wake_count = count < pool->shared.idle_count ? count : pool->shared.idle_count;
    }
    check(pthread_mutex_unlock(&pool->shared.mutex) == 0);
    // Signal only after the unlock, because a woken thread would block on the mutex.
    for (unsigned i = 0; i < wake_count; i++) {
        check(pthread_cond_signal(&pool->shared.filled) == 0);
    }
    return err;
}

struct thread_pool *thread_pool_new(const char *name, enum thread_kind kind, unsigned thread_count,
                                    void (*run)(struct list_node *work))
{
    check(thread_count > 0);
    struct thread_pool *pool = calloc(1, sizeof(*pool));
    check(pool != NULL);
    pool->name = name;
    pool->kind = kind;
    pool->run = run;
    pool->thread_count = thread_count;
    pool->threads = calloc(thread_count, sizeof(pool->threads[0]));
    check(pool->threads != NULL);
    list_init(&pool->shared.queue);
    check(pthread_mutex_init(&pool->shared.mutex, NULL) == 0);
    check(pthread_cond_init(&pool->shared.filled, NULL) == 0);
    return pool;
}

enum err thread_pool_start(struct thread_pool *pool)
{
    check(pool->started_count == 0);
    for (unsigned i = 0; i < pool->thread_count; i++) {
        if (pthread_create(&pool->threads[i], NULL, pool_main, pool) != 0) {
            break;
        }
        pool->started_count++;
    }
    return pool->started_count > 0 ? ERR_OK : ERR_LIMIT;
}

void thread_pool_stop(struct thread_pool *pool)
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

void thread_pool_free(struct thread_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    check(pool->started_count == 0);
    check(list_empty(&pool->shared.queue));
    check(pthread_cond_destroy(&pool->shared.filled) == 0);
    check(pthread_mutex_destroy(&pool->shared.mutex) == 0);
    free(pool->threads);
    free(pool);
}
