// SPDX-License-Identifier: Apache-2.0
// Changes in the order of their keys, for one transaction or, if they take long, for several. See
// index_batch.c.
#ifndef FOREBAY_STORE_INDEX_BATCH_H
#define FOREBAY_STORE_INDEX_BATCH_H

#include "store/index/index_apply.h"

#define INDEX_TXN_CPU_US 5000u // of a thread: then a transaction takes no more changes

struct index_change;
struct index_forget;

// All lists are the caller's and stay as they are.
struct index_batch {
    struct index_change **changes; // sorted
    uint64_t *generations;         // of what was found in segments, by what its home knew before
    unsigned count;
    const struct renewal_copy *renewals;
    unsigned renewal_count;
    const struct index_forget *forget; // its slice; NULL: none
    struct index_progress {
        unsigned changes, renewals, removals;
    } in, at; // by what is committed; and by the transaction that is open
};

// `owed` come in front of `batch`, `count` in all.
void index_batch_init(struct index_batch *batch, struct index_change *owed,
                      struct index_change *changes, unsigned count);
void index_batch_done(struct index_batch *batch);
// Brings into memory and judges what those that are left will touch: before a transaction. False:
// the index is injured.
bool index_batch_ready(struct index_batch *batch, struct index *index) MUST_USE;
// How many of them are not committed yet.
struct index_batch_left {
    unsigned puts;    // changes and renewals that may put something
    unsigned deletes; // changes that only remove
    unsigned forgets; // of the slice to forget
};
struct index_batch_left index_batch_left(const struct index_batch *batch);
// Applies the next ones, until they have taken `cpu_us` of the thread's time (a few at least), or
// are as many as the transaction has room for. Each change gets its error. Ends early after a
// change that goes on in the next one.
void index_batch_apply(struct index_batch *batch, struct index *index, struct index_txn *t,
                       uint64_t cpu_us);
// The transaction is committed: what was applied in it is `is_in`. True: nothing is left.
bool index_batch_committed(struct index_batch *batch) MUST_USE;

#endif
