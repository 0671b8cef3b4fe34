// SPDX-License-Identifier: Apache-2.0
#include "schedule.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <sys/random.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "life.h"

#define THREADS_MAX 16u
#define SPIN_US 1u // how far the clock moves when it is read: nobody can wait for it in a circle

enum waiting { RUNS, FOR_MUTEX, FOR_COND, FOR_TIME, FOR_THREAD, ENDED };

struct thread {
    pthread_t real;
    sem_t turn;
    enum waiting waiting;
    const void *on;
    uint64_t due_us; // 0: never
    bool is_late;    // the time came first
    void *(*fn)(void *ctx);
    void *ctx;
    unsigned rounds; // of destructors
};

static struct {
    bool is_on, is_clock_on;
    struct thread threads[THREADS_MAX];
    unsigned count;
    uint64_t random, monotonic_us, wall_us;
    pthread_key_t last_key; // its destructor hands on when all others have run
} schedule;

static _Thread_local struct thread *me;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *ctx);
int __real_pthread_join(pthread_t thread, void **ret);
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __real_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int __real_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                                  const struct timespec *until);
int __real_pthread_cond_signal(pthread_cond_t *cond);
int __real_pthread_cond_broadcast(pthread_cond_t *cond);
int __real_clock_gettime(clockid_t id, struct timespec *ret_now);
int __real_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int __real_sched_yield(void);
pid_t __real_fork(void);
ssize_t __real_getrandom(void *buf, size_t len, unsigned flags);

// --- random

static uint64_t random_next(void)
{
    uint64_t x = schedule.random += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

void schedule_seed(uint64_t seed)
{
    schedule.random = seed;
    (void)random_next();
}

unsigned schedule_random(unsigned below)
{
    return (unsigned)((random_next() >> 11) % below);
}

// --- whose turn it is

static void wait_for_turn(struct thread *thread)
{
    while (sem_wait(&thread->turn) != 0) {
    }
}

static void wake_the_due(void)
{
    for (unsigned i = 0; i < schedule.count; i++) {
        struct thread *t = &schedule.threads[i];
        if ((t->waiting == FOR_TIME || t->waiting == FOR_COND) && t->due_us != 0 &&
            t->due_us <= schedule.monotonic_us) {
            t->waiting = RUNS;
            t->is_late = true;
        }
    }
}

static struct thread *pick_next(void)
{
    struct thread *able[THREADS_MAX];
    for (;;) {
        unsigned count = 0;
        uint64_t due_us = 0;
        wake_the_due();
        for (unsigned i = 0; i < schedule.count; i++) {
            struct thread *t = &schedule.threads[i];
            if (t->waiting == RUNS) {
                able[count++] = t;
            } else if ((t->waiting == FOR_TIME || t->waiting == FOR_COND) && t->due_us != 0) {
                due_us = due_us == 0 ? t->due_us : min_u64(due_us, t->due_us);
            }
        }
        if (count > 0) {
            return able[schedule_random(count)];
        }
        if (due_us == 0) {
            life_fail("all threads wait for each other");
        }
        schedule.wall_us += due_us - schedule.monotonic_us;
        schedule.monotonic_us = due_us;
    }
}

static void give_turn(void)
{
    struct thread *next = pick_next();
    if (next != me) {
        check(sem_post(&next->turn) == 0);
        wait_for_turn(me);
    }
}

void schedule_point(unsigned one_in)
{
    if (schedule.is_on && schedule_random(one_in) == 0) {
        give_turn();
    }
}

// True: the time came first.
static bool wait_here(enum waiting waiting, const void *on, uint64_t due_us)
{
    me->waiting = waiting;
    me->on = on;
    me->due_us = due_us;
    me->is_late = false;
    give_turn();
    return me->is_late;
}

static unsigned wake_all(enum waiting waiting, const void *on, unsigned max)
{
    unsigned first = max == 1 ? schedule_random(schedule.count) : 0;
    unsigned woken = 0;
    for (unsigned i = 0; i < schedule.count && woken < max; i++) {
        struct thread *t = &schedule.threads[(first + i) % schedule.count];
        if (t->waiting == waiting && t->on == on) {
            t->waiting = RUNS;
            woken++;
        }
    }
    return woken;
}

void schedule_sleep_us(uint64_t us)
{
    (void)wait_here(FOR_TIME, &schedule, schedule.monotonic_us + us);
}

void schedule_wake(void)
{
    if (schedule.is_on && schedule.threads[0].waiting == FOR_TIME) {
        schedule.threads[0].waiting = RUNS;
    }
}

bool schedule_is_on(void)
{
    return schedule.is_on;
}

uint64_t schedule_monotonic_us(void)
{
    return schedule.monotonic_us;
}

uint64_t schedule_wall_us(void)
{
    return schedule.wall_us;
}

// --- the life of a thread

// Destructors of other keys, which may take a lock, run first.
static void on_last(void *ctx)
{
    struct thread *t = ctx;
    if (++t->rounds < 3) {
        (void)pthread_setspecific(schedule.last_key, t);
        return;
    }
    t->waiting = ENDED;
    (void)wake_all(FOR_THREAD, t, THREADS_MAX);
    check(sem_post(&pick_next()->turn) == 0);
}

static void *thread_main(void *ctx)
{
    me = ctx;
    check(pthread_setspecific(schedule.last_key, me) == 0);
    wait_for_turn(me);
    return me->fn(me->ctx);
}

void schedule_begin(uint64_t seed, uint64_t monotonic_us, uint64_t wall_us)
{
    schedule.is_on = schedule.is_clock_on = true;
    schedule.count = 1;
    schedule.monotonic_us = monotonic_us;
    schedule.wall_us = wall_us;
    schedule_seed(seed);
    check(pthread_key_create(&schedule.last_key, on_last) == 0);
    me = &schedule.threads[0];
    me->real = pthread_self();
    check(sem_init(&me->turn, 0, 0) == 0);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *ctx)
{
    if (!schedule.is_on) {
        return __real_pthread_create(thread, attr, fn, ctx);
    }
    check(schedule.count < THREADS_MAX);
    struct thread *t = &schedule.threads[schedule.count++];
    *t = (struct thread){.fn = fn, .ctx = ctx};
    check(sem_init(&t->turn, 0, 0) == 0);
    int failed = __real_pthread_create(&t->real, attr, thread_main, t);
    check(failed == 0);
    *thread = t->real;
    schedule_point(2);
    return 0;
}

int __wrap_pthread_join(pthread_t thread, void **ret)
{
    for (unsigned i = 0; i < schedule.count && schedule.is_on; i++) {
        struct thread *t = &schedule.threads[i];
        while (pthread_equal(t->real, thread) && t->waiting != ENDED) {
            (void)wait_here(FOR_THREAD, t, 0);
        }
    }
    return __real_pthread_join(thread, ret);
}

// --- locks

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    if (!schedule.is_on) {
        return __real_pthread_mutex_lock(mutex);
    }
    schedule_point(16);
    int rc;
    while ((rc = pthread_mutex_trylock(mutex)) == EBUSY) {
        (void)wait_here(FOR_MUTEX, mutex, 0);
    }
    return rc;
}

