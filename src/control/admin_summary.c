// SPDX-License-Identifier: Apache-2.0
// Renders the numbers of counters.def as one JSON object. They are totals since the start, under
// the names of the rows. No number reveals an object key. A client computes rates from two
// requests. Runs on the admin thread.
//
// Everybody may have the summary. So without `detail`, conditions and reason have the words of the
// tables, and origins is empty.
//
//   time, uptime_s, version, ready, reason   current values
//   conditions   conditions.def: those that hold, as in conditions_json()
//   refusals     refusals.def: [{word, text, remedy, count}], `count` fills not stored since
//                the start
//   savings      compared with clients that ask the origin themselves: {bytes, requests,
//                extra_requests, cost_bytes, cost_requests, wait_s, miss_s}; extra_requests were
//                sent to the origin beyond those of clients; costs in US dollars by the prices of
//                stats.h, cost_bytes is 0 inside the origin's region; wait_s is the time that hits
//                saved, at miss_s for a miss; both are null before the cache has seen a miss
//   origins      those in use, the slowest first: [{name, answers, first_byte_p50_s,
//                first_byte_p99_s, first_byte_usual_s, calls_limit, calls_most, calls_lowered,
//                ended, failed}], how soon it answered reads within the last minute, and what is
//                usual; a time that is not known is null; how many calls may run at once now and
//                at most, and whether SlowDown, timeouts or failed connections have lowered them;
//                how many of the last requests count, and how many of these ended with 5xx other
//                than SlowDown, as in origin_failed()
//   counters     {row: total}; gauges have their current value
//   histograms   {row: {bounds_us, counts, sum_us}}; counts are not cumulated, the last one is
//                above all bounds
//   requests     {code: count}; results {result: count}; bypass {reason: count};
//                origin {code: count}
#include "control/admin_private.h"

#include "base/clock.h"
#include "base/version.h"
#include "stats/stats.h"

static json_t *counters_json(void)
{
    json_t *json = json_object();
    for (int c = 0; c < COUNTER_COUNT_; c++) {
        json_int_t value = (json_int_t)stats_value((enum counter)c);
        check(json_object_set_new(json, stats_name((enum counter)c), json_integer(value)) == 0);
    }
    return json;
}

static json_t *histograms_json(void)
{
    json_t *json = json_object();
    for (int h = 0; h < HISTOGRAM_COUNT_; h++) {
        struct stats_histogram_sum sum;
        json_t *bounds = json_array(), *counts = json_array();
        stats_histogram_sum((enum histogram)h, &sum);
        for (unsigned i = 0; i <= HISTOGRAM_BUCKETS; i++) {
            check(json_array_append_new(counts, json_integer((json_int_t)sum.bucket[i])) == 0);
        }
        for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
            json_int_t bound = (json_int_t)stats_histogram_bound_us((enum histogram)h, i);
            check(json_array_append_new(bounds, json_integer(bound)) == 0);
        }
        json_t *row = json_pack("{s:o, s:o, s:I}", "bounds_us", bounds, "counts", counts, "sum_us",
                                (json_int_t)sum.sum_us);
        check(row != NULL);
        check(json_object_set_new(json, stats_histogram_name((enum histogram)h), row) == 0);
    }
    return json;
}

static void add_to(json_t *json, const char *name, uint64_t count)
{
    json_int_t before = json_integer_value(json_object_get(json, name));
    check(json_object_set_new(json, name, json_integer(before + (json_int_t)count)) == 0);
}

static void on_second(void *ctx, const char *first, const char *second, uint64_t count)
{
    (void)first; // the operation; its codes are added to those of the others
    add_to(ctx, second, count);
}

static void on_first(void *ctx, const char *first, const char *second, uint64_t count)
{
    (void)second;
    add_to(ctx, first, count);
}

static json_t *table_json(enum stats_table table, stats_row_fn *on_row)
{
    json_t *json = json_object();
    stats_each(table, on_row, json);
    return json;
}

static json_t *refusals_json(void)
{
    json_t *json = json_array();
    for (int why = REFUSAL_none + 1; why < REFUSAL_COUNT_; why++) {
        const struct refusal_text *row = refusal_text((enum refusal)why);
        json_t *one =
            json_pack("{s:s, s:s, s:s, s:I}", "word", row->word, "text", row->text, "remedy",
                      row->remedy, "count", (json_int_t)refusal_sum((enum refusal)why));
        check(one != NULL && json_array_append_new(json, one) == 0);
    }
    return json;
}

static json_t *savings_json(void)
{
    struct stats_savings s;
    stats_savings(&s);
    json_t *json =
        json_pack("{s:I, s:I, s:I, s:f, s:f, s:o, s:o}", "bytes", (json_int_t)s.bytes, "requests",
                  (json_int_t)s.requests, "extra_requests", (json_int_t)s.extra_requests,
                  "cost_bytes", s.cost_bytes, "cost_requests", s.cost_requests, "wait_s",
                  s.knows_misses ? json_real(s.wait_s) : json_null(), "miss_s",
                  s.knows_misses ? json_real(s.miss_s) : json_null());
    check(json != NULL);
    return json;
}

json_t *admin_conditions(const struct admin *admin, bool detail)
{
    return admin->options.conditions == NULL ? json_array()
                                             : conditions_json(admin->options.conditions, detail);
}

bool admin_ready(const struct admin *admin, bool detail, struct buf *why)
{
    const struct admin_options *options = &admin->options;
    bool ready = options->ready == NULL || options->ready(options->ctx, why);
    if (ready && options->conditions != NULL) {
        conditions_say(options->conditions, detail, why);
    }
    return ready;
}

// Returns no rows without `detail`, because they name the endpoints of all origins.
static json_t *origins_json(const struct admin *admin, bool detail)
{
    const struct admin_options *options = &admin->options;
    return !detail || options->origins_json == NULL ? json_array()
                                                    : options->origins_json(options->ctx);
}

json_t *admin_summary(const struct admin *admin, bool detail)
{
    struct buf why;
    buf_init(&why, ADMIN_WHY_MAX_BYTES);
    if (admin->options.count_held != NULL) {
        admin->options.count_held(admin->options.ctx);
    }
    bool ready = admin_ready(admin, detail, &why);
    json_t *json = json_pack(
        "{s:f, s:f, s:s, s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "time",
        (double)clock_wall_us() / 1e6, "uptime_s",
        (double)(clock_monotonic_us() - admin->started_us) / 1e6, "version", version_text(),
        "io_engine", admin->options.io_engine, "ready", ready, "reason",
        admin_json_text(buf_span(&why)), "conditions", admin_conditions(admin, detail), "refusals",
        refusals_json(), "savings", savings_json(), "origins", origins_json(admin, detail),
        "counters", counters_json(), "histograms", histograms_json(), "requests",
        table_json(STATS_REQUESTS, on_second), "results", table_json(STATS_RESULTS, on_second),
        "bypass", table_json(STATS_BYPASS, on_first), "origin",
        table_json(STATS_ORIGIN, on_second));
    check(json != NULL);
    buf_done(&why);
    return json;
}
