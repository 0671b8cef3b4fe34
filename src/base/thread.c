// SPDX-License-Identifier: Apache-2.0
// How threads share a core. A worker runs in bursts of some ten microseconds, and clients wait for
// them. A worker also wakes other threads, for example to free segments. If all threads were equal,
// such a thread would take the core in the middle of a burst. A kernel without preemption would let
// it run until its system call ends, and up to a tick longer (4 ms) before the worker runs again.
//
//   THREAD_SERVES  requests the shortest time slice. Since Linux 6.12 a thread that wakes runs
//                  before one with a longer slice. Older kernels ignore it.
//   THREAD_BEHIND  SCHED_BATCH: the thread does not preempt others when it wakes.
//
// The shares of the core do not change: one busy thread of each kind still gets half of it.
#include "base/thread.h"

#include <linux/sched.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLICE_NS 100000u // the shortest that the kernel accepts

// The first version of the kernel's struct sched_attr. glibc 2.36 does not have it, and the
// kernel's header defines names that glibc's headers define too.
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
        // Kernel threads of io_uring are forked from this thread. They write to the disk, so they
        // must not inherit the short slice.
        request.flags = SCHED_FLAG_RESET_ON_FORK;
    } else {
        request.policy = SCHED_BATCH;
    }
    (void)syscall(SYS_sched_setattr, 0, &request, 0);
}
