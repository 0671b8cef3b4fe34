// SPDX-License-Identifier: Apache-2.0
// GET /api/v1/history: the last two hours as one JSON object, from the ring of history.c. Runs on
// the admin thread, which samples the counters after each five seconds of the wall clock. So hits
// and fills pay nothing for it.
//
//   after        parameter: seconds since the epoch; only later rows are given. The events always
//                come all
//   step_s       seconds of a step; steps: how many the ring holds
//   first, last  times of the first and the last value; `first` is above `last` without values
//   series       {name: {unit, values}}; null: unknown
//   events       [[time, word, text, is_bad]], the oldest first
#include "control/admin_private.h"

#include <event2/keyvalq_struct.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "control/history.h"
#include "stats/stats.h"

enum { HISTORY_FIRST_BYTE, HISTORY_ORIGIN_FIRST_BYTE, HISTORY_HISTOGRAMS };

struct sample {
    uint64_t totals[HISTORY_SERIES]; // used only for series that are totals
    struct stats_histogram_sum histograms[HISTORY_HISTOGRAMS];
    uint64_t monotonic_us;
};

struct admin_history {
    struct event *timer; // fires when the next step begins
    struct sample last;
    struct conditions *conditions; // NULL: none
    bool held[CONDITION_COUNT_];
    uint64_t reloads;
    struct history ring;
};

struct request_counts {
    uint64_t all, failed, origin;
};

static void on_request(void *ctx, const char *op, const char *code, uint64_t count)
{
    struct request_counts *counts = ctx;
    (void)op;
    counts->all += count;
    counts->failed += code[0] == '5' ? count : 0;
}

static void on_origin_request(void *ctx, const char *op, const char *code, uint64_t count)
{
    (void)op;
    (void)code;
    ((struct request_counts *)ctx)->origin += count;
}

// Returns the sum of all series of a metric.
static uint64_t metric_sum(const char *metric)
{
    uint64_t sum = 0;
    for (int c = 0; c < COUNTER_COUNT_; c++) {
        sum +=
            strcmp(stats_metric((enum counter)c), metric) == 0 ? stats_value((enum counter)c) : 0;
    }
    return sum;
}

static void add_histogram(struct stats_histogram_sum *sum, enum histogram h)
{
    struct stats_histogram_sum one;
    stats_histogram_sum(h, &one);
    for (unsigned i = 0; i <= HISTOGRAM_BUCKETS; i++) {
        sum->bucket[i] += one.bucket[i];
    }
}

static void sample_totals(struct sample *ret_sample)
{
    struct request_counts counts = {0};
    *ret_sample = (struct sample){.monotonic_us = clock_monotonic_us()};
    stats_each(STATS_REQUESTS, on_request, &counts);
    stats_each(STATS_ORIGIN, on_origin_request, &counts);
#define TOTAL(name, unit, value) ret_sample->totals[HISTORY_##name] = (value);
#include "control/history.def"
    struct stats_histogram_sum *first_byte = &ret_sample->histograms[HISTORY_FIRST_BYTE];
    add_histogram(first_byte, HISTOGRAM_first_byte_hit);
    add_histogram(first_byte, HISTOGRAM_first_byte_miss);
    add_histogram(first_byte, HISTOGRAM_first_byte_other);
    add_histogram(&ret_sample->histograms[HISTORY_ORIGIN_FIRST_BYTE], HISTOGRAM_origin_first_byte);
}

// Returns the quantile of what was counted between two sums: the upper bound of its bucket, in
// seconds. Above all bounds it is the highest one. Returns NAN if nothing was counted. All our
// histograms have the bounds of first_byte_hit.
static float quantile_between(const struct stats_histogram_sum *from,
                              const struct stats_histogram_sum *to, double q)
{
    uint64_t all = 0, below = 0;
    unsigned i = 0;
    for (unsigned b = 0; b <= HISTOGRAM_BUCKETS; b++) {
        all += to->bucket[b] - from->bucket[b];
    }
    if (all == 0) {
        return NAN;
    }
    for (; i < HISTOGRAM_BUCKETS - 1; i++) {
        below += to->bucket[i] - from->bucket[i];
        if ((double)below >= q * (double)all) {
            break;
        }
    }
    return (float)stats_histogram_bound_us(HISTOGRAM_first_byte_hit, i) / 1e6f;
}

