// SPDX-License-Identifier: Apache-2.0
// `forebay reload`, `forebay drain`, `forebay upgrade` and `forebay loglevel`: what signals say, with an answer.
#include "commands/command_client.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"

#define SERVES_WAIT_MS 150000u // what a grace and a start may take
#define SERVES_ASKED_MS 50u

// The members of a list in one line behind `what`; nothing where there are none.
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
        (void)fprintf(stderr, "%s\n", json_string_value(json_array_get(errors, i)));
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
    (void)argc, (void)argv; // it has no options of its own
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
        (void)json_object_del(answer, "ok"); // the result has its own
    }
    code = command_client_result(&client, code, answer);
    command_client_close(&client);
    return code;
}

int command_drain(int argc, char **argv)
{
    struct command_client client;
    json_t *answer = NULL;
    (void)argc, (void)argv; // it has no options of its own
    int code = command_client_open(&client, "drain");
    if (code != EXIT_CODE_OK) {
        return code;
    }
    code = command_client_post(&client, "/api/v1/drain", json_object(), &answer);
    if (code == EXIT_CODE_OK && !client.is_json) {
        printf("draining: it ends when nothing is in flight, after shutdown.grace at the latest\n");
    }
    code = command_client_result(&client, code, answer);
    command_client_close(&client);
    return code;
}

// Which process answers as a server; 0: none does now.
static uint64_t process_at(const struct command_client *client)
{
    struct buf body;
    unsigned status = 0;
    buf_init(&body, 65536);
    enum err err = admin_client_get(client->address, "/version", 1000, &status, &body);
    json_t *json = err == ERR_OK && status == 200 ? json_loadb(body.ptr, body.len, 0, NULL) : NULL;
    uint64_t pid = command_client_u64(json, "pid");
    json_decref(json);
    buf_done(&body);
    return pid;
}

// Until `next` answers, or the old one does again after it was gone.
static bool wait_for_next(const struct command_client *client, uint64_t next)
{
    const struct timespec pause = {.tv_nsec = SERVES_ASKED_MS * 1000 * 1000};
    uint64_t until_ms = clock_monotonic_ms() + SERVES_WAIT_MS;
    uint64_t pid = 0;
    bool is_undone = false;
    while (pid != next && !is_undone && clock_monotonic_ms() < until_ms) {
        (void)nanosleep(&pause, NULL);
        pid = process_at(client);
        is_undone = pid != 0 && pid != next && kill((pid_t)next, 0) != 0 && errno == ESRCH;
    }
    return pid == next;
}

int command_upgrade(int argc, char **argv)
{
    struct command_client client;
    json_t *answer = NULL;
    bool bad = false;
    uint64_t wait_s = 0;
    const char *wait = commands_argument_take_value(&argc, argv, "--wait", &bad);
    (void)!span_to_u64(span_from_cstr(wait), &wait_s); // commands.def has seen that it is a number
    int code = command_client_open(&client, "upgrade");
    if (code != EXIT_CODE_OK) {
        return code;
    }
    json_t *order = wait != NULL ? json_pack("{s:I}", "wait_s", (json_int_t)wait_s) : json_object();
    code = command_client_post(&client, "/api/v1/upgrade", order, &answer);
    uint64_t next = command_client_u64(answer, "next_pid");
    if (code == EXIT_CODE_OK && !wait_for_next(&client, next)) {
        command_client_error(&client,
                             "process %llu was ready, but does not serve: the log says why",
                             (unsigned long long)next);
        code = EXIT_CODE_FAILED;
    }
    if (code == EXIT_CODE_OK && !client.is_json) {
        printf("process %llu has taken the place of %llu\n", (unsigned long long)next,
               (unsigned long long)command_client_u64(answer, "pid"));
    }
    code = command_client_result(&client, code, answer);
    command_client_close(&client);
    return code;
}

int command_loglevel(int argc, char **argv)
{
    struct command_client client;
    json_t *answer = NULL;
    check(argc == 1); // commands.def
    int code = command_client_open(&client, "loglevel");
    if (code != EXIT_CODE_OK) {
        return code;
    }
    code = command_client_post(&client, "/api/v1/loglevel", json_pack("{s:s}", "level", argv[0]),
                               &answer);
    if (code == EXIT_CODE_OK && !client.is_json) {
        printf("the server logs %s and above, until it is restarted, or a reload brings another "
               "log.level\n",
               argv[0]);
    }
    code = command_client_result(&client, code, answer);
    command_client_close(&client);
    return code;
}
