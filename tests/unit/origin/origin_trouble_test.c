// SPDX-License-Identifier: Apache-2.0
// Proves: trouble with an origin is reported once, by the calls that meet it and by the probe, and
// ends with the next answer. Errors of single objects say nothing about the origin.
#include "base/clock.h"
#include "base/log.h"
#include "rig.h"
#include "stats/stats.h"
#include "test.h"
#include "waiting.h"

#define OK_ANSWER "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 2\r\n\r\nok"

static const char *why_of(const struct rig *rig)
{
    struct origin_trouble_text text;
    return origin_in_trouble(rig->h.origin, &text) ? text.why : "";
}

static bool is_refusal(const struct rig *rig)
{
    struct origin_trouble_text text;
    return origin_in_trouble(rig->h.origin, &text) && text.kind == ORIGIN_KIND_REFUSES;
}

static enum err fetch(struct rig *rig, unsigned worker)
{
    struct fetch_run run = {.key = "k"};
    fetch_run(&rig->h, worker, &run);
    enum err err = run.err;
    fetch_run_done(&run);
    return err;
}

static void refuse(struct server_row *row, const char *status, const char *code)
{
    char xml[256];
    snprintf(xml, sizeof(xml), "<Error><Code>%s</Code></Error>", code);
    row->answer = rig_answer(status, "", xml);
}

Test(origin_trouble, words_for_errors)
{
    static const struct {
        enum err err;
        bool is_https;
        const char *detail;
        enum origin_trouble trouble;
    } cases[] = {
        {ERR_ORIGIN_DNS, true, "", ORIGIN_TROUBLE_DNS},
        {ERR_ORIGIN_CONNECT, true, "Connection refused", ORIGIN_TROUBLE_CONNECT},
        {ERR_ORIGIN_CONNECT, true, "SSL connection timeout", ORIGIN_TROUBLE_PLAIN},
        {ERR_ORIGIN_TLS, true, "error:0A00010B:SSL routines::wrong version number",
         ORIGIN_TROUBLE_PLAIN},
        {ERR_ORIGIN_TLS, true, "SSL certificate problem: self-signed certificate",
         ORIGIN_TROUBLE_CERTIFICATE},
        {ERR_ORIGIN_TLS, true, "SSL certificate problem: certificate has expired",
         ORIGIN_TROUBLE_CERTIFICATE_EXPIRED},
        {ERR_ORIGIN_TLS, true, "SSL: no alternative certificate subject name matches",
         ORIGIN_TROUBLE_CERTIFICATE_NAME},
        {ERR_ORIGIN_TLS, true, "no certificate authorities in /etc/ssl/cert.pem",
         ORIGIN_TROUBLE_AUTHORITIES},
        {ERR_ORIGIN_TLS, true, "alert handshake failure", ORIGIN_TROUBLE_TLS},
        {ERR_ORIGIN_PROTOCOL, false, "", ORIGIN_TROUBLE_HTTPS},
        {ERR_ORIGIN_PROTOCOL, true, "", ORIGIN_TROUBLE_PROTOCOL},
        {ERR_NO_SUCH_KEY, true, "", ORIGIN_TROUBLE_NONE},
        {ERR_CANCELLED, true, "", ORIGIN_TROUBLE_NONE},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        cr_assert_eq(origin_trouble_of(cases[i].err, cases[i].is_https, cases[i].detail),
                     cases[i].trouble, "%s %s", error_name(cases[i].err), cases[i].detail);
    }
    cr_assert_eq(origin_trouble_of_code(SPAN("AccessDenied")), ORIGIN_TROUBLE_NONE);
    cr_assert_eq(origin_trouble_of_code(SPAN("ExpiredToken")), ORIGIN_TROUBLE_KEYS_EXPIRED);
}

