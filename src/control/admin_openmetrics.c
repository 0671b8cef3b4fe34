// SPDX-License-Identifier: Apache-2.0
// Chooses the form of /metrics, and renders OpenMetrics 1.0. That form has the same samples and
// labels as Prometheus text, so that a server keeps its series when its scraper changes forms.
// Families of counters are named without _total, quotes in help are escaped, and the text has an
// end mark. In addition a bucket may have an exemplar: the trace id of its last request whose
// client records its trace. Pure, except for exemplars.
#include "control/admin_private.h"

#include <stdio.h>

#include "stats/stats.h"

#define Q_ONE 1000u // weights are in thousandths

// Parses "0.5" as 500. A malformed weight counts as absent.
static unsigned weight_of(struct span text)
{
    unsigned weight = 0, unit = Q_ONE;
    bool has_point = false;
    for (size_t i = 0; i < text.len && unit > 0; i++) {
        char ch = text.ptr[i];
        if (ch == '.' && !has_point) {
            has_point = true;
            unit /= 10;
        } else if (ch < '0' || ch > '9' || (!has_point && i > 0)) {
            return 0;
        } else {
            weight += (unsigned)(ch - '0') * unit;
            unit = has_point ? unit / 10 : unit;
        }
    }
    return weight > Q_ONE ? Q_ONE : weight;
}

// Returns the weight of one range of Accept if it has that type and version.
static unsigned range_weight(struct span range, struct span type, struct span version)
{
    struct span parameter, name;
    unsigned weight = Q_ONE;
    if (!span_split(&range, ';', &name) || !span_equal_nocase(span_trim(name), type)) {
        return 0;
    }
    while (span_split(&range, ';', &parameter)) {
        if (!span_split(&parameter, '=', &name)) {
            continue;
        }
        struct span value = span_trim(parameter);
        name = span_trim(name);
        if (span_equal_nocase(name, SPAN("q"))) {
            weight = weight_of(value);
        } else if (span_equal_nocase(name, SPAN("version")) && !span_equal(value, version)) {
            return 0;
        } else if ((span_equal_nocase(name, SPAN("proto")) &&
                    !span_equal(value, SPAN("io.prometheus.client.MetricFamily"))) ||
                   (span_equal_nocase(name, SPAN("encoding")) &&
                    !span_equal(value, SPAN("delimited")))) {
            return 0;
        }
    }
    return weight;
}

enum admin_metrics_form admin_openmetrics_judge(struct span accept)
{
    unsigned open = 0, plain = 0, protobuf = 0;
    struct span range;
    while (span_split(&accept, ',', &range)) {
        unsigned weight = range_weight(range, SPAN("application/openmetrics-text"), SPAN("1.0.0"));
        open = weight > open ? weight : open;
        weight = range_weight(range, SPAN("text/plain"), SPAN("0.0.4"));
        plain = weight > plain ? weight : plain;
        weight = range_weight(range, SPAN("application/vnd.google.protobuf"), SPAN(""));
        protobuf = weight > protobuf ? weight : protobuf;
    }
    return protobuf > 0 && protobuf >= open && protobuf >= plain ? ADMIN_METRICS_PROTOBUF
           : open > 0 && open >= plain                           ? ADMIN_METRICS_OPEN
                                                                 : ADMIN_METRICS_TEXT;
}

// Renders "# HELP NAME TEXT" and "# TYPE NAME TYPE". Only families of counters end in _total.
static void render_about(struct span line, size_t word_len, struct buf *out)
{
    struct span rest = {line.ptr + word_len, line.len - word_len}, name;
    (void)span_split(&rest, ' ', &name); // even an empty one
    size_t tail = sizeof("_total") - 1;
    bool is_counter = name.len > tail && span_ends_with(name, SPAN("_total"));
    buf_append(out, line.ptr, word_len);
    buf_append(out, name.ptr, is_counter ? name.len - tail : name.len);
    buf_append_char(out, ' ');
    for (size_t i = 0; i < rest.len; i++) {
        if (rest.ptr[i] == '"') {
            buf_append_char(out, '\\');
        }
        buf_append_char(out, rest.ptr[i]);
    }
}

void admin_exemplar_id(const struct stats_exemplar *exemplar, char ret_id[ADMIN_TRACE_ID_SIZE])
{
    (void)snprintf(ret_id, ADMIN_TRACE_ID_SIZE, "%016lx%016lx", exemplar->trace_id[0],
                   exemplar->trace_id[1]);
}

// Appends the exemplar of a line NAME_bucket{LABELS} VALUE.
static void render_exemplar(struct span line, struct buf *out)
{
    const struct span suffix = SPAN("_bucket");
    size_t open = span_find(line, '{'), close = line.len;
    struct stats_exemplar exemplar;
    char id[ADMIN_TRACE_ID_SIZE];
    while (close > open && line.ptr[close - 1] != '}') {
        close--;
    }
    struct span name = {line.ptr, open};
    if (close <= open + 1 || !span_ends_with(name, suffix)) {
        return;
    }
    struct span metric = {name.ptr, name.len - suffix.len};
    struct span labels = {line.ptr + open + 1, close - open - 2};
    if (stats_exemplar_find(metric, labels, &exemplar)) {
        admin_exemplar_id(&exemplar, id);
        buf_printf(out, " # {trace_id=\"%s\"} %lu.%06lu %lu.%06lu", id, exemplar.us / 1000000,
                   exemplar.us % 1000000, exemplar.at_us / 1000000, exemplar.at_us % 1000000);
    }
}

void admin_openmetrics_render(struct span text, struct buf *out)
{
    static const size_t about_len = sizeof("# HELP ") - 1;
    struct span line;
    while (span_split(&text, '\n', &line)) {
        if (line.len == 0) {
            continue; // after the last line
        }
        if (span_starts_with(line, SPAN("# HELP ")) || span_starts_with(line, SPAN("# TYPE "))) {
            render_about(line, about_len, out);
        } else {
            buf_append(out, line.ptr, line.len);
            render_exemplar(line, out);
        }
        buf_append_char(out, '\n');
    }
    buf_append_cstr(out, "# EOF\n");
}
