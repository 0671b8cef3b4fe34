// SPDX-License-Identifier: Apache-2.0
// Proves: a past is found by its key until four that will be missed more have come; those never
// read again go first; a stamp never looks young because the clock wrapped.
#include "store/policy/policy_fixture.h"
#include "test.h"

static struct policy_ghost_set sets[64];

Test(policy_ghost, keeps_what_was_put)
{
    struct policy_ghost ghost = {sets, 64};
    uint32_t stamp;
    unsigned found = 0;
    for (uint64_t i = 0; i < 128; i++) {
        policy_ghost_put(&ghost, shelf_key(i), policy_stamp((uint32_t)i, 9, 0), 128);
    }
    for (uint64_t i = 0; i < 128; i++) {
        found += policy_ghost_find(&ghost, shelf_key(i), &stamp) &&
                 stamp == policy_stamp((uint32_t)i, 9, 0);
    }
    cr_assert_gt(found, 110u);
    policy_ghost_put(&ghost, shelf_key(127), policy_stamp(500, 3, 0), 500);
    cr_assert(policy_ghost_find(&ghost, shelf_key(127), &stamp));
    cr_assert_eq(stamp, policy_stamp(500, 3, 0));
    policy_ghost_forget(&ghost, shelf_key(127));
    cr_assert_not(policy_ghost_find(&ghost, shelf_key(127), &stamp));
}

Test(policy_ghost, runs_never_read_again_are_dropped_first)
{
    struct policy_ghost ghost = {sets, 1};
    uint32_t stamp;
    policy_ghost_put(&ghost, shelf_key(1), policy_stamp(10, 9, 0), 10);
    policy_ghost_put(&ghost, shelf_key(2), policy_stamp(70, POLICY_CLASS_NEW, 0), 70);
    policy_ghost_put(&ghost, shelf_key(3), policy_stamp(20, 9, 0), 70);
    policy_ghost_put(&ghost, shelf_key(4), policy_stamp(30, 9, 0), 70);
    policy_ghost_put(&ghost, shelf_key(5), policy_stamp(100, 9, 0), 100); // 31 * 4 above 91
    cr_assert_not(policy_ghost_find(&ghost, shelf_key(2), &stamp));
    policy_ghost_put(&ghost, shelf_key(6), policy_stamp(100, 9, 0), 100);
    cr_assert_not(policy_ghost_find(&ghost, shelf_key(1), &stamp)); // then the oldest
    cr_assert(policy_ghost_find(&ghost, shelf_key(3), &stamp));
}

Test(policy_ghost, goes_before_its_stamp_wraps)
{
    struct policy_ghost ghost = {sets, 1};
    uint32_t stamp;
    policy_ghost_put(&ghost, shelf_key(1), policy_stamp(10, 9, 0), 10);
    policy_ghost_sweep(&ghost, 0, POLICY_AGE_MAX);
    cr_assert(policy_ghost_find(&ghost, shelf_key(1), &stamp));
    policy_ghost_sweep(&ghost, 0, POLICY_AGE_MAX + 11);
    cr_assert_not(policy_ghost_find(&ghost, shelf_key(1), &stamp));
}
