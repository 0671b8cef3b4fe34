// SPDX-License-Identifier: Apache-2.0
// Proves: the times to the first byte are those of the last minute. The usual time falls within
// minutes and rises within hours. An origin is slow while answers take much longer than usual.
#include "base/clock.h"
#include "rig.h"
#include "test.h"

#define MS 1000u
#define SECOND_US 1000000u

static struct origin *origin_alone(void)
{
    struct origin *origin = calloc(1, sizeof(*origin));
    cr_assert(origin != NULL);
    return origin;
}

static void answers(struct origin *origin, unsigned count, uint64_t first_byte_us)
{
    for (unsigned i = 0; i < count; i++) {
        origin_pace_note(origin, first_byte_us);
    }
}

// As `answers`, and again in each following window.
static void answers_for(struct origin *origin, unsigned seconds, uint64_t first_byte_us)
{
    for (unsigned passed_s = 0; passed_s < seconds; passed_s += 10) {
        answers(origin, 10, first_byte_us);
        clock_test_advance_us(10 * SECOND_US);
    }
}

static bool is_slow(struct origin *origin)
{
    struct origin_pace pace;
    return origin_is_slow(origin, &pace);
}

static void expect_about(uint64_t us, uint64_t wanted_us)
{
    cr_assert(us > wanted_us - wanted_us / 16 - 1 && us < wanted_us + wanted_us / 16 + 1,
              "%llu, not about %llu", (unsigned long long)us, (unsigned long long)wanted_us);
}

Test(origin_pace, median_and_p99_are_exact_to_a_sixteenth)
{
    static const uint64_t times_us[] = {64, 65, 127, 1000, 30000, 999999, 5000000, 60000000};
    for (size_t i = 0; i < ARRAY_LEN(times_us); i++) {
        struct origin *origin = origin_alone();
        answers(origin, 99, times_us[i]);
        answers(origin, 1, 61000000);
        struct origin_pace pace = origin_pace(origin);
        cr_assert_eq(pace.answers, 100);
        expect_about(pace.median_us, times_us[i]);
        expect_about(pace.p99_us, times_us[i]);
        answers(origin, 1, 61000000); // now the 99 % include one of them
        expect_about(origin_pace(origin).p99_us, 61000000);
        free(origin);
    }
}

Test(origin_pace, times_out_of_range_count_as_the_nearest)
{
    struct origin *origin = origin_alone();
    answers(origin, 1, 0);
    expect_about(origin_pace(origin).median_us, 68);
    answers(origin, 2, UINT64_MAX);
    cr_assert_gt(origin_pace(origin).median_us, 60000000);
    free(origin);
}

Test(origin_pace, answers_older_than_a_minute_do_not_count)
{
    struct origin *origin = origin_alone();
    answers(origin, 3, 30 * MS);
    clock_test_advance_us(20 * SECOND_US);
    answers(origin, 5, 30 * MS);
    cr_assert_eq(origin_pace(origin).answers, 8);
    clock_test_advance_us(45 * SECOND_US);
    cr_assert_eq(origin_pace(origin).answers, 5);
    clock_test_advance_us(20 * SECOND_US);
    struct origin_pace pace = origin_pace(origin);
    cr_assert(pace.answers == 0 && pace.median_us == 0 && pace.p99_us == 0);
    free(origin);
}

Test(origin_pace, usual_time_is_learnt_before_an_idle_time)
{
    struct origin *origin = origin_alone();
    answers(origin, 7, 30 * MS);
    cr_assert_eq(origin_pace(origin).usual_us, 0);
    answers(origin, 1, 30 * MS);
    clock_test_advance_us(3600ull * SECOND_US);
    answers(origin, 1, 5 * SECOND_US);
    expect_about(origin_pace(origin).usual_us, 30 * MS);
    free(origin);
}

Test(origin_pace, usual_time_falls_in_minutes_and_rises_in_hours)
{
    struct origin *origin = origin_alone();
    answers_for(origin, 20, 400 * MS);
    answers_for(origin, 600, 20 * MS);
    cr_assert_lt(origin_pace(origin).usual_us, 100 * MS);
    answers_for(origin, 3600, 20 * MS);
    expect_about(origin_pace(origin).usual_us, 20 * MS);
    answers_for(origin, 3600, 5 * SECOND_US);
    cr_assert_lt(origin_pace(origin).usual_us, 30 * MS);
    answers_for(origin, 6 * 3600, 5 * SECOND_US);
    cr_assert_gt(origin_pace(origin).usual_us, 50 * MS);
    free(origin);
}

