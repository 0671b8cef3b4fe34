// SPDX-License-Identifier: Apache-2.0
// A pool of threads for calls with no asynchronous form. A job is embedded in its owner; it belongs
// to the pool from blocking_start() until its done() on the worker that started it. Answers travel
// by mailbox.
#include "loop/loop_private.h"

#include <stdio.h>
#include <stdlib.h>

struct blocking_pool {
    unsigned thread_count, started_count;
    pthread_t *threads;
    // Guarded by its mutex. No other lock is taken while it is held.
    struct {
        pthread_mutex_t mutex;
        pthread_cond_t filled;
        struct list queue;
        unsigned queued_count;
        bool is_stopping;
    } shared;
};

static void on_job_over(struct worker *w, struct message *message)
{
    struct blocking_job *job = container_of(message, struct blocking_job, message);
    check(job->worker == w);
    worker_expect_done(w);
    job->done(job);
}

static struct blocking_job *pool_take(struct blocking_pool *pool)
{
    check(pthread_mutex_lock(&pool->shared.mutex) == 0);
    while (list_empty(&pool->shared.queue) && !pool->shared.is_stopping) {
        check(pthread_cond_wait(&pool->shared.filled, &pool->shared.mutex) == 0);
    }
    struct list_node *node = list_pop_front(&pool->shared.queue);
    if (node != NULL) {
        pool->shared.queued_count--;
    }
    check(pthread_mutex_unlock(&pool->shared.mutex) == 0);
    return node == NULL ? NULL : container_of(node, struct blocking_job, node);
}

static void *pool_main(void *ctx)
{
    struct blocking_pool *pool = ctx;
    (void)pthread_setname_np(pthread_self(), "blocking"); // only a name for top
    struct blocking_job *job;
    while ((job = pool_take(pool)) != NULL) {
        job->work(job);
        mailbox_send_from_any_thread(job->worker, &job->message);
    }
    return NULL;
}

void blocking_start(struct worker *w, struct blocking_job *job)
{
    check(worker_is_mine(w));
    check(job->work != NULL);
    check(job->done != NULL);
    struct blocking_pool *pool = w->loop->blocking_pool;
    job->worker = w;
    job->err = ERR_OK;
    job->message.deliver = on_job_over;
    list_node_init(&job->node);
    worker_expect(w);

    check(pthread_mutex_lock(&pool->shared.mutex) == 0);
    enum err err = ERR_OK;
    if (pool->shared.is_stopping) {
        err = ERR_SHUTDOWN;
    } else if (pool->shared.queued_count >= BLOCKING_QUEUE_MAX) {
        err = ERR_LIMIT;
    } else {
        list_push_back(&pool->shared.queue, &job->node);
        pool->shared.queued_count++;
        check(pthread_cond_signal(&pool->shared.filled) == 0);
    }
    check(pthread_mutex_unlock(&pool->shared.mutex) == 0);
    if (err != ERR_OK) {
        job->err = err;
        mailbox_send(w, &job->message);
    }
}

struct blocking_pool *blocking_pool_new(unsigned thread_count)
{
    struct blocking_pool *pool = calloc(1, sizeof(*pool));
    check(pool != NULL);
    pool->thread_count = thread_count;
    pool->threads = calloc(thread_count, sizeof(pool->threads[0]));
    check(pool->threads != NULL);
    list_init(&pool->shared.queue);
    check(pthread_mutex_init(&pool->shared.mutex, NULL) == 0);
    check(pthread_cond_init(&pool->shared.filled, NULL) == 0);
    return pool;
}

void blocking_pool_start(struct blocking_pool *pool)
{
    for (unsigned i = 0; i < pool->thread_count; i++) {
        if (pthread_create(&pool->threads[i], NULL, pool_main, pool) != 0) {
            break; // fewer threads serve as well, only slower
        }
        pool->started_count++;
    }
    check(pool->started_count > 0);
}

void blocking_pool_stop(struct blocking_pool *pool)
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

void blocking_pool_free(struct blocking_pool *pool)
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
