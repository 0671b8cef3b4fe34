// SPDX-License-Identifier: Apache-2.0
// Syncs the segments that a batch of changes will name. Index writer only.
#ifndef FOREBAY_STORE_INDEX_SYNC_H
#define FOREBAY_STORE_INDEX_SYNC_H

#include "store/index/index_writer.h"

void index_sync_batch(struct index_writer *writer, const struct index_change *batch);
// Syncs a segment, and abandons it if that fails. If it cannot be opened now, keeps it and returns
// ERR_UNREADABLE or ERR_DESCRIPTORS. Any thread that may block.
enum err index_sync_segment(struct segment *segment);

#endif
