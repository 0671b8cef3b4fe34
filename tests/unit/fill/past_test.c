// SPDX-License-Identifier: Apache-2.0
// Proves: for objects that are overwritten past the cache, no reader gets a version older than one
// that an earlier reader was given. That holds after a crash too, which the world judges after
// every event. Bytes that were delivered are a hit for the next reader. Rules 31 to 33.
#include "fill/home_private.h"
#include "world_private.h"

#include "test.h"

static void begin(void)
{
    struct world_options options = {.seed = 5};
    world_begin(&options);
}

static int get_block(unsigned worker, unsigned block)
{
    uint64_t first = (uint64_t)block * WORLD_BLOCK;
    return client_get(worker, first, first + WORLD_BLOCK - 1);
}

static int get_block_now(unsigned worker, unsigned block)
{
    int client = get_block(worker, block);
    world_run();
    return client;
}

static int get_newest(unsigned worker, unsigned block)
{
    uint64_t first = (uint64_t)block * WORLD_BLOCK;
    return client_start(&(struct client_ask){.worker = worker,
                                             .no_cache = true,
                                             .has_range = true,
                                             .first = first,
                                             .last = first + WORLD_BLOCK - 1});
}

static int head_newest(unsigned worker)
{
    return client_start(&(struct client_ask){.worker = worker, .head = true, .no_cache = true});
}

static void expect(int client, int version)
{
    cr_assert_eq(client_outcome(client), CLIENT_COMPLETE, "outcome %d", client_outcome(client));
    cr_assert_eq(client_version(client), version, "version %d", client_version(client));
}

// A run of version 1, block 2, delivered by worker 1 to a client of worker 2: all its bytes have
// come, they are on their way to the disk, its home knows nothing of it but the version.
static void deliver_and_hold(void)
{
    world_hold(EVENT_WRITTEN, -1, -1);
    int client = get_block(2, 2);
    world_run();
    expect(client, 1);
    cr_assert_not(store_visible(2));
}

// A reader on any worker gets this version or a newer one.
static void expect_everywhere(int version)
{
    for (unsigned worker = 0; worker < WORLD_WORKERS; worker++) {
        for (unsigned block = 0; block < WORLD_BLOCKS; block++) {
            int client = get_block(worker, block);
            world_run();
            expect(client, version);
        }
        int head = client_head(worker);
        world_run();
        expect(head, version);
    }
}

// --- nobody goes back in time --------------------------------------------------------------------

// No record is visible, but a version is known. A check that finds another version makes it untrue.
// Rule 31.
Test(past, checked_while_the_old_version_is_known)
{
    begin();
    deliver_and_hold();
    origin_overwrite();
    int newest = head_newest(0);
    world_run();
    world_release();
    world_run();
    expect(newest, 2);
    expect_everywhere(2);
    world_end();
}

// A first request is in flight when a check finds another version. Its answer may be the older one.
// Rule 31.
Test(past, checked_while_a_first_request_is_under_way)
{
    begin();
    int first = get_block(2, 2);
    world_deliver_all();
    cr_assert(world_do(EVENT_ORIGIN, 0, -1)); // the origin has looked
    world_hold(EVENT_ORIGIN, 0, -1);
    origin_overwrite();
    int newest = head_newest(1);
    world_run();
    expect(newest, 2);
    world_release();
    world_run();
    expect(first, 1); // it asked before
    expect_everywhere(2);
    world_end();
}

// The answer is sent after every worker has acknowledged, no matter which request began the
// invalidation. Rule 31.
Test(past, answered_before_another_worker_has_met_it)
{
    begin();
    int first = get_block(0, 0);
    world_run();
    expect(first, 1);
    origin_overwrite();
    world_hold_message(MESSAGE_invalidate, 0, 2);
    int newest = head_newest(1);
    world_run();
    cr_assert_eq(client_outcome(newest), CLIENT_OPEN);
    world_release();
    world_run();
    expect(newest, 2);
    expect_everywhere(2);
    world_end();
}

