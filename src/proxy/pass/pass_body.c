// SPDX-License-Identifier: Apache-2.0
// Forwards a request body to the origin; the table shows how, for each kind of body. Owned by a
// pass_state. On the request's worker.
//
// incoming                                outgoing
// nothing                                 nothing
// plain, with its SHA-256                 unchanged, signed with that hash, which is checked here
// plain, UNSIGNED-PAYLOAD or no hash      unchanged, payload unsigned
// STREAMING-UNSIGNED-PAYLOAD-TRAILER      unchanged; the origin checks the trailer. If it came in
//                                         HTTP chunks: decoded, framed again
// STREAMING-AWS4-HMAC-SHA256-PAYLOAD      decoded, signatures checked; payload unsigned
// the same with -TRAILER                  decoded, signatures checked; framed again, so that the
//                                         origin gets the trailer
// other signs of aws-chunked              decoded; payload unsigned
// HTTP chunks without a length            collected (bounded), then signed with its hash
// anything the caller wants whole         the same
//
// A body is aws-chunked if any one of three signs says so, so the framing never reaches the origin
// as object bytes. Every check here ends before the origin gets the last byte. The origin knows the
// length, so it cannot complete an upload that Forebay cuts.
#include "proxy/pass/pass_private.h"

#include <stdlib.h>
#include <string.h>

// Size of the chunks of re-framed bodies; the origin requires at least 8 KiB.
#define FRAME_CHUNK_SIZE (64u * 1024u)
#define BASE64_SHA256_LEN 44u

// Trailers whose values have a known length. Forebay cannot compute some of these checksums.
static const struct {
    const char *name;
    size_t value_len;
} TRAILERS[] = {
    {"x-amz-checksum-crc32", 8},      {"x-amz-checksum-crc32c", 8},
    {"x-amz-checksum-crc64nvme", 12}, {"x-amz-checksum-sha1", 28},
    {"x-amz-checksum-sha256", 44},    {"x-amz-checksum-sha512", 88},
    {"x-amz-checksum-md5", 24},       {"x-amz-checksum-xxhash64", 12},
    {"x-amz-checksum-xxhash3", 12},   {"x-amz-checksum-xxhash128", 24},
};

static size_t trailer_value_len_of(struct span name)
{
    for (size_t i = 0; i < ARRAY_LEN(TRAILERS); i++) {
        if (span_equal_nocase(name, span_from_cstr(TRAILERS[i].name))) {
            return TRAILERS[i].value_len;
        }
    }
    return 0;
}

// --- headers for the origin
// -----------------------------------------------------------------------

// Removes aws-chunked from Content-Encoding and keeps its other values.
static enum err content_encoding_strip(struct arena *arena, struct headers *headers)
{
    struct span value;
    if (!headers_get(headers, SPAN("content-encoding"), &value) ||
        !headers_list_has(value, SPAN("aws-chunked"))) {
        return ERR_OK;
    }
    bool ok = aws_chunked_strip(arena, value, &value);
    headers_remove(headers, SPAN("content-encoding"));
    if (ok && value.len > 0) {
        ok = headers_add(headers, arena, SPAN("Content-Encoding"), value);
    }
    return ok ? ERR_OK : ERR_NO_MEMORY;
}

static enum err content_encoding_demand(struct arena *arena, struct headers *headers)
{
    struct span value = {NULL, 0};
    bool found = headers_get(headers, SPAN("content-encoding"), &value);
    if (found && headers_list_has(value, SPAN("aws-chunked"))) {
        return ERR_OK;
    }
    struct span whole = SPAN("aws-chunked");
    if (found && value.len > 0) {
        whole = span_from_cstr(arena_printf(arena, "%.*s,aws-chunked", (int)value.len, value.ptr));
    }
    headers_remove(headers, SPAN("content-encoding"));
    return whole.len > 0 && headers_add(headers, arena, SPAN("Content-Encoding"), whole)
               ? ERR_OK
               : ERR_NO_MEMORY;
}

