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
    BUCKET_REQUESTER_PAYS,
    BUCKET_FIELD_COUNT
};

static const struct config_field bucket_fields[BUCKET_FIELD_COUNT] = {
    [BUCKET_NAME] = {"buckets", "name", "bucket name", "", "Name that clients use; required"},
    [BUCKET_ORIGIN] = {"buckets", "origin", "s3://BUCKET or dir:/PATH", "the same name",
                       "Bucket at the endpoint, or a directory"},
    [BUCKET_ENDPOINT] = {"buckets", "endpoint", "URL", "origin.endpoint",
                         "S3 endpoint that has the bucket"},
    [BUCKET_REGION] = {"buckets", "region", "region", "origin.region", "Region for signing"},
    [BUCKET_ADDRESSING] = {"buckets", "addressing", "auto|path|virtual", "origin.addressing",
                           "Bucket in the path or in the host name"},
    [BUCKET_CREDENTIALS] = {"buckets", "credentials", "anonymous, or the files below it",
                            "credentials.source", "Keys for the bucket's origin"},
    [BUCKET_ACCESS_KEY] = {"buckets", "credentials.access_key_file", "file", "",
                           "File with the access key id"},
    [BUCKET_SECRET_KEY] = {"buckets", "credentials.secret_key_file", "file", "",
                           "File with the secret key"},
    [BUCKET_SESSION_TOKEN] = {"buckets", "credentials.session_token_file", "file", "",
                              "File with the session token"},
    [BUCKET_REQUESTER_PAYS] = {"buckets", "requester_pays", "true|false", "false",
                               "Whether the owner of Forebay's keys pays for requests"}};

static void parse_bucket_origin(struct entry *e, struct span value, struct config_bucket *bucket)
{
    char why[WHY_MAX];
    if (span_starts_with(value, SPAN("dir:"))) {
        bucket->kind = CONFIG_BUCKET_DIRECTORY;
        bucket->directory = value.ptr + 4;
        if (report(e, config_value_is_endpoint(value, why), why)) {
            bucket->directory = config_value_endpoint(e->l, value) + 4;
        }
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
        bucket->endpoint = config_value_endpoint(e->l, value);
    }
}

static void parse_secret(struct entry *e, const char **ret_path)
{
    char why[WHY_MAX];
    if (report(e, config_value_is_secret_file(e->l, e->field->value, why), why)) {
        *ret_path = e->field->value;
    }
}

