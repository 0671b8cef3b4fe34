// SPDX-License-Identifier: Apache-2.0
// Proves: runs begin only while the device keeps up, and a run that has begun is finished. Chunks
// that wait for a device stay within their limit. On both disk engines, with a device that is
// stalled until a file is removed.
#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "stats/stats.h"

#define RUN (4 * MIB)
#define RUNS_MAX 96u
#define RUNS_BEYOND_ROOM 12u // more than the memory of a test may have

Test(write_backlog, takes_runs_while_the_device_keeps_up)
{
    chunk_budget_init(1024 * MIB);
    struct write_backlog backlog;
    write_backlog_init(&backlog, 0);
    write_backlog_promise(&backlog, 1024 * MIB); // of a slow origin; the device is idle
    cr_assert(write_backlog_takes(&backlog));
    write_backlog_append(&backlog, WRITE_BACKLOG_MAX / 4);
    cr_assert(write_backlog_takes(&backlog));
    write_backlog_append(&backlog, 1);
    cr_assert_not(write_backlog_takes(&backlog), "it is behind: promises count");
    write_backlog_forget(&backlog, 1024 * MIB - WRITE_BACKLOG_MAX);
    cr_assert(write_backlog_takes(&backlog));
    write_backlog_written(&backlog, WRITE_BACKLOG_MAX / 4);
    write_backlog_push(&backlog, WRITE_BACKLOG_MAX);
    cr_assert_not(write_backlog_takes(&backlog), "what is not on the device yet counts");
    write_backlog_pushed(&backlog, WRITE_BACKLOG_MAX);
    cr_assert(write_backlog_takes(&backlog));
    cr_assert_not(write_backlog_is_over(&backlog));
}

Test(write_backlog, is_small_where_memory_is)
{
    chunk_budget_init(32 * MIB);
    struct write_backlog backlog;
    write_backlog_init(&backlog, 0);
    write_backlog_promise(&backlog, 32 * MIB);
    write_backlog_append(&backlog, 8 * MIB);
    cr_assert(write_backlog_takes(&backlog));
    write_backlog_append(&backlog, 1);
    cr_assert_not(write_backlog_takes(&backlog));
    cr_assert_not(write_backlog_is_over(&backlog));
    write_backlog_append(&backlog, 8 * MIB);
    cr_assert(write_backlog_is_over(&backlog));
}

// A small buffer is named as the reason, not a disk that keeps up.
Test(write_backlog, names_the_limit_that_refuses)
{
    chunk_budget_init(32 * MIB);
    struct write_backlog backlog;
    write_backlog_init(&backlog, 0);
    write_backlog_promise(&backlog, 512 * MIB);
    write_backlog_append(&backlog, 9 * MIB);
    cr_assert_eq(write_backlog_error(&backlog, 1000), ERR_BUFFER_FULL);
    write_backlog_begins(&backlog, 1000);
    cr_assert_eq(write_backlog_error(&backlog, 1000 + WRITE_BACKLOG_SLOW_US), ERR_DISK_BUSY);
    write_backlog_ends(&backlog, 2000, 1000);
    write_backlog_append(&backlog, WRITE_BACKLOG_MAX / 4);
    cr_assert_eq(write_backlog_error(&backlog, 3000), ERR_DISK_BUSY, "much waits");
    chunk_budget_init(256 * MIB);
    write_backlog_written(&backlog, 9 * MIB + WRITE_BACKLOG_MAX / 4);
    write_backlog_stall(&backlog);
    cr_assert_eq(write_backlog_error(&backlog, 3000), ERR_DISK_BUSY, "the buffer is ample");
}

Test(write_backlog, knows_a_slow_device)
{
    struct write_backlog backlog;
    write_backlog_init(&backlog, 0);
    cr_assert(write_backlog_is_quick(&backlog, 1000));
    write_backlog_begins(&backlog, 1000);
    cr_assert(write_backlog_is_quick(&backlog, WRITE_BACKLOG_SLOW_US));
    cr_assert_not(write_backlog_is_quick(&backlog, 1000 + WRITE_BACKLOG_SLOW_US));
    write_backlog_ends(&backlog, 400000, 399000);
    cr_assert_not(write_backlog_is_quick(&backlog, 400001));
    write_backlog_begins(&backlog, 500000);
    write_backlog_ends(&backlog, 501000, 1000);
    cr_assert(write_backlog_is_quick(&backlog, 900000));
}