static bool has_checksum_header(const struct headers *headers)
{
    for (unsigned i = 0; i < headers->count; i++) {
        struct span name = headers->items[i].name;
        static const char PREFIX[] = "x-amz-checksum-";
        if (name.len > sizeof(PREFIX) - 1 && span_starts_with_nocase(name, SPAN(PREFIX)) &&
            !span_equal_nocase(name, SPAN("x-amz-checksum-algorithm")) &&
            !span_equal_nocase(name, SPAN("x-amz-checksum-type"))) {
            return true;
        }
    }
    return false;
}

// Changes the headers for a body that is forwarded without aws-chunked framing.
static enum err headers_unframe(struct arena *arena, struct headers *headers)
{
    headers_remove(headers, SPAN("x-amz-decoded-content-length"));
    if (headers_count(headers, SPAN("x-amz-trailer")) > 0) {
        headers_remove(headers, SPAN("x-amz-trailer"));
        // x-amz-sdk-checksum-algorithm announces the trailer, and origins refuse it without one.
        if (!has_checksum_header(headers)) {
            headers_remove(headers, SPAN("x-amz-sdk-checksum-algorithm"));
        }
    }
    return content_encoding_strip(arena, headers);
}

// --- the plan ------------------------------------------------------------------------------------

// Charges the memory for a collected body of up to `bytes` bytes. ERR_OVERLOAD: the share of the
// budget for such bodies is used up.
static enum err collect_count(struct pass_body *body, uint64_t bytes)
{
    check(body->copies > 0);
    check(body->counted_bytes <= PASS_COLLECT_MAX);
    if (bytes > PASS_COLLECT_MAX) {
        return body->too_large;
    }
    if (bytes <= body->counted_bytes) {
        return ERR_OK;
    }
    uint64_t held = body->counted_bytes * body->copies;
    if (!chunk_budget_try_charge(BUDGET_BODIES, held, bytes * body->copies - held)) {
        return ERR_OVERLOAD;
    }
    body->counted_bytes = bytes;
    return ERR_OK;
}

// Begins to collect a body. A body of known length is charged at once. A body of unknown length is
// first charged as a small one. When it outgrows that, it is charged as the largest allowed one. If
// it were charged step by step, many such bodies could use up the budget together, and all would be
// refused halfway.
static enum err collect_begin(struct pass_body *body, const struct pass_body_input *input,
                              bool has_length, uint64_t length)
{
    check(body->counted_bytes == 0);
    body->collect = true;
    body->must_verify = true;
    body->copies = input->want_whole ? PASS_COLLECT_COPIES : 1;
    if (has_length && length > PASS_COLLECT_MAX) {
        return ERR_ENTITY_TOO_LARGE;
    }
    return collect_count(body, has_length ? length : PASS_COLLECT_SMALL);
}

static enum err collect_append(struct pass_body *body, struct span data)
{
    check(body->collect);
    check(!body->is_verified);
    uint64_t len = body->whole.len + data.len;
    enum err err =
        len <= body->counted_bytes ? ERR_OK : collect_count(body, max_u64(len, PASS_COLLECT_MAX));
    if (err != ERR_OK) {
        return err;
    }
    buf_append_span(&body->whole, data);
    return buf_ok(&body->whole) ? ERR_OK : ERR_OVERLOAD;
}

static enum err hash_verify_start(struct pass_body *body, struct span hash)
{
    check(body->sha256 == NULL);
    if (!hex_decode(hash, body->expected_sha256, sizeof(body->expected_sha256))) {
        return ERR_INVALID_ARGUMENT;
    }
    body->sha256 = s3_checksum_new(S3_CHECKSUM_SHA256);
    body->must_verify = true;
    return ERR_OK;
}

