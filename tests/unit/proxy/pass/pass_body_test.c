// SPDX-License-Identifier: Apache-2.0
// Proves: request bodies are sent on in the form that the origin needs, and never whole before they
// are verified.
#include "proxy/pass/pass_private.h"

#include <stdlib.h>
#include <string.h>

#include "test.h"

struct fixture {
    struct arena *arena;
    struct http_request http;
    struct s3_request s3;
    struct headers out;
    struct pass_body body;
    struct buf sent; // bytes that the origin got
    bool at_end;
};

static void set_up(struct fixture *f, enum s3_operation operation, unsigned flags)
{
    memset(f, 0, sizeof(*f));
    f->arena = arena_new(4u << 20);
    f->http.method = SPAN("PUT");
    f->s3.operation = operation;
    f->s3.flags = flags;
    buf_init(&f->sent, 64u << 20);
}

static void put_up(struct fixture *f)
{
    set_up(f, S3_PutObject, S3_OP_CHANGES_KEY | S3_OP_BODY);
}

static void tear_down(struct fixture *f)
{
    pass_body_done(&f->body);
    buf_done(&f->sent);
    arena_free(f->arena);
}

static void header(struct fixture *f, const char *name, const char *value)
{
    cr_assert(headers_add(&f->http.headers, f->arena, span_from_cstr(name), span_from_cstr(value)));
    cr_assert(headers_add(&f->out, f->arena, span_from_cstr(name), span_from_cstr(value)));
}

static void length(struct fixture *f, uint64_t n)
{
    f->http.framing = HTTP_BODY_LENGTH;
    f->http.content_length = n;
    header(f, "Content-Length", arena_printf(f->arena, "%llu", (unsigned long long)n));
}

static enum err plan_with(struct fixture *f, bool want_whole)
{
    struct pass_body_input input = {.http = &f->http, .s3 = &f->s3, .want_whole = want_whole};
    return pass_body_plan(&f->body, &input, f->arena, &f->out);
}

static enum err plan(struct fixture *f)
{
    return plan_with(f, false);
}

// Lets the origin take all it may have.
static void take(struct fixture *f)
{
    char buf[1000];
    size_t n;
    while ((n = pass_body_take(&f->body, buf, sizeof(buf), &f->at_end)) > 0) {
        cr_assert(!f->at_end);
        buf_append(&f->sent, buf, n);
    }
}

static enum err feed_in_pieces(struct fixture *f, struct span data, size_t piece)
{
    for (size_t at = 0; at < data.len; at += piece) {
        size_t n = data.len - at < piece ? data.len - at : piece;
        enum err err = pass_body_feed(&f->body, (struct span){data.ptr + at, n});
        if (err != ERR_OK) {
            return err;
        }
        take(f);
    }
    return ERR_OK;
}

static enum err feed_all(struct fixture *f, const char *data, size_t piece)
{
    return feed_in_pieces(f, span_from_cstr(data), piece);
}

static bool out_has(struct fixture *f, const char *name)
{
    return headers_count(&f->out, span_from_cstr(name)) > 0;
}

// A plain body that is bound by its hash is sent on under that hash. Its last byte is sent only
// after the hash was right.
Test(pass_body, plain_hash)
{
    struct fixture f;
    put_up(&f);
    header(&f, "x-amz-content-sha256",
           "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"); // hello
    length(&f, 5);
    cr_assert_eq(plan(&f), ERR_OK);
    cr_assert_eq(f.body.kind, ORIGIN_BODY_HASH);
    cr_assert_eq(f.body.length, 5);
    cr_assert(!out_has(&f, "content-length"));
    cr_assert_eq(feed_all(&f, "hello", 1), ERR_OK);
    cr_assert_eq(f.sent.len, 4);
    cr_assert(!f.at_end);
    cr_assert(!pass_body_ready(&f.body));
    cr_assert_eq(pass_body_finish(&f.body, f.arena), ERR_OK);
    take(&f);
    cr_assert(f.at_end);
    cr_assert(span_equal_cstr(buf_span(&f.sent), "hello"));
    tear_down(&f);
}

