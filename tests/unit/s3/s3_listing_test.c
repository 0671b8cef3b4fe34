// SPDX-License-Identifier: Apache-2.0
// Listing parameters and documents: the requests of clients in both versions, and that pages and
// tokens agree.
#include "s3/s3.h"

#include <stdio.h>
#include <string.h>

#include "test.h"

static struct arena *arena;
static struct s3_request r;
static struct s3_listing_query q;
static struct buf out;

static struct s3_error_detail detail;

static enum err parse(const char *target)
{
    arena_free(arena);
    arena = arena_new(1 << 20);
    struct headers headers = {0};
    cr_assert_eq(s3_request_parse(arena, SPAN("GET"), SPAN("127.0.0.1"), span_from_cstr(target),
                                  &headers, NULL, &r),
                 ERR_OK);
    detail = (struct s3_error_detail){0};
    return s3_listing_parse(arena, &r, &q, &detail);
}

static const char *render(const struct s3_listing_page *page)
{
    buf_done(&out);
    buf_init(&out, 1 << 20);
    s3_listing_render(&q, page, &out);
    cr_assert(buf_ok(&out));
    return buf_cstr(&out);
}

static bool holds(const char *text)
{
    return strstr(buf_cstr(&out), text) != NULL;
}

Test(s3_listing, defaults_and_bounds)
{
    cr_assert_eq(parse("/b"), ERR_OK);
    cr_assert(!q.v2 && q.max_keys == 1000 && q.prefix.len == 0 && !q.encoding_url);
    cr_assert_eq(parse("/b?max-keys=0"), ERR_OK);
    cr_assert_eq(q.max_keys, 0);
    cr_assert_eq(parse("/b?list-type=2&max-keys=5000"), ERR_OK);
    cr_assert(q.v2 && q.max_keys == 1000);
    cr_assert_eq(parse("/b?max-keys="), ERR_OK);
    cr_assert_eq(q.max_keys, 1000);
    cr_assert_eq(parse("/b?encoding-type=base64"), ERR_INVALID_ARGUMENT);
    cr_assert_eq(parse("/b?list-type=2&fetch-owner=true&start-after=&delimiter="), ERR_OK);
    cr_assert(q.fetch_owner && !q.has_start_after && q.after.len == 0);
}

