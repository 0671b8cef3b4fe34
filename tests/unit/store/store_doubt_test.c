// SPDX-License-Identifier: Apache-2.0
// Proves: what was confirmed before a doubt's time is doubted, what is confirmed later is not; beyond the
// slots all others share one; the next process knows what this one did.
#include <stdio.h>

#include "base/clock.h"
#include "stats/stats.h"
#include "store/store_private.h"
#include "test.h"

static struct store *store_new(void)
{
    struct store *store = calloc(1, sizeof(*store));
    cr_assert_not_null(store);
    store_doubts_init(&store->doubts);
    return store;
}

static void store_end(struct store *store)
{
    store_doubts_done(&store->doubts);
    free(store);
}

static bool is_doubted(struct store *store, const char *bucket, uint64_t age_ms)
{
    return store_is_doubted(store, SPAN("origin"), span_from_cstr(bucket), age_ms);
}

static void pass_ms(uint64_t ms)
{
    clock_test_advance_us(ms * 1000);
}

static void expect_over(struct store *store, const char *bucket)
{
    cr_assert(is_doubted(store, bucket, 0) && is_doubted(store, bucket, UINT64_MAX));
    pass_ms(STORE_DOUBT_MS + 5000);
    cr_assert_not(is_doubted(store, bucket, 0), "a use that is confirmed now");
    cr_assert_not(is_doubted(store, bucket, 3000));
    cr_assert(is_doubted(store, bucket, 60000) && is_doubted(store, bucket, UINT64_MAX));
}

Test(store_doubt, until_its_time)
{
    struct store *store = store_new();
    cr_assert_not(is_doubted(store, "a", UINT64_MAX));
    store_doubt(store, SPAN("origin"), SPAN("a"));
    cr_assert_not(is_doubted(store, "b", UINT64_MAX));
    expect_over(store, "a");
    store_end(store);
}

Test(store_doubt, beyond_the_slots)
{
    struct store *store = store_new();
    uint64_t before = stats_sum(COUNTER_bucket_doubts_shared);
    for (unsigned i = 0; i < STORE_DOUBTS_MAX + 1; i++) {
        char name[16];
        cr_assert_not(is_doubted(store, "other", 0));
        (void)snprintf(name, sizeof(name), "b%u", i);
        store_doubt(store, SPAN("origin"), span_from_cstr(name));
        cr_assert(is_doubted(store, name, 0));
    }
    cr_assert_eq(stats_sum(COUNTER_bucket_doubts_shared) - before, 1);
    cr_assert(is_doubted(store, "other", 0), "coarse, not forgotten");
    expect_over(store, "b0");
    store_end(store);
}

// A note without a clean stop is a doubt of the next process; a time lasts over both ends.
Test(store_doubt, the_next_process)
{
    struct store *store = store_new(), *next = store_new();
    store_doubt(store, SPAN("origin"), SPAN("a"));
    store_doubt(store, SPAN("origin"), SPAN("written"));
    store_doubts_settle(store);
    next->dir.format = store->dir.format;
    next->dir.format.doubts[1].until_wall_ms = 0;
    next->dir.format.doubts[1].is_written_to = true;
    pass_ms(STORE_DOUBT_MS / 2);
    store_doubts_load(next);
    cr_assert(is_doubted(next, "a", 0) && is_doubted(next, "written", 0));
    cr_assert_not(is_doubted(next, "b", UINT64_MAX));
    cr_assert_not(next->dir.format.doubts[1].is_written_to, "it is a time now");
    pass_ms(STORE_DOUBT_MS / 2 + 5000);
    cr_assert_not(is_doubted(next, "a", 0));
    cr_assert(is_doubted(next, "a", 60000) && is_doubted(next, "written", 0));
    pass_ms(STORE_DOUBT_MS / 2);
    cr_assert_not(is_doubted(next, "written", 0));
    cr_assert(is_doubted(next, "written", STORE_DOUBT_MS));
    store_end(store);
    store_end(next);
}
