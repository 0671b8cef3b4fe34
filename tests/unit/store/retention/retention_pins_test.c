// SPDX-License-Identifier: Apache-2.0
// Proves: if each full segment has a pinned run, an eviction rewrites the pinned runs of its
// segment, even if the caller allows no survivors. After several failures it drops them.
#include "store/retention/retention_pins.h"

#include <stdio.h>
#include <stdlib.h>

#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

#define LEN 26000u // four to a segment
#define OBJECTS 80u

static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};

static struct object numbered(char key[16], unsigned i)
{
    (void)snprintf(key, 16, "key-%u", i);
    return (struct object){key, "\"e\"", LEN, BLOCK, 100 + i};
}

// Opens a store that has room for more than OBJECTS, and stores the objects. So the supply thread
// evicts nothing while the test does.
static bool box_filled(struct box *box, enum disk_engine engine)
{
    cr_assert(setenv("FOREBAY_SEGMENT_SIZE", "131072", 1) == 0);
    box_init(box, engine, 16 * MIB);
    box->options.block_size_bytes_max = BLOCK;
    box->options.policy = STORE_POLICY_EPOCH;
    if (!box_open(box)) {
        box_remove(box);
        return false;
    }
    for (unsigned i = 0; i < OBJECTS; i++) {
        char key[16];
        struct object object = numbered(key, i);
        enum err err;
        wait_for(!box_has_no_segment(err = box_put(box, &object)));
        cr_assert_eq(err, ERR_OK);
    }
    cr_assert_eq(index_writer_flush(&box->store->writer), ERR_OK);
    wait_for(retention_is_ready(&box->store->retention));
    return true;
}

// Pins the first run of each segment.
static void pin_everywhere(struct box *box)
{
    struct retention *r = &box->store->retention;
    const struct segment_log *log = &box->store->log;
    retention_drain(r);
    pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0; i <= log->table_mask; i++) {
        policy_segment_regroup(r->policy, atomic_load(&log->table[i].number), 0, STORE_GROUP_PINS);
    }
    struct policy_stats stats;
    policy_stats(r->policy, &stats);
    pthread_mutex_unlock(&r->lock);
    cr_assert_geq(stats.pinned_bytes, OBJECTS / 4 * LEN);
}

static bool may_go(void *ctx, uint32_t number)
{
    struct box *box = ctx;
    struct segment *segment = segment_log_entry(&box->store->log, number);
    return segment_is_full(segment) && atomic_load(&segment->holds) == 0;
}

Test(retention_pins, pinned_runs_in_all_segments_outlive_an_eviction_that_allows_no_survivors)
{
    for (unsigned e = 0; e < ARRAY_LEN(engines); e++) {
        struct box box;
        if (!box_filled(&box, engines[e])) {
            continue;
        }
        struct retention *r = &box.store->retention;
        pin_everywhere(&box);
        uint32_t number = 0;
        cr_assert_eq(retention_pick(r, may_go, &box, false, &number), SEGMENT_PICK_REWRITES);
        wait_for(segment_log_lacks(&box.store->log, number));
        wait_for(atomic_load(&r->job) == NULL);
        struct policy_stats stats;
        pthread_mutex_lock(&r->lock);
        policy_stats(r->policy, &stats);
        pthread_mutex_unlock(&r->lock);
        cr_assert_eq(stats.pins_lost, 0u);
        cr_assert_geq(stats.pinned_bytes, OBJECTS / 4 * LEN);
        box_close(&box);
        box_remove(&box);
    }
}

Test(retention_pins, pinned_runs_are_dropped_after_several_jobs_without_success)
{
    struct box box;
    cr_assert(box_filled(&box, DISK_ENGINE_THREADS));
    struct retention *r = &box.store->retention;
    pin_everywhere(&box);
    pthread_mutex_lock(&r->lock);
    r->pins.tries = RETENTION_PINS_TRIES;
    pthread_mutex_unlock(&r->lock);
    uint32_t number = 0;
    cr_assert_eq(retention_pick(r, may_go, &box, false, &number), SEGMENT_PICK_GOES);
    box_close(&box);
    box_remove(&box);
}
