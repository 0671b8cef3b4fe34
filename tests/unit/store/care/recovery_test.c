// SPDX-License-Identifier: Apache-2.0
// Proves: a start succeeds after anything: kill -9 at any moment, damaged indexes and segments,
// another cache's files. It never returns a wrong byte and never refuses to start. Complete objects
// are found again.
#include "store/care/recovery.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "seeds.h"
#include "stats/stats.h"
#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

static const uint64_t lens[] = {0, 900, 9000, 20000, 40000, 112000, 400000, 1100000};

static struct object numbered(char *key, size_t key_len, unsigned i, uint64_t generation)
{
    (void)snprintf(key, key_len, "key-%u", i);
    return (struct object){key, "\"e\"", lens[i % ARRAY_LEN(lens)], BLOCK, generation};
}

static bool is_built(void *ctx)
{
    struct box *box = ctx;
    struct store_summary summary;
    store_summarize(box->store, &summary);
    return !summary.rebuilding && atomic_load(&box->store->log.examined);
}

// Puts objects until it is killed. Writes the number of each visible object to the pipe.
static void __attribute__((noreturn)) writer_main(struct box *box, int out_fd, unsigned from)
{
    if (!box_open(box)) {
        _exit(1);
    }
    char key[32];
    for (unsigned i = from;; i++) {
        struct object object = numbered(key, sizeof(key), i, store_generation_next(box->store));
        enum err err = box_put(box, &object);
        if (err == ERR_OK && write(out_fd, &i, sizeof(i)) != sizeof(i)) {
            _exit(1);
        }
    }
}

static pid_t writer_start(struct box *box, unsigned from, int *ret_fd)
{
    int ends[2];
    cr_assert(pipe(ends) == 0);
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        (void)close(ends[0]);
        writer_main(box, ends[1], from);
    }
    (void)close(ends[1]);
    *ret_fd = ends[0];
    return pid;
}

static void kill_round(enum disk_engine engine, unsigned rounds)
{
    struct box box;
    box_init(&box, engine, 256 * MIB);
    if (!box_open(&box)) {
        box_remove(&box);
        return;
    }
    box_close(&box);
    bool *stored = calloc(100000, sizeof(*stored));
    unsigned next = 0;
    unsigned missing = 0, looked = 0;
    char key[32];
    for (unsigned round = 0; round < rounds; round++) {
        int fd;
        unsigned told = 0, first = next;
        pid_t pid = writer_start(&box, next, &fd);
        unsigned wanted = 1 + round * 7 % 23; // the kill comes while the next one is written
        while (told < wanted) {
            unsigned i;
            cr_assert(read(fd, &i, sizeof(i)) == sizeof(i));
            stored[i] = true;
            first = told == 0 ? i : first; // there was no room yet for earlier ones
            next = i + 2;
            told++;
        }
        cr_assert(kill(pid, SIGKILL) == 0);
        cr_assert(waitpid(pid, NULL, 0) == pid);
        unsigned i;
        while (read(fd, &i, sizeof(i)) == sizeof(i)) {
            stored[i] = true;
            next = i + 2;
        }
        (void)close(fd);
        uint64_t began_us = clock_monotonic_us();
        cr_assert(box_open(&box));
        struct object object = numbered(key, sizeof(key), first, 1);
        cr_assert(box_read(&box, 0, &object) == max_u64(1, object.size), "%u, round %u", first,
                  round);
        cr_log_info("first hit after %llu us",
                    (unsigned long long)(clock_monotonic_us() - began_us));
        for (unsigned k = round % 3; k < next; k += 3) {
            object = numbered(key, sizeof(key), k, 1);
            uint64_t good = box_read(&box, k % 2, &object);
            if (stored[k]) {
                looked++;
                missing += good != max_u64(1, object.size);
            }
        }
        box_close(&box);
    }
    cr_assert_eq(missing, 0u, "%u of %u", missing, looked);
    free(stored);
    box_remove(&box);
}

