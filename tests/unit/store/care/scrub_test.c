// SPDX-License-Identifier: Apache-2.0
// Proves: the scrub thread finds every run that the device has changed, and nothing else. A run
// that it found is a miss, and is cached again after the next fetch.
#include "store/care/scrub.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "stats/stats.h"
#include "store/store_fixture.h"
#include "test.h"
#include "thread_limit.h"
#include "waiting.h"

#define SEGMENT (1u << 20)
#define OBJECTS 60u
#define PAGE 4096u
#define GIB (1ull << 30)
#define UNREADABLE_MAX 16u // as in scrub.c

static const uint64_t lens[] = {100, 900, 9000, 40000, 65000, 20000, 200000};

static struct object numbered(char key[16], unsigned i, uint64_t generation)
{
    (void)snprintf(key, 16, "key-%u", i);
    return (struct object){key, "\"e\"", lens[i % ARRAY_LEN(lens)], BLOCK, generation};
}

static void put(struct box *box, unsigned i)
{
    char key[16];
    struct object object = numbered(key, i, store_generation_next(box->store));
    enum err err;
    wait_for(!box_has_no_segment(err = box_put(box, &object)));
    cr_assert(err == ERR_OK);
}

// Returns false if this file system does not read past the page cache.
static bool scrub(struct box *box, uint64_t rounds)
{
    static uint64_t rate = GIB;
    uint64_t before = stats_sum(COUNTER_scrub_rounds);
    for (uint64_t i = 1; i <= rounds; i++) {
        scrub_set_rate(&box->store->scrub, ++rate); // another one: at once
        wait_for(stats_sum(COUNTER_scrub_rounds) >= before + i ||
                 atomic_load(&box->store->scrub.is_impossible));
    }
    return !atomic_load(&box->store->scrub.is_impossible);
}

// False, with a loud line: not here.
static bool box_filled(struct box *box, enum disk_engine engine)
{
    cr_assert(setenv("FOREBAY_SEGMENT_SIZE", "1048576", 1) == 0);
    box_init(box, engine, 32 * MIB);
    box->options.block_size_bytes_max = 4 * BLOCK;
    if (!box_open_workers(box, 1)) {
        box_remove(box);
        return false;
    }
    (void)disk_io_probe_residency(box->dir);
    for (unsigned i = 0; i < OBJECTS; i++) {
        put(box, i);
    }
    cr_assert(index_writer_flush(&box->store->writer) == ERR_OK); // nothing that is full is held
    if (!scrub(box, 1)) {
        fprintf(stderr, "no direct I/O here: not run\n");
        box_close(box);
        box_remove(box);
        return false;
    }
    return true;
}

static bool is_right(struct box *box, unsigned i)
{
    char key[16];
    struct object object = numbered(key, i, 1);
    return box_read(box, 0, &object) == max_u64(1, object.size);
}

// Returns the place of an object's first run. False: it is not found, or its segment is not sealed.
static bool place_of(struct box *box, unsigned i, struct store_place *ret_place)
{
    char key[16];
    static struct store_view view;
    struct object object = numbered(key, i, 1);
    box_look(box, &object, &view); // its places are not pinned any more
    if (!view.found || view.etag_hash == 0) {
        return false;
    }
    *ret_place = view.places[0];
    struct segment *segment = segment_log_entry(&box->store->log, ret_place->segment_number);
    pthread_mutex_lock(&box->store->log.guarded.lock);
    bool full = segment->state == SEGMENT_SEALED;
    pthread_mutex_unlock(&box->store->log.guarded.lock);
    return full;
}

// Changes a byte of the device, below the page cache. Returns false if this file system has no way
// to do that.
static bool flip(struct box *box, const struct store_place *place, uint32_t at)
{
    char path[600];
    (void)snprintf(path, sizeof(path), "%s/segments/%08u.seg", box->store->disk.dir.path,
                   place->segment_number);
    int fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    char *page = aligned_alloc(PAGE, PAGE);
    off_t offset = (off_t)(at & ~(PAGE - 1));
    cr_assert(fsync(fd) == 0); // or the page cache writes its copy later
    cr_assert(pread(fd, page, PAGE, offset) == PAGE);
    page[at % PAGE] ^= 4;
    cr_assert(pwrite(fd, page, PAGE, offset) == PAGE);
    free(page);
    (void)close(fd);
    return true;
}

static uint64_t found(void)
{
    return stats_sum(COUNTER_checksum_failures_scrub);
}

