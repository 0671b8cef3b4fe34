// SPDX-License-Identifier: Apache-2.0
// Proves: the answer to a HEAD of an object of which nothing is stored also answers the next asker,
// as long as the rule allows. It answers nobody once anything newer is known. Rules 11, 31 and 32.
#include "fill/home_private.h"
#include "world_private.h"

#include "test.h"

static void begin(void)
{
    struct world_options options = {.seed = 5, .ttl = true};
    world_begin(&options);
}

static int start(struct client_ask ask)
{
    ask.last = ask.last == 0 ? UINT64_MAX : ask.last;
    int client = client_start(&ask);
    world_run();
    return client;
}

static void expect(int client, unsigned status, int version)
{
    cr_assert_eq(client_status(client), status, "status %u", client_status(client));
    cr_assert_eq(client_version(client), version);
}

// HEAD at each worker in turn.
static void heads(unsigned count, int version)
{
    for (unsigned i = 0; i < count; i++) {
        expect(start((struct client_ask){.worker = i % WORLD_WORKERS, .head = true}), 200, version);
    }
}

static void expect_requests(unsigned all, unsigned of_which_heads)
{
    cr_assert_eq(origin_requests(), all, "%u requests", origin_requests());
    cr_assert_eq(origin_heads(), of_which_heads, "%u HEADs", origin_heads());
}

Test(home_kept, six_heads_and_a_get_cost_one_of_each)
{
    begin();
    heads(6, 1);
    expect_requests(1, 1);
    cr_assert_eq(counter(COUNTER_answers_used), 5);
    expect(start((struct client_ask){.worker = 1, .has_range = true, .last = 99}), 206, 1);
    expect_requests(2, 1);
    world_end();
}

Test(home_kept, the_version_of_a_head_is_the_if_match_of_the_get)
{
    begin();
    heads(1, 1);
    struct client_ask ask = {.worker = 2, .if_match = 1, .has_range = true, .last = 99};
    expect(start(ask), 206, 1);
    expect_requests(2, 1);
    world_end();
}

// The client has a newer version from elsewhere.
Test(home_kept, if_match_of_another_version_is_for_the_origin_to_judge)
{
    begin();
    heads(1, 1);
    origin_overwrite();
    expect(start((struct client_ask){.worker = 2, .if_match = 2, .has_range = true, .last = 99}),
           206, 2);
    expect_requests(2, 1);
    heads(3, 2);
    expect_requests(2, 1);
    world_end();
}

Test(home_kept, if_none_match_is_answered_without_the_origin)
{
    begin();
    heads(1, 1);
    expect(start((struct client_ask){.worker = 2, .if_none_match = 1}), 304, 1);
    expect_requests(1, 1);
    world_end();
}

// Its owner is asked, for no more than the block that holds it.
Test(home_kept, a_suffix_is_asked_for_by_its_place)
{
    begin();
    heads(1, 1);
    int client = start((struct client_ask){.worker = 2, .suffix = 100});
    expect(client, 206, 1);
    cr_assert_eq(client_received(client), 100);
    expect_requests(2, 1);
    cr_assert_eq(origin_sent(1, WORLD_BLOCKS - 1), 1);
    cr_assert_eq(origin_sent_by_suffix(1, WORLD_BLOCKS - 1), 0);
    world_end();
}

Test(home_kept, a_suffix_of_an_object_that_has_changed_is_of_the_new_one)
{
    begin();
    heads(1, 1);
    origin_resize(2 * WORLD_BLOCK);
    origin_overwrite();
    int client = start((struct client_ask){.worker = 2, .suffix = 100});
    expect(client, 206, 2);
    cr_assert_eq(client_received(client), 100);
    heads(3, 2);
    cr_assert_eq(origin_heads(), 1);
    world_end();
}

Test(home_kept, past_the_ttl_the_origin_is_asked_again)
{
    begin();
    heads(2, 1);
    origin_overwrite();
    world_advance_ms(61000);
    heads(3, 2);
    expect_requests(2, 2);
    world_advance_ms(61000);
    heads(3, 2);
    expect_requests(3, 3);
    // A condition goes to the origin with the first request then.
    world_advance_ms(61000);
    expect(start((struct client_ask){.worker = 2, .if_none_match = 2}), 304, 2);
    expect_requests(4, 3);
    world_end();
}

Test(home_kept, while_the_origin_fails_it_is_served_stale)
{
    begin();
    heads(1, 1);
    world_advance_ms(61000);
    origin_fail_next(ERR_ORIGIN_5XX);
    int client = start((struct client_ask){.worker = 2, .head = true});
    expect(client, 200, 1);
    cr_assert_eq(client_result(client), RESULT_STALE);
    world_end();
}

Test(home_kept, under_strict_each_head_asks_the_origin)
{
    struct world_options options = {.seed = 5, .strict = true};
    world_begin(&options);
    heads(6, 1);
    expect_requests(6, 6);
    world_end();
}

Test(home_kept, no_cache_asks_the_origin)
{
    begin();
    heads(1, 1);
    origin_overwrite();
    expect(start((struct client_ask){.worker = 1, .head = true, .no_cache = true}), 200, 2);
    heads(3, 2);
    expect_requests(2, 2);
    world_end();
}

Test(home_kept, no_cache_with_a_condition_asks_the_origin)
{
    begin();
    heads(1, 1);
    expect(start((struct client_ask){.worker = 1, .if_none_match = 1, .no_cache = true}), 304, 1);
    expect(start((struct client_ask){.worker = 1, .suffix = 9, .no_cache = true}), 206, 1);
    expect_requests(3, 1);
    world_end();
}

