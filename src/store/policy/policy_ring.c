// SPDX-License-Identifier: Apache-2.0
// The putter writes `put` after it has written an event. The taker writes `taken` after it has
// copied the events.
#include "store/policy/policy_ring.h"

#include <assert.h>

#include "base/check.h"

static_assert((POLICY_RING_EVENTS & (POLICY_RING_EVENTS - 1)) == 0,
              "positions continue at the wrap");
static_assert(POLICY_RING_REQUESTS < POLICY_RING_EVENTS, "some are left for stored runs");

bool policy_ring_put(struct policy_ring *ring, const struct policy_event *event)
{
    uint32_t put = atomic_load_explicit(&ring->put, memory_order_relaxed);
    uint32_t waiting = put - atomic_load_explicit(&ring->taken, memory_order_acquire);
    check(waiting <= POLICY_RING_EVENTS);
    check(event->kind <= POLICY_GONE);
    bool is_request = event->kind != POLICY_STORED && event->kind != POLICY_GONE;
    if (waiting >= (is_request ? POLICY_RING_REQUESTS : POLICY_RING_EVENTS)) {
        return false;
    }
    ring->events[put % POLICY_RING_EVENTS] = *event;
    atomic_store_explicit(&ring->put, put + 1, memory_order_release);
    return true;
}

size_t policy_ring_take(struct policy_ring *ring, struct policy_event *ret_events, size_t max)
{
    uint32_t taken = atomic_load_explicit(&ring->taken, memory_order_relaxed);
    uint32_t waiting = atomic_load_explicit(&ring->put, memory_order_acquire) - taken;
    check(waiting <= POLICY_RING_EVENTS);
    size_t count = waiting < max ? waiting : max;
    for (size_t i = 0; i < count; i++) {
        ret_events[i] = ring->events[(taken + i) % POLICY_RING_EVENTS];
    }
    atomic_store_explicit(&ring->taken, taken + (uint32_t)count, memory_order_release);
    return count;
}
