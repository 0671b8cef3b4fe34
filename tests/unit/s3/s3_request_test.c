// SPDX-License-Identifier: Apache-2.0
// Routing: every operation from its method and parameters, Host forms, keys byte for byte. A
// request that is not in the table is never answered from cache and always invalidates.
#include "s3/s3.h"

#include <string.h>

#include "test.h"

static struct arena *arena;
static struct s3_request r;

static struct span text(const char *s)
{
    return span_from_cstr(s);
}

// `header_text`: "name: value" or NULL.
static enum err parse_with(const char *method, const char *host, const char *target,
                           const char *header_name, const char *header_value)
{
    static const struct span SUFFIXES[] = {{"s3.example.com", 14}, {"example.com", 11}};
    static const struct s3_domains DOMAINS = {SUFFIXES, 2};
    arena_free(arena);
    arena = arena_new(1 << 20);
    struct headers headers = {0};
    if (header_name != NULL) {
        cr_assert(headers_add(&headers, arena, text(header_name), text(header_value)));
    }
    return s3_request_parse(arena, text(method), text(host), text(target), &headers, &DOMAINS, &r);
}

static enum err parse(const char *method, const char *target)
{
    return parse_with(method, "127.0.0.1:9000", target, NULL, NULL);
}

static void expect_operation(const char *method, const char *target, enum s3_operation operation)
{
    cr_assert_eq(parse(method, target), ERR_OK, "%s %s", method, target);
    cr_assert_eq(r.operation, operation, "%s %s is %s, expected %s", method, target,
                 s3_operation_name(r.operation), s3_operation_name(operation));
}

