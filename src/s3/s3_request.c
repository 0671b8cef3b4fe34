// SPDX-License-Identifier: Apache-2.0
// Finds the S3 operation, the bucket and the key of a request from its method, Host, raw target and
// headers. Pure; any thread.
//
// The raw path is split first. In path style the first segment is the bucket, and the rest is the
// key, slashes included. In virtual-host style the whole path after its first '/' is the key. Then
// each piece is percent-decoded exactly once and never normalised: "//", "..", a trailing '/' and a
// decoded %2F are bytes of the key.
//
// Routing is a table of rows; the first match wins. A row names the parameter that selects the
// operation, and the other parameters that may come with it. The origin may see another operation
// in a request that has
// - a parameter that the row does not list, that is repeated, or whose value does not fit
// - an x-amz-* header that S3 does not have, if it is a write
// Such a request becomes Unknown: it is passed through whole, never answered from the cache, and
// checked for everything that it could be (s3_effects.c).
//
// Everything in the result is a view into the target or into the arena.
#include "s3/s3_private.h"

#include <assert.h>
#include <string.h>

#define BUCKET_NAME_MAX 255
#define PART_NUMBER_MAX 10000u

enum level { LEVEL_SERVICE, LEVEL_BUCKET, LEVEL_OBJECT };

struct route {
    const char *method;
    enum level level;
    const char *selector; // required parameter; NULL: none
    const char *also;     // another required parameter; NULL: none
    const char *allowed;  // other allowed parameters, separated by spaces
    enum s3_operation operation;
};

#define LIST_PARAMS "delimiter encoding-type max-keys prefix"
#define READ_PARAMS                                                                                \
    "partNumber versionId response-cache-control response-content-disposition "                    \
    "response-content-encoding response-content-language response-content-type response-expires"

#define SUB_RESOURCE_WITH(method, name, allowed, operation)                                        \
    {                                                                                              \
        method, LEVEL_BUCKET, name, NULL, allowed, S3_##operation                                  \
    }
#define SUB_RESOURCE(method, name, operation) SUB_RESOURCE_WITH(method, name, "", operation)

