// SPDX-License-Identifier: Apache-2.0
// Computes the rank (worth) of a run from its class and age: the expected further hits per unit of
// space and time, for the best time to keep the run. With survival S from the present bucket on,
// hazards h and bucket widths w:
//
//     rank = max over horizons J of  sum S_j h_j  /  sum S_j (1 - h_j / 2) w_j      (j up to J)
//
// The present bucket counts half its width. A hazard is the number of events divided by the number
// of exposures. All classes with the same last interval form a marginal. A class with few exposures
// takes its hazards mostly from its marginal. A marginal with few exposures takes them mostly from
// all classes.
//
// One pass from the oldest age to the youngest finds the maximum for all ages. Each bucket is a
// step (hits, space). A step is merged with the following steps as long as the next one is steeper.
// Survival scales all later steps alike, so merged steps stay merged.
#include "store/policy/policy_private.h"

#define PRIOR 2.0f     // weight, in exposures, of the hazard of the wider set of classes
#define PRIOR_NEW 0.1f // like PRIOR, for runs never read again; lower, because they are many
#define MARGINALS 9u   // number of marginals: one for each last interval; 0: never read again
// A class without new evidence gets new ranks only at every ROUNDS-th computation.
#define ROUNDS 8u
#define SURVIVAL_MIN 1e-4

#define LEVEL_OCTAVE_MIN 28 // 2^-28 is level 1
#define LEVELS_PER_OCTAVE 8

struct step {
    double hits, space;
};

struct evidence {
    float events[POLICY_BUCKETS], lived[POLICY_BUCKETS];
};

// Returns the marginal of a class. POLICY_CLASS_SILENT has no marginal.
static unsigned rank_marginal(unsigned reuse_class)
{
    check(reuse_class < POLICY_CLASS_SILENT);
    return reuse_class == POLICY_CLASS_NEW ? 0 : (reuse_class - 1) % 8 + 1;
}

static struct step step_merged(struct step step, const struct step *steps, unsigned *count)
{
    while (*count > 0 &&
           steps[*count - 1].hits * step.space > step.hits * steps[*count - 1].space) {
        (*count)--;
        step.hits += steps[*count].hits;
        step.space += steps[*count].space;
    }
    return step;
}

void policy_rank_of_hazard(const double *hazard, float *ret_rank)
{
    unsigned end = POLICY_BUCKETS; // in this bucket and all later ones, no run is read again
    while (end > 0 && hazard[end - 1] <= 0) {
        ret_rank[--end] = 0;
    }
    double reach[POLICY_BUCKETS + 1];
    reach[0] = 1;
    for (unsigned b = 0; b < end; b++) {
        check(hazard[b] >= 0); // this check fails for NaN, too
        double survival = 1 - hazard[b];
        reach[b + 1] = reach[b] * (survival > SURVIVAL_MIN ? survival : SURVIVAL_MIN);
    }
    struct step steps[POLICY_BUCKETS]; // the last step is the next in time, and the steepest
    unsigned count = 0;
    for (unsigned b = end; b-- > 0;) {
        double width = policy_bucket_width(b);
        struct step whole = {reach[b] * hazard[b], reach[b] * (1 - hazard[b] / 2) * width};
        struct step half = {whole.hits, whole.space / 2};
        unsigned unmerged = count;
        half = step_merged(half, steps, &unmerged);
        check(half.space > 0);
        ret_rank[b] = (float)(half.hits / half.space);
        whole = step_merged(whole, steps, &count);
        check(count < POLICY_BUCKETS);
        steps[count++] = whole;
    }
}

// --- levels --------------------------------------------------------------------------------------

// A shift by LEVEL_SHIFT leaves a float's exponent and three bits that give the eighth of the
// octave.
#define LEVEL_SHIFT 20
#define LEVEL_BASE ((127 - LEVEL_OCTAVE_MIN) * LEVELS_PER_OCTAVE)

static unsigned rank_level(float rank)
{
    uint32_t bits;
    check(rank >= 0);
    memcpy(&bits, &rank, sizeof(bits));
    int level = (int)(bits >> LEVEL_SHIFT) - LEVEL_BASE + 1;
    return rank <= 0 ? 0 : level < 1 ? 1 : level > 254 ? 254 : (unsigned)level;
}

