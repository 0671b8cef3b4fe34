// SPDX-License-Identifier: Apache-2.0
// Finds out which keys and buckets a request may read, write, delete or list at an origin. The
// rights check and invalidation both use this one answer. Pure; any thread.
//
// A request that the route table knows has its effect in a row of operations.def. For any other
// request the worst case is assumed:
//   - A read needs the rights of every operation that it could be without its unknown parameters,
//     and at least the right to read the key or to list the bucket.
//   - A write needs ANY and may change the key. Without a key, or if its body may name keys that
//     are not read here, it may change the whole bucket.
//
// A file-based origin turns a key into a path (s3_key_as_path), and origins differ in how. So the
// principal must be allowed the key and each such path (access_keys_allowed), and a write changes
// all of them.
//
// An id of a version or upload is refused if a file-based origin could read it as a path to another
// key.
//
// The outcome of a conditional write reveals what exists, so such a write also needs the right to
// read.
//
// A source is a key that a request names in x-amz-copy-source or x-amz-rename-source. Only this
// file parses sources. It looks for them in the request's headers and in its query, because
// presigning moves headers there. Forebay refuses a request that names a source twice, or whose
// operation takes no source in S3. For the origin, s3_source_render() writes the source again from
// the parsed parts, so that the origin cannot read something else.
#include "s3/s3_private.h"

#include <assert.h>
#include <string.h>

#define S3_RIGHTS_READ S3_ALLOW_READ
#define S3_RIGHTS_LIST S3_ALLOW_LIST
#define S3_RIGHTS_WRITE S3_ALLOW_WRITE
#define S3_RIGHTS_DELETE S3_ALLOW_DELETE
#define S3_RIGHTS_ANY S3_ALLOW_ANY
#define S3_RIGHTS_READ_LIST (S3_ALLOW_READ | S3_ALLOW_LIST)
#define S3_RIGHTS_READ_WRITE (S3_ALLOW_READ | S3_ALLOW_WRITE)
#define S3_RIGHTS_WRITE_DELETE (S3_ALLOW_WRITE | S3_ALLOW_DELETE)
#define S3_RIGHTS_ALL                                                                              \
    (S3_ALLOW_READ | S3_ALLOW_LIST | S3_ALLOW_WRITE | S3_ALLOW_DELETE | S3_ALLOW_ANY)

#define AMZ "x-amz-"

struct effect_row {
    unsigned rights;
    enum s3_scope scope;
};

static const struct effect_row ROWS[] = {
#define S3_OPERATION(name, flags, rights, scope) {S3_RIGHTS_##rights, S3_SCOPE_##scope},
#include "s3/operations.def"
#undef S3_OPERATION
};
static_assert(ARRAY_LEN(ROWS) == S3_OPERATION_COUNT_, "one row per operation");

// --- keys as paths -------------------------------------------------------------------------------

bool s3_key_as_path(struct span key, unsigned reading, struct s3_path *ret_path)
{
    struct s3_path *path = ret_path;
    const struct span whole = key;
    bool has_backslashes = (reading & 1u) != 0, ends_at_nul = (reading & 2u) != 0;
    check(reading < S3_PATH_READINGS);
    if (ends_at_nul) {
        key.len = span_find(key, '\0');
    }
    if ((ends_at_nul && key.len == whole.len) ||
        (has_backslashes && span_find(key, '\\') == key.len)) {
        return false;
    }
    path->len = 0;
    path->climbs = path->leaves = false;
    bool names_folder = false; // the last segment was "." or "..", so a trailing '/' is dropped
    for (size_t at = 0; at < key.len;) {
        struct span rest = {key.ptr + at, key.len - at};
        struct span segment = {rest.ptr, span_find(rest, '/')};
        if (has_backslashes) {
            segment.len = span_find(segment, '\\');
        }
        bool is_closed = segment.len < rest.len;
        at += segment.len + (is_closed ? 1 : 0);
        bool is_parent = span_equal_cstr(segment, "..");
        names_folder = is_parent || span_equal_cstr(segment, ".");
        if (is_parent) {
            path->climbs = true;
            path->leaves = path->leaves || path->len == 0;
            path->len -= path->len > 0 ? 1 : 0;
            while (path->len > 0 && path->text[path->len - 1] != '/') {
                path->len--;
            }
        } else if (segment.len > 0 && !names_folder) {
            if (path->len + segment.len + 1 > sizeof(path->text)) {
                // The path is too long to be a key, so it counts as leaving the bucket.
                path->leaves = true;
                continue;
            }
            memcpy(path->text + path->len, segment.ptr, segment.len);
            path->len += segment.len;
            if (is_closed) {
                path->text[path->len++] = '/';
            }
        }
    }
    path->len -= names_folder && path->len > 0 && path->text[path->len - 1] == '/' ? 1 : 0;
    path->differs = !span_equal(whole, (struct span){path->text, path->len});
    return true;
}

