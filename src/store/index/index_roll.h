// SPDX-License-Identifier: Apache-2.0
// Goes round the index behind serving. See index_roll.c.
#ifndef FOREBAY_STORE_INDEX_ROLL_H
#define FOREBAY_STORE_INDEX_ROLL_H

#include "store/index/index.h"

// One slice: what is looked at under one view, and how long that may take. With the pause 10 MiB/s.
#define INDEX_ROLL_PAGES 256u
#define INDEX_ROLL_US 5000u
#define INDEX_ROLL_PAUSE_MS 100u
#define INDEX_ROLL_REST_MS (24u * 3600u * 1000u) // between two rounds

// Of the recovery thread.
struct index_roll {
    struct index_reader reader;
    uint64_t env_id; // of the environment that the round began in; 0: none has begun
    enum index_table table;
    bool begun; // `key`: of the last row that was seen of the table
    char key[INDEX_PAGE_KEY_LEN];
    uint64_t records, bad_records; // of the round
};

// Looks at the next pages. True: the round is over, or there is nothing to go round.
bool index_roll_slice(struct index_roll *roll, struct index *index);

#endif
