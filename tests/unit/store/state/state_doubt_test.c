// SPDX-License-Identifier: Apache-2.0
// Proves: confirmations from before a doubt's time do not count, and later ones do. Buckets above
// the number of slots share one. The next process has the same doubts.
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "stats/stats.h"
#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

static struct store *store_new(void)
{
    struct store *store = calloc(1, sizeof(*store));
    cr_assert_not_null(store);
    state_doubts_init(&store->doubts, &store->disk);
    return store;
}

static void store_end(struct store *store)
{
    state_doubts_done(&store->doubts);
    free(store);
}

static bool is_doubted(struct store *store, const char *bucket, uint64_t age_ms)
{
    return store_is_doubted(store, SPAN("origin"), span_from_cstr(bucket), age_ms);
}

static void pass_ms(uint64_t ms)
{
    clock_test_advance_us(ms * 1000);
}

static void expect_over(struct store *store, const char *bucket)
{
    cr_assert(is_doubted(store, bucket, 0) && is_doubted(store, bucket, UINT64_MAX));
    pass_ms(STORE_DOUBT_MS + 5000);
    cr_assert_not(is_doubted(store, bucket, 0), "a use that is confirmed now");
    cr_assert_not(is_doubted(store, bucket, 3000));
    cr_assert(is_doubted(store, bucket, 60000) && is_doubted(store, bucket, UINT64_MAX));
}

Test(store_doubt, until_its_time)
{
    struct store *store = store_new();
    cr_assert_not(is_doubted(store, "a", UINT64_MAX));
    store_doubt(store, SPAN("origin"), SPAN("a"));
    cr_assert_not(is_doubted(store, "b", UINT64_MAX));
    expect_over(store, "a");
    store_end(store);
}

Test(store_doubt, one_that_is_ended_early_covers_only_what_was_confirmed_before)
{
    struct store *store = store_new();
    struct store_doubt_open open[3];
    for (unsigned i = 0; i < 2; i++) {
        store_doubt_begin(store, SPAN("origin"), SPAN("a"), &open[i]);
    }
    cr_assert(is_doubted(store, "a", 0));
    pass_ms(1000);
    store_doubt_end(store, &open[1]);
    cr_assert(is_doubted(store, "a", 0), "the first one goes on");
    store_doubt_end(store, &open[0]);
    pass_ms(5000);
    cr_assert(is_doubted(store, "a", 6000) && !is_doubted(store, "a", 4000));
    store_doubt_begin(store, SPAN("origin"), SPAN("a"), &open[2]);
    store_doubt(store, SPAN("origin"), SPAN("a"));
    store_doubt_end(store, &open[2]);
    expect_over(store, "a");
    store_doubt(store, SPAN("origin"), SPAN("a"));
    store_doubt_begin(store, SPAN("origin"), SPAN("a"), &open[2]);
    store_doubt_end(store, &open[2]);
    expect_over(store, "a");
    store_end(store);
}

Test(store_doubt, beyond_the_slots)
{
    struct store *store = store_new();
    uint64_t before = stats_sum(COUNTER_bucket_doubts_shared);
    for (unsigned i = 0; i < STATE_DOUBTS_MAX + 1; i++) {
        char name[16];
        cr_assert_not(is_doubted(store, "other", 0));
        (void)snprintf(name, sizeof(name), "b%u", i);
        store_doubt(store, SPAN("origin"), span_from_cstr(name));
        cr_assert(is_doubted(store, name, 0));
    }
    cr_assert_eq(stats_sum(COUNTER_bucket_doubts_shared) - before, 1);
    cr_assert(is_doubted(store, "other", 0), "coarse, not forgotten");
    expect_over(store, "b0");
    store_end(store);
}

