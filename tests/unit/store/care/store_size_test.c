// SPDX-License-Identifier: Apache-2.0
// Proves: the cache follows cache.size, cache.min_free and the free inodes while the store runs and
// other programs fill the file system. Nothing fails, and a file system that is nearly full is
// reported once.
#include "store/care/store_size.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

#include "base/clock.h"
#include "base/log.h"
#include "stats/stats.h"
#include "store/policy/policy_private.h"
#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

#define OBJECT_BYTES (1 * MIB)
#define OBJECTS_MAX 64u
#define AMPLE (1ull << 40)

// --- a file system whose size and inodes a test says

static struct {
    _Atomic(struct store *) store; // NULL: the real one
    _Atomic uint64_t size_bytes, others_bytes;
    _Atomic uint64_t inodes; // those of segments included
    atomic_bool is_full;     // the real one, of which others have everything
    atomic_uint looks;
} played;

int fstatvfs(int fd, struct statvfs *st)
{
    struct statfs real;
    struct store *store = atomic_load(&played.store);
    if (fstatfs(fd, &real) != 0) {
        return -1;
    }
    *st = (struct statvfs){
        .f_bsize = (unsigned long)real.f_bsize,
        .f_frsize = (unsigned long)(real.f_frsize != 0 ? real.f_frsize : real.f_bsize),
        .f_blocks = real.f_blocks,
        .f_bfree = real.f_bfree,
        .f_bavail = real.f_bavail,
        .f_files = real.f_files,
        .f_ffree = real.f_ffree,
        .f_favail = real.f_ffree,
    };
    if (atomic_load(&played.is_full)) {
        st->f_bavail = st->f_bfree = 0;
    }
    if (store != NULL) {
        uint64_t taken = atomic_load(&played.others_bytes) + atomic_load(&store->disk.used_bytes);
        uint64_t size = atomic_load(&played.size_bytes);
        uint64_t segments = atomic_load(&store->log.segment_count);
        uint64_t inodes = atomic_load(&played.inodes);
        st->f_frsize = 1;
        st->f_blocks = size;
        st->f_bavail = st->f_bfree = taken < size ? size - taken : 0;
        st->f_files = AMPLE;
        st->f_favail = st->f_ffree = segments < inodes ? inodes - segments : 0;
    }
    atomic_fetch_add(&played.looks, 1);
    return 0;
}

// The supply thread has gone by what is played now.
static void look(struct box *box)
{
    unsigned before = atomic_load(&played.looks);
    wait_for({
        segment_log_want(&box->store->log, false);
        atomic_load(&played.looks) > before + 20;
    });
}

static void play(struct box *box, uint64_t size_bytes)
{
    atomic_store(&played.size_bytes, size_bytes);
    atomic_store(&played.others_bytes, 0);
    atomic_store(&played.inodes, AMPLE);
    atomic_store(&played.store, box->store);
}

static void leave(struct box *box)
{
    atomic_store(&played.store, NULL);
    box_close(box);
    box_remove(box);
}

// --- what is held

struct held {
    struct object objects[OBJECTS_MAX];
    char keys[OBJECTS_MAX][32];
    unsigned count;
    uint64_t size; // 0: OBJECT_BYTES
};

// One more; false: there was no room for it.
static bool put_one(struct box *box, struct held *held)
{
    unsigned at = held->count % OBJECTS_MAX;
    (void)snprintf(held->keys[at], sizeof(held->keys[at]), "key-%u", held->count);
    held->objects[at] =
        (struct object){held->keys[at], "\"e\"", held->size != 0 ? held->size : OBJECT_BYTES, BLOCK,
                        store_generation_next(box->store)};
    enum err err = box_put(box, &held->objects[at]);
    cr_assert(err == ERR_OK || box_has_no_segment(err), "%s", error_name(err));
    held->count += err == ERR_OK;
    return err == ERR_OK;
}

static void put(struct box *box, struct held *held, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        wait_for(put_one(box, held));
    }
}

static unsigned whole(struct box *box, const struct held *held, unsigned newest)
{
    unsigned count = 0;
    for (unsigned i = 0; i < newest; i++) {
        const struct object *object = &held->objects[(held->count - 1 - i) % OBJECTS_MAX];
        count += box_read(box, 0, object) == object->size;
    }
    return count;
}

