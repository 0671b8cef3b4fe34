// SPDX-License-Identifier: Apache-2.0
// Proves: savings compare with clients that ask the origin themselves, and hits with the last
// misses that the cache has seen. The tests count from 0, so each needs a process of its own, which
// the runner of the tsan build does not have.
#include "test.h"

#include "stats/stats.h"

#ifndef FOREBAY_TSAN

static struct stats_savings savings(void)
{
    struct stats_savings s;
    stats_savings(&s);
    return s;
}

Test(savings, bytes_and_requests_that_the_origin_was_not_asked_for_have_their_price)
{
    stats_add(COUNTER_response_bytes_memory, 1000000000);
    stats_add(COUNTER_response_bytes_disk, 2000000000);
    stats_add(COUNTER_response_bytes_origin, 1000000000);
    stats_add(COUNTER_origin_received_bytes, 2000000000);
    for (unsigned i = 0; i < 3000; i++) {
        stats_count_request("GetObject", 200);
        if (i % 3 == 0) {
            stats_count_origin("GetObject", 206);
        }
    }
    stats_count_origin(STATS_ORIGIN_PROBE,
                       200); // Forebay's own question, which replaces no reader's
    struct stats_savings s = savings();
    cr_assert_eq(s.bytes, 2000000000u);
    cr_assert_eq(s.requests, 2000u);
    cr_assert_float_eq(s.cost_bytes, 2 * STATS_PRICE_GB, 1e-9);
    cr_assert_float_eq(s.cost_requests, 2 * STATS_PRICE_REQUESTS, 1e-9);
}

Test(savings, a_cache_that_fetched_more_than_it_served_has_saved_nothing)
{
    stats_add(COUNTER_response_bytes_disk, 1000);
    stats_add(COUNTER_origin_received_bytes, 2000);
    stats_count_origin("GetObject", 206);
    cr_assert_eq(savings().bytes, 0u);
    cr_assert_eq(savings().requests, 0u);
    cr_assert_eq(savings().extra_requests, 1u);
    stats_count_request("GetObject", 503); // without a cache, its client would have asked too
    cr_assert_eq(savings().extra_requests, 0u);
    stats_count_origin("HeadObject", 200);
    cr_assert_eq(savings().extra_requests, 1u);
    stats_add(COUNTER_http_inflight, 1);
    cr_assert_eq(savings().extra_requests, 0u);
}

Test(savings, requests_that_clients_were_refused_save_nothing)
{
    stats_count_request("Other", 503);
    stats_count_request("GetObject", 500);
    stats_count_request("GetObject", 403);
    cr_assert_eq(savings().requests, 0u);
    stats_count_request("HeadObject", 404);
    stats_count_request("GetObject", 206);
    cr_assert_eq(savings().requests, 2u);
}

Test(savings, hits_save_the_time_that_misses_take)
{
    stats_observe_us(HISTOGRAM_request_hit, 1000);
    stats_observe_us(HISTOGRAM_request_hit, 3000);
    cr_assert_not(savings().knows_misses);
    stats_observe_us(HISTOGRAM_origin_first_byte, 20000); // of a warm job
    cr_assert_not(savings().knows_misses);
    cr_assert_float_eq(savings().wait_s, 0, 1e-9);
    cr_assert_eq(stats_misses().count, 0u);
    stats_observe_us(HISTOGRAM_request_miss, 50000);
    cr_assert_float_eq(savings().miss_s, 0.05, 1e-9);
    stats_observe_us(HISTOGRAM_request_miss, 150000);
    cr_assert_float_eq(savings().wait_s, 0.196, 1e-9);
}

Test(savings, slow_hits_save_no_time)
{
    stats_observe_us(HISTOGRAM_request_hit, 9000);
    stats_observe_us(HISTOGRAM_request_miss, 1000);
    cr_assert(savings().knows_misses);
    cr_assert_float_eq(savings().wait_s, 0, 1e-9);
}

Test(savings, misses_of_earlier_processes_count_until_newer_ones_replace_them)
{
    stats_misses_restore((struct stats_misses){.count = 4000, .us = 4000 * 8000ull});
    cr_assert_float_eq(savings().miss_s, 0.008, 1e-9);
    for (unsigned i = 0; i < 500; i++) {
        stats_observe_us(HISTOGRAM_request_miss, 2000);
    }
    cr_assert_float_eq(savings().miss_s, 0.005, 1e-9); // half of the last 1000 misses
    cr_assert_eq(stats_misses().count, 1000u);
    for (unsigned i = 0; i < 500; i++) {
        stats_observe_us(HISTOGRAM_request_miss, 2000);
    }
    cr_assert_float_eq(savings().miss_s, 0.002, 1e-9);
}

#endif
