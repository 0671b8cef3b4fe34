// SPDX-License-Identifier: Apache-2.0
// The store through its door, on both disk engines.
#include "store/store_fixture.h"
#include "test.h"
#include "thread_limit.h"
#include "waiting.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "stats/stats.h"

static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};

#define EACH_ENGINE(box, size)                                                                     \
    for (unsigned engine_index = 0; engine_index < ARRAY_LEN(engines); engine_index++)             \
        for (bool once = (box_init(box, engines[engine_index], size), true); once;                 \
             once = (box_remove(box), false))

Test(store, written_objects_are_found_and_read_also_after_a_restart)
{
    // Objects of every shape: empty, packed, one write, long, several runs.
    static const uint64_t sizes[] = {0,      1,      500,     10000,       16384,  16385,
                                     32767,  32768,  65536,   65537,       112000, 262144,
                                     262145, 700001, 4 * MIB, 9 * MIB + 17};
    struct box box;
    EACH_ENGINE(&box, 256 * MIB)
    {
        if (!box_open(&box)) {
            continue;
        }
        struct object objects[ARRAY_LEN(sizes)];
        char keys[ARRAY_LEN(sizes)][32];
        for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
            (void)snprintf(keys[i], sizeof(keys[i]), "key %u", i);
            objects[i] = (struct object){keys[i], "\"tag\"", sizes[i], i % 2 == 0 ? BLOCK : 1 * MIB,
                                         store_generation_next(box.store)};
            cr_assert(box_put(&box, &objects[i]) == ERR_OK);
        }
        for (unsigned round = 0; round < 3; round++) {
            for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
                for (unsigned w = 0; w < 2; w++) {
                    cr_assert(box_read(&box, w, &objects[i]) == max_u64(1, sizes[i]),
                              "size %llu round %u", (unsigned long long)sizes[i], round);
                }
            }
            if (round == 0) {
                box_close(&box);
                cr_assert(box_open(&box));
            }
        }
        struct store_summary summary;
        store_summarize(box.store, &summary);
        cr_assert(summary.objects == ARRAY_LEN(sizes));
        cr_assert(stats_sum(COUNTER_cache_objects) == summary.objects);
        cr_assert(stats_sum(COUNTER_cache_blocks) == summary.blocks);
        cr_assert(!summary.degraded && !summary.rebuilding);
        box_close(&box);
    }
}

static struct object small(struct box *box, const char *key, uint64_t size)
{
    return (struct object){key, "\"e\"", size, BLOCK, store_generation_next(box->store)};
}

static struct store_view look(struct box *box, const struct object *object)
{
    static struct store_view view;
    box_look(box, object, &view);
    return view;
}

Test(store, a_newer_generation_replaces_the_older_and_an_older_put_is_refused)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 256 * MIB);
    cr_assert(box_open(&box));
    struct object old = {"k", "\"1\"", 9 * MIB, BLOCK, store_generation_next(box.store)};
    struct object new = {"k", "\"2\"", 5 * MIB, BLOCK, store_generation_next(box.store)};
    cr_assert(box_put(&box, &old) == ERR_OK);
    cr_assert(box_read(&box, 0, &old) == old.size);
    cr_assert(box_put_run(&box, &new, 3, 2) == ERR_OK);
    cr_assert(box_read(&box, 0, &old) == 0);
    cr_assert(box_read(&box, 0, &new) == 2 * BLOCK);
    cr_assert(box_put_run(&box, &old, 0, 1) == ERR_CANCELLED);
    struct store_summary summary;
    store_summarize(box.store, &summary);
    cr_assert(summary.objects == 1 && summary.blocks == 2);
    // The same generation with another ETag is a contradiction.
    struct object odd = {"k", "\"3\"", 5 * MIB, BLOCK, new.generation};
    cr_assert(box_put_run(&box, &odd, 0, 1) == ERR_CANCELLED);
    cr_assert(box_read(&box, 0, &new) == 2 * BLOCK);
    box_close(&box);
    box_remove(&box);
}

