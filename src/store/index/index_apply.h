// SPDX-License-Identifier: Apache-2.0
// Applies changes inside the only write transaction. Index writer only.
#ifndef FOREBAY_STORE_INDEX_APPLY_H
#define FOREBAY_STORE_INDEX_APPLY_H

#include "store/index/index_writer.h"

struct index_txn {
    struct index *index;
    struct index_env *env;
    MDB_txn *txn;
    uint64_t pages;       // upper limit of the pages that the file has after the commit
    uint64_t pages_ready; // pages of the file that are allocated
    char described[STORE_DESCRIBED_MAX]; // description of the record being changed
    unsigned changes_max;        // limit on changes, renewals and removals in this transaction
    unsigned places, places_max; // places of large objects removed so far, and their limit
    int64_t blocks;              // net change of the number of blocks in the index
    int rc;                      // LMDB's first error; after it the transaction does nothing more
    enum err err;                // the first error when the file could not grow
};

// Begins a transaction with room for the next t->changes_max changes, in any order. Of all changes
// that are left, `put_count` may add entries, and `removal_count` can only remove some. On failure
// no transaction is open. Returns ERR_DISK_FULL if there is no room for `least` changes. Sets
// *ret_rc to LMDB's error, if there was one.
enum err index_txn_begin(struct index_txn *t, struct index *index, unsigned put_count,
                         unsigned removal_count, unsigned least, int *ret_rc);
// Returns true if the change's run holds the whole object.
bool index_change_is_whole(const struct index_change *c);
// Applies a change. An LMDB error is in t->rc. Returns
//   - ERR_OK if it was applied, or there was nothing to do;
//   - ERR_CANCELLED if it was refused, because the index has newer information;
//   - ERR_AGAIN if it was applied in part. It continues in the next transaction. The caller must
//     apply no further change in this one.
enum err index_txn_apply(struct index_txn *t, const struct index_change *change);
void index_txn_renew(struct index_txn *t, const struct renewal_copy *renewal);
int index_txn_commit(struct index_txn *t);

#endif
