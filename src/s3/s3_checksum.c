// SPDX-License-Identifier: Apache-2.0
// The checksums that S3 clients send and ask for, computed while bytes pass. ISA-L computes CRC32
// and CRC32C, and OpenSSL computes SHA and MD5. This file computes CRC64NVME (polynomial
// AD93D23594C93659, reflected, all ones in and out), because older versions of ISA-L lack it. With
// carry-less multiplication in the CPU it takes 64 bytes at a time, otherwise eight bytes at a time
// from tables. Any thread; a state belongs to one thread.
#include "s3/s3.h"

#include <isa-l/crc.h>
#include <openssl/evp.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define CRC64NVME_REFLECTED 0x9a6c9329ac4bc9b5ull

struct s3_checksum_state {
    enum s3_checksum kind;
    uint32_t crc32;
    uint64_t crc64;
    EVP_MD_CTX *digest; // for SHA-1, SHA-256 and MD5, else NULL
};

static uint64_t crc64_table[8][256];
static pthread_once_t crc64_once = PTHREAD_ONCE_INIT;

static void crc64_tables_init(void)
{
    for (unsigned i = 0; i < 256; i++) {
        uint64_t crc = i;
        for (unsigned bit = 0; bit < 8; bit++) {
            crc = (crc & 1) != 0 ? crc >> 1 ^ CRC64NVME_REFLECTED : crc >> 1;
        }
        crc64_table[0][i] = crc;
    }
    for (unsigned i = 0; i < 256; i++) {
        for (unsigned row = 1; row < 8; row++) {
            uint64_t before = crc64_table[row - 1][i];
            crc64_table[row][i] = crc64_table[0][before & 0xff] ^ before >> 8;
        }
    }
}

static uint64_t crc64_table_update(uint64_t crc, const uint8_t *bytes, size_t len)
{
    while (len >= 8) {
        uint64_t word = 0;
        for (unsigned i = 0; i < 8; i++) {
            word |= (uint64_t)bytes[i] << (8 * i);
        }
        crc ^= word;
        crc = crc64_table[7][crc & 0xff] ^ crc64_table[6][crc >> 8 & 0xff] ^
              crc64_table[5][crc >> 16 & 0xff] ^ crc64_table[4][crc >> 24 & 0xff] ^
              crc64_table[3][crc >> 32 & 0xff] ^ crc64_table[2][crc >> 40 & 0xff] ^
              crc64_table[1][crc >> 48 & 0xff] ^ crc64_table[0][crc >> 56];
        bytes += 8;
        len -= 8;
    }
    for (size_t i = 0; i < len; i++) {
        crc = crc64_table[0][(crc ^ bytes[i]) & 0xff] ^ crc >> 8;
    }
    return crc;
}

#ifdef __x86_64__
#include <immintrin.h>

#define FOLD_LANES 4u
#define FOLD_BYTES (FOLD_LANES * sizeof(__m128i))

// Returns x^n modulo the CRC's polynomial, reflected.
static uint64_t crc64_power(unsigned n)
{
    uint64_t power = 1ull << 63;
    for (unsigned i = 0; i < n; i++) {
        power = (power & 1) != 0 ? power >> 1 ^ CRC64NVME_REFLECTED : power >> 1;
    }
    return power;
}

// Factors that move a lane (128 bits of input) forward by 128 bits or by 512 bits. [0] is for the
// lane's low half, which has the higher terms, [1] for the high half. The exponents are one lower
// than the distance, because the product of two reflected numbers is shifted by one place.
static uint64_t fold_by_1[2], fold_by_4[2];

static void crc64_folds_init(void)
{
    fold_by_1[0] = crc64_power(128 + 63);
    fold_by_1[1] = crc64_power(128 - 1);
    fold_by_4[0] = crc64_power(512 + 63);
    fold_by_4[1] = crc64_power(512 - 1);
}

