// SPDX-License-Identifier: Apache-2.0
// cache.size while the store runs. Shared inside the room only.
#ifndef FOREBAY_STORE_STORE_SIZE_H
#define FOREBAY_STORE_STORE_SIZE_H

#include <pthread.h>

#include "store/store.h"

struct store_size {
    struct {
        pthread_mutex_t lock;
        struct store_limits limits;
        bool is_new; // not gone by yet
    } guarded;
    uint64_t told_us; // of the supply thread: a share that changes is told of once a minute
};

void store_size_init(struct store *store, const struct store_options *options);
void store_size_done(struct store *store);
// Any thread.
struct store_limits store_size_limits(struct store *store);
// Unjudged; the supply thread goes by them.
void store_size_set_limits(struct store *store, const struct store_limits *limits);

// What the options come to where the cache takes up `ours`. Before threads.
enum err store_size_begin(struct store *store, uint64_t ours) MUST_USE;
// A share is no order: where others leave less than the smallest cache takes, it is that one, for
// which there is no room yet. segments_bytes: what its segments take. Before threads.
void store_size_raise(struct store *store, uint64_t segments_bytes);
// As store_set_limits(), of a store that is attached.
enum err store_size_order(struct store *store, const struct store_limits *limits,
                          struct buf *ret_why) MUST_USE;
// Goes by limits that are new, and by what a share of the file system has become. On the supply
// thread, each time that it wakes.
void store_size_follow(struct store *store);

// What is neither segments nor index.
uint64_t store_size_fixed(const struct store *store);
// Kept for index and fills in flight.
uint64_t store_size_headroom(const struct store *store);

#endif
