// SPDX-License-Identifier: Apache-2.0
// Strict reader for request bodies that list keys and say what to do to them. Forebay writes the
// body again for the origin, from what was read here. Pure; any thread.
//
// The origin must never see something that this reader ignores but another reader takes for a key.
// Examples are an element inside a key, one more level, a second key, an attribute, or another
// namespace. So a schema names every element by its path, with the number of times that it may
// occur in its parent. Everything else is refused:
// - other elements, and attributes other than xmlns
// - prefixes, and namespaces other than S3's or none
// - comments, processing instructions, CDATA and document types (so the only entities are XML's
//   five)
// - encodings other than UTF-8
// - text between elements, except white space
// Text is taken literally, white space included. On writing, a character that an XML reader would
// change becomes a reference.
#include "s3/s3_private.h"

#include <string.h>

#define NAMESPACE "http://s3.amazonaws.com/doc/2006-03-01/"
#define DEPTH_MAX 4u
#define RULES_MAX 16u
#define TEXT_MAX 8192u // longest text of one element; the limit of a key is checked elsewhere
#define DELETE_OBJECTS_MAX 1000u

// --- the reader ----------------------------------------------------------------------------------

struct rule {
    // path of the element, such as "Delete/Object/Key"; the first rule is for the root
    const char *path;
    unsigned max; // how often it may occur in one parent
    bool is_leaf;
};

typedef enum err begin_fn(void *ctx, const struct rule *rule);
typedef enum err leaf_fn(void *ctx, const struct rule *rule, struct span text);

struct schema {
    const struct rule *rules;
    unsigned rule_count;
    begin_fn *on_begin; // called for an element that may have child elements
    leaf_fn *on_leaf;
};

struct schema_reader {
    struct s3_xml_parser parser;
    const struct schema *schema;
    void *ctx;
    bool has_namespace;
    const struct rule *open[DEPTH_MAX];
    unsigned depth;
    unsigned seen[RULES_MAX]; // by rule: how often its element has occurred in the open parent
    struct buf text;          // text of the open leaf
    enum err err;
};

static void stop(struct schema_reader *reader, enum err err)
{
    if (reader->err == ERR_OK && err != ERR_OK) {
        reader->err = err;
        (void)XML_StopParser(reader->parser.expat,
                             XML_FALSE); // fails only if it is already stopped
    }
}

// Returns the local name of "uri|name" or "name". Returns NULL if its namespace is not that of the
// root.
static const char *local_name(struct schema_reader *reader, const char *name)
{
    static const char PREFIX[] = NAMESPACE "|";
    bool is_of_s3 = strncmp(name, PREFIX, sizeof(PREFIX) - 1) == 0;
    if (reader->depth == 0) {
        reader->has_namespace = is_of_s3;
    }
    if (is_of_s3 != reader->has_namespace) {
        return NULL;
    }
    const char *local = is_of_s3 ? name + sizeof(PREFIX) - 1 : name;
    return strchr(local, '|') == NULL ? local : NULL;
}

// Returns true if `path` is the path of the open element followed by `name`.
static bool is_child(const struct schema_reader *reader, const char *path, const char *name)
{
    if (reader->depth == 0) {
        return strcmp(path, name) == 0;
    }
    const char *parent = reader->open[reader->depth - 1]->path;
    size_t len = strlen(parent);
    return strncmp(path, parent, len) == 0 && path[len] == '/' && strcmp(path + len + 1, name) == 0;
}

static void element_begin(struct schema_reader *reader, const struct rule *rule)
{
    const struct schema *schema = reader->schema;
    size_t len = strlen(rule->path);
    for (unsigned i = 0; i < schema->rule_count; i++) {
        const char *path = schema->rules[i].path;
        if (strncmp(path, rule->path, len) == 0 && path[len] == '/') {
            reader->seen[i] = 0;
        }
    }
    check(reader->depth < DEPTH_MAX);
    reader->open[reader->depth++] = rule;
    reader->text.len = 0;
    if (!rule->is_leaf) {
        stop(reader, schema->on_begin(reader->ctx, rule));
    }
}

