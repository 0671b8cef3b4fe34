// SPDX-License-Identifier: Apache-2.0
// Proves: segments never take more space than the limit. Dying ones stay readable under a pin, the
// oldest are evicted first, and faults of the disk cost fills and nothing else.
#include "store/segment/segment_log.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

struct sampler {
    const struct box *box;
    atomic_bool stop;
    uint64_t highest;
};

static void *sample(void *ctx)
{
    struct sampler *sampler = ctx;
    while (!atomic_load(&sampler->stop)) {
        sampler->highest = max_u64(sampler->highest, dir_bytes(sampler->box->dir));
    }
    return NULL;
}

static struct object numbered(struct box *box, char *key, size_t key_len, unsigned i, uint64_t size)
{
    (void)snprintf(key, key_len, "key-%u", i);
    return (struct object){key, "\"e\"", size, BLOCK, store_generation_next(box->store)};
}

static bool is_wanted(struct segment_log *log)
{
    pthread_mutex_lock(&log->guarded.lock);
    bool wanted = log->guarded.wish != SEGMENT_WISH_NOTHING;
    pthread_mutex_unlock(&log->guarded.lock);
    return wanted;
}

Test(segment_log, five_times_the_cache_never_takes_more_than_its_size)
{
#ifdef FOREBAY_TSAN // ten times slower; its threads are the same at any size
    static const uint64_t sizes[] = {16 * MIB};
#else
    static const uint64_t sizes[] = {16 * MIB, 24 * MIB, 64 * MIB};
#endif
    for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
        struct box box;
        box_init(&box, DISK_ENGINE_THREADS, sizes[i]);
        cr_assert(box_open(&box));
        struct sampler sampler = {.box = &box};
        pthread_t thread;
        cr_assert(pthread_create(&thread, NULL, sample, &sampler) == 0);
        static const uint64_t lens[] = {900, 20000, 100000, 700000};
        char key[32];
        uint64_t offered = 0, stored = 0;
        unsigned n = 0;
        unsigned last = 0;
        // However slow the disk is, half of the cache is filled in the end.
        for (; offered < 5 * sizes[i] || stored < sizes[i] / 2; n++) {
            struct object object = numbered(&box, key, sizeof(key), n, lens[n % 4]);
            enum err err = box_put(&box, &object);
            cr_assert(err == ERR_OK || box_has_no_segment(err) || err == ERR_IO);
            stored += err == ERR_OK ? lens[n % 4] : 0;
            last = err == ERR_OK ? n : last;
            offered += lens[n % 4];
            if (err == ERR_OK) {
                cr_assert(box_read(&box, n % 2, &object) == object.size);
            }
            struct store_summary summary;
            store_summarize(box.store, &summary);
            cr_assert(summary.used_bytes <= sizes[i]);
        }
        box_close(&box);
        atomic_store(&sampler.stop, true);
        cr_assert(pthread_join(thread, NULL) == 0);
        cr_assert(sampler.highest <= sizes[i], "%llu of %llu", (unsigned long long)sampler.highest,
                  (unsigned long long)sizes[i]);
        cr_assert(dir_bytes(box.dir) <= sizes[i]);
        // The last one is there after a restart.
        cr_assert(box_open(&box));
        struct object object = numbered(&box, key, sizeof(key), last, lens[last % 4]);
        cr_assert(box_read(&box, 0, &object) == object.size);
        box_close(&box);
        box_remove(&box);
    }
}

static bool is_dying(void *ctx)
{
    struct store_place copy = *(struct store_place *)ctx;
    if (store_place_pin(&copy)) {
        segment_unpin(copy.segment);
        return false;
    }
    return true;
}

struct read_pinned {
    struct store_read read;
    struct box *box;
    const struct object *object;
    atomic_int done; // 1 right, -1 wrong
};

static void on_pinned_read(struct store_read *read)
{
    struct read_pinned *call = container_of(read, struct read_pinned, read);
    char expected[BLOCK];
    object_bytes(call->object, 0, expected, sizeof(expected));
    bool right = read->err == ERR_OK && memcmp(expected, read->spans[0].ptr, BLOCK) == 0;
    for (unsigned i = 0; i < ARRAY_LEN(read->chunks); i++) {
        chunk_unref(read->chunks[i]);
    }
    atomic_store(&call->done, right ? 1 : -1);
}

