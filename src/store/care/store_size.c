// SPDX-License-Identifier: Apache-2.0
// Changes cache.size while the store runs: new limits, or a percentage that follows the file
// system. Only the supply thread applies changes; it then frees what exceeds the new size.
//
// used_bytes never rises above ceiling_bytes, which is normally cache.size. If a smaller size is
// set and the cache still holds more, the ceiling falls with used_bytes. It stays above used_bytes
// by the amount by which the index grows at once, because the index must be written to forget
// evicted runs.
//
// While the process runs, segments keep their size, and the segment table its number of entries.
// That limits how small and how large the cache can become without a restart. A size that is too
// small is refused, and a size that is too large is reduced, both with a message. A percentage is
// brought into that range. The policy measures ages in fractions of the capacity, so it gets the
// new capacity. It continues to rank as many runs as at the start.
//
// A percentage is relative to the free space plus the cache's own size, so the cache's growth does
// not change it. A new value is applied only if it differs by more than the usual changes of free
// space.
#include "store/care/store_size.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/human.h"
#include "base/log.h"
#include "stats/stats.h"
#include "store/retention/retention.h"
#include "store/store_private.h"

#define HEADROOM_PERCENT_MAX 50u
#define SHARE_STEPS 64u // the size must change by more than 1/64 of itself
#define TELL_US 60000000u
static_assert(HEADROOM_PERCENT_MAX < 100, "segments get a part of the cache");

void store_size_init(struct store *store, const struct store_options *options)
{
    struct store_size *size = &store->size;
    check(pthread_mutex_init(&size->guarded.lock, NULL) == 0);
    size->guarded.limits = (struct store_limits){
        .size_bytes = options->size_bytes,
        .size_percent = options->size_percent,
        .headroom_percent = options->headroom_percent,
        .min_free_percent = options->min_free_percent,
        .scrub_bytes_per_s = options->scrub_bytes_per_s,
        .verify_always = options->verify_always,
        .block_size_bytes_max = options->block_size_bytes_max,
    };
    disk_set_min_free(&store->disk, options->min_free_percent);
}

void store_size_done(struct store *store)
{
    check(pthread_mutex_destroy(&store->size.guarded.lock) == 0);
}

struct store_limits store_size_limits(struct store *store)
{
    pthread_mutex_lock(&store->size.guarded.lock);
    struct store_limits limits = store->size.guarded.limits;
    pthread_mutex_unlock(&store->size.guarded.lock);
    return limits;
}

void store_size_set_limits(struct store *store, const struct store_limits *limits)
{
    struct store_size *size = &store->size;
    check(limits->size_bytes != 0 || limits->size_percent != 0);
    pthread_mutex_lock(&size->guarded.lock);
    size->guarded.is_resized |= limits->size_bytes != size->guarded.limits.size_bytes ||
                                limits->size_percent != size->guarded.limits.size_percent;
    size->guarded.limits = *limits;
    size->guarded.is_new = true;
    pthread_mutex_unlock(&size->guarded.lock);
    atomic_store(&store->verify_always, limits->verify_always);
}

static uint64_t percent_used(const struct store_limits *limits)
{
    return 100 - min_u64(limits->headroom_percent, HEADROOM_PERCENT_MAX);
}

static uint64_t segment_limit_of(const struct store_limits *limits, uint64_t capacity_bytes)
{
    return capacity_bytes - capacity_bytes / 100 * (100 - percent_used(limits));
}

enum err store_size_begin(struct store *store, uint64_t ours)
{
    const struct store_limits copy = store_size_limits(store), *limits = &copy;
    uint64_t bytes = limits->size_bytes;
    check(!store->disk.attached);
    if (bytes == 0) {
        struct store_space space;
        enum err err = store_dir_space(&store->disk.dir, &space);
        if (err != ERR_OK) {
            return err;
        }
        check(limits->size_percent > 0 && limits->size_percent <= 100);
        bytes = (space.free_bytes + ours) / 100 * limits->size_percent;
    }
    disk_set_sizes(&store->disk, bytes, bytes, segment_limit_of(limits, bytes));
    return ERR_OK;
}

