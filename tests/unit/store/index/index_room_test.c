// SPDX-License-Identifier: Apache-2.0
// Proves: the index takes no more than its share of the cache, however many and however small the
// objects are. If it needs more room, segments are evicted: no put fails, and no fault of the disk
// is reported.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "stats/stats.h"
#include "store/index/index_room.h"
#include "store/store_fixture.h"
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

// Puts `count` objects while a commit is stalled: a backlog that the next batches take.
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
        cr_assert(disk_is_filling(&store->disk), "burst %u", i);
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

// Slow readers may hold every segment. The puts are dropped and counted, and no fault of the disk
// is reported.
Test(index_room, puts_without_room_are_dropped_and_filling_continues)
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
    uint64_t rest = atomic_load(&store->disk.ceiling_bytes) - atomic_load(&store->disk.used_bytes);
    cr_assert(disk_space_reserve(&store->disk, rest, UINT64_MAX));
    burst(&box, 1, BURST);
    wait_for({
        clock_test_advance_us(INDEX_ROOM_WAIT_MS * 1000ull);
        stats_sum(COUNTER_index_full) > full;
    });
    wait_for(found_of(&box, 1, BURST) < BURST - 1);
    full = stats_sum(COUNTER_index_full);
    wait_for(stats_sum(COUNTER_index_full) >
             full); // the removals for the dropped puts are tried again
    store_summarize(store, &summary);
    cr_assert(disk_is_filling(&store->disk) && !summary.degraded);
    cr_assert_eq((int)summary.refusal, (int)REFUSAL_index_full);
    struct object refused = {"refused", "\"e\"", OBJECT_BYTES, BLOCK, store_generation_next(store)};
    struct store_place none;
    uint64_t before = refusal_sum(REFUSAL_index_full);
    cr_assert(box_write(&box, 0, &refused, 0, 1, 1, &none) == ERR_INDEX_FULL);
    cr_assert_eq(refusal_sum(REFUSAL_index_full), before + 1);
    cr_assert_eq(found_of(&box, 0, 1), 1u);

    disk_space_give(&store->disk, rest);
    atomic_store(&store->log.examined, true);
    wait_for(atomic_load(&store->index.memory.pending) == 0); // removals for the dropped puts
    store_summarize(store, &summary);
    cr_assert_eq((int)summary.refusal, (int)REFUSAL_none);
    burst(&box, 2 * BURST, BURST / 4);
    cr_assert(index_writer_flush(&store->writer) == ERR_OK);
    cr_assert_eq(found_of(&box, 2 * BURST, 2 * BURST + BURST / 4), BURST / 4);
    box_close(&box);
    box_remove(&box);
}

// An index that cannot be opened is no fault of the disk. The refusal says that nothing is found.
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

// --- deletes

struct mass {
    atomic_uint done, failed;
};

struct mass_delete {
    struct store_delete deletion;
    struct mass *mass;
};

static void on_mass_deleted(struct store_delete *deletion)
{
    struct mass_delete *one = container_of(deletion, struct mass_delete, deletion);
    atomic_fetch_add(&one->mass->failed, deletion->err != ERR_OK);
    atomic_fetch_add(&one->mass->done, 1);
}

struct mass_start {
    struct mass_delete *deletes;
    unsigned count;
    struct box *box;
};

static void do_mass_delete(struct worker *w, void *ctx)
{
    const struct mass_start *start = ctx;
    for (unsigned i = 0; i < start->count; i++) {
        store_delete(w, start->box->store, &start->deletes[i].deletion);
    }
}

// Deletes these keys at once, waits for all answers, and returns how many failed.
static unsigned delete_all(struct box *box, unsigned first, unsigned count)
{
    struct mass mass = {0};
    struct mass_start start = {calloc(count, sizeof(*start.deletes)), count, box};
    cr_assert(start.deletes != NULL);
    for (unsigned i = 0; i < count; i++) {
        char key[24];
        (void)snprintf(key, sizeof(key), "key-%u", first + i);
        start.deletes[i].mass = &mass;
        start.deletes[i].deletion = (struct store_delete){
            .hash = box_hash(box, key), .floor = UINT64_MAX >> 1, .done = on_mass_deleted};
    }
    box_on_worker(box, 0, do_mass_delete, &start);
    wait_for(atomic_load(&mass.done) == count);
    free(start.deletes);
    return atomic_load(&mass.failed);
}

static bool is_index_believed(struct box *box)
{
    return faccessat(box->store->disk.dir.index_fd, INDEX_BAD_MARKER, F_OK, 0) != 0;
}

