// SPDX-License-Identifier: Apache-2.0
// Proves: each fault that leaving out a rule of the protocol between workers would cause does not
// happen. Each test is the shortest schedule that would show the fault, and is named after it.
#include "world_private.h"

#include "test.h"

static void begin(void)
{
    struct world_options options = {.seed = 1};
    world_begin(&options);
}

static uint64_t block_first(unsigned block)
{
    return (uint64_t)block * WORLD_BLOCK;
}

// A GET of exactly one block.
static int get_block(unsigned worker, unsigned block)
{
    return client_get(worker, block_first(block), block_first(block) + WORLD_BLOCK - 1);
}

static void expect_complete(int client, int version)
{
    cr_assert_eq(client_outcome(client), CLIENT_COMPLETE, "outcome %d", client_outcome(client));
    cr_assert_eq(client_version(client), version, "version %d", client_version(client));
}

// The version 1 of one block is in the index, nothing is under way.
static void begin_with_block(unsigned block)
{
    begin();
    int client = get_block(0, block);
    world_run();
    expect_complete(client, 1);
    cr_assert(store_visible(block));
}

// Moves every fetch in flight one step at the origin, then delivers every message.
static void origin_step(void)
{
    cr_assert(world_do(EVENT_ORIGIN, -1, -1));
    world_deliver_all();
}

static int write_until_ready(unsigned worker)
{
    int writer = writer_begin(worker);
    world_run();
    cr_assert(writer_ready(writer));
    return writer;
}

// --- who asks the origin -------------------------------------------------------------------------

// The first request for an unknown object, too, is made by the owner of the block's stripe.
// Rule 2.
Test(rules, home_asks_itself_and_the_block_is_fetched_twice)
{
    begin();
    int first = get_block(2, 2); // the home is 0, the owner 1
    world_deliver_all();
    origin_step(); // evaluated
    origin_step(); // the head: from now on the version is known
    int second = get_block(0, 2);
    world_run();
    expect_complete(first, 1);
    expect_complete(second, 1);
    cr_assert_eq(origin_sent(1, 2), 1);
    cr_assert_eq(origin_requests(), 1);
    world_end();
}

// The owner looks in the index once more before it asks.
// Rule 16.
Test(rules, fetched_twice_because_a_reader_looked_before_the_block_was_visible)
{
    begin_with_block(0);
    int first = get_block(1, 2);
    int second = get_block(2, 2);
    world_hold_message(MESSAGE_join, 2, 1); // it has looked, its question is on its way
    world_run();
    expect_complete(first, 1);
    cr_assert(store_visible(2));
    world_release();
    world_run();
    expect_complete(second, 1);
    cr_assert_eq(origin_sent(1, 2), 1);
    world_end();
}

// An entry stays in the table until the index answers for it, which it does at once, not with the
// disk.
// Rules 15, 20.
Test(rules, fetched_twice_because_the_entry_left_before_it_was_visible)
{
    begin_with_block(0);
    world_hold(EVENT_COMMIT, -1, -1);
    world_hold_message(MESSAGE_publish, -1, -1);
    int first = get_block(1, 2);
    world_run();
    expect_complete(first, 1);
    cr_assert_not(store_visible(2));
    int second = get_block(2, 2);
    world_run();
    expect_complete(second, 1); // from its place, by the owner
    world_release();
    world_hold(EVENT_COMMIT, -1, -1);
    world_run();
    cr_assert(store_visible(2));
    int third = get_block(0, 2);
    world_run();
    expect_complete(third, 1);
    cr_assert_eq(origin_sent(1, 2), 1);
    world_end();
    cr_assert_eq(counter(COUNTER_fills_started), 2);
}

