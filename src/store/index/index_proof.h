// SPDX-License-Identifier: Apache-2.0
// Verifies pages of the index before LMDB reaches them. See index_proof.c.
#ifndef FOREBAY_STORE_INDEX_PROOF_H
#define FOREBAY_STORE_INDEX_PROOF_H

#include <lmdb.h>
#include <stdatomic.h>

#include "store/index/index_page.h"

struct index;
struct index_env;

// Records which pages of an open environment are verified. Any thread.
struct index_proof {
    uint64_t page_count;     // pages at the opening; this process has written all later pages
    _Atomic uint64_t *pages; // a bit for each of these pages, set once it is verified
    atomic_bool is_whole;    // all pages that this process has not written are verified
    atomic_bool is_bad;      // damage was found and reported
};

void index_proof_init(struct index_proof *proof, uint64_t page_count);
void index_proof_done(struct index_proof *proof);

// Records that all pages are verified. Called if the child process has verified the whole index.
void index_proof_all(struct index *index);

// A path down a table's tree in the view of a transaction, verified page by page.
struct index_walk {
    const struct index_env *env;
    enum index_table table;
    struct index_tree tree;
    uint64_t page_count;
    // Descriptor of the file: each page is first read from the file, and verified even if its bit
    // is set. -1: no page is read from the file, and only pages without a bit are verified.
    int fd;
    struct {
        const char *page;
        unsigned at;
        const char *from, *to;
    } step[INDEX_PAGE_DEPTH_MAX];
};
enum index_walked { INDEX_WALKED, INDEX_WALK_ENDS, INDEX_WALK_BAD };
// Begins a walk at the root of the table. Returns INDEX_WALK_ENDS if the table is empty.
// `from_file`: reads each page from the file first, and verifies it whatever its bit says. If a
// page is unreadable, a read from the file returns an error, but a read in the map raises SIGBUS.
enum index_walked index_proof_begin(struct index_walk *walk, const struct index_env *env,
                                    MDB_txn *txn, enum index_table table, bool from_file) MUST_USE;
// Walks to the leaf where `key` is or would be, and to the first row that is not below `key`.
enum index_walked index_proof_seek(struct index_walk *walk, const char *key) MUST_USE;
enum index_walked index_proof_next_leaf(struct index_walk *walk) MUST_USE;
const char *index_proof_leaf(const struct index_walk *walk, unsigned *ret_at);

// Verify the pages that LMDB will read. index_proof_object(): when it looks up a key in "objects".
// index_proof_rows(): when it reads up to `max` rows of one generation in "places" from `key` on.
// Return false if LMDB must not read them, because they are damaged. The index is then dropped.
bool index_proof_object(struct index *index, struct index_env *env, MDB_txn *txn,
                        struct hash128 hash) MUST_USE;
bool index_proof_rows(struct index *index, struct index_env *env, MDB_txn *txn, const char *key,
                      unsigned max) MUST_USE;
// The part of the index that a change will touch. `generation`: generation of the run that the
// change adds; 0 if it adds none. `is_whole`: the run holds the whole object, or the change adds no
// run. Such a change touches rows of "places" only if the key's old record has some.
struct index_touch {
    struct hash128 hash;
    uint64_t generation;
    bool is_whole;
};
// Verifies all pages that these changes will touch, before the transaction. Starts the reads of
// their leaves together. Returns false if a page is damaged. Sorts `touches` by key. Index writer
// only.
bool index_proof_touches(struct index *index, struct index_touch *touches, unsigned count) MUST_USE;
// Reports that the index is damaged. Any thread.
void index_proof_failed(struct index *index, struct index_env *env, const char *where);

#endif
