// SPDX-License-Identifier: Apache-2.0
// Proves: a put, delete or renewal by a home counts at once on every worker, whatever the disk
// does. A change that was reported durable counts in the next process. On both disk engines.
#include "store/index/index_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"
#include "stats/stats.h"
#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};

#define EACH_ENGINE(box, size)                                                                     \
    for (unsigned engine_index = 0; engine_index < ARRAY_LEN(engines); engine_index++)             \
        for (bool once = (box_init(box, engines[engine_index], size), true); once;                 \
             once = (box_remove(box), false))

#define WORKERS 3u

static struct object small_object(struct box *box, const char *key)
{
    return (struct object){key, "\"tag\"", 9000, BLOCK, store_generation_next(box->store)};
}

static void write_run(struct box *box, const struct object *object, struct store_place *ret_place)
{
    cr_assert(box_write(box, 0, object, 0, 1, 1, ret_place) == ERR_OK);
}

static unsigned held(const struct box *box)
{
    return atomic_load(&box->store->index.memory.count);
}

static enum err flush(struct box *box)
{
    return index_writer_flush(&box->store->writer);
}

// --- looking, from any worker

struct look {
    struct box *box;
    struct hash128 hash;
    uint64_t end_byte, floor;
    struct store_view view;
};

static void do_look(struct worker *w, void *ctx)
{
    struct look *look = ctx;
    store_lookup(w, look->box->store, look->hash, 0, look->end_byte, look->floor, &look->view);
    unsigned places = look->view.place_count;
    store_view_done(&look->view);
    look->view.place_count = places; // unpinned, to be compared
}

static const struct store_view *look(struct box *box, unsigned worker, const char *key)
{
    static struct look call;
    call = (struct look){.box = box, .hash = box_hash(box, key), .end_byte = STORE_WINDOW_MAX};
    box_on_worker(box, worker, do_look, &call);
    return &call.view;
}

// Every worker finds that generation, or nothing (0).
static void all_find(struct box *box, const char *key, uint64_t generation)
{
    for (unsigned w = 0; w < loop_worker_count(box->loop); w++) {
        const struct store_view *view = look(box, w, key);
        cr_assert_eq(view->found, generation != 0, "%s", key);
        cr_assert(!view->found || view->generation == generation);
    }
}

// --- deletes, not waited for

struct deletion {
    struct box *box;
    struct store_delete d;
    atomic_bool done;
};

static void on_deleted(struct store_delete *d)
{
    atomic_store(&container_of(d, struct deletion, d)->done, true);
}

static void do_delete(struct worker *w, void *ctx)
{
    struct deletion *deletion = ctx;
    store_delete(w, deletion->box->store, &deletion->d);
}

static void delete_start(struct box *box, const char *key, uint64_t floor,
                         struct deletion *ret_deletion)
{
    *ret_deletion = (struct deletion){.box = box};
    ret_deletion->d =
        (struct store_delete){.hash = box_hash(box, key), .floor = floor, .done = on_deleted};
    box_on_worker(box, 0, do_delete, ret_deletion);
}

// --- at once

Test(index_memory, a_put_is_visible_at_once_on_every_worker)
{
    struct box box;
    EACH_ENGINE(&box, 64 * MIB)
    {
        if (!box_open_workers(&box, WORKERS)) {
            continue;
        }
        struct object before = small_object(&box, "k");
        cr_assert(box_put(&box, &before) == ERR_OK);
        struct object after = small_object(&box, "k");
        after.etag = "\"other\"";
        struct store_place place;
        write_run(&box, &after, &place);
        store_fault_stall(STORE_FAULT_SYNC, true);
        box_enter(&box, &after, &place);
        box_let_go(&place); // the index has a pin and a hold of its own
        store_fault_stall_reached(STORE_FAULT_SYNC);
        for (unsigned w = 0; w < WORKERS; w++) {
            cr_assert(look(&box, w, "k")->generation == after.generation);
            cr_assert(box_read(&box, w, &after) == after.size);
        }
        cr_assert(held(&box) == 1);
        store_fault_stall(STORE_FAULT_SYNC, false);
        cr_assert(flush(&box) == ERR_OK);
        cr_assert(held(&box) == 0);
        cr_assert(box_read(&box, 1, &after) == after.size);
        box_close(&box);
    }
}

// The disk stalls: the caller that waits for a delete gets a timeout, once. The delete itself is
// done when the disk goes on.
Test(index_memory, a_delete_that_takes_too_long_times_out)
{
    struct box box;
    EACH_ENGINE(&box, 64 * MIB)
    {
        if (!box_open_workers(&box, WORKERS)) {
            continue;
        }
        struct object object = small_object(&box, "k");
        cr_assert(box_put(&box, &object) == ERR_OK);
        unsigned long late = stats_sum(COUNTER_index_deletes_late);
        store_fault_stall(STORE_FAULT_COMMIT, true);
        struct deletion deletion;
        delete_start(&box, "k", object.generation + 1, &deletion);
        store_fault_stall_reached(STORE_FAULT_COMMIT);
        cr_assert(!atomic_load(&deletion.done));
        clock_test_advance_us(STORE_DELETE_WAIT_MS * 1000ull);
        wait_for(atomic_load(&deletion.done));
        cr_assert(deletion.d.err != ERR_OK);
        cr_assert_eq(stats_sum(COUNTER_index_deletes_late), late + 1);
        all_find(&box, "k", 0);
        atomic_store(&deletion.done, false);
        store_fault_stall(STORE_FAULT_COMMIT, false);
        cr_assert(flush(&box) == ERR_OK);
        all_find(&box, "k", 0);
        cr_assert(!atomic_load(&deletion.done));
        delete_start(&box, "k", object.generation + 1, &deletion);
        wait_for(atomic_load(&deletion.done));
        cr_assert(deletion.d.err == ERR_OK);
        box_close(&box);
    }
}

