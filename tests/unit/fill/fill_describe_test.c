// SPDX-License-Identifier: Apache-2.0
// Proves: who asks for an object's checksums is given them, whoever fetched it first and however, at one
// request to the origin more at most, and none where they are known.
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

// Wherever it is asked now, nobody asks the origin.
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

Test(fill_describe, a_first_read_has_a_head_beside_it)
{
    begin(0);
    int client = ask(2, false);
    world_run();
    expect(client, true);
    cr_assert_eq(origin_heads(), 1);
    for (unsigned block = 0; block < WORLD_BLOCKS; block++) {
        cr_assert_eq(origin_sent(1, block), 1);
    }
    expect_known(true);
    world_end();
}

// Nothing of the key is known any more.
static void write_anew(void)
{
    int writer = writer_begin(1);
    world_run();
    writer_write(writer);
    world_run();
    cr_assert(writer_replied(writer));
}

// Whoever reads them shows that they are small. Both keys are of one kind.
static void read_small(unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        int client = client_get(2, 0, UINT64_MAX);
        world_run();
        expect(client, false);
        write_anew();
    }
}

#define PROOF 16u

Test(fill_describe, where_many_in_a_row_were_small_the_next_is_asked_for_whole)
{
    begin(2 * WORLD_BLOCK);
    read_small(PROOF - 1);
    world_use_key(1);
    world_hold(EVENT_TIMER, -1, -1); // the run's head waits for HEAD's answer
    for (unsigned whole = 0; whole < 2; whole++) {
        unsigned before = origin_requests();
        int client = ask(2, false);
        world_run();
        expect(client, true);
        cr_assert_eq(origin_requests() - before, 2 - whole);
        cr_assert_eq(counter(COUNTER_fills_whole), whole);
        write_anew();
    }
    world_end();
}

Test(fill_describe, who_does_not_ask_sees_no_other_requests)
{
    begin(2 * WORLD_BLOCK);
    read_small(PROOF + 1);
    cr_assert_eq(origin_heads(), 0);
    cr_assert_eq(counter(COUNTER_fills_whole), 0);
    world_end();
}

Test(fill_describe, a_large_one_in_between_has_its_kind_begin_anew)
{
    begin(2 * WORLD_BLOCK);
    read_small(PROOF - 1);
    origin_resize(WORLD_SIZE);
    origin_overwrite();
    world_hold(EVENT_TIMER, -1, -1); // the run's head waits for HEAD's answer
    int large = ask(2, false);
    world_run();
    expect(large, true);
    cr_assert_eq(origin_heads(), 1);
    for (unsigned i = 0; i < PROOF + 1; i++) {
        world_use_key(1);
        origin_resize(2 * WORLD_BLOCK);
        write_anew();
        int small = ask(2, false);
        world_run();
        expect(small, true);
    }
    cr_assert_eq(origin_heads(), 1 + PROOF);
    world_end();
}

// What turns out larger is asked for by its range; nothing is sent twice.
Test(fill_describe, one_that_is_larger_than_its_kind_is_asked_for_again)
{
    begin(2 * WORLD_BLOCK);
    read_small(PROOF);
    world_use_key(1);
    origin_resize(WORLD_SIZE);
    origin_overwrite();
    unsigned before = origin_requests();
    int client = ask(2, false);
    world_run();
    expect(client, true);
    cr_assert_eq(client_length(client), WORLD_SIZE);
    for (unsigned block = 0; block < WORLD_BLOCKS; block++) {
        cr_assert_eq(origin_sent(2, block), 1);
    }
    cr_assert_eq(origin_requests() - before, 4, "whole, and three runs");
    cr_assert_eq(origin_heads(), 0);
    cr_assert_eq(counter(COUNTER_fills_whole_wrong), 1);
    world_end();
}

// Stored by readers who did not ask for them: one HEAD, which nobody waits for; the next reader has them.
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
Test(fill_describe, one_head_tells_all_who_ask_meanwhile)
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

// The run that is under way was asked for by a reader who did not want them: the HEAD is answered before the run
// is stored, and its record has them.
Test(fill_describe, what_is_learnt_before_the_put_is_kept_with_it)
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

// A write in between: the HEAD tells of the version before it, and what it tells is kept with no other.
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

// HEAD that does not answer holds up a reply for a second.
Test(fill_describe, the_run_does_not_wait_for_ever)
{
    begin(0);
    int client = ask(2, false);
    world_deliver_all();
    int head = -1;
    for (int i = 0; i < MAX_FETCHES; i++) {
        head = world.fetches[i].used && world.fetches[i].f->head ? i : head;
    }
    cr_assert_geq(head, 0);
    world_hold(EVENT_ORIGIN, head, -1);
    world_hold(EVENT_TIMER, -1, -1);
    world_run();
    cr_assert_eq(client_status(client), 0);
    origin_fail_next(ERR_ORIGIN_5XX);
    world_release();
    world_run();
    cr_assert_eq(client_outcome(client), CLIENT_COMPLETE);
    cr_assert_eq(client_received(client), WORLD_SIZE);
    world_end();
}

// The version is at hand and HEAD does not answer: no reader of bytes waits, who asks for nothing else does.
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

// One that has failed is not sent again at once, and nobody is told of its failure.
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

// Its last byte leaves when it is known to be right, however late the transfer ends.
Test(fill_describe, what_is_not_what_the_origin_says_never_looks_whole)
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

// A first read that nobody waits for any more takes its HEAD with it.
Test(fill_describe, who_leaves_leaves_nothing_behind)
{
    for (unsigned steps = 0; steps < 12; steps++) {
        begin(0);
        int client = ask(2, false);
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
