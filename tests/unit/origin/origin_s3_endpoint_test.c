// SPDX-License-Identifier: Apache-2.0
// Only configured hosts are ever asked, and the signed request is the one that is sent.
#include <string.h>

#include "origin/origin_s3_private.h"
#include "test.h"

// Endpoints that are none are refused.
Test(origin_s3_endpoint, refused)
{
    static const char *const texts[] = {"",
                                        "s3.amazonaws.com",
                                        "ftp://host",
                                        "http://",
                                        "https:///path",
                                        "http://a@b",
                                        "http://user:pw@host",
                                        "http://host:0",
                                        "http://host:70000",
                                        "http://host:",
                                        "http://host:8x",
                                        "http://ho st",
                                        "http://host#x",
                                        "http://host/?q=1",
                                        "http://host/#f",
                                        "http://[::1",
                                        "http://[::1]x",
                                        "http://ho\nst",
                                        "http://host\\x",
                                        "file:///etc/passwd",
                                        "http://{other}",
                                        "http://host/a b",
                                        "http://[zz]",
                                        "http://:80"};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct origin_s3_endpoint endpoint = {0};
        struct buf why;
        buf_init(&why, 4096);
        cr_assert_eq(origin_s3_endpoint_parse("origin.endpoint", texts[i], &endpoint, &why),
                     ERR_INVALID, "%s", texts[i]);
        cr_assert_gt(why.len, 0);
        cr_assert_null(
            strchr(buf_cstr(&why), '\n') != NULL && strchr(texts[i], '\n') == NULL ? "" : NULL);
        buf_done(&why);
    }
}

static void expect_url(const char *text, enum origin_addressing addressing, const char *region,
                       const char *bucket, const char *key, const char *query, const char *expected)
{
    struct origin_s3_endpoint endpoint = {0};
    struct buf why;
    struct arena *arena = arena_new(1 << 20);
    struct origin_s3_url url;
    buf_init(&why, 4096);
    cr_assert_eq(origin_s3_endpoint_parse("origin.endpoint", text, &endpoint, &why), ERR_OK, "%s",
                 buf_cstr(&why));
    cr_assert_eq(origin_s3_url_build(arena, &endpoint, addressing, span_from_cstr(region),
                                     span_from_cstr(bucket), span_from_cstr(key),
                                     span_from_cstr(query), &url),
                 ERR_OK);
    cr_assert_str_eq(url.url, expected, "%s", url.url);
    // Host, path and query are pieces of what is sent.
    struct buf joined;
    buf_init(&joined, 65536);
    buf_append_cstr(&joined, endpoint.is_https ? "https://" : "http://");
    buf_append_span(&joined, url.host);
    buf_append_span(&joined, url.path);
    if (url.query.len > 0) {
        buf_append_char(&joined, '?');
        buf_append_span(&joined, url.query);
    }
    cr_assert_str_eq(buf_cstr(&joined), expected);
    buf_done(&joined);
    buf_done(&why);
    origin_s3_endpoint_done(&endpoint);
    arena_free(arena);
}

