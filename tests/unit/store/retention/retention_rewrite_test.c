// SPDX-License-Identifier: Apache-2.0
// Proves: a run that survives its segment is found elsewhere, byte for byte. If it has changed in
// between, the change wins. A run that fails its checksum is left behind.
#include "store/retention/retention_rewrite.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "stats/stats.h"
#include "store/segment/segment_list.h"
#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

#define OBJECTS 60u

static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};
// Packed, in one write, and of several units.
static const uint64_t lens[] = {900, 9000, 20000, 40000, 65000};

static struct object numbered(char key[16], unsigned i)
{
    (void)snprintf(key, 16, "key-%u", i);
    return (struct object){key, "\"e\"", lens[i % ARRAY_LEN(lens)], BLOCK, 100 + i};
}

static bool box_begin(struct box *box, enum disk_engine engine)
{
    cr_assert(setenv("FOREBAY_SEGMENT_SIZE", "1048576", 1) == 0);
    box_init(box, engine, 32 * MIB);
    box->options.block_size_bytes_max = 512 << 10;
    box->options.policy = STORE_POLICY_EPOCH;
    if (!box_open(box)) {
        box_remove(box);
        return false;
    }
    return true;
}

static bool box_filled(struct box *box, enum disk_engine engine)
{
    char key[16];
    if (!box_begin(box, engine)) {
        return false;
    }
    for (unsigned i = 0; i < OBJECTS; i++) {
        struct object object = numbered(key, i);
        enum err err;
        wait_for(!box_has_no_segment(err = box_put(box, &object)));
        cr_assert(err == ERR_OK);
    }
    return true;
}

// --- the segment of key 0, and which of its runs survive

struct runs {
    uint32_t number, count;
    uint32_t starts[OBJECTS + 1];
    unsigned key[OBJECTS + 1];
    const struct box *box;
};

static bool on_run(void *ctx, const struct segment_row *row)
{
    struct runs *runs = ctx;
    char key[16];
    for (unsigned i = 0; i < OBJECTS; i++) {
        struct object object = numbered(key, i);
        if (hash128_equal(box_hash(runs->box, object.key), row->hash)) {
            runs->key[runs->count] = i;
            runs->starts[runs->count++] = row->header_offset;
        }
    }
    return true;
}

// Makes full segments without a cached run: the first is number 1 or 2.
static struct runs runs_of_a_full_segment(struct box *box)
{
    struct segment_log *log = &box->store->log;
    struct runs runs = {.box = box};
    cr_assert(index_writer_flush(&box->store->writer) == ERR_OK);
    for (uint32_t i = 0; i <= log->table_mask && runs.count == 0; i++) {
        struct segment *segment = &log->table[i];
        pthread_mutex_lock(&log->guarded.lock);
        bool full = segment->state == SEGMENT_SEALED;
        pthread_mutex_unlock(&log->guarded.lock);
        uint64_t salt;
        if (full) {
            runs.number = atomic_load(&segment->number);
            cr_assert(segment_pin(segment, runs.number));
            cr_assert(segment_list(segment, on_run, &runs, &salt) == ERR_OK);
            segment_unpin(segment);
        }
    }
    cr_assert(runs.count >= 6, "%u", runs.count);
    return runs;
}

static struct retention_job half_of(const struct runs *runs, uint32_t *starts)
{
    struct retention_job job = {.number = runs->number, .starts = starts};
    for (uint32_t i = 0; i < runs->count; i += 2) {
        starts[job.count++] = runs->starts[i];
    }
    return job;
}

static uint64_t found(struct box *box, unsigned i)
{
    char key[16];
    struct object object = numbered(key, i);
    return box_read(box, 0, &object);
}

static bool is_gone(struct box *box, uint32_t number)
{
    return segment_log_lacks(&box->store->log, number);
}

static void judge_half(struct box *box, const struct runs *runs)
{
    for (uint32_t i = 0; i < runs->count; i++) {
        uint64_t expected = i % 2 == 0 ? lens[runs->key[i] % ARRAY_LEN(lens)] : 0;
        cr_assert_eq(found(box, runs->key[i]), expected, "run %u", i);
    }
}

static void reopen_rebuilt(struct box *box)
{
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s/index/data.mdb", box->dir);
    cr_assert(unlink(path) == 0);
    cr_assert(box_open(box));
    struct store_summary summary;
    wait_for((store_summarize(box->store, &summary), !summary.rebuilding));
    (void)index_writer_flush(&box->store->writer);
}

