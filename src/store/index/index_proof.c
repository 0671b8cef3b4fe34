// SPDX-License-Identifier: Apache-2.0
// Verifies pages of the index before LMDB reads them. A start does not verify a large index
// completely (index_verify.c). So LMDB could read a page that was never verified since it was
// written to disk. LMDB trusts its pages: a damaged page causes an abort, or moves bytes to a wrong
// position. So this file verifies each page (index_page.c) before LMDB first reads it, on the same
// path down the tree that LMDB will take. A bitmap records which pages are verified. On later paths
// only the bit and the range of the page's keys are checked. The range shows if two parents have
// the same child.
//
// Pages that this process writes need no verification. So a reused page keeps its bit, and pages
// beyond the end that the file had at its opening have no bit. A page verified in one view is good
// in each later view. When all pages are verified, nothing is checked any more. The child process
// verifies all pages at the start if the index is small. Otherwise the first round of index_roll.c
// does.
//
// A change may touch pages beside the path to its key. When a delete leaves a page less than a
// quarter full, LMDB moves a node into it from a neighbour under the same parent, or merges the two
// pages. So if a batch of changes may cause that, two neighbours on each side are verified as well.
// Two are enough. A neighbour in which the batch changes nothing is at least a quarter full, so a
// page that was merged with it needs at most one further neighbour. If the two pages are branches,
// LMDB also looks up the lowest key below each of them. So the pages down to that key are verified
// as well.
//
// Two faults are not detected here:
//
// - A page may be sound, but old or free, because the disk lost a write. Records have checksums
//   over their keys, and readers verify the runs at their places. So the effect is a miss or the
//   key's previous content, as with any lost write.
// - A page may be damaged between check and use. The next round finds that. If LMDB has ended the
//   process before, the next start verifies the index again.
//
// index_verify.c verifies LMDB's own tables (free pages, tables) at the start.
#include "store/index/index_proof.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "stats/stats.h"
#include "store/index/index.h"

#define TABLE_OF_TABLES 1u // LMDB's own table, whose rows are the named tables
#define NEIGHBOURS 2u
#define LEAF_LEAST_BYTES 1024u                  // LMDB merges leaves with fewer bytes in use
#define LEAF_ROW_BYTES (INDEX_OBJECT_MAX + 28u) // the longest row of "objects"
#define BRANCH_LEAST 2u                         // LMDB merges branches with fewer children
#define AHEAD_DEPTH 3u // no read-ahead in trees with fewer levels, which are small and in memory
static_assert(LEAF_LEAST_BYTES == INDEX_PAGE_BYTES / 4, "LMDB merges a leaf a quarter full");
static_assert(LEAF_ROW_BYTES < INDEX_PAGE_BYTES / 2, "a leaf has two rows");
static_assert(AHEAD_DEPTH <= INDEX_PAGE_DEPTH_MAX, "such trees exist");

void index_proof_init(struct index_proof *proof, uint64_t page_count)
{
    check(proof->pages == NULL);
    proof->page_count = page_count;
    proof->pages = calloc(page_count / 64 + 1, sizeof(*proof->pages));
    check(proof->pages != NULL);
}

void index_proof_done(struct index_proof *proof)
{
    free(proof->pages);
    proof->pages = NULL;
}

void index_proof_all(struct index *index)
{
    struct index_env *env = atomic_load(&index->current);
    check(env != NULL);
    atomic_store_explicit(&env->proof.is_whole, true, memory_order_release);
}

void index_proof_failed(struct index *index, struct index_env *env, const char *where)
{
    check(env != NULL && where != NULL);
    if (!atomic_exchange(&env->proof.is_bad, true)) {
        stats_add(COUNTER_index_injuries, 1);
        log_warn("index_injured", "where=%s", where);
        index->host.want_new_index(index->host.ctx);
    }
}

// --- the path down

static bool is_needed(const struct index_env *env)
{
    return !atomic_load_explicit(&env->proof.is_whole, memory_order_acquire);
}

static bool page_can_be_read(const struct index_walk *w, uint64_t number)
{
    char bytes[INDEX_PAGE_BYTES];
    return pread(w->fd, bytes, sizeof(bytes), (off_t)(number * INDEX_PAGE_BYTES)) ==
           (ssize_t)sizeof(bytes);
}

static bool page_is_good(const struct index_walk *w, const struct index_page_place *at)
{
    if (at->number < 2 || at->number >= w->page_count) {
        return false;
    }
    const struct index_proof *proof = &w->env->proof;
    const char *page = w->env->map + at->number * INDEX_PAGE_BYTES;
    if (w->fd >= 0) {
        return page_can_be_read(w, at->number) && index_page_is_sound(page, at);
    }
    if (at->number >= proof->page_count || !is_needed(w->env)) {
        return index_page_fits(page, at);
    }
    _Atomic uint64_t *word = &proof->pages[at->number / 64];
    uint64_t bit = 1ull << at->number % 64;
    if ((atomic_load_explicit(word, memory_order_acquire) & bit) != 0) {
        return index_page_fits(page, at);
    }
    if (!index_page_is_sound(page, at)) {
        return false;
    }
    atomic_fetch_or_explicit(word, bit, memory_order_release);
    return true;
}

