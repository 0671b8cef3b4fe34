// SPDX-License-Identifier: Apache-2.0
// Proves: which requests an unknown object, or one that must be checked, costs: GET, ranges, HEAD,
// conditions, empty objects, ranges past the end, no ETag; and what each freshness rule asks.
#include "world.h"

#include "test.h"

static void begin(void)
{
    struct world_options options = {.seed = 3};
    world_begin(&options);
}

static int ask(struct client_ask a)
{
    int client = client_start(&a);
    world_run();
    return client;
}

static int get_all(unsigned worker)
{
    return ask((struct client_ask){.worker = worker, .last = UINT64_MAX});
}

static void expect_reply(int client, unsigned status, uint64_t received)
{
    cr_assert_eq(client_status(client), status, "status %u", client_status(client));
    cr_assert_eq(client_received(client), received, "%llu bytes",
                 (unsigned long long)client_received(client));
    cr_assert_eq(client_outcome(client), status < 400 ? CLIENT_COMPLETE : CLIENT_ERROR);
}

// --- an object we do not know --------------------------------------------------------------------

// A plain GET asks for ranges without a condition; the client gets 200.
// Rules 7, 11.
Test(first, plain_get)
{
    begin();
    expect_reply(get_all(1), 200, WORLD_SIZE);
    cr_assert_eq(origin_requests(), 3, "one for each stripe");
    world_end();
}

// One range is answered from its blocks alone.
Test(first, one_range)
{
    begin();
    int client = ask((struct client_ask){.worker = 1, .has_range = true, .first = 10, .last = 19});
    expect_reply(client, 206, 10);
    cr_assert_eq(origin_requests(), 1);
    cr_assert(store_visible(0));
    cr_assert_not(store_visible(1));
    world_end();
}

// A HEAD makes one HEAD request to the origin, without a body.
Test(first, head)
{
    begin();
    int client = ask((struct client_ask){.worker = 1, .head = true});
    expect_reply(client, 200, 0);
    cr_assert_eq(client_version(client), 1);
    cr_assert_eq(origin_requests(), 1);
    cr_assert_eq(counter(COUNTER_fills_started), 0);
    world_end();
}

// A suffix or a condition goes to the origin with the run: nothing is asked before it.
// Rule 16.
Test(first, suffix_range_and_conditions)
{
    static const struct client_ask asks[] = {
        {.worker = 1, .suffix = 100},
        {.worker = 1, .has_range = true, .first = 1, .last = 100, .if_match = 1},
        {.worker = 1, .has_range = true, .first = 1, .last = 100, .if_none_match = 9}};
    for (unsigned i = 0; i < ARRAY_LEN(asks); i++) {
        begin();
        int client = ask(asks[i]);
        expect_reply(client, 206, 100);
        cr_assert_eq(origin_requests(), 1);
        world_end();
    }
}

// A condition that does not hold costs one request.
Test(first, conditions_that_do_not_hold)
{
    begin();
    expect_reply(ask((struct client_ask){.worker = 1, .last = UINT64_MAX, .if_none_match = 1}), 304,
                 0);
    expect_reply(ask((struct client_ask){.worker = 1, .last = UINT64_MAX, .if_match = 7}), 412, 0);
    cr_assert_eq(origin_requests(), 2);
    world_end();
}

// The answer to a condition is for readers with that condition. A reader without one that came in
// the meantime asks for itself, before readers with other conditions do.
// Rule 22.
Test(first, a_failed_condition_is_no_answer_for_others)
{
    struct client_ask wrong = {.worker = 1, .last = UINT64_MAX, .if_match = 7};
    struct client_ask other = {.worker = 0, .last = UINT64_MAX, .if_match = 8};
    begin();
    world_hold(EVENT_ORIGIN, -1, -1);
    int first = client_start(&wrong);
    world_run();
    wrong.worker = 2;
    int same = client_start(&wrong), different = client_start(&other);
    int plain = client_get(2, 0, 9);
    world_run();
    cr_assert_eq(origin_requests(), 1);
    world_release();
    world_run();
    expect_reply(first, 412, 0);
    expect_reply(same, 412, 0);
    expect_reply(different, 412, 0);
    expect_reply(plain, 206, 10);
    cr_assert_eq(origin_requests(), 4, "412, the bytes, If-Match of two versions other than these");
    world_end();
}

