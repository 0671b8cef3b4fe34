// SPDX-License-Identifier: Apache-2.0
// The limits for all clients of a server together, and their current use: connections, connections
// of one source, requests in flight, memory. Any thread.
#include <netinet/in.h>
#include <stdlib.h>

#include "base/chunk.h"
#include "base/hash.h"
#include "base/random.h"
#include "http/http_private.h"
#include "stats/stats.h"

#define SOURCE_SLOTS 65536u

void http_quota_init(struct http_quota *quota, const struct http_limits *limits)
{
    quota->source_seed = random_u64();
    quota->sources = calloc(SOURCE_SLOTS + 1, sizeof(*quota->sources));
    check(quota->sources != NULL);
    http_quota_set(quota, limits);
}

void http_quota_done(struct http_quota *quota)
{
    free(quota->sources);
}

void http_quota_set(struct http_quota *quota, const struct http_limits *limits)
{
    quota->max_connections = limits->max_connections;
    quota->max_held_bytes = limits->max_held_bytes;
    quota->max_connections_per_source = limits->max_connections_per_source;
    quota->max_inflight = limits->max_inflight;
    quota->max_inflight_in_memory = limits->max_inflight_in_memory;
    quota->header_timeout_ms = limits->header_timeout_ms;
    quota->idle_timeout_ms = limits->idle_timeout_ms;
    quota->min_rate_bytes = limits->min_rate_bytes;
}

struct http_limits http_quota_limits(const struct http_quota *quota)
{
    return (struct http_limits){.max_connections = quota->max_connections,
                                .max_held_bytes = quota->max_held_bytes,
                                .max_connections_per_source = quota->max_connections_per_source,
                                .max_inflight = quota->max_inflight,
                                .max_inflight_in_memory = quota->max_inflight_in_memory,
                                .header_timeout_ms = quota->header_timeout_ms,
                                .idle_timeout_ms = quota->idle_timeout_ms,
                                .min_rate_bytes = quota->min_rate_bytes};
}

static unsigned add(atomic_uint *count, unsigned n)
{
    return atomic_fetch_add_explicit(count, n, memory_order_relaxed);
}

static void leave(atomic_uint *count)
{
    unsigned before = atomic_fetch_sub_explicit(count, 1, memory_order_relaxed);
    check(before > 0);
}

// --- Requests and memory -------------------------------------------------------------------------

// Returns true if the memory of requests has reached its limit. This is the memory of clients
// without the memory for TLS and incoming heads. Each of the two may reach max_held_bytes. So a few
// requests with long heads use no more memory than max_inflight_in_memory usual ones.
static bool requests_fill_their_share(const struct http_quota *quota, unsigned inflight)
{
    if (inflight >= quota->max_inflight_in_memory) {
        return true;
    }
    uint64_t max = quota->max_held_bytes;
    uint64_t all = chunk_budget_kind_bytes(BUDGET_CLIENTS);
    uint64_t held = atomic_load_explicit(&quota->held_bytes, memory_order_relaxed);
    return inflight > 0 && max != 0 && all >= held && all - held >= max;
}

bool http_quota_request_enter(struct http_quota *quota, enum counter *ret_why)
{
    unsigned before = add(&quota->inflight_count, 1);
    bool is_allowed = before < quota->max_inflight;
    if (!is_allowed || requests_fill_their_share(quota, before)) {
        leave(&quota->inflight_count);
        *ret_why = is_allowed ? COUNTER_http_shed_memory : COUNTER_http_shed_inflight;
        return false;
    }
    stats_add(COUNTER_http_inflight, 1);
    return true;
}

void http_quota_request_leave(struct http_quota *quota)
{
    leave(&quota->inflight_count);
    stats_sub(COUNTER_http_inflight, 1);
}

bool http_quota_hold(struct http_quota *quota, uint64_t from, uint64_t to, bool force)
{
    uint64_t max = quota->max_held_bytes;
    if (to <= from) {
        uint64_t before =
            atomic_fetch_sub_explicit(&quota->held_bytes, from - to, memory_order_relaxed);
        check(before >= from - to);
        stats_sub(COUNTER_http_held_bytes, from - to);
        chunk_budget_discharge(BUDGET_CLIENTS, from - to);
        return true;
    }
    uint64_t more = to - from;
    uint64_t before = atomic_fetch_add_explicit(&quota->held_bytes, more, memory_order_relaxed);
    if (!force && max != 0 && before + more > max) {
        atomic_fetch_sub_explicit(&quota->held_bytes, more, memory_order_relaxed);
        return false;
    }
    stats_add(COUNTER_http_held_bytes, more);
    chunk_budget_charge(BUDGET_CLIENTS, more);
    return true;
}

