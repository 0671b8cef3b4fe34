// SPDX-License-Identifier: Apache-2.0
// Proves: if the store will not take a run, the origin is asked for what the reader wants and no
// more often than without a cache, and no protection of the reader is lost.
#include "fill/fill_private.h"
#include "world_private.h"

#include "test.h"

#define STRIPE (2u * WORLD_BLOCK)
#define STRIPES 3u

static void begin(uint64_t size_bytes)
{
    struct world_options options = {.seed = 5, .size_bytes = size_bytes, .full_percent = 100};
    world_begin(&options);
}

static int ask(unsigned worker, bool checksums)
{
    return client_start(
        &(struct client_ask){.worker = worker, .checksums = checksums, .last = UINT64_MAX});
}

static void expect(int client, uint64_t bytes)
{
    cr_assert_eq(client_outcome(client), CLIENT_COMPLETE, "outcome %d", client_outcome(client));
    cr_assert_eq(client_received(client), bytes);
}

// Returns the only request in flight.
static const struct origin_fetch *in_flight(void)
{
    const struct origin_fetch *f = NULL;
    world_deliver_all();
    for (unsigned i = 0; i < MAX_FETCHES; i++) {
        cr_assert(f == NULL || !world.fetches[i].used);
        f = world.fetches[i].used ? world.fetches[i].f : f;
    }
    cr_assert(f != NULL);
    return f;
}

// Objects of the kind are known as large, which would cause a HEAD for a stored run.
// Rule 23.
Test(fill_stream, whole_object_is_one_request_and_has_no_range_for_a_reader_of_checksums)
{
    for (unsigned checksums = 0; checksums < 2; checksums++) {
        begin(0);
        int large = client_get(1, 0, 9);
        world_run();
        expect(large, 10);
        world_use_key(1);
        origin_resize(STRIPE);
        origin_overwrite();
        unsigned before = origin_requests();
        int client = ask(2, checksums);
        cr_assert_eq(in_flight()->kind, checksums ? ORIGIN_GET_WHOLE : ORIGIN_GET_RANGE);
        world_run();
        expect(client, STRIPE);
        cr_assert_eq(client_has_checksums(client), checksums);
        cr_assert_eq(origin_requests() - before, 1);
        cr_assert_eq(origin_heads(), 0);
        cr_assert_eq(counter(COUNTER_fills_unstored), 2);
        cr_assert_eq(store_visible_version(), 0);
        world_end();
    }
}

Test(fill_stream, large_object_is_one_request_for_each_stripe)
{
    begin(0);
    int client = ask(2, true);
    world_run();
    expect(client, WORLD_SIZE);
    cr_assert_eq(origin_requests(), STRIPES);
    cr_assert_eq(origin_heads(), 0);
    for (unsigned block = 0; block < WORLD_BLOCKS; block++) {
        cr_assert_eq(origin_sent(1, block), 1);
    }
    world_end();
}

Test(fill_stream, range_is_asked_for_as_the_client_wants_it)
{
    begin(0);
    int client = client_get(1, 100, WORLD_BLOCK + 50);
    const struct origin_fetch *f = in_flight();
    cr_assert(f->kind == ORIGIN_GET_RANGE && f->first == 100 && f->last == WORLD_BLOCK + 50);
    world_run();
    expect(client, WORLD_BLOCK - 49);
    cr_assert_eq(origin_requests(), 1);
    client = client_start(&(struct client_ask){.worker = 1, .has_range = true, .suffix = 30});
    f = in_flight();
    cr_assert(f->kind == ORIGIN_GET_RANGE && f->suffix == 30);
    world_run();
    expect(client, 30);
    cr_assert_eq(origin_requests(), 2);
    world_end();
}

// Rule 23.
Test(fill_stream, readers_at_once_share_one_request)
{
    begin(STRIPE);
    int clients[3 * WORLD_WORKERS];
    for (unsigned i = 0; i < ARRAY_LEN(clients); i++) {
        clients[i] = ask(i % WORLD_WORKERS, i % 2 == 0);
    }
    world_deliver_all();
    for (unsigned i = 0; i < 2; i++) { // evaluated, answered
        cr_assert(world_do(EVENT_ORIGIN, 0, -1));
        world_deliver_all();
    }
    world_run();
    for (unsigned i = 0; i < ARRAY_LEN(clients); i++) {
        expect(clients[i], STRIPE);
    }
    cr_assert_eq(origin_requests(), 1);
    world_end();
}

