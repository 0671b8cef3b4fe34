// SPDX-License-Identifier: Apache-2.0
// What counting has found, the progress and the end of a warm job. Main thread.
#include "cli/ops/command_warm.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/human.h"

#define LOOK_MS 200
#define LINE_EVERY_MS 5000u
#define BAR_CELLS 20u

static double share_of(const json_t *job)
{
    double bytes = command_client_double(job, "bytes");
    double objects = command_client_double(job, "objects");
    return bytes > 0     ? command_client_double(job, "bytes_done") / bytes
           : objects > 0 ? command_client_double(job, "objects_done") / objects
                         : 1;
}

static double share(uint64_t done, uint64_t all)
{
    return all > 0 ? (double)done / (double)all : 1;
}

double command_warm_share(const struct command_warm_count *count)
{
    double of_objects = share(count->objects_done, count->objects);
    double of_bytes = count->bytes > 0 ? share(count->bytes_done, count->bytes) : of_objects;
    return count->unsized > 0 && of_objects < of_bytes ? of_objects : of_bytes;
}

void command_warm_line(const json_t *job, char *ret_text, size_t size)
{
    char done[HUMAN_BYTES_MAX], all[HUMAN_BYTES_MAX], rate[HUMAN_BYTES_MAX];
    char eta[HUMAN_BYTES_MAX] = "";
    const char *waits = command_client_text(job, "waits_text"); // "": it does not wait
    bool has_eta =
        command_client_bool(job, "counted") && json_is_number(json_object_get(job, "eta_s"));
    (void)snprintf(ret_text, size, "%5.1f %%  %s of %s%s, %llu of %llu objects, %s/s%s%s%s%s",
                   100 * share_of(job), human_bytes(command_client_double(job, "bytes_done"), done),
                   human_bytes(command_client_double(job, "bytes"), all),
                   command_client_bool(job, "counted") ? "" : " so far",
                   (unsigned long long)command_client_u64(job, "objects_done"),
                   (unsigned long long)command_client_u64(job, "objects"),
                   human_bytes(command_client_double(job, "rate"), rate), has_eta ? ", left " : "",
                   has_eta ? command_client_time(command_client_double(job, "eta_s"), eta) : "",
                   waits[0] != '\0' ? ", waits: " : "", waits);
}

static void show_progress(const struct command_client *client, const json_t *job, bool is_terminal)
{
    char line[512], bar[BAR_CELLS + 1];
    unsigned full = (unsigned)(share_of(job) * BAR_CELLS);
    command_warm_line(job, line, sizeof(line));
    memset(bar, '.', BAR_CELLS);
    memset(bar, '#', full < BAR_CELLS ? full : BAR_CELLS);
    bar[BAR_CELLS] = '\0';
    if (is_terminal) {
        (void)fprintf(stderr, "\r\033[K[%s] %s", bar, line);
    } else {
        (void)fprintf(stderr, "%s\n", line);
    }
    command_client_line(client, "progress",
                        json_pack("{s:I, s:I, s:I, s:f, s:O}", "done",
                                  (json_int_t)command_client_u64(job, "objects_done"), "total",
                                  (json_int_t)command_client_u64(job, "objects"), "bytes",
                                  (json_int_t)command_client_u64(job, "bytes_done"), "rate",
                                  command_client_double(job, "rate"), "eta",
                                  json_object_get(job, "eta_s")));
    (void)fflush(stdout); // the result tells what failed
}

// Every failure that is told in words, and the exit code.
static int judge(const struct command_client *client, const json_t *job, double least)
{
    const json_t *failures = json_object_get(job, "failures");
    uint64_t lost =
        command_client_u64(job, "objects_failed") + command_client_u64(job, "objects_refused");
    for (size_t i = 0; i < json_array_size(failures); i++) {
        const char *text = json_string_value(json_array_get(failures, i));
        (void)fprintf(stderr, "forebay %s: %s\n", client->name,
                      command_client_visible(text != NULL ? text : ""));
        command_client_line(client, "warning", json_pack("{s:s}", "reason", text));
    }
    if (lost > json_array_size(failures)) {
        (void)fprintf(stderr, "forebay %s: and %llu more like these\n", client->name,
                      (unsigned long long)(lost - json_array_size(failures)));
    }
    bool is_cancelled = strcmp(command_client_text(job, "state"), "cancelled") == 0;
    bool has_all = lost == 0 && !is_cancelled;
    if (has_all || (least < 1 && !is_cancelled && share_of(job) >= least)) {
        return EXIT_CODE_OK;
    }
    bool has_none = command_client_u64(job, "objects_done") == 0 &&
                    command_client_u64(job, "objects_failed") > 0;
    return has_none ? EXIT_CODE_ORIGIN : EXIT_CODE_PARTLY;
}

static int get_job(struct command_client *client, uint64_t id, json_t **ret_job)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/api/v1/jobs/%llu", (unsigned long long)id);
    return command_client_get(client, path, ret_job);
}

// A server that has been started anew counts its jobs anew: one of that number may be another's.
static bool is_other(const json_t *job, double *seen_s)
{
    double elapsed_s = command_client_double(job, "elapsed_s");
    bool is = elapsed_s < *seen_s;
    *seen_s = elapsed_s;
    return is;
}

int command_warm_follow(struct command_client *client, uint64_t id, double least, bool is_quiet)
{
    json_t *job = NULL;
    double seen_s = 0;
    bool is_terminal = isatty(STDERR_FILENO) == 1;
    uint64_t shown_ms = clock_monotonic_ms();
    int code = get_job(client, id, &job);
    while (code == EXIT_CODE_OK && strcmp(command_client_text(job, "state"), "running") == 0) {
        bool is_enough = command_client_bool(job, "counted") && share_of(job) >= least;
        if (least < 1 && is_enough) {
            break; // the rest comes behind
        }
        if (!is_quiet && (is_terminal || clock_monotonic_ms() - shown_ms >= LINE_EVERY_MS)) {
            show_progress(client, job, is_terminal);
            shown_ms = clock_monotonic_ms();
        }
        (void)poll(NULL, 0, LOOK_MS);
        json_decref(job);
        job = NULL;
        code = get_job(client, id, &job);
        if (code == EXIT_CODE_OK && is_other(job, &seen_s)) {
            command_client_error(client, "the server was started anew meanwhile, and the job is "
                                         "gone: the same again goes on with the rest");
            code = EXIT_CODE_FAILED;
        }
    }
    if (!is_quiet && is_terminal) {
        (void)fprintf(stderr, "\r\033[K");
    }
    if (code == EXIT_CODE_OK) {
        char line[512];
        code = judge(client, job, least);
        command_warm_line(job, line, sizeof(line));
        if (!client->is_json) {
            printf("%s; %llu were cached or on their way before, %llu failed, %llu not kept\n",
                   line, (unsigned long long)command_client_u64(job, "objects_cached"),
                   (unsigned long long)command_client_u64(job, "objects_failed"),
                   (unsigned long long)command_client_u64(job, "objects_refused"));
        }
    }
    return command_client_result(client, code, job);
}
