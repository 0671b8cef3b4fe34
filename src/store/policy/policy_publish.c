// SPDX-License-Identifier: Apache-2.0
// The owner publishes the values that workers need for policy_admit(), one by one and without a
// lock. So a worker may combine values from two moments that are a few events apart. This does no
// harm.
#include "store/policy/policy_private.h"

// A new run is admitted if its rank exceeds the bar by this factor. On a tie, the stored run stays.
#define MARGIN 1.3f
#define MARGIN_NEW 2.0f  // this factor replaces MARGIN for a run that was never read again
#define MARGIN_PART 2.0f // additional factor if a part of a new object is requested
// The least worth, in hits per tick: a hundredth of a hit while the whole capacity is requested. A
// run of less worth does not justify the write, whatever its rule, unless it replaces runs that are
// gone. A bar below this counts as 0. When a data set is read only once, colliding keys make some
// of its runs look as if they were read again. Because of this limit, their worth counts as 0.
#define WORTH_LEAST (0.01f / POLICY_CAPACITY_TICKS)
// If clients request more than this share of missed runs again soon after the miss, all missed runs
// are stored.
#define AGAIN_SHARE 0.3f

void policy_publish(struct policy *policy)
{
    struct policy_published *published = &policy->published;
    const struct policy_clock *clock = &policy->clock;
    const struct policy_reclaim *reclaim = &policy->reclaim;
    check(reclaim->bar >= 0); // workers read a negative bar as "admit everything"
    // Any new run may replace a suspect run.
    bool everything = !reclaim->is_full || policy->kind == POLICY_LRU ||
                      (reclaim->bar <= 0 && clock->has_suspects);
    atomic_store_explicit(&published->bar, everything ? -1 : reclaim->bar, memory_order_relaxed);
    atomic_store_explicit(&published->tick, clock->tick, memory_order_relaxed);
    atomic_store_explicit(&published->same_use, clock->same_use, memory_order_relaxed);
    atomic_store_explicit(&published->first_class, policy_clock_first_class(clock),
                          memory_order_relaxed);
    atomic_store_explicit(&published->again_soon, policy->monitor.again_share > AGAIN_SHARE,
                          memory_order_relaxed);
}

static void publish_worth(struct policy *policy)
{
    for (unsigned c = 0; c < POLICY_CLASSES; c++) {
        bool is_new = c == POLICY_CLASS_NEW || c == POLICY_CLASS_SILENT;
        check(policy->ranks.rank[c][0] >= 0);
        atomic_store_explicit(&policy->published.worth[c],
                              policy->ranks.rank[c][0] / (is_new ? MARGIN_NEW : MARGIN),
                              memory_order_relaxed);
    }
}

void policy_renew(struct policy *policy)
{
    policy_ranks_renew(&policy->ranks, &policy->monitor);
    publish_worth(policy);
    policy_publish(policy);
}

float policy_worth(const struct policy *policy, unsigned reuse_class, unsigned group)
{
    check(reuse_class < POLICY_CLASSES);
    check(group < POLICY_GROUPS);
    const struct policy_published *published = &policy->published;
    float factor = atomic_load_explicit(&published->factor[group], memory_order_relaxed);
    float worth = atomic_load_explicit(&published->worth[reuse_class], memory_order_relaxed);
    bool has_price = atomic_load_explicit(&published->bar, memory_order_relaxed) > 0;
    return factor < 0 ? POLICY_RANK_MAX : worth < WORTH_LEAST && has_price ? 0 : factor * worth;
}

bool policy_replaces_nothing(const struct policy *policy)
{
    return atomic_load_explicit(&policy->published.bar, memory_order_relaxed) < WORTH_LEAST;
}

enum policy_verdict policy_admit(const struct policy *policy, uint64_t key, unsigned group,
                                 bool is_part, uint32_t *ret_stamp)
{
    check(group < POLICY_GROUPS);
    const struct policy_published *published = &policy->published;
    uint32_t tick = atomic_load_explicit(&published->tick, memory_order_relaxed);
    unsigned reuse_class = atomic_load_explicit(&published->first_class, memory_order_relaxed);
    uint32_t past;
    bool again_soon = atomic_load_explicit(&published->again_soon, memory_order_relaxed);
    bool is_same = false, insists = false;
    if (policy->kind != POLICY_LRU && policy_ghost_find(&policy->ghost, key, &past)) {
        uint32_t age = policy_stamp_age(past, tick);
        is_same = age <= atomic_load_explicit(&published->same_use, memory_order_relaxed);
        reuse_class =
            is_same ? policy_stamp_class(past) : policy_class_next(age, policy_stamp_class(past));
        // A run that was requested before is stored, whatever its worth, in two cases. In the first
        // case, the runs that would be evicted for it were never read again. In the second case,
        // this request belongs to the same use, and the run would not be stored on probation.
        // Without the second case, each request of the use would be sent to the origin.
        insists = policy_replaces_nothing(policy) || (is_same && !is_part && !again_soon);
    }
    *ret_stamp = is_same ? POLICY_STAMP_SAME : policy_stamp(tick, reuse_class, group);
    float bar = atomic_load_explicit(&published->bar, memory_order_relaxed);
    float worth = policy_worth(policy, reuse_class, group);
    if (atomic_load_explicit(&published->factor[group], memory_order_relaxed) < 0) {
        return POLICY_STORE; // POLICY_FACTOR_PINNED: pinned runs are always stored
    }
    // A request for a part says little about the worth of a new object, because requests for its
    // other parts follow soon.
    bool is_unclear = is_part && policy_class_is_new(reuse_class) && bar > 0;
    if (worth > (is_unclear ? bar * MARGIN_PART : bar) || insists) {
        return POLICY_STORE;
    }
    return is_part || again_soon ? POLICY_PROBATION : POLICY_REFUSE;
}
