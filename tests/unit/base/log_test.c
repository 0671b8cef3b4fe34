// SPDX-License-Identifier: Apache-2.0
// Proves: a log line is one line and one JSON object, whatever bytes come from outside, and floods
// are cut.
#include "test.h"

#include "base/log.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char captured[1 << 20];

// Returns the text that `fn` writes to stderr.
static const char *capture(void (*fn)(void))
{
    int fd = memfd_create("log", 0), saved = dup(STDERR_FILENO);
    cr_assert(fd >= 0 && saved >= 0);
    dup2(fd, STDERR_FILENO);
    fn();
    dup2(saved, STDERR_FILENO);
    ssize_t len = pread(fd, captured, sizeof(captured) - 1, 0);
    captured[len > 0 ? len : 0] = '\0';
    close(fd);
    close(saved);
    return captured;
}

Test(log, quote_escapes_bytes_that_could_forge_a_line)
{
    cr_assert_str_eq(log_quote(SPAN("plain")), "\"plain\"");
    cr_assert_str_eq(log_quote(SPAN("a b\"c\\")), "\"a b\\\"c\\\\\"");
    cr_assert_str_eq(log_quote(SPAN("x\ny\x7f")), "\"x\\u000ay\\u007f\"");
    cr_assert_str_eq(log_quote(SPAN("\xc3\xa9\xff\xc0\x80")), "\"\xc3\xa9\\u00ff\\u00c0\\u0080\"");
    cr_assert_str_eq(log_quote(SPAN("\xed\xa0\x80")), "\"\\u00ed\\u00a0\\u0080\"");
    char big[1000];
    memset(big, 'x', sizeof(big));
    cr_assert_eq(strlen(log_quote((struct span){big, sizeof(big)})), 258);
    big[255] = '\xc3'; // a character that would be cut in half goes whole
    big[256] = '\xa9';
    cr_assert_eq(strlen(log_quote((struct span){big, sizeof(big)})), 257);
    const char *first = log_quote(SPAN("1"));
    for (int i = 0; i < 3; i++) {
        cr_assert_str_eq(log_quote(SPAN("2")), "\"2\"");
    }
    cr_assert_str_eq(first, "\"1\"");
}

static void write_json(void)
{
    log_init(LOG_LEVEL_INFO, true);
    log_info("tested", "n=12 f=1.5 z=007 ok=true name=%s word=a\"b",
             log_quote(SPAN("a b=\"c\"\n")));
    log_debug("hidden", "n=1");
}

Test(log, json_keeps_types)
{
    const char *line = capture(write_json);
    cr_assert_not_null(strstr(line, "\"level\":\"info\",\"event\":\"tested\",\"n\":12,\"f\":1.5,"
                                    "\"z\":\"007\",\"ok\":true,\"name\":\"a b=\\\"c\\\"\\u000a\","
                                    "\"word\":\"a\\\"b\"}\n"));
    cr_assert_eq(line[0], '{');
    cr_assert_null(strstr(line, "hidden"));
}

static void write_text(void)
{
    log_init(LOG_LEVEL_DEBUG, false);
    log_event(LOG_LEVEL_WARN, "plain", "raw=%s", "a\nb");
    log_event(LOG_LEVEL_ERROR, "bare", "%s", "");
}

Test(log, text_lines_cannot_be_forged)
{
    const char *line = capture(write_text);
    cr_assert_not_null(strstr(line, " level=warn event=plain raw=a?b\n"));
    cr_assert_not_null(strstr(line, " level=error event=bare \n"));
    cr_assert_eq(strncmp(line, "ts=", 3), 0);
}

static void write_long(void)
{
    static char big[8000];
    memset(big, 'x', sizeof(big) - 1);
    log_init(LOG_LEVEL_INFO, true);
    log_info("long", "a=1 big=%s", big);
}

Test(log, a_line_too_long_is_still_an_object)
{
    const char *line = capture(write_long);
    size_t len = strlen(line);
    cr_assert_leq(len, 4096);
    cr_assert_str_eq(line + len - 2, "}\n");
    cr_assert_not_null(strstr(line, "\"a\":1"));
    cr_assert_null(strstr(line, "xxx"));
}

static void flood(const char *event)
{
    log_init(LOG_LEVEL_INFO, false);
    for (int i = 0; i < 1000; i++) {
        log_info(event, "i=%d", i);
    }
}

static void write_flood(void)
{
    flood("cut_short");
    log_info("other_event", "a=1");
}

Test(log, floods_are_cut_and_others_get_through)
{
    unsigned long before = log_lines(LOG_LEVEL_INFO);
    const char *text = capture(write_flood);
    unsigned long written = log_lines(LOG_LEVEL_INFO) - before;
    cr_assert_geq(written, 101);
    cr_assert_leq(written, 401); // the second may turn a few times on a slow machine
    cr_assert_not_null(strstr(text, "event=other_event"));
}

