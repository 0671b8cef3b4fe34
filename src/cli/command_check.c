// SPDX-License-Identifier: Apache-2.0
// `forebay check [-T] [--live] [--explain BUCKET/KEY]`: checks the configuration, prints its
// values, asks a running server whether it is alive, or prints the rule of an object. `forebay
// config default|schema|docs`: prints a sample file, a JSON Schema or a Markdown table of the
// settings.
#include "commands/commands.h"

#include "auth/auth.h"
#include "cli/client/command_client.h"
#include "cli/client/command_unit.h"
#include "control/control.h"
#include "loop/loop.h"
#include "s3/s3.h"
#include "server/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define OUTPUT_MAX_BYTES (1u << 20)

static int check_live(const struct config *config)
{
    struct buf body;
    unsigned status = 0;
    buf_init(&body, OUTPUT_MAX_BYTES);
    enum err err = commands_ask_server(config, "/livez", &status, &body);
    int code = err != ERR_OK   ? EXIT_CODE_UNREACHABLE
               : status == 200 ? EXIT_CODE_OK
                               : EXIT_CODE_FAILED;
    if (err != ERR_OK) {
        command_screen_tell(2, "forebay: no server answers%s (set --admin or FOREBAY_ADMIN)%s\n",
                            commands_tried(), commands_run_hint());
    } else if (commands_common()->is_json) {
        json_t *answer = json_loadb(body.ptr, body.len, 0, NULL);
        commands_line("item", answer);
    } else {
        (void)commands_print_result(&body); // the exit code reports the result
    }
    buf_done(&body);
    return code;
}

// --- Values that depend on this host -------------------------------------------------------------

static void show_cache_size(const struct config *c, struct buf *out)
{
    uint64_t ours = commands_cache_bytes(c->cache_dir);
    if (c->cache_size.percent == 0) {
        uint64_t room = commands_cache_room(c, ours);
        if (c->cache_size.bytes > room) {
            buf_printf(out, "; more than the %.1f GiB that its file system has room for",
                       (double)room / (1u << 30));
        }
        return;
    }
    char above[PATH_MAX];
    struct statvfs fs;
    commands_nearest_directory(c->cache_dir, above);
    if (statvfs(above, &fs) == 0) {
        uint64_t bytes = ((uint64_t)fs.f_bavail * fs.f_frsize + ours) / 100 * c->cache_size.percent;
        buf_printf(out, "; now %.1f GiB", (double)bytes / (1u << 30));
    }
}

static void show_region(struct buf *out)
{
    struct origin_client client;
    origin_client_read(&client);
    if (client.region.text[0] != '\0') {
        buf_printf(out, "; now %s, by %s", client.region.text, client.region.source);
    } else {
        buf_append_cstr(out, "; us-east-1 until the credentials or the origin name another");
    }
}

static void show_engine(const struct config *c, struct buf *out)
{
    struct loop_options options = {.worker_count = 1, .engine = (enum disk_engine)c->io_engine};
    struct loop *loop = NULL;
    struct buf why;
    buf_init(&why, 4096);
    if (loop_new(&options, &loop, &why) == ERR_OK) {
        buf_printf(out, "; now %s", loop_engine_why(loop));
        loop_free(loop);
    }
    buf_done(&why);
}

static void show_now(const struct config *c, const char *key, struct buf *out)
{
    char url[COMMAND_ORIGINS_URL_MAX];
    if (strcmp(key, "origin.endpoint") == 0 && strstr(c->origin_endpoint, "{region}") != NULL &&
        command_origins_url(c->origin_endpoint, c->origin_region, url)) {
        buf_printf(out, "; now %s", url);
    } else if (strcmp(key, "cache.size") == 0) {
        show_cache_size(c, out);
    } else if (strcmp(key, "origin.region") == 0 && strcmp(c->origin_region, "auto") == 0) {
        show_region(out);
    } else if (strcmp(key, "origin.addressing") == 0 &&
               c->origin_addressing == CONFIG_ADDRESSING_AUTO) {
        bool is_aws = strstr(c->origin_endpoint, ".amazonaws.com") != NULL;
        buf_printf(out, "; now %s", is_aws ? "virtual" : "path");
    } else if (strcmp(key, "credentials.source") == 0 &&
               c->credentials_source == CONFIG_CREDENTIALS_AUTO) {
        buf_append_cstr(out, "; the first of config, env, irsa, profile, container, imds that is "
                             "there: the start says which");
    } else if (strcmp(key, "io.engine") == 0 && c->io_engine == CONFIG_IO_AUTO) {
        show_engine(c, out);
    } else if (strcmp(key, "io.threads") == 0 && c->io_threads == 0) {
        buf_append_cstr(out, "; now 2 for each worker");
    }
}

