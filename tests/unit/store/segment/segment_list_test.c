// SPDX-License-Identifier: Apache-2.0
// Proves: a segment's table lists the same runs as a scan. Without an intact table, the scan is
// used. Condemned runs stay condemned, whichever of the two is used after a crash.
#include "store/segment/segment_list.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stats/stats.h"
#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

#define SEGMENT (128u << 10)
#define OBJECTS 24u

static const uint64_t lens[] = {0, 900, 9000, 40000, 65000, 20000};

static struct object numbered(char key[16], unsigned i, uint64_t generation)
{
    (void)snprintf(key, 16, "key-%u", i);
    return (struct object){key, "\"e\"", lens[i % ARRAY_LEN(lens)], BLOCK, generation};
}

static bool box_filled(struct box *box, enum disk_engine engine)
{
    cr_assert(setenv("FOREBAY_SEGMENT_SIZE", "131072", 1) == 0);
    box_init(box, engine, 32 * MIB);
    box->options.block_size_bytes_max = BLOCK;
    if (!box_open(box)) {
        box_remove(box);
        return false;
    }
    char key[16];
    for (unsigned i = 0; i < OBJECTS; i++) {
        struct object object = numbered(key, i, store_generation_next(box->store));
        enum err err;
        wait_for(!box_has_no_segment(err = box_put(box, &object)));
        cr_assert(err == ERR_OK);
    }
    return true;
}

static unsigned right(struct box *box)
{
    char key[16];
    unsigned count = 0;
    for (unsigned i = 0; i < OBJECTS; i++) {
        struct object object = numbered(key, i, 1);
        count += box_read(box, 0, &object) == max_u64(1, object.size);
    }
    return count;
}

static bool is_built(struct box *box)
{
    struct store_summary summary;
    store_summarize(box->store, &summary);
    return !summary.rebuilding && atomic_load(&box->store->log.examined);
}

// Starts without an index: everything is found in segments.
static void reopen_rebuilt(struct box *box)
{
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s/index/data.mdb", box->dir);
    cr_assert(unlink(path) == 0);
    cr_assert(box_open(box));
    wait_for(is_built(box));
    (void)index_writer_flush(&box->store->writer);
}

struct listed {
    unsigned count, bad;
    uint64_t sum;
};

static bool on_row(void *ctx, const struct segment_row *row)
{
    struct listed *l = ctx;
    l->bad += row->is_bad;
    l->count += !row->is_bad;
    l->sum += row->is_bad ? 0
                          : row->hash.lo * 3 + row->generation * 5 + row->etag_hash * 7 +
                                row->header_offset * 11ull + row->payload_offset * 13ull +
                                row->block_count * 17ull + row->first_unit * 19ull;
    return true;
}

static void lists_are_equal(struct box *box)
{
    for (uint32_t i = 0; i <= box->store->log.table_mask; i++) {
        struct segment *segment = &box->store->log.table[i];
        uint32_t number = atomic_load(&segment->number);
        struct listed listed = {0}, scanned = {0};
        struct segment_scan_result result;
        uint64_t salt = 0;
        if (number != 0 && segment_pin(segment, number)) {
            cr_assert(segment_list(segment, on_row, &listed, &salt) == ERR_OK);
            cr_assert(segment_list_scan(segment, salt, on_row, &scanned, &result) == ERR_OK);
            cr_assert(listed.count == scanned.count && listed.bad == scanned.bad, "%u", number);
            cr_assert(listed.sum == scanned.sum, "%u", number);
            segment_unpin(segment);
        }
    }
}

static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};

Test(segment_list, memory_table_and_scan_say_the_same)
{
    for (unsigned e = 0; e < ARRAY_LEN(engines); e++) {
        struct box box;
        if (!box_filled(&box, engines[e])) {
            continue;
        }
        lists_are_equal(&box);
        box_close(&box);
        cr_assert(box_open(&box));
        wait_for(is_built(&box));
        uint64_t tables = stats_sum(COUNTER_segment_list_table);
        lists_are_equal(&box);
        cr_assert(stats_sum(COUNTER_segment_list_table) >= tables + 4);
        box_close(&box);
        box_remove(&box);
    }
}

