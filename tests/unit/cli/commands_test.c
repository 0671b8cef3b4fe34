// SPDX-License-Identifier: Apache-2.0
// Proves: arguments are found at any position, usage errors have their exit code, and a running
// server is asked for its addresses.
#include "test.h"

#include "cli/cli.h"
#include "commands/commands.h"
#include "control/admin.h"
#include "output.h"
#include "server/command_limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *word(const char *text)
{
    return (char *)(uintptr_t)text; // argv is not const, and nothing writes to it
}

Test(commands, arguments_are_taken_out)
{
    char *argv[] = {word("a"),   word("--global"),     word("--shell"),
                    word("zsh"), word("--endpoint=2"), word("--any-keys"),
                    NULL};
    int argc = 6;
    commands_common_take(command_line_find("env"), 1, &argc, argv);
    cr_assert(commands_argument_take(&argc, argv, "--global"));
    cr_assert_not(commands_argument_take(&argc, argv, "--global"));
    cr_assert_str_eq(commands_argument_take_value(&argc, argv, "--shell"), "zsh");
    cr_assert_str_eq(commands_argument_take_value(&argc, argv, "--endpoint"), "2");
    cr_assert_null(commands_argument_take_value(&argc, argv, "--z"));
    cr_assert_eq(argc, 2);
    cr_assert_str_eq(argv[0], "a");
    cr_assert_str_eq(argv[1], "--any-keys");
    cr_assert_null(argv[2]);
}

Test(commands, number_is_taken_only_within_its_bounds)
{
    char *argv[] = {word("-n=3"), word("-i"), word("9"), word("--count=none"), NULL};
    int argc = 4;
    uint64_t number = 7;
    commands_common_take(command_line_find("stats"), 0, &argc, argv);
    cr_assert(commands_argument_take_number(&argc, argv, "--other", 1, 5, &number));
    cr_assert_eq(number, 7u); // as it was
    cr_assert(commands_argument_take_number(&argc, argv, "-n", 3, 3, &number));
    cr_assert_eq(number, 3u);
    cr_assert_not(commands_argument_take_number(&argc, argv, "-i", 1, 8, &number));
    cr_assert_not(commands_argument_take_number(&argc, argv, "--count", 0, UINT64_MAX, &number));
    cr_assert_eq(argc, 0);
}

static int run(const char *a, const char *b)
{
    char *argv[] = {word("forebay"), word(a), b != NULL ? word(b) : NULL, NULL};
    return cli_run(b != NULL ? 3 : a != NULL ? 2 : 1, argv);
}

Test(commands, exit_codes)
{
    cr_assert_eq(run(NULL, NULL), EXIT_CODE_USAGE);
    cr_assert_eq(run("nonsense", NULL), EXIT_CODE_USAGE);
    cr_assert_eq(run("help", NULL), EXIT_CODE_OK);
    cr_assert_eq(run("help", "env"), EXIT_CODE_OK);
    cr_assert_eq(run("help", "nonsense"), EXIT_CODE_USAGE);
    cr_assert_eq(run("--version", NULL), EXIT_CODE_OK);
    cr_assert_eq(run("version", "--json"), EXIT_CODE_OK);
    cr_assert_eq(run("version", "x"), EXIT_CODE_USAGE);
    cr_assert_eq(run("config", "default"), EXIT_CODE_OK);
    cr_assert_eq(run("config", "nonsense"), EXIT_CODE_USAGE);
    cr_assert_eq(run("check", "--cache.ttl=5"), EXIT_CODE_CONFIGURATION);
    cr_assert_eq(run("env", "--endpoint=http://127.0.0.1:9000"), EXIT_CODE_OK);
    cr_assert_eq(run("env", "--endpoint=http://x';rm"), EXIT_CODE_USAGE);
    cr_assert_eq(run("env", "--shell=csh"), EXIT_CODE_USAGE);
}

static const char *output_of(const char *a, const char *b, const char *c, int *ret_code)
{
    const char *const words[] = {a, b, c, NULL};
    return output_of_command(words, ret_code);
}

static bool probe_dead(void *ctx, struct buf *why)
{
    (void)ctx;
    buf_append_cstr(why, "stuck");
    return false;
}

