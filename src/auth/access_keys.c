// SPDX-License-Identifier: Apache-2.0
// The access keys: clients that may sign requests, their secrets, and their rights. The table is
// read from a YAML file once and never changes after that. It has a reference count, and a reload
// replaces it as a whole. access_keys_load() may block, so it must not run on a worker. All other
// functions are safe on any thread.
//
//   - id: trainer
//     secret: ...
//     allow:
//       - {bucket: datasets, prefix: imagenet/, ops: [read, list]} # write, delete, any
//     origin_access_key_file: /secrets/id    # optional: its own keys for the origin,
//     origin_secret_key_file: /secrets/key   # read when the table is loaded
//     origin_session_token_file: /secrets/token
//     realm: team-a                          # optional: shares cached bytes with this realm only
//
// The table is sorted by id, which is not secret. Secrets are wiped when the last reference is
// dropped.
#include "auth/auth.h"

#include "base/host.h"

#include <openssl/crypto.h>
#include <yaml.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAX (4u << 20)
#define SECRET_FILE_MAX 16384u
#define REALM_MAX 64u
#define ARENA_MAX (32u << 20)
#define ERRORS_MAX 20u
#define ID_MAX 256u
#define PRINCIPALS_MAX 10000u
// the group may read, for projected Kubernetes volumes; others may do nothing
#define FORBIDDEN_MODE 037

struct access_keys {
    atomic_uint refs;
    struct arena *arena;
    struct access_keys_principal *principals; // sorted by id
    size_t count;
    struct span *realms; // the realms that the file names, and realms kept from earlier tables
    size_t realm_count;
};

struct access_keys *access_keys_ref(struct access_keys *table)
{
    check(atomic_fetch_add_explicit(&table->refs, 1, memory_order_relaxed) > 0);
    return table;
}

// Wipes a secret. It is the arena's own copy, so it may be overwritten.
static void wipe(struct span secret)
{
    char *bytes;
    memcpy(&bytes, &secret.ptr, sizeof(bytes));
    if (bytes != NULL) {
        OPENSSL_cleanse(bytes, secret.len);
    }
}

void access_keys_unref(struct access_keys *table)
{
    if (table == NULL || atomic_fetch_sub_explicit(&table->refs, 1, memory_order_acq_rel) > 1) {
        return;
    }
    for (size_t i = 0; i < table->count; i++) {
        const struct sigv4_credentials *origin = table->principals[i].origin_credentials;
        wipe(table->principals[i].secret);
        if (origin != NULL) {
            wipe(origin->secret_key);
            wipe(origin->session_token);
        }
    }
    arena_free(table->arena);
    free(table);
}

// --- Reading the file ----------------------------------------------------------------------------

struct keys_reader {
    const char *path;
    struct buf *errors;
    unsigned error_count;
    yaml_document_t document;
    struct access_keys *result;
    bool out_of_memory;
};

static void report(struct keys_reader *reader, const yaml_node_t *node, const char *text,
                   struct span subject)
{
    yaml_mark_t mark = node != NULL ? node->start_mark : (yaml_mark_t){0, 0, 0};
    buf_printf(reader->errors, "%s:%zu:%zu: %s", reader->path, mark.line + 1, mark.column + 1,
               text);
    if (subject.len > 0) {
        size_t shown = subject.len < 64 ? subject.len : 64;
        buf_append_cstr(reader->errors, " '");
        for (size_t i = 0; i < shown; i++) {
            char c = subject.ptr[i];
            buf_append_char(reader->errors, c >= 0x20 && c < 0x7f ? c : '?');
        }
        buf_append_char(reader->errors, '\'');
    }
    buf_append_char(reader->errors, '\n');
}

static void complain(struct keys_reader *reader, const yaml_node_t *node, const char *text,
                     struct span subject)
{
    char whole[256];
    if (reader->error_count++ < ERRORS_MAX) {
        (void)snprintf(whole, sizeof(whole), "error: %s", text);
        report(reader, node, whole, subject);
    }
}