Test(segment_list, an_index_is_rebuilt_from_tables_alone)
{
    for (unsigned e = 0; e < ARRAY_LEN(engines); e++) {
        struct box box;
        if (!box_filled(&box, engines[e])) {
            continue;
        }
        box_close(&box);
        uint64_t scans = stats_sum(COUNTER_segment_list_scan);
        uint64_t bytes = stats_sum(COUNTER_segment_list_bytes);
        reopen_rebuilt(&box);
        cr_assert_eq(stats_sum(COUNTER_segment_list_scan), scans);
        cr_assert(stats_sum(COUNTER_segment_list_bytes) - bytes <= 40ull * TABLE_PAGE_BYTES);
        cr_assert_eq(right(&box), OBJECTS);
        box_close(&box);
        box_remove(&box);
    }
}

// --- injuries

static unsigned each_segment(const struct box *box,
                             void (*fn)(int fd, unsigned at, const void *ctx), const void *ctx)
{
    unsigned count = 0;
    for (uint32_t number = 1; number < 200; number++) {
        char path[1024];
        char sector[SECTOR_SIZE];
        struct segment_seal seal;
        (void)snprintf(path, sizeof(path), "%s/segments/%08u.seg", box->dir, number);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0) {
            continue;
        }
        if (pread(fd, sector, sizeof(sector), SEGMENT_SEAL_OFFSET) == SECTOR_SIZE &&
            segment_seal_decode(sector, &seal) == ERR_OK) {
            fn(fd, count++, ctx);
        }
        (void)close(fd);
    }
    return count;
}

static void flip_table(int fd, unsigned at, const void *ctx)
{
    (void)ctx;
    char byte;
    off_t offset = SEGMENT - TABLE_PAGE_BYTES + (off_t)(at * 97 % SECTOR_SIZE);
    cr_assert(pread(fd, &byte, 1, offset) == 1);
    byte ^= (char)(1 << at % 8);
    cr_assert(pwrite(fd, &byte, 1, offset) == 1);
}

static void zero_table(int fd, unsigned at, const void *ctx)
{
    (void)at;
    (void)ctx;
    static const char nothing[TABLE_PAGE_BYTES];
    cr_assert(pwrite(fd, nothing, sizeof(nothing), SEGMENT - TABLE_PAGE_BYTES) ==
              (ssize_t)sizeof(nothing));
}

static void zero_seal(int fd, unsigned at, const void *ctx)
{
    (void)at;
    (void)ctx;
    static const char nothing[SECTOR_SIZE];
    cr_assert(pwrite(fd, nothing, sizeof(nothing), SEGMENT_SEAL_OFFSET) ==
              (ssize_t)sizeof(nothing));
}

// A seal without its table, a table flipped anywhere, a table without its seal.
Test(segment_list, a_scan_finds_the_runs_that_a_broken_table_lacks)
{
    static void (*const injure[])(int fd, unsigned at, const void *ctx) = {flip_table, zero_table,
                                                                           zero_seal};
    for (unsigned i = 0; i < ARRAY_LEN(injure); i++) {
        struct box box;
        if (!box_filled(&box, engines[i % 2])) {
            continue;
        }
        box_close(&box);
        unsigned sealed = each_segment(&box, injure[i], NULL);
        cr_assert(sealed >= 4);
        uint64_t bad = stats_sum(COUNTER_segment_tables_bad);
        uint64_t scans = stats_sum(COUNTER_segment_list_scan);
        reopen_rebuilt(&box);
        cr_assert_eq(stats_sum(COUNTER_segment_tables_bad) - bad,
                     injure[i] == zero_seal ? 0 : sealed);
        cr_assert_eq(stats_sum(COUNTER_segment_list_scan) - scans, sealed);
        cr_assert_eq(right(&box), OBJECTS);
        box_close(&box);
        box_remove(&box);
    }
}