Test(recovery, visible_objects_survive_kill_9_at_any_moment, .timeout = 3600)
{
    for (unsigned left = seeds_scaled(500, 12); left > 0; left -= min_u64(left, 25)) {
        kill_round(DISK_ENGINE_THREADS, (unsigned)min_u64(left, 25)); // more would not fit
    }
    for (unsigned left = seeds_scaled(500, 6); left > 0; left -= min_u64(left, 25)) {
        kill_round(DISK_ENGINE_URING, (unsigned)min_u64(left, 25));
    }
}

Test(recovery, many_kills_do_not_use_the_cache_up)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    for (unsigned round = 0; round < 25; round++) {
        int fd;
        unsigned i;
        pid_t pid = writer_start(&box, round, &fd);
        cr_assert(read(fd, &i, sizeof(i)) == sizeof(i));
        cr_assert(kill(pid, SIGKILL) == 0);
        cr_assert(waitpid(pid, NULL, 0) == pid);
        (void)close(fd);
    }
    cr_assert(box_open(&box));
    wait_for(is_built(&box));
    cr_assert(atomic_load(&box.store->log.segment_count) <= 12, "%u segments",
              atomic_load(&box.store->log.segment_count));
    char key[32];
    struct object first = numbered(key, sizeof(key), 0, 1);
    cr_assert(box_read(&box, 0, &first) == max_u64(1, first.size));
    box_close(&box);
    box_remove(&box);
}

// --- runs that the index does not know

// A child writes runs, publishes none, and dies.
static void write_unpublished(struct box *box, unsigned count, bool abandon_last)
{
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        if (!box_open(box)) {
            _exit(1);
        }
        char key[32];
        for (unsigned i = 0; i < count; i++) {
            struct object object = numbered(key, sizeof(key), i, 0);
            struct store_place place;
            uint32_t blocks = (uint32_t)segment_run_object_blocks(object.size, BLOCK);
            if (i % 8 == 7 && abandon_last) { // announced, and no header
                (void)box_write(box, 0, &object, 0, blocks, 0, &place);
            } else if (box_write(box, 0, &object, 0, blocks, blocks, &place) != ERR_OK) {
                _exit(1);
            }
        }
        (void)raise(SIGKILL);
    }
    int status;
    cr_assert(waitpid(pid, &status, 0) == pid);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

Test(recovery, runs_written_whole_before_a_crash_are_put_back_to_be_revalidated)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    write_unpublished(&box, 24, true);
    cr_assert(box_open(&box));
    wait_for(is_built(&box));
    index_writer_flush(&box.store->writer);
    char key[32];
    for (unsigned i = 0; i < 24; i++) {
        struct object object = numbered(key, sizeof(key), i, 1);
        static struct store_view view;
        box_look(&box, &object, &view);
        if (i % 8 == 7) {
            cr_assert(!view.found, "%u", i);
            continue;
        }
        cr_assert(view.found && view.rebuilt && view.age_ms == UINT64_MAX, "%u", i);
        cr_assert(box_read(&box, 0, &object) == max_u64(1, object.size));
        box_renew(&box, key, view.generation);
        box_look(&box, &object, &view);
        cr_assert(view.found && !view.rebuilt && view.age_ms < 60000);
    }
    box_close(&box);
    cr_assert(box_open(&box));
    struct object object = numbered(key, sizeof(key), 1, 1);
    static struct store_view view;
    box_look(&box, &object, &view);
    cr_assert(view.found && !view.rebuilt);
    box_close(&box);
    box_remove(&box);
}