void store_size_raise(struct store *store, uint64_t segments_bytes)
{
    const struct store_limits copy = store_size_limits(store), *limits = &copy;
    uint64_t least = (segments_bytes * 100 + 99) / percent_used(limits) + 100;
    least = max_u64(STORE_SIZE_MIN, least);
    check(segment_limit_of(limits, least) >= segments_bytes && !store->disk.attached);
    if (limits->size_bytes == 0 && store->disk.capacity_bytes < least) {
        disk_set_sizes(&store->disk, least, least, segment_limit_of(limits, least));
    }
}

uint64_t store_size_headroom(const struct store *store)
{
    // The supply thread changes the values of `limit` and `capacity` one after the other, and this
    // thread reads them without a lock. So `limit` may be above `capacity` for a moment.
    uint64_t limit = atomic_load(&store->disk.segment_limit_bytes);
    uint64_t capacity = atomic_load(&store->disk.capacity_bytes);
    return capacity > limit ? capacity - limit : 0;
}

// --- other limits while the store runs

uint64_t store_size_fixed(const struct store *store)
{
    return store->disk.other_bytes + retention_bytes(&store->retention) +
           (uint64_t)state_pins_bytes(&store->pins);
}

// size_least() returns the smallest cache that works with this cache's segments. size_most()
// returns the largest one for which the segment table has enough entries.
static uint64_t size_least(const struct store *store, const struct store_limits *limits)
{
    uint64_t least = store_size_fixed(store) + SEGMENT_COUNT_MIN * store->log.segment_cost_bytes;
    return max_u64(STORE_SIZE_MIN, (least * 100 + 99) / percent_used(limits));
}

static uint64_t size_most(const struct store *store, const struct store_limits *limits)
{
    uint64_t segments = segment_log_most(&store->log) * store->log.segment_cost_bytes;
    return (store->disk.other_bytes + segments) / percent_used(limits) * 100;
}

enum err store_size_order(struct store *store, const struct store_limits *limits,
                          struct buf *ret_why)
{
    uint64_t least = size_least(store, limits);
    if (limits->size_bytes != 0 && limits->size_bytes < least) {
        buf_printf(ret_why,
                   "cache.size is %llu bytes, at least %llu are needed for three segments of the "
                   "size that this cache has: restart to apply this; the restart empties the cache",
                   (unsigned long long)limits->size_bytes, (unsigned long long)least);
        return ERR_INVALID;
    }
    check(atomic_load(&store->disk.attached));
    // The caller has checked the block sizes, but perhaps before the directory was attached.
    if (limits->block_size_bytes_max > store_block_size_max(store)) {
        buf_printf(ret_why,
                   "a block_size of %llu bytes is more than the %llu that this cache has segments "
                   "for: restart to apply this; the restart empties the cache",
                   (unsigned long long)limits->block_size_bytes_max,
                   (unsigned long long)store_block_size_max(store));
        return ERR_INVALID;
    }
    store_size_set_limits(store, limits);
    segment_log_want(&store->log, false);
    scrub_set_rate(&store->scrub, limits->scrub_bytes_per_s);
    return ERR_OK;
}

uint64_t store_block_size_max(const struct store *store)
{
    return store->disk.attached ? store->log.segment_size_bytes / 2 : UINT64_MAX;
}

static void tell_cut(uint64_t wanted, uint64_t now)
{
    char text[128], wanted_text[HUMAN_BYTES_MAX], now_text[HUMAN_BYTES_MAX];
    (void)snprintf(text, sizeof(text), "cache.size is %s, because it cannot grow to %s in this run",
                   human_bytes((double)now, now_text), human_bytes((double)wanted, wanted_text));
    log_warn(
        "cache_size_cut",
        "text=%s wanted_bytes=%llu now_bytes=%llu remedy=\"restart Forebay to use the whole size\"",
        log_quote(span_from_cstr(text)), (unsigned long long)wanted, (unsigned long long)now);
}

