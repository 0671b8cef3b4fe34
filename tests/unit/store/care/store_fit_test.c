// SPDX-License-Identifier: Apache-2.0
// Proves: a directory that is opened with a smaller cache.size is within it from the start. The
// newest data that fits is kept, and nothing has to be revalidated while little was evicted.
#include <stdio.h>
#include <unistd.h>

#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

#define OBJECT_BYTES (1 * MIB)

static struct object numbered(struct box *box, char key[32], unsigned i)
{
    (void)snprintf(key, 32, "key-%u", i);
    return (struct object){key, "\"e\"", OBJECT_BYTES, BLOCK, store_generation_next(box->store)};
}

static void fill(struct box *box, struct object *objects, char (*keys)[32], unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        objects[i] = numbered(box, keys[i], i);
        enum err err;
        wait_for(
            !box_has_no_segment(err = box_put(box, &objects[i]))); // the keeper makes room behind
        cr_assert(err == ERR_OK);
    }
}

static unsigned held(struct box *box, const struct object *objects, unsigned from, unsigned to)
{
    unsigned count = 0;
    for (unsigned i = from; i < to; i++) {
        count += box_read(box, 0, &objects[i]) == objects[i].size;
    }
    return count;
}

static bool is_rebuilt(void *ctx)
{
    return !atomic_load(&((struct box *)ctx)->store->recovery.is_rebuilding);
}

static void shrink_keeps_the_newest(enum disk_engine engine)
{
    struct box box;
    struct object objects[80];
    char keys[ARRAY_LEN(objects)][32];
    box_init(&box, engine, 256 * MIB);
    if (!box_open_workers(&box, 1)) {
        return;
    }
    fill(&box, objects, keys, ARRAY_LEN(objects));
    static const uint64_t sizes[] = {96 * MIB, 48 * MIB, 16 * MIB, 256 * MIB};
    static const unsigned kept[] = {48, 18, 3, 3}; // objects; three go into a segment
    for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
        box_close(&box);
        box.options.size_bytes = sizes[i];
        cr_assert(box_open_workers(&box, 1));
        cr_assert(dir_bytes(box.dir) <= sizes[i]);
        cr_assert(atomic_load(&box.store->disk.used_bytes) <= sizes[i]);
        wait_for(is_rebuilt(&box));
        unsigned count =
            held(&box, objects, (unsigned)ARRAY_LEN(objects) - kept[i], ARRAY_LEN(objects));
        cr_assert(count == kept[i], "%u of %u", count, kept[i]);
    }
    box_close(&box);
    box_remove(&box);
}

Test(store_fit, a_smaller_size_keeps_the_newest)
{
    shrink_keeps_the_newest(DISK_ENGINE_THREADS);
    shrink_keeps_the_newest(DISK_ENGINE_URING);
}

Test(store_fit, empty_segments_go_before_full_ones)
{
    struct box box;
    struct object objects[4];
    char keys[ARRAY_LEN(objects)][32];
    box_init(&box, DISK_ENGINE_THREADS, 1024 * MIB);
    cr_assert(box_open_workers(&box, 1));
    fill(&box, objects, keys, ARRAY_LEN(objects));
    box_close(&box);
    box.options.size_bytes = 64 * MIB;
    cr_assert(box_open_workers(&box, 1));
    cr_assert(dir_bytes(box.dir) <= 64 * MIB);
    cr_assert(!atomic_load(&box.store->recovery.is_rebuilding));
    cr_assert(held(&box, objects, 0, ARRAY_LEN(objects)) == ARRAY_LEN(objects));
    box_close(&box);
    box_remove(&box);
}