// Requests detect trouble and its end by themselves, on any worker.
Test(origin_trouble, calls_tell)
{
    struct server_row rows[] = {
        {.answer = OK_ANSWER}, {0}, {.answer = NULL, .close = true}, {.answer = OK_ANSWER}, {0}};
    struct rig rig;
    refuse(&rows[1], "403 Forbidden", "SignatureDoesNotMatch");
    refuse(&rows[4], "404 Not Found", "NoSuchKey");
    rig_options(&rig, rows, ARRAY_LEN(rows));
    rig.options.retries = 0;
    rig_begin(&rig);
    cr_assert_eq(fetch(&rig, 0), ERR_OK);
    cr_assert_str_eq(why_of(&rig), "");
    cr_assert_eq(fetch(&rig, 0), ERR_ORIGIN_REFUSED);
    cr_assert_str_eq(why_of(&rig), "credentials");
    cr_assert(is_refusal(&rig));
    cr_assert_eq(fetch(&rig, 1), ERR_ORIGIN_RESET);
    cr_assert_str_eq(why_of(&rig), "reset");
    cr_assert(!is_refusal(&rig));
    cr_assert_eq(fetch(&rig, 0), ERR_OK);
    cr_assert_str_eq(why_of(&rig), "");
    cr_assert_eq(fetch(&rig, 0), ERR_NO_SUCH_KEY);
    cr_assert_str_eq(why_of(&rig), "");
    rig_end(&rig);
    free((char *)(uintptr_t)rows[1].answer);
    free((char *)(uintptr_t)rows[4].answer);
}

static const char *text_of(const struct rig *rig)
{
    struct origin_trouble_text text;
    return origin_in_trouble(rig->h.origin, &text) ? text.text : "";
}

// Meets each trouble once, and collects the remedies.
static void collect_remedies(const struct rig *rig, struct buf *out)
{
    for (unsigned i = ORIGIN_TROUBLE_NONE + 1; i < ORIGIN_TROUBLE_COUNT_; i++) {
        struct origin_trouble_text text;
        origin_trouble_forget(rig->h.origin);
        origin_trouble_met(rig->h.origin, i, UINT64_MAX, "");
        cr_assert(origin_in_trouble(rig->h.origin, &text));
        cr_assert_gt(strlen(text.remedy), 0);
        buf_printf(out, "%s\n", text.remedy);
    }
}

Test(origin_trouble, remedies_name_the_settings_that_the_origin_has)
{
    static const char *const of_default[] = {"origin.endpoint", "origin.region",
                                             "origin.addressing", "credentials.source"};
    static const char *const own[] = {"buckets[near].endpoint", "buckets[near].region",
                                      "buckets[near].addressing", "buckets[near].credentials"};
    struct server_row rows[] = {{.answer = OK_ANSWER}};
    for (unsigned is_own = 0; is_own < 2; is_own++) {
        struct rig rig;
        struct buf remedies;
        rig_options(&rig, rows, 1);
        for (unsigned i = 0; i < ORIGIN_SETTING_COUNT; i++) {
            rig.options.settings.names[i] = is_own != 0 ? own[i] : NULL;
        }
        rig_begin(&rig);
        buf_init(&remedies, 65536);
        collect_remedies(&rig, &remedies);
        for (unsigned i = 0; i < ORIGIN_SETTING_COUNT; i++) {
            const char *named = strstr(buf_cstr(&remedies), own[i]);
            const char *of_others = strstr(buf_cstr(&remedies), of_default[i]);
            cr_assert((named != NULL) == (is_own != 0), "%s", own[i]);
            cr_assert((of_others != NULL) == (is_own == 0), "%s", of_default[i]);
        }
        cr_assert_not_null(strstr(buf_cstr(&remedies), "origin.ca_file"), "all origins share it");
        buf_done(&remedies);
        rig_end(&rig);
    }
}

// A bucket's name that cannot be resolved is blamed alone only after the endpoint's own name has
// been resolved. A fault of the endpoint's own name stays reported.
Test(origin_trouble, the_name_that_cannot_be_resolved_is_blamed)
{
    static const char either[] =
        "the host name with the bucket cannot be resolved; perhaps no name can";
    static const char bucket[] = "the host name with the bucket cannot be resolved";
    static const char own[] = "its name cannot be resolved";
    struct server_row rows[] = {{.answer = OK_ANSWER}};
    struct rig rig;
    rig_start(&rig, rows, 1);
    struct origin *origin = rig.h.origin;
    origin_trouble_met(origin, ORIGIN_TROUBLE_ANY_DNS, UINT64_MAX, "");
    cr_assert_str_eq(text_of(&rig), either);
    origin_trouble_met(origin, ORIGIN_TROUBLE_DNS, UINT64_MAX, "");
    cr_assert_str_eq(text_of(&rig), own);
    origin_trouble_met(origin, ORIGIN_TROUBLE_ANY_DNS, UINT64_MAX, "");
    cr_assert_str_eq(text_of(&rig), own);
    origin_trouble_answered(origin, true, false, UINT64_MAX);
    cr_assert_str_eq(text_of(&rig), "");
    origin_trouble_met(origin, ORIGIN_TROUBLE_ANY_DNS, UINT64_MAX, "");
    origin_trouble_answered(origin, true, false, UINT64_MAX);
    cr_assert_str_eq(text_of(&rig), bucket);
    origin_trouble_met(origin, ORIGIN_TROUBLE_ANY_DNS, UINT64_MAX, "");
    origin_trouble_answered(origin, true, false, UINT64_MAX);
    cr_assert_str_eq(text_of(&rig), bucket, "the probe is not asked by that name");
    origin_trouble_answered(origin, true, true, UINT64_MAX);
    cr_assert_str_eq(text_of(&rig), "");
    origin_trouble_met(origin, ORIGIN_TROUBLE_ANY_DNS, UINT64_MAX, "");
    clock_test_advance_us(61000000); // nobody asks for one any more
    origin_trouble_answered(origin, true, false, UINT64_MAX);
    cr_assert_str_eq(text_of(&rig), "");
    rig_end(&rig);
}