// A child cuts a run short, whose header the disk then refuses. It stores `behind`, and dies.
static void write_behind_a_failed_run(struct box *box, const struct object *behind)
{
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        struct object cut = {"cut", "\"e\"", 16 * BLOCK, BLOCK, 0};
        struct object whole = *behind;
        struct store_place place;
        if (!box_open(box)) {
            _exit(1);
        }
        disk_fault_set("write:3:eio"); // intent, payload, header
        cr_assert(box_write(box, 0, &cut, 0, 16, 4, &place) == ERR_IO);
        disk_fault_set("");
        atomic_store(&box->store->disk.filling_off_until_us, 0);
        whole.generation = store_generation_next(box->store);
        cr_assert(box_put(box, &whole) == ERR_OK);
        (void)raise(SIGKILL);
    }
    int status;
    cr_assert(waitpid(pid, &status, 0) == pid);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void failed_run(enum disk_engine engine)
{
    struct box box;
    box_init(&box, engine, 64 * MIB);
    if (!box_open(&box)) {
        box_remove(&box);
        return;
    }
    box_close(&box);
    struct object visible = {"visible", "\"e\"", 16 * BLOCK, BLOCK, 1}; // one run
    write_behind_a_failed_run(&box, &visible);
    cr_assert(box_open(&box));
    wait_for(is_built(&box));
    index_writer_flush(&box.store->writer);
    cr_assert(box_read(&box, 0, &visible) == visible.size); // and is verified from now on
    char key[32];
    for (unsigned i = 0; i < 16; i++) {
        (void)snprintf(key, sizeof(key), "later-%u", i);
        struct object later = {key, "\"e\"", 16 * BLOCK, BLOCK, store_generation_next(box.store)};
        cr_assert(box_put(&box, &later) == ERR_OK);
        uint64_t good = box_read(&box, 1, &visible);
        cr_assert(good == visible.size, "%u: %llu", i, (unsigned long long)good);
    }
    box_close(&box);
    box_remove(&box);
}

Test(recovery, nothing_is_written_over_a_run_after_one_that_was_cut_and_failed)
{
    failed_run(DISK_ENGINE_THREADS);
    failed_run(DISK_ENGINE_URING);
}

Test(recovery, nothing_is_written_to_a_segment_that_could_not_be_read_whole)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    struct object visible = {"visible", "\"e\"", 16 * BLOCK, BLOCK, 1};
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        cr_assert(box_open(&box));
        cr_assert(box_put(&box, &visible) == ERR_OK);
        (void)raise(SIGKILL);
    }
    cr_assert(waitpid(pid, NULL, 0) == pid);
    store_fault_set(STORE_FAULT_SCAN, 1, true, EIO); // the disk is better later
    cr_assert(box_open(&box));
    wait_for(is_built(&box));
    store_fault_set(STORE_FAULT_SCAN, 0, false, 0);
    cr_assert(box_read(&box, 0, &visible) == visible.size);
    char key[32];
    for (unsigned i = 0; i < 16; i++) {
        (void)snprintf(key, sizeof(key), "later-%u", i);
        struct object later = {key, "\"e\"", 16 * BLOCK, BLOCK, store_generation_next(box.store)};
        cr_assert(box_put(&box, &later) == ERR_OK);
        cr_assert(box_read(&box, 1, &visible) == visible.size, "%u", i);
    }
    box_close(&box);
    box_remove(&box);
}

// --- injuries

static void fill(struct box *box, unsigned count)
{
    char key[32];
    cr_assert(box_open(box));
    for (unsigned i = 0; i < count; i++) {
        struct object object = numbered(key, sizeof(key), i, store_generation_next(box->store));
        struct store_place place;
        uint32_t blocks = (uint32_t)segment_run_object_blocks(object.size, BLOCK);
        uint32_t first = blocks > 4 ? blocks / 2 : blocks; // some objects have two runs
        cr_assert(box_write(box, 0, &object, 0, first, first, &place) == ERR_OK);
        cr_assert(box_post_put(box, &object, &place) == ERR_OK);
        box_let_go(&place);
        if (first < blocks) {
            cr_assert(box_put_run(box, &object, first, blocks - first) == ERR_OK);
        }
    }
    box_close(box);
}

static unsigned count_right(struct box *box, unsigned count)
{
    char key[32];
    unsigned right = 0;
    for (unsigned i = 0; i < count; i++) {
        struct object object = numbered(key, sizeof(key), i, 1);
        uint64_t good = box_read(box, i % 2, &object);
        right += good == max_u64(1, object.size);
    }
    return right;
}

