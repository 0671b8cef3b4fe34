// SPDX-License-Identifier: Apache-2.0
// Ring buffer of events from one worker to the policy's owner. One thread puts events and one takes
// them, without a lock.
#ifndef FOREBAY_STORE_POLICY_RING_H
#define FOREBAY_STORE_POLICY_RING_H

#include <stdatomic.h>

#include "store/policy/policy.h"

#define POLICY_RING_EVENTS 1024u
// The most events that may be waiting when a request is put. The rest of the ring is reserved for
// events of stored and removed runs.
#define POLICY_RING_REQUESTS (POLICY_RING_EVENTS / 4 * 3)

struct policy_ring {                     // a zeroed ring is empty
    _Alignas(64) _Atomic uint32_t put;   // events put so far, modulo 2^32; the putter writes it
    _Alignas(64) _Atomic uint32_t taken; // events taken so far, modulo 2^32; the taker writes it
    _Alignas(64) struct policy_event events[POLICY_RING_EVENTS];
};

// Returns false if the ring is full. The event is then lost, and the policy learns a little less.
bool policy_ring_put(struct policy_ring *ring, const struct policy_event *event);
// Returns how many events were put so far, modulo 2^32. Only the putter may call it.
static inline uint32_t policy_ring_put_count(const struct policy_ring *ring)
{
    return atomic_load_explicit(&ring->put, memory_order_relaxed);
}
// Takes at most `max` events and returns how many it took.
size_t policy_ring_take(struct policy_ring *ring, struct policy_event *ret_events, size_t max);

#endif
