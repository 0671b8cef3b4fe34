// SPDX-License-Identifier: Apache-2.0
// Places of segments that were freed, on their way out of the index. See index_forget.c.
#ifndef FOREBAY_STORE_INDEX_FORGET_H
#define FOREBAY_STORE_INDEX_FORGET_H

#include <pthread.h>
#include <stdatomic.h>

#include "store/segment/segment_log.h"

#define INDEX_FORGET_MAX 65536u  // places that wait
#define INDEX_FORGET_SLICE 1024u // with one batch of changes: as many as that puts
#define INDEX_FORGET_SLICE_LAST (INDEX_FORGET_MAX / 8) // while the store stops
#define INDEX_FORGET_WAIT_MS 10000u                    // for room, by who frees segments

struct index_txn;

struct index_forget {
    atomic_uint waiting; // places, those in the slice included
    struct {
        pthread_mutex_t lock; // held for a moment; none is taken under it
        pthread_cond_t room;
        struct forget_list *first, **last;
        bool hurries;  // the room is closed: nobody waits
        bool is_stuck; // somebody has waited in vain, and nothing has been forgotten since
    } guarded;
    // The index writer's.
    struct segment_removal *slice;
    unsigned slice_count, slice_max;
};

void index_forget_init(struct index_forget *forget);
void index_forget_done(struct index_forget *forget);
// Takes `removals` over (malloc'd). Waits while too many wait; at last they stay in the index, and
// are counted. Never on a worker.
void index_forget_add(struct index_forget *forget, struct segment_removal *removals,
                      unsigned count);
// From now on nobody waits: what is added is taken, however much waits.
void index_forget_hurry(struct index_forget *forget);
// The next places to forget, `max` at most, in the order of keys; the same ones until they are
// forgotten. Index writer only.
unsigned index_forget_take(struct index_forget *forget, unsigned max);
// One of the slice.
void index_forget_apply(const struct index_forget *forget, unsigned at, struct index_txn *t);
// The first so many of the slice are.
void index_forget_forgotten(struct index_forget *forget, unsigned count);

#endif
