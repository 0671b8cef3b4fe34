// SPDX-License-Identifier: Apache-2.0
// Verifies pages of LMDB's file. LMDB trusts its file: a wrong offset makes it crash, or move bytes
// of another page. So index_proof.c verifies each page with these functions before LMDB reads it.
// Below is the page format of LMDB's version 1 on 64 bits, little endian. It covers only what
// Forebay's tables use: no duplicates, and long values only in LMDB's own table of free pages.
//
//   Page, 4,096 bytes                     Node of a leaf                 Node of a branch
//   0   8  its number                     0  4  length of the value      0  4  child, low bits
//   8   2  not used                       4  2  flags: 0                 4  2  child, high bits
//   10  2  flags: 1 branch, 2 leaf        6  2  length of the key: 16    6  2  16; of the first
//   12  2  end of the offsets             8     key, value                     0 or 16
//   14  2  begin of the nodes                                            8     key
//   16     an offset of two bytes for each node, in the order of keys
//
// The key of a branch's child is at most the lowest key in that child, and above all keys of the
// previous child.
#include "store/index/index_page.h"

#define HEAD_BYTES 16u
#define NODE_BYTES 8u
#define FLAG_BRANCH 1u
#define FLAG_LEAF 2u
#define FLAG_LONG 4u  // first page of a long value; bytes 12 to 15 are the number of its pages
#define PAGE_FIRST 2u // number of the first page after the two meta pages
// Flags of a node.
#define NODE_APART 1u // the value is in separate pages
#define NODE_TABLE 2u // the value is the record of a table
// LMDB's record of a table: 4 bytes, flags 2, depth 2, then 8 bytes each for the numbers of branch,
// leaf and overflow pages, the number of entries, and the root.
#define TREE_BYTES 48u
#define TREE_FLAGS_AT 4u
#define TREE_DEPTH_AT 6u
#define TREE_ROOT_AT 40u
#define TREE_NO_ROOT UINT64_MAX
static_assert(TREE_DEPTH_AT + sizeof(uint16_t) + 4 * sizeof(uint64_t) == TREE_ROOT_AT,
              "four counts are between depth and root");
static_assert(INDEX_PAGE_KEY_LEN == INDEX_OBJECT_KEY_LEN, "both tables have keys of one length");
static_assert(INDEX_PAGE_KEY_LEN == INDEX_PLACE_KEY_LEN, "both tables have keys of one length");
static_assert(TREE_ROOT_AT + sizeof(uint64_t) == TREE_BYTES, "the root ends the record");
static_assert(INDEX_OBJECT_MAX < INDEX_PAGE_BYTES / 2, "two records fit into a leaf, as LMDB asks");

bool index_page_tree(struct span record, struct index_tree *ret_tree)
{
    if (record.len != TREE_BYTES) {
        return false;
    }
    *ret_tree = (struct index_tree){.depth = wire_get_u16(record.ptr + TREE_DEPTH_AT),
                                    .root = wire_get_u64(record.ptr + TREE_ROOT_AT)};
    // With any flag set, the keys would be in another order.
    return wire_get_u16(record.ptr + TREE_FLAGS_AT) == 0 &&
           (ret_tree->root == TREE_NO_ROOT) == (ret_tree->depth == 0) &&
           ret_tree->depth <= INDEX_PAGE_DEPTH_MAX;
}

static bool value_len_is_sound(enum index_table table, uint32_t len)
{
    return table == INDEX_TABLE_OBJECTS ? len >= INDEX_OBJECT_LEN && len <= INDEX_OBJECT_MAX
                                        : len == INDEX_PLACE_LEN;
}

static unsigned page_lower(const char *page)
{
    return wire_get_u16(page + 12);
}

static unsigned page_upper(const char *page)
{
    return wire_get_u16(page + 14);
}

unsigned index_page_count(const char *page)
{
    return (page_lower(page) - HEAD_BYTES) / 2;
}

unsigned index_page_used_bytes(const char *page)
{
    return INDEX_PAGE_BYTES - HEAD_BYTES - (page_upper(page) - page_lower(page));
}

static const char *page_node(const char *page, unsigned i)
{
    return page + wire_get_u16(page + HEAD_BYTES + 2 * i);
}

const char *index_page_key(const char *page, unsigned i)
{
    return page_node(page, i) + NODE_BYTES;
}

struct span index_page_value(const char *leaf, unsigned i)
{
    const char *node = page_node(leaf, i);
    return (struct span){node + NODE_BYTES + INDEX_PAGE_KEY_LEN, wire_get_u32(node)};
}

static uint64_t node_child(const char *node)
{
    return (uint64_t)wire_get_u16(node + 4) << 32 | wire_get_u32(node);
}

uint64_t index_page_child(const char *branch, unsigned i)
{
    return node_child(page_node(branch, i));
}

// --- judging

static bool head_is_sound(const char *page, uint64_t number, bool is_leaf)
{
    unsigned lower = page_lower(page);
    unsigned upper = page_upper(page);
    unsigned least = is_leaf ? 1 : 2; // LMDB asserts the same minimum
    return wire_get_u64(page) == number &&
           wire_get_u16(page + 10) == (is_leaf ? FLAG_LEAF : FLAG_BRANCH) &&
           lower >= HEAD_BYTES + 2 * least && lower % 2 == 0 && lower <= upper &&
           upper <= INDEX_PAGE_BYTES;
}