// Returns true if an id has a ".." segment. A file-based origin may use the id as the name of a
// file next to the key, and ".." then leads to another key.
bool s3_id_climbs(struct span id)
{
    struct s3_path path;
    for (unsigned reading = 0; reading < S3_PATH_READINGS; reading++) {
        if (s3_key_as_path(id, reading, &path) && path.climbs) {
            return true;
        }
    }
    return false;
}

bool s3_ids_climb(const struct s3_request *r)
{
    for (unsigned i = 0; i < r->param_count; i++) {
        struct span name = r->params[i].name;
        if ((span_equal_nocase(name, SPAN("versionId")) ||
             span_equal_nocase(name, SPAN("uploadId"))) &&
            s3_id_climbs(r->params[i].value)) {
            return true;
        }
    }
    return false;
}

// --- names in headers and in the query -----------------------------------------------------------

unsigned s3_name_count(const struct s3_request *r, const struct headers *headers, const char *name)
{
    struct span wanted = span_from_cstr(name);
    unsigned count = headers_count(headers, wanted);
    for (unsigned i = 0; i < r->param_count; i++) {
        count += span_equal_nocase(r->params[i].name, wanted) ? 1 : 0;
    }
    return count;
}

static bool has_prefix(struct span name, const char *prefix)
{
    struct span p = span_from_cstr(prefix);
    return name.len > p.len && span_equal_nocase((struct span){name.ptr, p.len}, p);
}

bool s3_name_is_source(struct span name)
{
    return span_equal_nocase(name, SPAN(S3_COPY_SOURCE)) ||
           span_equal_nocase(name, SPAN(S3_RENAME_SOURCE));
}

bool s3_name_is_of_source(struct span name)
{
    return has_prefix(name, S3_COPY_SOURCE "-") || has_prefix(name, S3_RENAME_SOURCE "-");
}

