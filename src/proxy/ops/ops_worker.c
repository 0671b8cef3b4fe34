// SPDX-License-Identifier: Apache-2.0
// Spreads the work of operators' calls over the workers.
#include "proxy/ops/ops.h"

struct proxy_worker *ops_worker(struct proxy *proxy)
{
    static atomic_uint turn;
    check(proxy->worker_count > 0);
    return &proxy->workers[atomic_fetch_add(&turn, 1) % proxy->worker_count];
}