static enum err decoder_start(struct pass_body *body, const struct pass_body_input *input,
                              enum sigv4_payload payload, bool has_length)
{
    check(body->decoder == NULL);
    const struct sigv4_claim *claim = input->claim;
    struct aws_chunked_options options = {
        .has_signatures = claim != NULL && (payload == SIGV4_PAYLOAD_STREAMING ||
                                            payload == SIGV4_PAYLOAD_STREAMING_TRAILER),
        .has_decoded_length = has_length,
        .decoded_length = body->decoded_length,
        .has_trailer = payload == SIGV4_PAYLOAD_STREAMING_TRAILER ||
                       payload == SIGV4_PAYLOAD_UNSIGNED_TRAILER || body->trailer_name.len > 0,
    };
    if (options.has_signatures) {
        check(input->signing_key != NULL);
        options.amz_date = span_from_cstr(claim->amz_date);
        options.scope = claim->scope;
        options.signing_key = input->signing_key;
        options.seed_signature = claim->signature;
    }
    body->decoder = aws_chunked_decoder_new(&options);
    body->decode = true;
    body->must_verify = true;
    return body->decoder != NULL ? ERR_OK : ERR_NO_MEMORY;
}

// Finds the first checksum among the announced trailers.
static void trailer_find(struct pass_body *body, struct arena *arena, const struct headers *headers)
{
    check(body->checksum == NULL);
    check(body->trailer_name.len == 0);
    struct span value, name;
    if (!headers_get(headers, SPAN("x-amz-trailer"), &value)) {
        return;
    }
    while (span_split(&value, ',', &name)) {
        name = span_trim(name);
        size_t len = trailer_value_len_of(name);
        if (len > 0) {
            body->trailer_name = arena_copy(arena, name);
            body->trailer_value_len = len;
            enum s3_checksum kind = s3_checksum_from_name(name);
            body->checksum = kind != S3_CHECKSUM_NONE ? s3_checksum_new(kind) : NULL;
            return;
        }
    }
}

// Plans an aws-chunked body that Forebay decodes.
static enum err plan_decode(struct pass_body *body, const struct pass_body_input *input,
                            enum sigv4_payload payload, struct arena *arena,
                            struct headers *headers)
{
    struct span value;
    bool has_length = headers_get(headers, SPAN("x-amz-decoded-content-length"), &value);
    if (has_length && !span_to_u64(value, &body->decoded_length)) {
        return ERR_INVALID_ARGUMENT;
    }
    trailer_find(body, arena, headers);
    enum err err = decoder_start(body, input, payload, has_length);
    if (err != ERR_OK) {
        return err;
    }
    if (input->want_whole || (input->s3->flags & S3_OP_BODY) == 0) {
        err = collect_begin(body, input, has_length, body->decoded_length);
        return err == ERR_OK ? headers_unframe(arena, headers) : err;
    }
    if (!has_length) {
        return ERR_MISSING_CONTENT_LENGTH;
    }
    bool trailer =
        payload == SIGV4_PAYLOAD_STREAMING_TRAILER || payload == SIGV4_PAYLOAD_UNSIGNED_TRAILER;
    if (!trailer || body->trailer_name.len == 0 || input->no_trailers) {
        body->kind = ORIGIN_BODY_UNSIGNED;
        body->length = body->decoded_length;
        return headers_unframe(arena, headers);
    }
    body->reframe = true;
    check(!body->collect);
    check(body->trailer_value_len > 0);
    body->kind = ORIGIN_BODY_UNSIGNED_TRAILER;
    body->length = aws_chunked_encoded_length(body->decoded_length, FRAME_CHUNK_SIZE,
                                              body->trailer_name, body->trailer_value_len);
    headers_remove(headers, SPAN("x-amz-trailer"));
    if (!headers_add(headers, arena, SPAN("x-amz-trailer"), body->trailer_name)) {
        return ERR_NO_MEMORY;
    }
    return content_encoding_demand(arena, headers);
}

static enum err plan_plain(struct pass_body *body, const struct pass_body_input *input,
                           enum sigv4_payload payload, struct span hash, struct arena *arena)
{
    check(!body->decode);
    const struct http_request *http = input->http;
    if (http->framing == HTTP_BODY_CHUNKS || input->want_whole) {
        return collect_begin(body, input, http->framing != HTTP_BODY_CHUNKS, http->content_length);
    }
    body->length = http->content_length;
    if (payload != SIGV4_PAYLOAD_HASH) {
        body->kind = ORIGIN_BODY_UNSIGNED;
        return ERR_OK;
    }
    body->kind = ORIGIN_BODY_HASH;
    body->payload_hash = arena_copy(arena, hash);
    return body->payload_hash.ptr != NULL ? ERR_OK : ERR_NO_MEMORY;
}

