// SPDX-License-Identifier: Apache-2.0
// Proves: the policy's knowledge outlives a clean stop, also with another cache.size. After a kill,
// or if its file is missing, cut or damaged, the runs are known from their segments' tables, and
// the rest is learnt again.
#include "store/retention/retention_state.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stats/stats.h"
#include "store/policy/policy_private.h"
#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

#define OBJECTS 40u

static void box_begin(struct box *box)
{
    cr_assert(setenv("FOREBAY_SEGMENT_SIZE", "131072", 1) == 0);
    box_init(box, DISK_ENGINE_THREADS, 16 * MIB);
    box->options.block_size_bytes_max = BLOCK;
    box->options.policy = STORE_POLICY_EPOCH;
    cr_assert(box_open(box));
    for (unsigned i = 0; i < OBJECTS; i++) {
        char key[16];
        (void)snprintf(key, sizeof(key), "key-%u", i);
        struct object object = {key, "\"e\"", 30000, BLOCK, 100 + i};
        enum err err;
        wait_for(!box_has_no_segment(err = box_put(box, &object)));
        cr_assert(err == ERR_OK);
    }
}

static unsigned runs_known(struct box *box)
{
    struct retention *r = &box->store->retention;
    unsigned count = 0;
    retention_drain(r);
    pthread_mutex_lock(&r->lock);
    for (uint32_t number = 1; retention_is_ready(r) && number < 200; number++) {
        count += policy_segment_run_count(r->policy, number);
    }
    pthread_mutex_unlock(&r->lock);
    return count;
}

static void path_of(const struct box *box, const char *name, char path[1024])
{
    (void)snprintf(path, 1024, "%s/%s", box->dir, name);
}

Test(retention_state, the_policy_outlives_a_clean_stop)
{
    struct box box;
    char path[1024];
    struct stat st;
    box_begin(&box);
    cr_assert_eq(runs_known(&box), OBJECTS);
    box_close(&box);
    path_of(&box, "policy", path);
    cr_assert(stat(path, &st) == 0);
    cr_assert_gt(st.st_size, 0);
    uint64_t listed = stats_sum(COUNTER_segment_list_table);
    cr_assert(box_open(&box));
    wait_for(runs_known(&box) == OBJECTS);
    cr_assert_eq(stats_sum(COUNTER_segment_list_table), listed); // nothing had to be read
    box_close(&box);
    box_remove(&box);
}

static void former_put(struct box *box, uint64_t key)
{
    struct retention *r = &box->store->retention;
    pthread_mutex_lock(&r->lock);
    policy_ghost_put(&r->policy->ghost, key, policy_stamp(0, POLICY_CLASS_NEW, 0), 0);
    pthread_mutex_unlock(&r->lock);
}

static bool former_is_known(struct box *box, uint64_t key)
{
    struct retention *r = &box->store->retention;
    uint32_t stamp;
    wait_for(retention_is_ready(r));
    pthread_mutex_lock(&r->lock);
    bool is_known = policy_ghost_find(&r->policy->ghost, key, &stamp);
    pthread_mutex_unlock(&r->lock);
    return is_known;
}

// A percentage in cache.size gives another capacity at each start.
Test(retention_state, former_runs_are_remembered_when_the_size_moves_by_a_little)
{
    static const uint64_t sizes_mib[] = {129, 127, 100, 140};
    struct box box;
    uint64_t key = 0x123456789abcdef0;
    box_init(&box, DISK_ENGINE_THREADS, 128 * MIB);
    box.options.policy = STORE_POLICY_EPOCH;
    cr_assert(box_open(&box));
    former_put(&box, key);
    for (unsigned i = 0; i < ARRAY_LEN(sizes_mib); i++) {
        box_close(&box);
        box.options.size_bytes = sizes_mib[i] * MIB;
        cr_assert(box_open(&box));
        cr_assert(former_is_known(&box, key), "%u MiB", (unsigned)sizes_mib[i]);
    }
    box_close(&box);
    box.options.size_bytes = 1024 * MIB; // then too few of the runs would be remembered
    cr_assert(box_open(&box));
    cr_assert_not(former_is_known(&box, key));
    box_close(&box);
    box_remove(&box);
}

Test(retention_state, the_last_misses_of_clients_outlive_a_clean_stop)
{
    struct box box;
    box_begin(&box);
    stats_misses_restore((struct stats_misses){.count = 7, .us = 7000});
    box_close(&box);
    stats_misses_restore((struct stats_misses){0}); // another process
    cr_assert(box_open(&box));
    wait_for(runs_known(&box) == OBJECTS);
    cr_assert_eq(stats_misses().count, 7u);
    cr_assert_eq(stats_misses().us, 7000u);
    box_close(&box);
    box_remove(&box);
}