// Operators see how many buckets are in doubt, and until when.
Test(store_doubt, the_number_of_buckets_in_doubt_and_their_end_are_known)
{
    struct store *store = store_new();
    struct store_doubted doubted;
    uint64_t now_s = clock_wall_us() / 1000000;
    store_doubted(store, &doubted);
    cr_assert(doubted.buckets == 0 && !doubted.has_others && doubted.until_s == 0);
    cr_assert_eq(store_doubt_until_s(store, SPAN("origin"), SPAN("a")), 0);
    store_doubt(store, SPAN("origin"), SPAN("a"));
    store_doubt(store, SPAN("origin"), SPAN("b"));
    store_doubted(store, &doubted);
    cr_assert(doubted.buckets == 2 && !doubted.has_others && !doubted.after_crash);
    cr_assert_geq(doubted.until_s, now_s + STORE_DOUBT_MS / 1000);
    cr_assert_leq(store_doubt_until_s(store, SPAN("origin"), SPAN("a")), doubted.until_s);
    cr_assert_gt(store_doubt_until_s(store, SPAN("origin"), SPAN("a")), now_s);
    cr_assert_eq(store_doubt_until_s(store, SPAN("origin"), SPAN("c")), 0);
    uint64_t until_s = doubted.until_s;
    pass_ms(STORE_DOUBT_MS + 5000);
    store_doubted(store, &doubted);
    cr_assert_eq(doubted.buckets, 0);
    cr_assert_leq(doubted.until_s, until_s + 1, "the end stays known");
    cr_assert_eq(store_doubt_until_s(store, SPAN("origin"), SPAN("a")), 0);
    cr_assert(is_doubted(store, "a", UINT64_MAX), "it must be confirmed once");
    store_end(store);
}

// A note without a clean stop is a doubt in the next process. A time outlasts both kinds of end.
Test(store_doubt, the_next_process)
{
    struct store *store = store_new(), *next = store_new();
    store_doubt(store, SPAN("origin"), SPAN("a"));
    store_doubt(store, SPAN("origin"), SPAN("written"));
    state_doubts_settle(&store->doubts);
    next->disk.dir.format = store->disk.dir.format;
    struct state_row *written = &state_table_rows(&next->disk.dir.format.state, STATE_DOUBTS)[1];
    written->number = 0;
    written->flag = true;
    pass_ms(STORE_DOUBT_MS / 2);
    state_doubts_load(&next->doubts);
    cr_assert(is_doubted(next, "a", 0) && is_doubted(next, "written", 0));
    struct store_doubted doubted;
    store_doubted(next, &doubted);
    cr_assert(doubted.buckets == 2 && doubted.after_crash);
    cr_assert_not(is_doubted(next, "b", UINT64_MAX));
    cr_assert_not(written->flag, "it is a time now");
    pass_ms(STORE_DOUBT_MS / 2 + 5000);
    cr_assert_not(is_doubted(next, "a", 0));
    cr_assert(is_doubted(next, "a", 60000) && is_doubted(next, "written", 0));
    pass_ms(STORE_DOUBT_MS / 2);
    cr_assert_not(is_doubted(next, "written", 0));
    cr_assert(is_doubted(next, "written", STORE_DOUBT_MS));
    store_end(store);
    store_end(next);
}

static void doubt_numbered(struct store *store, unsigned number, char ret_name[16])
{
    (void)snprintf(ret_name, 16, "b%u", number);
    store_doubt(store, SPAN("origin"), span_from_cstr(ret_name));
}

// A write without a doubt leaves a slot, too. A start frees it, but no slot of a doubt.
Test(store_doubt, a_start_frees_slots_of_buckets_without_a_doubt)
{
    enum { DOUBTED = 3 };
    struct store *store = store_new(), *next = store_new();
    char name[16];
    for (unsigned i = 0; i < STATE_DOUBTS_MAX; i++) {
        doubt_numbered(store, i, name);
    }
    state_doubts_settle(&store->doubts);
    struct state_table *state = &next->disk.dir.format.state;
    *state = store->disk.dir.format.state;
    for (unsigned i = DOUBTED; i < STATE_DOUBTS_MAX; i++) {
        state_table_rows(state, STATE_DOUBTS)[i].number = 0;
    }
    state_table_rows(state, STATE_DOUBTS)[STATE_DOUBTS_MAX - 1].flag = true; // killed while writing
    uint64_t shared = stats_sum(COUNTER_bucket_doubts_shared);
    state_doubts_load(&next->doubts);
    cr_assert_eq(state->count[STATE_DOUBTS], DOUBTED + 1);
    cr_assert(is_doubted(next, "b0", 0) && is_doubted(next, "b2", 0) && is_doubted(next, name, 0));
    cr_assert(!is_doubted(next, "b3", UINT64_MAX) && !is_doubted(next, "other", UINT64_MAX));
    for (unsigned i = 0; i < STATE_DOUBTS_MAX - DOUBTED - 1; i++) {
        doubt_numbered(next, 1000 + i, name);
    }
    cr_assert_eq(stats_sum(COUNTER_bucket_doubts_shared), shared);
    store_end(store);
    store_end(next);
}

