// SPDX-License-Identifier: Apache-2.0
// The thread that frees segments and seals full ones. Shared inside the room only.
#ifndef FOREBAY_STORE_SEGMENT_FREE_H
#define FOREBAY_STORE_SEGMENT_FREE_H

#include "store/segment/segment_log.h"

void segment_free_start(struct segment_log *log);
// Stops the freeing thread after it has freed the segments that are being evicted.
void segment_free_stop(struct segment_log *log);
// Starts the eviction of a segment. Called under the log's lock. `index_forgotten`: the thread must
// not pass the segment's entries to the index, because the index has none or must keep them.
void segment_free_doom_locked(struct segment_log *log, struct segment *segment,
                              bool index_forgotten);
// Starts the eviction of a full segment, unless it has begun already. Any thread.
void segment_free_doom_full(struct segment_log *log, struct segment *segment);
// Queues an unlinked segment for closing, because its last pin is gone. Any thread.
void segment_free_close(struct segment *segment);
// Seals full segments without holds. Called on the freeing thread, or after it has stopped.
void segment_free_seal_all(struct segment_log *log);

#endif
