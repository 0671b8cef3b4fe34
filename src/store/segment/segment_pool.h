// SPDX-License-Identifier: Apache-2.0
// Descriptors of segments: a bounded number of them, opened on demand, closed when others need
// them.
#ifndef FOREBAY_STORE_SEGMENT_POOL_H
#define FOREBAY_STORE_SEGMENT_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "loop/loop.h"

#define SEGMENT_POOL_MIN 16u
#define SEGMENT_POOL_MAX 65536u
#define SEGMENT_OPEN_WAIT_MS 1000u // for a descriptor, while every one is in use

struct segment;
struct segment_opening;

struct segment_pool {
    int folder_fd;
    unsigned limit;
    pthread_t thread;
    bool runs;
    atomic_uint waiting; // threads that wait for a descriptor to come back
    struct {
        pthread_mutex_t lock; // held over open(2); never taken by a worker
        struct segment **open;
        unsigned open_count, hand;
    } guarded;
    struct { // its lock is held for a moment only, and none is taken under it
        pthread_mutex_t lock;
        pthread_cond_t wanted, returned;
        struct segment_opening *first, **last;
        uint64_t returns;
        bool stop;
    } queue;
};

void segment_pool_init(struct segment_pool *pool, int folder_fd, unsigned limit);
void segment_pool_start(struct segment_pool *pool);
// What is still asked for is not answered any more. After the workers.
void segment_pool_stop(struct segment_pool *pool);
// Closes what is open, whoever was using it: the workers are gone.
void segment_pool_done(struct segment_pool *pool);
// Closes one that nobody uses, because the process has no descriptor left; false: there is none.
// Not on a worker.
bool segment_pool_yield(struct segment_pool *pool);
// The calls below want a pinned segment.

// Its descriptor, in use until segment_return(); -1: not open. Any thread, never waits.
int segment_borrow(struct segment *segment);
void segment_return(struct segment *segment);
// The same, opened if need be. ERR_DESCRIPTORS, ERR_UNREADABLE: not now, and no reason to think ill
// of what is in it; ERR_IO: there is no such file. Not on a worker.
enum err segment_borrow_wait(struct segment *segment, int *ret_fd) MUST_USE;
// The same for a worker: done() runs on it, exactly once, later. With ERR_OK the segment is
// borrowed.
void segment_borrow_start(struct worker *w, struct segment *segment,
                          void (*done)(void *ctx, enum err err, int fd), void *ctx);

// A file just made: its descriptor is the pool's from now on. Before others know the segment.
void segment_pool_adopt(struct segment_pool *pool, struct segment *segment, int fd);
// Nobody uses it any more, nor will again. Not on a worker.
void segment_pool_close(struct segment_pool *pool, struct segment *segment);

#endif
