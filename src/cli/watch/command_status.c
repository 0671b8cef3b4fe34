// SPDX-License-Identifier: Apache-2.0
// `forebay status`: shows the state of a running server on one screen. Ends with 1 if the server is
// not ready or a critical condition holds (control/conditions.def).
#include "cli/client/command_client.h"

#include <string.h>

#include "commands/commands.h"
#include "stats/stats.h"

#define INDENT 11u // columns before the values
#define LINE_MAX_BYTES 4096u
#define ORIGINS_SHOWN 5u
// Returns the value of a counter of counters.def in a summary.
#define VALUE(counters, name) command_client_u64(counters, stats_name(COUNTER_##name))

// Returns {word: count} of the rows of refusals.def that have occurred since the start.
static json_t *unstored_of(const json_t *summary)
{
    json_t *json = json_object();
    size_t i;
    const json_t *row;
    json_array_foreach(json_object_get(summary, "refusals"), i, row)
    {
        uint64_t count = command_client_u64(row, "count");
        if (count > 0) {
            check(json_object_set_new(json, command_client_text(row, "word"),
                                      json_integer((json_int_t)count)) == 0);
        }
    }
    return json;
}

static double share(uint64_t part, uint64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : 0;
}

static json_t *figures_of(const json_t *summary)
{
    const json_t *c = json_object_get(summary, "counters");
    const json_t *results = json_object_get(summary, "results");
    uint64_t memory = VALUE(c, response_bytes_memory), disk = VALUE(c, response_bytes_disk);
    uint64_t origin = VALUE(c, response_bytes_origin), served = memory + disk + origin;
    uint64_t used = VALUE(c, cache_bytes), held = min_u64(VALUE(c, cache_held_bytes), used);
    uint64_t hits = command_client_u64(results, "hit") +
                    command_client_u64(results, "revalidated") +
                    command_client_u64(results, "stale");
    json_t *json = json_pack(
        "{s:s, s:f, s:b, s:s, s:O?, s:o, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:I, s:I, "
        "s:I, s:I, s:I, s:I, s:O?, s:O?}",
        "version", command_client_text(summary, "version"), "uptime_s",
        command_client_double(summary, "uptime_s"), "ready", command_client_bool(summary, "ready"),
        "reason", command_client_text(summary, "reason"), "conditions",
        json_object_get(summary, "conditions"), "unstored", unstored_of(summary), "byte_hit_ratio",
        share(memory + disk, served), "request_hit_ratio", share(hits, command_client_sum(results)),
        "cache_bytes", (json_int_t)used, "cache_held_bytes", (json_int_t)held,
        "cache_reserved_bytes", (json_int_t)(used - held), "cache_capacity_bytes",
        (json_int_t)VALUE(c, cache_capacity_bytes), "cache_objects",
        (json_int_t)VALUE(c, cache_objects), "cache_blocks", (json_int_t)VALUE(c, cache_blocks),
        "requests", (json_int_t)command_client_sum(json_object_get(summary, "requests")),
        "requests_inflight", (json_int_t)VALUE(c, http_inflight), "fills_inflight",
        (json_int_t)VALUE(c, fills_inflight), "served_memory_bytes", (json_int_t)memory,
        "served_disk_bytes", (json_int_t)disk, "served_origin_bytes", (json_int_t)origin,
        "origin_requests", (json_int_t)command_client_sum(json_object_get(summary, "origin")),
        "origin_received_bytes", (json_int_t)VALUE(c, origin_received_bytes), "savings",
        json_object_get(summary, "savings"), "origins", json_object_get(summary, "origins"));
    check(json != NULL);
    return json;
}

// Returns true if a condition holds for which somebody must act at once.
static bool has_critical(const json_t *f)
{
    size_t i;
    const json_t *row;
    json_array_foreach(json_object_get(f, "conditions"), i, row)
    {
        if (strcmp(command_client_text(row, "severity"), "critical") == 0) {
            return true;
        }
    }
    return false;
}

static void print_conditions(const json_t *f, double now_s)
{
    size_t i;
    const json_t *row;
    json_array_foreach(json_object_get(f, "conditions"), i, row)
    {
        const char *severity = command_client_text(row, "severity");
        double since_s = command_client_double(row, "since");
        bool is_red = commands_wants_colour() && strcmp(severity, "critical") == 0;
        command_screen_print(INDENT, "  %s%-8s%s %s for %s: %s\n", is_red ? "\033[1;31m" : "",
                             severity, is_red ? "\033[0m" : "", command_client_text(row, "name"),
                             command_time(now_s > since_s ? now_s - since_s : 0),
                             command_client_visible(command_client_text(row, "text")));
        command_screen_print(INDENT, "           -> %s\n", command_client_text(row, "remedy"));
    }
}

// Prints how many runs were not stored since the start, by reason.
static void print_refusals(const json_t *f)
{
    const char *word;
    json_t *count, *counts = json_object_get(f, "unstored");
    struct buf line;
    buf_init(&line, LINE_MAX_BYTES);
    json_object_foreach(counts, word, count)
    {
        buf_printf(&line, "%s%s %lld", line.len == 0 ? "  unstored " : ", ", word,
                   (long long)json_integer_value(count));
    }
    if (line.len > 0) {
        command_screen_print(INDENT, "%s since the start\n", buf_cstr(&line));
    }
    buf_done(&line);
}

