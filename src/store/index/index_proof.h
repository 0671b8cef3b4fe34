// SPDX-License-Identifier: Apache-2.0
// Pages of the index are judged before LMDB comes to them. See index_proof.c.
#ifndef FOREBAY_STORE_INDEX_PROOF_H
#define FOREBAY_STORE_INDEX_PROOF_H

#include <lmdb.h>
#include <stdatomic.h>

#include "store/index/index_page.h"

struct index;
struct index_env;

// Of one open environment. Any thread.
struct index_proof {
    uint64_t page_count;     // that there were when it was opened; later ones are this process's
    _Atomic uint64_t *pages; // a bit for each of those that was judged
    atomic_bool is_whole;    // all that this process has not written itself was judged
    atomic_bool is_bad;      // and something was found: told once
};

void index_proof_init(struct index_proof *proof, uint64_t page_count);
void index_proof_done(struct index_proof *proof);

// The child has seen all of it.
void index_proof_all(struct index *index);

// A way down a table's tree in the view of a transaction, page by page judged.
struct index_walk {
    const struct index_env *env;
    enum index_table table;
    struct index_tree tree;
    uint64_t page_count;
    int fd; // of the file, if pages are judged anew, whatever is known of them; or -1
    struct {
        const char *page;
        unsigned at;
        const char *from, *to;
    } step[INDEX_PAGE_DEPTH_MAX];
};
enum index_walked { INDEX_WALKED, INDEX_WALK_ENDS, INDEX_WALK_BAD };
// `anew`: each page is read from the file first, since what a device cannot read is an error there
// and a fault in the map, and judged whatever is known of it.
enum index_walked index_proof_begin(struct index_walk *walk, const struct index_env *env,
                                    MDB_txn *txn, enum index_table table, bool anew) MUST_USE;
// To the leaf where `key` is or would be, and to the first of its rows that is not below it.
enum index_walked index_proof_seek(struct index_walk *walk, const char *key) MUST_USE;
enum index_walked index_proof_next_leaf(struct index_walk *walk) MUST_USE;
const char *index_proof_leaf(const struct index_walk *walk, unsigned *ret_at);

// What LMDB comes to when it looks a key up in "objects", or reads up to `max` rows of one
// generation in "places" from `key` on. False: not to be done; what is wrong is told to who gives
// the index up.
bool index_proof_object(struct index *index, struct index_env *env, MDB_txn *txn,
                        struct hash128 hash) MUST_USE;
bool index_proof_rows(struct index *index, struct index_env *env, MDB_txn *txn, const char *key,
                      unsigned max) MUST_USE;
// What a change is going to touch. `generation`: of the run that it brings; 0: none. `is_whole`:
// that holds the object, or it brings none.
struct index_touch {
    struct hash128 hash;
    uint64_t generation;
    bool is_whole;
};
// Before the transaction that makes these changes: what they touch is brought into memory, all of
// it at once, and judged. Brings them into the order of their keys. The index writer's.
bool index_proof_touches(struct index *index, struct index_touch *touches, unsigned count) MUST_USE;
// Something is wrong with it. Any thread.
void index_proof_failed(struct index *index, struct index_env *env, const char *where);

#endif
