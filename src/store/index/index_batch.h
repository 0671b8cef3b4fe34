// SPDX-License-Identifier: Apache-2.0
// A batch of changes in the order of their keys. It is applied in one transaction, or in several if
// it takes long. See index_batch.c.
#ifndef FOREBAY_STORE_INDEX_BATCH_H
#define FOREBAY_STORE_INDEX_BATCH_H

#include "store/index/index_apply.h"

#define INDEX_TXN_CPU_US 5000u // CPU time after which a transaction takes no more changes

struct index_change;
struct index_forget;

// One batch. The caller owns the lists to which it points, and does not change them while the batch
// exists.
struct index_batch {
    struct index_change **changes; // sorted by key
    // For each change that adds a run found in a segment: the generation that the memory side
    // assigned to the run before the transaction.
    uint64_t *generations;
    unsigned count;
    const struct renewal_copy *renewals;
    unsigned renewal_count;
    // The list whose slice of places this batch forgets; NULL: none.
    const struct index_forget *forget;
    struct index_progress {
        unsigned changes, renewals, removals;
    } in, at; // in: numbers of what is committed; at: the same plus what is in the open transaction
};

// Makes a batch of the two lists. Of one key, changes in `owed` come first. `count`: length of both
// lists together.
void index_batch_init(struct index_batch *batch, struct index_change *owed,
                      struct index_change *changes, unsigned count);
void index_batch_done(struct index_batch *batch);
// Reads and verifies the pages that the remaining changes will touch. Called before a transaction.
// Returns false if the index is damaged.
bool index_batch_ready(struct index_batch *batch, struct index *index) MUST_USE;
// Numbers of changes that are not committed yet.
struct index_batch_left {
    unsigned puts;    // changes and renewals that may add something
    unsigned deletes; // changes that only remove
    unsigned forgets; // number of places to forget
};
struct index_batch_left index_batch_left(const struct index_batch *batch);
// Applies the next changes until they have used `cpu_us` of the thread's CPU time, or until the
// transaction has no room for more. Checks the time only after every few changes. Sets the error of
// each change. Ends early at a change that continues in the next transaction.
void index_batch_apply(struct index_batch *batch, struct index *index, struct index_txn *t,
                       uint64_t cpu_us);
// Called when the transaction is committed. Sets `is_in` (committed) in each applied change.
// Returns true if the batch is complete.
bool index_batch_committed(struct index_batch *batch) MUST_USE;

#endif
