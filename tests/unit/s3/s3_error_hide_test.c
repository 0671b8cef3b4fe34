// SPDX-License-Identifier: Apache-2.0
// Proves: an error document keeps no name that an access key may not see, and keeps everything
// else.
#include "s3/s3.h"

#include <string.h>

#include "test.h"

static bool may_show(void *ctx, struct span name)
{
    (void)ctx;
    return span_starts_with(name, SPAN("mine/"));
}

// Returns the document with these elements as a client gets it; NULL: unchanged.
static const char *shown(const char *target, const char *elements)
{
    static struct buf out;
    static struct s3_request r;
    struct arena *arena = arena_new(1 << 20);
    struct headers headers = {0};
    struct buf document;
    cr_assert_eq(s3_request_parse(arena, SPAN("GET"), SPAN("127.0.0.1"), span_from_cstr(target),
                                  &headers, NULL, &r),
                 ERR_OK);
    buf_done(&out);
    buf_init(&out, 1 << 20);
    buf_init(&document, 1 << 20);
    buf_printf(&document, "<Error><Code>X</Code>%s<RequestId>1</RequestId></Error>", elements);
    bool is_made = s3_error_hide(buf_span(&document), &r, may_show, NULL, &out);
    buf_done(&document);
    arena_free(arena);
    cr_assert(buf_ok(&out) && is_made == (out.len > 0));
    return is_made ? buf_cstr(&out) : NULL;
}

Test(s3_error_hide, names_of_other_keys_are_left_out)
{
    static const char *const OTHERS[] = {"<Key>theirs</Key>",
                                         "<Resource>/b/theirs</Resource>",
                                         "<Resource>theirs</Resource>",
                                         "<NextMarker>theirs</NextMarker>",
                                         "<Prefix>theirs/</Prefix>",
                                         "<Marker>zz</Marker>",
                                         "<ObjectName>theirs</ObjectName>",
                                         "<Detail><Key>theirs</Key></Detail>"};
    for (size_t i = 0; i < ARRAY_LEN(OTHERS); i++) {
        const char *text = shown("/b?prefix=mine%2F&marker=z", OTHERS[i]);
        cr_assert_not_null(text, "%s", OTHERS[i]);
        cr_assert_str_eq(text, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                               "<Error><Code>X</Code><RequestId>1</RequestId></Error>");
    }
}

Test(s3_error_hide, names_of_the_request_itself_are_sent_unchanged)
{
    static const char *const OWN[] = {
        "<Key>mine/other</Key>",      "<Resource>/b/mine/k</Resource>",
        "<Resource>/b</Resource>",    "<Resource>/mine/k</Resource>",
        "<Resource>/b/</Resource>",   "<Marker>z</Marker>",
        "<BucketName>b</BucketName>", "<ArgumentValue>-1</ArgumentValue>"};
    for (size_t i = 0; i < ARRAY_LEN(OWN); i++) {
        cr_assert_null(shown("/b?prefix=mine%2F&marker=z", OWN[i]), "%s", OWN[i]);
    }
    cr_assert_null(shown("/b/a%20key?acl", "<Key>a key</Key><Resource>/b/a key</Resource>"));
    cr_assert_null(shown("/b/a%20key?acl", "<Resource>/b/a%20key</Resource>"));
    cr_assert_null(shown("/b", "<Key>theirs"));
}
