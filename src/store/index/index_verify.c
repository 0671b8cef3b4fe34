// SPDX-License-Identifier: Apache-2.0
// Verifies the index at the start. LMDB survives a crash but not damage: a flipped bit or a
// truncated file causes a wrong answer, an abort or SIGBUS. So before Forebay serves, this file
// verifies the meta pages and the root pages of tables without LMDB. Then a child process reads the
// file with LMDB. If the child dies, the index is bad.
//
// The child first verifies the list of free pages: they must be in range, in order and without
// duplicates, and in sound leaves. Then it verifies each page and every record of Forebay's tables.
// index_proof.c must accept the page, the page must not be free, checksums must be right, and
// counts must agree. A small index takes at most 25 ms and is verified completely. Of a larger
// index the child verifies as much as it can in that time. If the index is so large that it could
// not finish, it verifies only the list of free pages. The other pages are verified before their
// first use (index_proof.c), and by the rounds of index_roll.c.
#include "store/index/index_verify.h"

#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/index/index.h"

#define WALK_FIRST_US 25000u
// A page takes at least 2 us, so the child cannot read a larger index in WALK_FIRST_US.
#define WALK_PAGES_MAX 16384u
#define PAGE_BYTES 4096u
#define PAGES_MAX (1ull << 28) // an index of 1 TiB has this many pages
#define EXIT_BAD 3
static_assert(PAGE_BYTES == INDEX_PAGE_BYTES, "both files read the same pages");
static_assert(INDEX_VERIFY_WAIT_MS * 1000 > 10 * WALK_FIRST_US,
              "the parent waits much longer than the child walks");

struct walker {
    struct index_env env; // the child's own environment, for its walks
    MDB_txn *txn;
    uint64_t page_count, records, bad_records;
    uint8_t *free_pages; // a bit for each page of the file, set if the page is free
    uint64_t began_us;
    int out_fd;
};

static void __attribute__((noreturn)) walker_end(const struct walker *w, char verdict)
{
    // If this fails, the parent reads no verdict, and takes the index for bad.
    (void)!write(w->out_fd, &verdict, 1);
    _exit(verdict == 'B' ? EXIT_BAD : 0);
}

static void on_assert(MDB_env *env, const char *text)
{
    (void)env;
    (void)text;
    _exit(EXIT_BAD);
}

// Returns how long the child tries to read the whole index. Tests set FOREBAY_INDEX_WALK_US: 0
// makes every index too large.
static uint64_t walk_first_us(void)
{
#ifdef FOREBAY_FAULTS
    const char *text = getenv("FOREBAY_INDEX_WALK_US");
    uint64_t us;
    if (text != NULL && span_to_u64(span_from_cstr(text), &us)) {
        return us;
    }
#endif
    return WALK_FIRST_US;
}

static bool page_mark_free(struct walker *w, uint64_t page)
{
    if (page < 2 || page >= w->page_count || (w->free_pages[page / 8] >> page % 8 & 1) != 0) {
        return false;
    }
    w->free_pages[page / 8] |= (uint8_t)(1u << page % 8);
    return true;
}

static const char *page_of(const struct walker *w, const void *data)
{
    return w->env.map + (uint64_t)((const char *)data - w->env.map) / PAGE_BYTES * PAGE_BYTES;
}

static bool free_row_is_sound(const struct walker *w, const MDB_val *key, const MDB_val *value)
{
    const char *leaf = page_of(w, key->mv_data);
    const char *page = page_of(w, value->mv_data);
    uint64_t number = (uint64_t)(page - w->env.map) / PAGE_BYTES;
    return index_page_is_apart(leaf, (uint64_t)(leaf - w->env.map) / PAGE_BYTES) &&
           (page == leaf || index_page_is_long(page, number, value->mv_size));
}