static char *slurp(const char *path, size_t *ret_len)
{
    FILE *file = fopen(path, "rb");
    cr_assert(file != NULL);
    cr_assert(fseek(file, 0, SEEK_END) == 0);
    long len = ftell(file);
    rewind(file);
    char *bytes = malloc((size_t)len + 1);
    cr_assert(fread(bytes, 1, (size_t)len, file) == (size_t)len);
    fclose(file);
    *ret_len = (size_t)len;
    return bytes;
}

static void spill(const char *path, const char *bytes, size_t len)
{
    FILE *file = fopen(path, "wb");
    cr_assert(file != NULL);
    cr_assert(len == 0 || fwrite(bytes, 1, len, file) == len);
    fclose(file);
}

static uint64_t dice_state = 4711;

static uint64_t dice(uint64_t below)
{
    dice_state = dice_state * 6364136223846793005u + 1442695040888963407u;
    return (dice_state >> 20) % below;
}

#ifdef FOREBAY_TSAN
#define INJURIES 52u // an order of magnitude slower
#else
#define INJURIES 208u
#endif

enum injury {
    REMOVED,
    EMPTY,
    CUT,
    CUT_TO_PAGES,
    ONE_BIT,
    MANY_BITS,
    SECTOR_ZEROED,
    PAGE_OVER_PAGE,
    META_NOISE,
    GARBAGE,
    OTHER_CACHE,
    FOLDER,
    GROWN,
    INJURY_COUNT
};

static void injure(const char *path, char *bytes, size_t len, enum injury injury, const char *other,
                   size_t other_len)
{
    size_t used = len < 262144 ? len : 262144; // where the records are
    switch (injury) {
    case REMOVED:
        cr_assert(unlink(path) == 0);
        return;
    case EMPTY:
        spill(path, "", 0);
        return;
    case CUT:
        spill(path, bytes, dice(used));
        return;
    case CUT_TO_PAGES:
        spill(path, bytes, dice(used / 4096) * 4096);
        return;
    case ONE_BIT:
        bytes[dice(used)] ^= (char)(1 << dice(8));
        break;
    case MANY_BITS:
        for (unsigned i = 0; i < 200; i++) {
            bytes[dice(used)] ^= (char)(1 << dice(8));
        }
        break;
    case SECTOR_ZEROED:
        memset(bytes + dice(used / 512) * 512, 0, 512);
        break;
    case PAGE_OVER_PAGE:
        memmove(bytes + dice(used / 4096) * 4096, bytes + dice(used / 4096) * 4096, 4096);
        break;
    case META_NOISE:
        for (unsigned i = 0; i < 8; i++) {
            bytes[dice(8192)] = (char)dice(256);
        }
        break;
    case GARBAGE:
        for (size_t i = 0; i < used; i++) {
            bytes[i] = (char)dice(256);
        }
        break;
    case OTHER_CACHE:
        spill(path, other, other_len);
        return;
    case FOLDER:
        cr_assert(unlink(path) == 0 && mkdir(path, 0700) == 0);
        return;
    case GROWN:
        spill(path, bytes, len);
        cr_assert(truncate(path, (off_t)len + 40960) == 0);
        return;
    case INJURY_COUNT:
        return;
    }
    spill(path, bytes, len);
}