// A 412 has begun the invalidation. The check has nothing more to do, and still waits for it.
// Rule 31.
Test(past, answered_for_its_own_invalidation_only)
{
    begin();
    int first = get_block(0, 0);
    world_run();
    expect(first, 1);
    origin_overwrite();
    world_hold(EVENT_COMMIT, -1, -1);
    int gone = get_block(2, 2); // 412
    world_run();
    int newest = head_newest(1);
    world_run();
    cr_assert_eq(client_outcome(gone), CLIENT_OPEN);
    cr_assert_eq(client_outcome(newest), CLIENT_OPEN);
    world_release();
    world_run();
    expect(gone, 2);
    expect(newest, 2);
    world_end();
}

// Killed after the answer, the old version would be back.
// Rule 31.
Test(past, answered_before_the_delete_is_durable)
{
    begin();
    int first = get_block(0, 0);
    world_run();
    expect(first, 1);
    origin_overwrite();
    world_hold(EVENT_COMMIT, -1, -1);
    int newest = get_newest(1, 0);
    world_run();
    cr_assert_eq(client_outcome(newest), CLIENT_OPEN);
    cr_assert_eq(store_visible_version(), 0, "hidden from everybody at once");
    world_release();
    world_run();
    expect(newest, 2);
    expect_everywhere(2);
    world_end();
}

// The bucket is noted as written to, so after a crash nothing is used without confirmation. Neither
// the check nor the readers wait for a slow disk. Rules 11, 31.
Test(past, a_slow_delete_in_a_noted_bucket_delays_no_reader)
{
    begin();
    store_note();
    int first = get_block(0, 0);
    world_run();
    expect(first, 1);
    origin_overwrite();
    world_hold(EVENT_COMMIT, -1, -1);
    int newest = get_newest(1, 0);
    world_run();
    expect(newest, 2);
    expect_everywhere(2);
    cr_assert_eq(store_visible_version(), 2);
    world_release();
    world_run();
    cr_assert_eq(store_visible_version(), 2, "the delete takes only what is older");
    expect_everywhere(2);
    world_end();
}

// A late delete holds no reader up: neither the check that found the change nor a reader that came
// since. The floor stays until the delete is durable. Rules 26, 31.
Test(past, a_late_delete_delays_no_reader)
{
    begin();
    int first = get_block(0, 0);
    world_run();
    expect(first, 1);
    origin_overwrite();
    world_hold(EVENT_COMMIT, -1, -1);
    int newest = get_newest(1, 0);
    world_run();
    int later = get_block(0, 0);
    world_run();
    cr_assert_eq(client_outcome(newest), CLIENT_OPEN);
    cr_assert_eq(client_outcome(later), CLIENT_OPEN);
    store_deletes_are_late();
    world_run();
    expect(newest, 2);
    expect(later, 2);
    expect_everywhere(2);
    cr_assert_eq(store_visible_version(), 2);
    world_release();
    world_run();
    cr_assert_eq(store_visible_version(), 2, "the delete takes only what is older");
    expect_everywhere(2);
    world_end();
}

// While too many deletes are late already, readers wait. So the entries of their keys are bounded.
// Rule 31.
Test(past, readers_wait_for_a_late_delete_if_too_many_are_late)
{
    begin();
    int first = get_block(0, 0);
    world_run();
    expect(first, 1);
    origin_overwrite();
    world_hold(EVENT_COMMIT, -1, -1);
    int newest = get_newest(1, 0);
    world_run();
    struct fill_worker *home = world.pw[0].fill;
    home->unawaited += HOME_UNAWAITED_MAX;
    store_deletes_are_late();
    world_run();
    cr_assert_eq(client_outcome(newest), CLIENT_OPEN);
    home->unawaited -= HOME_UNAWAITED_MAX;
    world_release();
    world_run();
    expect(newest, 2);
    world_end();
}

// Noted while somebody is held: who comes later waits behind them, and all go on with the delete.
// Rules 11, 31.
Test(past, noted_while_a_reader_is_held)
{
    begin();
    int first = get_block(0, 0);
    world_run();
    expect(first, 1);
    origin_overwrite();
    world_hold(EVENT_COMMIT, -1, -1);
    int gone = get_block(2, 2); // 412
    world_run();
    cr_assert_eq(client_outcome(gone), CLIENT_OPEN);
    store_note();
    int late = get_block(1, 0);
    world_run();
    cr_assert_eq(client_outcome(gone), CLIENT_OPEN);
    cr_assert_eq(client_outcome(late), CLIENT_OPEN);
    world_release();
    world_run();
    expect(gone, 2);
    expect(late, 2);
    world_end();
}

