// SPDX-License-Identifier: Apache-2.0
// Proves: conditions come in the order of their severity, keep the time at which they began, and
// have the same words in all answers and in the log.
#include "control/conditions.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "test.h"

static struct {
    bool is_full, reload_failed, is_away;
    uint64_t shed;
} played;

static void look(void *ctx, struct conditions *c)
{
    (void)ctx;
    conditions_tell(c, CONDITION_disk_full, played.is_full);
    conditions_tell(c, CONDITION_reload_refused, played.reload_failed);
    if (played.is_away) {
        conditions_tell_more(c, CONDITION_origin_unreachable, "call them", "%s is away", "store");
    } else {
        conditions_tell(c, CONDITION_origin_unreachable, false);
    }
    conditions_tell(c, CONDITION_requests_shed,
                    conditions_rose(c, CONDITION_requests_shed, played.shed, 60));
}

static const char *text_of(const json_t *row, const char *name)
{
    return json_string_value(json_object_get(row, name));
}

Test(conditions, the_most_severe_comes_first)
{
    struct conditions c;
    memset(&played, 0, sizeof(played)); // some runs have one process for all tests
    played.is_full = played.reload_failed = played.is_away = true;
    conditions_init(&c, look, NULL);
    json_t *json = conditions_json(&c, true);
    cr_assert_eq(json_array_size(json), 3);
    const json_t *row = json_array_get(json, 0);
    cr_assert_str_eq(text_of(row, "name"), "origin-unreachable");
    cr_assert_str_eq(text_of(row, "severity"), "critical");
    cr_assert_str_eq(text_of(row, "text"), "store is away");
    cr_assert_str_eq(text_of(row, "remedy"), "call them");
    row = json_array_get(json, 1);
    cr_assert_str_eq(text_of(row, "name"), "disk-full");
    cr_assert_str_eq(text_of(row, "text"), refusal_text(REFUSAL_disk_full)->text);
    cr_assert_str_eq(text_of(json_array_get(json, 2), "severity"), "warning");
    json_decref(json);
    conditions_done(&c);
}

Test(conditions, without_detail_a_condition_has_the_words_of_the_table)
{
    struct conditions c;
    memset(&played, 0, sizeof(played)); // some runs have one process for all tests
    played.is_away = true;
    conditions_init(&c, look, NULL);
    struct condition_row table = conditions_row(CONDITION_origin_unreachable);
    json_t *json = conditions_json(&c, false);
    const json_t *row = json_array_get(json, 0);
    cr_assert_str_eq(text_of(row, "name"), "origin-unreachable");
    cr_assert_str_eq(text_of(row, "severity"), "critical");
    cr_assert_str_eq(text_of(row, "text"), table.text);
    cr_assert_str_eq(text_of(row, "remedy"), table.remedy);
    cr_assert(json_real_value(json_object_get(row, "since")) > 0);
    json_decref(json);
    struct buf why;
    buf_init(&why, 512);
    conditions_say(&c, false, &why);
    cr_assert_not_null(strstr(buf_cstr(&why), table.text));
    cr_assert_null(strstr(buf_cstr(&why), "store is away"));
    buf_done(&why);
    conditions_done(&c);
}

Test(conditions, since_is_kept_while_a_condition_holds)
{
    struct conditions c;
    memset(&played, 0, sizeof(played)); // some runs have one process for all tests
    played.is_full = true;
    conditions_init(&c, look, NULL);
    double before_s = (double)clock_wall_us() / 1e6;
    conditions_look(&c);
    double after_s = (double)clock_wall_us() / 1e6;
    clock_test_advance_us(5000000);
    json_t *json = conditions_json(&c, true);
    double since_s = json_real_value(json_object_get(json_array_get(json, 0), "since"));
    cr_assert(since_s >= before_s && since_s <= after_s);
    json_decref(json);
    played.is_full = false;
    conditions_look(&c);
    played.is_full = true;
    json = conditions_json(&c, true);
    cr_assert(json_real_value(json_object_get(json_array_get(json, 0), "since")) >= before_s + 5);
    json_decref(json);
    conditions_done(&c);
}

Test(conditions, a_count_that_rises_holds_for_its_window)
{
    struct conditions c;
    memset(&played, 0, sizeof(played)); // some runs have one process for all tests
    conditions_init(&c, look, NULL);
    for (unsigned i = 0; i < 2; i++) {
        json_t *json = conditions_json(&c, true);
        cr_assert_eq(json_array_size(json), 0);
        json_decref(json);
        played.shed++;
        json = conditions_json(&c, true);
        cr_assert_eq(json_array_size(json), 1);
        json_decref(json);
        clock_test_advance_us(59000000);
        json = conditions_json(&c, true);
        cr_assert_eq(json_array_size(json), 1);
        json_decref(json);
        clock_test_advance_us(1000000);
    }
    conditions_done(&c);
}