// Makes a pipe that takes no line any more. *ret_out is its other end.
static int full_pipe(int *ret_out)
{
    int ends[2];
    char junk[4096] = "";
    cr_assert_eq(pipe(ends), 0);
    (void)fcntl(ends[1], F_SETPIPE_SZ, sizeof(junk));
    (void)fcntl(ends[1], F_SETFL, O_NONBLOCK);
    while (write(ends[1], junk, sizeof(junk)) > 0) {
    }
    while (write(ends[1], junk, 1) > 0) {
    }
    (void)fcntl(ends[1], F_SETFL, 0);
    *ret_out = ends[0];
    return ends[1];
}

Test(log, no_thread_waits_for_the_reader_of_the_log)
{
    int out, in = full_pipe(&out), saved = dup(STDERR_FILENO);
    unsigned long lost = log_lines_lost();
    dup2(in, STDERR_FILENO);
    log_init(LOG_LEVEL_INFO, false);
    alarm(20); // ends a test that waits
    log_info("stuck", "i=1");
    log_info("stuck", "i=2");
    alarm(0);
    cr_assert_eq(log_lines_lost() - lost, 2);
    while (read(out, captured, sizeof(captured)) == sizeof(captured)) {
    }
    log_info("stuck", "i=3");
    dup2(saved, STDERR_FILENO);
    ssize_t len = read(out, captured, sizeof(captured) - 1);
    cr_assert_gt(len, 0);
    captured[len] = '\0';
    cr_assert_not_null(strstr(captured, "event=stuck dropped=2 i=3\n"));
    cr_assert_eq(log_lines_lost() - lost, 2);
    close(in);
    close(out);
    close(saved);
}

#ifdef FOREBAY_FAULTS
#include "base/clock.h"

static void write_after_flood(void)
{
    flood("flood");
    clock_test_advance_us(2000000);
    log_info("flood", "i=end");
}

static void write_condition(void)
{
    log_init(LOG_LEVEL_INFO, false);
    for (int i = 0; i < 1000; i++) {
        log_warn_condition("bad_disk", "disk=a number=%d", i);
    }
    log_warn_condition("bad_disk", "disk=b number=%d", 1);
    clock_test_advance_us(61000000);
    log_warn_condition("bad_disk", "disk=a number=%d", 1000);
}

// Once a minute for each condition, even if its numbers change. The next line counts the lines that
// were held back.
Test(log, a_condition_is_logged_once_a_minute)
{
    unsigned long before = log_lines(LOG_LEVEL_WARN);
    const char *text = capture(write_condition);
    cr_assert_eq(log_lines(LOG_LEVEL_WARN) - before, 3, "%s", text);
    cr_assert_eq(log_lines_held_back(), 999);
    cr_assert_not_null(strstr(text, "event=bad_disk disk=a number=0\n"));
    cr_assert_not_null(strstr(text, "event=bad_disk disk=b number=1\n"));
    cr_assert_not_null(strstr(text, "event=bad_disk dropped=999 disk=a number=1000\n"));
}

Test(log, dropped_lines_are_counted_in_the_log)
{
    const char *text = capture(write_after_flood);
    const char *last = strstr(text, "i=end");
    cr_assert_not_null(last);
    cr_assert_not_null(strstr(text, "event=flood dropped="));
}
#endif

static void write_held(void)
{
    log_init(LOG_LEVEL_INFO, false);
    log_hold();
    log_info("first", "n=1");
    log_warn("second", "n=2");
    (void)!write(STDERR_FILENO, "why\n", 4);
    log_release(LOG_LEVEL_WARN);
    log_info("third", "n=3");
}

static void write_held_long(void)
{
    log_hold();
    for (int i = 0; i < 20; i++) {
        char name[16], text[3000];
        memset(text, 'x', sizeof(text) - 1);
        text[sizeof(text) - 1] = '\0';
        (void)snprintf(name, sizeof(name), "row%d", i);
        log_info(name, "text=%s", text);
    }
    (void)!write(STDERR_FILENO, "end\n", 4);
    log_release(LOG_LEVEL_WARN);
}

// A start that fails gives the reason first. Lines that do not fit are not kept, and none is lost.
Test(log, lines_of_a_start_are_held)
{
    const char *text = capture(write_held);
    cr_assert_eq(strncmp(text, "why\n", 4), 0, "%s", text);
    cr_assert_null(strstr(text, "event=first"));
    cr_assert(strstr(text, "event=second") < strstr(text, "event=third"), "%s", text);
    text = capture(write_held_long);
    cr_assert_not_null(strstr(text, "event=row0 "));
    cr_assert(strstr(text, "event=row9 ") < strstr(text, "event=row19 "));
    cr_assert(strstr(text, "event=row19 ") < strstr(text, "end\n"));
}