static enum err plan_nothing(struct pass_body *body, const struct pass_body_input *input,
                             enum sigv4_payload payload, struct span hash, struct arena *arena,
                             struct headers *headers)
{
    check(!body->collect);
    body->kind = ORIGIN_BODY_NONE;
    if (!http_request_has_body(input->http) && (input->s3->flags & S3_OP_READ) == 0) {
        if ((input->s3->flags & S3_OP_BODY) != 0 && input->http->framing != HTTP_BODY_LENGTH) {
            return ERR_MISSING_CONTENT_LENGTH;
        }
        if (payload == SIGV4_PAYLOAD_HASH && !span_equal_nocase(hash, SPAN(SIGV4_EMPTY_SHA256))) {
            return ERR_CONTENT_SHA256_MISMATCH;
        }
        // An empty object in aws-chunked framing still has a last chunk.
        if (payload == SIGV4_PAYLOAD_STREAMING || payload == SIGV4_PAYLOAD_STREAMING_TRAILER ||
            payload == SIGV4_PAYLOAD_UNSIGNED_TRAILER) {
            return ERR_INCOMPLETE_BODY;
        }
    }
    return headers_unframe(arena, headers);
}

enum err pass_body_plan(struct pass_body *body, const struct pass_body_input *input,
                        struct arena *arena, struct headers *headers)
{
    check(body->decoder == NULL && body->sha256 == NULL);
    check(body->taken == 0 && body->payload_fed == 0);
    check(!body->is_verified);
    const struct http_request *http = input->http;
    byte_queue_init(&body->queue);
    buf_init(&body->whole, PASS_COLLECT_MAX);
    // A body of unknown length is collected. If it is too large to be collected, the client must
    // send a length.
    body->too_large = http->framing == HTTP_BODY_CHUNKS && (input->s3->flags & S3_OP_BODY) != 0
                          ? ERR_MISSING_CONTENT_LENGTH
                          : ERR_ENTITY_TOO_LARGE;

    enum sigv4_payload payload;
    struct span hash = {NULL, 0};
    enum err err = sigv4_payload_parse(&http->headers, input->s3->presigned, &payload, &hash);
    if (err != ERR_OK) {
        return err;
    }
    if (input->claim != NULL &&
        input->claim->present) { // a presigned URL may have the hash in its query
        payload = input->claim->payload;
        hash = input->claim->payload_hash;
    }
    headers_remove(headers, SPAN("content-length"));
    headers_remove(headers, SPAN("transfer-encoding"));
    headers_remove(headers, SPAN("expect"));
    bool is_read = http->is_head || span_equal(http->method, SPAN("GET"));
    if (!http_request_has_body(http) || is_read) {
        return plan_nothing(body, input, payload, hash, arena, headers);
    }
    if (payload == SIGV4_PAYLOAD_HASH) {
        err = hash_verify_start(body, hash); // hash of the bytes as received, including framing
        if (err != ERR_OK) {
            return err;
        }
    }
    if (!aws_chunked_detect(&http->headers)) {
        return plan_plain(body, input, payload, hash, arena);
    }
    if (payload == SIGV4_PAYLOAD_UNSIGNED_TRAILER && http->framing != HTTP_BODY_CHUNKS &&
        !input->want_whole && !input->no_trailers && (input->s3->flags & S3_OP_BODY) != 0) {
        if (headers_count(headers, SPAN("x-amz-decoded-content-length")) == 0) {
            return ERR_MISSING_CONTENT_LENGTH;
        }
        body->kind = ORIGIN_BODY_UNSIGNED_TRAILER;
        body->length = http->content_length;
        return content_encoding_demand(arena, headers);
    }
    return plan_decode(body, input, payload, arena, headers);
}

