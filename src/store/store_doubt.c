// SPDX-License-Identifier: Apache-2.0
// Doubts: buckets that may still change without anybody saying so, because a write was sent to the
// origin and its outcome is not known. The origin may apply it later than the last word that was
// heard of it; what was found there before that says nothing about what is there afterwards.
//
// A bucket is in doubt until a time. Whatever of it was confirmed at the origin before that time must
// be confirmed once more before it is used: until then that is every use, and afterwards one for each
// record. So a doubt needs no end, only its time, and is never forgotten. That an origin applies a
// write later than STORE_DOUBT_MS after it was last heard of is taken for impossible.
//
// At most STORE_DOUBTS_MAX buckets have a time of their own, the others share one: coarse, and never
// forgotten. Threads: look-ups on any thread, without a lock; doubts on any thread.
#include "base/clock.h"
#include "stats/stats.h"
#include "store/store_private.h"

static struct hash128 doubt_hash(const struct store *store, struct span origin, struct span bucket)
{
    return store_hash(store, origin, bucket, SPAN("doubt"));
}

static const struct store_doubt_slot *doubt_find(const struct store_doubts *doubts,
                                                 struct hash128 bucket)
{
    unsigned count = atomic_load_explicit(&doubts->count, memory_order_acquire);
    for (unsigned i = 0; i < count; i++) {
        if (hash128_equal(doubts->slots[i].bucket, bucket)) {
            return &doubts->slots[i];
        }
    }
    return &doubts->others;
}

bool store_is_doubted(const struct store *store, struct span origin, struct span bucket,
                      uint64_t age_ms)
{
    const struct store_doubts *doubts = &store->doubts;
    if (!atomic_load(&doubts->any)) {
        return false;
    }
    const struct store_doubt_slot *slot = doubt_find(doubts, doubt_hash(store, origin, bucket));
    uint64_t until_ms = atomic_load(&slot->until_mono_ms), now_ms = clock_monotonic_ms();
    return until_ms > 0 && (now_ms < until_ms || age_ms >= now_ms - until_ms);
}

static struct store_doubt_slot *doubt_slot_locked(struct store_doubts *doubts,
                                                  struct hash128 bucket)
{
    // The cast: this thread may write what look-ups only read.
    struct store_doubt_slot *slot =
        (struct store_doubt_slot *)(uintptr_t)doubt_find(doubts, bucket);
    unsigned count = atomic_load(&doubts->count);
    if (slot != &doubts->others || count == STORE_DOUBTS_MAX) {
        return slot;
    }
    slot = &doubts->slots[count];
    slot->bucket = bucket;
    atomic_store(&slot->until_mono_ms, atomic_load(&doubts->others.until_mono_ms));
    atomic_store_explicit(&doubts->count, count + 1, memory_order_release);
    return slot;
}

void store_doubt(struct store *store, struct span origin, struct span bucket)
{
    struct store_doubts *doubts = &store->doubts;
    struct hash128 hash = doubt_hash(store, origin, bucket);
    pthread_mutex_lock(&doubts->lock);
    struct store_doubt_slot *slot = doubt_slot_locked(doubts, hash);
    atomic_store(&slot->until_mono_ms, clock_monotonic_ms() + STORE_DOUBT_MS);
    atomic_store(&doubts->any, true);
    pthread_mutex_unlock(&doubts->lock);
    stats_add(COUNTER_bucket_doubts, 1);
    stats_add(COUNTER_bucket_doubts_shared, slot == &doubts->others ? 1 : 0);
}

void store_doubts_init(struct store_doubts *doubts)
{
    check(pthread_mutex_init(&doubts->lock, NULL) == 0);
}

void store_doubts_done(struct store_doubts *doubts)
{
    check(pthread_mutex_destroy(&doubts->lock) == 0);
}
