// SPDX-License-Identifier: Apache-2.0
// Proves: counts of all threads add up, also of ended ones; the text form is what Prometheus reads.
#include "test.h"

#include "stats/stats.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static struct buf out;

static const char *render(void)
{
    buf_done(&out);
    buf_init(&out, 4 << 20);
    stats_render(&out);
    cr_assert(buf_ok(&out));
    return buf_cstr(&out);
}

static void *count_some(void *ctx)
{
    (void)ctx;
    for (int i = 0; i < 1000; i++) {
        stats_add(COUNTER_hit_small, 1);
    }
    stats_observe_us(HISTOGRAM_disk_read, 400);
    stats_count_request("GetObject", 200);
    return stats_block();
}

Test(stats, ended_threads_keep_their_counts_and_lend_their_blocks)
{
    uint64_t before = stats_sum(COUNTER_hit_small);
    void *blocks[3];
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        cr_assert_eq(pthread_create(&thread, NULL, count_some, NULL), 0);
        cr_assert_eq(pthread_join(thread, &blocks[i]), 0);
    }
    cr_assert_eq(stats_sum(COUNTER_hit_small) - before, 3000);
    cr_assert_eq(blocks[0], blocks[1]);
    cr_assert_eq(blocks[1], blocks[2]);
}

Test(stats, concurrent_threads_and_a_reader)
{
    uint64_t before = stats_sum(COUNTER_hit_small);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, count_some, NULL), 0);
    }
    cr_assert_not_null(strstr(render(), "forebay_hit_blocks_total{path=\"small\"} "));
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
    }
    cr_assert_eq(stats_sum(COUNTER_hit_small) - before, 4000);
}

Test(stats, gauges_go_up_and_down)
{
    stats_add(COUNTER_http_inflight, 5);
    stats_sub(COUNTER_http_inflight, 3);
    cr_assert_not_null(strstr(render(), "\nforebay_http_requests_inflight 2\n"));
    stats_sub(COUNTER_http_inflight, 3); // a down seen before its up
    cr_assert_not_null(strstr(render(), "\nforebay_http_requests_inflight 0\n"));
    stats_add(COUNTER_http_inflight, 1);
}

Test(stats, histogram_is_cumulative)
{
    stats_observe_us(HISTOGRAM_index_commit, 250);
    stats_observe_us(HISTOGRAM_index_commit, 251);
    stats_observe_us(HISTOGRAM_index_commit, 31000000);
    const char *text = render();
    const char *name = "forebay_index_commit_duration_seconds";
    char line[200];
    const char *expected[] = {
        "_bucket{le=\"0.00025\"} 1\n", "_bucket{le=\"0.0005\"} 2\n", "_bucket{le=\"30\"} 2\n",
        "_bucket{le=\"+Inf\"} 3\n",    "_sum 31.000501\n",           "_count 3\n"};
    for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
        snprintf(line, sizeof(line), "\n%s%s", name, expected[i]);
        cr_assert_not_null(strstr(text, line), "%s", line);
    }
    cr_assert_not_null(
        strstr(text, "forebay_http_request_duration_seconds_bucket{result=\"hit\",le=\"30\"} 0\n"));
}

Test(stats, a_fine_histogram_tells_microseconds_apart)
{
    stats_observe_us(HISTOGRAM_index_lookup, 0);
    stats_observe_us(HISTOGRAM_index_lookup, 2);
    stats_observe_us(HISTOGRAM_index_lookup, 15);
    stats_observe_us(HISTOGRAM_index_lookup, 16);
    stats_observe_us(HISTOGRAM_index_lookup, 1000001);
    const char *text = render();
    const char *name = "forebay_index_lookup_duration_seconds";
    char line[200];
    const char *expected[] = {"_bucket{le=\"0.000001\"} 1\n", "_bucket{le=\"0.000002\"} 2\n",
                              "_bucket{le=\"0.000015\"} 3\n", "_bucket{le=\"0.000025\"} 4\n",
                              "_bucket{le=\"1\"} 4\n",        "_bucket{le=\"+Inf\"} 5\n"};
    for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
        snprintf(line, sizeof(line), "\n%s%s", name, expected[i]);
        cr_assert_not_null(strstr(text, line), "%s", line);
    }
}

// The bucket that has one more than before; -1: the zero bucket.
static int native_bucket_of(uint64_t us)
{
    struct stats_native_sum before, after;
    int found = -2;
    stats_native_sum(HISTOGRAM_request_other, &before);
    stats_observe_us(HISTOGRAM_request_other, us);
    stats_native_sum(HISTOGRAM_request_other, &after);
    cr_assert_eq(after.count, before.count + 1);
    for (int i = 0; i < NATIVE_BUCKETS; i++) {
        if (after.bucket[i] != before.bucket[i]) {
            cr_assert(found == -2 && after.bucket[i] == before.bucket[i] + 1);
            found = i;
        }
    }
    return after.zero != before.zero ? -1 : found;
}

