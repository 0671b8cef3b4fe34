// SPDX-License-Identifier: Apache-2.0
// A write to a key whose bucket moves to another epoch meanwhile ends under both keys, and asks the
// origin once; a change of unknown extent answers when the store has noted it.
#include "fill/fill_private.h"

#include <stdlib.h>
#include <string.h>

#include "test.h"

static struct {
    uint64_t epoch;
    unsigned holds;
    struct fill_message *sent;
    struct store_epoch_change *change;
    struct task *deferred;
    unsigned ends;
} fake;

static uint64_t fake_hold(struct store *store, struct span origin, struct span bucket)
{
    (void)store, (void)origin, (void)bucket;
    fake.holds++;
    return fake.epoch;
}
static uint64_t fake_epoch(const struct store *store, struct span origin, struct span bucket)
{
    (void)store, (void)origin, (void)bucket;
    return fake.epoch;
}
static void fake_release(struct store *store, struct span origin, struct span bucket)
{
    (void)store, (void)origin, (void)bucket;
    fake.holds--;
}
static struct object_key *key_of(uint64_t epoch)
{
    struct object_key *k = calloc(1, sizeof(*k));
    cr_assert_not_null(k);
    atomic_init(&k->refs, 1);
    k->epoch = epoch;
    return k;
}
static struct object_key *fake_in_epoch(const struct fill_worker *fw, const struct object_key *key,
                                        uint64_t epoch)
{
    (void)fw, (void)key;
    return key_of(epoch);
}
static void fake_send(struct fill_worker *to, struct fill_message *message)
{
    (void)to;
    cr_assert_null(fake.sent);
    fake.sent = message;
}
static struct fill_worker *fake_home(const struct fill_worker *fw, const struct object_key *key)
{
    (void)key;
    return (struct fill_worker *)(uintptr_t)fw;
}
static void fake_epoch_begin(struct worker *w, struct store *store, struct span origin,
                             struct span bucket, struct store_epoch_change *change)
{
    (void)w, (void)store, (void)bucket;
    cr_assert(span_equal_cstr(origin, "there"));
    fake.change = change;
}
static void fake_epoch_end(struct store_epoch_change *change)
{
    cr_assert_eq(change, fake.change);
    fake.ends++;
}
static void fake_defer(struct worker *w, struct task *task)
{
    (void)w;
    fake.deferred = task;
}

#define store_epoch_hold fake_hold
#define store_epoch fake_epoch
#define store_epoch_release fake_release
#define store_epoch_begin fake_epoch_begin
#define store_epoch_end fake_epoch_end
#define object_key_in_epoch fake_in_epoch
#define object_key_home fake_home
#define origin_endpoint(origin) ((void)(origin), "there")
#define message_send fake_send
#define worker_defer fake_defer
#define fill_floor test_floor
#define invalidate_on_invalidate test_on_invalidate
#define invalidate_on_floor_lift test_on_floor_lift
#define invalidate_on_write_ready test_on_write_ready
#define invalidate_on_write_done test_on_write_done
#define invalidate_free_all test_free_all
#define invalidate_begin test_begin
#define invalidate_end test_end
#define invalidate_bucket_begin test_bucket_begin
#define invalidate_bucket_end test_bucket_end
#include "../../../src/fill/invalidate.c"

static struct fill_worker fw;
static unsigned ready_count, ended_count;

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

static void expect(enum fill_message_type type, uint64_t epoch)
{
    cr_assert_not_null(fake.sent);
    cr_assert_eq(fake.sent->type, type);
    cr_assert_eq(fake.sent->key->epoch, epoch);
    object_key_unref(fake.sent->key);
    free(fake.sent);
    fake.sent = NULL;
}

Test(invalidate, write_across_epochs)
{
    // Epochs: when the key was made, at the begin, when the origin has answered, and at the end.
    static const uint64_t cases[][4] = {
        {0, 0, 0, 0}, {0, 2, 2, 2}, {2, 2, 3, 3}, {0, 1, 2, 3}, {5, 5, 5, 6}};
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        const uint64_t *epochs = cases[i];
        memset(&fake, 0, sizeof(fake));
        ready_count = ended_count = 0;
        struct key_write kw = {
            .key = key_of(epochs[0]), .on_ready = on_ready, .on_ended = on_ended};
        struct write_message m = {.write = &kw};
        fake.epoch = epochs[1];
        test_begin(&fw, &kw);
        cr_assert_eq(fake.holds, 1);
        expect(MESSAGE_write_begin, epochs[1]);
        test_on_write_ready(&fw, &m);
        cr_assert_eq(ready_count, 1);
        test_end(&fw, &kw);
        expect(MESSAGE_write_end, epochs[1]);
        fake.epoch = epochs[2];
        test_on_write_done(&fw, &m);
        if (epochs[1] != epochs[2]) {
            cr_assert_eq(ended_count, 0);
            expect(MESSAGE_write_begin, epochs[2]);
            test_on_write_ready(&fw, &m);
            expect(MESSAGE_write_end, epochs[2]);
            fake.epoch = epochs[3];
            test_on_write_done(&fw, &m);
        }
        cr_assert_null(fake.sent);
        cr_assert_eq(ready_count, 1); // the origin is asked once
        cr_assert_eq(ended_count, 1);
        cr_assert_eq(fake.holds, 0);
        object_key_unref(kw.key);
    }
}

static void on_bucket_ready(struct bucket_write *bw)
{
    (void)bw;
    ready_count++;
}

static void bucket_ended(struct bucket_write *bw)
{
    (void)bw;
    ended_count++;
}

Test(invalidate, whole_bucket)
{
    for (unsigned fails = 0; fails < 2; fails++) {
        memset(&fake, 0, sizeof(fake));
        ready_count = ended_count = 0;
        struct bucket_write bw = {.on_ready = on_bucket_ready, .on_ended = bucket_ended};
        test_bucket_begin(&fw, &bw, NULL, SPAN("b"));
        cr_assert_eq(ready_count, 0);
        fake.change->done(fake.change, fails > 0 ? ERR_DISK_FULL : ERR_OK);
        cr_assert_eq(ready_count, 1);
        cr_assert_eq(bw.err != ERR_OK, fails > 0);
        test_bucket_end(&fw, &bw);
        cr_assert_eq(fake.ends, 1 - fails); // what was not raised is not raised again
        cr_assert_eq(ended_count, 0);       // never inside the call
        fake.deferred->fn(fake.deferred);
        cr_assert_eq(ended_count, 1);
    }
}
