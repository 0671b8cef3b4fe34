// SPDX-License-Identifier: Apache-2.0
// Proves: the table of a run's states (asked, body, written, doomed) and events (a reader joins,
// the origin fails, the version differs, the last reader leaves, the store refuses) in fill.c.
#include "world_private.h"

#include "test.h"

#define MIB (1u << 20)
#define PIECE 32768u

static void begin(void)
{
    struct world_options options = {.seed = 2, .piece_bytes = PIECE};
    world_begin(&options);
}

// One object of one block of 4 MiB, which the store refuses.
static void begin_unstored(void)
{
    struct world_options options = {.seed = 2,
                                    .piece_bytes = PIECE,
                                    .size_bytes = 4 * MIB,
                                    .block_size_bytes = 4 * MIB,
                                    .refuse_store = true};
    world_begin(&options);
}

// No more than one chunk of payload is kept.
static void begin_short_of_memory(void)
{
    struct world_options options = {.seed = 2, .piece_bytes = PIECE, .buffer_bytes = CHUNK_SIZE};
    world_begin(&options);
}

// A GET of blocks 0 and 1: one run, asked of the home itself.
static int get_run(unsigned worker)
{
    return client_get(worker, 0, 2 * WORLD_BLOCK - 1);
}

static void origin_steps(unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        cr_assert(world_do(EVENT_ORIGIN, -1, -1));
        world_deliver_all();
    }
}

// The origin evaluates and answers the request, then sends this many pieces of body.
static void origin_begin_body(unsigned pieces)
{
    world_deliver_all();
    origin_steps(2 + pieces);
}

static void drain(int client)
{
    while (world_do(EVENT_PULL, client, -1)) {
        world_deliver_all();
    }
}

static void expect(int client, enum client_outcome outcome, int version)
{
    cr_assert_eq(client_outcome(client), outcome, "outcome %d", client_outcome(client));
    cr_assert_eq(client_version(client), version, "version %d", client_version(client));
}

static int write_through(unsigned worker)
{
    int writer = writer_begin(worker);
    world_run();
    cr_assert(writer_ready(writer));
    writer_write(writer);
    world_run();
    return writer;
}

// --- asked ---------------------------------------------------------------------------------------

// A reader that joins waits for the head; one request for all.
// Rule 16.
Test(asked, a_reader_joins)
{
    begin();
    int clients[3];
    for (unsigned i = 0; i < 3; i++) {
        clients[i] = get_run(i);
        world_deliver_all();
    }
    cr_assert_eq(origin_requests(), 1);
    origin_steps(2);
    world_run();
    for (unsigned i = 0; i < 3; i++) {
        expect(clients[i], CLIENT_COMPLETE, 1);
    }
    cr_assert_eq(origin_requests(), 1);
    cr_assert(client_result(clients[1]) == RESULT_COALESCED);
    world_end();
}

// The origin fails: one S3 error to all readers, including those that wait at the home. Rule 13.
Test(asked, the_origin_fails)
{
    begin();
    int waiting = get_run(1);
    world_deliver_all();
    int held = client_get(2, 2 * WORLD_BLOCK, 3 * WORLD_BLOCK - 1);
    world_deliver_all();
    origin_fail_next(ERR_ORIGIN_5XX);
    world_run();
    expect(waiting, CLIENT_ERROR, 0);
    expect(held, CLIENT_ERROR, 0);
    cr_assert_eq(client_status(waiting), 503);
    cr_assert_eq(client_status(held), 503);
    cr_assert_eq(origin_requests(), 1);
    int later = get_run(1);
    world_run();
    expect(later, CLIENT_COMPLETE, 1);
    world_end();
}