Test(index_memory, runs_of_both_sides_are_one_version)
{
    struct box box;
    EACH_ENGINE(&box, 64 * MIB)
    {
        if (!box_open_workers(&box, WORKERS)) {
            continue;
        }
        struct object object = {"k", "\"tag\"", 10 * BLOCK, BLOCK,
                                store_generation_next(box.store)};
        cr_assert(box_put_run(&box, &object, 4, 2) == ERR_OK);
        static const unsigned firsts[] = {8, 0, 6, 4}; // the last one is there already
        struct store_place places[ARRAY_LEN(firsts)];
        for (unsigned i = 0; i < ARRAY_LEN(firsts); i++) {
            cr_assert(box_write(&box, 0, &object, firsts[i], 2, 2, &places[i]) == ERR_OK);
        }
        store_fault_stall(STORE_FAULT_SYNC, true);
        for (unsigned i = 0; i < ARRAY_LEN(firsts); i++) {
            box_enter(&box, &object, &places[i]);
            box_let_go(&places[i]);
        }
        const struct store_view *view = look(&box, 1, "k");
        cr_assert_eq(view->place_count, 4u);
        static const unsigned expected[] = {0, 4, 6, 8};
        for (unsigned i = 0; i < 4; i++) {
            cr_assert(view->places[i].first_block == expected[i]);
        }
        cr_assert(box_read(&box, 2, &object) == 8 * BLOCK);
        store_fault_stall(STORE_FAULT_SYNC, false);
        cr_assert(flush(&box) == ERR_OK);
        cr_assert(held(&box) == 0);
        cr_assert(look(&box, 1, "k")->place_count == 4);
        cr_assert(box_read(&box, 2, &object) == 8 * BLOCK);
        box_close(&box);
    }
}

Test(index_memory, a_delete_hides_at_once_and_answers_when_it_is_durable)
{
    struct box box;
    EACH_ENGINE(&box, 64 * MIB)
    {
        if (!box_open_workers(&box, WORKERS)) {
            continue;
        }
        struct object object = small_object(&box, "k");
        cr_assert(box_put(&box, &object) == ERR_OK);
        store_fault_stall(STORE_FAULT_COMMIT, true);
        struct deletion deletion;
        delete_start(&box, "k", object.generation + 1, &deletion);
        all_find(&box, "k", 0);
        store_fault_stall_reached(STORE_FAULT_COMMIT);
        all_find(&box, "k", 0);
        cr_assert(!atomic_load(&deletion.done));
        store_fault_stall(STORE_FAULT_COMMIT, false);
        wait_for(atomic_load(&deletion.done));
        cr_assert(deletion.d.err == ERR_OK);
        cr_assert(held(&box) == 0);
        all_find(&box, "k", 0);
        box_close(&box);
        cr_assert(box_open(&box));
        all_find(&box, "k", 0);
        box_close(&box);
    }
}

Test(index_memory, a_delete_waits_for_a_put_before_it)
{
    struct box box;
    EACH_ENGINE(&box, 64 * MIB)
    {
        if (!box_open_workers(&box, WORKERS)) {
            continue;
        }
        struct object object = small_object(&box, "k");
        struct store_place place;
        write_run(&box, &object, &place);
        store_fault_stall(STORE_FAULT_SYNC, true);
        box_enter(&box, &object, &place);
        struct deletion deletion;
        delete_start(&box, "k", object.generation + 1, &deletion);
        all_find(&box, "k", 0);
        cr_assert(!atomic_load(&deletion.done));
        box_enter(&box, &object, &place); // too late
        all_find(&box, "k", 0);
        store_fault_stall(STORE_FAULT_SYNC, false);
        wait_for(atomic_load(&deletion.done));
        cr_assert(deletion.d.err == ERR_OK);
        box_let_go(&place);
        box_close(&box);
        cr_assert(box_open(&box));
        all_find(&box, "k", 0);
        box_close(&box);
    }
}

Test(index_memory, a_delete_of_an_unknown_key_needs_no_commit)
{
    struct box box;
    EACH_ENGINE(&box, 64 * MIB)
    {
        if (!box_open_workers(&box, WORKERS)) {
            continue;
        }
        wait_for(!atomic_load(&box.store->index.memory.recovering));
        struct object object = small_object(&box, "other");
        cr_assert(box_put(&box, &object) == ERR_OK);
        uint64_t txn = index_last_txn(&box.store->index);
        cr_assert(box_post_delete(&box, "k", store_generation_next(box.store)) == ERR_OK);
        cr_assert(index_last_txn(&box.store->index) == txn);
        cr_assert(held(&box) == 0);
        box_close(&box);
    }
}

struct timed {
    struct box *box;
    struct store_object *made;
    const struct store_place *place;
    uint64_t ago_us;
};

static void do_put_timed(struct worker *w, void *ctx)
{
    struct timed *timed = ctx;
    store_put(w, timed->box->store, timed->made, timed->place, NULL,
              worker_now_us(w) - timed->ago_us);
}

Test(index_memory, a_new_version_is_as_old_as_its_request_and_is_renewed_before_it_is_durable)
{
    struct box box;
    EACH_ENGINE(&box, 64 * MIB)
    {
        if (!box_open_workers(&box, WORKERS)) {
            continue;
        }
        struct object object = small_object(&box, "k");
        struct object other = small_object(&box, "l");
        struct store_place place, other_place;
        write_run(&box, &object, &place);
        write_run(&box, &other, &other_place);
        store_fault_stall(STORE_FAULT_SYNC, true);
        struct timed timed = {&box, box_object(&box, &object), &place, 40000000};
        box_on_worker(&box, 0, do_put_timed, &timed);
        store_object_unref(timed.made);
        timed = (struct timed){&box, box_object(&box, &other), &other_place, 40000000};
        box_on_worker(&box, 0, do_put_timed, &timed);
        store_object_unref(timed.made);
        box_let_go(&place);
        box_let_go(&other_place);
        cr_assert(look(&box, 1, "k")->age_ms >= 40000);
        cr_assert(look(&box, 1, "k")->age_ms < 1000000000);
        box_renew(&box, "k", object.generation);
        cr_assert(look(&box, 1, "k")->age_ms < 40000);
        store_fault_stall(STORE_FAULT_SYNC, false);
        cr_assert(flush(&box) == ERR_OK);
        wait_for(atomic_load(&box.store->index.renewal_count) == 0);
        cr_assert(look(&box, 1, "k")->age_ms < 40000);
        cr_assert(look(&box, 1, "l")->age_ms >= 40000);
        box_close(&box);
        cr_assert(box_open(&box));
        cr_assert(look(&box, 1, "k")->age_ms < 40000);
        cr_assert(look(&box, 1, "l")->age_ms >= 40000);
        box_close(&box);
    }
}