// Makes the row of what has happened since the last sample.
static void make_row(struct sample *last, float ret_row[HISTORY_SERIES])
{
    struct sample now;
    sample_totals(&now);
    // Somebody may set the wall clock, so that two samples are close together.
    float seconds = (float)max_u64(now.monotonic_us - last->monotonic_us, 1000000) / 1e6f;
#define TOTAL(name, unit, value)                                                                   \
    ret_row[HISTORY_##name] =                                                                      \
        (float)(now.totals[HISTORY_##name] - last->totals[HISTORY_##name]) / seconds;
#define LEVEL(name, unit, value) ret_row[HISTORY_##name] = (float)(value);
#define QUANTILE(name, q, histogram)                                                               \
    ret_row[HISTORY_##name] =                                                                      \
        quantile_between(&last->histograms[histogram], &now.histograms[histogram], q);
#include "control/history.def"
    *last = now;
}

// The beginning and the end of each condition that is more than an information are events.
static void note_events(struct admin_history *h, uint64_t wall_us)
{
    bool holds[CONDITION_COUNT_] = {0};
    if (h->conditions != NULL) {
        conditions_read(h->conditions, holds);
    }
    for (unsigned i = 0; i < CONDITION_COUNT_; i++) {
        struct condition_row row = conditions_row((enum condition)i);
        if (holds[i] != h->held[i] && row.severity != CONDITION_SEVERITY_INFO) {
            history_note(&h->ring, wall_us, row.word, holds[i] ? row.text : "it is over", holds[i]);
        }
        h->held[i] = holds[i];
    }
    uint64_t applied = stats_value(COUNTER_config_reloads);
    if (applied != h->reloads) {
        history_note(&h->ring, wall_us, "reload", "the configuration was reloaded", false);
    }
    h->reloads = applied;
}

static void take_sample(struct admin_history *h)
{
    uint64_t wall_us = clock_wall_us();
    float row[HISTORY_SERIES];
    note_events(h, wall_us);
    if (history_is_due(&h->ring, wall_us)) {
        make_row(&h->last, row);
        history_add(&h->ring, wall_us, row);
    }
}

static void arm(struct admin_history *h)
{
    uint64_t step_us = HISTORY_STEP_S * UINT64_C(1000000);
    uint64_t wait_us = step_us - clock_wall_us() % step_us;
    struct timeval wait = {.tv_sec = (time_t)(wait_us / 1000000),
                           .tv_usec = (suseconds_t)(wait_us % 1000000)};
    check(event_add(h->timer, &wait) == 0);
}

static void on_step(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd;
    (void)what;
    take_sample(ctx);
    arm(ctx);
}

struct admin_history *admin_history_new(struct event_base *base, struct conditions *conditions)
{
    struct admin_history *h = calloc(1, sizeof(*h));
    check(h != NULL);
    stats_add(COUNTER_history_bytes, sizeof(*h));
    history_init(&h->ring, clock_wall_us());
    history_note(&h->ring, clock_wall_us(), "start", "the server started", false);
    sample_totals(&h->last);
    h->reloads = stats_value(COUNTER_config_reloads);
    h->conditions = conditions;
    h->timer = event_new(base, -1, 0, on_step, h);
    check(h->timer != NULL);
    arm(h);
    return h;
}

void admin_history_free(struct admin_history *h)
{
    event_free(h->timer);
    stats_sub(COUNTER_history_bytes, sizeof(*h));
    free(h);
}

void admin_page_history(struct admin *admin, struct evhttp_request *req)
{
    struct evkeyvalq parameters;
    uint64_t after_s = 0;
    (void)admin_reply_query(req, &parameters); // the dispatcher has checked it
    const char *after = evhttp_find_header(&parameters, "after");
    if (after != NULL && !span_to_u64(span_from_cstr(after), &after_s)) {
        admin_reply_refusal(req, HTTP_BADREQUEST, "after is a number of seconds since the epoch");
    } else {
        struct buf out;
        buf_init(&out, HISTORY_JSON_MAX);
        take_sample(admin->history);
        history_render(&admin->history->ring, after_s, &out);
        check(buf_ok(&out)); // the limit allows for the longest form of each value
        admin_reply_text(req, HTTP_OK, "application/json; charset=utf-8", buf_span(&out));
        buf_done(&out);
    }
    evhttp_clear_headers(&parameters);
}