static void do_pinned_read(struct worker *w, void *ctx)
{
    struct read_pinned *call = ctx;
    call->read.done = on_pinned_read;
    store_read_start(w, &call->read);
}

static bool is_read(void *ctx)
{
    return atomic_load(&((struct read_pinned *)ctx)->done) != 0;
}

Test(segment_log, a_pinned_segment_stays_readable_while_it_dies_and_counts_until_its_release)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 32 * MIB);
    cr_assert(box_open(&box));
    char key[32], other_key[32];
    struct object object = numbered(&box, key, sizeof(key), 0, BLOCK);
    struct store_place place;
    cr_assert(box_write(&box, 0, &object, 0, 1, 1, &place) == ERR_OK);
    cr_assert(box_post_put(&box, &object, &place) == ERR_OK);
    store_place_unhold(&place);
    // Fills push it out; it is the oldest.
    unsigned n = 1;
    for (; n < 400 && !is_dying(&place); n++) {
        struct object next = numbered(&box, other_key, sizeof(other_key), n, 500000);
        enum err err = box_put(&box, &next);
        cr_assert(err == ERR_OK || box_has_no_segment(err) || err == ERR_IO);
    }
    cr_assert(is_dying(&place));
    cr_assert(box_read(&box, 0, &object) == 0);
    struct read_pinned call = {.box = &box, .object = &object};
    call.read.store = box.store;
    call.read.place = place;
    call.read.len = BLOCK;
    box_on_worker(&box, 0, do_pinned_read, &call);
    wait_for(is_read(&call));
    cr_assert_eq(atomic_load(&call.done), 1);
    cr_assert(dir_bytes(box.dir) <= 32 * MIB);
    store_place_unpin(&place);
    cr_assert(place.segment == NULL);
    box_close(&box);
    box_remove(&box);
}

Test(segment_log, a_held_segment_is_not_evicted)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 24 * MIB);
    cr_assert(box_open(&box));
    char key[32], other_key[32];
    struct object object = numbered(&box, key, sizeof(key), 0, BLOCK);
    struct store_place place;
    cr_assert(box_write(&box, 0, &object, 0, 1, 1, &place) == ERR_OK);
    for (unsigned n = 1; n < 150; n++) {
        struct object next = numbered(&box, other_key, sizeof(other_key), n, 500000);
        (void)box_put(&box, &next);
    }
    cr_assert(!is_dying(&place));
    cr_assert(box_post_put(&box, &object, &place) == ERR_OK);
    cr_assert(box_read(&box, 0, &object) == BLOCK);
    box_let_go(&place);
    box_close(&box);
    box_remove(&box);
}

// --- marks

Test(segment_log, bad_runs_are_misses_until_the_index_has_forgotten_them)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    char key[32];
    struct object object = numbered(&box, key, sizeof(key), 0, 3 * BLOCK);
    struct store_place place;
    cr_assert(box_write(&box, 0, &object, 0, 3, 3, &place) == ERR_OK);
    cr_assert(box_post_put(&box, &object, &place) == ERR_OK);
    segment_set_bad(place.segment, place.header_offset);
    cr_assert(box_read(&box, 0, &object) == 0);
    cr_assert(box_post_delete_at(&box, key, &place) == ERR_OK);
    cr_assert(!segment_is_bad(place.segment, place.header_offset));
    // More bad runs than there is room for: the segment is dropped.
    for (uint32_t i = 0; i <= SEGMENT_BAD_MAX; i++) {
        segment_set_bad(place.segment, 4096 + 512 * i);
    }
    cr_assert(is_dying(&place));
    box_let_go(&place);
    cr_assert(box_put(&box, &object) == ERR_OK);
    cr_assert(box_read(&box, 0, &object) == object.size);
    box_close(&box);
    box_remove(&box);
}

