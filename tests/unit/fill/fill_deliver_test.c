// SPDX-License-Identifier: Apache-2.0
// Proves: a reader slower than its run continues while the run still comes, from written pages or
// from memory, without asking the origin or verifying bytes again. Bytes that neither has come from
// the place at the run's end.
#include "world.h"

#include "test.h"

#define MIB (1u << 20)
#define PIECE CHUNK_SIZE
#define RUN (4u * MIB)
#define COME (3u * MIB)
#define BUFFER (32u * MIB)

static void begin(uint64_t buffer_bytes, unsigned pages_percent)
{
    struct world_options options = {.seed = 2,
                                    .piece_bytes = PIECE,
                                    .size_bytes = RUN,
                                    .block_size_bytes = RUN,
                                    .buffer_bytes = buffer_bytes,
                                    .pages_percent = pages_percent};
    world_begin(&options);
}

static void expect(int client, enum client_outcome outcome)
{
    cr_assert_eq(client_outcome(client), outcome, "outcome %d", (int)client_outcome(client));
    cr_assert(outcome != CLIENT_COMPLETE || client_received(client) == RUN);
}

// Receives this many bytes of the run, and writes them if `written`. The reader has taken nothing.
static int start_and_fall_behind(bool written)
{
    int client = client_get(1, 0, UINT64_MAX);
    world_deliver_all();
    (void)world_do(EVENT_ORIGIN, -1, -1); // evaluated, head
    (void)world_do(EVENT_ORIGIN, -1, -1);
    for (unsigned i = 0; i < COME / PIECE; i++) {
        cr_assert(world_do(EVENT_ORIGIN, -1, -1));
        while (written && world_do(EVENT_WRITTEN, -1, -1)) {
        }
        world_deliver_all();
    }
    cr_assert_eq(counter(COUNTER_readers_detached), 1);
    return client;
}

static void take_all_there_is(int client)
{
    do {
        world_deliver_all();
    } while (world_do(EVENT_PULL, client, -1));
}

static void end_once(int client)
{
    world_run();
    expect(client, CLIENT_COMPLETE);
    cr_assert_eq(origin_requests(), 1);
    world_end();
}

// Rule 34.
Test(deliver, a_reader_behind_its_run_continues_from_pages_while_it_comes)
{
    begin(BUFFER, 100);
    int client = start_and_fall_behind(true);
    take_all_there_is(client);
    cr_assert_eq(client_received(client), COME);
    cr_assert_geq(counter(COUNTER_hit_sendfile), (COME - MIB) / HTTP_FILE_SLICE_MAX);
    end_once(client);
    cr_assert_eq(counter(COUNTER_hit_read), 0);
}

// Nothing is written yet. Rule 34.
Test(deliver, a_reader_behind_its_run_continues_from_memory)
{
    begin(BUFFER, 100);
    world_hold(EVENT_WRITTEN, -1, -1);
    int client = start_and_fall_behind(false);
    take_all_there_is(client);
    cr_assert_eq(client_received(client), COME);
    cr_assert_eq(counter(COUNTER_hit_sendfile), 0);
    world_release();
    end_once(client);
}

// As under TLS, pages cannot be sent to this reader. Rule 34.
Test(deliver, a_reader_without_pages_continues_from_memory)
{
    begin(BUFFER, 0);
    int client = start_and_fall_behind(true);
    take_all_there_is(client);
    cr_assert_eq(client_received(client), COME);
    end_once(client);
    cr_assert_eq(counter(COUNTER_hit_sendfile), 0);
}

// Pages that have left memory are not read before the run has its header. Rule 34.
Test(deliver, pages_that_are_gone_are_waited_for)
{
    begin(4 * CHUNK_SIZE, 1);
    world_hold(EVENT_TIMER, -1, -1); // the disk is quick enough
    int client = client_get(1, 0, UINT64_MAX);
    end_once(client);
}

// If memory is not ample, the run keeps no chunk that is written and delivered. A late reader gets
// those bytes from pages. Rule 34.
Test(deliver, written_bytes_need_not_stay_in_memory)
{
    begin(4 * MIB, 100);
    int client = client_get(0, 0, UINT64_MAX);
    world_deliver_all();
    (void)world_do(EVENT_ORIGIN, -1, -1); // evaluated, head
    (void)world_do(EVENT_ORIGIN, -1, -1);
    for (unsigned i = 0; i < COME / PIECE; i++) {
        cr_assert(world_do(EVENT_ORIGIN, -1, -1));
        cr_assert(world_do(EVENT_WRITTEN, -1, -1));
        take_all_there_is(client);
        cr_assert_leq(chunk_budget_used_bytes(), 4 * MIB / 8 + CHUNK_SIZE);
    }
    int late = client_get(1, 0, UINT64_MAX);
    take_all_there_is(late);
    cr_assert_eq(client_received(late), COME);
    cr_assert_gt(counter(COUNTER_hit_sendfile), 0);
    world_run();
    expect(late, CLIENT_COMPLETE);
    end_once(client);
}

// This does not apply if pages cannot be sent to a reader of the run. Rule 34.
Test(deliver, written_bytes_stay_in_memory_for_a_reader_without_pages)
{
    begin(8 * MIB, 0);
    int client = client_get(0, 0, UINT64_MAX);
    world_deliver_all();
    (void)world_do(EVENT_ORIGIN, -1, -1);
    (void)world_do(EVENT_ORIGIN, -1, -1);
    for (unsigned i = 0; i < COME / PIECE; i++) {
        cr_assert(world_do(EVENT_ORIGIN, -1, -1));
        cr_assert(world_do(EVENT_WRITTEN, -1, -1));
        take_all_there_is(client);
    }
    int late = client_get(1, 0, UINT64_MAX);
    take_all_there_is(late);
    cr_assert_eq(client_received(late), COME);
    world_run();
    expect(late, CLIENT_COMPLETE);
    end_once(client);
}