// A first request adopts a live entry, whatever version that asked for.
// Rules 16, 17.
Test(rules, fetched_twice_because_a_first_request_adopted_no_live_entry)
{
    struct world_options options = {.seed = 1, .refuse_store = true};
    world_begin(&options);
    int first = get_block(0, 0);
    world_deliver_all();
    origin_step();
    origin_step(); // the home knows the version while this entry lives
    int second = get_block(0, 2);
    world_deliver_all(); // so this one is a JOIN, live at worker 1
    cr_assert_eq(origin_requests(), 2);
    world_hold(EVENT_ORIGIN, 1, -1);
    world_run();
    expect_complete(first, 1); // unstored: its entry has left, the home has forgotten
    int third = get_block(2, 2);
    world_run();
    world_release();
    world_run();
    expect_complete(second, 1);
    expect_complete(third, 1);
    cr_assert_eq(origin_sent(1, 2), 1);
    cr_assert_eq(origin_requests(), 2);
    world_end();
}

// The home gets FIRST_END when the run that carries its first request leaves the table, for
// whatever reason. Rules 13, 19.
Test(rules, home_waits_for_ever_for_a_first_fetch_that_was_cancelled)
{
    begin();
    int first = get_block(1, 0);
    world_deliver_all();
    int held = get_block(2, 2);
    world_deliver_all();
    cr_assert_eq(origin_requests(), 1);
    client_leave(first);
    world_run();
    expect_complete(held, 1);
    cr_assert_eq(counter(COUNTER_fills_cancelled), 1);
    world_end();
}

// An entry that carries an older first request ends that request before it takes a newer one.
// Rule 17.
Test(rules, home_waits_for_ever_for_a_first_fetch_that_was_adopted_twice)
{
    begin();
    world_hold_message(MESSAGE_invalidate, -1, 0); // the entry of worker 0 stays as it is
    int first = get_block(1, 0);
    world_deliver_all();
    int writer = writer_begin(1); // the home forgets; the next request is a first one again
    world_deliver_all();
    int second = get_block(2, 0);
    world_deliver_all();
    cr_assert_eq(origin_requests(), 1, "the live entry was not adopted");
    world_release();
    world_run();
    expect_complete(first, 1);
    expect_complete(second, 1);
    writer_write(writer);
    world_end();
}

// --- a version that is no more -------------------------------------------------------------------

// After a 412 the reader goes to the home, not to its own index, which may still show the record.
// Rule 9.
Test(rules, restarts_on_its_own_index_without_end)
{
    begin_with_block(0);
    origin_overwrite();
    unsigned before = origin_requests();
    world_hold_message(MESSAGE_version_gone, -1, -1);
    world_hold_message(MESSAGE_invalidate, -1, 2);
    int client = get_block(2, 2);
    world_run();
    cr_assert_eq(origin_requests() - before, 1, "412");
    world_release();
    world_run();
    expect_complete(client, 2);
    cr_assert_eq(origin_requests() - before, 2, "412, then the new version");
    world_end();
}

// The same for a request with a condition.
// Rule 9.
Test(rules, restarts_on_its_own_index_without_end_with_a_condition)
{
    begin_with_block(0);
    origin_overwrite();
    unsigned before = origin_requests();
    world_hold_message(MESSAGE_version_gone, -1, -1);
    int client = client_start(&(struct client_ask){.worker = 2,
                                                   .has_range = true,
                                                   .first = block_first(2),
                                                   .last = block_first(2) + 9,
                                                   .if_none_match = 9});
    world_run();
    cr_assert_eq(origin_requests() - before, 1, "412");
    world_release();
    world_run();
    expect_complete(client, 2);
    cr_assert_eq(origin_requests() - before, 2, "412, then the new version");
    world_end();
}

// A refused version that is still current at the home is invalidated there.
// Rule 11.
Test(rules, the_refused_record_stays_for_the_next_reader)
{
    begin_with_block(0);
    origin_overwrite();
    int client = get_block(2, 2);
    world_run();
    expect_complete(client, 2);
    int next = get_block(1, 0);
    world_run();
    expect_complete(next, 2);
    cr_assert_eq(store_visible_version(), 2);
    world_end();
}

