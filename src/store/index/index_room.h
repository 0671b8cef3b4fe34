// SPDX-License-Identifier: Apache-2.0
// Room in cache.size for the next transaction of the index. Index writer only.
#ifndef FOREBAY_STORE_INDEX_ROOM_H
#define FOREBAY_STORE_INDEX_ROOM_H

#include "store/index/index_batch.h"

// Longest wait for room. A segment that is evicted for the index returns its space within this
// time, unless slow readers hold it.
#define INDEX_ROOM_WAIT_MS 2000u

struct index_writer;

// Begins a transaction for the rest of the batch, like index_txn_begin(). While cache.size has no
// room, waits for a segment to be evicted. Returns ERR_DISK_FULL, with index.is_short set, if no
// segment could be evicted in time.
enum err index_room_begin(struct index_writer *writer, const struct index_batch *batch,
                          struct index_txn *t, int *ret_rc);
// Logs and counts that a batch was dropped because it had no room. index_is_full() then returns
// true for a second.
void index_room_none(struct index *index);

#endif
