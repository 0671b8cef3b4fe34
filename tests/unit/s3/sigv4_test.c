// SPDX-License-Identifier: Apache-2.0
// Signatures: the worked examples that S3 publishes, in header and query form; the required parts
// of a claim; times; headers that must be signed; the two ambiguous bytes of a path; keys that
// outlive no secret.
#include "s3/s3.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "s3/s3_private.h"
#include "test.h"

#define ACCESS_KEY "AKIAIOSFODNN7EXAMPLE"
#define SECRET "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
#define NOW ((time_t)1369353600) // 20130524T000000Z
#define HOST "examplebucket.s3.amazonaws.com"

static struct arena *arena;
static struct headers headers;
static struct s3_request request;
static struct sigv4_claim claim;
static struct sigv4_mismatch mismatch;
static const char *method = "GET";

static struct span text(const char *s)
{
    return span_from_cstr(s);
}

// Starts a request: pairs of name and value, NULL at the end.
static void begin(const char *name, ...)
{
    arena_free(arena);
    arena = arena_new(1 << 20);
    headers = (struct headers){0};
    va_list args;
    va_start(args, name);
    while (name != NULL) {
        cr_assert(headers_add(&headers, arena, text(name), text(va_arg(args, const char *))));
        name = va_arg(args, const char *);
    }
    va_end(args);
}

static enum err sign(const char *path, const char *query, const char *hash)
{
    const struct sigv4_credentials credentials = {text(ACCESS_KEY), text(SECRET), {NULL, 0}};
    const struct sigv4_scope scope = {.region = SPAN("us-east-1"), .service = SPAN("s3")};
    return sigv4_sign(arena, &credentials, &scope, NOW, text(method), text(path), text(query),
                      &headers, text(hash), NULL);
}

static enum err parse(const char *target)
{
    static const struct span SUFFIX = {"s3.amazonaws.com", 16};
    static const struct s3_domains DOMAINS = {&SUFFIX, 1};
    struct span host = {NULL, 0};
    (void)headers_get(&headers, SPAN("host"), &host);
    cr_assert_eq(
        s3_request_parse(arena, text(method), host, text(target), &headers, &DOMAINS, &request),
        ERR_OK);
    return sigv4_claim_parse(&request, &headers, &claim);
}

static enum err verify_at(const char *target, const char *secret, time_t now)
{
    enum err err = parse(target);
    if (err != ERR_OK) {
        return err;
    }
    cr_assert(claim.present);
    return sigv4_verify(arena, &claim, text(secret), now, text(method), request.raw_path,
                        request.raw_query, &headers, NULL, &mismatch);
}

static enum err verify(const char *target)
{
    return verify_at(target, SECRET, NOW);
}

static const char *signature(void)
{
    struct span value;
    cr_assert(headers_get(&headers, SPAN("authorization"), &value));
    return value.ptr + value.len - 64; // arena text is terminated
}