// Within a method and level, rows with a selector come before the row without one.
static const struct route ROUTES[] = {
    {"GET", LEVEL_OBJECT, "uploadId", NULL, "max-parts part-number-marker encoding-type",
     S3_ListParts},
    {"GET", LEVEL_OBJECT, "acl", NULL, "versionId", S3_GetObjectAcl},
    {"GET", LEVEL_OBJECT, "attributes", NULL, "versionId", S3_GetObjectAttributes},
    {"GET", LEVEL_OBJECT, "legal-hold", NULL, "versionId", S3_GetObjectLegalHold},
    {"GET", LEVEL_OBJECT, "retention", NULL, "versionId", S3_GetObjectRetention},
    {"GET", LEVEL_OBJECT, "tagging", NULL, "versionId", S3_GetObjectTagging},
    {"GET", LEVEL_OBJECT, "torrent", NULL, "", S3_GetObjectTorrent},
    {"GET", LEVEL_OBJECT, NULL, NULL, READ_PARAMS, S3_GetObject},
    {"HEAD", LEVEL_OBJECT, NULL, NULL, READ_PARAMS, S3_HeadObject},

    {"PUT", LEVEL_OBJECT, "uploadId", "partNumber", "", S3_UploadPart},
    {"PUT", LEVEL_OBJECT, "acl", NULL, "versionId", S3_PutObjectAcl},
    {"PUT", LEVEL_OBJECT, "encryption", NULL, "versionId", S3_UpdateObjectEncryption},
    {"PUT", LEVEL_OBJECT, "legal-hold", NULL, "versionId", S3_PutObjectLegalHold},
    {"PUT", LEVEL_OBJECT, "renameObject", NULL, "", S3_RenameObject},
    {"PUT", LEVEL_OBJECT, "retention", NULL, "versionId", S3_PutObjectRetention},
    {"PUT", LEVEL_OBJECT, "tagging", NULL, "versionId", S3_PutObjectTagging},
    {"PUT", LEVEL_OBJECT, NULL, NULL, "", S3_PutObject},

    {"POST", LEVEL_OBJECT, "uploads", NULL, "", S3_CreateMultipartUpload},
    {"POST", LEVEL_OBJECT, "uploadId", NULL, "", S3_CompleteMultipartUpload},
    {"POST", LEVEL_OBJECT, "restore", NULL, "versionId", S3_RestoreObject},
    {"POST", LEVEL_OBJECT, "select", "select-type", "", S3_SelectObjectContent},

    {"DELETE", LEVEL_OBJECT, "uploadId", NULL, "", S3_AbortMultipartUpload},
    {"DELETE", LEVEL_OBJECT, "tagging", NULL, "versionId", S3_DeleteObjectTagging},
    {"DELETE", LEVEL_OBJECT, NULL, NULL, "versionId", S3_DeleteObject},

    {"GET", LEVEL_SERVICE, "max-directory-buckets", NULL, "continuation-token",
     S3_ListDirectoryBuckets},
    {"GET", LEVEL_SERVICE, NULL, NULL, "max-buckets continuation-token prefix bucket-region",
     S3_ListBuckets},

    SUB_RESOURCE("GET", "abac", GetBucketAbac),
    SUB_RESOURCE("GET", "accelerate", GetBucketAccelerateConfiguration),
    SUB_RESOURCE("GET", "acl", GetBucketAcl),
    {"GET", LEVEL_BUCKET, "analytics", "id", "", S3_GetBucketAnalyticsConfiguration},
    SUB_RESOURCE_WITH("GET", "analytics", "continuation-token", ListBucketAnalyticsConfigurations),
    SUB_RESOURCE("GET", "cors", GetBucketCors),
    SUB_RESOURCE("GET", "encryption", GetBucketEncryption),
    {"GET", LEVEL_BUCKET, "intelligent-tiering", "id", "",
     S3_GetBucketIntelligentTieringConfiguration},
    SUB_RESOURCE_WITH("GET", "intelligent-tiering", "continuation-token",
                      ListBucketIntelligentTieringConfigurations),
    {"GET", LEVEL_BUCKET, "inventory", "id", "", S3_GetBucketInventoryConfiguration},
    SUB_RESOURCE_WITH("GET", "inventory", "continuation-token", ListBucketInventoryConfigurations),
    SUB_RESOURCE("GET", "lifecycle", GetBucketLifecycleConfiguration),
    {"GET", LEVEL_BUCKET, "location", NULL, "", S3_GetBucketLocation},
    SUB_RESOURCE("GET", "logging", GetBucketLogging),
    SUB_RESOURCE("GET", "metadataConfiguration", GetBucketMetadataConfiguration),
    SUB_RESOURCE("GET", "metadataTable", GetBucketMetadataTableConfiguration),
    {"GET", LEVEL_BUCKET, "metrics", "id", "", S3_GetBucketMetricsConfiguration},
    SUB_RESOURCE_WITH("GET", "metrics", "continuation-token", ListBucketMetricsConfigurations),
    SUB_RESOURCE("GET", "notification", GetBucketNotificationConfiguration),
    SUB_RESOURCE("GET", "object-lock", GetObjectLockConfiguration),
    SUB_RESOURCE("GET", "ownershipControls", GetBucketOwnershipControls),
    SUB_RESOURCE("GET", "policy", GetBucketPolicy),
    SUB_RESOURCE("GET", "policyStatus", GetBucketPolicyStatus),
    SUB_RESOURCE("GET", "publicAccessBlock", GetPublicAccessBlock),
    SUB_RESOURCE("GET", "replication", GetBucketReplication),
    SUB_RESOURCE("GET", "requestPayment", GetBucketRequestPayment),
    SUB_RESOURCE("GET", "session", CreateSession),
    SUB_RESOURCE("GET", "tagging", GetBucketTagging),
    {"GET", LEVEL_BUCKET, "uploads", NULL,
     "delimiter encoding-type key-marker max-uploads prefix upload-id-marker",
     S3_ListMultipartUploads},
    SUB_RESOURCE("GET", "versioning", GetBucketVersioning),
    {"GET", LEVEL_BUCKET, "versions", NULL, LIST_PARAMS " key-marker version-id-marker",
     S3_ListObjectVersions},
    SUB_RESOURCE("GET", "website", GetBucketWebsite),
    {"GET", LEVEL_BUCKET, "list-type", NULL,
     LIST_PARAMS " continuation-token fetch-owner start-after", S3_ListObjectsV2},
    {"GET", LEVEL_BUCKET, NULL, NULL, LIST_PARAMS " marker", S3_ListObjects},
    {"HEAD", LEVEL_BUCKET, NULL, NULL, "", S3_HeadBucket},

    SUB_RESOURCE("PUT", "abac", PutBucketAbac),
    SUB_RESOURCE("PUT", "accelerate", PutBucketAccelerateConfiguration),
    SUB_RESOURCE("PUT", "acl", PutBucketAcl),
    SUB_RESOURCE_WITH("PUT", "analytics", "id", PutBucketAnalyticsConfiguration),
    SUB_RESOURCE("PUT", "cors", PutBucketCors),
    SUB_RESOURCE("PUT", "encryption", PutBucketEncryption),
    SUB_RESOURCE_WITH("PUT", "intelligent-tiering", "id", PutBucketIntelligentTieringConfiguration),
    SUB_RESOURCE_WITH("PUT", "inventory", "id", PutBucketInventoryConfiguration),
    SUB_RESOURCE("PUT", "lifecycle", PutBucketLifecycleConfiguration),
    SUB_RESOURCE("PUT", "logging", PutBucketLogging),
    SUB_RESOURCE("PUT", "metadataInventoryTable", UpdateBucketMetadataInventoryTableConfiguration),
    SUB_RESOURCE("PUT", "metadataJournalTable", UpdateBucketMetadataJournalTableConfiguration),
    SUB_RESOURCE_WITH("PUT", "metrics", "id", PutBucketMetricsConfiguration),
    SUB_RESOURCE("PUT", "notification", PutBucketNotificationConfiguration),
    SUB_RESOURCE("PUT", "object-lock", PutObjectLockConfiguration),
    SUB_RESOURCE("PUT", "ownershipControls", PutBucketOwnershipControls),
    SUB_RESOURCE("PUT", "policy", PutBucketPolicy),
    SUB_RESOURCE("PUT", "publicAccessBlock", PutPublicAccessBlock),
    SUB_RESOURCE("PUT", "replication", PutBucketReplication),
    SUB_RESOURCE("PUT", "requestPayment", PutBucketRequestPayment),
    SUB_RESOURCE("PUT", "tagging", PutBucketTagging),
    SUB_RESOURCE("PUT", "versioning", PutBucketVersioning),
    SUB_RESOURCE("PUT", "website", PutBucketWebsite),
    {"PUT", LEVEL_BUCKET, NULL, NULL, "", S3_CreateBucket},

    {"POST", LEVEL_BUCKET, "delete", NULL, "", S3_DeleteObjects},
    SUB_RESOURCE("POST", "metadataConfiguration", CreateBucketMetadataConfiguration),
    SUB_RESOURCE("POST", "metadataTable", CreateBucketMetadataTableConfiguration),
    {"POST", LEVEL_BUCKET, NULL, NULL, "", S3_PostObject},

    SUB_RESOURCE_WITH("DELETE", "analytics", "id", DeleteBucketAnalyticsConfiguration),
    SUB_RESOURCE("DELETE", "cors", DeleteBucketCors),
    SUB_RESOURCE("DELETE", "encryption", DeleteBucketEncryption),
    SUB_RESOURCE_WITH("DELETE", "intelligent-tiering", "id",
                      DeleteBucketIntelligentTieringConfiguration),
    SUB_RESOURCE_WITH("DELETE", "inventory", "id", DeleteBucketInventoryConfiguration),
    SUB_RESOURCE("DELETE", "lifecycle", DeleteBucketLifecycle),
    SUB_RESOURCE("DELETE", "metadataConfiguration", DeleteBucketMetadataConfiguration),
    SUB_RESOURCE("DELETE", "metadataTable", DeleteBucketMetadataTableConfiguration),
    SUB_RESOURCE_WITH("DELETE", "metrics", "id", DeleteBucketMetricsConfiguration),
    SUB_RESOURCE("DELETE", "ownershipControls", DeleteBucketOwnershipControls),
    SUB_RESOURCE("DELETE", "policy", DeleteBucketPolicy),
    SUB_RESOURCE("DELETE", "publicAccessBlock", DeletePublicAccessBlock),
    SUB_RESOURCE("DELETE", "replication", DeleteBucketReplication),
    SUB_RESOURCE("DELETE", "tagging", DeleteBucketTagging),
    SUB_RESOURCE("DELETE", "website", DeleteBucketWebsite),
    {"DELETE", LEVEL_BUCKET, NULL, NULL, "", S3_DeleteBucket},
};

