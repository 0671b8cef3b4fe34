// SPDX-License-Identifier: Apache-2.0
// Proves: bytes that do not stay in memory until they are read again are read past the page cache,
// and all others through it. Both ways give the right bytes, also where direct I/O fails.
#include "store/segment/page_admission.h"

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

#define GIB (1024 * MIB)
#define PIECE 262144u

static struct host_memory host;
static bool is_host_known;

static bool host_look(struct host_memory *ret_memory)
{
    *ret_memory = host;
    return is_host_known;
}

static void admission_begin(struct page_admission *admission, uint64_t room, uint64_t unused,
                            uint64_t cached)
{
    is_host_known = true;
    host = (struct host_memory){GIB, room, unused};
    page_admission_init(admission, host_look);
    page_admission_look(admission, cached);
}

// Reads `bytes` of other places than those that a test asks about.
static void read_others(struct page_admission *admission, uint64_t bytes)
{
    static uint32_t unit;
    for (uint64_t at = 0; at < bytes; at += PIECE) {
        (void)page_admission_take(admission, 1000000, unit++, PIECE);
    }
}

Test(page_admission, everything_is_admitted_while_the_cache_fits_into_memory)
{
    struct page_admission admission;
    admission_begin(&admission, GIB / 2, 0, 400 * MIB);
    cr_assert(page_admission_take(&admission, 1, 0, PIECE));
    page_admission_done(&admission);
}

Test(page_admission, everything_is_admitted_while_memory_is_free)
{
    struct page_admission admission;
    admission_begin(&admission, GIB / 2, GIB / 4, 64 * GIB);
    cr_assert(page_admission_take(&admission, 1, 0, PIECE));
    page_admission_done(&admission);
}

Test(page_admission, everything_is_admitted_if_the_memory_is_unknown)
{
    struct page_admission admission;
    page_admission_init(&admission, NULL);
    page_admission_look(&admission, 64 * GIB);
    cr_assert(page_admission_take(&admission, 1, 0, PIECE));
    page_admission_done(&admission);
    admission_begin(&admission, GIB / 2, 0, 64 * GIB);
    cr_assert(!page_admission_take(&admission, 1, 0, PIECE));
    is_host_known = false;
    page_admission_look(&admission, 64 * GIB);
    cr_assert(page_admission_take(&admission, 1, 4, PIECE));
    page_admission_done(&admission);
}

Test(page_admission, a_second_read_is_admitted_within_the_memory)
{
    struct page_admission admission;
    admission_begin(&admission, GIB / 2, 0, 64 * GIB);
    cr_assert(!page_admission_take(&admission, 1, 0, PIECE));
    cr_assert(!page_admission_take(&admission, 2, 0, PIECE)); // another segment
    cr_assert(!page_admission_take(&admission, 1, 4, PIECE)); // another part
    read_others(&admission, 8 * MIB);
    cr_assert(page_admission_take(&admission, 1, 0, PIECE));
    read_others(&admission, 600 * MIB);
    cr_assert(!page_admission_take(&admission, 1, 0, PIECE));
    page_admission_done(&admission);
}

Test(page_admission, less_room_makes_the_distance_shorter)
{
    struct page_admission admission;
    admission_begin(&admission, GIB / 2, 0, 64 * GIB);
    host.room_bytes = 16 * MIB;
    page_admission_look(&admission, 64 * GIB);
    cr_assert(!page_admission_take(&admission, 1, 0, PIECE));
    read_others(&admission, 64 * MIB);
    cr_assert(!page_admission_take(&admission, 1, 0, PIECE));
    page_admission_done(&admission);
}

// --- with a store --------------------------------------------------------------------------------

// Drops the pages of all segments. Returns false if this machine keeps them.
static bool drop_pages(const struct box *box)
{
    char pattern[600];
    glob_t files;
    bool are_gone = disk_io_residency_mode() != DISK_RESIDENCY_NONE;
    (void)snprintf(pattern, sizeof(pattern), "%s/segments/*.seg", box->dir);
    cr_assert(glob(pattern, 0, NULL, &files) == 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        int fd = open(files.gl_pathv[i], O_RDONLY | O_CLOEXEC);
        cr_assert(fd >= 0 && fdatasync(fd) == 0);
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        are_gone &= !disk_io_resident(fd, 0, SECTOR_SIZE);
        (void)close(fd);
    }
    globfree(&files);
    return are_gone;
}

