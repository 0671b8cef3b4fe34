// SPDX-License-Identifier: Apache-2.0
// Proves: if a disk read takes longer than the origin would, the origin is asked for the same
// bytes, and the first answer wins. Neither a slow disk nor a failing origin costs the client its
// reply.
#include "world_private.h"

#include "test.h"

#define SIZE ((uint64_t)2 * WORLD_BLOCK) // one run

static void store(unsigned cold_percent, bool slow_disk)
{
    struct world_options options = {.seed = 2,
                                    .size_bytes = SIZE,
                                    .piece_bytes = 1000,
                                    .limit_percent = 100,
                                    .cold_percent = cold_percent,
                                    .slow_disk = slow_disk};
    world_begin(&options);
    (void)client_get(0, 0, UINT64_MAX);
    world_run();
    cr_assert(store_visible(0) && store_visible(1));
    cr_assert_eq(origin_requests(), 1);
}

// Stores the object. The disk then answers nothing until world_release().
static void begin(unsigned cold_percent)
{
    store(cold_percent, false);
    world_hold(EVENT_READ, -1, -1);
    world_hold(EVENT_TIMER, -1, -1);
}

// Starts a reader, and lets the time limit of its disk read pass.
static int get_late_as(unsigned worker, unsigned principal)
{
    int client = client_start(
        &(struct client_ask){.worker = worker, .principal = principal, .last = UINT64_MAX});
    (void)world_do(EVENT_PULL, client, -1);
    cr_assert(world_do(EVENT_TIMER, -1, -1), "the disk read has a time limit");
    return client;
}

static int get_late(unsigned worker)
{
    return get_late_as(worker, 0);
}

static void end(unsigned requests)
{
    world_release();
    world_run();
    cr_assert_eq(origin_requests(), requests, "%u requests", origin_requests());
    world_end(); // checks that the late reads have left nothing
}

static void expect_complete(int client)
{
    cr_assert_eq(client_outcome(client), CLIENT_COMPLETE, "%d", (int)client_outcome(client));
    cr_assert_eq(client_received(client), SIZE);
}

// The run is not stored again.
Test(get_read, origin_answers_for_a_late_disk)
{
    begin(0);
    int client = get_late(0);
    world_run();
    expect_complete(client);
    cr_assert_eq(counter(COUNTER_outrun_late), 1);
    cr_assert_eq(counter(COUNTER_fills_stored), 1);
    end(2);
}

Test(get_read, disk_that_answers_first_ends_the_request_to_the_origin)
{
    begin(0);
    world_hold(EVENT_ORIGIN, -1, -1);
    int client = get_late(0);
    world_deliver_all();
    cr_assert(world_do(EVENT_READ, -1, -1));
    while (client_outcome(client) == CLIENT_OPEN &&
           (world_do(EVENT_PULL, client, -1) || world_do(EVENT_READ, -1, -1))) {
    }
    expect_complete(client);
    cr_assert_eq(counter(COUNTER_hit_read), 1);
    world_deliver_all();
    cr_assert_eq(counter(COUNTER_fills_cancelled), 1);
    end(2);
}

Test(get_read, failing_origin_leaves_the_reader_to_the_disk)
{
    begin(0);
    int client = get_late(0);
    origin_fail_next(ERR_ORIGIN_UNAVAILABLE);
    world_run();
    cr_assert_eq(client_outcome(client), CLIENT_OPEN);
    world_release();
    world_run();
    expect_complete(client);
    end(2);
}

// The rest of the reply comes from the disk after all.
Test(get_read, body_of_the_origin_that_breaks_is_completed_from_the_disk)
{
    begin(0);
    int client = get_late(0);
    origin_reset_next(1000);
    world_run();
    world_release();
    world_run();
    expect_complete(client);
    cr_assert_eq(counter(COUNTER_hit_read), 1);
    world_end();
}

// Rule 8: the origin has another version by now. The reply has begun with the cached one.
Test(get_read, version_that_is_gone_at_the_origin_comes_from_the_disk)
{
    begin(0);
    int client = get_late(0);
    origin_overwrite();
    world_run();
    cr_assert_eq(client_outcome(client), CLIENT_OPEN);
    world_release();
    world_run();
    expect_complete(client);
    cr_assert_eq(client_version(client), 1);
    end(2);
}

// Another version takes its place while the origin sends it. The rest is on the disk.
Test(get_read, version_that_goes_in_mid_body_is_completed_from_the_disk)
{
    begin(0);
    world_hold(EVENT_ORIGIN, -1, -1);
    int client = get_late(0);
    origin_reset_next(1);
    world_deliver_all();
    while (client_received(client) == 0) {
        cr_assert(world_do(EVENT_ORIGIN, -1, -1));
        world_run();
    }
    origin_overwrite();
    world_release();
    world_run();
    expect_complete(client);
    cr_assert_eq(client_version(client), 1);
    world_end();
}