// Path style and virtual-host style, templates, keys of every kind.
Test(origin_s3_endpoint, urls)
{
    enum origin_addressing automatic = ORIGIN_ADDRESSING_AUTO, path = ORIGIN_ADDRESSING_PATH,
                           virtual = ORIGIN_ADDRESSING_VIRTUAL;
    const char *aws = "https://s3.{region}.amazonaws.com";
    expect_url("http://127.0.0.1:8333", automatic, "r", "bkt", "a/b", "",
               "http://127.0.0.1:8333/bkt/a/b");
    expect_url("http://127.0.0.1:8333", automatic, "r", "bkt", "", "", "http://127.0.0.1:8333/bkt");
    expect_url("http://127.0.0.1:8333", automatic, "r", "", "", "", "http://127.0.0.1:8333/");
    expect_url("http://[::1]:80", automatic, "r", "bkt", "k", "", "http://[::1]:80/bkt/k");
    expect_url("http://Host/base/", automatic, "r", "bkt", "k", "a=1",
               "http://host/base/bkt/k?a=1");
    expect_url("http://host/base", automatic, "r", "", "", "", "http://host/base");
    expect_url(aws, automatic, "eu-west-1", "bkt", "k", "",
               "https://bkt.s3.eu-west-1.amazonaws.com/k");
    expect_url(aws, automatic, "eu-west-1", "bkt", "", "",
               "https://bkt.s3.eu-west-1.amazonaws.com/");
    expect_url(aws, automatic, "eu-west-1", "", "", "", "https://s3.eu-west-1.amazonaws.com/");
    expect_url(aws, path, "eu-west-1", "bkt", "k", "", "https://s3.eu-west-1.amazonaws.com/bkt/k");
    expect_url(aws, automatic, "eu-west-1", "a.b.c", "k", "",
               "https://s3.eu-west-1.amazonaws.com/a.b.c/k");
    expect_url("http://host", virtual, "r", "a.b.c", "k", "", "http://a.b.c.host/k");
    expect_url("http://host", virtual, "r", "A_b", "k", "", "http://host/A_b/k");
    expect_url("http://host", virtual, "r", "a/b", "k", "", "http://host/a%2Fb/k");
    expect_url("http://host", virtual, "r", "a@b", "k", "", "http://host/a%40b/k");
    expect_url("http://host", virtual, "r", "x#y", "k", "", "http://host/x%23y/k");
    expect_url("http://host", virtual, "r", "..", "k", "", "http://host/../k");
    expect_url("http://host", virtual, "r", "-ab", "k", "", "http://host/-ab/k");
    expect_url("http://host", virtual, "r", "ab", "k", "", "http://host/ab/k");
    // Amazon's own hosts become templates.
    expect_url("https://s3.us-east-1.amazonaws.com", automatic, "eu-west-1", "bkt", "k", "",
               "https://bkt.s3.eu-west-1.amazonaws.com/k");
    expect_url("https://s3.amazonaws.com", automatic, "eu-west-1", "bkt", "k", "",
               "https://bkt.s3.eu-west-1.amazonaws.com/k");
    expect_url("https://s3.dualstack.us-east-1.amazonaws.com", path, "eu-west-1", "bkt", "k", "",
               "https://s3.dualstack.eu-west-1.amazonaws.com/bkt/k");
    expect_url("https://s3.cn-north-1.amazonaws.com.cn", path, "cn-northwest-1", "bkt", "k", "",
               "https://s3.cn-northwest-1.amazonaws.com.cn/bkt/k");
    // Keys are opaque bytes.
    expect_url("http://h", path, "r", "b", "//a/../b/./", "", "http://h/b///a/../b/./");
    expect_url("http://h", path, "r", "b", "a b+c%d?e#f&g=h~_-.", "",
               "http://h/b/a%20b%2Bc%25d%3Fe%23f%26g%3Dh~_-.");
    expect_url("http://h", path, "r", "b", "\xc3\xa9\x01\xff", "", "http://h/b/%C3%A9%01%FF");
}

// The region that an endpoint names is found.
Test(origin_s3_endpoint, default_region)
{
    struct origin_s3_endpoint endpoint = {0};
    struct buf why;
    buf_init(&why, 4096);
    cr_assert_eq(origin_s3_endpoint_parse("origin.endpoint",
                                          "https://s3.eu-central-1.amazonaws.com", &endpoint, &why),
                 ERR_OK);
    cr_assert_str_eq(endpoint.default_region, "eu-central-1");
    cr_assert(origin_s3_endpoint_has_region(&endpoint));
    origin_s3_endpoint_done(&endpoint);
    cr_assert_eq(origin_s3_endpoint_parse(
                     "origin.endpoint",
                     "https://bucket.vpce-1a2b3c4d-5e6f.s3.us-east-1.vpce.amazonaws.com", &endpoint,
                     &why),
                 ERR_OK);
    cr_assert_null(endpoint.default_region);
    origin_s3_endpoint_done(&endpoint);
    buf_done(&why);
}

// A value that would break a header line is never sent.
Test(origin_s3_headers, dirty_values)
{
    struct arena *arena = arena_new(1 << 20);
    struct header items[] = {{SPAN("x-amz-meta-a"), SPAN("a\r\nX-Evil: 1")}};
    struct headers client = {.items = items, .count = 1}, out = {0};
    cr_assert_eq(origin_s3_headers_forward(arena, &client, false, &out), ERR_INVALID);
    items[0] = (struct header){SPAN("x-amz-a b"), SPAN("a")};
    cr_assert_eq(origin_s3_headers_forward(arena, &client, false, &out), ERR_INVALID);
    cr_assert_eq(out.count, 0);
    arena_free(arena);
}

static void expect_place(const char *text, const char *region, const char *expected)
{
    struct origin_s3_endpoint endpoint = {0};
    struct buf why, place;
    buf_init(&why, 4096);
    buf_init(&place, 4096);
    cr_assert_eq(origin_s3_endpoint_parse("origin.endpoint", text, &endpoint, &why), ERR_OK, "%s",
                 text);
    origin_s3_endpoint_place(&endpoint, region, &place);
    cr_assert_str_eq(buf_cstr(&place), expected, "%s is at %s", text, buf_cstr(&place));
    origin_s3_endpoint_done(&endpoint);
    // A place is its own place.
    cr_assert_eq(origin_s3_endpoint_parse("origin.endpoint", expected, &endpoint, &why), ERR_OK,
                 "%s", expected);
    place.len = 0;
    origin_s3_endpoint_place(&endpoint, "us-east-1", &place);
    cr_assert_str_eq(buf_cstr(&place), expected);
    origin_s3_endpoint_done(&endpoint);
    buf_done(&why);
    buf_done(&place);
}