// Rule 4 of src/fill/README.md.
Test(store, deletes_remove_the_named_key_and_nothing_else)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 256 * MIB);
    cr_assert(box_open(&box));
    struct object object = small(&box, "k", 10 * BLOCK);
    struct store_place first, second;
    cr_assert(box_write(&box, 0, &object, 0, 2, 2, &first) == ERR_OK);
    cr_assert(box_write(&box, 0, &object, 4, 2, 2, &second) == ERR_OK);
    cr_assert(box_post_put(&box, &object, &first) == ERR_OK);
    cr_assert(box_post_put(&box, &object, &second) == ERR_OK);
    cr_assert(box_read(&box, 0, &object) == 4 * BLOCK);
    struct store_place elsewhere = first;
    elsewhere.header_offset += 512;
    cr_assert(box_post_delete_at(&box, "k", &elsewhere) == ERR_OK);
    cr_assert(box_read(&box, 0, &object) == 4 * BLOCK);
    cr_assert(box_post_delete_at(&box, "k", &first) == ERR_OK);
    cr_assert(box_read(&box, 0, &object) == 2 * BLOCK);
    cr_assert(box_post_delete(&box, "k", object.generation) == ERR_OK); // not below it
    cr_assert(box_read(&box, 0, &object) == 2 * BLOCK);
    cr_assert(box_post_delete_at(&box, "k", &second) == ERR_OK);
    cr_assert(!look(&box, &object).found); // a record lives as long as one of its runs
    cr_assert(box_put(&box, &object) == ERR_OK);
    cr_assert(box_read(&box, 0, &object) == object.size);
    cr_assert(box_post_delete(&box, "k", object.generation + 1) == ERR_OK);
    cr_assert(!look(&box, &object).found);
    struct store_summary summary;
    store_summarize(box.store, &summary);
    cr_assert(summary.objects == 0 && summary.blocks == 0);
    box_let_go(&first);
    box_let_go(&second);
    box_close(&box);
    box_remove(&box);
}

struct window_call {
    struct box *box;
    const struct object *object;
    uint64_t first_byte, end_byte, floor;
    struct store_view view;
    uint64_t first_block, end_block; // of the places found
};

static void do_window(struct worker *w, void *ctx)
{
    struct window_call *call = ctx;
    store_lookup(w, call->box->store, box_hash(call->box, call->object->key), call->first_byte,
                 call->end_byte, call->floor, &call->view);
    call->first_block = call->end_block = 0;
    for (unsigned i = 0; i < call->view.place_count; i++) {
        const struct store_place *place = &call->view.places[i];
        call->first_block = i == 0 ? place->first_block : call->first_block;
        cr_assert(i == 0 || place->first_block > call->view.places[i - 1].first_block);
        call->end_block = place->first_block + place->block_count;
    }
    store_view_done(&call->view);
}

static struct window_call window(struct box *box, const struct object *object, uint64_t first,
                                 uint64_t end, uint64_t floor)
{
    static struct window_call call;
    call.box = box;
    call.object = object;
    call.first_byte = first;
    call.end_byte = end;
    call.floor = floor;
    box_on_worker(box, 0, do_window, &call);
    return call;
}