// Rule 16.
Test(get_read, readers_of_the_same_bytes_share_one_request)
{
    begin(0);
    world_hold(EVENT_ORIGIN, -1, -1);
    int clients[6];
    for (unsigned i = 0; i < ARRAY_LEN(clients); i++) {
        clients[i] = get_late(i % WORLD_WORKERS);
    }
    world_deliver_all();
    while (world_do(EVENT_ORIGIN, -1, -1)) {
        world_deliver_all();
    }
    world_run();
    for (unsigned i = 0; i < ARRAY_LEN(clients); i++) {
        expect_complete(clients[i]);
    }
    end(2);
}

// Rule 23: the run removes a reader that is much slower than the others. That is no failure of the
// origin, so the reader asks it again.
Test(get_read, reader_that_a_run_leaves_behind_does_not_wait_for_the_disk)
{
    uint64_t size = 8u << 20;
    struct world_options options = {.seed = 2,
                                    .size_bytes = size,
                                    .block_size_bytes = (uint32_t)size,
                                    .piece_bytes = 65536,
                                    .limit_percent = 100};
    world_begin(&options);
    (void)client_get(0, 0, UINT64_MAX);
    world_run();
    cr_assert(store_visible(0));
    world_hold(EVENT_READ, -1, -1);
    world_hold(EVENT_TIMER, -1, -1);
    int slow = get_late(0), fast = get_late(1);
    world_hold(EVENT_PULL, slow, -1);
    world_run();
    cr_assert_eq(client_outcome(fast), CLIENT_COMPLETE);
    cr_assert_eq(counter(COUNTER_readers_detached), 1);
    while (client_outcome(slow) == CLIENT_OPEN &&
           (world_do(EVENT_PULL, slow, -1) || world_do(EVENT_TIMER, -1, -1))) {
        world_run();
    }
    cr_assert_eq(client_outcome(slow), CLIENT_COMPLETE);
    cr_assert_eq(client_received(slow), size);
    end(3);
}

// Otherwise each reply would leave one more read at a disk that ends none, with its memory.
Test(get_read, slow_disk_gets_no_read_while_the_origin_may_answer)
{
    store(0, true);
    world_hold(EVENT_ORIGIN, -1, -1);
    world_hold(EVENT_READ, -1, -1);
    int client = get_late(0);
    world_deliver_all();
    cr_assert_not(world_do(EVENT_READ, -1, -1));
    origin_fail_next(ERR_ORIGIN_UNAVAILABLE);
    while (world_do(EVENT_ORIGIN, -1, -1)) {
        world_deliver_all();
    }
    while (world_do(EVENT_PULL, client, -1)) {
    }
    cr_assert(world_do(EVENT_READ, -1, -1), "the origin has failed");
    end(2);
    expect_complete(client);
}

// Reads a range that is no whole block from a disk that brings nothing. Returns the origin's
// answers to it, and the first byte that the last one was asked for.
static unsigned ask_for_range(bool slow_disk, uint64_t *ret_first)
{
    store(0, slow_disk);
    world_hold(EVENT_READ, -1, -1);
    world_hold(EVENT_ORIGIN, -1, -1);
    int client = client_get(0, 100, SIZE - 51);
    (void)world_do(EVENT_PULL, client, -1);
    if (!slow_disk) {
        cr_assert(world_do(EVENT_TIMER, -1, -1), "the disk read has a time limit");
    }
    world_deliver_all();
    for (unsigned i = 0; i < MAX_FETCHES; i++) {
        *ret_first = world.fetches[i].used ? world.fetches[i].f->first : *ret_first;
    }
    world_release();
    world_run();
    cr_assert_eq(client_outcome(client), CLIENT_COMPLETE);
    cr_assert_eq(client_received(client), SIZE - 150);
    unsigned requests = origin_requests() - 1;
    world_end();
    return requests;
}

// Otherwise it would not be stored as long as the disk is slow.
Test(get_read, run_in_place_of_a_slow_disk_ends_before_a_block_that_is_not_cached)
{
    struct world_options options = {
        .seed = 2, .size_bytes = SIZE, .limit_percent = 100, .slow_disk = true};
    world_begin(&options);
    (void)client_get(0, 0, WORLD_BLOCK - 1);
    world_run();
    cr_assert(store_visible(0) && !store_visible(1));
    world_hold(EVENT_READ, -1, -1);
    int client = client_get(0, 0, UINT64_MAX);
    world_run();
    expect_complete(client);
    cr_assert(store_visible(1));
    cr_assert_eq(origin_sent(1, 1), 1);
    end(3);
}

// As without a cache. One late read alone may be chance, so it costs no more than one stored run.
Test(get_read, slow_disk_costs_one_request_of_the_clients_range_and_a_late_read_one_run)
{
    uint64_t first = UINT64_MAX;
    cr_assert_eq(ask_for_range(true, &first), 1);
    cr_assert_eq(first, 100);
    cr_assert_eq(ask_for_range(false, &first), 1);
    cr_assert_eq(first, 0);
}

Test(get_read, reader_that_leaves_a_late_read_leaves_nothing_behind)
{
    begin(0);
    world_hold(EVENT_ORIGIN, -1, -1);
    int client = get_late(0);
    client_leave(client);
    world_run();
    cr_assert_eq(client_outcome(client), CLIENT_LEFT);
    end(2);
}