// A missing object is the answer for all that asked while the request was in flight. It is not
// remembered.
Test(asked, the_object_is_not_there)
{
    begin();
    origin_remove();
    int first = get_run(1);
    world_deliver_all();
    int held = client_get(2, 2 * WORLD_BLOCK, 3 * WORLD_BLOCK - 1);
    world_run();
    cr_assert_eq(client_status(first), 404);
    cr_assert_eq(client_status(held), 404);
    origin_overwrite();
    int later = get_run(1);
    world_run();
    expect(later, CLIENT_COMPLETE, 3);
    world_end();
}

// The version differs (412): a reader that has sent nothing starts again, once, on the new version.
Test(asked, the_version_differs_before_the_first_byte)
{
    begin();
    int first = client_get(0, 0, 9);
    world_run();
    expect(first, CLIENT_COMPLETE, 1);
    unsigned before = origin_requests();
    origin_overwrite();
    int second = client_get(1, 2 * WORLD_BLOCK, 3 * WORLD_BLOCK - 1);
    world_run();
    expect(second, CLIENT_COMPLETE, 2);
    cr_assert_eq(origin_requests() - before, 2);
    world_end();
}

// A reader that has sent bytes of the old version is cut. Rules 8, 22.
Test(asked, the_version_differs_after_the_first_byte)
{
    begin();
    int first = get_run(0);
    world_run();
    expect(first, CLIENT_COMPLETE, 1);
    world_hold(EVENT_READ, -1, -1);
    int whole = client_get(1, 0, UINT64_MAX); // blocks 0 and 1 are there
    world_run();
    origin_overwrite();
    world_release();
    world_run();
    expect(whole, CLIENT_CUT, 1);
    cr_assert_eq(client_received(whole), 2 * WORLD_BLOCK);
    cr_assert_eq(store_visible_version(), 0, "the old version is gone");
    world_end();
}

// A reader is bound to an old version and waits on a first request. It is removed when the head
// shows a new version. Rule 18.
Test(asked, the_head_shows_another_version_to_a_bound_reader)
{
    struct world_options options = {.seed = 2, .piece_bytes = PIECE, .refuse_store = true};
    world_begin(&options);
    int bound = client_get(1, 0, UINT64_MAX);
    world_hold(EVENT_ORIGIN, 0, -1);
    world_deliver_all();
    origin_steps(4); // head and some bytes of run 0-1; run 2-3 is asked for
    drain(bound);
    cr_assert_gt(client_received(bound), 0);
    origin_overwrite();
    world_release();
    world_run();
    expect(bound, CLIENT_CUT, 1);
    world_end();
}

// The last reader leaves: the run is cancelled at once, and the late answer finds nobody. Rule 21.
Test(asked, the_last_reader_leaves)
{
    begin();
    int client = get_run(1);
    world_deliver_all();
    origin_steps(1);
    client_leave(client);
    world_deliver_all();
    cr_assert_eq(counter(COUNTER_fills_cancelled), 1);
    int next = get_run(2);
    world_run();
    expect(next, CLIENT_COMPLETE, 1);
    cr_assert_eq(origin_sent(1, 0), 1);
    world_end();
}

// One of two readers leaves: nothing happens to the other.
Test(asked, not_the_last_reader_leaves)
{
    begin();
    int known = client_get(0, 0, 9);
    world_run();
    expect(known, CLIENT_COMPLETE, 1);
    int first = client_get(1, 2 * WORLD_BLOCK, 3 * WORLD_BLOCK - 1);
    int second = client_get(2, 2 * WORLD_BLOCK, 3 * WORLD_BLOCK - 1);
    world_deliver_all();
    client_leave(first);
    world_run();
    expect(second, CLIENT_COMPLETE, 1);
    cr_assert_eq(origin_requests(), 2);
    cr_assert_eq(counter(COUNTER_fills_cancelled), 0);
    world_end();
}