Test(store, a_look_up_gives_the_runs_of_its_window_and_honours_the_bar)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 256 * MIB);
    cr_assert(box_open(&box));
    struct object object = small(&box, "k", 40 * MIB + 5);
    for (uint64_t i = 0; i < 8; i++) { // runs of 8 blocks with holes of 8
        cr_assert(box_put_run(&box, &object, i * 16, 8) == ERR_OK);
    }
    struct window_call c = window(&box, &object, 0, 16 * MIB, 0);
    cr_assert(c.view.found && c.first_block == 0 && c.end_block == 7 * 16 + 8);
    c = window(&box, &object, 20ull * BLOCK, 35ull * BLOCK,
               0); // a run that begins earlier reaches in
    cr_assert(c.first_block == 16 && c.end_block == 40);
    c = window(&box, &object, 24ull * BLOCK, 32ull * BLOCK, 0); // a hole
    cr_assert(c.view.found && c.end_block == 0);
    c = window(&box, &object, 39 * MIB, 50 * MIB, 0); // beyond all
    cr_assert(c.view.found && c.end_block == 0);
    c = window(&box, &object, 100 * MIB, 100 * MIB, 0);
    cr_assert(c.view.found && c.end_block == 0);
    c = window(&box, &object, 0, 0, object.generation);
    cr_assert(c.view.found);
    c = window(&box, &object, 0, 0, object.generation + 1);
    cr_assert(!c.view.found);
    box_close(&box);
    box_remove(&box);
}

Test(store, a_run_cut_short_holds_its_whole_blocks_and_an_aborted_one_nothing)
{
    struct box box;
    EACH_ENGINE(&box, 256 * MIB)
    {
        if (!box_open(&box)) {
            continue;
        }
        // Runs written at once and announced ones; cut, aborted, and then a whole one after them.
        struct object object = small(&box, "k", 40 * BLOCK + 7);
        struct store_place place;
        cr_assert(box_write(&box, 0, &object, 0, 4, 0, &place) == ERR_CANCELLED);
        cr_assert(box_write(&box, 0, &object, 0, 16, 0, &place) == ERR_CANCELLED);
        cr_assert(box_write(&box, 0, &object, 0, 4, 1, &place) == ERR_OK);
        cr_assert(place.block_count == 1 && place.payload_len == BLOCK);
        cr_assert(box_post_put(&box, &object, &place) == ERR_OK);
        box_let_go(&place);
        cr_assert(box_write(&box, 0, &object, 8, 16, 3, &place) == ERR_OK);
        cr_assert(place.block_count == 3 && place.payload_len == 3 * BLOCK);
        cr_assert(box_post_put(&box, &object, &place) == ERR_OK);
        box_let_go(&place);
        cr_assert(box_put_run(&box, &object, 30, 11) == ERR_OK);
        for (unsigned round = 0; round < 2; round++) {
            cr_assert(box_read(&box, 0, &object) == 14 * BLOCK + 7);
            box_close(&box);
            cr_assert(box_open(&box));
        }
        box_close(&box);
    }
}

Test(store, renewals_count_at_once_and_are_still_known_after_a_restart)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    struct object object = small(&box, "k", 1000);
    cr_assert(box_put(&box, &object) == ERR_OK);
    cr_assert(look(&box, &object).age_ms < 60000);
    clock_test_advance_us(3600ull * 1000000);
    cr_assert(look(&box, &object).age_ms >= 3600000);
    box_renew(&box, "k", object.generation + 1); // another version's
    cr_assert(look(&box, &object).age_ms >= 3600000);
    box_renew(&box, "k", object.generation);
    cr_assert(look(&box, &object).age_ms < 60000);
    box_close(&box);
    cr_assert(box_open(&box));
    struct store_view view = look(&box, &object);
    cr_assert(view.found && view.age_ms < 60000 && !view.rebuilt);
    clock_test_advance_us(1800ull * 1000000);
    cr_assert(look(&box, &object).age_ms >= 1800000);
    box_close(&box);
    box_remove(&box);
}

struct renew_many {
    struct box *box;
    struct store_renewal *renewals;
    unsigned count;
};

static void do_renew_many(struct worker *w, void *ctx)
{
    struct renew_many *call = ctx;
    store_renew(w, call->box->store, call->renewals, call->count, worker_now_us(w));
}

static bool renewals_are_written(void *ctx)
{
    struct box *box = ctx;
    return atomic_load(&box->store->index.renewal_count) == 0;
}

