// SPDX-License-Identifier: Apache-2.0
// The owner publishes the values that workers need for their answer, one by one, without a lock. So
// an answer may mix values from two moments that are a few events apart, which does no harm.
#include "store/policy/policy_private.h"

// A new run is admitted if its rank exceeds the bar by this factor, so that ties keep stored runs.
#define MARGIN 1.3f
#define MARGIN_NEW 2.0f  // the same, for a run that was never read again
#define MARGIN_PART 2.0f // additional factor for a part of a new object
// In hits per tick: a hundredth of a hit while the whole capacity is requested. A run worth less is
// not worth the write, whatever its rule, unless it replaces runs that are gone. A bar below this
// counts as 0. Without this limit, colliding keys would make some runs of a data set that is read
// once look as if they were read again.
#define WORTH_LEAST (0.01f / POLICY_CAPACITY_TICKS)
// If a larger share of missed runs is requested again at once, all missed runs are stored.
#define AGAIN_SHARE 0.3f

void policy_publish(struct policy *policy)
{
    struct policy_published *published = &policy->published;
    const struct policy_clock *clock = &policy->clock;
    const struct policy_reclaim *reclaim = &policy->reclaim;
    check(reclaim->bar >= 0); // below 0 it would mean that everything is admitted
    // Any new run may replace a suspect one.
    bool everything = !reclaim->is_full || policy->kind == POLICY_LRU ||
                      (reclaim->bar <= 0 && clock->has_suspects);
    atomic_store_explicit(&published->bar, everything ? -1 : reclaim->bar, memory_order_relaxed);
    atomic_store_explicit(&published->tick, clock->tick, memory_order_relaxed);
    atomic_store_explicit(&published->same_use, clock->same_use, memory_order_relaxed);
    atomic_store_explicit(&published->first_class,
                          clock->is_silent ? POLICY_CLASS_SILENT : POLICY_CLASS_NEW,
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
        // A run that was requested before is stored, whatever its worth, if the runs that would be
        // evicted for it were never read again. The same holds if this request belongs to the same
        // use and is not on probation; else each request of the use would go to the origin.
        insists = policy_replaces_nothing(policy) || (is_same && !is_part && !again_soon);
    }
    *ret_stamp = is_same ? POLICY_STAMP_SAME : policy_stamp(tick, reuse_class, group);
    float bar = atomic_load_explicit(&published->bar, memory_order_relaxed);
    float worth = policy_worth(policy, reuse_class, group);
    if (atomic_load_explicit(&published->factor[group], memory_order_relaxed) < 0) {
        return POLICY_STORE; // pinned: never on probation
    }
    // A request for a part says little about the worth of a new object, because requests for its
    // other parts follow soon.
    bool is_unclear = is_part && policy_class_is_new(reuse_class) && bar > 0;
    if (worth > (is_unclear ? bar * MARGIN_PART : bar) || insists) {
        return POLICY_STORE;
    }
    return is_part || again_soon ? POLICY_PROBATION : POLICY_REFUSE;
}
