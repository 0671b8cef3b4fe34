// SPDX-License-Identifier: Apache-2.0
// Proves: no transfer stays paused without a reader. A transfer that stays paused for a slow reader
// frees its slot at the origin. It is continued with the same version or not at all.
#include "world.h"

#include "test.h"

#define MIB (1u << 20)
#define PIECE 32768u

// Runs of one block of 4 MiB each, which the store refuses.
static void begin_unstored(uint64_t size_bytes)
{
    struct world_options options = {.seed = 2,
                                    .piece_bytes = PIECE,
                                    .size_bytes = size_bytes,
                                    .block_size_bytes = 4 * MIB,
                                    .refuse_store = true};
    world_begin(&options);
}

static void expect(int client, enum client_outcome outcome, int version)
{
    cr_assert_eq(client_outcome(client), outcome, "outcome %d", client_outcome(client));
    cr_assert_eq(client_version(client), version, "version %d", client_version(client));
}

// The run's window is full and stays full: it gives its slot back.
static int begin_parked(uint64_t size_bytes)
{
    begin_unstored(size_bytes);
    world_hold(EVENT_PULL, -1, -1);
    int slow = client_get(1, 0, UINT64_MAX);
    world_run();
    cr_assert_eq(client_outcome(slow), CLIENT_OPEN);
    cr_assert_eq(counter(COUNTER_fills_parked), 1);
    cr_assert_eq(origin_requests(), 1);
    cr_assert(!world_do(EVENT_ORIGIN, -1, -1), "no call is left at the origin");
    return slow;
}

// A first request brings a version that its only reader cannot use. The run is cancelled instead of
// waiting for a reader. Rule 23.
Test(pause, the_only_reader_is_taken_out)
{
    begin_unstored(8 * MIB);
    // Bound to version 1 by the last bytes of block 0, and no run of block 1 asked for yet.
    int bound = client_get(1, 4 * MIB - 100, 8 * MIB - 1);
    world_hold(EVENT_PULL, bound, -1);
    world_run();
    cr_assert_eq(client_version(bound), 1);
    // Somebody else's first request for block 1: at the origin, not yet looked at.
    int first = client_get(2, 4 * MIB, 8 * MIB - 1);
    world_hold(EVENT_ORIGIN, -1, -1);
    world_run();
    cr_assert_eq(origin_requests(), 2);
    while (client_received(bound) < 100) {
        world_release();
        world_hold(EVENT_ORIGIN, -1, -1);
        cr_assert(world_do(EVENT_PULL, bound, -1));
        world_deliver_all();
    }
    world_run();
    cr_assert_eq(origin_requests(), 2, "joined");
    client_leave(first);
    world_run();
    origin_overwrite();
    world_release();
    world_run();
    expect(bound, CLIENT_CUT, 1);
    cr_assert_eq(counter(COUNTER_fills_cancelled), 1);
    world_end();
}

// The rest comes with If-Match and ranges of what the reader takes; no byte twice.
// Rules 22, 23.
Test(pause, a_slow_reader_gives_its_place_back)
{
    int slow = begin_parked(4 * MIB);
    world_release();
    world_run();
    expect(slow, CLIENT_COMPLETE, 1);
    cr_assert_eq(client_received(slow), 4 * MIB);
    cr_assert_gt(origin_requests(), 1);
    cr_assert_lt(origin_requests(), 8, "pieces are most of a window");
    cr_assert_eq(origin_sent(1, 0), 1);
    cr_assert_eq(counter(COUNTER_fills_resumed), 0, "no attempt is used up");
    world_end();
}

// By then the origin has another object: the readers are cut, and versions are not mixed. Rule 22.
Test(pause, another_version_at_the_continuation_cuts)
{
    int slow = begin_parked(4 * MIB);
    origin_overwrite();
    world_release();
    world_run();
    expect(slow, CLIENT_CUT, 1);
    cr_assert_lt(client_received(slow), 4 * MIB);
    world_end();
}

// A continuation that breaks off is treated like a body that breaks off. Rule 22.
Test(pause, a_continuation_breaks_off)
{
    int slow = begin_parked(4 * MIB);
    origin_reset_next(1);
    world_release();
    world_run();
    expect(slow, CLIENT_COMPLETE, 1);
    cr_assert_eq(counter(COUNTER_fills_resumed), 1);
    world_end();
}

// Its reader leaves, or a write to its key begins, while no request is in flight: nothing is left
// behind. Rules 21, 25.
Test(pause, the_reader_leaves_a_parked_run)
{
    int slow = begin_parked(4 * MIB);
    client_leave(slow);
    world_run();
    cr_assert_eq(counter(COUNTER_fills_cancelled), 1);
    cr_assert_eq(origin_requests(), 1);
    world_release();
    int next = client_get(2, 0, UINT64_MAX);
    world_run();
    expect(next, CLIENT_COMPLETE, 1);
    world_end();
}