// A run longer than any cache has room for needs a promise. The promise ends when the run has
// begun, has failed, or has no reader left. Without a promise it is a short run.
Test(asked, a_long_run_wants_a_promise)
{
    struct world_options options = {
        .seed = 2, .piece_bytes = PIECE, .readahead = true, .long_runs = true};
    for (unsigned refused = 0; refused < 2; refused++) {
        world_begin(&options);
        world.long_asks = refused;
        int reader = client_get(0, 0, 2 * WORLD_BLOCK - 1);
        world_deliver_all();
        cr_assert_eq(world.longs_promised, 1 - refused);
        world_run();
        expect(reader, CLIENT_COMPLETE, 1);
        cr_assert_eq(world.longs_promised, 0);
        cr_assert_eq(origin_requests(), 1 + refused);
        world_end();
    }
    world_begin(&options);
    int leaver = client_get(0, 0, UINT64_MAX);
    world_deliver_all();
    cr_assert_eq(world.longs_promised, 1);
    client_leave(leaver);
    world_run();
    cr_assert_eq(world.longs_promised, 0);
    world_end();
}

// A prefetched run counts as demand from the moment when a reader waits for it.
Test(asked, a_reader_joins_read_ahead)
{
    struct world_options options = {.seed = 2, .piece_bytes = PIECE, .readahead = true};
    world_begin(&options);
    int first = client_get(0, 0, UINT64_MAX);
    world_deliver_all();
    for (unsigned i = 0; i < 8 && origin_ahead() == 0; i++) {
        origin_steps(1);
        drain(first);
    }
    unsigned ahead = origin_ahead(), requests = origin_requests();
    cr_assert_gt(ahead, 0);
    int second = client_get(1, 3 * WORLD_BLOCK, 4 * WORLD_BLOCK - 1);
    world_deliver_all();
    cr_assert_eq(origin_ahead(), ahead - 1);
    cr_assert_eq(origin_requests(), requests);
    world_run();
    expect(first, CLIENT_COMPLETE, 1);
    expect(second, CLIENT_COMPLETE, 1);
    world_end();
}

// Read-ahead sends HEAD for the next object, then fetches its blocks of that version. A reader that
// comes joins them, and nothing is requested twice.
Test(asked, a_reader_joins_the_read_ahead_of_the_next_object)
{
    struct world_options options = {
        .seed = 5, .size_bytes = 2 * WORLD_BLOCK, .piece_bytes = PIECE, .readahead = true};
    world_begin(&options);
    int first = client_get(0, 0, UINT64_MAX);
    world_deliver_all();
    for (unsigned i = 0; i < 60 && origin_ahead() == 0; i++) {
        origin_steps(1);
        drain(first);
        world_deliver_all();
    }
    cr_assert_eq(counter(COUNTER_readahead_objects), 1);
    cr_assert_eq(origin_heads(), 1);
    cr_assert_gt(origin_ahead(), 0);
    world_use_key(1);
    int second = client_get(1, 0, UINT64_MAX);
    world_run();
    expect(first, CLIENT_COMPLETE, 1);
    expect(second, CLIENT_COMPLETE, 1);
    cr_assert_eq(origin_sent(1, 0), 1);
    cr_assert_eq(origin_sent(1, 1), 1);
    world_end();
}

// --- body ----------------------------------------------------------------------------------------

// A reader that joins gets the bytes that have arrived at once.
Test(body, a_reader_joins)
{
    begin();
    int first = get_run(1);
    origin_begin_body(1);
    int second = get_run(2);
    world_hold(EVENT_ORIGIN, -1, -1);
    world_run();
    cr_assert_eq(client_received(first), PIECE);
    cr_assert_eq(client_received(second), PIECE);
    world_release();
    world_run();
    expect(second, CLIENT_COMPLETE, 1);
    cr_assert_eq(origin_requests(), 1);
    world_end();
}

// The body breaks off: the rest is requested, of the same version, and nothing else. Rule 22.
Test(body, the_origin_fails)
{
    begin();
    origin_reset_next(1);
    int client = get_run(1);
    world_run();
    expect(client, CLIENT_COMPLETE, 1);
    cr_assert_eq(counter(COUNTER_fills_resumed), 1);
    cr_assert_eq(origin_requests(), 2);
    cr_assert_eq(origin_sent(1, 0), 1);
    cr_assert(store_visible(0) && store_visible(1));
    world_end();
}

