// SPDX-License-Identifier: Apache-2.0
// `forebay stats`: prints the activity of a running server, one line per interval. Rates are
// differences between two summaries. The columns are rows of counters.def.
#include "cli/watch/command_stats.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "stats/stats.h"

#define INTERVAL_MAX_S 86400u
#define HEAD_EVERY 20u // lines

struct column {
    const char *title, *field;
    double scale; // for people
    double (*of)(const struct command_sample *from, const struct command_sample *to,
                 double seconds);
};

// --- columns -------------------------------------------------------------------------------------

#define RATE(name, counter)                                                                        \
    static double name(const struct command_sample *from, const struct command_sample *to,         \
                       double seconds)                                                             \
    {                                                                                              \
        return (to->value[counter] - from->value[counter]) / seconds;                              \
    }
RATE(memory_rate, COUNTER_response_bytes_memory)
RATE(disk_rate, COUNTER_response_bytes_disk)
RATE(origin_rate, COUNTER_response_bytes_origin)
RATE(fetch_rate, COUNTER_origin_received_bytes)
RATE(eviction_rate, COUNTER_evicted_blocks_capacity)

static double request_rate(const struct command_sample *from, const struct command_sample *to,
                           double seconds)
{
    return (to->requests - from->requests) / seconds;
}

static double hit_share(const struct command_sample *from, const struct command_sample *to,
                        double seconds)
{
    double reads = to->reads - from->reads;
    (void)seconds;
    return reads > 0 ? (to->hits - from->hits) / reads : 0;
}

// Returns the upper bound of the bucket, because the position inside it is unknown.
static double quantile(const struct command_sample *from, const struct command_sample *to, double q)
{
    double total = 0, below = 0;
    for (unsigned i = 0; i <= HISTOGRAM_BUCKETS; i++) {
        total += to->first_byte[i] - from->first_byte[i];
    }
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS && total > 0; i++) {
        below += to->first_byte[i] - from->first_byte[i];
        if (below >= q * total) {
            return (double)stats_histogram_bound_us(HISTOGRAM_first_byte_hit, i) / 1e6;
        }
    }
    return total > 0
               ? (double)stats_histogram_bound_us(HISTOGRAM_first_byte_hit, HISTOGRAM_BUCKETS - 1) /
                     1e6
               : 0;
}

static double median(const struct command_sample *from, const struct command_sample *to,
                     double seconds)
{
    (void)seconds;
    return quantile(from, to, 0.5);
}

static double p99(const struct command_sample *from, const struct command_sample *to,
                  double seconds)
{
    (void)seconds;
    return quantile(from, to, 0.99);
}

static double inflight(const struct command_sample *from, const struct command_sample *to,
                       double seconds)
{
    (void)from;
    (void)seconds;
    return to->value[COUNTER_http_inflight];
}

#define MIB (1.0 / 1048576)
static const struct column columns[] = {
    {"req/s", "requests_per_s", 1, request_rate},
    {"hit%", "hit_ratio", 100, hit_share},
    {"mem MiB/s", "memory_bytes_per_s", MIB, memory_rate},
    {"disk MiB/s", "disk_bytes_per_s", MIB, disk_rate},
    {"origin MiB/s", "origin_bytes_per_s", MIB, origin_rate},
    {"fetch MiB/s", "fetched_bytes_per_s", MIB, fetch_rate},
    {"p50 ms", "first_byte_p50_s", 1000, median},
    {"p99 ms", "first_byte_p99_s", 1000, p99},
    {"evict/s", "evicted_blocks_per_s", 1, eviction_rate},
    {"inflight", "requests_inflight", 1, inflight},
};

// --- a sample ------------------------------------------------------------------------------------

static void add_first_byte(struct command_sample *sample, const json_t *histograms,
                           enum histogram h)
{
    const json_t *row = json_object_get(histograms, stats_histogram_name(h));
    const json_t *counts = json_object_get(row, "counts");
    for (unsigned i = 0; i <= HISTOGRAM_BUCKETS; i++) {
        sample->first_byte[i] += json_number_value(json_array_get(counts, i));
    }
}