// A 412 says that another version than the reader's is current. A reader that comes after the
// request was sent may ask for a newer one. Readers that all came before a request share its 412.
// Rule 22.
Test(first, a_412_is_no_answer_for_readers_that_came_after_its_request)
{
    struct client_ask newer = {.worker = 1, .last = UINT64_MAX, .if_match = 2};
    begin();
    int early = client_start(&newer);
    world_deliver_all();
    cr_assert(world_do(EVENT_ORIGIN, -1, -1)); // the origin has looked
    world_hold(EVENT_ORIGIN, -1, -1);
    origin_overwrite();
    int late = client_start(&newer);
    world_run();
    world_release();
    world_run();
    expect_reply(early, 412, 0);
    expect_reply(late, 200, WORLD_SIZE);
    world_end();
}

Test(first, a_412_is_shared_by_readers_that_came_before_its_request)
{
    struct client_ask wrong = {.worker = 1, .last = UINT64_MAX, .if_match = 7};
    begin();
    world_hold(EVENT_ORIGIN, -1, -1);
    int clients[6];
    for (unsigned i = 0; i < ARRAY_LEN(clients); i++) {
        clients[i] = client_start(&wrong);
    }
    world_run();
    world_release();
    world_run();
    for (unsigned i = 0; i < ARRAY_LEN(clients); i++) {
        expect_reply(clients[i], 412, 0);
    }
    cr_assert_eq(origin_requests(), 2);
    world_end();
}

// The version that the answer to a condition names is the newest: no older run is joined or stored
// after it. Rule 31.
Test(first, no_older_run_counts_after_a_failed_condition)
{
    begin();
    int old = client_get(1, 0, 9);
    world_hold(EVENT_WRITTEN, -1, -1);
    world_run(); // v1 has been given, and is not stored yet
    expect_reply(old, 206, 10);
    int writer = writer_begin(2); // all that knew the version forget it
    world_run();
    writer_write(writer);
    world_run();
    expect_reply(ask((struct client_ask){.worker = 1, .last = UINT64_MAX, .if_match = 1}), 412, 0);
    world_release();
    world_run();
    cr_assert_neq(store_visible_version(), 1);
    cr_assert_eq(client_version(get_all(0)), 2);
    world_end();
}

// If-Match names a newer version than that of a run in flight: the origin is asked before the
// client gets 412. Rules 16, 32.
Test(first, if_match_of_a_newer_version_than_the_run_in_flight)
{
    struct world_options options = {.seed = 3, .piece_bytes = 30000};
    world_begin(&options);
    int old = client_get(0, 0, WORLD_BLOCK - 1);
    while (client_status(old) == 0) {
        (void)world_step();
    }
    world_hold(EVENT_ORIGIN, -1, -1);
    origin_overwrite();
    int newer = client_start(
        &(struct client_ask){.worker = 2, .has_range = true, .last = 9, .if_match = 2});
    world_run();
    world_release();
    world_run();
    expect_reply(newer, 206, 10);
    cr_assert_eq(client_version(newer), 2);
    world_end();
}