static uint64_t used(const struct box *box)
{
    return atomic_load(&box->store->disk.used_bytes);
}

// Returns the largest size since cache.size was set.
static uint64_t most(const struct box *box)
{
    struct store_summary summary;
    store_summarize(box->store, &summary);
    return summary.capacity_most_bytes;
}

static enum err resize(struct box *box, uint64_t size_bytes)
{
    struct store_limits limits = {.size_bytes = size_bytes, .headroom_percent = 10};
    struct buf why;
    buf_init(&why, 1000);
    enum err err = store_set_limits(box->store, &limits, &why);
    cr_assert((err == ERR_OK) == (why.len == 0), "%s", buf_cstr(&why));
    buf_done(&why);
    return err;
}

// --- another cache.size

static void smaller_and_larger(enum disk_engine engine)
{
    struct box box;
    struct held held = {.count = 0};
    box_init(&box, engine, 64 * MIB);
    if (!box_open(&box)) {
        box_remove(&box);
        return;
    }
    put(&box, &held, 40);
    uint64_t before = dir_bytes(box.dir);
    cr_assert(before > 40 * MIB);
    cr_assert(resize(&box, 20 * MIB) == ERR_OK);
    wait_for(atomic_load(&box.store->disk.capacity_bytes) == 20 * MIB);
    before = dir_bytes(box.dir);
    uint64_t now = before;
    wait_for({
        now = dir_bytes(box.dir);
        bool only_less = now <= before + box.store->index.step_bytes;
        before = now;
        cr_assert(only_less, "it grew to %llu", (unsigned long long)now);
        now <= 20 * MIB &&used(&box) <= 20 * MIB;
    });
    cr_assert(whole(&box, &held, 3) == 3, "the newest are kept");
    put(&box, &held, 20);
    cr_assert(dir_bytes(box.dir) <= 20 * MIB);
    cr_assert(resize(&box, 64 * MIB) == ERR_OK);
    wait_for(atomic_load(&box.store->disk.capacity_bytes) == 64 * MIB);
    put(&box, &held, 36);
    cr_assert(whole(&box, &held, 30) == 30, "it holds more again");
    cr_assert(dir_bytes(box.dir) <= 64 * MIB);
    cr_assert(disk_is_filling(&box.store->disk));
    leave(&box);
}

Test(store_size, a_running_cache_becomes_smaller_and_larger)
{
    smaller_and_larger(DISK_ENGINE_THREADS);
    smaller_and_larger(DISK_ENGINE_URING);
}

Test(store_size, a_size_that_does_not_work_is_refused)
{
    struct box box;
    struct held held = {.count = 0};
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    put(&box, &held, 10);
    cr_assert(resize(&box, 15 * MIB) == ERR_INVALID);
    look(&box);
    cr_assert(atomic_load(&box.store->disk.capacity_bytes) == 64 * MIB);
    cr_assert(whole(&box, &held, 10) == 10);
    leave(&box);
}

// There are more segments than entries in the table: the table's number counts.
Test(store_size, a_size_beyond_the_table_is_cut)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    cr_assert(resize(&box, 1ull << 50) == ERR_OK);
    wait_for(atomic_load(&box.store->disk.capacity_bytes) > 64 * MIB);
    uint64_t most = segment_log_most(&box.store->log);
    cr_assert(box.store->log.segments_max <= most);
    cr_assert(box.store->log.segments_max + 1 >= most);
    leave(&box);
}

// A small cache has fewer slots for workers, so the segments of the others can be evicted.
Test(store_size, a_small_cache_of_many_workers)
{
    struct box box;
    struct held held = {.count = 0};
    box_init(&box, DISK_ENGINE_THREADS, 256 * MIB);
    cr_assert(box_open_workers(&box, 6));
    unsigned slots = box.store->log.slot_count;
    cr_assert(slots > 2, "%u", slots);
    struct store_place places[6];
    for (unsigned i = 0; i < ARRAY_LEN(places); i++) { // each worker writes to a segment of its own
        (void)snprintf(held.keys[i], sizeof(held.keys[i]), "of-%u", i);
        struct object object = {held.keys[i], "\"e\"", 1000, BLOCK,
                                store_generation_next(box.store)};
        cr_assert(box_write(&box, i, &object, 0, 1, 1, &places[i]) == ERR_OK);
        box_let_go(&places[i]);
    }
    cr_assert(resize(&box, 16 * MIB) == ERR_OK);
    wait_for(used(&box) <= 16 * MIB && dir_bytes(box.dir) <= 16 * MIB);
    cr_assert(box.store->log.slot_count == 1);
    put(&box, &held, 12);
    cr_assert(whole(&box, &held, 3) == 3);
    leave(&box);
}

