// SPDX-License-Identifier: Apache-2.0
// Proves: a reader that asks for an object's checksums gets them with the first request, whose
// transfer ends with the run. If that costs too much, or if another reader was first, one HEAD
// brings them and nobody waits for it.
#include "fill/home_private.h"
#include "world_private.h"

#include "test.h"

static void begin(uint64_t size_bytes)
{
    struct world_options options = {.seed = 5, .size_bytes = size_bytes};
    world_begin(&options);
}

static int ask(unsigned worker, bool head)
{
    return client_start(&(struct client_ask){
        .worker = worker, .head = head, .checksums = true, .last = UINT64_MAX});
}

static void expect(int client, bool has_checksums)
{
    cr_assert_eq(client_outcome(client), CLIENT_COMPLETE, "outcome %d", client_outcome(client));
    cr_assert_eq(client_status(client), 200);
    cr_assert_eq(client_has_checksums(client), has_checksums);
}

// Any worker now answers without the origin.
static void expect_known(bool has_checksums)
{
    unsigned before = origin_requests();
    for (unsigned worker = 0; worker < WORLD_WORKERS; worker++) {
        int client = ask(worker, false), head = ask(worker, true);
        world_run();
        expect(client, has_checksums);
        expect(head, has_checksums);
    }
    cr_assert_eq(origin_requests(), before);
}

static void expect_sent_once(int version)
{
    for (unsigned block = 0; block < WORLD_BLOCKS; block++) {
        cr_assert_eq(origin_sent(version, block), 1, "block %u: %u", block,
                     origin_sent(version, block));
    }
}

// --- asked for whole -----------------------------------------------------------------------------

// The kind of the object is unknown: the first run's request has no range, and its transfer ends
// with the run.
Test(fill_describe, first_read_of_a_large_object_is_cut_after_its_first_run)
{
    begin(0);
    int client = ask(2, false);
    world_run();
    expect(client, true);
    cr_assert_eq(client_length(client), WORLD_SIZE);
    cr_assert_eq(origin_heads(), 0);
    cr_assert_eq(origin_requests(), 3, "one for each run");
    cr_assert_eq(counter(COUNTER_fills_whole), 1);
    cr_assert_eq(counter(COUNTER_fills_whole_cut), 1);
    expect_sent_once(1);
    expect_known(true);
    world_end();
}

Test(fill_describe, first_read_of_a_small_object_is_one_request)
{
    begin(2 * WORLD_BLOCK);
    int clients[2 * WORLD_KEYS]; // at once, two for each key
    for (unsigned i = 0; i < ARRAY_LEN(clients); i++) {
        world_use_key(i % WORLD_KEYS);
        clients[i] = ask(i % WORLD_WORKERS, false);
    }
    world_run();
    for (unsigned i = 0; i < ARRAY_LEN(clients); i++) {
        expect(clients[i], true);
    }
    cr_assert_eq(origin_requests(), WORLD_KEYS);
    cr_assert_eq(counter(COUNTER_fills_whole_cut), 0);
    world_end();
}

Test(fill_describe, reader_with_a_range_causes_no_head)
{
    for (unsigned suffix = 0; suffix < 2; suffix++) {
        begin(0);
        int client = client_start(&(struct client_ask){
            .worker = 2, .has_range = true, .checksums = true, .last = 99, .suffix = suffix * 100});
        world_run();
        cr_assert_eq(client_outcome(client), CLIENT_COMPLETE);
        cr_assert_eq(client_status(client), 206);
        cr_assert_eq(origin_requests(), 1);
        cr_assert_eq(origin_heads(), 0);
        cr_assert_eq(counter(COUNTER_fills_whole), 0);
        world_end();
    }
}

// The rest of the run comes by a range that ends with it.
Test(fill_describe, cut_run_whose_body_breaks_is_resumed_by_a_range)
{
    for (unsigned times = 1; times <= 3; times++) {
        begin(0);
        origin_reset_next(times);
        int client = ask(2, false);
        world_run();
        expect(client, true);
        cr_assert_eq(counter(COUNTER_fills_resumed), times);
        expect_sent_once(1);
        expect_known(true);
        world_end();
    }
}

// While memory is short, the transfer pauses and is parked. Then it continues by ranges.
Test(fill_describe, cut_run_waits_for_memory)
{
    for (unsigned seed = 0; seed < 50; seed++) {
        struct world_options options = {.seed = seed, .buffer_bytes = 1, .slow_percent = 50};
        world_begin(&options);
        int clients[3];
        for (unsigned i = 0; i < ARRAY_LEN(clients); i++) {
            clients[i] = ask(i, false);
        }
        world_run();
        for (unsigned i = 0; i < ARRAY_LEN(clients); i++) {
            expect(clients[i], true);
        }
        cr_assert_eq(origin_heads(), 0);
        world_end();
    }
}

