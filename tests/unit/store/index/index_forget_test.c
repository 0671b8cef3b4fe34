// SPDX-License-Identifier: Apache-2.0
// Proves: places of freed segments leave the index in the order of keys, in bounded slices, and
// each stays queued until it is removed. No thread that needs space waits for that.
#include "store/index/index_forget.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "stats/stats.h"
#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

static struct segment_removal *removals(unsigned count, uint64_t factor)
{
    struct segment_removal *some = calloc(count, sizeof(*some));
    for (unsigned i = 0; i < count; i++) {
        some[i].hash = (struct hash128){(i + 1) * factor % 1009, i};
    }
    return some;
}

Test(index_forget, slices_are_sorted_and_come_until_they_are_forgotten)
{
    struct index_forget forget;
    index_forget_init(&forget);
    cr_assert_eq(index_forget_take(&forget, 100), 0u);
    for (unsigned list = 0; list < 3; list++) {
        index_forget_add(&forget, removals(70, 577 + list), 70);
    }
    index_forget_add(&forget, NULL, 0);
    cr_assert_eq(atomic_load(&forget.waiting), 210u);
    static const unsigned expected[] = {100, 100, 10};
    for (unsigned slice = 0; slice < 3; slice++) {
        cr_assert_eq(index_forget_take(&forget, 100), expected[slice]);
        struct hash128 first = forget.slice[0].hash;
        for (unsigned i = 1; i < forget.slice_count; i++) {
            const struct hash128 *a = &forget.slice[i - 1].hash;
            const struct hash128 *b = &forget.slice[i].hash;
            cr_assert(a->hi < b->hi || (a->hi == b->hi && a->lo <= b->lo));
        }
        cr_assert_eq(index_forget_take(&forget, 100), expected[slice], "the same again");
        cr_assert(hash128_equal(first, forget.slice[0].hash));
        index_forget_forgotten(&forget, forget.slice_count);
    }
    cr_assert_eq(atomic_load(&forget.waiting), 0u);
    cr_assert_eq(index_forget_take(&forget, 100), 0u);
    index_forget_add(&forget, removals(5, 7), 5);
    index_forget_done(&forget);
}

Test(index_forget, more_than_the_most_is_taken_alone_and_waits_for_room)
{
    struct index_forget forget;
    index_forget_init(&forget);
    index_forget_add(&forget, removals(INDEX_FORGET_MAX + 7, 3), INDEX_FORGET_MAX + 7);
    cr_assert_eq(atomic_load(&forget.waiting), INDEX_FORGET_MAX + 7);
    cr_assert_eq(index_forget_take(&forget, 10), 10u);
    index_forget_forgotten(&forget, forget.slice_count);
    cr_assert_eq(atomic_load(&forget.waiting), INDEX_FORGET_MAX - 3);
    index_forget_add(&forget, removals(3, 3), 3);
    cr_assert_eq(atomic_load(&forget.waiting), INDEX_FORGET_MAX);
    index_forget_done(&forget);
}

// --- in a store

#define BYTES 65000u // one fills a segment of 128 KiB

static bool box_small_segments(struct box *box, enum disk_engine engine)
{
    cr_assert(setenv("FOREBAY_SEGMENT_SIZE", "131072", 1) == 0);
    box_init(box, engine, 16 * MIB);
    box->options.block_size_bytes_max = BLOCK;
    if (!box_open(box)) {
        box_remove(box);
        return false;
    }
    return true;
}

static void put(struct box *box, unsigned i)
{
    char key[16];
    (void)snprintf(key, sizeof(key), "key-%u", i);
    struct object object = {key, "\"e\"", BYTES, BLOCK, store_generation_next(box->store)};
    struct store_place place;
    enum err err;
    wait_for(!box_has_no_segment(err = box_write(box, i % 2, &object, 0, 1, 1, &place)));
    cr_assert(err == ERR_OK);
    box_enter(box, &object, &place);
    box_let_go(&place);
}

static bool is_found(struct box *box, unsigned i)
{
    char key[16];
    static struct store_view view;
    (void)snprintf(key, sizeof(key), "key-%u", i);
    struct object object = {key, "\"e\"", BYTES, BLOCK, 1};
    box_look(box, &object, &view);
    return view.found;
}

