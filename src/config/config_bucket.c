// SPDX-License-Identifier: Apache-2.0
// Converts entries of buckets[] and rules[] from named fields to structs. One thread.
#include "config/config_private.h"

#include <string.h>

struct entry {
    struct loader *l;
    const struct bucket_field *field; // the field being parsed
    const char *list;                 // "buckets" or "rules"
};

static bool report(struct entry *e, bool ok, const char *why)
{
    if (!ok) {
        config_loader_error(e->l, e->field->where, "%s[].%s: %s", e->list, e->field->name, why);
    }
    return ok;
}

static void unknown_field(struct entry *e, const char *const *names, unsigned count)
{
    const char *near = settings_suggest(span_from_cstr(e->field->name), names, count);
    if (near != NULL) {
        config_loader_error(e->l, e->field->key_where,
                            "unknown field \"%.64s\" of %s[] (did you mean \"%s\"?)",
                            e->field->name, e->list, near);
    } else {
        config_loader_error(e->l, e->field->key_where, "unknown field \"%.64s\" of %s[]",
                            e->field->name, e->list);
    }
}

static unsigned name_index(const char *name, const char *const *names, unsigned count)
{
    unsigned i = 0;
    while (i < count && strcmp(name, names[i]) != 0) {
        i++;
    }
    return i;
}

// --- buckets -------------------------------------------------------------------------------------

enum bucket_name {
    BUCKET_NAME,
    BUCKET_ORIGIN,
    BUCKET_ENDPOINT,
    BUCKET_REGION,
    BUCKET_ADDRESSING,
    BUCKET_CREDENTIALS,
    BUCKET_ACCESS_KEY,
    BUCKET_SECRET_KEY,
    BUCKET_SESSION_TOKEN,
    BUCKET_FIELD_COUNT
};

static const char *const bucket_names[BUCKET_FIELD_COUNT] = {"name",
                                                             "origin",
                                                             "endpoint",
                                                             "region",
                                                             "addressing",
                                                             "credentials",
                                                             "credentials.access_key_file",
                                                             "credentials.secret_key_file",
                                                             "credentials.session_token_file"};

static void parse_bucket_origin(struct entry *e, struct span value, struct config_bucket *bucket)
{
    char why[WHY_MAX];
    if (span_starts_with(value, SPAN("dir:"))) {
        bucket->kind = CONFIG_BUCKET_DIRECTORY;
        bucket->directory = value.ptr + 4;
        (void)report(e, config_value_is_endpoint(value, why),
                     why); // the load fails because errors are counted
    } else if (span_starts_with(value, SPAN("s3://")) && value.len > 5 &&
               span_find((struct span){value.ptr + 5, value.len - 5}, '/') == value.len - 5) {
        bucket->origin_bucket = value.ptr + 5;
    } else {
        (void)report(e, false, "must be s3://BUCKET or dir:/PATH");
    }
}

static void parse_bucket_endpoint(struct entry *e, struct span value, struct config_bucket *bucket)
{
    char why[WHY_MAX];
    if (report(e, config_value_is_endpoint(value, why), why) &&
        report(e, !span_starts_with(value, SPAN("dir:")),
               "write dir:/PATH as the bucket's origin")) {
        bucket->endpoint = value.ptr;
    }
}

static void parse_secret(struct entry *e, const char **ret_path)
{
    char why[WHY_MAX];
    if (report(e, config_value_is_secret_file(e->field->value, why), why)) {
        *ret_path = e->field->value;
    }
}