Test(write_backlog, tries_a_device_again_that_was_slow)
{
    struct write_backlog backlog;
    write_backlog_init(&backlog, 0);
    write_backlog_begins(&backlog, 1000);
    write_backlog_ends(&backlog, 400000, 399000);
    cr_assert_not(write_backlog_is_quick(&backlog, 399999 + WRITE_BACKLOG_DOUBT_US));
    cr_assert(write_backlog_is_quick(&backlog, 400000 + WRITE_BACKLOG_DOUBT_US),
              "nobody else may come to write");
}

Test(write_backlog, waits_for_no_write_where_none_is_under_way)
{
    chunk_budget_init(32 * MIB);
    struct write_backlog backlog;
    write_backlog_init(&backlog, 0);
    write_backlog_begins(&backlog, 1000);
    write_backlog_stall(&backlog);
    cr_assert_not(write_backlog_takes(&backlog));
    write_backlog_ends(&backlog, 2000, 1000);
    cr_assert(write_backlog_takes(&backlog));
    write_backlog_stall(&backlog);
    cr_assert(write_backlog_takes(&backlog), "no write would ever take it back");
}

Test(write_backlog, keeps_to_its_room_where_a_limit_bounds_memory)
{
    chunk_budget_init(32 * MIB);
    struct write_backlog backlog;
    write_backlog_init(&backlog, 16 * MIB);
    write_backlog_push(&backlog, 8 * MIB);
    cr_assert_not(write_backlog_crowds_memory(&backlog));
    write_backlog_push(&backlog, 8 * MIB);
    cr_assert(write_backlog_crowds_memory(&backlog));
    cr_assert(write_backlog_takes(&backlog));
    write_backlog_push(&backlog, 1);
    cr_assert_not(write_backlog_takes(&backlog));
    cr_assert_eq(write_backlog_error(&backlog, 1000), ERR_DISK_BUSY,
                 "a larger buffer would not help");
    write_backlog_push(&backlog, 16 * MIB - 1);
    cr_assert_not(write_backlog_is_over(&backlog), "runs that have begun go on");
    write_backlog_push(&backlog, 2);
    cr_assert(write_backlog_is_over(&backlog));
    write_backlog_pushed(&backlog, 32 * MIB + 2);
    cr_assert(write_backlog_takes(&backlog));
    cr_assert_not(write_backlog_crowds_memory(&backlog));
}

Test(write_backlog, has_room_for_the_largest_block_in_any_memory)
{
    chunk_budget_init(256 * MIB);
    struct write_backlog backlog;
    write_backlog_init(&backlog, MIB);
    write_backlog_promise(&backlog, STORE_BLOCK_SIZE_MAX);
    write_backlog_append(&backlog, STORE_BLOCK_SIZE_MAX);
    cr_assert_not(write_backlog_is_over(&backlog));
}

// --- with a store --------------------------------------------------------------------------------

struct still {
    struct box box;
    char gate[600];
    struct store_object *object;
    unsigned begun;
    atomic_uint done, failed;
    struct store_place places[RUNS_MAX];
};