Test(recovery, two_hundred_injured_indexes_start_normally_and_come_back_from_segments,
     .timeout = 280)
{
    enum { OBJECTS = 48 };
    struct box box, stranger;
    box_init(&stranger, DISK_ENGINE_THREADS, 32 * MIB);
    fill(&stranger, 20);
    box_init(&box, DISK_ENGINE_THREADS, 128 * MIB);
    fill(&box, OBJECTS);
    char path[1024], other_path[1024], format_path[1024];
    (void)snprintf(path, sizeof(path), "%s/index/data.mdb", box.dir);
    (void)snprintf(format_path, sizeof(format_path), "%s/format", box.dir);
    (void)snprintf(other_path, sizeof(other_path), "%s/index/data.mdb", stranger.dir);
    size_t len, other_len, format_len;
    char *pristine = slurp(path, &len);
    char *other = slurp(other_path, &other_len);
    char *format = slurp(format_path, &format_len);
    char *bytes = malloc(len);
    unsigned rebuilt = 0;
    for (unsigned i = 0; i < INJURIES; i++) {
        (void)unlink(path);
        (void)rmdir(path);
        memcpy(bytes, pristine, len);
        spill(path, pristine, len);
        enum injury injury = (enum injury)(i % INJURY_COUNT);
        injure(path, bytes, len, injury, other, other_len);
        cr_assert(box_open(&box));
        unsigned at_once = count_right(&box, OBJECTS); // judges bytes, whatever is there
        wait_for(atomic_load(&box.store->recovery.is_verified) && is_built(&box));
        index_writer_flush(&box.store->writer);
        unsigned right = count_right(&box, OBJECTS);
        // A flipped bit may stay hidden in one bad record. Everything that was found damaged comes
        // back whole.
        cr_assert(right >= (injury == ONE_BIT || injury == SECTOR_ZEROED ? OBJECTS - 3 : OBJECTS),
                  "injury %u: %u", injury, right);
        rebuilt += at_once < OBJECTS;
        box_close(&box);
        spill(format_path, format, format_len);
    }
    cr_log_info("%u were rebuilt behind serving", rebuilt);
    free(bytes);
    free(format);
    free(other);
    free(pristine);
    box_remove(&box);
    box_remove(&stranger);
}

// Every leaf with many rows says of itself what cannot be.
static void injure_leaves(char *bytes, size_t len)
{
    for (size_t at = 0; at + 4096 <= len; at += 4096) {
        if (wire_get_u16(bytes + at + 10) == 2 && wire_get_u16(bytes + at + 12) > 16 + 2 * 12) {
            wire_put_u16(bytes + at + 14, 0xf000);
        }
    }
}

// The index is too large for the child, so the pages that readers, writers and the round will use
// are not verified yet.
Test(recovery, injured_pages_that_were_not_verified_are_found_when_they_are_used, .timeout = 1800)
{
    enum { MANY_RUNS = 24 };
    unsigned objects = seeds_scaled(1500, 300);
    unsigned count = seeds_scaled(1000, 8);
    static const enum injury injuries[] = {ONE_BIT, MANY_BITS, SECTOR_ZEROED, PAGE_OVER_PAGE};
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 128 * MIB);
    cr_assert(box_open(&box));
    char key[32];
    for (unsigned i = 0; i < objects; i++) {
        (void)snprintf(key, sizeof(key), "small-%u", i);
        struct object object = {key, "\"e\"", 10, BLOCK, store_generation_next(box.store)};
        struct store_place place;
        cr_assert(box_write(&box, 0, &object, 0, 1, 1, &place) == ERR_OK);
        box_enter(&box, &object, &place);
        box_let_go(&place);
    }
    struct object large = {"large", "\"e\"", MANY_RUNS * (uint64_t)BLOCK, BLOCK,
                           store_generation_next(box.store)};
    for (unsigned i = 0; i < MANY_RUNS; i++) {
        cr_assert(box_put_run(&box, &large, i, 1) == ERR_OK);
    }
    box_close(&box);
    char path[1024], format_path[1024];
    (void)snprintf(path, sizeof(path), "%s/index/data.mdb", box.dir);
    (void)snprintf(format_path, sizeof(format_path), "%s/format", box.dir);
    size_t len, format_len;
    char *pristine = slurp(path, &len);
    char *format = slurp(format_path, &format_len);
    char *bytes = malloc(len);
    cr_assert(setenv("FOREBAY_INDEX_WALK_US", "0", 1) == 0);
    uint64_t found = stats_sum(COUNTER_index_injuries);
    for (unsigned i = 0; i < count; i++) {
        memcpy(bytes, pristine, len);
        if (i > 1) { // the first is as it was
            injure(path, bytes, len, injuries[i % ARRAY_LEN(injuries)], NULL, 0);
        } else {
            injure_leaves(bytes, i == 1 ? len : 0);
            spill(path, bytes, len);
        }
        store_fault_stall(STORE_FAULT_ROLL, i % 4 != 3); // mostly others come first
        cr_assert(box_open(&box));
        unsigned right = 0;
        for (unsigned k = 0; k < 64; k++) {
            (void)snprintf(key, sizeof(key), "small-%u", (unsigned)dice(objects));
            struct object object = {key, "\"e\"", 10, BLOCK, 1};
            if (k % 32 == 0) {
                (void)box_post_delete(&box, key, UINT64_MAX >> 1); // or it is dropped just now
            } else if (k == 1) {
                object.generation = store_generation_next(box.store);
                (void)box_put(&box, &object);
            }
            right += box_read(&box, k % 2, &object) > 0; // judges bytes
        }
        (void)box_read(&box, 0, &large);
        cr_assert(i > 0 || right >= 56, "%u", right);
        store_fault_stall(STORE_FAULT_ROLL, false);
        wait_for(atomic_load(&box.store->recovery.is_verified) && is_built(&box));
        box_close(&box);
        spill(format_path, format, format_len);
    }
    // Of a few, all may be such as a start sees.
    cr_assert(count < 100 || stats_sum(COUNTER_index_injuries) > found);
    cr_assert(unsetenv("FOREBAY_INDEX_WALK_US") == 0);
    free(bytes);
    free(format);
    free(pristine);
    box_remove(&box);
}