// A failure of a request that began before a later answer says nothing about the origin.
Test(origin_trouble, an_answer_counts_more_than_an_older_question)
{
    struct server_row rows[] = {{.answer = OK_ANSWER}};
    struct rig rig;
    rig_start(&rig, rows, 1);
    cr_assert_eq(fetch(&rig, 0), ERR_OK);
    origin_trouble_met(rig.h.origin, ORIGIN_TROUBLE_TIMEOUT, 1, "");
    cr_assert_str_eq(why_of(&rig), "");
    rig_end(&rig);
}

#define FAIL_ANSWER "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"

// Single server errors, and those that a retry mends, are normal. Five of a tenth of the requests
// are not.
Test(origin_trouble, only_many_server_errors_are_a_trouble)
{
    struct server_row rows[] = {{.answer = FAIL_ANSWER},
                                {.answer = OK_ANSWER},
                                {.answer = FAIL_ANSWER},
                                {.answer = OK_ANSWER},
                                {.answer = FAIL_ANSWER}};
    struct rig rig;
    rig_options(&rig, rows, ARRAY_LEN(rows));
    rig.options.retries = 1;
    rig_begin(&rig);
    cr_assert_eq(fetch(&rig, 0), ERR_OK);
    cr_assert_eq(fetch(&rig, 0), ERR_OK);
    cr_assert_eq(origin_failures_of(rig.h.origin, ORIGIN_SHARE_FAILED).failed, 0);
    cr_assert_eq(origin_failures_of(rig.h.origin, ORIGIN_SHARE_FAILED).requests, 2);
    for (unsigned i = 0; i < 4; i++) {
        cr_assert_eq(fetch(&rig, i % 2), ERR_ORIGIN_5XX);
        cr_assert_str_eq(why_of(&rig), "");
    }
    cr_assert_eq(fetch(&rig, 0), ERR_ORIGIN_5XX);
    cr_assert_str_eq(why_of(&rig), "5xx");
    cr_assert(!is_refusal(&rig));
    rig_end(&rig);
}

static void answer(struct origin *origin, unsigned good, unsigned bad)
{
    for (unsigned i = 0; i < good; i++) {
        origin_failures_note(origin, ORIGIN_OUTCOME_GOOD);
        origin_trouble_answered(origin, true, false, UINT64_MAX);
    }
    for (unsigned i = 0; i < bad; i++) {
        origin_trouble_failed(origin);
    }
}

// Some objects of a store may fail while others are answered.
Test(origin_trouble, one_good_answer_does_not_end_many_server_errors)
{
    struct server_row rows[] = {{.answer = OK_ANSWER}};
    struct rig rig;
    rig_start(&rig, rows, 1);
    struct origin *origin = rig.h.origin;
    answer(origin, 100, 9);
    cr_assert_str_eq(why_of(&rig), "", "9 of 109");
    answer(origin, 0, 3);
    cr_assert_str_eq(why_of(&rig), "5xx", "12 of 112");
    answer(origin, 100, 0);
    cr_assert_str_eq(why_of(&rig), "5xx", "12 of 212");
    clock_test_advance_us(3600000000u); // an idle time shows nothing
    cr_assert_str_eq(why_of(&rig), "5xx");
    answer(origin, 10, 0);
    cr_assert_str_eq(why_of(&rig), "5xx", "they end the first window only");
    clock_test_advance_us(31000000);
    answer(origin, 1, 0);
    cr_assert_str_eq(why_of(&rig), "");
    answer(origin, 0, 5);
    cr_assert_str_eq(why_of(&rig), "5xx", "5 of 16");
    answer(origin, 90, 0);
    cr_assert_str_eq(why_of(&rig), "", "5 of 106");
    rig_end(&rig);
}

