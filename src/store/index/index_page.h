// SPDX-License-Identifier: Apache-2.0
// Pages of LMDB's file, judged and read without LMDB. Pure; any thread.
#ifndef FOREBAY_STORE_INDEX_PAGE_H
#define FOREBAY_STORE_INDEX_PAGE_H

#include "store/index/index_format.h"

#define INDEX_PAGE_BYTES 4096u
#define INDEX_PAGE_KEY_LEN 16u
#define INDEX_PAGE_DEPTH_MAX 16u

enum index_table { INDEX_TABLE_OBJECTS, INDEX_TABLE_PLACES };

// A table's tree, as LMDB's own record of it says.
struct index_tree {
    unsigned depth; // 0: empty
    uint64_t root;
};
// False: it says what cannot be.
bool index_page_tree(struct span record, struct index_tree *ret_tree) MUST_USE;

// Where a page was met: what it has to be.
struct index_page_place {
    enum index_table table;
    uint64_t number;
    uint64_t page_count; // of the file: children lie in front of it
    bool is_leaf;
    // Its keys are not below `from` and below `to`; NULL: whatever they are.
    const char *from, *to;
};
// Is it one that LMDB can read and change without leaving it? Nodes within the page and apart, keys
// and values of their length, keys ascending and in the range, children in the file.
bool index_page_is_sound(const char *page, const struct index_page_place *at) MUST_USE;
// Only what a sound page may lack that was met elsewhere: its kind, and the range of its keys.
bool index_page_fits(const char *page, const struct index_page_place *at) MUST_USE;

// A leaf of a table of LMDB's own, or of our few settings: nodes within the page and apart,
// whatever they hold.
bool index_page_is_apart(const char *page, uint64_t number) MUST_USE;
// The first of the pages that a value of such a table has for itself.
bool index_page_is_long(const char *page, uint64_t number, uint64_t value_len) MUST_USE;
// Of such a leaf: the record of the table of that name. False: it has none, or one that cannot be.
bool index_page_find_tree(const char *leaf, const char *name, struct index_tree *ret_tree) MUST_USE;

// Of sound pages.
unsigned index_page_count(const char *page);
unsigned index_page_used_bytes(const char *page);
// Of a branch not for its first child, which has none.
const char *index_page_key(const char *page, unsigned i);
struct span index_page_value(const char *leaf, unsigned i);
uint64_t index_page_child(const char *branch, unsigned i);
// The child under which `key` is.
unsigned index_page_child_of(const char *branch, const char *key);
// The first row that is not below `key`; index_page_count() if there is none.
unsigned index_page_row_of(const char *leaf, const char *key);

#endif