// All of an object has been given to a reader, and only its first run is on disk. Later readers
// have a hit, on any worker, and the reply says so. Rule 32.
Test(past, later_runs_that_are_being_written_are_a_hit)
{
    begin();
    world_hold(EVENT_WRITTEN, -1, -1);
    int first = client_get(1, 0, UINT64_MAX);
    world_run();
    expect(first, 1);
    unsigned asked = origin_requests();
    for (unsigned worker = 0; worker < WORLD_WORKERS; worker++) {
        int next = client_get(worker, 0, UINT64_MAX);
        world_run();
        expect(next, 1);
        cr_assert_eq(client_result(next), RESULT_HIT, "worker %u: %d", worker, client_result(next));
    }
    while (!store_visible(0)) {
        cr_assert(world_do(EVENT_WRITTEN, 0, -1));
        world_run();
    }
    cr_assert_not(store_visible(4));
    for (unsigned worker = 0; worker < WORLD_WORKERS; worker++) {
        int next = client_get(worker, 0, UINT64_MAX);
        world_run();
        expect(next, 1);
        cr_assert_eq(client_result(next), RESULT_HIT, "worker %u: %d", worker, client_result(next));
    }
    cr_assert_eq(origin_requests(), asked);
    world_end();
}

// A disk that does not take the delete holds up nobody for ever.
// Rule 31.
Test(past, answered_although_the_disk_refuses)
{
    begin();
    int first = get_block(0, 0);
    world_run();
    expect(first, 1);
    origin_overwrite();
    store_fail_next_commit();
    int newest = get_newest(1, 0);
    world_run();
    expect(newest, 2);
    expect_everywhere(2);
    world_end();
}

// The new version is not stored: a run of the old one that is still in flight is neither joined by
// a first request nor published after it.
// Rules 14, 16.
Test(past, an_old_run_outlives_a_version_that_was_not_stored)
{
    struct world_options options = {.seed = 5, .refuse_store = true};
    world_begin(&options);
    int first = get_block(0, 0);
    world_deliver_all();
    cr_assert(world_do(EVENT_ORIGIN, 0, -1));
    cr_assert(world_do(EVENT_ORIGIN, 0, -1));
    world_deliver_all(); // version 1 is known
    store_refuse(false);
    int old = get_block(1, 2); // of version 1: a JOIN, asked of the origin
    world_deliver_all();
    cr_assert(world_do(EVENT_ORIGIN, 1, -1));
    cr_assert(world_do(EVENT_ORIGIN, 1, -1)); // its head is there
    world_hold(EVENT_ORIGIN, 1, -1);
    world_run();
    expect(first, 1);
    origin_overwrite();
    store_refuse(true);
    int newer = get_block(2, 0);
    world_run();
    expect(newer, 2);
    int same_block = get_block(2, 2);
    world_run();
    expect(same_block, 2);
    world_release();
    world_run();
    expect(old, 1); // it asked before
    cr_assert_eq(store_visible_version(), 0);
    expect_everywhere(2);
    world_end();
}

// The bytes of the cached version cannot be read. The origin is asked for the current version
// before any reader gets another one. Rule 31.
Test(past, the_record_cannot_be_read)
{
    begin();
    int first = get_block(0, 0);
    world_run();
    expect(first, 1);
    origin_overwrite();
    store_evict(0);
    world_hold(EVENT_COMMIT, -1, -1); // the index names what is gone
    int next = get_block(1, 0);
    world_run();
    cr_assert_eq(client_outcome(next), CLIENT_OPEN, "the old record is on disk");
    world_release();
    world_run();
    expect(next, 2);
    expect_everywhere(2);
    world_end();
}