// No look-up finds what an invalidation removes, whatever the disk does. The floor is lifted when
// the disk has taken the delete. Rules 24, 26.
Test(rules, floor_lifted_while_the_old_record_is_still_visible)
{
    begin_with_block(0);
    origin_overwrite();
    world_hold(EVENT_COMMIT, -1, -1);
    int first = get_block(2, 2); // 412, so the home invalidates
    world_run();
    cr_assert_eq(client_outcome(first), CLIENT_OPEN, "the old version is on disk");
    cr_assert_eq(store_visible_version(), 0);
    cr_assert(world_has_floor(2));
    world_release();
    world_run();
    expect_complete(first, 2);
    cr_assert_not(world_has_floor(2));
    for (unsigned worker = 0; worker < WORLD_WORKERS; worker++) {
        int next = get_block(worker, 0);
        world_run();
        expect_complete(next, 2);
    }
    world_end();
}

// A worker lifts only the floor that the message names.
// Rule 26.
Test(rules, floor_of_a_second_invalidation_lifted_by_the_first)
{
    begin_with_block(0);
    int first = write_until_ready(0);
    writer_write(first);
    world_hold_message(MESSAGE_floor_lift, 0, 2);
    world_run();
    cr_assert(writer_replied(first));
    int reader = get_block(0, 0);
    world_run();
    expect_complete(reader, 2);
    cr_assert_eq(store_visible_version(), 2);
    int second = writer_begin(1);
    world_hold(EVENT_COMMIT, -1, -1);
    world_run(); // FLOOR_LIFT of the first write and INVALIDATE of the second wait on the same way
    cr_assert_not(writer_ready(second));
    world_do(EVENT_MESSAGE, 0, 2); // FLOOR_LIFT
    world_release();
    world_hold(EVENT_COMMIT, -1, -1);
    world_run();
    cr_assert_not(writer_ready(second), "the record of the first write is still visible");
    world_release();
    world_run();
    writer_write(second);
    world_end();
}

// --- held readers --------------------------------------------------------------------------------

// An invalidation forgets the first request. Readers that waited for it are routed again. Rule 24.
Test(rules, held_reader_never_ends)
{
    begin();
    world_hold(EVENT_ORIGIN, 0, -1);
    int first = get_block(1, 0);
    world_deliver_all();
    int held = get_block(2, 2);
    world_deliver_all();
    int writer = writer_begin(1);
    world_run();
    expect_complete(held, 1);
    world_release();
    world_run();
    expect_complete(first, 1);
    writer_write(writer);
    world_end();
}

// The answer to a forgotten first request decides nothing. Rule 12.
Test(rules, a_forgotten_first_request_decides_the_version)
{
    begin();
    int first = get_block(1, 0);
    world_deliver_all();
    origin_step(); // the origin has seen version 1
    int writer = write_until_ready(1);
    writer_write(writer);
    world_hold(EVENT_ORIGIN, -1, -1);
    world_run();
    cr_assert(writer_replied(writer));
    int held = get_block(2, 2); // decides again, with a request of its own in flight
    world_deliver_all();
    world_do(EVENT_ORIGIN, 0, -1); // VERSION of the old token
    world_deliver_all();
    int late = get_block(0, 3);
    world_release();
    world_run();
    expect_complete(first, 1);
    expect_complete(held, 2);
    expect_complete(late, 2);
    world_end();
}

// --- what a write waits for ----------------------------------------------------------------------

// The origin is not asked before the old record is removed, because a crash after the reply would
// find the record. Rule 27.
Test(rules, killed_after_the_reply_the_old_version_is_back)
{
    begin_with_block(0);
    world_hold(EVENT_COMMIT, -1, -1);
    int writer = writer_begin(2);
    world_run();
    cr_assert_not(writer_ready(writer));
    world_release();
    world_run();
    cr_assert(writer_ready(writer));
    cr_assert_eq(store_visible_version(), 0);
    writer_write(writer);
    world_run();
    cr_assert(writer_replied(writer));
    world_end();
}

// The write waits for its delete, but readers do not. They get the origin's answer, which is not
// kept. Rules 11, 14, 27.
Test(rules, readers_of_a_key_whose_write_waits_for_the_disk)
{
    begin_with_block(0);
    store_note();
    world_hold(EVENT_COMMIT, -1, -1);
    int writer = writer_begin(2);
    world_run();
    cr_assert_not(writer_ready(writer));
    int reader = get_block(1, 0);
    int head = client_head(2);
    world_run();
    expect_complete(reader, 1);
    expect_complete(head, 1);
    cr_assert_eq(store_visible_version(), 0);
    world_release();
    world_run();
    cr_assert(writer_ready(writer));
    writer_write(writer);
    world_run();
    cr_assert(writer_replied(writer));
    int after = get_block(1, 0);
    world_run();
    expect_complete(after, 2);
    cr_assert_eq(store_visible_version(), 2);
    world_end();
}

