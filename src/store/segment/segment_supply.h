// SPDX-License-Identifier: Apache-2.0
// The thread that creates segments ahead of demand. Shared inside the room only.
#ifndef FOREBAY_STORE_SEGMENT_SUPPLY_H
#define FOREBAY_STORE_SEGMENT_SUPPLY_H

#include "store/segment/segment_log.h"

void segment_enter(struct segment_log *log, uint32_t number, enum segment_state state);
// Frees the verified and bad marks. The segment has no pin and gets none.
void segment_free_marks(struct segment *segment);

// Creates the first spare segments, unless the disk refuses, and starts the thread.
void segment_supply_start(struct segment_log *log);
void segment_supply_stop(struct segment_log *log);
// Returns true if readers hold too many evicted segments, so that only segments without readers are
// picked. Any thread.
bool segment_supply_waits_for_readers(struct segment_log *log);

#endif