// A smaller size gives back the space that the index has allocated ahead. An index that is too
// large for the new size is rebuilt from nothing.
Test(store_size, an_index_that_is_too_large_is_rebuilt)
{
    struct box box;
    struct held held = {.count = 0};
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    put(&box, &held, 40);
    uint64_t more = 8 * MIB - atomic_load(&box.store->index.allocated_bytes);
    cr_assert(disk_space_reserve(&box.store->disk, more, 64 * MIB)); // as if it had grown
    atomic_fetch_add(&box.store->index.allocated_bytes, more);
    stats_add(COUNTER_index_bytes, more);
    cr_assert(resize(&box, 16 * MIB) == ERR_OK);
    wait_for(used(&box) <= 16 * MIB);
    wait_for(atomic_load(&box.store->index.allocated_bytes) < 2 * MIB);
    wait_for(!atomic_load(&box.store->recovery.is_rebuilding));
    put(&box, &held, 3);
    cr_assert(whole(&box, &held, 3) == 3);
    leave(&box);
}

Test(store_size, the_saved_policy_counts_against_the_size)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    box.options.policy = STORE_POLICY_EPOCH;
    cr_assert(box_open(&box));
    struct retention *retention = &box.store->retention;
    uint64_t saved = atomic_load(&retention->state_bytes);
    atomic_store(&retention->state_bytes, saved + 6 * MIB); // as if much were known
    cr_assert(resize(&box, 16 * MIB) == ERR_INVALID, "three segments would not fit");
    atomic_store(&retention->state_bytes, saved);
    cr_assert(resize(&box, 16 * MIB) == ERR_OK);
    leave(&box);
}

Test(store_size, the_policy_counts_by_the_new_size)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    box.options.policy = STORE_POLICY_EPOCH;
    cr_assert(box_open(&box));
    struct retention *retention = &box.store->retention;
    uint64_t counted = 0;
    cr_assert(resize(&box, 32 * MIB) == ERR_OK);
    wait_for({
        pthread_mutex_lock(&retention->lock);
        counted = retention->policy->clock.capacity_bytes;
        pthread_mutex_unlock(&retention->lock);
        counted < 32 * MIB;
    });
    cr_assert(counted == box.store->log.segments_max * box.store->log.segment_size_bytes);
    leave(&box);
}

// --- a share of the file system

Test(store_size, a_share_follows_the_file_system)
{
    struct box box;
    struct held held = {.count = 0};
    box_init(&box, DISK_ENGINE_THREADS, 128 * MIB); // until it can be played
    cr_assert(box_open(&box));
    play(&box, 128 * MIB);
    struct store_limits limits = {.size_percent = 50, .headroom_percent = 10};
    struct buf why;
    buf_init(&why, 1000);
    cr_assert(store_set_limits(box.store, &limits, &why) == ERR_OK);
    wait_for(atomic_load(&box.store->disk.capacity_bytes) / MIB == 63);
    put(&box, &held, 45);
    cr_assert(atomic_load(&box.store->disk.capacity_bytes) / MIB == 63,
              "what is ours changes nothing");
    atomic_store(&played.others_bytes, 64 * MIB);
    segment_log_want(&box.store->log, false);
    wait_for(used(&box) <= 32 * MIB && dir_bytes(box.dir) <= 32 * MIB);
    uint64_t half = atomic_load(&box.store->disk.capacity_bytes);
    cr_assert(half / MIB == 31);
    cr_assert(most(&box) / MIB == 63, "what it had is remembered");
    cr_assert(store_set_limits(box.store, &limits, &why) == ERR_OK);
    look(&box);
    cr_assert(most(&box) / MIB == 63, "a reload of other settings changes nothing");
    atomic_store(&played.others_bytes, 65 * MIB);
    look(&box);
    cr_assert(atomic_load(&box.store->disk.capacity_bytes) == half, "that comes and goes");
    atomic_store(&played.others_bytes, 0);
    segment_log_want(&box.store->log, false);
    wait_for(atomic_load(&box.store->disk.capacity_bytes) / MIB == 63);
    limits.size_percent = 1;
    cr_assert(store_set_limits(box.store, &limits, &why) == ERR_OK);
    buf_done(&why);
    wait_for(atomic_load(&box.store->disk.capacity_bytes) ==
             16 * MIB); // three segments are left it
    wait_for(most(&box) == 16 * MIB);
    leave(&box);
}