// With nothing to delete the write begins at once.
// Rule 27.
Test(rules, a_write_waits_for_a_delete_that_nobody_posted)
{
    begin();
    world_hold(EVENT_COMMIT, -1, -1);
    int writer = writer_begin(2);
    world_run();
    cr_assert(writer_ready(writer));
    writer_write(writer);
    world_end();
}

// Nothing is published between a write's two invalidations.
// Rule 14.
Test(rules, published_inside_the_write_the_old_version_outlives_it)
{
    begin();
    int writer = write_until_ready(2);
    int reader = get_block(1, 0); // still version 1 at the origin
    world_run();
    expect_complete(reader, 1);
    cr_assert_eq(store_visible_version(), 0);
    cr_assert_eq(counter(COUNTER_fills_dropped), 1);
    writer_write(writer);
    world_run();
    cr_assert(writer_replied(writer));
    world_end();
}

// A write that keeps no record at the home lists the key as open. A reader that asks between its
// two rounds gets the old version, and no run of it is published.
// Rules 14, 27, 28.
Test(rules, published_while_a_listed_key_is_open_the_old_version_outlives_the_write)
{
    for (unsigned is_open = 0; is_open < 2; is_open++) {
        begin();
        struct object_key *key = object_key_of(&world.keys[0]);
        struct open_keys *keys = open_keys_new(world.pw[1].fill, 1);
        open_keys_add(keys, key->origin, key->bucket, key->key);
        if (is_open == 0) {
            open_keys_close(keys);
        }
        int reader = get_block(0, 1);
        world_run();
        expect_complete(reader, 1);
        cr_assert_eq(store_visible(1), is_open == 0);
        if (is_open > 0) {
            open_keys_close(keys);
            int later = get_block(0, 1);
            world_run();
            expect_complete(later, 1);
            cr_assert(store_visible(1));
        }
        cr_assert_eq(world.epoch_holds, 0);
        object_key_unref(key);
        world_end();
    }
}

// The reply waits for every worker: one that has not met the invalidation would still use the old
// record. Rules 5, 25, 28.
Test(rules, replied_while_another_worker_still_sees_the_old_record)
{
    begin_with_block(0);
    int writer = write_until_ready(1);
    world_hold_message(MESSAGE_invalidate, 0, 2);
    writer_write(writer);
    world_run();
    cr_assert_not(writer_replied(writer));
    world_release();
    world_run();
    cr_assert(writer_replied(writer));
    int reader = get_block(2, 0);
    world_run();
    expect_complete(reader, 2);
    world_end();
}

// A PUBLISH sent before the acknowledgement arrives before it, and is refused by the open write.
// Rules 14, 25.
Test(rules, an_old_publish_is_accepted_after_the_reply)
{
    begin();
    int reader = get_block(1, 4); // owner 2
    world_hold_message(MESSAGE_publish, 2, 0);
    world_run();
    expect_complete(reader, 1);
    cr_assert(world_has_message(MESSAGE_publish));
    int writer = writer_begin(1);
    world_run();
    cr_assert(writer_ready(writer)); // nothing visible, nothing posted
    writer_write(writer);
    world_run();
    cr_assert_not(writer_replied(writer), "the acknowledgement is behind the PUBLISH");
    world_release();
    world_run();
    cr_assert(writer_replied(writer));
    cr_assert_eq(counter(COUNTER_fills_dropped), 1);
    cr_assert_eq(store_visible_version(), 0);
    world_end();
}

