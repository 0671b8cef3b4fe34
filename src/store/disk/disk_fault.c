// SPDX-License-Identifier: Apache-2.0
// Lets tests make calls of the store's own threads fail; see disk_fault.h.
#include "store/disk/disk_fault.h"

#ifdef FOREBAY_FAULTS
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bytes.h"
#include "base/check.h"
#include "loop/loop.h"

static struct {
    atomic_uint left; // the call that fails, counted from the next one (1); 0: none
    atomic_bool repeat;
    atomic_int errno_value;
    atomic_bool stalled;
} faults[STORE_FAULT_COUNT_];

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned waiting[STORE_FAULT_COUNT_];
} stalls = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

void store_fault_stall(enum store_fault fault, bool stall)
{
    check(fault < STORE_FAULT_COUNT_);
    pthread_mutex_lock(&stalls.lock);
    atomic_store(&faults[fault].stalled, stall);
    pthread_cond_broadcast(&stalls.changed);
    pthread_mutex_unlock(&stalls.lock);
}

void store_fault_stall_reached(enum store_fault fault)
{
    pthread_mutex_lock(&stalls.lock);
    while (stalls.waiting[fault] == 0) {
        pthread_cond_wait(&stalls.changed, &stalls.lock);
    }
    pthread_mutex_unlock(&stalls.lock);
}

static void fault_wait(enum store_fault fault)
{
    pthread_mutex_lock(&stalls.lock);
    stalls.waiting[fault]++;
    pthread_cond_broadcast(&stalls.changed);
    while (atomic_load(&faults[fault].stalled)) {
        pthread_cond_wait(&stalls.changed, &stalls.lock);
    }
    check(stalls.waiting[fault] > 0);
    stalls.waiting[fault]--;
    pthread_mutex_unlock(&stalls.lock);
}

void store_fault_set(enum store_fault fault, unsigned nth, bool repeat, int errno_value)
{
    check(fault < STORE_FAULT_COUNT_ && (nth == 0 || errno_value > 0));
    atomic_store(&faults[fault].repeat, repeat);
    atomic_store(&faults[fault].errno_value, errno_value);
    atomic_store(&faults[fault].left, nth);
}

int store_fault_strike(enum store_fault fault)
{
    static const char *const names[] = {
        "store.sync",   "store.commit",  "store.create",  "store.allocate", "store.unlink",
        "store.open",   "store.scan",    "store.table",   "store.mark",     "store.note",
        "store.disown", "store.remove",  "store.rewrite", "store.roll",     "store.scrub",
        "store.pins",   "store.rebuild", "store.trim"};
    static_assert(ARRAY_LEN(names) == STORE_FAULT_COUNT_, "a name for each");
    check(fault < STORE_FAULT_COUNT_);
    if (atomic_load_explicit(&faults[fault].stalled, memory_order_relaxed)) {
        fault_wait(fault);
    }
    unsigned left = atomic_load_explicit(&faults[fault].left, memory_order_relaxed);
    do {
        if (left == 0) {
            return disk_fault_errno(names[fault]);
        }
        if (left == 1 && atomic_load(&faults[fault].repeat)) {
            return atomic_load(&faults[fault].errno_value);
        }
    } while (!atomic_compare_exchange_weak(&faults[fault].left, &left, left - 1));
    return left == 1 ? atomic_load(&faults[fault].errno_value) : 0;
}

bool store_fault_is_steady(void)
{
    static atomic_int known = -1;
    int steady = atomic_load_explicit(&known, memory_order_relaxed);
    if (steady < 0) {
        const char *text = getenv("FOREBAY_TEST_STEADY");
        steady = text != NULL && strcmp(text, "1") == 0;
        atomic_store(&known, steady);
    }
    return steady;
}

bool store_fault_waits(unsigned tries)
{
    // 20 seconds, because each try waits for one millisecond.
    static const unsigned tries_max = 20000;
    if (!store_fault_is_steady() || tries >= tries_max) {
        return false;
    }
    struct timespec until;
    check(clock_gettime(CLOCK_REALTIME, &until) == 0);
    until.tv_nsec += 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&stalls.lock);
    pthread_cond_timedwait(&stalls.changed, &stalls.lock, &until);
    pthread_mutex_unlock(&stalls.lock);
    return true;
}
#endif