// The store starts all the same, and becomes a cache when others leave space.
Test(store_size, a_share_of_nothing_at_the_start)
{
    struct box box;
    struct held held = {.count = 0};
    box_init(&box, DISK_ENGINE_THREADS, 0);
    box.options.size_percent = 1;
    atomic_store(&played.is_full, true);
    cr_assert(box_open(&box));
    cr_assert(atomic_load(&box.store->disk.capacity_bytes) == 16 * MIB);
    cr_assert(!put_one(&box, &held));
    atomic_store(&played.is_full, false);
    segment_log_want(&box.store->log, false);
    put(&box, &held, 3);
    cr_assert(whole(&box, &held, 3) == 3);
    leave(&box);
}

// --- somebody else fills it

Test(store_size, space_that_is_to_stay_free_is_given_back)
{
    struct box box;
    struct held held = {.count = 0};
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    box.options.min_free_percent = 10;
    cr_assert(box_open(&box));
    play(&box, 200 * MIB);
    put(&box, &held, 40);
    uint64_t warnings = log_lines(LOG_LEVEL_WARN);
    uint64_t full = used(&box);
    atomic_store(&played.others_bytes, 200 * MIB - 30 * MIB); // 20 MiB of the rest are to stay free
    segment_log_want(&box.store->log, false);
    wait_for(used(&box) <= 10 * MIB);
    cr_assert(used(&box) + 3 * box.store->log.segment_cost_bytes > 10 * MIB,
              "no more than was asked for");
    wait_for(!disk_room_is_short(&box.store->disk, DISK_ROOM_OF_MIN_FREE));
    cr_assert(stats_sum(COUNTER_segments_given_back) > 0);
    cr_assert(disk_is_filling(&box.store->disk));
    for (unsigned i = 0; i < 20; i++) { // near it nothing is stored that would break it
        (void)put_one(&box, &held);
        cr_assert(used(&box) <= 10 * MIB);
    }
    cr_assert(log_lines(LOG_LEVEL_WARN) - warnings <= 1);
    atomic_store(&played.others_bytes, 0);
    put(&box, &held, 40);
    cr_assert(used(&box) > full - 8 * MIB);
    cr_assert(whole(&box, &held, 30) == 30);
    leave(&box);
}

// Down to nothing, if others need it.
Test(store_size, open_segments_are_given_back_if_others_need_all)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 256 * MIB);
    box.options.min_free_percent = 10;
    cr_assert(box_open_workers(&box, 4));
    play(&box, 300 * MIB);
    struct store_place place;
    for (unsigned i = 0; i < 4; i++) { // each worker writes to a segment of its own
        struct object object = {"open", "\"e\"", 1000, BLOCK, store_generation_next(box.store)};
        cr_assert(box_write(&box, i, &object, 0, 1, 1, &place) == ERR_OK);
        box_let_go(&place);
    }
    atomic_store(&played.others_bytes, 300 * MIB);
    segment_log_want(&box.store->log, false);
    wait_for(atomic_load(&box.store->log.segment_count) == 0);
    cr_assert(disk_is_filling(&box.store->disk));
    atomic_store(&played.others_bytes, 0);
    struct held held = {.count = 0};
    put(&box, &held, 8);
    cr_assert(whole(&box, &held, 8) == 8);
    leave(&box);
}

// A file system that ends before cache.size is a full cache like any other: as many segments are
// ready.
Test(store_size, a_file_system_smaller_than_the_cache)
{
    struct box box;
    struct held held = {.size = 3 * BLOCK};
    cr_assert(setenv("FOREBAY_SEGMENT_SIZE", "1048576", 1) == 0);
    box_init(&box, DISK_ENGINE_THREADS, 256 * MIB);
    box.options.block_size_bytes_max = BLOCK;
    cr_assert(box_open(&box));
    struct segment_log *log = &box.store->log;
    play(&box, 40 * MIB);
    uint64_t next = log->segment_cost_bytes + box.store->index.step_bytes;
    wait_for({
        (void)put_one(&box, &held);
        held.count > 20 && used(&box) + next > 40 * MIB;
    });
    put(&box, &held, 240); // uses the segments that were kept ready while there was room
    wait_for(atomic_load(&log->room) >= log->slot_count + 2);
    cr_assert(disk_is_filling(&box.store->disk));
    leave(&box);
}

