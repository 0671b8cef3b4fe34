// SPDX-License-Identifier: Apache-2.0
// Syncs what a batch of changes is about to name. Index writer only.
#ifndef FOREBAY_STORE_INDEX_SYNC_H
#define FOREBAY_STORE_INDEX_SYNC_H

#include "store/index/index_writer.h"

void index_sync_batch(struct index_writer *writer, const struct index_change *batch);
// A segment that cannot be synced is given up; one that cannot be opened now (ERR_UNREADABLE,
// ERR_DESCRIPTORS) is not. Any thread that may block.
enum err index_sync_segment(struct segment *segment);

#endif
