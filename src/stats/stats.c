// SPDX-License-Identifier: Apache-2.0
// Counters. Every thread that counts owns one record. Only its owner writes it (plain loads and
// relaxed stores); any thread may read it. Records are in a list that only grows. When a thread
// ends, its record with all its counts passes to the next thread that starts. So sums never
// decrease, and the list is as long as the most threads that ever ran at once.
//
// Counts by label are in a small open-addressing table per record. Its keys are the addresses of
// the callers' static strings. A row's key is published by a release store of `first`, which comes
// last. When rendered, rows of different threads, or of equal literals at different addresses, are
// merged by text.
#include "stats/stats.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define LABEL_ROWS 256u // per table and thread; further labels count as _other
#define MERGED_MAX 512u

struct label_row {
    _Atomic(const char *) first; // NULL = free
    const char *second;          // NULL if `code` is the second label or there is none
    unsigned code;
    atomic_ulong count;
};

struct label_table {
    struct label_row rows[LABEL_ROWS];
    atomic_ulong other;
};

static const struct table_text {
    const char *metric, *help;
    const char *first_label, *second_label; // second_label NULL: only one label
} table_texts[STATS_TABLE_COUNT] = {
    [STATS_REQUESTS] = {"forebay_http_requests_total", "requests answered", "op", "code"},
    [STATS_RESULTS] = {"forebay_cache_requests_total", "requests by what the cache did", "op",
                       "result"},
    [STATS_BYPASS] = {"forebay_cache_bypass_total", "requests that went past the cache", "reason",
                      NULL},
    [STATS_ORIGIN] = {"forebay_origin_requests_total", "requests to origins", "op", "code"},
};

struct record {
    struct stats_block block; // first: stats_block() returns it
    struct label_table tables[STATS_TABLE_COUNT];
    struct record *next;
    atomic_bool taken;
};

static _Atomic(struct record *) records;
static _Thread_local struct record *mine;
static pthread_key_t record_key;
static pthread_once_t record_once = PTHREAD_ONCE_INIT;

static void record_give_back(void *ctx)
{
    struct record *record = ctx;
    mine = NULL;
    atomic_store_explicit(&record->taken, false, memory_order_release);
}

static void record_key_make(void)
{
    check(pthread_key_create(&record_key, record_give_back) == 0);
}

static struct record *record_claim(void)
{
    for (struct record *r = atomic_load(&records); r != NULL; r = r->next) {
        bool free_one = false;
        if (atomic_compare_exchange_strong(&r->taken, &free_one, true)) {
            return r;
        }
    }
    struct record *record = NULL;
    void *memory = NULL;
    check(posix_memalign(&memory, 128, sizeof(*record)) == 0); // no cache line shared with others
    memset(memory, 0, sizeof(*record));
    record = memory;
    atomic_init(&record->taken, true);
    record->next = atomic_load(&records);
    while (!atomic_compare_exchange_weak(&records, &record->next, record)) {
    }
    return record;
}

static struct record *record_mine(void)
{
    if (__builtin_expect(mine == NULL, 0)) {
        check(pthread_once(&record_once, record_key_make) == 0);
        mine = record_claim();
        check(pthread_setspecific(record_key, mine) == 0);
    }
    return mine;
}

struct stats_block *stats_block(void)
{
    return &record_mine()->block;
}

// --- Counting ------------------------------------------------------------------------------------