// A reader that joins a parked run continues it, and both readers get all of it. Rule 23.
Test(pause, a_reader_joins_a_parked_run)
{
    int slow = begin_parked(4 * MIB);
    world_release();
    world_hold(EVENT_PULL, slow, -1);
    int fast = client_get(2, 0, UINT64_MAX);
    world_run();
    expect(fast, CLIENT_COMPLETE, 1);
    world_release();
    world_run();
    expect(slow, CLIENT_COMPLETE, 1);
    world_end();
}

// A version without a name cannot be continued, so it keeps its slot. Rule 22.
Test(pause, a_version_without_a_name_keeps_its_place)
{
    struct world_options options = {.seed = 2,
                                    .piece_bytes = PIECE,
                                    .size_bytes = 4 * MIB,
                                    .block_size_bytes = 4 * MIB,
                                    .no_etag = true};
    world_begin(&options);
    world_hold(EVENT_PULL, -1, -1);
    int slow = client_get(1, 0, UINT64_MAX);
    world_run();
    cr_assert_eq(counter(COUNTER_fills_parked), 0);
    world_release();
    world_run();
    cr_assert_eq(client_outcome(slow), CLIENT_COMPLETE);
    cr_assert_eq(origin_requests(), 1);
    world_end();
}

// Stored runs that wait for memory give their slots back as well, and one of them always continues.
// Rule 22.
Test(pause, runs_that_wait_for_memory_give_their_places_back)
{
    struct world_options options = {.seed = 2,
                                    .piece_bytes = PIECE,
                                    .size_bytes = 8 * MIB,
                                    .block_size_bytes = MIB,
                                    .buffer_bytes = 8 * CHUNK_SIZE};
    world_begin(&options);
    world_hold(EVENT_PULL, -1, -1);
    int clients[6];
    for (unsigned i = 0; i < 6; i++) {
        clients[i] = client_get(i % 3, i * MIB, (i + 1) * MIB - 1);
        world_deliver_all();
    }
    world_run();
    cr_assert_gt(counter(COUNTER_fills_parked), 0);
    world_release();
    world_run();
    for (unsigned i = 0; i < 6; i++) {
        expect(clients[i], CLIENT_COMPLETE, 1);
        cr_assert_eq(origin_sent(1, i), 1);
    }
    world_end();
}

static int get_block_behind(uint64_t buffer_bytes)
{
    struct world_options options = {.seed = 2, .piece_bytes = PIECE, .buffer_bytes = buffer_bytes};
    world_begin(&options);
    world_hold(EVENT_WRITTEN, -1, -1);
    int first = client_get(0, 0, WORLD_BLOCK - 1);
    world_run();
    expect(first, CLIENT_COMPLETE, 1);
    store_fall_behind(true);
    int next = client_get(1, 0, WORLD_BLOCK - 1);
    world_run();
    return next;
}

// The disk has a backlog: a reader that needs the place of a run being written asks the origin for
// itself. Rule 20.
Test(pause, no_reader_waits_for_a_disk_with_a_backlog)
{
    expect(get_block_behind(1), CLIENT_COMPLETE, 1);
    cr_assert_eq(origin_sent(1, 0), 2);
    world_end();
}

// A reader that finds the bytes in memory gets them from there. Rule 20.
Test(pause, bytes_in_memory_are_not_fetched_again)
{
    expect(get_block_behind(0), CLIENT_COMPLETE, 1);
    cr_assert_eq(origin_requests(), 1);
    world_end();
}

// A reader joins a run that is in memory and longer than the reader's share. It takes one share at
// a time, and makes progress. Rule 32.
Test(pause, a_share_at_a_time_of_a_run_that_is_being_written)
{
    struct world_options options = {.seed = 2,
                                    .piece_bytes = PIECE,
                                    .size_bytes = 4 * MIB,
                                    .block_size_bytes = 4 * MIB,
                                    .buffer_bytes = 32 * MIB};
    world_begin(&options);
    world_hold(EVENT_WRITTEN, -1, -1);
    int first = client_get(0, 0, UINT64_MAX);
    while (client_outcome(first) == CLIENT_OPEN) {
        world_deliver_all();
        (void)world_do(EVENT_PULL, first, -1);
        (void)world_do(EVENT_ORIGIN, -1, -1);
    }
    expect(first, CLIENT_COMPLETE, 1);
    int next = client_get(1, 0, UINT64_MAX);
    for (unsigned i = 0; i < 1000 && client_outcome(next) == CLIENT_OPEN; i++) {
        world_deliver_all();
        (void)world_do(EVENT_PULL, next, -1);
    }
    expect(next, CLIENT_COMPLETE, 1);
    cr_assert_eq(origin_sent(1, 0), 1);
    cr_assert_gt(counter(COUNTER_readers_detached), 0);
    world_end();
}

