// SPDX-License-Identifier: Apache-2.0
// The screen of `forebay top`: the figures of `forebay stats` with their past, the space of the
// cache, how soon the origins answer, and the buckets, the reasons why requests were not answered
// from the cache, and the keys. The busiest come first, and the slowest origins.
#include "cli/watch/command_top_frame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/watch/command_top_rank.h"
#include "commands/commands.h"

#define COLUMNS 100u // if stdout is no terminal
#define BAR_CELLS_MAX 30u
#define CELL_COLUMNS 26u // columns of a figure without its past
#define TEXT_COLUMNS 37u // columns of a row without its name
#define PART_ROWS 3u     // most buckets and reasons; keys take the rest of the screen
#define KEY_ROWS_MIN 3u
#define ROWS_MAX 1024u

// A bucket, a reason or a key.
struct row {
    const char *name;
    double requests, rate, hits, bytes; // rate: requests per second since the frame before
};

// --- rows ----------------------------------------------------------------------------------------

static double seconds_of(const struct top *top)
{
    double seconds = top->now.sample.time - top->before.sample.time;
    return seconds > 0 ? seconds : 1;
}

static int by_rate(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    double p = x->rate != y->rate ? x->rate : x->requests;
    double q = x->rate != y->rate ? y->rate : y->requests;
    return (p < q) - (p > q);
}

static double requests_before(const json_t *buckets, const char *name)
{
    size_t i;
    const json_t *bucket;
    json_array_foreach(json_object_get(buckets, "buckets"), i, bucket)
    {
        if (strcmp(command_client_text(bucket, "bucket"), name) == 0) {
            return command_client_double(bucket, "requests");
        }
    }
    return 0;
}

static unsigned buckets_of(const struct top *top, struct row rows[ROWS_MAX])
{
    unsigned count = 0;
    size_t i;
    const json_t *b;
    json_array_foreach(json_object_get(top->now.buckets, "buckets"), i, b)
    {
        struct row row = {.name = command_client_text(b, "bucket"),
                          .requests = command_client_double(b, "requests"),
                          .hits = command_client_double(b, "hits"),
                          .bytes = command_client_double(b, "memory_bytes") +
                                   command_client_double(b, "disk_bytes") +
                                   command_client_double(b, "origin_bytes")};
        if (top->before.buckets != NULL) {
            row.rate =
                (row.requests - requests_before(top->before.buckets, row.name)) / seconds_of(top);
        }
        if (count < ROWS_MAX) {
            rows[count++] = row;
        }
    }
    qsort(rows, count, sizeof(*rows), by_rate);
    return count;
}

static unsigned keys_of(const struct top *top, struct row rows[ROWS_MAX])
{
    unsigned count = 0;
    size_t i;
    const json_t *key;
    json_array_foreach(json_object_get(top->keys, "rows"), i, key)
    {
        if (count < ROWS_MAX) {
            rows[count++] = (struct row){.name = command_client_text(key, "name"),
                                         .requests = command_client_double(key, "requests"),
                                         .rate = command_client_double(key, "requests_per_s"),
                                         .hits = command_client_double(key, "hits"),
                                         .bytes = command_client_double(key, "bytes")};
        }
    }
    return count;
}

// Returns how many fills were not stored for the reason in row `i` of refusals.def.
static double refused(const json_t *summary, size_t i)
{
    return command_client_double(json_array_get(json_object_get(summary, "refusals"), i), "count");
}

// Lists the reasons why requests went past the cache, and why fills were not stored.
static unsigned reasons_of(const struct top *top, struct row rows[ROWS_MAX])
{
    json_t *bypass = json_object_get(top->now.summary, "bypass"), *value;
    const json_t *before = json_object_get(top->before.summary, "bypass");
    const json_t *refusals = json_object_get(top->now.summary, "refusals"), *refusal;
    const char *name;
    unsigned count = 0;
    size_t i;
    json_object_foreach(bypass, name, value)
    {
        double requests = json_number_value(value);
        rows[count++] = (struct row){.name = name,
                                     .requests = requests,
                                     .rate = (requests - command_client_double(before, name)) /
                                             seconds_of(top)};
        check(count < ROWS_MAX / 2); // the server has a small table
    }
    json_array_foreach(refusals, i, refusal)
    {
        double requests = refused(top->now.summary, i);
        if (requests > 0 && count < ROWS_MAX) {
            rows[count++] = (struct row){.name = command_client_text(refusal, "word"),
                                         .requests = requests,
                                         .rate = (requests - refused(top->before.summary, i)) /
                                                 seconds_of(top)};
        }
    }
    qsort(rows, count, sizeof(*rows), by_rate);
    return count;
}

// --- the past ------------------------------------------------------------------------------------

