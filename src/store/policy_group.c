// SPDX-License-Identifier: Apache-2.0
// Priorities are factors on rank, so that nothing else needs to know of them.
#include "store/policy_private.h"

void policy_groups_init(struct policy *policy)
{
    for (unsigned i = 0; i < POLICY_GROUPS; i++) {
        policy_group_set(policy, i, 1);
    }
}

void policy_group_set(struct policy *policy, unsigned group, float priority)
{
    check(group < POLICY_GROUPS);
    check(priority > 0);
    policy->groups[group] = (struct policy_group_state){priority, policy_rank_levels(priority)};
    atomic_store_explicit(&policy->published.factor[group], priority, memory_order_relaxed);
}
