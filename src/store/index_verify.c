// SPDX-License-Identifier: Apache-2.0
// LMDB survives a crash but not damage: a flipped bit or a cut file is a wrong answer, an abort or
// SIGBUS. So before we serve, a child looks through the file; if it dies, that is the verdict.
//
// The child: meta pages and tables open; the list of free pages (in range, none twice); then every
// record in order (keys ascend, checksums hold, counts agree), its page none of the free ones. A
// small index is through in the first 25 ms. A larger one gets 1,000 random descents, then word
// goes to the parent, and the walk goes on behind serving, in slices, since a view kept for long
// would stop pages from being used again.
#include "store/index_verify.h"

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
#include "base/random.h"

#define WALK_FIRST_US 25000u
#define DESCENTS 1000u
#define DESCENTS_US 20000u
#define SLICE 1000u
#define PAGE_BYTES 4096u
#define PAGES_MAX (1ull << 28) // 1 TiB of index
#define EXIT_BAD 3

struct walker {
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi tables[2]; // objects, places
    const char *map;
    uint64_t page_count, records, bad_records;
    uint8_t *free_pages; // bit per page; only while one view is walked
    uint64_t began_us;
    int out_fd;
};

static void __attribute__((noreturn)) walker_end(const struct walker *w, char verdict)
{
    (void)!write(w->out_fd, &verdict, 1); // the parent sees the exit too
    _exit(verdict == 'G' ? 0 : EXIT_BAD);
}

static void on_assert(MDB_env *env, const char *text)
{
    (void)env;
    (void)text;
    _exit(EXIT_BAD);
}

static bool page_mark_free(struct walker *w, uint64_t page)
{
    if (page < 2 || page >= w->page_count || (w->free_pages[page / 8] >> page % 8 & 1) != 0) {
        return false;
    }
    w->free_pages[page / 8] |= (uint8_t)(1u << page % 8);
    return true;
}

// LMDB's own table of free pages: table 0, values are a count and that many page numbers.
static bool walk_free_pages(struct walker *w)
{
    w->free_pages = calloc(w->page_count / 8 + 1, 1);
    MDB_cursor *cursor;
    if (w->free_pages == NULL || mdb_cursor_open(w->txn, 0, &cursor) != 0) {
        return false;
    }
    MDB_val key, value;
    bool good = true;
    int rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
    for (; rc == 0 && good; rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) {
        size_t count = 0;
        good = key.mv_size == sizeof(size_t) && value.mv_size >= sizeof(count);
        if (good) {
            memcpy(&count, value.mv_data, sizeof(count));
            good = count <= value.mv_size / sizeof(size_t) - 1;
        }
        for (size_t i = 0; i < count && good; i++) {
            size_t page;
            memcpy(&page, (const char *)value.mv_data + (i + 1) * sizeof(page), sizeof(page));
            good = page_mark_free(w, page);
        }
    }
    mdb_cursor_close(cursor);
    return good && rc == MDB_NOTFOUND;
}

static bool record_is_good(unsigned table, const MDB_val *key, const MDB_val *value)
{
    struct span bytes = {value->mv_data, value->mv_size};
    if (table == 0) {
        struct index_record record;
        return index_object_decode(index_object_key_parse(key->mv_data), bytes, &record);
    }
    uint64_t generation, first_block;
    struct hash128 owner;
    struct index_place place;
    index_place_key_parse(key->mv_data, &generation, &first_block);
    return index_place_decode(generation, first_block, bytes, &owner, &place);
}

// Does the page that holds this value say it is the one, and is it not in the list of free pages?
static bool page_is_used(const struct walker *w, const void *value)
{
    uint64_t page = (uint64_t)((const char *)value - w->map) / PAGE_BYTES;
    return page < w->page_count && page == index_page_of(value) &&
           (w->free_pages == NULL || (w->free_pages[page / 8] >> page % 8 & 1) == 0);
}

