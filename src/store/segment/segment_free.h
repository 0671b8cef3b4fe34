// SPDX-License-Identifier: Apache-2.0
// The thread that frees segments and seals full ones. Shared inside the room only.
#ifndef FOREBAY_STORE_SEGMENT_FREE_H
#define FOREBAY_STORE_SEGMENT_FREE_H

#include "store/segment/segment_log.h"

void segment_free_start(struct segment_log *log);
// Stops it: what is being freed is freed first.
void segment_free_stop(struct segment_log *log);
// The segment goes; under the log's lock. `index_forgotten`: the index has nothing to forget.
void segment_free_doom_locked(struct segment_log *log, struct segment *segment,
                              bool index_forgotten);
// The same of a full one, unless it is on its way out already. Any thread.
void segment_free_doom_full(struct segment_log *log, struct segment *segment);
// The last pin of an unlinked segment is gone. Any thread.
void segment_free_close(struct segment *segment);
// Seals those of which nothing is held any more. On the thread, or after it.
void segment_free_seal_all(struct segment_log *log);

#endif
