// SPDX-License-Identifier: Apache-2.0
// Maps the store's rules and pins to the policy's groups.
#ifndef FOREBAY_STORE_RETENTION_PINS_H
#define FOREBAY_STORE_RETENTION_PINS_H

#include "store/retention/retention.h"

// Sets the policy's groups and moves stored runs between them, in steps. Takes the retention's lock
// for each step. Must not be called on a worker.
void retention_pins_groups(struct retention *retention, const struct store_group *groups,
                           unsigned count);
// Sets the limit of pinned bytes: a part of the segments that are not open, spare or being freed.
// So there is always a segment with runs that may be dropped. Called under the retention's lock, or
// before the threads start.
void retention_pins_fit(struct retention *retention);
// Picks the segment to evict, for a caller that allows `max` survivors. If there are pins and `max`
// is 0, picks a segment without pins. If there is no such segment, picks another one, whose pinned
// runs are rewritten in spite of `max`. Returns false while a job is in progress. After
// RETENTION_PINS_TRIES failed jobs, pinned runs are dropped. Called under the retention's lock.
bool retention_pins_victim(struct retention *retention, bool (*may_go)(void *ctx, uint32_t number),
                           void *ctx, uint32_t max, struct policy_victim *ret_victim);
// Returns true if a rule has a pin, or if a command has pinned anything. Any thread.
bool retention_pins_any(struct retention *retention);
void retention_pins_figures(struct retention *retention, struct store_pins_figures *ret_figures);
// Counts refused and lost pins, and logs them at most once a minute. Called on the retention
// thread.
void retention_pins_tell(struct retention *retention);

#endif
