// SPDX-License-Identifier: Apache-2.0
// Functions that all commands share: errors, the configuration, results, and requests to a running
// server.
#include "commands/commands.h"

#include "base/check.h"
#include "commands/command_line.h"
#include "control/control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ERRORS_MAX_BYTES (256u << 10)
#define REQUEST_SAID_MAX 1200u

int commands_unknown(const char *name)
{
    const char *near = command_line_suggest(name);
    command_screen_tell(2, "forebay: %s: no such command%s%s%s; `forebay help` lists them\n",
                        commands_visible(name, strlen(name)),
                        near != NULL ? " (did you mean \"" : "", near != NULL ? near : "",
                        near != NULL ? "\"?)" : "");
    return EXIT_CODE_USAGE;
}

void commands_inform_request(const char *method, const char *address, const char *path,
                             enum err err, unsigned status)
{
    static char said[REQUEST_SAID_MAX]; // only the main thread uses it
    char now[REQUEST_SAID_MAX], end[16] = "";
    if (err == ERR_OK && status != 0) {
        (void)snprintf(end, sizeof(end), ": %u", status);
    }
    (void)snprintf(now, sizeof(now), "%s %.512s at %.512s%s", method, path, address,
                   err == ERR_OK ? end : ": no answer");
    if (strcmp(now, said) != 0) { // a repeated request with the same outcome is not reported
        memcpy(said, now, sizeof(said));
        command_screen_inform_more(2, "forebay: %s\n", commands_visible(now, strlen(now)));
    }
}

bool commands_wants_colour(void)
{
    const char *no_colour = getenv("NO_COLOR");
    return isatty(STDOUT_FILENO) == 1 && !commands_common()->has_no_colour &&
           (no_colour == NULL || no_colour[0] == '\0');
}

void commands_line(const char *type, json_t *json)
{
    if (commands_common()->is_json) {
        json_t *line = json_pack("{s:s}", "type", type);
        check(line != NULL);
        if (json != NULL) {
            check(json_object_update_missing(line, json) == 0);
        }
        char *text = json_dumps(line, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(15));
        check(text != NULL);
        (void)puts(text); // commands_result() flushes stdout, and reports a failure
        free(text);
        json_decref(line);
    }
    json_decref(json);
}

int commands_result(int code, json_t *json)
{
    json_t *line = json_pack("{s:b, s:i}", "ok", code == EXIT_CODE_OK, "exit", code);
    check(line != NULL);
    if (json != NULL) {
        check(json_object_update_missing(line, json) == 0);
        json_decref(json);
    }
    commands_line("result", line);
    return fflush(stdout) == 0 && !ferror(stdout) ? code : EXIT_CODE_FAILED;
}

void commands_usage_error_json(const char *what)
{
    commands_common_want_json(); // a wrong command line is reported before --json has been read
    commands_line("error", json_pack("{s:o}", "reason", control_text(span_from_cstr(what))));
    (void)commands_result(EXIT_CODE_USAGE, NULL); // the caller returns the exit code
}

int commands_usage_error(const char *command, const char *what)
{
    command_screen_tell(2, "forebay %s: %s; `forebay help %s` tells more\n", command, what,
                        command);
    if (commands_common()->is_json) {
        commands_usage_error_json(what);
    }
    return EXIT_CODE_USAGE;
}

void commands_tell_errors(struct span errors)
{
    struct span line;
    while (errors.len > 0 && span_split(&errors, '\n', &line)) {
        bool is_file = !span_starts_with(line, SPAN("-")) && !span_starts_with(line, SPAN("env "));
        command_screen_tell(2, "%s%s%s%.*s\n", is_file ? "" : "forebay ",
                            is_file ? "" : commands_common()->command->name, is_file ? "" : ": ",
                            (int)line.len, line.ptr);
    }
}

// Loads by `how`, and prints its errors and warnings. `errors` also gets them.
static struct config *load(enum err (*how)(int, char **, struct config **, struct buf *), int argc,
                           char **argv, struct buf *errors)
{
    struct config *config = NULL;
    if (how(argc, argv, &config, errors) != ERR_OK) {
        config = NULL; // the errors contain the reason
    } else {
        command_screen_inform_more(2, "forebay: configuration: %s\n",
                                   config->file != NULL
                                       ? commands_visible(config->file, strlen(config->file))
                                       : "no file");
    }
    commands_tell_errors(buf_span(errors));
    return config;
}

struct config *commands_load_config(int argc, char **argv)
{
    struct buf errors;
    buf_init(&errors, ERRORS_MAX_BYTES);
    struct config *config = load(config_load, argc, argv, &errors);
    buf_done(&errors);
    return config;
}

struct config *commands_load_client(int argc, char **argv)
{
    struct buf errors;
    buf_init(&errors, ERRORS_MAX_BYTES);
    struct config *config = load(config_load_client, argc, argv, &errors);
    buf_done(&errors);
    return config;
}