static void evict(enum disk_engine engine)
{
    struct box box;
    if (!box_small_segments(&box, engine)) {
        return;
    }
    uint64_t scans = stats_sum(COUNTER_segment_list_scan);
    uint64_t dropped = stats_sum(COUNTER_index_forgets_dropped);
    for (unsigned i = 0; i < 400; i++) { // more than three times what fits
        put(&box, i);
    }
    cr_assert(atomic_load(&box.store->disk.used_bytes) <= 16 * MIB);
    // The freeing thread may still have segments to list, so none of their places may be waiting
    // yet. A sealed segment gives back what it does not use, so there may be more than 128.
    wait_for(index_writer_flush(&box.store->writer) == ERR_OK &&
             atomic_load(&box.store->writer.forget.waiting) == 0 &&
             atomic_load(&box.store->index.objects) <= atomic_load(&box.store->log.segment_count));
    cr_assert(is_found(&box, 399));
    cr_assert(!is_found(&box, 0));
    cr_assert_eq(stats_sum(COUNTER_segment_list_scan), scans, "and nothing was read through");
    cr_assert_eq(stats_sum(COUNTER_index_forgets_dropped), dropped);
    box_close(&box);
    cr_assert_eq(stats_sum(COUNTER_index_forgets_waiting), 0u);
    box_remove(&box);
}

Test(index_forget, a_full_cache_forgets_the_runs_it_frees)
{
    evict(DISK_ENGINE_THREADS);
    evict(DISK_ENGINE_URING);
}

// A segment is evicted whose runs cannot be listed. A round through the index finds its entries.
Test(index_forget, runs_that_could_not_be_listed_are_found_on_a_round)
{
    static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};
    for (unsigned e = 0; e < ARRAY_LEN(engines); e++) {
        struct box box;
        if (!box_small_segments(&box, engines[e])) {
            continue;
        }
        for (unsigned i = 0; i < 20; i++) {
            put(&box, i);
        }
        box_close(&box); // rows are in tables from now on
        cr_assert(box_open(&box));
        struct index *index = &box.store->index;
        wait_for(atomic_load(&box.store->log.examined));
        cr_assert_eq(atomic_load(&index->objects), 20u);
        static struct store_view view;
        struct object object = {"key-3", "\"e\"", BYTES, BLOCK, 1};
        box_look(&box, &object, &view);
        cr_assert(view.found);
        uint64_t rounds = stats_sum(COUNTER_index_rounds);
        uint32_t number = 0;
        for (uint32_t i = 0; i <= box.store->log.table_mask && number == 0; i++) {
            number = box.store->log.table[i].state == SEGMENT_SEALED
                         ? atomic_load(&box.store->log.table[i].number)
                         : 0;
        }
        cr_assert(number != 0);
        store_fault_set(STORE_FAULT_OPEN, 1, true, EIO); // neither its table nor a scan
        while (segment_pool_yield(&box.store->log.pool)) {
        }
        segment_log_abandon(&box.store->log, segment_log_entry(&box.store->log, number));
        wait_for(segment_log_lacks(&box.store->log, number));
        store_fault_set(STORE_FAULT_OPEN, 0, false, 0);
        wait_for(stats_sum(COUNTER_index_rounds) > rounds);
        cr_assert(index_writer_flush(&box.store->writer) == ERR_OK);
        cr_assert_eq(atomic_load(&index->objects), 19u);
        box_close(&box);
        box_remove(&box);
    }
}

// The index writer is stalled in a commit. Segments whose runs it has entered earlier are freed all
// the same, and new runs find room.
Test(index_forget, space_is_freed_while_the_index_is_stalled)
{
    static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};
    for (unsigned e = 0; e < ARRAY_LEN(engines); e++) {
        struct box box;
        if (!box_small_segments(&box, engines[e])) {
            continue;
        }
        for (unsigned i = 0; i < 200; i++) {
            put(&box, i);
        }
        cr_assert(index_writer_flush(&box.store->writer) == ERR_OK);
        uint64_t freed = stats_sum(COUNTER_evicted_blocks_capacity);
        store_fault_stall(STORE_FAULT_COMMIT, true);
        put(&box, 200);
        store_fault_stall_reached(STORE_FAULT_COMMIT);
        for (unsigned i = 201; i < 280; i++) {
            put(&box, i);
        }
        cr_assert(stats_sum(COUNTER_evicted_blocks_capacity) >= freed + 20);
        cr_assert(atomic_load(&box.store->disk.used_bytes) <= 16 * MIB);
        store_fault_stall(STORE_FAULT_COMMIT, false);
        cr_assert(index_writer_flush(&box.store->writer) == ERR_OK);
        cr_assert(is_found(&box, 279));
        box_close(&box);
        box_remove(&box);
    }
}

