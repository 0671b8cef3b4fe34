// SPDX-License-Identifier: Apache-2.0
// Renders the table of settings: a sample file, a JSON Schema, a Markdown table. Pure; any thread.
#include "config/config_private.h"

#include <stdio.h>
#include <string.h>

// Returns the section of a key: "cache" for "cache.size". Empty if the key has no dot.
static struct span section_of(const char *key)
{
    struct span s = span_from_cstr(key);
    size_t dot = span_find(s, '.');
    return (struct span){key, dot < s.len ? dot : 0};
}

static const char *leaf_of(const char *key)
{
    const char *dot = strchr(key, '.');
    return dot != NULL ? dot + 1 : key;
}

// --- Sample file ---------------------------------------------------------------------------------

static const char sample_head[] =
    "# Settings of forebay, each with its default: remove a '#' to change one.\n"
    "# The same keys work as flags (--cache.size 1TiB) and in the environment "
    "(FOREBAY_CACHE_SIZE).\n"
    "# A flag is stronger than the environment, the environment than this file.\n"
    "# Examples may be appended: a section without any key, as those below, does not count.\n";

static const char sample_tail[] =
    "\n"
    "# Buckets that do not keep their name at origin.endpoint.\n"
    "#buckets:\n"
    "#  - name: imagenet\n"
    "#    origin: s3://company-imagenet     # or dir:/PATH; default: the same name\n"
    "#    endpoint: https://s3.example.com  # default: origin.endpoint\n"
    "#    region: eu-central-1              # default: origin.region\n"
    "#    addressing: path                  # default: origin.addressing\n"
    "#    credentials:                      # or: anonymous; default: credentials.*\n"
    "#      access_key_file: /run/secrets/access_key\n"
    "#      secret_key_file: /run/secrets/secret_key\n"
    "#      session_token_file: /run/secrets/session_token\n"
    "#    requester_pays: true              # its reads are paid by the owner of Forebay's keys\n"
    "\n"
    "# The first rule that matches bucket/key decides: '*' within a segment, '**' across, '?', "
    "{a,b}.\n"
    "# Data that never changes wants immutable: otherwise each object is asked about every "
    "cache.ttl.\n"
    "#rules:\n"
    "#  - match: \"imagenet/**\"\n"
    "#    freshness: immutable              # or ttl, strict\n"
    "#    block_size: 256KiB\n"
    "#  - match: \"checkpoints/**\"\n"
    "#    cache: false\n"
    "#  - match: \"features/**\"             # pieces of large objects in any order\n"
    "#    readahead: 0\n"
    "#    priority: 7                       # 0 to 9, default 5: a full cache evicts these last\n"
    "#  - match: \"eval/**\"\n"
    "#    pin: true                         # what was read of them stays\n"
    "#  - match: \"scratch/**\"\n"
    "#    share: 10%                        # limit of their share of a full cache\n"
    "#  - match: \"tables/**\"\n"
    "#    ttl: 5m\n"
    "#    list_ttl: 10s\n"
    "#    stale_if_error: 0s\n"
    "#    max_object_size: 1GiB\n";

static void render_sample_row(struct buf *out, const struct setting *row)
{
    const char *indent = section_of(row->public_.key).len > 0 ? "  " : "";
    const char *text = row->public_.default_text;
    buf_printf(out, "%s# %s (%s)\n%s#%s: ", indent, row->public_.help, row->public_.accepts, indent,
               leaf_of(row->public_.key));
    if (settings_is_list(row->kind)) {
        buf_printf(out, "[%s]\n", text);
    } else {
        buf_printf(out, "%s\n", text[0] != '\0' ? text : "\"\"");
    }
}

// Writes the sections in the order of the table. A key without a section is written between them,
// at its own place in the table.
void config_render_sample(struct buf *out)
{
    struct span section = {"", 0};
    buf_append_cstr(out, sample_head);
    for (unsigned id = 0; id < SETTING_COUNT_; id++) {
        const struct setting *row = settings_row(id);
        struct span own = section_of(row->public_.key);
        if (own.len == 0) {
            buf_append_char(out, '\n');
        } else if (!span_equal(own, section)) {
            buf_printf(out, "\n%.*s:\n", (int)own.len, own.ptr);
        }
        section = own;
        render_sample_row(out, row);
    }
    buf_append_cstr(out, sample_tail);
}

// --- JSON Schema ---------------------------------------------------------------------------------