static bool denies(const struct rig *rig)
{
    struct origin_failures denied;
    return origin_denies(rig->h.origin, &denied);
}

// A revoked right makes nearly all requests end with AccessDenied. Single ones are normal.
Test(origin_trouble, access_denied_to_nearly_all_requests_is_seen_until_it_ends)
{
    struct server_row rows[23], denial;
    struct rig rig;
    refuse(&denial, "403 Forbidden", "AccessDenied");
    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        bool is_good = i < 2 || i == 22;
        rows[i] = (struct server_row){.answer = is_good ? OK_ANSWER : denial.answer};
    }
    rig_start(&rig, rows, ARRAY_LEN(rows));
    cr_assert_eq(fetch(&rig, 0), ERR_OK);
    cr_assert_eq(fetch(&rig, 0), ERR_OK);
    for (unsigned i = 0; i < 20; i++) {
        cr_assert(!denies(&rig), "%u of %u", i, i + 2);
        cr_assert_eq(fetch(&rig, 0), ERR_ACCESS_DENIED);
    }
    cr_assert(denies(&rig), "20 of 22");
    cr_assert_str_eq(why_of(&rig), "", "the origin is in no other trouble");
    for (unsigned i = 0; i < 4; i++) {
        origin_failures_note_access(rig.h.origin, false);
    }
    cr_assert(denies(&rig), "20 of 26");
    cr_assert_eq(fetch(&rig, 0), ERR_OK);
    cr_assert(!denies(&rig), "20 of 27");
    rig_end(&rig);
}

Test(origin_trouble, access_denied_ends_a_minute_after_the_last_request)
{
    struct server_row rows[] = {{.answer = OK_ANSWER}};
    struct rig rig;
    rig_start(&rig, rows, 1);
    for (unsigned i = 0; i < 20; i++) {
        origin_failures_note_access(rig.h.origin, true);
    }
    clock_test_advance_us(59000000);
    cr_assert(denies(&rig));
    clock_test_advance_us(2000000);
    cr_assert(!denies(&rig));
    rig_end(&rig);
}

// A store also refuses requests that clients have signed, and objects in an archive.
Test(origin_trouble, only_denials_of_the_keys_of_forebay_count)
{
    static const struct {
        const char *code;
        bool is_signed_by_client;
        unsigned denied;
    } cases[] = {{"AccessDenied", true, 0},
                 {"InvalidObjectState", false, 0},
                 {"InvalidAccessKeyId", false, 0},
                 {"AccessDenied", false, 1}};
    struct sigv4_credentials keys = {SPAN("OTHERKEY"), SPAN("other"), SPAN("")};
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        struct server_row row = {0};
        struct origin_failures denied;
        struct rig rig;
        refuse(&row, "403 Forbidden", cases[i].code);
        rig_start(&rig, &row, 1);
        struct fetch_run run = {.key = "k",
                                .credentials = cases[i].is_signed_by_client ? &keys : NULL};
        fetch_run(&rig.h, 0, &run);
        fetch_run_done(&run);
        (void)origin_denies(rig.h.origin, &denied);
        cr_assert_eq(denied.failed, cases[i].denied, "case %u", i);
        rig_end(&rig);
    }
}

// A store that refuses nearly all requests with SlowDown fails. One that refuses some only
// throttles.
Test(origin_trouble, slow_down_to_nearly_all_requests_is_a_trouble)
{
    struct server_row rows[] = {{.answer = OK_ANSWER}};
    struct rig rig;
    rig_start(&rig, rows, 1);
    struct origin *origin = rig.h.origin;
    answer(origin, 1, 0);
    for (unsigned i = 0; i < 8; i++) {
        origin_trouble_throttled(origin, false, UINT64_MAX);
    }
    cr_assert_str_eq(why_of(&rig), "", "8 of 9");
    origin_trouble_throttled(origin, false, UINT64_MAX);
    cr_assert_str_eq(why_of(&rig), "slowdown", "9 of 10");
    cr_assert_eq(origin_throttled(origin).failed, 9);
    cr_assert_eq(origin_throttled(origin).requests, 10);
    answer(origin, 2, 0);
    cr_assert_str_eq(why_of(&rig), "slowdown", "9 of 12");
    answer(origin, 1, 0);
    cr_assert_str_eq(why_of(&rig), "", "9 of 13");
    rig_end(&rig);
}