struct walk_at {
    char key[16];
    bool begun;
};

// Up to `max` records of a table from `at` on. *ret_end: the table is through.
static bool walk_table(struct walker *w, unsigned table, struct walk_at *at, uint64_t max,
                       uint64_t until_us, bool *ret_end)
{
    MDB_cursor *cursor;
    if (mdb_cursor_open(w->txn, w->tables[table], &cursor) != 0) {
        return false;
    }
    MDB_val key = {sizeof(at->key), at->key};
    MDB_val value;
    bool good = true;
    *ret_end = false;
    int rc = mdb_cursor_get(cursor, &key, &value, at->begun ? MDB_SET_RANGE : MDB_FIRST);
    for (uint64_t i = 0; rc == 0 && good && i < max; i++) {
        if (i % 64 == 0 && clock_monotonic_us() > until_us) {
            break;
        }
        good = key.mv_size == sizeof(at->key);
        if (!good) {
            break;
        }
        int order = at->begun ? memcmp(key.mv_data, at->key, sizeof(at->key)) : 1;
        good = order > 0 || (order == 0 && i == 0);
        good = good && page_is_used(w, value.mv_data);
        if (order > 0) {
            w->records++;
            w->bad_records += !record_is_good(table, &key, &value);
        }
        memcpy(at->key, key.mv_data, sizeof(at->key));
        at->begun = true;
        rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    mdb_cursor_close(cursor);
    *ret_end = rc == MDB_NOTFOUND;
    return good && (rc == 0 || rc == MDB_NOTFOUND);
}

static bool walker_open_tables(struct walker *w, const uint8_t *cache_id)
{
    MDB_dbi meta_table;
    struct index_meta meta;
    MDB_val key = {1, (void *)(uintptr_t) "m"};
    MDB_val value;
    if (mdb_dbi_open(w->txn, "objects", 0, &w->tables[0]) != 0 ||
        mdb_dbi_open(w->txn, "places", 0, &w->tables[1]) != 0 ||
        mdb_dbi_open(w->txn, "meta", 0, &meta_table) != 0 ||
        mdb_get(w->txn, meta_table, &key, &value) != 0 ||
        !index_meta_decode((struct span){value.mv_data, value.mv_size}, &meta) ||
        memcmp(meta.cache_id, cache_id, CACHE_ID_LEN) != 0) {
        return false;
    }
    w->map = index_map_of(value.mv_data);
    return true;
}

// The size counts from when the view was taken, or later: the parent may be writing by then.
static bool walker_count_pages(struct walker *w)
{
    MDB_envinfo info;
    if (mdb_env_info(w->env, &info) != 0) {
        return false;
    }
    w->page_count = info.me_last_pgno + 1;
    return w->page_count < PAGES_MAX;
}

static bool walker_open(struct walker *w, const char *path, uint64_t map_bytes,
                        const uint8_t *cache_id)
{
    if (mdb_env_create(&w->env) != 0 || mdb_env_set_mapsize(w->env, map_bytes) != 0 ||
        mdb_env_set_maxdbs(w->env, 3) != 0 || mdb_env_set_assert(w->env, on_assert) != 0 ||
        mdb_env_open(w->env, path, MDB_RDONLY | MDB_NOTLS | MDB_NORDAHEAD, 0600) != 0 ||
        mdb_txn_begin(w->env, NULL, MDB_RDONLY, &w->txn) != 0 || !walker_open_tables(w, cache_id)) {
        return false;
    }
    // Only what a transaction has committed, also one that reads, keeps its tables open for others.
    return mdb_txn_commit(w->txn) == 0 && mdb_txn_begin(w->env, NULL, MDB_RDONLY, &w->txn) == 0 &&
           walker_count_pages(w);
}

// Everything in one view, while the time lasts. *ret_end: all was seen.
static bool walk_whole(struct walker *w, bool *ret_end)
{
    *ret_end = false;
    for (unsigned table = 0; table < 2; table++) {
        struct walk_at at = {.begun = false};
        uint64_t before = w->records;
        if (!walk_table(w, table, &at, UINT64_MAX, w->began_us + WALK_FIRST_US, ret_end)) {
            return false;
        }
        if (!*ret_end) {
            return true;
        }
        MDB_stat stat;
        if (mdb_stat(w->txn, w->tables[table], &stat) != 0 ||
            stat.ms_entries != w->records - before) {
            return false;
        }
    }
    return true;
}

static bool walk_random(struct walker *w)
{
    uint64_t until_us = clock_monotonic_us() + DESCENTS_US;
    for (unsigned i = 0; i < DESCENTS && clock_monotonic_us() < until_us; i++) {
        struct walk_at at = {.begun = true};
        random_bytes(at.key, sizeof(at.key));
        MDB_cursor *cursor;
        MDB_val key = {sizeof(at.key), at.key};
        MDB_val value;
        if (mdb_cursor_open(w->txn, w->tables[0], &cursor) != 0) {
            return false;
        }
        int rc = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
        if (rc == 0 && key.mv_size == sizeof(at.key)) {
            w->records++;
            w->bad_records += !record_is_good(0, &key, &value);
        }
        mdb_cursor_close(cursor);
        if (rc != 0 && rc != MDB_NOTFOUND) {
            return false;
        }
    }
    return true;
}

static bool walk_slices(struct walker *w)
{
    w->records = w->bad_records = 0;
    for (unsigned table = 0; table < 2; table++) {
        struct walk_at at = {.begun = false};
        bool end = false;
        while (!end) {
            mdb_txn_reset(w->txn);
            if (mdb_txn_renew(w->txn) != 0 || !walker_count_pages(w)) {
                return false;
            }
            if (!walk_table(w, table, &at, SLICE, UINT64_MAX, &end)) {
                return false;
            }
        }
    }
    return true;
}

static bool records_are_good(const struct walker *w)
{
    return w->bad_records * 100 <= w->records;
}

static void __attribute__((noreturn))
child_main(int out_fd, const char *path, uint64_t map_bytes, const uint8_t *cache_id)
{
    // Nothing of the parent's may stay open here, its lock first of all.
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
        !walk_whole(&w, &end) || !records_are_good(&w)) {
        walker_end(&w, 'B');
    }
    if (end) {
        walker_end(&w, 'G');
    }
    free(w.free_pages);
    w.free_pages = NULL;
    if (!walk_random(&w) || !records_are_good(&w)) {
        walker_end(&w, 'B');
    }
    (void)!write(out_fd, "P", 1); // the parent sees the exit too
    (void)!nice(19);              // only politeness
    walker_end(&w, walk_slices(&w) && records_are_good(&w) ? 'G' : 'B');
}