Test(fill_describe, cut_run_that_is_not_stored_is_streamed)
{
    struct world_options options = {.seed = 5, .refuse_store = true};
    world_begin(&options);
    int client = ask(2, false);
    world_run();
    expect(client, true);
    cr_assert_eq(origin_requests(), 3);
    expect_sent_once(1);
    world_end();
}

// Runs of a version without a name cannot be combined: the request passes through.
Test(fill_describe, cut_run_without_an_etag_passes_through)
{
    struct world_options options = {.seed = 5, .no_etag = true};
    world_begin(&options);
    int client = ask(2, false);
    world_run();
    cr_assert_eq(client_outcome(client), CLIENT_PASSED);
    cr_assert_eq(origin_requests(), 1);
    world_end();
}

Test(fill_describe, cut_run_is_left_at_any_time)
{
    for (unsigned steps = 0; steps < 40; steps++) {
        begin(0);
        int client = ask(2, false);
        for (unsigned i = 0; i < steps; i++) {
            (void)world_step();
        }
        if (client_outcome(client) == CLIENT_OPEN) {
            client_leave(client);
        }
        world_run();
        client = ask(1, false);
        world_run();
        cr_assert_eq(client_outcome(client), CLIENT_COMPLETE);
        world_end();
    }
}

// --- kinds ---------------------------------------------------------------------------------------

// Nothing of the key is known any more.
static void write_anew(void)
{
    int writer = writer_begin(1);
    world_run();
    writer_write(writer);
    world_run();
    cr_assert(writer_replied(writer));
}

// Reads each object once, for its first time, and returns how many of them were asked for by
// ranges.
static unsigned read_anew(unsigned count, uint64_t size_bytes)
{
    uint64_t before = counter(COUNTER_fills_whole);
    for (unsigned i = 0; i < count; i++) {
        origin_resize(size_bytes);
        write_anew();
        int client = ask(2, false);
        world_run();
        cr_assert_eq(client_outcome(client), CLIENT_COMPLETE);
        cr_assert_eq(client_length(client), size_bytes);
    }
    return count - (unsigned)(counter(COUNTER_fills_whole) - before);
}

#define SMALL (2u * WORLD_BLOCK)
#define SCORE 16u // this many small objects outweigh a large one

Test(fill_describe, after_one_large_object_its_kind_is_asked_for_by_ranges)
{
    begin(0);
    cr_assert_eq(read_anew(1, WORLD_SIZE), 0);
    world_use_key(1); // both keys are of one kind
    cr_assert_eq(read_anew(3, WORLD_SIZE), 3);
    cr_assert_eq(origin_heads(), 3);
    cr_assert_eq(counter(COUNTER_fills_whole_cut), 1);
    world_end();
}

Test(fill_describe, many_small_objects_in_a_row_make_a_large_kind_small_again)
{
    begin(0);
    cr_assert_eq(read_anew(1, WORLD_SIZE), 0);
    cr_assert_eq(read_anew(SCORE + 3, SMALL), SCORE);
    world_end();
}

Test(fill_describe, one_large_object_among_many_small_ones_changes_nothing)
{
    begin(0);
    cr_assert_eq(read_anew(SCORE, SMALL), 0);
    cr_assert_eq(read_anew(1, WORLD_SIZE), 0);
    cr_assert_eq(read_anew(1, SMALL), 0);
    cr_assert_eq(read_anew(1, WORLD_SIZE), 0);
    cr_assert_eq(read_anew(1, SMALL), 1, "two are too many");
    world_end();
}

// Readers of ranges teach the kind too.
Test(fill_describe, kind_is_learnt_from_every_reader)
{
    begin(0);
    int plain = client_get(1, WORLD_BLOCK, WORLD_BLOCK + 9);
    world_run();
    cr_assert_eq(client_outcome(plain), CLIENT_COMPLETE);
    world_use_key(1);
    cr_assert_eq(read_anew(1, WORLD_SIZE), 1);
    world_end();
}

Test(fill_describe, reader_who_does_not_ask_sees_no_other_requests)
{
    begin(SMALL);
    for (unsigned i = 0; i < SCORE + 1; i++) {
        int client = client_get(2, 0, UINT64_MAX);
        world_run();
        expect(client, false);
        write_anew();
    }
    cr_assert_eq(origin_requests(), SCORE + 1);
    cr_assert_eq(counter(COUNTER_fills_whole), 0);
    world_end();
}

