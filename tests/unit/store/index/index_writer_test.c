// SPDX-License-Identifier: Apache-2.0
// Proves when a batch is taken, how long its transactions last, and how much room it asks for: a
// full cache loses neither segments nor runs because of its index.
#include "store/index/index_writer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "stats/stats.h"
#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

static bool box_begin(struct box *box, enum disk_engine engine)
{
    cr_assert(setenv("FOREBAY_SEGMENT_SIZE", "524288", 1) == 0);
    box_init(box, engine, 16 * MIB);
    box->options.block_size_bytes_max = BLOCK;
    box->options.policy = STORE_POLICY_LRU;
    if (!box_open(box)) {
        box_remove(box);
        return false;
    }
    return true;
}

static void put(struct box *box, unsigned i, uint64_t size)
{
    char key[16];
    (void)snprintf(key, sizeof(key), "key-%u", i);
    struct object object = {key, "\"e\"", size, BLOCK, store_generation_next(box->store)};
    struct store_place place;
    enum err err;
    wait_for(!box_has_no_segment(err = box_write(box, 0, &object, 0, 1, 1, &place)));
    cr_assert(err == ERR_OK);
    box_enter(box, &object, &place);
    box_let_go(&place);
}

static bool is_found(struct box *box, unsigned i)
{
    char key[16];
    static struct store_view view;
    (void)snprintf(key, sizeof(key), "key-%u", i);
    struct object object = {key, "\"e\"", BLOCK, BLOCK, 0};
    box_look(box, &object, &view);
    return view.found;
}

// A run cannot be evicted until it is durable. If every batch lingered, much of a small cache could
// not be evicted, and the rest would be emptied instead.
Test(index_writer, a_batch_that_is_much_of_the_cache_is_taken_at_once)
{
    static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};
    for (unsigned e = 0; e < ARRAY_LEN(engines); e++) {
        struct box box;
        if (!box_begin(&box, engines[e])) {
            continue;
        }
        struct index_memory *memory = &box.store->index.memory;
        uint64_t heavy = stats_sum(COUNTER_index_batches_heavy);
        for (unsigned i = 0; i < 2; i++) { // too little: it lingers
            put(&box, i, BLOCK);
        }
        wait_for(atomic_load(&memory->pending) == 0);
        cr_assert_eq(stats_sum(COUNTER_index_batches_heavy), heavy);
        store_fault_stall(STORE_FAULT_COMMIT, true);
        put(&box, 2, BLOCK);
        store_fault_stall_reached(STORE_FAULT_COMMIT);
        unsigned count = 3;
        while (atomic_load(&memory->pending_bytes) <=
               box.store->disk.segment_limit_bytes / 16 + BLOCK) {
            put(&box, count++, BLOCK);
        }
        cr_assert_leq((uint64_t)count * BLOCK, box.store->disk.capacity_bytes / 16 + 4 * BLOCK);
        store_fault_stall(STORE_FAULT_COMMIT, false);
        wait_for(atomic_load(&memory->pending) == 0);
        cr_assert_eq(stats_sum(COUNTER_index_batches_heavy), heavy + 1);
        for (unsigned i = 0; i < count; i++) {
            cr_assert(is_found(&box, i), "%u", i);
        }
        box_close(&box);
        box_remove(&box);
    }
}

// Puts `count` objects while a commit is stalled: they are the next batch.
static void put_batch(struct box *box, unsigned count)
{
    store_fault_stall(STORE_FAULT_COMMIT, true);
    put(box, 1000, 100);
    store_fault_stall_reached(STORE_FAULT_COMMIT);
    for (unsigned i = 0; i < count; i++) {
        put(box, i, 100);
    }
}

static unsigned found_of(struct box *box, unsigned count)
{
    unsigned found = 0;
    for (unsigned i = 0; i < count; i++) {
        found += is_found(box, i);
    }
    return found;
}

Test(index_writer, a_transaction_that_takes_long_is_cut)
{
    static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};
    for (unsigned e = 0; e < ARRAY_LEN(engines); e++) {
        struct box box;
        if (!box_begin(&box, engines[e])) {
            continue;
        }
        struct index_writer *writer = &box.store->writer;
        uint64_t cut = stats_sum(COUNTER_index_batches_cut);
        writer->txn_cpu_us = 0;
        put_batch(&box, 200);
        struct segment_removal *removals = calloc(50, sizeof(*removals));
        cr_assert(removals != NULL);
        index_writer_forget(writer, removals, 50);
        store_fault_stall(STORE_FAULT_COMMIT, false);
        cr_assert(index_writer_flush(writer) == ERR_OK); // all of its batch is committed
        cr_assert_eq(atomic_load(&box.store->index.memory.pending), 0u);
        cr_assert_geq(stats_sum(COUNTER_index_batches_cut), cut + 200 / 16);
        wait_for(atomic_load(&writer->forget.waiting) == 0);
        cr_assert_eq(found_of(&box, 200), 200u);
        box_close(&box);
        cr_assert(box_open(&box));
        cr_assert_eq(found_of(&box, 200), 200u);
        box_close(&box);
        box_remove(&box);
    }
}