static void parse_bucket_field(struct entry *e, struct config_bucket *bucket)
{
    struct span value = span_from_cstr(e->field->value);
    char why[WHY_MAX];
    unsigned choice;
    const char *names[BUCKET_FIELD_COUNT];
    for (unsigned i = 0; i < BUCKET_FIELD_COUNT; i++) {
        names[i] = bucket_fields[i].name;
    }
    switch ((enum bucket_name)name_index(e->field->name, names, BUCKET_FIELD_COUNT)) {
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
    case BUCKET_REQUESTER_PAYS:
        if (report(e, config_value_parse_choice(value, "false|true", &choice, why), why)) {
            bucket->requester_pays = choice == 1;
        }
        break;
    case BUCKET_FIELD_COUNT:
        unknown_field(e, names, BUCKET_FIELD_COUNT);
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
    bool access = has_field(fields, count, bucket_fields[BUCKET_ACCESS_KEY].name);
    bool secret = has_field(fields, count, bucket_fields[BUCKET_SECRET_KEY].name);
    bool token = has_field(fields, count, bucket_fields[BUCKET_SESSION_TOKEN].name);
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

void config_buckets_judge(struct loader *l)
{
    const struct config *c = l->config;
    for (unsigned i = 0; i < c->bucket_count; i++) {
        const struct config_bucket *bucket = &c->buckets[i];
        bool is_anonymous =
            bucket->anonymous || (bucket->access_key_file == NULL &&
                                  c->credentials_source == CONFIG_CREDENTIALS_ANONYMOUS);
        if (bucket->requester_pays && bucket->kind == CONFIG_BUCKET_DIRECTORY) {
            config_loader_error(l, bucket->source,
                                "requester_pays: nobody pays for a bucket from a directory");
        } else if (bucket->requester_pays && is_anonymous) {
            config_loader_error(l, bucket->source,
                                "requester_pays: the credentials of bucket \"%.200s\" are "
                                "anonymous, and only the owner of keys can pay: set "
                                "access_key_file and secret_key_file",
                                bucket->name);
        }
    }
}

// --- rules ---------------------------------------------------------------------------------------

#define INHERITED (UINT64_MAX) // in a field that the rule lacks, for config_rules_inherit()

// A field of a rule. If the rule lacks it, the value of `setting` applies. A member that is NULL is
// that of the setting.
struct rule_field {
    const char *name;
    enum setting_kind kind;
    const char *accepts, *default_text, *help;
    unsigned setting; // SETTING_COUNT_: no setting; rule_init() sets the default
    size_t offset;    // in struct config_rule
};

#define OWN(name, kind, accepts, default_text, member, help)                                       \
    {                                                                                              \
        name, KIND_##kind, accepts, default_text, help, SETTING_COUNT_,                            \
            offsetof(struct config_rule, member)                                                   \
    }
#define SHARED(name, kind, setting, member, help)                                                  \
    {                                                                                              \
        name, KIND_##kind, NULL, NULL, help, SETTING_##setting,                                    \
            offsetof(struct config_rule, member)                                                   \
    }
static const struct rule_field rule_fields[] = {
    OWN("match", TEXT, "pattern", "", match,
        "BUCKET/KEY: `*` within a segment, `**` across, `?` one byte, `{a,b}`; required"),
    OWN("cache", BOOL, "true|false", "true", cache, "Whether objects are stored, and read from it"),
    OWN("freshness", CHOICE, "ttl|immutable|strict", "ttl", freshness,
        "When the origin is asked whether a cached object is current: after ttl, never, or at each "
        "use"),
    SHARED("ttl", MS, cache_ttl_ms, ttl_ms,
           "How long an object is served without asking the origin, with freshness ttl"),
    SHARED("list_ttl", MS, cache_list_ttl_ms, list_ttl_ms, NULL),
    SHARED("stale_if_error", MS, cache_stale_if_error_ms, stale_if_error_ms, NULL),
    SHARED("block_size", BLOCK_SIZE, cache_block_size_bytes, block_size_bytes, NULL),
    SHARED("max_object_size", BYTES, cache_max_object_size_bytes, max_object_size_bytes, NULL),
    SHARED("readahead", BYTES, cache_readahead_bytes, readahead_bytes, NULL),
    OWN("priority", COUNT, "0..9", "5", priority,
        "Each step doubles what objects are worth to a full cache"),
    OWN("pin", BOOL, "true|false", "false", pin,
        "Whether what was read stays in a full cache; not with share"),
    OWN("share", PERCENT, "1%..100%", "", share_percent,
        "Largest share of a full cache; not with pin"),
};

static uint64_t *shared_value(const struct rule_field *f, struct config_rule *rule)
{
    check(f->setting < SETTING_COUNT_);
    return (uint64_t *)(void *)((char *)rule + f->offset);
}

static void rule_init(struct config_rule *rule, const char *where)
{
    *rule = (struct config_rule){.cache = true,
                                 .freshness = CONFIG_FRESHNESS_TTL,
                                 .priority = CONFIG_PRIORITY_NORMAL,
                                 .source = where};
    for (unsigned i = 0; i < ARRAY_LEN(rule_fields); i++) {
        if (rule_fields[i].setting < SETTING_COUNT_) {
            *shared_value(&rule_fields[i], rule) = INHERITED;
        }
    }
}

static void rule_inherit(struct config_rule *rule, const struct config *c)
{
    for (unsigned i = 0; i < ARRAY_LEN(rule_fields); i++) {
        const struct rule_field *f = &rule_fields[i];
        if (f->setting < SETTING_COUNT_ && *shared_value(f, rule) == INHERITED) {
            size_t offset = settings_row(f->setting)->offset;
            memcpy(shared_value(f, rule), (const char *)c + offset, sizeof(uint64_t));
        }
    }
}

void config_rules_inherit(struct loader *l)
{
    struct config *c = l->config;
    rule_init(&c->default_rule, "default");
    c->default_rule.match = "**";
    rule_inherit(&c->default_rule, c);
    for (unsigned i = 0; i < c->rule_count; i++) {
        rule_inherit(&l->rules[i], c);
    }
}

static const char *rule_accepts(const struct rule_field *f)
{
    return f->accepts != NULL ? f->accepts : settings_row(f->setting)->public_.accepts;
}

static void parse_rule_field(struct entry *e, struct config_rule *rule)
{
    const char *names[ARRAY_LEN(rule_fields)];
    for (unsigned i = 0; i < ARRAY_LEN(names); i++) {
        names[i] = rule_fields[i].name;
    }
    unsigned at = name_index(e->field->name, names, ARRAY_LEN(names));
    if (at == ARRAY_LEN(names)) {
        unknown_field(e, names, ARRAY_LEN(names));
        return;
    }
    const struct rule_field *f = &rule_fields[at];
    struct setting row = {.kind = f->kind, .public_.accepts = rule_accepts(f)};
    char why[WHY_MAX];
    struct span value = span_from_cstr(e->field->value);
    bool ok = (f->kind != KIND_TEXT || config_value_is_glob(value, why)) &&
              config_value_parse(e->l, &row, value, (char *)rule + f->offset, why);
    (void)report(e, ok, why); // counts an error, so the load fails
}

void config_rule_parse(struct loader *l, const char *where, const struct bucket_field *fields,
                       unsigned count, struct config_rule *rule)
{
    rule_init(rule, where);
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

// --- for people ----------------------------------------------------------------------------------

unsigned config_field_count(void)
{
    return ARRAY_LEN(rule_fields) + BUCKET_FIELD_COUNT;
}

struct config_field config_field(unsigned i)
{
    if (i >= ARRAY_LEN(rule_fields)) {
        check(i < config_field_count());
        return bucket_fields[i - ARRAY_LEN(rule_fields)];
    }
    const struct rule_field *f = &rule_fields[i];
    const struct config_setting *setting =
        f->setting < SETTING_COUNT_ ? &settings_row(f->setting)->public_ : NULL;
    return (struct config_field){
        .list = "rules",
        .name = f->name,
        .accepts = rule_accepts(f),
        .default_text = setting != NULL ? setting->key : f->default_text,
        .help = f->help != NULL ? f->help : setting->help,
    };
}

const struct config_list *config_list(unsigned i)
{
    static const struct config_list lists[] = {
        {"rules", "Settings of some objects; the first rule that matches bucket/key decides",
         "rules:\n  - match: \"imagenet/**\"\n    freshness: immutable"},
        {"buckets", "Buckets that do not keep their name at origin.endpoint",
         "buckets:\n  - name: imagenet\n    origin: s3://company-imagenet"}};
    return i < ARRAY_LEN(lists) ? &lists[i] : NULL;
}

const struct config_list *config_list_of(struct span key)
{
    const struct config_list *list = NULL;
    for (unsigned i = 0; (list = config_list(i)) != NULL; i++) {
        size_t len = strlen(list->name);
        if (span_starts_with(key, span_from_cstr(list->name)) &&
            (key.len == len || key.ptr[len] == '.' || key.ptr[len] == '[')) {
            break;
        }
    }
    return list;
}