// Lengths that end within a page, at its end, and within a sector.
static const struct object objects[] = {
    {"tail", "\"e\"", 3 * MIB + 45001, BLOCK, 1},
    {"pages", "\"e\"", MIB, BLOCK, 2},
    {"short", "\"e\"", 40001, BLOCK, 3},
};

static void read_all(enum disk_engine engine, const char *faults, enum store_read_source source)
{
    struct box box;
    box_init(&box, engine, 64 * MIB);
    box_has_little_memory(&box, 0);
    if (!box_open(&box)) {
        box_remove(&box);
        return;
    }
    for (unsigned i = 0; i < ARRAY_LEN(objects); i++) {
        cr_assert(box_put(&box, &objects[i]) == ERR_OK);
    }
    bool is_known = box_has_direct_io(&box);
    for (unsigned i = 0; i < ARRAY_LEN(objects); i++) {
        cr_assert(box_read(&box, 0, &objects[i]) == objects[i].size); // has the headers read
    }
    is_known &= drop_pages(&box);
    for (unsigned i = 0; i < ARRAY_LEN(objects); i++) {
        memset(box.reads, 0, sizeof(box.reads));
        disk_fault_set(faults);
        cr_assert(box_read(&box, 0, &objects[i]) == objects[i].size);
        disk_fault_set("");
        cr_assert(!is_known || box.reads[source] > 0);
        cr_assert(!is_known || faults[0] != '\0' || box.reads[STORE_READ_DEVICE] == 0);
    }
    box_close(&box);
    box_remove(&box);
}

Test(page_admission, reads_past_the_page_cache_bring_the_right_bytes)
{
    read_all(DISK_ENGINE_THREADS, "", STORE_READ_DIRECT);
    read_all(DISK_ENGINE_URING, "", STORE_READ_DIRECT);
}

Test(page_admission, a_read_past_the_page_cache_that_is_short_goes_on)
{
    read_all(DISK_ENGINE_THREADS, "read:1+:short", STORE_READ_DIRECT);
    read_all(DISK_ENGINE_URING, "read:1+:short", STORE_READ_DIRECT);
}

Test(page_admission, a_read_past_the_page_cache_that_fails_is_repeated_through_it)
{
    read_all(DISK_ENGINE_THREADS, "read:1:eio", STORE_READ_DEVICE);
    read_all(DISK_ENGINE_URING, "read:1:eio", STORE_READ_DEVICE);
}

// Stores more than the memory of these tests, and has the store compare both.
static void store_others(struct box *box)
{
    for (unsigned i = 0; i < 6; i++) {
        char key[16];
        (void)snprintf(key, sizeof(key), "other-%u", i);
        struct object other = {key, "\"e\"", 4 * MIB, BLOCK, 10 + i};
        enum err err;
        wait_for(!box_has_no_segment(err = box_put(box, &other)));
        cr_assert(err == ERR_OK);
    }
    page_admission_look(&box->store->page_admission, 6 * 4 * MIB);
}

Test(page_admission, bytes_stay_on_the_device_until_they_are_read_again_soon)
{
    struct box box;
    box_init(&box, DISK_ENGINE_AUTO, 64 * MIB);
    box_has_little_memory(&box, 16 * MIB);
    cr_assert(box_open(&box));
    store_others(&box);
    cr_assert(box_put(&box, &objects[1]) == ERR_OK);
    read_others(&box.store->page_admission, 64 * MIB);
    if (drop_pages(&box) && box_has_direct_io(&box)) {
        for (unsigned i = 0; i < 3; i++) {
            memset(box.reads, 0, sizeof(box.reads));
            cr_assert(box_read(&box, 0, &objects[1]) == objects[1].size);
            cr_assert((box.reads[STORE_READ_DIRECT] > 0) == (i == 0));
            cr_assert((box.reads[STORE_READ_DEVICE] > 0) == (i == 1));
        }
        cr_assert(box.reads[STORE_READ_MEMORY] > 0);
    }
    box_close(&box);
    box_remove(&box);
}

struct ready_call {
    const struct box *box;
    const struct store_place *place;
    bool is_ready;
};

static void ask_ready(struct worker *w, void *ctx)
{
    struct ready_call *call = ctx;
    struct file_range range;
    call->is_ready =
        store_range_ready(w, call->box->store, call->place, 0, call->place->payload_len, &range);
    if (call->is_ready) {
        range.release(range.release_ctx);
    }
}