Test(index_memory, a_stop_makes_all_puts_durable)
{
    struct box box;
    EACH_ENGINE(&box, 64 * MIB)
    {
        if (!box_open_workers(&box, WORKERS)) {
            continue;
        }
        char keys[40][16];
        struct object objects[ARRAY_LEN(keys)];
        for (unsigned i = 0; i < ARRAY_LEN(keys); i++) {
            (void)snprintf(keys[i], sizeof(keys[i]), "key %u", i);
            objects[i] = small_object(&box, keys[i]);
            struct store_place place;
            write_run(&box, &objects[i], &place);
            box_enter(&box, &objects[i], &place);
            box_let_go(&place);
        }
        box_close(&box);
        cr_assert(box_open(&box));
        for (unsigned i = 0; i < ARRAY_LEN(keys); i++) {
            cr_assert(box_read(&box, 0, &objects[i]) == objects[i].size);
        }
        box_close(&box);
    }
}

Test(index_memory, a_commit_is_on_disk_with_its_meta_page)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    unsigned flags;
    cr_assert(mdb_env_get_flags(atomic_load(&box.store->index.current)->env, &flags) == 0);
    cr_assert((flags & (MDB_NOSYNC | MDB_NOMETASYNC | MDB_MAPASYNC | MDB_WRITEMAP)) == 0);
    box_close(&box);
    box_remove(&box);
}

// --- what cannot be looked at

Test(index_memory, look_ups_that_are_off_know_nothing_absent_and_deletes_reach_the_disk)
{
    struct box box;
    EACH_ENGINE(&box, 64 * MIB)
    {
        if (!box_open_workers(&box, WORKERS)) {
            continue;
        }
        struct object old = small_object(&box, "old");
        struct object new = small_object(&box, "new");
        cr_assert(box_put(&box, &old) == ERR_OK);
        cr_assert(!look(&box, 1, "nothing")->unknown && !look(&box, 1, "old")->unknown);
        struct store_place place;
        write_run(&box, &new, &place);
        for (unsigned i = 0; i < 100; i++) {
            disk_read_failed(&box.store->disk);
        }
        cr_assert(!look(&box, 1, "old")->found && look(&box, 1, "old")->unknown);
        cr_assert(!look(&box, 1, "nothing")->found && look(&box, 1, "nothing")->unknown);
        store_fault_stall(STORE_FAULT_SYNC, true);
        box_enter(&box, &new, &place);
        box_let_go(&place);
        cr_assert(look(&box, 1, "new")->found && look(&box, 1, "new")->unknown);
        store_fault_stall(STORE_FAULT_SYNC, false);
        cr_assert(box_post_delete(&box, "old", old.generation + 1) == ERR_OK);
        clock_test_advance_us(10000001);
        cr_assert(!look(&box, 1, "old")->found && !look(&box, 1, "old")->unknown);
        cr_assert(look(&box, 1, "new")->found && !look(&box, 1, "new")->unknown);
        box_close(&box);
    }
}

Test(index_memory, without_an_index_nothing_counts_as_absent_and_puts_are_found)
{
    struct box box;
    EACH_ENGINE(&box, 64 * MIB)
    {
        if (!box_open_workers(&box, WORKERS)) {
            continue;
        }
        wait_for(!atomic_load(&box.store->index.memory.recovering));
        struct object old = small_object(&box, "old");
        struct object new = small_object(&box, "new");
        cr_assert(box_put(&box, &old) == ERR_OK);
        struct store_place place;
        write_run(&box, &new, &place);
        cr_assert(flush(&box) == ERR_OK);
        index_close(&box.store->index); // the index writer waits for work
        cr_assert(!look(&box, 1, "old")->found && look(&box, 1, "old")->unknown);
        store_fault_stall(STORE_FAULT_SYNC, true);
        box_enter(&box, &new, &place);
        box_let_go(&place);
        cr_assert(look(&box, 1, "new")->found && look(&box, 1, "new")->unknown);
        struct deletion deletion;
        delete_start(&box, "old", old.generation + 1, &deletion);
        store_fault_stall(STORE_FAULT_SYNC, false);
        wait_for(atomic_load(&deletion.done)); // it has opened the index again
        cr_assert(deletion.d.err == ERR_OK);
        cr_assert(!look(&box, 1, "old")->found && !look(&box, 1, "old")->unknown);
        cr_assert(look(&box, 1, "new")->found && !look(&box, 1, "new")->unknown);
        box_close(&box);
    }
}

static bool is_built(const struct box *box)
{
    return !atomic_load(&box->store->recovery.is_rebuilding) &&
           !atomic_load(&box->store->index.memory.recovering);
}