// LMDB's meta page: 16 bytes of page header, magic, version, address, map size, two tables of 48
// bytes, last page, transaction. Its 64-bit form of version 1.
#define META_MAGIC 0xBEEFC0DEu
#define META_LAST_PAGE_AT 136u
#define META_TXN_AT 144u

// Bytes of the file that its newest meta page counts; 0: it is shorter, or no such file.
static uint64_t metas_used_bytes(int fd)
{
    char metas[2 * PAGE_BYTES];
    struct stat st;
    bool good = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
                pread(fd, metas, sizeof(metas), 0) == (ssize_t)sizeof(metas);
    if (!good) {
        return 0;
    }
    uint64_t last_page = 0;
    uint64_t txn = 0;
    for (unsigned i = 0; i < 2; i++) {
        const char *meta = metas + i * PAGE_BYTES;
        uint64_t its_txn, its_last;
        uint32_t magic;
        memcpy(&magic, meta + 16, sizeof(magic));
        memcpy(&its_txn, meta + META_TXN_AT, sizeof(its_txn));
        memcpy(&its_last, meta + META_LAST_PAGE_AT, sizeof(its_last));
        good = good && magic == META_MAGIC;
        if (its_txn >= txn) {
            txn = its_txn;
            last_page = its_last;
        }
    }
    good = good && last_page < PAGES_MAX && (uint64_t)st.st_size >= (last_page + 1) * PAGE_BYTES;
    return good ? (last_page + 1) * PAGE_BYTES : 0;
}