// Reads an object of that size for the first time, with or without a promise of a long run. Returns
// how many requests the origin got.
static unsigned read_promised(bool is_promised, uint64_t size_bytes)
{
    origin_resize(size_bytes);
    write_anew();
    world.long_asks = is_promised ? 0 : 1;
    unsigned before = origin_requests();
    int client = ask(2, false);
    world_run();
    cr_assert_eq(client_outcome(client), CLIENT_COMPLETE);
    cr_assert_eq(client_length(client), size_bytes);
    return origin_requests() - before;
}

// Without room for long runs, a kind is small if its objects fit in short runs.
Test(fill_describe, kind_is_judged_by_the_run_that_the_store_has_room_for)
{
    struct world_options options = {.seed = 5, .readahead = true, .long_runs = true};
    world_begin(&options);
    world.rule.readahead_bytes = 0;
    cr_assert_eq(read_promised(false, WORLD_BLOCK), 1);
    cr_assert_eq(origin_heads(), 0);
    cr_assert_eq(read_promised(false, SMALL), 2);
    cr_assert_eq(counter(COUNTER_fills_whole_cut), 1);
    cr_assert_eq(read_promised(false, SMALL), 3, "two short runs and a HEAD");
    cr_assert_eq(origin_heads(), 1);
    cr_assert_eq(read_promised(true, SMALL), 1);
    cr_assert_eq(counter(COUNTER_fills_whole_cut), 1);
    world_end();
}

// --- HEAD beside a run ---------------------------------------------------------------------------

// The kind is large. Returns a reader of key 1 whose run and HEAD are in flight, and the HEAD's
// index.
static int ask_beside(int *ret_head)
{
    begin(0);
    int plain = client_get(1, 0, UINT64_MAX);
    world_run();
    expect(plain, false);
    world_use_key(1);
    int client = ask(2, false);
    world_deliver_all();
    *ret_head = -1;
    for (int i = 0; i < MAX_FETCHES; i++) {
        *ret_head =
            world.fetches[i].used && origin_fetch_is_head(world.fetches[i].f) ? i : *ret_head;
    }
    cr_assert_geq(*ret_head, 0);
    cr_assert_eq(origin_heads(), 1);
    return client;
}

Test(fill_describe, reply_has_the_checksums_that_head_brings_in_time)
{
    int head, client = ask_beside(&head);
    while (world.fetches[head].used && origin_fetch_is_head(world.fetches[head].f)) {
        cr_assert(world_do(EVENT_ORIGIN, head, -1));
    }
    world_run();
    expect(client, true);
    cr_assert_eq(origin_heads(), 1);
    expect_sent_once(1);
    expect_known(true);
    world_end();
}

// HEAD does not answer. The run's head waits as long as it took to arrive, then continues without
// the HEAD.
Test(fill_describe, run_does_not_wait_for_long)
{
    int head, client = ask_beside(&head);
    world_hold(EVENT_ORIGIN, head, -1);
    world_hold(EVENT_TIMER, -1, -1);
    world_run();
    cr_assert_eq(client_status(client), 0);
    origin_fail_next(ERR_ORIGIN_5XX);
    world_release();
    world_run();
    expect(client, false);
    cr_assert_eq(client_received(client), WORLD_SIZE);
    expect_sent_once(1);
    world_end();
}

// The HEAD describes a version that was written after the run began.
Test(fill_describe, head_of_another_version_is_not_believed)
{
    int head, client = ask_beside(&head);
    while (!world_do(EVENT_ORIGIN, head, -1)) {
    }
    origin_overwrite();
    while (world.fetches[head].used && origin_fetch_is_head(world.fetches[head].f)) {
        cr_assert(world_do(EVENT_ORIGIN, head, -1));
    }
    world_run();
    expect(client, false);
    world_end();
}

// Readers that did not ask for checksums stored the object. One HEAD, for which nobody waits,
// learns them, and the next reader has them.
Test(fill_describe, a_version_without_them_is_described_once)
{
    begin(0);
    int plain = client_get(1, 0, UINT64_MAX);
    world_run();
    expect(plain, false);
    cr_assert_eq(origin_heads(), 0);
    int client = ask(2, false);
    world_run();
    expect(client, false);
    cr_assert_eq(origin_heads(), 1);
    cr_assert_eq(counter(COUNTER_checksums_learnt), 1);
    expect_known(true);
    world_end();
}

Test(fill_describe, that_there_are_none_is_found_out_once)
{
    begin(0);
    origin_name_no_checksums();
    int plain = client_get(1, 0, UINT64_MAX);
    world_run();
    expect(plain, false);
    for (unsigned i = 0; i < 3; i++) {
        int client = ask(2, false);
        world_run();
        expect(client, false);
    }
    cr_assert_eq(origin_heads(), 1);
    expect_known(false);
    world_end();
}