// The origin is in trouble, so readers wait for the disk, until they leave. Forebay
// then knows all the same that the disk is slow.
Test(get_read, read_that_its_reader_has_left_is_late_after_a_time)
{
    begin(0);
    origin_trouble(true);
    int clients[2] = {client_get(0, 0, UINT64_MAX), client_get(1, 0, UINT64_MAX)};
    for (unsigned i = 0; i < 2; i++) {
        (void)world_do(EVENT_PULL, clients[i], -1);
        cr_assert_not(world_do(EVENT_TIMER, -1, -1));
        client_leave(clients[i]);
        cr_assert_eq(store_reads_late(), i);
        cr_assert(world_do(EVENT_TIMER, -1, -1));
        cr_assert_eq(store_reads_late(), i + 1);
    }
    end(1);
}

// Otherwise each reader would leave one more read at the disk.
Test(get_read, stuck_disk_gets_no_read_even_if_only_it_can_answer)
{
    begin(0);
    origin_trouble(true);
    store_stick(true);
    int client = client_get(0, 0, UINT64_MAX), other = client_get(1, 0, UINT64_MAX);
    (void)world_do(EVENT_PULL, client, -1);
    (void)world_do(EVENT_PULL, other, -1);
    cr_assert(world_do(EVENT_TIMER, -1, -1) && world_do(EVENT_TIMER, -1, -1));
    cr_assert_not(world_do(EVENT_READ, -1, -1));
    client_leave(other);
    store_stick(false);
    cr_assert(world_do(EVENT_TIMER, -1, -1));
    cr_assert(world_do(EVENT_READ, -1, -1));
    end(1);
    expect_complete(client);
}

// The home names the version, and the origin sends its bytes.
Test(get_read, origin_answers_for_late_headers)
{
    begin(100);
    int client = get_late(0);
    world_deliver_all();
    while (client_outcome(client) == CLIENT_OPEN && world_step()) {
        (void)world_do(EVENT_TIMER, -1, -1);
    }
    expect_complete(client);
    cr_assert_eq(client_version(client), 1);
    cr_assert_eq(counter(COUNTER_fills_stored), 1);
    end(3); // a HEAD, and a GET
}

Test(get_read, failing_origin_leaves_the_reader_of_late_headers_to_the_disk)
{
    begin(100);
    origin_fail_next(ERR_ORIGIN_UNAVAILABLE);
    int client = get_late(0);
    world_run();
    cr_assert_eq(client_outcome(client), CLIENT_OPEN);
    world_release();
    world_run();
    expect_complete(client);
    world_end();
}

// The headers of both readers come late. The origin has looked at the object for the first reader.
// Then the object is overwritten, and the second reader names the new version in If-Match. Rule 29.
Test(get_read, answer_from_before_a_reader_of_late_headers_is_no_412_for_it)
{
    begin(100);
    world_hold(EVENT_ORIGIN, -1, -1);
    int early = get_late(0);
    world_deliver_all();
    cr_assert(world_do(EVENT_ORIGIN, -1, -1)); // the origin has looked
    origin_overwrite();
    int late = client_start(&(struct client_ask){.worker = 1, .last = UINT64_MAX, .if_match = 2});
    cr_assert(world_do(EVENT_TIMER, -1, -1));
    world_deliver_all();
    while (client_status(late) == 0 &&
           (world_do(EVENT_ORIGIN, -1, -1) || world_do(EVENT_COMMIT, -1, -1))) {
        world_deliver_all();
    }
    cr_assert_eq(client_version(late), 2, "status %u", client_status(late));
    world_release();
    world_run();
    expect_complete(late);
    expect_complete(early);
    world_end();
}

// Two principals wait for one request. The origin denies the one that sent it.
static void deny_first(unsigned cold_percent, int ret_clients[2])
{
    begin(cold_percent);
    world_hold(EVENT_ORIGIN, -1, -1);
    for (unsigned i = 0; i < 2; i++) {
        ret_clients[i] = get_late_as(i, i + 1);
        world_deliver_all();
    }
    origin_deny(1);
    for (bool goes_on = true; goes_on;) {
        world_run();
        goes_on = world_do(EVENT_ORIGIN, -1, -1);
    }
}

// Rule 22: the origin's answer to one principal is nobody else's. The other asks for itself.
Test(get_read, reader_asks_again_after_the_origin_has_denied_another_principal)
{
    int clients[2];
    deny_first(0, clients);
    expect_complete(clients[1]);
    cr_assert_eq(client_outcome(clients[0]), CLIENT_OPEN, "the disk has the bytes");
    end(3);
    expect_complete(clients[0]);
}

Test(get_read, reader_of_late_headers_asks_again_after_another_principal_was_denied)
{
    int clients[2];
    deny_first(100, clients);
    cr_assert_neq(client_version(clients[1]), 0, "the home has named the version");
    world_release();
    world_run();
    expect_complete(clients[0]);
    expect_complete(clients[1]);
    world_end();
}