Test(s3_request, operations_are_found_by_method_and_parameters)
{
    static const struct {
        const char *method, *target;
        enum s3_operation operation;
    } ROWS[] = {
        {"GET", "/", S3_ListBuckets},
        {"GET", "/?x-id=ListBuckets&max-buckets=5", S3_ListBuckets},
        {"GET", "/?max-directory-buckets=5", S3_ListDirectoryBuckets},
        {"GET", "/bkt", S3_ListObjects},
        {"GET", "/bkt/", S3_ListObjects},
        {"GET", "/bkt?prefix=a&marker=b&delimiter=/&max-keys=0&encoding-type=url", S3_ListObjects},
        {"GET", "/bkt/?list-type=2&prefix=&start-after=&fetch-owner=true", S3_ListObjectsV2},
        {"GET", "/bkt?list-type=3", S3_Unknown},
        {"GET", "/bkt?list-type=2&surprise=1", S3_Unknown},
        {"GET", "/bkt?prefix=a&prefix=b", S3_Unknown},
        {"GET", "/bkt?versions&prefix=a", S3_ListObjectVersions},
        {"GET", "/bkt?uploads", S3_ListMultipartUploads},
        {"GET", "/bkt?policy&prefix=a", S3_Unknown},
        {"GET", "/bkt?location", S3_GetBucketLocation},
        {"GET", "/bkt?location=", S3_GetBucketLocation},
        {"GET", "/bkt?policy", S3_GetBucketPolicy},
        {"GET", "/bkt?metrics", S3_ListBucketMetricsConfigurations},
        {"GET", "/bkt?metrics&id=7", S3_GetBucketMetricsConfiguration},
        {"GET", "/bkt/?session", S3_CreateSession},
        {"HEAD", "/bkt", S3_HeadBucket},
        {"PUT", "/bkt", S3_CreateBucket},
        {"PUT", "/bkt?versioning", S3_PutBucketVersioning},
        {"DELETE", "/bkt", S3_DeleteBucket},
        {"DELETE", "/bkt?tagging", S3_DeleteBucketTagging},
        {"DELETE", "/bkt?nothing-known", S3_Unknown},
        {"PUT", "/bkt?metrics&id=7", S3_PutBucketMetricsConfiguration},
        {"PUT", "/bkt?tagging&tagging", S3_Unknown},
        {"POST", "/bkt?metadataTable&delete", S3_Unknown},
        {"POST", "/bkt?delete&x-id=DeleteObjects", S3_DeleteObjects},
        {"POST", "/bkt?delete&z=1", S3_Unknown},
        {"POST", "/bkt?delete", S3_DeleteObjects},
        {"GET", "/bkt/key", S3_GetObject},
        {"GET", "/bkt/key?x-id=GetObject", S3_GetObject},
        {"GET", "/bkt/key?versionId=v", S3_GetObject},
        {"GET", "/bkt/key?partNumber=2", S3_GetObject},
        {"GET", "/bkt/key?response-content-type=text/plain", S3_GetObject},
        {"GET", "/bkt/key?X-Amz-Signature=aa&X-Amz-Expires=9&X-Amz-Date=d", S3_GetObject},
        {"GET", "/bkt/key?X-Amz-Surprise=aa", S3_Unknown},
        {"GET", "/bkt/key?versionId=v&versionId=w", S3_Unknown},
        {"GET", "/bkt/key?acl", S3_GetObjectAcl},
        {"GET", "/bkt/key?%61cl", S3_GetObjectAcl},
        {"GET", "/bkt/key?acl;tagging", S3_Unknown},
        {"GET", "/bkt/key?tagging&versionId=3", S3_GetObjectTagging},
        {"GET", "/bkt/key?torrent", S3_GetObjectTorrent},
        {"GET", "/bkt/key?attributes", S3_GetObjectAttributes},
        {"GET", "/bkt/key?uploadId=u&max-parts=2", S3_ListParts},
        {"GET", "/bkt/key?utm_source=x", S3_Unknown},
        {"HEAD", "/bkt/key", S3_HeadObject},
        {"HEAD", "/bkt/key?acl", S3_Unknown},
        {"PUT", "/bkt/key", S3_PutObject},
        {"PUT", "/bkt/key?x-id=PutObject", S3_PutObject},
        {"PUT", "/bkt/key?tagging", S3_PutObjectTagging},
        {"PUT", "/bkt/key?renameObject", S3_RenameObject},
        {"PUT", "/bkt/key?partNumber=1&uploadId=u", S3_UploadPart},
        {"PUT", "/bkt/key?partNumber=1&uploadId=u&tagging", S3_Unknown},
        {"PUT", "/bkt/key?uploadId=u", S3_Unknown},
        {"PUT", "/bkt/key?uploadId=&partNumber=1", S3_Unknown},
        {"PUT", "/bkt/key?uploadId=u&partNumber=0", S3_Unknown},
        {"PUT", "/bkt/key?uploadId=u&partNumber=x", S3_Unknown},
        {"PUT", "/bkt/key?versionId=v", S3_Unknown},
        {"PUT", "/bkt/key?partNumber=1", S3_Unknown},
        {"PUT", "/bkt/key?x-id=PutObject&x-id=PutObject", S3_Unknown},
        {"PUT", "/bkt/key?x-id=CopyObject", S3_Unknown},
        {"GET", "/bkt/key?x-id=DeleteObject", S3_Unknown},
        {"PUT",
         "/bkt/key?x-amz-acl=private&X-Amz-Meta-A=b&x-amz-checksum-crc32=AAAAAA%3D%3D"
         "&x-amz-sdk-checksum-algorithm=CRC32&x-id=PutObject",
         S3_PutObject},
        {"PUT", "/bkt/key?x-amz-surprise=1", S3_Unknown},
        {"PUT", "/bkt/key?x-amz-meta-snowball-auto-extract=true", S3_Unknown},
        {"PUT", "/bkt?x-amz-meta-snowball-auto-extract=true", S3_Unknown},
        {"PUT", "/bkt/key?X-Amz-Copy-Source=%2Fb%2Fk", S3_CopyObject},
        {"GET", "/bkt/key?x-amz-copy-source=%2Fb%2Fk", S3_Unknown},
        {"DELETE", "/bkt/key?uploadId=", S3_Unknown},
        {"POST", "/bkt/key?uploads", S3_CreateMultipartUpload},
        {"POST", "/bkt/key?uploadId=u", S3_CompleteMultipartUpload},
        {"POST", "/bkt/key?restore", S3_RestoreObject},
        {"POST", "/bkt/key?select&select-type=2", S3_SelectObjectContent},
        {"POST", "/bkt/key?select&select-type=3", S3_Unknown},
        {"POST", "/bkt/key", S3_Unknown},
        {"DELETE", "/bkt/key", S3_DeleteObject},
        {"DELETE", "/bkt/key?uploadId=u", S3_AbortMultipartUpload},
        {"DELETE", "/bkt/key?tagging", S3_DeleteObjectTagging},
        {"PATCH", "/bkt/key", S3_Unknown},
        {"get", "/bkt/key", S3_Unknown},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        expect_operation(ROWS[i].method, ROWS[i].target, ROWS[i].operation);
    }
}

