// SPDX-License-Identifier: Apache-2.0
// `forebay env`: every way that S3 clients spell "endpoint", so that one line points all of them
// here. The address is advertised as a number: with an IP host the SDKs choose path style by
// themselves.
#include "commands/commands.h"

#include "commands/commands_private.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUTPUT_MAX_BYTES 65536u
#define URL_MAX 512

enum shell { SHELL_BASH, SHELL_FISH, SHELL_DOTENV, SHELL_K8S, SHELL_DOCKER, SHELL_COUNT };
static const char *const shell_names[SHELL_COUNT] = {"bash", "fish", "dotenv", "k8s", "docker"};

// Where clients go: "http://127.0.0.1:9000" in pieces.
struct endpoint {
    bool tls;
    char address[URL_MAX]; // host:port
};

// --- The endpoint --------------------------------------------------------------------------------

// Only scheme, host and port: what is printed goes through a shell.
static bool endpoint_from_url(const char *url, struct endpoint *ret_endpoint)
{
    struct endpoint e = {.tls = false};
    struct span rest = span_from_cstr(url);
    if (span_starts_with(rest, SPAN("https://"))) {
        e.tls = true;
        rest = (struct span){rest.ptr + 8, rest.len - 8};
    } else if (span_starts_with(rest, SPAN("http://"))) {
        rest = (struct span){rest.ptr + 7, rest.len - 7};
    }
    while (rest.len > 0 && rest.ptr[rest.len - 1] == '/') {
        rest.len--;
    }
    for (size_t i = 0; i < rest.len; i++) {
        char c = rest.ptr[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!plain && strchr("-.:[]", c) == NULL) {
            return false;
        }
    }
    if (rest.len == 0 || rest.len >= sizeof(e.address)) {
        return false;
    }
    memcpy(e.address, rest.ptr, rest.len);
    *ret_endpoint = e;
    return true;
}

// A listener's address as clients on this machine reach it; false for unix sockets.
static bool endpoint_from_listen(const char *text, struct endpoint *ret_endpoint)
{
    struct span rest = span_from_cstr(text);
    struct endpoint e = {.tls = span_starts_with(rest, SPAN("tls:"))};
    if (span_starts_with(rest, SPAN("unix:"))) {
        return false;
    }
    rest.ptr += e.tls ? 4 : 0;
    const char *port = strrchr(rest.ptr, ':');
    if (port == NULL) {
        return false;
    }
    int len;
    if (strncmp(rest.ptr, "0.0.0.0:", 8) == 0 || strncmp(rest.ptr, "localhost:", 10) == 0) {
        len = snprintf(e.address, sizeof(e.address), "127.0.0.1%s", port);
    } else if (strncmp(rest.ptr, "[::]:", 5) == 0) {
        len = snprintf(e.address, sizeof(e.address), "[::1]%s", port);
    } else {
        len = snprintf(e.address, sizeof(e.address), "%s", rest.ptr);
    }
    if (len < 0 || (size_t)len >= sizeof(e.address)) {
        return false;
    }
    *ret_endpoint = e;
    return true;
}

// The first listener in a server's /version that speaks TCP.
static bool endpoint_from_version(const char *body, struct endpoint *ret_endpoint)
{
    json_t *json = json_loads(body, 0, NULL);
    json_t *listen = json_object_get(json, "listen");
    bool found = false;
    for (size_t i = 0; i < json_array_size(listen) && !found; i++) {
        const char *text = json_string_value(json_array_get(listen, i));
        found = text != NULL && endpoint_from_listen(text, ret_endpoint);
    }
    json_decref(json);
    return found;
}

static bool endpoint_from_server(const char *admin, const struct config *config,
                                 struct endpoint *ret_endpoint)
{
    struct buf body;
    unsigned status = 0;
    buf_init(&body, OUTPUT_MAX_BYTES);
    bool found = commands_ask_server(admin, config, "/version", &status, &body) == ERR_OK &&
                 status == 200 && endpoint_from_version(buf_cstr(&body), ret_endpoint);
    buf_done(&body);
    return found;
}

static struct endpoint endpoint_from_config(const struct config *config)
{
    struct endpoint e = {.address = "127.0.0.1:9000"};
    for (unsigned i = 0; config != NULL && i < config->listen.count; i++) {
        if (endpoint_from_listen(config->listen.items[i].text, &e)) {
            break;
        }
    }
    return e;
}

// --- Printing ------------------------------------------------------------------------------------

struct printer {
    struct buf out;
    enum shell shell;
};

static void print_comment(struct printer *p, const char *text)
{
    if (p->shell != SHELL_DOCKER) { // its lines become arguments
        buf_printf(&p->out, "# %s\n", text);
    }
}