static double power_of_two(int exponent)
{
    double power = 1;
    for (; exponent > 0; exponent--) {
        power *= 2;
    }
    for (; exponent < 0; exponent++) {
        power /= 2;
    }
    return power;
}

// 2^((i-1)/4) < seconds <= 2^(i/4), for every microsecond at first and around each power of two;
// the largest is in the last one.
Test(stats, native_buckets_are_of_schema_2)
{
    uint64_t us = 1;
    cr_assert_eq(native_bucket_of(0), -1);
    for (unsigned step = 0; us < 4000000000000ull; step++) {
        int index = native_bucket_of(us) + NATIVE_FIRST;
        double seconds = (double)us / 1e6, fourth = seconds * seconds * seconds * seconds;
        cr_assert(fourth <= power_of_two(index) * (1 + 1e-9) &&
                      fourth > power_of_two(index - 1) * (1 - 1e-9),
                  "%llu us: %d", (unsigned long long)us, index);
        us = step < 2000 ? us + 1 : us + us / 301 + step % 3;
    }
    cr_assert_eq(native_bucket_of(UINT64_MAX / 2), NATIVE_BUCKETS - 1);
    enum histogram h;
    cr_assert(stats_histogram_find(SPAN("forebay_http_request_duration_seconds"),
                                   SPAN("result=\"hit\""), &h));
    cr_assert_eq(h, HISTOGRAM_request_hit);
    cr_assert(!stats_histogram_find(SPAN("forebay_http_request_duration_seconds"), SPAN(""), &h));
}

Test(stats, labels_are_merged_and_sorted)
{
    char copy[] = "HeadObject"; // the same word at another address
    stats_count_request("HeadObject", 200);
    stats_count_request(copy, 200);
    stats_count_request("HeadObject", 404);
    stats_count_result("HeadObject", "hit");
    stats_count_bypass("rule");
    stats_count_origin("HeadObject", 503);
    const char *text = render();
    cr_assert_not_null(strstr(text,
                              "forebay_http_requests_total{op=\"HeadObject\",code=\"200\"} 2\n"
                              "forebay_http_requests_total{op=\"HeadObject\",code=\"404\"} 1\n"));
    cr_assert_not_null(
        strstr(text, "forebay_cache_requests_total{op=\"HeadObject\",result=\"hit\"} 1\n"));
    cr_assert_not_null(strstr(text, "forebay_cache_bypass_total{reason=\"rule\"} 1\n"));
    cr_assert_not_null(
        strstr(text, "forebay_origin_requests_total{op=\"HeadObject\",code=\"503\"} 1\n"));
}

static void *count_too_many(void *ctx)
{
    (void)ctx;
    for (unsigned code = 0; code < 2000; code++) {
        stats_count_request("PutObject", code);
    }
    return NULL;
}

