// SPDX-License-Identifier: Apache-2.0
// Checksums equal the published check values, whatever the pieces they were fed in.
#include "s3/s3.h"

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
