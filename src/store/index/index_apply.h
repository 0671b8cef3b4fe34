// SPDX-License-Identifier: Apache-2.0
// Applies changes inside the only write transaction. Index writer only.
#ifndef FOREBAY_STORE_INDEX_APPLY_H
#define FOREBAY_STORE_INDEX_APPLY_H

#include "store/index/index_writer.h"

struct index_txn {
    struct index *index;
    struct index_env *env;
    MDB_txn *txn;
    uint64_t pages;                      // the most pages of the file in use after the commit
    uint64_t pages_ready;                // allocated pages
    char described[STORE_DESCRIBED_MAX]; // description of the record being changed
    unsigned changes_max;                // changes, renewals and removals that have room
    unsigned places, places_max; // places of large objects: removed, and the most that may be
    int64_t blocks;              // the change of the number of blocks
    int rc;                      // LMDB's first error; nothing more is tried after it
    enum err err;                // the first error of growing the file
};

// Begins a transaction with room for the next changes_max changes, in any order. put_count of all
// changes may put something, removal_count only remove. On failure no transaction is open.
// ERR_DISK_FULL: fewer than `least` have room.
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