struct operation_row {
    const char *name;
    unsigned flags;
};

static const struct operation_row OPERATIONS[] = {
#define S3_OPERATION(name, flags, rights, scope) {#name, flags},
#include "s3/operations.def"
#undef S3_OPERATION
};
static_assert(ARRAY_LEN(OPERATIONS) == S3_OPERATION_COUNT_, "one row per operation");

const char *s3_operation_name(enum s3_operation operation)
{
    check((unsigned)operation < S3_OPERATION_COUNT_);
    return OPERATIONS[operation].name;
}

bool s3_name_is_secret(struct span name)
{
    static const char *const SECRET[] = {"x-amz-signature", "x-amz-security-token", "signature",
                                         "x-amz-server-side-encryption-customer-key",
                                         "x-amz-copy-source-server-side-encryption-customer-key"};
    for (size_t i = 0; i < ARRAY_LEN(SECRET); i++) {
        if (span_equal_nocase(name, span_from_cstr(SECRET[i]))) {
            return true;
        }
    }
    return false;
}

const struct s3_param *s3_param_find(const struct s3_request *r, const char *name)
{
    for (unsigned i = 0; i < r->param_count; i++) {
        if (span_equal_cstr(r->params[i].name, name)) {
            return &r->params[i];
        }
    }
    return NULL;
}

