// SPDX-License-Identifier: Apache-2.0
// Proves: the kernel has the scheduling settings that a thread has requested.
#include "test.h"

#include "base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

struct seen {
    int policy;
    uint64_t slice_ns;
    char name[16];
};

static struct seen see(void)
{
    struct { // the kernel's sched_attr
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime_ns, deadline_ns, period_ns;
    } attr = {.size = sizeof(attr)};
    struct seen seen = {.policy = -1};
    cr_assert_eq(syscall(SYS_sched_getattr, 0, &attr, sizeof(attr), 0), 0);
    seen.policy = (int)attr.policy;
    seen.slice_ns = attr.runtime_ns;
    cr_assert_eq(pthread_getname_np(pthread_self(), seen.name, sizeof(seen.name)), 0);
    return seen;
}

struct run {
    enum thread_kind kind;
    int chosen; // the policy that the thread has before
    struct seen seen, child;
};

static void *run_child(void *ctx)
{
    struct run *run = ctx;
    run->child = see();
    return NULL;
}

static void *run_thread(void *ctx)
{
    struct run *run = ctx;
    pthread_t child;
    struct sched_param none = {0};
    cr_assert_eq(sched_setscheduler(0, run->chosen, &none), 0);
    thread_begin("a-name", run->kind);
    run->seen = see();
    cr_assert_eq(pthread_create(&child, NULL, run_child, run), 0);
    pthread_join(child, NULL);
    return NULL;
}

static struct run begin(enum thread_kind kind, int chosen)
{
    struct run run = {.kind = kind, .chosen = chosen};
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, run_thread, &run), 0);
    pthread_join(thread, NULL);
    cr_assert_str_eq(run.seen.name, "a-name");
    return run;
}

// Linux 6.12: a slice of one's own.
static bool kernel_has_slices(void)
{
    struct utsname name;
    unsigned major = 0, minor = 0;
    cr_assert_eq(uname(&name), 0);
    cr_assert_eq(sscanf(name.release, "%u.%u", &major, &minor), 2);
    return major > 6 || (major == 6 && minor >= 12);
}

Test(thread, a_serving_thread_has_short_slices_and_its_children_have_not)
{
    struct run helps = begin(THREAD_HELPS, SCHED_OTHER), serves = begin(THREAD_SERVES, SCHED_OTHER);
    cr_assert_eq(serves.seen.policy, SCHED_OTHER);
    cr_assert_eq(serves.child.policy, SCHED_OTHER);
    cr_assert_eq(serves.child.slice_ns, helps.seen.slice_ns);
    if (kernel_has_slices()) {
        cr_assert_eq(serves.seen.slice_ns, 100000);
        cr_assert_lt(serves.seen.slice_ns, helps.seen.slice_ns);
    }
}

Test(thread, a_background_thread_does_not_preempt)
{
    cr_assert_eq(begin(THREAD_BEHIND, SCHED_OTHER).seen.policy, SCHED_BATCH);
    cr_assert_eq(begin(THREAD_HELPS, SCHED_OTHER).seen.policy, SCHED_OTHER);
}

Test(thread, a_chosen_scheduling_policy_stays)
{
    cr_assert_eq(begin(THREAD_BEHIND, SCHED_IDLE).seen.policy, SCHED_IDLE);
    cr_assert_eq(begin(THREAD_SERVES, SCHED_BATCH).seen.policy, SCHED_BATCH);
}
