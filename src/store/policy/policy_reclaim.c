// SPDX-License-Identifier: Apache-2.0
// Chooses the segment to evict, and computes the cost of its eviction. The cost is the mean rank of
// the cheaper half of its runs, because eviction drops at least that half. The other runs survive
// and are rewritten, but only if they rank higher than the mean of the runs admitted lately.
//
// The policy stores each segment's cost. It computes the cost again (a "look") in three cases:
//   - when the segment is sealed,
//   - when the segment has the lowest stored cost,
//   - round robin, one segment after every few misses.
//
// The cost of the cheapest segment is the bar that a new run's worth must exceed.
#include "store/policy/policy_private.h"

#define LOOK_MISSES 32u      // misses from one round-robin look to the next
#define LOOKS_MAX 16u        // round-robin looks after one batch of events, at most
#define LOOKS_BEFORE 16u     // round-robin looks before a victim is chosen
#define LOOKS_FOR_VICTIM 4u  // looks at the cheapest segments to choose the victim, at most
#define SAMPLE_MAX 64u       // runs of a segment that one look samples, at most
#define CUT_SAMPLE_MAX 1024u // runs of the victim sampled to find its survivors
#define LOOSE_PARTS 8u       // pins keep a segment if less than 1/LOOSE_PARTS of its runs may go
#define ADMITTED_SHARE 0.02f // weight of the latest run in the mean rank of admitted runs
// Limits of rewriting. Each admitted byte adds REWRITTEN_PER_ADMITTED bytes of credit. The credit
// is at most 1/CREDIT_MAX_PART of the capacity.
#define REWRITTEN_PER_ADMITTED 1.1
#define CREDIT_MAX_PART 64

// Level of a run whose past says nothing. It is above level 0 of runs that are gone or suspect.
#define LEVEL_UNKNOWN 1u

// The values of the clock on which the present worth of runs depends.
struct moment {
    const struct policy *policy;
    uint32_t tick, suspect_age; // runs older than suspect_age are suspect
    bool newcomers_suspect;
};

static struct moment moment_of(const struct policy *policy)
{
    const struct policy_clock *clock = &policy->clock;
    return (struct moment){
        .policy = policy,
        .tick = clock->tick,
        .suspect_age = clock->has_suspects ? clock->tick - clock->onset_tick : UINT32_MAX,
        .newcomers_suspect = policy_clock_newcomers_suspect(clock),
    };
}

static inline unsigned level_at(const struct moment *now, uint32_t stamp)
{
    if (stamp == POLICY_STAMP_GONE) {
        return 0;
    }
    const struct policy_group_state *group = &now->policy->groups.of[policy_stamp_group(stamp)];
    if (group->is_kept) {
        return POLICY_LEVEL_PINNED;
    }
    uint32_t age = policy_stamp_age(stamp, now->tick);
    unsigned reuse_class = policy_stamp_class(stamp);
    if (age > now->suspect_age || (reuse_class == POLICY_CLASS_SILENT && now->newcomers_suspect)) {
        return 0;
    }
    unsigned level = now->policy->ranks.level[reuse_class][policy_bucket(age)];
    if (level == 0) {
        return LEVEL_UNKNOWN;
    }
    return group->level_shift == 0 ? level : policy_level_shift(level, group->level_shift);
}

unsigned policy_level(const struct policy *policy, uint32_t stamp)
{
    struct moment now = moment_of(policy);
    return level_at(&now, stamp);
}

struct levels {
    _Alignas(8) uint16_t count[256];
};

static_assert(CUT_SAMPLE_MAX < UINT16_MAX, "counts fit");

// Returns the first level from `level` on that has runs. There must be such a level.
static inline unsigned level_next(const struct levels *levels, unsigned level)
{
    for (uint64_t four; level % 4 == 0; level += 4) {
        memcpy(&four, &levels->count[level], sizeof(four));
        if (four != 0) {
            break;
        }
    }
    while (levels->count[level] == 0) {
        level++;
        check(level < ARRAY_LEN(levels->count));
    }
    return level;
}

