// SPDX-License-Identifier: Apache-2.0
// Verifies the index in the background. See index_roll.c.
#ifndef FOREBAY_STORE_INDEX_ROLL_H
#define FOREBAY_STORE_INDEX_ROLL_H

#include "store/index/index.h"

// Limits of one slice. A slice is verified in one read transaction of LMDB. With the pause between
// slices, the limits keep the rate at 10 MiB/s or less.
#define INDEX_ROLL_PAGES 256u
#define INDEX_ROLL_US 5000u
#define INDEX_ROLL_PAUSE_MS 100u
#define INDEX_ROLL_REST_MS (24u * 3600u * 1000u) // pause between two rounds

// Used by the recovery thread.
struct index_roll {
    struct index_reader reader;
    uint64_t env_id; // the environment in which the round began; 0: no round
    enum index_table table;
    bool begun;                    // this round has read a row of `table`
    char key[INDEX_PAGE_KEY_LEN];  // if `begun`: key of the last row that was read
    uint64_t records, bad_records; // records that this round has read, and how many were bad
};

// Verifies the next pages. Returns true if the round is complete or there is no index.
bool index_roll_slice(struct index_roll *roll, struct index *index);

#endif
