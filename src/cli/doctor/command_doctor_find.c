// SPDX-License-Identifier: Apache-2.0
// Prints the findings of `forebay doctor`, as lines for people or as JSON, and the verdict.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/client/command_client.h"
#include "cli/doctor/command_doctor.h"

// From then on the checks of origins do not wait longer than timeout_ms.
#define CHECKS_MS 30000u
#define CANCEL_MS 500u // time in which the origin's driver ends a call whose wait is over

#define FOUND_MAX 2048u
#define LINE_MAX_BYTES (2 * FOUND_MAX)
#define FOUND_COLUMN 21
#define REMEDY_COLUMN (FOUND_COLUMN + 3)

static const char *const state_names[] = {"green", "yellow", "red"};

static void append_state(struct buf *out, enum doctor_state state)
{
    static const char *const colours[] = {"\033[32m", "\033[33m", "\033[31m"};
    bool is_coloured = commands_wants_colour();
    buf_printf(out, "%s%-6s%s", is_coloured ? colours[state] : "", state_names[state],
               is_coloured ? "\033[0m" : "");
}

// Appends the finding as rows that fit the terminal.
static void append_finding(struct buf *out, enum doctor_state state, const char *check_name,
                           const char *found, const char *remedy)
{
    unsigned columns = command_screen_columns(STDOUT_FILENO);
    struct buf line;
    buf_init(&line, LINE_MAX_BYTES);
    append_state(&line, state);
    buf_printf(&line, " %-13s %s\n", check_name, found);
    command_screen_wrap(out, buf_span(&line), columns, FOUND_COLUMN);
    if (remedy != NULL) {
        line.len = 0;
        buf_printf(&line, "%*s-> %s\n", FOUND_COLUMN, "", remedy);
        command_screen_wrap(out, buf_span(&line), columns, REMEDY_COLUMN);
    }
    buf_done(&line);
}

// Reports a finding, or adds it to `rows`.
static void report(struct doctor *doctor, enum doctor_state state, const char *check_name,
                   const char *found, const char *remedy)
{
    bool is_kept = doctor->rows != NULL;
    doctor->count[state]++;
    if (!is_kept && !commands_common()->is_json) {
        append_finding(&doctor->out, state, check_name, found, remedy);
        return;
    }
    json_t *row = json_pack("{s:s, s:s, s:o, s:o}", "check", check_name, "state",
                            state_names[state], "found", control_text(span_from_cstr(found)),
                            "remedy", control_text(span_from_cstr(remedy)));
    check(row != NULL);
    if (is_kept) {
        check(json_array_append_new(doctor->rows, row) == 0);
    } else {
        commands_line("item", row);
    }
}

void command_doctor_find(struct doctor *doctor, enum doctor_state state, const char *check_name,
                         const char *remedy, const char *format, ...)
{
    char found[FOUND_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(found, sizeof(found), format, args); // a longer text is cut
    va_end(args);
    report(doctor, state, check_name, found, remedy);
}

void command_doctor_repeat(struct doctor *doctor, const json_t *rows)
{
    const json_t *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        const char *name = command_client_text(row, "state");
        const char *remedy = command_client_text(row, "remedy");
        enum doctor_state state = strcmp(name, "green") == 0    ? DOCTOR_GREEN
                                  : strcmp(name, "yellow") == 0 ? DOCTOR_YELLOW
                                                                : DOCTOR_RED;
        report(doctor, state, command_client_text(row, "check"), command_client_text(row, "found"),
               remedy[0] != '\0' ? remedy : NULL);
    }
}

void command_doctor_red_of_origin(struct doctor *d, const char *name, const char *remedy,
                                  const char *what, const char *where)
{
    if (d->exit_code == EXIT_CODE_OK) {
        d->exit_code = EXIT_CODE_ORIGIN;
    }
    command_doctor_find(d, DOCTOR_RED, name, remedy, "%s: %s", where, what);
}

uint64_t command_doctor_wait_ms(const struct doctor *d)
{
    uint64_t used_ms = clock_monotonic_ms() - d->origin_began_ms;
    uint64_t left_ms = CHECKS_MS - min_u64(used_ms, CHECKS_MS);
    return commands_common()->has_timeout
               ? d->timeout_ms
               : max_u64(d->timeout_ms, min_u64(d->config->origin_first_byte_timeout_ms, left_ms));
}

uint64_t command_doctor_probe_ms(const struct doctor *d)
{
    return command_doctor_wait_ms(d) + CANCEL_MS;
}

bool command_doctor_is_out_of_time(const struct doctor *d)
{
    return !commands_common()->has_timeout &&
           clock_monotonic_ms() - d->origin_began_ms >= CHECKS_MS;
}

int command_doctor_verdict(struct doctor *doctor)
{
    int code = doctor->count[DOCTOR_RED] == 0      ? EXIT_CODE_OK
               : doctor->exit_code != EXIT_CODE_OK ? doctor->exit_code
                                                   : EXIT_CODE_FAILED;
    const unsigned *count = doctor->count;
    if (!commands_common()->is_json) {
        buf_printf(&doctor->out, "\n%u green, %u yellow, %u red\n", count[DOCTOR_GREEN],
                   count[DOCTOR_YELLOW], count[DOCTOR_RED]);
    }
    return commands_result(code,
                           json_pack("{s:i, s:i, s:i}", "green", (int)count[DOCTOR_GREEN], "yellow",
                                     (int)count[DOCTOR_YELLOW], "red", (int)count[DOCTOR_RED]));
}