Test(s3_request, headers_choose_between_put_and_copy)
{
    cr_assert_eq(parse_with("PUT", "localhost", "/b/k", "X-Amz-Copy-Source", "s/k"), ERR_OK);
    cr_assert_eq(r.operation, S3_CopyObject);
    cr_assert_eq(
        parse_with("PUT", "localhost", "/b/k?partNumber=1&uploadId=u", "x-amz-copy-source", "s/k"),
        ERR_OK);
    cr_assert_eq(r.operation, S3_UploadPartCopy);
    cr_assert_eq(r.flags, 0);
    cr_assert_eq(
        parse_with("POST", "localhost", "/b", "Content-Type", "multipart/form-data; boundary=x"),
        ERR_OK);
    cr_assert_eq(r.operation, S3_PostObject);
    cr_assert_eq(parse_with("POST", "localhost", "/b", "Content-Type", "text/plain"), ERR_OK);
    cr_assert_eq(r.operation, S3_Unknown);
    cr_assert(r.flags & S3_OP_CHANGES_KEY);
    static const char *const POSTS[] = {"/b/k?select&select-type=2", "/b/k?uploads", "/b?delete"};
    for (size_t i = 0; i < ARRAY_LEN(POSTS); i++) {
        cr_assert_eq(
            parse_with("POST", "localhost", POSTS[i], "Content-Type", "multipart/form-data"),
            ERR_OK);
        cr_assert_eq(r.operation, S3_Unknown, "%s", POSTS[i]);
        cr_assert(r.flags & S3_OP_CHANGES_KEY);
    }
}