static void parse_bucket_field(struct entry *e, struct config_bucket *bucket)
{
    struct span value = span_from_cstr(e->field->value);
    char why[WHY_MAX];
    unsigned choice;
    switch ((enum bucket_name)name_index(e->field->name, bucket_names, BUCKET_FIELD_COUNT)) {
    case BUCKET_NAME:
        if (report(e, value.len >= 1 && value.len <= 255 && span_find(value, '/') == value.len,
                   "is not a bucket name")) {
            bucket->name = value.ptr;
        }
        break;
    case BUCKET_ORIGIN:
        parse_bucket_origin(e, value, bucket);
        break;
    case BUCKET_ENDPOINT:
        parse_bucket_endpoint(e, value, bucket);
        break;
    case BUCKET_REGION:
        bucket->region = value.ptr;
        break;
    case BUCKET_ADDRESSING:
        if (report(e, config_value_parse_choice(value, "auto|path|virtual", &choice, why), why)) {
            bucket->addressing = (enum config_addressing)choice;
            bucket->has_addressing = true;
        }
        break;
    case BUCKET_CREDENTIALS:
        bucket->anonymous =
            report(e, span_equal(value, SPAN("anonymous")),
                   "must be anonymous, or access_key_file and secret_key_file below it");
        break;
    case BUCKET_ACCESS_KEY:
        parse_secret(e, &bucket->access_key_file);
        break;
    case BUCKET_SECRET_KEY:
        parse_secret(e, &bucket->secret_key_file);
        break;
    case BUCKET_SESSION_TOKEN:
        parse_secret(e, &bucket->session_token_file);
        break;
    case BUCKET_FIELD_COUNT:
        unknown_field(e, bucket_names, BUCKET_FIELD_COUNT);
        break;
    }
}