Test(index_memory, a_rebuild_does_not_bring_back_what_a_delete_has_removed)
{
    struct box box;
    EACH_ENGINE(&box, 64 * MIB)
    {
        if (!box_open_workers(&box, WORKERS)) {
            continue;
        }
        wait_for(is_built(&box));
        struct object gone = small_object(&box, "gone");
        struct object kept = small_object(&box, "kept");
        struct object renamed = small_object(&box, "renamed");
        cr_assert(box_put(&box, &gone) == ERR_OK);
        cr_assert(box_put(&box, &kept) == ERR_OK);
        index_memory_recovering(&box.store->index.memory, true); // as while one goes on
        cr_assert(box_post_delete(&box, "gone", gone.generation + 1) == ERR_OK);
        cr_assert(held(&box) == 1);
        // A run waits while the same version is found in a segment: the home's name counts.
        struct store_place place;
        write_run(&box, &renamed, &place);
        store_fault_stall(STORE_FAULT_SYNC, true);
        box_enter(&box, &renamed, &place);
        box_let_go(&place);
        store_fault_stall_reached(STORE_FAULT_SYNC);
        recovery_want_rebuild(&box.store->recovery);
        all_find(&box, "renamed", renamed.generation);
        store_fault_stall(STORE_FAULT_SYNC, false);
        wait_for(is_built(&box));
        all_find(&box, "gone", 0);
        all_find(&box, "kept", kept.generation);
        all_find(&box, "renamed", renamed.generation);
        cr_assert(held(&box) == 0);
        box_close(&box);
    }
}

// --- a disk that refuses

Test(index_memory, a_refused_put_is_a_miss_again_and_the_replaced_version_stays_hidden)
{
    struct box box;
    EACH_ENGINE(&box, 64 * MIB)
    {
        if (!box_open_workers(&box, WORKERS)) {
            continue;
        }
        struct object before = small_object(&box, "k");
        cr_assert(box_put(&box, &before) == ERR_OK);
        struct object after = small_object(&box, "k");
        struct object fresh = small_object(&box, "l");
        struct store_place place, fresh_place;
        write_run(&box, &after, &place);
        write_run(&box, &fresh, &fresh_place);
        store_fault_set(STORE_FAULT_COMMIT, 1, true, EIO);
        box_enter(&box, &after, &place);
        box_enter(&box, &fresh, &fresh_place);
        all_find(&box, "k", after.generation);
        cr_assert(flush(&box) != ERR_OK);
        all_find(&box, "k", 0);
        all_find(&box, "l", 0);
        cr_assert(atomic_load(&place.segment->holds) >= 2); // only ours are left
        box_let_go(&place);
        box_let_go(&fresh_place);
        store_fault_set(STORE_FAULT_COMMIT, 0, false, 0);
        wait_for(held(&box) == 0); // the index writer tries again by itself
        wait_for(atomic_load(&box.store->index.memory.pending) == 0);
        all_find(&box, "k", 0);
        box_close(&box);
        cr_assert(box_open(&box));
        all_find(&box, "k", 0);
        box_close(&box);
    }
}

Test(index_memory, a_put_whose_segment_is_lost_still_replaces_the_old_version)
{
    struct box box;
    EACH_ENGINE(&box, 512 * MIB)
    {
        if (!box_open_workers(&box, WORKERS)) {
            continue;
        }
        struct object before = small_object(&box, "k");
        struct store_place old_place, place;
        write_run(&box, &before, &old_place);
        cr_assert(box_post_put(&box, &before, &old_place) == ERR_OK);
        struct object after = small_object(&box, "k");
        cr_assert(box_write(&box, 1, &after, 0, 1, 1, &place) == ERR_OK); // of another slot
        cr_assert(place.segment != old_place.segment);
        box_let_go(&old_place);
        store_fault_stall(STORE_FAULT_COMMIT, true);
        box_enter(&box, &after, &place);
        store_fault_stall_reached(STORE_FAULT_COMMIT);
        segment_log_abandon(&box.store->log, place.segment);
        cr_assert(look(&box, 1, "k")->generation == after.generation);
        cr_assert(look(&box, 1, "k")->place_count == 0);
        struct object lost = small_object(&box, "k");
        box_enter(&box, &lost, &place); // dying already when it is put
        all_find(&box, "k", 0);
        box_let_go(&place);
        store_fault_stall(STORE_FAULT_COMMIT, false);
        cr_assert(flush(&box) == ERR_OK);
        all_find(&box, "k", 0);
        cr_assert(held(&box) == 0);
        box_close(&box);
        cr_assert(box_open(&box));
        all_find(&box, "k", 0);
        box_close(&box);
    }
}

enum refusing { REFUSES_COMMITS, REFUSES_MARKERS, REFUSES_ALL, REFUSALS };

static void refuse(enum refusing refusing)
{
    store_fault_set(STORE_FAULT_COMMIT, 1, true, EIO);
    store_fault_set(STORE_FAULT_DISOWN, refusing >= REFUSES_MARKERS, true, ENOSPC);
    store_fault_set(STORE_FAULT_REMOVE, refusing >= REFUSES_ALL, true, EROFS);
}

static void refuse_nothing(void)
{
    store_fault_set(STORE_FAULT_COMMIT, 0, false, 0);
    store_fault_set(STORE_FAULT_DISOWN, 0, false, 0);
    store_fault_set(STORE_FAULT_REMOVE, 0, false, 0);
}

static bool is_marked(const struct box *box)
{
    return faccessat(box->store->disk.dir.index_fd, INDEX_BAD_MARKER, F_OK, 0) == 0;
}

// A process that deletes while the disk refuses, and is killed. Its exit status says what the
// delete returned.
static void __attribute__((noreturn)) deleter_main(struct box *box, enum refusing refusing)
{
    if (!box_open(box)) {
        _exit(2);
    }
    refuse(refusing);
    enum err err = box_post_delete(box, "k", store_generation_next(box->store));
    bool hidden = !look(box, 0, "k")->found && !look(box, 1, "k")->found;
    _exit(hidden ? err != ERR_OK : 3);
}

Test(index_memory, a_refused_delete_is_not_believed_by_the_next_process_or_reported)
{
    struct box box;
    EACH_ENGINE(&box, 64 * MIB)
    {
        if (!box_open(&box)) {
            continue;
        }
        box_close(&box);
        for (unsigned refusing = 0; refusing < REFUSALS; refusing++) {
            cr_assert(box_open(&box));
            struct object object = small_object(&box, "k");
            cr_assert(box_put(&box, &object) == ERR_OK);
            box_close(&box);
            pid_t pid = fork();
            cr_assert(pid >= 0);
            if (pid == 0) {
                deleter_main(&box, refusing);
            }
            int status;
            cr_assert(waitpid(pid, &status, 0) == pid);
            cr_assert(WIFEXITED(status));
            cr_assert_eq(WEXITSTATUS(status), refusing == REFUSES_ALL ? 1 : 0);
            cr_assert(box_open(&box));
            wait_for(is_built(&box));
            const struct store_view *view = look(&box, 0, "k");
            cr_assert(refusing == REFUSES_ALL ? view->found && !view->rebuilt
                                              : !view->found || view->rebuilt);
            box_close(&box);
        }
    }
}

