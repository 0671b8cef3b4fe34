// SPDX-License-Identifier: Apache-2.0
#include "cli/command_run_summary.h"

#include <stdio.h>
#include <string.h>

#include "cli/client/command_client.h"
#include "cli/client/command_log_line.h"
#include "commands/commands.h"
#include "stats/stats.h"

#define COLUMN 19 // of the values
#define TEXT_MAX_BYTES 1024u
#define KINDS_MAX 3u  // names of warnings that the summary shows
#define CHECKS_MIN 10 // fewer are not worth a line
#define CHECKS_PART 4 // this part of the requests needed a check, or more
#define FULL_PART 10  // this part of the fetches was refused by a full cache, or more
// Returns the value of a counter of counters.def in a summary.
#define VALUE(summary, name)                                                                       \
    command_client_double(json_object_get(summary, "counters"), stats_name(COUNTER_##name))

static double share(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

static void print_served(const json_t *summary, const char *dir, uint64_t requests)
{
    const json_t *savings = json_object_get(summary, "savings");
    struct buf saved, worth;
    double hits = VALUE(summary, response_bytes_memory) + VALUE(summary, response_bytes_disk);
    double all = hits + VALUE(summary, response_bytes_origin);
    buf_init(&saved, TEXT_MAX_BYTES);
    command_saved_append(&saved, savings);
    command_screen_inform(COLUMN,
                          "forebay: served    %s in %llu requests\n"
                          "         from here %.1f %% of the bytes (%s)\n"
                          "         saved     %s; the origin gave %s\n",
                          command_bytes(all), (unsigned long long)requests, share(hits, all), dir,
                          buf_cstr(&saved), command_bytes(VALUE(summary, origin_received_bytes)));
    buf_done(&saved);
    buf_init(&worth, TEXT_MAX_BYTES);
    command_savings_append(&worth, savings);
    if (worth.len > 0) {
        command_screen_inform(COLUMN, "         worth     %s\n", buf_cstr(&worth));
    }
    buf_done(&worth);
}

// Prints how many requests asked the origin whether an object has changed, if they were a large
// part, and which settings avoid them.
static void print_checks(const json_t *summary, uint64_t requests)
{
    double checks = VALUE(summary, revalidations);
    if (checks >= CHECKS_MIN && checks * CHECKS_PART >= (double)requests) {
        command_screen_inform(
            COLUMN,
            "         checks    %.0f with the origin, whether objects have changed. If they do not "
            "change, --cache.ttl 30d, or a rule with freshness: immutable (-c FILE), saves them\n",
            checks);
    }
}

// Prints how many fetches a full cache did not store, if they were a large part, and how to find a
// better size.
static void print_unstored(const json_t *summary)
{
    double refused = VALUE(summary, admission_rejected_not_admitted);
    double all = VALUE(summary, fills_stored) + VALUE(summary, fills_unstored);
    if (refused > 0 && refused * FULL_PART >= all) {
        command_screen_inform(COLUMN,
                              "         unstored  %.0f %% of the fetches, because the cache is "
                              "full: cache.size is %s. "
                              "forebay plan --dataset SIZE tells what a larger one is good for\n",
                              share(refused, all),
                              command_bytes(VALUE(summary, cache_capacity_bytes)));
    }
}

static bool is_warning(struct span line)
{
    char text[64];
    (void)snprintf(text, sizeof(text), "%.*s", (int)min_u64(line.len, sizeof(text) - 1), line.ptr);
    return strstr(text, "level=warn") != NULL || strstr(text, "level=error") != NULL;
}

static bool have_same_name(struct span a, struct span b)
{
    bool is_condition;
    return span_equal(command_log_line_name(a, &is_condition),
                      command_log_line_name(b, &is_condition));
}

// Puts a warning first, and drops an earlier one of the same name, or the last one.
static void put_first(struct span kinds[KINDS_MAX], struct span line)
{
    unsigned at = 0;
    while (at + 1 < KINDS_MAX && kinds[at].len > 0 && !have_same_name(kinds[at], line)) {
        at++;
    }
    for (; at > 0; at--) {
        kinds[at] = kinds[at - 1];
    }
    kinds[0] = line;
}

// Prints the number of warnings in the log, and the last ones in words: one of each name. Prints
// nothing if there are none.
static void print_warnings(struct span log)
{
    struct span line, kinds[KINDS_MAX] = {{NULL, 0}};
    unsigned count = 0;
    while (span_split(&log, '\n', &line)) {
        if (is_warning(line)) {
            count++;
            put_first(kinds, line);
        }
    }
    if (count == 0) {
        return;
    }
    command_screen_inform(COLUMN, "         warnings  %u, the last:\n", count);
    for (unsigned i = 0; i < KINDS_MAX && kinds[i].len > 0; i++) {
        struct buf text;
        buf_init(&text, TEXT_MAX_BYTES);
        command_log_line_append(&text, kinds[i]);
        command_screen_inform(COLUMN, "                   %s\n",
                              command_client_visible(buf_cstr(&text)));
        buf_done(&text);
    }
}

// Returns true if the name is new, and remembers it.
static bool remember(struct command_run_conditions *told, struct span name)
{
    for (unsigned i = 0; i < told->count; i++) {
        if (span_equal_cstr(name, told->names[i])) {
            return false;
        }
    }
    if (told->count == COMMAND_RUN_CONDITIONS_MAX) {
        return false;
    }
    (void)snprintf(told->names[told->count], sizeof(told->names[0]), "%.*s", (int)name.len,
                   name.ptr);
    told->count++;
    return true;
}

void command_run_conditions_tell(struct command_run_conditions *told, struct span log,
                                 const char *keys)
{
    struct span line;
    while (span_split(&log, '\n', &line)) {
        bool is_condition;
        struct span name = command_log_line_name(line, &is_condition);
        if (!is_condition || !is_warning(line) || !remember(told, name)) {
            continue;
        }
        bool is_of_keys = keys != NULL && span_equal_cstr(name, "credentials-refused");
        struct buf text;
        buf_init(&text, TEXT_MAX_BYTES);
        command_log_line_append(&text, line);
        command_screen_inform(2, "forebay run: warning: %s%s%s\n",
                              command_client_visible(buf_cstr(&text)),
                              is_of_keys ? ". The keys are those of " : "", is_of_keys ? keys : "");
        buf_done(&text);
    }
}

// Explains why the cache served nothing. `requests`: all that the server has answered.
static void print_idle(const char *dir, uint64_t requests, bool is_global)
{
    if (requests > 0) {
        command_screen_inform(COLUMN,
                              "forebay: served    nothing from the cache (%s): %llu requests came "
                              "here, and none of them read an object\n",
                              dir, (unsigned long long)requests);
        return;
    }
    command_screen_inform(COLUMN,
                          "forebay: served    nothing, because no request came here (%s). If "
                          "the command reads from S3, its client has another endpoint, or "
                          "needs %s\n",
                          dir,
                          is_global ? "a variable of its own: see deploy/guide/clients.md"
                                    : "forebay run --global");
}

void command_run_summary_print(const json_t *summary, struct span log, const char *dir,
                               bool is_global)
{
    uint64_t requests = command_client_sum(json_object_get(summary, "results"));
    if (requests > 0) {
        print_served(summary, dir, requests);
        print_checks(summary, requests);
        print_unstored(summary);
    } else {
        print_idle(dir, command_client_sum(json_object_get(summary, "requests")), is_global);
    }
    print_warnings(log);
}
