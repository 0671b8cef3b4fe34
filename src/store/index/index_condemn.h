// SPDX-License-Identifier: Apache-2.0
// Marks bad runs in their segments. Index writer only.
#ifndef FOREBAY_STORE_INDEX_CONDEMN_H
#define FOREBAY_STORE_INDEX_CONDEMN_H

#include "store/index/index_writer.h"

// Writes the marks that a batch needs and syncs them. Called before the commit, whether or not that
// succeeds.
void index_condemn_batch(struct index *index, const struct index_change *batch);

#endif