// The verification round finds index pages that the device cannot read any more, before a look-up
// gets SIGBUS.
Test(recovery, an_unreadable_index_is_rebuilt_while_serving)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    fill(&box, 16);
    cr_assert(box_open(&box));
    wait_for(atomic_load(&box.store->recovery.is_verified) && is_built(&box));
    uint64_t injuries = stats_sum(COUNTER_index_injuries);
    uint64_t rebuilds = stats_sum(COUNTER_index_rebuilds);
    uint64_t rounds = stats_sum(COUNTER_index_rounds);
    recovery_want_round(&box.store->recovery);
    wait_for(stats_sum(COUNTER_index_rounds) > rounds);
    cr_assert_eq(stats_sum(COUNTER_index_injuries), injuries);
    store_fault_set(STORE_FAULT_ROLL, 1, false, EIO);
    recovery_want_round(&box.store->recovery);
    wait_for(stats_sum(COUNTER_index_injuries) == injuries + 1);
    wait_for(stats_sum(COUNTER_index_rebuilds) == rebuilds + 1 && is_built(&box));
    cr_assert(index_writer_flush(&box.store->writer) == ERR_OK);
    cr_assert_eq(count_right(&box, 16), 16u);
    box_close(&box);
    box_remove(&box);
}

Test(recovery, an_old_copy_of_the_index_is_not_believed)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    fill(&box, 8);
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s/index/data.mdb", box.dir);
    size_t len;
    char *old = slurp(path, &len);
    cr_assert(box_open(&box));
    cr_assert(box_post_delete(&box, "key-1", UINT64_MAX) == ERR_OK);
    box_close(&box);
    spill(path, old, len);
    free(old);
    cr_assert(box_open(&box));
    wait_for(is_built(&box));
    index_writer_flush(&box.store->writer);
    char key[32];
    struct object object = numbered(key, sizeof(key), 1, 1);
    static struct store_view view;
    box_look(&box, &object, &view);
    cr_assert(!view.found || view.rebuilt); // a deleted copy comes back only to be revalidated
    box_close(&box);
    box_remove(&box);
}

