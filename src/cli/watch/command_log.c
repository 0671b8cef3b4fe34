// SPDX-License-Identifier: Apache-2.0
// `forebay log`: prints the requests of a running server as they end. The server filters them
// (--where), so that unwanted ones cost nothing.
#include "cli/watch/command_entries.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands/commands.h"

#define FIELDS_MAX 64u
#define LINE_MAX_BYTES 65536u
#define WIDE_COLUMNS 110u  // a terminal of this width gets all columns
#define NARROW_COLUMNS 72u // a narrower one gets neither time nor size
#define NAME_COLUMNS 16u   // least room for the key

struct log {
    struct command_entries entries;
    const struct log_field *fields[FIELDS_MAX];
    unsigned field_count;
};

static void append_field(struct buf *line, const json_t *entry, const struct log_field *field)
{
    const json_t *value = json_object_get(entry, field->member);
    if (value == NULL || json_is_string(value)) {
        buf_append_cstr(line, value != NULL ? command_client_shown(entry, field->member) : "-");
        return;
    }
    bool is_scaled = json_is_number(value) && field->scale != 0 && field->scale != 1;
    json_t *scaled = is_scaled ? json_real(json_number_value(value) * field->scale) : NULL;
    char *text = json_dumps(is_scaled ? scaled : value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(12));
    buf_append_cstr(line, text != NULL ? command_client_visible(text) : "-");
    free(text);
    json_decref(scaled);
}

static void append_fields(const struct log *log, const json_t *entry, struct buf *line)
{
    for (unsigned i = 0; i < log->field_count; i++) {
        buf_append_cstr(line, i > 0 ? "\t" : "");
        append_field(line, entry, log->fields[i]);
    }
}

static void append_word(struct buf *line, const char *before, const char *shown)
{
    if (shown[0] != '\0') {
        buf_printf(line, "%s%s", before, shown);
    }
}

// Appends an entry in the form of access_log.format: text. A narrow terminal gets fewer columns:
// first the time to the first byte goes, and the operation of plain reads, then time and size.
static void append_entry(const json_t *entry, unsigned columns, struct buf *line)
{
    bool is_wide = columns == 0 || columns >= WIDE_COLUMNS;
    bool is_narrow = columns > 0 && columns < NARROW_COLUMNS;
    const char *ts = command_client_text(entry, "ts"), *op = command_client_text(entry, "op"),
               *result = command_client_text(entry, "result");
    if (!is_narrow) {
        buf_printf(line, "%.8s ", strlen(ts) > 19 ? ts + 11 : "-");
    }
    buf_printf(line, "%3llu %-11s", (unsigned long long)command_client_u64(entry, "status"),
               result[0] != '\0' ? command_client_visible(result) : "-");
    if (!is_narrow) {
        buf_printf(line, " %10s", command_bytes(command_client_double(entry, "bytes")));
    }
    if (is_wide) {
        buf_printf(line, " %8.1f ms", command_client_double(entry, "ttfb_ms"));
    }
    buf_printf(line, " %8.1f ms", command_client_double(entry, "total_ms"));
    if (is_wide || strcmp(op, "GetObject") != 0) {
        append_word(line, " ", command_client_shown(entry, "op"));
    }
    struct buf name, tail;
    buf_init(&name, LINE_MAX_BYTES);
    buf_init(&tail, LINE_MAX_BYTES);
    append_word(&name, "", command_client_shown(entry, "bucket"));
    append_word(&name, "/", command_client_shown(entry, "key"));
    append_word(&tail, " ", command_client_shown(entry, "range"));
    append_word(&tail, " ", command_client_shown(entry, "error"));
    append_word(&tail, " why=", command_client_shown(entry, "why"));
    append_word(&tail, " reason=", command_client_shown(entry, "reason"));
    unsigned used =
        command_screen_width(buf_span(line)) + 1 + command_screen_width(buf_span(&tail));
    unsigned room = columns > used + NAME_COLUMNS ? columns - used : NAME_COLUMNS;
    buf_append_cstr(line, name.len > 0 ? " " : "");
    command_screen_append_end(line, buf_span(&name), columns > 0 ? room : UINT_MAX);
    buf_append_span(line, buf_span(&tail));
    buf_done(&name);
    buf_done(&tail);
}

static void print(void *ctx, const json_t *entry)
{
    const struct log *log = ctx;
    struct buf line;
    buf_init(&line, LINE_MAX_BYTES);
    if (log->field_count > 0) {
        append_fields(log, entry, &line);
    } else {
        append_entry(entry, command_screen_columns(STDOUT_FILENO), &line);
    }
    command_screen_row(buf_span(&line));
    buf_done(&line);
}

// Takes the names of --fields. Returns false, and the reason in `why`, if one is not known.
static bool read_fields(const char *text, struct log *log, struct buf *why)
{
    struct span rest = span_from_cstr(text), name;
    while (span_split(&rest, ',', &name)) {
        const struct log_field *field = log_fields_find(name);
        if (field == NULL) {
            buf_printf(why, "--fields: no such field: %.*s; fields are %s", (int)name.len, name.ptr,
                       log_fields_names());
            return false;
        }
        if (log->field_count == FIELDS_MAX) {
            buf_printf(why, "--fields takes %u names at most", FIELDS_MAX);
            return false;
        }
        log->fields[log->field_count++] = field;
    }
    return true;
}

int command_log(int argc, char **argv)
{
    struct log log = {
        .entries = {.dropped_text = "lines were dropped: they came faster than they were read",
                    .print = print,
                    .ctx = &log}};
    const char *where = commands_argument_take_value(&argc, argv, "--where");
    const char *fields = commands_argument_take_value(&argc, argv, "--fields");
    if (!commands_argument_take_number(&argc, argv, "-n", 1, UINT64_MAX, &log.entries.max)) {
        return commands_usage_error("log", "-n is a number above 0");
    }
    struct buf why;
    buf_init(&why, LINE_MAX_BYTES);
    bool is_good = fields == NULL || read_fields(fields, &log, &why);
    int code = is_good ? command_client_open(&log.entries.client, "log")
                       : commands_usage_error("log", buf_cstr(&why));
    buf_done(&why);
    if (code != EXIT_CODE_OK) {
        return code;
    }
    code = command_entries_follow(&log.entries, where);
    return command_client_end(&log.entries.client, code,
                              json_pack("{s:I, s:I}", "lines", (json_int_t)log.entries.count,
                                        "dropped", (json_int_t)log.entries.dropped));
}