// Verifies LMDB's own table of free pages, which is table 0. Its keys are the transactions that
// freed the pages. A value is a count and that many page numbers.
static bool walk_free_pages(struct walker *w)
{
    w->free_pages = calloc(w->page_count / 8 + 1, 1);
    MDB_cursor *cursor;
    if (w->free_pages == NULL || mdb_cursor_open(w->txn, 0, &cursor) != 0) {
        return false;
    }
    MDB_val key, value;
    bool good = true;
    size_t txn_before = 0;
    int rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
    for (; rc == 0 && good; rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) {
        size_t count = 0;
        size_t txn;
        good = key.mv_size == sizeof(txn) && value.mv_size >= sizeof(count) &&
               free_row_is_sound(w, &key, &value);
        if (good) {
            memcpy(&txn, key.mv_data, sizeof(txn));
            good = txn > txn_before && txn <= mdb_txn_id(w->txn);
            txn_before = txn;
        }
        if (good) {
            memcpy(&count, value.mv_data, sizeof(count));
            good = count <= value.mv_size / sizeof(size_t) - 1;
        }
        size_t before = w->page_count;
        for (size_t i = 0; i < count && good; i++) { // the numbers must be in descending order
            size_t page;
            memcpy(&page, (const char *)value.mv_data + (i + 1) * sizeof(page), sizeof(page));
            good = page < before && page_mark_free(w, page);
            before = page;
        }
    }
    mdb_cursor_close(cursor);
    return good && rc == MDB_NOTFOUND;
}

static bool record_is_good(enum index_table table, const char *key, struct span value)
{
    if (table == INDEX_TABLE_OBJECTS) {
        struct index_record record;
        return index_object_decode(index_object_key_parse(key), value, &record);
    }
    uint64_t generation, first_block;
    struct hash128 owner;
    struct index_place place;
    index_place_key_parse(key, &generation, &first_block);
    return index_place_decode(generation, first_block, value, &owner, &place);
}

// Verifies the records of the current leaf, and counts bad ones. Returns false if a page of the
// path is in the list of free pages.
static bool walk_leaf(struct walker *w, const struct index_walk *walk)
{
    for (unsigned i = 0; i < walk->tree.depth; i++) {
        uint64_t page = (uint64_t)(walk->step[i].page - w->env.map) / PAGE_BYTES;
        if (page >= w->page_count || (w->free_pages[page / 8] >> page % 8 & 1) != 0) {
            return false;
        }
    }
    unsigned at;
    const char *leaf = index_proof_leaf(walk, &at);
    for (unsigned i = 0; i < index_page_count(leaf); i++) {
        w->records++;
        w->bad_records +=
            !record_is_good(walk->table, index_page_key(leaf, i), index_page_value(leaf, i));
    }
    return true;
}

// Verifies the leaves of a table until `until_us`. Sets *ret_end if the walk reached the last leaf.
static bool walk_table(struct walker *w, enum index_table table, uint64_t until_us, bool *ret_end)
{
    static const char first[INDEX_PAGE_KEY_LEN];
    struct index_walk walk;
    enum index_walked walked = index_proof_begin(&walk, &w->env, w->txn, table, true);
    walked = walked == INDEX_WALKED ? index_proof_seek(&walk, first) : walked;
    // The loop ends with the table's last leaf.
    while (walked == INDEX_WALKED && clock_monotonic_us() <= until_us) {
        walked = walk_leaf(w, &walk) ? index_proof_next_leaf(&walk) : INDEX_WALK_BAD;
    }
    *ret_end = walked == INDEX_WALK_ENDS;
    return walked != INDEX_WALK_BAD;
}

static bool walker_open_tables(struct walker *w, const uint8_t *cache_id)
{
    struct index_meta meta;
    MDB_val key = {1, (void *)(uintptr_t) "m"};
    MDB_val value;
    if (mdb_dbi_open(w->txn, "objects", 0, &w->env.objects) != 0 ||
        mdb_dbi_open(w->txn, "places", 0, &w->env.places) != 0 ||
        mdb_dbi_open(w->txn, "meta", 0, &w->env.meta) != 0 ||
        mdb_get(w->txn, w->env.meta, &key, &value) != 0 ||
        !index_meta_decode((struct span){value.mv_data, value.mv_size}, &meta) ||
        memcmp(meta.cache_id, cache_id, CACHE_ID_LEN) != 0) {
        return false;
    }
    w->env.map = index_map_of(value.mv_data);
    return true;
}

// Sets page_count to the pages that the file has.
static bool walker_count_pages(struct walker *w)
{
    MDB_envinfo info;
    if (mdb_env_info(w->env.env, &info) != 0) {
        return false;
    }
    w->page_count = info.me_last_pgno + 1;
    return w->page_count < PAGES_MAX;
}

