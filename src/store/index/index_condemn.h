// SPDX-License-Identifier: Apache-2.0
// Marks bad runs in their segments. Index writer only. See index_condemn.c.
#ifndef FOREBAY_STORE_INDEX_CONDEMN_H
#define FOREBAY_STORE_INDEX_CONDEMN_H

#include "store/index/index_writer.h"

// Writes the marks of a batch, and syncs them if the batch condemns a key. Called before the
// commit, so the marks stay even if the commit fails.
void index_condemn_batch(struct index *index, const struct index_change *batch);

#endif