// The shared doubt covers buckets that nobody has named yet, also in the next process.
Test(store_doubt, beyond_the_slots_in_the_next_process)
{
    struct store *store = store_new(), *next = store_new();
    char name[16];
    for (unsigned i = 0; i < STATE_DOUBTS_MAX + 1; i++) {
        doubt_numbered(store, i, name);
    }
    state_doubts_settle(&store->doubts);
    next->disk.dir.format.state = store->disk.dir.format.state;
    state_doubts_load(&next->doubts);
    cr_assert(is_doubted(next, "b0", 0) && is_doubted(next, name, 0));
    cr_assert(is_doubted(next, "other", 0));
    expect_over(next, name);
    store_end(store);
    store_end(next);
}

struct noting {
    struct store_note note;
    struct box *box;
    atomic_bool done;
};

static void on_note_done(struct store_note *note)
{
    struct noting *noting = container_of(note, struct noting, note);
    atomic_store(&noting->done, true);
}

static void do_note(struct worker *w, void *ctx)
{
    struct noting *noting = ctx;
    noting->note.done = on_note_done;
    store_write_note(w, noting->box->store, SPAN("origin"), SPAN("a"), &noting->note);
}

static bool is_noted(const struct box *box)
{
    return store_write_is_noted(box->store, SPAN("origin"), SPAN("a"));
}

// Waits until the supply thread has handled a time that is not before now.
static void looked_at(struct box *box)
{
    uint64_t now_ms = clock_monotonic_ms();
    wait_for(atomic_load(&box->store->doubts.idle_since_ms) >= now_ms);
}

// A process that writes, and long after it is killed.
static void write_and_be_killed(struct box *box, bool ends)
{
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        struct noting noting = {.box = box};
        cr_assert(box_open(box));
        stats_add(COUNTER_writes_inflight, 1);
        box_on_worker(box, 0, do_note, &noting);
        wait_for(atomic_load(&noting.done));
        pass_ms(2 * STORE_DOUBT_MS);
        looked_at(box);
        cr_assert(is_noted(box), "it goes on");
        if (ends) {
            stats_sub(COUNTER_writes_inflight, 1);
            pass_ms(STORE_DOUBT_MS - 60000);
            cr_assert(is_noted(box), "the origin may apply what it has got");
            pass_ms(120000);
            wait_for(!is_noted(box));
            pthread_mutex_lock(&box->store->disk.dir.format_lock); // and it is written
            pthread_mutex_unlock(&box->store->disk.dir.format_lock);
        }
        (void)raise(SIGKILL);
    }
    int status;
    cr_assert(waitpid(pid, &status, 0) == pid);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

Test(store_doubt, a_crash_long_after_the_last_write_puts_nothing_in_doubt)
{
    for (unsigned ends = 0; ends < 2; ends++) {
        struct box box;
        box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
        write_and_be_killed(&box, ends != 0);
        cr_assert(box_open(&box));
        cr_assert_eq(is_doubted(box.store, "a", UINT64_MAX), ends == 0);
        box_close(&box);
        box_remove(&box);
    }
}

// --- deletes of writes, on a disk that does not answer

struct deleting {
    struct store_delete d;
    struct box *box;
    atomic_bool done;
};

static void on_deleted(struct store_delete *d)
{
    atomic_store(&container_of(d, struct deleting, d)->done, true);
}