// Opens the file without LMDB's locks, because nobody writes to it while the parent waits.
static bool walker_open(struct walker *w, const char *path, uint64_t map_bytes,
                        const uint8_t *cache_id)
{
    const unsigned flags = MDB_RDONLY | MDB_NOLOCK | MDB_NOTLS | MDB_NORDAHEAD;
    w->env.map_bytes = map_bytes;
    if (mdb_env_create(&w->env.env) != 0 || mdb_env_set_mapsize(w->env.env, map_bytes) != 0 ||
        mdb_env_set_maxdbs(w->env.env, 3) != 0 || mdb_env_set_assert(w->env.env, on_assert) != 0 ||
        mdb_env_open(w->env.env, path, flags, 0600) != 0 ||
        mdb_txn_begin(w->env.env, NULL, MDB_RDONLY, &w->txn) != 0 ||
        !walker_open_tables(w, cache_id)) {
        return false;
    }
    // LMDB keeps a table open for later transactions only if the transaction that opened it
    // commits, even if that one only reads.
    return mdb_txn_commit(w->txn) == 0 &&
           mdb_txn_begin(w->env.env, NULL, MDB_RDONLY, &w->txn) == 0 && walker_count_pages(w);
}

// Verifies all tables in one view while there is time. Sets *ret_end if all of them were verified.
static bool walk_whole(struct walker *w, bool *ret_end)
{
    *ret_end = false;
    if (w->page_count > WALK_PAGES_MAX) {
        return true;
    }
    for (unsigned table = INDEX_TABLE_OBJECTS; table <= INDEX_TABLE_PLACES; table++) {
        uint64_t before = w->records;
        if (!walk_table(w, table, w->began_us + walk_first_us(), ret_end)) {
            return false;
        }
        if (!*ret_end) {
            return true;
        }
        MDB_stat stat;
        MDB_dbi dbi = table == INDEX_TABLE_OBJECTS ? w->env.objects : w->env.places;
        if (mdb_stat(w->txn, dbi, &stat) != 0 || stat.ms_entries != w->records - before) {
            return false;
        }
    }
    return true;
}