Test(index_memory, a_refused_delete_is_repeated_until_the_disk_takes_it)
{
    struct box box;
    EACH_ENGINE(&box, 64 * MIB)
    {
        if (!box_open_workers(&box, WORKERS)) {
            continue;
        }
        for (unsigned refusing = 0; refusing < REFUSALS; refusing++) {
            wait_for(is_built(&box));
            clock_test_advance_us(61000000); // filling is on again
            wait_for(atomic_load(&box.store->log.room) > 0);
            struct object object = small_object(&box, "k");
            cr_assert(box_put(&box, &object) == ERR_OK);
            refuse(refusing);
            enum err err = box_post_delete(&box, "k", object.generation + 1);
            cr_assert((err == ERR_OK) == (refusing != REFUSES_ALL));
            cr_assert(is_marked(&box) == (refusing == REFUSES_COMMITS));
            all_find(&box, "k", 0);
            wait_for(is_built(&box));
            all_find(&box, "k", 0); // also after the rebuild of the index
            refuse_nothing();
            wait_for(held(&box) == 0);
            wait_for(!is_marked(&box));
            cr_assert(atomic_load(&box.store->index.memory.pending) == 0);
            all_find(&box, "k", 0);
            box_close(&box);
            cr_assert(box_open_workers(&box, WORKERS));
            all_find(&box, "k", 0);
        }
        box_close(&box);
    }
}

// --- bounds

// A rebuild that was ordered is done, but not once for each refusal of the disk.
Test(index_memory, refused_deletes_do_not_order_rebuild_after_rebuild)
{
    struct box box;
    EACH_ENGINE(&box, 64 * MIB)
    {
        if (!box_open_workers(&box, WORKERS)) {
            continue;
        }
        wait_for(is_built(&box));
        char key[32];
        for (unsigned i = 0; i < 64; i++) {
            (void)snprintf(key, sizeof(key), "key-%u", i);
            struct object object = small_object(&box, key);
            cr_assert(box_put(&box, &object) == ERR_OK);
        }
        uint64_t before = stats_sum(COUNTER_index_rebuilds);
        uint64_t began_us = clock_monotonic_us();
        for (unsigned i = 0; clock_monotonic_us() - began_us < 1000000; i++) {
            (void)snprintf(key, sizeof(key), "key-%u", i % 64);
            refuse(REFUSES_MARKERS);
            cr_assert(box_post_delete(&box, key, store_generation_next(box.store)) == ERR_OK);
            refuse_nothing(); // and what the rebuild finds is taken
        }
        uint64_t rebuilds = stats_sum(COUNTER_index_rebuilds) - before;
        uint64_t left_us = clock_monotonic_us() - began_us;
        uint64_t most = 2;
        for (uint64_t pause_us = 125000; left_us > pause_us; pause_us *= 2) {
            left_us -= pause_us;
            most++;
        }
        cr_assert(rebuilds > 0);
        cr_assert(rebuilds <= most, "%lu, at most %lu", rebuilds, most);
        wait_for(is_built(&box));
        box_close(&box);
    }
}

Test(index_memory, floors_that_wait_for_a_rebuild_are_bounded)
{
    struct index_memory memory;
    index_memory_init(&memory, 1);
    index_memory_recovering(&memory, true);
    for (uint64_t i = 1; i <= MEMORY_FLOORS_MAX + 1000; i++) {
        struct hash128 hash = {i, i};
        index_memory_hide(&memory, hash, 5);
        index_memory_floor_durable(&memory, hash, 5);
    }
    cr_assert(atomic_load(&memory.count) <= MEMORY_FLOORS_MAX);
    index_memory_recovering(&memory, false);
    cr_assert_eq(atomic_load(&memory.count), 0);
    index_memory_done(&memory);
}

struct refused_flood {
    struct box *box;
    struct store_delete *deletions;
    unsigned count;
};

static atomic_uint refused_done;

static void on_refused(struct store_delete *d)
{
    (void)d;
    atomic_fetch_add(&refused_done, 1);
}

static void do_refused_flood(struct worker *w, void *ctx)
{
    struct refused_flood *flood = ctx;
    uint64_t floor = store_generation_next(flood->box->store);
    for (unsigned i = 0; i < flood->count; i++) {
        char key[32];
        (void)snprintf(key, sizeof(key), "refused %u", i);
        flood->deletions[i] = (struct store_delete){
            .hash = box_hash(flood->box, key), .floor = floor, .done = on_refused};
        store_delete(w, flood->box->store, &flood->deletions[i]);
    }
}