Test(segment_log, marks_of_units_are_apart)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    char key[32];
    struct object object = numbered(&box, key, sizeof(key), 0, BLOCK);
    struct store_place place;
    cr_assert(box_write(&box, 0, &object, 0, 1, 1, &place) == ERR_OK);
    struct segment *s = place.segment;
    segment_set_verified(s, 70, 3, true);
    cr_assert(segment_is_verified(s, 70, 3) && !segment_is_verified(s, 69, 2));
    cr_assert(!segment_is_verified(s, 72, 2));
    segment_set_verified(s, 71, 1, false);
    cr_assert(!segment_is_verified(s, 70, 3) && segment_is_verified(s, 70, 1));
    cr_assert(!segment_is_verified(s, UINT32_MAX - 1, 3)); // of a header that lies
    segment_set_verified(s, UINT32_MAX - 1, 3, true);
    box_let_go(&place);
    box_close(&box);
    box_remove(&box);
}

// A scan may have found a header that claims a huge unit. Marks of later runs must not wrap around
// to units of other runs.
Test(segment_log, a_segment_without_free_units_takes_no_run)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    char key[32], other_key[32];
    struct object object = numbered(&box, key, sizeof(key), 0, BLOCK);
    struct object other = numbered(&box, other_key, sizeof(other_key), 1, BLOCK);
    struct store_place place, other_place;
    cr_assert(box_write(&box, 0, &object, 0, 1, 1, &place) == ERR_OK);
    place.segment->unit_count = UINT32_MAX;
    enum err err;
    wait_for(!box_has_no_segment(err = box_write(&box, 0, &other, 0, 1, 1, &other_place)));
    cr_assert(err == ERR_OK);
    cr_assert_neq(other_place.segment, place.segment);
    cr_assert_lt(other_place.first_unit, box.store->log.unit_max);
    box_let_go(&place);
    box_let_go(&other_place);
    box_close(&box);
    box_remove(&box);
}

// A segment's marks are in memory as long as it is.
Test(segment_log, the_marks_of_a_segment_are_freed_with_it)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    char key[32];
    struct object object = numbered(&box, key, sizeof(key), 0, BLOCK);
    struct store_place place;
    cr_assert(box_write(&box, 0, &object, 0, 1, 1, &place) == ERR_OK);
    struct segment *s = place.segment;
    cr_assert(atomic_load(&s->bad) == NULL);
    segment_set_bad(s, 8192);
    cr_assert(segment_is_bad(s, 8192) && !segment_is_bad(s, 4096));
    cr_assert(atomic_load(&s->verified) != NULL && atomic_load(&s->bad) != NULL);
    segment_log_abandon(&box.store->log, s);
    box_let_go(&place);
    wait_for(atomic_load(&s->number) == 0);
    cr_assert(atomic_load(&s->verified) == NULL && atomic_load(&s->bad) == NULL);
    cr_assert(atomic_load(&s->pins) == SEGMENT_PIN_UNLINKED);
    unsigned used = 0;
    pthread_mutex_lock(&box.store->log.guarded.lock);
    for (uint32_t i = 0; i <= box.store->log.table_mask; i++) {
        static const struct segment untouched;
        used += memcmp(&box.store->log.table[i], &untouched, sizeof(untouched)) != 0;
    }
    pthread_mutex_unlock(&box.store->log.guarded.lock);
    cr_assert(used < 40, "%u entries of %u", used, box.store->log.table_mask + 1);
    box_close(&box);
    box_remove(&box);
}

static bool has_room(void *ctx)
{
    struct box *box = ctx;
    segment_log_want(&box->store->log, false);
    return atomic_load(&box->store->log.room) > 0;
}

// --- faults

static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};

