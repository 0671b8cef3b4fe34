// SPDX-License-Identifier: Apache-2.0
// Follows a warm job, shows its progress, and prints its result. Main thread.
#include "cli/ops/command_warm.h"

#include <stdio.h>
#include <string.h>

#include "cli/ops/command_progress.h"

static double share_of(const json_t *job)
{
    double bytes = command_client_double(job, "bytes");
    double objects = command_client_double(job, "objects");
    return bytes > 0     ? command_client_double(job, "bytes_done") / bytes
           : objects > 0 ? command_client_double(job, "objects_done") / objects
           : command_client_bool(job, "counted") ? 1
                                                 : 0;
}

double command_warm_share(const struct command_warm_count *count)
{
    if (count->objects == 0) {
        return count->empty > 0 ? 0 : 1;
    }
    double of_objects = (double)count->objects_done / (double)count->objects;
    double of_bytes =
        count->bytes > 0 ? (double)count->bytes_done / (double)count->bytes : of_objects;
    return count->unsized > 0 && of_objects < of_bytes ? of_objects : of_bytes;
}

void command_warm_line(const json_t *job, char *ret_text, size_t size)
{
    const char *waits = command_client_text(job, "waits_text"); // "": the job does not wait
    bool has_eta =
        command_client_bool(job, "counted") && json_is_number(json_object_get(job, "eta_s"));
    (void)snprintf(ret_text, size, "%5.1f %%%s%s%s%s, %s/s, %s of %s%s, %llu of %llu objects",
                   100 * share_of(job), waits[0] != '\0' ? ", waits: " : "", waits,
                   has_eta ? ", left " : "",
                   has_eta ? command_time(command_client_double(job, "eta_s")) : "",
                   command_bytes(command_client_double(job, "rate")),
                   command_bytes(command_client_double(job, "bytes_done")),
                   command_bytes(command_client_double(job, "bytes")),
                   command_client_bool(job, "counted") ? "" : " so far",
                   (unsigned long long)command_client_u64(job, "objects_done"),
                   (unsigned long long)command_client_u64(job, "objects"));
}

// Returns how many objects and prefixes the job could not fetch or keep.
static uint64_t lost_of(const json_t *job)
{
    return command_client_u64(job, "objects_failed") + command_client_u64(job, "objects_refused");
}

const char *command_warm_state(const json_t *job)
{
    const char *state = command_client_text(job, "state");
    if (strcmp(state, "done") != 0 || lost_of(job) == 0) {
        return state;
    }
    return command_client_u64(job, "objects_done") == 0 ? "failed" : "in part";
}

static json_t *describe(const json_t *job, char *ret_text, size_t size)
{
    command_warm_line(job, ret_text, size);
    return json_pack("{s:I, s:I, s:I, s:f, s:O}", "done",
                     (json_int_t)command_client_u64(job, "objects_done"), "total",
                     (json_int_t)command_client_u64(job, "objects"), "bytes",
                     (json_int_t)command_client_u64(job, "bytes_done"), "rate",
                     command_client_double(job, "rate"), "eta", json_object_get(job, "eta_s"));
}

// Returns false if the job consists of prefixes that failed. Each counts as one failed object,
// although none is known. The failures have the reason.
static bool has_objects(const json_t *job)
{
    uint64_t failed = command_client_u64(job, "prefixes_failed");
    return failed == 0 || command_client_u64(job, "objects") > failed;
}

// Prints each failure of the job and returns the exit code.
static int judge(const struct command_client *client, const json_t *job, double least)
{
    const json_t *failures = json_object_get(job, "failures");
    uint64_t lost = lost_of(job);
    for (size_t i = 0; i < json_array_size(failures); i++) {
        const char *text = json_string_value(json_array_get(failures, i));
        command_screen_tell(2, "forebay %s: %s\n", client->name,
                            command_client_visible(text != NULL ? text : ""));
        commands_line("warning", json_pack("{s:s}", "reason", text));
    }
    if (lost > json_array_size(failures)) {
        command_screen_tell(2, "forebay %s: and %llu more like these\n", client->name,
                            (unsigned long long)(lost - json_array_size(failures)));
    }
    bool is_cancelled = strcmp(command_client_text(job, "state"), "cancelled") == 0;
    bool has_all = lost == 0 && !is_cancelled;
    // Nobody knows how much lies below a prefix that was not listed, so no share is enough then.
    bool is_enough = least < 1 && !is_cancelled && share_of(job) >= least &&
                     command_client_u64(job, "prefixes_failed") == 0;
    if (has_all || is_enough) {
        return EXIT_CODE_OK;
    }
    bool has_none = command_client_u64(job, "objects_done") == 0 &&
                    command_client_u64(job, "objects_failed") > 0;
    return has_none ? EXIT_CODE_ORIGIN : EXIT_CODE_PARTLY;
}

struct follow {
    double least, seen_s;
    bool is_other; // another job has the followed job's number now
};

// A restarted server numbers its jobs from 1 again, so another job may have this number now.
static bool goes_on(void *ctx, const json_t *job)
{
    struct follow *f = ctx;
    double elapsed_s = command_client_double(job, "elapsed_s");
    f->is_other = elapsed_s < f->seen_s;
    f->seen_s = elapsed_s;
    bool is_enough =
        f->least < 1 && command_client_bool(job, "counted") && share_of(job) >= f->least;
    return !f->is_other && !is_enough && strcmp(command_client_text(job, "state"), "running") == 0;
}

int command_warm_follow(struct command_client *client, uint64_t id, double least)
{
    char path[64];
    json_t *job = NULL;
    struct follow f = {.least = least};
    struct command_progress progress = {path, goes_on, describe, &f};
    (void)snprintf(path, sizeof(path), "/api/v1/jobs/%llu", (unsigned long long)id);
    int code = command_client_get(client, path, &job);
    if (code == EXIT_CODE_OK) {
        code = command_progress_follow(client, &progress, &job);
    }
    if (f.is_other) {
        command_client_error(client, "the server has restarted, and the job is gone: the same "
                                     "command fetches the rest");
        code = EXIT_CODE_FAILED;
    } else if (code == EXIT_CODE_OK) {
        char line[512];
        code = judge(client, job, least);
        command_warm_line(job, line, sizeof(line));
        if (!client->is_json && has_objects(job)) {
            command_screen_print(
                2, "%s; %llu were cached or on their way before, %llu failed, %llu not kept\n",
                line, (unsigned long long)command_client_u64(job, "objects_cached"),
                (unsigned long long)command_client_u64(job, "objects_failed"),
                (unsigned long long)command_client_u64(job, "objects_refused"));
        }
    }
    return commands_result(code, job);
}