// A disk takes no delete, and its content is unknown. The memory for that does not grow with the
// number of requested keys.
Test(index_memory, deletes_that_a_broken_disk_refuses_are_bounded)
{
    enum { FLOOD = 3 * MEMORY_PENDING_MAX };
    struct box box;
    EACH_ENGINE(&box, 64 * MIB)
    {
        if (!box_open_workers(&box, WORKERS)) {
            continue;
        }
        for (unsigned refusing = 0; refusing < REFUSALS; refusing++) {
            wait_for(is_built(&box));
            clock_test_advance_us(61000000); // filling is on again
            wait_for(atomic_load(&box.store->log.room) > 0);
            struct object object = small_object(&box, "k");
            cr_assert(box_put(&box, &object) == ERR_OK);
            refuse(refusing);
            uint64_t given_up = stats_sum(COUNTER_index_given_up);
            for (unsigned i = 0; i < 100; i++) {
                disk_read_failed(&box.store->disk); // look-ups are off
            }
            (void)box_post_delete(&box, "k", object.generation + 1);
            struct refused_flood flood = {.box = &box, .count = FLOOD};
            flood.deletions = calloc(FLOOD, sizeof(*flood.deletions));
            cr_assert(flood.deletions != NULL);
            atomic_store(&refused_done, 0);
            box_on_worker(&box, 0, do_refused_flood, &flood);
            wait_for(atomic_load(&refused_done) == FLOOD);
            free(flood.deletions);
            wait_for(held(&box) <= MEMORY_PENDING_MAX);
            cr_assert(stats_sum(COUNTER_index_given_up) > given_up);
            cr_assert(atomic_load(&box.store->index.memory.pending) <= MEMORY_PENDING_MAX);
            clock_test_advance_us(10000001); // look-ups are on
            for (unsigned w = 0; w < WORKERS; w++) {
                cr_assert(!look(&box, w, "k")->found || look(&box, w, "k")->rebuilt);
            }
            refuse_nothing();
            cr_assert(flush(&box) == ERR_OK);
            wait_for(held(&box) == 0 && is_built(&box));
            wait_for(atomic_load(&box.store->index.memory.pending) == 0);
            wait_for(!is_marked(&box));
            cr_assert(!look(&box, 0, "k")->found || look(&box, 0, "k")->rebuilt);
            box_close(&box);
            cr_assert(box_open_workers(&box, WORKERS));
            wait_for(is_built(&box));
            cr_assert(!look(&box, 0, "k")->found || look(&box, 0, "k")->rebuilt);
        }
        box_close(&box);
    }
}

struct flood {
    struct box *box;
    const struct store_place *place;
    unsigned wanted, entered;
    enum err err; // of the first refusing
};

static struct store_object *flood_object(const struct box *box, unsigned i)
{
    char key[24];
    (void)snprintf(key, sizeof(key), "flood %u", i);
    struct object object = {key, "\"tag\"", 9000, BLOCK, 1000 + i};
    return box_object(box, &object);
}

static void do_flood(struct worker *w, void *ctx)
{
    struct flood *flood = ctx;
    for (unsigned i = 0; i < flood->wanted; i++) {
        struct store_object *made = flood_object(flood->box, i);
        struct store_run *run;
        enum err err;
        do { // the next segment may come later than it is asked for
            err = store_run_begin(w, flood->box->store, made, 0, 1,
                                  (struct store_run_use){.group = STORE_PRIORITY_NORMAL}, &run);
        } while (err != ERR_OK && err != ERR_INDEX_BUSY);
        if (err == ERR_OK) {
            store_run_abort(run);
            store_put(w, flood->box->store, made, flood->place, NULL, worker_now_us(w));
            flood->entered++;
        } else if (flood->err == ERR_OK) {
            flood->err = err;
        }
        store_object_unref(made);
    }
}

Test(index_memory, puts_that_a_stalled_sync_holds_up_are_bounded)
{
    struct box box;
    EACH_ENGINE(&box, 256 * MIB)
    {
        if (!box_open_workers(&box, WORKERS)) {
            continue;
        }
        struct object object = small_object(&box, "k");
        struct store_place place;
        write_run(&box, &object, &place);
        store_fault_stall(STORE_FAULT_SYNC, true);
        uint64_t refused = stats_sum(COUNTER_admission_rejected_index_busy);
        struct flood flood = {.box = &box, .place = &place, .wanted = 3 * MEMORY_PENDING_MAX};
        box_on_worker(&box, 0, do_flood, &flood);
        cr_assert_eq(flood.entered, MEMORY_PENDING_MAX);
        cr_assert(flood.err == ERR_INDEX_BUSY);
        cr_assert_eq(stats_sum(COUNTER_admission_rejected_index_busy) - refused,
                     2 * MEMORY_PENDING_MAX);
        cr_assert_eq(held(&box), MEMORY_PENDING_MAX);
        for (unsigned i = 0; i < MEMORY_PENDING_MAX; i += 97) {
            char key[24];
            (void)snprintf(key, sizeof(key), "flood %u", i);
            all_find(&box, key, 1000 + i);
        }
        store_fault_stall(STORE_FAULT_SYNC, false);
        cr_assert(flush(&box) == ERR_OK);
        cr_assert(held(&box) == 0);
        cr_assert(atomic_load(&box.store->index.memory.pending_bytes) == 0);
        flood = (struct flood){.box = &box, .place = &place, .wanted = 1};
        box_on_worker(&box, 0, do_flood, &flood);
        cr_assert(flood.entered == 1);
        box_let_go(&place);
        box_close(&box);
    }
}

Test(index_memory, bytes_that_are_not_durable_hold_at_most_half_of_the_cache)
{
    struct box box;
    EACH_ENGINE(&box, 64 * MIB)
    {
        if (!box_open_workers(&box, WORKERS)) {
            continue;
        }
        store_fault_stall(STORE_FAULT_SYNC, true);
        uint64_t refused = stats_sum(COUNTER_admission_rejected_index_busy);
        uint64_t entered = 0;
        char key[24];
        for (unsigned looks = 0; refused == stats_sum(COUNTER_admission_rejected_index_busy);
             looks++) {
            cr_assert(looks < WAIT_LOOKS_MAX);
            (void)snprintf(key, sizeof(key), "key %u", looks);
            struct object object = {key, "\"tag\"", 1 * MIB, BLOCK,
                                    store_generation_next(box.store)};
            struct store_place place;
            enum err err = box_write(&box, 0, &object, 0, 16, 16, &place);
            if (err == ERR_OK) {
                box_enter(&box, &object, &place);
                box_let_go(&place);
                entered += 1 * MIB;
            } else if (box_has_no_segment(err)) { // the next segment is still being made
                (void)usleep(1000);
            } else {
                cr_assert(err == ERR_INDEX_BUSY);
            }
        }
        cr_assert(stats_sum(COUNTER_admission_rejected_index_busy) == refused + 1);
        cr_assert(entered <= 32 * MIB);
        store_fault_stall(STORE_FAULT_SYNC, false);
        cr_assert(flush(&box) == ERR_OK);
        box_close(&box);
    }
}