Test(s3_request, a_write_with_a_header_that_s3_does_not_have_is_unknown)
{
    static const char *const KNOWN[] = {"x-amz-acl",
                                        "X-Amz-Meta-Anything",
                                        "x-amz-checksum-xxhash3",
                                        "x-amz-te",
                                        "x-amz-grant-read",
                                        "x-amz-server-side-encryption",
                                        "x-amz-server-side-encryption-context",
                                        "x-amzn-trace-id",
                                        "amz-sdk-request",
                                        "x-amz-date",
                                        "x-amz-trailer",
                                        "x-amz-object-lock-mode"};
    static const char *const UNKNOWN[] = {"x-amz-new", "X-Amz-Replication-Status", "x-amz-meta-"};
    for (size_t i = 0; i < ARRAY_LEN(KNOWN); i++) {
        cr_assert_eq(parse_with("PUT", "localhost", "/b/k", KNOWN[i], "1"), ERR_OK);
        cr_assert_eq(r.operation, S3_PutObject, "%s", KNOWN[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(UNKNOWN); i++) {
        cr_assert_eq(parse_with("PUT", "localhost", "/b/k", UNKNOWN[i], "1"), ERR_OK);
        cr_assert_eq(r.operation, S3_Unknown, "%s", UNKNOWN[i]);
        cr_assert_eq(parse_with("DELETE", "localhost", "/b/k", UNKNOWN[i], "1"), ERR_OK);
        cr_assert_eq(r.operation, S3_Unknown, "%s", UNKNOWN[i]);
    }
}

Test(s3_request, an_unknown_operation_invalidates_unless_it_reads)
{
    expect_operation("GET", "/b/k?surprise", S3_Unknown);
    cr_assert_eq(r.flags, S3_OP_READ);
    cr_assert_str_eq(r.bypass_reason, "unknown-parameter");
    expect_operation("PUT", "/b/k?surprise", S3_Unknown);
    cr_assert_eq(r.flags, S3_OP_CHANGES_KEY);
    expect_operation("DELETE", "/b/k?uploadId=u&surprise=1", S3_Unknown);
    cr_assert_eq(r.flags, S3_OP_CHANGES_KEY);
}

Test(s3_request, only_plain_reads_are_cacheable)
{
    static const struct {
        const char *target, *reason;
    } ROWS[] = {
        {"/b/k", NULL},
        {"/b/k?x-id=GetObject&x-amz-checksum-mode=ENABLED", NULL},
        {"/b/k?partNumber=1", NULL},
        {"/b/k?response-expires=x", NULL},
        {"/b/k?partNumber=2", "part-number"},
        {"/b/k?versionId=null", "version"},
        {"/b/k?versionId", "version"},
        {"/b/k?acl", "sub-resource"},
        {"/b/k?uploadId=x", "sub-resource"},
        {"/b/k?fbclid=x", "unknown-parameter"},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        cr_assert_eq(parse("GET", ROWS[i].target), ERR_OK);
        const char *reason = r.bypass_reason != NULL ? r.bypass_reason : "none";
        cr_assert_str_eq(reason, ROWS[i].reason != NULL ? ROWS[i].reason : "none");
        cr_assert_eq((r.flags & S3_OP_CACHEABLE) != 0, ROWS[i].reason == NULL);
    }
    static const struct {
        const char *name, *reason;
    } HEADERS[] = {
        {"X-Amz-Server-Side-Encryption-Customer-Key", "sse-c"},
        {"x-amz-expected-bucket-owner", "expected-owner"},
        {"x-amz-request-payer", "header"}, // not the value that S3 knows
        {"x-amz-something-new", "header"},
        {"X-AMZ-Checksum-Mode", "none"},
        {"x-amz-optional-object-attributes", "none"},
        {"x-amz-api-version", "none"},    // of the SDK for C++
        {"x-amz-te", "none"},             // of the SDK for Java
        {"x-amz-checksum-crc32", "none"}, // of no body, by the SDK for Java
        {"x-amz-sdk-checksum-algorithm", "none"},
        {"amz-sdk-request", "none"},
        {"x-amzn-trace-id", "none"},
    };
    for (size_t i = 0; i < ARRAY_LEN(HEADERS); i++) {
        cr_assert_eq(parse_with("HEAD", "localhost", "/b/k", HEADERS[i].name, "1"), ERR_OK);
        cr_assert_str_eq(r.bypass_reason != NULL ? r.bypass_reason : "none", HEADERS[i].reason);
    }
    // The configuration may say that Forebay pays, so this reason leaves the read cacheable.
    cr_assert_eq(parse_with("GET", "localhost", "/b/k", "x-amz-request-payer", "requester"),
                 ERR_OK);
    cr_assert_str_eq(r.bypass_reason, "payer");
    cr_assert((r.flags & S3_OP_CACHEABLE) != 0);
    // With "part-number", a fetch without the header could continue the relayed body.
    cr_assert_eq(
        parse_with("GET", "localhost", "/b/k?partNumber=2", "x-amz-request-payer", "requester"),
        ERR_OK);
    cr_assert_str_eq(r.bypass_reason, "payer");
}

Test(s3_request, keys_are_decoded_once_and_never_normalised)
{
    static const struct {
        const char *target, *bucket, *key;
    } ROWS[] = {
        {"/bkt/a%20b%2Bc%25%C3%A9/x.bin", "bkt", "a b+c%\xc3\xa9/x.bin"},
        {"/bkt//a", "bkt", "/a"},
        {"/bkt/a//b/", "bkt", "a//b/"},
        {"/bkt/../etc/./x", "bkt", "../etc/./x"},
        {"/bkt/%2e%2E/a%2fb", "bkt", "../a/b"},
        {"/bkt/a%2520", "bkt", "a%20"},
        {"/bkt/a+b", "bkt", "a+b"},
        {"/bkt/~*'();:@&=$,#[]", "bkt", "~*'();:@&=$,#[]"},
        {"/my.dotted_BKT/k?x-id=a?b", "my.dotted_BKT", "k"},
        {"/%62kt/k", "bkt", "k"},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        cr_assert_eq(parse("GET", ROWS[i].target), ERR_OK, "%s", ROWS[i].target);
        cr_assert(span_equal_cstr(r.bucket, ROWS[i].bucket), "%s", ROWS[i].target);
        cr_assert(span_equal_cstr(r.key, ROWS[i].key), "%s", ROWS[i].target);
        cr_assert_not(r.virtual_host);
    }
    cr_assert_eq(parse("GET", "/bkt/a%00b"), ERR_OK);
    cr_assert(span_equal(r.key, SPAN("a\0b")));
}

Test(s3_request, a_refused_target_leaves_nothing_of_the_request_before)
{
    cr_assert_eq(parse("GET", "/b/k?versionId=v&partNumber=2"), ERR_OK);
    cr_assert(r.has_version_id && r.param_count == 2);
    cr_assert_eq(parse("OPTIONS", "*"), ERR_INVALID_URI);
    cr_assert(!r.has_version_id && r.param_count == 0 && r.key.len == 0);
}

Test(s3_request, broken_targets_have_errors_of_their_own)
{
    char longest[3 + 1 + S3_KEY_MAX + 2] = "/b/";
    memset(longest + 3, 'k', S3_KEY_MAX);
    cr_assert_eq(parse("GET", longest), ERR_OK);
    longest[3 + S3_KEY_MAX] = 'k';
    longest[3 + S3_KEY_MAX + 1] = '\0';
    cr_assert_eq(parse("GET", longest), ERR_KEY_TOO_LONG);

    cr_assert_eq(parse("GET", ""), ERR_INVALID_URI);
    cr_assert_eq(parse("OPTIONS", "*"), ERR_INVALID_URI);
    cr_assert_eq(parse("GET", "/b/%4"), ERR_INVALID_URI);
    cr_assert_eq(parse("GET", "/b/%zz"), ERR_INVALID_URI);
    cr_assert_eq(parse("GET", "/b/k?a=%"), ERR_INVALID_URI);
    cr_assert_eq(parse("GET", "/b%2Fc/k"), ERR_INVALID_BUCKET_NAME);
    cr_assert_eq(parse("GET", "//k"), ERR_INVALID_BUCKET_NAME);
    cr_assert_eq(parse("GET", "/../k"), ERR_INVALID_BUCKET_NAME);
    cr_assert_eq(parse("GET", "/a..b/k"), ERR_INVALID_BUCKET_NAME);
    cr_assert_eq(parse("GET", "/a@b/k"), ERR_INVALID_BUCKET_NAME);
    cr_assert_eq(parse("GET", "/b/k?partNumber=0"), ERR_INVALID_ARGUMENT);
    cr_assert_eq(parse("GET", "/b/k?partNumber="), ERR_INVALID_ARGUMENT);
    cr_assert_eq(parse("GET", "/b/k?partNumber=10001"), ERR_INVALID_ARGUMENT);
    cr_assert_eq(parse("GET", "/b?max-keys=-1"), ERR_OK); // the origin refuses it, in its words
}

Test(s3_request, parameters_are_bounded)
{
    char target[512] = "/b/k?";
    size_t len = strlen(target);
    for (unsigned i = 0; i < S3_QUERY_PARAMS_MAX; i++) {
        target[len++] = 'a';
        target[len++] = '&';
    }
    cr_assert_eq(parse("GET", target), ERR_OK);
    cr_assert_eq(r.param_count, S3_QUERY_PARAMS_MAX);
    target[len++] = 'a';
    cr_assert_eq(parse("GET", target), ERR_INVALID_URI);
}

Test(s3_request, virtual_hosts_name_the_bucket)
{
    static const struct {
        const char *host, *bucket;
        enum s3_host_kind kind;
    } ROWS[] = {
        {"127.0.0.1", "", S3_HOST_IP},
        {"127.0.0.1:9000", "", S3_HOST_IP},
        {"[::1]", "", S3_HOST_IP},
        {"[::1]:9000", "", S3_HOST_IP},
        {"localhost", "", S3_HOST_LOCALHOST},
        {"LocalHost:9000", "", S3_HOST_LOCALHOST},
        {"bkt.localhost:9000", "bkt", S3_HOST_LOCALHOST},
        {"my.dotted.bkt.127.0.0.1:9000", "my.dotted.bkt", S3_HOST_IP},
        {"1.127.0.0.1", "1", S3_HOST_IP},
        {"s3.example.com", "", S3_HOST_DOMAIN},
        {"a.b.s3.example.com:80", "a.b", S3_HOST_DOMAIN},
        {"s4.example.com", "s4", S3_HOST_DOMAIN},
        {"localhost.", "", S3_HOST_LOCALHOST},
        {"bkt.localhost.:9000", "bkt", S3_HOST_LOCALHOST},
        {"127.0.0.1.", "", S3_HOST_IP},
        {"S3.example.com.", "", S3_HOST_DOMAIN},
        {"a.b.s3.example.com.:80", "a.b", S3_HOST_DOMAIN},
        {"bkt.rooted.example", "bkt", S3_HOST_DOMAIN},
        {"bkt.rooted.example.:9000", "bkt", S3_HOST_DOMAIN},
        {"localhost..", "", S3_HOST_OTHER},
        {"bkt.s3.example.com..:80", "", S3_HOST_OTHER},
        {"example.com.evil.org.", "", S3_HOST_OTHER},
        {".", "", S3_HOST_OTHER},
        {"..", "", S3_HOST_OTHER},
        {".:80", "", S3_HOST_OTHER},
        {".localhost.", "", S3_HOST_OTHER},
        {"[::1].", "", S3_HOST_OTHER},
        {"example.com.evil.org", "", S3_HOST_OTHER},
        {"notexample.com", "", S3_HOST_OTHER},
        {"evil.org", "", S3_HOST_OTHER},
        {"xlocalhost", "", S3_HOST_OTHER},
        {"user@127.0.0.1", "", S3_HOST_OTHER},
        {"a@b.localhost", "", S3_HOST_OTHER},
        {".localhost", "", S3_HOST_OTHER},
        {"127.0.0.1:port", "", S3_HOST_OTHER},
        {"127.0.0.1:", "", S3_HOST_OTHER},
        {"127.0.0.1:99999", "", S3_HOST_OTHER},
        {"127.0.0.01", "", S3_HOST_OTHER},
        {"127.0.0.256", "", S3_HOST_OTHER},
        {"0x7f.0.0.1", "", S3_HOST_OTHER},
        {"2130706433", "", S3_HOST_OTHER},
        {"[::1", "", S3_HOST_OTHER},
        {"[::1]x", "", S3_HOST_OTHER},
        {"[localhost]", "", S3_HOST_OTHER},
        {"", "", S3_HOST_OTHER},
    };
    static const struct span SUFFIXES[] = {
        {"example.com", 11}, {"s3.example.com", 14}, {"rooted.example.", 15}};
    static const struct s3_domains DOMAINS = {SUFFIXES, 3};
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        struct span bucket;
        cr_assert_eq(s3_host_parse(text(ROWS[i].host), &DOMAINS, &bucket), ROWS[i].kind, "%s",
                     ROWS[i].host);
        cr_assert(span_equal_cstr(bucket, ROWS[i].bucket), "%s", ROWS[i].host);
    }
    cr_assert_eq(parse_with("GET", "bkt.localhost:9000", "/a/b", NULL, NULL), ERR_OK);
    cr_assert(r.virtual_host && span_equal_cstr(r.bucket, "bkt") && span_equal_cstr(r.key, "a/b"));
    cr_assert_eq(parse_with("GET", "bkt.localhost:9000", "/", NULL, NULL), ERR_OK);
    cr_assert_eq(r.operation, S3_ListObjects);
}

// Rights and scopes are judged by the same text that the origin reads.
Test(s3_request, a_plus_in_a_query_is_a_blank)
{
    cr_assert_eq(parse("GET", "/b?list-type=2&prefix=a+b%2Bc&start-after=+&a+b"), ERR_OK);
    cr_assert(span_equal_cstr(s3_param_find(&r, "prefix")->value, "a b+c"));
    cr_assert(span_equal_cstr(s3_param_find(&r, "start-after")->value, " "));
    cr_assert_not_null(s3_param_find(&r, "a b"));
    cr_assert_eq(parse("GET", "/b?list-type=2&prefix=a+%2"), ERR_INVALID_URI);
}

Test(s3_request, a_plus_that_was_signed_as_a_space_changes_the_key)
{
    cr_assert_eq(parse("GET", "/b/a+b%2Bc"), ERR_OK);
    cr_assert_eq(s3_request_plus_is_space(arena, &r), ERR_OK);
    cr_assert(span_equal_cstr(r.key, "a b+c"));
    cr_assert_str_eq(r.bypass_reason, "literal-plus");
    cr_assert_not(r.flags & S3_OP_CACHEABLE);
}
