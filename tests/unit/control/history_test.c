// SPDX-License-Identifier: Apache-2.0
// Proves: the history holds the last two hours and the last events in fixed memory. Steps without
// a sample are unknown, and a clock that is set back clears it.
#include "test.h"

#include "control/history.h"

#include <assert.h>
#include <jansson.h>
#include <stdlib.h>

#define STEP_US (HISTORY_STEP_S * UINT64_C(1000000))
#define NOON_S UINT64_C(1700000000) // a multiple of the step

static struct history history;

static uint64_t at(unsigned step)
{
    return NOON_S * 1000000 + step * STEP_US;
}

static void begin(void)
{
    history_init(&history, at(0));
}

// Adds a row in which each value is the number of its step.
static void add(unsigned step)
{
    float row[HISTORY_SERIES];
    for (unsigned s = 0; s < HISTORY_SERIES; s++) {
        row[s] = (float)step;
    }
    cr_assert(history_is_due(&history, at(step)));
    history_add(&history, at(step), row);
    cr_assert_not(history_is_due(&history, at(step)));
}

static json_t *render(uint64_t after_s)
{
    struct buf out;
    json_error_t error;
    buf_init(&out, HISTORY_JSON_MAX);
    history_render(&history, after_s, &out);
    cr_assert(buf_ok(&out));
    json_t *json = json_loads(buf_cstr(&out), JSON_REJECT_DUPLICATES, &error);
    cr_assert_not_null(json, "%s", error.text);
    buf_done(&out);
    return json;
}

static const json_t *values_of(const json_t *json, const char *name)
{
    return json_object_get(json_object_get(json_object_get(json, "series"), name), "values");
}

static json_int_t integer(const json_t *json, const char *name)
{
    return json_integer_value(json_object_get(json, name));
}

static double value(const json_t *json, unsigned i)
{
    return json_number_value(json_array_get(values_of(json, "memory"), i));
}

Test(history, fixed_memory_holds_two_hours_and_wraps)
{
    static_assert(sizeof(history) <= 128 << 10, "the page's history is small");
    begin();
    for (unsigned step = 1; step <= 3 * HISTORY_STEPS + 7; step++) {
        add(step);
    }
    json_t *json = render(0);
    cr_assert_eq(json_array_size(values_of(json, "memory")), HISTORY_STEPS);
    cr_assert_eq(json_array_size(values_of(json, "origin_first_byte_p99")), HISTORY_STEPS);
    cr_assert_eq(json_object_size(json_object_get(json, "series")), HISTORY_SERIES);
    cr_assert_float_eq(value(json, 0), 2 * HISTORY_STEPS + 8, 0.01);
    cr_assert_float_eq(value(json, HISTORY_STEPS - 1), 3 * HISTORY_STEPS + 7, 0.01);
    cr_assert_eq(integer(json, "last"), NOON_S + (3 * HISTORY_STEPS + 7) * HISTORY_STEP_S);
    cr_assert_eq(integer(json, "last") - integer(json, "first"),
                 (HISTORY_STEPS - 1) * HISTORY_STEP_S);
    json_decref(json);
}

Test(history, longest_answer_fits_its_limit)
{
    float row[HISTORY_SERIES];
    begin();
    for (unsigned s = 0; s < HISTORY_SERIES; s++) {
        row[s] = -1.2345e-10f;
    }
    for (unsigned step = 1; step <= HISTORY_STEPS; step++) {
        history_add(&history, at(step), row);
    }
    for (unsigned i = 0; i < HISTORY_EVENTS; i++) {
        history_note(&history, at(i), "credentials-good", "the file system of the cache has room",
                     false);
    }
    json_decref(render(0));
}

Test(history, rows_after_a_time_are_given_alone)
{
    begin();
    json_t *json = render(0);
    cr_assert_eq(json_array_size(values_of(json, "memory")), 0);
    cr_assert_gt(integer(json, "first"), integer(json, "last"));
    json_decref(json);
    for (unsigned step = 1; step <= 10; step++) {
        add(step);
    }
    json = render(NOON_S + 8 * HISTORY_STEP_S);
    cr_assert_eq(json_array_size(values_of(json, "memory")), 2);
    cr_assert_float_eq(value(json, 0), 9, 0.01);
    json_decref(json);
    static const uint64_t late[] = {NOON_S + 10 * HISTORY_STEP_S, NOON_S * 2, UINT64_MAX};
    for (unsigned i = 0; i < ARRAY_LEN(late); i++) {
        json = render(late[i]);
        cr_assert_eq(json_array_size(values_of(json, "memory")), 0);
        cr_assert_eq(integer(json, "last"), NOON_S + 10 * HISTORY_STEP_S);
        json_decref(json);
    }
}

Test(history, steps_without_a_sample_are_unknown)
{
    begin();
    add(1);
    add(2);
    add(6); // for example, the machine slept
    json_t *json = render(0);
    cr_assert_eq(json_array_size(values_of(json, "memory")), 6);
    for (unsigned i = 0; i < 6; i++) {
        const json_t *one = json_array_get(values_of(json, "memory"), i);
        cr_assert_eq(json_is_null(one), i >= 2 && i <= 4, "%u", i);
    }
    json_decref(json);
    add(6 + 5 * HISTORY_STEPS); // a weekend
    json = render(0);
    cr_assert_eq(json_array_size(values_of(json, "memory")), HISTORY_STEPS);
    for (unsigned i = 0; i < HISTORY_STEPS - 1; i++) {
        cr_assert(json_is_null(json_array_get(values_of(json, "memory"), i)), "%u", i);
    }
    json_decref(json);
}

Test(history, clock_set_back_clears_the_rows)
{
    begin();
    for (unsigned step = 1; step <= 100; step++) {
        add(step);
    }
    cr_assert_not(history_is_due(&history, at(99)), "less than a step back is no step");
    add(40);
    json_t *json = render(0);
    cr_assert_eq(json_array_size(values_of(json, "memory")), 1);
    cr_assert_eq(integer(json, "last"), NOON_S + 40 * HISTORY_STEP_S);
    json_decref(json);
    add(41);
    json = render(0);
    cr_assert_eq(json_array_size(values_of(json, "memory")), 2);
    json_decref(json);
}

Test(history, last_events_stay_in_their_order)
{
    static const char *const words[] = {"a", "b", "c"};
    begin();
    for (unsigned i = 0; i < HISTORY_EVENTS + 2; i++) {
        history_note(&history, at(i), words[i % 3], "text", i % 2 == 0);
    }
    json_t *json = render(UINT64_MAX);
    const json_t *events = json_object_get(json, "events");
    cr_assert_eq(json_array_size(events), HISTORY_EVENTS);
    for (unsigned i = 0; i < HISTORY_EVENTS; i++) {
        const json_t *one = json_array_get(events, i);
        cr_assert_float_eq(json_number_value(json_array_get(one, 0)),
                           (double)(NOON_S + (uint64_t)(i + 2) * HISTORY_STEP_S), 0.01);
        cr_assert_str_eq(json_string_value(json_array_get(one, 1)), words[(i + 2) % 3]);
        cr_assert_eq(json_is_true(json_array_get(one, 3)), i % 2 == 0);
    }
    json_decref(json);
}