// A first request has overtaken a request, which then finds a newer version: its readers ask again.
// Rules 25, 31.
Test(past, a_forgotten_first_request_finds_a_newer_version)
{
    begin();
    int first = get_block(2, 2);
    world_deliver_all();
    int writer = writer_begin(1); // the home forgets its first request
    world_hold(EVENT_ORIGIN, 0, -1);
    world_deliver_all();
    int second = get_block(1, 0);
    world_run();
    expect(second, 1);
    origin_overwrite();
    world_release();
    world_run();
    expect(first, 1); // of the version that counts now
    writer_write(writer);
    world_run();
    expect_everywhere(3);
    world_end();
}

// A reader past the cache gets a version. Before its client gets the answer, the record of another
// version is removed, for every worker and for the next process. Rule 31.
Test(past, answered_past_the_cache)
{
    begin();
    int first = get_block(0, 0);
    world_run();
    expect(first, 1);
    origin_overwrite();
    world_hold_message(MESSAGE_invalidate, 0, 2);
    world_hold(EVENT_COMMIT, -1, -1);
    int teller = teller_start(1, 2);
    world_run();
    cr_assert_not(teller_answered(teller), "a worker has not met it");
    world_release();
    world_hold(EVENT_COMMIT, -1, -1);
    world_run();
    cr_assert_eq(store_visible_version(), 0);
    cr_assert_not(teller_answered(teller), "a crash would bring it back");
    world_release();
    world_run();
    cr_assert(teller_answered(teller));
    expect_everywhere(2);
    world_end();
}

// The same holds while the other version is only known, while it is being decided, and where there
// is none. Rule 31.
Test(past, answered_past_the_cache_while_a_version_is_known)
{
    begin();
    deliver_and_hold();
    origin_overwrite();
    int teller = teller_start(0, 2);
    world_run();
    cr_assert(teller_answered(teller));
    world_release();
    world_run();
    expect_everywhere(2);
    world_end();
}

Test(past, answered_past_the_cache_while_a_first_request_is_under_way)
{
    begin();
    int first = get_block(2, 2);
    world_deliver_all();
    cr_assert(world_do(EVENT_ORIGIN, 0, -1)); // the origin has looked
    world_hold(EVENT_ORIGIN, 0, -1);
    origin_overwrite();
    int teller = teller_start(1, 2);
    world_run();
    cr_assert(teller_answered(teller));
    world_release();
    world_run();
    expect(first, 1); // it asked before
    expect_everywhere(2);
    world_end();
}

// The answer names the current version: nothing is removed, and nothing is fetched twice. Rule 31.
Test(past, answered_past_the_cache_with_what_is_there)
{
    begin();
    int first = get_block(0, 0);
    world_run();
    expect(first, 1);
    unsigned requests = origin_requests();
    int teller = teller_start(1, 1);
    world_run();
    cr_assert(teller_answered(teller));
    int next = get_block(2, 0);
    world_run();
    expect(next, 1);
    cr_assert_eq(origin_requests(), requests);
    world_end();
}

// The run was requested before other readers were given a newer version. It is still in flight, and
// its version is not believed. Rules 14, 31.
Test(past, answered_past_the_cache_with_an_older_version)
{
    begin();
    int first = get_block(0, 0);
    world_run();
    expect(first, 1);
    world_hold(EVENT_WRITTEN, -1, -1);
    int old = get_block(1, 2); // of version 1: it will be published
    world_run();
    expect(old, 1);
    store_evict(0);
    world_run(); // no record is left to be invalidated
    origin_overwrite();
    int newest = head_newest(1);
    world_run();
    expect(newest, 2);
    int teller = teller_start(1, 1);
    world_run();
    cr_assert(teller_answered(teller));
    world_release();
    world_run();
    expect_everywhere(2);
    world_end();
}

// --- an older answer that comes late -------------------------------------------------------------

// A run of version 1 is on its way to the disk, and no record is visible. The origin has answered
// with version 1, and then with version 2. The older answer comes last. From then on the run must
// count no more than before. Rules 14, 16 and 31.

// Ends the test: the run has been written.
static void expect_newest_after_the_run(void)
{
    world_release();
    world_run();
    cr_assert_neq(store_visible_version(), 1);
    expect_everywhere(2);
    world_end();
}

