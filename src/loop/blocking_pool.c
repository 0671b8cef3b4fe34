// SPDX-License-Identifier: Apache-2.0
// One thread pool per lane, for calls that have no asynchronous form. A job is embedded in its
// owner, and belongs to the pool from blocking_pool_run() until done(). The pool sends a message to
// the worker that started the job, which then runs done().
#include "loop/loop_private.h"

static void on_job_over(struct worker *w, struct message *message)
{
    struct blocking_job *job = container_of(message, struct blocking_job, message);
    check(job->worker == w);
    worker_expect_done(w);
    job->done(job);
}

static void run(struct list_node *node)
{
    struct blocking_job *job = container_of(node, struct blocking_job, node);
    job->work(job);
    mailbox_send_from_any_thread(job->worker, &job->message);
}

void blocking_pool_run(struct worker *w, struct blocking_job *job)
{
    check(worker_is_mine(w));
    check(job->work != NULL);
    check(job->done != NULL);
    job->worker = w;
    job->err = ERR_OK;
    job->message.deliver = on_job_over;
    list_node_init(&job->node);
    worker_expect(w);

    struct list one;
    list_init(&one);
    list_push_back(&one, &job->node);
    check(job->lane < BLOCKING_LANE_COUNT);
    struct thread_pool *pool = w->loop->blocking_pools[job->lane];
    enum err err = thread_pool_add(pool, &one, 1, BLOCKING_QUEUE_MAX);
    if (err != ERR_OK) {
        list_remove(&job->node);
        job->err = err;
        mailbox_send(w, &job->message);
    }
}

struct thread_pool *blocking_pool_new(enum blocking_lane lane)
{
    static const struct {
        const char *name;
        unsigned thread_count;
    } lanes[BLOCKING_LANE_COUNT] = {
        [BLOCKING_GENERAL] = {"blocking", 4},
        [BLOCKING_STORE] = {"blocking-store", 1}, // one thread, because its jobs share a lock
        [BLOCKING_ORIGIN] = {"blocking-origin", 4}};
    return thread_pool_new(lanes[lane].name, THREAD_HELPS, lanes[lane].thread_count, run);
}
