// SPDX-License-Identifier: Apache-2.0
// Admission and eviction. Everything is admitted and the oldest segment goes first: what a log does
// by itself. Any thread; there is no state.
#include "store/policy.h"

#include "base/check.h"

void policy_init(struct policy *policy)
{
    policy->unused = 0;
}

void policy_touch(struct policy *policy, struct hash128 hash)
{
    (void)policy;
    (void)hash; // age of a segment is all that counts here
}

bool policy_admit(const struct policy *policy, struct hash128 hash, uint64_t first_block,
                  uint64_t len)
{
    (void)policy;
    (void)hash;
    (void)first_block;
    (void)len;
    return true;
}

size_t policy_victim(const struct policy *policy, const struct policy_candidate *candidates,
                     size_t count)
{
    (void)policy;
    check(count > 0);
    size_t oldest = 0;
    for (size_t i = 1; i < count; i++) {
        if (candidates[i].number < candidates[oldest].number) {
            oldest = i;
        }
    }
    return oldest;
}
