// SPDX-License-Identifier: Apache-2.0
// `forebay top`: shows the activity of a running server on one screen. The figures are those of
// `forebay stats`. The rows below are those of counters.def that change most.
#include "cli/watch/command_screen.h"
#include "cli/watch/command_stats.h"
#include "cli/watch/command_top_rank.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INTERVAL_MAX_S 86400u
#define RANK_INTERVAL_MAX_S 3600u // the longest interval that a server accepts
#define FRAME_MAX_BYTES (256u << 10)
#define ROWS 39u // rows that are shown if stdout is no terminal
#define BAR_CELLS 30u
#define REASONS_MAX 3u

struct top {
    struct command_client client;
    uint64_t interval_ms;
    bool is_screen;
    struct command_sample from, to;
    json_t *summary; // the summary of sample `to`
};

// --- a frame -------------------------------------------------------------------------------------

struct row {
    enum counter counter;
    double rate;
};

static int by_rate(const void *a, const void *b)
{
    double x = ((const struct row *)a)->rate, y = ((const struct row *)b)->rate;
    return (x < y) - (x > y);
}

static void render_head(const struct top *top, struct buf *out)
{
    const json_t *degraded = json_object_get(top->summary, "degraded");
    buf_printf(out, "forebay %s at %s, up %s: %s", command_client_text(top->summary, "version"),
               top->client.address, command_time(command_client_double(top->summary, "uptime_s")),
               command_client_visible(command_client_text(top->summary, "reason")));
    for (size_t i = 0; i < json_array_size(degraded); i++) {
        buf_printf(out, "%s%s", i == 0 ? "; DEGRADED " : ", ",
                   json_string_value(json_array_get(degraded, i)));
    }
    buf_append_cstr(out, "\n\n");
}

static void render_figures(const struct top *top, struct buf *out)
{
    struct command_figure f[COMMAND_FIGURES];
    command_stats_figures(&top->from, &top->to, f);
    for (unsigned i = 0; i < COMMAND_FIGURES; i++) {
        buf_printf(out, "%-11s %9.1f%s", f[i].title, f[i].value * f[i].scale,
                   i % 4 == 3 ? "\n" : "   ");
    }
    buf_append_cstr(out, "\n");
}

// Draws a bar of the space with data, the reserved space and the free space.
static void render_space(const struct top *top, struct buf *out)
{
    char bar[BAR_CELLS + 1];
    double used = top->to.value[COUNTER_cache_bytes];
    double held = top->to.value[COUNTER_cache_held_bytes] < used
                      ? top->to.value[COUNTER_cache_held_bytes]
                      : used;
    double capacity = top->to.value[COUNTER_cache_capacity_bytes];
    double cells = capacity > 0 ? BAR_CELLS / capacity : 0;
    memset(bar, '.', BAR_CELLS);
    memset(bar, '-', min_u64((uint64_t)(used * cells), BAR_CELLS));
    memset(bar, '#', min_u64((uint64_t)(held * cells), BAR_CELLS));
    bar[BAR_CELLS] = '\0';
    buf_printf(out, "cache [%s] %s held of %s (%s reserved), %.0f objects\n", bar,
               command_bytes(held), command_bytes(capacity), command_bytes(used - held),
               top->to.value[COUNTER_cache_objects]);
}

// Lists the most frequent reasons why requests have bypassed the cache since the start.
static void render_bypass(const struct top *top, struct buf *out)
{
    const json_t *reasons = json_object_get(top->summary, "bypass");
    const char *told[REASONS_MAX] = {NULL};
    for (unsigned n = 0; n < REASONS_MAX; n++) {
        const char *name;
        json_t *value;
        uint64_t most = 0;
        json_object_foreach((json_t *)(uintptr_t)reasons, name, value)
        {
            bool is_told = false;
            for (unsigned i = 0; i < n; i++) {
                is_told |= told[i] != NULL && strcmp(told[i], name) == 0;
            }
            if (!is_told && (uint64_t)json_integer_value(value) > most) {
                most = (uint64_t)json_integer_value(value);
                told[n] = name;
            }
        }
        if (told[n] != NULL) {
            buf_printf(out, "%s%s %llu", n == 0 ? "not cached: " : ", ", told[n],
                       (unsigned long long)most);
        }
    }
    buf_append_cstr(out, told[0] != NULL ? "\n\n" : "\n");
}