Test(retention_rewrite, survivors_are_found_elsewhere_and_the_rest_is_not)
{
    for (unsigned e = 0; e < ARRAY_LEN(engines); e++) {
        struct box box;
        if (!box_filled(&box, engines[e])) {
            continue;
        }
        uint32_t starts[OBJECTS];
        struct runs runs = runs_of_a_full_segment(&box);
        struct retention_job job = half_of(&runs, starts);
        uint64_t bytes = stats_sum(COUNTER_retention_rewritten_bytes);
        uint64_t failures = stats_sum(COUNTER_checksum_failures);
        retention_rewrite(&box.store->retention, &job);
        wait_for(is_gone(&box, runs.number));
        cr_assert_gt(stats_sum(COUNTER_retention_rewritten_bytes), bytes);
        judge_half(&box, &runs);
        box_close(&box);
        cr_assert(box_open(&box));
        judge_half(&box, &runs);
        box_close(&box);
        reopen_rebuilt(&box); // from the survivors' own segment
        judge_half(&box, &runs);
        cr_assert_eq(stats_sum(COUNTER_checksum_failures), failures);
        box_close(&box);
        box_remove(&box);
    }
}

Test(retention_rewrite, a_run_of_several_blocks_is_moved_as_one)
{
    struct box box;
    cr_assert(box_begin(&box, DISK_ENGINE_THREADS));
    struct object object = {"long", "\"l\"", 500000, BLOCK, 7};
    cr_assert(box_put_run(&box, &object, 0, 8) == ERR_OK); // with an intent
    struct object other = {"other", "\"o\"", 500000, BLOCK, 8};
    cr_assert(box_put_run(&box, &other, 0, 2) == ERR_OK); // a part of its object
    cr_assert(box_put_run(&box, &other, 2, 3) == ERR_OK);
    struct object next = {"next", "\"n\"", 500000, BLOCK, 9};
    cr_assert(box_put_run(&box, &next, 0, 8) == ERR_OK); // does not fit any more
    struct store_view *view = calloc(1, sizeof(*view));
    cr_assert(view != NULL);
    box_look(&box, &object, view);
    uint32_t starts[3] = {view->places[0].header_offset};
    struct retention_job job = {view->places[0].segment_number, 1, starts, NULL};
    box_look(&box, &other, view);
    for (unsigned i = 0; i < 2; i++) {
        cr_assert_eq(view->places[i].segment_number, job.number);
        starts[job.count++] = view->places[i].header_offset;
    }
    retention_rewrite(&box.store->retention, &job);
    wait_for(is_gone(&box, job.number));
    cr_assert_eq(box_read(&box, 0, &object), 500000u);
    cr_assert_eq(box_read(&box, 0, &other), 5 * (uint64_t)BLOCK);
    free(view);
    box_close(&box);
    box_remove(&box);
}

// --- changes during the rewrite

struct rewriting_thread {
    struct box *box;
    struct retention_job job;
    pthread_t thread;
};

static void *rewrite(void *ctx)
{
    struct rewriting_thread *t = ctx;
    retention_rewrite(&t->box->store->retention, &t->job);
    return NULL;
}

Test(retention_rewrite, a_delete_or_a_newer_version_during_the_rewrite_wins)
{
    for (unsigned e = 0; e < ARRAY_LEN(engines); e++) {
        struct box box;
        if (!box_filled(&box, engines[e])) {
            continue;
        }
        uint32_t starts[OBJECTS];
        struct runs runs = runs_of_a_full_segment(&box);
        struct rewriting_thread t = {.box = &box, .job = half_of(&runs, starts)};
        char deleted[16], renewed[16];
        struct object gone = numbered(deleted, runs.key[0]);
        struct object newer = numbered(renewed, runs.key[2]);
        newer.etag = "\"newer\"";
        newer.generation = 1000;
        store_fault_stall(STORE_FAULT_REWRITE, true);
        cr_assert(pthread_create(&t.thread, NULL, rewrite, &t) == 0);
        store_fault_stall_reached(STORE_FAULT_REWRITE);
        cr_assert(box_post_delete(&box, gone.key, 999) == ERR_OK);
        cr_assert(box_put(&box, &newer) == ERR_OK);
        store_fault_stall(STORE_FAULT_REWRITE, false);
        cr_assert(pthread_join(t.thread, NULL) == 0);
        wait_for(is_gone(&box, runs.number));
        for (unsigned again = 0; again < 2; again++) {
            cr_assert_eq(box_read(&box, 0, &gone), 0u);
            cr_assert_eq(box_read(&box, 0, &newer), newer.size);
            cr_assert_eq(found(&box, runs.key[4]), lens[runs.key[4] % ARRAY_LEN(lens)]);
            box_close(&box);
            cr_assert(box_open(&box));
        }
        box_close(&box);
        box_remove(&box);
    }
}

