// SPDX-License-Identifier: Apache-2.0
// Remembers keys whose last answer could not be stored because of what the origin sent, and why.
//
// An answer of the wrong shape (ORIGIN_FORBIDS_SHAPE) has more headers than a run can store, has no
// length, or is the whole object where a range was requested. A request for it asks the origin
// twice: once for a fill, which fails, and once to pass the answer on. So, while a key is
// remembered, some requests pass through at once:
// - ORIGIN_FORBIDS_SHAPE: all requests.
// - ORIGIN_FORBIDS_ETAG: reads of a key without a strong ETag, because a reply cannot be made
//   of two of its runs.
// - ORIGIN_FORBIDS_VERSIONS: reads of a key of which replicas sent several versions, because a
//   reply of several runs might be cut where one GET is not.
//
// For all other reasons fills stream the answer, and only `explain` uses the remembered reason.
//
// A key is forgotten when it is invalidated or when an answer can be stored, unless the reason is
// ORIGIN_FORBIDS_VERSIONS. Any key is forgotten after a time, because the cause may be temporary,
// such as a load balancer. The time is a minute at first. It doubles each time that the key is
// found uncacheable again afterwards, up to 17 hours.
//
// All workers share the table. A slot holds a name of 36 bits, the number of doublings, the reason
// and the time. Two keys that share a slot replace each other. Two keys that also share a name are
// both treated as uncacheable. That costs hits or requests, but never a wrong byte. Any worker may
// call these functions.
#include "fill/fill_private.h"

#define UNCACHEABLE_S 60u // how long a key is remembered; doubled up to DOUBLED_MAX times
#define DOUBLED_MAX 10u
#define NAME_SHIFT 28u
#define DOUBLED_SHIFT 24u
#define WHY_SHIFT 20u // the time in the lower bits is in seconds and wraps after 12 days
#define NAME_MASK (~((UINT64_C(1) << NAME_SHIFT) - 1))
#define TIME_MASK ((UINT64_C(1) << WHY_SHIFT) - 1)
#define FIELD_MASK 15u
static_assert(ORIGIN_FORBIDS_COUNT <= FIELD_MASK + 1, "a reason fits its field");
static_assert(DOUBLED_MAX <= FIELD_MASK, "so does the exponent");

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
    return max_u64(hash.hi >> NAME_SHIFT, 1) << NAME_SHIFT; // 0 is an unused slot
}

static unsigned doubled(uint64_t value)
{
    return (unsigned)(value >> DOUBLED_SHIFT) & FIELD_MASK;
}

static bool is_over(const struct fill_worker *fw, uint64_t value)
{
    return ((now_s(fw) - value) & TIME_MASK) >= UNCACHEABLE_S << doubled(value);
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
        [ORIGIN_FORBIDS_CODING] = COUNTER_fills_uncacheable_coding,
        [ORIGIN_FORBIDS_VERSIONS] = COUNTER_fills_uncacheable_versions};
    stats_add(counters[why], 1);
}

void fill_uncacheable_note(struct fill_worker *fw, struct hash128 hash, enum origin_forbids why)
{
    check(why != ORIGIN_FORBIDS_NOTHING);
    uint64_t before = atomic_load_explicit(slot_of(fw, hash), memory_order_relaxed), times = 0;
    if ((before & NAME_MASK) == name_of(hash)) {
        times = min_u64(doubled(before) + (is_over(fw, before) ? 1 : 0), DOUBLED_MAX);
    }
    uint64_t value = name_of(hash) | times << DOUBLED_SHIFT | (uint64_t)why << WHY_SHIFT |
                     (now_s(fw) & TIME_MASK);
    atomic_store_explicit(slot_of(fw, hash), value, memory_order_relaxed);
    count(why);
}

enum origin_forbids fill_uncacheable(struct fill_worker *fw, struct hash128 hash)
{
    uint64_t value = atomic_load_explicit(slot_of(fw, hash), memory_order_relaxed);
    bool is_known = (value & NAME_MASK) == name_of(hash) && !is_over(fw, value);
    return is_known ? (enum origin_forbids)(value >> WHY_SHIFT & FIELD_MASK)
                    : ORIGIN_FORBIDS_NOTHING;
}

void fill_uncacheable_forget(struct fill_worker *fw, struct hash128 hash)
{
    uint64_t value = atomic_load_explicit(slot_of(fw, hash), memory_order_relaxed);
    bool is_kept = (value >> WHY_SHIFT & FIELD_MASK) == ORIGIN_FORBIDS_VERSIONS;
    if ((value & NAME_MASK) == name_of(hash) && !is_kept) {
        atomic_store_explicit(slot_of(fw, hash), 0, memory_order_relaxed);
    }
}
