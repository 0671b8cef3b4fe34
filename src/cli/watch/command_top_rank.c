// SPDX-License-Identifier: Apache-2.0
// `forebay top keys|prefixes|buckets|clients|reasons`: ranks the requests to a running server since
// this command started. The server counts while this command runs (admin_top.c). On a terminal the
// command refreshes a screen. Otherwise it prints one result after one interval.
#include "cli/watch/command_top_rank.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/client/command_client.h"
#include "commands/commands.h"
#include "stats/stats.h"

#define PATH_MAX_BYTES 16384u
#define FRAME_MAX_BYTES (256u << 10)
#define LINE_MAX_BYTES 8192u
#define INDENT 12u // of the second row of a reason with its remedy
#define ROWS 26u   // rows that are shown if stdout is no terminal

struct rank {
    struct command_client client;
    const char *by;
    bool is_screen;
    json_t *last;
};

// Ways to avoid each bypass reason, in the same words as the admin page.
static const struct {
    const char *reason, *remedy;
} remedies[] = {
    {"list", "cache.list_ttl, or list_ttl of a rule, keeps listings for a moment"},
    {"rule", "a rule says cache: false: change it, or put another one in front"},
    {"method", "writes always go to the origin"},
    {"sub-resource", "tags, ACLs, uploads and the like always go to the origin"},
    {"version", "read the current version, without a versionId"},
    {"part-number", "read by ranges, not by part numbers"},
    {"cors", "a web page asked: the bucket's own rules decide what it may read"},
    {"no-store", "the client says so, and cache.client_directives obeys it"},
    {"sse-c", "encrypted with a key of the client's own: never cached"},
    {"expected-owner", "leave out x-amz-expected-bucket-owner"},
    {"payer", "leave out x-amz-request-payer"},
    {"header", "an x-amz- header that may change the answer: forebay log tells whose"},
    {"unknown-parameter", "leave out the query parameter"},
    {"literal-plus", "send a + in a path as %2B"},
    {"no-etag", "the origin gives no strong ETag"},
    {"answer", "forebay doctor looks at the origin's answers"},
    {"changing", "it changed again and again while it was read"},
    {"checksum", "a HEAD asked for checksums that are not kept"},
    {"hops", "it came by another Forebay, while the origin does not answer"},
};

const char *command_top_remedy(const char *reason)
{
    for (size_t i = 0; i < ARRAY_LEN(remedies); i++) {
        if (strcmp(remedies[i].reason, reason) == 0) {
            return remedies[i].remedy;
        }
    }
    enum refusal refusal = refusal_of_word(reason);
    return refusal != REFUSAL_none ? refusal_text(refusal)->remedy
                                   : "forebay explain tells it of an object";
}

static void render_row(const struct rank *rank, const json_t *row, unsigned columns,
                       struct buf *out)
{
    const char *name = command_client_text(row, "name");
    double requests = command_client_double(row, "requests");
    uint64_t over = command_client_u64(row, "over");
    struct buf line;
    buf_init(&line, LINE_MAX_BYTES);
    buf_printf(&line, "%10.0f %9.1f %6.1f %11s  ", requests,
               command_client_double(row, "requests_per_s"),
               requests > 0 ? 100 * command_client_double(row, "hits") / requests : 0.0,
               command_bytes(command_client_double(row, "bytes")));
    if (over > 0) {
        buf_printf(&line, "(%llu at most too high)  ", (unsigned long long)over);
    }
    unsigned used = (unsigned)line.len;
    if (strcmp(rank->by, "reasons") == 0) {
        buf_printf(&line, "%s: %s", command_client_visible(name), command_top_remedy(name));
        command_screen_wrap(out, buf_span(&line), columns, INDENT);
    } else {
        command_screen_append_end(&line, span_from_cstr(command_client_visible(name)),
                                  columns == 0     ? UINT_MAX
                                  : columns > used ? columns - used
                                                   : 1);
        buf_append_span(out, buf_span(&line));
    }
    buf_append_char(out, '\n');
    buf_done(&line);
}

static void show_frame(const struct rank *rank, const json_t *answer)
{
    const json_t *rows = json_object_get(answer, "rows");
    unsigned columns = command_screen_columns(STDOUT_FILENO);
    struct buf out;
    buf_init(&out, FRAME_MAX_BYTES);
    buf_printf(&out, "%s by requests, of %llu in %.0f s%s\n", rank->by,
               (unsigned long long)command_client_u64(answer, "requests"),
               command_client_double(answer, "seconds"),
               command_client_u64(answer, "dropped") > 0 ? " (some came too fast to be counted)"
                                                         : "");
    buf_printf(&out, "%10s %9s %6s %11s  %s\n", "requests", "now/s", "hit%", "bytes", "name");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        render_row(rank, json_array_get(rows, i), columns, &out);
    }
    command_screen_show(buf_span(&out), rank->is_screen, ROWS);
    buf_done(&out);
}

static bool on_line(void *ctx, struct span line)
{
    struct rank *rank = ctx;
    json_t *answer = json_loadb(line.ptr, line.len, 0, NULL);
    if (answer == NULL) { // the terminal has got another size
        if (rank->last != NULL && rank->is_screen) {
            show_frame(rank, rank->last);
        }
        return true;
    }
    if (!rank->client.is_json) {
        show_frame(rank, answer);
    }
    json_decref(rank->last);
    rank->last = answer;
    return rank->is_screen && ferror(stdout) == 0;
}

int command_top_rank(const char *by, uint64_t interval_s, const char *where, bool is_once)
{
    struct rank rank = {.by = by};
    struct buf path;
    char seconds[24];
    int code = command_client_open(&rank.client, "top");
    if (code != EXIT_CODE_OK) {
        return code;
    }
    rank.is_screen = command_screen_is_wanted(is_once);
    if (rank.is_screen) {
        command_client_quit_by_key();
    }
    (void)snprintf(seconds, sizeof(seconds), "%llu", (unsigned long long)interval_s);
    buf_init(&path, PATH_MAX_BYTES);
    buf_append_cstr(&path, "/api/v1/top");
    command_client_parameter(&path, "by", span_from_cstr(by));
    command_client_parameter(&path, "seconds", span_from_cstr(seconds));
    if (where != NULL) {
        command_client_parameter(&path, "where", span_from_cstr(where));
    }
    code = command_client_follow(&rank.client, buf_cstr(&path), on_line, &rank);
    buf_done(&path);
    return command_client_end(&rank.client, code, rank.last);
}
