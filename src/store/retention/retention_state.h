// SPDX-License-Identifier: Apache-2.0
// The policy's knowledge, across restarts. Shared inside the room only; on the retention thread, or
// after it.
#ifndef FOREBAY_STORE_RETENTION_STATE_H
#define FOREBAY_STORE_RETENTION_STATE_H

#include "store/retention/retention.h"

// Bytes of the saved state on disk, as store_dir_other_bytes() has counted it.
uint64_t retention_state_bytes(const struct store_disk *disk);
// A file that is missing or damaged is no error: all that is whole in it is known, the rest is
// learnt.
void retention_state_load(struct retention *retention);
void retention_state_save(struct retention *retention);

#endif
