// SPDX-License-Identifier: Apache-2.0
// Proves: a priority is a factor on the worth of runs. It decides which are evicted, and which are
// admitted.
#include "store/policy/policy_fixture.h"
#include "test.h"

#define CLASS 5u

// Runs of one class are worth `rank` at each age.
static void rank_all(struct policy *policy, float rank)
{
    for (unsigned b = 0; b < POLICY_BUCKETS; b++) {
        policy->ranks.rank[CLASS][b] = rank;
        policy->ranks.level[CLASS][b] = 100;
    }
}

Test(policy_group, a_priority_moves_the_rank)
{
    struct shelf shelf;
    shelf_init(&shelf, POLICY_EPOCH, 4);
    rank_all(shelf.policy, 1);
    policy_group_set(shelf.policy, 1, &(struct policy_group){.factor = 4});
    policy_group_set(shelf.policy, 2, &(struct policy_group){.factor = 0.5f});
    cr_assert_eq(policy_level(shelf.policy, policy_stamp(0, CLASS, 0)), 100u);
    cr_assert_eq(policy_level(shelf.policy, policy_stamp(0, CLASS, 1)), 116u);
    cr_assert_eq(policy_level(shelf.policy, policy_stamp(0, CLASS, 2)), 92u);
    shelf_done(&shelf);
}

Test(policy_group, a_priority_opens_the_door)
{
    struct shelf shelf;
    uint32_t stamp;
    shelf_init(&shelf, POLICY_EPOCH, 4);
    policy_group_set(shelf.policy, 1, &(struct policy_group){.factor = 100});
    atomic_store(&shelf.policy->published.worth[POLICY_CLASS_NEW], 0.1f);
    atomic_store(&shelf.policy->published.bar, 1);
    cr_assert_not(policy_admit(shelf.policy, shelf_key(1), 0, false, &stamp));
    cr_assert(policy_admit(shelf.policy, shelf_key(1), 1, false, &stamp));
    cr_assert_eq(policy_stamp_group(stamp), 1u);
    shelf_done(&shelf);
}

// Runs that are hardly ever read again are refused, whatever their priority. Runs that are read
// again are admitted. If the bar is 0, all are.
Test(policy_group, rule_priority_scales_value_but_does_not_set_admission_bar)
{
    struct shelf shelf;
    uint32_t stamp;
    shelf_init(&shelf, POLICY_EPOCH, 4);
    policy_group_set(shelf.policy, 1, &(struct policy_group){.factor = 100});
    policy_group_set(shelf.policy, 2, &(struct policy_group){.factor = 1 / 32.0f});
    for (unsigned bar = 0; bar < 2; bar++) {
        atomic_store(&shelf.policy->published.bar, (float)bar * 1e-9f);
        atomic_store(&shelf.policy->published.worth[POLICY_CLASS_NEW], 2e-5f);
        cr_assert(policy_admit(shelf.policy, shelf_key(1), 2, false, &stamp));
        atomic_store(&shelf.policy->published.worth[POLICY_CLASS_NEW], 1e-6f);
        for (unsigned group = 1; group <= 2; group++) {
            bool admitted =
                policy_admit(shelf.policy, shelf_key(1), group, false, &stamp) == POLICY_STORE;
            cr_assert_eq(admitted, bar == 0);
        }
    }
    shelf_done(&shelf);
}

// --- what each group holds

static void judge_bytes(const struct policy *policy)
{
    const struct policy_segments *segments = &policy->segments;
    uint64_t bytes[POLICY_GROUPS] = {0};
    for (uint32_t i = 0; i < segments->table_size; i++) {
        const struct policy_segment *segment = &segments->table[i];
        uint32_t pinned = 0;
        for (uint32_t j = 0; j < segment->run_count; j++) {
            uint32_t stamp = policy_segments_run(segments, segment, j)->stamp;
            if (stamp != POLICY_STAMP_GONE) {
                unsigned group = policy_stamp_group(stamp);
                bytes[group] += policy_segments_run_len(segments, segment, j);
                pinned += segments->pinned_groups >> group & 1;
            }
        }
        cr_assert_eq(segment->pinned_count, pinned);
    }
    for (unsigned i = 0; i < POLICY_GROUPS; i++) {
        cr_assert_eq(segments->group_bytes[i], bytes[i]);
    }
}