static void do_delete(struct worker *w, void *ctx)
{
    struct deleting *deleting = ctx;
    store_delete(w, deleting->box->store, &deleting->d);
}

// Deletes the object "k" while the disk does not answer. Returns when the caller has its answer.
static void delete_late(struct box *box, const struct object *object, struct deleting *ret_deleting)
{
    *ret_deleting = (struct deleting){.box = box};
    ret_deleting->d = (struct store_delete){.hash = box_hash(box, object->key),
                                            .floor = object->generation + 1,
                                            .origin = SPAN("origin"),
                                            .bucket = SPAN("a"),
                                            .done = on_deleted};
    store_fault_stall(STORE_FAULT_COMMIT, true);
    box_on_worker(box, 0, do_delete, ret_deleting);
    store_fault_stall_reached(STORE_FAULT_COMMIT);
    cr_assert(!atomic_load(&ret_deleting->done));
    pass_ms(STORE_NOTE_WAIT_MS);
}

static void note(struct box *box)
{
    struct noting noting = {.box = box};
    box_on_worker(box, 0, do_note, &noting);
    wait_for(atomic_load(&noting.done));
    cr_assert(is_noted(box));
}

static struct object stored(struct box *box)
{
    struct object object = {"k", "\"tag\"", 9000, BLOCK, store_generation_next(box->store)};
    cr_assert(box_put(box, &object) == ERR_OK);
    return object;
}

// The next process confirms what the delete has left, so the write need not wait. The note stays
// until the delete is durable, and no longer.
Test(store_doubt, a_delete_in_a_noted_bucket_does_not_wait_for_a_stalled_disk)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    stats_add(COUNTER_writes_inflight, 1);
    note(&box);
    struct object object = stored(&box);
    struct deleting deleting;
    delete_late(&box, &object, &deleting);
    wait_for(atomic_load(&deleting.done));
    cr_assert_eq(deleting.d.err, ERR_OK);
    stats_sub(COUNTER_writes_inflight, 1);
    for (unsigned i = 0; i < 2; i++) {
        pass_ms(2 * STORE_DOUBT_MS);
        looked_at(&box);
    }
    cr_assert(is_noted(&box), "a crash would undo the delete");
    store_fault_stall(STORE_FAULT_COMMIT, false);
    wait_for(atomic_load(&box.store->doubts.owed) == 0);
    pass_ms(2 * STORE_DOUBT_MS);
    wait_for(!is_noted(&box));
    box_close(&box);
    box_remove(&box);
}

// Without a note the next process would believe the record.
Test(store_doubt, a_delete_in_another_bucket_waits_for_a_stalled_disk)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    struct object object = stored(&box);
    struct deleting deleting;
    delete_late(&box, &object, &deleting);
    struct store_view view;
    box_look(&box, &object, &view); // on the worker of the delete
    cr_assert(!view.found && !atomic_load(&deleting.done));
    pass_ms(STORE_DELETE_WAIT_MS);
    wait_for(atomic_load(&deleting.done));
    cr_assert_neq(deleting.d.err, ERR_OK);
    store_fault_stall(STORE_FAULT_COMMIT, false);
    box_close(&box);
    box_remove(&box);
}

// A process is killed while the disk does not answer.
Test(store_doubt, a_delete_that_nobody_has_waited_for_leaves_a_doubt_after_a_kill)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        cr_assert(box_open(&box));
        note(&box);
        struct object object = stored(&box);
        struct deleting deleting;
        delete_late(&box, &object, &deleting);
        wait_for(atomic_load(&deleting.done));
        cr_assert_eq(deleting.d.err, ERR_OK);
        pass_ms(2 * STORE_DOUBT_MS);
        looked_at(&box);
        (void)raise(SIGKILL);
    }
    int status;
    cr_assert(waitpid(pid, &status, 0) == pid);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    cr_assert(box_open(&box));
    cr_assert(is_doubted(box.store, "a", UINT64_MAX));
    box_close(&box);
    box_remove(&box);
}
