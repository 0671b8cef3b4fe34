// SPDX-License-Identifier: Apache-2.0
// The steps of a life in which the room fill is between the test and the store: readers request
// missing bytes, writers invalidate, the origin is played.
#ifndef FOREBAY_TESTS_UNIT_SIMULATION_FILL_LIFE_H
#define FOREBAY_TESTS_UNIT_SIMULATION_FILL_LIFE_H

#include "base/hash.h"
#include "judge.h"

struct object_key;

void fill_life_begin(void); // the store is open
void fill_life_end(void);   // nothing is under way; before the store is closed
struct object_key *fill_life_key(unsigned key);
uint64_t fill_life_floor(struct worker *w, struct hash128 hash);
void fill_life_get(unsigned worker, unsigned key);
void fill_life_confirm(unsigned worker, unsigned key);
void fill_life_write(unsigned worker, unsigned key);
void fill_life_write_bucket(unsigned worker);

#endif
