// SPDX-License-Identifier: Apache-2.0
// The plan that a seed makes: lives, one after the other on the same disk, and the events in each.
// Steps can be left out one by one, to shorten a failing seed.
#ifndef FOREBAY_TESTS_UNIT_SIMULATION_PLAN_H
#define FOREBAY_TESTS_UNIT_SIMULATION_PLAN_H

#include "disk.h"

#define PLAN_LIVES_MAX 6u
#define PLAN_STEPS_MAX 24u
#define PLAN_KEYS 5u // that are written to; behind them come those that only take room
#define PLAN_BULK_KEYS 48u

enum step_kind {
    STEP_FETCH,   // the key comes from the origin and is stored
    STEP_READ,    // whatever is held of it is read and judged
    STEP_WRITE,   // invalidated, changed at the origin, invalidated, acknowledged
    STEP_RENEW,   // found unchanged at the origin
    STEP_CONDEMN, // its cached bytes are wrong
    STEP_EPOCH,   // all keys change
    STEP_BULK,    // many keys that only take room
    STEP_WAIT,    // time passes
    STEP_SETTLE,  // until all that was begun has ended
    STEP_KINDS_
};

struct step {
    enum step_kind kind;
    unsigned key, amount;
    uint64_t seed; // of what happens until the next step
    bool is_left_out;
};

enum ending { ENDING_STRIKE, ENDING_KILL, ENDING_STOP };

struct life {
    struct disk_plan disk;
    enum ending ending; // of the steps, if the disk did not strike before
    bool is_same_boot;  // only the disk lost its power
    bool is_descriptors_few;
    unsigned step_count;
    struct step steps[PLAN_STEPS_MAX];
};

struct plan {
    uint64_t seed;
    bool is_honest;  // the disk never fails or lies: then nothing that it holds is damaged
    bool has_policy; // what goes is learnt, and half of it is rewritten
    bool has_fill;   // the room fill stands between the test and the store
    unsigned life_count;
    struct life lives[PLAN_LIVES_MAX];
};

void plan_make(uint64_t seed, struct plan *ret_plan);
void plan_tell(const struct plan *plan);
const char *step_name(enum step_kind kind);

#endif