// A child stores, closes cleanly, opens again, stores more and dies. So segments that continue hold
// tables of an earlier life.
Test(segment_list, a_segment_that_went_on_and_died_is_found_whole)
{
    for (unsigned e = 0; e < ARRAY_LEN(engines); e++) {
        struct box box;
        if (!box_filled(&box, engines[e])) {
            continue;
        }
        box_close(&box);
        char key[16];
        pid_t pid = fork();
        cr_assert(pid >= 0);
        if (pid == 0) {
            if (!box_open(&box)) {
                _exit(1);
            }
            struct object object = numbered(key, OBJECTS + 1, store_generation_next(box.store));
            (void)(box_put(&box, &object) == ERR_OK && raise(SIGKILL));
            _exit(1);
        }
        int status;
        cr_assert(waitpid(pid, &status, 0) == pid);
        cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        reopen_rebuilt(&box);
        cr_assert_eq(right(&box), OBJECTS);
        struct object object = numbered(key, OBJECTS + 1, 1);
        cr_assert(box_read(&box, 0, &object) == object.size);
        lists_are_equal(&box);
        box_close(&box);
        reopen_rebuilt(&box);
        cr_assert_eq(right(&box), OBJECTS);
        cr_assert(box_read(&box, 0, &object) == object.size);
        box_close(&box);
        box_remove(&box);
    }
}

// Random bytes follow the end of each segment that a child has left open. The segment is sealed as
// full, and the counted unused space is never more than there is.
Test(segment_list, a_segment_with_something_at_its_end_is_sealed_as_full)
{
    struct box box;
    cr_assert(box_filled(&box, DISK_ENGINE_THREADS));
    box_close(&box);
    char key[16];
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        struct object object = numbered(key, OBJECTS + 1, 100);
        (void)(box_open(&box) && box_put(&box, &object) == ERR_OK && raise(SIGKILL));
        _exit(1);
    }
    int status;
    cr_assert(waitpid(pid, &status, 0) == pid);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    for (uint32_t number = 1; number < 200; number++) {
        char path[1024], seal[SECTOR_SIZE];
        (void)snprintf(path, sizeof(path), "%s/segments/%08u.seg", box.dir, number);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        bool open_one =
            fd >= 0 && pread(fd, seal, sizeof(seal), SEGMENT_SEAL_OFFSET) > 0 && seal[0] == 0;
        cr_assert(!open_one || pwrite(fd, "torn", 4, SEGMENT - 100) == 4);
        (void)(fd >= 0 && close(fd));
    }
    uint64_t sealed = stats_sum(COUNTER_segment_sealed_bytes);
    uint64_t unused = stats_sum(COUNTER_segment_unused_bytes);
    reopen_rebuilt(&box);
    cr_assert_eq(right(&box), OBJECTS);
    box_close(&box);
    sealed = stats_sum(COUNTER_segment_sealed_bytes) - sealed;
    cr_assert(sealed > 0);
    cr_assert(stats_sum(COUNTER_segment_unused_bytes) - unused < sealed);
    reopen_rebuilt(&box);
    cr_assert_eq(right(&box), OBJECTS);
    lists_are_equal(&box);
    box_close(&box);
    box_remove(&box);
}

// --- marks

// Removes the keys that `format` says are condemned. So nothing but the marks says it.
static void forget_condemned(const struct box *box)
{
    struct store_dir dir;
    struct buf why;
    buf_init(&why, 4096);
    cr_assert(store_dir_open(&dir, box->dir, &why) == ERR_OK);
    cr_assert_eq(dir.format.state.count[STATE_CONDEMNED], 1);
    state_table_clear(&dir.format.state, STATE_CONDEMNED);
    cr_assert(store_dir_write_format(&dir) == ERR_OK);
    store_dir_close(&dir);
    buf_done(&why);
}

// Condemned while its segment is still being filled, or when it is sealed. Judged by the table,
// then by a scan.
Test(segment_list, condemned_runs_come_back_neither_by_table_nor_by_scan)
{
    for (unsigned i = 0; i < 8; i++) {
        bool reopen = (i & 1) != 0, by_scan = (i & 2) != 0, last = (i & 4) != 0;
        struct box box;
        if (!box_filled(&box, engines[i % 2])) {
            continue;
        }
        if (reopen) {
            box_close(&box);
            cr_assert(box_open(&box));
            wait_for(is_built(&box));
        }
        char key[16];
        struct object object = numbered(key, last ? OBJECTS - 1 : 2, 1);
        box_condemn(&box, object.key, NULL);
        cr_assert(box_post_delete(&box, object.key, UINT64_MAX >> 1) == ERR_OK);
        box_close(&box);
        if (by_scan) {
            (void)each_segment(&box, zero_table, NULL);
        }
        forget_condemned(&box);
        reopen_rebuilt(&box);
        cr_assert(box_read(&box, 0, &object) == 0, "%u", i);
        cr_assert_eq(right(&box), OBJECTS - 1, "%u", i);
        lists_are_equal(&box);
        box_close(&box);
        box_remove(&box);
    }
}

