// SPDX-License-Identifier: Apache-2.0
// The subcommand table, help, and what the subcommands share.
#include "commands/commands.h"

#include "admin/admin.h"
#include "base/check.h"
#include "commands/commands_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ERRORS_MAX_BYTES (256u << 10)
#define ASK_TIMEOUT_MS 3000u

static int command_help(int argc, char **argv);

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *usage, *summary, *details;
} commands[] = {
    {"serve", command_serve, "[SETTINGS]", "run the proxy in the foreground",
     "Serves the S3 API until SIGTERM or SIGINT, then drains and exits with 0. SIGHUP reads\n"
     "auth.keys_file again, SIGUSR1 reopens the access log.\n"
     "Exit code 1 when a port is taken or the cache directory in use, 3 when the configuration is\n"
     "not valid, 4 when the origin is missing or has no credentials.\n"},
    {"check", command_check, "[-T] [--live] [SETTINGS]", "validate the configuration",
     "  -T      print every setting with its value and where it came from\n"
     "  --live  ask a running server whether it is alive, instead of validating\n"
     "Exit code 3 when the configuration is not valid, 6 when no server answers.\n"},
    {"config", command_config, "default|schema|docs", "print what can be configured",
     "  default  a sample file with every setting and its default\n"
     "  schema   a JSON Schema of the file\n"
     "  docs     a Markdown table\n"},
    {"env", command_env, "[--global] [--shell SHELL] [--endpoint URL] [SETTINGS]",
     "print the variables that point S3 clients here",
     "  --shell     bash, fish, dotenv, k8s or docker\n"
     "  --global    also AWS_ENDPOINT_URL, for clients that know no other\n"
     "  --endpoint  do not ask a running server where it listens\n"
     "Use: eval \"$(forebay env)\". Exit code 6 when no server answers.\n"},
    {"help", command_help, "[COMMAND]", "this text, or more about one command", ""},
    {"version", command_version, "[--json]", "print versions of this binary and its libraries", ""},
};

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if (strcmp(commands[i].name, name) == 0) {
            return &commands[i];
        }
    }
    return NULL;
}

static void print_usage(FILE *to)
{
    (void)fprintf(to, "usage: forebay COMMAND ...\n\n");
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        (void)fprintf(to, "  %-8s %s\n", commands[i].name, commands[i].summary);
    }
    (void)fprintf(
        to, "\nSETTINGS: -c FILE, and --KEY VALUE for every key of `forebay config default`.\n"
            "`forebay help COMMAND` tells more.\n");
}

static int print_help(const struct command *command)
{
    printf("usage: forebay %s %s\n\n%s\n%s", command->name, command->usage, command->summary,
           command->details);
    return EXIT_CODE_OK;
}

static int command_help(int argc, char **argv)
{
    const struct command *command = argc > 0 ? find_command(argv[0]) : NULL;
    if (command != NULL) {
        return print_help(command);
    }
    if (argc > 0) {
        return commands_usage_error(argv[0], "no such command");
    }
    print_usage(stdout);
    return EXIT_CODE_OK;
}

int commands_run(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : NULL;
    if (name == NULL) {
        print_usage(stderr);
        return EXIT_CODE_USAGE;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        name = "help";
    } else if (strcmp(name, "--version") == 0) {
        name = "version";
    }
    const struct command *command = find_command(name);
    if (command == NULL) {
        return commands_usage_error(name, "no such command");
    }
    int left = argc - 2;
    if (commands_argument_take(&left, argv + 2, "--help")) {
        return print_help(command);
    }
    return command->run(left, argv + 2);
}

// --- Shared --------------------------------------------------------------------------------------

static void remove_arguments(int *argc, char **argv, int at, int count)
{
    for (int i = at; i + count <= *argc; i++) {
        argv[i] = argv[i + count]; // the NULL behind the last one moves too
    }
    *argc -= count;
}

bool commands_argument_take(int *argc, char **argv, const char *flag)
{
    for (int i = 0; i < *argc; i++) {
        if (strcmp(argv[i], flag) == 0) {
            remove_arguments(argc, argv, i, 1);
            return true;
        }
    }
    return false;
}

const char *commands_argument_take_value(int *argc, char **argv, const char *flag, bool *ret_bad)
{
    size_t len = strlen(flag);
    for (int i = 0; i < *argc; i++) {
        if (strncmp(argv[i], flag, len) == 0 && argv[i][len] == '=') {
            const char *value = argv[i] + len + 1;
            remove_arguments(argc, argv, i, 1);
            return value;
        }
        if (strcmp(argv[i], flag) == 0) {
            const char *value = i + 1 < *argc ? argv[i + 1] : NULL;
            *ret_bad |= value == NULL;
            remove_arguments(argc, argv, i, value != NULL ? 2 : 1);
            return value;
        }
    }
    return NULL;
}

int commands_usage_error(const char *command, const char *what)
{
    (void)fprintf(stderr, "forebay: %s: %s (try `forebay help`)\n", command, what);
    return EXIT_CODE_USAGE;
}

struct config *commands_load_config(int argc, char **argv)
{
    struct buf errors;
    struct config *config = NULL;
    buf_init(&errors, ERRORS_MAX_BYTES);
    if (config_load(argc, argv, &config, &errors) != ERR_OK) {
        config = NULL; // the errors say why
    }
    (void)fputs(buf_cstr(&errors), stderr); // nowhere else to say it
    buf_done(&errors);
    return config;
}

int commands_print_result(const struct buf *text)
{
    struct span s = buf_span(text);
    bool ok = buf_ok(text) && fwrite(s.ptr, 1, s.len, stdout) == s.len && fflush(stdout) == 0;
    return ok ? EXIT_CODE_OK : EXIT_CODE_FAILED;
}

enum err commands_ask_server(const char *address, const struct config *config, const char *path,
                             unsigned *ret_status, struct buf *ret_body)
{
    if (address == NULL) {
        address = getenv("FOREBAY_ADMIN");
    }
    if (address != NULL && address[0] != '\0') {
        return admin_client_get(address, path, ASK_TIMEOUT_MS, ret_status, ret_body);
    }
    enum err err = ERR_ORIGIN_CONNECT;
    if (config != NULL && config->admin_socket != NULL) {
        char text[512];
        int len = snprintf(text, sizeof(text), "unix:%s", config->admin_socket);
        if (len > 0 && (size_t)len < sizeof(text)) {
            err = admin_client_get(text, path, ASK_TIMEOUT_MS, ret_status, ret_body);
        }
    }
    const char *tcp = config != NULL ? config->admin_listen.text : "127.0.0.1:9001";
    if (err != ERR_OK && (config == NULL || config->admin_listen.kind == CONFIG_LISTEN_TCP)) {
        err = admin_client_get(tcp, path, ASK_TIMEOUT_MS, ret_status, ret_body);
    }
    return err;
}