Test(store, renewals_are_bounded_and_drain)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    static struct store_renewal renewals[3 * RENEWALS_MAX];
    for (unsigned i = 0; i < ARRAY_LEN(renewals); i++) {
        renewals[i] = (struct store_renewal){.hash = {i, (uint64_t)i * 7919}, .generation = 1};
    }
    struct renew_many call = {&box, renewals, ARRAY_LEN(renewals)};
    box_on_worker(&box, 0, do_renew_many, &call);
    cr_assert(atomic_load(&box.store->index.renewal_count) <= RENEWALS_MAX);
    wait_for(renewals_are_written(&box));
    box_close(&box);
    box_remove(&box);
}

// Rule 3 of src/fill/README.md.
Test(store, opening_without_a_thread_to_have_fails_and_says_so)
{
    struct box box;
    struct buf why;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    buf_init(&why, 4000);
    thread_limit_reached(true);
    cr_assert_eq(box_try_open(&box, &why), ERR_LIMIT);
    thread_limit_reached(false);
    cr_assert(strstr(buf_cstr(&why), "raise the limit on tasks") != NULL);
    buf_done(&why);
    cr_assert(box_open(&box));
    box_close(&box);
    box_remove(&box);
}

Test(store, generations_only_rise_also_over_restarts)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    uint64_t last = 0;
    for (unsigned i = 0; i < 4; i++) {
        cr_assert(box_open(&box));
        uint64_t next = store_generation_next(box.store);
        cr_assert(next > last);
        last = store_generation_next(box.store);
        cr_assert(last > next);
        box_close(&box);
    }
    box_remove(&box);
}

Test(store, verify_always_never_gives_a_file_range)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    box.options.verify_always = true;
    cr_assert(box_open(&box));
    struct object object = small(&box, "k", 10 * BLOCK);
    cr_assert(box_put(&box, &object) == ERR_OK);
    struct store_place place;
    cr_assert(box_write(&box, 0, &object, 0, 2, 2, &place) == ERR_OK);
    struct file_range range;
    struct worker *w = loop_worker(box.loop, 0);
    cr_assert(!store_range_ready(w, box.store, &place, 0, 100, &range));
    box_let_go(&place);
    cr_assert(box_read(&box, 0, &object) == object.size);
    box_close(&box);
    box_remove(&box);
}

struct range_call {
    struct box *box;
    struct store_place *place;
    struct file_range range;
    bool ready;
};

static void do_range(struct worker *w, void *ctx)
{
    struct range_call *call = ctx;
    call->ready = store_range_ready(w, call->box->store, call->place, 100, BLOCK, &call->range);
}

Test(store, written_bytes_take_the_fast_path_while_they_are_resident)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    struct object object = small(&box, "k", 10 * BLOCK);
    struct store_place place;
    cr_assert(box_write(&box, 0, &object, 0, 10, 10, &place) == ERR_OK);
    struct range_call call = {.box = &box, .place = &place};
    box_on_worker(&box, 0, do_range, &call);
    cr_assert(call.ready == (disk_io_residency_mode() != DISK_RESIDENCY_NONE));
    if (call.ready) {
        char got[BLOCK], expected[BLOCK];
        object_bytes(&object, 100, expected, sizeof(expected));
        int range_fd = call.range.borrow(call.range.release_ctx);
        cr_assert(pread(range_fd, got, sizeof(got), (off_t)call.range.offset) == sizeof(got));
        call.range.give_back(call.range.release_ctx);
        cr_assert(memcmp(got, expected, sizeof(got)) == 0);
        call.range.release(call.range.release_ctx);
        int fd;
        cr_assert(segment_borrow_wait(place.segment, &fd) == ERR_OK);
        cr_assert(fdatasync(fd) == 0);
        cr_assert(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
        segment_return(place.segment);
        box_on_worker(&box, 0, do_range, &call);
        cr_assert(!call.ready);
        cr_assert(
            !segment_is_verified(place.segment, place.first_unit, 1)); // looked at again first
    }
    box_let_go(&place);
    box_close(&box);
    box_remove(&box);
}