#define PATTERN_NUMBER "[0-9]+([.][0-9]+)?"
#define PATTERN_TIME "^" PATTERN_NUMBER "(ms|s|m|h|d)$"
#define PATTERN_UNIT "(B|[KMGTPE]iB|[KMGTP]B)"
#define PATTERN_SIZE "^([0-9]+|" PATTERN_NUMBER PATTERN_UNIT ")$"
#define PATTERN_WEB "^[^:]+://[^/?#@* ]+$"
// An address in brackets, or printable ASCII without ", #, /, :, ?, @ and brackets
#define PATTERN_HOST "(\\\\[[0-9A-Fa-f:.]+\\\\]|[!$-.0-9;->A-Z^-~]+)"
#define PATTERN_PORT ":0*[1-9][0-9]{0,4}"
#define PATTERN_URL "https?://" PATTERN_HOST "(" PATTERN_PORT ")?(/[!$->A-~]*)?"

static void render_json_text(struct buf *out, const char *text)
{
    buf_append_char(out, '"');
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') {
            buf_append_char(out, '\\');
        }
        buf_append_char(out, *text);
    }
    buf_append_char(out, '"');
}

static void render_enum(struct buf *out, const char *choices)
{
    struct span rest = span_from_cstr(choices), piece;
    const char *comma = "";
    buf_append_cstr(out, "\"enum\": [");
    while (span_split(&rest, '|', &piece)) {
        buf_printf(out, "%s\"%.*s\"", comma, (int)piece.len, piece.ptr);
        comma = ", ";
    }
    // YAML reads 1.1 as a number, and on or off as a boolean, so the schema accepts these too.
    if (strcmp(choices, "1.1") == 0) {
        buf_append_cstr(out, ", 1.1");
    } else if (strstr(choices, "off") != NULL) {
        buf_append_cstr(out, strstr(choices, "on") != NULL ? ", true, false" : ", false");
    }
    buf_append_cstr(out, "]");
}

#define TYPE_PATTERN(type, pattern) "\"type\": " type ", \"pattern\": \"" pattern "\""
#define TYPE_TEXT_OR_NUMBER "[\"string\", \"integer\"]"
#define TYPE_TEXTS "\"type\": [\"string\", \"array\"], \"items\": {\"type\": \"string\"}"
#define TYPE_TEXT "\"type\": [\"string\", \"boolean\"]" // YAML reads `off` as false

static const char *const types[] = {
    [KIND_TEXT] = TYPE_TEXT,
    [KIND_SECRET_FILE] = TYPE_TEXT,
    [KIND_ADDRESS] = TYPE_TEXT,
    [KIND_TEXTS] = TYPE_TEXTS,
    [KIND_LISTENS] = TYPE_TEXTS,
    [KIND_BOOL] = "\"type\": \"boolean\"",
    [KIND_MS] = TYPE_PATTERN("\"string\"", PATTERN_TIME),
    [KIND_BYTES] = TYPE_PATTERN(TYPE_TEXT_OR_NUMBER, PATTERN_SIZE),
    [KIND_BLOCK_SIZE] = TYPE_PATTERN(TYPE_TEXT_OR_NUMBER, PATTERN_SIZE),
    [KIND_BYTES_AUTO] = TYPE_PATTERN(TYPE_TEXT_OR_NUMBER, "^auto$|" PATTERN_SIZE),
    [KIND_SIZE] = TYPE_PATTERN(TYPE_TEXT_OR_NUMBER, "^[0-9]+%$|" PATTERN_SIZE),
    [KIND_RATE] =
        TYPE_PATTERN(TYPE_TEXT_OR_NUMBER, "^0$|^([0-9]+|" PATTERN_NUMBER PATTERN_UNIT ")/s$"),
    [KIND_PERCENT] = TYPE_PATTERN("\"string\"", "^[0-9]+%$"),
    [KIND_RATIO] = "\"type\": \"number\", \"minimum\": 0, \"maximum\": 1"};

