// SPDX-License-Identifier: Apache-2.0
// Proves: each page that a batch of changes makes LMDB rewrite has been verified before. No page
// leaves the tree that index_proof_touches() did not mark. A damaged page on the way is refused.
#include "store/index/index_proof.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "store/index/index.h"
#include "store/store_fixture.h"
#include "test.h"

#define OBJECTS 9000u
#define LARGE_EVERY 60u // such an object has LARGE_ROWS places, others one
#define LARGE_ROWS 100u
#define PAGES_MAX 16384u
#define TABLE_OF_TABLES 1u

struct tables {
    char dir[64];
    struct index_env env;
    struct index index;
    bool is_there[OBJECTS];
};

static uint64_t dice_state = 7;

static uint64_t dice(uint64_t below)
{
    dice_state = dice_state * 6364136223846793005u + 1442695040888963407u;
    return (dice_state >> 20) % below;
}

static struct hash128 hash_of(unsigned i) // in the order of i: neighbours share leaves
{
    return (struct hash128){(uint64_t)i << 32, i};
}

static void tables_open(struct tables *t)
{
    MDB_txn *txn;
    (void)snprintf(t->dir, sizeof(t->dir), "/tmp/index-proof-XXXXXX");
    cr_assert(mkdtemp(t->dir) != NULL);
    t->env.map_bytes = 256 * MIB;
    cr_assert(mdb_env_create(&t->env.env) == 0 && mdb_env_set_maxdbs(t->env.env, 3) == 0);
    cr_assert(mdb_env_set_mapsize(t->env.env, t->env.map_bytes) == 0);
    cr_assert(mdb_env_open(t->env.env, t->dir, MDB_NOTLS | MDB_NOSYNC, 0600) == 0);
    cr_assert(mdb_txn_begin(t->env.env, NULL, 0, &txn) == 0);
    cr_assert(mdb_dbi_open(txn, "objects", MDB_CREATE, &t->env.objects) == 0);
    cr_assert(mdb_dbi_open(txn, "places", MDB_CREATE, &t->env.places) == 0);
    cr_assert(mdb_txn_commit(txn) == 0);
    atomic_store(&t->index.current, &t->env);
}

static void tables_close(struct tables *t)
{
    char path[128];
    mdb_env_close(t->env.env);
    index_proof_done(&t->env.proof);
    (void)snprintf(path, sizeof(path), "%s/data.mdb", t->dir);
    (void)unlink(path);
    (void)snprintf(path, sizeof(path), "%s/lock.mdb", t->dir);
    (void)unlink(path);
    (void)rmdir(t->dir);
}

// Enters or removes object `i` with its places, as a change does.
static void object_change(struct tables *t, MDB_txn *txn, unsigned i)
{
    char key_bytes[16], value_bytes[INDEX_OBJECT_MAX];
    struct index_record record = {.generation = i + 1,
                                  .size_bytes = LARGE_ROWS * BLOCK,
                                  .block_size_bytes = BLOCK,
                                  .sums.len = (uint8_t)(i % 3 == 0 ? i % (STORE_SUMS_MAX + 1) : 0)};
    MDB_val key = {sizeof(key_bytes), key_bytes};
    MDB_val value = {INDEX_PLACE_LEN, value_bytes};
    for (unsigned b = 0; b < (i % LARGE_EVERY == 0 ? LARGE_ROWS : 1); b++) {
        memset(value_bytes, 0, sizeof(value_bytes));
        index_place_key(record.generation, b, key_bytes);
        cr_assert((t->is_there[i] ? mdb_del(txn, t->env.places, &key, NULL)
                                  : mdb_put(txn, t->env.places, &key, &value, 0)) == 0);
    }
    index_object_key(hash_of(i), key_bytes);
    value.mv_size = index_object_encode(hash_of(i), &record, value_bytes);
    cr_assert((t->is_there[i] ? mdb_del(txn, t->env.objects, &key, NULL)
                              : mdb_put(txn, t->env.objects, &key, &value, 0)) == 0);
    t->is_there[i] = !t->is_there[i];
}

static void objects_change(struct tables *t, const struct index_touch *touches, unsigned count)
{
    MDB_txn *txn;
    cr_assert(mdb_txn_begin(t->env.env, NULL, 0, &txn) == 0);
    for (unsigned i = 0; i < count; i++) {
        object_change(t, txn, (unsigned)touches[i].hash.lo);
    }
    cr_assert(mdb_txn_commit(txn) == 0);
}

static void collect(const char *map, uint64_t number, unsigned levels, bool *pages)
{
    cr_assert(number < PAGES_MAX);
    pages[number] = true;
    const char *page = map + number * INDEX_PAGE_BYTES;
    for (unsigned i = 0; levels > 1 && i < index_page_count(page); i++) { // as deep as the tree
        collect(map, index_page_child(page, i), levels - 1, pages);
    }
}

