// SPDX-License-Identifier: Apache-2.0
// Proves: what a part is wanted of, and what readers side by side ask for, is stored on probation; that lowers
// no bar and goes first, whole; more of it is kept when it went too soon, and nothing when it is over.
#include "policy_fixture.h"
#include "test.h"

#define SEGMENTS 64u
#define OLD 9u // a class of some past

// A sealed segment of blocks first .. first + 15 of class OLD, which all are worth the same.
static uint32_t fill(struct shelf *shelf, uint64_t first, bool on_probation)
{
    cr_assert(policy_segment_begin(shelf->policy, ++shelf->number));
    for (uint32_t i = 0; i < SEGMENT_RUNS; i++) {
        struct policy_event event = {.kind = POLICY_STORED,
                                     .key = shelf_key(first + i),
                                     .segment = shelf->number,
                                     .start = i * RUN_BYTES,
                                     .len = RUN_BYTES,
                                     .stamp = policy_stamp(shelf->policy->clock.tick, OLD, 0),
                                     .on_probation = on_probation};
        policy_take(shelf->policy, &event, 1);
    }
    policy_segment_seal(shelf->policy, shelf->number);
    return shelf->number;
}

static void shelf_full(struct shelf *shelf)
{
    shelf_init(shelf, POLICY_EPOCH, SEGMENTS);
    for (unsigned b = 0; b < POLICY_BUCKETS; b++) {
        shelf->policy->ranks.level[OLD][b] = 100;
        shelf->policy->ranks.rank[OLD][b] = shelf->policy->ranks.level_rank[100];
    }
    for (unsigned i = 0; i < SEGMENTS / 2; i++) {
        (void)fill(shelf, i * SEGMENT_RUNS, false);
    }
    policy_set_full(shelf->policy, true);
}

static uint32_t victim_of(struct shelf *shelf, uint32_t *ret_survivor_count)
{
    struct policy_victim victim;
    uint32_t survivors[SEGMENT_RUNS];
    cr_assert(policy_victim(shelf->policy, NULL, NULL, survivors, SEGMENT_RUNS, &victim));
    *ret_survivor_count = victim.survivor_count;
    return victim.number;
}

static enum policy_verdict ask_part(const struct shelf *shelf, uint64_t block)
{
    uint32_t stamp;
    return policy_admit(shelf->policy, shelf_key(block), 0, true, &stamp);
}

Test(policy_probation, it_lowers_no_bar_and_goes_first)
{
    struct shelf shelf;
    struct policy_stats stats;
    uint32_t survivor_count;
    shelf_full(&shelf);
    (void)victim_of(&shelf, &survivor_count);
    for (unsigned b = 0; b < POLICY_BUCKETS; b++) {
        shelf.policy->ranks.level[POLICY_CLASS_NEW][b] = 0;
    }
    cr_assert_eq(ask_part(&shelf, 10000), POLICY_PROBATION);
    uint32_t first = fill(&shelf, 10000, true), second = fill(&shelf, 20000, true);
    for (unsigned i = 0; i < 60; i++) {
        (void)shelf_pass_by(&shelf, 30000 + i); // segments are looked at meanwhile
    }
    policy_stats(shelf.policy, &stats);
    cr_assert_eq(stats.bar, shelf.policy->ranks.level_rank[100]);
    shelf.policy->reclaim.admitted_rank = 0;
    shelf.policy->reclaim.rewrite_credit = 1e9;
    cr_assert_eq(victim_of(&shelf, &survivor_count), first);
    cr_assert_eq(survivor_count, 0u);
    cr_assert_eq(victim_of(&shelf, &survivor_count), second);
    cr_assert_leq(victim_of(&shelf, &survivor_count), SEGMENTS / 2);
    shelf_done(&shelf);
}

Test(policy_probation, a_segment_of_both_kinds_is_one_of_the_others)
{
    struct shelf shelf;
    uint32_t survivor_count;
    shelf_full(&shelf);
    cr_assert(policy_segment_begin(shelf.policy, ++shelf.number));
    for (uint32_t i = 0; i < 3; i++) {
        struct policy_event event = {.kind = POLICY_STORED,
                                     .key = shelf_key(10000 + i),
                                     .segment = shelf.number,
                                     .start = i * RUN_BYTES,
                                     .len = RUN_BYTES,
                                     .stamp = policy_stamp(0, OLD, 0),
                                     .on_probation = i != 1};
        policy_take(shelf.policy, &event, 1);
    }
    policy_segment_seal(shelf.policy, shelf.number);
    cr_assert_neq(victim_of(&shelf, &survivor_count), shelf.number);
    shelf_done(&shelf);
}