Test(retention_rewrite, a_flipped_byte_is_not_carried_over)
{
    for (unsigned e = 0; e < ARRAY_LEN(engines); e++) {
        struct box box;
        if (!box_filled(&box, engines[e])) {
            continue;
        }
        uint32_t starts[OBJECTS];
        struct runs runs = runs_of_a_full_segment(&box);
        struct retention_job job = half_of(&runs, starts);
        char path[1024], byte;
        (void)snprintf(path, sizeof(path), "%s/segments/%08u.seg", box.dir, runs.number);
        int fd = open(path, O_RDWR);
        off_t at = (off_t)runs.starts[1] - 600; // in the payload of the first one
        at = runs.starts[1] > runs.starts[0] + 700 ? at : (off_t)runs.starts[0] + 520;
        cr_assert(pread(fd, &byte, 1, at) == 1);
        byte = (char)(byte ^ 1);
        cr_assert(pwrite(fd, &byte, 1, at) == 1);
        (void)close(fd);
        uint64_t failures = stats_sum(COUNTER_checksum_failures);
        retention_rewrite(&box.store->retention, &job);
        wait_for(is_gone(&box, runs.number));
        cr_assert_eq(stats_sum(COUNTER_checksum_failures), failures + 1);
        cr_assert_eq(found(&box, runs.key[0]), 0u);
        cr_assert_eq(found(&box, runs.key[2]), lens[runs.key[2] % ARRAY_LEN(lens)]);
        box_close(&box);
        box_remove(&box);
    }
}

Test(retention_rewrite, a_condemned_run_is_left_behind)
{
    struct box box;
    cr_assert(box_filled(&box, DISK_ENGINE_THREADS));
    uint32_t starts[OBJECTS];
    struct runs runs = runs_of_a_full_segment(&box);
    struct retention_job job = half_of(&runs, starts);
    char key[16];
    struct object object = numbered(key, runs.key[0]);
    box_condemn(&box, object.key, NULL);
    retention_rewrite(&box.store->retention, &job);
    wait_for(is_gone(&box, runs.number));
    box_close(&box);
    reopen_rebuilt(&box);
    cr_assert_eq(box_read(&box, 0, &object), 0u);
    cr_assert_eq(found(&box, runs.key[2]), lens[runs.key[2] % ARRAY_LEN(lens)]);
    box_close(&box);
    box_remove(&box);
}

Test(retention_rewrite, a_disk_that_takes_nothing_costs_survivors_and_no_more)
{
    static const enum store_fault faults[] = {STORE_FAULT_REWRITE, STORE_FAULT_SYNC,
                                              STORE_FAULT_COMMIT};
    for (unsigned i = 0; i < ARRAY_LEN(faults); i++) {
        struct box box;
        cr_assert(box_filled(&box, DISK_ENGINE_THREADS));
        uint32_t starts[OBJECTS];
        struct runs runs = runs_of_a_full_segment(&box);
        struct retention_job job = half_of(&runs, starts);
        store_fault_set(faults[i], 1, true, ENOSPC);
        retention_rewrite(&box.store->retention, &job);
        store_fault_set(faults[i], 0, false, 0);
        wait_for(is_gone(&box, runs.number));
        for (uint32_t k = 0; k < runs.count; k++) {
            uint64_t bytes = found(&box, runs.key[k]); // a wrong one fails in there
            cr_assert(bytes == 0 || bytes == lens[runs.key[k] % ARRAY_LEN(lens)]);
        }
        clock_test_advance_us(61000000);
        struct object object = {"after", "\"a\"", 9000, BLOCK, 5000};
        cr_assert(box_put(&box, &object) == ERR_OK);
        cr_assert_eq(box_read(&box, 0, &object), 9000u);
        box_close(&box);
        box_remove(&box);
    }
}