static bool is_ready(struct box *box, const struct store_place *place)
{
    struct ready_call call = {box, place, false};
    box_on_worker(box, 0, ask_ready, &call);
    return call.is_ready;
}

struct one_read {
    struct store_read read;
    atomic_bool ended;
};

static void on_one_read(struct store_read *read)
{
    for (unsigned i = 0; i < ARRAY_LEN(read->chunks); i++) {
        chunk_unref(read->chunks[i]);
    }
    atomic_store(&container_of(read, struct one_read, read)->ended, true);
}

static void start_one_read(struct worker *w, void *ctx)
{
    store_read_start(w, ctx);
}

static bool one_read_ended(void *ctx)
{
    return atomic_load(&((struct one_read *)ctx)->ended);
}

// A file system may serve a direct read through the page cache: ext4 with encryption, btrfs with
// compression.
Test(page_admission, pages_that_the_kernel_loads_during_a_direct_read_count_as_unverified)
{
    struct box box;
    box_init(&box, DISK_ENGINE_AUTO, 64 * MIB);
    box_has_little_memory(&box, 0);
    cr_assert(box_open(&box));
    // The write fills the page cache.
    atomic_store(&box.store->log.pool.refuses_direct, true);
    struct store_place place;
    cr_assert(box_write(&box, 0, &objects[1], 0, 16, 16, &place) == ERR_OK);
    cr_assert(box_post_put(&box, &objects[1], &place) == ERR_OK);
    bool is_known = is_ready(&box, &place); // this machine tells what is in memory
    atomic_store(&box.store->log.pool.refuses_direct, false);
    disk_fault_set("pages.gone:1+:eio"); // but the pages stay, as if the kernel loaded them
    static struct one_read one;
    one.read = (struct store_read){
        .store = box.store, .place = place, .len = CHUNK_SIZE, .done = on_one_read};
    box_on_worker(&box, 0, start_one_read, &one.read);
    wait_for(one_read_ended(&one));
    disk_fault_set("");
    cr_assert(one.read.err == ERR_OK);
    if (is_known && one.read.source == STORE_READ_DIRECT) {
        cr_assert(!is_ready(&box, &place));
    }
    box_let_go(&place);
    box_close(&box);
    box_remove(&box);
}

// A miss is the first of two reads.
Test(page_admission, bytes_that_are_read_soon_after_they_were_written_enter_the_page_cache)
{
    struct box box;
    struct store_place place;
    box_init(&box, DISK_ENGINE_AUTO, 64 * MIB);
    box_has_little_memory(&box, 16 * MIB);
    cr_assert(box_open(&box));
    store_others(&box);
    cr_assert(box_write(&box, 0, &objects[1], 0, 16, 16, &place) == ERR_OK);
    bool is_known = box_has_direct_io(&box);
    is_known &= drop_pages(&box);
    static struct one_read one;
    one.read = (struct store_read){
        .store = box.store, .place = place, .len = STORE_READ_MAX, .done = on_one_read};
    box_on_worker(&box, 0, start_one_read, &one.read);
    wait_for(one_read_ended(&one));
    cr_assert(one.read.err == ERR_OK);
    cr_assert(!is_known || one.read.source == STORE_READ_DEVICE);
    box_let_go(&place);
    box_close(&box);
    box_remove(&box);
}

// The distance of two accesses is in bytes. A short run is never read past the page cache.
Test(page_admission, a_write_counts_as_the_bytes_that_it_has)
{
    static const struct {
        struct object object;
        uint64_t bytes;
    } cases[] = {{{"short", "\"e\"", 1000, BLOCK, 1}, 0},
                 {{"pages", "\"e\"", 40001, BLOCK, 2}, 40001},
                 {{"pieces", "\"e\"", MIB + 45001, BLOCK, 3}, MIB + 45001}};
    struct box box;
    box_init(&box, DISK_ENGINE_AUTO, 64 * MIB);
    box_has_little_memory(&box, 0);
    cr_assert(box_open(&box));
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        uint64_t before = atomic_load(&box.store->page_admission.clock);
        cr_assert(box_put(&box, &cases[i].object) == ERR_OK);
        cr_assert(atomic_load(&box.store->page_admission.clock) == before + cases[i].bytes);
    }
    box_close(&box);
    box_remove(&box);
}