// Everything in a full cache of tiny objects is deleted at once, while no segment can be evicted.
static void delete_everything(enum disk_engine engine)
{
    struct box box;
    box_init(&box, engine, 24 * MIB);
    box.options.policy = STORE_POLICY_LRU;
    if (!box_open(&box)) {
        box_remove(&box);
        return;
    }
    struct store *store = box.store;
    for (unsigned i = 0; i < 3; i++) {
        burst(&box, i * BURST, BURST);
        cr_assert(index_writer_flush(&store->writer) == ERR_OK);
    }
    uint64_t full = stats_sum(COUNTER_index_full);
    uint64_t failures = stats_sum(COUNTER_index_commit_failures);
    atomic_store(&store->log.examined, false); // no segment may go
    uint64_t rest = atomic_load(&store->disk.ceiling_bytes) - atomic_load(&store->disk.used_bytes);
    uint64_t left = 512 << 10; // room for a few changes at a time
    cr_assert(rest > left && disk_space_reserve(&store->disk, rest - left, UINT64_MAX));
    uint64_t late = stats_sum(COUNTER_index_deletes_late);
    unsigned failed = delete_all(&box, 0, 3 * BURST);
    wait_for(atomic_load(&store->late_deletes) == 0); // on a slow machine; they stay queued
    cr_assert_eq(failed, stats_sum(COUNTER_index_deletes_late) - late);
    cr_assert_eq(found_of(&box, 0, 3 * BURST), 0u);
    cr_assert_eq(stats_sum(COUNTER_index_full), full, "no batch was dropped");
    cr_assert_eq(stats_sum(COUNTER_index_commit_failures), failures);
    cr_assert(is_index_believed(&box) && disk_is_filling(&store->disk));
    cr_assert_eq(atomic_load(&store->index.objects), 0u);
    disk_space_give(&store->disk, rest - left);
    atomic_store(&store->log.examined, true);
    box_close(&box);
    box_remove(&box);
}

Test(index_room, deletes_of_everything_in_a_full_cache_of_tiny_objects_drop_no_batch)
{
    delete_everything(DISK_ENGINE_THREADS);
    delete_everything(DISK_ENGINE_URING);
}

#define PIECES 20000u

// Enters an object of PIECES runs: all at one place on disk, which the index cannot tell.
static void enter_pieces(struct box *box, const struct object *object,
                         const struct store_place *place)
{
    for (unsigned i = 0; i < PIECES; i++) {
        struct store_place piece = *place;
        piece.first_block = i;
        wait_for(index_memory_leaves_room(&box->store->index.memory, 1));
        box_enter(box, object, &piece);
    }
    cr_assert(index_writer_flush(&box->store->writer) == ERR_OK);
    cr_assert_eq(atomic_load(&box->store->index.blocks), PIECES);
}

static void pieces_go(enum disk_engine engine, bool by_put)
{
    struct box box;
    box_init(&box, engine, 64 * MIB);
    if (!box_open(&box)) {
        box_remove(&box);
        return;
    }
    struct store *store = box.store;
    struct object object = {"key-1", "\"e\"", (uint64_t)PIECES * BLOCK, BLOCK, 1};
    struct store_place place;
    cr_assert(box_write(&box, 0, &object, 0, 1, 1, &place) == ERR_OK);
    enter_pieces(&box, &object, &place);
    uint64_t full = stats_sum(COUNTER_index_full);
    uint64_t failures = stats_sum(COUNTER_index_commit_failures);
    uint64_t cut = stats_sum(COUNTER_index_batches_cut);
    uint64_t before = atomic_load(&store->index.allocated_bytes);
    atomic_store(&store->log.examined, false); // no segment may go
    uint64_t rest = atomic_load(&store->disk.ceiling_bytes) - atomic_load(&store->disk.used_bytes);
    uint64_t left = MIB;
    cr_assert(rest > left && disk_space_reserve(&store->disk, rest - left, UINT64_MAX));
    if (by_put) { // a newer version takes the place of the older one
        struct object newer = {"key-1", "\"f\"", OBJECT_BYTES, BLOCK, 2};
        struct store_place other = place;
        other.payload_len = OBJECT_BYTES;
        box_enter(&box, &newer, &other);
        cr_assert(index_writer_flush(&store->writer) == ERR_OK);
        cr_assert_eq(atomic_load(&store->index.objects), 1u);
        cr_assert_eq(atomic_load(&store->index.blocks), 1u);
    } else {
        cr_assert(box_post_delete(&box, "key-1", 2) == ERR_OK);
        cr_assert_eq(atomic_load(&store->index.objects), 0u);
        cr_assert_eq(atomic_load(&store->index.blocks), 0u);
    }
    cr_assert_eq(stats_sum(COUNTER_index_full), full, "no batch was dropped");
    cr_assert_eq(stats_sum(COUNTER_index_commit_failures), failures);
    cr_assert(stats_sum(COUNTER_index_batches_cut) > cut, "it took several transactions");
    cr_assert_leq(atomic_load(&store->index.allocated_bytes), before + left);
    cr_assert(is_index_believed(&box) && disk_is_filling(&store->disk));
    disk_space_give(&store->disk, rest - left);
    atomic_store(&store->log.examined, true);
    box_let_go(&place);
    box_close(&box);
    box_remove(&box);
}

// The removal rewrites more pages than the index has room for.
Test(index_room, an_object_of_many_runs_is_removed_over_several_transactions)
{
    pieces_go(DISK_ENGINE_THREADS, false);
    pieces_go(DISK_ENGINE_URING, false);
    pieces_go(DISK_ENGINE_THREADS, true);
}