Test(past, late_answer_to_a_check_does_not_bring_its_version_back)
{
    begin();
    expect(get_block_now(0, 0), 1);
    world_hold(EVENT_WRITTEN, -1, -1);
    expect(get_block_now(1, 2), 1);
    store_evict(0);
    world_run();
    world_hold(EVENT_ORIGIN, -1, -1);
    int head = head_newest(1);
    world_run();
    cr_assert(world_do(EVENT_ORIGIN, -1, -1)); // the origin has looked
    origin_overwrite();
    int teller = teller_start(2, 2);
    world_run();
    cr_assert(teller_answered(teller));
    cr_assert(world_do(EVENT_ORIGIN, -1, -1));
    world_run();
    expect(head, 1); // it asked before
    expect_newest_after_the_run();
}

// The home forgets which first request decides. No worker but 1 meets the invalidation.
static void forget_first_request(void)
{
    world_hold_message(MESSAGE_invalidate, 0, 1);
    int doubt = doubt_begin(0);
    world_run();
    doubt_end(doubt);
    world_run();
}

// A check finds version 2 before the home gets what a first request has found on worker 1.
static void check_before(void)
{
    origin_overwrite();
    int newest = head_newest(0);
    world_run();
    while (world_do(EVENT_ORIGIN, -1, -1)) {
        world_run();
    }
    cr_assert_eq(client_status(newest), 0, "a worker has not met the invalidation");
    world_release();
    world_hold(EVENT_WRITTEN, -1, -1);
    world_run();
    expect(newest, 2);
}

Test(past, late_version_of_a_first_request_is_not_brought_back)
{
    begin();
    world_hold(EVENT_ORIGIN, -1, -1);
    world_hold(EVENT_WRITTEN, -1, -1);
    world_hold_message(MESSAGE_version, 1, 0);
    int old = client_get(2, (uint64_t)2 * WORLD_BLOCK, UINT64_MAX);
    world_run();
    forget_first_request();
    while (world_do(EVENT_ORIGIN, -1, -1)) {
        world_run();
    }
    expect(old, 1); // its last block comes from a run that began after the invalidation
    check_before();
    expect_newest_after_the_run();
}

Test(past, late_304_of_a_first_request_brings_no_version_back)
{
    begin();
    int old = client_get(2, (uint64_t)2 * WORLD_BLOCK, UINT64_MAX);
    world_hold(EVENT_PULL, old, -1);
    world_run();
    store_evict(2);
    world_run();
    cr_assert_eq(store_visible_version(), 0);
    world_hold(EVENT_ORIGIN, -1, -1);
    world_hold(EVENT_WRITTEN, -1, -1);
    world_hold_message(MESSAGE_first_end, 1, 0);
    int same = client_start(&(struct client_ask){.worker = 1,
                                                 .has_range = true,
                                                 .first = (uint64_t)2 * WORLD_BLOCK,
                                                 .last = (uint64_t)3 * WORLD_BLOCK,
                                                 .if_none_match = 1});
    world_run();
    forget_first_request();
    while (world_do(EVENT_ORIGIN, -1, -1) || world_do(EVENT_PULL, old, -1)) {
        world_run();
    }
    cr_assert_eq(client_status(same), 304);
    expect(old, 1); // its last block comes from a run that began after the invalidation
    check_before();
    expect_newest_after_the_run();
}

// --- what has been delivered is there ------------------------------------------------------------

// HEAD and conditions are answered from the version that the home knows.
// Rule 32.
Test(past, head_after_get_asks_the_origin)
{
    begin();
    deliver_and_hold();
    unsigned requests = origin_requests();
    for (unsigned worker = 0; worker < WORLD_WORKERS; worker++) {
        int head = client_head(worker);
        int matches = client_start(
            &(struct client_ask){.worker = worker, .last = UINT64_MAX, .if_none_match = 1});
        world_run();
        expect(head, 1);
        cr_assert_eq(client_result(head), RESULT_HIT);
        cr_assert_eq(client_status(matches), 304);
        cr_assert_eq(client_result(matches), RESULT_HIT);
    }
    cr_assert_eq(origin_requests(), requests);
    world_end();
}

