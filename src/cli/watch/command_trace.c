// SPDX-License-Identifier: Apache-2.0
// `forebay trace`: shows where requests of one object, or of one id, spend their time.
#include "cli/watch/command_entries.h"

#include <stdio.h>
#include <string.h>

#include "commands/commands.h"
#include "s3/s3.h"

#define WHERE_MAX_BYTES 8192u
#define PHASE_INDENT 40u // columns before the note of a phase

static void print_phase(const char *name, double ms, const char *note)
{
    if (ms > 0) {
        command_screen_print(PHASE_INDENT, "  %-22s %10.3f ms  %s\n", name, ms, note);
    }
}

static void print_checksums(const char *checksums)
{
    if (strcmp(checksums, "unknown") == 0) {
        command_screen_print(PHASE_INDENT,
                             "  %-22s sent without: the origin is asked for the next reader\n",
                             "checksums");
    } else if (strcmp(checksums, "none") == 0) {
        command_screen_print(PHASE_INDENT, "  %-22s the origin names none\n", "checksums");
    } else if (checksums[0] != '\0') {
        command_screen_print(PHASE_INDENT, "  %-22s sent\n", "checksums");
    }
}

static void print_trace(void *ctx, const json_t *entry)
{
    (void)ctx;
    char note[256];
    double first_ms = command_client_double(entry, "ttfb_ms");
    double total_ms = command_client_double(entry, "total_ms");
    double body_ms = total_ms > first_ms && first_ms > 0 ? total_ms - first_ms : 0;
    double size = command_client_double(entry, "bytes");
    const char *range = command_client_text(entry, "range");
    const char *result = command_client_text(entry, "result");
    const char *reason = command_client_text(entry, "reason");
    struct buf head;
    buf_init(&head, WHERE_MAX_BYTES);
    buf_printf(&head, "%s %s %llu", command_client_shown(entry, "id"),
               command_client_text(entry, "op"),
               (unsigned long long)command_client_u64(entry, "status"));
    buf_printf(&head, " s3://%s/", command_client_shown(entry, "bucket"));
    buf_printf(&head, "%s", command_client_shown(entry, "key"));
    buf_printf(&head, "%s%s %s%s%s", range[0] != '\0' ? " " : "", command_client_visible(range),
               result, reason[0] != '\0' ? " reason=" : "", reason);
    command_screen_print(4, "%s\n", buf_cstr(&head));
    buf_done(&head);
    print_checksums(command_client_text(entry, "checksums"));
    const char *origin_id = command_client_visible(command_client_text(entry, "origin_id"));
    uint64_t attempts = command_client_u64(entry, "attempts");
    (void)snprintf(note, sizeof(note), "%llu attempt%s%s%.100s", (unsigned long long)attempts,
                   attempts == 1 ? "" : "s", origin_id[0] != '\0' ? ", id " : "", origin_id);
    print_phase("waited for the origin", command_client_double(entry, "origin_ms"), note);
    print_phase("first byte", first_ms, "");
    const char *source = command_client_text(entry, "source"); // "": Forebay's own error or relayed
    (void)snprintf(note, sizeof(note), "%s%s%s at %s/s", command_bytes(size),
                   source[0] != '\0' ? " from " : "", source,
                   command_bytes(body_ms > 0 ? size / body_ms * 1e3 : 0));
    print_phase("body", body_ms, size > 0 ? note : "");
    (void)snprintf(note, sizeof(note), "%llu of %llu blocks were cached",
                   (unsigned long long)command_client_u64(entry, "blocks_hit"),
                   (unsigned long long)command_client_u64(entry, "blocks_total"));
    print_phase("all of it", total_ms, json_object_get(entry, "blocks_total") != NULL ? note : "");
}

// Appends a text as the value of a term. Returns false if it contains both quotes, so that neither
// can enclose it.
static bool append_value(struct buf *where, struct span value)
{
    char quote = span_find(value, '"') == value.len ? '"' : '\'';
    buf_append_char(where, quote);
    buf_append_span(where, value);
    buf_append_char(where, quote);
    return span_find(value, quote) == value.len && span_find(value, '\n') == value.len;
}

static bool describe(const char *operand, struct buf *where, const char **ret_why)
{
    struct span text = span_from_cstr(operand);
    *ret_why = "this cannot be asked for";
    if (!span_starts_with(text, SPAN("s3://"))) {
        static const char *const ids[] = {"id", "request_id", "trace_id"};
        bool is_good = true;
        for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
            buf_printf(where, "%s%s=", i > 0 ? " or " : "", ids[i]);
            is_good = append_value(where, text) && is_good;
        }
        return is_good;
    }
    struct s3_uri uri;
    if (!s3_uri_parse(text, &uri, ret_why)) {
        return false;
    }
    buf_append_cstr(where, "bucket=");
    bool is_good = append_value(where, uri.bucket);
    if (uri.key.len > 0) {
        buf_append_cstr(where, uri.is_prefix ? " and key^=" : " and key=");
        is_good = append_value(where, uri.key) && is_good;
    }
    return is_good;
}

static int run(struct command_entries *trace, const char *operand)
{
    struct buf where;
    const char *why = "";
    int code = EXIT_CODE_USAGE;
    buf_init(&where, WHERE_MAX_BYTES);
    if (describe(operand, &where, &why) && buf_ok(&where)) {
        code = command_entries_follow(trace, buf_cstr(&where));
    } else {
        command_client_error(&trace->client, "%s: %s", operand, why);
    }
    buf_done(&where);
    return code;
}

int command_trace(int argc, char **argv)
{
    struct command_entries trace = {.dropped_text = "requests were missed", .print = print_trace};
    if (!commands_argument_take_number(&argc, argv, "-n", 1, UINT64_MAX, &trace.max)) {
        return commands_usage_error("trace", "-n is a number above 0");
    }
    int code = command_client_open(&trace.client, "trace");
    if (code != EXIT_CODE_OK) {
        return code;
    }
    code = run(&trace, argv[0]);
    return command_client_end(&trace.client, code,
                              json_pack("{s:I}", "requests", (json_int_t)trace.count));
}
