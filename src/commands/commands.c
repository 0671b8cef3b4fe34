// SPDX-License-Identifier: Apache-2.0
// Functions that all commands share: arguments, common options, the configuration, results, and
// requests to a running server.
#include "commands/commands.h"

#include "base/check.h"
#include "commands/command_line.h"
#include "control/control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ERRORS_MAX_BYTES (256u << 10)
#define ASK_TIMEOUT_MS 3000u
#define ASK_TIMEOUT_MAX_S 86400u
#define REQUEST_SAID_MAX 1200u

static struct commands_common common = {.timeout_ms = ASK_TIMEOUT_MS};

const struct commands_common *commands_common(void)
{
    return &common;
}

int commands_unknown(const char *name)
{
    const char *near = command_line_suggest(name);
    command_screen_tell(2, "forebay: %s: no such command%s%s%s; `forebay help` lists them\n",
                        commands_visible(name, strlen(name)),
                        near != NULL ? " (did you mean \"" : "", near != NULL ? near : "",
                        near != NULL ? "\"?)" : "");
    return EXIT_CODE_USAGE;
}

static void remove_arguments(int *argc, char **argv, int at, int count)
{
    for (int i = at; i + count <= *argc; i++) {
        argv[i] = argv[i + count]; // moves the NULL at the end too
    }
    *argc -= count;
}

// Returns the index of `flag` or "flag=VALUE" after the operands; -1 if it is not there. Skips the
// values of other options, which may look the same.
static int find_argument(int argc, char **argv, const char *flag)
{
    size_t len = strlen(flag);
    for (int i = (int)common.operand_count; i < argc;
         i += command_line_words(common.command, argv + i)) {
        if (strncmp(argv[i], flag, len) == 0 && (argv[i][len] == '\0' || argv[i][len] == '=')) {
            return i;
        }
    }
    return -1;
}

bool commands_argument_take(int *argc, char **argv, const char *flag)
{
    int i = find_argument(*argc, argv, flag);
    if (i >= 0) {
        remove_arguments(argc, argv, i, 1);
    }
    return i >= 0;
}

const char *commands_argument_take_value(int *argc, char **argv, const char *flag)
{
    int i = find_argument(*argc, argv, flag);
    if (i < 0) {
        return NULL;
    }
    bool is_joined = argv[i][strlen(flag)] == '=';
    check(is_joined || i + 1 < *argc); // command_line_check() refuses an option without its value
    const char *value = is_joined ? argv[i] + strlen(flag) + 1 : argv[i + 1];
    remove_arguments(argc, argv, i, is_joined ? 1 : 2);
    return value;
}

bool commands_argument_take_number(int *argc, char **argv, const char *flag, uint64_t least,
                                   uint64_t most, uint64_t *number)
{
    const char *text = commands_argument_take_value(argc, argv, flag);
    return text == NULL ||
           (span_to_u64(span_from_cstr(text), number) && *number >= least && *number <= most);
}

void commands_common_take(const struct command *command, unsigned operand_count, int *argc,
                          char **argv)
{
    uint64_t seconds = 0;
    common = (struct commands_common){
        .timeout_ms = ASK_TIMEOUT_MS, .command = command, .operand_count = operand_count};
    if ((command->takes & TAKES_SERVER) != 0) {
        const char *text = commands_argument_take_value(argc, argv, "--timeout");
        common.admin = commands_argument_take_value(argc, argv, "--admin");
        if (text != NULL && span_to_u64(span_from_cstr(text), &seconds)) {
            common.timeout_ms = (unsigned)(1000 * min_u64(seconds, ASK_TIMEOUT_MAX_S));
        }
    }
    if ((command->takes & TAKES_OUTPUT) != 0) {
        common.is_json = commands_argument_take(argc, argv, "--json");
    }
    common.is_quiet = commands_argument_take(argc, argv, "-q");
    common.is_verbose = commands_argument_take(argc, argv, "-v");
    common.has_no_colour = commands_argument_take(argc, argv, "--no-color");
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
    common.is_json = true; // a wrong command line is reported before --json has been read
    commands_line("error", json_pack("{s:o}", "reason", control_text(span_from_cstr(what))));
    (void)commands_result(EXIT_CODE_USAGE, NULL); // the caller returns the exit code
}

int commands_usage_error(const char *command, const char *what)
{
    command_screen_tell(2, "forebay %s: %s; `forebay help %s` tells more\n", command, what,
                        command);
    if (common.is_json) {
        commands_usage_error_json(what);
    }
    return EXIT_CODE_USAGE;
}

struct config *commands_load_config(int argc, char **argv)
{
    struct buf errors;
    struct config *config = NULL;
    buf_init(&errors, ERRORS_MAX_BYTES);
    if (config_load(argc, argv, &config, &errors) != ERR_OK) {
        config = NULL; // the errors contain the reason
    } else {
        command_screen_inform_more(2, "forebay: configuration: %s\n",
                                   config->file != NULL
                                       ? commands_visible(config->file, strlen(config->file))
                                       : "no file");
    }
    command_screen_tell(2, "%s", buf_cstr(&errors));
    buf_done(&errors);
    return config;
}

int commands_print_result(const struct buf *text)
{
    struct span s = buf_span(text);
    bool ok = buf_ok(text) && fwrite(s.ptr, 1, s.len, stdout) == s.len && fflush(stdout) == 0;
    return ok ? EXIT_CODE_OK : EXIT_CODE_FAILED;
}

static char tried[2 * COMMANDS_ADDRESS_MAX + 8]; // only the main thread uses it

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
    const char *address = common.admin != NULL ? common.admin : getenv("FOREBAY_ADMIN");
    return snprintf(ret_address, COMMANDS_ADDRESS_MAX, "%s", address != NULL ? address : "") <
           COMMANDS_ADDRESS_MAX;
}

enum err commands_ask_server(const struct config *config, const char *path, unsigned *ret_status,
                             struct buf *ret_body)
{
    char address[COMMANDS_ADDRESS_MAX];
    struct admin_client_request request = {
        .method = "GET", .path = path, .timeout_ms = common.timeout_ms};
    return commands_address(address) ? commands_ask(config, &request, address, ret_status, ret_body)
                                     : ERR_ORIGIN_CONNECT;
}
