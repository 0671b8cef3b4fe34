// SPDX-License-Identifier: Apache-2.0
// Proves: every page that LMDB makes of our records is sound, after any puts and deletes. Damage is
// found, or does not matter: no node leaves its page, no two nodes overlap, keys ascend.
#include "store/index/index_page.h"

#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/store_fixture.h"
#include "test.h"

#define ROWS 6000u
#define TABLE_OF_TABLES 1u

struct env {
    char dir[64];
    MDB_env *env;
    MDB_dbi tables[2];
};

static uint64_t dice_state = 99;

static uint64_t dice(uint64_t below)
{
    dice_state = dice_state * 6364136223846793005u + 1442695040888963407u;
    return (dice_state >> 20) % below;
}

static void env_open(struct env *e)
{
    MDB_txn *txn;
    (void)snprintf(e->dir, sizeof(e->dir), "/tmp/index-page-XXXXXX");
    cr_assert(mkdtemp(e->dir) != NULL);
    cr_assert(mdb_env_create(&e->env) == 0 && mdb_env_set_maxdbs(e->env, 3) == 0);
    cr_assert(mdb_env_set_mapsize(e->env, 64 * MIB) == 0);
    cr_assert(mdb_env_open(e->env, e->dir, MDB_NOTLS | MDB_NOSYNC, 0600) == 0);
    cr_assert(mdb_txn_begin(e->env, NULL, 0, &txn) == 0);
    cr_assert(mdb_dbi_open(txn, "objects", MDB_CREATE, &e->tables[0]) == 0);
    cr_assert(mdb_dbi_open(txn, "places", MDB_CREATE, &e->tables[1]) == 0);
    cr_assert(mdb_txn_commit(txn) == 0);
}

static void env_close(struct env *e)
{
    char path[128];
    mdb_env_close(e->env);
    (void)snprintf(path, sizeof(path), "%s/data.mdb", e->dir);
    (void)unlink(path);
    (void)snprintf(path, sizeof(path), "%s/lock.mdb", e->dir);
    (void)unlink(path);
    (void)rmdir(e->dir);
}

static void row_key(unsigned table, unsigned i, char key[16])
{
    if (table == 0) {
        index_object_key((struct hash128){hash64(&i, sizeof(i), 1), i}, key);
    } else {
        index_place_key(i / 9, i % 9, key); // neighbours, as an object's runs are
    }
}

// Puts or deletes some in one transaction.
static void env_change(struct env *e, unsigned table, bool remove, unsigned from, unsigned count)
{
    static char value_bytes[INDEX_OBJECT_MAX];
    MDB_txn *txn;
    cr_assert(mdb_txn_begin(e->env, NULL, 0, &txn) == 0);
    for (unsigned i = from; i < from + count; i++) {
        char key_bytes[16];
        row_key(table, i, key_bytes);
        MDB_val key = {sizeof(key_bytes), key_bytes};
        MDB_val value = {table == 0 ? INDEX_OBJECT_LEN + i % (STORE_SUMS_MAX + 1) : INDEX_PLACE_LEN,
                         value_bytes};
        int rc = remove ? mdb_del(txn, e->tables[table], &key, NULL)
                        : mdb_put(txn, e->tables[table], &key, &value, 0);
        cr_assert(rc == 0 || (remove && rc == MDB_NOTFOUND));
    }
    cr_assert(mdb_txn_commit(txn) == 0);
}

struct judged {
    const char *map;
    enum index_table table;
    struct index_tree tree;
    uint64_t page_count;
    unsigned rows, pages;
    struct index_page_place some[4096]; // pages that were met
};

static void judge(struct judged *j, uint64_t number, unsigned level, const char *from,
                  const char *to)
{
    struct index_page_place at = {.table = j->table,
                                  .number = number,
                                  .page_count = j->page_count,
                                  .is_leaf = level + 1 == j->tree.depth,
                                  .from = from,
                                  .to = to};
    const char *page = j->map + number * INDEX_PAGE_BYTES;
    cr_assert(index_page_is_sound(page, &at) && index_page_fits(page, &at), "page %llu",
              (unsigned long long)number);
    cr_assert(j->pages < ARRAY_LEN(j->some));
    j->some[j->pages++] = at;
    unsigned count = index_page_count(page);
    if (at.is_leaf) {
        j->rows += count;
        return;
    }
    for (unsigned i = 0; i < count; i++) { // as deep as the tree
        judge(j, index_page_child(page, i), level + 1, i > 0 ? index_page_key(page, i) : from,
              i + 1 < count ? index_page_key(page, i + 1) : to);
    }
}

static void judge_table(struct env *e, unsigned table, struct judged *j)
{
    MDB_txn *txn;
    MDB_stat stat;
    MDB_envinfo info;
    MDB_val key = {table == 0 ? 7 : 6, (void *)(uintptr_t)(table == 0 ? "objects" : "places")};
    MDB_val value;
    j->rows = j->pages = 0;
    cr_assert(mdb_txn_begin(e->env, NULL, MDB_RDONLY, &txn) == 0);
    cr_assert(mdb_get(txn, TABLE_OF_TABLES, &key, &value) == 0);
    j->table = (enum index_table)table;
    cr_assert(index_page_tree((struct span){value.mv_data, value.mv_size}, &j->tree));
    cr_assert(mdb_stat(txn, e->tables[table], &stat) == 0 && mdb_env_info(e->env, &info) == 0);
    j->map = index_map_of(value.mv_data);
    j->page_count = info.me_last_pgno + 1;
    cr_assert_eq(j->tree.depth, stat.ms_depth);
    if (j->tree.depth > 0) {
        judge(j, j->tree.root, 0, NULL, NULL);
    }
    cr_assert_eq(j->rows, stat.ms_entries);
    mdb_txn_abort(txn);
}