// Appends the file to `contents`, whose maximum is `max_bytes`.
static enum err read_file(const char *path, unsigned max_bytes, struct buf *contents,
                          struct buf *ret_errors)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        int saved = errno;
        buf_printf(ret_errors, "%s: error: cannot be opened: %s\n", path, strerrordesc_np(saved));
        return error_from_errno(saved);
    }
    enum err err = ERR_OK;
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        buf_printf(ret_errors, "%s: error: is not a regular file\n", path);
        err = ERR_INVALID;
    } else if ((st.st_mode & FORBIDDEN_MODE) != 0) {
        buf_printf(ret_errors, "%s: error: holds secrets but its mode is %04o; remedy: %s\n", path,
                   (unsigned)(st.st_mode & 07777), host_secret_file_remedy(st.st_uid));
        err = ERR_PERMISSION;
    } else if (st.st_size > max_bytes) {
        buf_printf(ret_errors, "%s: error: larger than %u bytes\n", path, max_bytes);
        err = ERR_LIMIT;
    }
    char piece[4096];
    while (err == ERR_OK) {
        ssize_t got = read(fd, piece, sizeof(piece));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            err = ERR_IO;
            buf_printf(ret_errors, "%s: error: cannot be read\n", path);
        }
        if (got <= 0) {
            break;
        }
        buf_append(contents, piece, (size_t)got);
        if (!buf_ok(contents)) {
            err = ERR_LIMIT;
            buf_printf(ret_errors, "%s: error: larger than %u bytes\n", path, max_bytes);
        }
    }
    OPENSSL_cleanse(piece, sizeof(piece));
    (void)close(fd); // the file was only read, so a failure loses nothing
    return err;
}

static const struct span NO_SUBJECT = {NULL, 0};

static struct span scalar_text(const yaml_node_t *node)
{
    return (struct span){(const char *)node->data.scalar.value, node->data.scalar.length};
}

// Returns the text of a YAML value. If the value is not text, reports an error and returns an empty
// span.
static struct span read_text(struct keys_reader *reader, const yaml_node_t *node)
{
    if (node->type != YAML_SCALAR_NODE) {
        complain(reader, node, "a text is expected here", NO_SUBJECT);
        return NO_SUBJECT;
    }
    struct span copy = arena_copy(reader->result->arena, scalar_text(node));
    reader->out_of_memory = reader->out_of_memory || copy.ptr == NULL;
    return copy;
}

// Returns true if an entry lacks the text of a key: the key is not there, or its text is empty.
// read_text() has already reported a value that is not text, whose span has no bytes to point to.
static bool lacks_text(unsigned seen, unsigned key, struct span text)
{
    return text.len == 0 && ((seen & 1u << key) == 0 || text.ptr != NULL);
}

static unsigned read_op(struct keys_reader *reader, const yaml_node_t *node)
{
    static const struct {
        const char *name;
        unsigned op;
    } OPS[] = {{"read", S3_ALLOW_READ},
               {"list", S3_ALLOW_LIST},
               {"write", S3_ALLOW_WRITE},
               {"delete", S3_ALLOW_DELETE},
               {"any", S3_ALLOW_ANY}};
    if (node->type == YAML_SCALAR_NODE) {
        for (size_t i = 0; i < ARRAY_LEN(OPS); i++) {
            if (span_equal_cstr(scalar_text(node), OPS[i].name)) {
                return OPS[i].op;
            }
        }
    }
    complain(reader, node, "ops are read, list, write, delete and any, not",
             node->type == YAML_SCALAR_NODE ? scalar_text(node) : SPAN("a structure"));
    return 0;
}

static unsigned read_ops(struct keys_reader *reader, const yaml_node_t *node)
{
    if (node->type != YAML_SEQUENCE_NODE) {
        complain(reader, node, "ops is a list such as [read, list]", NO_SUBJECT);
        return 0;
    }
    unsigned ops = 0;
    if (node->data.sequence.items.start == node->data.sequence.items.top) {
        complain(reader, node, "an allow rule needs ops", NO_SUBJECT);
    }
    for (const yaml_node_item_t *item = node->data.sequence.items.start;
         item < node->data.sequence.items.top; item++) {
        ops |= read_op(reader, yaml_document_get_node(&reader->document, *item));
    }
    return ops;
}

// Returns the index in `names` of a mapping's key. If the key is unknown or repeated, reports an
// error and returns -1.
static int mapping_key(struct keys_reader *reader, const yaml_node_t *key, const char *const *names,
                       unsigned name_count, unsigned *seen)
{
    struct span text = key->type == YAML_SCALAR_NODE ? scalar_text(key) : NO_SUBJECT;
    for (unsigned i = 0; i < name_count; i++) {
        if (span_equal_cstr(text, names[i])) {
            if ((*seen & 1u << i) != 0) {
                complain(reader, key, "repeated key", text);
                return -1;
            }
            *seen |= 1u << i;
            return (int)i;
        }
    }
    complain(reader, key, "unknown key", text);
    return -1;
}

