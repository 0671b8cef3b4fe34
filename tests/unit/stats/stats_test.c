// SPDX-License-Identifier: Apache-2.0
// Proves: counts of all threads add up, also those of ended threads. Prometheus can parse the text
// form.
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

// Every sample line belongs to the metric of the last TYPE line, and no metric comes twice.
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
