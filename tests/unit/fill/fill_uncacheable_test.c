// SPDX-License-Identifier: Apache-2.0
// Proves: a key whose answer cannot fill the cache is remembered, for a time or until it is
// forgotten. No other key is taken for it, and a full table forgets.
#include "fill/fill_private.h"
#include "world_private.h"

#include "test.h"

static _Atomic uint64_t table[FILL_UNCACHEABLE];
static struct fill_room room = {.uncacheable = table};
static struct fill_worker fw = {.room = &room};

static struct hash128 key_of(uint64_t n)
{
    return (struct hash128){n * UINT64_C(0x9e3779b97f4a7c15), n};
}

Test(fill_uncacheable, is_remembered_until_forgotten)
{
    for (uint64_t n = 0; n < 1000; n++) {
        cr_assert_eq(fill_uncacheable(&fw, key_of(n)), ORIGIN_FORBIDS_NOTHING);
        fill_uncacheable_note(&fw, key_of(n), ORIGIN_FORBIDS_VARY);
        cr_assert_eq(fill_uncacheable(&fw, key_of(n)), ORIGIN_FORBIDS_VARY);
        fill_uncacheable_forget(&fw, key_of(n + FILL_UNCACHEABLE)); // another key in the same slot
        cr_assert_eq(fill_uncacheable(&fw, key_of(n)), ORIGIN_FORBIDS_VARY);
    }
    for (uint64_t n = 0; n < 1000; n++) {
        fill_uncacheable_forget(&fw, key_of(n));
        cr_assert_eq(fill_uncacheable(&fw, key_of(n)), ORIGIN_FORBIDS_NOTHING);
    }
}

Test(fill_uncacheable, is_forgotten_after_a_minute_and_twice_as_long_each_time)
{
    uint64_t most_s = 60;
    for (unsigned i = 0; i < 20; i++) {
        fill_uncacheable_note(&fw, key_of(1), ORIGIN_FORBIDS_SHAPE);
        fill_uncacheable_note(&fw, key_of(1), ORIGIN_FORBIDS_VARY); // by a request beside it
        world_advance_ms((most_s - 1) * 1000);
        cr_assert_eq(fill_uncacheable(&fw, key_of(1)), ORIGIN_FORBIDS_VARY);
        world_advance_ms(2000);
        cr_assert_eq(fill_uncacheable(&fw, key_of(1)), ORIGIN_FORBIDS_NOTHING);
        most_s = min_u64(2 * most_s, 60 << 10);
    }
    fill_uncacheable_forget(&fw, key_of(1));
    fill_uncacheable_note(&fw, key_of(1), ORIGIN_FORBIDS_VARY);
    world_advance_ms(61000);
    cr_assert_eq(fill_uncacheable(&fw, key_of(1)), ORIGIN_FORBIDS_NOTHING);
}

Test(fill_uncacheable, a_full_table_keeps_the_latest_keys)
{
    for (uint64_t n = 0; n < 3 * FILL_UNCACHEABLE; n++) {
        fill_uncacheable_note(&fw, key_of(n), ORIGIN_FORBIDS_VARY);
        cr_assert_eq(fill_uncacheable(&fw, key_of(n)), ORIGIN_FORBIDS_VARY);
    }
    cr_assert_eq(fill_uncacheable(&fw, key_of(0)), ORIGIN_FORBIDS_NOTHING);
}