// Warns of a prefix that grants no right on the keys below it by itself, because a file-based
// origin would read them as keys outside the prefix.
static void warn_of_prefix(struct keys_reader *reader, const yaml_node_t *node, struct span prefix)
{
    struct s3_path path;
    struct span folder = prefix; // up to the last '/', because "a/." also begins "a/.b"
    while (folder.len > 0 && folder.ptr[folder.len - 1] != '/') {
        folder.len--;
    }
    if ((s3_key_as_path(folder, 0, &path) && path.differs) || s3_key_as_path(prefix, 1, &path)) {
        report(
            reader, node,
            "warning: this prefix has '\\' or an empty, '.' or '..' segment; its keys also need a "
            "right on the path that an origin on files makes of them:",
            prefix);
    }
}

static struct access_keys_allow read_allow(struct keys_reader *reader, const yaml_node_t *node)
{
    static const char *const NAMES[] = {"bucket", "prefix", "ops"};
    struct access_keys_allow allow = {.ops = 0};
    if (node->type != YAML_MAPPING_NODE) {
        complain(reader, node, "an allow rule is {bucket: ..., prefix: ..., ops: [...]}",
                 NO_SUBJECT);
        return allow;
    }
    unsigned seen = 0;
    for (const yaml_node_pair_t *pair = node->data.mapping.pairs.start;
         pair < node->data.mapping.pairs.top; pair++) {
        const yaml_node_t *key = yaml_document_get_node(&reader->document, pair->key);
        const yaml_node_t *value = yaml_document_get_node(&reader->document, pair->value);
        switch (mapping_key(reader, key, NAMES, ARRAY_LEN(NAMES), &seen)) {
        case 0:
            allow.bucket = read_text(reader, value);
            break;
        case 1:
            allow.prefix = read_text(reader, value);
            warn_of_prefix(reader, value, allow.prefix);
            break;
        case 2:
            allow.ops = read_ops(reader, value);
            break;
        default:
            break;
        }
    }
    if (lacks_text(seen, 0, allow.bucket)) {
        complain(reader, node, "an allow rule needs a bucket (\"*\" is any)", NO_SUBJECT);
    }
    if ((seen & 1u << 2) == 0) {
        complain(reader, node, "an allow rule needs ops", NO_SUBJECT);
    }
    return allow;
}

