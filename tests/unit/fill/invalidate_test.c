// SPDX-License-Identifier: Apache-2.0
// Proves: a write to a key whose bucket's epoch rises in between ends under both keys, and asks the
// origin once. A change of unknown extent answers when the store has recorded it.
#include "world_private.h"

#include "test.h"

#define HOME 0u // of key 0
#define WRITER 1u

static unsigned ready_count, ended_count;

static struct fill_worker *begin(void)
{
    world_begin(&(struct world_options){.seed = 1});
    ready_count = ended_count = 0;
    world.current = &world.workers[WRITER];
    return world.pw[WRITER].fill;
}

static void on_ready(struct key_write *kw)
{
    (void)kw;
    ready_count++;
}

static void on_ended(struct key_write *kw)
{
    (void)kw;
    ended_count++;
}

static struct object_key *key_made_in(const struct fill_worker *fw, uint64_t epoch)
{
    struct object_key *first = object_key_of(&world.keys[0]);
    struct object_key *key = object_key_in_epoch(fw, first, epoch);
    object_key_unref(first);
    return key;
}

// The next message from one worker to the other.
static void expect(unsigned from, unsigned to, enum fill_message_type type, uint64_t epoch)
{
    struct message *next = world.mail[from][to].first;
    cr_assert_not_null(next);
    struct fill_message *m = container_of(next, struct fill_message, message);
    cr_assert_eq(m->type, type);
    cr_assert_eq(container_of(m, struct write_message, base)->write->key->epoch, epoch);
}

// Delivers everything in flight until it ends, except messages of that type.
static void run_up_to(enum fill_message_type type)
{
    world_release();
    world_hold_message(type, -1, -1);
    world_run();
}

// From the begin, which has been sent, until the home has finished.
static void expect_round(struct key_write *kw, uint64_t epoch)
{
    expect(WRITER, HOME, MESSAGE_write_begin, epoch);
    if (ready_count == 0) {
        run_up_to(MESSAGE_write_end);
        cr_assert_eq(ready_count, 1);
        world.current = &world.workers[WRITER];
        invalidate_end(kw->at, kw);
        turn_end(&world.workers[WRITER]);
    } else {
        run_up_to(MESSAGE_write_end); // the origin has answered already
    }
    expect(WRITER, HOME, MESSAGE_write_end, epoch);
    run_up_to(MESSAGE_write_done);
    expect(HOME, WRITER, MESSAGE_write_done, epoch);
    cr_assert_eq(ended_count, 0);
}

Test(invalidate, write_across_epochs)
{
    // Epochs: when the key was made, at the begin, when the origin has answered, and at the end.
    static const uint64_t cases[][4] = {
        {0, 0, 0, 0}, {0, 2, 2, 2}, {2, 2, 3, 3}, {0, 1, 2, 3}, {5, 5, 5, 6}};
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        const uint64_t *epochs = cases[i];
        struct fill_worker *fw = begin();
        struct key_write kw = {
            .key = key_made_in(fw, epochs[0]), .on_ready = on_ready, .on_ended = on_ended};
        world.epoch = epochs[1];
        invalidate_begin(fw, &kw);
        turn_end(&world.workers[WRITER]);
        cr_assert_eq(world.epoch_holds, 1);
        expect_round(&kw, epochs[1]);
        world.epoch = epochs[2];
        cr_assert(world_do(EVENT_MESSAGE, HOME, WRITER));
        if (epochs[1] != epochs[2]) {
            cr_assert_eq(ended_count, 0);
            expect_round(&kw, epochs[2]);
            world.epoch = epochs[3];
            cr_assert(world_do(EVENT_MESSAGE, HOME, WRITER));
        }
        cr_assert_null(world.mail[WRITER][HOME].first);
        cr_assert_eq(ready_count, 1); // the origin is asked once
        cr_assert_eq(ended_count, 1);
        cr_assert_eq(world.epoch_holds, 0);
        object_key_unref(kw.key);
        world_end();
    }
}

// The two halves of a listed write are independent: each has a key_write of its own.
Test(invalidate, listed_halves_stand_alone)
{
    struct fill_worker *fw = begin();
    for (unsigned i = 0; i < 3; i++) {
        struct key_write kw = {
            .key = key_made_in(fw, i), .on_ready = on_ready, .on_ended = on_ended};
        ready_count = ended_count = 0;
        world.current = &world.workers[WRITER];
        if (i < 2) {
            invalidate_listed_begin(fw, &kw);
        } else {
            invalidate_listed_end(fw, &kw);
        }
        turn_end(&world.workers[WRITER]);
        world_run();
        cr_assert_eq(ready_count, i < 2);
        cr_assert_eq(ended_count, i == 2);
        cr_assert_eq(world.epoch_holds, 0);
        object_key_unref(kw.key);
    }
    for (unsigned i = 0; i < WORLD_WORKERS; i++) {
        cr_assert_eq(world.pw[i].fill->homes.count, 0);
        cr_assert_eq(world.pw[i].fill->floors.count, 0);
    }
    world_end();
}

static void on_bucket_ready(struct bucket_write *bw)
{
    (void)bw;
    ready_count++;
}

static void on_bucket_ended(struct bucket_write *bw)
{
    (void)bw;
    ended_count++;
}

Test(invalidate, whole_bucket)
{
    for (unsigned fails = 0; fails < 2; fails++) {
        struct fill_worker *fw = begin();
        struct bucket_write bw = {.on_ready = on_bucket_ready, .on_ended = on_bucket_ended};
        invalidate_bucket_begin(fw, &bw, NULL, SPAN("b"));
        cr_assert_eq(ready_count, 0);
        world.epoch_change->done(world.epoch_change, fails > 0 ? ERR_DISK_FULL : ERR_OK);
        cr_assert_eq(ready_count, 1);
        cr_assert_eq(bw.err != ERR_OK, fails > 0);
        invalidate_bucket_end(fw, &bw);
        cr_assert_eq(world.epoch_ends, 1 - fails); // the end raises only what was raised
        cr_assert_eq(ended_count, 0);              // never inside the call
        turn_end(&world.workers[WRITER]);
        cr_assert_eq(ended_count, 1);
        world_end();
    }
}