static void render_rows(const struct top *top, struct buf *out)
{
    struct row rows[COUNTER_COUNT_];
    unsigned count = 0;
    double seconds = top->to.time > top->from.time ? top->to.time - top->from.time : 1;
    for (int c = 0; c < COUNTER_COUNT_; c++) {
        double change = top->to.value[c] - top->from.value[c];
        if (change != 0) {
            rows[count++] =
                (struct row){(enum counter)c, (change < 0 ? -change : change) / seconds};
        }
    }
    qsort(rows, count, sizeof(*rows), by_rate);
    buf_printf(out, "%14s %14s  metric\n", "now", "change/s");
    for (unsigned i = 0; i < count; i++) {
        enum counter c = rows[i].counter;
        double change = (top->to.value[c] - top->from.value[c]) / seconds;
        buf_printf(out, "%14.0f %+14.1f  ", top->to.value[c], change);
        stats_series(c, out);
        buf_append_char(out, '\n');
    }
}

static void render(const struct top *top, struct buf *out)
{
    render_head(top, out);
    render_figures(top, out);
    render_space(top, out);
    render_bypass(top, out);
    render_rows(top, out);
}

// --- repetition ----------------------------------------------------------------------------------

static int take_next(struct top *top)
{
    json_t *summary = NULL;
    struct command_sample sample;
    int code = command_stats_take(&top->client, &sample, &summary);
    if (code == EXIT_CODE_OK) {
        json_decref(top->summary);
        top->summary = summary;
        top->from = top->to;
        top->to = sample;
    }
    return code;
}

static void show(const struct top *top)
{
    struct buf frame;
    buf_init(&frame, FRAME_MAX_BYTES);
    render(top, &frame);
    command_screen_show(buf_span(&frame), top->is_screen, ROWS);
    buf_done(&frame);
}

static int follow(struct top *top)
{
    int code = EXIT_CODE_OK;
    while (code == EXIT_CODE_OK && (show(top), command_client_wait(top->interval_ms))) {
        code = take_next(top);
    }
    return code;
}

static json_t *frame_json(const struct top *top)
{
    struct command_figure f[COMMAND_FIGURES];
    json_t *json = json_object(), *changes = json_object();
    double seconds = top->to.time > top->from.time ? top->to.time - top->from.time : 1;
    command_stats_figures(&top->from, &top->to, f);
    for (unsigned i = 0; i < COMMAND_FIGURES; i++) {
        check(json_object_set_new(json, f[i].field, json_real(f[i].value)) == 0);
    }
    for (int c = 0; c < COUNTER_COUNT_; c++) {
        double change = top->to.value[c] - top->from.value[c];
        const char *name = stats_name((enum counter)c);
        if (change != 0) {
            check(json_object_set_new(changes, name, json_real(change / seconds)) == 0);
        }
    }
    check(json_object_set_new(json, "changes_per_s", changes) == 0);
    return json;
}

static int run(struct top *top)
{
    int code = command_stats_take(&top->client, &top->to, &top->summary);
    top->from = top->to;
    if (code == EXIT_CODE_OK && top->is_screen) {
        return commands_result(follow(top), NULL);
    }
    if (code == EXIT_CODE_OK) {
        (void)poll(NULL, 0, (int)top->interval_ms); // a signal ends the process
        code = take_next(top);
    }
    if (code == EXIT_CODE_OK && !top->client.is_json) {
        show(top);
    }
    return commands_result(code, code == EXIT_CODE_OK ? frame_json(top) : NULL);
}

int command_top(int argc, char **argv)
{
    struct top top = {.is_screen = false};
    bool is_once = commands_argument_take(&argc, argv, "--once");
    uint64_t seconds = 1;
    const char *where = commands_argument_take_value(&argc, argv, "--where");
    if (!commands_argument_take_number(&argc, argv, "-i", 1, INTERVAL_MAX_S, &seconds)) {
        return commands_usage_error("top", "-i is a number above 0");
    }
    if (argc == 1) {
        return command_top_rank(argv[0], min_u64(seconds, RANK_INTERVAL_MAX_S), where, is_once);
    }
    if (where != NULL) {
        return commands_usage_error(
            "top", "--where wants one of keys, prefixes, buckets, clients, reasons");
    }
    top.interval_ms = seconds * 1000;
    int code = command_client_open(&top.client, "top");
    if (code == EXIT_CODE_OK) {
        top.is_screen = command_screen_is_wanted(is_once);
        code = run(&top);
        json_decref(top.summary);
        command_client_close(&top.client);
    }
    return code;
}