// The home posts; an owner that went to the writer itself would come after the write's delete.
// Rule 1.
Test(rules, an_old_put_reaches_the_index_after_the_writes_delete)
{
    begin_with_block(0);
    int reader = get_block(1, 4);
    world_hold_message(MESSAGE_publish, 2, 0);
    world_run();
    expect_complete(reader, 1);
    int writer = writer_begin(1);
    world_run();
    cr_assert(writer_ready(writer));
    cr_assert_eq(store_visible_version(), 0);
    writer_write(writer);
    world_release();
    world_run();
    cr_assert(writer_replied(writer));
    cr_assert_eq(store_visible_version(), 0);
    int next = get_block(0, 4);
    world_run();
    expect_complete(next, 2);
    world_end();
}

// A sender that has not acknowledged the last floor publishes nothing, write or no write.
// Rule 14.
Test(rules, published_by_a_worker_that_has_not_met_the_invalidation)
{
    begin_with_block(0);
    world_hold(EVENT_WRITTEN, -1, -1);
    int reader = get_block(1, 4); // of version 1, by worker 2
    world_run();
    expect_complete(reader, 1);
    origin_overwrite();
    int refused = get_block(1, 2);
    world_deliver_all();
    cr_assert(world_do(EVENT_ORIGIN, -1, -1));
    cr_assert(world_do(EVENT_ORIGIN, -1, -1)); // 412
    client_leave(refused);
    world_hold_message(MESSAGE_invalidate, 0, 2);
    world_run(); // the home has invalidated and knows nothing
    cr_assert_eq(store_visible_version(), 0);
    world_release();
    world_hold_message(MESSAGE_invalidate, 0, 2);
    world_run();
    cr_assert_eq(store_visible_version(), 0);
    world_end();
    cr_assert_eq(counter(COUNTER_fills_dropped), 1);
    cr_assert_eq(store_visible_version(), 0);
}

// --- entries that a write overtook ---------------------------------------------------------------

// An invalidation dooms an entry from the state "asked" on: no new reader joins it. Rule 25.
Test(rules, joined_after_the_write_a_request_from_before_it_looks_new)
{
    begin();
    int before = get_block(1, 0);
    world_deliver_all();
    origin_step(); // the origin has seen version 1; the answer is on its way
    world_hold(EVENT_ORIGIN, 0, -1);
    int writer = write_until_ready(1);
    writer_write(writer);
    world_run();
    cr_assert(writer_replied(writer));
    int after = get_block(2, 0);
    world_run();
    world_release();
    world_run();
    expect_complete(before, 1);
    expect_complete(after, 2);
    world_end();
}

// A doomed entry is never published, even if no worker is left that would refuse it. Rule 25.
Test(rules, published_after_the_write_a_request_from_before_it_looks_new)
{
    begin();
    int before = get_block(1, 0);
    world_deliver_all();
    origin_step();
    world_hold(EVENT_ORIGIN, 0, -1);
    int writer = write_until_ready(1);
    writer_write(writer);
    world_run();
    cr_assert(writer_replied(writer));
    world_release();
    world_run();
    expect_complete(before, 1);
    cr_assert_eq(store_visible_version(), 0);
    cr_assert_eq(counter(COUNTER_fills_doomed), 1);
    world_end();
}

// The same holds for an entry whose body was already complete when the invalidation came. Rule 25.
Test(rules, published_after_the_write_a_body_from_before_it_looks_new)
{
    begin();
    world_hold(EVENT_WRITTEN, -1, -1);
    int before = get_block(1, 0);
    world_run();
    expect_complete(before, 1);
    int writer = write_until_ready(1);
    writer_write(writer);
    world_run();
    cr_assert(writer_replied(writer));
    world_release();
    world_run();
    cr_assert_eq(store_visible_version(), 0);
    world_end();
}

// --- pins ----------------------------------------------------------------------------------------

// A place in a dying segment is a miss, not a reason to look again.
// Rule 6.
Test(rules, looks_again_and_the_pin_fails_again)
{
    begin_with_block(2);
    world_hold(EVENT_COMMIT, -1, -1);
    store_evict(2); // the index names it still
    int reader = get_block(0, 2);
    int head = client_head(2);
    world_run();
    expect_complete(reader, 1);
    expect_complete(head, 1);
    cr_assert_eq(origin_sent(1, 2), 2);
    world_end();
}

