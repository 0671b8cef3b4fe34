// SPDX-License-Identifier: Apache-2.0
// `forebay doctor`: reports the conditions of the running server with this configuration
// (control/conditions.def). Reports nothing if no server answers.
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "cli/client/command_client.h"
#include "cli/doctor/command_doctor.h"

#define ANSWER_MAX_BYTES (1u << 20)

// Returns the answer of the server; NULL if no server answers.
static json_t *ask_server(const struct doctor *d)
{
    char address[COMMANDS_ADDRESS_MAX] = "";
    struct admin_client_request request = {.method = "GET",
                                           .path = "/api/v1/conditions",
                                           .token = getenv("FOREBAY_ADMIN_TOKEN"),
                                           .timeout_ms = (unsigned)d->timeout_ms};
    struct buf body;
    unsigned status = 0;
    buf_init(&body, ANSWER_MAX_BYTES);
    enum err err = commands_ask(d->config, &request, address, &status, &body);
    json_t *json = err == ERR_OK && status == 200 ? json_loadb(body.ptr, body.len, 0, NULL) : NULL;
    buf_done(&body);
    return json;
}

void command_doctor_server(struct doctor *d)
{
    json_t *answer = ask_server(d);
    const json_t *row, *conditions = json_object_get(answer, "conditions");
    unsigned before = d->count[DOCTOR_YELLOW] + d->count[DOCTOR_RED];
    size_t i;
    json_array_foreach(conditions, i, row)
    {
        const char *severity = command_client_text(row, "severity");
        bool is_red = strcmp(severity, "critical") == 0, is_info = strcmp(severity, "info") == 0;
        command_doctor_find(d,
                            is_red    ? DOCTOR_RED
                            : is_info ? DOCTOR_GREEN
                                      : DOCTOR_YELLOW,
                            "server", command_client_text(row, "remedy"), "%s: %s",
                            command_client_text(row, "name"), command_client_text(row, "text"));
    }
    if (conditions != NULL && before == d->count[DOCTOR_YELLOW] + d->count[DOCTOR_RED]) {
        command_doctor_find(d, DOCTOR_GREEN, "server", NULL, "the running server is well");
    }
    json_decref(answer);
}