// Holds all operations of this kind.
static void gate_close(struct still *s, const char *kind)
{
    char script[700];
    (void)snprintf(s->gate, sizeof(s->gate), "%s-gate", s->box.dir);
    (void)snprintf(script, sizeof(script), "%s:file=%s:hold", kind, s->gate);
    int fd = open(s->gate, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    cr_assert(fd >= 0);
    close(fd);
    disk_fault_set(script);
}

static void on_run_done(void *ctx, enum err err, const struct store_place *place)
{
    struct still *s = ctx;
    if (err == ERR_OK) {
        s->places[atomic_load(&s->done)] = *place;
    } else {
        cr_assert(err == ERR_DISK_BUSY || err == ERR_BUFFER_FULL);
        atomic_fetch_add(&s->failed, 1);
    }
    atomic_fetch_add(&s->done, 1);
}

static bool run_start(struct worker *w, struct still *s, unsigned number)
{
    struct store_run *run;
    uint32_t blocks = (uint32_t)(RUN / s->object->block_size_bytes);
    if (store_run_begin(w, s->box.store, s->object, number * blocks, blocks,
                        (struct store_run_use){.group = STORE_PRIORITY_NORMAL}, &run) != ERR_OK) {
        return false;
    }
    for (uint64_t at = 0; at < RUN; at += CHUNK_SIZE) {
        struct chunk *chunk = chunk_new_forced();
        chunk->len = CHUNK_SIZE;
        memset(chunk->data, (int)number, CHUNK_SIZE);
        store_run_append(run, chunk);
        chunk_unref(chunk);
    }
    store_run_finish(run, blocks, on_run_done, s);
    return true;
}

static void start_until_refused(struct worker *w, void *ctx)
{
    struct still *s = ctx;
    while (s->begun < RUNS_MAX && run_start(w, s, s->begun)) {
        s->begun++;
    }
}

static bool is_not_short(void)
{
    return false;
}

static bool still_begin(struct still *s, enum disk_engine engine, uint64_t buffer_bytes,
                        uint64_t written_pages_bytes, const char *held)
{
    *s = (struct still){0};
    box_init(&s->box, engine, 1024 * MIB);
    s->box.options.written_pages_bytes = written_pages_bytes;
    s->box.options.memory_is_short = is_not_short;
    if (!box_open(&s->box)) {
        box_remove(&s->box);
        return false;
    }
    chunk_budget_init(buffer_bytes);
    struct object object = {"big", "\"tag\"", RUNS_MAX * RUN, MIB,
                            store_generation_next(s->box.store)};
    s->object = box_object(&s->box, &object);
    gate_close(s, held);
    return true;
}

static void still_end(struct still *s)
{
    for (unsigned i = 0; i < RUNS_MAX; i++) {
        if (s->places[i].segment != NULL) {
            box_let_go(&s->places[i]);
        }
    }
    store_object_unref(s->object);
    disk_fault_set("");
    box_close(&s->box);
    box_remove(&s->box);
}

Test(write_backlog, a_stalled_disk_bounds_the_backlog)
{
    static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};
    for (unsigned i = 0; i < ARRAY_LEN(engines); i++) {
        struct still s;
        if (!still_begin(&s, engines[i], 1024 * MIB, 0, "write")) {
            continue;
        }
        unsigned long refused = stats_sum(COUNTER_admission_rejected_disk_busy);
        // Room in segments may come later than it is asked for.
        wait_for((box_on_worker(&s.box, 0, start_until_refused, &s),
                  stats_sum(COUNTER_admission_rejected_disk_busy) > refused));
        cr_assert_eq(s.begun, WRITE_BACKLOG_MAX / RUN + 1);
        cr_assert_eq(atomic_load(&s.done), 0);
        cr_assert(unlink(s.gate) == 0);
        wait_for(atomic_load(&s.done) == s.begun);
        cr_assert_eq(atomic_load(&s.failed), 0, "a run that has begun is finished");
        wait_for(stats_sum(COUNTER_write_backlog) == 0);
        unsigned before = s.begun; // skipped runs are taken later
        wait_for((box_on_worker(&s.box, 0, start_until_refused, &s), s.begun > before));
        wait_for(atomic_load(&s.done) == s.begun);
        still_end(&s);
    }
}