static void print_values_json(const struct config *config)
{
    struct buf now;
    buf_init(&now, 4096);
    for (unsigned i = 0; i < config_setting_count(); i++) {
        json_t *row = command_settings_row(config, i);
        now.len = 0;
        show_now(config, config_setting(i)->key, &now);
        json_t *text = now.len > 2 ? json_stringn(now.ptr + 2, now.len - 2) : json_null();
        check(json_object_set_new(row, "now", text) == 0);
        commands_line("item", row);
    }
    for (unsigned i = 0; i < config->bucket_count; i++) {
        commands_line("bucket", command_settings_bucket(config, i));
    }
    for (unsigned i = 0; i < config->rule_count; i++) {
        commands_line("rule", command_settings_rule(config, i));
    }
    buf_done(&now);
}

static int print_values(const struct config *config)
{
    struct buf out;
    if (commands_common()->is_json) {
        print_values_json(config);
        return EXIT_CODE_OK;
    }
    buf_init(&out, OUTPUT_MAX_BYTES);
    for (unsigned i = 0; i < config_setting_count(); i++) {
        const char *text = config_value_text(config, i);
        buf_printf(&out, "%s: %s  # %s", config_setting(i)->key, text[0] != '\0' ? text : "\"\"",
                   config_source_text(config, i));
        show_now(config, config_setting(i)->key, &out);
        buf_append_cstr(&out, "\n");
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

// --- The rule of an object -----------------------------------------------------------------------

static const char *const freshness[] = {"ttl", "immutable", "strict"};

static void explain_json(const struct proxy_rule *rule, bool is_default)
{
    json_t *json = json_pack(
        "{s:o, s:o, s:b, s:s, s:f, s:f, s:f, s:I, s:I, s:I, s:i, s:b, s:i}", "match",
        is_default ? json_null() : control_text(span_from_cstr(rule->match)), "source",
        is_default ? json_null() : control_text(span_from_cstr(rule->where)), "cache", rule->cache,
        "freshness", freshness[rule->freshness], "ttl_s", (double)rule->ttl_ms / 1e3,
        "stale_if_error_s", (double)rule->stale_if_error_ms / 1e3, "list_ttl_s",
        (double)rule->list_ttl_ms / 1e3, "block_size", (json_int_t)rule->block_size_bytes,
        "max_object_size", (json_int_t)rule->max_object_size_bytes, "readahead",
        (json_int_t)rule->readahead_bytes, "priority", (int)rule->priority, "pin", rule->pin,
        "share_percent", (int)rule->share_percent);
    check(json != NULL);
    commands_line("item", json);
}

static int explain(const struct config *config, const char *object)
{
    struct span rest = span_from_cstr(object);
    if (span_starts_with(rest, SPAN("s3://"))) {
        rest = (struct span){rest.ptr + 5, rest.len - 5};
    }
    struct span bucket = {rest.ptr, span_find(rest, '/')};
    struct span key = {NULL, 0};
    if (bucket.len < rest.len) {
        key = (struct span){rest.ptr + bucket.len + 1, rest.len - bucket.len - 1};
    }
    if (bucket.len == 0) {
        return commands_usage_error("check", "--explain wants BUCKET/KEY");
    }
    struct command_rules rules;
    command_rules(config, NULL, &rules);
    const struct proxy_rule *rule = proxy_rules_find(rules.rules, rules.count, bucket, key);
    bool is_default = rule == &rules.rules[rules.count - 1];
    if (commands_common()->is_json) {
        explain_json(rule, is_default);
        free(rules.rules);
        return EXIT_CODE_OK;
    }
    struct buf out;
    buf_init(&out, OUTPUT_MAX_BYTES);
    if (is_default) {
        buf_printf(&out, "rule: none of %u matches, the defaults hold\n", rules.count - 1);
    } else {
        buf_printf(&out, "rule: \"%s\" at %s\n", rule->match, rule->where);
    }
    buf_printf(&out, "cache: %s\nfreshness: %s\n", rule->cache ? "true" : "false",
               freshness[rule->freshness]);
    if (rule->freshness == PROXY_FRESHNESS_TTL) {
        buf_printf(&out, "ttl: %.10gs\nstale_if_error: %.10gs\n", (double)rule->ttl_ms / 1000,
                   (double)rule->stale_if_error_ms / 1000);
    }
    buf_printf(&out,
               "list_ttl: %.10gs\nblock_size: %u\nmax_object_size: %llu\nreadahead: %llu\n"
               "priority: %u\n",
               (double)rule->list_ttl_ms / 1000, rule->block_size_bytes,
               (unsigned long long)rule->max_object_size_bytes,
               (unsigned long long)rule->readahead_bytes, rule->priority);
    if (rule->pin) {
        buf_printf(&out, "pin: true\n");
    }
    if (rule->share_percent > 0) {
        buf_printf(&out, "share: %u%%\n", rule->share_percent);
    }
    int code = commands_print_result(&out);
    buf_done(&out);
    free(rules.rules);
    return code;
}

// Reads the keys file as a start would.
static int check_keys(const struct config *config)
{
    struct access_keys *keys = NULL;
    struct buf errors;
    if (config->auth_mode != CONFIG_AUTH_VERIFY) {
        return EXIT_CODE_OK;
    }
    buf_init(&errors, OUTPUT_MAX_BYTES);
    enum err err = access_keys_load(config->auth_keys_file, &keys, &errors);
    command_screen_tell(2, "%s", buf_cstr(&errors));
    buf_done(&errors);
    access_keys_unref(keys);
    return err == ERR_OK ? EXIT_CODE_OK : EXIT_CODE_CONFIGURATION;
}

// Reads the token file as a start would.
static int check_token(const struct config *config)
{
    const struct admin_access_options options = {.token_file = config->admin_token_file};
    struct buf why;
    buf_init(&why, OUTPUT_MAX_BYTES);
    struct admin_access *access = admin_access_new(&options, &why);
    bool is_good = access != NULL;
    if (!is_good) {
        command_screen_tell(2, "forebay check: %s\n", buf_cstr(&why));
    }
    admin_access_free(access);
    buf_done(&why);
    return is_good ? EXIT_CODE_OK : EXIT_CODE_CONFIGURATION;
}

// Judges files as a start would, and prints what it finds.
static int check_files(const struct config *config,
                       enum err (*judge)(const struct config *config, struct buf *ret_why))
{
    struct buf why;
    buf_init(&why, OUTPUT_MAX_BYTES);
    enum err err = judge(config, &why);
    if (why.len > 0) {
        command_screen_tell(2, "forebay check: %s\n", buf_cstr(&why));
    }
    buf_done(&why);
    return err == ERR_OK ? EXIT_CODE_OK : EXIT_CODE_CONFIGURATION;
}

// Warns of secret files that only root can read, if the packaged unit needs them.
static void warn_of_files_of_root(const struct config *config)
{
    struct stat st;
    if (!command_unit_is_another_user(config)) {
        return;
    }
    for (unsigned i = 0; i < config_setting_count(); i++) {
        const char *path = config_value_text(config, i);
        if (strcmp(config_setting(i)->kind, "SECRET_FILE") != 0 || stat(path, &st) != 0) {
            continue;
        }
        bool is_readable_by_group = st.st_gid != 0 && (st.st_mode & S_IRGRP) != 0;
        if (st.st_uid == 0 && !is_readable_by_group) {
            (void)fprintf(
                stderr,
                "forebay check: warning: %s: only root can read %s, and the packaged unit "
                "runs as another user; give the file a group and mode 0640, and the unit "
                "SupplementaryGroups= (the guide: host.md, A shared host)\n",
                config_setting(i)->key, path);
        }
    }
}

// Says how to check with the variables of the packaged unit, if this environment lacks them.
static void tell_of_unit(const struct config *config)
{
    char name[COMMAND_UNIT_NAME_MAX];
    if (command_unit_differs(config, name)) {
        command_screen_inform(2,
                              "forebay check: " COMMAND_UNIT_VARIABLES
                              " sets %s for the packaged unit alone; to check with it: "
                              "(set -a; . " COMMAND_UNIT_VARIABLES "; forebay check)\n",
                              commands_visible(name, strlen(name)));
    }
}

int command_check(int argc, char **argv)
{
    bool values = commands_argument_take(&argc, argv, "-T");
    bool live = commands_argument_take(&argc, argv, "--live");
    const char *object = commands_argument_take_value(&argc, argv, "--explain");
    bool is_guess;
    struct config *config =
        live ? commands_load_admin(argc, argv, &is_guess) : commands_load_config(argc, argv);
    if (config == NULL) {
        return commands_result(EXIT_CODE_CONFIGURATION, NULL);
    }
    int code = EXIT_CODE_OK;
    warn_of_files_of_root(config);
    if (!live) {
        tell_of_unit(config);
    }
    if (live) {
        code = check_live(config);
    } else if ((code = check_keys(config)) != EXIT_CODE_OK ||
               (code = check_token(config)) != EXIT_CODE_OK ||
               (code = check_files(config, command_certificate_check)) != EXIT_CODE_OK ||
               (code = check_files(config, command_unit_check_access_log)) != EXIT_CODE_OK) {
        // The error has been reported.
    } else if (object != NULL) {
        code = explain(config, object);
    } else if (values) {
        code = print_values(config);
    } else if (!commands_common()->is_json) {
        printf("configuration is valid (%s)\n", config->file != NULL ? config->file : "no file");
    }
    json_t *file = config->file != NULL ? control_text(span_from_cstr(config->file)) : json_null();
    config_free(config);
    if (code == EXIT_CODE_USAGE) { // the error has been reported, with its result
        json_decref(file);
        return code;
    }
    return commands_result(code, json_pack("{s:o}", "file", file));
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
