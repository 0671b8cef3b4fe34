// SPDX-License-Identifier: Apache-2.0
// `forebay reload`, `forebay drain` and `forebay loglevel`: do the same as signals, but print the
// server's answer.
#include "cli/client/command_client.h"

#include <stdio.h>

// Prints the members of a list in one line after `what`. Prints nothing for an empty list.
static void print_keys(const char *what, const json_t *keys)
{
    for (size_t i = 0; i < json_array_size(keys); i++) {
        printf("%s%s", i == 0 ? what : ", ", json_string_value(json_array_get(keys, i)));
    }
    if (json_array_size(keys) > 0) {
        printf("\n");
    }
}

static void print_reload(const struct command_client *client, const json_t *answer)
{
    const json_t *errors = json_object_get(answer, "errors");
    for (size_t i = 0; i < json_array_size(errors); i++) {
        command_screen_tell(2, "%s\n", json_string_value(json_array_get(errors, i)));
    }
    if (client->is_json) {
        return;
    }
    print_keys("changed: ", json_object_get(answer, "applied"));
    print_keys("needs a restart: ", json_object_get(answer, "needs_restart"));
    printf("%s\n",
           command_client_bool(answer, "ok") ? "reloaded" : "refused: everything stays as it was");
}

int command_reload(int argc, char **argv)
{
    struct command_client client;
    json_t *answer = NULL;
    (void)argc, (void)argv; // the command has no options of its own
    int code = command_client_open(&client, "reload");
    if (code != EXIT_CODE_OK) {
        return code;
    }
    code = command_client_post(&client, "/api/v1/reload", json_object(), &answer);
    if (code == EXIT_CODE_OK) {
        code = command_client_bool(answer, "ok") ? EXIT_CODE_OK : EXIT_CODE_CONFIGURATION;
        print_reload(&client, answer);
    }
    if (answer != NULL) {
        (void)json_object_del(answer, "ok"); // the result has a member `ok` of its own
    }
    return command_client_end(&client, code, answer);
}

// Sends a POST to the server, and prints `done` when the server has accepted it.
static int order(const char *name, const char *path, json_t *body, const char *done)
{
    struct command_client client;
    json_t *answer = NULL;
    int code = command_client_open(&client, name);
    if (code != EXIT_CODE_OK) {
        json_decref(body);
        return code;
    }
    code = command_client_post(&client, path, body, &answer);
    if (code == EXIT_CODE_OK && !client.is_json) {
        printf("%s\n", done);
    }
    return command_client_end(&client, code, answer);
}

static const char draining[] =
    "draining: it ends when nothing is in flight, after shutdown.grace at the latest";

struct drain {
    struct command_client client;
    json_t *answer; // NULL: the server has not accepted the drain
    int code;
};

// Sends the order when the server has begun to send its figures: the connection is open, and ends
// with the server.
static bool on_figures(void *ctx, struct span line)
{
    struct drain *d = ctx;
    (void)line;
    if (d->answer == NULL) {
        d->code = command_client_post(&d->client, "/api/v1/drain", json_object(), &d->answer);
        if (d->code == EXIT_CODE_OK && !d->client.is_json) {
            printf("%s\n", draining);
            (void)fflush(stdout); // command_client_end() reports a failure
        }
    }
    return d->code == EXIT_CODE_OK;
}

static int drain_and_wait(void)
{
    struct drain d = {.code = EXIT_CODE_OK};
    int code = command_client_open(&d.client, "drain");
    if (code != EXIT_CODE_OK) {
        return code;
    }
    code = command_client_follow_to_end(&d.client, "/api/v1/events", on_figures, &d);
    code = d.code != EXIT_CODE_OK ? d.code : code;
    if (code == EXIT_CODE_OK && !d.client.is_json) {
        printf("ended\n");
    }
    return command_client_end(&d.client, code, d.answer);
}

int command_drain(int argc, char **argv)
{
    if (commands_argument_take(&argc, argv, "--wait")) {
        return drain_and_wait();
    }
    return order("drain", "/api/v1/drain", json_object(), draining);
}

int command_loglevel(int argc, char **argv)
{
    char done[256];
    check(argc == 1); // commands.def requires one operand
    (void)snprintf(
        done, sizeof(done),
        "the server logs %s and above, until it is restarted, or a reload brings another "
        "log.level",
        argv[0]);
    json_t *body = json_pack("{s:o}", "level", control_text(span_from_cstr(argv[0])));
    check(body != NULL);
    return order("loglevel", "/api/v1/loglevel", body, done);
}