// Accepts the x-amz-* headers of S3's API, those of its signatures, and those that SDKs add.
bool s3_header_is_of_write(struct span name)
{
    static const char *const NAMES[] = {"acl",
                                        "api-version",
                                        "bypass-governance-retention",
                                        "client-token",
                                        "confirm-remove-self-bucket-access",
                                        "content-sha256",
                                        "copy-source",
                                        "date",
                                        "decoded-content-length",
                                        "expected-bucket-owner",
                                        "metadata-directive",
                                        "mfa",
                                        "mp-object-size",
                                        "object-annotation-directive",
                                        "object-if-match",
                                        "object-ownership",
                                        "rename-source",
                                        "request-payer",
                                        "s3session-token",
                                        "sdk-checksum-algorithm",
                                        "security-token",
                                        "server-side-encryption",
                                        "skip-destination-validation",
                                        "source-expected-bucket-owner",
                                        "storage-class",
                                        "tagging",
                                        "tagging-directive",
                                        "te",
                                        "trailer",
                                        "transition-default-minimum-object-size",
                                        "user-agent",
                                        "website-redirect-location",
                                        "write-offset-bytes"};
    static const char *const PREFIXES[] = {
        "bucket-",      "checksum-",      "copy-source-",           "grant-", "if-match-", "meta-",
        "object-lock-", "rename-source-", "server-side-encryption-"};
    if (!has_prefix(name, AMZ)) {
        return false;
    }
    name = (struct span){name.ptr + sizeof(AMZ) - 1, name.len - sizeof(AMZ) + 1};
    for (size_t i = 0; i < ARRAY_LEN(NAMES); i++) {
        if (span_equal_nocase(name, span_from_cstr(NAMES[i]))) {
            return true;
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(PREFIXES); i++) {
        if (has_prefix(name, PREFIXES[i])) {
            return true;
        }
    }
    return false;
}

// Returns true if `fits` accepts one of the headers or query parameters of the request.
static bool has_name(const struct s3_request *r, const struct headers *headers,
                     bool (*fits)(struct span name, struct span value))
{
    for (unsigned i = 0; i < headers->count; i++) {
        if (fits(headers->items[i].name, headers->items[i].value)) {
            return true;
        }
    }
    for (unsigned i = 0; i < r->param_count; i++) {
        if (fits(r->params[i].name, r->params[i].value)) {
            return true;
        }
    }
    return false;
}

// Returns true for a condition whose outcome reveals more about an existing object than the outcome
// of any write does. "If-None-Match: *" (write only if no object exists) reveals no more, so it
// does not count. Every other condition counts, because it depends on the existing bytes. The
// offset of an append counts for the same reason.
static bool asks_what_is_there(struct span name, struct span value)
{
    if (span_equal_nocase(name, SPAN("if-none-match"))) {
        return !span_equal_cstr(span_trim(value), "*");
    }
    return has_prefix(name, "if-") || has_prefix(name, AMZ "if-") ||
           span_equal_nocase(name, SPAN(AMZ "object-if-match")) ||
           span_equal_nocase(name, SPAN(AMZ "write-offset-bytes"));
}

// Returns true for a header that sets permissions. CreateBucket with such a header needs ANY,
// because an origin may apply the header to a bucket that exists already.
static bool says_who_may(struct span name, struct span value)
{
    (void)value;
    return span_equal_nocase(name, SPAN(AMZ "acl")) || has_prefix(name, AMZ "grant-") ||
           span_equal_nocase(name, SPAN(AMZ "object-ownership"));
}

bool s3_headers_are_of_write(const struct headers *headers)
{
    for (unsigned i = 0; i < headers->count; i++) {
        struct span name = headers->items[i].name;
        if (has_prefix(name, AMZ) && !s3_header_is_of_write(name)) {
            return false;
        }
    }
    return true;
}

bool s3_request_unpacks(const struct s3_request *r, const struct headers *headers)
{
    // Snowball and MinIO know this header. With it, MinIO stores each member of the archive under
    // its own key.
    return s3_name_count(r, headers, "x-amz-meta-snowball-auto-extract") > 0;
}

// Finds the value of a name that may occur only once. Returns ERR_INVALID_ARGUMENT if it occurs
// more often.
static enum err find_value(const struct s3_request *r, const struct headers *headers,
                           const char *name, bool *ret_found, struct span *ret_value)
{
    unsigned count = s3_name_count(r, headers, name);
    *ret_found = count > 0;
    if (count != 1) {
        return count == 0 ? ERR_OK : ERR_INVALID_ARGUMENT;
    }
    if (headers_get(headers, span_from_cstr(name), ret_value)) {
        return ERR_OK;
    }
    for (unsigned i = 0; i < r->param_count; i++) {
        if (span_equal_nocase(r->params[i].name, span_from_cstr(name))) {
            *ret_value = r->params[i].value;
        }
    }
    return ERR_OK;
}

// --- sources -------------------------------------------------------------------------------------

static enum err decode(struct arena *arena, struct span raw, struct span *ret_decoded)
{
    char *bytes = arena_alloc(arena, raw.len + 1);
    if (bytes == NULL) {
        return ERR_NO_MEMORY;
    }
    size_t len;
    if (!span_uri_decode(raw, bytes, &len)) {
        return ERR_INVALID_ARGUMENT;
    }
    *ret_decoded = (struct span){bytes, len};
    return ERR_OK;
}

// Splits "bucket/key". Returns false if the bucket or the key is missing.
static bool cut_bucket(struct span text, struct span *ret_bucket, struct span *ret_key)
{
    size_t slash = span_find(text, '/');
    *ret_bucket = (struct span){text.ptr, slash};
    if (slash + 1 >= text.len || !s3_bucket_name_is_valid(*ret_bucket)) {
        return false;
    }
    *ret_key = (struct span){text.ptr + slash + 1, text.len - slash - 1};
    return true;
}

static struct span without_slash(struct span text)
{
    return text.len > 0 && text.ptr[0] == '/' ? (struct span){text.ptr + 1, text.len - 1} : text;
}

// Parses an escaped "bucket/key?versionId=V". A leading '/' is optional, and no other query is
// allowed. Only a raw '?' starts the query; an escaped one belongs to the key.
static enum err read_copy_source(struct arena *arena, struct span value, struct s3_source *source)
{
    static const char VERSION[] = "versionId=";
    struct span path = {value.ptr, span_find(value, '?')};
    enum err err = ERR_OK;
    if (path.len < value.len) {
        struct span query = {value.ptr + path.len + 1, value.len - path.len - 1};
        source->has_version = span_starts_with(query, SPAN(VERSION)) &&
                              span_find(query, '&') == query.len && query.len > sizeof(VERSION) - 1;
        if (!source->has_version) {
            return ERR_INVALID_ARGUMENT;
        }
        query = (struct span){query.ptr + sizeof(VERSION) - 1, query.len - sizeof(VERSION) + 1};
        err = decode(arena, query, &source->version);
        if (err == ERR_OK && s3_id_climbs(source->version)) {
            err = ERR_INVALID_ARGUMENT;
        }
    }
    struct span decoded;
    if (err == ERR_OK) {
        err = decode(arena, path, &decoded);
    }
    if (err != ERR_OK) {
        return err;
    }
    if (span_starts_with(without_slash(decoded), SPAN("arn:"))) {
        return ERR_OK; // an access point's ARN; is_understood stays false
    }
    if (!cut_bucket(without_slash(decoded), &source->bucket, &source->key)) {
        return ERR_INVALID_ARGUMENT;
    }
    source->is_understood = true;
    return source->key.len > S3_KEY_MAX ? ERR_KEY_TOO_LONG : ERR_OK;
}

// Parses "bucket/key". S3 demands that form, but clients also send a key without a bucket.
static enum err read_rename_source(struct arena *arena, const struct s3_request *r,
                                   struct span value, struct s3_source *source)
{
    struct span decoded;
    enum err err = decode(arena, value, &decoded);
    if (err != ERR_OK) {
        return err;
    }
    struct span text = without_slash(decoded);
    struct span bucket, key;
    if (cut_bucket(text, &bucket, &key) && span_equal(bucket, r->bucket)) {
        source->bucket = bucket;
        source->key = key;
    } else {
        source->key = text;
    }
    source->is_understood = source->is_rename = true;
    if (text.len == 0) {
        return ERR_INVALID_ARGUMENT;
    }
    return source->key.len > S3_KEY_MAX ? ERR_KEY_TOO_LONG : ERR_OK;
}

void s3_source_render(const struct s3_source *source, struct span origin_bucket, struct buf *out)
{
    check(source->is_there && source->is_understood);
    if (source->bucket.len > 0) {
        buf_append_cstr(out, source->is_rename ? "" : "/");
        buf_append_span(out, origin_bucket);
        buf_append_char(out, '/');
    } else if (span_starts_with(source->key, SPAN("/"))) {
        // The origin removes one leading '/', so a key that begins with '/' gets a second one.
        buf_append_char(out, '/');
    }
    buf_append_uri_encoded(out, source->key, true);
    if (source->has_version) {
        buf_append_cstr(out, "?versionId=");
        buf_append_uri_encoded(out, source->version, false);
    }
}

// --- effects -------------------------------------------------------------------------------------

static void add(struct s3_effects *e, unsigned rights, enum s3_scope scope, struct span bucket,
                struct span key, bool changes)
{
    check(e->count < S3_EFFECTS_MAX);
    e->items[e->count++] = (struct s3_effect){rights, scope, bucket, key, changes};
}

// Returns the rights of every operation that the unknown read could be.
static unsigned rights_of_unknown_read(const struct s3_request *r)
{
    unsigned rights = r->key.len > 0 ? S3_ALLOW_READ : S3_ALLOW_LIST;
    size_t position = 0;
    enum s3_operation operation;
    while (s3_route_next(r, &position, &operation)) {
        if (ROWS[operation].scope != S3_SCOPE_SOMEWHERE) {
            rights |= ROWS[operation].rights;
        }
    }
    return rights;
}

static void add_unknown(struct s3_effects *e, const struct s3_request *r,
                        const struct headers *headers)
{
    const struct span nothing = {NULL, 0};
    if (r->bucket.len == 0) {
        add(e, S3_ALLOW_ANY, S3_SCOPE_SERVICE, r->bucket, nothing, false);
        return;
    }
    if ((r->flags & S3_OP_READ) != 0) {
        add(e, rights_of_unknown_read(r), r->key.len > 0 ? S3_SCOPE_KEY : S3_SCOPE_BUCKET,
            r->bucket, r->key, false);
        return;
    }
    bool is_wide =
        r->key.len == 0 || span_equal(r->method, SPAN("POST")) || s3_request_unpacks(r, headers);
    // OPTIONS, a browser's preflight, changes nothing.
    add(e, S3_ALLOW_ANY, is_wide ? S3_SCOPE_BUCKET : S3_SCOPE_KEY, r->bucket,
        is_wide ? nothing : r->key, !span_equal(r->method, SPAN("OPTIONS")));
}

static void add_target(struct s3_effects *e, const struct s3_request *r)
{
    const struct effect_row *row = &ROWS[r->operation];
    struct span key = r->key;
    if (row->scope == S3_SCOPE_PREFIX) {
        const struct s3_param *prefix = s3_param_find(r, "prefix");
        key = prefix != NULL ? prefix->value : (struct span){NULL, 0};
    }
    add(e, row->rights, row->scope, r->bucket, key,
        (r->flags & S3_OP_CHANGES_KEY) != 0 && row->scope != S3_SCOPE_SOMEWHERE);
}

static bool takes_copy(const struct s3_request *r)
{
    return r->operation == S3_CopyObject || r->operation == S3_UploadPartCopy ||
           (r->operation == S3_Unknown && (r->flags & S3_OP_READ) == 0);
}

static bool takes_rename(const struct s3_request *r)
{
    return r->operation == S3_RenameObject ||
           (r->operation == S3_Unknown && (r->flags & S3_OP_READ) == 0);
}

// A rename makes the old key's content readable under the new key, so it needs the right to read
// too. An origin may read the value as "bucket/key" or as a key without a bucket, so an effect is
// added for each reading.
static enum err add_rename(struct arena *arena, struct s3_effects *e, const struct s3_request *r,
                           struct span origin_bucket)
{
    const unsigned rights = S3_ALLOW_READ | S3_ALLOW_DELETE;
    const struct s3_source *source = &e->rename;
    add(e, rights, S3_SCOPE_KEY, r->bucket, source->key, true);
    if (source->bucket.len == 0) {
        struct span bucket, key;
        if (cut_bucket(source->key, &bucket, &key)) {
            bucket = span_equal(bucket, origin_bucket) ? r->bucket : bucket;
            add(e, rights, S3_SCOPE_KEY, bucket, key, true);
        }
        return ERR_OK;
    }
    size_t len = origin_bucket.len + 1 + source->key.len;
    char *bare = arena_alloc(arena, len);
    if (bare == NULL) {
        return ERR_NO_MEMORY;
    }
    memcpy(bare, origin_bucket.ptr, origin_bucket.len);
    bare[origin_bucket.len] = '/';
    memcpy(bare + origin_bucket.len + 1, source->key.ptr, source->key.len);
    if (len <= S3_KEY_MAX) {
        add(e, rights, S3_SCOPE_KEY, r->bucket, (struct span){bare, len}, true);
    }
    return ERR_OK;
}

static enum err add_sources(struct arena *arena, struct s3_effects *e, const struct s3_request *r,
                            const struct headers *headers, struct span origin_bucket)
{
    struct span value;
    enum err err = find_value(r, headers, S3_COPY_SOURCE, &e->copy.is_there, &value);
    if (err == ERR_OK && e->copy.is_there) {
        err = takes_copy(r) ? read_copy_source(arena, value, &e->copy) : ERR_INVALID_ARGUMENT;
    }
    if (err == ERR_OK && e->copy.is_understood) {
        add(e, S3_ALLOW_READ, S3_SCOPE_KEY, e->copy.bucket, e->copy.key, false);
    }
    if (err == ERR_OK) {
        err = find_value(r, headers, S3_RENAME_SOURCE, &e->rename.is_there, &value);
    }
    if (err == ERR_OK && e->rename.is_there) {
        err = takes_rename(r) ? read_rename_source(arena, r, value, &e->rename)
                              : ERR_INVALID_ARGUMENT;
    }
    if (err == ERR_OK && e->rename.is_there) {
        err = add_rename(arena, e, r, origin_bucket);
    }
    if (err == ERR_OK && r->operation == S3_RenameObject && !e->rename.is_there) {
        err = ERR_INVALID_ARGUMENT;
    }
    return err;
}

enum err s3_effects_find(struct arena *arena, const struct s3_request *r,
                         const struct headers *headers, struct span origin_bucket,
                         struct s3_effects *ret_effects)
{
    struct s3_effects *e = ret_effects;
    e->count = 0;
    e->copy = e->rename = (struct s3_source){.is_there = false};
    if (r->operation == S3_Unknown) {
        add_unknown(e, r, headers);
    } else {
        add_target(e, r);
    }
    if (r->operation == S3_CreateBucket && has_name(r, headers, says_who_may)) {
        e->items[0].rights |= S3_ALLOW_ANY;
    }
    e->asks_what_is_there =
        (r->flags & S3_OP_READ) == 0 && has_name(r, headers, asks_what_is_there);
    if (e->asks_what_is_there && e->items[0].scope != S3_SCOPE_SOMEWHERE) {
        e->items[0].rights |= S3_ALLOW_READ;
    }
    // A cacheable read has no source, because a header or parameter that names one makes it
    // uncacheable.
    return (r->flags & S3_OP_CACHEABLE) != 0 ? ERR_OK
                                             : add_sources(arena, e, r, headers, origin_bucket);
}