static bool names_flag(struct span errors)
{
    struct span line;
    bool is_flag = false;
    while (errors.len > 0 && !is_flag && span_split(&errors, '\n', &line)) {
        is_flag = span_starts_with(line, SPAN("-"));
    }
    return is_flag;
}

struct config *commands_load_admin(int argc, char **argv, bool *ret_is_guess)
{
    struct buf errors;
    buf_init(&errors, ERRORS_MAX_BYTES);
    struct config *config = load(config_load_client, argc, argv, &errors);
    *ret_is_guess = false;
    if (config == NULL && !names_flag(buf_span(&errors))) {
        config = config_load_admin(argc, argv, ret_is_guess);
        command_screen_tell(2, "forebay %s: warning: %s\n", commands_common()->command->name,
                            *ret_is_guess ? "looking for the server without that file"
                                          : "only the admin address of this configuration is used");
    }
    buf_done(&errors);
    return config;
}

int commands_print_result(const struct buf *text)
{
    struct span s = buf_span(text);
    bool ok = buf_ok(text) && fwrite(s.ptr, 1, s.len, stdout) == s.len && fflush(stdout) == 0;
    return ok ? EXIT_CODE_OK : EXIT_CODE_FAILED;
}

static char tried[3 * COMMANDS_ADDRESS_MAX + 16]; // only the main thread uses it

const char *commands_tried(void)
{
    return commands_visible(tried, strlen(tried));
}

static enum err ask_there(const struct admin_client_request *request, unsigned *ret_status,
                          struct buf *ret_body)
{
    enum err err = admin_client_send(request, ret_status, ret_body);
    size_t len = strlen(tried);
    (void)snprintf(tried + len, sizeof(tried) - len, "%s%s", len > 0 ? " or " : " at ",
                   request->address);
    commands_inform_request(request->method, request->address, request->path, err, *ret_status);
    return err;
}

bool commands_is_of_unit(const struct config *config)
{
    return config->file == NULL || strcmp(config->file, CONFIG_DEFAULT_FILE) == 0;
}

// Returns true if the server may be the packaged unit, whose socket this user may use. The unit
// gets its socket's folder from systemd, so the configuration of a command does not have it.
static bool may_use_unit_socket(const struct config *config)
{
    const char *listen = config_source_text(config, commands_setting("admin.listen"));
    bool is_elsewhere = strncmp(listen, "env", 3) == 0 || strncmp(listen, "--", 2) == 0;
    return config->admin_socket_auto && commands_is_of_unit(config) && !is_elsewhere &&
           access(COMMANDS_UNIT_SOCKET, W_OK) == 0;
}

enum err commands_ask(const struct config *config, struct admin_client_request *request,
                      char address[COMMANDS_ADDRESS_MAX], unsigned *ret_status,
                      struct buf *ret_body)
{
    enum err err = ERR_ORIGIN_CONNECT;
    tried[0] = '\0';
    request->address = address;
    if (address[0] != '\0') {
        return ask_there(request, ret_status, ret_body);
    }
    if (config->admin_socket != NULL && snprintf(address, COMMANDS_ADDRESS_MAX, "unix:%s",
                                                 config->admin_socket) < COMMANDS_ADDRESS_MAX) {
        err = ask_there(request, ret_status, ret_body);
    }
    if (err != ERR_OK && may_use_unit_socket(config)) {
        (void)snprintf(address, COMMANDS_ADDRESS_MAX, "unix:" COMMANDS_UNIT_SOCKET);
        err = ask_there(request, ret_status, ret_body);
    }
    if (err != ERR_OK && config->admin_listen.kind == CONFIG_LISTEN_TCP) {
        (void)snprintf(address, COMMANDS_ADDRESS_MAX, "%s", config->admin_listen.text);
        err = ask_there(request, ret_status, ret_body);
    }
    if (err != ERR_OK) {
        address[0] = '\0';
    }
    return err;
}

bool commands_address(char ret_address[COMMANDS_ADDRESS_MAX])
{
    const char *address =
        commands_common()->admin != NULL ? commands_common()->admin : getenv("FOREBAY_ADMIN");
    return snprintf(ret_address, COMMANDS_ADDRESS_MAX, "%s", address != NULL ? address : "") <
           COMMANDS_ADDRESS_MAX;
}

enum err commands_ask_server(const struct config *config, const char *path, unsigned *ret_status,
                             struct buf *ret_body)
{
    char address[COMMANDS_ADDRESS_MAX];
    struct admin_client_request request = {
        .method = "GET", .path = path, .timeout_ms = commands_common()->timeout_ms};
    return commands_address(address) ? commands_ask(config, &request, address, ret_status, ret_body)
                                     : ERR_ORIGIN_CONNECT;
}
