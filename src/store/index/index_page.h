// SPDX-License-Identifier: Apache-2.0
// Verifies and reads pages of LMDB's file without LMDB. Pure; any thread.
#ifndef FOREBAY_STORE_INDEX_PAGE_H
#define FOREBAY_STORE_INDEX_PAGE_H

#include "store/index/index_format.h"

#define INDEX_PAGE_BYTES 4096u
#define INDEX_PAGE_KEY_LEN 16u
#define INDEX_PAGE_DEPTH_MAX 16u

enum index_table { INDEX_TABLE_OBJECTS, INDEX_TABLE_PLACES };

// The tree of a table, from LMDB's record of the table.
struct index_tree {
    unsigned depth; // number of levels; 0: the tree is empty
    uint64_t root;
};
// Returns false if the record is impossible.
bool index_page_tree(struct span record, struct index_tree *ret_tree) MUST_USE;

// The position at which a page was found. It determines what the page must contain.
struct index_page_place {
    enum index_table table;
    uint64_t number;
    uint64_t page_count; // number of pages in the file; the page number of each child must be lower
    bool is_leaf;
    // All keys are at least `from` and below `to`; NULL: no bound.
    const char *from, *to;
};
// Returns true if LMDB can read and change the page without access outside of it. So the nodes are
// in the page and do not overlap, keys and values have the right lengths, keys ascend and are in
// range, and children are in the file.
bool index_page_is_sound(const char *page, const struct index_page_place *at) MUST_USE;
// Verifies only what depends on the position: the page's number, its kind, and the range of its
// keys. For a page that was already found sound.
bool index_page_fits(const char *page, const struct index_page_place *at) MUST_USE;

// Verifies a leaf of LMDB's own tables or of our table "meta": its nodes are in the page and do not
// overlap. Does not verify their content.
bool index_page_is_apart(const char *page, uint64_t number) MUST_USE;
// Verifies the first page of a long value in such a table.
bool index_page_is_long(const char *page, uint64_t number, uint64_t value_len) MUST_USE;
// Finds the record of the named table in such a leaf. Returns false if it is missing or impossible.
bool index_page_find_tree(const char *leaf, const char *name, struct index_tree *ret_tree) MUST_USE;

// The functions below must be called for sound pages only.

// Returns the number of nodes: rows of a leaf, or children of a branch.
unsigned index_page_count(const char *page);
unsigned index_page_used_bytes(const char *page);
// Returns the key of node `i`. Must not be called for the first child of a branch, which has no
// key.
const char *index_page_key(const char *page, unsigned i);
struct span index_page_value(const char *leaf, unsigned i);
uint64_t index_page_child(const char *branch, unsigned i);
// Returns the child page that covers `key`.
unsigned index_page_child_of(const char *branch, const char *key);
// Returns the first row that is not below `key`; index_page_count() if there is none.
unsigned index_page_row_of(const char *leaf, const char *key);

#endif