// --- readers without a lock

#define RACE_KEYS 24u
#define RACE_ROUNDS 6000u

struct race {
    struct box *box;
    struct hash128 hashes[RACE_KEYS];
    struct store_object *objects[RACE_KEYS];
    struct store_place place;
    // The home's last change, written after its call has returned: twice the generation, and one
    // more for a put. 0: a change is in progress.
    _Atomic uint64_t said[RACE_KEYS];
    uint64_t newest[4][RACE_KEYS]; // that a worker has seen
    unsigned rounds;
    uint64_t seed;
    atomic_bool over;
    atomic_ulong judged; // look-ups whose answer was certain
};

static void on_race_deleted(struct store_delete *d)
{
    check(d->err == ERR_OK);
    free(d);
}

static void do_race_home(struct worker *w, void *ctx)
{
    struct race *race = ctx;
    struct store *store = race->box->store;
    for (unsigned i = 0; i < 50; i++) {
        race->seed = race->seed * 6364136223846793005u + 1442695040888963407u;
        unsigned k = (unsigned)(race->seed >> 33) % RACE_KEYS;
        unsigned what = (unsigned)(race->seed >> 50) % 8;
        uint64_t said = atomic_load(&race->said[k]);
        if (what == 0 && said % 2 == 1) {
            struct store_renewal renewal = {.hash = race->hashes[k], .generation = said / 2};
            store_renew(w, store, &renewal, 1, worker_now_us(w));
            continue;
        }
        uint64_t generation = store_generation_next(store);
        atomic_store(&race->said[k], 0);
        if (what <= 2) {
            struct store_delete *d = calloc(1, sizeof(*d));
            check(d != NULL);
            d->hash = race->hashes[k];
            d->floor = generation;
            d->done = on_race_deleted;
            store_delete(w, store, d);
            atomic_store(&race->said[k], 2 * generation);
        } else {
            struct store_object *made = store_object_with_generation(race->objects[k], generation);
            store_put(w, store, made, &race->place, NULL, worker_now_us(w));
            store_object_unref(made);
            atomic_store(&race->said[k], 2 * generation + 1);
        }
    }
    race->rounds += 50;
}

static void do_race_look(struct worker *w, void *ctx)
{
    struct race *race = ctx;
    static _Thread_local struct store_view view;
    uint64_t *newest = race->newest[worker_index(w)];
    for (unsigned i = 0; i < 200; i++) {
        unsigned k = (unsigned)(random_u64() % RACE_KEYS);
        uint64_t before = atomic_load(&race->said[k]);
        store_lookup(w, race->box->store, race->hashes[k], 0, 100, 0, &view);
        uint64_t after = atomic_load(&race->said[k]);
        cr_assert(!view.unknown);
        if (view.found) {
            cr_assert(view.generation >= newest[k]);
            cr_assert(before == 0 || view.generation >= before / 2);
            cr_assert(view.place_count == 1);
            newest[k] = view.generation;
        }
        if (before == after && before != 0) {
            cr_assert_eq(view.found, before % 2 == 1);
            cr_assert(!view.found || view.generation == before / 2);
            atomic_fetch_add(&race->judged, 1);
        }
        store_view_done(&view);
    }
}

struct racer {
    struct race *race;
    unsigned worker;
};

static void *racer_main(void *ctx)
{
    struct racer *racer = ctx;
    while (!atomic_load(&racer->race->over)) {
        box_on_worker(racer->race->box, racer->worker, do_race_look, racer->race);
    }
    return NULL;
}

Test(index_memory, no_reader_goes_back_while_the_home_and_the_index_writer_change_everything)
{
    struct box box;
    EACH_ENGINE(&box, 64 * MIB)
    {
        if (!box_open_workers(&box, 4)) {
            continue;
        }
        struct race *race = calloc(1, sizeof(*race));
        race->box = &box;
        race->seed = 1 + engine_index;
        struct object object = small_object(&box, "place");
        write_run(&box, &object, &race->place);
        for (unsigned k = 0; k < RACE_KEYS; k++) {
            race->objects[k] = flood_object(&box, k);
            race->hashes[k] = race->objects[k]->hash;
        }
        pthread_t threads[3];
        struct racer racers[3];
        for (unsigned i = 0; i < 3; i++) {
            racers[i] = (struct racer){race, 1 + i};
            cr_assert(pthread_create(&threads[i], NULL, racer_main, &racers[i]) == 0);
        }
        while (race->rounds < RACE_ROUNDS) {
            box_on_worker(&box, 0, do_race_home, race);
            if (race->rounds % 500 == 0) {
                cr_assert(flush(&box) == ERR_OK);
            }
        }
        atomic_store(&race->over, true);
        for (unsigned i = 0; i < 3; i++) {
            cr_assert(pthread_join(threads[i], NULL) == 0);
        }
        cr_assert(atomic_load(&race->judged) > 0);
        cr_assert(flush(&box) == ERR_OK);
        cr_assert(held(&box) == 0);
        for (unsigned k = 0; k < RACE_KEYS; k++) {
            store_object_unref(race->objects[k]);
        }
        box_let_go(&race->place);
        box_close(&box);
        free(race);
    }
}

// --- against a model

#define MODEL_KEYS 8u
#define MODEL_BLOCKS 4u
#define MODEL_STEPS 400u

struct model_key {
    char name[16];
    uint64_t generation; // 0: nothing is to be found
    bool blocks[MODEL_BLOCKS];
    bool doubtful;    // a commit has failed since: it may be gone
    bool durable;     // committed as it is
    uint64_t removed; // a delete below this was answered
};

struct model {
    struct box *box;
    uint64_t seed;
    struct store_place place; // of one block; lies where it lies, whatever the key and block
    struct model_key keys[MODEL_KEYS];
};