static void read_allow_list(struct keys_reader *reader, const yaml_node_t *node,
                            struct access_keys_principal *principal)
{
    if (node->type != YAML_SEQUENCE_NODE) {
        complain(reader, node, "allow is a list of rules", NO_SUBJECT);
        return;
    }
    size_t count = (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
    struct access_keys_allow *allow =
        arena_alloc(reader->result->arena, (count + 1) * sizeof(*allow));
    if (allow == NULL) {
        reader->out_of_memory = true;
        return;
    }
    for (size_t i = 0; i < count; i++) {
        yaml_node_item_t item = node->data.sequence.items.start[i];
        allow[i] = read_allow(reader, yaml_document_get_node(&reader->document, item));
    }
    principal->allow = allow;
    principal->allow_count = (unsigned)count;
}

static struct span without_white_space(struct span text)
{
    while (text.len > 0 && strchr(" \t\r\n", text.ptr[text.len - 1]) != NULL) {
        text.len--;
    }
    while (text.len > 0 && strchr(" \t\r\n", text.ptr[0]) != NULL) {
        text.ptr++;
        text.len--;
    }
    return text;
}

// Returns the text of a secret's file without surrounding white space. On failure, reports an error
// and returns an empty span.
static struct span read_secret_file(struct keys_reader *reader, const yaml_node_t *node)
{
    struct span copy = NO_SUBJECT;
    struct buf contents;
    char path[PATH_MAX];
    struct span name = node->type == YAML_SCALAR_NODE ? scalar_text(node) : NO_SUBJECT;
    if (name.len == 0 || name.len >= sizeof(path) || memchr(name.ptr, '\0', name.len) != NULL) {
        complain(reader, node, "the path of a file is expected here", NO_SUBJECT);
        return copy;
    }
    memcpy(path, name.ptr, name.len);
    path[name.len] = '\0';
    buf_init(&contents, SECRET_FILE_MAX);
    if (read_file(path, SECRET_FILE_MAX, &contents, reader->errors) != ERR_OK) {
        reader->error_count++;
    } else {
        struct span text = without_white_space(buf_span(&contents));
        if (text.len == 0) {
            complain(reader, node, "the file is empty:", name);
        } else {
            copy = arena_copy(reader->result->arena, text);
            reader->out_of_memory = reader->out_of_memory || copy.ptr == NULL;
        }
    }
    if (contents.len > 0) {
        OPENSSL_cleanse(contents.ptr, contents.len);
    }
    buf_done(&contents);
    return copy;
}

// Reads a realm's name. It has only letters, digits and "._-", so it never equals the realm that a
// principal gets for itself, which has a space.
static struct span read_realm(struct keys_reader *reader, const yaml_node_t *node)
{
    struct span realm = read_text(reader, node);
    bool good = realm.len > 0 && realm.len <= REALM_MAX;
    for (size_t i = 0; good && i < realm.len; i++) {
        char c = realm.ptr[i];
        good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '.' || c == '_' || c == '-';
    }
    if (!good) {
        complain(reader, node, "a realm is 1 to 64 letters, digits, dots, lines and dashes", realm);
    }
    return realm;
}

static void read_origin_credentials(struct keys_reader *reader, const yaml_node_t *node,
                                    const struct sigv4_credentials *keys,
                                    struct access_keys_principal *p)
{
    if ((keys->access_key.len > 0) != (keys->secret_key.len > 0) ||
        (keys->session_token.len > 0 && keys->access_key.len == 0)) {
        complain(reader, node, "origin_access_key_file and origin_secret_key_file go together",
                 NO_SUBJECT);
        return;
    }
    if (keys->access_key.len == 0) {
        return;
    }
    struct sigv4_credentials *copy = arena_alloc(reader->result->arena, sizeof(*copy));
    if (copy == NULL) {
        reader->out_of_memory = true;
        return;
    }
    *copy = *keys;
    p->origin_credentials = copy;
    if (p->realm.len == 0) {
        p->realm = span_from_cstr(arena_printf(reader->result->arena, "key %zu %.*s", p->id.len,
                                               (int)p->id.len, p->id.ptr));
        reader->out_of_memory = reader->out_of_memory || p->realm.len == 0;
    }
}

static struct access_keys_principal read_principal(struct keys_reader *reader,
                                                   const yaml_node_t *node)
{
    static const char *const NAMES[] = {"id",
                                        "secret",
                                        "allow",
                                        "realm",
                                        "origin_access_key_file",
                                        "origin_secret_key_file",
                                        "origin_session_token_file"};
    struct sigv4_credentials keys = {.access_key = NO_SUBJECT};
    struct access_keys_principal p = {.allow = NULL};
    if (node->type != YAML_MAPPING_NODE) {
        complain(reader, node, "a key is {id: ..., secret: ..., allow: [...]}", NO_SUBJECT);
        return p;
    }
    unsigned seen = 0;
    for (const yaml_node_pair_t *pair = node->data.mapping.pairs.start;
         pair < node->data.mapping.pairs.top; pair++) {
        const yaml_node_t *key = yaml_document_get_node(&reader->document, pair->key);
        const yaml_node_t *value = yaml_document_get_node(&reader->document, pair->value);
        switch (mapping_key(reader, key, NAMES, ARRAY_LEN(NAMES), &seen)) {
        case 0:
            p.id = read_text(reader, value);
            break;
        case 1:
            p.secret = read_text(reader, value);
            break;
        case 2:
            read_allow_list(reader, value, &p);
            break;
        case 3:
            p.realm = read_realm(reader, value);
            break;
        case 4:
            keys.access_key = read_secret_file(reader, value);
            break;
        case 5:
            keys.secret_key = read_secret_file(reader, value);
            break;
        case 6:
            keys.session_token = read_secret_file(reader, value);
            break;
        default:
            break;
        }
    }
    if (lacks_text(seen, 0, p.id) || p.id.len > ID_MAX) {
        complain(reader, node, "a key needs an id of at most 256 bytes", NO_SUBJECT);
    }
    if (lacks_text(seen, 1, p.secret)) {
        complain(reader, node, "a key needs a secret", NO_SUBJECT);
    }
    if ((seen & 1u << 2) == 0) {
        report(reader, node, "warning: a key that has no allow list may do nothing:", p.id);
    }
    read_origin_credentials(reader, node, &keys, &p);
    return p;
}

static void add_realm(struct keys_reader *reader, const yaml_node_t *node, struct span realm)
{
    struct access_keys *table = reader->result;
    if (realm.len == 0) {
        return;
    }
    for (size_t i = 0; i < table->realm_count; i++) {
        if (span_equal(table->realms[i], realm)) {
            return;
        }
    }
    if (table->realm_count == ACCESS_KEYS_REALMS_MAX) {
        complain(reader, node, "more than 64 realms; principals that may read the same can share",
                 realm);
        return;
    }
    table->realms[table->realm_count++] = realm;
}

static int compare_principals(const void *a, const void *b)
{
    const struct access_keys_principal *left = a;
    const struct access_keys_principal *right = b;
    return span_compare(left->id, right->id);
}

static void read_principals(struct keys_reader *reader)
{
    const yaml_node_t *root = yaml_document_get_root_node(&reader->document);
    if (root == NULL || root->type != YAML_SEQUENCE_NODE ||
        root->data.sequence.items.top == root->data.sequence.items.start) {
        complain(reader, root, "a list of keys is expected: - {id: ..., secret: ..., allow: [...]}",
                 NO_SUBJECT);
        return;
    }
    struct access_keys *table = reader->result;
    size_t count = (size_t)(root->data.sequence.items.top - root->data.sequence.items.start);
    if (count > PRINCIPALS_MAX) {
        complain(reader, root, "more than 10000 keys", NO_SUBJECT);
        return;
    }
    table->principals = arena_alloc(table->arena, count * sizeof(*table->principals));
    if (table->principals == NULL) {
        reader->out_of_memory = true;
        return;
    }
    for (size_t i = 0; i < count; i++) {
        yaml_node_item_t item = root->data.sequence.items.start[i];
        const yaml_node_t *node = yaml_document_get_node(&reader->document, item);
        struct access_keys_principal p = read_principal(reader, node);
        for (size_t j = 0; j < table->count; j++) {
            if (p.id.len > 0 && span_equal(table->principals[j].id, p.id)) {
                complain(reader, node, "repeated id", p.id);
            }
        }
        table->principals[table->count++] = p;
        add_realm(reader, node, p.realm);
    }
    qsort(table->principals, table->count, sizeof(*table->principals), compare_principals);
}

static enum err parse(struct keys_reader *reader, struct span contents)
{
    yaml_parser_t parser;
    check(yaml_parser_initialize(&parser) == 1);
    const char *text = contents.len > 0 ? contents.ptr : "";
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, contents.len);
    if (yaml_parser_load(&parser, &reader->document) == 0) {
        buf_printf(reader->errors, "%s:%zu:%zu: error: %s\n", reader->path,
                   parser.problem_mark.line + 1, parser.problem_mark.column + 1,
                   parser.problem != NULL ? parser.problem : "not YAML");
        yaml_parser_delete(&parser);
        return ERR_INVALID;
    }
    read_principals(reader);
    yaml_document_delete(&reader->document);
    yaml_parser_delete(&parser);
    if (reader->out_of_memory) {
        return ERR_NO_MEMORY;
    }
    return reader->error_count > 0 ? ERR_INVALID : ERR_OK;
}