static bool has_field(const struct bucket_field *fields, unsigned count, const char *name)
{
    for (unsigned i = 0; i < count; i++) {
        if (strcmp(fields[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

void config_bucket_parse(struct loader *l, const char *where, const struct bucket_field *fields,
                         unsigned count, struct config_bucket *bucket)
{
    bucket->source = where;
    for (unsigned i = 0; i < count; i++) {
        struct entry e = {l, &fields[i], "buckets"};
        parse_bucket_field(&e, bucket);
    }
    if (!has_field(fields, count, "name")) {
        config_loader_error(l, where, "an entry of buckets needs a name");
        return;
    }
    bool access = has_field(fields, count, bucket_names[BUCKET_ACCESS_KEY]);
    bool secret = has_field(fields, count, bucket_names[BUCKET_SECRET_KEY]);
    bool token = has_field(fields, count, bucket_names[BUCKET_SESSION_TOKEN]);
    if (access != secret || (token && !access)) {
        config_loader_error(l, where, "credentials need access_key_file and secret_key_file");
    }
    if (bucket->kind == CONFIG_BUCKET_DIRECTORY &&
        (bucket->endpoint != NULL || bucket->region != NULL || bucket->has_addressing ||
         bucket->anonymous || access)) {
        config_loader_error(l, where,
                            "a bucket from a directory has neither endpoint, region, addressing "
                            "nor credentials");
    }
    if (bucket->kind == CONFIG_BUCKET_S3 && bucket->origin_bucket == NULL) {
        bucket->origin_bucket = bucket->name;
    }
}

// --- rules ---------------------------------------------------------------------------------------

enum rule_name {
    RULE_MATCH,
    RULE_CACHE,
    RULE_FRESHNESS,
    RULE_TTL,
    RULE_LIST_TTL,
    RULE_STALE_IF_ERROR,
    RULE_BLOCK_SIZE,
    RULE_MAX_OBJECT_SIZE,
    RULE_READAHEAD,
    RULE_PRIORITY,
    RULE_PIN,
    RULE_SHARE,
    RULE_FIELD_COUNT
};

static const char *const rule_names[RULE_FIELD_COUNT] = {
    "match",      "cache",           "freshness", "ttl",      "list_ttl", "stale_if_error",
    "block_size", "max_object_size", "readahead", "priority", "pin",      "share"};

#define RULE_PRIORITIES "0..9"
#define RULE_SHARES "1%..100%"

static void parse_rule_time(struct entry *e, bool *ret_has, uint64_t *ret_ms)
{
    char why[WHY_MAX];
    struct span value = span_from_cstr(e->field->value);
    uint64_t ms = 0;
    bool ok = config_value_parse_ms(value, &ms, why) &&
              config_value_in_range(KIND_MS, settings_row(SETTING_cache_ttl_ms)->public_.accepts,
                                    value, ms, why);
    if (report(e, ok, why)) {
        *ret_has = true;
        *ret_ms = ms;
    }
}

static void parse_rule_readahead(struct entry *e, struct config_rule *rule)
{
    char why[WHY_MAX];
    struct span value = span_from_cstr(e->field->value);
    uint64_t bytes = 0;
    bool ok = config_value_parse_bytes(value, &bytes, why) &&
              config_value_in_range(KIND_BYTES,
                                    settings_row(SETTING_cache_readahead_bytes)->public_.accepts,
                                    value, bytes, why);
    if (report(e, ok, why)) {
        rule->has_readahead = true;
        rule->readahead_bytes = bytes;
    }
}

static void parse_rule_priority(struct entry *e, struct config_rule *rule)
{
    char why[WHY_MAX];
    struct span value = span_from_cstr(e->field->value);
    uint64_t priority = 0;
    bool ok = config_value_parse_count(value, &priority, why) &&
              config_value_in_range(KIND_COUNT, RULE_PRIORITIES, value, priority, why);
    if (report(e, ok, why)) {
        rule->has_priority = true;
        rule->priority = (unsigned)priority;
    }
}

static void parse_rule_pin(struct entry *e, struct config_rule *rule)
{
    char why[WHY_MAX];
    unsigned choice = 1;
    struct span value = span_from_cstr(e->field->value);
    rule->pin =
        report(e, config_value_parse_choice(value, "true|false", &choice, why), why) && choice == 0;
}

static void parse_rule_share(struct entry *e, struct config_rule *rule)
{
    char why[WHY_MAX];
    unsigned percent = 0;
    struct span value = span_from_cstr(e->field->value);
    bool ok = config_value_parse_percent(value, &percent, why) &&
              config_value_in_range(KIND_PERCENT, RULE_SHARES, value, percent, why);
    rule->share_percent = report(e, ok, why) ? percent : 0;
}

static void parse_rule_field(struct entry *e, struct config_rule *rule)
{
    struct span value = span_from_cstr(e->field->value);
    char why[WHY_MAX];
    unsigned choice;
    switch ((enum rule_name)name_index(e->field->name, rule_names, RULE_FIELD_COUNT)) {
    case RULE_MATCH:
        if (report(e, config_value_is_glob(value, why), why)) {
            rule->match = value.ptr;
        }
        break;
    case RULE_CACHE:
        rule->has_cache =
            report(e, config_value_parse_choice(value, "true|false", &choice, why), why);
        rule->cache = rule->has_cache && choice == 0;
        break;
    case RULE_FRESHNESS:
        rule->has_freshness =
            report(e, config_value_parse_choice(value, "ttl|immutable|strict", &choice, why), why);
        rule->freshness =
            rule->has_freshness ? (enum config_freshness)choice : CONFIG_FRESHNESS_TTL;
        break;
    case RULE_TTL:
        parse_rule_time(e, &rule->has_ttl, &rule->ttl_ms);
        break;
    case RULE_LIST_TTL:
        parse_rule_time(e, &rule->has_list_ttl, &rule->list_ttl_ms);
        break;
    case RULE_STALE_IF_ERROR:
        parse_rule_time(e, &rule->has_stale_if_error, &rule->stale_if_error_ms);
        break;
    case RULE_BLOCK_SIZE:
        rule->has_block_size =
            report(e, config_value_parse_block_size(value, &rule->block_size_bytes, why), why);
        break;
    case RULE_MAX_OBJECT_SIZE:
        rule->has_max_object_size =
            report(e, config_value_parse_bytes(value, &rule->max_object_size_bytes, why), why);
        break;
    case RULE_READAHEAD:
        parse_rule_readahead(e, rule);
        break;
    case RULE_PRIORITY:
        parse_rule_priority(e, rule);
        break;
    case RULE_PIN:
        parse_rule_pin(e, rule);
        break;
    case RULE_SHARE:
        parse_rule_share(e, rule);
        break;
    case RULE_FIELD_COUNT:
        unknown_field(e, rule_names, RULE_FIELD_COUNT);
        break;
    }
}

void config_rule_parse(struct loader *l, const char *where, const struct bucket_field *fields,
                       unsigned count, struct config_rule *rule)
{
    rule->source = where;
    for (unsigned i = 0; i < count; i++) {
        struct entry e = {l, &fields[i], "rules"};
        parse_rule_field(&e, rule);
    }
    if (!has_field(fields, count, "match")) {
        config_loader_error(l, where, "an entry of rules needs a match");
    }
    if (rule->pin && rule->share_percent > 0) {
        config_loader_error(l, where, "a rule has a pin or a share, not both");
    }
}