int command_stats_take(struct command_client *client, struct command_sample *ret_sample,
                       json_t **ret_summary)
{
    json_t *summary = NULL;
    int code = command_client_get(client, "/api/v1/summary", &summary);
    if (code != EXIT_CODE_OK) {
        return code;
    }
    struct command_sample s = {.time = command_client_double(summary, "time")};
    const json_t *counters = json_object_get(summary, "counters");
    const json_t *histograms = json_object_get(summary, "histograms");
    const json_t *results = json_object_get(summary, "results");
    for (int c = 0; c < COUNTER_COUNT_; c++) {
        s.value[c] = command_client_double(counters, stats_name((enum counter)c));
    }
    add_first_byte(&s, histograms, HISTOGRAM_first_byte_hit);
    add_first_byte(&s, histograms, HISTOGRAM_first_byte_miss);
    add_first_byte(&s, histograms, HISTOGRAM_first_byte_other);
    s.requests = (double)command_client_sum(json_object_get(summary, "requests"));
    s.reads = (double)command_client_sum(results);
    s.hits = command_client_double(results, "hit") + command_client_double(results, "revalidated") +
             command_client_double(results, "stale");
    if (ret_summary != NULL) {
        *ret_summary = summary;
    } else {
        json_decref(summary);
    }
    *ret_sample = s;
    return EXIT_CODE_OK;
}

bool command_stats_column(unsigned i, const struct command_sample *from,
                          const struct command_sample *to, struct command_figure *ret_figure)
{
    if (i >= ARRAY_LEN(columns)) {
        return false;
    }
    double seconds = to->time > from->time ? to->time - from->time : 1;
    *ret_figure = (struct command_figure){.title = columns[i].title,
                                          .field = columns[i].field,
                                          .value = columns[i].of(from, to, seconds),
                                          .scale = columns[i].scale};
    return true;
}

// --- lines ---------------------------------------------------------------------------------------

static void print_head(void)
{
    for (size_t i = 0; i < ARRAY_LEN(columns); i++) {
        printf("%*s%s", (int)strlen(columns[i].title) + 1, columns[i].title,
               i + 1 < ARRAY_LEN(columns) ? " " : "\n");
    }
}

static void print_sample(const struct command_client *client, const struct command_sample *from,
                         const struct command_sample *to)
{
    double seconds = to->time > from->time ? to->time - from->time : 1;
    json_t *json = json_pack("{s:f, s:f}", "time", to->time, "interval_s", seconds);
    check(json != NULL);
    for (size_t i = 0; i < ARRAY_LEN(columns); i++) {
        const struct column *column = &columns[i];
        double value = column->of(from, to, seconds);
        if (!client->is_json) {
            printf("%*.1f%s", (int)strlen(column->title) + 1, value * column->scale,
                   i + 1 < ARRAY_LEN(columns) ? " " : "\n");
        }
        check(json_object_set_new(json, column->field, json_real(value)) == 0);
    }
    commands_line("item", json);
    (void)fflush(stdout); // readers want each line at once; the result reports failures
}

static bool read_number(const char *text, uint64_t *ret_value)
{
    return text == NULL || (span_to_u64(span_from_cstr(text), ret_value) && *ret_value > 0 &&
                            *ret_value <= INTERVAL_MAX_S);
}

int command_stats(int argc, char **argv)
{
    struct command_client client;
    struct command_sample before, now;
    bool bad = false;
    uint64_t interval_s = 1, count = 0;
    const char *interval_text = commands_argument_take_value(&argc, argv, "-i", &bad);
    const char *count_text = commands_argument_take_value(&argc, argv, "-n", &bad);
    const char *long_text = commands_argument_take_value(&argc, argv, "--count", &bad);
    if (count_text != NULL && long_text != NULL) {
        return commands_usage_error("stats", "-n and --count are the same: one of them");
    }
    count_text = count_text != NULL ? count_text : long_text;
    if (bad || !read_number(interval_text, &interval_s) || !read_number(count_text, &count)) {
        return commands_usage_error("stats", "-i and -n, or --count, are numbers above 0");
    }
    int code = command_client_open(&client, "stats");
    if (code != EXIT_CODE_OK) {
        return code;
    }
    code = command_stats_take(&client, &before, NULL);
    uint64_t lines = 0;
    for (; code == EXIT_CODE_OK && (count == 0 || lines < count); lines++) {
        (void)poll(NULL, 0, (int)(1000 * interval_s)); // a signal ends the process
        code = command_stats_take(&client, &now, NULL);
        if (code != EXIT_CODE_OK) {
            break;
        }
        if (!client.is_json && lines % HEAD_EVERY == 0) {
            print_head();
        }
        print_sample(&client, &before, &now);
        before = now;
    }
    return command_client_end(&client, code, json_pack("{s:I}", "lines", (json_int_t)lines));
}
