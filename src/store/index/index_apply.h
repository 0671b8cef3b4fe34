// SPDX-License-Identifier: Apache-2.0
// Changes inside the one write transaction. Index writer only.
#ifndef FOREBAY_STORE_INDEX_APPLY_H
#define FOREBAY_STORE_INDEX_APPLY_H

#include "store/index/index_writer.h"

struct index_txn {
    struct index *index;
    struct index_env *env;
    MDB_txn *txn;
    uint64_t pages;       // pages of the file that may be in use after the commit, at most
    uint64_t pages_ready; // allocated
    char described[STORE_DESCRIBED_MAX]; // of the record that is being changed
    unsigned changes_max;                // changes, renewals and removals it has room for
    unsigned places, places_max;         // of objects with many runs: removed, and may be removed
    int64_t blocks;                      // more or less than before
    int rc;                              // first failure of LMDB; nothing more is tried after
    enum err err;                        // first failure of the growing
};

// Begins a transaction with room for the next changes_max of the changes, of which put_count may
// put something and removal_count only remove, in any order. On failure nothing is open;
// ERR_DISK_FULL: `least` of them have no room.
enum err index_txn_begin(struct index_txn *t, struct index *index, unsigned put_count,
                         unsigned removal_count, unsigned least, int *ret_rc);
// Does what it brings hold the whole object?
bool index_change_is_whole(const struct index_change *c);
// ERR_OK: done (whether or not there was something to do); ERR_CANCELLED: refused because the index
// knows better; ERR_AGAIN: done in part, the same change goes on in the next transaction, and
// nothing else is applied in this one. A failure of LMDB is in t->rc.
enum err index_txn_apply(struct index_txn *t, const struct index_change *change);
void index_txn_renew(struct index_txn *t, const struct renewal_copy *renewal);
int index_txn_commit(struct index_txn *t);

#endif