static void size_tell(struct store *store, uint64_t was, uint64_t wanted, bool is_new)
{
    struct store_size *size = &store->size;
    check(store->disk.capacity_bytes > 0);
    uint64_t now_us = clock_monotonic_us();
    if (!is_new && size->told_us != 0 && now_us - size->told_us < TELL_US) {
        return;
    }
    size->told_us = now_us;
    if (was != store->disk.capacity_bytes) {
        log_info("cache_resized", "by=%s was_bytes=%llu now_bytes=%llu used_bytes=%llu",
                 is_new ? "order" : "file_system", (unsigned long long)was,
                 (unsigned long long)store->disk.capacity_bytes,
                 (unsigned long long)atomic_load(&store->disk.used_bytes));
    }
    if (wanted > store->disk.capacity_bytes) {
        tell_cut(wanted, store->disk.capacity_bytes);
    }
}

uint64_t store_size_most_since_set(const struct store *store)
{
    return max_u64(atomic_load(&store->size.most_bytes), store->disk.capacity_bytes);
}

static void size_set(struct store *store, const struct store_limits *limits, uint64_t capacity)
{
    uint64_t was = store->disk.capacity_bytes;
    disk_set_sizes(&store->disk, capacity, max_u64(capacity, atomic_load(&store->disk.used_bytes)),
                   segment_limit_of(limits, capacity));
    stats_add(COUNTER_cache_capacity_bytes, capacity - was);
    segment_log_limit(&store->log);
    retention_resize(&store->retention);
    check(store->disk.segment_limit_bytes <= store->disk.capacity_bytes);
    index_set_pending_max(&store->index, store->disk.segment_limit_bytes / 2);
    if (capacity < was) {
        index_writer_fit(&store->writer);
    }
}

// Returns the size that the limits require now. 0: unknown.
static uint64_t size_wanted(const struct store *store, const struct store_limits *limits)
{
    struct store_space space;
    if (limits->size_bytes != 0) {
        return limits->size_bytes;
    }
    if (store_dir_space(&store->disk.dir, &space) != ERR_OK) {
        return 0;
    }
    return (space.free_bytes + atomic_load(&store->disk.used_bytes)) / 100 * limits->size_percent;
}

uint64_t store_size_cut(const struct store *store, const struct store_limits *limits)
{
    uint64_t most = store->disk.attached ? size_most(store, limits) : UINT64_MAX;
    return store->disk.attached && size_wanted(store, limits) > most ? most : 0;
}

void store_size_follow(struct store *store)
{
    struct store_size *size = &store->size;
    pthread_mutex_lock(&size->guarded.lock);
    struct store_limits limits = size->guarded.limits;
    bool is_new = size->guarded.is_new, is_resized = size->guarded.is_resized;
    size->guarded.is_new = size->guarded.is_resized = false;
    pthread_mutex_unlock(&size->guarded.lock);
    disk_set_min_free(&store->disk, limits.min_free_percent);
    uint64_t was = store->disk.capacity_bytes;
    uint64_t wanted = is_new || limits.size_bytes == 0 ? size_wanted(store, &limits) : was;
    uint64_t capacity = max_u64(size_least(store, &limits), wanted);
    capacity = wanted == 0 ? was : min_u64(size_most(store, &limits), capacity);
    uint64_t least = max_u64(2 * store->log.segment_cost_bytes, was / SHARE_STEPS);
    if (is_new || capacity > was + least || capacity + least < was) {
        uint64_t most = store_size_most_since_set(store);
        atomic_store(&size->most_bytes, is_resized ? 0 : most);
        size_set(store, &limits, capacity);
        size_tell(store, was, wanted, is_new);
    }
    uint64_t used = atomic_load(&store->disk.used_bytes);
    uint64_t ceiling = min_u64(store->disk.ceiling_bytes, used + store->index.step_bytes);
    disk_set_ceiling(&store->disk, max_u64(store->disk.capacity_bytes, ceiling));
}