// The body breaks off again and again: readers are cut. The whole blocks received so far are kept.
Test(body, the_origin_fails_beyond_the_budget)
{
    struct world_options options = {.seed = 2, .piece_bytes = 17000};
    world_begin(&options);
    origin_reset_next(100);
    int client = get_run(1);
    world_run();
    expect(client, CLIENT_CUT, 1);
    cr_assert_eq(client_received(client), 4 * 17000);
    cr_assert_eq(counter(COUNTER_fills_resumed), 3);
    cr_assert(store_visible(0));
    cr_assert_not(store_visible(1));
    world_end();
}

// The rest of a broken body is of another version: cut, and nothing of the run is kept.
// Rule 22.
Test(body, the_version_differs)
{
    begin();
    origin_reset_next(1);
    int client = get_run(1);
    origin_begin_body(1); // then it breaks off
    origin_overwrite();
    world_run();
    expect(client, CLIENT_CUT, 1);
    cr_assert_eq(store_visible_version(), 0);
    int next = get_run(2);
    world_run();
    expect(next, CLIENT_COMPLETE, 2);
    world_end();
}

// The last reader leaves: the block in progress is finished and kept, and the rest is not
// requested. Rule 21.
Test(body, the_last_reader_leaves)
{
    begin();
    int client = get_run(1);
    origin_begin_body(1);
    client_leave(client);
    world_run();
    cr_assert(store_visible(0));
    cr_assert_not(store_visible(1));
    cr_assert_eq(origin_sent(1, 1), 0);
    world_end();
}

// A reader that then comes for a later block starts a run of its own. Rules 7, 21.
Test(body, a_reader_joins_after_the_last_one_left)
{
    begin();
    int first = get_run(1);
    origin_begin_body(1);
    client_leave(first);
    world_deliver_all();
    int second = get_run(2);
    world_run();
    expect(second, CLIENT_COMPLETE, 1);
    cr_assert_eq(origin_sent(1, 0), 1);
    cr_assert_eq(origin_sent(1, 1), 1);
    world_end();
}

// The store refuses: the run goes on unstored, readers are served.
// Rule 23.
Test(body, the_store_refuses)
{
    begin();
    store_refuse(true);
    int first = get_run(1), second = get_run(2);
    origin_begin_body(0);
    world_run();
    expect(first, CLIENT_COMPLETE, 1);
    expect(second, CLIENT_COMPLETE, 1);
    cr_assert_eq(origin_requests(), 1);
    cr_assert_eq(counter(COUNTER_fills_unstored), 1);
    cr_assert_eq(store_visible_version(), 0);
    world_end();
}

// For an unstored run, the origin is asked at most one window ahead of the fastest reader, from the
// first byte on. Rule 23.
Test(body, an_unstored_run_is_bounded_while_no_reader_takes_bytes)
{
    begin_unstored();
    world_hold(EVENT_PULL, -1, -1);
    int client = client_get(1, 0, UINT64_MAX);
    world_run();
    cr_assert_gt(chunk_budget_used_bytes(), MIB - 2 * CHUNK_SIZE);
    cr_assert_lt(chunk_budget_used_bytes(), MIB + 4 * CHUNK_SIZE);
    world_release();
    world_run();
    expect(client, CLIENT_COMPLETE, 1);
    cr_assert_eq(origin_sent(1, 0), 1);
    world_end();
}