enum err access_keys_load(const char *path, struct access_keys **ret_access_keys,
                          struct buf *ret_errors)
{
    struct buf contents;
    buf_init(&contents, FILE_MAX);
    enum err err = read_file(path, FILE_MAX, &contents, ret_errors);
    if (err == ERR_OK) {
        struct keys_reader reader = {.path = path, .errors = ret_errors};
        reader.result = calloc(1, sizeof(*reader.result));
        check(reader.result != NULL);
        atomic_init(&reader.result->refs, 1);
        reader.result->arena = arena_new(ARENA_MAX);
        reader.result->realms = arena_alloc(
            reader.result->arena, ACCESS_KEYS_REALMS_MAX * sizeof(*reader.result->realms));
        check(reader.result->realms != NULL);
        err = parse(&reader, buf_span(&contents));
        if (err == ERR_OK) {
            *ret_access_keys = reader.result;
        } else {
            access_keys_unref(reader.result);
        }
    }
    if (contents.len > 0) {
        OPENSSL_cleanse(contents.ptr, contents.len);
    }
    buf_done(&contents);
    return err;
}

// --- Queries -------------------------------------------------------------------------------------

const struct access_keys_principal *access_keys_find(const struct access_keys *table,
                                                     struct span access_key)
{
    const struct access_keys_principal wanted = {.id = access_key};
    return bsearch(&wanted, table->principals, table->count, sizeof(*table->principals),
                   compare_principals);
}

