// SPDX-License-Identifier: Apache-2.0
// Remembers keys whose last answer could not fill the cache: more headers than a run can store, no length,
// or the whole object for a range. A request for such a key asks the origin twice: once for a fill,
// which fails, and once to pass the answer on. While the key is remembered, requests pass through at once.
//
// The table is shared by all workers and holds a name of 40 bits and the time for each key. Two keys that
// share a slot forget each other, and two that share a name as well both pass through: it is a hint that
// costs hits or requests, never bytes. A key is forgotten when it is invalidated and after UNCACHEABLE_S,
// because its next version may be cacheable. Any worker.
#include "fill/fill_private.h"

#define UNCACHEABLE_S 600u
#define NAME_SHIFT 24u // the time below it is in seconds and wraps after 194 days

static _Atomic uint64_t *slot_of(struct fill_worker *fw, struct hash128 hash)
{
    return &fw->room->uncacheable[hash.lo % FILL_UNCACHEABLE];
}

static uint64_t now_s(struct fill_worker *fw)
{
    return worker_now_us(fw->worker) / 1000000;
}

static uint64_t name_of(struct hash128 hash)
{
    return max_u64(hash.hi >> NAME_SHIFT, 1) << NAME_SHIFT; // 0: an unused slot
}

#define TIME_MASK ((UINT64_C(1) << NAME_SHIFT) - 1)

void fill_uncacheable_note(struct fill_worker *fw, struct hash128 hash)
{
    uint64_t value = name_of(hash) | (now_s(fw) & TIME_MASK);
    atomic_store_explicit(slot_of(fw, hash), value, memory_order_relaxed);
    stats_add(COUNTER_fills_uncacheable, 1);
}

bool fill_uncacheable(struct fill_worker *fw, struct hash128 hash)
{
    uint64_t value = atomic_load_explicit(slot_of(fw, hash), memory_order_relaxed);
    return (value & ~TIME_MASK) == name_of(hash) &&
           ((now_s(fw) - value) & TIME_MASK) < UNCACHEABLE_S;
}

void fill_uncacheable_forget(struct fill_worker *fw, struct hash128 hash)
{
    uint64_t value = atomic_load_explicit(slot_of(fw, hash), memory_order_relaxed);
    if ((value & ~TIME_MASK) == name_of(hash)) {
        atomic_store_explicit(slot_of(fw, hash), 0, memory_order_relaxed);
    }
}