Test(segment_list, a_table_that_cannot_be_read_for_a_mark_gives_its_segment_up)
{
    struct box box;
    cr_assert(box_filled(&box, DISK_ENGINE_THREADS));
    box_close(&box);
    cr_assert(box_open(&box));
    wait_for(is_built(&box));
    char key[16];
    struct object object = numbered(key, 2, 1);
    store_fault_set(STORE_FAULT_TABLE, 1, true, EIO);
    box_condemn(&box, object.key, NULL);
    cr_assert(box_post_delete(&box, object.key, UINT64_MAX >> 1) == ERR_OK);
    store_fault_set(STORE_FAULT_TABLE, 0, false, 0);
    cr_assert(box_read(&box, 0, &object) == 0);
    box_close(&box);
    reopen_rebuilt(&box);
    cr_assert(box_read(&box, 0, &object) == 0);
    cr_assert(right(&box) < OBJECTS - 1, "what lay beside it went, too");
    box_close(&box);
    box_remove(&box);
}

// --- room

// The objects put into a cache of 256 MiB: of one size, or of sizes up to `bytes_max`.
struct sizes {
    uint64_t bytes, bytes_max;
    uint32_t block_bytes;
    unsigned objects;
    enum store_policy policy;
    bool are_long; // as few runs as there may be
};

static struct object sized(struct box *box, char key[16], const struct sizes *sizes, unsigned i)
{
    uint64_t more = sizes->bytes_max > sizes->bytes ? sizes->bytes_max - sizes->bytes : 0;
    (void)snprintf(key, 16, "key-%u", i);
    return (struct object){key, "\"e\"", sizes->bytes + more * (i * 37 % 100) / 100,
                           sizes->block_bytes, store_generation_next(box->store)};
}

static void put_all(struct box *box, const struct sizes *sizes)
{
    for (unsigned i = 0; i < sizes->objects; i++) {
        char key[16];
        struct object object = sized(box, key, sizes, i);
        enum err err;
        wait_for(!box_has_no_segment(err = box_put(box, &object)));
        cr_assert(err == ERR_OK);
    }
}

// Whole runs of neighbouring blocks fill a segment, and so do small objects. The rest of a segment
// that others leave is given back.
Test(segment_list, little_of_a_segment_is_unused_whatever_the_sizes)
{
    static const struct sizes cases[] = {
        {8 * MIB, 0, MIB, 4, STORE_POLICY_EPOCH, false},
        {MIB, 0, MIB, 24, STORE_POLICY_EPOCH, false},
        {3 * MIB, 0, BLOCK, 8, STORE_POLICY_EPOCH, false},
        {10240, 0, MIB, 1500, STORE_POLICY_EPOCH, false},
        {900000, 0, MIB, 24, STORE_POLICY_LRU, false},
        {540000, 1400000, MIB, 32, STORE_POLICY_LRU, false},
        {700000, 0, MIB, 32, STORE_POLICY_EPOCH, false},
        {3 * MIB, 0, MIB, 16, STORE_POLICY_EPOCH, true},
        {5 * MIB, 0, MIB, 16, STORE_POLICY_LRU, true},
        {4 * MIB, 0, BLOCK, 12, STORE_POLICY_EPOCH, true},
        {MIB, 6 * MIB, MIB, 24, STORE_POLICY_LRU, true},
    };
    for (unsigned c = 0; c < ARRAY_LEN(cases); c++) {
        struct box box;
        box_init(&box, engines[c % 2], 256 * MIB);
        box.options.policy = cases[c].policy;
        box.has_long_runs = cases[c].are_long;
        if (!box_open_workers(&box, 1)) {
            box_remove(&box);
            continue;
        }
        uint64_t sealed = stats_sum(COUNTER_segment_sealed_bytes);
        uint64_t unused = stats_sum(COUNTER_segment_unused_bytes);
        put_all(&box, &cases[c]);
        box_close(&box);
        sealed = stats_sum(COUNTER_segment_sealed_bytes) - sealed;
        unused = stats_sum(COUNTER_segment_unused_bytes) - unused;
        cr_assert(sealed >= 8 * MIB, "%llu", (unsigned long long)sealed);
        cr_assert(unused * 100 <= sealed * 3, "%u: %llu of %llu", c, (unsigned long long)unused,
                  (unsigned long long)sealed);
        box_remove(&box);
    }
}