// Returns the number of child `i` of the branch at `level`, and what the child must contain.
static struct index_page_place child_place(const struct index_walk *w, unsigned level, unsigned i)
{
    const char *page = w->step[level].page;
    check(level + 1 < w->tree.depth);
    return (struct index_page_place){
        .table = w->table,
        .number = index_page_child(page, i),
        .page_count = w->page_count,
        .is_leaf = level + 2 == w->tree.depth,
        .from = i > 0 ? index_page_key(page, i) : w->step[level].from,
        .to = i + 1 < index_page_count(page) ? index_page_key(page, i + 1) : w->step[level].to,
    };
}

static bool step_to(struct index_walk *w, unsigned level, const struct index_page_place *at)
{
    check(level < w->tree.depth && w->tree.depth <= INDEX_PAGE_DEPTH_MAX);
    check(at->is_leaf == (level + 1 == w->tree.depth));
    if (!page_is_good(w, at)) {
        return false;
    }
    w->step[level].page = w->env->map + at->number * INDEX_PAGE_BYTES;
    w->step[level].at = 0;
    w->step[level].from = at->from;
    w->step[level].to = at->to;
    return true;
}

// Walks from the page at `level` down to the leaf of `key`, or to the first leaf if `key` is NULL.
static enum index_walked walk_down(struct index_walk *w, unsigned level, const char *key)
{
    check(level < w->tree.depth);
    for (; level + 1 < w->tree.depth; level++) {
        if (key != NULL) {
            w->step[level].at = index_page_child_of(w->step[level].page, key);
        }
        struct index_page_place child = child_place(w, level, w->step[level].at);
        if (!step_to(w, level + 1, &child)) {
            return INDEX_WALK_BAD;
        }
    }
    w->step[level].at = key != NULL ? index_page_row_of(w->step[level].page, key) : 0;
    return INDEX_WALKED;
}

enum index_walked index_proof_begin(struct index_walk *walk, const struct index_env *env,
                                    MDB_txn *txn, enum index_table table, bool from_file)
{
    static const char *const names[] = {"objects", "places"};
    MDB_val key = {strlen(names[table]), (void *)(uintptr_t)names[table]};
    MDB_val value;
    MDB_envinfo info;
    check(txn != NULL && env->map != NULL && table < ARRAY_LEN(names));
    walk->env = env;
    walk->table = table;
    walk->fd = -1;
    if (mdb_get(txn, TABLE_OF_TABLES, &key, &value) != 0 ||
        !index_page_tree((struct span){value.mv_data, value.mv_size}, &walk->tree) ||
        mdb_env_info(env->env, &info) != 0 ||
        (from_file && mdb_env_get_fd(env->env, &walk->fd) != 0)) {
        return INDEX_WALK_BAD;
    }
    walk->page_count = min_u64(info.me_last_pgno + 1, env->map_bytes / INDEX_PAGE_BYTES);
    if (walk->tree.depth == 0) {
        return INDEX_WALK_ENDS;
    }
    struct index_page_place root = {.table = table,
                                    .number = walk->tree.root,
                                    .page_count = walk->page_count,
                                    .is_leaf = walk->tree.depth == 1};
    return step_to(walk, 0, &root) ? INDEX_WALKED : INDEX_WALK_BAD;
}

enum index_walked index_proof_seek(struct index_walk *walk, const char *key)
{
    check(key != NULL && walk->tree.depth > 0);
    return walk_down(walk, 0, key);
}

enum index_walked index_proof_next_leaf(struct index_walk *walk)
{
    unsigned level = walk->tree.depth - 1;
    check(walk->tree.depth > 0);
    do {
        if (level == 0) {
            return INDEX_WALK_ENDS;
        }
        level--;
    } while (walk->step[level].at + 1 == index_page_count(walk->step[level].page));
    walk->step[level].at++;
    struct index_page_place child = child_place(walk, level, walk->step[level].at);
    return step_to(walk, level + 1, &child) ? walk_down(walk, level + 1, NULL) : INDEX_WALK_BAD;
}

const char *index_proof_leaf(const struct index_walk *walk, unsigned *ret_at)
{
    check(walk->tree.depth > 0);
    *ret_at = walk->step[walk->tree.depth - 1].at;
    return walk->step[walk->tree.depth - 1].page;
}