// The home holds back strict readers that come while a first request decides. A streamed run may
// take long, so its request ends when it has brought as much as a stored run may have. Rule 19.
Test(fill_stream, strict_reader_needs_no_head_while_another_reader_is_streamed_to)
{
    struct world_options options = {.seed = 5,
                                    .strict = true,
                                    .readahead = true,
                                    .piece_bytes = WORLD_BLOCK,
                                    .size_bytes = STRIPE,
                                    .full_percent = 100};
    world_begin(&options);
    int first = ask(0, false);
    world_deliver_all();
    for (unsigned i = 0; i < 3; i++) { // evaluated, answered, one piece
        cr_assert(world_do(EVENT_ORIGIN, 0, -1));
        world_deliver_all();
    }
    world_hold(EVENT_ORIGIN, 0, -1);
    int second = ask(1, false);
    world_run();
    expect(second, STRIPE);
    cr_assert_eq(origin_heads(), 0);
    cr_assert_eq(origin_requests(), 2);
    world_release();
    world_run();
    expect(first, STRIPE);
    world_end();
}

Test(fill_stream, policy_learns_what_it_would_have_refused)
{
    struct world_options options = {.seed = 5, .readahead = true, .unwanted_percent = 100};
    world_begin(&options);
    int client = ask(2, true);
    world_run();
    expect(client, WORLD_SIZE);
    cr_assert_eq(origin_requests(), STRIPES);
    cr_assert_eq(world.noted_bytes, WORLD_SIZE);
    cr_assert_eq(counter(COUNTER_admission_rejected_not_admitted), STRIPES);
    world_end();
}

// The policy admits every part of an object, so the store is asked.
Test(fill_stream, part_is_offered_to_the_store_whatever_the_policy_says_of_the_whole)
{
    struct world_options options = {.seed = 5, .unwanted_percent = 100};
    world_begin(&options);
    int client = client_get(1, 0, 9);
    world_run();
    expect(client, 10);
    cr_assert(store_visible(0));
    world_end();
}

// Whether the object comes in one run or in several. Rule 21.
Test(fill_stream, wrong_object_is_not_completed)
{
    for (unsigned stripes = 1; stripes <= STRIPES; stripes++) {
        uint64_t size = stripes * STRIPE - 100;
        struct world_options options = {
            .seed = 5, .readahead = true, .size_bytes = size, .full_percent = 100};
        world_begin(&options);
        origin_name_wrong_checksums();
        int client = ask(2, true);
        world_run();
        enum client_outcome outcome = client_outcome(client);
        cr_assert(outcome == CLIENT_CUT || outcome == CLIENT_ERROR, "%u stripes", stripes);
        cr_assert_lt(client_received(client), size);
        world_end();
    }
}

// A wrong answer, either of the two, is not believed a second time. Rule 22.
Test(fill_stream, length_that_contradicts_a_head_is_an_error_and_then_forgotten)
{
    for (unsigned variant = 0; variant < 8; variant++) {
        bool is_head_wrong = variant & 1, checksums = variant & 2, is_stored = variant & 4;
        struct world_options options = {
            .seed = 5, .ttl = true, .size_bytes = STRIPE, .full_percent = is_stored ? 0 : 100};
        world_begin(&options);
        if (is_head_wrong) {
            origin_shorten_next();
        }
        cr_assert_neq(client_head(0), -1);
        world_run();
        if (!is_head_wrong) {
            origin_shorten_next();
        }
        int client = ask(2, checksums);
        world_run();
        cr_assert_eq(client_outcome(client), CLIENT_ERROR, "variant %u", variant);
        cr_assert_eq(client_err(client), ERR_ORIGIN_PROTOCOL);
        client = ask(2, checksums);
        world_run();
        expect(client, STRIPE);
        cr_assert_leq(origin_requests(), 4);
        world_end();
    }
}
