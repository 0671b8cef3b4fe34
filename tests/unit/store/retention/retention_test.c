// SPDX-License-Identifier: Apache-2.0
// Proves: the store works with a policy that learns. Requests reach it, lost ones are counted, its
// map counts in cache.size, and a full cache refuses runs and still serves.
#include "store/retention/retention.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "stats/stats.h"
#include "store/policy/policy_private.h"
#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

#define LEN 26000u // four to a segment

static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};

static bool box_begin(struct box *box, enum disk_engine engine)
{
    cr_assert(setenv("FOREBAY_SEGMENT_SIZE", "131072", 1) == 0);
    box_init(box, engine, 16 * MIB);
    box->options.block_size_bytes_max = BLOCK;
    box->options.policy = STORE_POLICY_EPOCH;
    if (!box_open(box)) {
        box_remove(box);
        return false;
    }
    return true;
}

static struct object numbered(char key[16], unsigned i)
{
    (void)snprintf(key, 16, "key-%u", i);
    return (struct object){key, "\"e\"", LEN, BLOCK, 100 + i};
}

struct reading {
    struct box *box;
    struct store_place place;
    unsigned count;
};

static void do_read(struct worker *w, void *ctx)
{
    struct reading *reading = ctx;
    for (unsigned i = 0; i < reading->count; i++) {
        store_note_read(w, reading->box->store, &reading->place, LEN, STORE_PRIORITY_NORMAL);
    }
}

// Returns how many ages of evicted runs were recorded, up to that bound.
static uint64_t ages_noted(uint64_t max_us)
{
    struct stats_histogram_sum sum;
    uint64_t count = 0;
    stats_histogram_sum(HISTOGRAM_eviction_age, &sum);
    for (unsigned i = 0; i <= HISTOGRAM_BUCKETS; i++) {
        bool is_in = i < HISTOGRAM_BUCKETS
                         ? stats_histogram_bound_us(HISTOGRAM_eviction_age, i) <= max_us
                         : max_us == UINT64_MAX;
        count += is_in ? sum.bucket[i] : 0;
    }
    return count;
}

// Recorded clock values convert ticks to time. Ticks from before this process are left out.
Test(retention, the_age_of_evicted_runs_is_recorded)
{
    struct box box;
    cr_assert(box_begin(&box, DISK_ENGINE_THREADS));
    struct retention *r = &box.store->retention;
    struct policy_stats stats;
    // Of tests before this one in the same process, too.
    uint64_t old = ages_noted(UINT64_MAX), hour_old = ages_noted(3600000000);
    uint64_t two_hours_old = ages_noted(7200000000);
    pthread_mutex_lock(&r->lock);
    policy_stats(r->policy, &stats);
    r->history[0] = (struct retention_history){stats.tick - 100, disk_real_us() - 3700000000};
    r->history_count = 1;
    retention_note_age_locked(r, 101);
    cr_assert_eq(ages_noted(UINT64_MAX), old);
    retention_note_age_locked(r, 99);
    cr_assert_eq(ages_noted(3600000000), hour_old);
    cr_assert_eq(ages_noted(7200000000), two_hours_old + 1);
    for (unsigned i = 1; i < RETENTION_HISTORY; i++) {
        r->history[i] = r->history[0];
    }
    r->history_count = RETENTION_HISTORY + 1;
    retention_note_age_locked(r, 101); // as long ago at least
    cr_assert_eq(ages_noted(7200000000), two_hours_old + 2);
    r->history_count = 0;
    pthread_mutex_unlock(&r->lock);
    box_close(&box);
    box_remove(&box);
}

Test(retention, events_that_find_no_room_in_a_ring_are_counted)
{
    struct box box;
    cr_assert(box_begin(&box, DISK_ENGINE_THREADS));
    struct reading reading = {
        .box = &box, .place = {.segment_number = 1, .header_len = 1}, .count = 2000};
    uint64_t lost = stats_sum(COUNTER_retention_events_lost);
    pthread_mutex_lock(&box.store->retention.lock); // nobody drains
    box_on_worker(&box, 0, do_read, &reading);
    pthread_mutex_unlock(&box.store->retention.lock);
    cr_assert_eq(stats_sum(COUNTER_retention_events_lost), lost + 2000 - POLICY_RING_REQUESTS);
    reading.place.header_len = 0; // still being written: that was the access
    box_on_worker(&box, 0, do_read, &reading);
    cr_assert_eq(stats_sum(COUNTER_retention_events_lost), lost + 2000 - POLICY_RING_REQUESTS);
    box_close(&box);
    box_remove(&box);
}