static unsigned going_count(struct segment_log *log)
{
    pthread_mutex_lock(&log->guarded.lock);
    unsigned count = log->guarded.dying_count;
    pthread_mutex_unlock(&log->guarded.lock);
    return count;
}

// Most promises of long runs are not kept, because each request for an object of unknown length
// makes one. Promises evict nothing, however many there are. Room is made ahead only for runs that
// are really long.
Test(store_size, promises_drive_nothing_out)
{
    struct box box;
    struct held held = {.size = 3 * BLOCK};
    cr_assert(setenv("FOREBAY_SEGMENT_SIZE", "1048576", 1) == 0);
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    box.options.block_size_bytes_max = BLOCK;
    cr_assert(box_open_workers(&box, 1));
    struct segment_log *log = &box.store->log;
    play(&box, AMPLE);
    uint64_t freed = stats_sum(COUNTER_evicted_blocks_capacity);
    wait_for({
        (void)put_one(&box, &held);
        stats_sum(COUNTER_evicted_blocks_capacity) > freed;
    });
    wait_for(atomic_load(&log->room) >= log->slot_count + 2 && going_count(log) == 0);
    look(&box);
    unsigned made = atomic_load(&log->made);
    for (unsigned i = 0; i < 20; i++) {
        cr_assert(store_long_promise(box.store));
        look(&box);
        store_long_release(box.store);
        look(&box);
    }
    cr_assert_eq(atomic_load(&log->made), made);
    unsigned spare = atomic_load(&log->room);
    box.has_long_runs = true;
    held.size = 10 * BLOCK;
    wait_for(put_one(&box, &held));
    wait_for(atomic_load(&log->room) > spare);
    leave(&box);
}

Test(store_size, without_inodes_older_segments_make_room)
{
    struct box box;
    struct held held = {.count = 0};
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    play(&box, AMPLE);
    put(&box, &held, 12);
    uint64_t warnings = log_lines(LOG_LEVEL_WARN);
    unsigned inodes = atomic_load(&box.store->log.segment_count); // all are taken
    atomic_store(&played.inodes, inodes);
    for (unsigned i = 0; i < 20; i++) {
        wait_for({
            segment_log_want(&box.store->log, false);
            put_one(&box, &held);
        });
    }
    wait_for(atomic_load(&box.store->log.segment_count) <= inodes);
    cr_assert(whole(&box, &held, 3) == 3);
    cr_assert(disk_is_filling(&box.store->disk));
    atomic_store(&played.inodes, 0); // and then none at all, also of those that are given back
    for (unsigned i = 0; i < 20; i++) {
        (void)put_one(&box, &held);
    }
    cr_assert(log_lines(LOG_LEVEL_WARN) - warnings <= 1);
    for (unsigned i = 0; i < 10; i++) {
        clock_test_advance_us(6000000);
        look(&box);
        (void)put_one(&box, &held);
    }
    cr_assert(disk_is_filling(&box.store->disk));
    cr_assert(atomic_load(&box.store->log.segment_count) + 4 >= inodes,
              "not all of it goes for nothing");
    atomic_store(&played.inodes, AMPLE);
    clock_test_advance_us(6000000);
    put(&box, &held, 30);
    cr_assert(whole(&box, &held, 30) == 30);
    leave(&box);
}

// A quota, for example: the file system has space and refuses it. Open segments continue, and the
// store asks again.
Test(store_size, a_file_system_that_refuses_is_asked_again)
{
    struct box box;
    struct held held = {.count = 0};
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    put(&box, &held, 6);
    store_fault_set(STORE_FAULT_ALLOCATE, 1, true, EDQUOT);
    for (unsigned i = 0; i < 200 && put_one(&box, &held); i++) {
    }
    wait_for(disk_room_is_short(&box.store->disk, DISK_ROOM_OF_SPACE));
    cr_assert(disk_is_filling(&box.store->disk), "it is no failure");
    store_fault_set(STORE_FAULT_ALLOCATE, 0, false, 0);
    clock_test_advance_us(6000000);
    segment_log_want(&box.store->log, false);
    put(&box, &held, 20);
    wait_for(!disk_room_is_short(&box.store->disk, DISK_ROOM_OF_SPACE));
    leave(&box);
}