// An unstored run releases memory as its readers take the bytes. A reader that is too far behind
// continues with a run of its own.
Test(body, unstored_and_one_reader_is_slow)
{
    begin_unstored();
    int slow = client_get(1, 0, UINT64_MAX);
    world_deliver_all();
    int fast = client_get(2, 0, UINT64_MAX);
    origin_begin_body(0);
    world_hold(EVENT_PULL, slow, -1);
    world_run();
    expect(fast, CLIENT_COMPLETE, 1);
    cr_assert_eq(counter(COUNTER_readers_detached), 1);
    cr_assert_eq(client_outcome(slow), CLIENT_OPEN);
    world_release();
    world_run();
    expect(slow, CLIENT_COMPLETE, 1);
    cr_assert_eq(origin_requests(), 2, "a request of its own");
    world_end();
}

// A reader joins an unstored run after the run's beginning was released. It requests those bytes
// itself. Rule 23.
Test(body, unstored_and_a_reader_comes_late)
{
    begin_unstored();
    int first = client_get(1, 0, UINT64_MAX);
    world_deliver_all();
    for (unsigned i = 0; i < 2 + 2 * MIB / PIECE; i++) {
        cr_assert(world_do(EVENT_ORIGIN, 0, -1));
        world_deliver_all();
        drain(first);
    }
    int late = client_get(2, 0, UINT64_MAX);
    world_run();
    expect(first, CLIENT_COMPLETE, 1);
    expect(late, CLIENT_COMPLETE, 1);
    cr_assert_eq(origin_requests(), 2);
    world_end();
}

// A reader of a stored run that falls behind drops its queue and continues from disk. Nobody waits
// for it.
Test(body, stored_and_one_reader_is_slow)
{
    struct world_options options = {
        .seed = 2, .piece_bytes = PIECE, .size_bytes = 8 * MIB, .block_size_bytes = 8 * MIB};
    world_begin(&options);
    int slow = client_get(1, 0, UINT64_MAX);
    world_deliver_all();
    world_hold(EVENT_PULL, slow, -1);
    int fast = client_get(2, 0, UINT64_MAX);
    world_run();
    expect(fast, CLIENT_COMPLETE, 1);
    cr_assert_eq(counter(COUNTER_readers_detached), 1);
    cr_assert(store_visible(0));
    cr_assert_lt(chunk_budget_used_bytes(), 4 * MIB + 4 * CHUNK_SIZE);
    world_release();
    world_run();
    expect(slow, CLIENT_COMPLETE, 1);
    cr_assert_eq(origin_requests(), 1);
    world_end();
}

// Memory is short: transfers pause, but one continues. No reader fails, and none waits for ever.
Test(body, memory_is_short)
{
    struct world_options options = {
        .seed = 2, .piece_bytes = PIECE / 2, .buffer_bytes = 2 * CHUNK_SIZE};
    world_begin(&options);
    int clients[8];
    for (unsigned i = 0; i < 8; i++) {
        world_use_key(i % 2);
        clients[i] = client_get(i % WORLD_WORKERS, 0, UINT64_MAX);
    }
    uint64_t peak = 0;
    while (world_step()) {
        peak = chunk_budget_used_bytes() > peak ? chunk_budget_used_bytes() : peak;
    }
    for (unsigned i = 0; i < 8; i++) {
        expect(clients[i], CLIENT_COMPLETE, 1);
    }
    cr_assert_gt(counter(COUNTER_buffer_paused), 0);
    cr_assert_lt(peak, 24 * CHUNK_SIZE, "%llu", (unsigned long long)peak);
    for (unsigned block = 0; block < WORLD_BLOCKS; block++) {
        cr_assert_eq(origin_sent(1, block), 1);
    }
    world_end();
}