Test(recovery, the_marker_of_a_failing_map_drops_the_index)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    fill(&box, 8);
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s/index/%s", box.dir, INDEX_BAD_MARKER);
    spill(path, "", 0);
    cr_assert(box_open(&box));
    wait_for(is_built(&box));
    index_writer_flush(&box.store->writer);
    cr_assert(count_right(&box, 8) == 8);
    cr_assert(access(path, F_OK) != 0);
    box_close(&box);
    box_remove(&box);
}

Test(recovery, a_map_that_fails_while_running_leaves_the_marker_and_ends_the_process)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    fill(&box, 8);
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        cr_assert(box_open(&box));
        char path[1024];
        (void)snprintf(path, sizeof(path), "%s/index/data.mdb", box.dir);
        cr_assert(truncate(path, 8192) == 0);
        (void)count_right(&box, 8);
        _exit(0);
    }
    int status;
    cr_assert(waitpid(pid, &status, 0) == pid);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 70, "status %x", status);
    cr_assert(box_open(&box));
    wait_for(is_built(&box));
    index_writer_flush(&box.store->writer);
    cr_assert(count_right(&box, 8) == 8);
    box_close(&box);
    box_remove(&box);
}

// A first request comes while a rebuild reads the segments. The runs that it stores, and the runs
// of the same version that are found before and after it, are one object.
Test(recovery, runs_stored_during_a_rebuild_join_the_runs_it_finds)
{
    struct object object = {"large", "\"e\"", 24ull * BLOCK, BLOCK, 5};
    struct object other = {"other", "\"e\"", 24ull * BLOCK, BLOCK, 6};
    for (unsigned before = 0; before < 2; before++) {
        struct box box;
        static struct store_view view;
        char path[1024];
        box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
        cr_assert(box_open(&box));
        for (unsigned run = 0; run < 3; run++) {
            cr_assert(box_put_run(&box, &object, run * 8, 8) == ERR_OK);
        }
        cr_assert(box_put(&box, &other) == ERR_OK);
        box_close(&box);
        (void)snprintf(path, sizeof(path), "%s/index/data.mdb", box.dir);
        cr_assert(unlink(path) == 0);
        store_fault_stall(STORE_FAULT_SCAN, before == 0);
        cr_assert(box_open(&box));
        if (before == 0) {
            store_fault_stall_reached(STORE_FAULT_SCAN);
            box_look(&box, &object, &view);
            cr_assert(!view.found && !view.unknown, "whatever comes back is confirmed first");
        } else {
            wait_for(is_built(&box));
        }
        object.generation = store_generation_next(box.store);
        other.generation = store_generation_next(box.store);
        (void)box_put_run(&box, &object, 8, 2); // of eight that are found together, which count
        other.etag = "\"f\"";
        cr_assert(box_put_run(&box, &other, 8, 8) == ERR_OK);
        store_fault_stall(STORE_FAULT_SCAN, false);
        wait_for(is_built(&box));
        index_writer_flush(&box.store->writer);
        box_look(&box, &object, &view);
        cr_assert(view.found && !view.rebuilt);
        cr_assert(box_read(&box, 0, &object) == object.size, "%u", before);
        cr_assert(box_read(&box, 0, &other) == 8ull * BLOCK, "of another version nothing");
        box_close(&box);
        cr_assert(box_open(&box));
        cr_assert(box_read(&box, 0, &object) == object.size, "%u", before);
        box_close(&box);
        box_remove(&box);
        object.generation = 5;
        other.generation = 6;
        other.etag = "\"e\"";
    }
}

Test(recovery, an_index_dropped_while_serving_comes_back)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    fill(&box, 16);
    cr_assert(box_open(&box));
    for (unsigned i = 0; i < 5; i++) {
        cr_assert(count_right(&box, 16) == 16);
        index_proof_failed(&box.store->index, atomic_load(&box.store->index.current), "test");
        (void)count_right(&box, 16); // judges
        wait_for(is_built(&box));
        index_writer_flush(&box.store->writer);
    }
    cr_assert(count_right(&box, 16) == 16);
    box_close(&box);
    box_remove(&box);
}

// --- segments