enum injury { MISSING, EMPTY, CUT, FLIPPED, FOREIGN, INJURIES };

static void injure(const char *path, enum injury injury)
{
    struct stat st;
    cr_assert(stat(path, &st) == 0);
    int fd = open(path, O_RDWR);
    cr_assert(fd >= 0);
    char byte;
    switch (injury) {
    case MISSING:
        cr_assert(unlink(path) == 0);
        break;
    case EMPTY:
        cr_assert(ftruncate(fd, 0) == 0);
        break;
    case CUT:
        cr_assert(ftruncate(fd, st.st_size - 7) == 0);
        break;
    case FLIPPED:
        for (off_t at = 50; at < st.st_size; at += 97) {
            cr_assert(pread(fd, &byte, 1, at) == 1);
            byte = (char)(byte ^ 4);
            cr_assert(pwrite(fd, &byte, 1, at) == 1);
        }
        break;
    case FOREIGN:
        cr_assert(pwrite(fd, "\377\377\377\377nonsense", 12, 0) == 12);
        break;
    case INJURIES:
        break;
    }
    (void)close(fd);
}

Test(retention_state, a_damaged_file_costs_the_learnt_history_and_nothing_else)
{
    for (enum injury injury = MISSING; injury < INJURIES; injury++) {
        struct box box;
        char path[1024];
        box_begin(&box);
        box_close(&box);
        path_of(&box, "policy", path);
        injure(path, injury);
        cr_assert(box_open(&box));
        wait_for(runs_known(&box) == OBJECTS); // from the tables
        for (unsigned i = 0; i < OBJECTS; i++) {
            char key[16];
            (void)snprintf(key, sizeof(key), "key-%u", i);
            struct object object = {key, "\"e\"", 30000, BLOCK, 100 + i};
            cr_assert_eq(box_read(&box, 0, &object), 30000u);
        }
        box_close(&box);
        cr_assert(box_open(&box)); // and is good again
        wait_for(runs_known(&box) == OBJECTS);
        box_close(&box);
        box_remove(&box);
    }
}

Test(retention_state, where_it_cannot_be_saved_it_is_counted_and_the_stop_is_clean)
{
    struct box box;
    char path[1024];
    box_begin(&box);
    path_of(&box, "policy.new", path);
    cr_assert(mkdir(path, 0700) == 0);
    uint64_t failed = stats_sum(COUNTER_retention_saves_failed);
    box_close(&box);
    cr_assert_eq(stats_sum(COUNTER_retention_saves_failed), failed + 1);
    cr_assert(box_open(&box));
    wait_for(runs_known(&box) == OBJECTS);
    box_close(&box);
    box_remove(&box);
}

// A box whose retention has only been opened: its thread does not run.
static void box_rewind(struct box *box, enum retention_phase phase)
{
    struct retention *r = &box->store->retention;
    retention_stop(r);
    r->phase = phase;
}

Test(retention_state, stop_during_the_load_keeps_the_saved_file)
{
    struct box box;
    char path[1024];
    struct stat before, after;
    box_begin(&box);
    box_rewind(&box, RETENTION_LOADING); // its knowledge is saved, and stop is still wanted
    path_of(&box, "policy", path);
    cr_assert(stat(path, &before) == 0);
    struct retention *r = &box.store->retention;
    retention_state_load(r);
    cr_assert_eq(r->phase, RETENTION_UNREAD);
    cr_assert_not(retention_is_ready(r));
    retention_state_save(r);
    cr_assert(stat(path, &after) == 0);
    cr_assert_eq(before.st_ino, after.st_ino); // a save replaces the file
    retention_enter(r, RETENTION_ENDED);
    box_close(&box);
    box_remove(&box);
}

Test(retention_state, thread_starts_only_after_an_opening, .signal = SIGABRT)
{
    struct retention r = {.phase = RETENTION_CLOSED};
    retention_enter(&r, RETENTION_LOADING);
}

Test(retention_state, lru_never_loads, .signal = SIGABRT)
{
    struct retention r = {.phase = RETENTION_OLDEST};
    retention_enter(&r, RETENTION_LOADING);
}

Test(retention_state, nothing_closes_while_the_thread_runs, .signal = SIGABRT)
{
    struct retention r = {.phase = RETENTION_LEARNING};
    retention_enter(&r, RETENTION_CLOSED);
}

Test(retention_state, events_of_an_unread_file_are_never_taken, .signal = SIGABRT)
{
    struct retention r = {.phase = RETENTION_UNREAD};
    retention_enter(&r, RETENTION_LEARNING);
}