enum err access_keys_number_realms(struct access_keys *table, const uint64_t *numbers)
{
    for (size_t i = 0; i < table->realm_count; i++) {
        struct span name = table->realms[i];
        struct span told = span_from_cstr(arena_printf(table->arena, "%.*s\001%llx", (int)name.len,
                                                       name.ptr, (unsigned long long)numbers[i]));
        if (told.len == 0) {
            return ERR_NO_MEMORY;
        }
        for (size_t j = 0; j < table->count; j++) {
            if (span_equal(table->principals[j].realm, name)) {
                table->principals[j].realm = told;
            }
        }
        table->realms[i] = told;
    }
    return ERR_OK;
}

enum err access_keys_keep_realms(struct access_keys *table, const struct access_keys *before)
{
    if (before->realm_count == 0) {
        return ERR_OK;
    }
    struct span *realms =
        arena_alloc(table->arena, (table->realm_count + before->realm_count) * sizeof(*realms));
    if (realms == NULL) {
        return ERR_NO_MEMORY;
    }
    size_t count = table->realm_count;
    memcpy(realms, table->realms, count * sizeof(*realms));
    for (size_t i = 0; i < before->realm_count; i++) {
        bool is_there = false;
        for (size_t j = 0; j < table->realm_count && !is_there; j++) {
            is_there = span_equal(table->realms[j], before->realms[i]);
        }
        if (!is_there) {
            realms[count] = arena_copy(table->arena, before->realms[i]);
            if (realms[count++].ptr == NULL) {
                return ERR_NO_MEMORY;
            }
        }
    }
    table->realms = realms;
    table->realm_count = count;
    return ERR_OK;
}

const struct span *access_keys_realms(const struct access_keys *table, size_t *ret_count)
{
    *ret_count = table->realm_count;
    return table->realms;
}

struct span access_keys_dummy_secret(void)
{
    return SPAN("nobody-has-this-secret-and-nobody-ever-will");
}

static unsigned granted_ops(const struct access_keys_principal *p, struct span bucket,
                            struct span key, bool any_prefix)
{
    unsigned ops = 0;
    for (unsigned i = 0; i < p->allow_count; i++) {
        const struct access_keys_allow *allow = &p->allow[i];
        bool bucket_fits = span_equal_cstr(allow->bucket, "*") || span_equal(allow->bucket, bucket);
        if (bucket_fits && (any_prefix || span_starts_with(key, allow->prefix))) {
            ops |= allow->ops;
        }
    }
    return ops;
}

static bool is_allowed(const struct access_keys_principal *p, const struct s3_effect *effect)
{
    unsigned granted;
    switch (effect->scope) {
    case S3_SCOPE_SOMEWHERE:
        return (granted_ops(p, effect->bucket, effect->key, true) & effect->rights) != 0;
    case S3_SCOPE_SERVICE:
        granted = granted_ops(p, effect->bucket, effect->key, false);
        for (unsigned i = 0; i < p->allow_count; i++) {
            granted |= p->allow[i].ops & S3_ALLOW_LIST;
        }
        break;
    case S3_SCOPE_BUCKET:
    case S3_SCOPE_PREFIX:
    case S3_SCOPE_KEY:
    default:
        granted = granted_ops(p, effect->bucket, effect->key, false);
        break;
    }
    return effect->rights != 0 && (granted & effect->rights) == effect->rights;
}

bool access_keys_allowed(const struct access_keys_principal *p, const struct s3_effect *effect)
{
    struct s3_effect as_path = *effect;
    struct s3_path path;
    bool ok = is_allowed(p, effect);
    for (unsigned reading = 0; ok && reading < S3_PATH_READINGS; reading++) {
        // A listing needs no right on the path unless its prefix has a "..": access_keys_may_see()
        // judges each name in the listing, and a prefix such as "a/." is also the start of allowed
        // names.
        if (s3_key_as_path(effect->key, reading, &path) &&
            (effect->scope == S3_SCOPE_KEY ? path.differs : path.climbs)) {
            as_path.key = (struct span){path.text, path.len};
            ok = !path.leaves && is_allowed(p, &as_path);
        }
    }
    return ok;
}

bool access_keys_may_see(const struct access_keys_principal *p, struct span bucket,
                         struct span name)
{
    return (granted_ops(p, bucket, name, false) & S3_ALLOW_LIST) != 0;
}

bool access_keys_may_see_bucket(const struct access_keys_principal *p, struct span bucket)
{
    return granted_ops(p, bucket, NO_SUBJECT, true) != 0;
}
