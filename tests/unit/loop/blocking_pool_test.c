// SPDX-License-Identifier: Apache-2.0
// The pool for blocking calls: where work and answer run, and its limit.
#include <stdlib.h>

#include "loop/loop.h"
#include "loop_fixture.h"
#include "test.h"

#define QUEUE_MAX 4096
#define EXTRA 10

struct jobs {
    struct blocking_job item[QUEUE_MAX + EXTRA], holder[4];
    unsigned over_count, refused_count;
    struct signal entered, leave, over;
};

static struct jobs *jobs;

static void hold(struct blocking_job *job)
{
    (void)job;
    signal_raise(&jobs->entered);
    signal_wait(&jobs->leave);
}

static void on_over(struct blocking_job *job)
{
    cr_assert(worker_current() == job->worker);
    jobs->refused_count += job->err == ERR_LIMIT;
    if (++jobs->over_count == QUEUE_MAX + EXTRA + 4) {
        signal_raise(&jobs->over);
    }
}

static void on_one_over(struct blocking_job *job)
{
    (void)job;
    if (++jobs->over_count == EXTRA) {
        signal_raise(&jobs->over);
    }
}

static void work(struct blocking_job *job)
{
    cr_assert(worker_current() == NULL);
    cr_assert(job->err == ERR_OK);
}

static void start_holders(struct worker *w, void *ctx)
{
    (void)ctx;
    for (unsigned i = 0; i < 4; i++) {
        jobs->holder[i].work = hold;
        jobs->holder[i].done = on_over;
        blocking_pool_run(w, &jobs->holder[i]);
    }
}

static void start_flood(struct worker *w, void *ctx)
{
    (void)ctx;
    for (unsigned i = 0; i < QUEUE_MAX + EXTRA; i++) {
        jobs->item[i].work = work;
        jobs->item[i].done = on_over;
        blocking_pool_run(w, &jobs->item[i]);
    }
    cr_assert(jobs->over_count == 0); // never inside the starting call
}

static void start_one(struct worker *w, void *ctx)
{
    (void)ctx;
    for (unsigned i = 0; i < EXTRA; i++) {
        jobs->item[i].lane = i % 2 == 0 ? BLOCKING_GENERAL : BLOCKING_ORIGIN;
        jobs->item[i].work = work;
        jobs->item[i].done = on_one_over;
        blocking_pool_run(w, &jobs->item[i]);
    }
}

// Proves that stalled jobs of one lane delay no job of another lane.
Test(blocking_pool, lanes_are_apart)
{
    jobs = calloc(1, sizeof(*jobs));
    cr_assert(jobs != NULL);
    signal_init(&jobs->entered);
    signal_init(&jobs->leave);
    signal_init(&jobs->over);
    struct loop *loop = fixture_loop(DISK_ENGINE_THREADS, 1, 0);
    for (unsigned i = 0; i < 4; i++) {
        jobs->holder[i].lane = BLOCKING_STORE;
    }
    fixture_run_on(loop_worker(loop, 0), start_holders, NULL);
    signal_wait(&jobs->entered);
    fixture_run_on(loop_worker(loop, 0), start_one, NULL);
    signal_wait(&jobs->over);
    for (unsigned i = 0; i < 4; i++) {
        signal_raise(&jobs->leave);
    }
    fixture_loop_end(&loop);
    signal_done(&jobs->entered);
    signal_done(&jobs->leave);
    signal_done(&jobs->over);
    free(jobs);
}

// Proves that work runs off the workers, that the answer comes to the worker that asked, and that
// jobs above the limit are refused with ERR_LIMIT instead of queued.
Test(blocking_pool, limit_is_hit)
{
    jobs = calloc(1, sizeof(*jobs));
    cr_assert(jobs != NULL);
    signal_init(&jobs->entered);
    signal_init(&jobs->leave);
    signal_init(&jobs->over);
    struct loop *loop = fixture_loop(DISK_ENGINE_THREADS, 1, 0);
    fixture_run_on(loop_worker(loop, 0), start_holders, NULL);
    for (unsigned i = 0; i < 4; i++) {
        signal_wait(&jobs->entered);
    }
    fixture_run_on(loop_worker(loop, 0), start_flood, NULL);
    for (unsigned i = 0; i < 4; i++) {
        signal_raise(&jobs->leave);
    }
    signal_wait(&jobs->over);
    cr_assert(jobs->refused_count == EXTRA);
    fixture_loop_end(&loop);
    signal_done(&jobs->entered);
    signal_done(&jobs->leave);
    signal_done(&jobs->over);
    free(jobs);
}