static void go_through(struct policy *policy)
{
    while (policy_groups_step(policy, 1)) {
    }
}

static const struct policy_group pinned = {.factor = 1, .is_pinned = true, .identity = 77};

Test(policy_group, bytes_are_what_the_runs_come_to)
{
    struct shelf shelf;
    uint32_t seed = 5, stamp;
    shelf_init(&shelf, POLICY_EPOCH, 8);
    policy_group_set(shelf.policy, 11, &pinned);
    policy_pins_set_max(shelf.policy, 2 * SEGMENT_RUNS * RUN_BYTES);
    for (unsigned i = 0; i < 6; i++) {
        (void)shelf_fill(&shelf, 100 * i, i % 3 == 0 ? 11 : i % 3);
        judge_bytes(shelf.policy);
    }
    for (unsigned i = 0; i < 300; i++) {
        seed = seed * 1103515245 + 12345;
        uint32_t number = 1 + (seed >> 16) % 6, index = (seed >> 20) % SEGMENT_RUNS;
        switch ((seed >> 24) % 5) {
        case 0:
            policy_segment_drop(shelf.policy, number, index, index);
            break;
        case 1: {
            struct policy_event event = {
                .kind = POLICY_GONE, .segment = number, .start = index * RUN_BYTES};
            policy_take(shelf.policy, &event, 1);
            break;
        }
        case 2: {
            struct policy_event event = {.kind = POLICY_READ,
                                         .segment = number,
                                         .start = index * RUN_BYTES,
                                         .len = RUN_BYTES,
                                         .group = (seed >> 8) % 2 == 0 ? 11 : 2};
            policy_take(shelf.policy, &event, 1);
            break;
        }
        case 3:
            policy_segment_regroup(shelf.policy, number, index, (seed >> 8) % 2 == 0 ? 11 : 2);
            break;
        default: // out of order, and behind the last
            stamp = policy_stamp(shelf.policy->clock.tick, 0, (seed >> 9) % 3);
            (void)policy_segment_append(shelf.policy, number, index * RUN_BYTES + 512 * (i + 1),
                                        512, i, stamp);
        }
        judge_bytes(shelf.policy);
    }
    policy_segment_move(shelf.policy, 1, 3, 2, 40 * RUN_BYTES, RUN_BYTES);
    judge_bytes(shelf.policy);
    policy_segment_free(shelf.policy, 1);
    judge_bytes(shelf.policy);
    policy_group_set(shelf.policy, 11, &(struct policy_group){.factor = 1, .identity = 77});
    go_through(shelf.policy);
    judge_bytes(shelf.policy);
    policy_group_set(shelf.policy, 11, &pinned);
    go_through(shelf.policy);
    judge_bytes(shelf.policy);
    shelf_done(&shelf);
}

Test(policy_group, a_run_changes_its_group_without_being_read)
{
    struct shelf shelf;
    shelf_init(&shelf, POLICY_EPOCH, 8);
    policy_group_set(shelf.policy, 11, &pinned);
    policy_pins_set_max(shelf.policy, 2 * RUN_BYTES);
    uint32_t number = shelf_fill(&shelf, 0, 2);
    for (unsigned i = 0; i < 3; i++) { // the third finds no room
        policy_segment_regroup(shelf.policy, number, i, 11);
        cr_assert_eq(policy_segment_group(shelf.policy, number, i), i < 2 ? 11 : pinned.plain);
    }
    cr_assert_eq(policy_segment_pinned_count(shelf.policy, number), 2);
    policy_segment_regroup(shelf.policy, number, 0, 2);
    cr_assert_eq(policy_segment_pinned_count(shelf.policy, number), 1);
    policy_segment_drop(shelf.policy, number, 1, 1);
    cr_assert_eq(policy_segment_group(shelf.policy, number, 1), POLICY_GROUPS);
    policy_segment_regroup(shelf.policy, number, 1, 11);
    policy_segment_regroup(shelf.policy, number + 1, 0, 11);
    cr_assert_eq(policy_segment_pinned_count(shelf.policy, number), 0);
    judge_bytes(shelf.policy);
    shelf_done(&shelf);
}