static bool is_one_store(const char *text, const char *region)
{
    struct origin_s3_endpoint endpoint;
    struct buf why;
    buf_init(&why, 4096);
    cr_assert_eq(origin_s3_endpoint_parse("origin.endpoint", text, &endpoint, &why), ERR_OK, "%s",
                 text);
    bool is_one = origin_s3_endpoint_is_one_store(&endpoint, region);
    origin_s3_endpoint_done(&endpoint);
    buf_done(&why);
    return is_one;
}

// A bucket name of AWS means one bucket within a partition. Elsewhere each region may be a store.
Test(origin_s3_endpoint, regions_that_are_one_store)
{
    static const char *const aws[] = {"https://s3.{region}.amazonaws.com",
                                      "https://s3.amazonaws.com",
                                      "https://s3.eu-west-1.amazonaws.com",
                                      "https://s3-{region}.amazonaws.com",
                                      "https://s3.dualstack.us-east-1.amazonaws.com",
                                      "https://s3-fips.us-east-1.amazonaws.com"};
    static const char *const others[] = {"https://{region}.store.example",
                                         "https://s3.{region}.store.example",
                                         "http://s3-minio-1.elb.us-east-1.amazonaws.com",
                                         "http://minio.elb.{region}.amazonaws.com:9000",
                                         "https://s3.{region}.amazonaws.com.example",
                                         "https://s3.{region}.amazonaws.com:9000"};
    for (size_t i = 0; i < ARRAY_LEN(aws); i++) {
        cr_assert(is_one_store(aws[i], "us-east-1") && is_one_store(aws[i], "ap-southeast-7"));
        cr_assert_not(is_one_store(aws[i], "us-gov-west-1"), "%s", aws[i]);
        cr_assert_not(is_one_store(aws[i], "cn-north-1") || is_one_store(aws[i], "1"));
    }
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        cr_assert_not(is_one_store(others[i], "us-east-1"), "%s", others[i]);
    }
    cr_assert(is_one_store("https://s3.{region}.amazonaws.com.cn", "cn-north-1"));
    cr_assert(is_one_store("https://store.example/us-east-1", "us-gov-west-1"));
}

// An endpoint has the same place in every spelling. An endpoint that may be another one is another
// place.
Test(origin_s3_endpoint, places)
{
    static const char *const aws[] = {
        "https://s3.{region}.amazonaws.com",
        "https://s3.amazonaws.com",
        "https://S3.EU-West-1.amazonaws.com/",
        "https://s3.eu-west-1.amazonaws.com:443",
        "https://s3.eu-west-1.amazonaws.com.",
        "http://s3.eu-west-1.amazonaws.com",
        "https://s3-us-west-2.amazonaws.com",
        "https://s3.dualstack.us-east-1.amazonaws.com",
        "https://s3-fips.us-east-1.amazonaws.com",
        "https://s3-accelerate.amazonaws.com",
        "https://bucket.vpce-1a2b3c4d-5e6f.s3.us-east-1.vpce.amazonaws.com"};
    for (size_t i = 0; i < ARRAY_LEN(aws); i++) {
        expect_place(aws[i], "eu-west-1", "https://s3.{region}.amazonaws.com");
    }
    expect_place("https://s3.cn-north-1.amazonaws.com.cn", "cn-north-1",
                 "https://s3.{region}.amazonaws.com.cn");
    expect_place("http://ec2-1-2-3-4.compute-1.amazonaws.com:9000", "r",
                 "http://ec2-1-2-3-4.compute-1.amazonaws.com:9000");
    expect_place("http://HOST", "r", "http://host");
    expect_place("http://host.:80//", "r", "http://host");
    expect_place("http://host:0080/", "r", "http://host");
    expect_place("https://host:443", "r", "https://host");
    expect_place("https://host:80", "r", "https://host:80");
    expect_place("http://host:443", "r", "http://host:443");
    expect_place("http://host/base/", "r", "http://host/base");
    expect_place("http://127.0.0.1:8333", "r", "http://127.0.0.1:8333");
    expect_place("http://[::1]:80", "r", "http://[::1]");
    expect_place("http://minio-node-1.svc:9000", "r", "http://minio-node-1.svc:9000");
    expect_place("https://{region}.store.example", "nyc3", "https://nyc3.store.example");
    expect_place("https://s3.{region}.store.example", "eu-central-1",
                 "https://s3.{region}.store.example");
    expect_place("https://s3.eu-central-1.store.example", "r", "https://s3.{region}.store.example");
}
