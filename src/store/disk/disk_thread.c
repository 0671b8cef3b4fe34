// SPDX-License-Identifier: Apache-2.0
// The phases of a background thread of the store, and the only functions that change them; the
// spare threads that start as one.
#include "store/disk/disk_thread.h"

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

// --- spare threads

void disk_spares_init(struct disk_spares *spares)
{
    *spares = (struct disk_spares){.count = 0};
    check(pthread_mutex_init(&spares->lock, NULL) == 0);
    check(pthread_cond_init(&spares->wake, NULL) == 0);
}

static void *spare_main(void *ctx)
{
    struct disk_spare *spare = ctx;
    struct disk_spares *spares = spare->all;
    check(pthread_mutex_lock(&spares->lock) == 0);
    while (spare->main == NULL && !spares->is_closed) {
        check(pthread_cond_wait(&spares->wake, &spares->lock) == 0);
    }
    check(pthread_mutex_unlock(&spares->lock) == 0);
    return spare->main != NULL ? spare->main(spare->ctx) : NULL;
}

bool disk_spares_add(struct disk_spares *spares, unsigned count)
{
    check(spares->count + count <= DISK_SPARES_MAX);
    for (unsigned i = 0; i < count; i++) {
        struct disk_spare *spare = &spares->spares[spares->count];
        spare->all = spares;
        if (pthread_create(&spare->id, NULL, spare_main, spare) != 0) {
            return false;
        }
        spares->count++;
    }
    return true;
}

pthread_t disk_spares_use(struct disk_spares *spares, void *(*main)(void *ctx), void *ctx)
{
    check(pthread_mutex_lock(&spares->lock) == 0);
    check(spares->used < spares->count && !spares->is_closed);
    struct disk_spare *spare = &spares->spares[spares->used++];
    spare->ctx = ctx;
    spare->main = main;
    check(pthread_cond_broadcast(&spares->wake) == 0);
    check(pthread_mutex_unlock(&spares->lock) == 0);
    return spare->id;
}

void disk_spares_done(struct disk_spares *spares)
{
    check(pthread_mutex_lock(&spares->lock) == 0);
    spares->is_closed = true;
    check(pthread_cond_broadcast(&spares->wake) == 0);
    check(pthread_mutex_unlock(&spares->lock) == 0);
    for (unsigned i = spares->used; i < spares->count; i++) {
        check(pthread_join(spares->spares[i].id, NULL) == 0);
    }
    check(pthread_cond_destroy(&spares->wake) == 0);
    check(pthread_mutex_destroy(&spares->lock) == 0);
}

// --- a thread with work

void disk_thread_start(struct disk_thread *thread, struct disk_spares *spares,
                       void *(*main)(void *ctx), void *ctx)
{
    enter(thread, DISK_THREAD_RUNS);
    thread->id = disk_spares_use(spares, main, ctx);
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