static void vacate(struct policy *policy, uint32_t groups)
{
    policy_groups_vacate(policy, groups);
    go_through(policy);
}

// Each step is bounded. Runs that come between two steps do not join the group that is being left.
// Runs that move from a later to an earlier position are found.
Test(policy_group, rules_go_in_steps)
{
    struct shelf shelf;
    struct policy_group gone = {.factor = 1, .is_pinned = true, .plain = 3, .identity = 7};
    shelf_init(&shelf, POLICY_EPOCH, 4);
    policy_group_set(shelf.policy, 11, &gone);
    policy_pins_set_max(shelf.policy, 1u << 30);
    for (uint32_t number = 1; number <= 3; number++) {
        cr_assert(policy_segment_begin(shelf.policy, number));
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t stamp = policy_stamp(shelf.policy->clock.tick, 0, 11);
            cr_assert(policy_segment_append(shelf.policy, number, i * RUN_BYTES, RUN_BYTES,
                                            10 * number + i, stamp));
        }
    }
    const uint64_t *bytes = shelf.policy->segments.group_bytes;
    policy_groups_vacate(shelf.policy, 1u << 11);
    unsigned steps = 0;
    while (policy_groups_step(shelf.policy, 1)) {
        cr_assert(++steps < 100);
        if (steps == 3) { // entries 0 to 2 are done
            cr_assert_eq(bytes[11], 4 * RUN_BYTES);
            policy_segment_move(shelf.policy, 3, 0, 1, 4 * RUN_BYTES, RUN_BYTES);
            policy_segment_regroup(shelf.policy, 2, 0, 11);
            cr_assert_eq(policy_segment_group(shelf.policy, 2, 0), 3);
        }
        judge_bytes(shelf.policy);
    }
    cr_assert(steps > 4, "%u", steps);
    cr_assert_eq(bytes[11], 0);
    cr_assert_eq(bytes[3], 12 * RUN_BYTES);
    for (uint32_t number = 1; number <= 3; number++) {
        cr_assert_eq(policy_segment_pinned_count(shelf.policy, number), 0);
    }
    cr_assert_eq(policy_group_identity(shelf.policy, 11), 0);
    shelf_done(&shelf);
}

// The runs of a deleted rule count for their priority, and the rule's number is free for another
// rule.
Test(policy_group, runs_of_deleted_rules_count_by_their_priority)
{
    struct shelf shelf;
    struct policy_group plain_3 = {.factor = 1, .is_pinned = true, .plain = 3, .identity = 7};
    struct policy_group shared = {.factor = 1, .share_percent = 50, .plain = 4, .identity = 9};
    shelf_init(&shelf, POLICY_EPOCH, 4);
    policy_group_set(shelf.policy, 11, &plain_3);
    policy_group_set(shelf.policy, 12, &shared);
    policy_pins_set_max(shelf.policy, 1u << 30);
    cr_assert(policy_segment_begin(shelf.policy, 1));
    for (uint32_t i = 0; i < 6; i++) {
        uint32_t stamp = policy_stamp(shelf.policy->clock.tick, 0, 11 + i % 3);
        cr_assert(policy_segment_append(shelf.policy, 1, i * RUN_BYTES, RUN_BYTES, i, stamp));
    }
    const uint64_t *bytes = shelf.policy->segments.group_bytes;
    cr_assert_eq(policy_segment_pinned_count(shelf.policy, 1), 2);
    vacate(shelf.policy, 1u << 11);
    judge_bytes(shelf.policy);
    cr_assert_eq(bytes[3], 2 * RUN_BYTES);
    cr_assert_eq(bytes[11], 0);
    cr_assert_eq(bytes[12], 2 * RUN_BYTES);
    cr_assert_eq(policy_segment_pinned_count(shelf.policy, 1), 0);
    policy_group_set(shelf.policy, 11, &plain_3); // another rule with that number holds nothing
    cr_assert_eq(bytes[11], 0);
    vacate(shelf.policy, 1u << 11 | 1u << 12);
    judge_bytes(shelf.policy);
    cr_assert_eq(bytes[4], 2 * RUN_BYTES);
    cr_assert_eq(policy_group_identity(shelf.policy, 12), 0);
    shelf_done(&shelf);
}

