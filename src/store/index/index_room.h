// SPDX-License-Identifier: Apache-2.0
// Room in cache.size for the next transaction of the index. Index writer only.
#ifndef FOREBAY_STORE_INDEX_ROOM_H
#define FOREBAY_STORE_INDEX_ROOM_H

#include "store/index/index_batch.h"

// Segments that are evicted for the index give back their space within this time, unless slow
// readers hold them.
#define INDEX_ROOM_WAIT_MS 2000u

struct index_writer;

// Begins a transaction for what is left of the batch, as index_txn_begin() does. While cache.size
// has no room for it, waits for a segment to be evicted. ERR_DISK_FULL with index.is_short: there
// is none that can go.
enum err index_room_begin(struct index_writer *writer, const struct index_batch *batch,
                          struct index_txn *t, int *ret_rc);
// Logs and counts that a batch was dropped for want of room. index_is_full() for a while.
void index_room_none(struct index *index);

#endif