// The origin has looked at the object for a check. Then the object is overwritten. A reader that
// names the new version in If-Match gets the check's answer only if the answer does not mean 412.
// Rule 29.
Test(first, if_match_of_a_newer_version_than_the_check_in_flight)
{
    begin();
    int early = client_head(1);
    world_deliver_all();
    cr_assert(world_do(EVENT_ORIGIN, -1, -1)); // the origin has looked
    world_hold(EVENT_ORIGIN, -1, -1);
    int same = client_start(&(struct client_ask){.worker = 2, .head = true, .if_match = 1});
    world_deliver_all();
    origin_overwrite();
    int newer = client_start(&(struct client_ask){.worker = 0, .head = true, .if_match = 2});
    int wrong = client_start(&(struct client_ask){.worker = 0, .head = true, .if_match = 7});
    world_run();
    world_release();
    world_run();
    expect_reply(early, 200, 0);
    expect_reply(same, 200, 0);
    expect_reply(newer, 200, 0);
    expect_reply(wrong, 412, 0);
    cr_assert_eq(client_version(newer), 2);
    cr_assert_eq(origin_requests(), 3, "%u requests", origin_requests());
    world_end();
}

// The last bytes of an object of unknown size are a run of the key's home, though its stripe is
// another worker's. A reader that wants them in the meantime joins it.
// Rules 2, 16.
Test(first, a_suffix_is_fetched_once_on_any_owner)
{
    struct client_ask a = {.worker = 1, .suffix = 100};
    begin();
    world_hold(EVENT_WRITTEN, -1, -1);
    int first = client_start(&a);
    world_run();
    expect_reply(first, 206, 100);
    for (unsigned worker = 0; worker < WORLD_WORKERS; worker++) {
        a.worker = worker;
        expect_reply(ask(a), 206, 100);
    }
    world_release();
    world_run();
    cr_assert(store_visible(WORLD_BLOCKS - 1));
    cr_assert_not(store_visible(WORLD_BLOCKS - 2));
    expect_reply(ask(a), 206, 100);
    cr_assert_eq(origin_requests(), 1);
    expect_reply(get_all(2), 200, WORLD_SIZE);
    cr_assert_eq(origin_sent(1, WORLD_BLOCKS - 1), 1);
    world_end();
}

// Its body breaks off before the block begins, or inside it: the rest is asked for by its place.
// Rule 22.
Test(first, a_suffix_that_breaks_off_is_resumed)
{
    for (unsigned piece = 1000; piece < WORLD_BLOCK; piece += 9000) {
        struct world_options options = {.seed = piece, .piece_bytes = piece};
        world_begin(&options);
        origin_reset_next(2);
        expect_reply(ask((struct client_ask){.worker = 1, .suffix = 100}), 206, 100);
        expect_reply(ask((struct client_ask){.worker = 0, .suffix = 100}), 206, 100);
        cr_assert(store_visible(WORLD_BLOCKS - 1));
        world_end();
    }
}

// The ranged GET answers 416: the object is empty, and asked for without a range.
Test(first, empty_object)
{
    begin();
    origin_resize(0);
    origin_overwrite();
    expect_reply(get_all(1), 200, 0);
    cr_assert_eq(origin_requests(), 2, "range, whole");
    expect_reply(get_all(2), 200, 0);
    expect_reply(ask((struct client_ask){.worker = 0, .head = true}), 200, 0);
    expect_reply(ask((struct client_ask){.worker = 0, .has_range = true, .last = 9}), 416, 0);
    cr_assert_eq(origin_requests(), 2);
    world_end();
}

