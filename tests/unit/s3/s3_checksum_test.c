// SPDX-License-Identifier: Apache-2.0
// Checksums equal the published check values, whatever the pieces they were fed in.
#include "s3/s3.h"

#include <openssl/evp.h>

#include <stdio.h>
#include <string.h>

#include "test.h"

static const char *checksum(enum s3_checksum kind, struct span data, size_t step)
{
    static char base64[64];
    struct s3_checksum_state *s = s3_checksum_new(kind);
    while (data.len > 0) {
        size_t len = data.len < step ? data.len : step;
        s3_checksum_update(s, (struct span){data.ptr, len});
        data.ptr += len;
        data.len -= len;
    }
    s3_checksum_final(s, base64);
    s3_checksum_free(s);
    return base64;
}

Test(s3_checksum, check_values)
{
    static const struct {
        enum s3_checksum kind;
        const char *value, *value_of_nothing;
    } ROWS[] = {
        {S3_CHECKSUM_CRC32, "y/Q5Jg==", "AAAAAA=="},
        {S3_CHECKSUM_CRC32C, "4waSgw==", "AAAAAA=="},
        {S3_CHECKSUM_CRC64NVME, "rosUhgp5mIg=", "AAAAAAAAAAA="},
        {S3_CHECKSUM_SHA1, "98O8HYCOBHMq32eZZczDTKeuNEE=", "2jmj7l5rSw0yVb/vlWAYkK/YBwk="},
        {S3_CHECKSUM_SHA256, "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=",
         "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="},
        {S3_CHECKSUM_MD5, "JfnnlDI7RTiF9RgfG2JNCw==", "1B2M2Y8AsgTpgAmY7PhCfg=="},
        {S3_CHECKSUM_NONE, "", ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        for (size_t step = 1; step <= 9; step++) {
            cr_assert_str_eq(checksum(ROWS[i].kind, SPAN("123456789"), step), ROWS[i].value);
        }
        cr_assert_str_eq(checksum(ROWS[i].kind, SPAN(""), 1), ROWS[i].value_of_nothing);
    }
}

// Bit by bit, as it is defined.
static uint64_t crc64_by_definition(const char *bytes, size_t len)
{
    uint64_t crc = ~0ull;
    for (size_t i = 0; i < len; i++) {
        crc ^= (uint8_t)bytes[i];
        for (unsigned bit = 0; bit < 8; bit++) {
            crc = (crc & 1) != 0 ? crc >> 1 ^ 0x9a6c9329ac4bc9b5ull : crc >> 1;
        }
    }
    return ~crc;
}

Test(s3_checksum, crc64_is_the_same_whatever_it_is_computed_with)
{
    static char data[1200];
    for (size_t i = 0; i < sizeof(data); i++) {
        data[i] = (char)(i * 167 + i / 5);
    }
    for (size_t len = 0; len <= 700; len++) {
        for (size_t at = 0; at < 3; at++) {
            uint64_t crc = crc64_by_definition(data + at, len);
            char want[16];
            uint8_t bytes[8];
            for (unsigned i = 0; i < 8; i++) {
                bytes[i] = (uint8_t)(crc >> (56 - 8 * i));
            }
            (void)EVP_EncodeBlock((unsigned char *)want, bytes, 8);
            struct span all = {data + at, len};
            cr_assert_str_eq(checksum(S3_CHECKSUM_CRC64NVME, all, 1 + len), want, "%zu", len);
            cr_assert_str_eq(checksum(S3_CHECKSUM_CRC64NVME, all, 63), want, "%zu", len);
            cr_assert_str_eq(checksum(S3_CHECKSUM_CRC64NVME, all, 129), want, "%zu", len);
        }
    }
}

static struct s3_checksum_state *sum_of(enum s3_checksum kind, const char *bytes, size_t len)
{
    struct s3_checksum_state *s = s3_checksum_new(kind);
    s3_checksum_update(s, (struct span){bytes, len});
    return s;
}

Test(s3_checksum, sums_of_pieces_make_the_sum_of_the_whole)
{
    static char data[70001];
    static const size_t CUTS[] = {0, 1, 2, 8, 255, 4096, 65536, 70000, 70001};
    for (size_t i = 0; i < sizeof(data); i++) {
        data[i] = (char)(i * 131 + i / 7);
    }
    for (int k = S3_CHECKSUM_CRC32; k <= S3_CHECKSUM_CRC64NVME; k++) {
        enum s3_checksum kind = (enum s3_checksum)k;
        char whole[64], joined[64];
        snprintf(whole, sizeof(whole), "%s",
                 checksum(kind, (struct span){data, sizeof(data)}, sizeof(data)));
        cr_assert(s3_checksum_combines(kind));
        for (size_t c = 0; c < ARRAY_LEN(CUTS); c++) {
            size_t cut = CUTS[c];
            struct s3_checksum_state *left = sum_of(kind, data, cut);
            struct s3_checksum_state *right = sum_of(kind, data + cut, sizeof(data) - cut);
            s3_checksum_append(left, right, sizeof(data) - cut);
            s3_checksum_final(left, joined);
            cr_assert_str_eq(joined, whole, "kind %d, cut at %zu", k, cut);
            s3_checksum_free(left);
            s3_checksum_free(right);
        }
    }
    cr_assert_not(s3_checksum_combines(S3_CHECKSUM_SHA256));
}

Test(s3_checksum, pieces_do_not_matter_in_longer_data)
{
    static char data[10007];
    for (size_t i = 0; i < sizeof(data); i++) {
        data[i] = (char)(i * 131 + i / 7);
    }
    for (int kind = S3_CHECKSUM_CRC32; kind <= S3_CHECKSUM_MD5; kind++) {
        char whole[64];
        struct span span = {data, sizeof(data)};
        snprintf(whole, sizeof(whole), "%s", checksum((enum s3_checksum)kind, span, sizeof(data)));
        cr_assert_str_eq(checksum((enum s3_checksum)kind, span, 13), whole);
    }
}

Test(s3_checksum, names)
{
    cr_assert_eq(s3_checksum_from_name(SPAN("X-Amz-Checksum-CRC64NVME")), S3_CHECKSUM_CRC64NVME);
    cr_assert_eq(s3_checksum_from_name(SPAN("x-amz-checksum-crc32")), S3_CHECKSUM_CRC32);
    cr_assert_eq(s3_checksum_from_name(SPAN("x-amz-checksum-xxhash64")), S3_CHECKSUM_NONE);
}
