// SPDX-License-Identifier: Apache-2.0
// Helpers for the calls of operators: choosing the worker that runs a call, and copying names.
#include "proxy/ops/ops.h"

#include <string.h>

struct proxy_worker *ops_worker(struct proxy *proxy)
{
    static atomic_uint turn;
    check(proxy->worker_count > 0);
    return &proxy->workers[atomic_fetch_add(&turn, 1) % proxy->worker_count];
}

struct span ops_name_copy(char **at, struct span name)
{
    struct span copy = {*at, name.len};
    if (name.len > 0) {
        memcpy(*at, name.ptr, name.len);
    }
    *at += name.len;
    return copy;
}
