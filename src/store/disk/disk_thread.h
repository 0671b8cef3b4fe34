// SPDX-License-Identifier: Apache-2.0
// A background thread of the store: started at most once, stopped by its owner.
#ifndef FOREBAY_STORE_DISK_THREAD_H
#define FOREBAY_STORE_DISK_THREAD_H

#include <pthread.h>
#include <stdbool.h>

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

// Starts the thread. Called under the owner's lock, or before other threads use the owner.
void disk_thread_start(struct disk_thread *thread, void *(*main)(void *ctx), void *ctx);
// Returns true if the thread must stop. Under the owner's lock.
bool disk_thread_stops(const struct disk_thread *thread);
// Stops and joins a thread that was started; does nothing otherwise. `wake` is what the thread
// waits for. Called once, without the lock.
void disk_thread_stop(struct disk_thread *thread, pthread_mutex_t *lock, pthread_cond_t *wake);

#endif
