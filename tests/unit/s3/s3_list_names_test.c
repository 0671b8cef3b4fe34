// SPDX-License-Identifier: Apache-2.0
// Proves: every name in a listing is judged, in either coding, however its bytes are cut. No byte
// of a forbidden name is passed on. A listing that is not XML in UTF-8 is refused as unreadable.
#include "s3/s3.h"

#include <stdio.h>
#include <string.h>

#include "test.h"

static unsigned shown;
static bool is_unreadable;             // the last document
static const struct s3_request *asked; // NULL: nothing is known of the request

static bool may_show(void *ctx, struct span name)
{
    bool may = span_starts_with(name, span_from_cstr(ctx));
    shown += may;
    return may;
}

// Feeds the document in steps of `step` bytes. Returns the number of bytes that may be sent: all,
// if every name may be shown.
static size_t judged_span(struct span rest, bool is_encoded, size_t step)
{
    static struct s3_list_names names;
    static char prefix[] = "m/\xc3\xa9 ";
    size_t fed = 0;
    shown = 0;
    is_unreadable = false;
    s3_list_names_begin(&names, asked, is_encoded);
    while (rest.len > 0) {
        struct span piece = {rest.ptr, rest.len < step ? rest.len : step};
        if (!s3_list_names_feed(&names, piece, may_show, prefix)) {
            is_unreadable = names.is_unreadable;
            return fed < names.pending_bytes ? 0 : fed - names.pending_bytes;
        }
        fed += piece.len;
        rest.ptr += piece.len;
        rest.len -= piece.len;
    }
    return fed - names.pending_bytes;
}

static size_t judged(const char *document, bool is_encoded, size_t step)
{
    return judged_span(span_from_cstr(document), is_encoded, step);
}

#define HEAD                                                                                       \
    "<?xml "                                                                                       \
    "version=\"1.0\"?><ListBucketResult><Name>other</Name><Prefix/><NextMarker></NextMarker>"      \
    "<Contents><Key>m/\xc3\xa9 a</Key><Size>1</Size></Contents>"

Test(s3_list_names, wherever_they_are_cut)
{
    static const char *const GOOD[] = {"m/&#xE9; ", "m/&#233; &lt;&gt;&amp;&quot;&apos;",
                                       "m/\xc3\xa9 %zz", "m&#47;\xc3\xa9 "};
    static const char *const BAD[] = {
        "m/\xc3\xa9", "",         "m/&#xE9; &nbsp;", "m/&#xE9; &#x110000;", "m/&#xE9; <i/>",
        "m/%C3%A9+",  "m/&#xE9 ", "m/&#; ",          "<![CDATA[m/]]>"};
    char document[1000];
    for (size_t step = 1; step < 200; step++) {
        for (size_t i = 0; i < ARRAY_LEN(GOOD); i++) {
            snprintf(document, sizeof(document), HEAD "<Version><Key>%s</Key></Version></L>",
                     GOOD[i]);
            cr_assert_eq(judged(document, false, step), strlen(document), "%s step %zu", GOOD[i],
                         step);
            cr_assert_eq(shown, 2);
        }
        for (size_t i = 0; i < ARRAY_LEN(BAD); i++) {
            snprintf(document, sizeof(document),
                     HEAD "<CommonPrefixes><Prefix>%s</Prefix></CommonPrefixes></L>", BAD[i]);
            size_t behind = strlen(HEAD "<CommonPrefixes><Prefix>");
            cr_assert_leq(judged(document, false, step), behind, "%s step %zu", BAD[i], step);
            cr_assert_eq(shown, 1);
        }
    }
}

Test(s3_list_names, in_either_coding)
{
    const char *encoded = "<Key>m%2F%C3%A9+b</Key><CommonPrefixes><Prefix>m/%c3%a9%20</Prefix>";
    cr_assert_eq(judged(encoded, true, 1), strlen(encoded));
    cr_assert_leq(judged(encoded, false, 1), strlen("<Key>"));
    const char *plain =
        "<Key>m/\xc3\xa9 100%+</Key>"; // an origin that does not heed what was asked for
    cr_assert_eq(judged(plain, true, 1), strlen(plain));
}

// A name may be as long as references can make a key, and no longer. A longer one stops the reply.
Test(s3_list_names, names_of_any_length)
{
    static char document[6 * S3_KEY_MAX + 100];
    size_t len = (size_t)snprintf(document, sizeof(document), "<Key>m/\xc3\xa9 ");
    memset(document + len, 'k', 6 * S3_KEY_MAX - 5);
    size_t end = len + 6 * S3_KEY_MAX - 5;
    memcpy(document + end, "</Key>", sizeof("</Key>"));
    cr_assert_eq(judged(document, false, 100), end + 6);
    memcpy(document + end, "k</Key>", sizeof("k</Key>"));
    cr_assert_leq(judged(document, false, 100), strlen("<Key>"));
}

