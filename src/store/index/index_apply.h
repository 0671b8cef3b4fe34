// SPDX-License-Identifier: Apache-2.0
// Applies changes inside the only write transaction. Index writer only.
#ifndef FOREBAY_STORE_INDEX_APPLY_H
#define FOREBAY_STORE_INDEX_APPLY_H

#include "store/index/index_writer.h"

struct index_txn {
    struct index *index;
    struct index_env *env;
    MDB_txn *txn;
    uint64_t pages;       // upper limit of the pages that the file uses after the commit
    uint64_t pages_ready; // allocated pages
    char described[STORE_DESCRIBED_MAX]; // description of the record being changed
    unsigned changes_max; // the most changes, renewals and removals that this transaction may take
    unsigned places, places_max; // removed places of large objects, and their limit
    int64_t blocks;              // net change of the number of blocks in the index
    int rc;                      // LMDB's first error; after it the transaction does nothing more
    enum err err;                // first error while the file grew
};

// Begins a transaction with room for the next t->changes_max changes, in any order. Of all changes
// that are left, put_count may add something and removal_count only remove. On failure no
// transaction is open. ERR_DISK_FULL: there is no room for `least` changes. *ret_rc: LMDB's error.
enum err index_txn_begin(struct index_txn *t, struct index *index, unsigned put_count,
                         unsigned removal_count, unsigned least, int *ret_rc);
// Returns true if the change's run holds the whole object.
bool index_change_is_whole(const struct index_change *c);
// ERR_OK: done, even if there was nothing to do. ERR_CANCELLED: refused, because the index has
// newer information. ERR_AGAIN: partly done; the change continues in the next transaction, and this
// one applies nothing more. An LMDB error is in t->rc.
enum err index_txn_apply(struct index_txn *t, const struct index_change *change);
void index_txn_renew(struct index_txn *t, const struct renewal_copy *renewal);
int index_txn_commit(struct index_txn *t);

#endif
