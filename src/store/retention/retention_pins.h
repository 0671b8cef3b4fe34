// SPDX-License-Identifier: Apache-2.0
// Groups of rules, and pins, between the store and its policy.
#ifndef FOREBAY_STORE_RETENTION_PINS_H
#define FOREBAY_STORE_RETENTION_PINS_H

#include "store/retention/retention.h"

// Sets the policy's groups. Takes the policy's lock again and again, as long as there are runs to
// go through; not on a worker.
void retention_pins_groups(struct retention *retention, const struct store_group *groups,
                           unsigned count);
// Sets the limit of pins: a part of the segments that are not open, spare or being freed. So one
// segment always has something that may go. Under the policy's lock, or before the threads.
void retention_pins_fit(struct retention *retention);
// policy_victim() for a caller with room for `max` survivors. If there are pins and no room, a
// segment without pins goes. If there is none, pins are rewritten nevertheless, or wait while
// others are. Under the policy's lock.
bool retention_pins_victim(struct retention *retention, bool (*may_go)(void *ctx, uint32_t number),
                           void *ctx, uint32_t max, struct policy_victim *ret_victim);
// Returns true if a rule has a pin, or anything is pinned while the process runs. Any thread.
bool retention_pins_any(struct retention *retention);
void retention_pins_figures(struct retention *retention, struct store_pins_figures *ret_figures);
// Counts refused and lost pins, and logs them now and then. On the retention thread.
void retention_pins_tell(struct retention *retention);

#endif