static void __attribute__((noreturn))
child_main(int out_fd, const char *path, uint64_t map_bytes, const uint8_t *cache_id)
{
    // Close all descriptors of the parent, above all the one of its lock.
    if (out_fd > 3) {
        (void)close_range(3, (unsigned)out_fd - 1, 0);
    }
    (void)close_range((unsigned)out_fd + 1, ~0u, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    static const int deadly[] = {SIGBUS, SIGSEGV, SIGABRT, SIGFPE, SIGTERM, SIGINT};
    for (unsigned i = 0; i < ARRAY_LEN(deadly); i++) {
        (void)signal(deadly[i], SIG_DFL);
    }
    sigset_t none;
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    struct walker w = {.out_fd = out_fd, .began_us = clock_monotonic_us()};
    bool end = false;
    if (!walker_open(&w, path, map_bytes, cache_id) || !walk_free_pages(&w) ||
        !walk_whole(&w, &end) || w.bad_records * 100 > w.records) {
        walker_end(&w, 'B');
    }
    walker_end(&w, end ? 'G' : 'P');
}

// LMDB's meta page, in its 64-bit format 1. After a page header of 16 bytes: magic, version,
// address, map size, two records of tables of 48 bytes, last page, transaction. The first table has
// the free pages. The pad of its record is the page size, and its flags are those of the file. The
// second table is the table of tables.
#define META_MAGIC 0xBEEFC0DEu
#define META_MAGIC_AT 16u
#define META_PAGE_SIZE_AT 40u
#define META_FLAGS_AT 44u
#define META_FLAGS 8u // MDB_INTEGERKEY: the keys of the table of free pages are numbers
#define META_TABLES_AT 88u
#define META_TABLES_LEN 48u
#define META_LAST_PAGE_AT 136u
#define META_TXN_AT 144u
static_assert(META_TABLES_AT + META_TABLES_LEN == META_LAST_PAGE_AT, "the tables come before it");
static_assert(META_LAST_PAGE_AT + sizeof(uint64_t) == META_TXN_AT, "the transaction comes last");

// Reads the newer of the two meta pages. Returns false if one of them is damaged, or if the file is
// shorter than the newer one states.
static bool metas_read(int fd, char ret_meta[PAGE_BYTES])
{
    char metas[2 * PAGE_BYTES];
    struct stat st;
    bool good = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
                pread(fd, metas, sizeof(metas), 0) == (ssize_t)sizeof(metas);
    for (unsigned i = 0; i < 2 && good; i++) {
        const char *meta = metas + i * PAGE_BYTES;
        good = wire_get_u32(meta + META_MAGIC_AT) == META_MAGIC &&
               wire_get_u32(meta + META_PAGE_SIZE_AT) == PAGE_BYTES &&
               wire_get_u16(meta + META_FLAGS_AT) == META_FLAGS;
    }
    if (!good) {
        return false;
    }
    bool second =
        wire_get_u64(metas + META_TXN_AT) < wire_get_u64(metas + PAGE_BYTES + META_TXN_AT);
    memcpy(ret_meta, metas + (second ? PAGE_BYTES : 0), PAGE_BYTES);
    uint64_t last_page = wire_get_u64(ret_meta + META_LAST_PAGE_AT);
    return last_page < PAGES_MAX && (uint64_t)st.st_size >= (last_page + 1) * PAGE_BYTES;
}

static uint64_t meta_used_bytes(const char *meta)
{
    return (wire_get_u64(meta + META_LAST_PAGE_AT) + 1) * PAGE_BYTES;
}

// Reads the root page of a table. Returns false if the table has more than this page, or the page
// is damaged.
static bool root_read(int fd, const struct index_tree *tree, char ret_page[PAGE_BYTES])
{
    return tree->depth == 1 && tree->root < PAGES_MAX &&
           pread(fd, ret_page, PAGE_BYTES, (off_t)(tree->root * PAGE_BYTES)) ==
               (ssize_t)PAGE_BYTES &&
           index_page_is_apart(ret_page, tree->root);
}

static bool tables_are_good(int fd)
{
    char meta[PAGE_BYTES], tables[PAGE_BYTES], settings[PAGE_BYTES];
    struct index_tree tree;
    return metas_read(fd, meta) &&
           index_page_tree((struct span){meta + META_TABLES_AT, META_TABLES_LEN}, &tree) &&
           root_read(fd, &tree, tables) && index_page_find_tree(tables, "objects", &tree) &&
           index_page_find_tree(tables, "places", &tree) &&
           index_page_find_tree(tables, "meta", &tree) && root_read(fd, &tree, settings);
}

// Opens data.mdb. The process has not opened it with LMDB yet, so closing this descriptor releases
// no lock of LMDB.
static int file_open(int index_fd, int flags)
{
    return openat(index_fd, "data.mdb", flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

bool index_verify_tables(int index_fd)
{
    check(index_fd >= 0);
    int fd = file_open(index_fd, O_RDONLY);
    bool good = fd >= 0 && tables_are_good(fd);
    if (fd >= 0) {
        (void)close(fd); // only read, so an error loses nothing
    }
    return good;
}

uint64_t index_file_cut(int index_fd)
{
    char meta[PAGE_BYTES];
    check(index_fd >= 0);
    int fd = file_open(index_fd, O_RDWR);
    if (fd >= 0 && metas_read(fd, meta)) {
        // If this fails, the file keeps its length, and the rest still counts as used.
        (void)!ftruncate(fd, (off_t)meta_used_bytes(meta));
    }
    if (fd >= 0) {
        (void)close(fd); // an error loses nothing that is needed
    }
    return index_file_bytes(index_fd);
}

// Reads the child's verdict. Returns INDEX_VERDICT_BAD if the child died without one.
static enum index_verdict verdict_read(int fd)
{
    char verdict;
    ssize_t len;
    do {
        len = read(fd, &verdict, 1);
    } while (len < 0 && errno == EINTR);
    if (len != 1) {
        return INDEX_VERDICT_BAD;
    }
    return verdict == 'G'   ? INDEX_VERDICT_GOOD
           : verdict == 'P' ? INDEX_VERDICT_PARTLY
                            : INDEX_VERDICT_BAD;
}

enum index_verdict index_verify(const char *path, uint64_t map_bytes,
                                const uint8_t cache_id[CACHE_ID_LEN])
{
    int ends[2];
    check(map_bytes % PAGE_BYTES == 0);
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return INDEX_VERDICT_PARTLY;
    }
    pid_t pid = fork();
    if (pid < 0) {
        (void)close(ends[0]);
        (void)close(ends[1]);
        return INDEX_VERDICT_PARTLY;
    }
    if (pid == 0) {
        child_main(ends[1], path, map_bytes, cache_id);
    }
    (void)close(ends[1]);
    struct pollfd readable = {.fd = ends[0], .events = POLLIN};
    int ready = poll(&readable, 1, INDEX_VERIFY_WAIT_MS);
    enum index_verdict verdict = ready > 0 ? verdict_read(ends[0]) : INDEX_VERDICT_PARTLY;
    (void)kill(pid, SIGKILL); // after a timeout the child still runs, and may wait for a slow disk
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    (void)close(ends[0]); // closing a pipe loses nothing
    return verdict;
}