// The run has become visible since the reader looked. Rule 32.
Test(past, head_after_get_comes_when_it_is_visible)
{
    begin();
    int first = get_block(2, 2);
    world_deliver_all();
    world_hold_message(MESSAGE_revalidate, 0, 0);
    int head = client_head(0);
    world_run();
    expect(first, 1);
    cr_assert(store_visible(2));
    unsigned requests = origin_requests();
    world_release();
    world_run();
    expect(head, 1);
    cr_assert_eq(client_result(head), RESULT_HIT);
    cr_assert_eq(origin_requests(), requests);
    world_end();
}

// A range, of the same block, from another worker: a hit. With `no-cache`: one question,
// no second body.
// Rule 32.
Test(past, strict_fetches_again_a_version_it_has_just_stored)
{
    begin();
    deliver_and_hold();
    unsigned requests = origin_requests();
    int next = get_block(0, 2);
    world_run();
    expect(next, 1);
    cr_assert_eq(client_result(next), RESULT_HIT);
    cr_assert_eq(origin_requests(), requests);
    int strict = get_newest(0, 2);
    world_run();
    expect(strict, 1);
    cr_assert_eq(client_result(strict), RESULT_REVALIDATED);
    cr_assert_eq(origin_requests() - requests, 1, "the question");
    cr_assert_eq(origin_sent(1, 2), 1);
    world_end();
}

// The run has become visible since it was requested: the version is not checked once more. Rule 32.
Test(past, strict_asks_twice_because_the_run_has_come_to_be_visible)
{
    begin();
    deliver_and_hold();
    unsigned requests = origin_requests();
    world_hold_message(MESSAGE_join, 0, 1);
    int strict = get_newest(0, 2);
    world_run();
    while (world_do(EVENT_WRITTEN, -1, -1)) {
    }
    world_run();
    cr_assert(store_visible(2));
    world_release();
    world_run();
    expect(strict, 1);
    cr_assert_eq(client_result(strict), RESULT_REVALIDATED);
    cr_assert_eq(origin_requests() - requests, 1);
    cr_assert_eq(origin_sent(1, 2), 1);
    world_end();
}

// A known version is as fresh as the request that found it. Rule 32.
Test(past, known_for_longer_than_it_is_fresh)
{
    struct world_options options = {.seed = 5, .ttl = true};
    world_begin(&options);
    deliver_and_hold();
    unsigned requests = origin_requests();
    world_advance_ms(61000);
    int head = client_head(1);
    world_run();
    expect(head, 1);
    cr_assert_eq(client_result(head), RESULT_REVALIDATED);
    cr_assert_eq(origin_requests() - requests, 1);
    world_end();
}

// A run takes longer than its version is fresh. A reader that joins it asks the origin before. A
// reader that asked while it was fresh does not. Rules 16 and 32.
static void begin_long_run(void)
{
    struct world_options options = {.seed = 5, .ttl = true, .piece_bytes = 1000};
    world_begin(&options);
    world_hold(EVENT_ORIGIN, 0, -1);
    int early = get_block(0, 0);
    world_run();
    for (unsigned i = 0; i < 3; i++) {
        cr_assert(world_do(EVENT_ORIGIN, 0, -1));
    }
    world_run();
    cr_assert_eq(client_status(early), 206);
}

Test(past, run_that_takes_longer_than_the_ttl_is_joined_after_a_check)
{
    begin_long_run();
    world_advance_ms(61000);
    int late = get_block(1, 0);
    world_run();
    cr_assert_eq(client_status(late), 206, "the run goes on");
    cr_assert_eq(origin_requests(), 2, "the run, and the check");
    world_release();
    world_run();
    expect(late, 1);
    cr_assert_eq(origin_requests(), 2);
    world_end();
}

Test(past, run_that_takes_longer_than_the_ttl_may_be_of_an_older_version)
{
    begin_long_run();
    origin_overwrite();
    world_advance_ms(61000);
    int late = get_block(1, 0);
    world_run();
    expect(late, 2);
    world_release();
    world_run();
    expect_everywhere(2);
    world_end();
}

