// SPDX-License-Identifier: Apache-2.0
// Computes what the cache has saved since the start, compared with clients that ask the origin
// themselves. Each figure is 0 where Forebay asked the origin for more than its clients did.
//
//   bytes, requests   what clients got, minus what the origin was asked for; a request that ended
//                     in 403 or 5xx got nothing, and probes of the origin do not count
//   extra_requests    how many requests the origin got beyond those that clients made, whether they
//                     have ended or not, and however they ended
//   wait_s            the time that hits would have taken at the mean speed of misses, minus the
//                     time that they took
//
// A process that answers everything from the cache sees no miss. So the store keeps the sum of the
// last misses across restarts. Without any miss of a client, wait_s is unknown. Fetches of warm
// jobs and of read-ahead are no measure for it: hundreds of them share the way to the origin, so
// each takes many times as long as a client's own would.
#include "stats/stats.h"

#include <string.h>

#define MISSES_KEPT 1000u // misses in the mean; older ones leave it

// The misses of earlier processes. The store restores them while readers may already run, so each
// half is atomic. A reader between the two stores gets a wrong mean once.
static _Atomic uint64_t earlier_count, earlier_us;

static struct stats_misses sum_of(enum histogram h)
{
    struct stats_histogram_sum sum;
    struct stats_misses misses = {0};
    stats_histogram_sum(h, &sum);
    for (unsigned i = 0; i <= HISTOGRAM_BUCKETS; i++) {
        misses.count += sum.bucket[i];
    }
    misses.us = sum.sum_us;
    return misses;
}

// Returns at most `count` misses with the same mean.
static struct stats_misses at_most(struct stats_misses misses, uint64_t count)
{
    if (misses.count <= count) {
        return misses;
    }
    double mean_us = (double)misses.us / (double)misses.count;
    return (struct stats_misses){count, (uint64_t)(mean_us * (double)count)};
}

struct stats_misses stats_misses(void)
{
    struct stats_misses misses = at_most(sum_of(HISTOGRAM_request_miss), MISSES_KEPT);
    struct stats_misses earlier = {atomic_load(&earlier_count), atomic_load(&earlier_us)};
    earlier = at_most(earlier, MISSES_KEPT - misses.count);
    misses.count += earlier.count;
    misses.us += earlier.us;
    return misses;
}

void stats_misses_restore(struct stats_misses misses)
{
    atomic_store(&earlier_us, misses.us);
    atomic_store(&earlier_count, misses.count);
}

static void add(void *ctx, const char *first, const char *second, uint64_t count)
{
    uint64_t *sum = ctx;
    (void)first, (void)second; // all rows count
    *sum += count;
}

static void add_answered(void *ctx, const char *op, const char *code, uint64_t count)
{
    if (strcmp(code, "403") != 0 && code[0] != '5') {
        add(ctx, op, code, count);
    }
}

static void add_asked(void *ctx, const char *op, const char *code, uint64_t count)
{
    if (strcmp(op, STATS_ORIGIN_PROBE) != 0) {
        add(ctx, op, code, count);
    }
}

static uint64_t above(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

void stats_savings(struct stats_savings *ret_savings)
{
    uint64_t served = stats_value(COUNTER_response_bytes_memory) +
                      stats_value(COUNTER_response_bytes_disk) +
                      stats_value(COUNTER_response_bytes_origin);
    struct stats_misses hits = sum_of(HISTOGRAM_request_hit), misses = stats_misses();
    uint64_t answered = 0, asked = 0, made = stats_value(COUNTER_http_inflight);
    stats_each(STATS_REQUESTS, add_answered, &answered);
    stats_each(STATS_REQUESTS, add, &made);
    stats_each(STATS_ORIGIN, add_asked, &asked);
    struct stats_savings s = {
        .bytes = above(served, stats_value(COUNTER_origin_received_bytes)),
        .requests = above(answered, asked),
        .extra_requests = above(asked, made),
        .knows_misses = misses.count > 0,
    };
    if (s.knows_misses) {
        s.miss_s = (double)misses.us / 1e6 / (double)misses.count;
        double wait_s = (double)hits.count * s.miss_s - (double)hits.us / 1e6;
        s.wait_s = wait_s > 0 ? wait_s : 0;
    }
    s.cost_bytes = (double)s.bytes / 1e9 * STATS_PRICE_GB;
    s.cost_requests = (double)s.requests / 1000 * STATS_PRICE_REQUESTS;
    *ret_savings = s;
}
