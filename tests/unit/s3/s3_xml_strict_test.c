// SPDX-License-Identifier: Apache-2.0
// Proves: a body that names keys is accepted by its schema or not at all, and its rendered form
// reads the same again.
#include "s3/s3.h"

#include <stdio.h>
#include <string.h>

#include "test.h"

#define NS "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\""
#define HEAD "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"

static struct s3_delete got;

static enum err read_span(struct arena *arena, struct span document)
{
    memset(&got, 0, sizeof(got));
    return s3_delete_read(arena, document, &got);
}

// Documents as clients send them, and the part that is sent on.
Test(s3_xml_strict, deletes_of_clients)
{
    static const struct {
        const char *document;
        const char *rendered; // behind the root's start tag
    } rows[] = {
        {"<Delete " NS "><Object><Key>a</Key></Object></Delete>",
         "<Object><Key>a</Key></Object></Delete>"},
        {HEAD "<Delete>\n  <Quiet>true</Quiet>\n  <Object>\n    <VersionId>v</VersionId>\n"
              "    <Key>a</Key>\n  </Object>\n</Delete>\n",
         "<Object><Key>a</Key><VersionId>v</VersionId></Object><Quiet>true</Quiet></Delete>"},
        {"<Delete " NS "><Object><Key> a&amp;&#60;b&gt;'\"\xc3\xa9&#x1F600; </Key><ETag>\"e\""
         "</ETag><Size>12</Size><LastModifiedTime>Wed, 21 Oct 2015 07:28:00 GMT"
         "</LastModifiedTime></Object><Object><Key>b&#xD;&#xA;c&#9;</Key></Object>"
         "<Quiet>false</Quiet></Delete>",
         "<Object><Key> a&amp;&lt;b&gt;&apos;&quot;\xc3\xa9\xf0\x9f\x98\x80 </Key>"
         "<ETag>&quot;e&quot;</ETag><LastModifiedTime>Wed, 21 Oct 2015 07:28:00 GMT"
         "</LastModifiedTime><Size>12</Size></Object><Object><Key>b&#xD;&#xA;c&#x9;</Key>"
         "</Object><Quiet>false</Quiet></Delete>"},
        {"\xef\xbb\xbf<?xml version='1.0' encoding='utf-8'?><Delete><Object><Key>a</Key>"
         "<VersionId></VersionId></Object></Delete>",
         "<Object><Key>a</Key><VersionId></VersionId></Object></Delete>"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct arena *arena = arena_new(1 << 20);
        struct buf out, again;
        buf_init(&out, 1 << 16);
        buf_init(&again, 1 << 16);
        cr_assert_eq(read_span(arena, span_from_cstr(rows[i].document)), ERR_OK, "%zu", i);
        s3_delete_render(&got, &out);
        char want[1024];
        snprintf(want, sizeof(want), HEAD "<Delete " NS ">%s", rows[i].rendered);
        cr_assert_str_eq(buf_cstr(&out), want);
        cr_assert_eq(read_span(arena, buf_span(&out)), ERR_OK);
        s3_delete_render(&got, &again);
        cr_assert_str_eq(buf_cstr(&again), want);
        buf_done(&out);
        buf_done(&again);
        arena_free(arena);
    }
}

#define K "<Key>k</Key>"
#define OBJECT "<Object>" K "</Object>"

// Each of these names a key for some XML parsers and another one, or none, for others.
Test(s3_xml_strict, deletes_that_read_two_ways)
{
    static const char *const BAD[] = {
        "",
        " ",
        "k",
        "<Delete/>",
        "<Delete></Delete>",
        "<Delete><Object>",
        "<Delete><Quiet>true</Quiet></Delete>",
        "<Delete><Object/></Delete>",
        "<Delete><Object><Key/></Object></Delete>",
        "<Delete><Object><VersionId>v</VersionId></Object></Delete>",
        "<Delete>" OBJECT "<Object><Key></Key></Object></Delete>",
        // elements that the schema does not have, or has elsewhere
        "<Delete><Object><Key>victim<a/></Key></Object></Delete>",
        "<Delete><Object><Key><a/>victim</Key></Object></Delete>",
        "<Delete><Object><Key>vic<a>tim</a></Key></Object></Delete>",
        "<Delete><Wrap>" OBJECT "</Wrap></Delete>",
        "<Wrap><Delete>" OBJECT "</Delete></Wrap>",
        "<Delete><Object>" OBJECT "</Object></Delete>",
        "<Delete><Object>" OBJECT K "</Object></Delete>",
        "<Delete><Delete>" OBJECT "</Delete></Delete>",
        "<Delete>" K OBJECT "</Delete>",
        "<Delete>" OBJECT "<VersionId>v</VersionId></Delete>",
        "<Delete><Object>" K "<Quiet>true</Quiet></Object></Delete>",
        "<Delete><Object>" K "<Other>x</Other></Object></Delete>",
        "<Delete>" OBJECT "<Other/></Delete>",
        "<Delete><object>" K "</object></Delete>",
        "<Delete><Object><key>k</key></Object></Delete>",
        "<delete>" OBJECT "</delete>",
        "<DeleteResult>" OBJECT "</DeleteResult>",
        "<Object>" K "</Object>",
        // twice
        "<Delete><Object>" K "<Key>l</Key></Object></Delete>",
        "<Delete><Object>" K K "</Object></Delete>",
        "<Delete><Object>" K "<VersionId>v</VersionId><VersionId>w</VersionId></Object></Delete>",
        "<Delete><Object>" K "<ETag>v</ETag><ETag>w</ETag></Object></Delete>",
        "<Delete><Object>" K "<Size>1</Size><Size>2</Size></Object></Delete>",
        "<Delete><Object>" K "<LastModifiedTime>1</LastModifiedTime><LastModifiedTime>1"
        "</LastModifiedTime></Object></Delete>",
        "<Delete><Quiet>true</Quiet>" OBJECT "<Quiet>true</Quiet></Delete>",
        // attributes and name spaces
        "<Delete a=\"b\">" OBJECT "</Delete>",
        "<Delete><Object a=\"b\">" K "</Object></Delete>",
        "<Delete><Object><Key xml:space=\"preserve\">k</Key></Object></Delete>",
        "<Delete xmlns=\"urn:other\">" OBJECT "</Delete>",
        "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01\">" OBJECT "</Delete>",
        "<Delete " NS "><Object xmlns=\"\">" K "</Object></Delete>",
        "<Delete><Object " NS ">" K "</Object></Delete>",
        "<Delete " NS "><Object><Key xmlns=\"urn:x\">k</Key></Object></Delete>",
        "<s:Delete xmlns:s=\"http://s3.amazonaws.com/doc/2006-03-01/\">" OBJECT "</s:Delete>",
        "<Delete xmlns:s=\"urn:x\"><Object><s:Key>j</s:Key>" K "</Object></Delete>",
        "<Delete><Object><s:Key>k</s:Key></Object></Delete>",
        "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/|Delete\">" OBJECT "</Delete>",
        // comments and other things that are no elements
        "<Delete><Object><Key>vic<!-- -->tim</Key></Object></Delete>",
        "<Delete><!-- -->" OBJECT "</Delete>",
        "<!-- --><Delete>" OBJECT "</Delete>",
        "<Delete>" OBJECT "</Delete><!-- -->",
        "<Delete><Object><Key>vic<?x y?>tim</Key></Object></Delete>",
        "<?x y?><Delete>" OBJECT "</Delete>",
        "<Delete><Object><Key><![CDATA[victim]]></Key></Object></Delete>",
        "<Delete><![CDATA[ ]]>" OBJECT "</Delete>",
        "<Delete>text" OBJECT "</Delete>",
        "<Delete><Object>text" K "</Object></Delete>",
        "<Delete>&#65;" OBJECT "</Delete>",
        "<!DOCTYPE Delete><Delete>" OBJECT "</Delete>",
        "<!DOCTYPE Delete [<!ENTITY k 'k'>]><Delete><Object><Key>&k;</Key></Object></Delete>",
        "<!DOCTYPE Delete [<!ATTLIST Key a CDATA 'b'>]><Delete>" OBJECT "</Delete>",
        "<Delete><Object><Key>&k;</Key></Object></Delete>",
        // bytes
        "<Delete><Object><Key>&#1;</Key></Object></Delete>",
        "<Delete><Object><Key>\x01</Key></Object></Delete>",
        "<Delete><Object><Key>&#0;</Key></Object></Delete>",
        "<Delete><Object><Key>&#xFFFE;</Key></Object></Delete>",
        "<Delete><Object><Key>&#xD800;</Key></Object></Delete>",
        "<Delete><Object><Key>\xff</Key></Object></Delete>",
        "<Delete><Object><Key>\xc3</Key></Object></Delete>",
        "<Delete><Object><Key>\xc0\xaf</Key></Object></Delete>",
        "<Delete><Object><Key>\xed\xa0\x80</Key></Object></Delete>",
        "<?xml version='1.1'?><Delete>" OBJECT "</Delete>",
        "<?xml version='1.0' encoding='ISO-8859-1'?><Delete>" OBJECT "</Delete>",
        "<?xml version='1.0' encoding='UTF-16'?><Delete>" OBJECT "</Delete>",
        "<?xml version='1.0' encoding='US-ASCII'?><Delete>" OBJECT "</Delete>",
        " " HEAD "<Delete>" OBJECT "</Delete>",
        "<Delete>" OBJECT "</Delete>x",
        "<Delete>" OBJECT "</Delete><Delete>" OBJECT "</Delete>",
        "<Delete>" OBJECT "</Delete",
        // values
        "<Delete>" OBJECT "<Quiet>yes</Quiet></Delete>",
        "<Delete>" OBJECT "<Quiet> true</Quiet></Delete>",
        "<Delete>" OBJECT "<Quiet/></Delete>",
        "<Delete><Object>" K "<Size>-1</Size></Object></Delete>",
        "<Delete><Object>" K "<Size/></Object></Delete>",
    };
    struct arena *arena = arena_new(64 << 20);
    for (size_t i = 0; i < ARRAY_LEN(BAD); i++) {
        cr_assert_eq(read_span(arena, span_from_cstr(BAD[i])), ERR_MALFORMED_XML, "%s", BAD[i]);
    }
    // UTF-16, with its byte order mark and without, and a zero byte after the end.
    static const char GOOD[] = "<Delete>" OBJECT "</Delete>";
    char wide[2 * sizeof(GOOD)] = {'\xff', '\xfe'};
    for (size_t i = 0; i < sizeof(GOOD) - 1; i++) {
        wide[2 + 2 * i] = GOOD[i];
    }
    cr_assert_eq(read_span(arena, (struct span){wide, sizeof(wide)}), ERR_MALFORMED_XML);
    cr_assert_eq(read_span(arena, (struct span){wide + 2, sizeof(wide) - 2}), ERR_MALFORMED_XML);
    cr_assert_eq(read_span(arena, (struct span){GOOD, sizeof(GOOD)}), ERR_MALFORMED_XML);
    cr_assert_eq(read_span(arena, (struct span){GOOD, sizeof(GOOD) - 1}), ERR_OK);
    arena_free(arena);
}

Test(s3_xml_strict, deletes_are_bounded)
{
    struct arena *arena = arena_new(4 << 20);
    for (unsigned total = 1000; total <= 1001; total++) {
        struct buf b;
        buf_init(&b, 1 << 20);
        buf_append_cstr(&b, "<Delete>");
        for (unsigned i = 0; i < total; i++) {
            buf_printf(&b, "<Object><Key>k%u</Key></Object>", i);
        }
        buf_append_cstr(&b, "</Delete>");
        cr_assert_eq(read_span(arena, buf_span(&b)), total == 1000 ? ERR_OK : ERR_MALFORMED_XML);
        buf_done(&b);
    }
    for (unsigned len = 8192; len <= 8193; len++) {
        struct buf b;
        buf_init(&b, 1 << 20);
        buf_append_cstr(&b, "<Delete><Object><Key>");
        for (unsigned i = 0; i < len; i++) {
            buf_append_char(&b, 'k');
        }
        buf_append_cstr(&b, "</Key></Object></Delete>");
        cr_assert_eq(read_span(arena, buf_span(&b)), len == 8192 ? ERR_OK : ERR_MALFORMED_XML);
        buf_done(&b);
    }
    arena_free(arena);
}

Test(s3_xml_strict, a_tag_of_different_attributes_is_refused_before_they_take_much_memory)
{
    struct arena *arena = arena_new(4 << 20);
    struct buf b;
    buf_init(&b, S3_XML_BODY_MAX);
    buf_append_cstr(&b, "<Delete");
    for (unsigned i = 0; i < 200000; i++) {
        buf_printf(&b, " n%u='x'", i);
    }
    buf_append_cstr(&b, ">" OBJECT "</Delete>");
    cr_assert_eq(read_span(arena, buf_span(&b)), ERR_XML_TOO_LARGE);
    buf_done(&b);
    arena_free(arena);
}

// A restore names no place to write to.
Test(s3_xml_strict, restores)
{
    static const char *const BAD[] = {
        "<RestoreRequest><Type>SELECT</Type></RestoreRequest>",
        ("<RestoreRequest><Days>1</Days><OutputLocation><S3><BucketName>b</BucketName>"
         "<Prefix>p</Prefix></S3></OutputLocation></RestoreRequest>"),
        "<RestoreRequest><SelectParameters/></RestoreRequest>",
        "<RestoreRequest><Days>x</Days></RestoreRequest>",
        "<RestoreRequest><Days>1</Days><Days>2</Days></RestoreRequest>",
        "<Restore><Days>1</Days></Restore>",
    };
    struct arena *arena = arena_new(1 << 20);
    struct s3_restore restore;
    struct buf out;
    buf_init(&out, 1 << 16);
    cr_assert_eq(s3_restore_read(arena,
                                 SPAN("<RestoreRequest " NS "><Days>7</Days><Description>d&amp;"
                                      "</Description><GlacierJobParameters><Tier>Bulk</Tier>"
                                      "</GlacierJobParameters></RestoreRequest>"),
                                 &restore),
                 ERR_OK);
    s3_restore_render(&restore, &out);
    cr_assert_str_eq(buf_cstr(&out), HEAD "<RestoreRequest " NS "><Days>7</Days>"
                                          "<GlacierJobParameters><Tier>Bulk</Tier>"
                                          "</GlacierJobParameters><Description>d&amp;"
                                          "</Description></RestoreRequest>");
    buf_done(&out);
    for (size_t i = 0; i < ARRAY_LEN(BAD); i++) {
        cr_assert_eq(s3_restore_read(arena, span_from_cstr(BAD[i]), &restore), ERR_MALFORMED_XML,
                     "%s", BAD[i]);
    }
    arena_free(arena);
}