Test(retention, its_map_counts_in_the_size_of_the_cache_and_leaves_no_file)
{
    struct box box;
    cr_assert(box_begin(&box, DISK_ENGINE_THREADS));
    const struct retention *r = &box.store->retention;
    uint64_t region = retention_region_counted(&r->region);
    cr_assert_geq(region, policy_region_least(&(struct policy_options){
                              .segment_max = box.store->log.table_mask + 1, .run_max = 1}));
    // With the minimum of everything else: spare segments, the index, and the estimate for the
    // rest.
    uint64_t others = store_dir_other_bytes(&box.store->disk.dir);
    uint64_t segments =
        atomic_load(&box.store->log.segment_count) * box.store->log.segment_cost_bytes;
    cr_assert_geq(atomic_load(&box.store->disk.used_bytes), others + segments + region);
    uint64_t least = others;
    box_close(&box);
    cr_assert(box_open(&box));
    cr_assert_leq(store_dir_other_bytes(&box.store->disk.dir), least + MIB);
    box_close(&box);
    box_remove(&box);
}

static bool is_held(struct box *box, unsigned i)
{
    char key[16];
    struct object object = numbered(key, i);
    return box_read(box, 0, &object) == LEN;
}

// Each segment that goes has survivors then.
Test(retention, a_full_cache_of_survivors_still_stores_new_runs)
{
    for (unsigned e = 0; e < ARRAY_LEN(engines); e++) {
        struct box box;
        if (!box_begin(&box, engines[e])) {
            continue;
        }
        atomic_store(&box.store->retention.keeps_half, true);
        unsigned stored = 0;
        uint64_t rewritten = stats_sum(COUNTER_retention_rewritten_bytes);
        for (unsigned i = 0; i < 700; i++) {
            char key[16];
            struct object object = numbered(key, i);
            enum err err;
            wait_for(!box_has_no_segment(err = box_put(&box, &object)));
            cr_assert(err == ERR_OK || err == ERR_NOT_ADMITTED || err == ERR_DISK_BUSY ||
                      err == ERR_BUFFER_FULL || err == ERR_INDEX_BUSY);
            stored += err == ERR_OK;
            cr_assert(err != ERR_OK || is_held(&box, i));
        }
        cr_assert_gt(stored, 600u);
        cr_assert_gt(stats_sum(COUNTER_retention_rewritten_bytes), rewritten);
        cr_assert_gt(ages_noted(UINT64_MAX), 0); // the rest of the 700 went
        cr_assert_leq(atomic_load(&box.store->disk.used_bytes), 16 * MIB);
        box_close(&box);
        cr_assert(box_open(&box));
        unsigned held = 0;
        for (unsigned i = 0; i < 700; i++) {
            held += is_held(&box, i); // and what is held is right
        }
        cr_assert_gt(held, 200u);
        box_close(&box);
        box_remove(&box);
    }
}

// A read-ahead job would write all of it for nothing.
Test(retention, runs_stored_on_probation_are_not_kept)
{
    struct box box;
    struct hash128 hash = {1, 2};
    cr_assert(box_begin(&box, DISK_ENGINE_THREADS));
    struct policy_published *published = &box.store->retention.policy->published;
    cr_assert(store_would_keep(box.store, hash, 0, STORE_PRIORITY_NORMAL));
    atomic_store(&published->bar, POLICY_RANK_MAX); // nothing is worth as much
    cr_assert_not(store_would_keep(box.store, hash, 0, STORE_PRIORITY_NORMAL));
    cr_assert_not(store_would_take(box.store, hash, 0, STORE_PRIORITY_NORMAL));
    atomic_store(&published->again_soon, true); // others are about to ask for what is missed
    cr_assert_not(store_would_keep(box.store, hash, 0, STORE_PRIORITY_NORMAL));
    cr_assert(store_would_take(box.store, hash, 0, STORE_PRIORITY_NORMAL));
    box_close(&box);
    box_remove(&box);
}

