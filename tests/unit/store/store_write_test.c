// SPDX-License-Identifier: Apache-2.0
// Proves: the written part of a run can be sent while the rest is still to come. Runs that are
// written past the page cache are right beside others, where direct I/O is refused or fails, and
// after a power cut (power_cut_test.c). On both disk engines.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stats/stats.h"
#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

struct growing {
    struct box *box;
    const struct object *object;
    struct store_run *run;
    struct store_place pages, place;
    atomic_uint written_bytes;
    atomic_bool done;
    uint32_t appended_units, wanted_units;
};

static void on_growing(void *ctx, const struct store_place *pages)
{
    struct growing *it = ctx;
    if (pages == NULL) {
        return;
    }
    if (it->pages.segment == NULL) {
        it->pages = *pages;
        cr_assert(store_place_pin(&it->pages));
    }
    it->pages.payload_len = pages->payload_len;
    atomic_store(&it->written_bytes, pages->payload_len);
}

static void grow(struct growing *it, uint32_t units)
{
    for (uint32_t i = 0; i < units; i++) {
        struct chunk *chunk = chunk_new_forced();
        object_bytes(it->object, (uint64_t)it->appended_units++ * CHUNK_SIZE, chunk->data,
                     CHUNK_SIZE);
        chunk->len = CHUNK_SIZE;
        store_run_append(it->run, chunk);
        chunk_unref(chunk);
    }
}

static void do_grow(struct worker *w, void *ctx)
{
    struct growing *it = ctx;
    struct store_object *object = box_object(it->box, it->object);
    cr_assert(store_run_begin(w, it->box->store, object, 0, 32,
                              (struct store_run_use){.group = STORE_PRIORITY_NORMAL},
                              &it->run) == ERR_OK);
    store_object_unref(object);
    store_run_watch(it->run, on_growing, it);
    grow(it, it->wanted_units);
}

static void do_range_of_pages(struct worker *w, void *ctx)
{
    struct growing *it = ctx;
    struct file_range range;
    uint32_t len = it->pages.payload_len - 100;
    cr_assert(store_range_ready(w, it->box->store, &it->pages, 100, len, &range));
    char got[BLOCK], expected[BLOCK];
    for (uint32_t at = 0; at < len; at += BLOCK) {
        size_t n = (size_t)min_u64(BLOCK, len - at);
        int fd = range.borrow(range.release_ctx);
        cr_assert(pread(fd, got, n, (off_t)(range.offset + at)) == (ssize_t)n);
        range.give_back(range.release_ctx);
        object_bytes(it->object, 100 + at, expected, n);
        cr_assert(memcmp(got, expected, n) == 0);
    }
    range.release(range.release_ctx);
}

static void on_grown(void *ctx, enum err err, const struct store_place *place)
{
    struct growing *it = ctx;
    cr_assert(err == ERR_OK);
    it->place = *place;
    atomic_store(&it->done, true);
}

static void do_cut(struct worker *w, void *ctx)
{
    (void)w;
    struct growing *it = ctx;
    store_run_finish(it->run, 5, on_grown, it);
}

// The written part of a run can be sent before the run is finished. The marks that a cut leaves
// behind do not count for the next run.
Test(segment_write, the_written_part_of_a_run_can_be_sent_before_its_end)
{
    static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};
    for (unsigned i = 0; i < ARRAY_LEN(engines); i++) {
        struct box box;
        box_init(&box, engines[i], 64 * MIB);
        cr_assert(box_open(&box));
        struct object object = {"k", "\"e\"", 32 * BLOCK, BLOCK, 1};
        struct growing it = {.box = &box, .object = &object, .wanted_units = 12};
        box_on_worker(&box, 0, do_grow, &it);
        wait_for(atomic_load(&it.written_bytes) >= 8 * CHUNK_SIZE);
        if (disk_io_residency_mode() != DISK_RESIDENCY_NONE) {
            box_on_worker(&box, 0, do_range_of_pages, &it);
        }
        box_on_worker(&box, 0, do_cut, &it);
        wait_for(atomic_load(&it.done));
        cr_assert(it.place.payload_len == 5 * BLOCK);
        struct object other = {"other", "\"e\"", 2 * BLOCK, BLOCK, 2};
        struct store_place place;
        cr_assert(box_write(&box, 0, &other, 0, 2, 2, &place) == ERR_OK);
        cr_assert(place.segment == it.place.segment);
        cr_assert(place.first_unit >= it.place.first_unit + it.pages.payload_len / CHUNK_SIZE);
        store_place_unpin(&it.pages);
        box_let_go(&place);
        box_let_go(&it.place);
        box_close(&box);
        box_remove(&box);
    }
}

