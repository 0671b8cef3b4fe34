// SPDX-License-Identifier: Apache-2.0
// Proves: the list of pins is saved or refused as a whole, and counts in cache.size. Runs follow it
// by their names, in the background.
#include "store/state/state_pins.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "stats/stats.h"
#include "store/retention/retention_pins.h"
#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

#define LEN 26000u // four to a segment
#define RUNS 40u
#define KEY_MAX 16u

static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};

// Returns the list that is loaded now; "" if there is none.
static const char *loaded(struct box *box)
{
    static char text[8192];
    struct buf found;
    buf_init(&found, sizeof(text));
    enum err err = store_pins_load(box->store, &found);
    (void)snprintf(text, sizeof(text), "%s%s", err == ERR_OK ? "" : "damaged", buf_cstr(&found));
    buf_done(&found);
    return text;
}

static enum err save(struct box *box, const char *text)
{
    struct buf why;
    buf_init(&why, 512);
    enum err err = store_pins_save(box->store, span_from_cstr(text), &why);
    cr_assert_eq(err == ERR_OK, why.len == 0);
    buf_done(&why);
    return err;
}

Test(store_pins, last_and_count)
{
    struct box box;
    static char longer[6000];
    memset(longer, 'x', sizeof(longer) - 1);
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    cr_assert_str_eq(loaded(&box), "");
    uint64_t before = atomic_load(&box.store->disk.used_bytes);
    cr_assert_eq(save(&box, "one\n"), ERR_OK);
    cr_assert_eq(atomic_load(&box.store->disk.used_bytes), before + 4096);
    cr_assert_eq(save(&box, longer), ERR_OK);
    cr_assert_eq(atomic_load(&box.store->disk.used_bytes), before + 8192);
    cr_assert_eq(save(&box, "two\n"), ERR_OK);
    cr_assert_eq(atomic_load(&box.store->disk.used_bytes), before + 4096);
    store_fault_set(STORE_FAULT_PINS, 1, false, EIO);
    cr_assert_eq(save(&box, "three\n"), ERR_IO);
    cr_assert_eq(atomic_load(&box.store->disk.used_bytes), before + 4096);
    cr_assert_str_eq(loaded(&box), "two\n");
    store_fault_set(STORE_FAULT_PINS, 2, false, EIO); // its name may not last, and it is there
    cr_assert_eq(save(&box, longer), ERR_IO);
    cr_assert_eq(atomic_load(&box.store->disk.used_bytes), before + 8192);
    cr_assert_eq(save(&box, "two\n"), ERR_OK);
    uint64_t all = box.store->disk.capacity_bytes;
    cr_assert(disk_space_reserve(&box.store->disk, all, UINT64_MAX));
    cr_assert_eq(save(&box, "four\n"), ERR_DISK_FULL);
    disk_space_give(&box.store->disk, all);
    cr_assert_str_eq(loaded(&box), "two\n");
    box_close(&box);
    box_remove(&box);
}

// The damaged list is set aside for a person and still counts, and so does the next list.
Test(store_pins, a_damaged_list_still_counts)
{
    struct box box;
    static char damaged[64 << 10];
    char path[640];
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    box_close(&box);
    (void)snprintf(path, sizeof(path), "%s/pins", box.dir);
    FILE *file = fopen(path, "w");
    cr_assert(file != NULL && fwrite(damaged, sizeof(damaged), 1, file) == 1 && fclose(file) == 0);
    cr_assert(box_open(&box));
    uint64_t before = atomic_load(&box.store->disk.used_bytes);
    cr_assert_str_eq(loaded(&box), "damaged");
    cr_assert_eq(save(&box, "one\n"), ERR_OK);
    cr_assert_eq(atomic_load(&box.store->disk.used_bytes), before + 4096);
    cr_assert_eq(state_pins_bytes(&box.store->pins), 4096);
    box_close(&box);
    cr_assert(box_open(&box));
    cr_assert_str_eq(loaded(&box), "one\n");
    box_close(&box);
    box_remove(&box);
}

// Keys below this number are pinned now, and keys from the other one on are gone.
static atomic_uint pinned_below, gone_from = UINT_MAX;

