// SPDX-License-Identifier: Apache-2.0
// Events of one worker, on their way to the policy's owner. One thread puts, one takes; no lock.
#ifndef FOREBAY_STORE_POLICY_RING_H
#define FOREBAY_STORE_POLICY_RING_H

#include <stdatomic.h>

#include "store/policy/policy.h"

#define POLICY_RING_EVENTS 1024u
// The most requests that wait in the ring. The rest of it is for stored runs and runs that are
// gone.
#define POLICY_RING_REQUESTS (POLICY_RING_EVENTS / 4 * 3)

struct policy_ring {                   // zeroed: empty
    _Alignas(64) _Atomic uint32_t put; // rise and wrap; the taker reads this one
    _Alignas(64) _Atomic uint32_t taken;
    _Alignas(64) struct policy_event events[POLICY_RING_EVENTS];
};

// False: it is full, and the event is lost; an event that is lost makes the policy a little
// blinder.
bool policy_ring_put(struct policy_ring *ring, const struct policy_event *event);
// How many were put ever, modulo 2^32. The putter only.
static inline uint32_t policy_ring_put_count(const struct policy_ring *ring)
{
    return atomic_load_explicit(&ring->put, memory_order_relaxed);
}
// How many were taken, at most `max`.
size_t policy_ring_take(struct policy_ring *ring, struct policy_event *ret_events, size_t max);

#endif