// Texts that config.c checks, so their kind does not say what they accept. The pattern of the proxy
// accepts a user and a password, because validators print a text that does not match.
static const char *const texts[SETTING_COUNT_] = {
    [SETTING_origin_endpoint] =
        "\"type\": \"string\", \"pattern\": \"^(" PATTERN_URL "|dir:/.*)$\"",
    [SETTING_origin_proxy] =
        "\"type\": \"string\", \"pattern\": \"^(http://([^/?# ,]*@)?" PATTERN_HOST PATTERN_PORT
        ")?$\"",
    [SETTING_auth_allowed_origins] =
        "\"type\": [\"string\", \"array\"], \"pattern\": \"" PATTERN_WEB
        "\", \"items\": {\"type\": \"string\", \"pattern\": \"" PATTERN_WEB "\"}"};

static void render_integer(struct buf *out, const char *accepts)
{
    struct span low = {accepts, span_find(span_from_cstr(accepts), '.')};
    buf_printf(out, "\"type\": \"integer\", \"minimum\": %.*s, \"maximum\": %s", (int)low.len,
               low.ptr, low.ptr + low.len + 2);
}

static void render_type(struct buf *out, const struct setting *row)
{
    unsigned id = settings_find(span_from_cstr(row->public_.key));
    if (texts[id] != NULL) {
        buf_append_cstr(out, texts[id]);
    } else if (row->kind == KIND_CHOICE) {
        render_enum(out, row->public_.accepts);
    } else if (row->kind == KIND_COUNT) {
        render_integer(out, row->public_.accepts);
    } else if (row->kind == KIND_COUNT_AUTO) {
        buf_append_cstr(out, "\"anyOf\": [{");
        render_integer(out, row->public_.accepts);
        buf_append_cstr(out, "}, {\"const\": \"auto\"}]");
    } else {
        buf_append_cstr(out, types[row->kind]);
    }
}

static void render_schema_row(struct buf *out, const struct setting *row, const char *indent)
{
    buf_append_cstr(out, indent);
    render_json_text(out, leaf_of(row->public_.key));
    buf_append_cstr(out, ": {");
    render_type(out, row);
    buf_append_cstr(out, ", \"description\": ");
    render_json_text(out, row->public_.help);
    buf_append_cstr(out, ", \"default\": ");
    render_json_text(out, row->public_.default_text);
    buf_append_char(out, '}');
}

static const char schema_lists[] =
    "    \"buckets\": {\"type\": [\"array\", \"null\"], \"items\": {\"type\": \"object\",\n"
    "      \"additionalProperties\": false, \"required\": [\"name\"], \"properties\": {\n"
    "        \"name\": {\"type\": \"string\", \"pattern\": \"^[^/]{1,255}$\"},\n"
    "        \"origin\": {\"type\": \"string\", \"pattern\": \"^(s3://[^/]+|dir:/.*)$\"},\n"
    "        \"endpoint\": {\"type\": \"string\", \"pattern\": \"^" PATTERN_URL "$\"},\n"
    "        \"region\": {\"type\": \"string\"},\n"
    "        \"addressing\": {\"enum\": [\"auto\", \"path\", \"virtual\"]},\n"
    "        \"credentials\": {\"anyOf\": [{\"const\": \"anonymous\"}, {\"type\": \"object\",\n"
    "          \"additionalProperties\": false, \"required\": [\"access_key_file\", "
    "\"secret_key_file\"],\n"
    "          \"properties\": {\"access_key_file\": {\"type\": \"string\"},\n"
    "            \"secret_key_file\": {\"type\": \"string\"},\n"
    "            \"session_token_file\": {\"type\": \"string\"}}}]},\n"
    "        \"requester_pays\": {\"type\": \"boolean\"}},\n"
    "      \"if\": {\"required\": [\"origin\"], "
    "\"properties\": {\"origin\": {\"pattern\": \"^dir:\"}}},\n"
    "      \"then\": {\"properties\": {\"endpoint\": false, \"region\": false,\n"
    "        \"addressing\": false, \"credentials\": false}}}},\n"
    "    \"rules\": {\"type\": [\"array\", \"null\"], \"items\": {\"type\": \"object\",\n"
    "      \"additionalProperties\": false, \"required\": [\"match\"], \"properties\": {\n"
    "        \"match\": {\"type\": \"string\", \"pattern\": "
    "\"^([^{}\\\\\\\\]|\\\\\\\\.|[{]([^{}\\\\\\\\]|\\\\\\\\.)*[}])+$\"}, \"cache\": {\"type\": "
    "\"boolean\"},\n"
    "        \"freshness\": {\"enum\": [\"ttl\", \"immutable\", \"strict\"]},\n"
    "        \"ttl\": {\"type\": \"string\", \"pattern\": \"" PATTERN_TIME "\"},\n"
    "        \"list_ttl\": {\"type\": \"string\", \"pattern\": \"" PATTERN_TIME "\"},\n"
    "        \"stale_if_error\": {\"type\": \"string\", \"pattern\": \"" PATTERN_TIME "\"},\n"
    "        \"block_size\": {\"type\": [\"string\", \"integer\"], \"pattern\": \"" PATTERN_SIZE
    "\"},\n"
    "        \"max_object_size\": {\"type\": [\"string\", \"integer\"], \"pattern\": "
    "\"" PATTERN_SIZE "\"},\n"
    "        \"readahead\": {\"type\": [\"string\", \"integer\"], \"pattern\": "
    "\"" PATTERN_SIZE "\"},\n"
    "        \"priority\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 9},\n"
    "        \"pin\": {\"type\": \"boolean\"},\n"
    "        \"share\": {\"type\": \"string\", \"pattern\": \"^(100|[1-9][0-9]?)%$\"}}}}\n";

