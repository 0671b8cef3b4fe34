// SPDX-License-Identifier: Apache-2.0
// The list of places of freed segments that the index must forget. See index_forget.c.
#ifndef FOREBAY_STORE_INDEX_FORGET_H
#define FOREBAY_STORE_INDEX_FORGET_H

#include <pthread.h>
#include <stdatomic.h>

#include "store/segment/segment_log.h"

#define INDEX_FORGET_MAX 65536u  // the most places in the list
#define INDEX_FORGET_SLICE 1024u // places that one batch forgets: as many as it may put
// Like INDEX_FORGET_SLICE, while the store stops.
#define INDEX_FORGET_SLICE_LAST (INDEX_FORGET_MAX / 8)
#define INDEX_FORGET_WAIT_MS 10000u // the freeing thread's longest wait for room

struct index_txn;

struct index_forget {
    atomic_uint waiting; // number of places in the list, including the slice
    struct {
        pthread_mutex_t lock; // held briefly; no lock is taken under it
        pthread_cond_t room;
        struct forget_list *first, **last;
        bool hurries; // the store is closing, so index_forget_add() must not wait
        // A wait for room timed out, and no place has been forgotten since.
        bool is_stuck;
    } guarded;
    // Used by the index writer only.
    struct segment_removal *slice;
    unsigned slice_count, slice_max;
};

void index_forget_init(struct index_forget *forget);
void index_forget_done(struct index_forget *forget);
// Adds places to the list. Takes ownership of the malloc'd `removals`. Waits while the list is
// full. If that takes too long, the places are dropped from the list and counted, and they stay in
// the index. Must not be called on a worker.
void index_forget_add(struct index_forget *forget, struct segment_removal *removals,
                      unsigned count);
// Makes index_forget_add() return without waiting from now on, because the store is closing.
void index_forget_hurry(struct index_forget *forget);
// Takes the next slice of at most `max` places from the list, sorts it by key, and returns its
// length. While a slice is not forgotten completely, returns the length of its rest. Index writer
// only.
unsigned index_forget_take(struct index_forget *forget, unsigned max);
// Removes place `at` of the slice from the index, in the transaction.
void index_forget_apply(const struct index_forget *forget, unsigned at, struct index_txn *t);
// Removes the first `count` places from the slice, after the transaction is committed.
void index_forget_forgotten(struct index_forget *forget, unsigned count);

#endif