Test(origin_pace, slow_begins_at_four_times_the_usual_and_ends_at_half_of_that)
{
    struct origin *origin = origin_alone();
    answers_for(origin, 60, 400 * MS);
    clock_test_advance_us(60 * SECOND_US);
    answers(origin, 8, 1500 * MS); // over a second, but under four times 0.4 s
    cr_assert(!is_slow(origin));
    clock_test_advance_us(60 * SECOND_US);
    answers(origin, 7, 1800 * MS);
    cr_assert(!is_slow(origin), "seven answers show nothing");
    answers(origin, 1, 1800 * MS);
    cr_assert(is_slow(origin));
    clock_test_advance_us(60 * SECOND_US);
    answers(origin, 1, 1000 * MS);
    cr_assert(is_slow(origin), "it does not end just below the time at which it begins");
    clock_test_advance_us(60 * SECOND_US);
    answers(origin, 1, 600 * MS);
    cr_assert(!is_slow(origin));
    free(origin);
}

Test(origin_pace, a_fast_origin_is_slow_only_over_a_second)
{
    struct origin *origin = origin_alone();
    answers_for(origin, 60, 5 * MS);
    clock_test_advance_us(60 * SECOND_US);
    answers(origin, 100, 900 * MS);
    cr_assert(!is_slow(origin));
    answers(origin, 200, 1200 * MS);
    cr_assert(is_slow(origin));
    free(origin);
}

Test(origin_pace, slow_ends_without_answers)
{
    struct origin *origin = origin_alone();
    answers_for(origin, 60, 30 * MS);
    answers_for(origin, 60, 5 * SECOND_US);
    answers(origin, 8, 5 * SECOND_US);
    cr_assert(is_slow(origin));
    clock_test_advance_us(61 * SECOND_US);
    cr_assert(!is_slow(origin));
    free(origin);
}

Test(origin_pace, an_origin_that_was_never_fast_is_slow_over_two_seconds)
{
    struct origin *origin = origin_alone();
    answers_for(origin, 600, 5 * SECOND_US);
    answers(origin, 8, 5 * SECOND_US);
    struct origin_pace pace;
    cr_assert(origin_is_slow(origin, &pace));
    cr_assert_eq(pace.usual_us, 0);
    free(origin);
    origin = origin_alone();
    answers_for(origin, 600, 1500 * MS);
    cr_assert(!is_slow(origin));
    expect_about(origin_pace(origin).usual_us, 1500 * MS);
    free(origin);
}

// --- the answers that count ----------------------------------------------------------------------

static uint64_t answers_of(struct rig *rig)
{
    return origin_pace(rig->h.origin).answers;
}

Test(origin_pace, reads_count_and_writes_and_server_errors_do_not)
{
    struct server_row rows[] = {
        {.answer = "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 2\r\n\r\nok"},
        {.answer = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"}};
    struct rig rig;
    rig_options(&rig, rows, ARRAY_LEN(rows));
    rig.options.retries = 0;
    rig_begin(&rig);
    for (unsigned i = 1; i <= 2; i++) {
        struct fetch_run run = {.key = "k"};
        fetch_run(&rig.h, 0, &run);
        fetch_run_done(&run);
        cr_assert_eq(answers_of(&rig), i);
    }
    struct relay_run list = {.method = "GET", .target = "/bkt?list-type=2"};
    relay_run(&rig.h, 0, &list);
    relay_run_done(&list);
    cr_assert_eq(answers_of(&rig), 3);
    struct relay_run put = {.method = "PUT", .target = "/bkt/k"};
    relay_run(&rig.h, 0, &put);
    cr_assert_eq(put.status, 200);
    relay_run_done(&put);
    cr_assert_eq(answers_of(&rig), 3);
    struct fetch_run failed = {.key = "k"};
    fetch_run(&rig.h, 0, &failed);
    fetch_run_done(&failed);
    cr_assert_eq(answers_of(&rig), 3);
    rig_end(&rig);
}

Test(origin_pace, reads_of_a_directory_count)
{
    struct harness h;
    harness_make_root(&h);
    harness_write(&h, "bkt/k", "ok", 2);
    harness_init_directory(&h, 1, DISK_ENGINE_THREADS);
    struct fetch_run run = {.bucket = "bkt", .key = "k"};
    fetch_run(&h, 0, &run);
    cr_assert_eq(run.err, ERR_OK);
    fetch_run_done(&run);
    cr_assert_eq(origin_pace(h.origin).answers, 1);
    harness_done(&h);
    harness_remove_root(&h);
}
