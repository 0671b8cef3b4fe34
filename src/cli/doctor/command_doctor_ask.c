// SPDX-License-Identifier: Apache-2.0
// `forebay doctor` without settings: asks the running server for the findings of its own doctor,
// which uses the settings and the environment of the server. Only the checks of clients are made
// here, because clients are started from the environment of the command.
#include <stdlib.h>
#include <string.h>

#include "cli/client/command_client.h"
#include "cli/doctor/command_doctor.h"
#include "control/control.h"

#define REPORT_MAX_BYTES (1u << 20)

struct question {
    const char *method, *path;
    const char *body; // JSON; NULL: none
    unsigned timeout_ms;
};

// Says why no answer of the server can be read.
static void say_silence(enum err err, unsigned timeout_ms, struct buf *ret_why)
{
    switch (err) {
    case ERR_ORIGIN_TIMEOUT:
        buf_printf(ret_why, "it sent no report in %u s", timeout_ms / 1000);
        break;
    case ERR_ORIGIN_RESET:
        buf_append_cstr(ret_why, "it closed the connection without a report");
        break;
    case ERR_ORIGIN_CONNECT:
        buf_append_cstr(ret_why, "it took no further connection");
        break;
    default:
        buf_append_cstr(ret_why, "its answer is no report");
    }
}

// Sends a request to the server at `address`, or, if that is "", at the admin address of the
// configuration. Returns the answer, which the caller owns. If there is none, returns NULL with the
// reason in *ret_why; *ret_status is then 0, or that of a refusal.
static json_t *ask(const struct config *config, const struct question *q,
                   char address[COMMANDS_ADDRESS_MAX], unsigned *ret_status, struct buf *ret_why)
{
    struct admin_client_request request = {.method = q->method,
                                           .path = q->path,
                                           .body = span_from_cstr(q->body),
                                           .token = getenv("FOREBAY_ADMIN_TOKEN"),
                                           .timeout_ms = q->timeout_ms};
    struct buf body;
    buf_init(&body, REPORT_MAX_BYTES);
    *ret_status = 0;
    enum err err = commands_ask(config, &request, address, ret_status, &body);
    json_t *json = err == ERR_OK ? json_loadb(body.ptr, body.len, 0, NULL) : NULL;
    buf_done(&body);
    if (json == NULL) {
        say_silence(err, q->timeout_ms, ret_why);
    }
    if (json != NULL && *ret_status != 200) {
        buf_append_cstr(ret_why, command_client_shown(json, "reason"));
        json_decref(json);
        json = NULL;
    }
    return json;
}

static json_t *report_of(const struct doctor *d, const struct config *config,
                         char address[COMMANDS_ADDRESS_MAX], unsigned *ret_status,
                         struct buf *ret_why)
{
    struct question q = {
        .method = "POST", .path = "/api/v1/doctor", .timeout_ms = ADMIN_CALL_CLIENT_MS};
    json_t *buckets = json_array(), *body = json_pack("{s:o}", "buckets", buckets);
    check(body != NULL);
    for (unsigned i = 0; i < d->bucket_count; i++) {
        check(json_array_append_new(buckets, control_text(span_from_cstr(d->buckets[i]))) == 0);
    }
    char *text = json_dumps(body, JSON_COMPACT);
    check(text != NULL);
    q.body = d->bucket_count > 0 ? text : NULL;
    json_t *report = ask(config, &q, address, ret_status, ret_why);
    free(text);
    json_decref(body);
    return report;
}

// Reports that the server does not look for this command. The settings of the command are no
// replacement, because the server may run with others.
static void find_refusal(struct doctor *d, const struct config *config, const char *address,
                         unsigned status, struct buf *why)
{
    const char *file = config != NULL ? config->admin_token_file : NULL;
    struct buf remedy;
    buf_init(&remedy, REPORT_MAX_BYTES);
    if (status == 401) {
        buf_printf(&remedy,
                   "set FOREBAY_ADMIN_TOKEN to the content of admin.token_file%s%s, or name the "
                   "server's admin.socket with --admin unix:/PATH, as the server's user or root",
                   file != NULL ? ", " : "", file != NULL ? file : "");
    } else {
        buf_append_cstr(&remedy, "see the server log, and try again");
    }
    buf_append_cstr(&remedy, "; --local checks the settings of this command instead");
    command_doctor_find(d, DOCTOR_RED, "server", buf_cstr(&remedy),
                        "the server at %s was not checked: %s", address, buf_cstr(why));
    buf_done(&remedy);
}

// Reports what the server at `address`, or of the configuration, finds.
static bool ask_server(struct doctor *d, const struct config *config,
                       char address[COMMANDS_ADDRESS_MAX], struct buf *ret_why)
{
    struct buf refusal;
    unsigned status;
    buf_init(&refusal, REPORT_MAX_BYTES);
    // A short question first, because a report may take a minute.
    const struct question q = {
        .method = "GET", .path = "/version", .timeout_ms = commands_common()->timeout_ms};
    json_t *version = ask(config, &q, address, &status, &refusal), *report = NULL;
    if (version == NULL) {
        buf_printf(ret_why, "no server answers%s", commands_tried());
    } else {
        command_screen_inform(
            2,
            "forebay doctor: the server at %s looks for what is wrong, with its own "
            "settings (--local: with those of this command)\n",
            command_client_visible(address));
        report = report_of(d, config, address, &status, &refusal);
        if (report != NULL) {
            command_doctor_repeat(d, json_object_get(report, "findings"));
            d->exit_code = (int)command_client_u64(report, "exit");
        } else {
            find_refusal(d, config, command_client_visible(address), status, &refusal);
        }
        command_doctor_clients(d, command_doctor_peer_address, version);
    }
    bool is_answered = version != NULL;
    buf_done(&refusal);
    json_decref(version);
    json_decref(report);
    return is_answered;
}

bool command_doctor_ask(struct doctor *d, struct buf *ret_why)
{
    struct config *config = NULL;
    bool is_guess;
    char address[COMMANDS_ADDRESS_MAX];
    bool is_known =
        commands_address(address) &&
        (address[0] != '\0' || (config = commands_load_admin(0, NULL, &is_guess)) != NULL);
    bool is_answered = is_known && ask_server(d, config, address, ret_why);
    config_free(config);
    return is_answered;
}
