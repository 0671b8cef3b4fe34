// SPDX-License-Identifier: Apache-2.0
// Proves: a bucket's epoch only rises, also over restarts and crashes. An epoch that was used while
// a change was open is never used again. If the directory cannot note a change, no change is
// allowed.
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stats/stats.h"
#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

struct change {
    struct store_epoch_change change;
    struct box *box;
    const char *bucket;
    enum err err;
    atomic_bool is_done;
};

static void on_done(struct store_epoch_change *change, enum err err)
{
    struct change *c = container_of(change, struct change, change);
    c->err = err;
    atomic_store(&c->is_done, true);
}

static void on_worker(struct worker *w, void *ctx)
{
    struct change *c = ctx;
    c->change.done = on_done;
    store_epoch_begin(w, c->box->store, SPAN("here"), span_from_cstr(c->bucket), &c->change);
}

static bool is_done(void *ctx)
{
    return atomic_load(&((struct change *)ctx)->is_done);
}

static enum err begin(struct box *box, struct change *c, const char *bucket)
{
    *c = (struct change){.box = box, .bucket = bucket};
    box_on_worker(box, 0, on_worker, c);
    wait_for(is_done(c));
    return c->err;
}

static void change(struct box *box, const char *bucket)
{
    struct change c;
    cr_assert_eq(begin(box, &c, bucket), ERR_OK);
    store_epoch_end(&c.change);
}

static uint64_t epoch(const struct box *box, const char *bucket)
{
    return store_epoch(box->store, SPAN("here"), span_from_cstr(bucket));
}

// Returns the epoch with which the next process would begin if this one were killed now.
static uint64_t epoch_after_crash(const struct box *box, const char *bucket)
{
    char path[600];
    char text[32768];
    (void)snprintf(path, sizeof(path), "%s/format", box->dir);
    FILE *file = fopen(path, "r");
    cr_assert(file != NULL);
    size_t len = fread(text, 1, sizeof(text), file);
    fclose(file);
    static struct store next;
    memset(&next, 0, sizeof(next));
    next.epochs.disk = &next.disk;
    cr_assert_eq(store_format_parse((struct span){text, len}, &next.disk.dir.format), ERR_OK);
    state_epochs_load(&next.epochs);
    return store_epoch(&next, SPAN("here"), span_from_cstr(bucket));
}

Test(store_epoch, a_change_moves_its_bucket_alone_at_its_begin_and_at_its_end)
{
    struct box box;
    struct change c;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    cr_assert_eq(epoch(&box, "b"), 0);
    cr_assert_eq(begin(&box, &c, "b"), ERR_OK);
    uint64_t open = epoch(&box, "b");
    cr_assert(open > 0);
    // Bytes fetched now may be old, so a crash must forget them.
    cr_assert(epoch_after_crash(&box, "b") > open);
    store_epoch_end(&c.change);
    uint64_t ended = epoch(&box, "b");
    cr_assert(ended > open);
    // Bytes fetched from here on are new. They outlast a crash and a clean stop.
    cr_assert_eq(epoch_after_crash(&box, "b"), ended);
    cr_assert_eq(epoch(&box, "c"), 0);
    cr_assert_eq(store_epoch(box.store, SPAN("there"), SPAN("b")), 0);
    box_close(&box);
    cr_assert(box_open(&box));
    cr_assert_eq(epoch(&box, "b"), ended);
    box_close(&box);
    box_remove(&box);
}

Test(store_epoch, changes_side_by_side_never_use_a_number_twice)
{
    struct box box;
    struct change c[4];
    uint64_t last = 0;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    for (unsigned round = 0; round < 8; round++) {
        for (unsigned i = 0; i < ARRAY_LEN(c); i++) {
            cr_assert_eq(begin(&box, &c[i], "b"), ERR_OK);
            cr_assert(epoch(&box, "b") > last);
            last = epoch(&box, "b");
            cr_assert(epoch_after_crash(&box, "b") > last);
        }
        for (unsigned i = 0; i < ARRAY_LEN(c); i++) {
            store_epoch_end(&c[(i + round) % ARRAY_LEN(c)].change);
            cr_assert(epoch(&box, "b") > last);
            last = epoch(&box, "b");
            bool is_open = i + 1 < ARRAY_LEN(c);
            cr_assert_eq(epoch_after_crash(&box, "b") > last, is_open);
        }
    }
    box_close(&box);
    box_remove(&box);
}

// While a write to a key of the bucket is open, its old version may be fetched again. A crash must
// forget that, too.
Test(store_epoch, a_crash_forgets_bytes_fetched_during_an_open_write)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    cr_assert_eq(store_epoch_hold(box.store, SPAN("here"), SPAN("b")), 0);
    change(&box, "b");
    uint64_t ended = epoch(&box, "b");
    cr_assert(epoch_after_crash(&box, "b") > ended);
    store_epoch_release(box.store, SPAN("here"), SPAN("b"));
    cr_assert_eq(epoch(&box, "b"), ended);
    box_close(&box);
    cr_assert(box_open(&box));
    cr_assert(epoch(&box, "b") > ended);
    change(&box, "b");
    cr_assert_eq(epoch_after_crash(&box, "b"), epoch(&box, "b"));
    box_close(&box);
    box_remove(&box);
}

