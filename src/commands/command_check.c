// SPDX-License-Identifier: Apache-2.0
// `forebay check [-T] [--live]` and `forebay config default|schema|docs`.
#include "commands/commands.h"

#include "commands/commands_private.h"

#include <stdio.h>
#include <string.h>

#define OUTPUT_MAX_BYTES (1u << 20)

static int check_live(const char *address, const struct config *config)
{
    struct buf body;
    unsigned status = 0;
    buf_init(&body, OUTPUT_MAX_BYTES);
    enum err err = commands_ask_server(address, config, "/livez", &status, &body);
    int code = err != ERR_OK   ? EXIT_CODE_UNREACHABLE
               : status == 200 ? EXIT_CODE_OK
                               : EXIT_CODE_FAILED;
    if (err != ERR_OK) {
        (void)fprintf(stderr, "forebay: no server answers (set --admin or FOREBAY_ADMIN)\n");
    } else {
        (void)commands_print_result(&body); // the exit code says what matters
    }
    buf_done(&body);
    return code;
}

static int print_values(const struct config *config)
{
    struct buf out;
    buf_init(&out, OUTPUT_MAX_BYTES);
    for (unsigned i = 0; i < config_setting_count(); i++) {
        const char *text = config_value_text(config, i);
        buf_printf(&out, "%s: %s  # %s\n", config_setting(i)->key, text[0] != '\0' ? text : "\"\"",
                   config_source_text(config, i));
    }
    for (unsigned i = 0; i < config->bucket_count; i++) {
        buf_printf(&out, "# bucket %s at %s\n", config->buckets[i].name, config->buckets[i].source);
    }
    for (unsigned i = 0; i < config->rule_count; i++) {
        buf_printf(&out, "# rule %s at %s\n", config->rules[i].match, config->rules[i].source);
    }
    int code = commands_print_result(&out);
    buf_done(&out);
    return code;
}

int command_check(int argc, char **argv)
{
    bool bad = false;
    bool values = commands_argument_take(&argc, argv, "-T");
    bool live = commands_argument_take(&argc, argv, "--live");
    const char *address = commands_argument_take_value(&argc, argv, "--admin", &bad);
    if (bad) {
        return commands_usage_error("check", "--admin needs a value");
    }
    struct config *config = commands_load_config(argc, argv);
    if (config == NULL) {
        return EXIT_CODE_CONFIGURATION;
    }
    int code = EXIT_CODE_OK;
    if (live) {
        code = check_live(address, config);
    } else if (values) {
        code = print_values(config);
    } else {
        printf("configuration is valid (%s)\n", config->file != NULL ? config->file : "no file");
    }
    config_free(config);
    return code;
}

int command_config(int argc, char **argv)
{
    struct buf out;
    if (argc != 1) {
        return commands_usage_error("config", "one of default, schema, docs is wanted");
    }
    buf_init(&out, OUTPUT_MAX_BYTES);
    int code = EXIT_CODE_OK;
    if (strcmp(argv[0], "default") == 0) {
        config_render_sample(&out);
    } else if (strcmp(argv[0], "schema") == 0) {
        config_render_schema(&out);
    } else if (strcmp(argv[0], "docs") == 0) {
        config_render_docs(&out);
    } else {
        code = commands_usage_error("config", "one of default, schema, docs is wanted");
    }
    if (code == EXIT_CODE_OK) {
        code = commands_print_result(&out);
    }
    buf_done(&out);
    return code;
}