// If one byte is wrong, the origin never gets the last byte.
Test(pass_body, plain_hash_wrong)
{
    struct fixture f;
    put_up(&f);
    header(&f, "x-amz-content-sha256",
           "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
    length(&f, 5);
    cr_assert_eq(plan(&f), ERR_OK);
    cr_assert_eq(feed_all(&f, "jello", 2), ERR_OK);
    cr_assert_eq(pass_body_finish(&f.body, f.arena), ERR_CONTENT_SHA256_MISMATCH);
    take(&f);
    cr_assert_eq(f.sent.len, 4);
    tear_down(&f);
}

// An unsigned body is held back by nothing.
Test(pass_body, plain_unsigned)
{
    struct fixture f;
    put_up(&f);
    header(&f, "x-amz-content-sha256", "UNSIGNED-PAYLOAD");
    length(&f, 5);
    cr_assert_eq(plan(&f), ERR_OK);
    cr_assert_eq(f.body.kind, ORIGIN_BODY_UNSIGNED);
    cr_assert_eq(feed_all(&f, "hello", 5), ERR_OK);
    cr_assert_eq(f.sent.len, 5);
    cr_assert(f.at_end);
    tear_down(&f);
}

// Without a body, nothing is sent on. The hash of another body is wrong. An object without any
// length is refused.
Test(pass_body, nothing)
{
    struct fixture f;
    put_up(&f);
    length(&f, 0);
    cr_assert_eq(plan(&f), ERR_OK);
    cr_assert_eq(f.body.kind, ORIGIN_BODY_NONE);
    tear_down(&f);

    put_up(&f);
    cr_assert_eq(plan(&f), ERR_MISSING_CONTENT_LENGTH);
    tear_down(&f);

    put_up(&f);
    length(&f, 0);
    header(&f, "x-amz-content-sha256",
           "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
    cr_assert_eq(plan(&f), ERR_CONTENT_SHA256_MISMATCH);
    tear_down(&f);

    set_up(&f, S3_DeleteObject, S3_OP_CHANGES_KEY);
    cr_assert_eq(plan(&f), ERR_OK);
    tear_down(&f);
}

#define HELLO_TRAILER "x-amz-checksum-crc32:NhCmhg==\r\n"

// A body in signed chunks that is no valid body lacks even its last chunk at the origin.
Test(pass_body, chunks_without_a_body)
{
    static const char *const kinds[] = {"STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
                                        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
                                        "STREAMING-UNSIGNED-PAYLOAD-TRAILER"};
    for (unsigned i = 0; i < ARRAY_LEN(kinds); i++) {
        struct fixture f;
        put_up(&f);
        length(&f, 0);
        header(&f, "x-amz-content-sha256", kinds[i]);
        header(&f, "x-amz-decoded-content-length", "19384");
        cr_assert_eq(plan_with(&f, false), ERR_INCOMPLETE_BODY);
        tear_down(&f);
    }
}

// The hash in a presigned link binds the body as the header does.
Test(pass_body, hash_in_a_link)
{
    struct fixture f;
    put_up(&f);
    length(&f, 4);
    struct sigv4_claim claim = {.present = true,
                                .presigned = true,
                                .payload = SIGV4_PAYLOAD_HASH,
                                .payload_hash = SPAN(SIGV4_EMPTY_SHA256)};
    struct pass_body_input input = {.http = &f.http, .s3 = &f.s3, .claim = &claim};
    cr_assert_eq(pass_body_plan(&f.body, &input, f.arena, &f.out), ERR_OK);
    cr_assert_eq(f.body.kind, ORIGIN_BODY_HASH);
    cr_assert(span_equal(f.body.payload_hash, claim.payload_hash));
    tear_down(&f);
}

// The trailing-checksum form of the SDKs is sent on byte for byte, with the headers that belong to
// it.
Test(pass_body, trailer_verbatim)
{
    struct fixture f;
    put_up(&f);
    const char *body = "5\r\nhello\r\n0\r\n" HELLO_TRAILER "\r\n";
    header(&f, "x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER");
    header(&f, "x-amz-decoded-content-length", "5");
    header(&f, "x-amz-trailer", "x-amz-checksum-crc32");
    header(&f, "Content-Encoding", "gzip");
    length(&f, strlen(body));
    cr_assert_eq(plan(&f), ERR_OK);
    cr_assert_eq(f.body.kind, ORIGIN_BODY_UNSIGNED_TRAILER);
    cr_assert_eq(f.body.length, strlen(body));
    struct span encoding;
    cr_assert(headers_get(&f.out, SPAN("content-encoding"), &encoding));
    cr_assert(span_equal_cstr(encoding, "gzip,aws-chunked"));
    cr_assert(out_has(&f, "x-amz-trailer"));
    cr_assert_eq(feed_all(&f, body, 3), ERR_OK);
    cr_assert_eq(pass_body_finish(&f.body, f.arena), ERR_OK);
    take(&f);
    cr_assert(span_equal_cstr(buf_span(&f.sent), body));
    tear_down(&f);
}

// Inside HTTP chunks, the same body is decoded and framed again. It has the length that was
// announced, for every size.
Test(pass_body, trailer_reframed)
{
    static const size_t SIZES[] = {0, 1, 5, 65535, 65536, 65537, 200000};
    for (size_t i = 0; i < ARRAY_LEN(SIZES); i++) {
        struct fixture f;
        put_up(&f);
        size_t n = SIZES[i];
        char *payload = malloc(n + 1);
        memset(payload, 'x', n);
        struct buf in;
        char checksum[64];
        buf_init(&in, 1u << 20);
        if (n > 0) {
            buf_printf(&in, "%zx\r\n", n);
            buf_append(&in, payload, n);
            buf_append_cstr(&in, "\r\n");
        }
        struct s3_checksum_state *state = s3_checksum_new(S3_CHECKSUM_CRC32);
        s3_checksum_update(state, (struct span){payload, n});
        s3_checksum_final(state, checksum);
        s3_checksum_free(state);
        buf_printf(&in, "0\r\nx-amz-checksum-crc32:%s\r\n\r\n", checksum);

        f.http.framing = HTTP_BODY_CHUNKS;
        header(&f, "x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER");
        header(&f, "x-amz-decoded-content-length", arena_printf(f.arena, "%zu", n));
        header(&f, "x-amz-trailer", "x-amz-checksum-crc32");
        header(&f, "Transfer-Encoding", "chunked");
        cr_assert_eq(plan(&f), ERR_OK);
        cr_assert_eq(f.body.kind, ORIGIN_BODY_UNSIGNED_TRAILER);
        cr_assert(!out_has(&f, "transfer-encoding"));
        cr_assert(out_has(&f, "content-encoding"));
        cr_assert_eq(feed_in_pieces(&f, buf_span(&in), 7919), ERR_OK);
        cr_assert(!f.at_end);
        cr_assert_eq(pass_body_finish(&f.body, f.arena), ERR_OK);
        take(&f);
        cr_assert(f.at_end);
        cr_assert_eq(f.sent.len, f.body.length);

        // It must read as the same payload again.
        struct fixture again;
        put_up(&again);
        again.http.framing = HTTP_BODY_CHUNKS;
        header(&again, "x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER");
        header(&again, "x-amz-decoded-content-length", arena_printf(again.arena, "%zu", n));
        header(&again, "x-amz-trailer", "x-amz-checksum-crc32");
        cr_assert_eq(plan(&again), ERR_OK);
        cr_assert_eq(feed_in_pieces(&again, buf_span(&f.sent), 4096), ERR_OK);
        cr_assert_eq(pass_body_finish(&again.body, again.arena), ERR_OK);
        cr_assert_eq(again.body.payload_fed, n);
        tear_down(&again);
        buf_done(&in);
        free(payload);
        tear_down(&f);
    }
}

// For an origin that takes no trailers, the same body is sent on decoded and unsigned, and no
// header promises a checksum.
Test(pass_body, trailer_not_taken)
{
    struct fixture f;
    put_up(&f);
    const char *body = "5\r\nhello\r\n0\r\n" HELLO_TRAILER "\r\n";
    header(&f, "x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER");
    header(&f, "x-amz-decoded-content-length", "5");
    header(&f, "x-amz-trailer", "x-amz-checksum-crc32");
    header(&f, "x-amz-sdk-checksum-algorithm", "CRC32");
    length(&f, strlen(body));
    struct pass_body_input input = {.http = &f.http, .s3 = &f.s3, .no_trailers = true};
    cr_assert_eq(pass_body_plan(&f.body, &input, f.arena, &f.out), ERR_OK);
    cr_assert_eq(f.body.kind, ORIGIN_BODY_UNSIGNED);
    cr_assert_eq(f.body.length, 5);
    cr_assert(!out_has(&f, "x-amz-trailer"));
    cr_assert(!out_has(&f, "x-amz-sdk-checksum-algorithm"));
    cr_assert_eq(feed_all(&f, body, 3), ERR_OK);
    cr_assert_eq(f.sent.len, 4);
    cr_assert_eq(pass_body_finish(&f.body, f.arena), ERR_OK);
    take(&f);
    cr_assert(span_equal_cstr(buf_span(&f.sent), "hello"));
    tear_down(&f);
}

// A wrong trailer checksum is found before the end is sent.
Test(pass_body, trailer_wrong)
{
    struct fixture f;
    put_up(&f);
    const char *body = "5\r\njello\r\n0\r\n" HELLO_TRAILER "\r\n";
    f.http.framing = HTTP_BODY_CHUNKS;
    header(&f, "x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER");
    header(&f, "x-amz-decoded-content-length", "5");
    header(&f, "x-amz-trailer", "x-amz-checksum-crc32");
    cr_assert_eq(plan(&f), ERR_OK);
    cr_assert_eq(feed_all(&f, body, 1), ERR_OK);
    cr_assert_eq(pass_body_finish(&f.body, f.arena), ERR_BAD_DIGEST);
    take(&f);
    cr_assert_lt(f.sent.len, f.body.length);
    tear_down(&f);
}

// If only one sign announces the framing, the framing never becomes object bytes, and leaves no
// header behind.
Test(pass_body, framing_by_one_sign)
{
    static const char *const SIGNS[][2] = {
        {"Content-Encoding", "aws-chunked"},
        {"Content-Encoding", "gzip, aws-chunked"},
        {"X-Amz-Content-Sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"},
        {"X-Unrelated", "x"},
    };
    for (size_t i = 0; i < ARRAY_LEN(SIGNS); i++) {
        struct fixture f;
        put_up(&f);
        const char *body = "5\r\nhello\r\n0\r\n\r\n";
        header(&f, SIGNS[i][0], SIGNS[i][1]);
        header(&f, "x-amz-decoded-content-length", "5");
        length(&f, strlen(body));
        cr_assert_eq(plan(&f), ERR_OK);
        cr_assert_eq(f.body.kind, ORIGIN_BODY_UNSIGNED);
        cr_assert_eq(f.body.length, 5);
        cr_assert(!out_has(&f, "x-amz-decoded-content-length"));
        struct span encoding = {NULL, 0};
        cr_assert(headers_get(&f.out, SPAN("content-encoding"), &encoding) == (i == 1));
        cr_assert(i != 1 || span_equal_cstr(encoding, "gzip"));
        cr_assert_eq(feed_all(&f, body, 4), ERR_OK);
        cr_assert_eq(pass_body_finish(&f.body, f.arena), ERR_OK);
        take(&f);
        cr_assert(span_equal_cstr(buf_span(&f.sent), "hello"));
        tear_down(&f);
    }
}

// A body whose decoded length differs from the announced one, in either direction, makes no object.
Test(pass_body, decoded_length_lie)
{
    static const char *const LENGTHS[] = {"4", "6"};
    for (size_t i = 0; i < ARRAY_LEN(LENGTHS); i++) {
        struct fixture f;
        put_up(&f);
        const char *body = "5\r\nhello\r\n0\r\n\r\n";
        header(&f, "Content-Encoding", "aws-chunked");
        header(&f, "x-amz-decoded-content-length", LENGTHS[i]);
        length(&f, strlen(body));
        cr_assert_eq(plan(&f), ERR_OK);
        enum err err = feed_all(&f, body, 4);
        if (err == ERR_OK) {
            err = pass_body_finish(&f.body, f.arena);
        }
        cr_assert_eq(err, ERR_INCOMPLETE_BODY);
        cr_assert_lt(f.sent.len, f.body.length);
        tear_down(&f);
    }
}

// A body that must be known whole is collected and bound by its hash. Above the maximum it is
// refused.
Test(pass_body, collected)
{
    struct fixture f;
    set_up(&f, S3_DeleteObjects, S3_OP_CHANGES_KEY);
    length(&f, 5);
    cr_assert_eq(plan_with(&f, true), ERR_OK);
    cr_assert(f.body.collect);
    cr_assert_eq(feed_all(&f, "hello", 2), ERR_OK);
    cr_assert_eq(f.sent.len, 0);
    cr_assert(!f.at_end);
    cr_assert_eq(pass_body_finish(&f.body, f.arena), ERR_OK);
    cr_assert_eq(f.body.kind, ORIGIN_BODY_HASH);
    cr_assert(span_equal_cstr(f.body.payload_hash,
                              "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"));
    take(&f);
    cr_assert(span_equal_cstr(buf_span(&f.sent), "hello"));
    tear_down(&f);

    set_up(&f, S3_DeleteObjects, S3_OP_CHANGES_KEY);
    length(&f, PASS_COLLECT_MAX + 1);
    cr_assert_eq(plan_with(&f, true), ERR_ENTITY_TOO_LARGE);
    tear_down(&f);

    put_up(&f); // an object of unknown length
    f.http.framing = HTTP_BODY_CHUNKS;
    cr_assert_eq(plan(&f), ERR_OK);
    cr_assert(f.body.collect);
    char block[4096] = {0};
    enum err err = ERR_OK;
    for (unsigned i = 0; i < PASS_COLLECT_MAX / sizeof(block) && err == ERR_OK; i++) {
        err = pass_body_feed(&f.body, (struct span){block, sizeof(block)});
    }
    cr_assert_eq(err, ERR_OK);
    cr_assert_eq(pass_body_feed(&f.body, (struct span){block, 1}), ERR_MISSING_CONTENT_LENGTH);
    tear_down(&f);
}

// All collected bodies together have a quarter of the budget, each with its copies. Memory that is
// given back can be used again.
Test(pass_body, collected_total)
{
    enum { FIT = 3 };
    static struct fixture f[FIT + 1];
    chunk_budget_init(4 * FIT * PASS_COLLECT_COPIES * PASS_COLLECT_MAX);
    for (unsigned i = 0; i <= FIT; i++) {
        set_up(&f[i], S3_DeleteObjects, S3_OP_CHANGES_KEY);
        length(&f[i], PASS_COLLECT_MAX);
        cr_assert_eq(plan_with(&f[i], true), i < FIT ? ERR_OK : ERR_OVERLOAD);
    }
    tear_down(&f[0]);
    cr_assert_eq(plan_with(&f[FIT], true), ERR_OK);
    for (unsigned i = 1; i <= FIT; i++) {
        tear_down(&f[i]);
    }
    cr_assert_eq(chunk_budget_kind_bytes(BUDGET_BODIES), 0);
    chunk_budget_init(0);
}

// A body of unknown length is counted as a small one, then as the largest allowed. Alone it may
// take more than its share. While there are others it is refused when it outgrows a small one.
Test(pass_body, collected_of_unknown_length_is_small_until_it_grows)
{
    static char block[PASS_COLLECT_SMALL];
    chunk_budget_init(PASS_COLLECT_MAX);
    for (unsigned others = 0; others < 2; others++) {
        struct fixture f;
        put_up(&f);
        f.http.framing = HTTP_BODY_CHUNKS;
        chunk_budget_charge(BUDGET_BODIES, others);
        cr_assert_eq(plan(&f), ERR_OK);
        cr_assert_eq(pass_body_feed(&f.body, (struct span){block, sizeof(block)}), ERR_OK);
        cr_assert_eq(chunk_budget_kind_bytes(BUDGET_BODIES), others + PASS_COLLECT_SMALL);
        cr_assert_eq(pass_body_feed(&f.body, (struct span){block, 1}),
                     others > 0 ? ERR_OVERLOAD : ERR_OK);
        cr_assert_eq(chunk_budget_kind_bytes(BUDGET_BODIES),
                     others > 0 ? others + PASS_COLLECT_SMALL : PASS_COLLECT_MAX);
        tear_down(&f);
        chunk_budget_discharge(BUDGET_BODIES, others);
        cr_assert_eq(chunk_budget_kind_bytes(BUDGET_BODIES), 0);
    }
    chunk_budget_init(0);
}

// The queue asks for a pause at its maximum, and above the memory budget after each chunk, but
// never for one byte.
Test(pass_body, back_pressure)
{
    struct byte_queue q;
    byte_queue_init(&q);
    static char block[CHUNK_SIZE];
    chunk_budget_init(64u << 20);
    for (unsigned i = 0; i < BYTE_QUEUE_HIGH / sizeof(block); i++) {
        cr_assert(!byte_queue_full(&q));
        byte_queue_append(&q, (struct span){block, sizeof(block)});
    }
    cr_assert(byte_queue_full(&q));
    while (!byte_queue_low(&q)) {
        cr_assert_gt(byte_queue_read(&q, block, 1000), 0);
    }
    cr_assert_leq(q.bytes, BYTE_QUEUE_LOW);
    byte_queue_done(&q);

    chunk_budget_init(0);
    byte_queue_append(&q, SPAN("ab"));
    cr_assert(byte_queue_full(&q));
    cr_assert_eq(byte_queue_read(&q, block, 1), 1);
    cr_assert(!byte_queue_full(&q));
    cr_assert(byte_queue_low(&q));
    byte_queue_done(&q);
    cr_assert_eq(chunk_budget_used_bytes(), 0);
}

// Slices keep their bytes while the queue continues, and give their memory back.
Test(pass_body, slices)
{
    struct byte_queue q;
    chunk_budget_init(64u << 20);
    byte_queue_init(&q);
    byte_queue_append(&q, SPAN("hello"));
    struct http_slice first, second;
    byte_queue_slice(&q, 2, &first);
    byte_queue_append(&q, SPAN(" world"));
    byte_queue_slice(&q, 100, &second);
    cr_assert(span_equal_cstr(first.bytes, "he"));
    cr_assert(span_equal_cstr(second.bytes, "llo world"));
    cr_assert_eq(q.bytes, 0);
    byte_queue_done(&q);
    cr_assert(span_equal_cstr(first.bytes, "he"));
    first.release(first.release_ctx);
    second.release(second.release_ctx);
    cr_assert_eq(chunk_budget_used_bytes(), 0);
}