// --- bytes ---------------------------------------------------------------------------------------

// Frames the payload in aws-chunked chunks of FRAME_CHUNK_SIZE. pass_body_finish() adds the last
// chunk and the trailer.
static void frame(struct pass_body *body, struct span data, uint64_t first_byte)
{
    check(body->reframe && body->decode);
    check(first_byte + data.len <= body->decoded_length);
    while (data.len > 0) {
        if (body->chunk_left == 0) {
            struct buf head;
            buf_init(&head, 32);
            body->chunk_left = min_u64(FRAME_CHUNK_SIZE, body->decoded_length - first_byte);
            aws_chunked_chunk_head(body->chunk_left, &head);
            check(buf_ok(&head));
            byte_queue_append(&body->queue, buf_span(&head));
            buf_done(&head);
        }
        size_t n = min_u64(body->chunk_left, data.len);
        byte_queue_append(&body->queue, (struct span){data.ptr, n});
        body->chunk_left -= n;
        first_byte += n;
        data.ptr += n;
        data.len -= n;
        if (body->chunk_left == 0) {
            byte_queue_append(&body->queue, SPAN("\r\n"));
        }
    }
}

static enum err on_payload(void *ctx, struct span data)
{
    struct pass_body *body = ctx;
    uint64_t first_byte = body->payload_fed;
    body->payload_fed += data.len;
    if (body->checksum != NULL) {
        s3_checksum_update(body->checksum, data);
    }
    if (body->collect) {
        return collect_append(body, data);
    }
    if (body->decode && body->payload_fed > body->decoded_length) {
        return ERR_INCOMPLETE_BODY;
    }
    if (body->reframe) {
        frame(body, data, first_byte);
    } else {
        byte_queue_append(&body->queue, data);
    }
    return ERR_OK;
}

enum err pass_body_feed(struct pass_body *body, struct span data)
{
    check(body->decode == (body->decoder != NULL));
    check(!body->is_verified);
    if (body->sha256 != NULL) {
        s3_checksum_update(body->sha256, data);
    }
    return body->decode ? aws_chunked_decode(body->decoder, data, on_payload, body)
                        : on_payload(body, data);
}

static void base64_of_sha256(const uint8_t *bytes, char *ret_text)
{
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (unsigned i = 0, at = 0; i < 32; i += 3) {
        uint32_t group = (uint32_t)bytes[i] << 16 | (uint32_t)bytes[i + 1] << 8;
        group |= i + 2 < 32 ? bytes[i + 2] : 0;
        ret_text[at++] = DIGITS[group >> 18];
        ret_text[at++] = DIGITS[group >> 12 & 63];
        ret_text[at++] = DIGITS[group >> 6 & 63];
        ret_text[at++] = i + 2 < 32 ? DIGITS[group & 63] : '=';
    }
}

static enum err verify_hash(struct pass_body *body)
{
    if (body->sha256 == NULL) {
        return ERR_OK;
    }
    char computed[64], expected[BASE64_SHA256_LEN];
    s3_checksum_final(body->sha256, computed);
    base64_of_sha256(body->expected_sha256, expected);
    return memcmp(computed, expected, BASE64_SHA256_LEN) == 0 ? ERR_OK
                                                              : ERR_CONTENT_SHA256_MISMATCH;
}

static enum err verify_trailer(struct pass_body *body, struct span *ret_value)
{
    check(body->decoder != NULL);
    if (body->trailer_name.len == 0) {
        return ERR_OK;
    }
    struct span value;
    check(body->trailer_value_len > 0);
    if (!headers_get(aws_chunked_trailers(body->decoder), body->trailer_name, &value)) {
        return ERR_BAD_REQUEST;
    }
    value = span_trim(value);
    if (value.len != body->trailer_value_len) {
        return ERR_BAD_DIGEST;
    }
    if (body->checksum != NULL) {
        char computed[64];
        s3_checksum_final(body->checksum, computed);
        if (!span_equal_cstr(value, computed)) {
            return ERR_BAD_DIGEST;
        }
    }
    *ret_value = value;
    return ERR_OK;
}