// Rule 22. Readers of all kinds request an object that is empty, or shorter than some of them
// expect. Each gets the answer to its own question, no matter which asks the origin first.
Test(first, all_questions_at_once)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct world_options options = {.seed = seed};
        uint64_t size = seed % 2 != 0 ? 0 : WORLD_BLOCK / 2;
        unsigned found = size > 0 ? 206 : 416;
        world_begin(&options);
        origin_resize(size);
        origin_overwrite();
        struct client_ask asks[] = {
            {.last = UINT64_MAX},
            {.has_range = true, .first = 10 * WORLD_BLOCK, .last = 11 * WORLD_BLOCK},
            {.has_range = true, .last = 9},
            {.last = UINT64_MAX},
            {.suffix = 10},
            {.head = true, .last = UINT64_MAX},
            {.has_range = true, .first = 2 * WORLD_BLOCK, .last = UINT64_MAX},
            {.last = UINT64_MAX, .if_none_match = 9},
        };
        unsigned status[] = {200, 416, found, 200, size > 0 ? 206 : 200, 200, 416, 200};
        int clients[ARRAY_LEN(asks)];
        for (unsigned i = 0; i < ARRAY_LEN(asks); i++) {
            asks[i].worker = (unsigned)(seed / 2 + i) % WORLD_WORKERS;
            clients[i] = client_start(&asks[i]);
            for (unsigned j = 0; j < seed % 7; j++) {
                (void)world_step();
            }
        }
        world_run();
        for (unsigned i = 0; i < ARRAY_LEN(asks); i++) {
            cr_assert_eq(client_status(clients[i]), status[i], "seed %llu, question %u: %u",
                         (unsigned long long)seed, i, client_status(clients[i]));
        }
        world_end();
    }
}

// Rule 22. An object that looked empty has been written in between: the answer without a range is
// longer than a run.
Test(first, empty_no_more)
{
    struct world_options options = {.seed = 3, .piece_bytes = 30000};
    world_begin(&options);
    origin_resize(0);
    origin_overwrite();
    world_hold(EVENT_TIMER, -1, -1);
    int client = client_get(1, 0, 9);
    world_run();
    cr_assert_eq(origin_requests(), 1);
    origin_resize(WORLD_SIZE);
    origin_overwrite();
    world_release();
    world_run();
    expect_reply(client, 206, 10);
    cr_assert_eq(client_version(client), 3);
    expect_reply(get_all(2), 200, WORLD_SIZE);
    world_end();
}

// The ranged GET answers 416: the range is past the end.
Test(first, range_past_the_end)
{
    begin();
    struct client_ask a = {
        .worker = 1, .has_range = true, .first = 10 * WORLD_BLOCK, .last = 11 * WORLD_BLOCK};
    int client = ask(a);
    expect_reply(client, 416, 0);
    cr_assert_eq(origin_requests(), 2);
    a.first = WORLD_SIZE; // inside the last block
    expect_reply(ask(a), 416, 0);
    world_end();
}

// A small object is one request, and then comes with its header.
Test(first, small_object)
{
    struct world_options options = {.seed = 3, .size_bytes = 10000};
    world_begin(&options);
    expect_reply(get_all(1), 200, 10000);
    expect_reply(get_all(2), 200, 10000);
    cr_assert_eq(origin_requests(), 1);
    cr_assert_eq(counter(COUNTER_hit_small), 1);
    world_end();
}

// Without an ETag several runs could be of several versions: the request is passed on instead, and
// later ones at once.
Test(first, no_etag)
{
    struct world_options options = {.seed = 3, .no_etag = true};
    world_begin(&options);
    cr_assert_eq(client_outcome(get_all(1)), CLIENT_PASSED);
    unsigned before = origin_requests();
    cr_assert_eq(client_outcome(get_all(2)), CLIENT_PASSED);
    cr_assert_eq(origin_requests(), before);
    world_end();
}

// A reader of one run needs no ETag, if nobody knows yet that the object has none.
Test(first, no_etag_in_one_run)
{
    struct world_options options = {.seed = 3, .no_etag = true};
    struct client_ask range = {.worker = 1, .has_range = true, .first = 1, .last = 9};
    world_begin(&options);
    expect_reply(ask(range), 206, 9);
    cr_assert_eq(store_visible_version(), 0);
    cr_assert_eq(client_outcome(ask(range)), CLIENT_PASSED);
    world_end();
}

// Every worker's readers of a key that two share by hash bucket get their own key's bytes.
Test(first, two_keys_in_one_bucket)
{
    begin();
    int clients[6];
    for (unsigned i = 0; i < 6; i++) {
        world_use_key(i % 2);
        clients[i] = client_get(i % WORLD_WORKERS, 0, UINT64_MAX);
    }
    world_run();
    for (unsigned i = 0; i < 6; i++) {
        expect_reply(clients[i], 200, WORLD_SIZE);
    }
    cr_assert_eq(origin_requests(), 6);
    world_end();
}