// --- Host ----------------------------------------------------------------------------------------

// Removes ":port" from a host. Returns false if the text after the colon is not a port.
static bool host_cut_port(struct span *host)
{
    size_t colon = span_find(*host, ':');
    if (colon == host->len) {
        return true;
    }
    uint64_t port;
    if (!span_to_u64(span_after(*host, colon + 1), &port) || port > 65535) {
        return false;
    }
    host->len = colon;
    return true;
}

// Returns true if `label` is a decimal octet without leading zeros.
static bool label_is_octet(struct span label)
{
    uint64_t value;
    return label.len >= 1 && label.len <= 3 && span_to_u64(label, &value) && value <= 255 &&
           (label.len == 1 || label.ptr[0] != '0');
}

// Returns the length of the IPv4 address at the end of the host; 0 if there is none.
static size_t host_ipv4_suffix_len(struct span host)
{
    size_t end = host.len;
    size_t begin = host.len;
    for (unsigned labels = 0; labels < 4; labels++) {
        begin = end;
        while (begin > 0 && host.ptr[begin - 1] != '.') {
            begin--;
        }
        if (!label_is_octet((struct span){host.ptr + begin, end - begin})) {
            return 0;
        }
        if (labels < 3) {
            if (begin == 0) {
                return 0;
            }
            end = begin - 1;
        }
    }
    return host.len - begin;
}

// Accepts "[::1]" and "[::1]:9000". Checks only which characters are used, because Forebay never
// connects to this address.
static bool host_is_ipv6(struct span host)
{
    size_t close = span_find(host, ']');
    if (host.len < 4 || host.ptr[0] != '[' || close == host.len) {
        return false;
    }
    bool has_colon = false;
    for (size_t i = 1; i < close; i++) {
        char c = host.ptr[i];
        bool hex = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
        if (!hex && c != ':' && c != '.') {
            return false;
        }
        has_colon = has_colon || c == ':';
    }
    struct span port = span_after(host, close + 1);
    return has_colon && host_cut_port(&port) && port.len == 0;
}

bool s3_bucket_name_is_valid(struct span name)
{
    if (name.len == 0 || name.len > BUCKET_NAME_MAX || name.ptr[0] == '.' ||
        name.ptr[name.len - 1] == '.') {
        return false;
    }
    for (size_t i = 0; i < name.len; i++) {
        char c = name.ptr[i];
        bool alnum = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!alnum && c != '-' && c != '_' && c != '.') {
            return false;
        }
        if (c == '.' && name.ptr[i + 1] == '.') {
            return false;
        }
    }
    return true;
}

struct host_match {
    enum s3_host_kind kind;
    size_t suffix_len;
};

static void host_match_suffix(struct span host, struct span suffix, enum s3_host_kind kind,
                              struct host_match *best)
{
    if (suffix.len == 0 || suffix.len > host.len || suffix.len <= best->suffix_len) {
        return;
    }
    size_t offset = host.len - suffix.len;
    if (!span_equal_nocase(span_after(host, offset), suffix)) {
        return;
    }
    if (offset == 0 || host.ptr[offset - 1] == '.') {
        *best = (struct host_match){kind, suffix.len};
    }
}