// --- shares

Test(policy_group, a_rule_above_its_share_is_worth_less_the_more_it_holds)
{
    struct shelf shelf;
    shelf_init(&shelf, POLICY_EPOCH, 8);
    rank_all(shelf.policy, 1);
    policy_group_set(shelf.policy, 12, &(struct policy_group){.factor = 1, .share_percent = 25});
    uint32_t stamp = policy_stamp(0, CLASS, 12);
    unsigned before = 100;
    for (unsigned i = 0; i < 4; i++) {
        struct policy_group_figures figures;
        policy_group_figures(shelf.policy, 12, &figures);
        cr_assert_eq(figures.bytes, i * SEGMENT_RUNS * RUN_BYTES);
        cr_assert_eq(figures.bytes_max, shelf.options.capacity_bytes / 100 * 25);
        unsigned level = policy_level(shelf.policy, stamp);
        cr_assert_eq(level == 100, i < 2); // a share of two segments
        cr_assert_eq(atomic_load(&shelf.policy->published.factor[12]) >= 1, i < 2);
        cr_assert_leq(level, before);
        before = level;
        (void)shelf_fill(&shelf, 100 * i, 12);
        rank_all(shelf.policy, 1); // a period may have ended, which computes other ranks
    }
    cr_assert_eq(policy_level(shelf.policy, policy_stamp(0, CLASS, 0)), 100u);
    policy_segment_free(shelf.policy, 1);
    policy_segment_free(shelf.policy, 2);
    policy_segment_free(shelf.policy, 3);
    policy_take(shelf.policy, NULL, 0);
    cr_assert_eq(policy_level(shelf.policy, stamp), 100u);
    shelf_done(&shelf);
}

// --- pins

static bool shelf_victim(struct shelf *shelf, uint32_t survivor_max, uint32_t *survivors,
                         struct policy_victim *victim)
{
    return policy_victim(shelf->policy, NULL, NULL, survivors, survivor_max, victim);
}

// Every second run of the first segment is pinned, all runs of the second, and none of the third.
Test(policy_group, a_pinned_run_survives_whatever_it_is_worth)
{
    struct shelf shelf;
    uint32_t survivors[SEGMENT_RUNS], stamp;
    struct policy_victim victim;
    shelf_init(&shelf, POLICY_EPOCH, 8);
    policy_group_set(shelf.policy, 11, &pinned);
    policy_pins_set_max(shelf.policy, 4 * SEGMENT_RUNS * RUN_BYTES);
    uint32_t all = shelf_fill(&shelf, 0, 11);
    for (unsigned i = 0; i < SEGMENT_RUNS; i++) {
        (void)shelf_miss(&shelf, 100 + i, i % 2 == 0 ? 11 : 0, &stamp);
        shelf_store(&shelf, 100 + i, stamp);
    }
    uint32_t half = shelf.number;
    cr_assert_eq(policy_segment_pinned_count(shelf.policy, all), SEGMENT_RUNS);
    cr_assert_eq(policy_segment_pinned_count(shelf.policy, half), SEGMENT_RUNS / 2);
    cr_assert(shelf_victim(&shelf, SEGMENT_RUNS, survivors, &victim));
    cr_assert_eq(victim.number, half);
    cr_assert_eq(victim.survivor_count, SEGMENT_RUNS / 2);
    for (unsigned i = 0; i < victim.survivor_count; i++) {
        cr_assert_eq(survivors[i], 2 * i);
        cr_assert(policy_segment_is_pinned(shelf.policy, half, survivors[i]));
    }
    cr_assert_not(shelf_victim(&shelf, SEGMENT_RUNS, survivors, &victim)); // all that is left stays
    uint32_t none = shelf_fill(&shelf, 200, 0);
    cr_assert(shelf_victim(&shelf, SEGMENT_RUNS, survivors, &victim));
    cr_assert_eq(victim.number, none);
    shelf_done(&shelf);
}