// Counts the runs of each level among `sample` runs that are evenly spaced in the segment.
static void count_levels(const struct policy *policy, const struct policy_segment *segment,
                         uint32_t sample, struct levels *levels)
{
    check(sample <= segment->run_count);
    struct moment now = moment_of(policy);
    const struct policy_run *page = NULL;
    for (uint32_t i = 0; i < sample && sample == segment->run_count; i++) {
        page =
            i % POLICY_PAGE_RUNS == 0 ? policy_segments_run(&policy->segments, segment, i) : page;
        levels->count[level_at(&now, page[i % POLICY_PAGE_RUNS].stamp)]++;
    }
    for (uint32_t i = 0; i < sample && sample != segment->run_count; i++) {
        uint32_t index = (uint32_t)((uint64_t)i * segment->run_count / sample);
        levels->count[level_at(&now,
                               policy_segments_run(&policy->segments, segment, index)->stamp)]++;
    }
}

// Returns the mean rank of the cheaper half of the runs, which eviction would drop. If pins leave
// fewer than half of the runs to drop, the cost rises in proportion, because the eviction frees
// less.
static float segment_cost(const struct policy *policy, const struct policy_segment *segment)
{
    struct levels levels = {0};
    uint32_t sample = (uint32_t)min_u64(segment->run_count, SAMPLE_MAX);
    uint32_t half = (sample + 1) / 2;
    float sum = 0;
    count_levels(policy, segment, sample, &levels);
    check(levels.count[POLICY_LEVEL_PINNED] <= sample);
    uint32_t loose = sample - levels.count[POLICY_LEVEL_PINNED];
    uint32_t drops = loose < half ? loose : half, left = drops;
    if (drops < half && loose * LOOSE_PARTS < sample) {
        return POLICY_RANK_MAX;
    }
    for (unsigned level = 0; left > 0; level++) {
        level = level_next(&levels, level);
        uint32_t taken = levels.count[level] < left ? levels.count[level] : left;
        sum += (float)taken * policy->ranks.level_rank[level];
        left -= taken;
    }
    if (drops < half) {
        sum *= (float)half * (float)half / ((float)drops * (float)drops);
    }
    check(sum >= 0);
    return half > 0 ? sum / (float)half : 0;
}

static float reclaim_look(struct policy *policy, uint32_t at)
{
    check(at < policy->segments.sealed_count);
    struct policy_sealed *sealed = &policy->segments.sealed[at];
    const struct policy_segment *segment = &policy->segments.table[sealed->at];
    check(segment->state == POLICY_SEGMENT_SEALED);
    sealed->cost = segment->is_probation ? POLICY_RANK_MAX : segment_cost(policy, segment);
    return sealed->cost;
}

static void reclaim_set_best(struct policy *policy, const struct policy_segment *best, float cost)
{
    check(best == NULL || best->state == POLICY_SEGMENT_SEALED);
    check(cost >= 0);
    policy->reclaim.best = best != NULL ? best->number : 0;
    policy->reclaim.bar = best != NULL                        ? cost
                          : policy->segments.sealed_count > 0 ? POLICY_RANK_MAX
                                                              : 0;
    policy_publish(policy);
}

static uint32_t reclaim_next(struct policy *policy)
{
    struct policy_reclaim *reclaim = &policy->reclaim;
    reclaim->next = reclaim->next + 1 < policy->segments.sealed_count ? reclaim->next + 1 : 0;
    return reclaim->next;
}

// Of two segments with the same cost, the older counts as cheaper.
static inline bool reclaim_is_cheaper(const struct policy_segments *segments, uint32_t at,
                                      uint32_t than)
{
    const struct policy_sealed *a = &segments->sealed[at], *b = &segments->sealed[than];
    return a->cost < b->cost ||
           (a->cost == b->cost && segments->table[a->at].number < segments->table[b->at].number);
}