static void do_note_refused(struct worker *w, void *ctx)
{
    const struct box *box = ctx;
    store_note_refused(w, box->store, (struct hash128){1, 2}, 0, MIB, STORE_PRIORITY_NORMAL);
}

static uint64_t refused_bytes(struct box *box)
{
    struct retention *r = &box->store->retention;
    pthread_mutex_lock(&r->lock);
    uint64_t bytes = r->policy->stats.refused_bytes;
    pthread_mutex_unlock(&r->lock);
    return bytes;
}

// A run that is only streamed, because the policy would refuse it.
Test(retention, policy_learns_of_bytes_that_were_not_offered_to_the_store)
{
    struct box box;
    cr_assert(box_begin(&box, DISK_ENGINE_THREADS));
    cr_assert_eq(store_refuses_all(box.store), REFUSAL_none);
    uint64_t before = refused_bytes(&box);
    box_on_worker(&box, 0, do_note_refused, &box);
    wait_for(refused_bytes(&box) == before + MIB);
    box_close(&box);
    box_remove(&box);
}

// Where no file can be made for it, the policy's table is in memory, and bounded however large the
// cache is.
Test(retention, without_a_file_its_memory_is_bounded)
{
    struct box box;
    char path[640];
    cr_assert(setenv("FOREBAY_SEGMENT_SIZE", "4194304", 1) == 0);
    box_init(&box, DISK_ENGINE_THREADS, 64ull << 30);
    box.options.policy = STORE_POLICY_EPOCH;
    cr_assert(box_open_workers(&box, 1));
    box_close(&box);
    (void)snprintf(path, sizeof(path), "%s/policy.map", box.dir);
    cr_assert(mkdir(path, 0700) == 0); // no file can be made there
    cr_assert(box_open_workers(&box, 1));
    struct retention *r = &box.store->retention;
    cr_assert_eq(retention_region_counted(&r->region), 0);
    cr_assert(r->region.map_bytes <= 48 * MIB, "%zu", r->region.map_bytes);
    struct object object = {"k", "\"e\"", 5000, BLOCK, 1};
    cr_assert_eq(box_put(&box, &object), ERR_OK);
    box_close(&box);
    cr_assert(rmdir(path) == 0);
    box_remove(&box);
    cr_assert(unsetenv("FOREBAY_SEGMENT_SIZE") == 0);
}

// A cache holds more objects of 4 KB than of any other size. Each is ranked, and the map takes room
// with them.
Test(retention, small_objects_are_all_ranked)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 40 * MIB);
    box.options.policy = STORE_POLICY_EPOCH;
    cr_assert(box_open_workers(&box, 1));
    struct retention *r = &box.store->retention;
    uint64_t at_first = retention_region_counted(&r->region);
    uint64_t given = stats_sum(COUNTER_evicted_blocks_capacity);
    unsigned count = 0;
    for (; count < 12000 && stats_sum(COUNTER_evicted_blocks_capacity) == given; count++) {
        char key[16];
        (void)snprintf(key, sizeof(key), "small-%u", count);
        struct object object = {key, "\"e\"", 4096, BLOCK, store_generation_next(box.store)};
        wait_for(box_put(&box, &object) == ERR_OK); // a machine that is behind refuses for a while
    }
    retention_drain(r);
    struct policy_stats stats;
    pthread_mutex_lock(&r->lock);
    policy_stats(r->policy, &stats);
    pthread_mutex_unlock(&r->lock);
    cr_assert(count > 6000, "%u", count);
    cr_assert_eq(stats.unranked_runs, 0u, "%u: %llu", count,
                 (unsigned long long)stats.unranked_runs);
    uint64_t region = retention_region_counted(&r->region);
    cr_assert(region > at_first, "%llu", (unsigned long long)region);
    cr_assert(region <= at_first + 16ull * count, "%llu", (unsigned long long)region);
    cr_assert(dir_bytes(box.dir) <= atomic_load(&box.store->disk.used_bytes));
    box_close(&box);
    cr_assert(box_open_workers(&box, 1)); // there is room for the saved state, too
    box_close(&box);
    box_remove(&box);
}
