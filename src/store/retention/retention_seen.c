// SPDX-License-Identifier: Apache-2.0
// Carries events of runs to the policy. Workers and the index writer put events into rings, and
// retention_drain() passes them on; see retention.c.
#include "base/bytes.h"
#include "stats/stats.h"
#include "store/retention/retention.h"
#include "store/segment/segment_log.h"
#include "store/segment/segment_table.h"

#define WAKE_EVERY (POLICY_RING_EVENTS / 4) // events of a ring between wake-ups of the thread
#define TAKEN_AT_ONCE 64u
#define REFUSALS_WAIT_US 10000u // longest delay until the policy learns of a refused run

// Maps the store's groups to the policy's. The policy's group 0 must have normal priority, because
// it also holds runs whose rule is unknown.
unsigned retention_policy_group(unsigned group)
{
    check(group < POLICY_GROUPS);
    return group >= STORE_PRIORITIES
               ? group
               : (group + STORE_PRIORITIES - STORE_PRIORITY_NORMAL) % STORE_PRIORITIES;
}

unsigned retention_group_of_policy(unsigned policy_group)
{
    check(policy_group < POLICY_GROUPS);
    return policy_group >= STORE_PRIORITIES
               ? policy_group
               : (policy_group + STORE_PRIORITY_NORMAL) % STORE_PRIORITIES;
}

bool retention_stopping(struct retention *r)
{
    pthread_mutex_lock(&r->guarded.lock);
    bool stop = r->guarded.stop;
    pthread_mutex_unlock(&r->guarded.lock);
    return stop;
}

void retention_wake(struct retention *r)
{
    pthread_mutex_lock(&r->guarded.lock);
    r->guarded.wanted = true;
    pthread_cond_signal(&r->guarded.wake);
    pthread_mutex_unlock(&r->guarded.lock);
}

static void tell(struct retention *r, unsigned at, const struct policy_event *event)
{
    check(at < r->ring_count);
    struct policy_ring *ring = &r->rings[at];
    if (!policy_ring_put(ring, event)) {
        stats_add(COUNTER_retention_events_lost, 1);
        if (event->kind == POLICY_STORED) {
            atomic_fetch_add(&r->lost_runs, 1);
        }
    } else if (policy_ring_put_count(ring) % WAKE_EVERY == 0) {
        retention_wake(r);
    }
}

static uint32_t event_bytes(uint64_t bytes)
{
    return (uint32_t)min_u64(bytes, UINT32_MAX);
}

bool retention_has_probation(const struct retention *r)
{
    return atomic_load(&r->log->segments_max) >= SEGMENT_PROBATION_SEGMENTS_MIN;
}

enum policy_verdict retention_admit(const struct retention *r, struct hash128 hash,
                                    uint64_t first_block, unsigned group, bool is_part,
                                    struct retention_answer *ret_answer)
{
    *ret_answer =
        (struct retention_answer){.is_part = is_part, .group = retention_policy_group(group)};
    if (!retention_learns(r)) {
        return POLICY_STORE;
    }
    enum policy_verdict verdict = policy_admit(r->policy, policy_key(hash, first_block),
                                               ret_answer->group, is_part, &ret_answer->stamp);
    if (verdict == POLICY_PROBATION && !retention_has_probation(r)) {
        bool is_again = ret_answer->stamp == POLICY_STAMP_SAME;
        verdict = is_part || is_again ? POLICY_STORE : POLICY_REFUSE;
    }
#ifdef FOREBAY_FAULTS
    verdict = atomic_load(&r->keeps_half) ? POLICY_STORE : verdict;
#endif
    ret_answer->on_probation = verdict == POLICY_PROBATION;
    return verdict;
}

void retention_missed(struct worker *w, struct retention *r, struct hash128 hash,
                      uint64_t first_block, uint64_t payload_len,
                      const struct retention_answer *answer, bool is_stored)
{
    if (retention_learns(r)) {
        struct policy_event event = {.kind = is_stored ? POLICY_ADMITTED : POLICY_REFUSED,
                                     .key = policy_key(hash, first_block),
                                     .len = event_bytes(payload_len),
                                     .stamp = answer->stamp,
                                     .is_part = answer->is_part};
        check(worker_index(w) + 1 < r->ring_count); // the last ring is the index writer's
        tell(r, worker_index(w), &event);
        uint64_t *woken_us = &r->woken_us[worker_index(w)];
        if (!is_stored && worker_now_us(w) - *woken_us >= REFUSALS_WAIT_US) {
            *woken_us = worker_now_us(w);
            retention_wake(r);
        }
    }
}

void retention_stored(struct worker *w, struct retention *r, const struct segment_row *row,
                      uint32_t number, const struct retention_answer *answer)
{
    if (!retention_learns(r)) {
        return;
    }
    check(number != 0);
    check(answer->group < POLICY_GROUPS);
    uint32_t payload_len = segment_row_place(row, number, 0).payload_len;
    struct policy_event event = {.kind = POLICY_STORED,
                                 .key = policy_key(row->hash, row->first_block),
                                 .segment = number,
                                 .start = row->header_offset,
                                 .len = retention_row_bytes(row, payload_len),
                                 .stamp = answer->stamp,
                                 .group = answer->group,
                                 .on_probation = answer->on_probation};
    tell(r, worker_index(w), &event);
}

void retention_read(struct worker *w, struct retention *r, const struct store_place *place,
                    uint64_t bytes, unsigned group)
{
    if (!retention_learns(r)) {
        return;
    }
    check(place->segment_number != 0);
    struct policy_event event = {.kind = POLICY_READ,
                                 .key = policy_key(place->hash, place->first_block),
                                 .segment = place->segment_number,
                                 .start = place->header_offset,
                                 .len = event_bytes(bytes),
                                 .group = retention_policy_group(group)};
    tell(r, worker_index(w), &event);
}

void retention_gone(struct retention *r, struct hash128 hash, uint64_t first_block, uint32_t number,
                    uint32_t header_offset)
{
    if (retention_learns(r)) {
        struct policy_event event = {.kind = POLICY_GONE,
                                     .key = policy_key(hash, first_block),
                                     .segment = number,
                                     .start = header_offset};
        tell(r, r->ring_count - 1, &event);
    }
}

void retention_drain(struct retention *r)
{
    struct policy_event events[TAKEN_AT_ONCE];
    for (unsigned i = 0; i < r->ring_count; i++) {
        pthread_mutex_lock(&r->lock);
        size_t count = retention_is_ready(r) ? TAKEN_AT_ONCE : 0;
        for (unsigned n = 0; count == TAKEN_AT_ONCE && n < POLICY_RING_EVENTS / TAKEN_AT_ONCE;
             n++) {
            count = policy_ring_take(&r->rings[i], events, TAKEN_AT_ONCE);
            check(count <= TAKEN_AT_ONCE);
            policy_take(r->policy, events, count);
        }
        pthread_mutex_unlock(&r->lock);
    }
}