// A written run is no candidate for eviction until the index has it.
// Rule 20.
Test(rules, the_index_names_a_freed_segment)
{
    begin();
    world_hold(EVENT_COMMIT, -1, -1);
    int reader = get_block(1, 2);
    world_run();
    expect_complete(reader, 1);
    store_evict(2);
    world_release();
    world_run();
    cr_assert(store_visible(2));
    world_end();
}

// A dropped run is freed after its last pin.
// Rule 20.
Test(rules, a_dropped_run_is_freed_under_its_reader)
{
    begin();
    world_hold_message(MESSAGE_publish, -1, -1);
    int first = get_block(0, 2);
    world_run();
    expect_complete(first, 1);
    world_hold(EVENT_READ, -1, -1);
    int second = get_block(2, 2); // reads from the pending place
    world_run();
    cr_assert_eq(client_outcome(second), CLIENT_OPEN);
    int writer = writer_begin(2);
    world_run();
    world_release();
    world_hold(EVENT_READ, -1, -1);
    world_run();
    cr_assert_eq(counter(COUNTER_fills_dropped), 1);
    world_release();
    world_run();
    expect_complete(second, 1);
    writer_write(writer);
    world_end();
}

// --- leaving -------------------------------------------------------------------------------------

// LEAVE goes only to a worker that answered ATTACHED, after that message, so it cannot overtake a
// forwarded JOIN. Rule 10.
Test(rules, leave_overtakes_a_forwarded_join)
{
    begin();
    int first = get_block(1, 2);
    world_deliver_all();
    origin_step();
    origin_step(); // known
    world_hold_message(MESSAGE_join, 0, 1);
    int second = get_block(2, 2);
    world_deliver_all();
    cr_assert(world_has_message(MESSAGE_join));
    client_leave(second);
    world_deliver_all();
    world_release();
    world_run();
    expect_complete(first, 1);
    world_end(); // nobody is attached any more
}

// The last reader has gone: its late ATTACHED ends the run. Rule 10.
Test(rules, a_reader_that_left_before_it_was_attached_keeps_the_run_going)
{
    begin();
    world_hold_message(MESSAGE_attached, 0, 1);
    int client = get_block(1, 0);
    world_deliver_all();
    client_leave(client);
    world_release();
    world_deliver_all();
    world_run();
    cr_assert_eq(counter(COUNTER_fills_cancelled), 1);
    cr_assert_eq(origin_sent(1, 0), 0);
    world_end();
}

// A place that was pinned for a reader that has left is given back. Rule 10.
Test(rules, the_pin_of_a_gone_reader_is_never_given_back)
{
    begin();
    world_hold_message(MESSAGE_publish, -1, -1);
    int first = get_block(0, 2);
    world_run();
    expect_complete(first, 1);
    world_hold_message(MESSAGE_place, -1, -1);
    int second = get_block(2, 2);
    world_run();
    cr_assert(world_has_message(MESSAGE_place));
    client_leave(second);
    world_end(); // no pin is left
}

// The same holds when the place comes with the end of a run to which the reader was attached.
// Rule 10.
Test(rules, the_pin_of_a_reader_gone_while_the_run_was_written_is_never_given_back)
{
    struct world_options options = {.seed = 1, .buffer_bytes = CHUNK_SIZE};
    world_begin(&options);
    world_hold(EVENT_WRITTEN, -1, -1);
    int first = get_block(0, 2);
    world_run();
    expect_complete(first, 1);
    int second = get_block(2, 2); // waits for the place: the bytes have left memory
    world_run();
    world_release();
    world_hold_message(MESSAGE_final, 1, 2);
    world_run();
    cr_assert(world_has_message(MESSAGE_final));
    client_leave(second);
    world_end(); // no pin is left
}

// --- conditional requests ------------------------------------------------------------------------

