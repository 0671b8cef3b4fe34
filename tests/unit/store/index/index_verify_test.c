// SPDX-License-Identifier: Apache-2.0
// Proves: faults in the structure of any page of an index are found before it is opened, also those
// that LMDB does not check when it writes.
#include "store/index/index_verify.h"

#include <fcntl.h>
#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "store/index/index_page.h"
#include "store/store_fixture.h"
#include "test.h"

#define OBJECTS 2000u
#define PAGES_MAX 1024u
#define MAP_BYTES (16 * MIB)

static const uint8_t cache_id[CACHE_ID_LEN] = {1};
static char dir[64], path[128];

static void row_put(MDB_txn *txn, MDB_dbi table, char *key, size_t key_len, char *value, size_t len)
{
    MDB_val k = {key_len, key}, v = {len, value};
    cr_assert(mdb_put(txn, table, &k, &v, 0) == 0);
}

static void rows_put(MDB_txn *txn, const MDB_dbi tables[3], unsigned from, unsigned to)
{
    char key[16], value[INDEX_OBJECT_MAX];
    for (unsigned i = from; i < to; i++) {
        struct hash128 hash = {hash64(&i, sizeof(i), 1), i};
        struct index_record record = {
            .generation = i + 1, .size_bytes = 2 * MIB, .block_size_bytes = BLOCK};
        index_object_key(hash, key);
        size_t len = index_object_encode(hash, &record, value);
        row_put(txn, tables[0], key, sizeof(key), value, len);
        struct index_place place = {.number = 1,
                                    .header_offset = SEGMENT_DATA_OFFSET,
                                    .header_len = RUN_HEADER_FIXED,
                                    .payload_offset = 65536,
                                    .payload_len = BLOCK,
                                    .block_count = 1,
                                    .salt = 1};
        index_place_key(record.generation, 0, key);
        index_place_encode(record.generation, 0, hash, &place, value);
        row_put(txn, tables[1], key, sizeof(key), value, INDEX_PLACE_LEN);
    }
    struct index_meta meta = {.blocks = to};
    memcpy(meta.cache_id, cache_id, CACHE_ID_LEN);
    index_meta_encode(&meta, value);
    row_put(txn, tables[2], (char[]){'m'}, 1, value, INDEX_META_LEN);
}

// Its pages, less those that are free.
static unsigned pages_in_use(MDB_env *env, bool *pages)
{
    MDB_txn *txn;
    MDB_cursor *cursor;
    MDB_val key, value;
    MDB_envinfo info;
    cr_assert(mdb_env_info(env, &info) == 0 && info.me_last_pgno < PAGES_MAX);
    memset(pages, true, PAGES_MAX);
    cr_assert(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) == 0);
    cr_assert(mdb_cursor_open(txn, 0, &cursor) == 0);
    for (int rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST); rc == 0;
         rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) { // a few
        const uint64_t *list = value.mv_data;
        for (uint64_t i = 1; i <= list[0]; i++) {
            pages[list[i]] = false;
        }
    }
    mdb_cursor_close(cursor);
    mdb_txn_abort(txn);
    return (unsigned)info.me_last_pgno + 1;
}

static unsigned make(bool *pages)
{
    static const char *const names[] = {"objects", "places", "meta"};
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi tables[3];
    (void)snprintf(dir, sizeof(dir), "/tmp/index-verify-XXXXXX");
    cr_assert(mkdtemp(dir) != NULL);
    (void)snprintf(path, sizeof(path), "%s/data.mdb", dir);
    cr_assert(mdb_env_create(&env) == 0 && mdb_env_set_maxdbs(env, 3) == 0);
    cr_assert(mdb_env_set_mapsize(env, MAP_BYTES) == 0);
    cr_assert(mdb_env_open(env, dir, MDB_NOTLS | MDB_NOSYNC, 0600) == 0);
    for (unsigned part = 0; part < 4; part++) { // pages become free
        cr_assert(mdb_txn_begin(env, NULL, 0, &txn) == 0);
        for (unsigned i = 0; i < ARRAY_LEN(names); i++) {
            cr_assert(mdb_dbi_open(txn, names[i], MDB_CREATE, &tables[i]) == 0);
        }
        rows_put(txn, tables, part * OBJECTS / 4, (part + 1) * OBJECTS / 4);
        cr_assert(mdb_txn_commit(txn) == 0);
    }
    unsigned count = pages_in_use(env, pages);
    mdb_env_close(env);
    return count;
}

