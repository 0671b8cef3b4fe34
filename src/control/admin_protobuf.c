// SPDX-License-Identifier: Apache-2.0
// /metrics in Prometheus' protobuf form: messages io.prometheus.client.MetricFamily, each after its
// length as a varint. It is made from the text, sample by sample. It adds what the text cannot
// express: each histogram also as a native one, with four buckets per doubling, and exemplars as in
// OpenMetrics. A scraper that requests this form and supports native histograms uses those; others
// use the buckets of the text. Pure, except for the numbers of native buckets and the exemplars,
// which are current ones.
//
// Numbers of the messages' fields, as far as they are used here:
//   MetricFamily  1 name  2 help  3 type  4 metric
//   Metric        1 label (1 name, 2 value)  2 gauge (1 value)  3 counter (1 value)
//                 5 untyped (1 value)  7 histogram
//   Histogram     1 sample_count  2 sample_sum
//                 3 bucket (1 cumulative_count, 2 upper_bound, 3 exemplar)  5 schema
//                 6 zero_threshold  7 zero_count  12 positive_span (1 offset, 2 length)
//                 13 positive_delta
//   Exemplar      1 label  2 value  3 timestamp (1 seconds, 2 nanos)
#include "control/admin_private.h"

#include <stdlib.h>
#include <string.h>

#include "stats/stats.h"

enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2 };
enum type { TYPE_COUNTER = 0, TYPE_GAUGE = 1, TYPE_UNTYPED = 3, TYPE_HISTOGRAM = 4 };

#define MESSAGE_MAX (1u << 20) // of a family
#define LABELS_MAX 512u        // bytes of one sample's labels

// --- the wire ------------------------------------------------------------------------------------

static void put_varint(struct buf *out, uint64_t value)
{
    while (value >= 0x80) {
        buf_append_char(out, (char)(value | 0x80));
        value >>= 7;
    }
    buf_append_char(out, (char)value);
}

static void put_number(struct buf *out, unsigned field, uint64_t value)
{
    put_varint(out, (uint64_t)field << 3 | WIRE_VARINT);
    put_varint(out, value);
}

static void put_signed(struct buf *out, unsigned field, int64_t value)
{
    put_number(out, field, ((uint64_t)value << 1) ^ (uint64_t)(value >> 63));
}

static void put_double(struct buf *out, unsigned field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    put_varint(out, (uint64_t)field << 3 | WIRE_64);
    for (unsigned i = 0; i < 8; i++) {
        buf_append_char(out, (char)(bits >> (8 * i)));
    }
}

static void put_bytes(struct buf *out, unsigned field, struct span bytes)
{
    put_varint(out, (uint64_t)field << 3 | WIRE_BYTES);
    put_varint(out, bytes.len);
    buf_append_span(out, bytes);
}

static void put_message(struct buf *out, unsigned field, struct buf *message)
{
    put_bytes(out, field, buf_span(message));
    message->len = 0;
}

// --- a sample of the text ------------------------------------------------------------------------

struct sample {
    struct span name, labels; // the text in the braces
    double value;
};

// Parses NAME VALUE or NAME{LABELS} VALUE. This is our own text, in which no label ends with a
// backslash.
static bool sample_read(struct span line, struct sample *ret_sample)
{
    size_t brace = span_find(line, '{'), blank = line.len;
    while (blank > 0 && line.ptr[blank - 1] != ' ') {
        blank--;
    }
    struct span value = {line.ptr + blank, line.len - blank};
    char text[64];
    if (blank == 0 || value.len == 0 || value.len >= sizeof(text)) {
        return false;
    }
    span_to_text(value, text, sizeof(text));
    bool has_labels = brace < blank;
    size_t name_len = has_labels ? brace : blank - 1;
    *ret_sample = (struct sample){.name = {line.ptr, name_len}, .value = strtod(text, NULL)};
    if (has_labels && blank - brace >= 3) {
        ret_sample->labels = (struct span){line.ptr + brace + 1, blank - brace - 3};
    }
    return true;
}

