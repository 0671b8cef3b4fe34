// SPDX-License-Identifier: Apache-2.0
// Proves: checksum headers are unpacked unchanged from their short packed form, and no other bytes
// are ever rendered as a header.
#include "s3/s3.h"

#include <stdio.h>
#include <string.h>

#include "test.h"

static char text[S3_SUMS_TEXT_MAX];

static struct span again(const char *lines, size_t *ret_len)
{
    uint8_t packed[S3_SUMS_MAX];
    *ret_len = s3_sums_pack(span_from_cstr(lines), packed);
    return s3_sums_render((struct span){(char *)packed, *ret_len}, text);
}

Test(s3_sums, lines_of_every_kind_come_back_as_they_were)
{
    static const struct {
        const char *lines;
        size_t len;
    } rows[] = {
        {"x-amz-checksum-crc32: yZRlqg==\r\n", 5},
        {"x-amz-checksum-crc32c: 4waSgw==\r\nx-amz-checksum-type: FULL_OBJECT\r\n", 6},
        {"x-amz-checksum-type: FULL_OBJECT\r\nx-amz-checksum-crc64nvme: rosUhgp5mIg=\r\n", 10},
        {"x-amz-checksum-sha1: 98rxT+0R2ZpPGwXCgQRzVU4ZwUo=\r\n", 21},
        {"x-amz-checksum-sha256: FeKwLLeLmz14KpfMnAXVSHqc0ZtXfHwtGnoFHfTXzJQ=-10000\r\n"
         "x-amz-checksum-type: COMPOSITE\r\n",
         36},
        {"x-amz-checksum-sha256: FeKwLLeLmz14KpfMnAXVSHqc0ZtXfHwtGnoFHfTXzJQ=\r\n"
         "x-amz-checksum-crc64nvme: rosUhgp5mIg=\r\nx-amz-checksum-type: FULL_OBJECT\r\n",
         43},
        {"x-amz-checksum-xxhash3: AAAAAAAAAAA=\r\n", 9},
        {"x-amz-checksum-none: -\r\n", 1},
        // A value in a form that no encoder writes stays text.
        {"x-amz-checksum-crc32: yZRlqh==\r\n", 17},
        {"x-amz-checksum-crc32: yZRlqg==-0\r\n", 19},
        {"x-amz-checksum-crc32: yZRlqg==-70000\r\n", 23},
        {"x-amz-checksum-new: short\r\n", 12},
        {"x-amz-checksum-crc32: !!!!!!==\r\n", 17},
    };
    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        size_t len;
        struct span back = again(rows[i].lines, &len);
        cr_assert(span_equal_cstr(back, rows[i].lines), "%u: %.*s", i, (int)back.len, back.ptr);
        cr_assert_eq(len, rows[i].len, "%u: %zu bytes", i, len);
    }
}

#define SHA512                                                                                     \
    "x-amz-checksum-sha512: "                                                                      \
    "z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvU"                       \
    "dBeoGlODJ6+SfaPg=="

Test(s3_sums, the_longest_digest_fits_with_its_parts_and_its_type)
{
    static const char lines[] = SHA512 "-10000\r\nx-amz-checksum-type: COMPOSITE\r\n";
    size_t len;
    cr_assert(span_equal_cstr(again(lines, &len), lines));
    cr_assert_eq(len, 68);
}

// Never only some of the checksums, which a client would take for all, and never "none".
Test(s3_sums, checksums_that_do_not_fit_are_too_long_and_a_type_alone_says_nothing)
{
    static const char *const rows[] = {
        SHA512 "\r\nx-amz-checksum-sha1: 98rxT+0R2ZpPGwXCgQRzVU4ZwUo=\r\n",
        "x-amz-checksum-sha1: 98rxT+0R2ZpPGwXCgQRzVU4ZwUo=\r\n" SHA512 "\r\n",
        "x-amz-checksum-new: " SHA512 "\r\n",
        "x-amz-checksum-new: " SHA512 SHA512 SHA512 "\r\nx-amz-checksum-crc32: yZRlqg==\r\n",
    };
    size_t len;
    uint8_t packed[S3_SUMS_MAX];
    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        cr_assert_eq(again(rows[i], &len).len, 0, "%u", i);
        cr_assert_eq(s3_sums_pack(span_from_cstr(rows[i]), packed), 1);
        cr_assert(s3_sums_are_too_long((struct span){(char *)packed, 1}));
        cr_assert(!s3_sums_has_none((struct span){(char *)packed, 1}));
    }
    cr_assert(span_equal_cstr(again("x-amz-checksum-type: FULL_OBJECT\r\n", &len),
                              "x-amz-checksum-none: -\r\n"));
    cr_assert_eq(len, 1);
    cr_assert(span_equal_cstr(again("ETag: \"x\"\r\n", &len), "x-amz-checksum-none: -\r\n"));
    cr_assert_eq(again("", &len).len, 0);
    cr_assert_eq(len, 0);
}

Test(s3_sums, no_checksum_differs_from_checksums_kept_elsewhere)
{
    uint8_t packed[S3_SUMS_MAX];
    size_t len = s3_sums_pack(SPAN("x-amz-checksum-none: -\r\n"), packed);
    cr_assert(s3_sums_has_none((struct span){(char *)packed, len}));
    packed[0] = S3_SUMS_ELSEWHERE;
    cr_assert(!s3_sums_has_none((struct span){(char *)packed, 1}));
    cr_assert_eq(s3_sums_render((struct span){(char *)packed, 1}, text).len, 0);
}

// Each byte in turn takes any value: the rendered text is whole lines with our prefix, or nothing.
Test(s3_sums, damaged_bytes_render_no_other_header)
{
    uint64_t random = 1;
    for (unsigned i = 0; i < 200000; i++) {
        uint8_t packed[S3_SUMS_MAX];
        for (unsigned j = 0; j < sizeof(packed); j++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            packed[j] = (uint8_t)(random >> 40);
            packed[j] = j % 3 == 0 ? packed[j] & 0x1f : packed[j];
        }
        struct span lines = {(char *)packed, 1 + (random >> 33) % S3_SUMS_MAX}, line;
        lines = s3_sums_render(lines, text);
        while (lines.len > 0 && span_split(&lines, '\n', &line)) {
            cr_assert(span_starts_with(line, SPAN("x-amz-checksum-")));
            cr_assert(span_ends_with(line, SPAN("\r")));
            line.len--;
            cr_assert_eq(span_find(line, '\r'), line.len);
        }
    }
}