Test(index_page, every_page_that_lmdb_makes_of_our_tables_is_sound)
{
    static struct judged judged;
    struct env e;
    env_open(&e);
    for (unsigned table = 0; table < 2; table++) {
        judge_table(&e, table, &judged); // empty
        for (unsigned from = 0; from < ROWS; from += 500) {
            env_change(&e, table, false, from, 500);
            judge_table(&e, table, &judged);
        }
        for (unsigned i = 0; i < 60; i++) {
            env_change(&e, table, dice(5) > 1, (unsigned)dice(ROWS - 200), (unsigned)dice(200));
            judge_table(&e, table, &judged);
        }
        env_change(&e, table, true, 0, ROWS - 1);
        judge_table(&e, table, &judged);
        env_change(&e, table, true, 0, ROWS);
        judge_table(&e, table, &judged);
        cr_assert_eq(judged.rows, 0u);
    }
    env_close(&e);
}

// Checks in a second way what LMDB relies on: nodes do not overlap and are inside the page, and
// each key is above the previous one.
static bool is_harmless(const char *page, const struct index_page_place *at)
{
    unsigned lower = wire_get_u16(page + 12), upper = wire_get_u16(page + 14);
    if (wire_get_u64(page) != at->number || lower > upper || upper > INDEX_PAGE_BYTES) {
        return false;
    }
    unsigned long sum = 0;
    for (unsigned i = 0; i < (lower - 16) / 2; i++) {
        unsigned offset = wire_get_u16(page + 16 + 2 * i);
        unsigned len = 8 + wire_get_u16(page + offset + 6);
        len += at->is_leaf ? wire_get_u32(page + offset) : 0;
        if (offset < upper || offset + len > INDEX_PAGE_BYTES) {
            return false;
        }
        sum += len;
    }
    return sum <= INDEX_PAGE_BYTES - upper;
}

Test(index_page, an_injured_page_is_found_or_harmless)
{
    static struct judged judged;
    struct env e;
    env_open(&e);
    unsigned found = 0, all = 0;
    for (unsigned table = 0; table < 2; table++) {
        env_change(&e, table, false, 0, ROWS);
        judge_table(&e, table, &judged);
        for (unsigned i = 0; i < 20000; i++, all++) {
            const struct index_page_place *at = &judged.some[dice(judged.pages)];
            char page[INDEX_PAGE_BYTES];
            memcpy(page, judged.map + at->number * INDEX_PAGE_BYTES, sizeof(page));
            size_t reach = i % 2 == 0 ? 256 : sizeof(page);
            for (unsigned flips = 1 + (unsigned)dice(3); flips > 0; flips--) {
                page[dice(reach)] ^= (char)(1 << dice(8));
            }
            bool sound = index_page_is_sound(page, at);
            cr_assert(!sound || is_harmless(page, at));
            found += !sound;
        }
    }
    cr_assert(found > all / 3, "%u of %u", found, all);
    env_close(&e);
}

Test(index_page, a_page_that_belongs_elsewhere_does_not_fit)
{
    static struct judged judged;
    struct env e;
    env_open(&e);
    env_change(&e, 0, false, 0, ROWS);
    judge_table(&e, 0, &judged);
    for (unsigned i = 1; i < judged.pages; i++) {
        struct index_page_place at = judged.some[i];
        struct index_page_place other = judged.some[i - 1];
        const char *page = judged.map + at.number * INDEX_PAGE_BYTES;
        other.number = at.number; // as if its parent named this one
        cr_assert(!(at.is_leaf && other.is_leaf && index_page_fits(page, &other)));
        other = at;
        other.table = INDEX_TABLE_PLACES;
        cr_assert(!at.is_leaf || !index_page_fits(page, &other));
        other = at;
        other.number++;
        cr_assert(!index_page_fits(page, &other), "another one's number");
    }
    struct index_tree tree;
    char record[48] = {0};
    cr_assert(!index_page_tree((struct span){record, 48}, &tree), "a root");
    memset(record + 40, 0xff, 8);
    cr_assert(index_page_tree((struct span){record, 48}, &tree));
    cr_assert_eq(tree.depth, 0u);
    record[4] = 2;
    cr_assert(!index_page_tree((struct span){record, 48}, &tree), "keys in another order");
    record[4] = 0;
    record[6] = INDEX_PAGE_DEPTH_MAX + 1;
    cr_assert(!index_page_tree((struct span){record, 48}, &tree));
    cr_assert(!index_page_tree((struct span){record, 47}, &tree));
    env_close(&e);
}

Test(index_page, keys_are_found_where_they_are)
{
    static struct judged judged;
    struct env e;
    env_open(&e);
    env_change(&e, 1, false, 0, ROWS);
    judge_table(&e, 1, &judged);
    const char *root = judged.map + judged.tree.root * INDEX_PAGE_BYTES;
    for (unsigned i = 0; i < ROWS; i += 7) {
        char key[16];
        row_key(1, i, key);
        const char *page = root;
        for (unsigned level = 0; level + 1 < judged.tree.depth; level++) {
            page = judged.map +
                   index_page_child(page, index_page_child_of(page, key)) * INDEX_PAGE_BYTES;
        }
        unsigned at = index_page_row_of(page, key);
        cr_assert(at < index_page_count(page) && memcmp(index_page_key(page, at), key, 16) == 0);
        cr_assert_eq(index_page_value(page, at).len, INDEX_PLACE_LEN);
    }
    env_close(&e);
}
