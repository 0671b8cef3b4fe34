// SPDX-License-Identifier: Apache-2.0
// Loads and saves the policy's knowledge across restarts. Shared inside the room only. All
// functions are called on the retention thread, or when it does not run.
#ifndef FOREBAY_STORE_RETENTION_STATE_H
#define FOREBAY_STORE_RETENTION_STATE_H

#include "store/retention/retention.h"

// Returns the disk usage of the saved file. store_dir_other_bytes() includes it.
uint64_t retention_state_bytes(const struct store_disk *disk);
// Returns how many former runs the saved file remembers; 0: unknown.
uint32_t retention_state_former(const struct store_disk *disk);
// Loads the intact pieces of the saved file. A missing or damaged file is no error, because the
// policy can learn the rest again.
void retention_state_load(struct retention *retention);
void retention_state_save(struct retention *retention);

#endif
