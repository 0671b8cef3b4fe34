// SPDX-License-Identifier: Apache-2.0
// The reader reports leaves in order with entities decoded, knows no document types, and is
// bounded.
#include "base/chunk.h"
#include "s3/s3.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

static char seen[4096];

static void on_leaf(void *ctx, const char *path, struct span text)
{
    (void)ctx;
    size_t len = strlen(seen);
    snprintf(seen + len, sizeof(seen) - len, "%s=%.*s;", path, (int)text.len, text.ptr);
}

static enum err read_text(const char *document)
{
    seen[0] = '\0';
    return s3_xml_read(span_from_cstr(document), on_leaf, NULL);
}

Test(s3_xml, leaves_come_in_order_with_their_paths)
{
    cr_assert_eq(
        read_text("<?xml version='1.0'?>\n<s3:A xmlns:s3='urn:x'><B>1</B><C><D>a&amp;b &#233; "
                  "<![CDATA[<x>]]></D></C><E/></s3:A>"),
        ERR_OK);
    cr_assert_str_eq(seen, "A/B=1;A/C/D=a&b \xc3\xa9 <x>;A/E=;");
    cr_assert_eq(read_text("  \r\n\n <?xml version='1.0'?><A/>"), ERR_OK);
}

Test(s3_xml, document_types_and_broken_documents_are_refused)
{
    static const char *const BAD[] = {
        "",
        "   ",
        "text",
        "<A>",
        "<A></B>",
        "<A/><B/>",
        "<A>&nbsp;</A>",
        "<A>&#x0;</A>",
        "<!DOCTYPE A><A/>",
        "<!DOCTYPE A [<!ENTITY e 'x'>]><A>&e;</A>",
        "<!DOCTYPE A SYSTEM 'file:///etc/passwd'><A/>",
        "<!DOCTYPE l [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;&a;'>]><l>&b;</l>",
        "<A b='1' b='2'/>",
        "<A>\xff</A>",
    };
    for (size_t i = 0; i < ARRAY_LEN(BAD); i++) {
        cr_assert_eq(read_text(BAD[i]), ERR_MALFORMED_XML, "%s", BAD[i]);
    }
}

static enum err read_nested(unsigned depth)
{
    struct buf b;
    buf_init(&b, 1 << 16);
    for (unsigned i = 0; i < depth; i++) {
        buf_append_cstr(&b, "<a>");
    }
    for (unsigned i = 0; i < depth; i++) {
        buf_append_cstr(&b, "</a>");
    }
    enum err err = read_text(buf_cstr(&b));
    buf_done(&b);
    return err;
}

Test(s3_xml, depth_path_and_size_are_bounded)
{
    cr_assert_eq(read_nested(16), ERR_OK);
    cr_assert_eq(read_nested(17), ERR_MALFORMED_XML);

    struct buf b;
    buf_init(&b, 1 << 16);
    buf_append_char(&b, '<');
    for (unsigned i = 0; i < 600; i++) {
        buf_append_char(&b, 'n');
    }
    buf_append_cstr(&b, "/>");
    cr_assert_eq(read_text(buf_cstr(&b)), ERR_MALFORMED_XML);
    buf_done(&b);

    char *large = malloc(S3_XML_BODY_MAX + 1);
    memset(large, ' ', S3_XML_BODY_MAX + 1);
    memcpy(large, "<A>", 3);
    memcpy(large + S3_XML_BODY_MAX - 4, "</A>", 4);
    cr_assert_eq(s3_xml_read((struct span){large, S3_XML_BODY_MAX}, on_leaf, NULL), ERR_OK);
    cr_assert_eq(s3_xml_read((struct span){large, S3_XML_BODY_MAX + 1}, on_leaf, NULL),
                 ERR_MALFORMED_XML);
    free(large);
}

// expat keeps each name that it has not seen before.
Test(s3_xml, a_document_of_different_names_is_refused_before_they_take_much_memory)
{
    struct buf b;
    buf_init(&b, S3_XML_BODY_MAX);
    buf_append_cstr(&b, "<A>");
    for (unsigned i = 0; i < 200000; i++) {
        buf_printf(&b, "<n%u/>", i);
    }
    buf_append_cstr(&b, "</A>");
    cr_assert_eq(s3_xml_read(buf_span(&b), on_leaf, NULL), ERR_XML_TOO_LARGE);
    cr_assert_eq(chunk_budget_kind_bytes(BUDGET_BODIES), 0);
    cr_assert(chunk_budget_peak_bytes() < 2ul * S3_XML_PARSER_MAX);
    buf_done(&b);
}

Test(s3_xml, only_error_documents_read_as_errors)
{
    struct arena *arena = arena_new(1 << 16);
    struct s3_error_body body;
    cr_assert(s3_error_read(
        arena, SPAN("\n\n<Error><Code>SlowDown</Code><Message>m</Message></Error>"), &body));
    cr_assert(span_equal_cstr(body.code, "SlowDown") && span_equal_cstr(body.message, "m"));
    cr_assert(s3_error_read(arena, SPAN("<Error/>"), &body));
    cr_assert_not(
        s3_error_read(arena, SPAN("<CopyObjectResult><ETag>x</ETag></CopyObjectResult>"), &body));
    cr_assert_not(s3_error_read(arena,
                                SPAN("<ListBucketResult><Error><Code>x</Code></Error>"
                                     "</ListBucketResult>"),
                                &body));
    cr_assert_not(s3_error_read(arena, SPAN("not found"), &body));
    arena_free(arena);
}
