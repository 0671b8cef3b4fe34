// SPDX-License-Identifier: Apache-2.0
// How threads share a core. A worker works in bursts of some ten microseconds for which clients
// wait; what it wakes meanwhile, to free segments say, would with equal rights take the core in the
// middle of that: for as long as its system call lasts where the kernel does not preempt itself,
// and up to a tick more (4 ms) until the worker is looked at again.
//
//   THREAD_SERVES  asks for the shortest slice: Linux from 6.12 on lets a thread that wakes come
//                  before one that runs with a longer slice. Before that the kernel ignores it.
//   THREAD_BEHIND  SCHED_BATCH: it does not preempt when it is woken.
//
// Shares of the core stay what they are: a busy core is still halved between one of each.
#include "base/thread.h"

#include <linux/sched.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLICE_NS 100000u // the least that the kernel takes

// The kernel's struct sched_attr as it was first: glibc 2.36 has none, and the kernel's own header
// defines what glibc's does.
struct sched_request {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};

void thread_begin(const char *name, enum thread_kind kind)
{
    (void)pthread_setname_np(pthread_self(), name);
    struct sched_request request = {.size = sizeof(request)};
    if (kind == THREAD_HELPS || syscall(SYS_sched_getattr, 0, &request, sizeof(request), 0) != 0 ||
        request.policy != SCHED_NORMAL) {
        return;
    }
    if (kind == THREAD_SERVES) {
        request.runtime_ns = SLICE_NS;
        request.flags =
            SCHED_FLAG_RESET_ON_FORK; // the kernel's threads for a ring, made from this one, write
    } else {
        request.policy = SCHED_BATCH;
    }
    (void)syscall(SYS_sched_setattr, 0, &request, 0);
}
