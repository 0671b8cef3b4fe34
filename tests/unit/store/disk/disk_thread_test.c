// SPDX-License-Identifier: Apache-2.0
// Proves: a thread of the store is started at most once, ends when its owner stops it, and a thread
// that was never started needs no stop. A start creates no thread, so no limit can make it fail.
#include "store/disk/disk_thread.h"

#include <signal.h>

#include "test.h"
#include "thread_limit.h"

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct disk_thread thread;
    bool has_ended;
    struct disk_spares spares;
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

static void begin(unsigned spares)
{
    owner.thread = (struct disk_thread){.phase = DISK_THREAD_NEW};
    owner.has_ended = false;
    disk_spares_init(&owner.spares);
    cr_assert(disk_spares_add(&owner.spares, spares));
}

Test(disk_thread, ends_when_its_owner_stops_it)
{
    begin(1);
    disk_thread_start(&owner.thread, &owner.spares, wait_for_stop, NULL);
    disk_thread_stop(&owner.thread, &owner.lock, &owner.wake);
    cr_assert(owner.has_ended);
    cr_assert_eq(owner.thread.phase, DISK_THREAD_ENDED);
    disk_spares_done(&owner.spares);
}

Test(disk_thread, start_needs_no_new_thread)
{
    begin(1);
    thread_limit_reached(true);
    disk_thread_start(&owner.thread, &owner.spares, wait_for_stop, NULL);
    thread_limit_reached(false);
    disk_thread_stop(&owner.thread, &owner.lock, &owner.wake);
    cr_assert(owner.has_ended);
    disk_spares_done(&owner.spares);
}

Test(disk_thread, refused_spare_leaves_the_others_usable)
{
    begin(1);
    thread_limit_reached(true);
    cr_assert(!disk_spares_add(&owner.spares, 1));
    thread_limit_reached(false);
    disk_thread_start(&owner.thread, &owner.spares, wait_for_stop, NULL);
    disk_thread_stop(&owner.thread, &owner.lock, &owner.wake);
    disk_spares_done(&owner.spares);
}

Test(disk_thread, spare_that_got_no_work_ends_with_its_owner)
{
    begin(2);
    disk_spares_done(&owner.spares);
}

Test(disk_thread, thread_that_was_never_started_needs_no_stop)
{
    disk_thread_stop(&owner.thread, &owner.lock, &owner.wake);
    cr_assert_eq(owner.thread.phase, DISK_THREAD_NEW);
}

Test(disk_thread, second_start_aborts, .signal = SIGABRT)
{
    begin(2);
    owner.thread.phase = DISK_THREAD_RUNS;
    disk_thread_start(&owner.thread, &owner.spares, wait_for_stop, NULL);
}

Test(disk_thread, second_stop_aborts, .signal = SIGABRT)
{
    owner.thread.phase = DISK_THREAD_ENDED;
    disk_thread_stop(&owner.thread, &owner.lock, &owner.wake);
}
