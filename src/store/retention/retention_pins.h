// SPDX-License-Identifier: Apache-2.0
// Maps the store's rules and pins to the policy's groups.
#ifndef FOREBAY_STORE_RETENTION_PINS_H
#define FOREBAY_STORE_RETENTION_PINS_H

#include "store/retention/retention.h"

// Sets the policy's groups and moves stored runs between them, in steps. Takes the retention's lock
// for each step. Not on a worker.
void retention_pins_groups(struct retention *retention, const struct store_group *groups,
                           unsigned count);
// Sets the limit of pinned bytes: a part of the segments that are not open, spare or being freed.
// So some segment always has runs that may be dropped. Under the retention's lock, or before the
// threads start.
void retention_pins_fit(struct retention *retention);
// Calls policy_victim() for a caller with room for `max` survivors. If there are pins and `max` is
// 0, picks a segment without pins. If there is none, picks a segment whose pinned runs are then
// rewritten nevertheless, or returns false while another job is in progress. After
// RETENTION_PINS_TRIES failed jobs, pinned runs are dropped. Under the retention's lock.
bool retention_pins_victim(struct retention *retention, bool (*may_go)(void *ctx, uint32_t number),
                           void *ctx, uint32_t max, struct policy_victim *ret_victim);
// Returns true if a rule has a pin, or a command has pinned anything. Any thread.
bool retention_pins_any(struct retention *retention);
void retention_pins_figures(struct retention *retention, struct store_pins_figures *ret_figures);
// Counts refused and lost pins, and logs them now and then. On the retention thread.
void retention_pins_tell(struct retention *retention);

#endif