// The run is requested by the version that a HEAD named, and carries that HEAD's headers. Rule 15.
Test(home_kept, a_run_requested_by_it_is_as_old_as_its_headers)
{
    begin();
    heads(1, 1);
    origin_redescribe();
    world_advance_ms(50000);
    expect(start((struct client_ask){.worker = 2, .suffix = 9}), 206, 1);
    expect_requests(2, 1);
    world_advance_ms(20000);
    heads(2, 1); // the world judges which headers they show
    expect_requests(3, 2);
    world_end();
}

Test(home_kept, a_write_drops_it)
{
    begin();
    heads(2, 1);
    int writer = writer_begin(1);
    world_run();
    heads(1, 1); // the write is open: nothing is kept
    heads(1, 1);
    expect_requests(3, 3);
    writer_write(writer);
    world_run();
    cr_assert(writer_replied(writer));
    heads(3, 2);
    expect_requests(4, 4);
    world_end();
}

Test(home_kept, a_read_past_the_cache_that_names_another_version_drops_it)
{
    begin();
    heads(1, 1);
    origin_overwrite();
    int teller = teller_start(1, 2);
    world_run();
    cr_assert(teller_answered(teller));
    heads(2, 2);
    expect_requests(2, 2);
    world_end();
}

Test(home_kept, a_412_for_it_drops_it)
{
    begin();
    heads(1, 1);
    origin_overwrite();
    expect(start((struct client_ask){.worker = 1, .if_match = 1, .has_range = true, .last = 9}),
           412, 0);
    heads(2, 2);
    expect_requests(3, 2);
    world_end();
}

Test(home_kept, a_deletion_that_is_found_drops_it)
{
    begin();
    heads(1, 1);
    origin_remove();
    int get = start((struct client_ask){.worker = 1, .has_range = true, .last = 9});
    cr_assert_eq(client_err(get), ERR_NO_SUCH_KEY);
    for (unsigned i = 0; i < 2; i++) { // and nothing is kept of that
        int head = start((struct client_ask){.worker = 2, .head = true});
        cr_assert_eq(client_err(head), ERR_NO_SUCH_KEY);
    }
    expect_requests(4, 3);
    world_end();
}

// The readers of a first request are given its version before the home knows it.
Test(home_kept, a_kept_answer_is_not_used_while_a_first_request_decides)
{
    begin();
    heads(1, 1);
    world_hold(EVENT_ORIGIN, -1, -1);
    int get = client_get(1, 0, 99);
    world_run();
    int head = client_head(2);
    world_run();
    cr_assert_eq(client_status(head), 0);
    world_release();
    world_run();
    expect(get, 206, 1);
    expect(head, 200, 1);
    world_end();
}

// A HEAD is in flight when a first request finds the next version.
Test(home_kept, an_answer_that_may_be_older_than_a_given_version_is_not_kept)
{
    begin();
    int head = client_head(1);
    world_deliver_all();
    cr_assert(world_do(EVENT_ORIGIN, -1, -1)); // the origin has looked
    world_hold(EVENT_ORIGIN, 0, -1);
    origin_overwrite();
    store_refuse(true); // no record will say so
    int get = client_get(2, 0, 99);
    world_run();
    expect(get, 206, 2);
    world_release();
    world_run();
    expect(head, 200, 1);
    heads(2, 2);
    world_end();
}

Test(home_kept, memory_of_kept_answers_is_limited_and_counted)
{
    struct world_options options = {.seed = 5, .buffer_bytes = 48u << 10};
    world_begin(&options);
    for (unsigned key = 0; key < WORLD_KEYS; key++) {
        world_use_key(key);
        heads(2, 1);
        cr_assert_leq(chunk_budget_kind_bytes(BUDGET_ANSWERS), (48u << 10) / 16);
    }
    cr_assert_gt(chunk_budget_kind_bytes(BUDGET_ANSWERS), 0);
    expect_requests(2, 2);
    world_end();
}

Test(home_kept, the_oldest_gives_way)
{
    enum { KEYS = 40, ROOM = 10 };
    struct world_options options = {.seed = 5};
    world_begin(&options);
    struct object_key *key = object_key_of(world.key);
    struct span none = {NULL, 0};
    struct store_object *objects[KEYS];
    uint64_t bytes = 0;
    chunk_budget_init(UINT64_MAX / 2);
    for (unsigned i = 0; i < KEYS; i++) {
        struct home_key h = {.fw = world.pw[0].fill, .key = key};
        key->hash.lo = (uint64_t)i * FILL_MAP_BUCKETS * WORLD_KEYS;
        key->hash.hi = i;
        objects[i] = store_object_new(key->hash, key->realm, key->bucket, key->key, SPAN("\"v1\""),
                                      none, none, 0, WORLD_BLOCK, 0);
        home_keep(&h, objects[i], i);
        if (i == 0) {
            bytes = chunk_budget_kind_bytes(BUDGET_ANSWERS);
            chunk_budget_init(bytes * ROOM * 16 * WORLD_WORKERS);
        }
        cr_assert_leq(chunk_budget_kind_bytes(BUDGET_ANSWERS), bytes * ROOM);
        cr_assert_eq(home_kept(&h), objects[i]);
    }
    for (unsigned i = 0; i < KEYS; i++) {
        struct home_key h = {.fw = world.pw[0].fill, .key = key};
        key->hash.lo = (uint64_t)i * FILL_MAP_BUCKETS * WORLD_KEYS;
        key->hash.hi = i;
        cr_assert_eq(home_kept(&h) != NULL, i >= KEYS - ROOM);
        store_object_unref(objects[i]);
    }
    cr_assert_eq(counter(COUNTER_answers_pushed_out), KEYS - ROOM);
    object_key_unref(key);
    world_end();
}