void command_top_remember(struct top *top)
{
    struct command_figure f[COMMAND_FIGURES];
    command_stats_figures(&top->before.sample, &top->now.sample, f);
    bool is_full = top->past_count == COMMAND_TOP_PAST;
    for (unsigned i = 0; i < COMMAND_FIGURES; i++) {
        float *past = top->past[i];
        if (is_full) {
            memmove(past, past + 1, (COMMAND_TOP_PAST - 1) * sizeof(*past));
        }
        past[is_full ? COMMAND_TOP_PAST - 1 : top->past_count] = (float)f[i].value;
    }
    top->past_count += !is_full;
}

// Draws the last values, the largest one as a whole cell.
static void render_past(const struct top *top, unsigned figure, unsigned cells, struct buf *out)
{
    static const char *const bars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char *const signs[] = {"_", ".", "-", "~", "=", "+", "*", "#"};
    const char *const *levels = command_screen_has_utf8() ? bars : signs;
    unsigned count = (unsigned)min_u64(top->past_count, cells);
    const float *values = top->past[figure] + (top->past_count - count);
    float most = 0;
    for (unsigned i = 0; i < count; i++) {
        most = values[i] > most ? values[i] : most;
    }
    for (unsigned i = 0; i < count; i++) {
        float level = most > 0 ? values[i] / most * (ARRAY_LEN(bars) - 1) : 0;
        buf_append_cstr(out, levels[level > 0 ? (unsigned)(level + 0.5f) : 0]);
    }
    buf_printf(out, "%*s", (int)(cells - count), "");
}

// --- a frame -------------------------------------------------------------------------------------

static void render_head(const struct top *top, struct buf *out)
{
    size_t i;
    const json_t *row, *conditions = json_object_get(top->now.summary, "conditions");
    bool is_ready = command_client_bool(top->now.summary, "ready");
    buf_printf(out, "forebay %s at %s, up %s: %s\n",
               command_client_text(top->now.summary, "version"), top->client.address,
               command_time(command_client_double(top->now.summary, "uptime_s")),
               is_ready ? "ready"
                        : command_client_visible(command_client_text(top->now.summary, "reason")));
    json_array_foreach(conditions, i, row)
    {
        buf_printf(out, "%s%s %s", i == 0 ? "" : ", ", command_client_text(row, "severity"),
                   command_client_text(row, "name"));
    }
    buf_append_cstr(out, json_array_size(conditions) > 0 ? "\n" : "");
}

// Draws the figures in two columns, each with a graph of its recent values.
static void render_figures(const struct top *top, unsigned columns, struct buf *out)
{
    struct command_figure f[COMMAND_FIGURES];
    unsigned cells = columns / 2 > CELL_COLUMNS ? columns / 2 - CELL_COLUMNS : 0;
    cells =
        top->is_screen ? (unsigned)min_u64(cells, COMMAND_TOP_PAST) : 0; // one frame has no past
    command_stats_figures(&top->before.sample, &top->now.sample, f);
    for (unsigned i = 0; i < COMMAND_FIGURES; i++) {
        double value = f[i].value * f[i].scale;
        buf_printf(out, "%-9s %7.*f %-6s", f[i].label, value < 10000 ? 1 : 0, value, f[i].unit);
        render_past(top, i, cells, out);
        buf_append_cstr(out, i % 2 == 1 ? "\n" : "  ");
    }
}

// Draws a bar of the space with data, the reserved space and the free space.
static void render_space(const struct top *top, unsigned columns, struct buf *out)
{
    char bar[BAR_CELLS_MAX + 1];
    const double *value = top->now.sample.value;
    double used = value[COUNTER_cache_bytes], capacity = value[COUNTER_cache_capacity_bytes];
    double held = value[COUNTER_cache_held_bytes] < used ? value[COUNTER_cache_held_bytes] : used;
    unsigned cells = columns < 100 ? 10 : BAR_CELLS_MAX;
    double scale = capacity > 0 ? cells / capacity : 0;
    memset(bar, '.', cells);
    memset(bar, '-', min_u64((uint64_t)(used * scale), cells));
    memset(bar, '#', min_u64((uint64_t)(held * scale), cells));
    bar[cells] = '\0';
    buf_printf(out, "cache [%s] %s held of %s", bar, command_bytes(held), command_bytes(capacity));
    if (columns >= 80) {
        buf_printf(out, " (%s reserved)", command_bytes(used - held));
    }
    buf_printf(out, ", %.0f objects\n", value[COUNTER_cache_objects]);
}

// Draws a line for each of the slowest origins: how soon it answers, and the end of its name.
static void render_origins(const struct top *top, unsigned columns, struct buf *out)
{
    size_t i;
    const json_t *origin;
    json_array_foreach(json_object_get(top->now.summary, "origins"), i, origin)
    {
        struct buf line;
        buf_init(&line, COLUMNS);
        if (i < PART_ROWS && command_pace_append(&line, origin)) {
            unsigned used = (unsigned)line.len + (unsigned)strlen("first byte   ");
            buf_printf(out, "first byte %s  ", buf_cstr(&line));
            command_screen_append_end(out, span_from_cstr(command_client_shown(origin, "name")),
                                      columns > used ? columns - used : 1);
            buf_append_char(out, '\n');
        }
        buf_done(&line);
    }
}