Test(store_epoch, buckets_beyond_the_maximum_move_together_and_are_not_forgotten)
{
    struct box box;
    char name[32];
    uint64_t epochs[STATE_EPOCHS_MAX];
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    for (unsigned i = 0; i < STATE_EPOCHS_MAX; i++) {
        (void)snprintf(name, sizeof(name), "b%u", i);
        change(&box, name);
        epochs[i] = epoch(&box, name);
        cr_assert(epochs[i] > 0);
    }
    uint64_t shared = stats_sum(COUNTER_bucket_invalidations_shared);
    cr_assert_eq(epoch(&box, "more"), 0);
    change(&box, "more");
    cr_assert(epoch(&box, "more") > 0);
    cr_assert_eq(epoch(&box, "yet-another"), epoch(&box, "more"));
    cr_assert_eq(stats_sum(COUNTER_bucket_invalidations_shared), shared + 1);
    uint64_t more = epoch(&box, "more");
    box_close(&box);
    cr_assert(box_open(&box));
    cr_assert(epoch(&box, "more") > more);
    for (unsigned i = 0; i < STATE_EPOCHS_MAX; i++) {
        (void)snprintf(name, sizeof(name), "b%u", i);
        cr_assert_eq(epoch(&box, name), epochs[i]);
    }
    change(&box, "b7");
    cr_assert(epoch(&box, "b7") > epochs[7]);
    box_close(&box);
    box_remove(&box);
}

Test(store_epoch, a_directory_that_cannot_note_a_change_lets_none_be_made)
{
    struct box box;
    struct change c;
    char path[600];
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    change(&box, "b");
    uint64_t before = epoch(&box, "b");
    (void)snprintf(path, sizeof(path), "%s/format.new", box.dir);
    cr_assert_eq(mkdir(path, 0700), 0); // where the file would be made
    cr_assert(begin(&box, &c, "b") != ERR_OK);
    cr_assert_eq(epoch(&box, "b"), before);
    cr_assert_eq(epoch_after_crash(&box, "b"), before);
    cr_assert(begin(&box, &c, "new") != ERR_OK);
    cr_assert_eq(epoch(&box, "new"), 0);
    cr_assert_eq(rmdir(path), 0);
    change(&box, "b");
    change(&box, "new");
    cr_assert(epoch(&box, "b") > before);
    cr_assert_eq(epoch_after_crash(&box, "b"), epoch(&box, "b"));
    cr_assert_eq(epoch_after_crash(&box, "new"), epoch(&box, "new"));
    box_close(&box);
    box_remove(&box);
}

// Two threads write numbers and epochs into one file. Neither loses the other's.
Test(store_epoch, the_supply_thread_writes_beside_it)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    uint64_t last = 0;
    for (unsigned i = 0; i < 60; i++) {
        char key[32];
        (void)snprintf(key, sizeof(key), "k%u", i);
        const struct object object = {.key = key,
                                      .etag = "\"e\"",
                                      .size = 8 * BLOCK,
                                      .block_size = BLOCK,
                                      .generation = i + 1};
        change(&box, "b");
        cr_assert(epoch(&box, "b") > last);
        last = epoch(&box, "b");
        cr_assert_eq(box_put(&box, &object), ERR_OK);
        cr_assert_eq(epoch_after_crash(&box, "b"), last);
    }
    box_close(&box);
    cr_assert(box_open(&box));
    cr_assert_eq(epoch(&box, "b"), last);
    box_close(&box);
    box_remove(&box);
}

#define MEETINGS 300000u

struct meeting {
    struct box *box;
    struct store_epoch_slot *slot;
    pthread_mutex_t raise_lock;
    atomic_uint ends_left;
    unsigned kept_old; // holds beside which something was fetched that would
                       // outlive a crash
};

// Does what a change does after it is on disk. A real disk would cause few races.
static void raise_in_memory(struct meeting *m)
{
    pthread_mutex_lock(&m->raise_lock);
    atomic_fetch_add(&m->slot->open_count, 1);
    atomic_fetch_add(&m->slot->start, 3);
    atomic_fetch_add(&m->slot->now, 1);
    pthread_mutex_unlock(&m->raise_lock);
}

static void *end_changes(void *ctx)
{
    struct meeting *m = ctx;
    struct store_epoch_change change = {
        .epochs = &m->box->store->epochs, .bucket = m->slot->bucket, .slot = m->slot};
    for (unsigned i = 0; i < MEETINGS; i++) {
        raise_in_memory(m);
        store_epoch_end(&change);
    }
    atomic_fetch_sub(&m->ends_left, 1);
    return NULL;
}

static void *hold_and_look(void *ctx)
{
    struct meeting *m = ctx;
    while (atomic_load(&m->ends_left) > 0) {
        uint64_t held = store_epoch_hold(m->box->store, SPAN("here"), SPAN("b"));
        for (unsigned i = 0; i < 8; i++) {
            uint64_t now = epoch(m->box, "b");
            m->kept_old += now != held && atomic_load(&m->slot->start) <= now ? 1 : 0;
        }
        store_epoch_release(m->box->store, SPAN("here"), SPAN("b"));
    }
    return NULL;
}

Test(store_epoch, ends_and_holds_meet_in_any_order)
{
    struct box box;
    struct change c;
    pthread_t threads[3];
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    cr_assert_eq(begin(&box, &c, "b"), ERR_OK);
    store_epoch_end(&c.change);
    struct meeting m = {.box = &box, .slot = c.change.slot, .ends_left = 2};
    pthread_mutex_init(&m.raise_lock, NULL);
    for (unsigned i = 0; i < ARRAY_LEN(threads); i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, i == 0 ? hold_and_look : end_changes, &m),
                     0);
    }
    for (unsigned i = 0; i < ARRAY_LEN(threads); i++) {
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
    }
    cr_assert_eq(m.kept_old, 0);
    pthread_mutex_destroy(&m.raise_lock);
    box_close(&box);
    box_remove(&box);
}
