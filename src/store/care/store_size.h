// SPDX-License-Identifier: Apache-2.0
// Changes of cache.size while the store runs. Used inside this room only.
#ifndef FOREBAY_STORE_STORE_SIZE_H
#define FOREBAY_STORE_STORE_SIZE_H

#include <pthread.h>

#include "store/store.h"

struct store_size {
    struct {
        pthread_mutex_t lock;
        struct store_limits limits;
        bool is_new;     // `limits` is not applied yet
        bool is_resized; // cache.size in `limits` is another one, and is not applied yet
    } guarded;
    _Atomic uint64_t most_bytes; // see store_size_most_since_set(); 0: the size has not changed
    // When a change of the size by a percentage was last logged, which happens at most once a
    // minute. Used by the supply thread.
    uint64_t told_us;
};

void store_size_init(struct store *store, const struct store_options *options);
void store_size_done(struct store *store);
// Returns the current limits. Any thread.
struct store_limits store_size_limits(struct store *store);
// Sets the limits without checking them. The supply thread applies them.
void store_size_set_limits(struct store *store, const struct store_limits *limits);

// Computes the sizes from the options. `ours`: disk usage in bytes of what the directory contains.
// Called before threads start.
enum err store_size_begin(struct store *store, uint64_t ours) MUST_USE;
// If cache.size is a percentage and the size is too small, raises it to the smallest cache that
// works, even if the file system has no room for that yet. `segments_bytes`: disk usage of the
// minimum number of segments. Called before threads start.
void store_size_raise(struct store *store, uint64_t segments_bytes);
// Like store_set_limits(), for a store that is attached.
enum err store_size_order(struct store *store, const struct store_limits *limits,
                          struct buf *ret_why) MUST_USE;
// Applies new limits, and the current value of a percentage. Called by the supply thread each time
// that it wakes.
void store_size_follow(struct store *store);

// Returns the largest size that the cache had since cache.size was set. A percentage gives less
// while others fill the file system. Any thread.
uint64_t store_size_most_since_set(const struct store *store);

// Returns the bytes that are neither segments nor index.
uint64_t store_size_fixed(const struct store *store);
// Returns the bytes kept free for the index and fills in flight.
uint64_t store_size_headroom(const struct store *store);

#endif
