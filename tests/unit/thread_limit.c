// SPDX-License-Identifier: Apache-2.0
#include "thread_limit.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

static atomic_bool reached;

void thread_limit_reached(bool is_reached)
{
    atomic_store(&reached, is_reached);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*main)(void *ctx),
                   void *ctx)
{
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    return atomic_load(&reached) ? EAGAIN : real(thread, attr, main, ctx);
}