static void print_variable(struct printer *p, const char *name, const char *value)
{
    static const char *const forms[SHELL_COUNT] = {
        [SHELL_BASH] = "export %s='%s'\n", [SHELL_FISH] = "set -gx %s '%s'\n",
        [SHELL_DOTENV] = "%s=%s\n",        [SHELL_K8S] = "- name: %s\n  value: \"%s\"\n",
        [SHELL_DOCKER] = "--env %s=%s\n",
    };
    // The forms are ours, and no value holds a quote: endpoint_from_url() lets none through.
    const char *form = forms[p->shell];
    const char *first = strstr(form, "%s");
    const char *second = strstr(first + 2, "%s");
    buf_append(&p->out, form, (size_t)(first - form));
    buf_append_cstr(&p->out, name);
    buf_append(&p->out, first + 2, (size_t)(second - first - 2));
    buf_append_cstr(&p->out, value);
    buf_append_cstr(&p->out, second + 2);
}

static void print_all(struct printer *p, const struct endpoint *e, bool global)
{
    char url[URL_MAX + 16];
    (void)snprintf(url, sizeof(url), "%s://%s", e->tls ? "https" : "http", e->address);
    print_variable(p, "AWS_ENDPOINT_URL_S3", url);
    print_variable(p, "S3_ENDPOINT_URL", url);
    print_variable(p, "S3_ENDPOINT", e->address);
    print_variable(p, "S3_USE_HTTPS", e->tls ? "1" : "0");
    print_variable(p, "S3_VERIFY_SSL", e->tls ? "1" : "0");
    print_variable(p, "FSSPEC_S3_ENDPOINT_URL", url);
    print_variable(p, "DUCKDB_S3_ENDPOINT", e->address);
    print_variable(p, "DUCKDB_S3_USE_SSL", e->tls ? "true" : "false");
    print_variable(p, "RCLONE_S3_ENDPOINT", url);
    print_variable(p, "AWS_ALLOW_HTTP", e->tls ? "false" : "true");
    print_variable(p, "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "0");
    if (global) {
        print_comment(
            p, "This one also moves STS and every other AWS service of clients that read it:");
        print_comment(p, "use it only for clients that know no AWS_ENDPOINT_URL_S3.");
        print_variable(p, "AWS_ENDPOINT_URL", url);
    }
}

static enum shell default_shell(void)
{
    const char *shell = getenv("SHELL");
    struct span s = span_from_cstr(shell);
    return span_ends_with(s, SPAN("/fish")) ? SHELL_FISH : SHELL_BASH;
}

static bool parse_shell(const char *name, enum shell *ret_shell)
{
    for (int i = 0; i < SHELL_COUNT; i++) {
        if (strcmp(name, shell_names[i]) == 0) {
            *ret_shell = (enum shell)i;
            return true;
        }
    }
    return false;
}

int command_env(int argc, char **argv)
{
    bool bad = false, global = commands_argument_take(&argc, argv, "--global");
    const char *shell = commands_argument_take_value(&argc, argv, "--shell", &bad);
    const char *url = commands_argument_take_value(&argc, argv, "--endpoint", &bad);
    const char *admin = commands_argument_take_value(&argc, argv, "--admin", &bad);
    struct printer p = {.shell = default_shell()};
    struct endpoint e;
    if (bad) {
        return commands_usage_error("env", "a flag has no value");
    }
    if (shell != NULL && !parse_shell(shell, &p.shell)) {
        return commands_usage_error("env", "--shell is bash, fish, dotenv, k8s or docker");
    }
    if (url != NULL && !endpoint_from_url(url, &e)) {
        return commands_usage_error("env", "--endpoint is http://HOST:PORT or https://HOST:PORT");
    }
    int code = EXIT_CODE_OK;
    if (url == NULL) {
        struct config *config = commands_load_config(argc, argv);
        if (config == NULL) {
            return EXIT_CODE_CONFIGURATION;
        }
        if (!endpoint_from_server(admin, config, &e)) {
            e = endpoint_from_config(config);
            (void)fprintf(
                stderr,
                "forebay: no server answers; %s is what the configuration says (set --admin "
                "or --endpoint)\n",
                e.address);
            code = EXIT_CODE_UNREACHABLE;
        }
        config_free(config);
    } else if (argc > 0) {
        return commands_usage_error("env", "unexpected argument");
    }
    buf_init(&p.out, OUTPUT_MAX_BYTES);
    print_all(&p, &e, global);
    int printed = commands_print_result(&p.out);
    buf_done(&p.out);
    return printed != EXIT_CODE_OK ? printed : code;
}