// Positions and echoes of the request are judged like keys, but values from the request itself may
// be repeated.
Test(s3_list_names, positions_and_echoes)
{
    static struct s3_request r;
    struct arena *arena = arena_new(1 << 20);
    struct headers headers = {0};
    cr_assert_eq(s3_request_parse(arena, SPAN("GET"), SPAN("127.0.0.1"),
                                  SPAN("/b?list-type=2&prefix=z%2F&start-after=z%20a&marker=zz&"
                                       "continuation-token=z.1&key-marker=z/k"),
                                  &headers, NULL, &r),
                 ERR_OK);
    static const char *const GOOD[] = {
        "<NextMarker>m/\xc3\xa9 k</NextMarker>",
        "<NextKeyMarker/>",
        "<NextKeyMarker></NextKeyMarker>",
        "<Prefix>z/</Prefix>",
        "<Marker>zz</Marker>",
        "<Marker>m/%C3%A9+k</Marker>",
        "<StartAfter>z+a</StartAfter>",
        "<KeyMarker>z%2Fk</KeyMarker>",
        "<ContinuationToken>z.1</ContinuationToken>",
        "<NextContinuationToken>1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=</"
        "NextContinuationToken>",
        "<NextContinuationToken>550e8400-e29b-41d4-a716-446655440000</NextContinuationToken>",
        "<NextContinuationToken>m/\xc3\xa9 k.txt</NextContinuationToken>",
        "<s3:Key xml:space='preserve'>m/\xc3\xa9 k</s3:Key >"};
    static const char *const BAD[] = {"<NextMarker>theirs</NextMarker>",
                                      "<NextKeyMarker>zz</NextKeyMarker>",
                                      "<Prefix>zz</Prefix>",
                                      "<Marker>z/</Marker>",
                                      "<StartAfter>m</StartAfter>",
                                      "<KeyMarker>other/k</KeyMarker>",
                                      "<ContinuationToken>z.2</ContinuationToken>",
                                      "<NextContinuationToken>theirs/key</NextContinuationToken>",
                                      "<NextContinuationToken>theirs.txt</NextContinuationToken>",
                                      "<Key a='b'>theirs</Key>",
                                      "<s3:Key>theirs</s3:Key>",
                                      "<CommonPrefixes><Prefix>z/</Prefix></CommonPrefixes>"};
    asked = &r;
    for (size_t step = 1; step < 50; step++) {
        for (size_t i = 0; i < ARRAY_LEN(GOOD); i++) {
            cr_assert_eq(judged(GOOD[i], true, step), strlen(GOOD[i]), "%s step %zu", GOOD[i],
                         step);
        }
        for (size_t i = 0; i < ARRAY_LEN(BAD); i++) {
            cr_assert_lt(judged(BAD[i], true, step), strlen(BAD[i]), "%s step %zu", BAD[i], step);
        }
    }
    asked = NULL;
    arena_free(arena);
}

// Writes `text` with each character as `unit` bytes. Returns its length.
static size_t widen(const char *text, size_t unit, bool is_big_endian, char *out)
{
    size_t len = strlen(text);
    memset(out, 0, len * unit);
    for (size_t i = 0; i < len; i++) {
        out[i * unit + (is_big_endian ? unit - 1 : 0)] = text[i];
    }
    return len * unit;
}

Test(s3_list_names, lists_that_are_not_xml_in_utf8_are_unreadable)
{
#define NAMED "<L><Contents><Key>theirs/a</Key></Contents></L>"
    static const char *const BAD[] = {
        "\x1f\x8b\x08theirs/a",
        "{\"Key\": \"theirs/a\"}",
        "\xff\xfe" NAMED,
        "+ADw-L+AD4-theirs/a",
        "<?xml version='1.0' encoding='UTF-16'?>" NAMED,
        "<?xml version=\"1.0\"\n encoding = \"ISO-8859-1\"?>" NAMED,
        "<?xml version=\"1.0\" encoding=\"IBM037\"?>" NAMED,
        "<!DOCTYPE L [<!ENTITY e \"&#60;Key>theirs/a&#60;/Key>\">]><L>&e;</L>",
        "<aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa:Key>theirs/a"};
    static const char *const GOOD[] = {
        "", " \r\n\t<L></L>", "\xef\xbb\xbf<?xml version='1.0' encoding='utf-8'?><L/>",
        "<?xml version=\"1.0\" encoding=\"US-ASCII\" standalone='yes'?><L/>",
        "<?xml version=\"1.0\"?><?xml-stylesheet href='s.xsl'?><L/>"};
    static char wide[4 * sizeof(NAMED)];
    for (size_t step = 1; step < 300; step += step < 10 ? 1 : 97) {
        for (size_t i = 0; i < ARRAY_LEN(BAD); i++) {
            size_t least = strlen(BAD[i]) - strlen("theirs/a");
            cr_assert_leq(judged(BAD[i], false, step), least, "%s step %zu", BAD[i], step);
            cr_assert(is_unreadable, "%s step %zu", BAD[i], step);
        }
        for (size_t i = 0; i < ARRAY_LEN(GOOD); i++) {
            cr_assert_eq(judged(GOOD[i], false, step), strlen(GOOD[i]), "%s", GOOD[i]);
        }
        for (unsigned form = 0; form < 4; form++) {
            size_t unit = form < 2 ? 2 : 4;
            struct span coded = {wide, widen(NAMED, unit, form % 2 == 0, wide)};
            cr_assert_lt(judged_span(coded, false, step), unit, "form %u step %zu", form, step);
            cr_assert(is_unreadable);
        }
    }
}

Test(s3_list_names, a_tag_of_any_length_is_known_by_its_beginning)
{
    static char document[1000];
    snprintf(document, sizeof(document), "<L><Key a='%0300d'>theirs/a</Key></L>", 0);
    for (size_t step = 1; step < sizeof(document); step += step < 10 ? 1 : 97) {
        cr_assert_lt(judged(document, false, step), strlen(document) - 15, "step %zu", step);
        cr_assert(!is_unreadable);
    }
}