Test(segment_log, failing_writes_turn_filling_off_for_a_while)
{
    static const char *const scripts[] = {"write:1:eio", "write:1:enospc", "write:1:short"};
    for (unsigned i = 0; i < 2 * ARRAY_LEN(scripts); i++) {
        struct box box;
        box_init(&box, engines[i % 2], 64 * MIB);
        if (box_open(&box)) {
            char key[32];
            struct object object = numbered(&box, key, sizeof(key), i + 1, 5 * BLOCK);
            struct object before = numbered(&box, (char[8]){0}, 8, 0, 1000);
            cr_assert(box_put(&box, &before) == ERR_OK);
            disk_fault_set(scripts[i / 2]);
            enum err err = box_put(&box, &object);
            disk_fault_set("");
            if (strstr(scripts[i / 2], "short") != NULL) {
                cr_assert(err == ERR_OK); // carried on by the disk interface
            } else {
                cr_assert(err == ERR_IO || err == ERR_DISK_FULL);
                cr_assert(box_put(&box, &object) == err); // off
                cr_assert(box_read(&box, 0, &before) == 1000);
                clock_test_advance_us(6000000);
                err = box_put(&box, &object); // tried again
                cr_assert(err == ERR_OK, "%s", error_name(err));
                struct store_summary summary;
                store_summarize(box.store, &summary);
                cr_assert(!summary.degraded);
            }
            cr_assert(box_read(&box, 0, &object) == object.size);
            box_close(&box);
        }
        box_remove(&box);
    }
}

Test(segment_log, failing_reads_are_misses_and_drop_the_unreadable_run)
{
    for (unsigned i = 0; i < 2; i++) {
        struct box box;
        box_init(&box, engines[i], 64 * MIB);
        if (box_open(&box)) {
            char key[32], other_key[32];
            struct object object = numbered(&box, key, sizeof(key), 0, 5 * BLOCK);
            struct object packed = numbered(&box, other_key, sizeof(other_key), 1, 1000);
            cr_assert(box_put(&box, &object) == ERR_OK);
            cr_assert(box_put(&box, &packed) == ERR_OK);
            disk_fault_set("read:1+:eio");
            cr_assert(box_read(&box, 0, &object) == 0);
            cr_assert(box_read(&box, 0, &packed) == 0);
            disk_fault_set("");
            cr_assert(box_read(&box, 0, &object) == 0); // remembered as bad
            cr_assert(box_put(&box, &object) == ERR_OK);
            cr_assert(box_read(&box, 0, &object) == object.size);
            box_close(&box);
        }
        box_remove(&box);
    }
}

Test(segment_log, a_failed_sync_gives_the_segment_up)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    char key[32], other_key[32];
    struct object before = numbered(&box, key, sizeof(key), 0, 1000);
    struct object object = numbered(&box, other_key, sizeof(other_key), 1, 1000);
    cr_assert(box_put(&box, &before) == ERR_OK);
    store_fault_set(STORE_FAULT_SYNC, 1, false, EIO);
    cr_assert(box_put(&box, &object) != ERR_OK);
    cr_assert(box_read(&box, 0, &object) == 0);
    cr_assert(box_read(&box, 0, &before) == 0); // was in the same segment
    clock_test_advance_us(6000000);
    wait_for(has_room(&box));
    cr_assert(box_put(&box, &object) == ERR_OK);
    cr_assert(box_read(&box, 0, &object) == object.size);
    box_close(&box);
    box_remove(&box);
}

Test(segment_log, a_failed_commit_turns_filling_off_and_nothing_else)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    char key[32], other_key[32];
    struct object before = numbered(&box, key, sizeof(key), 0, 1000);
    struct object object = numbered(&box, other_key, sizeof(other_key), 1, 1000);
    cr_assert(box_put(&box, &before) == ERR_OK);
    store_fault_set(STORE_FAULT_COMMIT, 1, false, ENOSPC);
    cr_assert(box_put(&box, &object) == ERR_DISK_FULL);
    cr_assert(box_put(&box, &object) == ERR_DISK_FULL); // off
    cr_assert(box_read(&box, 0, &before) == 1000);
    clock_test_advance_us(6000000);
    cr_assert(box_put(&box, &object) == ERR_OK);
    cr_assert(box_read(&box, 0, &object) == 1000);
    box_close(&box);
    cr_assert(box_open(&box));
    cr_assert(box_read(&box, 0, &before) == 1000 && box_read(&box, 0, &object) == 1000);
    box_close(&box);
    box_remove(&box);
}