static void on_start(void *ctx, const XML_Char *qualified, const XML_Char **attributes)
{
    struct schema_reader *reader = ctx;
    if (reader->err != ERR_OK) {
        return;
    }
    const struct schema *schema = reader->schema;
    const char *name = local_name(reader, qualified);
    for (unsigned i = 0; name != NULL && attributes[0] == NULL && i < schema->rule_count; i++) {
        if (is_child(reader, schema->rules[i].path, name) &&
            reader->seen[i] < schema->rules[i].max) {
            reader->seen[i]++;
            element_begin(reader, &schema->rules[i]);
            return;
        }
    }
    stop(reader, ERR_MALFORMED_XML);
}

static void on_end(void *ctx, const XML_Char *name)
{
    (void)name;
    struct schema_reader *reader = ctx;
    if (reader->err != ERR_OK) {
        return;
    }
    check(reader->depth > 0);
    const struct rule *rule = reader->open[--reader->depth];
    if (rule->is_leaf) {
        stop(reader, reader->schema->on_leaf(reader->ctx, rule, buf_span(&reader->text)));
    }
}

static void on_text(void *ctx, const XML_Char *text, int len)
{
    struct schema_reader *reader = ctx;
    if (reader->err != ERR_OK) {
        return;
    }
    if (reader->depth > 0 && reader->open[reader->depth - 1]->is_leaf) {
        buf_append(&reader->text, text, (size_t)len);
        stop(reader, buf_ok(&reader->text) ? ERR_OK : ERR_MALFORMED_XML);
        return;
    }
    for (int i = 0; i < len; i++) {
        if (strchr(" \t\r\n", text[i]) == NULL) {
            stop(reader, ERR_MALFORMED_XML);
            return;
        }
    }
}

static void on_namespace(void *ctx, const XML_Char *prefix, const XML_Char *uri)
{
    if (prefix != NULL || uri == NULL || strcmp(uri, NAMESPACE) != 0) {
        stop(ctx, ERR_MALFORMED_XML);
    }
}

static void on_declaration(void *ctx, const XML_Char *version, const XML_Char *encoding,
                           int standalone)
{
    (void)standalone;
    if (version == NULL || strcmp(version, "1.0") != 0 ||
        (encoding != NULL && !span_equal_nocase(span_from_cstr(encoding), SPAN("UTF-8")))) {
        stop(ctx, ERR_MALFORMED_XML);
    }
}

static void on_doctype(void *ctx, const XML_Char *name, const XML_Char *system_id,
                       const XML_Char *public_id, int has_internal_subset)
{
    (void)name;
    (void)system_id;
    (void)public_id;
    (void)has_internal_subset;
    stop(ctx, ERR_MALFORMED_XML);
}

static void on_comment(void *ctx, const XML_Char *text)
{
    (void)text;
    stop(ctx, ERR_MALFORMED_XML);
}

static void on_instruction(void *ctx, const XML_Char *target, const XML_Char *text)
{
    (void)target;
    (void)text;
    stop(ctx, ERR_MALFORMED_XML);
}

static void on_cdata(void *ctx)
{
    stop(ctx, ERR_MALFORMED_XML);
}

// Rejects UTF-16 and byte order marks, because expat obeys a byte order mark even if it has been
// given another encoding.
static bool may_be_utf8(struct span document)
{
    return document.len > 0 && memchr(document.ptr, '\0', document.len) == NULL &&
           memchr(document.ptr, 0xfe, document.len) == NULL &&
           memchr(document.ptr, 0xff, document.len) == NULL;
}