static unsigned segment_paths(const struct box *box, char paths[][1400], unsigned max)
{
    char folder_path[1024];
    (void)snprintf(folder_path, sizeof(folder_path), "%s/segments", box->dir);
    DIR *folder = opendir(folder_path);
    cr_assert(folder != NULL);
    unsigned count = 0;
    for (struct dirent *e = readdir(folder); e != NULL && count < max; e = readdir(folder)) {
        if (strstr(e->d_name, ".seg") != NULL) {
            (void)snprintf(paths[count++], 1400, "%s/%.255s", folder_path, e->d_name);
        }
    }
    closedir(folder);
    return count;
}

Test(recovery, flipped_bits_in_segments_are_found_and_cost_only_their_runs, .timeout = 3600)
{
    unsigned wanted = seeds_scaled(5000, 120);
    static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};
    for (unsigned e = 0; e < 2; e++) {
        struct box box;
        box_init(&box, engines[e], 64 * MIB);
        if (!box_open(&box)) {
            box_remove(&box);
            continue;
        }
        box_close(&box);
        static char paths[64][1400];
        unsigned count = 0;
        for (unsigned injuries = 0, round = 0; injuries < wanted; round++) {
            if (round % 20 == 0) { // most of it is lost by then
                fill(&box, 40);
                count = segment_paths(&box, paths, 64);
            }
            for (unsigned i = 0; i < count; i++) {
                injuries += 2;
                int fd = open(paths[i], O_RDWR | O_CLOEXEC);
                for (unsigned flips = 0; fd >= 0 && flips < 2; flips++) {
                    char byte;
                    off_t at = (off_t)dice(SEGMENT_SIZE_MIN);
                    cr_assert(pread(fd, &byte, 1, at) == 1);
                    byte ^= (char)(1 << dice(8));
                    cr_assert(pwrite(fd, &byte, 1, at) == 1);
                }
                if (fd >= 0) {
                    (void)close(fd);
                }
            }
            cr_assert(box_open(&box));
            (void)count_right(&box, 40); // judges every byte
            box_close(&box);
        }
        box_remove(&box);
    }
}

Test(recovery, strange_segments_are_ignored_or_dropped)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    fill(&box, 40);
    static char paths[64][1400];
    unsigned count = segment_paths(&box, paths, 64);
    cr_assert(count >= 3);
    char path[1200];
    cr_assert(truncate(paths[0], 1000000) == 0);
    cr_assert(unlink(paths[1]) == 0);
    (void)snprintf(path, sizeof(path), "%s/segments/99999990.seg", box.dir);
    spill(path, "noise", 5);
    (void)snprintf(path, sizeof(path), "%s/segments/99999991.seg", box.dir);
    cr_assert(mkdir(path, 0700) == 0);
    (void)snprintf(path, sizeof(path), "%s/segments/notes.txt", box.dir);
    spill(path, "hello", 5);
    cr_assert(box_open(&box));
    (void)count_right(&box, 40); // judges
    wait_for(is_built(&box));
    (void)count_right(&box, 40);
    char key[32];
    struct object object = numbered(key, sizeof(key), 5, store_generation_next(box.store));
    cr_assert(box_put(&box, &object) == ERR_OK);
    cr_assert(box_read(&box, 0, &object) == object.size);
    box_close(&box);
    box_remove(&box);
}

Test(recovery, swapped_segments_are_not_believed)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    fill(&box, 40);
    static char paths[64][1400];
    unsigned count = segment_paths(&box, paths, 64);
    cr_assert(count >= 2);
    size_t a_len, b_len;
    char *a = slurp(paths[0], &a_len);
    char *b = slurp(paths[1], &b_len);
    spill(paths[0], b, b_len);
    spill(paths[1], a, a_len);
    free(a);
    free(b);
    cr_assert(box_open(&box));
    (void)count_right(&box, 40); // judges
    wait_for(is_built(&box));
    (void)count_right(&box, 40);
    box_close(&box);
    box_remove(&box);
}
