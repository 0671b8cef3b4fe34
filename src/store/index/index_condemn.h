// SPDX-License-Identifier: Apache-2.0
// Runs that are known to be bad, marked where they lie. Index writer only.
#ifndef FOREBAY_STORE_INDEX_CONDEMN_H
#define FOREBAY_STORE_INDEX_CONDEMN_H

#include "store/index/index_writer.h"

// The marks that a batch of changes asks for, on disk when this returns. Before the batch is
// committed, whatever becomes of the commit.
void index_condemn_batch(struct index *index, const struct index_change *batch);

#endif
