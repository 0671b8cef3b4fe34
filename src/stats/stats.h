// SPDX-License-Identifier: Apache-2.0
// Counters and latency histograms, from the table counters.def. Each thread that counts owns a
// block, which shares no cache line with others. Only the owner adds to its block, with relaxed
// loads and stores. A reader sums all blocks.
#ifndef FOREBAY_STATS_STATS_H
#define FOREBAY_STATS_STATS_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"

enum counter {
#define COUNTER(row, value) COUNTER_##row,
#define GAUGE(row, value) COUNTER_##row,
#include "stats/counters.def"
    COUNTER_COUNT_
};

enum histogram {
#define HISTOGRAM(row, value) HISTOGRAM_##row,
#include "stats/counters.def"
    HISTOGRAM_COUNT_
};

// Reasons why a fetched run is not stored, from the table refusals.def.
enum refusal {
    REFUSAL_none,
#define REFUSAL(name, err, word, passes, text, remedy) REFUSAL_##name,
#define REFUSAL_STATE(name, word, text, remedy) REFUSAL_##name,
#include "stats/refusals.def"
#undef REFUSAL
#undef REFUSAL_STATE
    REFUSAL_COUNT_
};

// Number of buckets with an upper bound; one more bucket has none. stats.c has the bounds: 0.25 ms
// to 30 s, for HISTOGRAM_FINE 1 us to 1 s, for HISTOGRAM_AGE 1 s to 30 days.
#define HISTOGRAM_BUCKETS 16

struct stats_histogram {
    atomic_ulong bucket[HISTOGRAM_BUCKETS + 1];
    atomic_ulong sum_us;
};

// The counts of one thread.
struct stats_block {
    atomic_ulong counter[COUNTER_COUNT_];
    struct stats_histogram histogram[HISTOGRAM_COUNT_];
};

// Returns the calling thread's block. The first call creates and registers it. It outlives the
// thread.
struct stats_block *stats_block(void);

static inline void stats_add(enum counter c, unsigned long n)
{
    atomic_ulong *slot = &stats_block()->counter[c];
    atomic_store_explicit(slot, atomic_load_explicit(slot, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

// A gauge is the sum of the increments and decrements by all threads.
static inline void stats_sub(enum counter c, unsigned long n)
{
    stats_add(c, 0UL - n);
}

void stats_observe_us(enum histogram h, uint64_t us);

uint64_t stats_sum(enum counter c); // sums all blocks; any thread

// Count requests by (op, code), by (op, result) and so on, in small fixed tables. Their metrics are
// listed at the head of counters.def.
void stats_count_request(const char *op, unsigned status);
void stats_count_result(const char *op, const char *result);
void stats_count_bypass(const char *reason);
void stats_count_origin(const char *op, unsigned status);
#define STATS_ORIGIN_PROBE "Probe" // the op of requests that only ask whether the origin answers

// --- refusal.c: reasons why a run is not stored --------------------------------------------------

struct refusal_text {
    const char *word, *text, *remedy;
    bool passes; // the condition ends by itself, so a retry may succeed
};
// `why` must not be REFUSAL_none.
const struct refusal_text *refusal_text(enum refusal why);
// Returns the row of an error of the store; disk_degraded for an error without a row.
enum refusal refusal_of_error(enum err err);
// Returns the row with this word. Returns REFUSAL_none if no row has the word, for example because
// it is an origin's reason, or if `word` is NULL.
enum refusal refusal_of_word(const char *word);
// Counts a fill that is not stored. `why` must not be a REFUSAL_STATE.
void refusal_count(enum refusal why);
// Returns how many fills were not stored for this reason since the start; 0 for a REFUSAL_STATE.
// Any thread.
uint64_t refusal_sum(enum refusal why);

// --- savings.c: what the cache has saved since the start -----------------------------------------

// List prices of AWS us-east-1 in 2025, in US dollars: a GB (10^9 bytes) that leaves the region,
// and 1000 GET requests. Bytes cost nothing inside the region.
#define STATS_PRICE_GB 0.09
#define STATS_PRICE_REQUESTS 0.0004

// Misses, and the time that they took together.
struct stats_misses {
    uint64_t count, us;
};
// Returns the last misses that the cache has seen, in this process or an earlier one. Any thread.
struct stats_misses stats_misses(void);
// Sets the misses of earlier processes. Any thread.
void stats_misses_restore(struct stats_misses misses);

struct stats_savings {
    uint64_t bytes, requests;         // not asked of the origin
    uint64_t extra_requests;          // asked of the origin, although no client asked for them
    double cost_bytes, cost_requests; // their prices
    bool knows_misses;                // false: the cache has seen no miss, and both times are 0
    double wait_s, miss_s;            // saved by clients together; the mean of a miss
};
void stats_savings(struct stats_savings *ret_savings); // any thread

// --- The table, for code that shows the numbers in another form; any thread ----------------------

// Returns the name of a row of counters.def. The API and the commands use it.
const char *stats_name(enum counter c);
const char *stats_metric(enum counter c); // "forebay_disk_errors_total"
const char *stats_label(enum counter c);  // the value of the row's label; "": it has none
uint64_t stats_value(enum counter c);     // the sum over all threads; never below 0 for a gauge
const char *stats_histogram_name(enum histogram h);
struct stats_histogram_sum {
    uint64_t bucket[HISTOGRAM_BUCKETS + 1]; // not cumulative; the last one has no upper bound
    uint64_t sum_us;
};
void stats_histogram_sum(enum histogram h, struct stats_histogram_sum *ret_sum);
// Returns the bucket's upper bound, which is inclusive. bucket < HISTOGRAM_BUCKETS.
uint64_t stats_histogram_bound_us(enum histogram h, unsigned bucket);

// Calls on_row() for each count of a table whose labels come at run time. `second` is the second
// label; a status code is given in digits. It is NULL if there is no second label. Labels for which
// the table had no room are counted as "_other".
enum stats_table { STATS_REQUESTS, STATS_RESULTS, STATS_BYPASS, STATS_ORIGIN, STATS_TABLE_COUNT };
typedef void stats_row_fn(void *ctx, const char *first, const char *second, uint64_t count);
void stats_each(enum stats_table table, stats_row_fn *on_row, void *ctx); // in order of the labels

// Appends all metrics in the Prometheus text format 0.0.4, with `# HELP` and `# TYPE` once for each
// metric name.
void stats_render(struct buf *out);

#define count_if(condition, c) ((condition) ? (stats_add(c, 1), 1) : 0)

#endif
