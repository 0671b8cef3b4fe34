// SPDX-License-Identifier: Apache-2.0
// Proves: if an object's headers change while its ETag stays, a reader that asks the origin gets
// the new ones, and no later reader gets the old ones. The world judges that of every reply
// (world_client.c). Rules 14, 16, 29 and 31.
#include "fill/home_private.h"
#include "world_private.h"

#include "test.h"

static void begin_with(uint64_t seed)
{
    struct world_options options = {.seed = seed, .piece_bytes = WORLD_BLOCK};
    world_begin(&options);
}

static void begin(void)
{
    begin_with(5);
}

static int get_block(unsigned worker, unsigned block)
{
    uint64_t first = (uint64_t)block * WORLD_BLOCK;
    return client_get(worker, first, first + WORLD_BLOCK - 1);
}

static int newest(unsigned worker, bool head)
{
    return client_start(
        &(struct client_ask){.worker = worker, .head = head, .no_cache = true, .last = UINT64_MAX});
}

static void expect_complete(int client)
{
    cr_assert_eq(client_outcome(client), CLIENT_COMPLETE, "outcome %d", client_outcome(client));
}

static void expect_everywhere(void)
{
    for (unsigned worker = 0; worker < WORLD_WORKERS; worker++) {
        for (unsigned block = 0; block < WORLD_BLOCKS; block++) {
            int client = get_block(worker, block);
            world_run();
            expect_complete(client);
        }
    }
}

// Rule 29.
Test(redescribed, a_check_finds_other_headers)
{
    for (unsigned head = 0; head < 2; head++) {
        begin();
        int first = client_get(1, 0, UINT64_MAX);
        world_run();
        expect_complete(first);
        origin_redescribe();
        int check = newest(2, head);
        world_run();
        expect_complete(check);
        cr_assert_eq(counter(COUNTER_redescribed), 1);
        expect_everywhere();
        bool is_kept = counter(COUNTER_redescribed_kept) == 1;
        cr_assert_eq(origin_sent(1, 0), is_kept ? 1 : 2, "fetched again, once, or not at all");
        world_end();
    }
}

// Rule 29.
Test(redescribed, the_same_headers_are_confirmed)
{
    begin();
    int first = client_get(1, 0, UINT64_MAX);
    world_run();
    expect_complete(first);
    for (unsigned i = 0; i < 3; i++) {
        int check = newest(i, i == 1);
        world_run();
        expect_complete(check);
    }
    cr_assert_eq(origin_sent(1, 0), 1);
    cr_assert_eq(origin_heads(), 3);
    world_end();
}

// The reader has its first bytes when a check finds other headers. The runs that it goes on with
// carry the old ones, and are not published.
// Rules 14 and 31.
Test(redescribed, the_runs_of_a_slow_reader_are_not_published)
{
    begin();
    world_hold(EVENT_PULL, 0, -1);
    int slow = client_get(2, 0, UINT64_MAX);
    world_run();
    origin_redescribe();
    int check = newest(1, true);
    world_run();
    expect_complete(check);
    world_release();
    world_run();
    expect_complete(slow);
    expect_everywhere();
    world_end();
}

// The index takes over the new headers when a run with the old ones arrives. If the run were
// published under the old generation, it would outlive the new one, whose runs are evicted before
// they are on disk. Rules 14 and 31.
Test(redescribed, a_run_that_comes_while_the_headers_are_taken_over_is_not_published)
{
    begin();
    int first = get_block(0, 0);
    world_run();
    expect_complete(first);
    world_hold(EVENT_WRITTEN, -1, -1);
    int second = get_block(2, 1);
    world_run();
    origin_redescribe();
    world_hold(EVENT_COMMIT, -1, -1);
    int check = newest(1, true);
    world_run();
    cr_assert_eq(client_outcome(check), CLIENT_OPEN);
    while (world_do(EVENT_WRITTEN, -1, -1)) {
        world_run();
    }
    expect_complete(second);
    cr_assert(!store_visible(1));
    world_release();
    world_run();
    expect_complete(check);
    expect_everywhere();
    world_end();
}

// While such a run is in flight a first request does not take it, nor does a reader who has sent
// nothing. Rule 16.
Test(redescribed, a_run_with_older_headers_takes_no_new_reader)
{
    begin();
    int first = get_block(0, 0);
    world_run();
    expect_complete(first);
    int slow = client_get(2, 0, UINT64_MAX); // block 0 from the cache, then a run
    while (client_received(slow) == 0) {
        cr_assert(world_step());
    }
    world_hold(EVENT_ORIGIN, -1, -1);
    world_run();
    origin_redescribe();
    world_release();
    int check = newest(1, true);
    world_run();
    expect_complete(check);
    expect_complete(slow);
    expect_everywhere();
    world_end();
}

