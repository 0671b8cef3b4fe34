// SPDX-License-Identifier: Apache-2.0
#include "server/command_settings.h"

#include <stdlib.h>

#include "control/control.h"
#include "proxy/proxy.h"

static json_t *text_json(const char *text)
{
    return control_text(span_from_cstr(text != NULL ? text : ""));
}

json_t *command_settings_row(const struct config *config, unsigned i)
{
    const struct config_setting *setting = config_setting(i);
    json_t *json = json_pack("{s:s, s:o, s:o, s:s}", "key", setting->key, "value",
                             text_json(config_value_text(config, i)), "source",
                             text_json(config_source_text(config, i)), "reload",
                             setting->live ? "live" : "restart");
    check(json != NULL);
    return json;
}

static json_t *fields_json(const struct config_entry *fields)
{
    json_t *json = json_object();
    check(json != NULL);
    for (unsigned i = 0; i < fields->count; i++) {
        json_t *value = text_json(fields->items[i].value);
        check(json_object_set_new(json, fields->items[i].name, value) == 0);
    }
    return json;
}

json_t *command_settings_bucket(const struct config *config, unsigned i)
{
    const struct config_bucket *bucket = &config->buckets[i];
    bool is_directory = bucket->kind == CONFIG_BUCKET_DIRECTORY;
    struct buf origin;
    buf_init(&origin, 8192);
    buf_printf(&origin, "%s%s", is_directory ? "dir:" : "s3://",
               is_directory ? bucket->directory : bucket->origin_bucket);
    json_t *json = json_pack("{s:o, s:o, s:o, s:o}", "name", text_json(bucket->name), "origin",
                             control_text(buf_span(&origin)), "source", text_json(bucket->source),
                             "fields", fields_json(&bucket->fields));
    check(json != NULL);
    buf_done(&origin);
    return json;
}

json_t *command_settings_rule(const struct config *config, unsigned i)
{
    const struct config_rule *rule = &config->rules[i];
    json_t *json = json_pack("{s:o, s:o, s:o}", "match", text_json(rule->match), "source",
                             text_json(rule->source), "fields", fields_json(&rule->fields));
    check(json != NULL);
    return json;
}

static void append_row(struct buf *out, json_t *json, const char *before)
{
    buf_printf(out, "%s\n", before);
    admin_json_append(out, json);
}

void command_settings_render(struct buf *out, const struct config *first,
                             const struct config *latest)
{
    buf_append_cstr(out, "{\"settings\": [");
    for (unsigned i = 0; i < config_setting_count(); i++) {
        const struct config *config = config_setting(i)->live ? latest : first;
        append_row(out, command_settings_row(config, i), i > 0 ? "," : "");
    }
    buf_append_cstr(out, "],\n\"buckets\": [");
    for (unsigned i = 0; i < latest->bucket_count; i++) {
        append_row(out, command_settings_bucket(latest, i), i > 0 ? "," : "");
    }
    buf_append_cstr(out, "],\n\"rules\": [");
    for (unsigned i = 0; i < latest->rule_count; i++) {
        append_row(out, command_settings_rule(latest, i), i > 0 ? "," : "");
    }
    buf_append_cstr(out, "]}\n");
}

const char *command_settings_access_log(const struct config *c)
{
    return strcmp(c->access_log_path, "off") == 0      ? NULL
           : strcmp(c->access_log_path, "stdout") == 0 ? "-"
                                                       : c->access_log_path;
}

enum err command_settings_check_access_log(const struct config *c, struct buf *ret_why)
{
    return proxy_access_log_check(command_settings_access_log(c), ret_why);
}
