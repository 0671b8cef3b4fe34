// SPDX-License-Identifier: Apache-2.0
// Pool of descriptors of segment files. It opens files on demand, and closes unused ones when it
// has reached its limit.
#ifndef FOREBAY_STORE_SEGMENT_POOL_H
#define FOREBAY_STORE_SEGMENT_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "loop/loop.h"

#define SEGMENT_POOL_MIN 16u
#define SEGMENT_POOL_MAX 65536u
#define SEGMENT_OPEN_WAIT_MS 1000u // the longest wait for a descriptor while all are in use

struct segment;
struct segment_opening;

struct segment_pool {
    int folder_fd;
    unsigned limit;
    pthread_t thread;
    bool runs;
    atomic_uint waiting; // threads that wait for a descriptor to be returned
    struct {
        pthread_mutex_t lock; // held during open(2); workers never take it
        struct segment **open;
        unsigned open_count, hand;
    } guarded;
    struct { // its lock is held briefly, and no lock is taken under it
        pthread_mutex_t lock;
        pthread_cond_t wanted, returned;
        struct segment_opening *first, **last;
        uint64_t returns;
        bool stop;
    } queue;
};

void segment_pool_init(struct segment_pool *pool, int folder_fd, unsigned limit);
void segment_pool_start(struct segment_pool *pool);
// Stops the thread after it has processed the queue. Called when the workers have stopped, so none
// of them receives an answer any more.
void segment_pool_stop(struct segment_pool *pool);
// Closes all descriptors, even those in use, because no thread uses them any more.
void segment_pool_done(struct segment_pool *pool);
// Closes an unused descriptor, because the process has reached its limit of descriptors. Returns
// false if all are in use. Must not be called on a worker.
bool segment_pool_yield(struct segment_pool *pool);
// The segment must be pinned for the functions below.

// Returns the segment's descriptor, which stays open until segment_return(); -1 if the file is not
// open. Any thread, never waits.
int segment_borrow(struct segment *segment);
void segment_return(struct segment *segment);
// Like segment_borrow(), but opens the file if necessary. Returns ERR_DESCRIPTORS or ERR_UNREADABLE
// if the file cannot be opened now, which says nothing about its content. Returns ERR_IO if there
// is no such file. Must not be called on a worker.
enum err segment_borrow_wait(struct segment *segment, int *ret_fd) MUST_USE;
// Like segment_borrow_wait(), for a worker. Calls done() on the worker later, exactly once. With
// ERR_OK the segment is borrowed.
void segment_borrow_start(struct worker *w, struct segment *segment,
                          void (*done)(void *ctx, enum err err, int fd), void *ctx);

// Hands the descriptor of a new file to the pool. Called before other threads know the segment.
void segment_pool_adopt(struct segment_pool *pool, struct segment *segment, int fd);
// Closes the descriptor of a segment that no thread uses or will use. Must not be called on a
// worker.
void segment_pool_close(struct segment_pool *pool, struct segment *segment);

#endif