// --- an object we know ---------------------------------------------------------------------------

// The header of a known object is not in memory, so it is read from disk. If that fails, the origin
// is asked.
Test(known, header_must_be_read)
{
    struct world_options options = {.seed = 3, .cold_percent = 100};
    world_begin(&options);
    expect_reply(get_all(1), 200, WORLD_SIZE);
    unsigned before = origin_requests();
    expect_reply(ask((struct client_ask){.worker = 2, .head = true}), 200, 0);
    cr_assert_eq(origin_requests(), before);
    store_fail_next_read(ERR_IO);
    expect_reply(ask((struct client_ask){.worker = 2, .head = true}), 200, 0);
    cr_assert_eq(origin_requests(), before + 1);
    world_end();
}

// ttl: fresh for a minute, then one conditional request for all who ask.
Test(known, ttl)
{
    struct world_options options = {.seed = 3, .ttl = true};
    world_begin(&options);
    expect_reply(get_all(0), 200, WORLD_SIZE);
    unsigned before = origin_requests();
    world_advance_ms(59000);
    expect_reply(get_all(1), 200, WORLD_SIZE);
    cr_assert_eq(origin_requests(), before);
    world_advance_ms(2000);
    int clients[3];
    for (unsigned i = 0; i < 3; i++) {
        clients[i] = client_get(i, 0, UINT64_MAX);
        world_deliver_all();
    }
    world_run();
    for (unsigned i = 0; i < 3; i++) {
        expect_reply(clients[i], 200, WORLD_SIZE);
        cr_assert(client_result(clients[i]) == RESULT_REVALIDATED);
    }
    cr_assert_eq(origin_requests(), before + 1);
    cr_assert_eq(counter(COUNTER_revalidations_joined), 2);
    expect_reply(get_all(1), 200, WORLD_SIZE);
    cr_assert_eq(origin_requests(), before + 1, "renewed");
    world_end();
}

// ttl: changed at the origin: the new version, and the old one goes.
Test(known, ttl_and_it_changed)
{
    struct world_options options = {.seed = 3, .ttl = true};
    world_begin(&options);
    expect_reply(get_all(0), 200, WORLD_SIZE);
    world_advance_ms(61000);
    origin_overwrite();
    int clients[3];
    for (unsigned i = 0; i < 3; i++) {
        clients[i] = client_get(i, 0, UINT64_MAX);
    }
    world_run();
    for (unsigned i = 0; i < 3; i++) {
        expect_reply(clients[i], 200, WORLD_SIZE);
        cr_assert_eq(client_version(clients[i]), 2);
    }
    cr_assert_eq(store_visible_version(), 2);
    cr_assert_geq(counter(COUNTER_revalidations_joined), 1);
    world_end();
}

// ttl: the object was removed at the origin. The answer is 404, and nothing stays cached.
Test(known, ttl_and_it_was_removed)
{
    struct world_options options = {.seed = 3, .ttl = true};
    world_begin(&options);
    expect_reply(get_all(0), 200, WORLD_SIZE);
    world_advance_ms(61000);
    origin_remove();
    expect_reply(get_all(1), 404, 0);
    cr_assert_eq(store_visible_version(), 0);
    world_end();
}

// The origin is down: clients get the stale version for an hour, marked as stale. After that they
// get an error, never a 404.
Test(known, ttl_and_the_origin_is_down)
{
    struct world_options options = {.seed = 3, .ttl = true};
    world_begin(&options);
    expect_reply(get_all(0), 200, WORLD_SIZE);
    world_advance_ms(61000);
    origin_fail_next(ERR_ORIGIN_CONNECT);
    int stale = get_all(1);
    expect_reply(stale, 200, WORLD_SIZE);
    cr_assert(client_result(stale) == RESULT_STALE);
    cr_assert_eq(counter(COUNTER_stale_served), 1);
    world_advance_ms(3600000);
    origin_fail_next(ERR_ORIGIN_CONNECT);
    expect_reply(get_all(1), 503, 0);
    world_end();
}