// A check and a first request are under way at once, and the headers change between their answers.
// Rule 31.
Test(redescribed, between_a_first_request_and_a_check)
{
    begin();
    int first = get_block(1, 0);
    world_deliver_all();
    cr_assert(world_do(EVENT_ORIGIN, -1, -1)); // the origin has looked
    world_hold(EVENT_ORIGIN, 0, -1);
    origin_redescribe();
    int check = newest(2, true);
    world_run();
    world_release();
    world_run();
    expect_complete(first);
    expect_complete(check);
    expect_everywhere();
    world_end();
}

// A read past the cache names the same version then, and no headers.
// Rule 31.
Test(redescribed, a_version_named_without_headers_hides_none_that_a_check_found)
{
    begin();
    int first = get_block(1, 0);
    world_deliver_all();
    cr_assert(world_do(EVENT_ORIGIN, -1, -1)); // the origin has looked
    world_hold(EVENT_ORIGIN, 0, -1);
    origin_redescribe();
    int check = newest(2, true);
    world_run();
    expect_complete(check);
    int teller = teller_start(2, 1);
    world_run();
    cr_assert(teller_answered(teller));
    int next = get_block(2, 0);
    world_run();
    world_release();
    world_run();
    expect_complete(first);
    expect_complete(next);
    expect_everywhere();
    world_end();
}

// A client got 412 for this version before it existed. A read past the cache that names it may be
// older than that answer, as far as the home knows. The home's knowledge of the version's headers
// stays true. Rules 14 and 31.
Test(redescribed, a_version_named_after_a_412_for_it_brings_no_older_headers_back)
{
    begin();
    int denied = client_start(&(struct client_ask){.worker = 1, .if_match = 2, .last = UINT64_MAX});
    world_run();
    cr_assert_eq(client_status(denied), 412);
    origin_overwrite();
    int slow = client_get(2, 0, UINT64_MAX);
    while (client_received(slow) == 0) {
        cr_assert(world_step());
    }
    world_hold(EVENT_PULL, slow, -1);
    world_run();
    for (unsigned block = 0; block < WORLD_BLOCKS; block++) {
        store_evict(block);
    }
    world_run();
    cr_assert_eq(store_visible_version(), 0);
    origin_redescribe();
    int next = get_block(1, 0);
    world_run();
    expect_complete(next);
    int teller = teller_start(2, 2);
    world_run();
    cr_assert(teller_answered(teller));
    world_release();
    world_run();
    expect_complete(slow);
    expect_everywhere();
    world_end();
}

// Starts a HEAD whose answer has the headers that the object has now. The answer waits until
// world_release().
static int held_check(void)
{
    int check = client_start(&(struct client_ask){.worker = 2, .head = true, .last = UINT64_MAX});
    world_deliver_all();
    cr_assert(world_do(EVENT_ORIGIN, -1, -1)); // the origin has looked
    world_hold(EVENT_ORIGIN, 0, -1);
    return check;
}

// A check is sent, and the object changes after the origin has looked at it. A first request is
// sent later and answered earlier, with the new headers. The check's answer does not bring the old
// ones back. Rule 31.
Test(redescribed, a_check_that_a_first_request_overtakes_takes_no_headers_over)
{
    for (uint64_t seed = 0; seed < 4; seed++) { // the index refuses some changes, by the seed
        begin_with(seed);
        int check = held_check();
        origin_redescribe();
        int first = get_block(1, 0);
        world_run();
        expect_complete(first);
        cr_assert(store_visible(0));
        world_release();
        world_run();
        expect_complete(check);
        expect_everywhere();
        world_end();
    }
}

// A reader that comes after such a reply, while nothing is stored, does not share that check.
// Rule 31.
Test(redescribed, a_reader_does_not_share_a_check_that_a_first_request_has_overtaken)
{
    begin();
    store_refuse(true);
    int check = held_check();
    origin_redescribe();
    int first = get_block(1, 0);
    world_run();
    expect_complete(first);
    int later = client_start(&(struct client_ask){.worker = 1, .head = true, .last = UINT64_MAX});
    world_run();
    world_release();
    world_run();
    expect_complete(check);
    expect_complete(later);
    store_refuse(false);
    expect_everywhere();
    world_end();
}