// --- before a read

bool index_proof_object(struct index *index, struct index_env *env, MDB_txn *txn,
                        struct hash128 hash)
{
    if (!is_needed(env)) {
        return true;
    }
    char key[INDEX_OBJECT_KEY_LEN];
    index_object_key(hash, key);
    struct index_walk walk;
    enum index_walked walked = index_proof_begin(&walk, env, txn, INDEX_TABLE_OBJECTS, false);
    walked = walked == INDEX_WALKED ? index_proof_seek(&walk, key) : walked;
    if (walked == INDEX_WALK_BAD) {
        index_proof_failed(index, env, "look_up");
    }
    return walked != INDEX_WALK_BAD;
}

// Walks from leaf to leaf until it has passed the rows of this generation, or more than `max` rows.
static enum index_walked walk_rows(struct index_walk *w, uint64_t generation, uint64_t max)
{
    enum index_walked walked = INDEX_WALKED;
    // The loop ends with the table's last leaf.
    for (uint64_t seen = 0; walked == INDEX_WALKED && seen <= max;) {
        unsigned at;
        const char *leaf = index_proof_leaf(w, &at);
        uint64_t last, block;
        index_place_key_parse(index_page_key(leaf, index_page_count(leaf) - 1), &last, &block);
        if (last > generation) {
            break;
        }
        seen += index_page_count(leaf) - at;
        walked = index_proof_next_leaf(w);
    }
    return walked;
}

bool index_proof_rows(struct index *index, struct index_env *env, MDB_txn *txn, const char *key,
                      unsigned max)
{
    if (!is_needed(env)) {
        return true;
    }
    uint64_t generation, block;
    check(max > 0);
    index_place_key_parse(key, &generation, &block);
    struct index_walk walk;
    enum index_walked walked = index_proof_begin(&walk, env, txn, INDEX_TABLE_PLACES, false);
    walked = walked == INDEX_WALKED ? index_proof_seek(&walk, key) : walked;
    walked = walked == INDEX_WALKED ? walk_rows(&walk, generation, max) : walked;
    if (walked == INDEX_WALK_BAD) {
        index_proof_failed(index, env, "look_up");
    }
    return walked != INDEX_WALK_BAD;
}

// --- before a write

// Counts how many changes of a batch touch each page of the current path.
struct counted {
    struct {
        const char *page;
        unsigned touches;
    } step[INDEX_PAGE_DEPTH_MAX];
};

// Counts a change for each page of the path. Changes are in the order of their keys, so the path
// never returns to a page that it has left.
static void count_touch(struct counted *counted, const struct index_walk *w)
{
    for (unsigned level = 1; level < w->tree.depth; level++) {
        if (counted->step[level].page != w->step[level].page) {
            counted->step[level].page = w->step[level].page;
            counted->step[level].touches = 0;
        }
        counted->step[level].touches++;
    }
}

// Returns true if the page stays full enough even if each touch removes a row or a child.
static bool stays_full(const struct counted *counted, const struct index_walk *w, unsigned level)
{
    const char *page = w->step[level].page;
    unsigned touches = counted->step[level].touches;
    return level + 1 == w->tree.depth
               ? index_page_used_bytes(page) >= LEAF_LEAST_BYTES + touches * LEAF_ROW_BYTES
               : index_page_count(page) >= BRANCH_LEAST + touches;
}

// Verifies the neighbours with which LMDB may merge pages of the path after deletes. `counted`: the
// changes of each page; NULL if any number of rows may be deleted.
static bool neighbours_are_good(const struct index_walk *w, const struct counted *counted)
{
    for (unsigned level = 1; level < w->tree.depth; level++) {
        unsigned at = w->step[level - 1].at;
        unsigned end = index_page_count(w->step[level - 1].page);
        unsigned i = at > NEIGHBOURS ? at - NEIGHBOURS : 0;
        bool full = counted != NULL && stays_full(counted, w, level);
        for (; !full && i < end && i <= at + NEIGHBOURS; i++) {
            struct index_walk low = *w;
            struct index_page_place child = child_place(w, level - 1, i);
            if (!step_to(&low, level, &child) || walk_down(&low, level, NULL) != INDEX_WALKED) {
                return false;
            }
        }
    }
    return true;
}

// Verifies the pages of all rows of a generation, the pages for new rows, and the neighbours at
// both ends.
static bool generation_is_good(struct index_walk *w, uint64_t generation)
{
    char key[INDEX_PLACE_KEY_LEN];
    index_place_key(generation, 0, key);
    if (index_proof_seek(w, key) != INDEX_WALKED || !neighbours_are_good(w, NULL)) {
        return false;
    }
    enum index_walked walked = walk_rows(w, generation, UINT64_MAX - 1);
    return walked == INDEX_WALK_ENDS || (walked == INDEX_WALKED && neighbours_are_good(w, NULL));
}

