// SPDX-License-Identifier: Apache-2.0
// aws-chunked bodies: the published signed examples, every cut of the input, every inconsistency.
// The encoder's output has the announced length and decodes to the same bytes.
#include "s3/s3.h"
#include "s3/s3_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

#define SCOPE "20130524/us-east-1/s3/aws4_request"
#define SEED "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
#define TRAILER_SEED "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
#define BODY_LEN 66560u

static uint8_t key[32];
static struct buf decoded;

static void make_key(void)
{
    const char *secret = "AWS4wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
    sigv4_hmac_sha256(secret, strlen(secret), SPAN("20130524"), key);
    sigv4_hmac_sha256(key, 32, SPAN("us-east-1"), key);
    sigv4_hmac_sha256(key, 32, SPAN("s3"), key);
    sigv4_hmac_sha256(key, 32, SPAN("aws4_request"), key);
}

static struct aws_chunked_options signed_options(const char *seed, bool trailer)
{
    make_key();
    return (struct aws_chunked_options){.has_signatures = true,
                                        .signing_key = key,
                                        .amz_date = SPAN("20130524T000000Z"),
                                        .scope = SPAN(SCOPE),
                                        .seed_signature = span_from_cstr(seed),
                                        .has_decoded_length = true,
                                        .decoded_length = BODY_LEN,
                                        .has_trailer = trailer};
}

static enum err on_data(void *ctx, struct span data)
{
    (void)ctx;
    buf_append_span(&decoded, data);
    return ERR_OK;
}

// Feeds `input` in pieces of at most `step` bytes. A whole body that did not finish is
// ERR_INCOMPLETE_BODY.
static enum err decode(const struct aws_chunked_options *options, struct span input, size_t step)
{
    struct aws_chunked_decoder *d = aws_chunked_decoder_new(options);
    enum err err = ERR_OK;
    buf_done(&decoded);
    buf_init(&decoded, 1 << 20);
    while (input.len > 0 && err == ERR_OK) {
        size_t len = input.len < step ? input.len : step;
        err = aws_chunked_decode(d, (struct span){input.ptr, len}, on_data, NULL);
        input.ptr += len;
        input.len -= len;
    }
    if (err == ERR_OK && !aws_chunked_finished(d)) {
        err = ERR_INCOMPLETE_BODY;
    }
    aws_chunked_decoder_free(d);
    return err;
}

static void append_chunk(struct buf *b, unsigned len, const char *signature)
{
    buf_printf(b, "%x;chunk-signature=%s\r\n", len, signature);
    for (unsigned i = 0; i < len; i++) {
        buf_append_char(b, 'a');
    }
    if (len > 0) {
        buf_append_cstr(b, "\r\n");
    }
}

