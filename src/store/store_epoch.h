// SPDX-License-Identifier: Apache-2.0
// Epochs of buckets in memory, beside the lines of `format` that make them last.
#ifndef FOREBAY_STORE_STORE_EPOCH_H
#define FOREBAY_STORE_STORE_EPOCH_H

#include <pthread.h>

#include "store/store_dir.h"

#define EPOCH_TABLE_SIZE (2u * STORE_EPOCHS_MAX)
#define EPOCH_HOLD_COUNT 256u

struct store_epoch_slot {
    atomic_bool is_used;    // what stands before is set for good
    struct hash128 bucket;  // of (origin, bucket)
    unsigned line;          // in format.epochs
    _Atomic uint64_t now;   // what look-ups use
    _Atomic uint64_t start; // what the next start uses: what `format` says
    atomic_uint open_count; // changes begun and not ended
};

struct store_epochs {
    atomic_bool any;                                 // false: no epoch was ever raised
    struct store_epoch_slot others;                  // all buckets that have no slot
    struct store_epoch_slot table[EPOCH_TABLE_SIZE]; // open addressing; slots are never given back
    struct {
        pthread_mutex_t lock;             // alone: nothing is called under it
        unsigned holds[EPOCH_HOLD_COUNT]; // open writes to single keys, by the bucket's hash
    } guarded;
};

void store_epochs_init(struct store_epochs *epochs); // zeroed before
void store_epochs_done(struct store_epochs *epochs);
struct store;
void store_epochs_load(struct store *store); // from `format`, before any other call

#endif
