// SPDX-License-Identifier: Apache-2.0
// Epochs of buckets in memory. Rows of `format` keep them across restarts. See state_epoch.c.
#ifndef FOREBAY_STORE_STATE_STATE_EPOCH_H
#define FOREBAY_STORE_STATE_STATE_EPOCH_H

#include <pthread.h>

#include "store/disk/disk.h"
#include "store/store.h"

#define EPOCH_TABLE_SIZE (2u * STATE_EPOCHS_MAX)
#define EPOCH_HOLD_COUNT 256u

struct store_epoch_slot {
    atomic_bool is_used;    // set after `bucket` and `line`, which never change from then on
    struct hash128 bucket;  // hash of (origin, bucket)
    unsigned line;          // index of the bucket's row among the rows of STATE_EPOCHS
    _Atomic uint64_t now;   // the epoch that look-ups of this process use
    _Atomic uint64_t start; // the epoch in `format`, with which the next process begins
    atomic_uint open_count; // number of changes that have begun and not ended
};

struct store_epochs {
    struct store_disk *disk;
    enum err (*disown)(struct store_disk *disk);
    atomic_bool any;                                 // false: the epochs of all buckets are 0
    struct store_epoch_slot others;                  // shared by all buckets without a slot
    struct store_epoch_slot table[EPOCH_TABLE_SIZE]; // open addressing; slots are never freed
    struct {
        pthread_mutex_t lock; // no other lock is taken while it is held
        // Number of open writes to single keys, counted by the hash of their bucket.
        unsigned holds[EPOCH_HOLD_COUNT];
    } guarded;
};

// `epochs` must be zeroed. If the directory is not attached, disown() marks its index as untrusted,
// so that the next process rebuilds it. disown() may block.
void state_epochs_init(struct store_epochs *epochs, struct store_disk *disk,
                       enum err (*disown)(struct store_disk *disk));
void state_epochs_done(struct store_epochs *epochs);
// Loads the epochs from `format`. Called before any other call.
void state_epochs_load(struct store_epochs *epochs);
// These functions implement store_epoch(), store_epoch_begin() and so on; see store.h.
uint64_t state_epoch(const struct store_epochs *epochs, struct span origin, struct span bucket);
void state_epoch_begin(struct worker *w, struct store_epochs *epochs, struct span origin,
                       struct span bucket, struct store_epoch_change *change);
uint64_t state_epoch_hold(struct store_epochs *epochs, struct span origin, struct span bucket);
void state_epoch_release(struct store_epochs *epochs, struct span origin, struct span bucket);

#endif