// --- past the page cache -------------------------------------------------------------------------

static void do_write_now(struct worker *w, void *ctx)
{
    (void)w;
    struct growing *it = ctx;
    store_run_write_now(it->run);
}

static void do_count_unwritten(struct worker *w, void *ctx)
{
    (void)w;
    struct growing *it = ctx;
    atomic_store(&it->written_bytes,
                 it->appended_units * CHUNK_SIZE - (unsigned)store_run_unwritten_bytes(it->run));
}

static void do_abort(struct worker *w, void *ctx)
{
    (void)w;
    struct growing *it = ctx;
    store_run_abort(it->run);
}

static unsigned written_bytes(struct growing *it)
{
    box_on_worker(it->box, 0, do_count_unwritten, it);
    return atomic_load(&it->written_bytes);
}

Test(segment_write, bytes_that_wait_for_a_larger_write_are_written_when_they_are_wanted_now)
{
    struct box box;
    box_init(&box, DISK_ENGINE_AUTO, 64 * MIB);
    box_has_little_memory(&box, 0);
    cr_assert(box_open(&box));
    struct object object = {"k", "\"e\"", 32 * BLOCK, BLOCK, 1};
    struct growing it = {.box = &box, .object = &object, .wanted_units = 3};
    box_on_worker(&box, 0, do_grow, &it);
    cr_assert(written_bytes(&it) == 0);
    box_on_worker(&box, 0, do_write_now, &it);
    wait_for(written_bytes(&it) == 3 * CHUNK_SIZE);
    box_on_worker(&box, 0, do_abort, &it);
    store_place_unpin(&it.pages);
    box_close(&box);
    box_remove(&box);
}

// Two runs wait for larger writes. Their bytes would soon count as a backlog of the device. The
// page cache takes them, as it does when the device is slower than the origin.
Test(segment_write, a_long_queue_is_written_through_the_page_cache)
{
    struct box box;
    box_init(&box, DISK_ENGINE_AUTO, 64 * MIB);
    box_has_little_memory(&box, 0);
    cr_assert(box_open(&box));
    chunk_budget_init(8 * MIB); // a quarter is the most that may be queued
    struct object objects[] = {{"a", "\"e\"", 32 * BLOCK, BLOCK, 1},
                               {"b", "\"e\"", 32 * BLOCK, BLOCK, 2}};
    struct growing runs[] = {{.box = &box, .object = &objects[0], .wanted_units = 9},
                             {.box = &box, .object = &objects[1], .wanted_units = 9}};
    box_on_worker(&box, 0, do_grow, &runs[0]);
    cr_assert(atomic_load(&runs[0].written_bytes) == 0);
    box_on_worker(&box, 0, do_grow, &runs[1]);
    wait_for(atomic_load(&runs[1].written_bytes) >= 8 * CHUNK_SIZE);
    box_on_worker(&box, 0, do_abort, &runs[0]);
    box_on_worker(&box, 0, do_abort, &runs[1]);
    store_place_unpin(&runs[1].pages);
    box_close(&box);
    box_remove(&box);
}

// Runs of one write and of several, with ends within a sector, within a page, and at its end.
static const struct object mixed[] = {
    {"a", "\"e\"", MIB + 45001, BLOCK, 1}, {"b", "\"e\"", 1000, BLOCK, 2},
    {"c", "\"e\"", 300 * 1024, BLOCK, 3},  {"d", "\"e\"", 40001, BLOCK, 4},
    {"e", "\"e\"", 262145, BLOCK, 5},      {"f", "\"e\"", 700, BLOCK, 6},
    {"g", "\"e\"", 3 * MIB - 1, BLOCK, 7},
};

// Returns the number of objects that were not in memory when they were read first.
static unsigned read_mixed(struct box *box)
{
    unsigned outside = 0;
    for (unsigned i = 0; i < ARRAY_LEN(mixed); i++) {
        memset(box->reads, 0, sizeof(box->reads));
        cr_assert(box_read(box, 0, &mixed[i]) == mixed[i].size);
        outside += box->reads[STORE_READ_DIRECT] > 0;
    }
    return outside;
}