// The space that is left over holds more segments. The counted size is never less than the real
// one, also after a restart, and every byte comes back.
Test(segment_list, room_that_went_back_holds_more)
{
    static const struct sizes sizes = {900000, 0, MIB, 250, STORE_POLICY_LRU, false};
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 256 * MIB);
    box.options.policy = sizes.policy;
    if (!box_open_workers(&box, 1)) {
        box_remove(&box);
        return;
    }
    uint64_t begun = stats_sum(COUNTER_segment_given_bytes);
    put_all(&box, &sizes);
    wait_for(box_is_sealed(&box));
    cr_assert(stats_sum(COUNTER_segment_given_bytes) > begun);
    for (unsigned i = 0; i < 60; i++) {
        char key[16];
        struct object object = sized(&box, key, &sizes, i);
        enum err err;
        wait_for(!box_has_no_segment(err = box_put(&box, &object)));
        cr_assert(err == ERR_OK);
        cr_assert(dir_bytes(box.dir) <= 256 * MIB, "%u", i);
    }
    wait_for(box_is_sealed(&box));
    uint64_t segments = atomic_load(&box.store->log.segment_count);
    cr_assert(segments > atomic_load(&box.store->log.segments_max), "%llu",
              (unsigned long long)segments);
    uint64_t used = atomic_load(&box.store->disk.used_bytes);
    cr_assert(dir_bytes(box.dir) <= used);
    box_close(&box);
    cr_assert(box_open_workers(&box, 1));
    cr_assert(dir_bytes(box.dir) <= atomic_load(&box.store->disk.used_bytes));
    cr_assert(atomic_load(&box.store->disk.used_bytes) <= 256 * MIB);
    cr_assert(atomic_load(&box.store->log.segment_count) + 2 >= segments);
    unsigned right_now = 0;
    for (unsigned i = 0; i < sizes.objects; i++) {
        char key[16];
        struct object object = sized(&box, key, &sizes, i);
        uint64_t got = box_read(&box, 0, &object);
        cr_assert(got == 0 || got == object.size);
        right_now += got != 0;
    }
    cr_assert(right_now >= 4 * (segments - 12), "%u", right_now);
    box_close(&box);
    box_remove(&box);
}

// Then it stays unused, and is counted.
Test(segment_list, a_file_system_without_holes_keeps_the_unused_rest)
{
    static const struct sizes sizes = {900000, 0, MIB, 24, STORE_POLICY_EPOCH, false};
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 256 * MIB);
    if (!box_open_workers(&box, 1)) {
        box_remove(&box);
        return;
    }
    uint64_t unused = stats_sum(COUNTER_segment_unused_bytes);
    uint64_t given = stats_sum(COUNTER_segment_given_bytes);
    store_fault_set(STORE_FAULT_TRIM, 1, true, EOPNOTSUPP);
    put_all(&box, &sizes);
    box_close(&box);
    store_fault_set(STORE_FAULT_TRIM, 0, false, 0);
    cr_assert_eq(stats_sum(COUNTER_segment_given_bytes), given);
    cr_assert(stats_sum(COUNTER_segment_unused_bytes) - unused > 2 * MIB);
    cr_assert(box_open_workers(&box, 1));
    cr_assert(dir_bytes(box.dir) <= atomic_load(&box.store->disk.used_bytes));
    box_close(&box);
    box_remove(&box);
}