// The reader's own run carries the headers of the version that is known.
Test(past, headers_known_for_longer_than_the_ttl_are_checked)
{
    begin_long_run();
    origin_redescribe();
    world_advance_ms(61000);
    int late = get_block(1, 2);
    world_run();
    expect(late, 1);
    world_release();
    world_run();
    expect_everywhere(1);
    world_end();
}

Test(past, run_that_takes_longer_than_the_ttl_may_be_stale_while_the_origin_fails)
{
    begin_long_run();
    world_advance_ms(61000);
    origin_fail_next(ERR_ORIGIN_UNAVAILABLE);
    int late = get_block(1, 0);
    world_run();
    cr_assert_eq(client_status(late), 206);
    world_release();
    world_run();
    expect(late, 1);
    cr_assert_eq(client_result(late), RESULT_STALE);
    world_end();
}

Test(past, reader_that_asked_within_the_ttl_checks_nothing)
{
    begin_long_run();
    world_hold_message(MESSAGE_route, 1, 0);
    int late = get_block(1, 0);
    world_run();
    world_advance_ms(61000);
    world_release();
    world_run();
    expect(late, 1);
    cr_assert_eq(origin_requests(), 1);
    world_end();
}

// --- what a first request ends with is older than what a check has found -------------------------

// The origin has evaluated a first request, whose condition no other reader has. Its answer is in
// flight. Then the object is overwritten, and a check finds that.
static int begin_older_answer(struct client_ask ask)
{
    world_hold(EVENT_WRITTEN, -1, -1);
    world_hold(EVENT_ORIGIN, 0, -1);
    int client = client_start(&ask);
    world_run();
    cr_assert(world_do(EVENT_ORIGIN, 0, -1));
    origin_overwrite();
    int check = head_newest(1);
    world_run();
    expect(check, origin_version());
    cr_assert_eq(client_status(client), 0);
    return client;
}

// A reader that asks now gets the version that the check has found, not the one that the first
// request ends with.
static void expect_newer_answer(int first, unsigned status, struct client_ask ask)
{
    int next = client_start(&ask);
    world_run();
    cr_assert_eq(client_status(next), 0, "held");
    world_release();
    world_run();
    cr_assert_eq(client_status(first), status, "status %u", client_status(first));
    expect(next, origin_version());
    expect_everywhere(origin_version());
    world_end();
}

// A run of version 1 is on its way to the disk. The 304 names that version, the check names version
// 2. Rules 13 and 31.
Test(past, a_304_does_not_bring_back_the_version_before_that_of_a_check)
{
    begin();
    int first = get_block(0, 0);
    world_run();
    expect(first, 1);
    deliver_and_hold();
    store_evict(0);
    world_run();
    cr_assert_not(store_visible(0));
    int client = begin_older_answer((struct client_ask){.last = UINT64_MAX, .if_none_match = 1});
    cr_assert(world_do(EVENT_ORIGIN, 0, -1));
    world_run();
    cr_assert_eq(client_status(client), 304);
    world_release();
    world_run();
    cr_assert_neq(store_visible_version(), 1);
    expect_everywhere(2);
    world_end();
}

// Rules 13 and 31.
Test(past, a_304_from_before_a_check_is_no_answer_for_later_readers)
{
    begin();
    struct client_ask ask = {.worker = 2, .last = UINT64_MAX, .if_none_match = 1};
    expect_newer_answer(begin_older_answer(ask), 304, ask);
}

// Rules 13 and 31.
Test(past, a_412_from_before_a_check_is_no_answer_for_later_readers)
{
    begin();
    struct client_ask ask = {.worker = 2, .last = UINT64_MAX, .if_match = 2};
    expect_newer_answer(begin_older_answer(ask), 412, ask);
}

// Rules 13 and 31.
Test(past, a_404_from_before_a_check_is_no_answer_for_later_readers)
{
    begin();
    origin_remove();
    struct client_ask ask = {.worker = 2, .last = UINT64_MAX};
    expect_newer_answer(begin_older_answer(ask), 404, ask);
}