// Returns the length of a node of any leaf; 0 if it is not a valid node.
static size_t any_node_len(const char *page, unsigned i)
{
    unsigned offset = wire_get_u16(page + HEAD_BYTES + 2 * i);
    if (offset < page_upper(page) || offset % 2 != 0 || offset + NODE_BYTES > INDEX_PAGE_BYTES) {
        return 0;
    }
    const char *node = page + offset;
    bool is_apart = (wire_get_u16(node + 4) & NODE_APART) != 0;
    uint64_t len = NODE_BYTES + (uint64_t)wire_get_u16(node + 6);
    len += is_apart ? sizeof(uint64_t) : wire_get_u32(node);
    return offset + len <= INDEX_PAGE_BYTES ? (size_t)len : 0;
}

// Returns the length of a node; 0 if it is not a valid node.
static unsigned node_len(const char *page, unsigned i, const struct index_page_place *at)
{
    unsigned offset = wire_get_u16(page + HEAD_BYTES + 2 * i);
    if (offset < page_upper(page) || offset % 2 != 0 || offset + NODE_BYTES > INDEX_PAGE_BYTES) {
        return 0;
    }
    const char *node = page + offset;
    unsigned key_len = wire_get_u16(node + 6);
    unsigned len = NODE_BYTES + key_len;
    if (at->is_leaf) {
        if (!value_len_is_sound(at->table, wire_get_u32(node)) || wire_get_u16(node + 4) != 0 ||
            key_len != INDEX_PAGE_KEY_LEN) {
            return 0;
        }
        len += wire_get_u32(node);
    } else {
        uint64_t child = node_child(node);
        if (child < PAGE_FIRST || child >= at->page_count ||
            (key_len != INDEX_PAGE_KEY_LEN && (i > 0 || key_len != 0))) {
            return 0;
        }
    }
    return offset + len <= INDEX_PAGE_BYTES ? len : 0;
}

// Returns true if no two nodes overlap. `at`: NULL for a leaf of another table.
static bool nodes_are_apart(const char *page, const struct index_page_place *at)
{
    uint8_t taken[INDEX_PAGE_BYTES] = {0};
    unsigned count = index_page_count(page);
    for (unsigned i = 0; i < count; i++) {
        size_t len = at != NULL ? node_len(page, i, at) : any_node_len(page, i);
        unsigned offset = wire_get_u16(page + HEAD_BYTES + 2 * i);
        if (len == 0 || memchr(taken + offset, 1, len) != NULL) {
            return false;
        }
        memset(taken + offset, 1, len);
    }
    return true;
}

static bool keys_ascend(const char *page, bool is_leaf)
{
    unsigned count = index_page_count(page);
    for (unsigned i = is_leaf ? 1 : 2; i < count; i++) {
        if (memcmp(index_page_key(page, i - 1), index_page_key(page, i), INDEX_PAGE_KEY_LEN) >= 0) {
            return false;
        }
    }
    return true;
}

bool index_page_fits(const char *page, const struct index_page_place *at)
{
    if (!head_is_sound(page, at->number, at->is_leaf) || node_len(page, 0, at) == 0) {
        return false;
    }
    const char *first = index_page_key(page, at->is_leaf ? 0 : 1);
    const char *last = index_page_key(page, index_page_count(page) - 1);
    return (at->from == NULL || memcmp(first, at->from, INDEX_PAGE_KEY_LEN) >= 0) &&
           (at->to == NULL || memcmp(last, at->to, INDEX_PAGE_KEY_LEN) < 0);
}

bool index_page_is_sound(const char *page, const struct index_page_place *at)
{
    return head_is_sound(page, at->number, at->is_leaf) && nodes_are_apart(page, at) &&
           keys_ascend(page, at->is_leaf) && index_page_fits(page, at);
}

bool index_page_is_apart(const char *page, uint64_t number)
{
    return head_is_sound(page, number, true) && nodes_are_apart(page, NULL);
}

bool index_page_is_long(const char *page, uint64_t number, uint64_t value_len)
{
    return wire_get_u64(page) == number && wire_get_u16(page + 10) == FLAG_LONG &&
           wire_get_u32(page + 12) == (HEAD_BYTES + value_len - 1) / INDEX_PAGE_BYTES + 1;
}

bool index_page_find_tree(const char *leaf, const char *name, struct index_tree *ret_tree)
{
    size_t name_len = strlen(name);
    for (unsigned i = 0; i < index_page_count(leaf); i++) {
        const char *node = page_node(leaf, i);
        if (wire_get_u16(node + 4) == NODE_TABLE && wire_get_u16(node + 6) == name_len &&
            memcmp(node + NODE_BYTES, name, name_len) == 0) {
            struct span record = {node + NODE_BYTES + name_len, wire_get_u32(node)};
            return index_page_tree(record, ret_tree);
        }
    }
    return false;
}

// --- finding

unsigned index_page_child_of(const char *branch, const char *key)
{
    unsigned low = 0; // the key of child `low` is at most `key`
    unsigned high = index_page_count(branch);
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        if (memcmp(index_page_key(branch, middle), key, INDEX_PAGE_KEY_LEN) <= 0) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

unsigned index_page_row_of(const char *leaf, const char *key)
{
    unsigned low = 0; // rows before `low` are below `key`
    unsigned high = index_page_count(leaf);
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (memcmp(index_page_key(leaf, middle), key, INDEX_PAGE_KEY_LEN) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}
