// SPDX-License-Identifier: Apache-2.0
// The names that copies may be held under, see state_holder.c.
#ifndef FOREBAY_STORE_STATE_STATE_HOLDER_H
#define FOREBAY_STORE_STATE_STATE_HOLDER_H

#include "store/disk/disk.h"
#include "store/store.h"

// At the opening, with `format` read and not yet written.
void state_holders_load(struct store_disk *disk, struct store_holder *holders, unsigned count);
// As store_holders_add().
enum err state_holders_add(struct store_disk *disk, struct store_holder *holders,
                           unsigned count) MUST_USE;

#endif