Test(write_backlog, cancels_a_run_rather_than_hold_the_readers_memory)
{
    static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};
    for (unsigned i = 0; i < ARRAY_LEN(engines); i++) {
        struct still s;
        if (!still_begin(&s, engines[i], 4 * MIB, 0, "write")) {
            continue;
        }
        wait_for((box_on_worker(&s.box, 0, start_until_refused, &s), s.begun > 0));
        cr_assert_eq(s.begun, 1);
        cr_assert_leq(chunk_budget_used_bytes(), 3 * MIB);
        cr_assert(unlink(s.gate) == 0);
        wait_for(atomic_load(&s.done) == 1);
        cr_assert_eq(atomic_load(&s.failed), 1);
        wait_for(chunk_budget_used_bytes() == 0);
        wait_for(stats_sum(COUNTER_write_backlog) == 0);
        still_end(&s);
    }
}

static void start_one(struct worker *w, void *ctx)
{
    struct still *s = ctx;
    s->begun += run_start(w, s, s->begun);
}

// Writes runs one after the other while the device completes no write-back, until one is refused.
// Returns how many were stored.
static unsigned write_without_write_back(enum disk_engine engine, bool may_be_direct,
                                         uint64_t most_bytes)
{
    struct still s;
    if (!still_begin(&s, engine, 1024 * MIB, 16 * MIB, "push")) {
        return 0;
    }
    if (!may_be_direct) {
        atomic_store(&s.box.store->log.pool.refuses_direct, true);
    }
    unsigned long refused = stats_sum(COUNTER_admission_rejected_disk_busy);
    for (unsigned i = 0; i < RUNS_BEYOND_ROOM && s.begun == i; i++) {
        wait_for((box_on_worker(&s.box, 0, start_one, &s),
                  s.begun > i || stats_sum(COUNTER_admission_rejected_disk_busy) > refused));
        wait_for(atomic_load(&s.done) == s.begun);
        cr_assert_leq(stats_sum(COUNTER_write_backlog), most_bytes);
    }
    cr_assert_eq(atomic_load(&s.failed), 0);
    cr_assert(unlink(s.gate) == 0);
    wait_for(stats_sum(COUNTER_write_backlog) == 0);
    unsigned stored = s.begun;
    still_end(&s);
    return stored;
}

Test(write_backlog, runs_pass_the_page_cache_rather_than_fill_a_limited_memory)
{
    struct box box;
    box_init(&box, DISK_ENGINE_AUTO, 64 * MIB);
    bool has_direct_io = box_has_direct_io(&box);
    box_remove(&box);
    static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};
    for (unsigned i = 0; i < ARRAY_LEN(engines) && has_direct_io; i++) {
        unsigned stored = write_without_write_back(engines[i], true, 12 * MIB);
        cr_assert(stored == RUNS_BEYOND_ROOM || stored == 0);
    }
}

Test(write_backlog, runs_are_refused_rather_than_fill_a_limited_memory_without_direct_io)
{
    static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};
    for (unsigned i = 0; i < ARRAY_LEN(engines); i++) {
        cr_assert_leq(write_without_write_back(engines[i], false, 20 * MIB), 5);
    }
}

Test(write_backlog, write_back_goes_on_after_many_pushes)
{
    static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};
    for (unsigned i = 0; i < ARRAY_LEN(engines); i++) {
        struct still s;
        if (!still_begin(&s, engines[i], 1024 * MIB, 0, "push")) {
            continue;
        }
        cr_assert(unlink(s.gate) == 0);
        for (unsigned j = 0; j <= SEGMENT_PUSH_RANGES; j++) {
            wait_for((box_on_worker(&s.box, 0, start_one, &s), s.begun > j));
            wait_for(atomic_load(&s.done) == s.begun);
            wait_for(stats_sum(COUNTER_write_backlog) == 0);
        }
        gate_close(&s, "push");
        unsigned before = s.begun;
        wait_for((box_on_worker(&s.box, 0, start_one, &s), s.begun > before));
        wait_for(atomic_load(&s.done) == s.begun);
        cr_assert_gt(stats_sum(COUNTER_write_backlog), 0, "a push waits for the device");
        cr_assert(unlink(s.gate) == 0);
        wait_for(stats_sum(COUNTER_write_backlog) == 0);
        still_end(&s);
    }
}