// `all`: the child gets the time for that, however busy the machine is.
static bool is_refused(bool all, enum index_verdict *ret_verdict)
{
    cr_assert(setenv("FOREBAY_INDEX_WALK_US", all ? "60000000" : "0", 1) == 0);
    int folder = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cr_assert(folder >= 0);
    bool refused = !index_verify_tables(folder);
    (void)close(folder);
    do { // or nobody waits for it
        *ret_verdict = refused ? INDEX_VERDICT_BAD : index_verify(dir, MAP_BYTES, cache_id);
    } while (all && *ret_verdict == INDEX_VERDICT_PARTLY);
    cr_assert(unsetenv("FOREBAY_INDEX_WALK_US") == 0);
    return *ret_verdict == INDEX_VERDICT_BAD;
}

static void page_write(uint64_t number, const char *page)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    cr_assert(fd >= 0 && pwrite(fd, page, INDEX_PAGE_BYTES, (off_t)(number * INDEX_PAGE_BYTES)) ==
                             (ssize_t)INDEX_PAGE_BYTES);
    (void)close(fd);
}

static void page_read(uint64_t number, char *page)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    cr_assert(fd >= 0 && pread(fd, page, INDEX_PAGE_BYTES, (off_t)(number * INDEX_PAGE_BYTES)) ==
                             (ssize_t)INDEX_PAGE_BYTES);
    (void)close(fd);
}

Test(index_verify, a_page_whose_structure_is_injured_is_found_wherever_it_is, .timeout = 60)
{
    static bool in_use[PAGES_MAX];
    unsigned count = make(in_use);
    enum index_verdict verdict;
    cr_assert(!is_refused(true, &verdict));
    cr_assert(verdict == INDEX_VERDICT_GOOD);
    const char *scale = getenv("FOREBAY_TEST_SCALE");
    unsigned step = scale != NULL && strcmp(scale, "1") == 0 ? 1 : 5;
    unsigned seen = 0;
    for (uint64_t number = 2; number < count; number++) {
        // Number; kind; end of offsets; begin of nodes, in the page and behind it; the first node's
        // place.
        static const struct {
            unsigned at;
            uint16_t add;
        } injuries[] = {{0, 1}, {10, 4}, {12, 2}, {14, 2}, {14, 0xf000}, {16, 0x1001}};
        if (!in_use[number] || (number > 8 && number % step != 0)) {
            continue;
        }
        char page[INDEX_PAGE_BYTES], injured[INDEX_PAGE_BYTES];
        page_read(number, page);
        unsigned i = seen++ % ARRAY_LEN(injuries);
        unsigned end = number <= 8 || step == 1 ? (unsigned)ARRAY_LEN(injuries) : i + 1;
        for (i = end == ARRAY_LEN(injuries) ? 0 : i; i < end; i++) {
            uint16_t field = wire_get_u16(page + injuries[i].at);
            memcpy(injured, page, sizeof(injured));
            wire_put_u16(injured + injuries[i].at, (uint16_t)(field + injuries[i].add));
            page_write(number, injured);
            cr_assert(is_refused(true, &verdict), "page %llu of kind %u, byte %u",
                      (unsigned long long)number, wire_get_u16(page + 10), injuries[i].at);
        }
        page_write(number, page);
    }
    cr_assert(seen > 10);
    cr_assert(!is_refused(false, &verdict) && verdict == INDEX_VERDICT_PARTLY);
    (void)unlink(path);
    (void)snprintf(path, sizeof(path), "%s/lock.mdb", dir);
    (void)unlink(path);
    (void)rmdir(dir);
}

// A table whose keys have another order is not ours.
Test(index_verify, the_record_of_a_table_is_looked_at)
{
    static bool in_use[PAGES_MAX];
    unsigned count = make(in_use);
    enum index_verdict verdict;
    unsigned refused = 0;
    for (uint64_t number = 2; number < count; number++) {
        char page[INDEX_PAGE_BYTES];
        page_read(number, page);
        struct index_tree tree;
        if (!in_use[number] || !index_page_is_apart(page, number) ||
            !index_page_find_tree(page, "places", &tree)) {
            continue;
        }
        cr_assert(tree.depth == 2 && !index_page_find_tree(page, "place", &tree));
        char *name = memmem(page, sizeof(page), "places", 6);
        cr_assert(name != NULL);
        name[6 + 4] = 2; // keys compared from their end
        page_write(number, page);
        refused += is_refused(true, &verdict);
    }
    cr_assert_eq(refused, 1u);
    (void)unlink(path);
    (void)snprintf(path, sizeof(path), "%s/lock.mdb", dir);
    (void)unlink(path);
    (void)rmdir(dir);
}