static enum err read_strictly(struct span document, const struct schema *schema, void *ctx)
{
    check(schema->rule_count <= RULES_MAX);
    if (document.len > S3_XML_BODY_MAX || !may_be_utf8(document)) {
        return ERR_MALFORMED_XML;
    }
    struct schema_reader reader = {.schema = schema, .ctx = ctx};
    s3_xml_parser_init(&reader.parser, "UTF-8", "|");
    XML_Parser parser = reader.parser.expat;
    buf_init(&reader.text, TEXT_MAX);
    XML_SetUserData(parser, &reader);
    XML_SetElementHandler(parser, on_start, on_end);
    XML_SetCharacterDataHandler(parser, on_text);
    XML_SetStartNamespaceDeclHandler(parser, on_namespace);
    XML_SetXmlDeclHandler(parser, on_declaration);
    XML_SetStartDoctypeDeclHandler(parser, on_doctype);
    XML_SetCommentHandler(parser, on_comment);
    XML_SetProcessingInstructionHandler(parser, on_instruction);
    XML_SetStartCdataSectionHandler(parser, on_cdata);
    enum err err = s3_xml_parser_read(&reader.parser, document, &reader.err);
    buf_done(&reader.text);
    return err;
}

// Copies text into `arena`. The copy's pointer is not NULL, even if the text is empty.
static enum err keep_text(struct arena *arena, struct span text, struct span *ret_copy)
{
    const char *copy = arena_cstr(arena, text);
    if (copy == NULL) {
        return ERR_NO_MEMORY;
    }
    *ret_copy = (struct span){copy, text.len};
    return ERR_OK;
}

static void render_head(struct buf *out, const char *root)
{
    buf_printf(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<%s xmlns=\"" NAMESPACE "\">",
               root);
}

static void render_optional(struct buf *out, const char *name, struct span text)
{
    if (text.ptr != NULL) {
        s3_xml_element(out, name, text);
    }
}

// --- DeleteObjects -------------------------------------------------------------------------------

static const struct rule DELETE_RULES[] = {
    {"Delete", 1, false},
    {"Delete/Quiet", 1, true},
    {"Delete/Object", DELETE_OBJECTS_MAX, false},
    {"Delete/Object/Key", 1, true},
    {"Delete/Object/VersionId", 1, true},
    {"Delete/Object/ETag", 1, true},
    {"Delete/Object/LastModifiedTime", 1, true},
    {"Delete/Object/Size", 1, true},
};

struct delete_reading {
    struct arena *arena;
    struct s3_delete result;
};

static enum err on_delete_begin(void *ctx, const struct rule *rule)
{
    struct delete_reading *reading = ctx;
    if (strcmp(rule->path, "Delete/Object") == 0) {
        check(reading->result.count < DELETE_OBJECTS_MAX);
        memset(&reading->result.objects[reading->result.count++], 0,
               sizeof(*reading->result.objects));
    }
    return ERR_OK;
}

static enum err on_delete_leaf(void *ctx, const struct rule *rule, struct span text)
{
    struct delete_reading *reading = ctx;
    struct s3_delete *result = &reading->result;
    if (strcmp(rule->path, "Delete/Quiet") == 0) {
        result->has_quiet = true;
        result->is_quiet = span_equal_cstr(text, "true");
        return result->is_quiet || span_equal_cstr(text, "false") ? ERR_OK : ERR_MALFORMED_XML;
    }
    struct s3_delete_object *object = &result->objects[result->count - 1];
    const char *name = strrchr(rule->path, '/') + 1;
    uint64_t size;
    if (strcmp(name, "Size") == 0 && !span_to_u64(text, &size)) {
        return ERR_MALFORMED_XML;
    }
    struct span *target = strcmp(name, "Key") == 0         ? &object->key
                          : strcmp(name, "VersionId") == 0 ? &object->version_id
                          : strcmp(name, "ETag") == 0      ? &object->etag
                          : strcmp(name, "Size") == 0      ? &object->size
                                                           : &object->last_modified_time;
    return keep_text(reading->arena, text, target);
}