static void finds_all(enum disk_engine engine)
{
    struct box box;
    bool is_flipped[OBJECTS] = {false};
    unsigned flips = 0;
    uint64_t before = found();
    if (!box_filled(&box, engine)) {
        return;
    }
    cr_assert(scrub(&box, 1));
    cr_assert(found() == before, "nothing has changed yet");
    cr_assert(stats_sum(COUNTER_scrub_bytes) > SEGMENT);
    for (unsigned i = 0; i < OBJECTS; i += 4) { // by turns in headers and in payloads
        struct store_place place;
        if (!place_of(&box, i, &place)) {
            continue;
        }
        bool in_payload = place.payload_len > 0 && i % 8 == 0;
        uint32_t at = in_payload ? place.payload_offset + place.payload_len - 1
                                 : place.header_offset + place.header_len - 1;
        if (!flip(&box, &place, at)) {
            fprintf(stderr, "no direct I/O here: not run\n");
            box_close(&box);
            box_remove(&box);
            return;
        }
        is_flipped[i] = true;
        flips++;
    }
    cr_assert(flips > 5);
    uint64_t failures = stats_sum(COUNTER_checksum_failures);
    cr_assert(scrub(&box, 1));
    cr_assert(found() - before == flips, "%llu of %u", (unsigned long long)(found() - before),
              flips);
    for (unsigned i = 0; i < OBJECTS; i++) {
        struct store_place place;
        cr_assert(is_flipped[i] || !place_of(&box, i, &place) || is_right(&box, i), "%u", i);
        cr_assert(!is_flipped[i] || !is_right(&box, i), "%u is still held", i);
    }
    cr_assert(stats_sum(COUNTER_checksum_failures) == failures, "no reader met one");
    cr_assert(index_writer_flush(&box.store->writer) == ERR_OK);
    for (unsigned i = 0; i < OBJECTS; i++) {
        if (is_flipped[i]) {
            put(&box, i);
        }
    }
    cr_assert(scrub(&box, 2));
    cr_assert(found() - before == flips, "found once");
    for (unsigned i = 0; i < OBJECTS; i++) {
        cr_assert(!is_flipped[i] || is_right(&box, i), "%u", i);
    }
    box_close(&box);
    box_remove(&box);
}

Test(scrub, finds_runs_that_the_device_has_changed)
{
    finds_all(DISK_ENGINE_THREADS);
    finds_all(DISK_ENGINE_URING);
}

// Counts the longer runs that are in memory, and those that are marked as verified.
static void count_pages(struct box *box, bool drops, unsigned *ret_resident, unsigned *ret_marked)
{
    *ret_resident = *ret_marked = 0;
    for (unsigned i = 0; i < OBJECTS; i++) {
        struct store_place place;
        if (!place_of(box, i, &place) || place.payload_len < RUN_PACKED_MAX) {
            continue;
        }
        struct segment *segment = segment_log_entry(&box->store->log, place.segment_number);
        uint32_t units = run_unit_count(place.payload_len);
        int fd;
        cr_assert(segment_pin(segment, place.segment_number));
        cr_assert(segment_borrow_wait(segment, &fd) == ERR_OK);
        if (drops) {
            cr_assert(fsync(fd) == 0);
            (void)posix_fadvise(fd, place.payload_offset, place.payload_len, POSIX_FADV_DONTNEED);
        }
        *ret_resident += disk_io_resident(fd, place.payload_offset, place.payload_len);
        *ret_marked += segment_is_verified(segment, place.first_unit, units);
        segment_return(segment);
        segment_unpin(segment);
    }
}

// The scrub brings no page into memory, and sets no mark for the bytes that it has read: the next
// reader verifies them.
Test(scrub, leaves_the_page_cache_alone)
{
    struct box box;
    unsigned resident, marked, resident_after, marked_after;
    if (!box_filled(&box, DISK_ENGINE_THREADS)) {
        return;
    }
    for (unsigned i = 0; i < OBJECTS; i++) {
        cr_assert(is_right(&box, i), "%u", i); // all that is sent is marked
    }
    count_pages(&box, true, &resident, &marked);
    cr_assert(marked > 0);
    cr_assert(scrub(&box, 1));
    count_pages(&box, false, &resident_after, &marked_after);
    cr_assert(resident_after <= resident, "%u, %u before", resident_after, resident);
    cr_assert(marked_after == 0, "%u, %u before", marked_after, marked);
    for (unsigned i = 0; i < OBJECTS; i++) {
        cr_assert(is_right(&box, i), "%u", i);
    }
    box_close(&box);
    box_remove(&box);
}