// The index has no room for a slice. Other puts and deletes are committed all the same, and the
// slice follows when there is room.
Test(index_forget, nothing_fails_for_want_of_room_to_forget)
{
    static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};
    for (unsigned e = 0; e < ARRAY_LEN(engines); e++) {
        struct box box;
        if (!box_small_segments(&box, engines[e])) {
            continue;
        }
        struct store *store = box.store;
        for (unsigned i = 0; i < 20; i++) {
            put(&box, i);
            cr_assert(index_writer_flush(&store->writer) == ERR_OK);
        }
        uint64_t taken = 0, part = 4096;
        while (disk_space_reserve(&store->disk, part, store->disk.capacity_bytes)) {
            taken += part;
        }
        uint64_t failures = stats_sum(COUNTER_index_commit_failures);
        index_writer_forget(&store->writer, removals(6000, 3), 6000);
        put(&box, 20);
        cr_assert(index_writer_flush(&store->writer) == ERR_OK);
        cr_assert(box_post_delete(&box, "key-3", UINT64_MAX >> 1) == ERR_OK);
        cr_assert_eq(stats_sum(COUNTER_index_commit_failures), failures);
        cr_assert(disk_is_filling(&store->disk));
        cr_assert(is_found(&box, 20) && !is_found(&box, 3));
        disk_space_give(&store->disk, taken);
        wait_for(atomic_load(&store->writer.forget.waiting) == 0);
        box_close(&box);
        box_remove(&box);
    }
}

// The queue is full and the disk takes no commits: a stop does not wait for each segment that is
// freed.
Test(index_forget, a_stop_does_not_wait_for_room)
{
    struct box box;
    cr_assert(box_small_segments(&box, DISK_ENGINE_THREADS));
    struct segment_log *log = &box.store->log;
    for (unsigned i = 0; i < 20; i++) {
        put(&box, i);
    }
    cr_assert(index_writer_flush(&box.store->writer) == ERR_OK);
    uint64_t dropped = stats_sum(COUNTER_index_forgets_dropped);
    store_fault_set(STORE_FAULT_COMMIT, 1, true, EIO);
    index_writer_forget(&box.store->writer, removals(INDEX_FORGET_MAX, 3), INDEX_FORGET_MAX);
    for (uint32_t number = 1; number <= 3; number++) {
        segment_log_abandon(log, segment_log_entry(log, number));
    }
    box_close(&box);
    cr_assert_eq(stats_sum(COUNTER_index_forgets_dropped), dropped, "nobody waited in vain");
    cr_assert_eq(stats_sum(COUNTER_index_forgets_waiting), 0u);
    store_fault_set(STORE_FAULT_COMMIT, 0, false, 0);
    box_remove(&box);
}

// The thread that frees segments has waited in vain once. It does not wait again for each segment.
Test(index_forget, no_thread_waits_twice_for_a_disk_that_takes_no_commits)
{
    struct index_forget forget;
    index_forget_init(&forget);
    index_forget_add(&forget, removals(INDEX_FORGET_MAX, 3), INDEX_FORGET_MAX);
    forget.guarded.is_stuck = true; // as after the first wait
    uint64_t dropped = stats_sum(COUNTER_index_forgets_dropped);
    for (unsigned i = 0; i < 12; i++) {
        index_forget_add(&forget, removals(10, 4), 10);
    }
    cr_assert_eq(stats_sum(COUNTER_index_forgets_dropped), dropped + 120);
    cr_assert(index_forget_take(&forget, 100) == 100);
    index_forget_forgotten(&forget, forget.slice_count);
    index_forget_add(&forget, removals(100, 5), 100);
    cr_assert_eq(stats_sum(COUNTER_index_forgets_dropped), dropped + 120, "there is room again");
    index_forget_done(&forget);
}

static bool is_built(struct box *box)
{
    struct store_summary summary;
    store_summarize(box->store, &summary);
    return !summary.rebuilding && atomic_load(&box->store->log.examined);
}

// A rebuild has found a version in segments. Then its segment is freed before the index has
// forgotten it. A part that is fetched again counts.
Test(index_forget, a_refetched_part_counts_before_the_old_one_is_forgotten)
{
    struct box box;
    char path[1024];
    (void)unsetenv("FOREBAY_SEGMENT_SIZE");
    struct object object = {"large", "\"e\"", 3ull * BLOCK, BLOCK, 5};
    box_init(&box, DISK_ENGINE_THREADS, 32 * MIB);
    cr_assert(box_open(&box));
    cr_assert(box_put(&box, &object) == ERR_OK);
    box_close(&box);
    (void)snprintf(path, sizeof(path), "%s/index/data.mdb", box.dir);
    cr_assert(unlink(path) == 0);
    cr_assert(box_open(&box));
    wait_for(is_built(&box));
    cr_assert(box_read(&box, 0, &object) == object.size);
    box_close(&box);
    for (unsigned number = 1; number < 20; number++) {
        (void)snprintf(path, sizeof(path), "%s/segments/%08u.seg", box.dir, number);
        (void)unlink(path); // some are not there
    }
    cr_assert(box_open(&box));
    wait_for(is_built(&box));
    object.generation = store_generation_next(box.store);
    cr_assert(box_put_run(&box, &object, 0, 1) == ERR_OK);
    cr_assert(box_read(&box, 0, &object) == BLOCK);
    box_close(&box);
    box_remove(&box);
}
