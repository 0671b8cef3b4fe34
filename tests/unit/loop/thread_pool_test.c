// SPDX-License-Identifier: Apache-2.0
// Pools of threads: what threads that step back do not come to is done by others.
#include "loop/loop_private.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "loop_fixture.h"
#include "test.h"

static struct job {
    struct list_node node;
    struct signal over;
} first, second;

// The first job keeps its thread until the second has run.
static void run(struct list_node *work)
{
    if (work == &first.node) {
        signal_wait(&second.over);
        signal_raise(&first.over);
    } else {
        signal_raise(&second.over);
    }
}

// Proves that work does not wait for ever for threads that get no turn.
Test(thread_pool, work_that_waits_is_taken_by_others)
{
    signal_init(&first.over);
    signal_init(&second.over);
    struct thread_pool *pool = thread_pool_new("nice", 1, 10, run);
    thread_pool_start(pool);
    list_node_init(&first.node);
    list_node_init(&second.node);
    struct list work;
    list_init(&work);
    list_push_back(&work, &first.node);
    list_push_back(&work, &second.node);
    cr_assert(thread_pool_add(pool, &work, 2, 1) == ERR_LIMIT);
    cr_assert(thread_pool_add(pool, &work, 2, 2) == ERR_OK);
    signal_wait(&first.over);
    thread_pool_stop(pool);
    thread_pool_free(pool);
    signal_done(&first.over);
    signal_done(&second.over);
}

// How often threads of this name went to sleep.
static unsigned long sleeps_of(const char *name)
{
    unsigned long sum = 0;
    DIR *tasks = opendir("/proc/self/task");
    cr_assert(tasks != NULL);
    struct dirent *task;
    while ((task = readdir(tasks)) != NULL) {
        char path[300], line[200], found[20] = "";
        unsigned long sleeps = 0;
        (void)snprintf(path, sizeof(path), "/proc/self/task/%s/status", task->d_name);
        FILE *file = fopen(path, "r");
        while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
            (void)sscanf(line, "Name: %19s", found);
            (void)sscanf(line, "voluntary_ctxt_switches: %lu", &sleeps);
        }
        if (file != NULL) {
            (void)fclose(file);
        }
        sum += strcmp(found, name) == 0 ? sleeps : 0;
    }
    (void)closedir(tasks);
    return sum;
}

// Proves that those who wait for work to become late are not woken by each piece of it.
Test(thread_pool, work_in_time_costs_the_others_little)
{
    enum { COUNT = 5000, PATIENCE_US = 2000, LATE_THREADS = 2 };
    signal_init(&second.over);
    struct thread_pool *pool = thread_pool_new("nice", 1, 10, run);
    thread_pool_start(pool);
    uint64_t began_us = clock_monotonic_us();
    for (unsigned i = 0; i < COUNT; i++) {
        struct list work;
        list_init(&work);
        list_node_init(&second.node);
        list_push_back(&work, &second.node);
        cr_assert(thread_pool_add(pool, &work, 1, 1) == ERR_OK);
        signal_wait(&second.over);
    }
    unsigned long rounds = (clock_monotonic_us() - began_us) / PATIENCE_US + 2;
    cr_assert_leq(sleeps_of("late"), 4 * LATE_THREADS * rounds);
    thread_pool_stop(pool);
    thread_pool_free(pool);
    signal_done(&second.over);
}