static void published_body(struct buf *b)
{
    buf_init(b, 1 << 20);
    append_chunk(b, 65536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648");
    append_chunk(b, 1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497");
    append_chunk(b, 0, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9");
    buf_append_cstr(b, "\r\n");
}

static void published_trailer_body(struct buf *b, const char *line_end, const char *gap)
{
    buf_init(b, 1 << 20);
    append_chunk(b, 65536, "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2");
    append_chunk(b, 1024, "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7");
    append_chunk(b, 0, "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992");
    buf_printf(b, "x-amz-checksum-crc32c:sOO8/Q==%s%s", line_end, gap);
    buf_printf(b, "x-amz-trailer-signature:"
                  "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n");
}

Test(aws_chunked, published_signed_body)
{
    struct aws_chunked_options options = signed_options(SEED, false);
    struct buf b;
    published_body(&b);
    cr_assert_eq(b.len, 66824);
    cr_assert_eq(decode(&options, buf_span(&b), b.len), ERR_OK);
    cr_assert_eq(decoded.len, BODY_LEN);
    cr_assert_eq(decode(&options, buf_span(&b), 1), ERR_OK);
    cr_assert_eq(decoded.len, BODY_LEN);
    buf_done(&b);
}

Test(aws_chunked, published_signed_trailer)
{
    struct aws_chunked_options options = signed_options(TRAILER_SEED, true);
    struct buf b;
    published_trailer_body(&b, "\r\n", "");
    cr_assert_eq(decode(&options, buf_span(&b), 7), ERR_OK);
    buf_done(&b);
    published_trailer_body(&b, "\n", "\r\n"); // as one client writes it
    cr_assert_eq(decode(&options, buf_span(&b), 1000), ERR_OK);
    struct aws_chunked_decoder *d = aws_chunked_decoder_new(&options);
    cr_assert_eq(aws_chunked_decode(d, buf_span(&b), on_data, NULL), ERR_OK);
    struct span value;
    cr_assert(headers_get(aws_chunked_trailers(d), SPAN("x-amz-checksum-crc32c"), &value));
    cr_assert(span_equal_cstr(value, "sOO8/Q=="));
    cr_assert_eq(aws_chunked_trailers(d)->count, 1);
    aws_chunked_decoder_free(d);
    // One digit of the value changed.
    memcpy(strstr(b.ptr + BODY_LEN, "sOO8"), "sOO9", 4);
    cr_assert_eq(decode(&options, buf_span(&b), b.len), ERR_SIGNATURE_MISMATCH);
    buf_done(&b);
}

Test(aws_chunked, changed_missing_moved_and_repeated_chunks_are_found)
{
    struct aws_chunked_options options = signed_options(SEED, false);
    struct buf b;
    published_body(&b);
    static const size_t PLACES[] = {100, 65000, 65640, 66500, 66740}; // data and signatures
    for (size_t i = 0; i < ARRAY_LEN(PLACES); i++) {
        char before = b.ptr[PLACES[i]];
        b.ptr[PLACES[i]] = before == 'b' ? 'c' : 'b';
        enum err err = decode(&options, buf_span(&b), 4096);
        cr_assert(err == ERR_SIGNATURE_MISMATCH || err == ERR_BAD_REQUEST, "%zu", PLACES[i]);
        b.ptr[PLACES[i]] = before;
    }
    cr_assert_eq(decode(&options, buf_span(&b), 4096), ERR_OK);
    // Cut anywhere: never finished.
    for (size_t len = 0; len < b.len; len += 97) {
        cr_assert_neq(decode(&options, (struct span){b.ptr, len}, 4096), ERR_OK);
    }
    cr_assert_neq(decode(&options, (struct span){b.ptr, b.len - 1}, 4096), ERR_OK);
    buf_append_char(&b, 'x');
    cr_assert_eq(decode(&options, buf_span(&b), 4096), ERR_BAD_REQUEST);
    buf_done(&b);

    // The second chunk first.
    options.has_decoded_length = false;
    buf_init(&b, 1 << 20);
    append_chunk(&b, 1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497");
    cr_assert_eq(decode(&options, buf_span(&b), b.len), ERR_SIGNATURE_MISMATCH);
    buf_done(&b);
    // The last chunk at once: truncation.
    buf_init(&b, 1 << 20);
    append_chunk(&b, 0, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9");
    cr_assert_eq(decode(&options, buf_span(&b), b.len), ERR_SIGNATURE_MISMATCH);
    buf_done(&b);
}

static enum err decode_unsigned(const char *body, uint64_t length)
{
    struct aws_chunked_options options = {
        .has_decoded_length = true, .decoded_length = length, .has_trailer = true};
    struct span input = span_from_cstr(body);
    enum err first = decode(&options, input, input.len);
    for (size_t step = 1; step < 9; step++) {
        cr_assert_eq(decode(&options, input, step), first, "%s in steps of %zu", body, step);
    }
    return first;
}

Test(aws_chunked, unsigned_bodies)
{
    static const struct {
        const char *body;
        uint64_t length;
        enum err err;
    } ROWS[] = {
        {"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n", 5, ERR_OK},
        {"2\r\nhe\r\n003\r\nllo\r\n0\r\n\r\n", 5, ERR_OK},
        {"0\r\nx-amz-checksum-crc32:AAAAAA==\n\r\n\r\n", 0, ERR_OK},
        {"0\r\n\r\n", 0, ERR_OK},
        {"A\r\n0123456789\r\n0\r\n\r\n", 10, ERR_OK},
        {"5;ext=1\r\nhello\r\n0\r\n\r\n", 5, ERR_OK},
        {"5\r\nhello\r\n0\r\n\r\n", 4, ERR_INCOMPLETE_BODY},
        {"5\r\nhello\r\n0\r\n\r\n", 6, ERR_INCOMPLETE_BODY},
        {"5\r\nhello\r\n", 5, ERR_INCOMPLETE_BODY},
        {"5\r\nhello\r\n0\r\n", 5, ERR_INCOMPLETE_BODY},
        {"5\r\nhello\r\n0\r\n\r", 5, ERR_INCOMPLETE_BODY},
        {"5\r\nhelloX0\r\n\r\n", 5, ERR_BAD_REQUEST},
        {"5\r\nhello\rX", 5, ERR_BAD_REQUEST},
        {"5\nhello\r\n0\r\n\r\n", 5, ERR_BAD_REQUEST},
        {"5\rXhello", 5, ERR_BAD_REQUEST},
        {"\r\n", 0, ERR_BAD_REQUEST},
        {"0x5\r\nhello", 5, ERR_BAD_REQUEST},
        {"+5\r\nhello", 5, ERR_BAD_REQUEST},
        {" 5\r\nhello", 5, ERR_BAD_REQUEST},
        {"5 \r\nhello", 5, ERR_BAD_REQUEST},
        {"-1\r\nhello", 5, ERR_BAD_REQUEST},
        {"10000000000000000\r\n", 5, ERR_BAD_REQUEST},
        {"ffffffffffffffff\r\n", 5, ERR_INCOMPLETE_BODY},
        {"0\r\nno colon\r\n\r\n", 0, ERR_BAD_REQUEST},
        {"0\r\nbad name: 1\r\n\r\n", 0, ERR_BAD_REQUEST},
        {"0\r\nname: a\rb\r\n\r\n", 0, ERR_BAD_REQUEST},
        {"0\r\nx-amz-trailer-signature:00\r\n\r\n", 0, ERR_BAD_REQUEST},
        {"0\r\n\r\n\r\n\r\n", 0, ERR_BAD_REQUEST},
        {"0\r\n\r\nGET / HTTP/1.1\r\n", 0, ERR_BAD_REQUEST},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        cr_assert_eq(decode_unsigned(ROWS[i].body, ROWS[i].length), ROWS[i].err, "%s",
                     ROWS[i].body);
    }
}

static enum err decode_filled(const char *head, size_t count, const char *tail)
{
    struct aws_chunked_options options = {.has_trailer = true};
    struct buf b;
    buf_init(&b, 1 << 20);
    buf_append_cstr(&b, head);
    for (size_t i = 0; i < count; i++) {
        buf_append_char(&b, 'x');
    }
    buf_append_cstr(&b, tail);
    enum err err = decode(&options, buf_span(&b), 100);
    buf_done(&b);
    return err;
}

Test(aws_chunked, header_and_trailer_are_bounded)
{
    cr_assert_eq(decode_filled("0;", 254, "\r\n\r\n"), ERR_OK);
    cr_assert_eq(decode_filled("0;", 255, "\r\n\r\n"), ERR_BAD_REQUEST);
    cr_assert_eq(decode_filled("0\r\na:", (16 << 10) - 6, "\r\n\r\n"), ERR_OK);
    cr_assert_eq(decode_filled("0\r\na:", (16 << 10) - 5, "\r\n\r\n"), ERR_BAD_REQUEST);

    struct aws_chunked_options options = {.has_trailer = true};
    for (unsigned lines = 32; lines <= 33; lines++) {
        struct buf b;
        buf_init(&b, 1 << 16);
        buf_append_cstr(&b, "0\r\n");
        for (unsigned i = 0; i < lines; i++) {
            buf_append_cstr(&b, "a:b\r\n");
        }
        buf_append_cstr(&b, "\r\n");
        cr_assert_eq(decode(&options, buf_span(&b), 10), lines == 32 ? ERR_OK : ERR_BAD_REQUEST);
        buf_done(&b);
    }
}

static enum err refuse(void *ctx, struct span data)
{
    (void)ctx;
    (void)data;
    return ERR_CANCELLED;
}

Test(aws_chunked, a_consumers_error_ends_the_decoding_for_good)
{
    struct aws_chunked_options options = {.has_trailer = true};
    struct aws_chunked_decoder *d = aws_chunked_decoder_new(&options);
    cr_assert_eq(aws_chunked_decode(d, SPAN("5\r\nhello"), refuse, NULL), ERR_CANCELLED);
    cr_assert_eq(aws_chunked_decode(d, SPAN("\r\n0\r\n\r\n"), on_data, NULL), ERR_CANCELLED);
    cr_assert_not(aws_chunked_finished(d));
    aws_chunked_decoder_free(d);
    aws_chunked_decoder_free(NULL);
}

Test(aws_chunked, any_of_three_signs_is_enough)
{
    static const struct {
        const char *name, *value;
        bool chunked;
    } ROWS[] = {
        {"X-Amz-Decoded-Content-Length", "5", true},
        {"x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER", true},
        {"Content-Encoding", "gzip, AWS-chunked", true},
        {"Content-Encoding", "gzip", false},
        {"Content-Encoding", "not-aws-chunked", false},
        {"x-amz-content-sha256", "UNSIGNED-PAYLOAD", false},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        struct arena *arena = arena_new(4096);
        struct headers headers = {0};
        cr_assert(headers_add(&headers, arena, span_from_cstr(ROWS[i].name),
                              span_from_cstr(ROWS[i].value)));
        cr_assert_eq(aws_chunked_detect(&headers), ROWS[i].chunked, "%s", ROWS[i].value);
        arena_free(arena);
    }
}

// The framing's own word is removed, and others stay. A value without it is unchanged.
Test(aws_chunked, framing_is_stripped_from_an_encoding)
{
    static const char *const ROWS[][2] = {
        {"aws-chunked", ""},
        {"AWS-Chunked,gzip", "gzip"},
        {"gzip , aws-chunked, br", "gzip,br"},
        {"aws-chunked,,aws-chunked", ""},
        {"gzip, br", "gzip, br"},
        {"not-aws-chunked", "not-aws-chunked"},
        {"", ""},
    };
    struct arena *arena = arena_new(4096);
    struct span out;
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        cr_assert(aws_chunked_strip(arena, span_from_cstr(ROWS[i][0]), &out));
        cr_assert(span_equal_cstr(out, ROWS[i][1]), "%s", ROWS[i][0]);
    }
    arena_free(arena);
    arena = arena_new(1);
    cr_assert_not(aws_chunked_strip(arena, SPAN("gzip,aws-chunked,and-much-that-follows"), &out));
    arena_free(arena);
}

Test(aws_chunked, an_encoded_body_has_the_announced_length_and_decodes)
{
    static const uint64_t LENGTHS[] = {0, 1, 15, 16, 17, 255, 256, 4095, 4096, 4097, 70000};
    const struct span name = SPAN("x-amz-checksum-crc32c");
    for (size_t i = 0; i < ARRAY_LEN(LENGTHS); i++) {
        for (unsigned with_trailer = 0; with_trailer < 2; with_trailer++) {
            struct span trailer = with_trailer ? name : (struct span){NULL, 0};
            struct buf b;
            buf_init(&b, 1 << 20);
            for (uint64_t left = LENGTHS[i]; left > 0;) {
                uint64_t len = min_u64(left, 4096);
                aws_chunked_chunk_head(len, &b);
                for (uint64_t j = 0; j < len; j++) {
                    buf_append_char(&b, (char)(left * 7 + j));
                }
                buf_append_cstr(&b, "\r\n");
                left -= len;
            }
            aws_chunked_tail(trailer, SPAN("sOO8/Q=="), &b);
            cr_assert_eq(b.len, aws_chunked_encoded_length(LENGTHS[i], 4096, trailer, 8));
            struct aws_chunked_options options = {.has_decoded_length = true,
                                                  .decoded_length = LENGTHS[i],
                                                  .has_trailer = with_trailer == 1};
            cr_assert_eq(decode(&options, buf_span(&b), 333), ERR_OK);
            cr_assert_eq(decoded.len, LENGTHS[i]);
            buf_done(&b);
        }
    }
}
