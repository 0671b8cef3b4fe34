// SPDX-License-Identifier: Apache-2.0
// `forebay doctor` without settings: asks the server that runs here for the findings of its own
// doctor, which uses the settings and the environment of the server. Reports nothing if no server
// answers, or if it refuses.
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "cli/client/command_client.h"
#include "cli/doctor/command_doctor.h"
#include "commands/commands.h"
#include "control/control.h"

#define REPORT_MAX_BYTES (1u << 20)

// Sends a request to the server at `address`, or, if that is "", at the admin address of the
// configuration. Returns the answer, which the caller owns; NULL if there is none.
static json_t *ask(const struct config *config, const char *method, const char *path,
                   unsigned timeout_ms, char address[COMMANDS_ADDRESS_MAX])
{
    struct admin_client_request request = {.method = method,
                                           .path = path,
                                           .token = getenv("FOREBAY_ADMIN_TOKEN"),
                                           .timeout_ms = timeout_ms};
    struct buf body;
    unsigned status = 0;
    buf_init(&body, REPORT_MAX_BYTES);
    enum err err = commands_ask(config, &request, address, &status, &body);
    json_t *json = err == ERR_OK && status == 200 ? json_loadb(body.ptr, body.len, 0, NULL) : NULL;
    buf_done(&body);
    return json;
}

static enum doctor_state state_of(const char *name)
{
    return strcmp(name, "green") == 0    ? DOCTOR_GREEN
           : strcmp(name, "yellow") == 0 ? DOCTOR_YELLOW
                                         : DOCTOR_RED;
}

bool command_doctor_ask(struct doctor *d)
{
    struct config *config = NULL;
    struct buf errors;
    char address[COMMANDS_ADDRESS_MAX];
    buf_init(&errors, REPORT_MAX_BYTES);
    bool is_good = config_load(0, NULL, &config, &errors) == ERR_OK && commands_address(address);
    buf_done(&errors); // without a server, the doctor reports them
    // A short question first, because a report may take a minute.
    json_t *version =
        is_good ? ask(config, "GET", "/version", (unsigned)d->timeout_ms, address) : NULL;
    json_t *report = NULL;
    if (version != NULL) {
        command_screen_inform(
            2,
            "forebay doctor: the server at %s looks for what is wrong, with its own "
            "settings (--local: with those of this command)\n",
            command_client_visible(address));
        report = ask(config, "POST", "/api/v1/doctor", ADMIN_CALL_WAIT_MAX_MS, address);
    }
    const json_t *findings = json_object_get(report, "findings");
    for (size_t i = 0; i < json_array_size(findings); i++) {
        const json_t *row = json_array_get(findings, i);
        const char *remedy = command_client_text(row, "remedy");
        command_doctor_find(d, state_of(command_client_text(row, "state")),
                            command_client_text(row, "check"), remedy[0] != '\0' ? remedy : NULL,
                            "%s", command_client_text(row, "found"));
    }
    d->exit_code = (int)command_client_u64(report, "exit");
    if (version != NULL && report == NULL) {
        command_screen_inform(
            2, "forebay doctor: it refuses; these are findings with the settings of this "
               "command\n");
    }
    bool has_findings = json_array_size(findings) > 0;
    json_decref(version);
    json_decref(report);
    config_free(config);
    return has_findings;
}