static void print_savings(const json_t *savings)
{
    struct buf saved, worth;
    if (savings == NULL) {
        return; // an older server
    }
    buf_init(&saved, LINE_MAX_BYTES);
    buf_init(&worth, LINE_MAX_BYTES);
    command_saved_append(&saved, savings);
    command_savings_append(&worth, savings);
    command_screen_print(INDENT, "  saved    %s\n%s%s%s", buf_cstr(&saved),
                         worth.len > 0 ? "  worth    " : "", buf_cstr(&worth),
                         worth.len > 0 ? "\n" : "");
    buf_done(&worth);
    buf_done(&saved);
}

// Prints how many of an origin's last requests failed, if it is a percent of them.
static void print_failures(const json_t *origin)
{
    uint64_t ended = command_client_u64(origin, "ended");
    uint64_t failed = command_client_u64(origin, "failed");
    if (failed > 0 && failed * 100 >= ended) {
        command_screen_print(INDENT,
                             "  failed   %llu of the last %llu requests, with a server error "
                             "(5xx) after retries: %s\n",
                             (unsigned long long)failed, (unsigned long long)ended,
                             command_client_shown(origin, "name"));
    }
}

// Prints how soon each origin answers that has answered within the last minute; of many, the
// slowest. Prints how many calls may run at once where Forebay has lowered that, and failures.
static void print_origins(const json_t *origins)
{
    size_t i;
    const json_t *origin;
    unsigned count = 0;
    json_array_foreach(origins, i, origin)
    {
        struct buf line;
        buf_init(&line, LINE_MAX_BYTES);
        if (command_pace_append(&line, origin) && ++count <= ORIGINS_SHOWN) {
            command_screen_print(INDENT, "  answers  first byte in the last minute after %s: %s\n",
                                 buf_cstr(&line), command_client_shown(origin, "name"));
        }
        buf_done(&line);
    }
    if (count > ORIGINS_SHOWN) {
        command_screen_print(INDENT, "           and sooner from %u more origins\n",
                             count - ORIGINS_SHOWN);
    }
    json_array_foreach(origins, i, origin)
    {
        print_failures(origin);
        if (json_is_true(json_object_get(origin, "calls_lowered"))) {
            command_screen_print(INDENT,
                                 "  calls    lowered to %llu at once of %llu, after SlowDown, "
                                 "timeouts or failed connections: %s\n",
                                 (unsigned long long)command_client_u64(origin, "calls_limit"),
                                 (unsigned long long)command_client_u64(origin, "calls_most"),
                                 command_client_shown(origin, "name"));
        }
    }
}

static void print_screen(const struct command_client *client, const json_t *f, double now_s)
{
    command_screen_print(INDENT, "forebay %s at %s\n", command_client_text(f, "version"),
                         client->address);
    bool is_ready = command_client_bool(f, "ready"); // then the conditions tell the rest
    command_screen_print(INDENT, "  state    %s, up %s\n",
                         is_ready ? "ready" : command_client_text(f, "reason"),
                         command_time(command_client_double(f, "uptime_s")));
    command_screen_print(INDENT, "  hits     %.1f %% of bytes, %.1f %% of reads\n",
                         100 * command_client_double(f, "byte_hit_ratio"),
                         100 * command_client_double(f, "request_hit_ratio"));
    command_screen_print(INDENT,
                         "  cache    %s held of %s (%s reserved), %llu objects, %llu blocks\n",
                         command_bytes(command_client_double(f, "cache_held_bytes")),
                         command_bytes(command_client_double(f, "cache_capacity_bytes")),
                         command_bytes(command_client_double(f, "cache_reserved_bytes")),
                         (unsigned long long)command_client_u64(f, "cache_objects"),
                         (unsigned long long)command_client_u64(f, "cache_blocks"));
    command_screen_print(
        INDENT, "  served   %s from memory, %s from disk, %s from the origin; %llu requests\n",
        command_bytes(command_client_double(f, "served_memory_bytes")),
        command_bytes(command_client_double(f, "served_disk_bytes")),
        command_bytes(command_client_double(f, "served_origin_bytes")),
        (unsigned long long)command_client_u64(f, "requests"));
    double received = command_client_double(f, "origin_received_bytes");
    bool has_shared = command_client_double(f, "served_origin_bytes") > received;
    command_screen_print(INDENT, "  origin   %llu requests, %s%s\n",
                         (unsigned long long)command_client_u64(f, "origin_requests"),
                         command_bytes(received),
                         has_shared ? " (fetched once for several readers)" : "");
    print_origins(json_object_get(f, "origins"));
    print_savings(json_object_get(f, "savings"));
    command_screen_print(INDENT, "  now      %llu requests, %llu fills\n",
                         (unsigned long long)command_client_u64(f, "requests_inflight"),
                         (unsigned long long)command_client_u64(f, "fills_inflight"));
    print_refusals(f);
    print_conditions(f, now_s);
}

int command_status(int argc, char **argv)
{
    struct command_client client;
    json_t *summary = NULL;
    (void)argc, (void)argv; // the command has no options of its own
    int code = command_client_open(&client, "status");
    if (code != EXIT_CODE_OK) {
        return code;
    }
    code = command_client_get(&client, "/api/v1/summary", &summary);
    json_t *figures = NULL;
    if (code == EXIT_CODE_OK) {
        figures = figures_of(summary);
        bool is_well = command_client_bool(figures, "ready") && !has_critical(figures);
        code = is_well ? EXIT_CODE_OK : EXIT_CODE_FAILED;
        if (!client.is_json) {
            print_screen(&client, figures, command_client_double(summary, "time"));
        }
    }
    json_decref(summary);
    return command_client_end(&client, code, figures);
}