// The header of a run may be in the last page of the previous run. A reader that brings this page
// from the device for one of them has not verified the other.
// A reply that begins to read while there is memory may get it when there is none any more.
Test(store, a_read_without_memory_is_shortened_to_one_chunk)
{
    struct box box;
    box_init(&box, DISK_ENGINE_AUTO, 64 * MIB);
    cr_assert(box_open(&box));
    struct object object = {"large", "\"e\"", 5 * BLOCK - 1, BLOCK, 1};
    cr_assert(box_put(&box, &object) == ERR_OK);
    cr_assert(box_read(&box, 0, &object) == object.size);
    cr_assert(box.most_spans > 1);
    chunk_budget_init(0);
    box.most_spans = 0;
    cr_assert(box_read(&box, 0, &object) == object.size);
    cr_assert_eq(box.most_spans, 1);
    box_close(&box);
    box_remove(&box);
}

Test(store, reading_a_run_takes_the_mark_from_a_neighbour_in_the_same_page)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    const uint64_t sizes[] = {1000, 3 * BLOCK}; // packed, and with a payload of its own pages
    for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
        char names[2][16];
        (void)snprintf(names[0], sizeof(names[0]), "first-%u", i);
        (void)snprintf(names[1], sizeof(names[1]), "second-%u", i);
        struct object first = small(&box, names[0], 2 * BLOCK - 3000);
        struct object second = small(&box, names[1], sizes[i]);
        uint32_t blocks = (uint32_t)((second.size + BLOCK - 1) / BLOCK);
        struct store_place before, after;
        cr_assert(box_write(&box, 0, &first, 0, 2, 2, &before) == ERR_OK);
        cr_assert(box_write(&box, 0, &second, 0, blocks, blocks, &after) == ERR_OK);
        cr_assert(after.header_offset / 4096 ==
                  (before.payload_offset + before.payload_len) / 4096);
        cr_assert(segment_is_verified(before.segment, before.first_unit, 2));
        int fd;
        cr_assert(segment_borrow_wait(before.segment, &fd) == ERR_OK);
        cr_assert(fdatasync(fd) == 0);
        cr_assert(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
        segment_return(before.segment);
        cr_assert(box_post_put(&box, &second, &after) == ERR_OK);
        cr_assert(box_read(&box, 1, &second) == second.size);
        cr_assert(segment_is_verified(before.segment, before.first_unit, 1));
        cr_assert(!segment_is_verified(before.segment, before.first_unit + 1, 1));
        box_let_go(&before);
        box_let_go(&after);
    }
    box_close(&box);
    box_remove(&box);
}

// Writing there brings the page from the device as well.
Test(store, writing_a_run_takes_the_mark_from_a_neighbour_in_the_same_page)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    const uint64_t sizes[] = {1000, 3 * BLOCK, 10 * BLOCK}; // the last with an intent
    for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
        char names[2][16];
        (void)snprintf(names[0], sizeof(names[0]), "first-%u", i);
        (void)snprintf(names[1], sizeof(names[1]), "second-%u", i);
        struct object first = small(&box, names[0], 2 * BLOCK - 3000);
        struct object second = small(&box, names[1], sizes[i]);
        uint32_t blocks = (uint32_t)((second.size + BLOCK - 1) / BLOCK);
        struct store_place before, after;
        cr_assert(box_write(&box, 0, &first, 0, 2, 2, &before) == ERR_OK);
        int fd;
        cr_assert(segment_borrow_wait(before.segment, &fd) == ERR_OK);
        cr_assert(fdatasync(fd) == 0);
        cr_assert(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
        segment_return(before.segment);
        cr_assert(box_write(&box, 0, &second, 0, blocks, blocks, &after) == ERR_OK);
        cr_assert(segment_is_verified(before.segment, before.first_unit, 1));
        cr_assert(!segment_is_verified(before.segment, before.first_unit + 1, 1));
        box_let_go(&before);
        box_let_go(&after);
    }
    box_close(&box);
    box_remove(&box);
}

