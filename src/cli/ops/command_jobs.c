// SPDX-License-Identifier: Apache-2.0
// `forebay jobs [cancel ID]`: lists or cancels the jobs of a running server.
#include "cli/ops/command_warm.h"

#include <stdio.h>
#include <string.h>

// Prints each reason for which objects failed or were not kept, with their number and the first
// one.
static void print_reasons(const json_t *job)
{
    const json_t *reasons = json_object_get(job, "reasons");
    for (size_t i = 0; i < json_array_size(reasons); i++) {
        const json_t *reason = json_array_get(reasons, i);
        uint64_t count = command_client_u64(reason, "count");
        const char *first = command_client_visible(command_client_text(reason, "first"));
        if (count == 1) {
            command_screen_print(4, "    %s\n", first);
        } else {
            command_screen_print(4, "    %llu failures, first %s\n", (unsigned long long)count,
                                 first);
        }
    }
}

static int list_jobs(struct command_client *client)
{
    json_t *answer = NULL;
    int code = command_client_get(client, "/api/v1/jobs", &answer);
    const json_t *jobs = json_object_get(answer, "jobs");
    for (size_t i = 0; i < json_array_size(jobs); i++) {
        json_t *job = json_array_get(jobs, i);
        char line[512];
        command_warm_line(job, line, sizeof(line));
        if (!client->is_json) {
            command_screen_print(4, "%llu  %-9s %s %s: %s\n",
                                 (unsigned long long)command_client_u64(job, "id"),
                                 command_warm_state(job), command_client_text(job, "kind"),
                                 command_client_visible(command_client_text(job, "what")), line);
            print_reasons(job);
        }
        commands_line("item", json_incref(job));
    }
    if (code == EXIT_CODE_OK && !client->is_json && json_array_size(jobs) == 0) {
        printf("there are no jobs\n");
    }
    code = commands_result(code, json_pack("{s:i}", "jobs", (int)json_array_size(jobs)));
    json_decref(answer);
    return code;
}

static int cancel_job(struct command_client *client, const char *id)
{
    char path[64];
    json_t *answer = NULL;
    (void)snprintf(path, sizeof(path), "/api/v1/jobs/%.20s", id);
    int code = command_client_delete(client, path, &answer);
    if (code == EXIT_CODE_OK && !client->is_json) {
        printf("job %s ends; what it has fetched stays\n", id);
    }
    return commands_result(code, answer);
}

int command_jobs(int argc, char **argv)
{
    struct command_client client;
    uint64_t id;
    bool cancels = argc == 2 && strcmp(argv[0], "cancel") == 0;
    if (argc != 0 && (!cancels || !span_to_u64(span_from_cstr(argv[1]), &id))) {
        return commands_usage_error("jobs",
                                    "nothing, or cancel and the number of a job, is wanted");
    }
    int code = command_client_open(&client, "jobs");
    if (code == EXIT_CODE_OK) {
        code = cancels ? cancel_job(&client, argv[1]) : list_jobs(&client);
        command_client_close(&client);
    }
    return code;
}
