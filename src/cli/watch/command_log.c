// SPDX-License-Identifier: Apache-2.0
// `forebay log`: prints the requests of a running server as they end. The server filters them
// (--where), so that unwanted ones cost nothing.
#include "cli/watch/command_entries.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIELDS_MAX 64u
#define FIELD_NAME_MAX 64u

struct log {
    struct command_entries entries;
    struct span fields[FIELDS_MAX];
    unsigned field_count;
};

static void print_field(const json_t *entry, struct span name)
{
    char word[FIELD_NAME_MAX];
    (void)snprintf(word, sizeof(word), "%.*s", (int)min_u64(name.len, sizeof(word) - 1), name.ptr);
    const json_t *value = json_object_get(entry, word);
    if (value == NULL || json_is_string(value)) {
        printf("%s", value != NULL ? command_client_shown(entry, word) : "-");
        return;
    }
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(12));
    printf("%s", text != NULL ? command_client_visible(text) : "-");
    free(text);
}

static void print_fields(const struct log *log, const json_t *entry)
{
    for (unsigned i = 0; i < log->field_count; i++) {
        printf("%s", i > 0 ? "\t" : "");
        print_field(entry, log->fields[i]);
    }
    printf("\n");
}

static void print_word(const char *before, const char *shown)
{
    if (shown[0] != '\0') {
        printf("%s%s", before, shown);
    }
}

// Prints an entry in the form of access_log.format: text.
static void print_entry(const json_t *entry)
{
    const char *ts = command_client_text(entry, "ts"),
               *result = command_client_text(entry, "result");
    printf("%.8s %3llu %-11s %10s %8.1f ms %8.1f ms", strlen(ts) > 19 ? ts + 11 : "-",
           (unsigned long long)command_client_u64(entry, "status"),
           result[0] != '\0' ? command_client_visible(result) : "-",
           command_bytes(command_client_double(entry, "bytes")),
           command_client_double(entry, "ttfb_ms"), command_client_double(entry, "total_ms"));
    print_word(" ", command_client_shown(entry, "op"));
    print_word(" ", command_client_shown(entry, "bucket"));
    print_word("/", command_client_shown(entry, "key"));
    print_word(" ", command_client_shown(entry, "range"));
    print_word(" ", command_client_shown(entry, "error"));
    print_word(" why=", command_client_shown(entry, "why"));
    print_word(" reason=", command_client_shown(entry, "reason"));
    printf("\n");
}

static void print(void *ctx, const json_t *entry)
{
    const struct log *log = ctx;
    if (log->field_count > 0) {
        print_fields(log, entry);
    } else {
        print_entry(entry);
    }
}

static bool read_fields(const char *text, struct log *log)
{
    struct span rest = span_from_cstr(text), name;
    while (span_split(&rest, ',', &name)) {
        if (name.len == 0 || name.len >= FIELD_NAME_MAX || log->field_count == FIELDS_MAX) {
            return false;
        }
        log->fields[log->field_count++] = name;
    }
    return log->field_count > 0;
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
    if (fields != NULL && !read_fields(fields, &log)) {
        return commands_usage_error("log", "--fields is a list of names, as key,ttfb_ms");
    }
    int code = command_client_open(&log.entries.client, "log");
    if (code != EXIT_CODE_OK) {
        return code;
    }
    code = command_entries_follow(&log.entries, where);
    return command_client_end(&log.entries.client, code,
                              json_pack("{s:I, s:I}", "lines", (json_int_t)log.entries.count,
                                        "dropped", (json_int_t)log.entries.dropped));
}