static void write_mixed(enum disk_engine engine, const char *faults, unsigned outside)
{
    struct box box;
    box_init(&box, engine, 64 * MIB);
    box_has_little_memory(&box, 0);
    if (!box_open(&box)) {
        box_remove(&box);
        return;
    }
    disk_fault_set(faults);
    for (unsigned i = 0; i < ARRAY_LEN(mixed); i++) {
        cr_assert(box_put(&box, &mixed[i]) == ERR_OK);
    }
    disk_fault_set("");
    bool is_known = box_has_direct_io(&box) && disk_io_residency_mode() != DISK_RESIDENCY_NONE;
    unsigned got = read_mixed(&box);
    cr_assert(!is_known || got == outside, "%u", got);
    (void)read_mixed(&box);
    box_close(&box);
    cr_assert(box_open(&box)); // recovery finds the same
    (void)read_mixed(&box);
    box_close(&box);
    box_remove(&box);
}

Test(segment_write, longer_runs_are_written_past_the_page_cache)
{
    write_mixed(DISK_ENGINE_THREADS, "", 4);
    write_mixed(DISK_ENGINE_URING, "", 4);
}

Test(segment_write, a_short_write_past_the_page_cache_goes_on)
{
    write_mixed(DISK_ENGINE_THREADS, "write:1+:short", 4);
    write_mixed(DISK_ENGINE_URING, "write:1+:short", 4);
}

// The first write is an intent, the second one would go past the page cache.
Test(segment_write, a_refused_write_past_the_page_cache_goes_through_it)
{
    write_mixed(DISK_ENGINE_THREADS, "write:2:einval", 0);
    write_mixed(DISK_ENGINE_URING, "write:2:einval", 0);
}

static void refuse_second_write(void)
{
    write_mixed(DISK_ENGINE_AUTO, "write:2:einval", 0);
}

Test(segment_write, a_refused_write_past_the_page_cache_is_no_error_of_the_disk)
{
    unsigned long before = stats_value(COUNTER_disk_errors_write);
    refuse_second_write();
    cr_assert(stats_value(COUNTER_disk_errors_write) == before);
}

// Returns what `act` writes to the log.
static const char *log_of(void (*act)(void))
{
    static char text[4096];
    int fd = memfd_create("log", MFD_CLOEXEC), saved = dup(STDERR_FILENO);
    cr_assert(fd >= 0 && saved >= 0 && dup2(fd, STDERR_FILENO) >= 0);
    act();
    cr_assert(dup2(saved, STDERR_FILENO) >= 0);
    ssize_t len = pread(fd, text, sizeof(text) - 1, 0);
    cr_assert(len >= 0);
    text[len] = '\0';
    (void)close(fd);
    (void)close(saved);
    return text;
}

Test(segment_write, the_log_names_the_call_that_was_refused)
{
    const char *log = log_of(refuse_second_write);
    bool is_refused = strstr(log, "direct_io_unavailable") != NULL;
    cr_assert(!is_refused ||
                  strstr(log, "call=write file=00000001.seg offset=8192 length=1048576 ") != NULL,
              "%s", log);
}

// After a short transfer the rest may begin within a sector. The file system refuses it, although
// it has direct I/O.
Test(segment_write, a_refused_rest_does_not_end_direct_io)
{
    struct box box;
    struct store_place place;
    box_init(&box, DISK_ENGINE_AUTO, 64 * MIB);
    box_has_little_memory(&box, 0);
    cr_assert(box_open(&box));
    cr_assert(box_write(&box, 0, &mixed[0], 0, 17, 17, &place) == ERR_OK);
    struct disk_op rest = {.kind = DISK_WRITE,
                           .is_direct = true,
                           .errno_value = EINVAL,
                           .progress_bytes = 2048,
                           .remaining_bytes = 2048};
    segment_direct_refused(place.segment, &rest);
    cr_assert(!atomic_load(&box.store->log.pool.refuses_direct));
    box_let_go(&place);
    box_close(&box);
    box_remove(&box);
}

Test(segment_write, a_write_past_the_page_cache_that_fails_fails_its_run)
{
    struct box box;
    struct store_place place;
    box_init(&box, DISK_ENGINE_AUTO, 64 * MIB);
    box_has_little_memory(&box, 0);
    cr_assert(box_open(&box));
    disk_fault_set("write:2:eio");
    cr_assert(box_write(&box, 0, &mixed[0], 0, 17, 17, &place) == ERR_IO);
    disk_fault_set("");
    cr_assert(box_read(&box, 0, &mixed[0]) == 0);
    box_close(&box);
    box_remove(&box);
}