static unsigned model_random(struct model *m, unsigned below)
{
    m->seed = m->seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(m->seed >> 33) % below;
}

static void model_check(struct model *m, struct model_key *k)
{
    const struct store_view *view = look(m->box, model_random(m, 2), k->name);
    cr_assert(!view->unknown);
    if (view->found) {
        cr_assert(view->generation == k->generation, "seed %llu", (unsigned long long)m->seed);
    } else if (k->doubtful) {
        k->generation = 0;
    }
    cr_assert_eq(view->found, k->generation != 0);
    if (!view->found) {
        return;
    }
    bool there[MODEL_BLOCKS] = {false};
    for (unsigned i = 0; i < view->place_count; i++) {
        cr_assert(view->places[i].first_block < MODEL_BLOCKS);
        cr_assert(i == 0 || view->places[i].first_block > view->places[i - 1].first_block);
        there[view->places[i].first_block] = true;
    }
    for (unsigned b = 0; b < MODEL_BLOCKS; b++) {
        cr_assert(k->blocks[b] || !there[b]);
        cr_assert(there[b] || !k->blocks[b] || k->doubtful);
        k->blocks[b] = there[b];
    }
    k->doubtful = false;
}

static void model_put(struct model *m, struct model_key *k)
{
    bool is_new = k->generation == 0 || model_random(m, 3) == 0;
    if (is_new) {
        memset(k->blocks, 0, sizeof(k->blocks));
        k->generation = store_generation_next(m->box->store);
        k->doubtful = false;
    }
    unsigned block = model_random(m, MODEL_BLOCKS);
    struct object object = {k->name, "\"tag\"", MODEL_BLOCKS * BLOCK, BLOCK, k->generation};
    struct store_place place = m->place;
    place.first_block = block;
    box_enter(m->box, &object, &place);
    k->blocks[block] = true;
    k->durable = false;
}

static void model_flush(struct model *m, enum err err)
{
    for (unsigned i = 0; i < MODEL_KEYS; i++) {
        struct model_key *k = &m->keys[i];
        k->doubtful |= err != ERR_OK && k->generation != 0;
        k->durable = err == ERR_OK;
    }
}

static void model_delete(struct model *m, struct model_key *k)
{
    uint64_t floor = store_generation_next(m->box->store);
    enum err err = box_post_delete(m->box, k->name, floor);
    k->generation = 0;
    if (err == ERR_OK) {
        k->removed = floor;
    }
    if (err != ERR_OK) {
        model_flush(m, err);
    }
    k->durable = err == ERR_OK;
}

// The process was killed: uncommitted changes are lost, and the store does nothing more about them.
static void model_crash(struct model *m)
{
    refuse(REFUSES_ALL);
    box_let_go(&m->place);
    box_close(m->box);
    refuse_nothing();
    cr_assert(box_open(m->box));
    clock_test_advance_us(61000000);
    wait_for(is_built(m->box));
    wait_for(atomic_load(&m->box->store->log.room) > 0);
    struct object object = {"place", "\"tag\"", MODEL_BLOCKS * BLOCK, BLOCK,
                            store_generation_next(m->box->store)};
    cr_assert(box_write(m->box, 0, &object, 0, 1, 1, &m->place) == ERR_OK);
    for (unsigned i = 0; i < MODEL_KEYS; i++) {
        struct model_key *k = &m->keys[i];
        const struct store_view *view = look(m->box, 0, k->name);
        cr_assert(!view->found || view->generation >= k->removed);
        if (k->durable && !k->doubtful) {
            cr_assert_eq(view->found, k->generation != 0);
            cr_assert(!view->found || view->generation == k->generation);
        }
        k->generation = view->found ? view->generation : 0;
        memset(k->blocks, 0, sizeof(k->blocks));
        for (unsigned p = 0; view->found && p < view->place_count; p++) {
            k->blocks[view->places[p].first_block] = true;
        }
        k->doubtful = false;
        k->durable = true;
    }
}

static void model_step(struct model *m)
{
    struct model_key *k = &m->keys[model_random(m, MODEL_KEYS)];
    switch (model_random(m, 16)) {
    case 0:
    case 1:
        model_delete(m, k);
        break;
    case 2:
        store_fault_set(STORE_FAULT_COMMIT, 1, false, EIO);
        (void)flush(m->box); // the fault may have met a batch before
        model_flush(m, ERR_IO);
        store_fault_set(STORE_FAULT_COMMIT, 0, false, 0);
        break;
    case 3:
        model_flush(m, flush(m->box));
        break;
    case 4:
        if (k->generation != 0) {
            box_renew(m->box, k->name, k->generation);
        }
        break;
    case 5:
        if (model_random(m, 4) == 0) {
            model_crash(m);
        }
        break;
    default:
        model_put(m, k);
        break;
    }
    model_check(m, k);
    model_check(m, &m->keys[model_random(m, MODEL_KEYS)]);
}

Test(index_memory, look_ups_agree_with_a_model_through_failed_commits_and_crashes)
{
    struct box box;
    EACH_ENGINE(&box, 64 * MIB)
    {
        if (!box_open(&box)) {
            continue;
        }
        struct model m = {.box = &box, .seed = 7 + engine_index};
        const char *seed = getenv("FOREBAY_TEST_SEED");
        m.seed = seed != NULL ? strtoull(seed, NULL, 10) : m.seed;
        for (unsigned i = 0; i < MODEL_KEYS; i++) {
            (void)snprintf(m.keys[i].name, sizeof(m.keys[i].name), "key %u", i);
        }
        wait_for(is_built(&box));
        struct object object = {"place", "\"tag\"", MODEL_BLOCKS * BLOCK, BLOCK,
                                store_generation_next(box.store)};
        cr_assert(box_write(&box, 0, &object, 0, 1, 1, &m.place) == ERR_OK);
        for (unsigned step = 0; step < MODEL_STEPS; step++) {
            model_step(&m);
        }
        box_let_go(&m.place);
        box_close(&box);
    }
}