bool index_verify_size(int index_fd)
{
    int fd = openat(index_fd, "data.mdb", O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    uint64_t used = fd >= 0 ? metas_used_bytes(fd) : 0;
    if (fd >= 0) {
        (void)close(fd); // only read; nobody else has it open yet
    }
    return used > 0;
}

uint64_t index_file_bytes(int index_fd)
{
    struct stat st;
    if (fstatat(index_fd, "data.mdb", &st, AT_SYMLINK_NOFOLLOW) != 0) {
        return 0;
    }
    return max_u64((uint64_t)st.st_blocks * 512, (uint64_t)st.st_size);
}

uint64_t index_file_cut(int index_fd)
{
    int fd = openat(index_fd, "data.mdb", O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    uint64_t used = fd >= 0 ? metas_used_bytes(fd) : 0;
    if (used > 0) {
        (void)!ftruncate(fd, (off_t)used); // then it stays as long as it is, and is counted so
    }
    if (fd >= 0) {
        (void)close(fd); // nobody else has it open yet
    }
    return index_file_bytes(index_fd);
}

static void check_reap(struct index_verify *check_)
{
    while (waitpid(check_->pid, NULL, 0) < 0 && errno == EINTR) {
    }
    (void)close(check_->fd); // a pipe
    check_->pid = 0;
    check_->fd = -1;
}

// Next verdict; BAD when the child died.
static enum index_verdict check_read(const struct index_verify *check_)
{
    char verdict;
    ssize_t len;
    do {
        len = read(check_->fd, &verdict, 1);
    } while (len < 0 && errno == EINTR);
    if (len != 1) {
        return INDEX_VERDICT_BAD;
    }
    return verdict == 'G'   ? INDEX_VERDICT_GOOD
           : verdict == 'P' ? INDEX_VERDICT_PARTLY
                            : INDEX_VERDICT_BAD;
}

enum index_verdict index_verify_start(struct index_verify *check_, const char *path,
                                      uint64_t map_bytes, const uint8_t cache_id[CACHE_ID_LEN])
{
    *check_ = (struct index_verify){.fd = -1};
    int ends[2];
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
    check_->pid = pid;
    check_->fd = ends[0];
    struct pollfd readable = {.fd = ends[0], .events = POLLIN};
    int ready = poll(&readable, 1, INDEX_VERIFY_WAIT_MS);
    if (ready <= 0) {
        return INDEX_VERDICT_PARTLY; // slow: the last word comes later
    }
    enum index_verdict verdict = check_read(check_);
    if (verdict != INDEX_VERDICT_PARTLY) {
        check_reap(check_);
    }
    return verdict;
}

enum index_verdict index_verify_wait(struct index_verify *check_, int stop_fd)
{
    enum index_verdict verdict = INDEX_VERDICT_GOOD;
    if (check_->pid == 0) {
        return verdict;
    }
    do {
        struct pollfd readable[2] = {{.fd = check_->fd, .events = POLLIN},
                                     {.fd = stop_fd, .events = POLLIN}};
        (void)poll(readable, 2, -1); // an interruption looks again
        if (readable[1].revents != 0) {
            return INDEX_VERDICT_PARTLY;
        }
        verdict = readable[0].revents != 0 ? check_read(check_) : INDEX_VERDICT_PARTLY;
    } while (verdict == INDEX_VERDICT_PARTLY);
    check_reap(check_);
    return verdict;
}

void index_verify_stop(struct index_verify *check_)
{
    if (check_->pid != 0) {
        (void)kill(check_->pid, SIGKILL);
        check_reap(check_);
    }
}