Test(conditions, readiness_names_the_first_critical_one)
{
    struct conditions c;
    memset(&played, 0, sizeof(played)); // some runs have one process for all tests
    struct buf why;
    buf_init(&why, 512);
    conditions_init(&c, look, NULL);
    played.reload_failed = true;
    conditions_say(&c, true, &why);
    cr_assert_str_eq(buf_cstr(&why), "", "a warning is no matter of readiness");
    played.is_full = true;
    conditions_say(&c, true, &why);
    const struct refusal_text *full = refusal_text(REFUSAL_disk_full);
    char wanted[512];
    (void)snprintf(wanted, sizeof(wanted), "; disk-full: %s: %s", full->text, full->remedy);
    cr_assert_str_eq(buf_cstr(&why), wanted);
    played.is_away = true;
    conditions_say(&c, true, &why);
    cr_assert_not_null(strstr(buf_cstr(&why), "; 2 conditions in all"));
    buf_done(&why);
    conditions_done(&c);
}

Test(conditions, each_is_a_row_of_the_metric)
{
    struct conditions c;
    memset(&played, 0, sizeof(played)); // some runs have one process for all tests
    struct buf out;
    unsigned rows = 0;
    buf_init(&out, 1u << 16);
    played.is_full = true;
    conditions_init(&c, look, NULL);
    conditions_metrics(&c, &out);
    const char *text = buf_cstr(&out);
    cr_assert_not_null(
        strstr(text, "forebay_condition{condition=\"disk-full\",severity=\"critical\"} 1\n"));
    cr_assert_not_null(
        strstr(text, "forebay_condition{condition=\"draining\",severity=\"info\"} 0\n"));
    for (const char *at = text; (at = strstr(at, "\nforebay_condition{")) != NULL; at++) {
        rows++;
    }
    cr_assert_eq(rows, CONDITION_COUNT_);
    buf_done(&out);
    conditions_done(&c);
}

// --- the log -------------------------------------------------------------------------------------

static char logged[8192];

// Looks, and returns the lines that this writes to the log.
static const char *look_and_log(struct conditions *c)
{
    int fd = memfd_create("log", 0), saved = dup(STDERR_FILENO);
    cr_assert(fd >= 0 && saved >= 0);
    dup2(fd, STDERR_FILENO);
    conditions_look(c);
    dup2(saved, STDERR_FILENO);
    ssize_t len = pread(fd, logged, sizeof(logged) - 1, 0);
    logged[len > 0 ? len : 0] = '\0';
    close(fd);
    close(saved);
    return logged;
}

Test(conditions, begin_and_end_are_logged_once_each)
{
    struct conditions c;
    memset(&played, 0, sizeof(played)); // some runs have one process for all tests
    log_init(LOG_LEVEL_INFO, false);
    conditions_init(&c, look, NULL);
    cr_assert_str_eq(look_and_log(&c), "");
    played.is_away = true;
    cr_assert_not_null(strstr(look_and_log(&c),
                              " level=error event=condition_begun name=origin-unreachable "
                              "severity=critical text=\"store is away\" remedy=\"call them\"\n"));
    clock_test_advance_us(90000000);
    cr_assert_str_eq(look_and_log(&c), "", "logged once");
    played.is_away = false;
    const char *end = strstr(look_and_log(&c), " level=info event=condition_ended "
                                               "name=origin-unreachable severity=critical "
                                               "held_ms=9000");
    cr_assert(end != NULL && strstr(end, " text=\"it held for ") != NULL, "%s", logged);
    cr_assert_null(strstr(end, "store is away"), "what held then is no news");
    cr_assert_str_eq(look_and_log(&c), "");
    conditions_done(&c);
}

Test(conditions, the_last_line_of_a_look_names_a_condition_that_holds)
{
    struct conditions c;
    memset(&played, 0, sizeof(played)); // some runs have one process for all tests
    log_init(LOG_LEVEL_INFO, false);
    conditions_init(&c, look, NULL);
    played.reload_failed = true;
    cr_assert_not_null(strstr(look_and_log(&c), " level=warn event=condition_begun "));
    played.reload_failed = false;
    played.is_full = true;
    const char *end = strstr(look_and_log(&c), "condition_ended name=reload-refused");
    cr_assert(end != NULL && strstr(end, "condition_begun name=disk-full") != NULL, "%s", logged);
    conditions_done(&c);
}

Test(conditions, one_that_flaps_is_logged_once_a_minute_and_its_last_line_is_right)
{
    struct conditions c;
    memset(&played, 0, sizeof(played)); // some runs have one process for all tests
    log_init(LOG_LEVEL_INFO, false);
    conditions_init(&c, look, NULL);
    played.is_full = true;
    cr_assert_not_null(strstr(look_and_log(&c), "condition_begun"));
    played.is_full = false;
    cr_assert_not_null(strstr(look_and_log(&c), "condition_ended"));
    for (unsigned i = 0; i < 10; i++) {
        played.is_full = !played.is_full;
        cr_assert_str_eq(look_and_log(&c), "");
    }
    played.is_full = true;
    cr_assert_str_eq(look_and_log(&c), "");
    clock_test_advance_us(60000000);
    cr_assert_not_null(strstr(look_and_log(&c), "condition_begun name=disk-full"));
    played.is_full = false;
    cr_assert_not_null(strstr(look_and_log(&c), "condition_ended name=disk-full"));
    conditions_done(&c);
}