static enum err collected(struct pass_body *body, struct arena *arena)
{
    check(body->collect);
    check(body->taken == 0);
    body->length = body->whole.len;
    if (body->length == 0) {
        body->kind = ORIGIN_BODY_NONE;
        return ERR_OK;
    }
    char hex[65];
    sigv4_sha256_hex(buf_span(&body->whole), hex);
    body->kind = ORIGIN_BODY_HASH;
    body->payload_hash = arena_copy(arena, span_from_cstr(hex));
    return body->payload_hash.ptr != NULL ? ERR_OK : ERR_NO_MEMORY;
}

enum err pass_body_replace(struct pass_body *body, struct arena *arena, struct buf *bytes)
{
    check(body->collect && body->is_verified && body->taken == 0);
    enum err err = buf_ok(bytes) ? collect_count(body, bytes->len) : ERR_ENTITY_TOO_LARGE;
    buf_done(&body->whole);
    body->whole = *bytes;
    buf_init(bytes, 0);
    return err == ERR_OK ? collected(body, arena) : err;
}

enum err pass_body_finish(struct pass_body *body, struct arena *arena)
{
    check(!body->is_verified);
    check(body->taken <= body->length);
    struct span trailer_value = {NULL, 0};
    if (body->decode) {
        if (!aws_chunked_finished(body->decoder) ||
            (!body->collect && body->payload_fed != body->decoded_length)) {
            return ERR_INCOMPLETE_BODY;
        }
        enum err err = verify_trailer(body, &trailer_value);
        if (err != ERR_OK) {
            return err;
        }
    }
    enum err err = verify_hash(body);
    if (err == ERR_OK && body->collect) {
        err = collected(body, arena);
    }
    if (err != ERR_OK) {
        return err;
    }
    if (body->reframe) {
        check(body->chunk_left == 0);
        struct buf tail;
        buf_init(&tail, 1024);
        aws_chunked_tail(body->trailer_name, trailer_value, &tail);
        check(buf_ok(&tail));
        byte_queue_append(&body->queue, buf_span(&tail));
        buf_done(&tail);
    }
    body->is_verified = true;
    return ERR_OK;
}

// Returns how many bytes the origin may get now. The last byte of a body is held back until its
// checks have passed.
static uint64_t available(const struct pass_body *body)
{
    check(body->taken <= body->length);
    uint64_t left = body->length - body->taken;
    if (body->collect) {
        return body->is_verified ? left : 0;
    }
    if (body->must_verify && !body->is_verified && left > 0) {
        left--;
    }
    return min_u64(left, body->queue.bytes);
}

size_t pass_body_take(struct pass_body *body, char *buf, size_t max, bool *ret_end)
{
    check(max > 0);
    *ret_end = body->taken == body->length && (!body->collect || body->is_verified);
    size_t n = min_u64(available(body), max);
    if (n == 0) {
        return 0;
    }
    if (body->collect) {
        memcpy(buf, body->whole.ptr + body->taken, n);
    } else {
        size_t got = byte_queue_read(&body->queue, buf, n);
        check(got == n);
    }
    body->taken += n;
    return n;
}

bool pass_body_ready(const struct pass_body *body)
{
    return available(body) > 0 ||
           (body->taken == body->length && (!body->collect || body->is_verified));
}

bool pass_body_full(const struct pass_body *body)
{
    return byte_queue_full(&body->queue);
}

bool pass_body_low(const struct pass_body *body)
{
    return byte_queue_low(&body->queue);
}

void pass_body_done(struct pass_body *body)
{
    aws_chunked_decoder_free(body->decoder);
    s3_checksum_free(body->sha256);
    s3_checksum_free(body->checksum);
    body->decoder = NULL;
    body->sha256 = NULL;
    body->checksum = NULL;
    if (body->queue.pieces.head.next != NULL) {
        byte_queue_done(&body->queue);
        buf_done(&body->whole);
    }
    chunk_budget_discharge(BUDGET_BODIES, body->counted_bytes * body->copies);
    body->counted_bytes = 0;
}