// A device that cannot read anything costs a few runs, not the whole cache.
Test(scrub, unreadable_runs_are_dropped_while_others_are_readable)
{
    struct box box;
    if (!box_filled(&box, DISK_ENGINE_THREADS)) {
        return;
    }
    uint64_t before = stats_sum(COUNTER_scrub_unreadable);
    store_fault_set(STORE_FAULT_SCRUB, 1, true, ENOMEM);
    cr_assert(scrub(&box, 1));
    cr_assert(stats_sum(COUNTER_scrub_unreadable) == before, "that says nothing of the device");
    store_fault_set(STORE_FAULT_SCRUB, 1, true, EIO);
    scrub_set_rate(&box.store->scrub, 2 * GIB);
    wait_for(stats_sum(COUNTER_scrub_unreadable) == before + UNREADABLE_MAX);
    scrub_set_rate(&box.store->scrub, 0);
    store_fault_set(STORE_FAULT_SCRUB, 0, false, 0);
    cr_assert(scrub(&box, 1));
    cr_assert(stats_sum(COUNTER_scrub_unreadable) == before + UNREADABLE_MAX);
    cr_assert(disk_is_reading(&box.store->disk), "look-ups go on");
    for (unsigned i = 0; i < OBJECTS; i++) {
        put(&box, i);
        cr_assert(is_right(&box, i));
    }
    box_close(&box);
    box_remove(&box);
}

Test(scrub, a_round_an_hour_and_none_without_a_rate)
{
    struct box box;
    if (!box_filled(&box, DISK_ENGINE_THREADS)) {
        return;
    }
    uint64_t rounds = stats_sum(COUNTER_scrub_rounds);
    cr_assert(scrub(&box, 1));
    clock_test_advance_us(3601000000);
    wait_for(stats_sum(COUNTER_scrub_rounds) == rounds + 2);
    scrub_set_rate(&box.store->scrub, 1000); // it would take half an hour
    wait_for(stats_sum(COUNTER_scrub_rounds) == rounds + 2);
    box_close(&box); // and nobody waits for it
    box_remove(&box);
}

static struct store_scrub told(struct box *box)
{
    struct store_scrub scrub;
    store_scrub_read(box->store, &scrub);
    return scrub;
}

Test(scrub, a_round_that_is_ordered_has_a_rate_of_its_own)
{
    struct box box;
    if (!box_filled(&box, DISK_ENGINE_THREADS)) {
        return;
    }
    scrub_set_rate(&box.store->scrub, 0);
    cr_assert(told(&box).state == STORE_SCRUB_DONE);
    uint64_t rounds = told(&box).round;
    cr_assert(store_scrub_begin(box.store, 1000) == ERR_OK); // it would take half an hour
    wait_for(told(&box).state == STORE_SCRUB_RUNS);
    cr_assert(told(&box).bytes_per_s == 1000);
    cr_assert(store_scrub_begin(box.store, GIB) == ERR_OK); // the same one, faster
    wait_for(told(&box).state != STORE_SCRUB_RUNS);
    struct store_scrub scrub = told(&box);
    cr_assert(scrub.state == STORE_SCRUB_DONE);
    cr_assert(scrub.round == rounds + 1);
    cr_assert(scrub.bad_runs == 0 && scrub.runs > 0 && scrub.bytes > SEGMENT);
    cr_assert(scrub.segments_done == scrub.segments);
    cr_assert(scrub.bytes_per_s == 0, "and nothing is read after it");
    box_close(&box);
    box_remove(&box);
}

Test(scrub, a_round_begins_at_the_limit_of_threads)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 32 * MIB);
    cr_assert(box_open(&box));
    thread_limit_reached(true);
    cr_assert_eq(store_scrub_begin(box.store, GIB), ERR_OK);
    thread_limit_reached(false);
    wait_for(told(&box).state == STORE_SCRUB_DONE);
    box_close(&box);
    box_remove(&box);
}

Test(scrub, a_round_can_be_cancelled)
{
    struct box box;
    if (!box_filled(&box, DISK_ENGINE_THREADS)) {
        return;
    }
    scrub_set_rate(&box.store->scrub, 0);
    store_scrub_cancel(box.store); // there is none
    cr_assert(told(&box).state == STORE_SCRUB_DONE);
    uint64_t whole = stats_sum(COUNTER_scrub_rounds);
    cr_assert(store_scrub_begin(box.store, 1000) == ERR_OK);
    wait_for(told(&box).state == STORE_SCRUB_RUNS);
    store_scrub_cancel(box.store);
    wait_for(told(&box).state == STORE_SCRUB_CANCELLED);
    cr_assert(stats_sum(COUNTER_scrub_rounds) == whole);
    cr_assert(store_scrub_begin(box.store, GIB) == ERR_OK, "and another one begins");
    wait_for(told(&box).state == STORE_SCRUB_DONE);
    cr_assert(stats_sum(COUNTER_scrub_rounds) == whole + 1);
    box_close(&box);
    box_remove(&box);
}