enum s3_host_kind s3_host_parse(struct span host, const struct s3_domains *domains,
                                struct span *ret_bucket)
{
    *ret_bucket = (struct span){NULL, 0};
    if (host.len > 0 && host.ptr[0] == '[') {
        return host_is_ipv6(host) ? S3_HOST_IP : S3_HOST_OTHER;
    }
    if (!host_cut_port(&host) || host.len == 0) {
        return S3_HOST_OTHER;
    }
    host = span_without_root_dot(host);
    struct host_match best = {S3_HOST_OTHER, 0};
    size_t ipv4_len = host_ipv4_suffix_len(host);
    if (ipv4_len > 0) {
        best = (struct host_match){S3_HOST_IP, ipv4_len};
    }
    host_match_suffix(host, SPAN("localhost"), S3_HOST_LOCALHOST, &best);
    for (unsigned i = 0; domains != NULL && i < domains->count; i++) {
        host_match_suffix(host, span_without_root_dot(domains->suffixes[i]), S3_HOST_DOMAIN, &best);
    }
    if (best.kind == S3_HOST_OTHER || best.suffix_len == host.len) {
        return best.kind;
    }
    struct span bucket = {host.ptr, host.len - best.suffix_len - 1};
    if (!s3_bucket_name_is_valid(bucket)) {
        return S3_HOST_OTHER;
    }
    *ret_bucket = bucket;
    return best.kind;
}

// --- Path ----------------------------------------------------------------------------------------

// Percent-decodes a piece once. The result is `raw` itself if nothing is escaped. `plus_is_blank`
// is for a query, in which S3 reads a raw '+' as a space.
static enum err decode_piece(struct arena *arena, struct span raw, bool plus_is_blank,
                             struct span *ret_decoded)
{
    bool has_blanks = plus_is_blank && span_find(raw, '+') < raw.len;
    if (!has_blanks && span_find(raw, '%') == raw.len) {
        *ret_decoded = raw;
        return ERR_OK;
    }
    char *bytes = arena_alloc(arena, raw.len);
    if (bytes == NULL) {
        return ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < raw.len; i++) {
        bytes[i] = has_blanks && raw.ptr[i] == '+' ? ' ' : raw.ptr[i];
    }
    size_t len;
    if (!span_uri_decode((struct span){bytes, raw.len}, bytes, &len)) {
        return ERR_INVALID_URI;
    }
    *ret_decoded = (struct span){bytes, len};
    return ERR_OK;
}

// Returns the raw bytes of the key in raw_path.
static struct span raw_key(const struct s3_request *r)
{
    struct span rest = span_after(r->raw_path, 1);
    if (r->virtual_host) {
        return rest;
    }
    size_t slash = span_find(rest, '/');
    return slash == rest.len ? (struct span){rest.ptr + rest.len, 0} : span_after(rest, slash + 1);
}

static enum err parse_path(struct arena *arena, struct s3_request *r)
{
    if (!r->virtual_host) {
        struct span rest = span_after(r->raw_path, 1);
        struct span segment = {rest.ptr, span_find(rest, '/')};
        enum err err = decode_piece(arena, segment, false, &r->bucket);
        if (err != ERR_OK) {
            return err;
        }
        if (r->bucket.len == 0 && rest.len > 0) {
            return ERR_INVALID_BUCKET_NAME; // such as "//key"
        }
        if (r->bucket.len > 0 && !s3_bucket_name_is_valid(r->bucket)) {
            return ERR_INVALID_BUCKET_NAME;
        }
    }
    struct span key = raw_key(r);
    if (key.len > 3u * S3_KEY_MAX) {
        return ERR_KEY_TOO_LONG;
    }
    enum err err = decode_piece(arena, key, false, &r->key);
    if (err != ERR_OK) {
        return err;
    }
    return r->key.len > S3_KEY_MAX ? ERR_KEY_TOO_LONG : ERR_OK;
}

enum err s3_request_plus_is_space(struct arena *arena, struct s3_request *r)
{
    struct span raw = raw_key(r);
    if (span_find(raw, '+') == raw.len) {
        return ERR_OK;
    }
    enum err err = decode_piece(arena, raw, true, &r->key);
    if (err != ERR_OK) {
        return err;
    }
    r->bypass_reason = "literal-plus";
    r->flags &= ~(unsigned)S3_OP_CACHEABLE;
    return ERR_OK;
}

// --- Query ---------------------------------------------------------------------------------------

static enum err parse_param(struct arena *arena, struct span piece, struct s3_param *ret_param)
{
    size_t equals = span_find(piece, '=');
    struct s3_param param = {.raw_name = {piece.ptr, equals}, .has_value = equals < piece.len};
    if (param.has_value) {
        param.raw_value = span_after(piece, equals + 1);
    }
    enum err err = decode_piece(arena, param.raw_name, true, &param.name);
    if (err == ERR_OK) {
        err = decode_piece(arena, param.raw_value, true, &param.value);
    }
    if (err == ERR_OK) {
        *ret_param = param;
    }
    return err;
}

