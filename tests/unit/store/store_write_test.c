// SPDX-License-Identifier: Apache-2.0
// Proves: the written part of a run can be sent while the rest is still to come, on both disk
// engines.
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
    uint32_t appended_units;
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
    cr_assert(store_run_begin(w, it->box->store, object, 0, 32, STORE_PRIORITY_NORMAL, false,
                              &it->run) == ERR_OK);
    store_object_unref(object);
    store_run_watch(it->run, on_growing, it);
    grow(it, 12);
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
        struct growing it = {.box = &box, .object = &object};
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
