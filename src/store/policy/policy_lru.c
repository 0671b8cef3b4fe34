// SPDX-License-Identifier: Apache-2.0
// Evicts the oldest segment, whatever its content. That is the one with the lowest number.
#include "store/policy/policy_private.h"

struct policy_segment *policy_lru_oldest(const struct policy_segments *segments,
                                         bool (*may_go)(void *ctx, uint32_t number), void *ctx)
{
    struct policy_segment *oldest = NULL;
    for (uint32_t i = 0; i < segments->sealed_count; i++) {
        struct policy_segment *segment = &segments->table[segments->sealed[i].at];
        check(segment->state == POLICY_SEGMENT_SEALED);
        if ((oldest == NULL || segment->number < oldest->number) &&
            (may_go == NULL || may_go(ctx, segment->number))) {
            oldest = segment;
        }
    }
    return oldest;
}