void config_render_schema(struct buf *out)
{
    struct span section = {"", 0};
    buf_append_cstr(out, "{\n  \"$schema\": \"http://json-schema.org/draft-07/schema#\",\n"
                         "  \"title\": \"forebay.yaml\",\n  \"type\": \"object\",\n"
                         "  \"additionalProperties\": false,\n  \"properties\": {\n");
    for (unsigned id = 0; id < SETTING_COUNT_; id++) {
        const struct setting *row = settings_row(id);
        struct span own = section_of(row->public_.key);
        if (section.len > 0 && !span_equal(own, section)) {
            buf_append_cstr(out, "\n    }},\n");
        }
        if (own.len > 0 && !span_equal(own, section)) {
            buf_printf(out,
                       "    \"%.*s\": {\"type\": [\"object\", \"null\"], "
                       "\"additionalProperties\": false, \"properties\": {\n",
                       (int)own.len, own.ptr);
        } else if (own.len > 0) {
            buf_append_cstr(out, ",\n");
        }
        section = own;
        render_schema_row(out, row, own.len > 0 ? "      " : "    ");
        if (own.len == 0) {
            buf_append_cstr(out, ",\n");
        }
    }
    if (section.len > 0) {
        buf_append_cstr(out, "\n    }},\n");
    }
    buf_append_cstr(out, schema_lists);
    buf_append_cstr(out, "  }\n}\n");
}

// --- Markdown ------------------------------------------------------------------------------------

static void render_docs_accepts(struct buf *out, const char *accepts)
{
    for (; *accepts != '\0'; accepts++) {
        if (*accepts == '|') {
            buf_append_cstr(out, ", ");
        } else {
            buf_append_char(out, *accepts);
        }
    }
}

static void render_docs_row(struct buf *out, const char *key, const char *default_text,
                            const char *accepts, bool is_live, const char *help)
{
    bool has_default = default_text[0] != '\0';
    buf_printf(out, "| `%s` | %s%s%s | ", key, has_default ? "`" : "",
               has_default ? default_text : "none", has_default ? "`" : "");
    render_docs_accepts(out, accepts);
    buf_printf(out, " | %s | %s |\n", is_live ? "reload" : "restart", help);
}

static void render_docs_lists(struct buf *out)
{
    const struct config_list *list;
    char key[CONFIG_NAME_MAX];
    for (unsigned i = 0; (list = config_list(i)) != NULL; i++) {
        (void)snprintf(key, sizeof(key), "%s[]", list->name);
        render_docs_row(out, key, "", "list, in the file only", true, list->help);
        for (unsigned k = 0; k < config_field_count(); k++) {
            const struct config_field field = config_field(k);
            if (strcmp(field.list, list->name) == 0) {
                (void)snprintf(key, sizeof(key), "%s[].%s", list->name, field.name);
                render_docs_row(out, key, field.default_text, field.accepts, true, field.help);
            }
        }
    }
}

void config_render_docs(struct buf *out)
{
    buf_append_cstr(out,
                    "| Key | Default | Values | Changed by | Meaning |\n|---|---|---|---|---|\n");
    for (unsigned id = 0; id < SETTING_COUNT_; id++) {
        const struct config_setting *row = &settings_row(id)->public_;
        render_docs_row(out, row->key, row->default_text, row->accepts, row->live, row->help);
    }
    render_docs_lists(out);
}
