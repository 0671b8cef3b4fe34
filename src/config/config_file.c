// SPDX-License-Identifier: Apache-2.0
// Reads the YAML file into raw texts with their lines and columns. The file is parsed twice. The
// first pass reads events and refuses what a parsed document no longer shows: aliases, anchors,
// tags, a second document, too much depth. The second pass loads a document, whose nodes have line
// and column. A file above FILE_MAX_BYTES is refused before that. One thread.
#include "config/config_private.h"

#include "base/hash.h"
#include "base/headers.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#define FILE_MAX_BYTES (1u << 20)
#define DEPTH_MAX 8
#define WHERE_BYTES_MAX (32u << 20) // for all positions; half of the arena that a load may use
#define FIELDS_MAX 32

struct yaml_reader {
    struct loader *l;
    const char *path;
    struct span text;
    size_t where_bytes; // bytes of all "FILE:LINE:COL" so far
    yaml_document_t document;
};

static const char *where_mark(struct yaml_reader *r, yaml_mark_t mark)
{
    if (r->where_bytes > WHERE_BYTES_MAX) {
        return r->path;
    }
    char *where = arena_printf(r->l->arena, "%s:%zu:%zu", r->path, mark.line + 1, mark.column + 1);
    check(where != NULL);
    r->where_bytes += strlen(where) + 1;
    if (r->where_bytes > WHERE_BYTES_MAX) {
        config_loader_error(r->l, r->path,
                            "its positions take more than 32MiB of memory; shorten the file or the "
                            "name of its path");
    }
    return where;
}

static const char *where_node(struct yaml_reader *r, const yaml_node_t *node)
{
    return where_mark(r, node->start_mark);
}

static bool read_all(struct yaml_reader *r)
{
    struct loader *l = r->l;
    int fd = open(r->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // not to block on a FIFO
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) {
        config_loader_error(l, r->path, "cannot be read: %s", strerror(errno));
        if (fd >= 0) {
            (void)close(fd); // the file was only read, so a failure loses nothing
        }
        return false;
    }
    bool ok = false;
    if (!S_ISREG(st.st_mode) || st.st_size > (off_t)FILE_MAX_BYTES) {
        config_loader_error(l, r->path, "is not a file of at most 1MiB");
    } else {
        char *text = config_loader_alloc(l, (size_t)st.st_size + 1);
        ssize_t len = read(fd, text, (size_t)st.st_size);
        ok = len == (ssize_t)st.st_size;
        if (!ok) {
            config_loader_error(l, r->path, "cannot be read: %s",
                                len < 0 ? strerror(errno) : "cut short");
        }
        r->text = (struct span){text, (size_t)st.st_size};
    }
    (void)close(fd); // the file was only read, so a failure loses nothing
    return ok;
}

static void parser_start(struct yaml_reader *r, yaml_parser_t *parser)
{
    check(yaml_parser_initialize(parser) == 1);
    yaml_parser_set_input_string(parser, (const unsigned char *)r->text.ptr, r->text.len);
}

static void report_parser(struct yaml_reader *r, const yaml_parser_t *parser)
{
    yaml_mark_t mark = parser->problem_mark;
    if (parser->error == YAML_READER_ERROR) { // this kind of error has no line, only an offset
        mark = (yaml_mark_t){0};
        for (size_t i = 0; i < parser->problem_offset && i < r->text.len; i++) {
            mark.column = r->text.ptr[i] == '\n' ? 0 : mark.column + 1;
            mark.line += r->text.ptr[i] == '\n';
        }
    }
    const char *problem = parser->problem != NULL ? parser->problem : "not YAML";
    bool is_tab = parser->error == YAML_SCANNER_ERROR && parser->mark.index < r->text.len &&
                  r->text.ptr[parser->mark.index] == '\t';
    config_loader_error(r->l, where_mark(r, mark), "%s",
                        is_tab ? "a tab is used for indentation; YAML allows only spaces"
                               : problem);
}