static bool count_run(void *ctx, const struct run_header *header)
{
    (void)header;
    (*(unsigned *)ctx)++;
    return true;
}

// A scan brings whole segments from the device and looks at headers only.
Test(store, a_scan_takes_the_marks_of_all_that_it_reads)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    struct object object = small(&box, "k", 10 * BLOCK);
    struct store_place place;
    cr_assert(box_write(&box, 0, &object, 0, 10, 10, &place) == ERR_OK);
    cr_assert(segment_is_verified(place.segment, place.first_unit, 10));
    int fd;
    cr_assert(segment_borrow_wait(place.segment, &fd) == ERR_OK);
    cr_assert(fdatasync(fd) == 0);
    cr_assert(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
    segment_return(place.segment);
    unsigned runs = 0;
    struct segment_scan_result result;
    cr_assert(segment_log_scan(place.segment, place.salt, count_run, &runs, &result) == ERR_OK);
    cr_assert_eq(runs, 1);
    struct range_call call = {.box = &box, .place = &place};
    box_on_worker(&box, 0, do_range, &call);
    cr_assert(!call.ready, "sent without a look at what the scan brought in");
    cr_assert(box_post_put(&box, &object, &place) == ERR_OK);
    cr_assert(box_read(&box, 0, &object) == object.size);
    cr_assert(segment_is_verified(place.segment, place.first_unit, 10));
    box_let_go(&place);
    box_close(&box);
    box_remove(&box);
}

// Long runs are promised while there are spare segments for them, and at most for an eighth of all
// segments. Nothing is promised where a hole cannot be punched after them.
Test(store, long_runs_are_promised_while_there_is_room)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 256 * MIB);
    cr_assert(box_open_workers(&box, 1));
    struct segment_log *log = &box.store->log;
    wait_for(atomic_load(&log->room) >= 4);
    unsigned room = atomic_load(&log->room), promised = 0;
    while (promised < 64 && store_long_promise(box.store)) {
        promised++;
    }
    cr_assert_eq(promised, min_u64(room - 2, atomic_load(&log->segments_max) / 8));
    store_long_release(box.store);
    cr_assert(store_long_promise(box.store));
    for (; promised > 0; promised--) {
        store_long_release(box.store);
    }
    store_fault_set(STORE_FAULT_TRIM, 1, true, EOPNOTSUPP);
    box.has_long_runs = true;
    for (unsigned i = 0; i < 4; i++) {
        char key[16];
        (void)snprintf(key, sizeof(key), "key-%u", i);
        struct object object = {key, "\"e\"", 3 * MIB, MIB, store_generation_next(box.store)};
        enum err err;
        wait_for(!box_has_no_segment(err = box_put(&box, &object)));
        cr_assert(err == ERR_OK);
    }
    wait_for(atomic_load(&box.store->log.no_holes));
    store_fault_set(STORE_FAULT_TRIM, 0, false, 0);
    cr_assert(!store_long_promise(box.store));
    box_close(&box);
    box_remove(&box);
}

Test(store, the_length_of_a_run_is_limited)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    cr_assert_eq(store_run_bytes_max(box.store), 1 * MIB);
    cr_assert_eq(store_run_bytes_long(box.store), 4 * MIB);
    struct store_place place;
    struct object object = small(&box, "k", 40 * MIB);
    struct object block = {"b", "\"e\"", 16 * MIB, 16 * MIB, store_generation_next(box.store)};
    cr_assert_eq(box_write(&box, 0, &block, 0, 1, 1, &place), ERR_LIMIT); // longer than a segment
    cr_assert_eq(box_write(&box, 0, &object, 0, 65, 65, &place), ERR_LIMIT);
    cr_assert_eq(box_put_run(&box, &object, 0, 16), ERR_OK);
    box_close(&box);
    box_remove(&box);
}