Test(store_size, a_file_system_that_refuses_costs_few_segments)
{
    struct box box;
    struct held held = {.count = 0};
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    put(&box, &held, 20);
    unsigned before = atomic_load(&box.store->log.segment_count);
    store_fault_set(STORE_FAULT_ALLOCATE, 1, true, EDQUOT);
    for (unsigned i = 0; i < 9; i++) {
        for (unsigned j = 0; j < 3; j++) {
            (void)put_one(&box, &held);
        }
        clock_test_advance_us(6000000);
        look(&box);
    }
    cr_assert(stats_sum(COUNTER_segments_refused) > 3, "it is asked again and again");
    cr_assert(atomic_load(&box.store->log.segment_count) + 3 >= before);
    store_fault_set(STORE_FAULT_ALLOCATE, 0, false, 0);
    clock_test_advance_us(6000000);
    segment_log_want(&box.store->log, false);
    put(&box, &held, 8);
    wait_for(!disk_room_is_short(&box.store->disk, DISK_ROOM_OF_SPACE));
    leave(&box);
}

// Under a quota, the index gets space before another segment does.
Test(store_size, an_index_that_is_refused_room_takes_that_of_a_segment)
{
    struct box box;
    struct held held = {.count = 0};
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    put(&box, &held, 30);
    cr_assert(index_writer_flush(&box.store->writer) == ERR_OK);
    struct index *index = &box.store->index;
    struct index_env *env = atomic_load(&index->current);
    uint64_t freed = stats_sum(COUNTER_evicted_bytes_capacity);
    // As if on the index writer, which is idle.
    store_fault_set(STORE_FAULT_ALLOCATE, 1, false, EDQUOT);
    cr_assert(index_grow(index, env, index->allocated_bytes + 1) == ERR_DISK_FULL);
    wait_for(stats_sum(COUNTER_evicted_bytes_capacity) > freed);
    wait_for(disk_room_is_short(&box.store->disk, DISK_ROOM_OF_SPACE));
    cr_assert(index_grow(index, env, index->allocated_bytes + 1) == ERR_OK);
    wait_for(!disk_room_is_short(&box.store->disk, DISK_ROOM_OF_SPACE));
    cr_assert(disk_is_filling(&box.store->disk));
    leave(&box);
}

// The store opens the index first. The supply thread then waits some seconds before it asks the
// disk for a segment.
Test(store_size, a_disk_that_refuses_the_index_at_the_start_is_named_at_once)
{
    struct box box;
    struct held held = {.count = 0};
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    store_fault_set(STORE_FAULT_ALLOCATE, 1, true, EDQUOT);
    cr_assert(box_open(&box));
    cr_assert(atomic_load(&box.store->disk.make_err) == ERR_DISK_FULL);
    struct object object = {"key", "\"e\"", OBJECT_BYTES, BLOCK, store_generation_next(box.store)};
    cr_assert(box_put(&box, &object) == ERR_DISK_FULL);
    store_fault_set(STORE_FAULT_ALLOCATE, 0, false, 0);
    clock_test_advance_us(6000000);
    segment_log_want(&box.store->log, false);
    put(&box, &held, 3);
    cr_assert(atomic_load(&box.store->disk.make_err) == ERR_OK);
    leave(&box);
}

// Otherwise, a process that restarts again and again would fill its cache with index space.
Test(store_size, a_start_adds_nothing_to_the_index)
{
    struct box box;
    struct held held = {.count = 0};
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    put(&box, &held, 6);
    uint64_t bytes = atomic_load(&box.store->index.allocated_bytes);
    for (unsigned i = 0; i < 6; i++) {
        box_close(&box);
        cr_assert(box_open(&box));
        cr_assert_eq(atomic_load(&box.store->index.allocated_bytes), bytes, "start %u", i);
    }
    put(&box, &held, 1);
    cr_assert(whole(&box, &held, 7) == 7);
    leave(&box);
}