enum err s3_delete_read(struct arena *arena, struct span document, struct s3_delete *ret_delete)
{
    static const struct schema schema = {DELETE_RULES, ARRAY_LEN(DELETE_RULES), on_delete_begin,
                                         on_delete_leaf};
    struct delete_reading reading = {.arena = arena};
    reading.result.objects =
        arena_alloc(arena, DELETE_OBJECTS_MAX * sizeof(*reading.result.objects));
    if (reading.result.objects == NULL) {
        return ERR_NO_MEMORY;
    }
    enum err err = read_strictly(document, &schema, &reading);
    for (size_t i = 0; err == ERR_OK && i < reading.result.count; i++) {
        const struct s3_delete_object *object = &reading.result.objects[i];
        err = object->key.len == 0               ? ERR_MALFORMED_XML
              : s3_id_climbs(object->version_id) ? ERR_INVALID_ARGUMENT
                                                 : ERR_OK;
    }
    if (err == ERR_OK && reading.result.count == 0) {
        err = ERR_MALFORMED_XML;
    }
    if (err == ERR_OK) {
        *ret_delete = reading.result;
    }
    return err;
}

void s3_delete_render(const struct s3_delete *delete, struct buf *out)
{
    render_head(out, "Delete");
    for (size_t i = 0; i < delete->count; i++) {
        const struct s3_delete_object *object = &delete->objects[i];
        buf_append_cstr(out, "<Object>");
        s3_xml_element(out, "Key", object->key);
        render_optional(out, "VersionId", object->version_id);
        render_optional(out, "ETag", object->etag);
        render_optional(out, "LastModifiedTime", object->last_modified_time);
        render_optional(out, "Size", object->size);
        buf_append_cstr(out, "</Object>");
    }
    if (delete->has_quiet) {
        s3_xml_element(out, "Quiet", delete->is_quiet ? SPAN("true") : SPAN("false"));
    }
    buf_append_cstr(out, "</Delete>");
}

// --- RestoreObject -------------------------------------------------------------------------------

// Type, SelectParameters and OutputLocation are missing, because a restore with them writes to a
// bucket that its body names.
static const struct rule RESTORE_RULES[] = {
    {"RestoreRequest", 1, false},
    {"RestoreRequest/Days", 1, true},
    {"RestoreRequest/Tier", 1, true},
    {"RestoreRequest/Description", 1, true},
    {"RestoreRequest/GlacierJobParameters", 1, false},
    {"RestoreRequest/GlacierJobParameters/Tier", 1, true},
};

struct restore_reading {
    struct arena *arena;
    struct s3_restore result;
};

static enum err on_restore_begin(void *ctx, const struct rule *rule)
{
    (void)ctx;
    (void)rule;
    return ERR_OK;
}

static enum err on_restore_leaf(void *ctx, const struct rule *rule, struct span text)
{
    struct restore_reading *reading = ctx;
    struct s3_restore *result = &reading->result;
    uint64_t days;
    if (strcmp(rule->path, "RestoreRequest/Days") == 0 && !span_to_u64(text, &days)) {
        return ERR_MALFORMED_XML;
    }
    struct span *target = strcmp(rule->path, "RestoreRequest/Days") == 0   ? &result->days
                          : strcmp(rule->path, "RestoreRequest/Tier") == 0 ? &result->tier
                          : strcmp(rule->path, "RestoreRequest/Description") == 0
                              ? &result->description
                              : &result->glacier_tier;
    return keep_text(reading->arena, text, target);
}

enum err s3_restore_read(struct arena *arena, struct span document, struct s3_restore *ret_restore)
{
    static const struct schema schema = {RESTORE_RULES, ARRAY_LEN(RESTORE_RULES), on_restore_begin,
                                         on_restore_leaf};
    struct restore_reading reading = {.arena = arena};
    enum err err = read_strictly(document, &schema, &reading);
    if (err == ERR_OK) {
        *ret_restore = reading.result;
    }
    return err;
}

void s3_restore_render(const struct s3_restore *restore, struct buf *out)
{
    render_head(out, "RestoreRequest");
    render_optional(out, "Days", restore->days);
    if (restore->glacier_tier.ptr != NULL) {
        buf_append_cstr(out, "<GlacierJobParameters>");
        s3_xml_element(out, "Tier", restore->glacier_tier);
        buf_append_cstr(out, "</GlacierJobParameters>");
    }
    render_optional(out, "Tier", restore->tier);
    render_optional(out, "Description", restore->description);
    buf_append_cstr(out, "</RestoreRequest>");
}