// Memory is short, and the run that may continue has a client that reads nothing. Another run
// continues instead.
Test(body, memory_is_short_and_the_leading_run_is_stuck)
{
    struct world_options options = {.seed = 2,
                                    .piece_bytes = PIECE,
                                    .size_bytes = 4 * MIB,
                                    .block_size_bytes = 4 * MIB,
                                    .buffer_bytes = CHUNK_SIZE,
                                    .refuse_store = true};
    world_begin(&options);
    int stuck = client_get(0, 0, UINT64_MAX);
    world_deliver_all();
    world_hold(EVENT_PULL, stuck, -1);
    world_run();
    cr_assert_lt(chunk_budget_used_bytes(), 6 * CHUNK_SIZE);
    world_use_key(1);
    int other = client_get(1, 0, UINT64_MAX);
    world_run();
    expect(other, CLIENT_COMPLETE, 1);
    world_release();
    world_run();
    expect(stuck, CLIENT_COMPLETE, 1);
    world_end();
}

// --- written, not yet visible --------------------------------------------------------------------

// A reader that joins reads the pending place.
// Rule 20.
Test(written, a_reader_joins)
{
    begin();
    world_hold_message(MESSAGE_publish, -1, -1);
    int first = client_get(1, 2 * WORLD_BLOCK, 4 * WORLD_BLOCK - 1);
    world_run();
    int second = client_get(2, 2 * WORLD_BLOCK, 4 * WORLD_BLOCK - 1);
    world_run();
    expect(first, CLIENT_COMPLETE, 1);
    expect(second, CLIENT_COMPLETE, 1);
    cr_assert_eq(client_result(second), RESULT_HIT);
    cr_assert_eq(origin_requests(), 1);
    cr_assert_not(store_visible(2));
    world_end();
}

// A reader that comes while the last bytes are on their way to the disk gets them from memory, and
// a hit.
// Rule 32.
Test(written, a_reader_joins_while_it_is_being_written)
{
    begin();
    world_hold(EVENT_WRITTEN, -1, -1);
    int first = get_run(1);
    world_run();
    expect(first, CLIENT_COMPLETE, 1);
    int second = get_run(2);
    world_run();
    expect(second, CLIENT_COMPLETE, 1);
    cr_assert_eq(client_result(second), RESULT_HIT);
    world_release();
    world_end();
    cr_assert_eq(origin_requests(), 1);
}

// A reader that comes after the bytes have left memory is given the place as soon as there is one.
Test(written, a_reader_joins_when_memory_is_short)
{
    begin_short_of_memory();
    world_hold(EVENT_WRITTEN, -1, -1);
    int first = get_run(1);
    world_run();
    expect(first, CLIENT_COMPLETE, 1);
    int second = get_run(2);
    world_run();
    cr_assert_eq(client_received(second), 0);
    world_release();
    world_run();
    expect(second, CLIENT_COMPLETE, 1);
    cr_assert_eq(origin_requests(), 1);
    world_end();
}

// The last reader leaves: the run continues.
Test(written, the_last_reader_leaves)
{
    begin();
    world_hold(EVENT_WRITTEN, -1, -1);
    int first = get_run(1);
    world_run();
    int second = get_run(2);
    world_run();
    client_leave(second);
    world_end();
    (void)first;
    cr_assert_eq(store_visible_version(), 1);
}

// The write fails: readers that waited for the place ask again.
Test(written, the_write_fails)
{
    begin_short_of_memory();
    world_hold(EVENT_WRITTEN, -1, -1);
    int first = get_run(1);
    world_run();
    int second = get_run(2);
    world_run();
    store_fail_next_write();
    world_release();
    world_run();
    expect(first, CLIENT_COMPLETE, 1);
    expect(second, CLIENT_COMPLETE, 1);
    cr_assert_eq(origin_requests(), 2);
    world_end();
}

// The commit fails: the run no longer counts, and its readers are still served from its place.
// Rule 15.
Test(written, the_commit_fails)
{
    begin();
    world_hold(EVENT_COMMIT, -1, -1);
    int first = get_run(1);
    world_run();
    expect(first, CLIENT_COMPLETE, 1);
    world_hold(EVENT_READ, -1, -1);
    int second = get_run(2);
    world_run();
    store_fail_next_commit();
    cr_assert(world_do(EVENT_COMMIT, -1, -1));
    world_deliver_all();
    cr_assert_not(store_visible(0));
    world_release();
    world_run();
    expect(second, CLIENT_COMPLETE, 1);
    cr_assert_eq(origin_requests(), 1);
    cr_assert_not(store_visible(0));
    int third = get_run(0);
    world_run();
    expect(third, CLIENT_COMPLETE, 1);
    cr_assert_eq(origin_requests(), 2);
    world_end();
}