static enum err parse_query(struct arena *arena, struct s3_request *r)
{
    struct span rest = r->raw_query;
    struct span piece;
    while (rest.ptr != NULL && span_split(&rest, '&', &piece)) {
        if (piece.len == 0) {
            continue;
        }
        if (r->param_count == S3_QUERY_PARAMS_MAX) {
            return ERR_INVALID_URI;
        }
        enum err err = parse_param(arena, piece, &r->params[r->param_count]);
        if (err != ERR_OK) {
            return err;
        }
        r->param_count++;
    }
    return ERR_OK;
}

static bool name_in(struct span name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (span_equal_nocase(name, span_from_cstr(names[i]))) {
            return true;
        }
    }
    return false;
}

// Returns true for a parameter that selects no operation: one of a signature, or a header that
// signers move into the query. In a write, the name of a source is neutral too, because
// s3_effects.c checks sources. x-id selects nothing, but must name the operation: see
// s3_request_parse().
static bool param_is_neutral(struct span name, bool is_read)
{
    static const char *const EXACT[] = {
        "x-id",           "X-Amz-Algorithm",     "X-Amz-Credential", "X-Amz-Date",
        "X-Amz-Expires",  "X-Amz-SignedHeaders", "X-Amz-Signature",  "X-Amz-Security-Token",
        "AWSAccessKeyId", "Signature",           "Expires"};
    static const char *const HEADERS[] = {"X-Amz-Content-Sha256", "X-Amz-Checksum-Mode",
                                          "X-Amz-User-Agent"};
    for (size_t i = 0; i < ARRAY_LEN(EXACT); i++) {
        if (span_equal_cstr(name, EXACT[i])) {
            return true;
        }
    }
    return name_in(name, HEADERS, ARRAY_LEN(HEADERS)) || (!is_read && s3_header_is_of_write(name));
}

static bool method_is_read(struct span method)
{
    return span_equal_cstr(method, "GET") || span_equal_cstr(method, "HEAD");
}

static bool word_in(struct span word, const char *words)
{
    struct span rest = span_from_cstr(words);
    struct span piece;
    while (rest.len > 0 && span_split(&rest, ' ', &piece)) {
        if (span_equal(piece, word)) {
            return true;
        }
    }
    return false;
}

// Returns false if the value of uploadId or partNumber cannot select a part of an upload. An origin
// may then ignore the parameter.
static bool param_value_fits(const struct s3_param *param, bool is_read)
{
    if (span_equal_cstr(param->name, "uploadId")) {
        return param->value.len > 0;
    }
    uint64_t number;
    return is_read || !span_equal_cstr(param->name, "partNumber") ||
           (span_to_u64(param->value, &number) && number >= 1 && number <= PART_NUMBER_MAX);
}

// Returns true if the row allows every parameter, and each occurs once with a value that fits.
static bool route_knows_params(const struct route *route, const struct s3_request *r)
{
    bool is_read = method_is_read(r->method);
    for (unsigned i = 0; i < r->param_count; i++) {
        struct span name = r->params[i].name;
        for (unsigned j = 0; j < i; j++) {
            if (span_equal(r->params[j].name, name)) {
                return false;
            }
        }
        bool selects = (route->selector != NULL && span_equal_cstr(name, route->selector)) ||
                       (route->also != NULL && span_equal_cstr(name, route->also));
        if ((!selects && !param_is_neutral(name, is_read) && !word_in(name, route->allowed)) ||
            !param_value_fits(&r->params[i], is_read)) {
            return false;
        }
    }
    return true;
}

static bool route_matches(const struct route *route, const struct s3_request *r, enum level level)
{
    // The cheapest tests come first, because most requests have no parameters.
    if (route->level != level || (route->selector != NULL && r->param_count == 0) ||
        !span_equal_cstr(r->method, route->method) ||
        (route->selector != NULL && s3_param_find(r, route->selector) == NULL)) {
        return false;
    }
    return route->also == NULL || s3_param_find(r, route->also) != NULL;
}

// --- Routing -------------------------------------------------------------------------------------

static enum level level_of(const struct s3_request *r)
{
    return r->key.len > 0 ? LEVEL_OBJECT : r->bucket.len > 0 ? LEVEL_BUCKET : LEVEL_SERVICE;
}

