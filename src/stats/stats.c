// SPDX-License-Identifier: Apache-2.0
// Counters. Each thread that counts owns one record. Only the owner writes it (relaxed loads and
// relaxed stores); any thread may read it. Records are in a list that only grows. When a thread
// ends, its record, with all its counts, is left for the next thread that starts. So sums never
// decrease, and the list is only as long as the most threads that ever ran at once.
//
// Each record also has small hash tables with open addressing, for counts by label. A table's keys
// are the addresses of static strings. The owner writes a row's `first` last, with a release store,
// which makes the row visible to readers. When counts are rendered, rows of different threads, and
// rows of equal strings at different addresses, are merged by text.
#include "stats/stats.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define LABEL_ROWS 256u // rows per table and thread; further labels count as _other
#define MERGED_MAX 512u

struct label_row {
    _Atomic(const char *) first; // NULL: the row is free
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
    struct stats_block block; // stats_block() returns its address
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
    // the record shares no cache line with other memory
    check(posix_memalign(&memory, 128, sizeof(*record)) == 0);
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
#define HISTOGRAM(row, value) [HISTOGRAM_##row] = &coarse,
#define HISTOGRAM_FINE(row, value) [HISTOGRAM_##row] = &fine,
#define HISTOGRAM_AGE(row, value) [HISTOGRAM_##row] = &age,
#include "stats/counters.def"
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

// --- The table -----------------------------------------------------------------------------------

enum row_kind { ROW_METRIC, ROW_COUNTER, ROW_GAUGE, ROW_HISTOGRAM };

// counters.def in its order: each ROW_METRIC is followed by the rows of its series.
static const struct row {
    enum row_kind kind;
    unsigned slot;     // enum counter or enum histogram; unused for ROW_METRIC
    const char *name;  // name of the metric or of the row
    const char *label; // ROW_METRIC: the label's name; other rows: its value; "": no label
    const char *help;  // for ROW_METRIC only
} rows[] = {
#define METRIC(name, label, help) {ROW_METRIC, 0, name, label, help},
#define COUNTER(row, value) {ROW_COUNTER, (unsigned)COUNTER_##row, #row, value, NULL},
#define GAUGE(row, value) {ROW_GAUGE, (unsigned)COUNTER_##row, #row, value, NULL},
#define HISTOGRAM(row, value) {ROW_HISTOGRAM, (unsigned)HISTOGRAM_##row, #row, value, NULL},
#include "stats/counters.def"
};

static const struct row *row_of_counter(enum counter c)
{
    check((unsigned)c < COUNTER_COUNT_);
    const struct row *row = rows;
    while ((row->kind != ROW_COUNTER && row->kind != ROW_GAUGE) || row->slot != (unsigned)c) {
        row++; // the table has a row for each counter
    }
    return row;
}

static const struct row *metric_of(const struct row *row)
{
    while (row->kind != ROW_METRIC) {
        row--; // the table begins with a metric
    }
    return row;
}

const char *stats_name(enum counter c)
{
    return row_of_counter(c)->name;
}

const char *stats_metric(enum counter c)
{
    return metric_of(row_of_counter(c))->name;
}
const char *stats_label(enum counter c)
{
    return row_of_counter(c)->label;
}

uint64_t stats_value(enum counter c)
{
    uint64_t sum = stats_sum(c);
    // The sum may be negative for a moment, if this thread reads one thread's decrement before
    // another thread's increment.
    bool is_below = (int64_t)sum < 0 && row_of_counter(c)->kind == ROW_GAUGE;
    return is_below ? 0 : sum;
}

const char *stats_histogram_name(enum histogram h)
{
    check((unsigned)h < HISTOGRAM_COUNT_);
    const struct row *row = rows;
    while (row->kind != ROW_HISTOGRAM || row->slot != (unsigned)h) {
        row++; // the table has a row for each histogram
    }
    return row->name;
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

// --- Rendering -----------------------------------------------------------------------------------

static void render_head(struct buf *out, const char *metric, const char *help, const char *type)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", metric, help, metric, type);
}

// Appends the name and the labels of a sample. `le` is NULL unless it is a histogram's bucket.
static void render_series(struct buf *out, const struct row *row, const char *suffix,
                          const char *le)
{
    const struct row *metric = metric_of(row);
    bool has_label = metric->label[0] != '\0';
    buf_printf(out, "%s%s", metric->name, suffix);
    if (has_label) {
        buf_printf(out, "{%s=\"%s\"", metric->label, row->label);
    }
    if (le != NULL) {
        buf_printf(out, "%sle=\"%s\"", has_label ? "," : "{", le);
    }
    buf_append_cstr(out, has_label || le != NULL ? "}" : "");
}

static void render_histogram(struct buf *out, const struct row *row)
{
    struct stats_histogram_sum all;
    uint64_t total = 0;
    stats_histogram_sum((enum histogram)row->slot, &all);
    for (unsigned i = 0; i <= HISTOGRAM_BUCKETS; i++) {
        total += all.bucket[i];
        render_series(out, row, "_bucket",
                      i < HISTOGRAM_BUCKETS ? ladders[row->slot]->text[i] : "+Inf");
        buf_printf(out, " %lu\n", total);
    }
    render_series(out, row, "_sum", NULL);
    buf_printf(out, " %lu.%06lu\n", all.sum_us / 1000000, all.sum_us % 1000000);
    render_series(out, row, "_count", NULL);
    buf_printf(out, " %lu\n", total);
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
    static const char *const types[] = {
        [ROW_COUNTER] = "counter", [ROW_GAUGE] = "gauge", [ROW_HISTOGRAM] = "histogram"};
    for (const struct row *row = rows; row < rows + ARRAY_LEN(rows); row++) {
        if (row->kind == ROW_METRIC) {
            render_head(out, row->name, row->help,
                        types[row[1].kind]); // the next row is its first series
        } else if (row->kind == ROW_HISTOGRAM) {
            render_histogram(out, row);
        } else {
            render_series(out, row, "", NULL);
            buf_printf(out, " %lu\n", (unsigned long)stats_value((enum counter)row->slot));
        }
    }
    for (int table = 0; table < STATS_TABLE_COUNT; table++) {
        render_table(out, (enum stats_table)table);
    }
    render_log_lines(out);
}
