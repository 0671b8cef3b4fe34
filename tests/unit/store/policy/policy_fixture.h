// SPDX-License-Identifier: Apache-2.0
// A policy with segments of sixteen runs of 64 KiB, and a store of a few lines that fills them.
#ifndef FOREBAY_TESTS_POLICY_FIXTURE_H
#define FOREBAY_TESTS_POLICY_FIXTURE_H

#include "store/policy/policy_private.h"

#define RUN_BYTES 65536u
#define SEGMENT_RUNS 16u

struct shelf {
    struct policy_options options;
    struct policy *policy;
    void *region;
    uint32_t number, run_count; // of the open segment
};

void shelf_init(struct shelf *shelf, enum policy_kind kind, uint32_t segments);
void shelf_done(struct shelf *shelf);
uint64_t shelf_key(uint64_t block);
// Asks whether it is admitted, and says that it was missed.
bool shelf_miss(struct shelf *shelf, uint64_t block, unsigned group, uint32_t *ret_stamp);
// Asks, but does not store it whatever the answer.
bool shelf_pass_by(struct shelf *shelf, uint64_t block);
// Puts it into the open segment, and seals that when it is full.
void shelf_store(struct shelf *shelf, uint64_t block, uint32_t stamp);
void shelf_read(struct shelf *shelf, uint64_t block, uint32_t number, uint32_t index);
// Makes a sealed segment of blocks first .. first + 15, all missed just now.
uint32_t shelf_fill(struct shelf *shelf, uint64_t first, unsigned group);
// Lets `ticks` ticks pass by reading a known run.
void shelf_pass(struct shelf *shelf, uint32_t ticks);

#endif