static void slot_add(atomic_ulong *slot, unsigned long n)
{
    atomic_store_explicit(slot, atomic_load_explicit(slot, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

struct ladder {
    uint64_t us[HISTOGRAM_BUCKETS];
    const char *text[HISTOGRAM_BUCKETS];
};

static const struct ladder coarse = {
    {250, 500, 1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000, 500000, 1000000, 2500000,
     5000000, 10000000, 30000000},
    {"0.00025", "0.0005", "0.001", "0.0025", "0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5",
     "1", "2.5", "5", "10", "30"}};
static const struct ladder fine = {
    {1, 2, 5, 10, 15, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 100000, 1000000},
    {"0.000001", "0.000002", "0.000005", "0.00001", "0.000015", "0.000025", "0.00005", "0.0001",
     "0.00025", "0.0005", "0.001", "0.0025", "0.005", "0.01", "0.1", "1"}};

#define S 1000000ull
#define HOUR (3600 * S)
#define DAY (24 * HOUR)
static const struct ladder age = {
    {S, 10 * S, 30 * S, 60 * S, 120 * S, 300 * S, 600 * S, 1800 * S, HOUR, 2 * HOUR, 6 * HOUR,
     12 * HOUR, DAY, 3 * DAY, 7 * DAY, 30 * DAY},
    {"1", "10", "30", "60", "120", "300", "600", "1800", "3600", "7200", "21600", "43200", "86400",
     "259200", "604800", "2592000"}};

static const struct ladder *const ladders[HISTOGRAM_COUNT_] = {
#define COUNTER(name, metric, labels, help)
#define GAUGE(name, metric, labels, help)
#define HISTOGRAM(name, metric, labels, help) [HISTOGRAM_##name] = &coarse,
#define HISTOGRAM_FINE(name, metric, labels, help) [HISTOGRAM_##name] = &fine,
#define HISTOGRAM_AGE(name, metric, labels, help) [HISTOGRAM_##name] = &age,
#include "stats/counters.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
};

static unsigned bucket_of(enum histogram h, uint64_t us)
{
    const uint64_t *bounds_us = ladders[h]->us;
    unsigned i = 0;
    while (i < HISTOGRAM_BUCKETS && us > bounds_us[i]) {
        i++;
    }
    return i;
}

void stats_observe_us(enum histogram h, uint64_t us)
{
    check((unsigned)h < HISTOGRAM_COUNT_);
    struct stats_histogram *histogram = &record_mine()->block.histogram[h];
    slot_add(&histogram->bucket[bucket_of(h, us)], 1);
    slot_add(&histogram->sum_us, us);
}

uint64_t stats_sum(enum counter c)
{
    check((unsigned)c < COUNTER_COUNT_);
    unsigned long sum = 0;
    for (struct record *r = atomic_load(&records); r != NULL; r = r->next) {
        sum += atomic_load_explicit(&r->block.counter[c], memory_order_relaxed);
    }
    return sum;
}

static void label_count(enum stats_table which, const char *first, const char *second,
                        unsigned code)
{
    check(first != NULL);
    struct label_table *table = &record_mine()->tables[which];
    uint64_t hash = ((uintptr_t)first ^ ((uintptr_t)second << 7) ^ code) * 0x9e3779b97f4a7c15u;
    unsigned at = (unsigned)(hash >> 56) % LABEL_ROWS;
    for (unsigned probes = 0; probes < LABEL_ROWS; probes++) {
        struct label_row *row = &table->rows[at];
        const char *held = atomic_load_explicit(&row->first, memory_order_relaxed);
        if (held == NULL) {
            row->second = second;
            row->code = code;
            atomic_store_explicit(&row->first, first, memory_order_release);
            held = first;
        }
        if (held == first && row->second == second && row->code == code) {
            slot_add(&row->count, 1);
            return;
        }
        at = (at + 1) % LABEL_ROWS;
    }
    slot_add(&table->other, 1);
}

void stats_count_request(const char *op, unsigned status)
{
    label_count(STATS_REQUESTS, op, NULL, status);
}

void stats_count_result(const char *op, const char *result)
{
    check(result != NULL);
    label_count(STATS_RESULTS, op, result, 0);
}

void stats_count_bypass(const char *reason)
{
    label_count(STATS_BYPASS, reason, NULL, 0);
}

void stats_count_origin(const char *op, unsigned status)
{
    label_count(STATS_ORIGIN, op, NULL, status);
}

// --- Rendering -----------------------------------------------------------------------------------

static const struct row_text {
    enum { ROW_COUNTER, ROW_GAUGE, ROW_HISTOGRAM } kind;
    unsigned slot;
    const char *metric, *labels, *help;
} row_texts[] = {
#define COUNTER(name, metric, labels, help)                                                        \
    {ROW_COUNTER, (unsigned)COUNTER_##name, metric, labels, help},
#define GAUGE(name, metric, labels, help)                                                          \
    {ROW_GAUGE, (unsigned)COUNTER_##name, metric, labels, help},
#define HISTOGRAM(name, metric, labels, help)                                                      \
    {ROW_HISTOGRAM, (unsigned)HISTOGRAM_##name, metric, labels, help},
#include "stats/counters.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
};

static const struct counter_text {
    const char *name, *metric, *labels;
    bool is_gauge;
} counter_texts[COUNTER_COUNT_] = {
#define COUNTER(name, metric, labels, help) {#name, metric, labels, false},
#define GAUGE(name, metric, labels, help) {#name, metric, labels, true},
#define HISTOGRAM(name, metric, labels, help)
#include "stats/counters.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
};

static const char *const histogram_names[HISTOGRAM_COUNT_] = {
#define COUNTER(name, metric, labels, help)
#define GAUGE(name, metric, labels, help)
#define HISTOGRAM(name, metric, labels, help) #name,
#include "stats/counters.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
};

const char *stats_name(enum counter c)
{
    check((unsigned)c < COUNTER_COUNT_);
    return counter_texts[c].name;
}

const char *stats_metric(enum counter c)
{
    check((unsigned)c < COUNTER_COUNT_);
    return counter_texts[c].metric;
}

const char *stats_labels(enum counter c)
{
    check((unsigned)c < COUNTER_COUNT_);
    return counter_texts[c].labels;
}

uint64_t stats_value(enum counter c)
{
    uint64_t sum = stats_sum(c);
    bool is_below = counter_texts[c].is_gauge &&
                    (int64_t)sum < 0; // one thread's decrement was read before another's increment
    return is_below ? 0 : sum;
}

const char *stats_histogram_name(enum histogram h)
{
    check((unsigned)h < HISTOGRAM_COUNT_);
    return histogram_names[h];
}

void stats_histogram_sum(enum histogram h, struct stats_histogram_sum *ret_sum)
{
    check((unsigned)h < HISTOGRAM_COUNT_);
    *ret_sum = (struct stats_histogram_sum){0};
    for (struct record *r = atomic_load(&records); r != NULL; r = r->next) {
        const struct stats_histogram *one = &r->block.histogram[h];
        for (unsigned i = 0; i <= HISTOGRAM_BUCKETS; i++) {
            ret_sum->bucket[i] += atomic_load_explicit(&one->bucket[i], memory_order_relaxed);
        }
        ret_sum->sum_us += atomic_load_explicit(&one->sum_us, memory_order_relaxed);
    }
}

uint64_t stats_histogram_bound_us(enum histogram h, unsigned bucket)
{
    check((unsigned)h < HISTOGRAM_COUNT_ && bucket < HISTOGRAM_BUCKETS);
    return ladders[h]->us[bucket];
}

static void render_head(struct buf *out, const char *metric, const char *help, const char *type)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", metric, help, metric, type);
}

static void render_value(struct buf *out, const struct row_text *row)
{
    uint64_t sum = stats_value((enum counter)row->slot);
    const char *open = row->labels[0] != '\0' ? "{" : "", *close = open[0] != '\0' ? "}" : "";
    buf_printf(out, "%s%s%s%s %lu\n", row->metric, open, row->labels, close, (unsigned long)sum);
}

static void render_histogram(struct buf *out, const struct row_text *row)
{
    struct stats_histogram_sum all;
    uint64_t total = 0;
    stats_histogram_sum((enum histogram)row->slot, &all);
    const char *comma = row->labels[0] != '\0' ? "," : "";
    for (unsigned i = 0; i <= HISTOGRAM_BUCKETS; i++) {
        total += all.bucket[i];
        buf_printf(out, "%s_bucket{%s%sle=\"%s\"} %lu\n", row->metric, row->labels, comma,
                   i < HISTOGRAM_BUCKETS ? ladders[row->slot]->text[i] : "+Inf", total);
    }
    const char *open = comma[0] != '\0' ? "{" : "", *close = comma[0] != '\0' ? "}" : "";
    buf_printf(out, "%s_sum%s%s%s %lu.%06lu\n", row->metric, open, row->labels, close,
               all.sum_us / 1000000, all.sum_us % 1000000);
    buf_printf(out, "%s_count%s%s%s %lu\n", row->metric, open, row->labels, close, total);
}

struct merged_row {
    const char *first, *second;
    unsigned code;
    unsigned long count;
};

static int compare_merged(const void *a, const void *b)
{
    const struct merged_row *x = a, *y = b;
    int order = strcmp(x->first, y->first);
    if (order == 0 && x->second != NULL && y->second != NULL) {
        order = strcmp(x->second, y->second);
    }
    return order != 0 ? order : (x->code > y->code) - (x->code < y->code);
}

static void merge_row(struct merged_row *merged, unsigned *count, unsigned long *other,
                      struct merged_row row)
{
    for (unsigned i = 0; i < *count; i++) {
        if (compare_merged(&merged[i], &row) == 0) {
            merged[i].count += row.count;
            return;
        }
    }
    if (*count == MERGED_MAX) {
        *other += row.count;
    } else {
        merged[(*count)++] = row;
    }
}

void stats_each(enum stats_table which, stats_row_fn *on_row, void *ctx)
{
    check((unsigned)which < STATS_TABLE_COUNT);
    bool has_code = table_texts[which].second_label != NULL;
    struct merged_row merged[MERGED_MAX];
    unsigned count = 0;
    unsigned long other = 0;
    for (struct record *r = atomic_load(&records); r != NULL; r = r->next) {
        const struct label_table *table = &r->tables[which];
        other += atomic_load_explicit(&table->other, memory_order_relaxed);
        for (unsigned i = 0; i < LABEL_ROWS; i++) {
            const struct label_row *row = &table->rows[i];
            const char *first = atomic_load_explicit(&row->first, memory_order_acquire);
            if (first != NULL) {
                merge_row(
                    merged, &count, &other,
                    (struct merged_row){first, row->second, row->code,
                                        atomic_load_explicit(&row->count, memory_order_relaxed)});
            }
        }
    }
    qsort(merged, count, sizeof(merged[0]), compare_merged);
    for (unsigned i = 0; i < count; i++) {
        char code[12];
        (void)snprintf(code, sizeof(code), "%u", merged[i].code); // always fits
        const char *second = merged[i].second != NULL ? merged[i].second : has_code ? code : NULL;
        on_row(ctx, merged[i].first, second, merged[i].count);
    }
    if (other > 0) {
        on_row(ctx, "_other", has_code ? "_other" : NULL, other);
    }
}

struct table_out {
    struct buf *out;
    const struct table_text *text;
};

static void render_label_row(void *ctx, const char *first, const char *second, uint64_t count)
{
    const struct table_out *to = ctx;
    buf_printf(to->out, "%s{%s=\"%s\"", to->text->metric, to->text->first_label, first);
    if (second != NULL) {
        buf_printf(to->out, ",%s=\"%s\"", to->text->second_label, second);
    }
    buf_printf(to->out, "} %lu\n", count);
}

static void render_table(struct buf *out, enum stats_table which)
{
    struct table_out to = {out, &table_texts[which]};
    render_head(out, to.text->metric, to.text->help, "counter");
    stats_each(which, render_label_row, &to);
}

static void render_log_lines(struct buf *out)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    render_head(out, "forebay_log_messages_total", "log lines written", "counter");
    for (int level = LOG_LEVEL_ERROR; level <= LOG_LEVEL_DEBUG; level++) {
        buf_printf(out, "forebay_log_messages_total{level=\"%s\"} %lu\n", names[level],
                   log_lines((enum log_level)level));
    }
    render_head(out, "forebay_log_lost_total", "log lines that stderr did not take at once",
                "counter");
    buf_printf(out, "forebay_log_lost_total %lu\n", log_lines_lost());
    render_head(out, "forebay_log_held_back_total",
                "log lines held back: the condition was logged less than a minute before",
                "counter");
    buf_printf(out, "forebay_log_held_back_total %lu\n", log_lines_held_back());
}

void stats_render(struct buf *out)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    const char *previous = "";
    for (size_t i = 0; i < ARRAY_LEN(row_texts); i++) {
        const struct row_text *row = &row_texts[i];
        if (strcmp(previous, row->metric) != 0) {
            render_head(out, row->metric, row->help, types[row->kind]);
            previous = row->metric;
        }
        if (row->kind == ROW_HISTOGRAM) {
            render_histogram(out, row);
        } else {
            render_value(out, row);
        }
    }
    for (int table = 0; table < STATS_TABLE_COUNT; table++) {
        render_table(out, (enum stats_table)table);
    }
    render_log_lines(out);
}
