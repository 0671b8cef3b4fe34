// SPDX-License-Identifier: Apache-2.0
// Syncs what a batch of changes is about to name. Index writer only.
#ifndef FOREBAY_STORE_INDEX_SYNC_H
#define FOREBAY_STORE_INDEX_SYNC_H

#include "store/index_writer.h"

void index_sync_batch(struct store *store, const struct index_change *batch);
// A segment that cannot be synced is given up; one that cannot be opened now (ERR_UNREADABLE,
// ERR_DESCRIPTORS) is not. Any thread that may block.
enum err index_sync_segment(struct store *store, struct segment *segment);

#endif
