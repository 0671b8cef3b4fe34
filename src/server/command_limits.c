// SPDX-License-Identifier: Apache-2.0
// Divides the process's file descriptors among clients, origins and segments. Runs on the main
// thread, before anything is opened.
//
// Forebay raises the soft limit towards the hard limit. It first reserves the descriptors that the
// process itself needs: workers, index, logs, the admin port and a reserve. Clients, origin
// connections and segments share the rest. Each gets as many as configured if there are enough.
// Otherwise the rest is divided like this:
// - segments: a quarter, but 16 to 4,096
// - origins: at most a quarter, but at least one connection for each origin
// - origins that a reload may add: a sixteenth
// - clients: what remains
//
// Forebay does not start with fewer than `least` descriptors: those that workers hold from the
// start, and a few for each other use.
#include <string.h>
#include <sys/resource.h>

#include "base/log.h"
#include "server/server_private.h"

#define FIXED_DESCRIPTORS 40u // listeners, index, logs, folders, admin without its clients
#define FIXED_LEAST 32u       // part of FIXED_DESCRIPTORS that a start opens; 28 were counted
#define WORKER_DESCRIPTORS 8u // event base, ring, mailbox, the pipe for file ranges
#define WORKER_ORIGIN_DESCRIPTORS 3u // for each origin: libcurl and its event base
#define SEGMENTS_WANTED 4096u
#define SEGMENTS_MIN 16u
#define SEGMENTS_SHARE 4u
#define ORIGIN_SHARE 4u
#define SPARE_SHARE 16u // reserve for origins that a reload adds
#define CLIENTS_MIN 8u
#define DESCRIPTORS_MAX (1ull << 20) // most that Forebay requests
// Defaults are ceilings: if the user has not set them, fewer are no shortage down to these.
#define CLIENTS_ENOUGH 1024u
#define ORIGIN_ENOUGH 64u
#define ORIGINS_SPARE 8u // origins that a reload may add with all their connections

static uint64_t descriptors_raise(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return 1024; // a common default
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
    // The workers share the connections of an origin. Each share is rounded up.
    uint64_t origin_wanted = (uint64_t)origins * (origin_connections + workers);
    uint64_t wanted = clients + origin_wanted + SEGMENTS_WANTED;
    if (wanted <= rest) {
        // Reserve at most half of the remainder for origins that a reload adds.
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

// Returns the fewest that are no shortage.
static unsigned wanted_of(const struct config *c, const char *key, unsigned value, unsigned enough)
{
    bool is_default = strcmp(config_source_text(c, commands_setting(key)), "default") == 0;
    return is_default && enough < value ? enough : value;
}

struct command_limits_plan command_limits_plan_with(const struct config *c, uint64_t descriptors)
{
    unsigned origins = 2 + c->bucket_count; // the default origin and STS
    struct command_limits_plan plan = command_limits_plan_for(
        descriptors, c->workers, origins, c->limits_max_connections, c->origin_connections);
    plan.is_short = plan.clients < wanted_of(c, "limits.max_connections", c->limits_max_connections,
                                             CLIENTS_ENOUGH) ||
                    plan.origin_connections <
                        wanted_of(c, "origin.connections", c->origin_connections, ORIGIN_ENOUGH);
    return plan;
}

struct command_limits_plan command_limits_plan(const struct config *c)
{
    return command_limits_plan_with(c, descriptors_raise());
}

void command_limits_tell(const struct command_limits_plan *plan, const struct config *c)
{
    enum log_level level = plan->is_short ? LOG_LEVEL_WARN : LOG_LEVEL_DEBUG;
    log_event(level, "descriptors",
              "limit=%llu clients=%u clients_wanted=%u origin_connections=%u origin_wanted=%u "
              "segments=%u%s",
              (unsigned long long)plan->descriptors, plan->clients, c->limits_max_connections,
              plan->origin_connections, c->origin_connections, plan->segments,
              plan->is_short ? " remedy=raise_ulimit_n" : "");
}