// Returns the position of the segment that was cheapest at its last look.
static uint32_t reclaim_cheapest(const struct policy_segments *segments)
{
    uint32_t cheapest = 0;
    check(segments->sealed_count > 0);
    for (uint32_t i = 1; i < segments->sealed_count; i++) {
        if (reclaim_is_cheaper(segments, i, cheapest)) {
            cheapest = i;
        }
    }
    return cheapest;
}

// Looks at the segment with the lowest stored cost, and repeats this until a look does not raise
// the cost. Makes the cheapest segment that it looked at the best. `may_go` NULL: all segments may
// go.
static struct policy_segment *reclaim_find(struct policy *policy,
                                           bool (*may_go)(void *ctx, uint32_t number), void *ctx)
{
    struct policy_segments *segments = &policy->segments;
    struct policy_segment *best = NULL;
    float cost = 0;
    unsigned looks = 0;
    for (unsigned i = 0; i < LOOKS_BEFORE && segments->sealed_count > 0; i++) {
        (void)reclaim_look(policy, reclaim_next(policy));
    }
    for (uint32_t i = 0; i < segments->sealed_count && looks < LOOKS_FOR_VICTIM; i++) {
        uint32_t at = reclaim_cheapest(segments);
        struct policy_segment *segment = &segments->table[segments->sealed[at].at];
        if (best == segment || segments->sealed[at].cost >= POLICY_RANK_MAX) {
            break;
        }
        if (may_go != NULL && !may_go(ctx, segment->number)) {
            segments->sealed[at].cost = POLICY_RANK_MAX; // no search picks it before its next look
            continue;
        }
        float before = segments->sealed[at].cost;
        looks++;
        float now = reclaim_look(policy, at);
        if (best == NULL || now < cost) {
            cost = now;
            best = segment;
        }
        if (now <= before) {
            break; // no other segment had a lower cost at its last look
        }
    }
    reclaim_set_best(policy, best, cost);
    return best;
}

void policy_reclaim_sealed(struct policy *policy, const struct policy_segment *segment)
{
    (void)reclaim_look(policy, segment->sealed_at);
}

void policy_reclaim_tend(struct policy *policy, uint32_t miss_count)
{
    struct policy_reclaim *reclaim = &policy->reclaim;
    struct policy_segments *segments = &policy->segments;
    reclaim->misses += miss_count;
    if (!reclaim->is_full || policy->kind == POLICY_LRU || segments->sealed_count == 0 ||
        reclaim->misses < LOOK_MISSES) {
        return;
    }
    const struct policy_segment *best = policy_segments_find(segments, reclaim->best);
    if (best == NULL || best->state != POLICY_SEGMENT_SEALED) {
        best = reclaim_find(policy, NULL, NULL);
    }
    float cost = best != NULL ? reclaim_look(policy, best->sealed_at) : POLICY_RANK_MAX;
    for (unsigned i = 0; i < LOOKS_MAX && reclaim->misses >= LOOK_MISSES; i++) {
        reclaim->misses -= LOOK_MISSES;
        uint32_t at = reclaim_next(policy);
        float its_cost = reclaim_look(policy, at);
        if (its_cost < cost) {
            best = &segments->table[segments->sealed[at].at];
            cost = its_cost;
        }
    }
    reclaim->misses %= LOOK_MISSES;
    reclaim_set_best(policy, best, cost);
}

void policy_reclaim_admitted(struct policy *policy, uint32_t stamp, uint32_t len)
{
    struct policy_reclaim *reclaim = &policy->reclaim;
    if (!reclaim->is_full) {
        return;
    }
    check(policy_stamp_class(stamp) < POLICY_CLASSES);
    float rank = policy->ranks.rank[policy_stamp_class(stamp)][0];
    reclaim->admitted_rank += (rank - reclaim->admitted_rank) * ADMITTED_SHARE;
    check(reclaim->admitted_rank >= 0);
    double credit_max = (double)policy->clock.capacity_bytes / CREDIT_MAX_PART;
    reclaim->rewrite_credit += REWRITTEN_PER_ADMITTED * len;
    if (reclaim->rewrite_credit > credit_max) {
        reclaim->rewrite_credit = credit_max;
    }
}

