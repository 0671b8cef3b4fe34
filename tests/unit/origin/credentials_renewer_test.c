// SPDX-License-Identifier: Apache-2.0
// The credential renewer: what it reports if a load does not begin.
#include <semaphore.h>
#include <sys/mman.h>
#include <unistd.h>

#include "harness.h"
#include "origin/credentials_chain.h"
#include "test.h"

#ifndef FOREBAY_TSAN // there all tests share one process, and the standard error of others

#define HOLDERS 4 // the threads of the pool
#define QUEUED 4096

struct flood {
    struct blocking_job holders[HOLDERS], queued[QUEUED];
    struct credentials_renewer *renewer;
    struct credentials_waiter waiter;
    struct harness_wait entered, answered, over;
    sem_t leave;
    atomic_uint entered_count;
    unsigned over_count;
};

static struct flood *flood;

static void hold(struct blocking_job *job)
{
    (void)job;
    if (atomic_fetch_add(&flood->entered_count, 1) + 1 == HOLDERS) {
        harness_signal(&flood->entered);
    }
    cr_assert_eq(sem_wait(&flood->leave), 0);
}

static void do_nothing(struct blocking_job *job)
{
    (void)job;
}

static void on_over(struct blocking_job *job)
{
    cr_assert_eq(job->err, ERR_OK);
    if (++flood->over_count == HOLDERS + QUEUED) {
        harness_signal(&flood->over);
    }
}

static void start_holders(struct worker *w, void *ctx)
{
    (void)ctx;
    for (unsigned i = 0; i < HOLDERS; i++) {
        flood->holders[i] = (struct blocking_job){.work = hold, .done = on_over};
        blocking_pool_run(w, &flood->holders[i]);
    }
}

static void on_answer(struct credentials_waiter *waiter, enum err err)
{
    (void)waiter;
    cr_assert_eq(err, ERR_ORIGIN_CREDENTIALS);
    harness_signal(&flood->answered);
}

static void fill_queue_and_ask(struct worker *w, void *ctx)
{
    (void)ctx;
    for (unsigned i = 0; i < QUEUED; i++) {
        flood->queued[i] = (struct blocking_job){.work = do_nothing, .done = on_over};
        blocking_pool_run(w, &flood->queued[i]);
    }
    credentials_waiter_init(&flood->waiter, on_answer);
    credentials_renewer_ask(flood->renewer, w, credentials_renewer_get(flood->renewer, w),
                            &flood->waiter);
}

// If the pool's queue is full, the load does not begin. The log names this reason. The set does not
// expire, so this failure is the first to start the timer.
Test(credentials_renewer, full_queue_is_named)
{
    struct harness h = {0};
    struct loop_options loop_options = {.worker_count = 1};
    struct credentials_options options = {.source = ORIGIN_CREDENTIALS_ENV};
    struct credentials_set *first =
        credentials_set_new("environment", SPAN("AK"), SPAN("SK"), (struct span){NULL, 0}, 0);
    static char text[65536];
    flood = calloc(1, sizeof(*flood));
    struct harness_wait *waits[] = {&flood->entered, &flood->answered, &flood->over};
    for (size_t i = 0; i < ARRAY_LEN(waits); i++) {
        harness_wait_init(waits[i]);
    }
    cr_assert_eq(sem_init(&flood->leave, 0, 0), 0);
    cr_assert_eq(loop_new(&loop_options, &h.loop, NULL), ERR_OK);
    flood->renewer = credentials_renewer_new(h.loop, &options, &first);
    cr_assert_eq(loop_start(h.loop), ERR_OK);
    harness_on_worker(&h, 0, start_holders, NULL);
    harness_wait_for(&flood->entered);
    int fd = memfd_create("log", 0), saved = dup(STDERR_FILENO);
    cr_assert(fd >= 0 && saved >= 0);
    cr_assert(dup2(fd, STDERR_FILENO) >= 0);
    harness_on_worker(&h, 0, fill_queue_and_ask, NULL);
    harness_wait_for(&flood->answered);
    cr_assert(dup2(saved, STDERR_FILENO) >= 0);
    cr_assert_geq(pread(fd, text, sizeof(text) - 1, 0), 0);
    cr_assert_not_null(strstr(text, "credentials_not_renewed"));
    cr_assert_not_null(strstr(text, "the queue for blocking calls is full"), "%s", text);
    close(fd);
    close(saved);
    for (unsigned i = 0; i < HOLDERS; i++) {
        cr_assert_eq(sem_post(&flood->leave), 0);
    }
    harness_wait_for(&flood->over);
    loop_stop(h.loop);
    credentials_renewer_free(flood->renewer);
    loop_free(h.loop);
    cr_assert_eq(sem_destroy(&flood->leave), 0);
    free(flood);
}
#endif
