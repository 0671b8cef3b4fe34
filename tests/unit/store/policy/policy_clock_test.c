// SPDX-License-Identifier: Apache-2.0
// Proves: the age clock runs at the share of known requests, as long as there is one; buckets cover
// all ages without a gap; classes remember two intervals; silence makes suspects, and one hit
// clears them.
#include "store/policy/policy_fixture.h"
#include "test.h"

#define CAPACITY (1024u * 1000u) // a tick is 1,000 bytes

Test(policy_clock, runs_at_the_share_of_known_requests)
{
    struct policy_clock clock;
    policy_clock_init(&clock, CAPACITY);
    for (unsigned i = 0; i < 100; i++) {
        policy_clock_advance(&clock, 500);
    }
    cr_assert_eq(clock.tick, 50u);
    clock.known_share = 0.25;
    for (unsigned i = 0; i < 100; i++) {
        policy_clock_advance(&clock, 500);
    }
    cr_assert_geq(clock.tick, 62u);
    cr_assert_leq(clock.tick, 63u);
}

Test(policy_clock, a_large_request_is_many_ticks)
{
    struct policy_clock clock;
    policy_clock_init(&clock, CAPACITY);
    policy_clock_advance(&clock, 100 * 1000);
    cr_assert_eq(clock.tick, 100u);
}

Test(policy_clock, requests_side_by_side_are_one_use)
{
    struct policy_clock clock;
    policy_clock_init(&clock, CAPACITY);
    policy_clock_advance(&clock, 10);
    cr_assert_eq(clock.same_use, 2u);
    policy_clock_init(&clock, CAPACITY);
    policy_clock_advance(&clock, 500);
    cr_assert_eq(clock.same_use, 32u);
    policy_clock_init(&clock, CAPACITY); // a small cache still sees reuse
    policy_clock_advance(&clock, 100000);
    cr_assert_eq(clock.same_use, 128u);
}

Test(policy_clock, each_age_has_its_bucket)
{
    unsigned last = 0;
    for (uint32_t age = 0; age < 1u << 18; age += age < 4096 ? 1 : 61) {
        unsigned bucket = policy_bucket(age);
        cr_assert_geq(bucket, last);
        cr_assert_lt(bucket, POLICY_BUCKETS);
        cr_assert(policy_bucket_begin(bucket) <= age);
        cr_assert(bucket == POLICY_BUCKETS - 1 || policy_bucket_begin(bucket + 1) > age);
        last = bucket;
    }
    cr_assert_eq(last, POLICY_BUCKETS - 1);
}

Test(policy_clock, a_class_is_the_last_two_intervals)
{
    unsigned once = policy_class_next(1000, POLICY_CLASS_NEW);
    cr_assert_eq(once, 1u + 4);                           // below 4^5
    cr_assert_eq(policy_class_next(3, once), 1u + 8 * 5); // below 4, and before that 4^5
    cr_assert_eq(policy_class_next(1000, POLICY_CLASS_SILENT), once);
    for (uint32_t age = 0; age < 1u << 19; age += 97) {
        for (unsigned c = 0; c < POLICY_CLASSES; c++) {
            unsigned next = policy_class_next(age, c);
            cr_assert(next > POLICY_CLASS_NEW && next < POLICY_CLASS_SILENT);
        }
    }
}

Test(policy_clock, stamps_of_workers_may_be_ahead_and_wrap)
{
    cr_assert_eq(policy_stamp_age(policy_stamp(10, 3, 1), 8), 0u);
    cr_assert_eq(policy_stamp_age(policy_stamp(POLICY_TICK_MASK, 3, 1), POLICY_TICK_MASK + 5u), 5u);
    cr_assert_eq(policy_stamp_class(policy_stamp(12345, 73, 31)), 73u);
    cr_assert_eq(policy_stamp_group(policy_stamp(12345, 73, 31)), 31u);
}

// Lets nearly all requests be for known runs, and then none.
static void fall_silent(struct policy_clock *clock)
{
    clock->known_share = 1;
    policy_clock_advance(clock, 1);
    for (unsigned i = 0; i < 2000; i++) {
        policy_clock_learn(clock, false);
        policy_clock_advance(clock, 1000);
    }
}

Test(policy_clock, silence_makes_suspects_until_one_is_read)
{
    struct policy_clock clock;
    policy_clock_init(&clock, CAPACITY);
    fall_silent(&clock);
    cr_assert(clock.is_silent);
    cr_assert(clock.has_suspects);
    cr_assert(policy_clock_is_suspect(&clock, clock.tick - clock.onset_tick + 1));
    cr_assert_not(policy_clock_is_suspect(&clock, clock.tick - clock.onset_tick));
    policy_clock_hit(&clock, 1); // read since the silence began: it says nothing
    cr_assert(clock.has_suspects);
    policy_clock_hit(&clock, clock.tick - clock.onset_tick + 1);
    cr_assert_not(clock.has_suspects);
}

Test(policy_clock, a_first_pass_makes_no_suspects)
{
    struct policy_clock clock;
    policy_clock_init(&clock, CAPACITY);
    for (unsigned i = 0; i < 5000; i++) {
        policy_clock_learn(&clock, false);
        policy_clock_advance(&clock, 1000);
    }
    cr_assert(clock.is_silent);
    cr_assert_not(clock.has_suspects);
    cr_assert_eq(clock.silence_count, 0u);
    cr_assert_eq(policy_clock_first_class(&clock), POLICY_CLASS_NEW);
    cr_assert_eq(clock.tick, 5000u); // runs at full speed, so that the runs age
}

Test(policy_clock, each_silence_has_its_own_suspects)
{
    struct policy_clock clock;
    policy_clock_init(&clock, CAPACITY);
    fall_silent(&clock);
    policy_clock_hit(&clock, clock.tick - clock.onset_tick + 1);
    clock.known_share = 1;
    policy_clock_advance(&clock, 1);
    cr_assert_not(clock.is_silent || clock.has_suspects);
    fall_silent(&clock);
    cr_assert(clock.has_suspects);
    cr_assert_eq(clock.silence_count, 2u);
}

Test(policy_clock, newcomers_of_a_silence_are_suspect_when_the_former_come_back)
{
    struct policy_clock clock;
    policy_clock_init(&clock, CAPACITY);
    fall_silent(&clock);
    clock.known_share = 1;
    policy_clock_advance(&clock, 1);
    cr_assert_not(policy_clock_newcomers_suspect(&clock));
    for (unsigned i = 0; i < 300; i++) {
        policy_clock_learn_newcomer(&clock, false);
    }
    cr_assert(policy_clock_newcomers_suspect(&clock));
    for (unsigned i = 0; i < 30; i++) {
        policy_clock_learn_newcomer(&clock, true);
    }
    cr_assert_not(policy_clock_newcomers_suspect(&clock));
}
