// SPDX-License-Identifier: Apache-2.0
// Proves: events come out in their order, between two threads too; a full ring refuses requests
// first, what was stored last, and goes on.
#include "store/policy/policy_ring.h"
#include "test.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#define EVENTS 200000u

static struct policy_ring ring;

Test(policy_ring, a_full_ring_keeps_room_for_stored_runs)
{
    struct policy_event event = {.kind = POLICY_READ}, taken[8];
    unsigned requests = 0, stored = 0;
    memset(&ring, 0, sizeof(ring));
    for (; policy_ring_put(&ring, &event); requests++) {
    }
    event.kind = POLICY_STORED;
    for (; policy_ring_put(&ring, &event); stored++) {
    }
    cr_assert_eq(requests, POLICY_RING_REQUESTS);
    cr_assert_eq(stored, POLICY_RING_EVENTS - POLICY_RING_REQUESTS);
    cr_assert_eq(policy_ring_take(&ring, taken, 8), 8u);
    for (unsigned i = 0; i < 8; i++) {
        cr_assert(policy_ring_put(&ring, &event));
    }
    cr_assert_not(policy_ring_put(&ring, &event));
}

static void *put_all(void *ctx)
{
    (void)ctx;
    for (uint32_t i = 0; i < EVENTS; i++) {
        struct policy_event event = {.kind = POLICY_STORED, .key = i, .start = ~i};
        while (!policy_ring_put(&ring, &event)) {
            sched_yield();
        }
    }
    return NULL;
}

Test(policy_ring, the_order_stays)
{
    pthread_t putter;
    struct policy_event taken[64];
    memset(&ring, 0, sizeof(ring));
    cr_assert_eq(pthread_create(&putter, NULL, put_all, NULL), 0);
    for (uint32_t next = 0; next < EVENTS;) {
        size_t count = policy_ring_take(&ring, taken, 64);
        for (size_t i = 0; i < count; i++, next++) {
            cr_assert_eq(taken[i].key, next);
            cr_assert_eq(taken[i].start, ~next);
        }
        if (count == 0) {
            sched_yield();
        }
    }
    cr_assert_eq(pthread_join(putter, NULL), 0);
}