// The reads of a pending place fail: the blocks are requested again within the same reply.
Test(written, the_read_fails)
{
    static const enum err errs[] = {ERR_CORRUPT, ERR_IO};
    for (unsigned i = 0; i < ARRAY_LEN(errs); i++) {
        begin();
        int first = get_run(1);
        world_run();
        store_fail_next_read(errs[i]);
        int second = get_run(2);
        world_run();
        expect(first, CLIENT_COMPLETE, 1);
        expect(second, CLIENT_COMPLETE, 1);
        cr_assert_eq(origin_sent(1, 0), 2);
        int third = get_run(0);
        world_run();
        expect(third, CLIENT_COMPLETE, 1);
        cr_assert_eq(origin_sent(1, 0), 2, "it was stored again");
        world_end();
    }
}

// Visible: the entry is gone, the index answers.
// Rules 15, 20.
Test(written, it_is_visible)
{
    begin();
    int first = get_run(1);
    world_run();
    cr_assert_eq(counter(COUNTER_fills_stored), 1);
    cr_assert_eq(counter(COUNTER_fills_inflight), 0);
    int second = get_run(2);
    world_run();
    expect(first, CLIENT_COMPLETE, 1);
    expect(second, CLIENT_COMPLETE, 1);
    cr_assert(client_result(second) == RESULT_HIT);
    cr_assert_eq(origin_requests(), 1);
    world_end();
}

// --- doomed: a write to the key passed through ---------------------------------------------------

// In any state, a reader that comes later starts a new run. Present readers keep what they began,
// or ask again if no version is known yet. The run is never published.
static void write_in_state(unsigned origin_steps_before, bool written)
{
    bool is_asked = origin_steps_before < 2;
    begin();
    int before = get_run(1);
    world_deliver_all();
    origin_steps(origin_steps_before);
    if (written) {
        world_hold(EVENT_WRITTEN, -1, -1);
        world_run();
    }
    world_hold(EVENT_ORIGIN, 0, -1);
    int writer = write_through(2);
    cr_assert(writer_replied(writer));
    cr_assert_eq(client_outcome(before) != CLIENT_OPEN, is_asked || written, "it asks again");
    int after = get_run(0);
    world_run();
    world_release();
    world_run();
    expect(before, CLIENT_COMPLETE, 1);
    expect(after, CLIENT_COMPLETE, 2);
    cr_assert_eq(counter(COUNTER_fills_doomed), 1);
    cr_assert_eq(counter(COUNTER_fills_cancelled), is_asked);
    cr_assert(store_visible_version() == 2);
    world_end();
}

Test(doomed, before_the_origin_looked)
{
    write_in_state(0, false);
}

Test(doomed, asked)
{
    write_in_state(1, false);
}

Test(doomed, head)
{
    write_in_state(2, false);
}

Test(doomed, body)
{
    write_in_state(3, false);
}

Test(doomed, writing)
{
    write_in_state(2, true);
}

// The run is doomed while its body arrives, and the last reader leaves: it is cancelled, and
// nothing is kept.
Test(doomed, the_last_reader_leaves)
{
    begin();
    int before = get_run(1);
    origin_begin_body(1);
    world_hold(EVENT_ORIGIN, -1, -1);
    int writer = write_through(2);
    client_leave(before);
    world_deliver_all();
    world_release();
    world_run();
    cr_assert(writer_replied(writer));
    cr_assert_eq(counter(COUNTER_fills_cancelled), 1);
    cr_assert_eq(store_visible_version(), 0);
    world_end();
}