// Many ask at once, on all workers: one HEAD.
Test(fill_describe, one_head_answers_all_readers_that_come_while_it_is_in_flight)
{
    begin(0);
    int plain = client_get(1, 0, UINT64_MAX);
    world_run();
    expect(plain, false);
    int clients[3 * WORLD_WORKERS];
    for (unsigned i = 0; i < ARRAY_LEN(clients); i++) {
        clients[i] = ask(i % WORLD_WORKERS, false);
    }
    world_run();
    for (unsigned i = 0; i < ARRAY_LEN(clients); i++) {
        cr_assert_eq(client_outcome(clients[i]), CLIENT_COMPLETE);
    }
    cr_assert_eq(origin_heads(), 1);
    expect_known(true);
    world_end();
}

// The run in flight belongs to a reader that did not want checksums. The HEAD is answered before
// the run is stored, and the run's record has them.
Test(fill_describe, checksums_learnt_before_the_put_are_kept_with_it)
{
    begin(0);
    world_hold(EVENT_WRITTEN, -1, -1);
    int plain = client_get(1, 0, UINT64_MAX);
    world_run();
    expect(plain, false);
    int client = ask(2, false);
    world_run();
    expect(client, false);
    cr_assert_eq(origin_heads(), 1);
    world_release();
    world_run();
    expect_known(true);
    world_end();
}

// With a write in between, the HEAD describes the earlier version. Its checksums are kept with no
// other version.
Test(fill_describe, checksums_of_another_version_are_not_kept)
{
    begin(0);
    int plain = client_get(1, 0, UINT64_MAX);
    world_run();
    expect(plain, false);
    world_hold(EVENT_ORIGIN, -1, -1);
    int client = ask(2, false);
    world_run();
    expect(client, false);
    origin_overwrite(); // seen by the HEAD, if it comes later
    world_release();
    world_run();
    plain = client_get(1, 0, UINT64_MAX);
    world_run();
    cr_assert_eq(client_outcome(plain), CLIENT_COMPLETE);
    client = ask(2, false); // judged by the world: none of another version
    world_run();
    expect_known(true);
    world_end();
}

// The version is cached and HEAD does not answer. No reader of bytes waits; a reader that asks for
// checksums alone does.
Test(fill_describe, a_hit_does_not_wait)
{
    begin(0);
    int plain = client_get(1, 0, UINT64_MAX);
    world_run();
    expect(plain, false);
    world_hold(EVENT_ORIGIN, -1, -1);
    int first = ask(2, false), head = ask(1, true), second = ask(0, false);
    world_run();
    expect(first, false);
    expect(second, false);
    cr_assert_eq(client_status(head), 0);
    world_release();
    world_run();
    expect(head, true);
    cr_assert_eq(origin_heads(), 1);
    expect_known(true);
    world_end();
}

// A HEAD that has failed is not sent again at once, and no reader gets its failure.
Test(fill_describe, a_failed_head_is_not_repeated_for_a_while)
{
    begin(0);
    int plain = client_get(1, 0, UINT64_MAX);
    world_run();
    expect(plain, false);
    origin_fail_next(ERR_ACCESS_DENIED);
    for (unsigned i = 0; i < 3; i++) {
        int client = ask(2, false);
        world_run();
        expect(client, false);
    }
    cr_assert_eq(origin_heads(), 1);
    cr_assert_eq(counter(COUNTER_checksum_heads_skipped), 2);
    world_advance_ms(11000);
    int client = ask(2, false);
    world_run();
    expect(client, false);
    cr_assert_eq(origin_heads(), 2);
    expect_known(true);
    world_end();
}

// The last byte is sent when the checksum is verified, however late the transfer ends.
Test(fill_describe, an_object_with_a_wrong_checksum_never_looks_whole)
{
    begin(2 * WORLD_BLOCK);
    origin_name_wrong_checksums();
    int client = ask(2, false);
    for (unsigned i = 0; i < 3000 && client_outcome(client) == CLIENT_OPEN; i++) {
        (void)world_step();
        cr_assert(client_received(client) == 0 || client_received(client) < 2 * WORLD_BLOCK);
    }
    cr_assert(client_outcome(client) == CLIENT_CUT || client_outcome(client) == CLIENT_ERROR);
    world_run();
    cr_assert_not(store_visible(0));
    world_end();
}

// When the last reader leaves a run, its HEAD is cancelled too.
Test(fill_describe, run_without_readers_leaves_no_head_in_flight)
{
    for (unsigned steps = 0; steps < 12; steps++) {
        int head, client = ask_beside(&head);
        for (unsigned i = 0; i < steps; i++) {
            (void)world_step();
        }
        if (client_outcome(client) == CLIENT_OPEN) {
            client_leave(client);
        }
        world_run();
        world_end();
    }
}