// The changes of its first transactions stay. The rest is as if it had never been put, and a caller
// that waits for all of the batch gets an error.
Test(index_writer, of_a_batch_that_fails_in_its_middle_the_first_part_stays)
{
    struct box box;
    cr_assert(box_begin(&box, DISK_ENGINE_THREADS));
    struct index_writer *writer = &box.store->writer;
    uint64_t failures = stats_sum(COUNTER_index_commit_failures);
    writer->txn_cpu_us = 0;
    put_batch(&box, 100);
    store_fault_set(STORE_FAULT_COMMIT, 4, false, ENOSPC); // the stalled one, two, and the third
    store_fault_stall(STORE_FAULT_COMMIT, false);
    wait_for(stats_sum(COUNTER_index_commit_failures) == failures + 1);
    wait_for(atomic_load(&box.store->index.memory.pending) == 0); // nothing is left to write
    cr_assert_eq(found_of(&box, 100), 32u);
    box_close(&box);
    cr_assert(box_open(&box));
    cr_assert_eq(found_of(&box, 100), 32u);
    box_close(&box);
    box_remove(&box);
}

// A few hundred small objects are replaced again and again, in the largest batches. The file grows
// by the size of their pages, not by a page for each object.
Test(index_writer, the_file_of_a_small_index_stays_small)
{
    struct box box;
    cr_assert(box_begin(&box, DISK_ENGINE_THREADS));
    for (unsigned round = 0; round < 4; round++) {
        store_fault_stall(STORE_FAULT_COMMIT, true);
        put(&box, 1000, 100);
        store_fault_stall_reached(STORE_FAULT_COMMIT);
        for (unsigned i = 0; i < 400; i++) {
            put(&box, i, 100);
        }
        struct segment_removal *removals = calloc(800, sizeof(*removals));
        cr_assert(removals != NULL);
        for (unsigned i = 0; i < 800; i++) {
            removals[i].hash = (struct hash128){i * 0x9e3779b97f4a7c15u, i};
        }
        index_writer_forget(&box.store->writer, removals, 800);
        store_fault_stall(STORE_FAULT_COMMIT, false);
        cr_assert(index_writer_flush(&box.store->writer) == ERR_OK);
        wait_for(atomic_load(&box.store->writer.forget.waiting) == 0);
    }
    uint64_t bytes = atomic_load(&box.store->index.allocated_bytes);
    cr_assert_leq(bytes, 3 * MIB / 2, "%llu", (unsigned long long)bytes);
    char path[600];
    struct stat st;
    (void)snprintf(path, sizeof(path), "%s/index/data.mdb", box.dir);
    cr_assert(stat(path, &st) == 0 && (uint64_t)st.st_size <= bytes); // LMDB never grew it itself
    box_close(&box);
    box_remove(&box);
}

// Many waiting renewals are due at once, but not while the disk refuses commits.
Test(index_writer, many_renewals_wait_before_they_retry_a_failed_commit)
{
    static struct store_renewal renewals[3 * RENEWALS_MAX];
    struct box box;
    cr_assert(box_begin(&box, DISK_ENGINE_THREADS));
    struct index *index = &box.store->index;
    uint64_t failures = stats_sum(COUNTER_index_commit_failures);
    for (unsigned i = 0; i < ARRAY_LEN(renewals); i++) {
        renewals[i] = (struct store_renewal){.hash = {i, (uint64_t)i * 7919}, .generation = 1};
    }
    cr_assert_eq(index_writer_flush(&box.store->writer), ERR_OK);
    store_fault_set(STORE_FAULT_COMMIT, 1, true, EIO);
    uint64_t began_us = disk_real_us();
    cr_assert_geq(index_renew(index, renewals, ARRAY_LEN(renewals), 1, 1), RENEWALS_MAX / 4);
    index_writer_wake(&box.store->writer);
    wait_for(stats_sum(COUNTER_index_commit_failures) >= failures + 3);
    cr_assert_geq(disk_real_us() - began_us, 2 * INDEX_RENEW_LINGER_MS * 1000);
    store_fault_set(STORE_FAULT_COMMIT, 0, false, 0);
    wait_for(atomic_load(&index->renewal_count) == 0);
    box_close(&box);
    box_remove(&box);
}
