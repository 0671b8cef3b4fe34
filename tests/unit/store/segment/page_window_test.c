// SPDX-License-Identifier: Apache-2.0
// Proves: where memory is short, written pages leave the page cache after a fixed number of later
// bytes. Bytes that are written while memory is short are right. Elsewhere all of them stay.
#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

#include <stdio.h>

#include "stats/stats.h"

#define RUNS 12u
#define RUN_BLOCKS 32u // of 64 KiB: 2 MiB
#define WINDOW (5 * MIB)

static bool is_short(void)
{
    return true;
}

static bool is_not_short(void)
{
    return false;
}

static bool is_resident(const struct store_place *place)
{
    int fd;
    cr_assert(segment_borrow_wait(place->segment, &fd) == ERR_OK);
    bool resident = disk_io_resident(fd, place->payload_offset, place->payload_len);
    segment_return(place->segment);
    return resident;
}

// `is_past_page_cache`: the runs are written past the page cache.
static void write_runs(enum disk_engine engine, bool memory_is_short, bool is_past_page_cache)
{
    struct box box;
    struct store_place places[RUNS];
    char keys[RUNS][8];
    box_init(&box, engine, 256 * MIB);
    if (is_past_page_cache) {
        box_has_little_memory(&box, 0);
    }
    box.options.written_pages_bytes = WINDOW;
    box.options.memory_is_short = memory_is_short ? is_short : is_not_short;
    if (!box_open(&box)) {
        box_remove(&box);
        return;
    }
    bool is_dropped = memory_is_short && !(is_past_page_cache && box_has_direct_io(&box));
    unsigned long before = stats_sum(COUNTER_page_cache_dropped_bytes);
    for (unsigned i = 0; i < RUNS; i++) {
        snprintf(keys[i], sizeof(keys[i]), "k%u", i);
        struct object object = {keys[i], "\"e\"", RUN_BLOCKS * BLOCK, BLOCK, 1 + i};
        wait_for(stats_sum(COUNTER_write_backlog) == 0); // else it may pass the page cache
        enum err err; // the next segment may still be in the making
        wait_for(!box_has_no_segment(
            err = box_write(&box, 0, &object, 0, RUN_BLOCKS, RUN_BLOCKS, &places[i])));
        cr_assert(err == ERR_OK);
        cr_assert(box_post_put(&box, &object, &places[i]) == ERR_OK);
    }
    unsigned long dropped = stats_sum(COUNTER_page_cache_dropped_bytes) - before;
    cr_assert(is_dropped ? dropped >= (RUNS - 3) * RUN_BLOCKS * BLOCK : dropped == 0);
    if (disk_io_residency_mode() != DISK_RESIDENCY_NONE && !is_past_page_cache) {
        cr_assert(is_resident(&places[RUNS - 1]));
        cr_assert(is_resident(&places[0]) == !memory_is_short);
    }
    for (unsigned i = 0; i < RUNS; i++) {
        struct object object = {keys[i], "\"e\"", RUN_BLOCKS * BLOCK, BLOCK, 1 + i};
        box_let_go(&places[i]);
        cr_assert(box_read(&box, 0, &object) == object.size);
    }
    box_close(&box);
    box_remove(&box);
}

Test(page_window, written_pages_leave_memory_that_is_short)
{
    write_runs(DISK_ENGINE_THREADS, true, false);
    write_runs(DISK_ENGINE_URING, true, false);
}

Test(page_window, written_pages_stay_in_memory_that_is_not_short)
{
    write_runs(DISK_ENGINE_THREADS, false, false);
    write_runs(DISK_ENGINE_URING, false, false);
}

// Pages of such runs are there because they were read again soon.
Test(page_window, pages_of_runs_that_were_written_past_the_page_cache_stay)
{
    write_runs(DISK_ENGINE_THREADS, true, true);
    write_runs(DISK_ENGINE_URING, true, true);
}
