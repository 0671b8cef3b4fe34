// SPDX-License-Identifier: Apache-2.0
// Proves: only redirects that keep scheme and form are followed. The signed request is the one that
// is sent. A literal address further inside than the sender is refused.
#include "origin/origin_s3_private.h"

#include <string.h>

#include "test.h"

static void expect(bool is_https, const char *location, const char *url, const char *host,
                   bool is_presigned)
{
    struct arena *arena = arena_new(1 << 20);
    struct origin_s3_url built;
    bool presigned = false;
    enum err err = origin_s3_redirect_build(arena, is_https, SPAN("asked:9000"),
                                            span_from_cstr(location), &built, &presigned);
    cr_assert_eq(err, url != NULL ? ERR_OK : ERR_INVALID, "%s", location);
    if (url != NULL) {
        cr_assert_str_eq(built.url, url);
        cr_assert(span_equal_cstr(built.host, host), "%s", location);
        cr_assert_eq(presigned, is_presigned, "%s", location);
    }
    arena_free(arena);
}

Test(origin_s3_redirect, locations)
{
    expect(false, "http://b/bkt/k", "http://b/bkt/k", "b", false);
    expect(false, "HTTP://b:81/bkt/k?b=2&a=1#x", "http://b:81/bkt/k?a=1&b=2", "b:81", false);
    expect(false, "http://10.0.0.1:51081/v1/k?pid=t%5B1&utm",
           "http://10.0.0.1:51081/v1/k?pid=t%5B1&utm=", "10.0.0.1:51081", false);
    expect(true, "https://[fd00::1]:443/a%20b/%2B", "https://[fd00::1]:443/a%20b/%2B",
           "[fd00::1]:443", false);
    expect(false, "http://b", "http://b/", "b", false);
    expect(false, "http://b?x=1", "http://b/?x=1", "b", false);
    expect(false, "/other/k", "http://asked:9000/other/k", "asked:9000", false);
    expect(false, "http://b/a+b=~", "http://b/a%2Bb%3D~", "b", false); // as it is signed
    // With a signature of its own not a byte is changed.
    expect(true, "https://b/a+b?X-Amz-Signature=0&A=1", "https://b/a+b?X-Amz-Signature=0&A=1", "b",
           true);
    expect(true, "https://b/k?z=1&sig=0", "https://b/k?z=1&sig=0", "b", true);
}

Test(origin_s3_redirect, locations_that_are_not_followed)
{
    static const char *const texts[] = {"",
                                        "http://",
                                        "https://b/k", // another scheme
                                        "ftp://b/k",
                                        "file:///etc/passwd",
                                        "//b/k",
                                        "k",
                                        "http://user@b/k",
                                        "http://user:pw@b/k",
                                        "http://b:0/k",
                                        "http://b:99999/k",
                                        "http://{region}/k",
                                        "http://b /k",
                                        "http://b/k k",
                                        "http://b\\c/k",
                                        "http://b/%zz",
                                        "http://b/\x7f",
                                        "http://b/\xc3\xa4",
                                        "http:/b/k"};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        expect(false, texts[i], NULL, NULL, false);
    }
    static char longer[ORIGIN_S3_LOCATION_MAX + 2];
    memset(longer, 'a', sizeof(longer) - 1);
    longer[0] = '/';
    expect(false, longer, NULL, NULL, false);
    longer[ORIGIN_S3_LOCATION_MAX] = '\0';
    struct arena *arena = arena_new(1 << 20);
    struct origin_s3_url built;
    bool presigned = false;
    cr_assert_eq(origin_s3_redirect_build(arena, false, SPAN("a"), span_from_cstr(longer), &built,
                                          &presigned),
                 ERR_OK);
    arena_free(arena);
}

Test(origin_s3_redirect, literal_addresses)
{
    static const struct {
        const char *host;
        enum transfer_reach reach;
    } rows[] = {{"8.8.8.8", TRANSFER_REACH_PUBLIC},
                {"8.8.8.8:80", TRANSFER_REACH_PUBLIC},
                {"[2600::1]:80", TRANSFER_REACH_PUBLIC},
                {"10.1.2.3", TRANSFER_REACH_PRIVATE},
                {"172.16.0.1", TRANSFER_REACH_PRIVATE},
                {"172.32.0.1", TRANSFER_REACH_PUBLIC},
                {"192.168.1.1:9000", TRANSFER_REACH_PRIVATE},
                {"100.64.0.1", TRANSFER_REACH_PRIVATE},
                {"[fd00::1]", TRANSFER_REACH_PRIVATE},
                {"[::ffff:10.0.0.1]", TRANSFER_REACH_PRIVATE},
                {"127.0.0.1:80", TRANSFER_REACH_LOCAL},
                {"0.0.0.0", TRANSFER_REACH_LOCAL},
                {"[::1]", TRANSFER_REACH_LOCAL},
                {"[::]", TRANSFER_REACH_LOCAL},
                {"[::ffff:127.0.0.1]", TRANSFER_REACH_LOCAL},
                {"[64:ff9b::7f00:1]", TRANSFER_REACH_LOCAL},
                {"[2002:7f00:1::]", TRANSFER_REACH_LOCAL},
                {"[fe80::1]", TRANSFER_REACH_LOCAL},
                {"169.254.169.254", TRANSFER_REACH_LOCAL}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        for (int reach = TRANSFER_REACH_PUBLIC; reach <= TRANSFER_REACH_LOCAL; reach++) {
            cr_assert_eq(
                origin_s3_host_is_within(span_from_cstr(rows[i].host), (enum transfer_reach)reach),
                (int)rows[i].reach <= reach, "%s", rows[i].host);
        }
    }
    cr_assert(origin_s3_host_is_within(SPAN("a.example:80"),
                                       TRANSFER_REACH_PUBLIC)); // judged when it is connected to
}
