// SPDX-License-Identifier: Apache-2.0
// Proves: the record of a version takes over other headers, with its runs, or stays unchanged. It
// takes no more room for that than the index has. A stalled disk is waited for no longer than a
// moment.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "stats/stats.h"
#include "store/index/index_apply.h"
#include "store/index/index_batch.h"
#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

#define HEADERS_BYTES 700u
#define OBJECTS 4000u
#define BURST INDEX_BATCH_MAX // and one before

struct change {
    struct store_delete d;
    struct box *box;
    struct object object;
    bool is_taken;
    atomic_bool done;
};

static void on_done(struct store_delete *d)
{
    atomic_store(&container_of(d, struct change, d)->done, true);
}

static void start_on_worker(struct worker *w, void *ctx)
{
    struct change *c = ctx;
    struct store_object *old = box_object(c->box, &c->object);
    static char headers[HEADERS_BYTES];
    memset(headers, 'h', sizeof(headers));
    struct store_object *object = store_object_new(
        old->hash, old->realm, old->bucket, old->key, old->etag, old->version_id,
        (struct span){headers, sizeof(headers)}, old->size_bytes, old->block_size_bytes, 77);
    cr_assert(object != NULL);
    struct store_redescription r = {.hash = old->hash,
                                    .from = c->object.generation,
                                    .generation = store_generation_next(c->box->store),
                                    .object = object};
    c->d.done = on_done;
    c->is_taken = store_redescribe(w, c->box->store, &r, &c->d);
    store_object_unref(object);
    store_object_unref(old);
}

static void start(struct box *box, const struct object *object, struct change *c)
{
    *c = (struct change){.box = box, .object = *object};
    box_on_worker(box, 0, start_on_worker, c);
    cr_assert(c->is_taken);
}

static struct object object_of(struct box *box, const char *key, uint64_t size)
{
    return (struct object){key, "\"e\"", size, BLOCK, store_generation_next(box->store)};
}

Test(redescribe, a_stalled_disk_is_not_waited_for)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    struct object object = object_of(&box, "k", 1000);
    cr_assert(box_put(&box, &object) == ERR_OK);
    cr_assert(index_writer_flush(&box.store->writer) == ERR_OK);
    store_fault_stall(STORE_FAULT_COMMIT, true);
    struct change change;
    start(&box, &object, &change);
    store_fault_stall_reached(STORE_FAULT_COMMIT);
    cr_assert(!atomic_load(&change.done));
    clock_test_advance_us(STORE_REDESCRIBE_WAIT_MS * 1000ull);
    wait_for(atomic_load(&change.done));
    cr_assert(change.d.err != ERR_OK);
    store_fault_stall(STORE_FAULT_COMMIT, false);
    cr_assert(index_writer_flush(&box.store->writer) == ERR_OK);
    box_close(&box);
    box_remove(&box);
}

// The record must not show new headers under the old generation, because that generation identifies
// the old ones elsewhere.
Test(redescribe, a_version_whose_places_have_no_room_stays_as_it_was)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    struct object object = object_of(&box, "k", 3ull * BLOCK);
    for (unsigned i = 0; i < 2; i++) {
        cr_assert(box_put_run(&box, &object, i, 1) == ERR_OK);
    }
    cr_assert(index_writer_flush(&box.store->writer) == ERR_OK);
    char described[] = "12345678\0\0headers";
    struct index_change change = {.kind = INDEX_REDESCRIBE,
                                  .hash = box_hash(&box, "k"),
                                  .from = object.generation,
                                  .generation = store_generation_next(box.store),
                                  .size_bytes = object.size,
                                  .etag_hash = hash64(object.etag, strlen(object.etag), 0),
                                  .described = described,
                                  .described_len = sizeof(described)};
    struct index_txn t;
    int rc = 0;
    cr_assert(index_txn_begin(&t, &box.store->index, 1, 0, 1, &rc) == ERR_OK);
    t.places_max = 0;
    cr_assert(index_txn_apply(&t, &change) == ERR_CANCELLED);
    cr_assert_eq(index_txn_commit(&t), 0);
    static struct store_view view;
    box_look(&box, &object, &view);
    cr_assert(view.found && view.generation == object.generation);
    cr_assert(!view.places[0].is_described);
    store_view_done(&view);
    box_close(&box);
    box_remove(&box);
}

// A transaction asks for room for the pages that are split.
Test(redescribe, a_record_that_becomes_longer_counts_as_one_that_is_added)
{
    struct index_change change = {.kind = INDEX_REDESCRIBE};
    struct index_batch batch;
    index_batch_init(&batch, NULL, &change, 1);
    cr_assert_eq(index_batch_left(&batch).puts, 1u);
    index_batch_done(&batch);
}

static uint64_t data_file_bytes(const struct box *box)
{
    char path[sizeof(box->dir) + 32];
    struct stat st;
    (void)snprintf(path, sizeof(path), "%s/index/data.mdb", box->dir);
    cr_assert_eq(stat(path, &st), 0);
    return (uint64_t)st.st_size;
}

// Each record becomes eight times as long. The file grows before the transaction, not during it.
Test(redescribe, a_burst_takes_the_room_that_the_index_has)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    struct object *objects = calloc(OBJECTS, sizeof(*objects));
    struct change *changes = calloc(BURST + 1, sizeof(*changes));
    char(*keys)[24] = calloc(OBJECTS, sizeof(*keys));
    cr_assert(objects != NULL && changes != NULL && keys != NULL);
    for (unsigned i = 0; i < OBJECTS; i++) {
        (void)snprintf(keys[i], sizeof(keys[i]), "key-%u", i);
        objects[i] = object_of(&box, keys[i], 10);
        struct store_place place;
        enum err err;
        wait_for(!box_has_no_segment(err = box_write(&box, 0, &objects[i], 0, 1, 1, &place)));
        cr_assert(err == ERR_OK, "%s", error_name(err));
        box_enter(&box, &objects[i], &place);
        box_let_go(&place);
    }
    cr_assert(index_writer_flush(&box.store->writer) == ERR_OK);
    store_fault_stall(STORE_FAULT_COMMIT, true);
    start(&box, &objects[0], &changes[0]);
    store_fault_stall_reached(STORE_FAULT_COMMIT);
    for (unsigned i = 1; i <= BURST; i++) {
        start(&box, &objects[i], &changes[i]);
    }
    store_fault_stall(STORE_FAULT_COMMIT, false);
    cr_assert(index_writer_flush(&box.store->writer) == ERR_OK);
    cr_assert_leq(data_file_bytes(&box), atomic_load(&box.store->index.allocated_bytes));
    for (unsigned i = 0; i <= BURST; i++) {
        wait_for(atomic_load(&changes[i].done));
        cr_assert(changes[i].d.err == ERR_OK);
    }
    free(keys);
    free(changes);
    free(objects);
    box_close(&box);
    box_remove(&box);
}
