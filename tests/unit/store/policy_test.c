// SPDX-License-Identifier: Apache-2.0
// Admit all, free the oldest.
#include "store/policy.h"

#include "test.h"

Test(policy, everything_is_admitted_and_the_oldest_goes)
{
    struct policy policy;
    policy_init(&policy);
    policy_touch(&policy, (struct hash128){1, 2});
    cr_assert(policy_admit(&policy, (struct hash128){1, 2}, 0, 1));
    struct policy_candidate candidates[] = {{7, 0}, {3, 100}, {9, 5}};
    cr_assert_eq(policy_victim(&policy, candidates, 3), 1u);
    cr_assert_eq(policy_victim(&policy, candidates, 1), 0u);
}