static int unlock(pthread_mutex_t *mutex)
{
    int rc = __real_pthread_mutex_unlock(mutex);
    (void)wake_all(FOR_MUTEX, mutex, THREADS_MAX);
    return rc;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    if (!schedule.is_on) {
        return __real_pthread_mutex_unlock(mutex);
    }
    int rc = unlock(mutex);
    schedule_point(16);
    return rc;
}

static int cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t due_us)
{
    check(unlock(mutex) == 0);
    bool is_late = wait_here(FOR_COND, cond, due_us);
    check(__wrap_pthread_mutex_lock(mutex) == 0);
    return is_late ? ETIMEDOUT : 0;
}

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
    return schedule.is_on ? cond_wait(cond, mutex, 0) : __real_pthread_cond_wait(cond, mutex);
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                                  const struct timespec *until)
{
    if (!schedule.is_on) {
        return __real_pthread_cond_timedwait(cond, mutex, until);
    }
    uint64_t due_us = (uint64_t)until->tv_sec * 1000000 + (uint64_t)until->tv_nsec / 1000;
    return cond_wait(cond, mutex, max_u64(due_us, 1));
}

int __wrap_pthread_cond_signal(pthread_cond_t *cond)
{
    if (!schedule.is_on) {
        return __real_pthread_cond_signal(cond);
    }
    (void)wake_all(FOR_COND, cond, 1);
    schedule_point(4);
    return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *cond)
{
    if (!schedule.is_on) {
        return __real_pthread_cond_broadcast(cond);
    }
    (void)wake_all(FOR_COND, cond, THREADS_MAX);
    schedule_point(4);
    return 0;
}

int __wrap_sched_yield(void)
{
    if (!schedule.is_on) {
        return __real_sched_yield();
    }
    give_turn();
    return 0;
}

// --- what else the kernel decides

int __wrap_clock_gettime(clockid_t id, struct timespec *ret_now)
{
    if (!schedule.is_clock_on) {
        return __real_clock_gettime(id, ret_now);
    }
    schedule.monotonic_us += SPIN_US;
    schedule.wall_us += SPIN_US;
    bool is_wall = id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE;
    uint64_t us = is_wall ? schedule.wall_us : schedule.monotonic_us;
    *ret_now =
        (struct timespec){.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000 * 1000)};
    return 0;
}

ssize_t __wrap_getrandom(void *buf, size_t len, unsigned flags)
{
    if (!schedule.is_clock_on) {
        return __real_getrandom(buf, len, flags);
    }
    char *at = buf;
    for (size_t i = 0; i < len; i++) {
        at[i] = (char)random_next();
    }
    return (ssize_t)len;
}

// The child that verifies the index is real, and is always fast enough.
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    return __real_poll(fds, count, schedule.is_on ? -1 : timeout_ms);
}

pid_t __wrap_fork(void)
{
    pid_t pid = __real_fork();
    if (pid == 0 && schedule.is_on) {
        schedule.is_on = false; // alone; its clock goes on being played
        life_is_bystander();
    }
    return pid;
}
