// SPDX-License-Identifier: Apache-2.0
// The changes of one transaction, in the order of their keys. See index_batch.c.
#ifndef FOREBAY_STORE_INDEX_BATCH_H
#define FOREBAY_STORE_INDEX_BATCH_H

#include "store/index_apply.h"

struct index_change;
struct index_forget;
struct store;

// All lists are the caller's and stay as they are.
struct index_batch {
    struct index_change **changes; // sorted
    uint64_t *generations;         // of what was found in segments, by what its home knew before
    unsigned count;
    const struct renewal_copy *renewals;
    unsigned renewal_count;
    const struct index_forget *forget; // its slice; NULL: none
};

// `owed` come in front of `batch`, `count` in all.
void index_batch_init(struct index_batch *batch, struct index_change *owed,
                      struct index_change *changes, unsigned count);
void index_batch_done(struct index_batch *batch);
// Brings into memory and judges what they will touch: before the transaction. False: the index is injured.
bool index_batch_ready(struct index_batch *batch, struct store *store) MUST_USE;
// Every change gets its error.
void index_batch_apply(const struct index_batch *batch, struct store *store, struct index_txn *t);

#endif