static float rank_of_level(unsigned level)
{
    check(level <= UINT8_MAX);
    uint32_t bits =
        (uint32_t)((int)level - 1 + LEVEL_BASE) << LEVEL_SHIFT | 1u << (LEVEL_SHIFT - 1);
    float rank;
    memcpy(&rank, &bits, sizeof(rank));
    return level == 0 ? 0 : rank;
}

int policy_rank_levels(float factor)
{
    return (int)rank_level(factor) - (int)rank_level(1);
}

void policy_ranks_init(struct policy_ranks *ranks)
{
    for (unsigned level = 0; level < 256; level++) {
        ranks->level_rank[level] = rank_of_level(level);
    }
}

// --- hazards -------------------------------------------------------------------------------------

static void evidence_of_class(const struct policy_monitor *monitor, unsigned c,
                              struct evidence *ret_evidence)
{
    check(c < POLICY_CLASSES);
    check(monitor->weight >= 1);
    float lived = 0;
    float unit = 1 / monitor->weight;
    for (unsigned b = 0; b < POLICY_BUCKETS; b++) {
        lived += monitor->exposures[c][b];
        ret_evidence->events[b] = monitor->events[c][b] * unit;
        ret_evidence->lived[b] = lived > 0 ? lived * unit : 0;
    }
}

static void evidence_add(struct evidence *to, const struct evidence *from)
{
    for (unsigned b = 0; b < POLICY_BUCKETS; b++) {
        to->events[b] += from->events[b];
        to->lived[b] += from->lived[b];
    }
}

static void hazard_of(const struct evidence *evidence, float prior, const double *wider,
                      double *ret_hazard)
{
    check(prior > 0); // without this, a class without evidence would cause a division by 0
    for (unsigned b = 0; b < POLICY_BUCKETS; b++) {
        ret_hazard[b] = (evidence->events[b] + prior * (wider != NULL ? wider[b] : 0)) /
                        (evidence->events[b] + evidence->lived[b] + prior);
    }
}

static void rank_class(struct policy_ranks *ranks, unsigned c, const double *hazard)
{
    policy_rank_of_hazard(hazard, ranks->rank[c]);
    for (unsigned b = 0; b < POLICY_BUCKETS; b++) {
        ranks->level[c][b] = (uint8_t)rank_level(ranks->rank[c][b]);
    }
}

void policy_ranks_renew(struct policy_ranks *ranks, struct policy_monitor *monitor)
{
    struct evidence classes[POLICY_CLASSES] = {0};
    struct evidence marginals[MARGINALS] = {0}, all = {0};
    for (unsigned c = 0; c < POLICY_CLASSES; c++) {
        ranks->is_used[c] = ranks->is_used[c] || monitor->has_news[c];
        if (ranks->is_used[c]) {
            evidence_of_class(monitor, c, &classes[c]);
            evidence_add(c == POLICY_CLASS_SILENT ? &all : &marginals[rank_marginal(c)],
                         &classes[c]);
        }
    }
    for (unsigned m = 0; m < MARGINALS; m++) {
        evidence_add(&all, &marginals[m]);
    }
    double overall[POLICY_BUCKETS], marginal[MARGINALS][POLICY_BUCKETS];
    for (unsigned b = 0; b < POLICY_BUCKETS; b++) {
        overall[b] = all.events[b] / (all.events[b] + all.lived[b] + 0.5);
    }
    for (unsigned m = 0; m < MARGINALS; m++) {
        hazard_of(&marginals[m], m == 0 ? PRIOR_NEW : PRIOR, overall, marginal[m]);
    }
    bool is_first = ranks->round++ == 0;
    for (unsigned c = 0; c < POLICY_CLASSES; c++) {
        if (!is_first && !monitor->has_news[c] && (ranks->round + c) % ROUNDS != 0) {
            continue;
        }
        monitor->has_news[c] = false;
        double hazard[POLICY_BUCKETS];
        bool is_silent = c == POLICY_CLASS_SILENT;
        hazard_of(&classes[c], PRIOR, is_silent ? NULL : marginal[rank_marginal(c)], hazard);
        rank_class(ranks, c, hazard);
    }
}
