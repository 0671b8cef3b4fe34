// SPDX-License-Identifier: Apache-2.0
// Pools of threads: what threads that step back do not come to is done by others.
#include "loop/loop_private.h"
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
