// SPDX-License-Identifier: Apache-2.0
// A background thread of the store: started at most once, stopped by its owner.
//
// At a limit of tasks (RLIMIT_NPROC, pids.max) no thread can be created. So the store creates all
// its threads while it opens, and an opening that fails there is an error of the start. The threads
// wait as spares until disk_thread_start() gives one its work, which therefore cannot fail.
#ifndef FOREBAY_STORE_DISK_THREAD_H
#define FOREBAY_STORE_DISK_THREAD_H

#include <pthread.h>
#include <stdbool.h>

#include "base/check.h"

#define DISK_SPARES_MAX 8u

// A thread without work.
struct disk_spare {
    struct disk_spares *all;
    pthread_t id;
    // NULL: no work yet. The thread that gives it work holds all->lock.
    void *(*main)(void *ctx);
    void *ctx;
};

struct disk_spares {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct disk_spare spares[DISK_SPARES_MAX];
    unsigned count; // threads that were created
    unsigned used;  // of them, those with work: the first ones
    bool is_closed; // the others must end
};

void disk_spares_init(struct disk_spares *spares);
// Creates `count` more threads. Returns false if the system refuses one of them.
bool disk_spares_add(struct disk_spares *spares, unsigned count) MUST_USE;
// Ends the threads that never got work. The owners have joined the others.
void disk_spares_done(struct disk_spares *spares);
// Has one spare thread call main(ctx). There must be one. Returns the thread, for the caller to
// join.
pthread_t disk_spares_use(struct disk_spares *spares, void *(*main)(void *ctx), void *ctx);

enum disk_thread_phase {
    DISK_THREAD_NEW,   // not started; its owner may never start it
    DISK_THREAD_RUNS,  // started
    DISK_THREAD_STOPS, // must stop, and ends soon
    DISK_THREAD_ENDED, // joined
};

// `phase` is guarded by the lock of the owner. That lock also guards what the thread waits for.
struct disk_thread {
    pthread_t id;
    enum disk_thread_phase phase;
};

// Starts the thread, on a spare. Called under the owner's lock, or before other threads use the
// owner.
void disk_thread_start(struct disk_thread *thread, struct disk_spares *spares,
                       void *(*main)(void *ctx), void *ctx);
// Returns true if the thread must stop. Under the owner's lock.
bool disk_thread_stops(const struct disk_thread *thread);
// Stops and joins a thread that was started; does nothing otherwise. `wake` is what the thread
// waits for. Called once, without the lock.
void disk_thread_stop(struct disk_thread *thread, pthread_mutex_t *lock, pthread_cond_t *wake);

#endif