// A run that is cut ends with a whole page, after which the next run begins.
Test(segment_write, a_run_that_is_cut_past_the_page_cache_leaves_its_neighbour_alone)
{
    struct box box;
    struct store_place cut, next;
    struct object longer = {"longer", "\"e\"", 2 * MIB, BLOCK, 1};
    box_init(&box, DISK_ENGINE_AUTO, 64 * MIB);
    box_has_little_memory(&box, 0);
    cr_assert(box_open(&box));
    cr_assert(box_write(&box, 0, &longer, 0, 32, 5, &cut) == ERR_OK);
    cr_assert(box_write(&box, 0, &mixed[2], 0, 5, 5, &next) == ERR_OK);
    cr_assert(cut.segment == next.segment && next.payload_offset > cut.payload_offset);
    cr_assert(box_post_put(&box, &longer, &cut) == ERR_OK);
    cr_assert(box_post_put(&box, &mixed[2], &next) == ERR_OK);
    cr_assert(box_read(&box, 0, &longer) == 5 * BLOCK);
    cr_assert(box_read(&box, 0, &mixed[2]) == mixed[2].size);
    box_let_go(&cut);
    box_let_go(&next);
    box_close(&box);
    box_remove(&box);
}

// The second MiB finds a long queue, the first and the third do not.
static void write_both_ways(enum disk_engine engine)
{
    struct box box;
    box_init(&box, engine, 64 * MIB);
    box_has_little_memory(&box, 0);
    if (!box_open(&box)) {
        box_remove(&box);
        return;
    }
    chunk_budget_init(12 * MIB);
    cr_assert(box_put(&box, &mixed[6]) == ERR_OK);
    cr_assert(box_read(&box, 0, &mixed[6]) == mixed[6].size);
    cr_assert(box_read(&box, 0, &mixed[6]) == mixed[6].size);
    box_close(&box);
    cr_assert(box_open(&box));
    cr_assert(box_read(&box, 0, &mixed[6]) == mixed[6].size);
    box_close(&box);
    box_remove(&box);
}

Test(segment_write, a_run_that_is_written_both_ways_is_right)
{
    write_both_ways(DISK_ENGINE_THREADS);
    write_both_ways(DISK_ENGINE_URING);
}

static unsigned pick(unsigned below)
{
    static unsigned state = 7;
    state = state * 1103515245 + 12345;
    return (state >> 8) % below;
}

static uint64_t pick_size(void)
{
    const uint64_t sizes[] = {pick(40000), 262144 + pick(9000), pick(3 * MIB), pick(3 * MIB)};
    return sizes[pick(ARRAY_LEN(sizes))];
}

// Three faults of writes, each of which strikes at every second to tenth write.
static void pick_faults(void)
{
    static const char *const kinds[] = {"short", "slow:2", "einval", "eio"};
    const char *picked[3];
    char script[128];
    for (unsigned i = 0; i < ARRAY_LEN(picked); i++) {
        picked[i] = kinds[pick(ARRAY_LEN(kinds))];
    }
    (void)snprintf(script, sizeof(script), "write:/%u:%s,write:/%u:%s,write:/%u:%s", 2 + pick(9),
                   picked[0], 2 + pick(9), picked[1], 2 + pick(9), picked[2]);
    disk_fault_set(script);
}

// Stores objects of random lengths, of which the faults let some through, and judges all bytes,
// also after the next start.
static void mix(enum disk_engine engine)
{
    struct box box;
    struct object objects[12];
    char keys[ARRAY_LEN(objects)][8];
    box_init(&box, engine, 64 * MIB);
    box_has_little_memory(&box, pick(2) * 16 * MIB);
    if (!box_open(&box)) {
        box_remove(&box);
        return;
    }
    chunk_budget_init((8 + pick(9)) * MIB);
    pick_faults();
    for (unsigned i = 0; i < ARRAY_LEN(objects); i++) {
        (void)snprintf(keys[i], sizeof(keys[i]), "%u", i);
        objects[i] = (struct object){keys[i], "\"e\"", pick_size(), BLOCK, 1 + i};
        (void)box_put(&box, &objects[i]);
    }
    disk_fault_set("");
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < ARRAY_LEN(objects); i++) {
            (void)box_read(&box, 0, &objects[i]);
        }
        if (round == 1) {
            box_close(&box);
            cr_assert(box_open(&box));
        }
    }
    box_close(&box);
    box_remove(&box);
}

Test(segment_write, bytes_that_are_stored_despite_faults_are_right)
{
    for (unsigned i = 0; i < 10; i++) {
        mix(DISK_ENGINE_THREADS);
        mix(DISK_ENGINE_URING);
    }
}