// The origin may have judged a request before the trouble began, and answer it afterwards.
Test(origin_trouble, an_answer_to_an_earlier_request_does_not_end_it)
{
    struct server_row rows[] = {{.answer = OK_ANSWER}};
    struct rig rig;
    rig_start(&rig, rows, 1);
    struct origin *origin = rig.h.origin;
    const enum origin_trouble troubles[] = {ORIGIN_TROUBLE_CONNECT, ORIGIN_TROUBLE_KEYS_WRONG};
    for (unsigned i = 0; i < ARRAY_LEN(troubles); i++) {
        uint64_t asked_us = clock_monotonic_us();
        clock_test_advance_us(1000);
        origin_trouble_met(origin, troubles[i], UINT64_MAX, "");
        origin_trouble_answered(origin, true, false, asked_us);
        cr_assert_str_neq(why_of(&rig), "");
        origin_trouble_answered(origin, true, false, clock_monotonic_us());
        cr_assert_str_eq(why_of(&rig), "");
    }
    rig_end(&rig);
}

// The log holds back repeats within a minute, but its last line about an origin becomes true.
Test(origin_trouble, the_last_line_of_the_log_is_true)
{
    struct server_row rows[] = {{.answer = OK_ANSWER}};
    struct rig rig;
    rig_start(&rig, rows, 1);
    struct origin *origin = rig.h.origin;
    clock_test_advance_us(61000000); // the lines of other tests are old enough
    unsigned long before = log_lines(LOG_LEVEL_INFO);
    const enum origin_trouble troubles[] = {ORIGIN_TROUBLE_TIMEOUT, ORIGIN_TROUBLE_RESET};
    for (unsigned i = 0; i < 2; i++) { // each is logged, and so is its end
        origin_trouble_met(origin, troubles[i], UINT64_MAX, "");
        origin_trouble_answered(origin, true, false, UINT64_MAX);
        cr_assert_eq(log_lines(LOG_LEVEL_INFO) - before, 2 * (i + 1));
    }
    origin_trouble_met(origin, ORIGIN_TROUBLE_RESET, UINT64_MAX, "");
    cr_assert_eq(log_lines(LOG_LEVEL_INFO) - before, 4, "within a minute");
    clock_test_advance_us(61000000);
    origin_trouble_met(origin, ORIGIN_TROUBLE_RESET, UINT64_MAX, "");
    origin_trouble_met(origin, ORIGIN_TROUBLE_RESET, UINT64_MAX, "");
    cr_assert_eq(log_lines(LOG_LEVEL_INFO) - before, 5, "it lasts");
    origin_trouble_answered(origin, true, false, UINT64_MAX);
    cr_assert_eq(log_lines(LOG_LEVEL_INFO) - before, 6);
    rig_end(&rig);
}

// The probe is sent once on request, again and again while it is refused, and not after that.
Test(origin_trouble, probe_asks_until_it_is_answered)
{
    struct server_row rows[] = {{0}, {.answer = OK_ANSWER}};
    struct rig rig;
    sem_t told;
    refuse(&rows[0], "403 Forbidden", "SignatureDoesNotMatch");
    rig_options(&rig, rows, ARRAY_LEN(rows));
    rig.options.probe = true;
    rig_begin(&rig);
    cr_assert_eq(sem_init(&told, 0, 0), 0);
    origin_probe_start(rig.h.origin, &told);
    cr_assert_eq(sem_wait(&told), 0);
    cr_assert_str_eq(why_of(&rig), "credentials");
    cr_assert(rig_asked(&rig, 0, "GET /?max-buckets=1 HTTP/1.1\r\n"));
    wait_for(why_of(&rig)[0] == '\0');
    cr_assert_eq(server_requests(&rig.server), 2);
    rig_end(&rig);
    sem_destroy(&told);
    free((char *)(uintptr_t)rows[0].answer);
}

// Without a probe, and for an origin that is no server, there is nothing to wait for.
Test(origin_trouble, nothing_to_probe)
{
    struct server_row rows[] = {{.answer = OK_ANSWER}};
    struct rig rig;
    sem_t told;
    rig_start(&rig, rows, 1);
    cr_assert_eq(sem_init(&told, 0, 0), 0);
    origin_probe_start(rig.h.origin, &told);
    cr_assert_eq(sem_trywait(&told), 0);
    cr_assert_eq(server_requests(&rig.server), 0);
    rig_end(&rig);
    sem_destroy(&told);
}
