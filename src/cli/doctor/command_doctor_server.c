// SPDX-License-Identifier: Apache-2.0
// `forebay doctor`: the server that runs with the settings of the command. It answers at the admin
// address of the settings, or at --admin. A server that uses another cache.dir runs with other
// settings. So its ports are taken, and its conditions are not reported.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cli/client/command_client.h"
#include "cli/doctor/command_doctor.h"

#define ANSWER_MAX_BYTES ADMIN_ANSWER_MAX

// Sends a GET to the server at `address`, or, if that is "", at the admin address of the settings.
// Returns the answer, which the caller owns; NULL if there is none.
static json_t *ask(const struct doctor *d, const char *path, char address[COMMANDS_ADDRESS_MAX])
{
    struct admin_client_request request = {.method = "GET",
                                           .path = path,
                                           .token = getenv("FOREBAY_ADMIN_TOKEN"),
                                           .timeout_ms = commands_common()->timeout_ms};
    struct buf body;
    unsigned status = 0;
    buf_init(&body, ANSWER_MAX_BYTES);
    enum err err = commands_ask(d->config, &request, address, &status, &body);
    json_t *json = err == ERR_OK && status == 200 ? json_loadb(body.ptr, body.len, 0, NULL) : NULL;
    buf_done(&body);
    return json;
}

// Returns true if the server uses cache.dir of the settings, or does not tell.
static bool uses_cache(const struct doctor *d, struct doctor_peer *peer)
{
    json_t *answer = ask(d, "/api/v1/config", peer->address);
    const json_t *row, *settings = json_object_get(answer, "settings");
    const char *dir = config_value_text(d->config, commands_setting("cache.dir"));
    bool is_same = true;
    size_t i;
    json_array_foreach(settings, i, row)
    {
        if (strcmp(command_client_text(row, "key"), "cache.dir") == 0) {
            is_same = strcmp(command_client_text(row, "value"), dir) == 0;
        }
    }
    json_decref(answer);
    return is_same;
}

void command_doctor_peer_find(struct doctor *d, struct doctor_peer *ret_peer)
{
    const struct config *c = d->config;
    const char *named = commands_common()->admin;
    *ret_peer = (struct doctor_peer){.version = NULL};
    d->peer = ret_peer;
    (void)snprintf(ret_peer->address, sizeof(ret_peer->address), "%s", named != NULL ? named : "");
    ret_peer->version = ask(d, "/version", ret_peer->address);
    ret_peer->has_cache = ret_peer->version != NULL && (named != NULL || uses_cache(d, ret_peer));
    ret_peer->conditions =
        ret_peer->has_cache ? ask(d, "/api/v1/conditions", ret_peer->address) : NULL;
    ret_peer->is_unknown =
        ret_peer->version == NULL &&
        (named != NULL || (c->admin_socket == NULL && c->admin_listen.kind != CONFIG_LISTEN_TCP));
}

void command_doctor_peer_done(struct doctor_peer *peer)
{
    json_decref(peer->version);
    json_decref(peer->conditions);
    peer->version = peer->conditions = NULL;
}

const json_t *command_doctor_peer_condition(const struct doctor_peer *peer, const char *name)
{
    const json_t *row, *found = NULL;
    size_t i;
    json_array_foreach(json_object_get(peer->conditions, "conditions"), i, row)
    {
        found = strcmp(command_client_text(row, "name"), name) == 0 ? row : found;
    }
    return found;
}

const char *command_doctor_peer_address(const void *ctx, unsigned i)
{
    const json_t *version = ctx;
    return json_string_value(json_array_get(json_object_get(version, "listen"), i));
}

bool command_doctor_peer_listens(struct doctor *d, const struct config_listen *at)
{
    const char *text;
    char address[COMMANDS_ADDRESS_MAX];
    bool listens = false;
    if (!d->peer->has_cache) {
        return false;
    }
    for (unsigned i = 0; (text = command_doctor_peer_address(d->peer->version, i)) != NULL; i++) {
        const char *port = strrchr(text, ':');
        listens = listens || (port != NULL && strtoul(port + 1, NULL, 10) == at->port);
    }
    if (!listens) { // it may be its admin port
        (void)snprintf(address, sizeof(address), "%s", at->text);
        json_t *version = ask(d, "/version", address);
        listens = version != NULL &&
                  command_client_u64(version, "pid") == command_client_u64(d->peer->version, "pid");
        json_decref(version);
    }
    return listens;
}

// Appends the entries of a list to a file of the configuration. JSON is YAML, too.
static void append_list(struct buf *file, const json_t *answer, const char *name)
{
    const json_t *row;
    json_t *list = json_array();
    size_t i;
    json_array_foreach(json_object_get(answer, name), i, row)
    {
        check(list != NULL && json_array_append(list, json_object_get(row, "fields")) == 0);
    }
    char *text = json_dumps(list, JSON_COMPACT);
    check(text != NULL);
    buf_printf(file, "%s: %s\n", name, text);
    free(text);
    json_decref(list);
}

// Loads the settings of the answer as flags, because these override all else, and its lists from a
// file in memory. Defaults are left out, because a default of a limit is no shortage where fewer
// are there.
static struct config *load_answer(const json_t *answer)
{
    const json_t *row, *settings = json_object_get(answer, "settings");
    size_t i, count = json_array_size(settings);
    char path[64], **words = calloc(count + 3, sizeof(*words));
    struct config *config = NULL;
    struct buf file, errors, flag;
    int fd = memfd_create("forebay-running", MFD_CLOEXEC), argc = 2;
    check(words != NULL);
    buf_init(&file, ANSWER_MAX_BYTES);
    buf_init(&errors, ANSWER_MAX_BYTES);
    append_list(&file, answer, "buckets");
    append_list(&file, answer, "rules");
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    words[0] = (char *)(uintptr_t) "-c"; // argv is not const, but nothing writes to it
    words[1] = path;
    json_array_foreach(settings, i, row)
    {
        if (strcmp(command_client_text(row, "source"), "default") == 0) {
            continue;
        }
        buf_init(&flag, ANSWER_MAX_BYTES);
        buf_printf(&flag, "--%s=%s", command_client_text(row, "key"),
                   command_client_text(row, "value"));
        words[argc++] = buf_ok(&flag) ? strdup(buf_cstr(&flag)) : NULL;
        check(words[argc - 1] != NULL);
        buf_done(&flag);
    }
    if (fd < 0 || !buf_ok(&file) || !commands_write_all(fd, buf_span(&file)) ||
        config_load(argc, words, &config, &errors) != ERR_OK) {
        config = NULL;
    }
    for (int k = 2; k < argc; k++) {
        free(words[k]);
    }
    free(words);
    if (fd >= 0) {
        (void)close(fd); // the file has been read
    }
    buf_done(&file);
    buf_done(&errors);
    return config;
}

struct config *command_doctor_running(const struct doctor *d)
{
    char address[COMMANDS_ADDRESS_MAX];
    (void)snprintf(address, sizeof(address), "%s", commands_common()->admin);
    json_t *answer = ask(d, "/api/v1/config", address);
    struct config *config = answer != NULL ? load_answer(answer) : NULL;
    json_decref(answer);
    return config;
}

void command_doctor_server(struct doctor *d)
{
    const json_t *row, *conditions = json_object_get(d->peer->conditions, "conditions");
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
}
