// SPDX-License-Identifier: Apache-2.0
// Pool of descriptors of segment files. It opens them on demand, and closes unused ones at its
// limit.
#ifndef FOREBAY_STORE_SEGMENT_POOL_H
#define FOREBAY_STORE_SEGMENT_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "loop/loop.h"
#include "store/disk/disk_thread.h"

#define SEGMENT_POOL_MIN 16u
#define SEGMENT_POOL_MAX 65536u
#define SEGMENT_OPEN_WAIT_MS 1000u // the longest wait for a descriptor while all are in use

struct segment;
struct segment_opening;

// A descriptor of a segment's file. A segment has two: one that reads and writes through the page
// cache, and one that does so past it (O_DIRECT).
struct segment_file_use {
    _Atomic uint64_t word; // the descriptor and the number of its users: segment_pool.c
    unsigned pool_at;      // index in the pool's array of open files, guarded by the pool's lock
    bool is_direct;        // set while it is in that array
};

struct segment_pool {
    int folder_fd;
    unsigned limit;
    atomic_bool refuses_direct; // the file system or the device has no direct I/O
    pthread_t thread;
    bool runs;
    atomic_uint waiting; // number of threads that wait until another thread returns a descriptor
    struct {
        pthread_mutex_t lock; // held during open(2); workers never take it
        struct segment_file_use **open;
        unsigned open_count, hand;
    } guarded;
    struct { // the queue of workers; its lock is held briefly, and no lock is taken under it
        pthread_mutex_t lock;
        pthread_cond_t wanted, returned;
        struct segment_opening *first, **last;
        uint64_t returns;
        bool stop;
    } queue;
};

void segment_pool_init(struct segment_pool *pool, int folder_fd, unsigned limit);
void segment_pool_start(struct segment_pool *pool, struct disk_spares *spares);
// Stops the thread. Requests still in the queue get no answer. Called when the workers have
// stopped.
void segment_pool_stop(struct segment_pool *pool);
// Closes all descriptors, even those in use, because the workers are gone.
void segment_pool_done(struct segment_pool *pool);
// Closes an unused descriptor, because the process has reached its limit of descriptors. Returns
// false if all are in use. Not on a worker.
bool segment_pool_yield(struct segment_pool *pool);
// The segment must be pinned for the functions below.

// Returns the segment's descriptor, which stays open until segment_return(); -1 if the file is not
// open. Any thread, never waits.
int segment_borrow(struct segment *segment);
void segment_return(struct segment *segment);
// Like segment_borrow(), but opens the file if necessary. ERR_DESCRIPTORS, ERR_UNREADABLE: it
// cannot be opened now, which says nothing about its content. ERR_IO: there is no such file. Not on
// a worker.
enum err segment_borrow_wait(struct segment *segment, int *ret_fd) MUST_USE;
// The same for a worker: done() runs on it later, exactly once. With ERR_OK the segment is
// borrowed.
void segment_borrow_start(struct worker *w, struct segment *segment,
                          void (*done)(void *ctx, enum err err, int fd), void *ctx);

// The same three for the descriptor that passes the page cache. segment_borrow_direct_start()
// returns false if there is no direct I/O or the file is unlinked; done() is then not called.
// ERR_UNREADABLE: the file cannot be opened like that now, so the caller uses the page cache.
int segment_borrow_direct(struct segment *segment);
void segment_return_direct(struct segment *segment);
bool segment_borrow_direct_start(struct worker *w, struct segment *segment,
                                 void (*done)(void *ctx, enum err err, int fd), void *ctx);
// Called when disk_op_is_refused(). From now on all I/O goes through the page cache. Does nothing
// if a first part was transferred, because the rest may then begin within a sector. Any thread.
void segment_direct_refused(struct segment *segment, const struct disk_op *op);

// Hands the descriptor of a new file to the pool. Called before other threads know the segment.
void segment_pool_adopt(struct segment_pool *pool, struct segment *segment, int fd);
// Closes the descriptor of a segment that has no user and will have none. Not on a worker.
void segment_pool_close(struct segment_pool *pool, struct segment *segment);

#endif