bool s3_route_next(const struct s3_request *r, size_t *position, enum s3_operation *ret_operation)
{
    while (*position < ARRAY_LEN(ROUTES)) {
        const struct route *route = &ROUTES[(*position)++];
        if (route_matches(route, r, level_of(r))) {
            *ret_operation = route->operation;
            return true;
        }
    }
    return false;
}

static enum s3_operation route_find(const struct s3_request *r, enum level level)
{
    for (size_t i = 0; i < ARRAY_LEN(ROUTES); i++) {
        if (route_matches(&ROUTES[i], r, level)) {
            return route_knows_params(&ROUTES[i], r) ? ROUTES[i].operation : S3_Unknown;
        }
    }
    return S3_Unknown;
}

// Returns true if the body may be a form (multipart/form-data), whose fields name the key. If there
// are two Content-Type headers, one that names a form is enough, because the origin may use either.
static bool may_be_form(const struct headers *headers)
{
    const struct span form = SPAN("multipart/form-data");
    for (unsigned i = 0; i < headers->count; i++) {
        const struct header *h = &headers->items[i];
        if (span_equal_nocase(h->name, SPAN("content-type")) && h->value.len >= form.len &&
            span_equal_nocase((struct span){h->value.ptr, form.len}, form)) {
            return true;
        }
    }
    return false;
}

// Uses headers to tell apart operations that share method and parameters. A POST whose body may be
// a form must be PostObject, and a PostObject must be a form; otherwise the operation is Unknown,
// because an origin may look for a form before it looks at parameters.
static enum s3_operation refine_by_headers(enum s3_operation operation, const struct s3_request *r,
                                           const struct headers *headers)
{
    if (span_equal_cstr(r->method, "POST") &&
        may_be_form(headers) != (operation == S3_PostObject)) {
        return S3_Unknown;
    }
    switch (operation) {
    case S3_CreateBucket: // an origin that unpacks archives may see an upload without a key
        return s3_request_unpacks(r, headers) ? S3_Unknown : S3_CreateBucket;
    case S3_PutObject:
        if (s3_request_unpacks(r, headers)) {
            return S3_Unknown;
        }
        return s3_name_count(r, headers, S3_COPY_SOURCE) > 0 ? S3_CopyObject : S3_PutObject;
    case S3_UploadPart:
        return s3_name_count(r, headers, S3_COPY_SOURCE) > 0 ? S3_UploadPartCopy : S3_UploadPart;
    case S3_ListObjectsV2:
        return span_equal_cstr(s3_param_find(r, "list-type")->value, "2") ? S3_ListObjectsV2
                                                                          : S3_Unknown;
    case S3_SelectObjectContent:
        return span_equal_cstr(s3_param_find(r, "select-type")->value, "2") ? S3_SelectObjectContent
                                                                            : S3_Unknown;
    default:
        return operation;
    }
}

bool s3_header_is_neutral(struct span name)
{
    static const char *const NEUTRAL[] = {"x-amz-date",
                                          "x-amz-content-sha256",
                                          "x-amz-security-token",
                                          "x-amz-sdk-checksum-algorithm",
                                          "x-amz-user-agent",
                                          "x-amz-api-version",
                                          "x-amz-te"};
    // x-amz-checksum-mode, or the checksum of a body, which a read does not have.
    const struct span checksum = SPAN("x-amz-checksum-");
    if (name.len > checksum.len &&
        span_equal_nocase((struct span){name.ptr, checksum.len}, checksum)) {
        return true;
    }
    for (size_t i = 0; i < ARRAY_LEN(NEUTRAL); i++) {
        if (span_equal_nocase(name, span_from_cstr(NEUTRAL[i]))) {
            return true;
        }
    }
    return false;
}

// Returns why these headers may change the answer to a plain read; NULL if they do not.
static const char *headers_bypass_reason(const struct headers *headers)
{
    const struct span customer_key = SPAN("x-amz-server-side-encryption-customer-");
    const char *payer = NULL;
    for (unsigned i = 0; i < headers->count; i++) {
        struct span name = headers->items[i].name;
        if (name.len < 6 || !span_equal_nocase((struct span){name.ptr, 6}, SPAN("x-amz-")) ||
            s3_header_is_neutral(name) ||
            // This header only changes listings.
            span_equal_nocase(name, SPAN("x-amz-optional-object-attributes"))) {
            continue;
        }
        if (name.len > customer_key.len &&
            span_equal_nocase((struct span){name.ptr, customer_key.len}, customer_key)) {
            return "sse-c";
        }
        if (span_equal_nocase(name, SPAN("x-amz-expected-bucket-owner"))) {
            return "expected-owner";
        }
        if (!span_equal_nocase(name, SPAN("x-amz-request-payer")) ||
            !span_equal_cstr(headers->items[i].value, "requester")) {
            return "header";
        }
        payer = "payer"; // returned if there is no other reason
    }
    return payer;
}

