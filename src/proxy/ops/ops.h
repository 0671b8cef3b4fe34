// SPDX-License-Identifier: Apache-2.0
// The parts of proxy that operators call; proxy/proxy.h declares the rest.
#ifndef FOREBAY_PROXY_OPS_OPS_H
#define FOREBAY_PROXY_OPS_OPS_H

#include "proxy/core/core.h"

// --- pins.c --------------------------------------------------------------------------------------

// Loads the pins that operators have set from the disk. Returns an empty table if it cannot read
// them.
struct pins_table *pins_load(struct proxy *proxy) MUST_USE;
void pins_room_new(struct proxy *proxy); // call it after live_start()
void pins_room_free(struct proxy *proxy);

// --- evict.c -------------------------------------------------------------------------------------

void evict_worker_init(struct proxy_worker *pw);

// --- ops_worker.c --------------------------------------------------------------------------------

// Returns each worker in turn, for calls that any worker can run. Any thread.
struct proxy_worker *ops_worker(struct proxy *proxy);
// Copies the name to *at, and moves *at to the end of the copy. Returns the copy.
struct span ops_name_copy(char **at, struct span name);

#endif
