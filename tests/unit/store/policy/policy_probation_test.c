// SPDX-License-Identifier: Apache-2.0
// Proves: what a part is wanted of, and what readers side by side ask for, is stored on probation;
// that lowers no bar and goes first, whole; a little of it is kept, and nothing when nothing was
// stored there for a while.
#include "store/policy/policy_fixture.h"
#include "test.h"

#define SEGMENTS 64u
#define OLD 9u // a class of some past

// Makes a sealed segment of blocks first .. first + 15 of class OLD, all worth the same.
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
    shelf.policy->clock.asked_bytes += shelf.options.capacity_bytes / 16; // none is kept now
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

Test(policy_probation, a_part_of_a_refused_run_goes_on_probation)
{
    struct shelf shelf;
    shelf_full(&shelf);
    atomic_store(&shelf.policy->published.bar, 1);
    cr_assert_not(shelf_pass_by(&shelf, 50000));
    atomic_store(&shelf.policy->published.bar, 1);
    cr_assert_eq(ask_part(&shelf, 50000), POLICY_PROBATION, "a part, in the same use");
    shelf_done(&shelf);
}

// Otherwise, each of them would evict a run that is read again, as long as nothing is known.
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
    atomic_store(&shelf.policy->published.worth[POLICY_CLASS_NEW], 3);
    cr_assert_eq(ask_part(&shelf, 10000), POLICY_STORE); // new runs are read again far more often
    atomic_store(&shelf.policy->published.worth[POLICY_CLASS_NEW], 2);
    policy_ghost_put(&shelf.policy->ghost, shelf_key(10000), stamp, shelf.policy->clock.tick);
    shelf_pass(&shelf, 500);
    atomic_store(&shelf.policy->published.bar, 1);
    cr_assert_eq(ask_part(&shelf, 10000), POLICY_STORE); // it has a past
    cr_assert_eq(ask_part(&shelf, 20000), POLICY_PROBATION);
    policy_set_full(shelf.policy, false);
    cr_assert_eq(ask_part(&shelf, 20000), POLICY_STORE);
    shelf_done(&shelf);
}

Test(policy_probation, a_little_is_kept_and_goes_when_it_is_over)
{
    struct shelf shelf;
    uint32_t survivor_count;
    shelf_full(&shelf);
    shelf.policy->clock.mean_bytes = RUN_BYTES; // 32 such requests are two segments
    uint32_t first = fill(&shelf, 10000, true);
    (void)fill(&shelf, 20000, true);
    cr_assert_leq(victim_of(&shelf, &survivor_count), SEGMENTS / 2);
    (void)fill(&shelf, 30000, true);
    cr_assert_eq(victim_of(&shelf, &survivor_count), first);
    cr_assert_eq(survivor_count, 0u);
    cr_assert_leq(victim_of(&shelf, &survivor_count), SEGMENTS / 2);
    cr_assert_not(policy_probation_is_idle(shelf.policy));
    shelf.policy->clock.asked_bytes += shelf.options.capacity_bytes / 16 + 1;
    cr_assert(policy_probation_is_idle(shelf.policy));
    cr_assert_eq(victim_of(&shelf, &survivor_count), first + 1);
    cr_assert_eq(victim_of(&shelf, &survivor_count), first + 2);
    cr_assert_leq(victim_of(&shelf, &survivor_count), SEGMENTS / 2);
    shelf_done(&shelf);
}

// The store seals it a moment later: it must not stay for ever because it was open then.
Test(policy_probation, the_segment_that_was_open_when_it_was_over_goes_next)
{
    struct shelf shelf;
    uint32_t survivor_count;
    shelf_full(&shelf);
    uint32_t number = ++shelf.number;
    cr_assert(policy_segment_begin(shelf.policy, number));
    struct policy_event event = {.kind = POLICY_STORED,
                                 .key = shelf_key(10000),
                                 .segment = number,
                                 .len = RUN_BYTES,
                                 .stamp = policy_stamp(shelf.policy->clock.tick, OLD, 0),
                                 .on_probation = true};
    policy_take(shelf.policy, &event, 1);
    shelf.policy->clock.asked_bytes += shelf.options.capacity_bytes / 16 + 1;
    cr_assert_neq(victim_of(&shelf, &survivor_count), number);
    policy_segment_seal(shelf.policy, number);
    cr_assert_eq(victim_of(&shelf, &survivor_count), number);
    shelf_done(&shelf);
}

// Returns how many of the last hundred blocks are refused to the first of `readers` readers.
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

Test(policy_probation, readers_side_by_side_find_runs_that_the_first_of_them_requested)
{
    struct shelf shelf;
    shelf_full(&shelf);
    cr_assert_eq(refused_of_the_first(&shelf, 10000, 1), 100u);
    cr_assert_eq(refused_of_the_first(&shelf, 20000, 2), 0u);
    cr_assert_eq(refused_of_the_first(&shelf, 30000, 1), 100u);
    cr_assert_eq(refused_of_the_first(&shelf, 40000, 8), 0u);
    shelf_done(&shelf);
}