// Returns the next label; its value is still escaped.
static bool label_next(struct span *rest, struct span *ret_name, struct span *ret_value)
{
    if (!span_split(rest, '=', ret_name) || rest->len < 2) {
        return false;
    }
    size_t end = 1;
    while (end < rest->len && rest->ptr[end] != '"') {
        end += rest->ptr[end] == '\\' ? 2 : 1;
    }
    if (end >= rest->len) {
        return false;
    }
    *ret_value = (struct span){rest->ptr + 1, end - 1};
    size_t used = min_u64(end + 2, rest->len); // including the comma
    *rest = (struct span){rest->ptr + used, rest->len - used};
    return true;
}

static void put_label(struct buf *metric, struct buf *scratch, struct span name, struct span value)
{
    char text[LABELS_MAX];
    size_t len = 0;
    for (size_t i = 0; i < value.len && len < sizeof(text); i++) {
        bool is_escape = value.ptr[i] == '\\' && i + 1 < value.len;
        char c = is_escape ? value.ptr[++i] : value.ptr[i];
        text[len++] = is_escape && c == 'n' ? '\n' : c;
    }
    put_bytes(scratch, 1, name);
    put_bytes(scratch, 2, (struct span){text, len});
    put_message(metric, 1, scratch);
}

// Writes all labels except `le`, whose value is *ret_bound. Returns false if there is no `le`.
static bool put_labels(struct buf *metric, struct buf *scratch, struct span labels,
                       struct span *ret_bound)
{
    struct span name, value;
    bool has_bound = false;
    while (label_next(&labels, &name, &value)) {
        if (span_equal(name, SPAN("le"))) {
            *ret_bound = value;
            has_bound = true;
        } else {
            put_label(metric, scratch, name, value);
        }
    }
    return has_bound;
}

// --- families ------------------------------------------------------------------------------------

struct family {
    struct buf *out;
    struct span name, help;
    enum type type;
    bool has_samples;
    struct buf message, metric, part, scratch, exemplar;
    struct buf histogram; // of the label set that is being read
};

static void family_end(struct family *f)
{
    if (f->has_samples && buf_ok(&f->message)) {
        put_varint(f->out, f->message.len);
        buf_append_span(f->out, buf_span(&f->message));
    }
    f->has_samples = false;
    f->message.len = f->histogram.len = 0;
}

static void family_begin(struct family *f, struct span type)
{
    f->type = span_equal(type, SPAN("counter"))     ? TYPE_COUNTER
              : span_equal(type, SPAN("gauge"))     ? TYPE_GAUGE
              : span_equal(type, SPAN("histogram")) ? TYPE_HISTOGRAM
                                                    : TYPE_UNTYPED;
    put_bytes(&f->message, 1, f->name);
    put_bytes(&f->message, 2, f->help);
    put_number(&f->message, 3, f->type);
}

static void put_value(struct family *f, const struct sample *s)
{
    struct span none;
    (void)put_labels(&f->metric, &f->scratch, s->labels, &none); // these have no bounds
    put_double(&f->part, 1, s->value);
    put_message(&f->metric, f->type == TYPE_COUNTER ? 3 : f->type == TYPE_GAUGE ? 2 : 5, &f->part);
    put_message(&f->message, 4, &f->metric);
    f->has_samples = true;
}

// Writes runs of non-empty buckets, each with the number of empty ones before it; then the
// difference of each bucket to the previous one.
static void put_native(struct buf *out, struct buf *scratch, const struct stats_native_sum *sum)
{
    int64_t before = 0, end = 0; // of the previous span, as indices of the schema
    put_signed(out, 5, NATIVE_SCHEMA);
    put_double(out, 6, NATIVE_ZERO_S);
    put_number(out, 7, sum->zero);
    for (unsigned i = 0; i < NATIVE_BUCKETS; i++) {
        unsigned first = i;
        while (i < NATIVE_BUCKETS && sum->bucket[i] > 0) {
            i++;
        }
        if (i > first) {
            put_signed(scratch, 1, NATIVE_FIRST + (int64_t)first - end);
            put_number(scratch, 2, i - first);
            put_message(out, 12, scratch);
            end = NATIVE_FIRST + (int64_t)i;
        }
    }
    if (end == 0 && sum->count == sum->zero) { // otherwise nothing would mark it as a native one
        put_signed(scratch, 1, 0);
        put_number(scratch, 2, 0);
        put_message(out, 12, scratch);
    }
    for (unsigned i = 0; i < NATIVE_BUCKETS; i++) {
        if (sum->bucket[i] > 0) {
            put_signed(out, 13, (int64_t)sum->bucket[i] - before);
            before = (int64_t)sum->bucket[i];
        }
    }
}

