// SPDX-License-Identifier: Apache-2.0
// A background thread of the store. It is started at most once, and its owner stops it.
#ifndef FOREBAY_STORE_DISK_THREAD_H
#define FOREBAY_STORE_DISK_THREAD_H

#include <pthread.h>
#include <stdbool.h>

enum disk_thread_phase {
    DISK_THREAD_NEW,   // not started, and maybe it never will be
    DISK_THREAD_RUNS,  // started
    DISK_THREAD_STOPS, // told by its owner to stop
    DISK_THREAD_ENDED, // joined
};

// The owner's lock guards `phase`, and the condition that the thread waits for.
struct disk_thread {
    pthread_t id;
    enum disk_thread_phase phase;
};

// Starts the thread. Called under the owner's lock, or before other threads use the owner.
void disk_thread_start(struct disk_thread *thread, void *(*main)(void *ctx), void *ctx);
// Returns true if the thread must stop. Under the owner's lock.
bool disk_thread_stops(const struct disk_thread *thread);
// Stops and joins the thread if it was started. `wake`: the condition that the thread waits for.
// Called once, without the lock.
void disk_thread_stop(struct disk_thread *thread, pthread_mutex_t *lock, pthread_cond_t *wake);

#endif