// GDAL wants a host without a scheme. Variables that are set for other programs, or by choice, stay
// unchanged.
Test(commands, env_points_gdal_and_htslib_here)
{
    int code;
    unsetenv("AWS_S3_ENDPOINT");
    unsetenv("GDAL_DISABLE_READDIR_ON_OPEN");
    const char *text = output_of("env", "--shell=bash", "--endpoint=http://127.0.0.1:9000", &code);
    static const char *const lines[] = {"export AWS_S3_ENDPOINT='127.0.0.1:9000'\n",
                                        "export AWS_HTTPS='NO'\n",
                                        "export AWS_VIRTUAL_HOSTING='FALSE'\n",
                                        "export GDAL_DISABLE_READDIR_ON_OPEN='EMPTY_DIR'\n",
                                        "export HTS_S3_HOST='127.0.0.1:9000'\n",
                                        "export HTS_S3_ADDRESS_STYLE='path'\n"};
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        cr_assert_not_null(strstr(text, lines[i]), "%s", lines[i]);
    }
    // In a container, s3:// names of htslib still lead to AWS, unless the endpoint speaks TLS.
    text = output_of("env", "--shell=k8s", "--endpoint=http://127.0.0.1:9000", &code);
    cr_assert_null(strstr(text, "HTS_S3_HOST"));
    text = output_of("env", "--shell=docker", "--endpoint=https://127.0.0.1:9000", &code);
    cr_assert_not_null(strstr(text, "--env HTS_S3_HOST=127.0.0.1:9000\n"));

    setenv("GDAL_DISABLE_READDIR_ON_OPEN", "FALSE", 1);
    text = output_of("env", "--shell=fish", "--endpoint=http://127.0.0.1:9000", &code);
    cr_assert_null(strstr(text, "GDAL_DISABLE_READDIR_ON_OPEN"));
    setenv("AWS_S3_ENDPOINT", "s3.example.com", 1);
    text = output_of("env", "--shell=bash", "--endpoint=http://127.0.0.1:9000", &code);
    cr_assert_not_null(strstr(text, lines[0]));
    setenv("AWS_S3_ENDPOINT", "https://s3.example.com", 1);
    text = output_of("env", "--shell=bash", "--endpoint=http://127.0.0.1:9000", &code);
    cr_assert_null(strstr(text, "export AWS_S3_ENDPOINT"));
    cr_assert_null(strstr(text, "AWS_HTTPS"));
    text = output_of("env", "--shell=dotenv", "--endpoint=http://127.0.0.1:9000", &code);
    cr_assert_not_null(strstr(text, "AWS_S3_ENDPOINT=127.0.0.1:9000\n")); // another environment
    cr_assert_not_null(strstr(text, "GDAL_DISABLE_READDIR_ON_OPEN=EMPTY_DIR\n"));
}

