// SPDX-License-Identifier: Apache-2.0
#include "plan.h"

#include <stdio.h>

#include "base/bytes.h"

static uint64_t state;

static unsigned pick(unsigned below)
{
    uint64_t x = state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (unsigned)((x ^ x >> 31) >> 11) % below;
}

static enum step_kind pick_step(bool is_bulky)
{
    static const enum step_kind often[] = {STEP_FETCH, STEP_FETCH, STEP_FETCH, STEP_FETCH,
                                           STEP_READ,  STEP_READ,  STEP_READ,  STEP_WRITE,
                                           STEP_WRITE, STEP_WRITE, STEP_RENEW, STEP_RENEW,
                                           STEP_WAIT,  STEP_WAIT,  STEP_WAIT,  STEP_SETTLE};
    unsigned rare = pick(40);
    if (rare == 0) {
        return STEP_EPOCH;
    }
    if (rare <= 2) {
        return STEP_CONDEMN;
    }
    return is_bulky && rare <= 8 ? STEP_BULK : often[pick(ARRAY_LEN(often))];
}

static void make_steps(struct life *life, bool is_bulky)
{
    life->step_count = 2 + pick(PLAN_STEPS_MAX - 2);
    for (unsigned i = 0; i < life->step_count; i++) {
        life->steps[i] = (struct step){.kind = pick_step(is_bulky),
                                       .key = pick(PLAN_KEYS),
                                       .amount = pick(1000),
                                       .seed = (uint64_t)pick(UINT32_MAX) << 20 | pick(1 << 20)};
    }
}

static void make_disk(struct life *life, bool is_honest)
{
    static const unsigned spans[] = {10, 40, 120, 400};
    struct disk_plan *disk = &life->disk;
    unsigned ending = pick(8);
    life->ending = ending == 0 ? ENDING_STOP : ending <= 2 ? ENDING_KILL : ENDING_STRIKE;
    if (life->ending == ENDING_STRIKE) {
        disk->strike_at = 1 + pick(spans[pick(ARRAY_LEN(spans))]);
    }
    unsigned end = pick(8);
    disk->end = end == 0 ? DISK_END_KILL : end <= 2 ? DISK_END_ALL : DISK_END_SUBSET;
    life->is_same_boot = disk->end == DISK_END_KILL || pick(3) != 0;
    life->is_descriptors_few = pick(8) == 0;
    if (pick(8) == 0) {
        disk->slow_per_k = 20;
    }
    if (is_honest) {
        return;
    }
    switch (pick(4)) {
    case 0:
        disk->fail_per_k = 1 + pick(60);
        break;
    case 1:
        disk->full_per_k = 1 + pick(40);
        break;
    case 2:
        disk->read_fail_per_k = 1 + pick(100);
        break;
    default: // a sync that lied shows in a power cut, and another boot comes after
        disk->lie_at = 1 + pick(40);
        disk->lie_count = pick(2) == 0 ? 1 : 1 + pick(60);
        life->is_same_boot = false;
        break;
    }
}

void plan_make(uint64_t seed, struct plan *ret_plan)
{
    state = seed * 0x2545f4914f6cdd1du;
    (void)pick(2);
    *ret_plan = (struct plan){.seed = seed, .is_honest = pick(3) != 0};
    ret_plan->has_fill = pick(2) == 0;
    bool is_bulky = pick(6) == 0;
    ret_plan->has_policy = seed % 3 == 0 || (is_bulky && seed % 2 == 0);
    ret_plan->life_count = 2 + pick(3);
    for (unsigned i = 0; i < ret_plan->life_count; i++) {
        make_steps(&ret_plan->lives[i], is_bulky);
        make_disk(&ret_plan->lives[i], ret_plan->is_honest);
    }
    // Two lives in which nothing goes wrong follow: the second finds what the first has stored.
    for (unsigned i = 0; i < 2; i++) {
        struct life *last = &ret_plan->lives[ret_plan->life_count++];
        last->ending = ENDING_STOP;
        last->is_same_boot = true;
    }
}

const char *step_name(enum step_kind kind)
{
    static const char *const names[STEP_KINDS_] = {"fetch", "read", "write", "renew", "condemn",
                                                   "epoch", "bulk", "wait",  "settle"};
    return names[kind];
}

void plan_tell(const struct plan *plan)
{
    static const char *const ends[] = {"kill", "power cut, all unsynced lost",
                                       "power cut, any of it lost"};
    static const char *const endings[] = {"strike", "end at the last step", "clean stop"};
    fprintf(stderr, "seed %llu, %s disk%s%s\n", (unsigned long long)plan->seed,
            plan->is_honest ? "honest" : "faulty", plan->has_fill ? ", behind fill" : "",
            plan->has_policy ? ", learning" : "");
    for (unsigned i = 0; i < plan->life_count; i++) {
        const struct life *life = &plan->lives[i];
        const struct disk_plan *disk = &life->disk;
        fprintf(stderr, "life %u: %s (%s%s)", i, endings[life->ending], ends[disk->end],
                life->is_same_boot ? "" : ", then another boot");
        fprintf(
            stderr,
            " at call %u; %u lies from sync %u; per thousand: fail %u, full %u, read %u, slow %u\n",
            disk->strike_at, disk->lie_count, disk->lie_at, disk->fail_per_k, disk->full_per_k,
            disk->read_fail_per_k, disk->slow_per_k);
        for (unsigned s = 0; s < life->step_count; s++) {
            const struct step *step = &life->steps[s];
            if (!step->is_left_out) {
                fprintf(stderr, "  %u: %s key %u amount %u\n", s, step_name(step->kind), step->key,
                        step->amount);
            }
        }
    }
}