// An answer to a request from before a write renews nothing, and reports no version. Rule 29.
Test(rules, an_answer_from_before_the_write_makes_the_old_record_fresh)
{
    struct world_options options = {.seed = 1, .ttl = true};
    world_begin(&options);
    int first = get_block(0, 0);
    world_run();
    expect_complete(first, 1);
    world_advance_ms(61000);
    int before = get_block(1, 0);
    world_deliver_all();
    origin_step(); // evaluated: not modified
    world_hold(EVENT_ORIGIN, 0, -1);
    int writer = write_until_ready(2);
    writer_write(writer);
    world_run();
    cr_assert(writer_replied(writer));
    int after = get_block(2, 0);
    world_deliver_all();
    world_release();
    world_run();
    expect_complete(after, 2);
    cr_assert_eq(client_outcome(before), CLIENT_COMPLETE);
    world_end();
}

// Under `strict`, a reader shares only a request that was sent after the reader came. Rule 29.
Test(rules, a_strict_reader_gets_an_answer_from_before_it_came)
{
    struct world_options options = {.seed = 1, .strict = true};
    world_begin(&options);
    int first = get_block(0, 0);
    world_run();
    expect_complete(first, 1);
    int before = get_block(0, 0);
    world_deliver_all();
    origin_step(); // evaluated: not modified
    origin_overwrite();
    int after = get_block(1, 0), beside = get_block(2, 0);
    world_deliver_all();
    world_run();
    expect_complete(before, 1);
    expect_complete(after, 2);
    expect_complete(beside, 2);
    cr_assert_geq(counter(COUNTER_revalidations_joined), 2);
    world_end();
}

// Nor does it share a first request, a run in flight or a held place behind one.
// Rule 29.
Test(rules, a_strict_reader_joins_a_first_request_sent_before_it_came)
{
    struct world_options options = {.seed = 1, .strict = true};
    world_begin(&options);
    int deciding = get_block(0, 0);
    world_deliver_all();
    origin_step(); // evaluated
    origin_overwrite();
    int held = get_block(1, 2), joining = get_block(2, 0);
    world_run();
    expect_complete(deciding, 1);
    expect_complete(held, 2);
    expect_complete(joining, 2);
    world_end();
}

// Records found again in segments may have been removed by a write. They are confirmed before the
// first use. Rule 30.
Test(rules, a_rebuilt_record_brings_an_invalidated_version_back)
{
    begin_with_block(0);
    store_rebuilt();
    origin_overwrite();
    int changed = get_block(1, 0);
    world_run();
    expect_complete(changed, 2);
    store_rebuilt();
    unsigned before = origin_requests();
    int same = get_block(2, 0);
    world_run();
    expect_complete(same, 2);
    int again = get_block(0, 0);
    world_run();
    expect_complete(again, 2);
    cr_assert_eq(origin_requests() - before, 1, "one HEAD, then it counts");
    world_end();
}

// --- failures of the disk ------------------------------------------------------------------------

static int write_while_the_disk_refuses(unsigned worker)
{
    world_release();
    world_hold(EVENT_COMMIT, -1, -1);
    int writer = writer_begin(worker);
    world_run();
    cr_assert_not(writer_ready(writer));
    store_fail_next_commit();
    cr_assert(world_do(EVENT_COMMIT, -1, -1));
    world_run();
    cr_assert(writer_ready(writer) && writer_refused(writer));
    return writer;
}

// A write whose delete the disk does not take is refused before the origin is asked. Readers in
// between get what is at the origin. When the disk takes the delete, the writer may try again.
// Rules 24, 27, 33.
Test(rules, written_although_the_disk_keeps_the_old_version)
{
    begin_with_block(0);
    int writer = write_while_the_disk_refuses(1);
    cr_assert_eq(counter(COUNTER_invalidation_failures), 1);
    cr_assert_eq(store_visible_version(), 0, "hidden for good, whatever the disk says");
    int again = write_while_the_disk_refuses(2); // nothing is visible; the disk has it all the same
    writer_write(again);
    writer_write(writer);
    world_release();
    world_run();
    cr_assert(writer_replied(writer) && writer_replied(again));
    cr_assert_eq(origin_version(), 1);
    int third = write_until_ready(0);
    cr_assert_not(writer_refused(third));
    writer_write(third);
    world_run();
    cr_assert(writer_replied(third));
    int next = get_block(1, 0);
    world_run();
    expect_complete(next, 2);
    world_end();
}