bool http_quota_memory_is_full(const struct http_quota *quota)
{
    uint64_t max = quota->max_held_bytes;
    return max != 0 && atomic_load_explicit(&quota->held_bytes, memory_order_relaxed) >= max;
}

bool http_quota_is_scarce(const struct http_quota *quota)
{
    uint64_t connections = atomic_load_explicit(&quota->connection_count, memory_order_relaxed);
    uint64_t inflight = atomic_load_explicit(&quota->inflight_count, memory_order_relaxed);
    uint64_t inflight_max = min_u64(quota->max_inflight, quota->max_inflight_in_memory);
    return connections * 4 >= (uint64_t)quota->max_connections * 3 ||
           inflight * 4 >= inflight_max * 3 || socket_room_is_scarce(SOCKETS_CLIENTS);
}

// --- Connections ---------------------------------------------------------------------------------

// Returns the slot in which a connection's source is counted: an IPv4 address, or a /64, which one
// IPv6 host may have. Sources whose hashes collide share one limit.
static unsigned source_slot(const struct http_quota *quota, const struct sockaddr_storage *addr)
{
    const void *bytes = &((const struct sockaddr_in *)addr)->sin_addr;
    size_t len = 4;
    if (addr->ss_family == AF_INET6) {
        const struct in6_addr *in6 = &((const struct sockaddr_in6 *)addr)->sin6_addr;
        bool mapped = IN6_IS_ADDR_V4MAPPED(in6);
        bytes = in6->s6_addr + (mapped ? 12 : 0);
        len = mapped ? 4 : 8;
    }
    return 1 + (unsigned)(hash64(bytes, len, quota->source_seed) % SOURCE_SLOTS);
}

static void source_leave(struct http_quota *quota, unsigned source)
{
    check(source <= SOURCE_SLOTS);
    if (source != 0) {
        leave(&quota->sources[source]);
    }
}

// Returns false if this source has reached its limit. Slot 0 belongs to no source.
static bool source_enter(struct http_quota *quota, const struct sockaddr_storage *addr,
                         unsigned *ret_source)
{
    *ret_source = 0;
    unsigned max = quota->max_connections_per_source;
    if (max == 0 || (addr->ss_family != AF_INET && addr->ss_family != AF_INET6)) {
        return true;
    }
    unsigned slot = source_slot(quota, addr);
    if (add(&quota->sources[slot], 1) >= max) {
        leave(&quota->sources[slot]);
        return false;
    }
    *ret_source = slot;
    return true;
}

bool http_quota_connection_enter(struct http_quota *quota, const struct sockaddr_storage *addr,
                                 int fd, uint64_t held, struct http_admission *ret_admission,
                                 enum counter *ret_why)
{
    *ret_admission = (struct http_admission){0};
    if (!source_enter(quota, addr, &ret_admission->source)) {
        *ret_why = COUNTER_http_shed_source;
        return false;
    }
    if (!http_quota_hold(quota, 0, held, false)) {
        source_leave(quota, ret_admission->source);
        *ret_why = COUNTER_http_shed_memory;
        return false;
    }
    bool is_allowed = add(&quota->connection_count, 1) < quota->max_connections;
    if (!is_allowed || !socket_room_take(SOCKETS_CLIENTS, fd, &ret_admission->room)) {
        http_quota_connection_leave(quota, ret_admission, held);
        *ret_why = is_allowed ? COUNTER_http_shed_sockets : COUNTER_http_shed_connections;
        return false;
    }
    return true;
}

void http_quota_connection_leave(struct http_quota *quota, const struct http_admission *admission,
                                 uint64_t held)
{
    (void)http_quota_hold(quota, held, 0, true);
    socket_room_give_back(SOCKETS_CLIENTS, &admission->room);
    source_leave(quota, admission->source);
    leave(&quota->connection_count);
}
