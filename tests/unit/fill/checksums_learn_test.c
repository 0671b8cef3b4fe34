// SPDX-License-Identifier: Apache-2.0
// Proves: one version is asked about once at a time, and objects that share slots one after the
// other. An origin whose HEAD has failed is not asked for ten seconds, and the number of HEADs in
// flight is limited.
#include "fill/fill_private.h"
#include "world_private.h"

#include "test.h"

static struct fill_room room;
static struct fill_worker fw = {.room = &room};
static struct object_key key = {.origin = (struct origin *)&room};

// The tsan build runs all tests in one process.
static void begin(void)
{
    memset(&room, 0, sizeof(room));
    key.hash = (struct hash128){0};
}

static struct store_object object_of(const char *etag)
{
    return (struct store_object){.etag = span_from_cstr(etag)};
}

Test(checksums_learn, a_version_is_claimed_once_until_it_is_released_or_ten_seconds_have_passed)
{
    begin();
    struct store_object a = object_of("\"a\""), b = object_of("\"b\"");
    cr_assert(checksums_learn_claim(&fw, &key, &a));
    cr_assert_not(checksums_learn_claim(&fw, &key, &a));
    cr_assert(checksums_learn_claim(&fw, &key, &b));
    checksums_learn_release(&fw, &key, &b);
    cr_assert(checksums_learn_claim(&fw, &key, &b));
    cr_assert_not(checksums_learn_claim(&fw, &key, &a));
    world_advance_ms(9900);
    cr_assert_not(checksums_learn_claim(&fw, &key, &a));
    world_advance_ms(200);
    cr_assert(checksums_learn_claim(&fw, &key, &a));
}

Test(checksums_learn, versions_that_share_slots_are_claimed_one_after_the_other)
{
    begin();
    struct store_object a = object_of("\"a\"");
    unsigned claimed = 0;
    for (key.hash.lo = 1; key.hash.lo <= 8 * FILL_LEARN_VERSIONS; key.hash.lo++) {
        claimed += checksums_learn_claim(&fw, &key, &a);
    }
    cr_assert_gt(claimed, FILL_LEARN_VERSIONS / 4 * 3);
    cr_assert_leq(claimed, FILL_LEARN_VERSIONS);
    for (key.hash.lo = 1; key.hash.lo <= 8 * FILL_LEARN_VERSIONS; key.hash.lo++) {
        checksums_learn_release(&fw, &key, &a);
    }
    cr_assert(checksums_learn_claim(&fw, &key, &a));
}

Test(checksums_learn, a_failed_head_pauses_its_origin_alone)
{
    begin();
    struct store_object a = object_of("\"a\"");
    const struct origin *other = (const struct origin *)&fw;
    checksums_learn_begin(&fw);
    checksums_learn_end(&fw, key.origin, true);
    cr_assert_not(checksums_learn_claim(&fw, &key, &a));
    cr_assert_not(checksums_learn_may_ask(&fw, key.origin));
    cr_assert(checksums_learn_may_ask(&fw, other));
    world_advance_ms(10100);
    cr_assert(checksums_learn_claim(&fw, &key, &a));
}

Test(checksums_learn, no_more_heads_are_out_than_the_limit)
{
    begin();
    struct store_object a = object_of("\"a\"");
    for (unsigned i = 0; i < 1024; i++) {
        cr_assert(checksums_learn_may_ask(&fw, key.origin));
        checksums_learn_begin(&fw);
    }
    uint64_t skipped = stats_sum(COUNTER_checksum_heads_skipped);
    cr_assert_not(checksums_learn_claim(&fw, &key, &a));
    cr_assert_eq(stats_sum(COUNTER_checksum_heads_skipped), skipped + 1);
    checksums_learn_end(&fw, key.origin, false);
    cr_assert(checksums_learn_claim(&fw, &key, &a));
}