__attribute__((target("pclmul,sse4.1"))) static __m128i fold(__m128i lane, __m128i by, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(lane, by, 0x00);
    __m128i high = _mm_clmulepi64_si128(lane, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

__attribute__((target("pclmul,sse4.1"))) static uint64_t
crc64_fold(uint64_t crc, const uint8_t *bytes, size_t len)
{
    const __m128i *at = (const __m128i *)(const void *)bytes;
    const __m128i by_4 = _mm_set_epi64x((long long)fold_by_4[1], (long long)fold_by_4[0]);
    const __m128i by_1 = _mm_set_epi64x((long long)fold_by_1[1], (long long)fold_by_1[0]);
    __m128i lanes[FOLD_LANES];
    for (unsigned i = 0; i < FOLD_LANES; i++) {
        lanes[i] = _mm_loadu_si128(at + i);
    }
    lanes[0] = _mm_xor_si128(lanes[0], _mm_set_epi64x(0, (long long)crc));
    for (size_t left = len / FOLD_BYTES - 1; left > 0; left--) {
        at += FOLD_LANES;
        for (unsigned i = 0; i < FOLD_LANES; i++) {
            lanes[i] = fold(lanes[i], by_4, _mm_loadu_si128(at + i));
        }
    }
    for (unsigned i = 1; i < FOLD_LANES; i++) {
        lanes[i] = fold(lanes[i - 1], by_1, lanes[i]);
    }
    uint8_t rest[sizeof(__m128i)]; // the CRC of these bytes is that of all bytes so far
    _mm_storeu_si128((__m128i *)(void *)rest, lanes[FOLD_LANES - 1]);
    return crc64_table_update(0, rest, sizeof(rest));
}

static uint64_t crc64_update(uint64_t crc, const uint8_t *bytes, size_t len)
{
    size_t folded = len / FOLD_BYTES * FOLD_BYTES;
    if (folded > 0 && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1")) {
        crc = crc64_fold(crc, bytes, folded);
        bytes += folded;
        len -= folded;
    }
    return crc64_table_update(crc, bytes, len);
}
#else
static void crc64_folds_init(void)
{
}

static uint64_t crc64_update(uint64_t crc, const uint8_t *bytes, size_t len)
{
    return crc64_table_update(crc, bytes, len);
}
#endif

static void crc64_init(void)
{
    crc64_tables_init();
    crc64_folds_init();
}

enum s3_checksum s3_checksum_from_name(struct span header_name)
{
    static const struct {
        const char *name;
        enum s3_checksum kind;
    } ROWS[] = {
        {"x-amz-checksum-crc32", S3_CHECKSUM_CRC32},
        {"x-amz-checksum-crc32c", S3_CHECKSUM_CRC32C},
        {"x-amz-checksum-crc64nvme", S3_CHECKSUM_CRC64NVME},
        {"x-amz-checksum-sha1", S3_CHECKSUM_SHA1},
        {"x-amz-checksum-sha256", S3_CHECKSUM_SHA256},
        {"x-amz-checksum-md5", S3_CHECKSUM_MD5},
        {"content-md5", S3_CHECKSUM_MD5},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        if (span_equal_nocase(header_name, span_from_cstr(ROWS[i].name))) {
            return ROWS[i].kind;
        }
    }
    return S3_CHECKSUM_NONE;
}

static EVP_MD_CTX *digest_new(const EVP_MD *md)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    check(ctx != NULL);
    check(EVP_DigestInit_ex(ctx, md, NULL) == 1);
    return ctx;
}

struct s3_checksum_state *s3_checksum_new(enum s3_checksum kind)
{
    struct s3_checksum_state *s = calloc(1, sizeof(*s));
    check(s != NULL);
    s->kind = kind;
    switch (kind) {
    case S3_CHECKSUM_CRC64NVME:
        check(pthread_once(&crc64_once, crc64_init) == 0);
        s->crc64 = ~0ull;
        break;
    case S3_CHECKSUM_CRC32C:
        s->crc32 = 0xffffffff;
        break;
    case S3_CHECKSUM_SHA1:
        s->digest = digest_new(EVP_sha1());
        break;
    case S3_CHECKSUM_SHA256:
        s->digest = digest_new(EVP_sha256());
        break;
    case S3_CHECKSUM_MD5:
        s->digest = digest_new(EVP_md5());
        break;
    case S3_CHECKSUM_CRC32:
    case S3_CHECKSUM_NONE:
        break;
    }
    return s;
}

void s3_checksum_free(struct s3_checksum_state *s)
{
    if (s == NULL) {
        return;
    }
    EVP_MD_CTX_free(s->digest);
    free(s);
}

void s3_checksum_update(struct s3_checksum_state *s, struct span data)
{
    // Work in steps, because crc32_iscsi() takes the length as int. It also takes a pointer without
    // const, though it only reads.
    while (data.len > 0) {
        size_t step = data.len < 1u << 30 ? data.len : 1u << 30;
        switch (s->kind) {
        case S3_CHECKSUM_CRC32:
            s->crc32 = crc32_gzip_refl(s->crc32, (const unsigned char *)data.ptr, step);
            break;
        case S3_CHECKSUM_CRC32C: {
            unsigned char *bytes;
            memcpy(&bytes, &data.ptr, sizeof(bytes));
            s->crc32 = crc32_iscsi(bytes, (int)step, s->crc32);
            break;
        }
        case S3_CHECKSUM_CRC64NVME:
            s->crc64 = crc64_update(s->crc64, (const uint8_t *)data.ptr, step);
            break;
        case S3_CHECKSUM_SHA1:
        case S3_CHECKSUM_SHA256:
        case S3_CHECKSUM_MD5:
            check(EVP_DigestUpdate(s->digest, data.ptr, step) == 1);
            break;
        case S3_CHECKSUM_NONE:
            break;
        }
        data.ptr += step;
        data.len -= step;
    }
}

// --- CRCs of pieces ------------------------------------------------------------------------------

// A CRC with reflected bits that starts with all ones and is inverted at the end. The inverted
// value is a polynomial over GF(2), with x^0 in the highest bit. Appending n bytes multiplies it by
// x^(8n) modulo the CRC's polynomial, and adds the CRC of those bytes.
struct crc_field {
    unsigned width;
    uint64_t modulus; // the CRC's polynomial, reflected, without the highest term
};

static uint64_t field_multiply(const struct crc_field *field, uint64_t a, uint64_t b)
{
    uint64_t product = 0;
    for (unsigned i = 0; i < field->width; i++) {
        product ^= (a >> (field->width - 1 - i) & 1) != 0 ? b : 0;
        b = (b & 1) != 0 ? b >> 1 ^ field->modulus : b >> 1;
    }
    return product;
}

static uint64_t crc_behind(const struct crc_field *field, uint64_t crc, uint64_t len)
{
    uint64_t power = 1ull << (field->width - 1 - 8); // x^8, squared for each bit of `len`
    for (; len > 0; len >>= 1) {
        if ((len & 1) != 0) {
            crc = field_multiply(field, crc, power);
        }
        power = field_multiply(field, power, power);
    }
    return crc;
}

bool s3_checksum_combines(enum s3_checksum kind)
{
    return kind == S3_CHECKSUM_CRC32 || kind == S3_CHECKSUM_CRC32C || kind == S3_CHECKSUM_CRC64NVME;
}

void s3_checksum_append(struct s3_checksum_state *s, const struct s3_checksum_state *next,
                        uint64_t next_len)
{
    static const struct crc_field CRC32 = {32, 0xedb88320}, CRC32C = {32, 0x82f63b78},
                                  CRC64NVME = {64, CRC64NVME_REFLECTED};
    check(s->kind == next->kind && s3_checksum_combines(s->kind));
    switch (s->kind) {
    case S3_CHECKSUM_CRC32:
        s->crc32 = (uint32_t)crc_behind(&CRC32, s->crc32, next_len) ^ next->crc32;
        break;
    case S3_CHECKSUM_CRC32C: // the state is the bitwise complement of the CRC
        s->crc32 = ~((uint32_t)crc_behind(&CRC32C, ~s->crc32, next_len) ^ ~next->crc32);
        break;
    default:
        s->crc64 = ~(crc_behind(&CRC64NVME, ~s->crc64, next_len) ^ ~next->crc64);
    }
}

uint64_t s3_checksum_crc(const struct s3_checksum_state *s)
{
    check(s3_checksum_combines(s->kind));
    if (s->kind == S3_CHECKSUM_CRC64NVME) {
        return ~s->crc64;
    }
    return s->kind == S3_CHECKSUM_CRC32C ? ~s->crc32 : s->crc32;
}

struct s3_checksum_state *s3_checksum_of_crc(enum s3_checksum kind, uint64_t crc)
{
    check(s3_checksum_combines(kind));
    struct s3_checksum_state *s = s3_checksum_new(kind);
    s->crc64 = ~crc;
    s->crc32 = kind == S3_CHECKSUM_CRC32C ? ~(uint32_t)crc : (uint32_t)crc;
    return s;
}

// --- the value -----------------------------------------------------------------------------------

static unsigned put_big_endian(uint64_t value, unsigned len, uint8_t *ret_bytes)
{
    for (unsigned i = 0; i < len; i++) {
        ret_bytes[i] = (uint8_t)(value >> (8 * (len - 1 - i)));
    }
    return len;
}

void s3_checksum_final(struct s3_checksum_state *s, char *ret_base64)
{
    uint8_t value[EVP_MAX_MD_SIZE];
    unsigned len = 0;
    switch (s->kind) {
    case S3_CHECKSUM_CRC32:
        len = put_big_endian(s->crc32, 4, value);
        break;
    case S3_CHECKSUM_CRC32C:
        len = put_big_endian(~s->crc32, 4, value);
        break;
    case S3_CHECKSUM_CRC64NVME:
        len = put_big_endian(~s->crc64, 8, value);
        break;
    case S3_CHECKSUM_SHA1:
    case S3_CHECKSUM_SHA256:
    case S3_CHECKSUM_MD5:
        check(EVP_DigestFinal_ex(s->digest, value, &len) == 1);
        break;
    case S3_CHECKSUM_NONE:
        break;
    }
    // Base64 then has at most 60 characters and a NUL, and the caller provides 64 bytes.
    check(len <= 45);
    ret_base64[0] = '\0';
    if (len > 0) {
        (void)EVP_EncodeBlock((unsigned char *)ret_base64, value, (int)len); // cannot fail
    }
}