static unsigned group_of(void *ctx, struct span realm, struct span bucket, struct span key)
{
    uint64_t number = 0;
    struct span word;
    (void)ctx;
    cr_assert(span_equal_cstr(realm, "default") && span_equal_cstr(bucket, "bkt"));
    (void)span_split(&key, '-', &word);
    cr_assert(span_to_u64(key, &number));
    return number >= atomic_load(&gone_from)     ? STORE_GROUP_GONE
           : number < atomic_load(&pinned_below) ? STORE_GROUP_PINS
                                                 : STORE_PRIORITY_NORMAL;
}

static uint64_t pinned_runs(struct box *box)
{
    struct store_pins_figures figures;
    store_pins_figures(box->store, &figures);
    return figures.in_review ? UINT64_MAX : figures.bytes / LEN;
}

static struct object object_of(unsigned number, char ret_key[KEY_MAX])
{
    (void)snprintf(ret_key, KEY_MAX, "key-%u", number);
    return (struct object){ret_key, "\"e\"", LEN, BLOCK, 100 + number};
}

// Opens a store of small segments and puts RUNS keys. Returns false if this machine refuses the
// engine.
static bool open_with_runs(struct box *box, enum disk_engine engine)
{
    cr_assert(setenv("FOREBAY_SEGMENT_SIZE", "131072", 1) == 0);
    box_init(box, engine, 16 * MIB);
    box->options.block_size_bytes_max = BLOCK;
    box->options.policy = STORE_POLICY_EPOCH;
    if (!box_open(box)) {
        box_remove(box);
        return false;
    }
    store_set_group_of(box->store, group_of, NULL);
    for (unsigned i = 0; i < RUNS; i++) {
        char key[KEY_MAX];
        struct object object = object_of(i, key);
        cr_assert_eq(box_put(box, &object), ERR_OK);
    }
    return true;
}

Test(store_pins, pinned_bytes_follow_the_pinned_names)
{
    for (unsigned e = 0; e < ARRAY_LEN(engines); e++) {
        struct box box;
        if (!open_with_runs(&box, engines[e])) {
            continue;
        }
        atomic_store(&pinned_below, 30);
        store_review(box.store, STORE_REVIEW_OTHERS);
        wait_for(pinned_runs(&box) == 30);
        atomic_store(&pinned_below, 10);
        store_review(box.store, STORE_REVIEW_OTHERS); // not what it is about
        wait_for(pinned_runs(&box) == 30);
        store_review(box.store, STORE_REVIEW_PINNED);
        wait_for(pinned_runs(&box) == 10);
        store_set_group_of(box.store, NULL, NULL);
        atomic_store(&pinned_below, 0);
        store_review(box.store, STORE_REVIEW_PINNED); // nobody knows, so nothing changes
        box_close(&box);
        cr_assert(box_open(&box)); // with the saved state
        store_set_group_of(box.store, group_of, NULL);
        wait_for(pinned_runs(&box) == 10);
        store_review(box.store, STORE_REVIEW_PINNED);
        wait_for(pinned_runs(&box) == 0);
        box_close(&box);
        box_remove(&box);
    }
}

// Their names are out of use, for example because their bucket was evicted. Otherwise their worth
// would keep other objects out of the cache.
Test(store_pins, a_review_removes_runs_whose_names_are_gone)
{
    for (unsigned e = 0; e < ARRAY_LEN(engines); e++) {
        struct box box;
        if (!open_with_runs(&box, engines[e])) {
            continue;
        }
        atomic_store(&gone_from, 25);
        store_review(box.store, STORE_REVIEW_PINNED | STORE_REVIEW_OTHERS);
        wait_for(stats_sum(COUNTER_cache_objects) == 25);
        for (unsigned i = 0; i < RUNS; i++) {
            char key[KEY_MAX];
            struct object object = object_of(i, key);
            cr_assert_eq(box_read(&box, 0, &object), i < 25 ? LEN : 0);
        }
        atomic_store(&gone_from, UINT_MAX);
        box_close(&box);
        box_remove(&box);
    }
}
