// SPDX-License-Identifier: Apache-2.0
// The thread that creates segments ahead of demand. Shared inside the room only.
#ifndef FOREBAY_STORE_SEGMENT_SUPPLY_H
#define FOREBAY_STORE_SEGMENT_SUPPLY_H

#include "store/segment/segment_log.h"

void segment_enter(struct segment_log *log, uint32_t number, enum segment_state state);
// Frees the verified and bad marks. No thread has a pin of the segment or can get one.
void segment_free_marks(struct segment *segment);

// Returns how many spare segments a cache with room for `segments` segments keeps when space is not
// ample. Pure.
unsigned segment_supply_spares(uint64_t segments, unsigned slots, bool has_survivors,
                               bool has_long_runs);
// Creates the first spare segments, if the disk works and has ample room. Then starts the thread.
void segment_supply_start(struct segment_log *log);
void segment_supply_stop(struct segment_log *log);
// Returns true if readers keep too many evicted segments from being freed. Only segments without
// readers are then picked. Any thread.
bool segment_supply_waits_for_readers(struct segment_log *log);

#endif