static void render_rows(const struct row *rows, unsigned count, unsigned columns, const char *title,
                        struct buf *out)
{
    buf_printf(out, "\n%9s %8s %5s %10s  %s\n", "requests", "now/s", "hit%", "bytes", title);
    for (unsigned i = 0; i < count; i++) {
        const struct row *row = &rows[i];
        buf_printf(out, "%9.0f %8.1f %5.1f %10s  ", row->requests, row->rate,
                   row->requests > 0 ? 100 * row->hits / row->requests : 0.0,
                   command_bytes(row->bytes));
        command_screen_append_end(out, span_from_cstr(command_client_visible(row->name)),
                                  columns > TEXT_COLUMNS ? columns - TEXT_COLUMNS : 1);
        buf_append_char(out, '\n');
    }
}

static void render_reasons(const struct row *rows, unsigned count, struct buf *out)
{
    if (count > 0) {
        buf_printf(out, "\n%9s %8s  not cached, why\n", "requests", "now/s");
    }
    for (unsigned i = 0; i < count; i++) {
        buf_printf(out, "%9.0f %8.1f  %s: %s\n", rows[i].requests, rows[i].rate,
                   command_client_visible(rows[i].name), command_top_remedy(rows[i].name));
    }
}

static unsigned lines_of(const struct buf *text)
{
    unsigned lines = 0;
    for (size_t i = 0; i < text->len; i++) {
        lines += text->ptr[i] == '\n';
    }
    return lines;
}

void command_top_render(const struct top *top, struct buf *out)
{
    static struct row rows[ROWS_MAX];
    unsigned columns = command_screen_columns(STDOUT_FILENO);
    unsigned height = command_screen_rows(top->is_screen, COMMAND_TOP_ROWS);
    columns = columns > 0 ? columns : COLUMNS;
    render_head(top, out);
    render_figures(top, columns, out);
    render_space(top, columns, out);
    render_origins(top, columns, out);
    if (top->keys != NULL) {
        unsigned count = (unsigned)min_u64(buckets_of(top, rows), PART_ROWS);
        render_rows(rows, count, columns, "bucket", out);
    }
    render_reasons(rows, (unsigned)min_u64(reasons_of(top, rows), PART_ROWS), out);
    if (top->keys != NULL) {
        unsigned used = lines_of(out) + 2, count = keys_of(top, rows);
        unsigned room = height > used + KEY_ROWS_MIN ? height - used : KEY_ROWS_MIN;
        render_rows(rows, (unsigned)min_u64(count, room), columns, "key, since top began", out);
    }
}

// --- JSON ----------------------------------------------------------------------------------------

static json_t *rows_json(const struct row *rows, unsigned count, bool is_reason)
{
    json_t *json = json_array();
    for (unsigned i = 0; i < count; i++) {
        json_t *row = json_pack("{s:s, s:I, s:f}", "name", rows[i].name, "requests",
                                (json_int_t)rows[i].requests, "requests_per_s", rows[i].rate);
        check(row != NULL && json_array_append_new(json, row) == 0);
        if (is_reason) {
            json_object_set_new(row, "remedy", json_string(command_top_remedy(rows[i].name)));
        } else {
            json_object_set_new(row, "hits", json_integer((json_int_t)rows[i].hits));
            json_object_set_new(row, "bytes", json_integer((json_int_t)rows[i].bytes));
        }
    }
    return json;
}

json_t *command_top_json(const struct top *top)
{
    static struct row rows[ROWS_MAX];
    struct command_figure f[COMMAND_FIGURES];
    json_t *json = json_object();
    command_stats_figures(&top->before.sample, &top->now.sample, f);
    for (unsigned i = 0; i < COMMAND_FIGURES; i++) {
        check(json_object_set_new(json, f[i].field, json_real(f[i].value)) == 0);
    }
    unsigned count = keys_of(top, rows);
    check(json_object_set_new(json, "keys", rows_json(rows, count, false)) == 0);
    count = buckets_of(top, rows);
    check(json_object_set_new(json, "buckets", rows_json(rows, count, false)) == 0);
    json_t *origins = json_object_get(top->now.summary, "origins");
    check(origins == NULL || json_object_set(json, "origins", origins) == 0);
    count = reasons_of(top, rows);
    check(json_object_set_new(json, "reasons", rows_json(rows, count, true)) == 0);
    return json;
}

void command_top_done(struct top *top)
{
    json_decref(top->before.summary);
    json_decref(top->before.buckets);
    json_decref(top->now.summary);
    json_decref(top->now.buckets);
    json_decref(top->keys);
}
