// SPDX-License-Identifier: Apache-2.0
// Remembers keys whose last answer was not stored because of what the origin sent, and what that was.
//
// An answer of the wrong shape (ORIGIN_FORBIDS_SHAPE) has more headers than a run can store, no length, or is the
// whole object for a range. A request for it asks the origin twice: once for a fill, which fails, and once to pass
// the answer on. While its key is remembered, requests pass through at once. The others are streamed by fills; what
// is remembered of them is for explain.
//
// The table is shared by all workers. A slot holds a name of 40 bits, the reason and the time. Two keys that share
// a slot forget each other, and two that share a name as well are both believed uncacheable: that costs hits or
// requests, never bytes. A key is forgotten when it is invalidated and after UNCACHEABLE_S, because its next version
// may be cacheable. Any worker.
#include "fill/fill_private.h"

#define UNCACHEABLE_S 600u
#define NAME_SHIFT 24u
#define WHY_SHIFT 20u // the time below it is in seconds and wraps after 12 days
#define NAME_MASK (~((UINT64_C(1) << NAME_SHIFT) - 1))
#define TIME_MASK ((UINT64_C(1) << WHY_SHIFT) - 1)
static_assert(ORIGIN_FORBIDS_COUNT <= 1u << (NAME_SHIFT - WHY_SHIFT), "a reason fits its field");

static _Atomic uint64_t *slot_of(struct fill_worker *fw, struct hash128 hash)
{
    return &fw->room->uncacheable[hash.lo % FILL_UNCACHEABLE];
}

static uint64_t now_s(const struct fill_worker *fw)
{
    return worker_now_us(fw->worker) / 1000000;
}

static uint64_t name_of(struct hash128 hash)
{
    return max_u64(hash.hi >> NAME_SHIFT, 1) << NAME_SHIFT; // 0: an unused slot
}

static void count(enum origin_forbids why)
{
    static const enum counter counters[ORIGIN_FORBIDS_COUNT] = {
        [ORIGIN_FORBIDS_SHAPE] = COUNTER_fills_uncacheable_answer,
        [ORIGIN_FORBIDS_FRAMING] = COUNTER_fills_uncacheable_framing,
        [ORIGIN_FORBIDS_ETAG] = COUNTER_fills_uncacheable_etag,
        [ORIGIN_FORBIDS_VARY] = COUNTER_fills_uncacheable_vary,
        [ORIGIN_FORBIDS_CUSTOMER_KEY] = COUNTER_fills_uncacheable_key,
        [ORIGIN_FORBIDS_COOKIE] = COUNTER_fills_uncacheable_cookie,
        [ORIGIN_FORBIDS_CACHE_CONTROL] = COUNTER_fills_uncacheable_control,
        [ORIGIN_FORBIDS_CODING] = COUNTER_fills_uncacheable_coding};
    stats_add(counters[why], 1);
}

void fill_uncacheable_note(struct fill_worker *fw, struct hash128 hash, enum origin_forbids why)
{
    uint64_t value = name_of(hash) | (uint64_t)why << WHY_SHIFT | (now_s(fw) & TIME_MASK);
    check(why != ORIGIN_FORBIDS_NOTHING);
    atomic_store_explicit(slot_of(fw, hash), value, memory_order_relaxed);
    count(why);
}

enum origin_forbids fill_uncacheable(struct fill_worker *fw, struct hash128 hash)
{
    uint64_t value = atomic_load_explicit(slot_of(fw, hash), memory_order_relaxed);
    bool is_known =
        (value & NAME_MASK) == name_of(hash) && ((now_s(fw) - value) & TIME_MASK) < UNCACHEABLE_S;
    return is_known ? (enum origin_forbids)((value & ~NAME_MASK) >> WHY_SHIFT)
                    : ORIGIN_FORBIDS_NOTHING;
}

void fill_uncacheable_forget(struct fill_worker *fw, struct hash128 hash)
{
    uint64_t value = atomic_load_explicit(slot_of(fw, hash), memory_order_relaxed);
    if ((value & NAME_MASK) == name_of(hash)) {
        atomic_store_explicit(slot_of(fw, hash), 0, memory_order_relaxed);
    }
}