// A refused argument is named in S3's own words.
Test(s3_listing, refused_arguments)
{
    static const struct {
        const char *query, *name, *value, *message;
    } cases[] = {
        {"max-keys=-1", "max-keys", "-1",
         "Argument maxKeys must be an integer between 0 and 2147483647"},
        {"list-type=2&max-keys=ten", "max-keys", "ten",
         "Provided max-keys not an integer or within integer range"},
        {"max-keys=-", "max-keys", "-", "Provided max-keys not an integer or within integer range"},
        {"encoding-type=base64", "encoding-type", "base64",
         "Invalid Encoding Method specified in Request"},
        {"list-type=2&continuation-token=zz", "continuation-token", "zz",
         "The continuation token provided is incorrect"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char target[100];
        (void)snprintf(target, sizeof(target), "/b?%s", cases[i].query);
        cr_assert_eq(parse(target), ERR_INVALID_ARGUMENT);
        cr_assert(span_equal_cstr(detail.argument_name, cases[i].name));
        cr_assert(span_equal_cstr(detail.argument_value, cases[i].value));
        cr_assert(span_equal_cstr(detail.message, cases[i].message));
    }
}

Test(s3_listing, positions_and_tokens)
{
    cr_assert_eq(parse("/b?marker=m"), ERR_OK);
    cr_assert(span_equal_cstr(q.after, "m"));
    cr_assert_eq(parse("/b?list-type=2&start-after=s"), ERR_OK);
    cr_assert(span_equal_cstr(q.after, "s") && q.has_start_after);

    struct buf target;
    buf_init(&target, 4096);
    buf_append_cstr(&target, "/b?list-type=2&start-after=s&continuation-token=");
    s3_listing_token(SPAN("a/\xff\x00z"), &target);
    cr_assert_eq(parse(buf_cstr(&target)), ERR_OK);
    cr_assert(span_equal(q.after, SPAN("a/\xff\x00z")));
    buf_done(&target);

    cr_assert_eq(parse("/b?list-type=2&continuation-token="), ERR_OK);
    cr_assert(q.has_continuation_token && q.after.len == 0);
    static const char *const BAD[] = {"x", "161f", "2616161", "1zz", "16"};
    for (size_t i = 0; i < ARRAY_LEN(BAD); i++) {
        char text[64];
        snprintf(text, sizeof(text), "/b?list-type=2&continuation-token=%s", BAD[i]);
        cr_assert_eq(parse(text), ERR_INVALID_ARGUMENT, "%s", BAD[i]);
    }
}

Test(s3_listing, version_2_page)
{
    cr_assert_eq(
        parse("/b?list-type=2&prefix=p%2F%20x&delimiter=%2F&encoding-type=url&start-after=a%2Bb"),
        ERR_OK);
    const struct s3_listing_entry entries[] = {{.key = SPAN("p/ x<1"),
                                                .size = 5,
                                                .last_modified = 1136214245,
                                                .last_modified_ms = 7,
                                                .etag = SPAN("0123-1")}};
    const struct span prefixes[] = {SPAN("p/ x+d/")};
    const struct s3_listing_page page = {.entries = entries,
                                         .entry_count = 1,
                                         .common_prefixes = prefixes,
                                         .common_prefix_count = 1,
                                         .truncated = true,
                                         .last_name = SPAN("p/ x+d/")};
    cr_assert_str_eq(
        render(&page),
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult "
        "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name><Prefix>p/%20x</Prefix>"
        "<StartAfter>a%2Bb</StartAfter>"
        "<NextContinuationToken>1702f20782b642f</NextContinuationToken><KeyCount>2</KeyCount>"
        "<MaxKeys>1000</MaxKeys><Delimiter>/</Delimiter><EncodingType>url</EncodingType>"
        "<IsTruncated>true</IsTruncated><Contents><Key>p/%20x%3C1</Key>"
        "<LastModified>2006-01-02T15:04:05.007Z</LastModified><ETag>&quot;0123-1&quot;</ETag>"
        "<Size>5</Size><StorageClass>STANDARD</StorageClass></Contents>"
        "<CommonPrefixes><Prefix>p/%20x%2Bd/</Prefix></CommonPrefixes></ListBucketResult>");
}

Test(s3_listing, version_1_next_marker_only_with_a_delimiter)
{
    const struct s3_listing_entry entries[] = {{.key = SPAN("k&1"), .etag = SPAN("e")}};
    const struct s3_listing_page page = {
        .entries = entries, .entry_count = 1, .truncated = true, .last_name = SPAN("k&1")};
    cr_assert_eq(parse("/b?max-keys=1"), ERR_OK);
    (void)render(&page);
    cr_assert(holds("<Marker></Marker>") && holds("<Key>k&amp;1</Key>") && holds("<Owner>"));
    cr_assert(!holds("NextMarker") && !holds("KeyCount") && !holds("<Delimiter>"));
    cr_assert_eq(parse("/b?max-keys=1&delimiter=/&marker=a"), ERR_OK);
    (void)render(&page);
    cr_assert(holds("<Marker>a</Marker><NextMarker>k&amp;1</NextMarker>"));
}

Test(s3_listing, empty_page_and_owner)
{
    const struct s3_listing_page page = {.truncated = false};
    cr_assert_eq(parse("/b?list-type=2&max-keys=0&prefix=&delimiter=&fetch-owner=true"), ERR_OK);
    (void)render(&page);
    cr_assert(holds("<KeyCount>0</KeyCount><MaxKeys>0</MaxKeys><IsTruncated>false</IsTruncated>"));
    cr_assert_not(holds("Token"));
}

Test(s3_listing, buckets_and_location)
{
    const struct s3_bucket_entry buckets[] = {{SPAN("one"), 0}, {SPAN("two"), 1136214245}};
    buf_init(&out, 1 << 16);
    s3_buckets_render(buckets, 2, &out);
    cr_assert(holds("<Bucket><Name>one</Name><CreationDate>1970-01-01T00:00:00.000Z</CreationDate>"
                    "</Bucket><Bucket><Name>two</Name>"));
    buf_done(&out);
    s3_location_render(SPAN("eu-west-1"), &out);
    cr_assert(holds("\">eu-west-1</LocationConstraint>"));
    buf_done(&out);
    s3_location_render(SPAN("us-east-1"), &out);
    cr_assert(holds("\"></LocationConstraint>"));
}
