// SPDX-License-Identifier: Apache-2.0
// What deserves space: is a run stored, which segment goes when space is wanted. The store tells it
// of accesses and asks it two questions; it knows no files.
#ifndef FOREBAY_STORE_POLICY_H
#define FOREBAY_STORE_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"

struct policy {
    unsigned char unused; // no state yet
};

// A sealed segment that may be freed now.
struct policy_candidate {
    uint32_t number; // rises with age: the smallest was begun first
    uint32_t last_used_s;
};

void policy_init(struct policy *policy);
// An object was looked up and found. Any worker, on the hit path.
void policy_touch(struct policy *policy, struct hash128 hash);
// Is a run of `len` bytes beginning at `first_block` worth its space? Any worker.
bool policy_admit(const struct policy *policy, struct hash128 hash, uint64_t first_block,
                  uint64_t len);
// Index of the candidate to free; `count` > 0.
size_t policy_victim(const struct policy *policy, const struct policy_candidate *candidates,
                     size_t count);

#endif