// The pages of both trees. The deeper one's depth.
static unsigned pages_of(struct tables *t, bool *pages)
{
    MDB_txn *txn;
    unsigned depth = 0;
    memset(pages, 0, PAGES_MAX);
    cr_assert(mdb_txn_begin(t->env.env, NULL, MDB_RDONLY, &txn) == 0);
    for (unsigned table = 0; table < 2; table++) {
        const char *name = table == 0 ? "objects" : "places";
        MDB_val key = {strlen(name), (void *)(uintptr_t)name};
        MDB_val value;
        struct index_tree tree;
        cr_assert(mdb_get(txn, TABLE_OF_TABLES, &key, &value) == 0);
        cr_assert(index_page_tree((struct span){value.mv_data, value.mv_size}, &tree));
        t->env.map = index_map_of(value.mv_data);
        if (tree.depth > 0) {
            collect(t->env.map, tree.root, tree.depth, pages);
        }
        depth = tree.depth > depth ? tree.depth : depth;
    }
    mdb_txn_abort(txn);
    return depth;
}

// Nothing is known, as after a start.
static void forget_marks(struct tables *t)
{
    MDB_envinfo info;
    cr_assert(mdb_env_info(t->env.env, &info) == 0);
    index_proof_done(&t->env.proof);
    index_proof_init(&t->env.proof, info.me_last_pgno + 1);
}

static bool is_marked(const struct tables *t, uint64_t page)
{
    return (atomic_load(&t->env.proof.pages[page / 64]) >> page % 64 & 1) != 0;
}

static struct index_touch touch_of(const struct tables *t, unsigned i)
{
    return (struct index_touch){hash_of(i), t->is_there[i] ? 0 : i + 1, false};
}

// Neighbours, or some from everywhere; none twice.
static unsigned choose(const struct tables *t, struct index_touch *touches, unsigned max)
{
    unsigned count = 1 + (unsigned)dice(max);
    unsigned step = dice(3) == 0 ? 1 + (unsigned)dice(OBJECTS / count) : 1 + (unsigned)dice(2);
    unsigned from = (unsigned)dice(OBJECTS - (count - 1) * step);
    for (unsigned i = 0; i < count; i++) {
        touches[i] = touch_of(t, from + i * step);
    }
    return count;
}

static struct tables tables;
static struct index_touch touches[OBJECTS];
static bool before[PAGES_MAX], after[PAGES_MAX];

static void fill(void)
{
    memset(&tables, 0, sizeof(tables));
    tables_open(&tables);
    for (unsigned i = 0; i < OBJECTS; i++) {
        touches[i] = touch_of(&tables, i);
    }
    objects_change(&tables, touches, OBJECTS);
}

Test(index_proof, pages_that_a_batch_makes_lmdb_rewrite_were_verified_before)
{
    fill();
    unsigned gone = 0, deepest = 0;
    const char *scale = getenv("FOREBAY_TEST_SCALE");
    unsigned rounds = scale != NULL && strcmp(scale, "1") == 0 ? 2000 : 60;
    for (unsigned round = 0; round < rounds; round++) {
        unsigned depth = pages_of(&tables, before);
        deepest = depth > deepest ? depth : deepest;
        forget_marks(&tables);
        unsigned count = choose(&tables, touches, round % 4 == 0 ? 3000 : 200);
        cr_assert(index_proof_touches(&tables.index, touches, count));
        objects_change(&tables, touches, count);
        (void)pages_of(&tables, after);
        for (uint64_t page = 0; page < PAGES_MAX; page++) {
            if (before[page] && !after[page]) {
                gone++;
                cr_assert(is_marked(&tables, page), "round %u: page %llu was not judged", round,
                          (unsigned long long)page);
            }
        }
    }
    cr_assert(gone > 1000 && deepest >= 3, "%u pages, %u levels", gone, deepest);
    tables_close(&tables);
}

static void injure(uint64_t page, unsigned at, uint8_t by)
{
    int fd;
    char byte;
    off_t offset = (off_t)(page * INDEX_PAGE_BYTES + at);
    cr_assert(mdb_env_get_fd(tables.env.env, &fd) == 0);
    cr_assert(pread(fd, &byte, 1, offset) == 1);
    byte = (char)(byte ^ by);
    cr_assert(pwrite(fd, &byte, 1, offset) == 1);
}

// Verified again: the walk reaches each page of a table, and one flipped bit of its head stops it.
Test(index_proof, a_way_through_a_table_ends_at_an_injured_page)
{
    fill();
    (void)pages_of(&tables, before);
    forget_marks(&tables);
    unsigned injured = 0;
    for (uint64_t page = 0; page < PAGES_MAX; page++) {
        if (!before[page] || dice(16) != 0) {
            continue;
        }
        static const unsigned at[] = {0, 10, 13, 15};
        unsigned field = at[injured++ % ARRAY_LEN(at)];
        injure(page, field, 0x40);
        bool found = false;
        for (unsigned table = 0; table < 2; table++) {
            static const char first[INDEX_PAGE_KEY_LEN];
            MDB_txn *txn;
            struct index_walk walk;
            cr_assert(mdb_txn_begin(tables.env.env, NULL, MDB_RDONLY, &txn) == 0);
            enum index_walked walked =
                index_proof_begin(&walk, &tables.env, txn, (enum index_table)table, true);
            walked = walked == INDEX_WALKED ? index_proof_seek(&walk, first) : walked;
            while (walked == INDEX_WALKED) { // ends with the table
                walked = index_proof_next_leaf(&walk);
            }
            found = found || walked == INDEX_WALK_BAD;
            mdb_txn_abort(txn);
        }
        injure(page, field, 0x40);
        cr_assert(found, "page %llu, byte %u", (unsigned long long)page, field);
    }
    cr_assert(injured > 10);
    tables_close(&tables);
}
