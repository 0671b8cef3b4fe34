// SPDX-License-Identifier: Apache-2.0
// A write to a key whose bucket moves to another epoch meanwhile ends under both keys, and asks the
// origin once; a change of unknown extent answers when the store has noted it.
#include "proxy/proxy_private.h"

#include <stdlib.h>
#include <string.h>

#include "test.h"

static struct {
    uint64_t epoch;
    unsigned holds;
    struct wire *sent;
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
static struct object_key *fake_in_epoch(const struct proxy_worker *pw, const struct object_key *key,
                                        uint64_t epoch)
{
    (void)pw, (void)key;
    return key_of(epoch);
}
static void fake_send(struct proxy_worker *to, struct wire *wire)
{
    (void)to;
    cr_assert_null(fake.sent);
    fake.sent = wire;
}
static struct proxy_worker *fake_home(const struct proxy_worker *pw, const struct object_key *key)
{
    (void)key;
    return (struct proxy_worker *)(uintptr_t)pw;
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
#define wire_send fake_send
#define worker_defer fake_defer
#define bar_floor test_bar_floor
#define bars_free test_bars_free
#define invalidate_on_inval test_on_inval
#define invalidate_on_unbar test_on_unbar
#define invalidate_on_wready test_on_wready
#define invalidate_on_wdone test_on_wdone
#define invalidate_begin test_begin
#define invalidate_end test_end
#define invalidate_bucket_begin test_bucket_begin
#define invalidate_bucket_end test_bucket_end
#include "../../../src/proxy/invalidate.c"

static struct proxy_worker pw;
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

static void expect(enum wire_type type, uint64_t epoch)
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
        struct wire wire = {.write = &kw};
        fake.epoch = epochs[1];
        test_begin(&pw, &kw);
        cr_assert_eq(fake.holds, 1);
        expect(WIRE_WBEGIN, epochs[1]);
        test_on_wready(&pw, &wire);
        cr_assert_eq(ready_count, 1);
        test_end(&pw, &kw);
        expect(WIRE_WEND, epochs[1]);
        fake.epoch = epochs[2];
        test_on_wdone(&pw, &wire);
        if (epochs[1] != epochs[2]) {
            cr_assert_eq(ended_count, 0);
            expect(WIRE_WBEGIN, epochs[2]);
            test_on_wready(&pw, &wire);
            expect(WIRE_WEND, epochs[2]);
            fake.epoch = epochs[3];
            test_on_wdone(&pw, &wire);
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
        test_bucket_begin(&pw, &bw, NULL, SPAN("b"));
        cr_assert_eq(ready_count, 0);
        fake.change->done(fake.change, fails > 0 ? ERR_DISK_FULL : ERR_OK);
        cr_assert_eq(ready_count, 1);
        cr_assert_eq(bw.err != ERR_OK, fails > 0);
        test_bucket_end(&pw, &bw);
        cr_assert_eq(fake.ends, 1 - fails); // what was not raised is not raised again
        cr_assert_eq(ended_count, 0);       // never inside the call
        fake.deferred->fn(fake.deferred);
        cr_assert_eq(ended_count, 1);
    }
}
