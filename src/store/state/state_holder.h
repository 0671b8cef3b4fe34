// SPDX-License-Identifier: Apache-2.0
// Realms and origins under whose names copies may be stored. See state_holder.c.
#ifndef FOREBAY_STORE_STATE_STATE_HOLDER_H
#define FOREBAY_STORE_STATE_STATE_HOLDER_H

#include "store/state/state_doubt.h"
#include "store/store.h"

// Assigns the holders' numbers. Called when the store opens, after `format` was read and before it
// is written; `doubts` has been loaded.
void state_holders_load(struct store_disk *disk, struct store_doubts *doubts,
                        struct store_holder *holders, unsigned count);
// Implements store_holders_add().
enum err state_holders_add(struct store_disk *disk, struct store_doubts *doubts,
                           struct store_holder *holders, unsigned count) MUST_USE;

#endif
