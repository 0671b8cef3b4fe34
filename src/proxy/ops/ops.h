// SPDX-License-Identifier: Apache-2.0
// The parts of proxy that operators ask for; proxy/proxy.h declares the rest.
#ifndef FOREBAY_PROXY_OPS_OPS_H
#define FOREBAY_PROXY_OPS_OPS_H

#include "proxy/core/core.h"

// --- pins.c --------------------------------------------------------------------------------------

void pins_room_new(struct proxy *proxy); // with the workers; what is on disk counts from now on
// The rules that are in force from now on, for what is held already. One thread.
void pins_room_set(struct proxy *proxy, const struct proxy_settings *settings);
void pins_room_free(struct proxy *proxy);

// --- evict.c -------------------------------------------------------------------------------------

void evict_worker_init(struct proxy_worker *pw);

// --- ops_worker.c --------------------------------------------------------------------------------

// The worker for a question that any worker could answer. Any thread.
struct proxy_worker *ops_worker(struct proxy *proxy);

#endif
