// SPDX-License-Identifier: Apache-2.0
// How the descriptors of the process are shared out. Main thread, before anything is opened.
//
// The soft limit goes up to the hard one. What the process needs for itself comes first (workers,
// index, logs, admin, a reserve for accepting and for moments between two steps); the rest is for
// clients, origin connections and segments, each as many as configured where that is possible.
// Where it is not, segments get a quarter, origins a quarter, those that a reload may add a
// sixteenth, clients the rest. What workers hold from their beginning on there must be, and a
// little for the others: with less a start says so.
#include <sys/resource.h>

#include "base/log.h"
#include "server/server_private.h"

#define FIXED_DESCRIPTORS 40u        // listeners, index, logs, folders, admin without its clients
#define FIXED_LEAST 32u              // of these, before anybody asks anything: 28, as counted
#define WORKER_DESCRIPTORS 8u        // event base, ring, mailbox, the pipe file ranges go through
#define WORKER_ORIGIN_DESCRIPTORS 3u // libcurl's own, and an event base's view of them
#define SEGMENTS_WANTED 4096u
#define SEGMENTS_MIN 16u
#define SEGMENTS_SHARE 4u
#define ORIGIN_SHARE 4u
#define SPARE_SHARE 16u // for origins that a reload adds
#define CLIENTS_MIN 8u
#define DESCRIPTORS_MAX (1ull << 20) // more is never asked for
#define ORIGINS_SPARE 8u             // that a reload may add with all of their connections

static uint64_t descriptors_raise(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return 1024; // what POSIX systems give
    }
    rlim_t wanted = (rlim_t)min_u64(limit.rlim_max, DESCRIPTORS_MAX);
    if (limit.rlim_cur < wanted) {
        struct rlimit raised = {wanted, limit.rlim_max};
        if (setrlimit(RLIMIT_NOFILE, &raised) == 0) {
            limit = raised;
        }
    }
    return min_u64(limit.rlim_cur, DESCRIPTORS_MAX);
}

uint64_t command_limits_origin(unsigned connections, unsigned workers)
{
    return connections + (uint64_t)workers * (1 + WORKER_ORIGIN_DESCRIPTORS);
}

struct command_limits_plan command_limits_plan_for(uint64_t descriptors, unsigned workers,
                                                   unsigned origins, unsigned clients,
                                                   unsigned origin_connections)
{
    struct command_limits_plan plan = {.descriptors = descriptors, .clients = clients};
    plan.least = FIXED_LEAST + (uint64_t)workers * WORKER_DESCRIPTORS + CLIENTS_MIN + SEGMENTS_MIN +
                 WORKER_ORIGIN_DESCRIPTORS + 1;
    uint64_t fixed = FIXED_DESCRIPTORS + ADMIN_CONNECTIONS_MAX +
                     (uint64_t)workers * (WORKER_DESCRIPTORS + WORKER_ORIGIN_DESCRIPTORS * origins);
    uint64_t rest = descriptors > fixed ? descriptors - fixed : 0;
    // Each worker has its share of an origin's connections, rounded up.
    uint64_t origin_wanted = (uint64_t)origins * (origin_connections + workers);
    uint64_t wanted = clients + origin_wanted + SEGMENTS_WANTED;
    if (wanted <= rest) {
        // Of what is left a reload may have some.
        uint64_t spare = min_u64(ORIGINS_SPARE * command_limits_origin(origin_connections, workers),
                                 (rest - wanted) / 2);
        uint64_t more_clients = (rest - wanted - spare) / 2;
        plan.origin_connections = origin_connections;
        plan.origin_descriptors = origin_wanted + spare;
        plan.clients_max = (unsigned)(clients + more_clients);
        plan.segments = (unsigned)(rest - clients - more_clients - origin_wanted - spare);
        return plan;
    }
    plan.segments =
        (unsigned)min_u64(SEGMENTS_WANTED, max_u64(SEGMENTS_MIN, rest / SEGMENTS_SHARE));
    uint64_t origin_total = min_u64(origin_wanted, rest / ORIGIN_SHARE), spare = rest / SPARE_SHARE;
    uint64_t each = origin_total / origins;
    plan.origin_connections =
        (unsigned)min_u64(origin_connections, each > workers ? each - workers : 1);
    uint64_t taken =
        plan.segments + (uint64_t)origins * (plan.origin_connections + workers) + spare;
    plan.clients =
        (unsigned)min_u64(clients, rest > taken + CLIENTS_MIN ? rest - taken : CLIENTS_MIN);
    plan.clients_max = plan.clients;
    plan.origin_descriptors = (uint64_t)origins * (plan.origin_connections + workers) + spare;
    plan.is_short = plan.clients < clients || plan.origin_connections < origin_connections;
    return plan;
}

struct command_limits_plan command_limits_plan(const struct config *c)
{
    unsigned origins = 2 + c->bucket_count; // the default one, and STS
    return command_limits_plan_for(descriptors_raise(), c->workers, origins,
                                   c->limits_max_connections, c->origin_connections);
}

void command_limits_tell(const struct command_limits_plan *plan, const struct config *c)
{
    enum log_level level = plan->is_short ? LOG_LEVEL_WARN : LOG_LEVEL_INFO;
    log_event(level, "descriptors",
              "limit=%llu clients=%u clients_wanted=%u origin_connections=%u origin_wanted=%u "
              "segments=%u%s",
              (unsigned long long)plan->descriptors, plan->clients, c->limits_max_connections,
              plan->origin_connections, c->origin_connections, plan->segments,
              plan->is_short ? " remedy=raise_ulimit_n" : "");
}