Test(commands, env_asks_the_running_server)
{
    const char *const listen[] = {"unix:/x", "tls:0.0.0.0:7443", "127.0.0.1:7000"};
    struct admin_options options = {.host = "127.0.0.1", .listen = listen, .listen_count = 3};
    struct admin *admin = NULL;
    struct buf why;
    int code;
    char flag[128];
    unsetenv("FOREBAY_ADMIN");
    buf_init(&why, 4096);
    options.alive = probe_dead;
    cr_assert_eq(admin_start(&options, &admin, &why), ERR_OK);
    snprintf(flag, sizeof(flag), "--admin=http://%s/", admin_listen_address(admin));
    const char *text = output_of("env", "--shell=dotenv", flag, &code);
    cr_assert_eq(code, EXIT_CODE_OK);
    cr_assert_not_null(strstr(text, "AWS_ENDPOINT_URL_S3=https://127.0.0.1:7443\n"));
    cr_assert_not_null(strstr(text, "S3_USE_HTTPS=1\n"));
    cr_assert_not_null(strstr(text, "AWS_S3_ENDPOINT=127.0.0.1:7443\nAWS_HTTPS=YES\n"));
    cr_assert_not_null(strstr(text, "HTS_S3_HOST=127.0.0.1:7443\nHTS_S3_ADDRESS_STYLE=path\n"));
    cr_assert_null(strstr(text, "AWS_ENDPOINT_URL="));
    text = output_of("check", "--live", flag, &code);
    cr_assert_eq(code, EXIT_CODE_FAILED);
    cr_assert_not_null(strstr(text, "stuck"));
    admin_stop(admin);
    text = output_of("env", "--shell=fish", flag, &code);
    cr_assert_eq(code, EXIT_CODE_UNREACHABLE);
    cr_assert_str_eq(text, ""); // nothing that points nowhere
    text = output_of("env", "--shell=fish", "--endpoint=http://127.0.0.1:9000", &code);
    cr_assert_not_null(strstr(text, "set -gx AWS_ENDPOINT_URL_S3 'http://127.0.0.1:9000'\n"));
    setenv("NO_PROXY", "a.example", 1);
    unsetenv("no_proxy");
    text = output_of("env", "--shell=bash", "--endpoint=http://127.0.0.1:9000", &code);
    cr_assert_not_null(strstr(text, "export NO_PROXY='a.example,127.0.0.1'\n"));
    cr_assert_not_null(strstr(text, "export no_proxy='a.example,127.0.0.1'\n"));
    cr_assert_null(strstr(text, "AWS_ACCESS_KEY_ID"));
    text = output_of("env", "--shell=dotenv", "--endpoint=http://127.0.0.1:9000", &code);
    cr_assert_not_null(strstr(text, "NO_PROXY=127.0.0.1\nno_proxy=127.0.0.1\n")); // elsewhere
    setenv("no_proxy", "b.example", 1);
    text = output_of("env", "--shell=bash", "--endpoint=http://127.0.0.1:9000", &code);
    cr_assert_not_null(strstr(text, "export NO_PROXY='a.example,127.0.0.1'\n"));
    cr_assert_not_null(strstr(text, "export no_proxy='b.example,127.0.0.1'\n"));
    unsetenv("NO_PROXY");
    text = output_of("env", "--shell=bash", "--endpoint=http://127.0.0.1:9000", &code);
    cr_assert_not_null(strstr(text, "export NO_PROXY='b.example,127.0.0.1'\n"));
    unsetenv("no_proxy");
    setenv("NO_PROXY", "127.0.0.1, $(x)'", 1);
    text = output_of("env", "--any-keys", "--endpoint=http://[::1]:9000", &code);
    cr_assert_not_null(strstr(text, "export NO_PROXY='::1'\n"));
    cr_assert_not_null(strstr(text, "export AWS_SECRET_ACCESS_KEY='any'\n"));
    (void)output_of("check", "--live", flag, &code);
    cr_assert_eq(code, EXIT_CODE_UNREACHABLE);
    text = output_of("env", "--global", "--endpoint=http://127.0.0.1:1", &code);
    cr_assert_eq(code, EXIT_CODE_OK);
    cr_assert_not_null(strstr(text, "AWS_ENDPOINT_URL"));
    buf_done(&why);
}

Test(commands, descriptors_are_shared_out_within_the_limit)
{
    struct command_limits_plan plan = command_limits_plan_for(1u << 20, 8, 3, 16384, 64);
    cr_assert(!plan.is_short);
    cr_assert_eq(plan.clients, 16384);
    cr_assert_eq(plan.origin_connections, 64);
    for (unsigned workers = 1; workers <= 64; workers *= 4) {
        for (unsigned origins = 1; origins <= 5; origins++) {
            uint64_t fixed = ADMIN_CONNECTIONS_MAX + 40 + workers * (8 + 3 * origins);
            for (uint64_t n = fixed + 120 * origins + 4 * workers * origins; n < 200000;
                 n += n / 7 + 1) {
                plan = command_limits_plan_for(n, workers, origins, 16384, 64);
                cr_assert(fixed + plan.clients + plan.segments +
                              origins * (plan.origin_connections + workers) <=
                          n);
                cr_assert(plan.clients >= 8 && plan.origin_connections >= 1);
                cr_assert(plan.segments >= 16);
                cr_assert(plan.is_short == (plan.clients < 16384 || plan.origin_connections < 64));
            }
        }
    }
    plan = command_limits_plan_for(64, 4, 2, 16384, 64); // too few for anything: the least of each
    cr_assert_eq(plan.least, 32 + 4 * 8 + 8 + 16 + 4);
    cr_assert(plan.is_short && plan.clients >= 8 && plan.segments >= 16);
}