Test(stats, label_rows_are_bounded)
{
    pthread_t thread;
    (void)stats_block(); // so that the full table stays with the other thread
    cr_assert_eq(pthread_create(&thread, NULL, count_too_many, NULL), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    const char *other =
        strstr(render(), "forebay_http_requests_total{op=\"_other\",code=\"_other\"} ");
    cr_assert_not_null(other);
}

// Every sample line belongs to the metric that the last TYPE line named, and no metric comes twice.
Test(stats, text_form_is_grouped)
{
    char *line = (char *)(uintptr_t)render();
    char current[128] = "", seen[20000] = "";
    for (char *next; line != NULL && *line != '\0'; line = next) {
        next = strchr(line, '\n');
        cr_assert_not_null(next); // the last line ends too
        *next++ = '\0';
        if (strncmp(line, "# HELP ", 7) == 0) {
            continue;
        }
        if (strncmp(line, "# TYPE ", 7) == 0) {
            cr_assert_eq(sscanf(line, "# TYPE %126s", current), 1);
            char word[140];
            snprintf(word, sizeof(word), " %s ", current);
            cr_assert_null(strstr(seen, word), "%s comes twice", current);
            strncat(seen, word, sizeof(seen) - strlen(seen) - 1);
            bool counter = strstr(line, " counter") != NULL;
            cr_assert_eq(counter, strlen(current) > 6 &&
                                      strcmp(current + strlen(current) - 6, "_total") == 0);
        } else {
            cr_assert_eq(strncmp(line, current, strlen(current)), 0, "%s under %s", line, current);
        }
    }
}

#define DURATION "forebay_http_request_duration_seconds"

static bool exemplar_of(const char *labels, struct stats_exemplar *ret_exemplar)
{
    return stats_exemplar_find(SPAN(DURATION), span_from_cstr(labels), ret_exemplar);
}

static pthread_barrier_t all_have_set; // until then each has a record of its own

static void *set_one(void *ctx)
{
    const uint64_t *at_us = ctx;
    stats_exemplar_set(HISTOGRAM_request_hit, 200, (const uint64_t[2]){1, *at_us}, *at_us);
    (void)pthread_barrier_wait(&all_have_set); // one of them is told that it is the last
    return NULL;
}

Test(stats, an_exemplar_is_found_by_the_text_of_its_bucket)
{
    struct stats_exemplar e;
    static const char *const bounds[] = {"0.00025", "0.0005", "30", "+Inf"};
    static const uint64_t values[] = {250, 251, 30000000, 30000001};
    char labels[64];
    for (size_t i = 0; i < ARRAY_LEN(bounds); i++) {
        (void)snprintf(labels, sizeof(labels), "result=\"miss\",le=\"%s\"", bounds[i]);
        cr_assert_not(exemplar_of(labels, &e));
        stats_exemplar_set(HISTOGRAM_request_miss, values[i], (const uint64_t[2]){7, i}, 1000 + i);
        cr_assert(exemplar_of(labels, &e) && e.us == values[i] && e.at_us == 1000 + i);
        cr_assert(e.trace_id[0] == 7 && e.trace_id[1] == i);
    }
    cr_assert_not(exemplar_of("result=\"other\",le=\"30\"", &e));
    static const char *const wrong[] = {"",
                                        "\"",
                                        "le=\"",
                                        "le=\"30\"",
                                        "result=\"miss\"",
                                        "result=\"miss\",ge=\"30\"",
                                        "x,le=\"30\"",
                                        "result=\"none\",le=\"30\""};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        cr_assert_not(exemplar_of(wrong[i], &e), "%s", wrong[i]);
    }
    cr_assert_not(stats_exemplar_find(SPAN(""), SPAN("le=\"30\""), &e));
    stats_exemplar_set(HISTOGRAM_index_commit, 1, (const uint64_t[2]){1, 1},
                       1); // one without labels
    cr_assert(stats_exemplar_find(SPAN("forebay_index_commit_duration_seconds"),
                                  SPAN("le=\"0.00025\""), &e));
}

// The newest one, whichever thread has it, in whatever order they hang.
Test(stats, of_several_threads_the_newest_exemplar_counts)
{
    static uint64_t times[] = {30, 10, 20};
    pthread_t threads[3];
    struct stats_exemplar e;
    cr_assert_eq(pthread_barrier_init(&all_have_set, NULL, 4), 0);
    for (size_t i = 0; i < 3; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, set_one, &times[i]), 0);
    }
    stats_exemplar_set(HISTOGRAM_request_hit, 100, (const uint64_t[2]){1, 5}, 5);
    (void)pthread_barrier_wait(&all_have_set); // one of them is told that it is the last
    for (size_t i = 0; i < 3; i++) {
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
    }
    cr_assert_eq(pthread_barrier_destroy(&all_have_set), 0);
    cr_assert(exemplar_of("result=\"hit\",le=\"0.00025\"", &e));
    cr_assert(e.at_us == 30 && e.trace_id[1] == 30);
}

#define WRITERS 16
#define WRITES 20000u

static void *write_many(void *ctx)
{
    uint64_t mine = (uint64_t)(uintptr_t)ctx;
    for (uint64_t i = 1; i <= WRITES; i++) {
        uint64_t us = 1 + i % 250;
        stats_exemplar_set(HISTOGRAM_first_byte_hit, us,
                           (const uint64_t[2]){mine * us, ~(mine * us)}, i);
    }
    return NULL;
}

// Whoever reads meanwhile sees one that was written, never parts of two.
Test(stats, exemplars_are_never_torn)
{
    pthread_t threads[WRITERS];
    struct stats_exemplar e;
    const struct span bucket = SPAN("result=\"hit\",le=\"0.00025\"");
    unsigned seen = 0;
    for (uintptr_t i = 0; i < WRITERS; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, write_many, (void *)(i + 1000)), 0);
    }
    do {
        if (stats_exemplar_find(SPAN("forebay_http_first_byte_seconds"), bucket, &e)) {
            cr_assert_eq(e.trace_id[1], ~e.trace_id[0]);
            cr_assert(e.us == 1 + e.at_us % 250 && e.trace_id[0] % e.us == 0, "%lu", e.us);
            seen++;
        }
    } while (seen < 1000 || e.at_us < WRITES);
    for (size_t i = 0; i < WRITERS; i++) {
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
    }
    cr_assert(stats_exemplar_find(SPAN("forebay_http_first_byte_seconds"), bucket, &e) &&
              e.at_us == WRITES);
}
