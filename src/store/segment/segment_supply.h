// SPDX-License-Identifier: Apache-2.0
// The thread that makes segments ahead of need. Shared inside the room only.
#ifndef FOREBAY_STORE_SEGMENT_SUPPLY_H
#define FOREBAY_STORE_SEGMENT_SUPPLY_H

#include "store/segment/segment_log.h"

void segment_enter(struct segment_log *log, uint32_t number, enum segment_state state);
// What was marked of it leaves memory: nobody has a pin, nor will again.
void segment_free_marks(struct segment *segment);

// Makes the first spare segments (unless the disk refuses) and starts the thread.
void segment_supply_start(struct segment_log *log);
void segment_supply_stop(struct segment_log *log);
// Do readers hold so many evicted segments that only segments without readers are picked? Any
// thread.
bool segment_supply_waits_for_readers(struct segment_log *log);

#endif