static const char *find_bypass_reason(const struct s3_request *r, const struct headers *headers)
{
    if (r->operation == S3_Unknown) {
        return "unknown-parameter";
    }
    if (r->operation != S3_GetObject && r->operation != S3_HeadObject) {
        return "sub-resource";
    }
    if (r->has_version_id) {
        return "version";
    }
    const char *reason = headers_bypass_reason(headers);
    return reason == NULL && r->has_part_number && r->part_number != 1 ? "part-number" : reason;
}

// Parses the parameters that Forebay itself needs. The origin checks all others.
static enum err read_params(struct s3_request *r)
{
    const struct s3_param *p;
    if (r->operation == S3_GetObject || r->operation == S3_HeadObject) {
        p = s3_param_find(r, "versionId");
        if (p != NULL) {
            r->has_version_id = true;
            r->version_id = p->value;
        }
        p = s3_param_find(r, "partNumber");
        if (p != NULL) {
            r->has_part_number = true;
            if (!span_to_u64(p->value, &r->part_number) || r->part_number < 1 ||
                r->part_number > PART_NUMBER_MAX) {
                return ERR_INVALID_ARGUMENT;
            }
        }
        for (unsigned i = 0; i < r->param_count; i++) {
            r->has_response_overrides =
                r->has_response_overrides || span_starts_with(r->params[i].name, SPAN("response-"));
        }
    }
    return ERR_OK;
}

void s3_request_clear(struct s3_request *r)
{
    // Skip the large array `params`: only its first param_count items are ever read.
    size_t behind_params = offsetof(struct s3_request, param_count);
    memset(r, 0, offsetof(struct s3_request, params));
    memset((char *)r + behind_params, 0, sizeof(*r) - behind_params);
}

enum err s3_request_parse(struct arena *arena, struct span method, struct span host,
                          struct span target, const struct headers *headers,
                          const struct s3_domains *domains, struct s3_request *ret_request)
{
    struct s3_request *r = ret_request;
    s3_request_clear(r);
    if (target.len == 0 || target.ptr[0] != '/') {
        return ERR_INVALID_URI;
    }
    r->method = method;

    size_t question = span_find(target, '?');
    r->raw_path = (struct span){target.ptr, question};
    if (question < target.len) {
        r->raw_query = span_after(target, question + 1);
    }
    // Every kind of host is accepted here. The gate (proxy) decides whether it may be used.
    r->host_kind = s3_host_parse(host, domains, &r->bucket);
    r->virtual_host = r->bucket.len > 0;

    enum err err = parse_path(arena, r);
    if (err == ERR_OK && r->raw_query.len > 0) {
        err = parse_query(arena, r);
    }
    if (err != ERR_OK) {
        return err;
    }
    r->presigned = r->param_count > 0 && (s3_param_find(r, "X-Amz-Signature") != NULL ||
                                          s3_param_find(r, "AWSAccessKeyId") != NULL);

    enum level level = level_of(r);
    r->operation = refine_by_headers(route_find(r, level), r, headers);
    const struct s3_param *id = r->param_count > 0 ? s3_param_find(r, "x-id") : NULL;
    if ((id != NULL && !span_equal_cstr(id->value, s3_operation_name(r->operation))) ||
        (!method_is_read(method) && !s3_headers_are_of_write(headers))) {
        r->operation = S3_Unknown;
    }
    r->flags = OPERATIONS[r->operation].flags;
    if (r->operation == S3_Unknown) {
        r->flags = method_is_read(method) ? S3_OP_READ : S3_OP_CHANGES_KEY;
    }
    err = read_params(r);
    if (err != ERR_OK) {
        return err;
    }
    if (level == LEVEL_OBJECT && method_is_read(method)) {
        r->bypass_reason = find_bypass_reason(r, headers);
        if (r->bypass_reason != NULL && strcmp(r->bypass_reason, "payer") != 0) {
            r->flags &= ~(unsigned)S3_OP_CACHEABLE;
        }
    }
    return ERR_OK;
}