// A client gets 412 for version 1 from a first request that decides nothing any more, because its
// worker has not met the invalidation. Until that worker has, no other first request is sent,
// because its answer might be older. Rules 11, 13 and 31.
Test(past, no_first_request_goes_out_beside_one_from_before_an_invalidation)
{
    begin();
    world_hold(EVENT_ORIGIN, -1, -1);
    uint64_t begins = (uint64_t)2 * WORLD_BLOCK;
    int denied = client_start(&(struct client_ask){
        .worker = 2, .has_range = true, .first = begins, .last = begins + 9, .if_match = 1});
    world_run();
    world_hold_message(MESSAGE_invalidate, 0, 1);
    int writer = writer_begin(2);
    world_run();
    int next = get_block(0, 0);
    world_run();
    origin_overwrite();
    cr_assert(world_do(EVENT_ORIGIN, 0, -1));
    cr_assert(world_do(EVENT_ORIGIN, 0, -1));
    world_run();
    cr_assert_eq(client_status(denied), 412);
    cr_assert_eq(origin_requests(), 1);
    cr_assert_eq(client_status(next), 0);
    world_release();
    world_run();
    expect(next, 2);
    writer_write(writer);
    world_run();
    expect_everywhere(3);
    world_end();
}

// --- unknown is not absent -----------------------------------------------------------------------

// A write while the index cannot be looked at removes what it may hold.
// Rule 33.
Test(past, written_while_the_index_cannot_be_looked_at)
{
    begin();
    int first = get_block(0, 0);
    world_run();
    expect(first, 1);
    store_hide(true);
    int writer = writer_begin(1);
    world_run();
    cr_assert(writer_ready(writer));
    writer_write(writer);
    world_run();
    cr_assert(writer_replied(writer));
    store_hide(false);
    expect_everywhere(2);
    world_end();
}

// A reader that finds a newer version in between makes the old one untrue as well.
// Rule 33.
Test(past, read_while_the_index_cannot_be_looked_at)
{
    begin();
    int first = get_block(0, 0);
    world_run();
    expect(first, 1);
    origin_overwrite();
    store_hide(true);
    store_refuse(true);
    int next = get_block(1, 0);
    world_run();
    expect(next, 2);
    store_hide(false);
    store_refuse(false);
    expect_everywhere(2);
    world_end();
}

// Each delete in flight keeps its key's entry alive. Above a limit none is posted, and the bucket's
// records are confirmed before use. Rule 33.
Test(past, too_many_keys_while_the_index_cannot_be_looked_at)
{
    begin();
    int first = get_block(0, 0);
    world_run();
    expect(first, 1);
    origin_overwrite();
    store_hide(true);
    store_refuse(true);
    struct fill_worker *home = world.pw[0].fill;
    home->unawaited += HOME_UNAWAITED_MAX;
    int next = get_block(1, 0);
    world_run();
    expect(next, 2);
    cr_assert_eq(home->unawaited, HOME_UNAWAITED_MAX);
    cr_assert(counter(COUNTER_unseen_deletes_left_out) > 0);
    home->unawaited -= HOME_UNAWAITED_MAX;
    store_hide(false);
    store_refuse(false);
    expect_everywhere(2);
    world_end();
}

// The disk does not take the delete that the first reader has posted. Nobody waits for it. Rule 33.
Test(past, unknown_index_and_a_disk_that_does_not_answer)
{
    begin();
    store_hide(true);
    store_refuse(true);
    world_hold(EVENT_COMMIT, -1, -1);
    int first = get_block(0, 0);
    world_run();
    expect(first, 1);
    int next = get_block(1, 0);
    int head = client_head(2);
    world_run();
    expect(next, 1);
    expect(head, 1);
    store_hide(false);
    store_refuse(false);
    world_end();
}

// A reply showed that the stored bytes are wrong, although no home has all of them: no reader finds
// them any more.
Test(past, wrong_bytes_are_found_on_no_worker_after_the_drop)
{
    begin();
    int client = get_block(2, 1);
    world_run();
    expect(client, 1);
    cr_assert(store_visible(1));
    struct object_key *key = object_key_of(&world.keys[0]);
    world.current = &world.workers[1];
    invalidate_wrong(world.pw[1].fill, key);
    object_key_unref(key);
    turn_end(&world.workers[1]);
    world_run();
    cr_assert_not(store_visible(1));
    expect_everywhere(1);
    world_end();
}