// --- with pins and shares

#define PINNED 11u
#define SHARED 12u
#define PLAIN 4u

static void groups_set(const struct shelf *shelf)
{
    struct policy_group pinned = {.factor = 1, .is_pinned = true, .plain = PLAIN, .identity = 77};
    struct policy_group shared = {.factor = 1, .share_percent = 10, .identity = 78};
    policy_group_set(shelf->policy, PINNED, &pinned);
    policy_group_set(shelf->policy, SHARED, &shared);
}

static void tell(const struct shelf *shelf, enum policy_event_kind kind, uint32_t index,
                 unsigned group, bool on_probation)
{
    struct policy_event event = {.kind = kind,
                                 .key = shelf_key(10000 + index),
                                 .segment = shelf->number,
                                 .start = index * RUN_BYTES,
                                 .len = RUN_BYTES,
                                 .stamp = policy_stamp(shelf->policy->clock.tick, OLD, group),
                                 .group = group,
                                 .on_probation = on_probation};
    policy_take(shelf->policy, &event, 1);
}

Test(policy_probation, nothing_there_is_pinned)
{
    struct shelf shelf;
    struct policy_explanation why;
    uint32_t stamp, survivor_count;
    shelf_full(&shelf);
    groups_set(&shelf);
    uint64_t key = shelf_key(10000);
    atomic_store(&shelf.policy->published.bar, 1e10f);
    // Pins use their whole share, so a part of a run to be pinned is judged like others' parts.
    cr_assert_eq(policy_admit(shelf.policy, key, PINNED, true, &stamp), POLICY_PROBATION);
    cr_assert(policy_segment_begin(shelf.policy, ++shelf.number));
    policy_pins_set_max(shelf.policy, SEGMENT_RUNS * RUN_BYTES); // now there is room
    tell(&shelf, POLICY_STORED, 0, PINNED, true);
    tell(&shelf, POLICY_READ, 0, PINNED, false);
    cr_assert_not(policy_segment_is_pinned(shelf.policy, shelf.number, 0));
    cr_assert_eq(policy_segment_pinned_count(shelf.policy, shelf.number), 0u);
    policy_explain(shelf.policy, key, PINNED, shelf.number, 0, &why);
    cr_assert(why.is_stored && why.is_on_probation && !why.is_pinned);
    cr_assert_eq(why.group, PLAIN);
    policy_segment_seal(shelf.policy, shelf.number);
    shelf.policy->clock.asked_bytes += shelf.options.capacity_bytes / 16 + 1;
    cr_assert_eq(victim_of(&shelf, &survivor_count), shelf.number);
    cr_assert_eq(survivor_count, 0u);
    // When there is room, a run to be pinned is stored with the runs that stay.
    atomic_store(&shelf.policy->published.bar, 1e10f);
    cr_assert_eq(policy_admit(shelf.policy, key, PINNED, true, &stamp), POLICY_STORE);
    shelf_done(&shelf);
}

Test(policy_probation, it_counts_for_the_share_of_its_group_and_is_not_refused_for_that)
{
    struct shelf shelf;
    struct policy_group_figures figures;
    uint32_t stamp;
    shelf_full(&shelf);
    groups_set(&shelf);
    for (unsigned n = 0; n < SEGMENTS / 5; n++) {
        cr_assert(policy_segment_begin(shelf.policy, ++shelf.number));
        for (uint32_t i = 0; i < SEGMENT_RUNS; i++) {
            tell(&shelf, POLICY_STORED, i, SHARED, true);
        }
    }
    policy_group_figures(shelf.policy, SHARED, &figures);
    cr_assert_eq(figures.bytes, SEGMENTS / 5 * SEGMENT_RUNS * RUN_BYTES);
    cr_assert_lt(atomic_load(&shelf.policy->published.factor[SHARED]), 0.01f);
    atomic_store(&shelf.policy->published.bar, 1e10f);
    cr_assert_eq(policy_admit(shelf.policy, shelf_key(90000), SHARED, true, &stamp),
                 POLICY_PROBATION);
    shelf_done(&shelf);
}

Test(policy_probation, it_goes_when_pins_leave_nothing_else)
{
    struct shelf shelf;
    uint32_t survivor_count;
    shelf_init(&shelf, POLICY_EPOCH, SEGMENTS);
    groups_set(&shelf);
    policy_pins_set_max(shelf.policy, shelf.options.capacity_bytes);
    for (unsigned i = 0; i < 4; i++) {
        (void)shelf_fill(&shelf, i * SEGMENT_RUNS, PINNED);
    }
    policy_set_full(shelf.policy, true);
    uint32_t number = fill(&shelf, 10000, true); // it is not due
    cr_assert_eq(victim_of(&shelf, &survivor_count), number);
    cr_assert_eq(survivor_count, 0u);
    shelf_done(&shelf);
}