// The store has not yet looked at the entries that were there at the start. Nothing breaks until it
// has.
Test(store_size, a_full_cache_that_has_just_started_is_not_degraded)
{
    struct box box;
    struct held held = {.count = 0};
    struct store_summary summary;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    atomic_store(&box.store->log.examined, false);
    for (unsigned i = 0; i < 200 && put_one(&box, &held); i++) {
    }
    play(&box, 1ull << 40);
    look(&box);
    store_summarize(box.store, &summary);
    cr_assert(!summary.degraded);
    atomic_store(&box.store->log.examined, true);
    put(&box, &held, 5);
    leave(&box);
}

// The rebuild of a large cache takes long.
Test(store_size, a_full_cache_stores_more_while_its_index_is_rebuilt)
{
    struct box box;
    struct held held = {.count = 0};
    struct store_summary summary;
    char path[1024];
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    put(&box, &held, 70);
    box_close(&box);
    (void)snprintf(path, sizeof(path), "%s/index/data.mdb", box.dir);
    cr_assert(unlink(path) == 0);
    store_fault_stall(STORE_FAULT_REBUILD, true);
    cr_assert(box_open(&box));
    store_fault_stall_reached(STORE_FAULT_REBUILD);
    put(&box, &held, 20);
    store_summarize(box.store, &summary);
    cr_assert(summary.rebuilding && !summary.degraded);
    cr_assert(whole(&box, &held, 20) == 20);
    cr_assert(dir_bytes(box.dir) <= 64 * MIB);
    store_fault_stall(STORE_FAULT_REBUILD, false);
    wait_for({
        store_summarize(box.store, &summary);
        !summary.rebuilding;
    });
    cr_assert(whole(&box, &held, 30) == 30, "and what was there before is found");
    leave(&box);
}

// Space that is not held is reported as reserved.
Test(store_size, runs_in_separate_slots_count_as_held)
{
    struct box box;
    // Large enough for slots apart: with fewer segments they are retired again.
    box_init(&box, DISK_ENGINE_THREADS, 128 * MIB);
    cr_assert(box_open(&box));
    uint64_t before = store_held_bytes(box.store);
    for (unsigned slot = 0; slot < SEGMENT_SLOTS_APART; slot++) {
        struct segment_want want = {.header_len = SECTOR_SIZE, .payload_len = MIB};
        struct segment_reservation reservation;
        enum err err;
        wait_for({
            err = segment_log_reserve_apart(&box.store->log, slot, &want, &reservation);
            err == ERR_OK;
        });
        cr_assert(store_held_bytes(box.store) > before + MIB);
        cr_assert(segment_log_shorten(&reservation, reservation.layout.start, 0));
        cr_assert(store_held_bytes(box.store) == before);
        segment_unhold(reservation.segment);
        segment_unpin(reservation.segment);
    }
    leave(&box);
}

// The file system has room for the segments in use and for no other. A block that finds room in
// none of them ends the one of its slot, which can then be evicted.
Test(store_size, a_large_block_where_each_segment_is_written_to)
{
    struct box box;
    const uint32_t block = 24 * BLOCK; // two find room in a segment
    char keys[18][16];
    box_init(&box, DISK_ENGINE_THREADS, 256 * MIB);
    box.options.block_size_bytes_max = block;
    box.options.min_free_percent = 10;
    cr_assert(box_open_workers(&box, 6));
    struct segment_log *log = &box.store->log;
    unsigned slots = log->slot_count;
    cr_assert_eq(slots, 6);
    play(&box, 300 * MIB);
    atomic_store(&played.others_bytes, 300 * MIB);
    segment_log_want(log, false);
    wait_for(atomic_load(&log->segment_count) == 0);
    uint64_t room = slots * log->segment_cost_bytes + log->segment_cost_bytes / 2;
    atomic_store(&played.others_bytes, 270 * MIB - used(&box) - box.store->index.step_bytes - room);
    for (unsigned i = 0; i < 3 * slots; i++) { // the third is the one
        (void)snprintf(keys[i], sizeof(keys[i]), "key-%u", i);
        struct object object = {keys[i], "\"e\"", block, block, store_generation_next(box.store)};
        struct store_place place;
        wait_for({
            segment_log_want(log, false);
            box_write(&box, i % slots, &object, 0, 1, 1, &place) == ERR_OK;
        });
        box_let_go(&place);
        cr_assert(atomic_load(&log->segment_count) <= slots);
    }
    leave(&box);
}
