// SPDX-License-Identifier: Apache-2.0
// The index takes no more than its share of the cache, however many objects come at once and however small
// they are. Where it needs more room, segments make it: no put fails, and nothing is said of the disk.
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "stats/stats.h"
#include "store/index_room.h"
#include "store_fixture.h"
#include "test.h"
#include "waiting.h"

#define OBJECT_BYTES 10u
#define BURST 4000u
#define SHARE_PARTS 3u // of the cache: more than a third of it would be too much

static void put(struct box *box, unsigned i)
{
    char key[24];
    (void)snprintf(key, sizeof(key), "key-%u", i);
    struct object object = {key, "\"e\"", OBJECT_BYTES, BLOCK, store_generation_next(box->store)};
    struct store_place place;
    enum err err;
    wait_for(!box_has_no_segment(err = box_write(box, 0, &object, 0, 1, 1, &place)));
    cr_assert(err == ERR_OK, "%s", error_name(err));
    box_enter(box, &object, &place);
    box_let_go(&place);
}

static unsigned found_of(struct box *box, unsigned first, unsigned end)
{
    unsigned found = 0;
    for (unsigned i = first; i < end; i++) {
        char key[24];
        static struct store_view view;
        (void)snprintf(key, sizeof(key), "key-%u", i);
        struct object object = {key, "\"e\"", OBJECT_BYTES, BLOCK, 0};
        box_look(box, &object, &view);
        found += view.found;
    }
    return found;
}

// Puts so many while a commit is stalled: a backlog that the next batches take.
static void burst(struct box *box, unsigned first, unsigned count)
{
    store_fault_stall(STORE_FAULT_COMMIT, true);
    put(box, first);
    store_fault_stall_reached(STORE_FAULT_COMMIT);
    for (unsigned i = 1; i < count; i++) {
        put(box, first + i);
    }
    store_fault_stall(STORE_FAULT_COMMIT, false);
}

static void bursts_into(enum disk_engine engine, uint64_t size_bytes, unsigned bursts)
{
    struct box box;
    box_init(&box, engine, size_bytes);
    box.options.policy = STORE_POLICY_LRU;
    if (!box_open(&box)) {
        box_remove(&box);
        return;
    }
    uint64_t failures = stats_sum(COUNTER_index_commit_failures);
    uint64_t full = stats_sum(COUNTER_index_full);
    struct store *store = box.store;
    for (unsigned i = 0; i < bursts; i++) {
        burst(&box, i * BURST, BURST);
        cr_assert(index_writer_flush(&store->writer) == ERR_OK, "burst %u", i);
        wait_for(atomic_load(&store->writer.forget.waiting) == 0);
        cr_assert(store_is_filling(store), "burst %u", i);
        cr_assert_eq(found_of(&box, i * BURST, (i + 1) * BURST), BURST, "burst %u", i);
        cr_assert_leq(dir_bytes(box.dir), size_bytes, "burst %u", i);
        cr_assert_leq(atomic_load(&store->index.allocated_bytes), size_bytes / SHARE_PARTS);
    }
    cr_assert_eq(stats_sum(COUNTER_index_commit_failures), failures);
    cr_assert_eq(stats_sum(COUNTER_index_full), full);
    box_close(&box);
    box_remove(&box);
}

Test(index_room, bursts_of_tiny_objects_fit_a_cache_of_24_mib)
{
    bursts_into(DISK_ENGINE_THREADS, 24 * MIB, 4);
    bursts_into(DISK_ENGINE_URING, 24 * MIB, 4);
}

Test(index_room, a_burst_of_tiny_objects_fits_a_larger_cache)
{
    bursts_into(DISK_ENGINE_THREADS, 64 * MIB, 1);
    bursts_into(DISK_ENGINE_THREADS, 256 * MIB, 1);
    bursts_into(DISK_ENGINE_THREADS, 1024 * MIB, 1);
}

// Slow readers may hold every segment. The puts are dropped and counted, and nothing is said of the disk.
Test(index_room, puts_without_room_are_dropped_and_filling_goes_on)
{
    struct box box;
    struct store_summary summary;
    box_init(&box, DISK_ENGINE_THREADS, 24 * MIB);
    box.options.policy = STORE_POLICY_LRU;
    cr_assert(box_open(&box));
    struct store *store = box.store;
    uint64_t full = stats_sum(COUNTER_index_full);
    put(&box, 0);
    cr_assert(index_writer_flush(&store->writer) == ERR_OK);
    atomic_store(&store->log.examined, false); // no segment may go
    uint64_t rest = atomic_load(&store->ceiling_bytes) - atomic_load(&store->used_bytes);
    cr_assert(store_space_reserve(store, rest, UINT64_MAX));
    burst(&box, 1, BURST / 4);
    wait_for({
        clock_test_advance_us(INDEX_ROOM_WAIT_MS * 1000ull);
        stats_sum(COUNTER_index_full) > full;
    });
    wait_for(found_of(&box, 1, BURST / 4) < BURST / 4 - 1);
    full = stats_sum(COUNTER_index_full);
    put(&box, BURST - 1); // its batch waits no more
    wait_for(stats_sum(COUNTER_index_full) > full);
    store_summarize(store, &summary);
    cr_assert(store_is_filling(store) && !summary.degraded);
    cr_assert_eq((int)summary.refusal, (int)REFUSAL_index_full);
    struct object refused = {"refused", "\"e\"", OBJECT_BYTES, BLOCK, store_generation_next(store)};
    struct store_place none;
    uint64_t before = refusal_sum(REFUSAL_index_full);
    cr_assert(box_write(&box, 0, &refused, 0, 1, 1, &none) == ERR_INDEX_FULL);
    cr_assert_eq(refusal_sum(REFUSAL_index_full), before + 1);
    cr_assert_eq(found_of(&box, 0, 1), 1u);

    store_space_give(store, rest);
    atomic_store(&store->log.examined, true);
    clock_test_advance_us(INDEX_AGAIN_MS * 1000ull);
    store_summarize(store, &summary);
    cr_assert_eq((int)summary.refusal, (int)REFUSAL_none);
    wait_for(atomic_load(&store->index.memory.pending) == 0); // what the dropped puts owe
    burst(&box, BURST, BURST / 4);
    cr_assert(index_writer_flush(&store->writer) == ERR_OK);
    cr_assert_eq(found_of(&box, BURST, BURST + BURST / 4), BURST / 4);
    box_close(&box);
    box_remove(&box);
}

// An index that cannot be opened is no fault of the disk: the word says that nothing is found.
Test(index_room, a_store_without_its_index_is_index_degraded)
{
    struct box box;
    struct store_summary summary;
    box_init(&box, DISK_ENGINE_THREADS, 24 * MIB);
    cr_assert(box_open(&box));
    index_close(&box.store->index);
    store_summarize(box.store, &summary);
    cr_assert(summary.degraded && summary.is_blind);
    cr_assert_eq((int)summary.refusal, (int)REFUSAL_index_degraded);
    box_close(&box);
    box_remove(&box);
}