// The last row of a label set: all its numbers are known.
static void histogram_end(struct family *f, const struct sample *s, double sum_s)
{
    struct span none;
    enum histogram h;
    struct stats_native_sum native;
    bool is_native = stats_histogram_find(f->name, s->labels, &h);
    if (is_native) {
        stats_native_sum(h, &native);
    }
    put_number(&f->part, 1, is_native ? native.count : (uint64_t)s->value);
    put_double(&f->part, 2, sum_s);
    buf_append_span(&f->part, buf_span(&f->histogram));
    if (is_native) {
        put_native(&f->part, &f->scratch, &native);
    }
    f->histogram.len = 0;
    (void)put_labels(&f->metric, &f->scratch, s->labels, &none);
    put_message(&f->metric, 7, &f->part);
    put_message(&f->message, 4, &f->metric);
    f->has_samples = true;
}

// Writes the exemplar of the current bucket, as its field 3.
static void put_exemplar(struct family *f, const struct sample *s)
{
    struct stats_exemplar exemplar;
    char id[ADMIN_TRACE_ID_SIZE];
    if (!stats_exemplar_find(f->name, s->labels, &exemplar)) {
        return;
    }
    f->exemplar.len = 0;
    admin_exemplar_id(&exemplar, id);
    put_label(&f->exemplar, &f->scratch, SPAN("trace_id"), span_from_cstr(id));
    put_double(&f->exemplar, 2, (double)exemplar.us / 1e6);
    put_number(&f->scratch, 1, exemplar.at_us / 1000000);
    put_number(&f->scratch, 2, exemplar.at_us % 1000000 * 1000);
    put_message(&f->exemplar, 3, &f->scratch);
    put_message(&f->part, 3, &f->exemplar);
}

// Each label set has NAME_bucket rows, then NAME_sum and NAME_count.
static void put_of_histogram(struct family *f, const struct sample *s, double *sum_s)
{
    if (span_ends_with(s->name, SPAN("_sum"))) {
        *sum_s = s->value;
        return;
    }
    if (span_ends_with(s->name, SPAN("_count"))) {
        histogram_end(f, s, *sum_s);
        return;
    }
    struct span bound;
    char text[32];
    if (put_labels(&f->metric, &f->scratch, s->labels, &bound)) {
        span_to_text(bound, text, sizeof(text));
        put_number(&f->part, 1, (uint64_t)s->value);
        put_double(&f->part, 2, strtod(text, NULL));
        put_exemplar(f, s);
        put_message(&f->histogram, 3, &f->part);
    }
    f->metric.len = 0; // the last row has the labels again
}

static void read_line(struct family *f, struct span line, double *sum_s)
{
    struct sample s;
    size_t about = sizeof("# HELP ") - 1;
    struct span rest = {line.ptr + min_u64(about, line.len), line.len - min_u64(about, line.len)};
    if (span_starts_with(line, SPAN("# HELP "))) {
        family_end(f);
        (void)span_split(&rest, ' ', &f->name);
        f->help = rest;
    } else if (span_starts_with(line, SPAN("# TYPE "))) {
        struct span name;
        (void)span_split(&rest, ' ', &name);
        family_begin(f, rest);
    } else if (!span_starts_with(line, SPAN("#")) && sample_read(line, &s)) {
        if (f->type == TYPE_HISTOGRAM) {
            put_of_histogram(f, &s, sum_s);
        } else {
            put_value(f, &s);
        }
    }
}

void admin_protobuf_render(struct span text, struct buf *out)
{
    struct family f = {.out = out};
    struct buf *bufs[] = {&f.message, &f.metric, &f.part, &f.scratch, &f.exemplar, &f.histogram};
    struct span line;
    double sum_s = 0;
    for (size_t i = 0; i < ARRAY_LEN(bufs); i++) {
        buf_init(bufs[i], MESSAGE_MAX);
    }
    while (span_split(&text, '\n', &line)) {
        read_line(&f, line, &sum_s);
    }
    family_end(&f);
    for (size_t i = 0; i < ARRAY_LEN(bufs); i++) {
        buf_done(bufs[i]);
    }
}