Test(segment_log, segments_that_cannot_be_made_cost_fills_until_they_can)
{
    static const enum store_fault faults[] = {STORE_FAULT_CREATE, STORE_FAULT_ALLOCATE};
    for (unsigned i = 0; i < ARRAY_LEN(faults); i++) {
        struct box box;
        box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
        cr_assert(box_open(&box));
        char key[32];
        struct object object = numbered(&box, key, sizeof(key), 0, 1000);
        cr_assert(box_put(&box, &object) == ERR_OK);
        store_fault_set(faults[i], 1, true, ENOSPC);
        unsigned refused = 0;
        char other_key[32];
        for (unsigned n = 1; n < 200 && refused == 0; n++) {
            struct object next = numbered(&box, other_key, sizeof(other_key), n, 900000);
            refused += box_put(&box, &next) != ERR_OK;
        }
        cr_assert(refused > 0);
        cr_assert(box_read(&box, 0, &object) == 1000);
        store_fault_set(faults[i], 0, false, 0);
        clock_test_advance_us(61000000);
        wait_for(has_room(&box));
        object = numbered(&box, key, sizeof(key), 1000, 1000);
        cr_assert(box_put(&box, &object) == ERR_OK);
        cr_assert(box_read(&box, 0, &object) == 1000);
        box_close(&box);
        box_remove(&box);
    }
}

Test(segment_log, a_segment_that_cannot_be_unlinked_still_counts)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 24 * MIB);
    cr_assert(box_open(&box));
    store_fault_set(STORE_FAULT_UNLINK, 1, true, EROFS);
    char key[32];
    unsigned refused = 0;
    for (unsigned n = 0; n < 200 && refused < 5; n++) {
        struct object next = numbered(&box, key, sizeof(key), n, 900000);
        refused += box_put(&box, &next) != ERR_OK;
        cr_assert(dir_bytes(box.dir) <= 24 * MIB);
    }
    cr_assert(refused > 0);
    store_fault_set(STORE_FAULT_UNLINK, 0, false, 0);
    clock_test_advance_us(61000000);
    wait_for(has_room(&box));
    struct object object = numbered(&box, key, sizeof(key), 1000, 1000);
    cr_assert(box_put(&box, &object) == ERR_OK);
    box_close(&box);
    box_remove(&box);
}

Test(segment_log, many_failing_reads_turn_look_ups_off_for_a_while)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    char key[32];
    struct object object = numbered(&box, key, sizeof(key), 0, 1000);
    cr_assert(box_put(&box, &object) == ERR_OK);
    for (unsigned i = 0; i < 100; i++) {
        disk_read_failed(&box.store->disk);
    }
    cr_assert(box_read(&box, 0, &object) == 0);
    clock_test_advance_us(11000000);
    cr_assert(box_read(&box, 0, &object) == 1000);
    box_close(&box);
    box_remove(&box);
}

// The index asks for room with every commit that finds none. A segment that is being evicted
// provides it.
Test(segment_log, room_for_the_index_takes_one_segment_at_a_time)
{
    cr_assert(setenv("FOREBAY_SEGMENT_SIZE", "131072", 1) == 0);
    for (unsigned e = 0; e < ARRAY_LEN(engines); e++) {
        struct box box;
        box_init(&box, engines[e], 16 * MIB);
        box.options.block_size_bytes_max = BLOCK;
        if (!box_open(&box)) {
            box_remove(&box);
            continue;
        }
        struct segment_log *log = &box.store->log;
        char key[32];
        for (unsigned i = 0; i < 60; i++) {
            struct object object = numbered(&box, key, sizeof(key), i, 65000);
            wait_for(box_put(&box, &object) == ERR_OK); // not while no segment is ready
        }
        store_fault_stall(STORE_FAULT_UNLINK, true);
        segment_log_want(log, true);
        store_fault_stall_reached(STORE_FAULT_UNLINK);
        for (unsigned i = 0; i < 20; i++) {
            segment_log_want(log, true);
            wait_for(!is_wanted(log));
        }
        pthread_mutex_lock(&log->guarded.lock);
        unsigned dying = log->guarded.dying_count;
        pthread_mutex_unlock(&log->guarded.lock);
        cr_assert_eq(dying, 1u, "%u", dying);
        store_fault_stall(STORE_FAULT_UNLINK, false);
        box_close(&box);
        box_remove(&box);
    }
}
