// SPDX-License-Identifier: Apache-2.0
// Proves: the explanation of a run uses the same values as its eviction and its admission.
#include "store/policy/policy_fixture.h"
#include "test.h"

static struct policy_explanation explain(const struct shelf *shelf, uint64_t block, uint32_t number,
                                         uint32_t index)
{
    struct policy_explanation why;
    policy_explain(shelf->policy, shelf_key(block), 0, number, index * RUN_BYTES, &why);
    return why;
}

Test(policy_explain, a_stored_run_says_when_it_was_used_and_what_it_is_worth)
{
    struct shelf shelf;
    shelf_init(&shelf, POLICY_EPOCH, 4);
    uint32_t number = shelf_fill(&shelf, 0, 3);
    shelf_pass(&shelf, 10); // and each request is 16 more
    shelf_read(&shelf, 5, number, 5);
    shelf_pass(&shelf, 40);
    double tick_bytes = shelf.policy->clock.tick_bytes;
    struct policy_explanation why = explain(&shelf, 5, number, 5);
    cr_assert(why.is_stored && why.is_known);
    cr_assert_eq(why.group, 3u);
    cr_assert_eq(why.age_bytes, (uint64_t)(40 * tick_bytes));
    // Eleven later requests: between 64 and 256 ticks.
    cr_assert_eq(why.interval_bytes, (uint64_t)(64 * tick_bytes));
    cr_assert_eq(why.former_interval_bytes, 0u);
    uint32_t stamp = policy_stamp(shelf.policy->clock.tick - 40, policy_class_next(200, 0), 3);
    cr_assert_eq(why.rank, shelf.policy->ranks.level_rank[policy_level(shelf.policy, stamp)]);
    why = explain(&shelf, 6, number, 6);
    cr_assert_gt(why.age_bytes, (uint64_t)(40 * tick_bytes));
    cr_assert_eq(why.interval_bytes, 0u);
    shelf_done(&shelf);
}

Test(policy_explain, a_refused_run_says_how_far_it_is_from_being_let_in)
{
    struct shelf shelf;
    shelf_init(&shelf, POLICY_EPOCH, 4);
    atomic_store(&shelf.policy->published.worth[POLICY_CLASS_NEW], 0.25f);
    atomic_store(&shelf.policy->published.bar, 1);
    struct policy_explanation why = explain(&shelf, 7, 0, 0);
    cr_assert_not(why.is_stored || why.is_known || why.would_be_taken);
    cr_assert_eq(why.age_bytes, POLICY_UNKNOWN);
    cr_assert_eq(why.rank, 0.25f);
    cr_assert_eq(why.bar, 1.0f);
    atomic_store(&shelf.policy->published.again_soon, true); // stored for a while: that is not kept
    cr_assert_not(explain(&shelf, 7, 0, 0).would_be_taken);
    atomic_store(&shelf.policy->published.again_soon, false);
    cr_assert_not(shelf_pass_by(&shelf, 7));
    atomic_store(&shelf.policy->published.bar, 1);
    why = explain(&shelf, 7, 0, 0);
    cr_assert(why.is_known);
    cr_assert_not(why.would_be_taken, "not for its worth, though its next request stores it");
    cr_assert_not(why.is_stored);
    atomic_store(&shelf.policy->published.bar, 0.125f);
    cr_assert(explain(&shelf, 8, 0, 0).would_be_taken);
    shelf_done(&shelf);
}

Test(policy_explain, a_run_that_is_not_at_its_place_is_not_stored)
{
    struct shelf shelf;
    shelf_init(&shelf, POLICY_EPOCH, 4);
    uint32_t number = shelf_fill(&shelf, 0, 0);
    cr_assert(explain(&shelf, 1, number, 1).is_stored);
    cr_assert_not(explain(&shelf, 1, number + 1, 1).is_stored);
    policy_segment_drop(shelf.policy, number, 1, shelf_key(1));
    struct policy_explanation why = explain(&shelf, 1, number, 1);
    cr_assert_not(why.is_stored);
    cr_assert(why.is_known); // remembered
    shelf_done(&shelf);
}