// Memory is used up and the disk stands still: the run that leads holds no more than its share.
Test(pause, the_leading_run_holds_no_more_than_its_share)
{
    struct world_options options = {.seed = 2,
                                    .piece_bytes = PIECE,
                                    .size_bytes = 4 * MIB,
                                    .block_size_bytes = 4 * MIB,
                                    .buffer_bytes = CHUNK_SIZE};
    world_begin(&options);
    world_hold(EVENT_WRITTEN, -1, -1);
    world_hold(EVENT_TIMER, -1, -1);
    int client = client_get(0, 0, UINT64_MAX);
    world_run();
    expect(client, CLIENT_OPEN, 1);
    // The other chunk would be the one into which a `dir:` origin reads.
    cr_assert_eq(chunk_budget_used_bytes(), FILL_LEAD_AHEAD - CHUNK_SIZE);
    world_end();
}

// Memory is used up: a reader that takes nothing keeps two chunks of a run that goes on, in queues
// of any size.
Test(pause, a_slow_reader_queues_two_chunks_while_memory_is_used_up)
{
    struct world_options options = {.seed = 2,
                                    .piece_bytes = PIECE,
                                    .size_bytes = 4 * MIB,
                                    .block_size_bytes = 4 * MIB,
                                    .buffer_bytes = 256 * MIB};
    world_begin(&options);
    struct chunk *others[256 * MIB / CHUNK_SIZE];
    for (unsigned i = 0; i < ARRAY_LEN(others); i++) {
        others[i] = chunk_new();
        cr_assert_not_null(others[i]);
    }
    world_hold(EVENT_PULL, -1, -1);
    int slow = client_get(0, 0, UINT64_MAX);
    world_run();
    expect(slow, CLIENT_OPEN, 1);
    cr_assert(store_visible(0));
    cr_assert_leq(chunk_budget_used_bytes(), (ARRAY_LEN(others) + 2) * CHUNK_SIZE);
    for (unsigned i = 0; i < ARRAY_LEN(others); i++) {
        chunk_unref(others[i]);
    }
    world_end();
}

// The run that leads while memory is used up waits for the disk. If the disk is stalled, the run
// stops being stored, and its reader gets the rest. Rule 23.
Test(pause, the_leading_run_does_not_wait_for_a_stalled_disk)
{
    struct world_options options = {.seed = 2,
                                    .piece_bytes = PIECE,
                                    .size_bytes = 4 * MIB,
                                    .block_size_bytes = 4 * MIB,
                                    .buffer_bytes = 4 * CHUNK_SIZE};
    world_begin(&options);
    world_hold(EVENT_WRITTEN, -1, -1);
    int client = client_get(0, 0, UINT64_MAX);
    world_run();
    expect(client, CLIENT_COMPLETE, 1);
    cr_assert_eq(store_visible_version(), 0);
    store_fall_behind(false);
    world_end();
}

// Memory is used up while some chunks of the leading run wait to be written together. They are
// written at once, because the run waits for them. Rule 23.
Test(pause, the_leading_run_does_not_wait_for_a_write_that_waits_for_more_bytes)
{
    struct world_options options = {.seed = 2,
                                    .piece_bytes = PIECE,
                                    .size_bytes = 4 * MIB,
                                    .block_size_bytes = 4 * MIB,
                                    .buffer_bytes = 64 * CHUNK_SIZE,
                                    .gathers = true};
    world_begin(&options);
    world_hold(EVENT_TIMER, -1, -1);
    int client = client_get(0, 0, UINT64_MAX);
    world_deliver_all();
    while (chunk_budget_used_bytes() < 7 * CHUNK_SIZE) {
        cr_assert(world_do(EVENT_ORIGIN, -1, -1));
        world_deliver_all();
    }
    cr_assert(world_do(EVENT_ORIGIN, -1, -1)); // the seventh chunk is whole
    struct chunk *others[64];
    unsigned count = 0;
    while (count < ARRAY_LEN(others) && (others[count] = chunk_new()) != NULL) {
        count++;
    }
    world_run();
    expect(client, CLIENT_COMPLETE, 1);
    cr_assert(store_visible(0));
    while (count > 0) {
        chunk_unref(others[--count]);
    }
    world_end();
}