// Returns the reason why a file with this event is refused; NULL if the event is allowed.
static const char *event_fault(const yaml_event_t *event, unsigned documents, unsigned depth)
{
    const yaml_char_t *tag = NULL, *anchor = NULL;
    switch (event->type) {
    case YAML_ALIAS_EVENT:
        return "aliases are not accepted here";
    case YAML_SCALAR_EVENT:
        tag = event->data.scalar.tag;
        anchor = event->data.scalar.anchor;
        break;
    case YAML_SEQUENCE_START_EVENT:
        tag = event->data.sequence_start.tag;
        anchor = event->data.sequence_start.anchor;
        break;
    case YAML_MAPPING_START_EVENT:
        tag = event->data.mapping_start.tag;
        anchor = event->data.mapping_start.anchor;
        break;
    default:
        break;
    }
    if (tag != NULL || anchor != NULL) {
        return tag != NULL ? "tags are not accepted here" : "anchors are not accepted here";
    }
    if (documents > 1) {
        return "the file holds more than one document";
    }
    return depth > DEPTH_MAX ? "nested too deeply" : NULL;
}

static bool scan_events(struct yaml_reader *r)
{
    yaml_parser_t parser;
    parser_start(r, &parser);
    bool ok = true, end = false;
    unsigned documents = 0, depth = 0;
    while (ok && !end) {
        yaml_event_t event;
        if (yaml_parser_parse(&parser, &event) == 0) {
            report_parser(r, &parser);
            ok = false;
            break;
        }
        documents += event.type == YAML_DOCUMENT_START_EVENT;
        depth += event.type == YAML_SEQUENCE_START_EVENT || event.type == YAML_MAPPING_START_EVENT;
        depth -= event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT;
        const char *fault = event_fault(&event, documents, depth);
        if (fault != NULL) {
            config_loader_error(r->l, where_mark(r, event.start_mark), "%s", fault);
            ok = false;
        }
        end = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return ok;
}

static bool load_document(struct yaml_reader *r)
{
    yaml_parser_t parser;
    parser_start(r, &parser);
    bool ok = yaml_parser_load(&parser, &r->document) == 1;
    if (!ok) {
        report_parser(r, &parser);
    }
    yaml_parser_delete(&parser);
    return ok;
}

// --- Nodes ---------------------------------------------------------------------------------------

static yaml_node_t *node_at(struct yaml_reader *r, int id)
{
    yaml_node_t *node = yaml_document_get_node(&r->document, id);
    check(node != NULL);
    return node;
}

static struct span scalar_span(const yaml_node_t *node)
{
    return (struct span){(const char *)node->data.scalar.value, node->data.scalar.length};
}

static bool is_null(const yaml_node_t *node)
{
    struct span s = node->type == YAML_SCALAR_NODE ? scalar_span(node) : SPAN("x");
    return node->type == YAML_SCALAR_NODE && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (s.len == 0 || span_equal(s, SPAN("~")) || span_equal(s, SPAN("null")));
}

// Returns the text of a scalar. Any other node, an empty value or a control character is reported,
// and NULL returned.
static const char *take_scalar(struct yaml_reader *r, const yaml_node_t *node, const char *key)
{
    if (node->type != YAML_SCALAR_NODE) {
        config_loader_error(r->l, where_node(r, node), "%s takes one value", key);
        return NULL;
    }
    struct span s = scalar_span(node);
    if (is_null(node)) {
        config_loader_error(r->l, where_node(r, node), "%s has no value", key);
        return NULL;
    }
    if (!headers_value_is_clean(s)) {
        config_loader_error(r->l, where_node(r, node), "%s holds a control character", key);
        return NULL;
    }
    return config_loader_cstr(r->l, s);
}

// Returns an earlier pair of `mapping` with the same key; NULL if there is none. A key without a
// value does not count, so that a section whose keys are all commented out may be given again: the
// sample file has all sections, and examples are appended to it.
static const yaml_node_pair_t *find_twin(struct yaml_reader *r, const yaml_node_t *mapping,
                                         const yaml_node_pair_t *pair)
{
    struct span key = scalar_span(node_at(r, pair->key));
    for (const yaml_node_pair_t *p = mapping->data.mapping.pairs.start; p < pair; p++) {
        const yaml_node_t *other = node_at(r, p->key);
        if (other->type == YAML_SCALAR_NODE && span_equal(scalar_span(other), key) &&
            !is_null(node_at(r, p->value)) && !is_null(node_at(r, pair->value))) {
            return p;
        }
    }
    return NULL;
}

// Returns the key of a pair of `mapping` as text. If the key is no text, occurs twice, or is one
// too many, reports an error and returns NULL.
static const char *take_key(struct yaml_reader *r, const yaml_node_t *mapping,
                            const yaml_node_pair_t *pair)
{
    const yaml_node_t *key = node_at(r, pair->key);
    if (key->type != YAML_SCALAR_NODE || scalar_span(key).len == 0 ||
        !headers_value_is_clean(scalar_span(key))) {
        config_loader_error(r->l, where_node(r, key), "a key must be a word");
        return NULL;
    }
    if (pair - mapping->data.mapping.pairs.start >= CONFIG_KEYS_MAX) {
        config_loader_error(r->l, where_node(r, key), "at most %d keys may stand side by side",
                            CONFIG_KEYS_MAX);
        return NULL;
    }
    const yaml_node_pair_t *twin = find_twin(r, mapping, pair);
    if (twin != NULL) {
        bool is_value = node_at(r, twin->value)->type == YAML_SCALAR_NODE;
        config_loader_error(
            r->l, where_node(r, key), "\"%.64s\" is given twice, first in line %zu; %s",
            (const char *)key->data.scalar.value, node_at(r, twin->key)->start_mark.line + 1,
            is_value ? "remove one" : "move its contents there");
        return NULL;
    }
    return config_loader_cstr(r->l, scalar_span(key));
}

// --- Settings ------------------------------------------------------------------------------------

static void take_list(struct yaml_reader *r, unsigned id, const yaml_node_t *node)
{
    const char *key = settings_row(id)->public_.key;
    const yaml_node_item_t *start = node->data.sequence.items.start;
    size_t count = (size_t)(node->data.sequence.items.top - start);
    if (count > CONFIG_LIST_MAX) {
        config_loader_error(r->l, where_node(r, node), "%s takes at most %d values", key,
                            CONFIG_LIST_MAX);
        return;
    }
    const char **items = config_loader_alloc(r->l, (count + 1) * sizeof(*items));
    for (size_t i = 0; i < count; i++) {
        items[i] = take_scalar(r, node_at(r, start[i]), key);
        if (items[i] == NULL) {
            return;
        }
    }
    r->l->raws[id] = (struct raw){items, (unsigned)count, where_node(r, node), true};
}

static void take_setting(struct yaml_reader *r, unsigned id, const yaml_node_t *key_node,
                         const yaml_node_t *node)
{
    const struct setting *row = settings_row(id);
    if (r->l->raws[id].where != NULL) {
        config_loader_error(r->l, where_node(r, key_node),
                            "\"%s\" is given twice, first at %s; remove one", row->public_.key,
                            r->l->raws[id].where);
        return;
    }
    if (node->type == YAML_SEQUENCE_NODE && settings_is_list(row->kind)) {
        take_list(r, id, node);
        return;
    }
    if (node->type == YAML_SEQUENCE_NODE && id == SETTING_cache_dir) {
        if (node->data.sequence.items.top - node->data.sequence.items.start != 1) {
            config_loader_error(r->l, where_node(r, node), "cache.dir takes exactly one directory");
            return;
        }
        node = node_at(r, node->data.sequence.items.start[0]);
    }
    const char *text = take_scalar(r, node, row->public_.key);
    if (text != NULL) {
        const char **items = config_loader_alloc(r->l, sizeof(*items));
        items[0] = text;
        r->l->raws[id] = (struct raw){items, 1, where_node(r, node), true};
    }
}

static void unknown_key(struct yaml_reader *r, const yaml_node_t *node, const char *key)
{
    const char *near = settings_suggest_key(span_from_cstr(key));
    if (near != NULL) {
        config_loader_error(r->l, where_node(r, node),
                            "unknown key \"%.64s\" (did you mean \"%s\"?)", key, near);
    } else {
        config_loader_error(r->l, where_node(r, node), "unknown key \"%.64s\"", key);
    }
}

static bool is_section(const char *name)
{
    struct span prefix = span_from_cstr(name);
    for (unsigned id = 0; id < SETTING_COUNT_; id++) {
        const char *key = settings_row(id)->public_.key;
        if (span_starts_with(span_from_cstr(key), prefix) && key[prefix.len] == '.') {
            return true;
        }
    }
    return false;
}

static void take_section(struct yaml_reader *r, const char *name, const yaml_node_t *node)
{
    if (is_null(node)) {
        return; // a section whose keys are all commented out
    }
    if (node->type != YAML_MAPPING_NODE) {
        config_loader_error(r->l, where_node(r, node),
                            "%s is a section: its keys go below it, indented", name);
        return;
    }
    const yaml_node_pair_t *top = node->data.mapping.pairs.top;
    for (const yaml_node_pair_t *p = node->data.mapping.pairs.start; p < top; p++) {
        const char *key = take_key(r, node, p);
        if (key == NULL) {
            continue;
        }
        const char *full = arena_printf(r->l->arena, "%s.%s", name, key);
        check(full != NULL);
        unsigned id = settings_find(span_from_cstr(full));
        if (id < SETTING_COUNT_) {
            take_setting(r, id, node_at(r, p->key), node_at(r, p->value));
        } else {
            unknown_key(r, node_at(r, p->key), full);
        }
    }
}

// --- buckets and rules ---------------------------------------------------------------------------

struct fields {
    struct bucket_field rows[FIELDS_MAX];
    unsigned count;
};

static void add_field(struct yaml_reader *r, struct fields *fields, const char *name,
                      const yaml_node_t *key_node, const yaml_node_t *node)
{
    if (fields->count == FIELDS_MAX) {
        config_loader_error(r->l, where_node(r, node), "more than %d fields", FIELDS_MAX);
        return;
    }
    const char *value = take_scalar(r, node, name);
    if (value != NULL) {
        fields->rows[fields->count++] =
            (struct bucket_field){name, value, where_node(r, node), where_node(r, key_node)};
    }
}

static void take_fields(struct yaml_reader *r, const yaml_node_t *entry, struct fields *fields)
{
    const yaml_node_pair_t *top = entry->data.mapping.pairs.top;
    for (const yaml_node_pair_t *p = entry->data.mapping.pairs.start; p < top; p++) {
        const char *key = take_key(r, entry, p);
        const yaml_node_t *value = node_at(r, p->value);
        if (key == NULL) {
            continue;
        }
        if (value->type != YAML_MAPPING_NODE) {
            add_field(r, fields, key, node_at(r, p->key), value);
            continue;
        }
        const yaml_node_pair_t *inner_top = value->data.mapping.pairs.top;
        for (const yaml_node_pair_t *q = value->data.mapping.pairs.start; q < inner_top; q++) {
            const char *inner = take_key(r, value, q);
            if (inner != NULL) {
                const char *full = arena_printf(r->l->arena, "%s.%s", key, inner);
                check(full != NULL);
                add_field(r, fields, full, node_at(r, q->key), node_at(r, q->value));
            }
        }
    }
}

// Adds an entry to the digest of its list, by which config_compare() compares two loads.
static void digest_fields(uint64_t *digest, size_t entry, const struct fields *fields)
{
    *digest = hash64(&entry, sizeof(entry), *digest);
    for (unsigned i = 0; i < fields->count; i++) {
        const struct bucket_field *field = &fields->rows[i];
        *digest = hash64(field->name, strlen(field->name) + 1, *digest);
        *digest = hash64(field->value, strlen(field->value) + 1, *digest);
    }
}

static struct config_entry keep_fields(struct loader *l, const struct fields *fields)
{
    struct config_pair *items = config_loader_alloc(l, (fields->count + 1) * sizeof(*items));
    for (unsigned i = 0; i < fields->count; i++) {
        items[i] = (struct config_pair){fields->rows[i].name, fields->rows[i].value};
    }
    return (struct config_entry){items, fields->count};
}

// Refuses too many rules with a pin or a share. Each of them needs a number in the store's records,
// which have room for only a few.
static void limited_rules_check(struct yaml_reader *r, const yaml_node_t *node)
{
    unsigned limited = 0;
    for (unsigned i = 0; i < r->l->config->rule_count; i++) {
        limited += r->l->config->rules[i].pin || r->l->config->rules[i].share_percent > 0;
    }
    if (limited > CONFIG_LIMITED_RULES_MAX) {
        config_loader_error(r->l, where_node(r, node), "%u rules have a pin or a share, %u may",
                            limited, CONFIG_LIMITED_RULES_MAX);
    }
}

static void take_entries(struct yaml_reader *r, const char *name, const yaml_node_t *node)
{
    struct loader *l = r->l;
    bool buckets = strcmp(name, "buckets") == 0;
    if (is_null(node)) {
        return;
    }
    if (node->type != YAML_SEQUENCE_NODE) {
        config_loader_error(l, where_node(r, node), "%s is a list", name);
        return;
    }
    const yaml_node_item_t *start = node->data.sequence.items.start;
    size_t count = (size_t)(node->data.sequence.items.top - start);
    if (count > (buckets ? CONFIG_BUCKETS_MAX : CONFIG_RULES_MAX)) {
        config_loader_error(l, where_node(r, node), "%s has too many entries", name);
        return;
    }
    struct config_bucket *bucket_rows = config_loader_alloc(l, (count + 1) * sizeof(*bucket_rows));
    struct config_rule *rule_rows = config_loader_alloc(l, (count + 1) * sizeof(*rule_rows));
    for (size_t i = 0; i < count; i++) {
        const yaml_node_t *entry = node_at(r, start[i]);
        struct fields fields = {.count = 0};
        if (entry->type != YAML_MAPPING_NODE) {
            config_loader_error(l, where_node(r, entry), "an entry of %s is a mapping", name);
            continue;
        }
        take_fields(r, entry, &fields);
        digest_fields(&l->config->private_->lists[buckets], i, &fields);
        const char *where = where_node(r, entry);
        if (buckets) {
            config_bucket_parse(l, where, fields.rows, fields.count, &bucket_rows[i]);
            bucket_rows[i].fields = keep_fields(l, &fields);
        } else {
            config_rule_parse(l, where, fields.rows, fields.count, &rule_rows[i]);
            rule_rows[i].fields = keep_fields(l, &fields);
        }
    }
    if (buckets) {
        l->config->buckets = bucket_rows;
        l->config->bucket_count = (unsigned)count;
    } else {
        l->config->rules = l->rules = rule_rows;
        l->config->rule_count = (unsigned)count;
        limited_rules_check(r, node);
    }
}

// --- The whole -----------------------------------------------------------------------------------

static void take_root(struct yaml_reader *r, const yaml_node_t *root)
{
    if (root->type != YAML_MAPPING_NODE) {
        if (!is_null(root)) {
            config_loader_error(r->l, where_node(r, root), "the file must hold KEY: VALUE lines");
        }
        return;
    }
    const yaml_node_pair_t *top = root->data.mapping.pairs.top;
    for (const yaml_node_pair_t *p = root->data.mapping.pairs.start; p < top; p++) {
        const char *key = take_key(r, root, p);
        const yaml_node_t *key_node = node_at(r, p->key), *value = node_at(r, p->value);
        if (key == NULL) {
            continue;
        }
        unsigned id = settings_find(span_from_cstr(key));
        if (id < SETTING_COUNT_) {
            take_setting(r, id, key_node, value);
        } else if (strcmp(key, "buckets") == 0 || strcmp(key, "rules") == 0) {
            take_entries(r, key, value);
        } else if (is_section(key)) {
            take_section(r, key, value);
        } else {
            unknown_key(r, key_node, key);
        }
    }
}

bool config_file_read(struct loader *l, const char *path)
{
    struct yaml_reader r = {.l = l, .path = path};
    if (!read_all(&r) || !scan_events(&r) || !load_document(&r)) {
        return false;
    }
    const yaml_node_t *root = yaml_document_get_root_node(&r.document);
    if (root != NULL) {
        take_root(&r, root);
    }
    yaml_document_delete(&r.document);
    return true;
}
