// SPDX-License-Identifier: Apache-2.0
// Proves: the rank is the best rate over all horizons, as trying all of them finds it; what is read
// in a cycle is worth more the older it is; levels keep the order.
#include "store/policy/policy_fixture.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>

static double rank_by_trying(const double *hazard, unsigned bucket)
{
    double survival = 1, hits = 0, space = 0, best = 0;
    for (unsigned j = bucket; j < POLICY_BUCKETS; j++) {
        double width = policy_bucket_begin(j + 1) - policy_bucket_begin(j);
        hits += survival * hazard[j];
        space += survival * (1 - hazard[j] / 2) * width * (j == bucket ? 0.5 : 1);
        survival *= 1 - hazard[j];
        best = hits / space > best ? hits / space : best;
    }
    return best;
}

static void hazard_random(double *hazard, unsigned seed)
{
    srand(seed);
    for (unsigned b = 0; b < POLICY_BUCKETS; b++) {
        unsigned dice = (unsigned)rand() % 4;
        double u = (double)rand() / RAND_MAX;
        hazard[b] = dice == 0 ? 0 : dice == 1 ? u * 0.99 : dice == 2 ? u * 0.05 : u * u * u * 0.5;
    }
}

Test(policy_rank, is_the_best_over_all_horizons)
{
    for (unsigned seed = 1; seed <= 2000; seed++) {
        double hazard[POLICY_BUCKETS];
        float rank[POLICY_BUCKETS];
        hazard_random(hazard, seed);
        policy_rank_of_hazard(hazard, rank);
        for (unsigned b = 0; b < POLICY_BUCKETS; b++) {
            double expected = rank_by_trying(hazard, b);
            cr_assert(fabs(rank[b] - expected) <= 1e-5 * expected + 1e-12, "seed %u bucket %u",
                      seed, b);
        }
    }
}

Test(policy_rank, certain_reuse_and_none_at_all)
{
    double hazard[POLICY_BUCKETS] = {0};
    float rank[POLICY_BUCKETS];
    policy_rank_of_hazard(hazard, rank);
    for (unsigned b = 0; b < POLICY_BUCKETS; b++) {
        cr_assert_eq(rank[b], 0.0f);
    }
    for (unsigned b = 0; b < POLICY_BUCKETS; b++) {
        hazard[b] = 1;
    }
    policy_rank_of_hazard(hazard, rank);
    for (unsigned b = 0; b < POLICY_BUCKETS; b++) {
        cr_assert(isfinite(rank[b]));
        cr_assert_gt(rank[b], 0.0f);
    }
}

Test(policy_rank, a_cycle_makes_old_ones_worth_more)
{
    struct policy_monitor *monitor = calloc(1, sizeof(*monitor));
    struct policy_ranks *ranks = calloc(1, sizeof(*ranks));
    cr_assert_not_null(monitor);
    cr_assert_not_null(ranks);
    struct policy_clock clock;
    policy_monitor_init(monitor);
    policy_ranks_init(ranks);
    policy_clock_init(&clock, 1024 * 1000);
    clock.same_use = 2;
    unsigned reuse_class = POLICY_CLASS_NEW;
    for (unsigned epoch = 0; epoch < 5; epoch++) {
        for (uint64_t i = 0; i < 2048; i++) {
            clock.tick++;
            policy_monitor_touch(monitor, &clock, shelf_key(i), reuse_class, epoch > 0, false);
        }
        reuse_class = policy_class_next(2048, reuse_class);
        policy_monitor_sweep(monitor, clock.tick, POLICY_MONITOR_MAX);
        policy_ranks_renew(ranks, monitor);
    }
    const float *rank = ranks->rank[reuse_class];
    cr_assert_gt(rank[policy_bucket(1900)], 4 * rank[0]);
    cr_assert_gt(rank[policy_bucket(1000)], rank[policy_bucket(100)]);
    // A class without observations is estimated from those with the same last interval.
    unsigned unseen = policy_class_next(2048, policy_class_next(3, POLICY_CLASS_NEW));
    cr_assert_gt(ranks->rank[unseen][policy_bucket(1900)], rank[policy_bucket(1900)] / 2);
    free(monitor);
    free(ranks);
}

Test(policy_rank, levels_keep_the_order)
{
    struct policy_ranks *ranks = calloc(1, sizeof(*ranks));
    cr_assert_not_null(ranks);
    policy_ranks_init(ranks);
    cr_assert_eq(ranks->level_rank[0], 0.0f);
    for (unsigned level = 1; level < 256; level++) {
        cr_assert_gt(ranks->level_rank[level], ranks->level_rank[level - 1]);
    }
    cr_assert_eq(policy_rank_levels(2), 8);
    cr_assert_eq(policy_rank_levels(0.25f), -16);
    cr_assert_eq(policy_level_shift(0, 100), 0u);
    cr_assert_eq(policy_level_shift(250, 100), 254u);
    cr_assert_eq(policy_level_shift(5, -100), 1u);
    free(ranks);
}
