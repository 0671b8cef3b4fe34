// SPDX-License-Identifier: Apache-2.0
// `forebay pin URI...`, `forebay unpin URI...` and `forebay pins`: pin objects, unpin them, or list
// the pins. A full cache keeps pinned objects, whatever else is read.
#include "cli/client/command_client.h"

#include <stdio.h>

#include "config/config.h"
#include "s3/s3.h"

static void print_item(const json_t *item, const char *what)
{
    const json_t *ends = json_object_get(item, "ends_in_s");
    printf("%s%s", what, command_client_visible(command_client_text(item, "uri")));
    if (json_is_integer(ends)) {
        printf("  for %s", command_time((double)json_integer_value(ends)));
    }
    printf("\n");
}

// Prints the result of pin, unpin or pins, and closes the client. Returns the exit code.
static int end(struct command_client *client, int code, const char *what, json_t *answer)
{
    json_t *items = json_object_get(answer, "pins");
    for (size_t i = 0; i < json_array_size(items); i++) {
        json_t *item = json_array_get(items, i);
        bool is_news = what[0] == '\0' || command_client_bool(item, "changed");
        if (!client->is_json) {
            print_item(item, is_news ? what : "as before  ");
        }
        commands_line("item", json_incref(item));
    }
    if (code == EXIT_CODE_OK && !client->is_json) {
        if (!command_client_bool(answer, "kept")) {
            command_screen_tell(
                2,
                "forebay %s: warning: this cache keeps no pins: cache.policy is lru, it has "
                "fewer than 9 segments, or its directory does not work\n",
                client->name);
        }
        printf("pins hold %s of %s that they may%s\n",
               command_bytes((double)command_client_u64(answer, "pinned_bytes")),
               command_bytes((double)command_client_u64(answer, "pinned_max_bytes")),
               command_client_bool(answer, "looking") ? "; what is cached is being looked through"
                                                      : "");
    }
    size_t count = json_array_size(items);
    if (answer != NULL) {
        (void)json_object_del(answer, "pins");
        check(json_object_set_new(answer, "count", json_integer((json_int_t)count)) == 0);
    }
    return command_client_end(client, code, answer);
}

// Reads the URIs. Returns EXIT_CODE_OK, or another exit code after it has reported an error.
static int uris_take(struct command_client *client, int argc, char **argv, json_t *uris)
{
    for (int i = 0; i < argc; i++) {
        struct s3_uri uri;
        if (!command_client_take_uri(client, argv[i], &uri)) {
            return EXIT_CODE_USAGE;
        }
        command_client_warn_of_star(client, argv[i], &uri);
        check(json_array_append_new(uris, json_string(argv[i])) == 0);
    }
    return EXIT_CODE_OK;
}

static int change(const char *name, int argc, char **argv, uint64_t ttl_ms)
{
    struct command_client client;
    json_t *answer = NULL, *uris = json_array();
    json_t *body = json_pack("{s:o}", "uris", uris);
    bool pins = name[0] == 'p';
    char path[32];
    int code = command_client_open(&client, name);
    if (code != EXIT_CODE_OK) {
        json_decref(body);
        return code;
    }
    check(body != NULL);
    if (ttl_ms > 0) {
        json_int_t ttl_s = (json_int_t)((ttl_ms + 999) / 1000);
        check(json_object_set_new(body, "ttl_s", json_integer(ttl_s)) == 0);
    }
    code = uris_take(&client, argc, argv, uris);
    (void)snprintf(path, sizeof(path), "/api/v1/%s", name);
    if (code == EXIT_CODE_OK) {
        code = command_client_post(&client, path, body, &answer);
    } else {
        json_decref(body);
    }
    return end(&client, code, pins ? "pinned     " : "unpinned   ", answer);
}

int command_pin(int argc, char **argv)
{
    char why[CONFIG_WHY_MAX];
    uint64_t ttl_ms = 0;
    const char *ttl = commands_argument_take_value(&argc, argv, "--ttl");
    if (ttl != NULL && (!config_value_parse_ms(span_from_cstr(ttl), &ttl_ms, why) || ttl_ms == 0)) {
        return commands_usage_error("pin", "--ttl is a time, as 12h or 7d");
    }
    return change("pin", argc, argv, ttl_ms);
}

int command_unpin(int argc, char **argv)
{
    return change("unpin", argc, argv, 0);
}

int command_pins(int argc, char **argv)
{
    struct command_client client;
    json_t *answer = NULL;
    (void)argc, (void)argv; // the command has no options of its own
    int code = command_client_open(&client, "pins");
    if (code != EXIT_CODE_OK) {
        return code;
    }
    code = command_client_get(&client, "/api/v1/pins", &answer);
    if (code == EXIT_CODE_OK && !client.is_json &&
        json_array_size(json_object_get(answer, "pins")) == 0) {
        printf("nothing is pinned by command\n");
    }
    return end(&client, code, "", answer);
}