Test(policy_probation, what_went_too_soon_makes_more_stay)
{
    struct shelf shelf;
    uint32_t survivor_count;
    shelf_full(&shelf);
    struct policy_event again = {.kind = POLICY_ADMITTED,
                                 .key = shelf_key(10000),
                                 .len = RUN_BYTES,
                                 .stamp = POLICY_STAMP_SAME,
                                 .is_part = true,
                                 .on_probation = true};
    unsigned kept = 0;
    for (uint32_t number = 0; kept < SEGMENTS && number <= SEGMENTS / 2; kept++) {
        for (unsigned i = 0; i < 4; i++) { // a 256th of the capacity each: a segment more
            policy_take(shelf.policy, &again, 1);
        }
        number = fill(&shelf, 10000 + kept * SEGMENT_RUNS, true);
        number = victim_of(&shelf, &survivor_count) <= SEGMENTS / 2 ? 0 : number;
    }
    cr_assert_eq(kept, SEGMENTS / 8 + 1); // and not more than an eighth
    // Now what is asked for in parts goes to the others, if it was there in this use.
    cr_assert_eq(ask_part(&shelf, 50000), POLICY_PROBATION);
    cr_assert(shelf_pass_by(&shelf, 50000) == false);
    cr_assert_eq(ask_part(&shelf, 50000), POLICY_STORE);
    policy_probation_tend(shelf.policy); // a while later
    cr_assert_eq(ask_part(&shelf, 50000), POLICY_PROBATION);
    shelf_done(&shelf);
}

// Else each of them would take the place of something that is read again, as long as nothing is known.
Test(policy_probation, a_part_of_something_new_does_not_say_what_it_is_worth)
{
    struct shelf shelf;
    uint32_t stamp;
    shelf_full(&shelf);
    policy_publish(shelf.policy);
    atomic_store(&shelf.policy->published.bar, 1);
    atomic_store(&shelf.policy->published.worth[POLICY_CLASS_NEW], 2);
    atomic_store(&shelf.policy->published.worth[policy_class_next(500, POLICY_CLASS_NEW)], 2);
    cr_assert_eq(policy_admit(shelf.policy, shelf_key(10000), 0, false, &stamp), POLICY_STORE);
    cr_assert_eq(ask_part(&shelf, 10000), POLICY_PROBATION);
    policy_ghost_put(&shelf.policy->ghost, shelf_key(10000), stamp, shelf.policy->clock.tick);
    shelf_pass(&shelf, 500);
    atomic_store(&shelf.policy->published.bar, 1);
    cr_assert_eq(ask_part(&shelf, 10000), POLICY_STORE); // it has a past
    cr_assert_eq(ask_part(&shelf, 20000), POLICY_PROBATION);
    policy_set_full(shelf.policy, false);
    cr_assert_eq(ask_part(&shelf, 20000), POLICY_STORE);
    shelf_done(&shelf);
}

Test(policy_probation, when_it_is_over_nothing_is_kept_for_it)
{
    struct shelf shelf;
    uint32_t survivor_count;
    shelf_full(&shelf);
    shelf.policy->probation.keep_bytes = shelf.options.capacity_bytes / 8;
    uint32_t number = fill(&shelf, 10000, true);
    cr_assert_neq(victim_of(&shelf, &survivor_count), number);
    cr_assert_not(policy_probation_ended(shelf.policy));
    shelf.policy->clock.asked_bytes += shelf.options.capacity_bytes / 16 + 1;
    for (unsigned b = 0; b < POLICY_BUCKETS; b++) {
        shelf.policy->ranks.level[OLD][b] = (uint8_t)(b < 20 ? 50 : 100);
    }
    shelf_pass(&shelf, 500);
    for (uint32_t i = 0; i < SEGMENT_RUNS; i++) { // the latest ones are worth less than the others
        const struct policy_segments *segments = &shelf.policy->segments;
        policy_segments_run(segments, policy_segments_find(segments, number), i)->stamp =
            policy_stamp(shelf.policy->clock.tick, OLD, 0);
    }
    cr_assert_eq(victim_of(&shelf, &survivor_count), number); // by its worth
    cr_assert(policy_probation_ended(shelf.policy));
    cr_assert_not(policy_probation_ended(shelf.policy));
    cr_assert_eq(shelf.policy->probation.keep_bytes, 0u);
    shelf_done(&shelf);
}

// How many of the last hundred blocks are refused when the first of so many readers comes to them.
static unsigned refused_of_the_first(struct shelf *shelf, uint64_t from, unsigned readers)
{
    unsigned refused = 0;
    for (uint64_t block = 0; block < 400; block++) {
        for (unsigned reader = 0; reader < readers; reader++) {
            shelf->policy->clock.known_share =
                0.5; // no silence: what is in there is not given away
            bool admitted = shelf_pass_by(shelf, from + block);
            refused += block >= 300 && reader == 0 && !admitted;
        }
    }
    return refused;
}

Test(policy_probation, readers_side_by_side_find_what_the_first_of_them_asked_for)
{
    struct shelf shelf;
    shelf_full(&shelf);
    cr_assert_eq(refused_of_the_first(&shelf, 10000, 1), 100u);
    cr_assert_eq(refused_of_the_first(&shelf, 20000, 2), 0u);
    cr_assert_eq(refused_of_the_first(&shelf, 30000, 1), 100u);
    cr_assert_eq(refused_of_the_first(&shelf, 40000, 8), 0u);
    shelf_done(&shelf);
}
