// SPDX-License-Identifier: Apache-2.0
// Proves: the sizes in a listing are found however its bytes are cut, in either coding of keys.
// Incomplete entries are ignored.
#include "s3/s3.h"

#include <stdio.h>
#include <string.h>

#include "test.h"

static char found[6000];

static void on_entry(void *ctx, struct span key, uint64_t size_bytes)
{
    (void)ctx;
    size_t len = strlen(found);
    snprintf(found + len, sizeof(found) - len, "%.*s=%llu\n", (int)key.len, key.ptr,
             (unsigned long long)size_bytes);
}

// Feeds the document in steps of `step` bytes. Returns the entries found, as text.
static const char *scan(const char *document, bool is_encoded, size_t step)
{
    struct s3_list_scan s;
    struct span rest = span_from_cstr(document);
    found[0] = '\0';
    s3_list_scan_begin(&s, is_encoded);
    while (rest.len > 0) {
        struct span piece = {rest.ptr, rest.len < step ? rest.len : step};
        s3_list_scan_feed(&s, piece, on_entry, NULL);
        rest.ptr += piece.len;
        rest.len -= piece.len;
    }
    return found;
}

#define LISTING                                                                                    \
    "<?xml version=\"1.0\"?>\n<ListBucketResult "                                                  \
    "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"                                           \
    "<Name>b</Name><Prefix>Key</Prefix><KeyCount>3</KeyCount>"                                     \
    "<Contents><Key>a%2Fb+c&amp;d</Key><ETag>&quot;x&quot;</ETag><Size>12</Size>"                  \
    "<ChecksumAlgorithm>CRC32</ChecksumAlgorithm></Contents>\n"                                    \
    "<Contents><Size>0</Size><Owner><ID>1</ID></Owner><Key>e</Key></Contents>"                     \
    "<CommonPrefixes><Prefix>z/</Prefix></CommonPrefixes></ListBucketResult>"

Test(s3_list_scan, wherever_it_is_cut)
{
    for (size_t step = 1; step <= sizeof(LISTING); step++) {
        cr_assert_str_eq(scan(LISTING, false, step), "a%2Fb+c&d=12\ne=0\n", "step %zu", step);
    }
    cr_assert_str_eq(scan("<Contents><Key>a%2Fb+c%26d</Key><Size>12</Size></Contents>", true, 1),
                     "a/b c&d=12\n");
}

Test(s3_list_scan, an_incomplete_entry_is_no_entry)
{
    static const char *const DOCUMENTS[] = {
        "<Contents><Key>a</Key></Contents>",
        "<Contents><Size>1</Size></Contents>",
        "<Contents><Key>a</Key><Size>1</Size>",
        "<Contents><Key>a</Key><Size>x</Size></Contents>",
        "<Contents><Key>a</Key><Size></Size></Contents>",
        "<Contents><Key>a<b/></Key><Size>1</Size></Contents>",
        "<Contents><Key>a&#65</Key><Size>1</Size></Contents>",
        "<Contents><Key>a</Key></Contents><Contents><Size>1</Size></Contents>",
        "<Contents><Key>a</Key><Size>99999999999999999999999</Size></Contents>",
        "Contents><Key>a</Key><Size>1</Size></Contents",
        "<<Contents>>",
        "<Key>",
    };
    for (size_t i = 0; i < ARRAY_LEN(DOCUMENTS); i++) {
        cr_assert_str_eq(scan(DOCUMENTS[i], false, 3), "", "document %zu", i);
    }
    cr_assert_str_eq(scan("<Contents><Key>%zz</Key><Size>1</Size></Contents>", true, 3), "");
}

// One that is too long is left out, those after it are not.
Test(s3_list_scan, names_of_any_length)
{
    static char name[6000], document[20000];
    for (size_t len = 1000; len < 5000; len += 200) {
        memset(name, 'k', len);
        name[len] = '\0';
        snprintf(document, sizeof(document),
                 "<Contents><Key>%s</Key><Size>7</Size></Contents><%s>"
                 "<Contents><Key>b</Key><Size>8</Size></Contents>",
                 name, name);
        const char *got = scan(document, false, 100);
        cr_assert(span_ends_with(span_from_cstr(got), SPAN("b=8\n")), "length %zu", len);
    }
}