struct touching {
    struct index_walk objects, places;
    bool has_objects, has_places;
    struct counted counted; // number of changes of each page on the path in "objects"
};

static bool touch_is_good(struct touching *t, const struct index_touch *touch)
{
    char key[INDEX_OBJECT_KEY_LEN];
    index_object_key(touch->hash, key);
    uint64_t held = 0; // generation of the key's existing places that the change touches; 0: none
    if (t->has_objects) {
        if (index_proof_seek(&t->objects, key) != INDEX_WALKED) {
            return false;
        }
        count_touch(&t->counted, &t->objects);
        if (!neighbours_are_good(&t->objects, &t->counted)) {
            return false;
        }
        unsigned at;
        const char *leaf = index_proof_leaf(&t->objects, &at);
        struct index_record record;
        if (at < index_page_count(leaf) &&
            memcmp(index_page_key(leaf, at), key, sizeof(key)) == 0 &&
            index_object_decode(touch->hash, index_page_value(leaf, at), &record)) {
            bool has_places = (record.flags & INDEX_WHOLE) == 0;
            held = has_places || !touch->is_whole ? record.generation : 0;
        }
    }
    return !t->has_places ||
           ((held == 0 || generation_is_good(&t->places, held)) &&
            (touch->generation == 0 || generation_is_good(&t->places, touch->generation)));
}

// Starts to read the leaves where the keys are or would be. Does not wait for these reads.
static void leaves_ahead(struct index_walk *w, int fd, const struct index_touch *touches,
                         unsigned count)
{
    uint64_t asked = 0;
    check(fd >= 0 && w->tree.depth >= 2);
    for (unsigned i = 0; i < count; i++) {
        char key[INDEX_OBJECT_KEY_LEN];
        index_object_key(touches[i].hash, key);
        unsigned level = 0;
        for (; level + 2 < w->tree.depth; level++) {
            w->step[level].at = index_page_child_of(w->step[level].page, key);
            struct index_page_place child = child_place(w, level, w->step[level].at);
            if (!step_to(w, level + 1, &child)) {
                // The page is bad; stop here, because the later walk down this path reports it.
                return;
            }
        }
        unsigned at = index_page_child_of(w->step[level].page, key);
        uint64_t leaf = index_page_child(w->step[level].page, at);
        unsigned char there = 0;
        if (leaf == asked || leaf >= w->page_count ||
            (mincore((void *)(uintptr_t)(w->env->map + leaf * INDEX_PAGE_BYTES), INDEX_PAGE_BYTES,
                     &there) == 0 &&
             (there & 1) != 0)) {
            continue;
        }
        asked = leaf;
        // Only a hint, so it may fail.
        (void)posix_fadvise(fd, (off_t)(leaf * INDEX_PAGE_BYTES), INDEX_PAGE_BYTES,
                            POSIX_FADV_WILLNEED);
    }
}

static int touch_compare(const void *a, const void *b)
{
    const struct index_touch *x = a;
    const struct index_touch *y = b;
    if (x->hash.hi != y->hash.hi) {
        return x->hash.hi < y->hash.hi ? -1 : 1;
    }
    return (x->hash.lo > y->hash.lo) - (x->hash.lo < y->hash.lo);
}

bool index_proof_touches(struct index *index, struct index_touch *touches, unsigned count)
{
    struct index_env *env = atomic_load(&index->current);
    MDB_txn *txn = NULL;
    struct touching t;
    int fd;
    if (env == NULL || count == 0 || mdb_env_get_fd(env->env, &fd) != 0 ||
        mdb_txn_begin(env->env, NULL, MDB_RDONLY, &txn) != 0) {
        return true; // LMDB will report the error
    }
    enum index_walked objects = index_proof_begin(&t.objects, env, txn, INDEX_TABLE_OBJECTS, false);
    enum index_walked places = index_proof_begin(&t.places, env, txn, INDEX_TABLE_PLACES, false);
    bool good = objects != INDEX_WALK_BAD && places != INDEX_WALK_BAD;
    qsort(touches, count, sizeof(*touches), touch_compare);
    memset(&t.counted, 0, sizeof(t.counted));
    t.has_objects = objects == INDEX_WALKED;
    t.has_places = places == INDEX_WALKED;
    if (good && t.has_objects && t.objects.tree.depth >= AHEAD_DEPTH) {
        leaves_ahead(&t.objects, fd, touches, count);
    }
    for (unsigned i = 0; i < count && good && is_needed(env); i++) {
        good = touch_is_good(&t, &touches[i]);
    }
    mdb_txn_abort(txn);
    if (!good) {
        index_proof_failed(index, env, "change");
    }
    return good;
}
