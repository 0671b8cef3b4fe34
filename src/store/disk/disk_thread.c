// SPDX-License-Identifier: Apache-2.0
// The phases of a background thread of the store. Only this file changes them.
#include "store/disk/disk_thread.h"

#include "base/check.h"

#define NEXT(name) (1u << DISK_THREAD_##name)

static void enter(struct disk_thread *thread, enum disk_thread_phase phase)
{
    static const unsigned next[] = {
        [DISK_THREAD_NEW] = NEXT(RUNS),
        [DISK_THREAD_RUNS] = NEXT(STOPS),
        [DISK_THREAD_STOPS] = NEXT(ENDED),
        [DISK_THREAD_ENDED] = 0,
    };
    check_step(next, thread->phase, phase);
    thread->phase = phase;
}

void disk_thread_start(struct disk_thread *thread, void *(*main)(void *ctx), void *ctx)
{
    enter(thread, DISK_THREAD_RUNS);
    check(pthread_create(&thread->id, NULL, main, ctx) == 0);
}

bool disk_thread_stops(const struct disk_thread *thread)
{
    return thread->phase >= DISK_THREAD_STOPS;
}

void disk_thread_stop(struct disk_thread *thread, pthread_mutex_t *lock, pthread_cond_t *wake)
{
    check(pthread_mutex_lock(lock) == 0);
    bool runs = thread->phase != DISK_THREAD_NEW;
    if (runs) {
        enter(thread, DISK_THREAD_STOPS);
        check(pthread_cond_signal(wake) == 0);
    }
    check(pthread_mutex_unlock(lock) == 0);
    if (runs) {
        check(pthread_equal(thread->id, pthread_self()) == 0);
        check(pthread_join(thread->id, NULL) == 0);
        enter(thread, DISK_THREAD_ENDED);
    }
}