// While the origin is silent, it is not asked about stale versions. Clients that may
// not get them are asked for as ever.
Test(known, a_silent_origin_is_not_asked_about_stale_versions)
{
    struct world_options options = {.seed = 3, .ttl = true};
    world_begin(&options);
    expect_reply(get_all(0), 200, WORLD_SIZE);
    world_advance_ms(61000);
    origin_falls_silent();
    int stale = get_all(1);
    expect_reply(stale, 200, WORLD_SIZE);
    cr_assert(client_result(stale) == RESULT_STALE);
    cr_assert_eq(origin_heads(), 0);
    struct client_ask ask = {.worker = 1, .no_cache = true};
    int no_cache = client_start(&ask);
    world_run();
    expect_reply(no_cache, 200, WORLD_SIZE);
    cr_assert(client_result(no_cache) == RESULT_REVALIDATED);
    cr_assert_eq(origin_heads(), 1);
    world_advance_ms(3661000);
    expect_reply(get_all(1), 200, WORLD_SIZE);
    cr_assert_eq(origin_heads(), 2);
    world_end();
}

// strict: one request without a body for each GET and HEAD; none served stale.
Test(known, strict)
{
    struct world_options options = {.seed = 3, .strict = true};
    world_begin(&options);
    expect_reply(get_all(0), 200, WORLD_SIZE);
    unsigned before = origin_requests();
    expect_reply(get_all(1), 200, WORLD_SIZE);
    expect_reply(ask((struct client_ask){.worker = 2, .head = true}), 200, 0);
    cr_assert_eq(origin_requests(), before + 2);
    origin_fail_next(ERR_ORIGIN_5XX);
    expect_reply(get_all(1), 503, 0);
    world_end();
}

// Cache-Control: no-cache of a client asks once, whatever the rule.
Test(known, no_cache)
{
    begin();
    expect_reply(get_all(0), 200, WORLD_SIZE);
    origin_overwrite();
    int old = get_all(1);
    cr_assert_eq(client_version(old), 1);
    int fresh = ask((struct client_ask){.worker = 2, .last = UINT64_MAX, .no_cache = true});
    expect_reply(fresh, 200, WORLD_SIZE);
    cr_assert_eq(client_version(fresh), 2);
    world_end();
}

// If-Match names another version than ours: the origin is asked before the answer is 412.
Test(known, if_match_of_another_version)
{
    begin();
    expect_reply(get_all(0), 200, WORLD_SIZE);
    expect_reply(ask((struct client_ask){.worker = 1, .last = UINT64_MAX, .if_match = 2}), 412, 0);
    origin_overwrite();
    int client = ask((struct client_ask){.worker = 1, .last = UINT64_MAX, .if_match = 2});
    expect_reply(client, 200, WORLD_SIZE);
    cr_assert_eq(client_version(client), 2);
    world_end();
}

// While a write is open, readers are served. Their answer is true for them, and renews nothing.
Test(known, read_inside_a_write)
{
    struct world_options options = {.seed = 3, .strict = true};
    world_begin(&options);
    int writer = writer_begin(1);
    world_run();
    cr_assert(writer_ready(writer));
    for (unsigned i = 0; i < 3; i++) {
        expect_reply(ask((struct client_ask){.worker = i, .head = true}), 200, 0);
        expect_reply(get_all(i), 200, WORLD_SIZE);
    }
    cr_assert_eq(store_visible_version(), 0);
    writer_write(writer);
    world_run();
    cr_assert_eq(client_version(get_all(2)), 2);
    world_end();
}