Test(sigv4, published_get_with_range)
{
    begin("Host", HOST, "Range", "bytes=0-9", "x-amz-content-sha256", SIGV4_EMPTY_SHA256, NULL);
    cr_assert_eq(sign("/test.txt", "", SIGV4_EMPTY_SHA256), ERR_OK);
    cr_assert_str_eq(signature(),
                     "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
    cr_assert_eq(verify("/test.txt"), ERR_OK);
    cr_assert_eq(claim.payload, SIGV4_PAYLOAD_HASH);
    cr_assert(span_equal_cstr(claim.region, "us-east-1"));
}

Test(sigv4, published_get_bucket_lifecycle_and_listing)
{
    struct span query;
    begin("Host", HOST, "x-amz-content-sha256", SIGV4_EMPTY_SHA256, NULL);
    cr_assert_eq(sigv4_canonical_query(arena, SPAN("lifecycle"), false, &query), ERR_OK);
    cr_assert(span_equal_cstr(query, "lifecycle="));
    cr_assert_eq(sign("/", "lifecycle=", SIGV4_EMPTY_SHA256), ERR_OK);
    cr_assert_str_eq(signature(),
                     "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
    cr_assert_eq(verify("/?lifecycle"), ERR_OK);

    begin("Host", HOST, "x-amz-content-sha256", SIGV4_EMPTY_SHA256, NULL);
    cr_assert_eq(sign("/", "max-keys=2&prefix=J", SIGV4_EMPTY_SHA256), ERR_OK);
    cr_assert_str_eq(signature(),
                     "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
    cr_assert_eq(verify("/?prefix=J&max-keys=2"), ERR_OK);
}

Test(sigv4, published_put_with_other_headers_signed)
{
    // The signer of this example also signs Date, which ours leaves out, so only the verifier is
    // tested.
    method = "PUT";
    begin("Host", HOST, "Date", "Fri, 24 May 2013 00:00:00 GMT", "x-amz-date", "20130524T000000Z",
          "x-amz-storage-class", "REDUCED_REDUNDANCY", "x-amz-content-sha256",
          "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072", "Authorization",
          "AWS4-HMAC-SHA256 Credential=" ACCESS_KEY "/20130524/us-east-1/s3/aws4_request,"
          "SignedHeaders=date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class,Signature="
          "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
          NULL);
    cr_assert_eq(verify("/test%24file.text"), ERR_OK);
    cr_assert_eq(verify("/test$file.text"), ERR_OK);
    cr_assert_eq(verify("/test%24file.tex"), ERR_SIGNATURE_MISMATCH);
    cr_assert(
        span_starts_with(mismatch.string_to_sign, SPAN("AWS4-HMAC-SHA256\n20130524T000000Z\n")));
    cr_assert(span_starts_with(mismatch.canonical_request, SPAN("PUT\n/test%24file.tex\n\ndate:")));
    method = "GET"; // tests may share a process
}

#define PRESIGNED                                                                                  \
    "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=" ACCESS_KEY                      \
    "%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400"  \
    "&X-Amz-SignedHeaders=host&X-Amz-Signature="                                                   \
    "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"

Test(sigv4, published_presigned_get_and_its_expiry)
{
    begin("Host", HOST, NULL);
    cr_assert_eq(verify(PRESIGNED), ERR_OK);
    cr_assert(claim.presigned && claim.expires_s == 86400);
    cr_assert_eq(claim.payload, SIGV4_PAYLOAD_UNSIGNED);
    cr_assert_eq(verify_at(PRESIGNED, SECRET, NOW + 86399), ERR_OK);
    cr_assert_eq(verify_at(PRESIGNED, SECRET, NOW + 86400), ERR_EXPIRED);
    cr_assert_eq(verify_at(PRESIGNED, SECRET, NOW - 900), ERR_OK);
    cr_assert_eq(verify_at(PRESIGNED, SECRET, NOW - 901), ERR_NOT_YET_VALID);
    cr_assert_eq(verify_at(PRESIGNED, "another", NOW), ERR_SIGNATURE_MISMATCH);
    cr_assert_eq(verify(PRESIGNED "&versionId=1"), ERR_SIGNATURE_MISMATCH);
    cr_assert_eq(verify(PRESIGNED "&X-Amz-Signature=00"), ERR_AUTHORIZATION_QUERY);
    cr_assert_eq(verify(PRESIGNED "&X-Amz-Expires=9"), ERR_AUTHORIZATION_QUERY);
    begin("Host", HOST, "x-amz-acl", "public-read", NULL);
    cr_assert_eq(verify(PRESIGNED), ERR_HEADERS_NOT_SIGNED);
}

Test(sigv4, a_clock_may_differ_by_a_quarter_of_an_hour)
{
    begin("Host", HOST, "x-amz-content-sha256", SIGV4_UNSIGNED_PAYLOAD, NULL);
    cr_assert_eq(sign("/k", "", SIGV4_UNSIGNED_PAYLOAD), ERR_OK);
    cr_assert_eq(verify_at("/k", SECRET, NOW + 900), ERR_OK);
    cr_assert_eq(verify_at("/k", SECRET, NOW - 900), ERR_OK);
    cr_assert_eq(verify_at("/k", SECRET, NOW + 901), ERR_TIME_SKEWED);
    cr_assert_eq(verify_at("/k", SECRET, NOW - 901), ERR_TIME_SKEWED);
}

Test(sigv4, a_rotated_secret_never_meets_an_old_key)
{
    for (unsigned i = 0; i < 3; i++) {
        begin("Host", HOST, "x-amz-content-sha256", SIGV4_UNSIGNED_PAYLOAD, NULL);
        cr_assert_eq(sign("/k", "", SIGV4_UNSIGNED_PAYLOAD), ERR_OK);
        cr_assert_eq(verify("/k"), ERR_OK);
        cr_assert_eq(verify_at("/k", SECRET "2", NOW), ERR_SIGNATURE_MISMATCH);
    }
}

Test(sigv4, ambiguous_path_bytes_are_tried_both_ways)
{
    static const struct {
        const char *signed_path, *sent;
        bool plus_is_space;
        enum err err;
    } ROWS[] = {
        {"/a%2Bb", "/a+b", false, ERR_OK},
        {"/a%20b", "/a+b", true, ERR_OK},
        {"/a%20b", "/a%2Bb", false, ERR_SIGNATURE_MISMATCH},
        {"/a/b", "/a%2fb", false, ERR_OK},
        {"/a%2Fb", "/a%2fb", false, ERR_OK},
        {"/a%2Fb", "/a/b", false, ERR_SIGNATURE_MISMATCH},
        {"/a%2Fb%20c", "/a%2Fb+c", true, ERR_OK},
        {"/a/b%20c", "/a%2Fb+c", true, ERR_OK},
        {"/a/b%2Bc", "/a%2Fb+c", false, ERR_OK},
        {"/%2A%3D~", "/*=%7e", false, ERR_OK},
        {"//../.", "//../.", false, ERR_OK},
        {"/../", "/", false, ERR_SIGNATURE_MISMATCH},
        {"/%252F", "/%252F", false, ERR_OK},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        begin("Host", "bkt.localhost", "x-amz-content-sha256", SIGV4_UNSIGNED_PAYLOAD, NULL);
        cr_assert_eq(sign(ROWS[i].signed_path, "", SIGV4_UNSIGNED_PAYLOAD), ERR_OK);
        cr_assert_eq(verify(ROWS[i].sent), ROWS[i].err, "%s as %s", ROWS[i].signed_path,
                     ROWS[i].sent);
        if (ROWS[i].err == ERR_OK) {
            cr_assert_eq(mismatch.plus_is_space, ROWS[i].plus_is_space, "%s", ROWS[i].sent);
        }
    }
}

Test(sigv4, canonical_queries)
{
    static const struct {
        const char *raw, *canonical;
    } ROWS[] = {
        {"", ""},
        {"acl", "acl="},
        {"b=2&a=1", "a=1&b=2"},
        {"a-b=1&a=2", "a=2&a-b=1"},
        {"a=2&a=10&a=1", "a=1&a=10&a=2"},
        {"p=a%2fb%20c&q=%7e*", "p=a%2Fb%20c&q=~%2A"},
        {"p=a+b", "p=a%20b"},
        {"p+q=%2B", "p%20q=%2B"},
        {"&&a=1&", "a=1"},
        {"a==b", "a=%3Db"},
        {"x=1&X-Amz-Signature=5", "X-Amz-Signature=5&x=1"},
    };
    begin(NULL);
    struct span query;
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        cr_assert_eq(sigv4_canonical_query(arena, text(ROWS[i].raw), false, &query), ERR_OK);
        cr_assert(span_equal_cstr(query, ROWS[i].canonical), "%s", ROWS[i].raw);
    }
    cr_assert_eq(sigv4_canonical_query(arena, SPAN("x=1&X-Amz-Signatur%65=5"), true, &query),
                 ERR_OK);
    cr_assert(span_equal_cstr(query, "x=1"));
    cr_assert_eq(sigv4_canonical_query(arena, SPAN("a=%4"), false, &query), ERR_INVALID_URI);
}

Test(sigv4, host_and_every_amz_header_must_be_signed)
{
    begin("Host", HOST, "x-amz-content-sha256", SIGV4_UNSIGNED_PAYLOAD, NULL);
    cr_assert_eq(sign("/k", "", SIGV4_UNSIGNED_PAYLOAD), ERR_OK);
    cr_assert(headers_add(&headers, arena, SPAN("X-Amz-Meta-Late"), SPAN("1")));
    cr_assert_eq(verify("/k"), ERR_HEADERS_NOT_SIGNED);

    begin("x-amz-content-sha256", SIGV4_UNSIGNED_PAYLOAD, NULL);
    cr_assert_eq(sign("/b/k", "", SIGV4_UNSIGNED_PAYLOAD), ERR_OK);
    cr_assert(headers_add(&headers, arena, SPAN("Host"), SPAN("127.0.0.1")));
    cr_assert_eq(verify("/b/k"), ERR_HEADERS_NOT_SIGNED);

    begin("Host", HOST, "Range", "bytes=0-1", "x-amz-content-sha256", SIGV4_UNSIGNED_PAYLOAD, NULL);
    cr_assert_eq(sign("/k", "", SIGV4_UNSIGNED_PAYLOAD), ERR_OK);
    headers_remove(&headers, SPAN("range"));
    cr_assert_eq(verify("/k"), ERR_SIGNATURE_MISMATCH);
    cr_assert(headers_add(&headers, arena, SPAN("Range"), SPAN("")));
    cr_assert_eq(verify("/k"), ERR_SIGNATURE_MISMATCH);
}

Test(sigv4, repeated_and_padded_header_values)
{
    begin("Host", HOST, "x-amz-content-sha256", SIGV4_UNSIGNED_PAYLOAD, "x-amz-meta-a",
          "  one   two ", "X-Amz-Meta-A", "three", NULL);
    cr_assert_eq(sign("/k", "", SIGV4_UNSIGNED_PAYLOAD), ERR_OK);
    cr_assert_eq(verify("/k"), ERR_OK);
    cr_assert_eq(verify_at("/k", "x", NOW), ERR_SIGNATURE_MISMATCH);
    cr_assert_not_null(strstr(mismatch.canonical_request.ptr, "\nx-amz-meta-a:one two,three\n"));
}

// Signatures of PUT /key by botocore 1.44, which folds, and in the form of the SDK for Go, which
// squeezes blanks and keeps tabs.
Test(sigv4, tabs_in_values_are_folded_when_signing_and_verified_in_both_forms)
{
#define FOLDED "f577bf5cd80caf3819c43ad61ae7b5ac76baa9d1dac7e444bbcc8f1a9bff1e5c"
#define TABS_KEPT "0df91720030aa3cdd502aadd10b7cae61351737fd7c297d38b48a7d2f3992080"
#define CREDENTIAL                                                                                 \
    "AWS4-HMAC-SHA256 Credential=" ACCESS_KEY "/20130524/us-east-1/s3/aws4_request,"               \
    "SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-meta-note,Signature="
    static const char *const same[] = {"a\tb \t c  d", "a b c d", "a\tb\tc\td",
                                       "\t a  b\t\tc \td\t ", "a \t\t b c\t d"};
    method = "PUT";
    for (size_t i = 0; i < ARRAY_LEN(same); i++) {
        begin("Host", HOST, "x-amz-content-sha256", SIGV4_EMPTY_SHA256, "x-amz-meta-note", same[i],
              NULL);
        cr_assert_eq(sign("/key", "", SIGV4_EMPTY_SHA256), ERR_OK);
        cr_assert_str_eq(signature(), FOLDED, "%zu", i);
        cr_assert_eq(verify("/key"), ERR_OK, "%zu", i);
    }
    static const struct {
        const char *value, *authorization;
        enum err want;
    } rows[] = {
        {"a\tb \t c  d", CREDENTIAL FOLDED, ERR_OK},
        {"a\tb \t c  d", CREDENTIAL TABS_KEPT, ERR_OK},
        {"a\tb   \t c d", CREDENTIAL TABS_KEPT, ERR_OK},
        {"a b c d", CREDENTIAL TABS_KEPT, ERR_SIGNATURE_MISMATCH},
        {"a\tb c d", CREDENTIAL TABS_KEPT, ERR_SIGNATURE_MISMATCH},
        {"a\tb \t c  e", CREDENTIAL TABS_KEPT, ERR_SIGNATURE_MISMATCH},
        {"ab c d", CREDENTIAL FOLDED, ERR_SIGNATURE_MISMATCH},
        {"a\tbc d", CREDENTIAL FOLDED, ERR_SIGNATURE_MISMATCH},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        begin("Host", HOST, "x-amz-date", "20130524T000000Z", "x-amz-content-sha256",
              SIGV4_EMPTY_SHA256, "x-amz-meta-note", rows[i].value, "Authorization",
              rows[i].authorization, NULL);
        cr_assert_eq(verify("/key"), rows[i].want, "%zu", i);
        cr_assert(rows[i].want == ERR_OK ||
                  span_find(mismatch.canonical_request, '\t') == mismatch.canonical_request.len);
    }
    method = "GET"; // tests may share a process
}

// A request may hold all three ambiguous bytes at once. Each of the eight forms is found.
Test(sigv4, ambiguous_bytes_of_path_and_values_are_tried_together)
{
    static const char *const paths[] = {"/a%2Bb%2Fc", "/a%20b%2Fc", "/a%2Bb/c", "/a%20b/c"};
    method = "PUT";
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        begin("Host", HOST, "x-amz-content-sha256", SIGV4_EMPTY_SHA256, "x-amz-meta-note", "x\ty",
              NULL);
        cr_assert_eq(sign(paths[i], "", SIGV4_EMPTY_SHA256), ERR_OK);
        cr_assert_eq(verify("/a+b%2Fc"), ERR_OK, "%zu", i);
        cr_assert_eq(mismatch.plus_is_space, i % 2 == 1);
        cr_assert_eq(verify("/a+b%2Fd"), ERR_SIGNATURE_MISMATCH, "%zu", i);
    }
    method = "GET"; // tests may share a process
}

static enum err claim_of(const char *authorization)
{
    begin("Host", HOST, "x-amz-date", "20130524T000000Z", "x-amz-content-sha256",
          SIGV4_UNSIGNED_PAYLOAD, "Authorization", authorization, NULL);
    return parse("/k");
}

#define SIGNATURE_TEXT "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
#define SCOPE_TEXT "/20130524/us-east-1/s3/aws4_request"

Test(sigv4, authorization_headers)
{
    static const struct {
        const char *value;
        enum err err;
    } ROWS[] = {
        {"AWS4-HMAC-SHA256 Credential=a/b" SCOPE_TEXT
         ", SignedHeaders=host, Signature=" SIGNATURE_TEXT,
         ERR_OK},
        {"AWS4-HMAC-SHA256 Signature=" SIGNATURE_TEXT
         ",SignedHeaders=host,Credential=AK" SCOPE_TEXT,
         ERR_OK},
        {"AWS4-HMAC-SHA256 Credential=AK/20130524//s3express/aws4_request,SignedHeaders=host,"
         "Signature=" SIGNATURE_TEXT,
         ERR_OK},
        {"AWS4-ECDSA-P256-SHA256 Credential=AK", ERR_NOT_IMPLEMENTED},
        {"AWS4-HMAC-SHA256", ERR_AUTHORIZATION_MALFORMED},
        {"AWS4-HMAC-SHA256 ", ERR_AUTHORIZATION_MALFORMED},
        {"Basic YTpi", ERR_AUTHORIZATION_MALFORMED},
        {"", ERR_AUTHORIZATION_MALFORMED},
        {"AWS4-HMAC-SHA256 Credential=AK" SCOPE_TEXT ",SignedHeaders=host",
         ERR_AUTHORIZATION_MALFORMED},
        {"AWS4-HMAC-SHA256 Credential=" SCOPE_TEXT ",SignedHeaders=host,Signature=" SIGNATURE_TEXT,
         ERR_AUTHORIZATION_MALFORMED},
        {"AWS4-HMAC-SHA256 Credential=AK/20130524/us-east-1/sts/aws4_request,SignedHeaders=host,"
         "Signature=" SIGNATURE_TEXT,
         ERR_AUTHORIZATION_MALFORMED},
        {"AWS4-HMAC-SHA256 Credential=AK/2013052x/us-east-1/s3/aws4_request,SignedHeaders=host,"
         "Signature=" SIGNATURE_TEXT,
         ERR_AUTHORIZATION_MALFORMED},
        {"AWS4-HMAC-SHA256 Credential=AK" SCOPE_TEXT ",SignedHeaders=host,Signature=00",
         ERR_AUTHORIZATION_MALFORMED},
        {"AWS4-HMAC-SHA256 Credential=AK" SCOPE_TEXT ",SignedHeaders=host,Signature=" SIGNATURE_TEXT
         ",Signature=" SIGNATURE_TEXT,
         ERR_AUTHORIZATION_MALFORMED},
        {"AWS4-HMAC-SHA256 Credential=AK" SCOPE_TEXT ",SignedHeaders=host,Signature=" SIGNATURE_TEXT
         ",More=1",
         ERR_AUTHORIZATION_MALFORMED},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        cr_assert_eq(claim_of(ROWS[i].value), ROWS[i].err, "%s", ROWS[i].value);
    }
    cr_assert_eq(claim_of(ROWS[0].value), ERR_OK);
    cr_assert(span_equal_cstr(claim.access_key, "a/b"));
    cr_assert_eq(claim_of("AWS AK:c2ln"), ERR_OK);
    cr_assert(claim.version2 && !claim.present);
}

Test(sigv4, claims_need_a_date_and_a_payload_hash)
{
    const char *authorization =
        "AWS4-HMAC-SHA256 Credential=AK" SCOPE_TEXT ",SignedHeaders=host,Signature=" SIGNATURE_TEXT;
    begin("Host", HOST, "Authorization", authorization, "x-amz-date", "20130524T000000Z", NULL);
    cr_assert_eq(parse("/k"), ERR_MISSING_SECURITY_HEADER);
    begin("Host", HOST, "Authorization", authorization, "x-amz-content-sha256",
          SIGV4_UNSIGNED_PAYLOAD, NULL);
    cr_assert_eq(parse("/k"), ERR_ACCESS_DENIED);
    cr_assert(headers_add(&headers, arena, SPAN("Date"), SPAN("Fri, 24 May 2013 00:00:00 GMT")));
    cr_assert_eq(parse("/k"), ERR_OK);
    cr_assert_eq(claim.time, NOW);
    cr_assert(headers_add(&headers, arena, SPAN("x-amz-date"), SPAN("20130524T000001Z")));
    cr_assert_eq(parse("/k"), ERR_OK);
    cr_assert_eq(claim.time, NOW + 1);
    cr_assert(headers_add(&headers, arena, SPAN("x-amz-date"), SPAN("20130524T000001Z")));
    cr_assert_eq(parse("/k"), ERR_ACCESS_DENIED);

    begin("Host", HOST, "Authorization", authorization, "x-amz-content-sha256",
          SIGV4_UNSIGNED_PAYLOAD, "x-amz-date", "20130525T000000Z", NULL);
    cr_assert_eq(verify("/k"), ERR_AUTHORIZATION_MALFORMED); // not the day of the scope
    cr_assert_eq(parse(PRESIGNED), ERR_INVALID_ARGUMENT);    // signed twice
    begin("Host", HOST, NULL);
    cr_assert_eq(parse("/k?X-Amz-Signature=1"), ERR_AUTHORIZATION_QUERY);
    cr_assert_eq(parse("/k?AWSAccessKeyId=a&Signature=b&Expires=1"), ERR_OK);
    cr_assert(claim.version2 && !claim.present);
    cr_assert_eq(parse("/k"), ERR_OK);
    cr_assert(!claim.version2 && !claim.present);
    cr_assert_eq(claim.payload, SIGV4_PAYLOAD_NONE);
}

Test(sigv4, payload_words)
{
    static const struct {
        const char *value;
        enum err err;
        enum sigv4_payload payload;
    } ROWS[] = {
        {SIGV4_EMPTY_SHA256, ERR_OK, SIGV4_PAYLOAD_HASH},
        {"UNSIGNED-PAYLOAD", ERR_OK, SIGV4_PAYLOAD_UNSIGNED},
        {"STREAMING-AWS4-HMAC-SHA256-PAYLOAD", ERR_OK, SIGV4_PAYLOAD_STREAMING},
        {"STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", ERR_OK, SIGV4_PAYLOAD_STREAMING_TRAILER},
        {"STREAMING-UNSIGNED-PAYLOAD-TRAILER", ERR_OK, SIGV4_PAYLOAD_UNSIGNED_TRAILER},
        {"STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", ERR_NOT_IMPLEMENTED, SIGV4_PAYLOAD_NONE},
        {"unsigned-payload", ERR_INVALID_ARGUMENT, SIGV4_PAYLOAD_NONE},
        {"abc", ERR_INVALID_ARGUMENT, SIGV4_PAYLOAD_NONE},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        enum sigv4_payload payload = SIGV4_PAYLOAD_NONE;
        struct span hash;
        begin("x-amz-content-sha256", ROWS[i].value, NULL);
        cr_assert_eq(sigv4_payload_parse(&headers, false, &payload, &hash), ROWS[i].err);
        cr_assert_eq(payload, ROWS[i].payload);
    }
}

// As many headers as a request may have, in no order and some of them twice.
Test(sigv4, hundreds_of_headers_are_signed_and_verified)
{
    begin("Host", HOST, "x-amz-content-sha256", SIGV4_EMPTY_SHA256, NULL);
    for (unsigned i = 0; i < 600; i++) {
        char *name = arena_printf(arena, "X-Amz-Meta-%03u", i * 7 % 590);
        char *value = arena_printf(arena, "v%u", i);
        cr_assert(headers_add(&headers, arena, text(name), text(value)));
    }
    method = "PUT";
    cr_assert_eq(sign("/key", "", SIGV4_EMPTY_SHA256), ERR_OK);
    cr_assert_eq(verify("/key"), ERR_OK);
    headers.items[300].value = SPAN("v301");
    cr_assert_eq(verify("/key"), ERR_SIGNATURE_MISMATCH);
    headers.items[300].value = SPAN("v298");
    cr_assert_eq(verify("/key"), ERR_OK);
    headers.items[300].name = SPAN("x-amz-other");
    cr_assert_eq(verify("/key"), ERR_HEADERS_NOT_SIGNED);
    method = "GET"; // tests may share a process
}

Test(sigv4, the_list_of_signed_headers_is_bounded_and_names_each_once)
{
    struct buf b;
    buf_init(&b, 1 << 16);
    buf_append_cstr(&b, "AWS4-HMAC-SHA256 Credential=AK" SCOPE_TEXT ",Signature=" SIGNATURE_TEXT
                        ",SignedHeaders=host");
    size_t len = b.len;
    buf_append_cstr(&b, ";host");
    cr_assert_eq(claim_of(buf_cstr(&b)), ERR_OK);
    cr_assert_eq(verify("/k"), ERR_SIGNATURE_MISMATCH);
    b.len = len;
    for (unsigned i = 0; i < HEADERS_MAX; i++) {
        buf_printf(&b, ";h%u", i);
    }
    cr_assert_eq(claim_of(buf_cstr(&b)), ERR_OK);
    cr_assert_eq(verify("/k"), ERR_SIGNATURE_MISMATCH);
    buf_done(&b);
}

Test(sigv4, hash_of_bytes)
{
    char hex[65];
    sigv4_sha256_hex(SPAN(""), hex);
    cr_assert_str_eq(hex, SIGV4_EMPTY_SHA256);
}

// Keys of a day are kept for that day. The first key of another day removes them.
Test(sigv4, keys_of_other_days_are_wiped)
{
    static const char *const regions[] = {"us-east-1", "us-east-2", "eu-west-1", "eu-west-2"};
    const struct sigv4_credentials credentials = {text(ACCESS_KEY), text(SECRET), {NULL, 0}};
    unsigned kept = 0;
    for (unsigned day = 1; day < 4; day++) { // the first ends those that other tests left
        for (size_t i = 0; i < ARRAY_LEN(regions); i++) {
            const struct sigv4_scope scope = {.region = text(regions[i]), .service = SPAN("s3")};
            begin("Host", HOST, NULL);
            cr_assert_eq(sigv4_sign(arena, &credentials, &scope, NOW + (time_t)day * 86400,
                                    SPAN("GET"), SPAN("/"), SPAN(""), &headers,
                                    SPAN(SIGV4_EMPTY_SHA256), NULL),
                         ERR_OK);
            kept = sigv4_cached_keys();
            cr_assert(kept >= 1 && kept <= i + 1, "day %u: %u keys after %zu", day, kept, i + 1);
        }
        cr_assert(kept >= 2, "they are kept within the day");
    }
}

static pthread_key_t after_all;
static unsigned kept_in_thread = 99, kept_after_thread = 99;

static void sign_once(void)
{
    const struct sigv4_credentials credentials = {text(ACCESS_KEY), text(SECRET), {NULL, 0}};
    const struct sigv4_scope scope = {.region = SPAN("us-east-1"), .service = SPAN("s3")};
    begin("Host", HOST, NULL);
    cr_assert_eq(sigv4_sign(arena, &credentials, &scope, NOW, SPAN("GET"), SPAN("/"), SPAN(""),
                            &headers, SPAN(SIGV4_EMPTY_SHA256), NULL),
                 ERR_OK);
}

static void count_after_all(void *ctx)
{
    (void)ctx;
    kept_after_thread = sigv4_cached_keys();
}

static void *sign_in_thread(void *ctx)
{
    cr_assert_eq(pthread_setspecific(after_all, ctx), 0);
    sign_once();
    kept_in_thread = sigv4_cached_keys();
    return NULL;
}

// Destructors run in the order in which their keys were made.
Test(sigv4, keys_are_wiped_with_their_thread)
{
    pthread_t thread;
    sign_once();
    unsigned mine = sigv4_cached_keys();
    cr_assert(mine >= 1);
    cr_assert_eq(pthread_key_create(&after_all, count_after_all), 0);
    cr_assert_eq(pthread_create(&thread, NULL, sign_in_thread, &after_all), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert_eq(kept_in_thread, 1);
    cr_assert_eq(kept_after_thread, 0);
    cr_assert_eq(sigv4_cached_keys(), mine, "those of another thread stay");
}

// The hash covers the whole canonical request that the error document shows, however long its
// pieces are.
Test(sigv4, long_requests_are_hashed_whole)
{
    static const size_t lens[] = {0, 1, 500, 700, 1023, 1024, 1025, 3000, 7000};
    for (size_t i = 0; i < ARRAY_LEN(lens); i++) {
        char *value = malloc(lens[i] + 1);
        memset(value, 'v', lens[i]);
        for (size_t j = 40; j < lens[i]; j += 97) {
            memset(value + j - 3, ' ', j % 4); // runs of blanks are squeezed
        }
        value[lens[i]] = '\0';
        begin("Host", HOST, "x-amz-content-sha256", SIGV4_EMPTY_SHA256, "x-amz-meta-a", value,
              "x-amz-meta-b", "second", NULL);
        cr_assert_eq(sign("/key", "", SIGV4_EMPTY_SHA256), ERR_OK);
        cr_assert_eq(verify_at("/key", "another secret", NOW), ERR_SIGNATURE_MISMATCH);
        char hex[65];
        sigv4_sha256_hex(mismatch.canonical_request, hex);
        struct span text = mismatch.string_to_sign;
        cr_assert(text.len > 64 && mismatch.canonical_request.len > lens[i] / 2);
        cr_assert(span_equal_cstr((struct span){text.ptr + text.len - 64, 64}, hex), "%zu",
                  lens[i]);
        cr_assert_eq(verify_at("/key", SECRET, NOW), ERR_OK);
        free(value);
    }
}

static void expect_key(const char *secret, const char *region)
{
    char start[600];
    uint8_t key[32], mac[32], wanted[32];
    struct sigv4_key own;
    int len = snprintf(start, sizeof(start), "AWS4%s", secret);
    sigv4_hmac_sha256(start, (size_t)len, SPAN("20130524"), key);
    sigv4_hmac_sha256(key, 32, text(region), key);
    sigv4_hmac_sha256(key, 32, SPAN("s3"), key);
    sigv4_hmac_sha256(key, 32, SPAN("aws4_request"), key);
    sigv4_hmac_sha256(key, 32, SPAN("what is signed"), wanted);
    for (unsigned i = 0; i < 2; i++) {
        const struct sigv4_key *got = sigv4_signing_key(
            text(ACCESS_KEY), text(secret), SPAN("20130524"), text(region), SPAN("s3"), &own);
        cr_assert(memcmp(got->bytes, key, sizeof(key)) == 0);
        sigv4_key_mac(got, SPAN("what is signed"), mac);
        cr_assert(memcmp(mac, wanted, sizeof(mac)) == 0);
    }
}

// A key, derived or kept, belongs to its secret and scope. A key whose parts are too long is not
// kept.
Test(sigv4, keys_are_kept_by_all_that_makes_them)
{
    char long_secret[500];
    memset(long_secret, 's', sizeof(long_secret) - 1);
    long_secret[sizeof(long_secret) - 1] = '\0';
    for (unsigned round = 0; round < 3; round++) {
        expect_key(SECRET, "us-east-1");
        expect_key(SECRET "x", "us-east-1");
        expect_key(SECRET, "us-east-12");
        expect_key("", "");
        unsigned kept = sigv4_cached_keys();
        cr_assert(kept >= 1 && kept <= 4);
        expect_key(long_secret, "us-east-1");
        cr_assert_eq(sigv4_cached_keys(), kept);
    }
}