Test(policy_group, pins_open_the_door_until_they_take_all_that_they_may)
{
    struct shelf shelf;
    uint32_t stamp;
    struct policy_stats stats;
    shelf_init(&shelf, POLICY_EPOCH, 8);
    policy_group_set(
        shelf.policy, 11,
        &(struct policy_group){.factor = 1, .is_pinned = true, .plain = 4, .identity = 7});
    policy_pins_set_max(shelf.policy, SEGMENT_RUNS / 2 * RUN_BYTES);
    for (unsigned i = 0; i < SEGMENT_RUNS; i++) {
        policy_set_full(shelf.policy, true);
        atomic_store(&shelf.policy->published.bar, 1e10f);
        cr_assert_eq(shelf_miss(&shelf, i, 11, &stamp), i < SEGMENT_RUNS / 2);
        shelf_store(&shelf, i, policy_stamp(shelf.policy->clock.tick, 0, 11));
    }
    policy_stats(shelf.policy, &stats);
    cr_assert_eq(stats.pinned_bytes, SEGMENT_RUNS / 2 * RUN_BYTES);
    cr_assert_eq(stats.pins_refused, SEGMENT_RUNS / 2);
    for (unsigned i = 0; i < SEGMENT_RUNS; i++) {
        cr_assert_eq(policy_segment_is_pinned(shelf.policy, 1, i), i < SEGMENT_RUNS / 2);
    }
    // One goes: the next that is read takes its room.
    struct policy_event read = {
        .kind = POLICY_READ, .segment = 1, .start = 15 * RUN_BYTES, .len = RUN_BYTES, .group = 11};
    policy_take(shelf.policy, &read, 1);
    cr_assert_not(policy_segment_is_pinned(shelf.policy, 1, 15));
    policy_segment_drop(shelf.policy, 1, 0, shelf_key(0));
    policy_take(shelf.policy, &read, 1);
    cr_assert(policy_segment_is_pinned(shelf.policy, 1, 15));
    policy_stats(shelf.policy, &stats);
    cr_assert_eq(stats.pins_lost, 1u);
    // The cache is smaller: no run stays for its pin until the pins fit.
    policy_pins_set_max(shelf.policy, RUN_BYTES);
    cr_assert_not(policy_segment_is_pinned(shelf.policy, 1, 15));
    cr_assert_eq(policy_segment_pinned_count(shelf.policy, 1), 0u);
    shelf_done(&shelf);
}

Test(policy_group, a_segment_with_little_that_may_go_stays)
{
    struct shelf shelf;
    uint32_t survivors[SEGMENT_RUNS], stamp;
    struct policy_victim victim;
    shelf_init(&shelf, POLICY_EPOCH, 8);
    policy_group_set(shelf.policy, 11, &pinned);
    policy_pins_set_max(shelf.policy, 4 * SEGMENT_RUNS * RUN_BYTES);
    for (unsigned loose = 1; loose <= 2; loose++) {
        for (unsigned i = 0; i < SEGMENT_RUNS; i++) {
            (void)shelf_miss(&shelf, 100 * loose + i, i < loose ? 0 : 11, &stamp);
            shelf_store(&shelf, 100 * loose + i, stamp);
        }
    }
    cr_assert(shelf_victim(&shelf, SEGMENT_RUNS, survivors, &victim)); // one of eight runs
    cr_assert_eq(victim.number, shelf.number);
    cr_assert_eq(victim.survivor_count, SEGMENT_RUNS - 2);
    cr_assert_not(shelf_victim(&shelf, SEGMENT_RUNS, survivors, &victim));
    shelf_done(&shelf);
}
