// SPDX-License-Identifier: Apache-2.0
// Proves: a thread of the store is started at most once, ends when its owner stops it, and a thread
// that was never started needs no stop.
#include "store/disk/disk_thread.h"

#include <signal.h>

#include "test.h"

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct disk_thread thread;
    bool has_ended;
} owner = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static void *wait_for_stop(void *ctx)
{
    pthread_mutex_lock(&owner.lock);
    while (!disk_thread_stops(&owner.thread)) {
        pthread_cond_wait(&owner.wake, &owner.lock);
    }
    owner.has_ended = true;
    pthread_mutex_unlock(&owner.lock);
    return ctx;
}

Test(disk_thread, ends_when_its_owner_stops_it)
{
    disk_thread_start(&owner.thread, wait_for_stop, NULL);
    disk_thread_stop(&owner.thread, &owner.lock, &owner.wake);
    cr_assert(owner.has_ended);
    cr_assert_eq(owner.thread.phase, DISK_THREAD_ENDED);
}

Test(disk_thread, thread_that_was_never_started_needs_no_stop)
{
    disk_thread_stop(&owner.thread, &owner.lock, &owner.wake);
    cr_assert_eq(owner.thread.phase, DISK_THREAD_NEW);
}

Test(disk_thread, second_start_aborts, .signal = SIGABRT)
{
    owner.thread.phase = DISK_THREAD_RUNS;
    disk_thread_start(&owner.thread, wait_for_stop, NULL);
}

Test(disk_thread, second_stop_aborts, .signal = SIGABRT)
{
    owner.thread.phase = DISK_THREAD_ENDED;
    disk_thread_stop(&owner.thread, &owner.lock, &owner.wake);
}
