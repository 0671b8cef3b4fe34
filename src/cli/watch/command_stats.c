// SPDX-License-Identifier: Apache-2.0
// `forebay stats`: prints the activity of a running server, one line per interval. Rates are
// differences between two summaries. The columns are rows of counters.def.
#include "cli/watch/command_stats.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commands/commands.h"
#include "stats/stats.h"

#define INTERVAL_MAX_S 86400u
#define HEAD_EVERY 20u // lines between two headings
#define LINE_MAX_BYTES 1024u
#define MIB (1.0 / 1048576)

// Returns the quantile `q` of the times to the first byte. It is the upper bound of a bucket,
// because the position inside the bucket is unknown.
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

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

void command_stats_figures(const struct command_sample *from, const struct command_sample *to,
                           struct command_figure ret_figures[COMMAND_FIGURES])
{
    double seconds = to->time > from->time ? to->time - from->time : 1;
#define RATE(row) ((to->value[COUNTER_##row] - from->value[COUNTER_##row]) / seconds)
    const struct command_figure figures[COMMAND_FIGURES] = {
        {"req/s", "requests_per_s", (to->requests - from->requests) / seconds, 1, "requests", "/s"},
        {"hit%", "hit_ratio", share(to->hits - from->hits, to->reads - from->reads), 100, "hits",
         "%"},
        {"mem MiB/s", "memory_bytes_per_s", RATE(response_bytes_memory), MIB, "memory", "MiB/s"},
        {"disk MiB/s", "disk_bytes_per_s", RATE(response_bytes_disk), MIB, "disk", "MiB/s"},
        {"origin MiB/s", "origin_bytes_per_s", RATE(response_bytes_origin), MIB, "origin", "MiB/s"},
        {"fetch MiB/s", "fetched_bytes_per_s", RATE(origin_received_bytes), MIB, "fetched",
         "MiB/s"},
        {"p50 ms", "first_byte_p50_s", quantile(from, to, 0.5), 1000, "p50", "ms"},
        {"p99 ms", "first_byte_p99_s", quantile(from, to, 0.99), 1000, "p99", "ms"},
        {"evict/s", "evicted_blocks_per_s", RATE(evicted_blocks_capacity), 1, "evicted", "/s"},
        {"inflight", "requests_inflight", to->value[COUNTER_http_inflight], 1, "in flight", ""},
    };
#undef RATE
    memcpy(ret_figures, figures, sizeof(figures));
}

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

// --- lines ---------------------------------------------------------------------------------------

// The last heading: its figures, as bits, and the lines below it.
struct heading {
    unsigned shown, lines;
};

// Returns the set of figures that fit in `columns`, as bits. Leaves out the least important first.
static unsigned shown_in(const struct command_figure figures[COMMAND_FIGURES], unsigned columns)
{
    // evicted, fetched, in flight, memory, disk, origin, p50
    static const unsigned char least_first[] = {8, 5, 9, 2, 3, 4, 6};
    unsigned shown = (1u << COMMAND_FIGURES) - 1, width = 0;
    for (unsigned i = 0; i < COMMAND_FIGURES; i++) {
        width += (unsigned)strlen(figures[i].title) + 2;
    }
    for (unsigned n = 0; n < ARRAY_LEN(least_first) && columns > 0 && width > columns + 1; n++) {
        shown &= ~(1u << least_first[n]);
        width -= (unsigned)strlen(figures[least_first[n]].title) + 2;
    }
    return shown;
}

// Prints the titles, or the values, of the shown figures.
static void print_line(const struct command_figure figures[COMMAND_FIGURES], unsigned shown,
                       bool is_head)
{
    struct buf line;
    buf_init(&line, LINE_MAX_BYTES);
    for (unsigned i = 0; i < COMMAND_FIGURES; i++) {
        const struct command_figure *f = &figures[i];
        double value = f->value * f->scale;
        int width = (int)strlen(f->title) + 1;
        if ((shown & 1u << i) == 0) {
            continue;
        }
        buf_append_cstr(&line, line.len > 0 ? " " : "");
        if (is_head) {
            buf_printf(&line, "%*s", width, f->title);
        } else {
            buf_printf(&line, "%*.*f", width, value < 1000 ? 1 : 0, value);
        }
    }
    command_screen_row(buf_span(&line));
    buf_done(&line);
}

// Prints a line. Prints the heading again after HEAD_EVERY lines, and when the terminal has got
// another width, so that other figures fit.
static void print_sample(const struct command_client *client, const struct command_sample *from,
                         const struct command_sample *to, struct heading *heading)
{
    struct command_figure figures[COMMAND_FIGURES];
    double seconds = to->time > from->time ? to->time - from->time : 1;
    json_t *json = json_pack("{s:f, s:f}", "time", to->time, "interval_s", seconds);
    check(json != NULL);
    command_stats_figures(from, to, figures);
    for (size_t i = 0; i < COMMAND_FIGURES; i++) {
        check(json_object_set_new(json, figures[i].field, json_real(figures[i].value)) == 0);
    }
    if (!client->is_json) {
        unsigned shown = shown_in(figures, command_screen_columns(STDOUT_FILENO));
        if (shown != heading->shown || heading->lines == HEAD_EVERY) {
            *heading = (struct heading){.shown = shown};
            print_line(figures, shown, true);
        }
        heading->lines++;
        print_line(figures, shown, false);
    }
    commands_line("item", json);
    (void)fflush(stdout); // readers want each line at once; the result reports failures
}

int command_stats(int argc, char **argv)
{
    struct command_client client;
    struct command_sample before, now;
    uint64_t interval_s = 1, count = 0, same = 0;
    if (!commands_argument_take_number(&argc, argv, "-i", 1, INTERVAL_MAX_S, &interval_s) ||
        !commands_argument_take_number(&argc, argv, "-n", 1, INTERVAL_MAX_S, &count) ||
        !commands_argument_take_number(&argc, argv, "--count", 1, INTERVAL_MAX_S, &same)) {
        return commands_usage_error("stats", "-i and -n, or --count, are numbers above 0");
    }
    if (count > 0 && same > 0) {
        return commands_usage_error("stats", "-n and --count are the same: one of them");
    }
    count = max_u64(count, same);
    int code = command_client_open(&client, "stats");
    if (code != EXIT_CODE_OK) {
        return code;
    }
    code = command_stats_take(&client, &before, NULL);
    uint64_t lines = 0;
    struct heading heading = {0};
    for (; code == EXIT_CODE_OK && (count == 0 || lines < count); lines++) {
        (void)poll(NULL, 0, (int)(1000 * interval_s)); // a signal ends the process
        code = command_stats_take(&client, &now, NULL);
        if (code != EXIT_CODE_OK) {
            break;
        }
        print_sample(&client, &before, &now, &heading);
        before = now;
    }
    return command_client_end(&client, code, json_pack("{s:I}", "lines", (json_int_t)lines));
}