// --- survivors -----------------------------------------------------------------------------------

struct cut {
    unsigned level;
    uint64_t drops_at_level; // number of runs to drop of the level at the cut
};

static struct cut segment_cut(const struct policy *policy, const struct policy_segment *segment)
{
    struct levels levels = {0};
    uint32_t sample = (uint32_t)min_u64(segment->run_count, CUT_SAMPLE_MAX);
    uint32_t half = (sample + 1) / 2;
    count_levels(policy, segment, sample, &levels);
    uint32_t loose = sample - levels.count[POLICY_LEVEL_PINNED];
    half = loose < half ? loose : half;
    uint32_t below = 0;
    unsigned level = 0;
    while (half > 0 && below + levels.count[level] < half) {
        below += levels.count[level++];
        check(level < POLICY_LEVEL_PINNED); // no pinned run is below the cut
    }
    return (struct cut){level,
                        sample == 0 ? 0 : (uint64_t)(half - below) * segment->run_count / sample};
}

static uint32_t reclaim_survivors(struct policy *policy, const struct policy_segment *segment,
                                  uint32_t *ret_survivors, uint32_t max)
{
    check(segment->state == POLICY_SEGMENT_SEALED);
    struct cut cut = segment_cut(policy, segment);
    uint32_t count = 0;
    for (uint32_t i = 0; i < segment->run_count; i++) {
        uint32_t stamp = policy_segments_run(&policy->segments, segment, i)->stamp;
        unsigned level = policy_level(policy, stamp);
        if (level == cut.level && cut.drops_at_level > 0) {
            cut.drops_at_level--;
            level = 0;
        }
        bool is_pinned = level == POLICY_LEVEL_PINNED;
        bool survives = level >= cut.level && level > LEVEL_UNKNOWN &&
                        policy->ranks.level_rank[level] > policy->reclaim.admitted_rank;
        if (is_pinned && count < max) {
            // Pinned runs need no credit, because they are few and soon share a few segments.
            ret_survivors[count++] = i;
        } else if (survives && count < max && policy->reclaim.rewrite_credit > 0) {
            ret_survivors[count++] = i;
            policy->reclaim.rewrite_credit -=
                policy_segments_run_len(&policy->segments, segment, i);
        }
    }
    return count;
}

bool policy_victim(struct policy *policy, bool (*may_go)(void *ctx, uint32_t number), void *ctx,
                   uint32_t *ret_survivors, uint32_t survivor_max, struct policy_victim *ret_victim)
{
    check(policy->magic == POLICY_MAGIC);
    policy->reclaim.is_full = true;
    policy_groups_tend(policy);
    bool is_lru = policy->kind == POLICY_LRU;
    struct policy_segment *segment = is_lru ? policy_lru_oldest(&policy->segments, may_go, ctx)
                                            : policy_probation_victim(policy, true, may_go, ctx);
    bool all_goes = segment != NULL;
    if (segment == NULL && !is_lru) {
        segment = reclaim_find(policy, may_go, ctx);
        all_goes = segment == NULL;
        segment = all_goes ? policy_probation_victim(policy, false, may_go, ctx) : segment;
    }
    if (segment == NULL) {
        return false;
    }
    check(segment->state == POLICY_SEGMENT_SEALED);
    ret_victim->number = segment->number;
    ret_victim->survivor_count =
        all_goes ? 0 : reclaim_survivors(policy, segment, ret_survivors, survivor_max);
    check(ret_victim->survivor_count <= survivor_max);
    policy_segments_set_state(&policy->segments, segment, POLICY_SEGMENT_VICTIM);
    policy->reclaim.best = segment->number == policy->reclaim.best ? 0 : policy->reclaim.best;
    return true;
}
