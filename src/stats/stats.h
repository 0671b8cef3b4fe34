// SPDX-License-Identifier: Apache-2.0
// Counters and latency histograms. counters.def is the one table; each thread that counts has a
// block of its own (no shared cache line, relaxed atomic adds by the owner only), summed when
// somebody asks.
#ifndef FOREBAY_STATS_STATS_H
#define FOREBAY_STATS_STATS_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/bytes.h"

enum counter {
#define COUNTER(name, metric, labels, help) COUNTER_##name,
#define GAUGE(name, metric, labels, help) COUNTER_##name,
#define HISTOGRAM(name, metric, labels, help)
#define HISTOGRAM_FINE(name, metric, labels, help)
#include "stats/counters.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
#undef HISTOGRAM_FINE
    COUNTER_COUNT_
};

enum histogram {
#define COUNTER(name, metric, labels, help)
#define GAUGE(name, metric, labels, help)
#define HISTOGRAM(name, metric, labels, help) HISTOGRAM_##name,
#define HISTOGRAM_FINE(name, metric, labels, help) HISTOGRAM_##name,
#include "stats/counters.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
#undef HISTOGRAM_FINE
    HISTOGRAM_COUNT_
};

#define HISTOGRAM_BUCKETS 16 // upper bounds in stats.c: 0.25 ms ... 30 s (fine: 1 us ... 1 s), then +Inf

struct stats_histogram {
    atomic_ulong bucket[HISTOGRAM_BUCKETS + 1];
    atomic_ulong sum_us;
};

// One per thread; reached through the thread-local stats_block().
struct stats_block {
    atomic_ulong counter[COUNTER_COUNT_];
    struct stats_histogram histogram[HISTOGRAM_COUNT_];
};

// The calling thread's block, made and registered on first use and kept after the thread ends.
struct stats_block *stats_block(void);

static inline void stats_add(enum counter c, unsigned long n)
{
    atomic_ulong *slot = &stats_block()->counter[c];
    atomic_store_explicit(slot, atomic_load_explicit(slot, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

// Gauges are sums of per-thread ups and downs.
static inline void stats_sub(enum counter c, unsigned long n)
{
    stats_add(c, 0UL - n);
}

void stats_observe_us(enum histogram h, uint64_t us);
uint64_t stats_sum(enum counter c); // over all blocks; any thread

// Requests are counted by (op, code) and (op, result): small fixed tables, see counters.def's head.
void stats_count_request(const char *op, unsigned status);
void stats_count_result(const char *op, const char *result);
void stats_count_bypass(const char *reason);
void stats_count_origin(const char *op, unsigned status);

// Prometheus text format 0.0.4 of every row, appended; `# HELP` and `# TYPE` once per metric name.
void stats_render(struct buf *out);

#define count_if(condition, c) ((condition) ? (stats_add(c, 1), 1) : 0)

#endif
