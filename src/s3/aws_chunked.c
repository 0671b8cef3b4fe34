// SPDX-License-Identifier: Apache-2.0
// aws-chunked bodies: a streaming decoder for the signed and the unsigned form, and an encoder for
// the unsigned one. Pure except for the decoder's own memory. A decoder belongs to one thread.
//
//   chunk    = hex-size [";chunk-signature=" 64 hex] CRLF data CRLF
//              (the last chunk has size 0 and no data)
//   trailer  = *(name ":" value [CR] LF) ["x-amz-trailer-signature:" 64 hex [CR] LF] CRLF
//
// Each signature covers the previous one, so a chunk cannot be left out, repeated or moved:
//   "AWS4-HMAC-SHA256-PAYLOAD" \n date \n scope \n previous \n hex(SHA256("")) \n hex(SHA256(data))
//   "AWS4-HMAC-SHA256-TRAILER" \n date \n scope \n previous \n
//       hex(SHA256(trailer lines, "name:value\n"))
//
// The states below follow the grammar; input may be split anywhere. Chunk headers must end in CRLF.
// The decoder accepts three deviations of one common client: trailer lines that end with a bare LF,
// an empty line before the trailer's signature, and one more CRLF after a trailer.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "base/date.h"
#include "s3/s3_private.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <stdlib.h>
#include <string.h>

#define CHUNK_HEADER_MAX 256
#define TRAILER_MAX (16u << 10)
#define TRAILER_LINES_MAX 32u
#define SIZE_DIGITS_MAX 16
#define SIGNATURE_LEN 64

enum decoder_state {
    AT_CHUNK_HEADER, // collecting a line up to its CRLF
    AT_DATA,
    AT_DATA_CR, // the CR of the CRLF after a chunk's data
    AT_DATA_LF,
    AT_TRAILER,        // collecting lines up to an empty line
    AT_SIGNED_TRAILER, // the trailer's signature has arrived; an empty line must follow
    AT_END,            // everything has arrived; one more CRLF may follow
    AT_END_LF,
    AT_CLOSED, // the extra CRLF has arrived too
    AT_FAILED
};

#define TO(state) (1u << (state))
// The states that may follow a state. AT_FAILED may follow all but AT_FAILED.
static const unsigned NEXT[] = {
    [AT_CHUNK_HEADER] = TO(AT_DATA) | TO(AT_TRAILER),
    [AT_DATA] = TO(AT_DATA_CR),
    [AT_DATA_CR] = TO(AT_DATA_LF),
    [AT_DATA_LF] = TO(AT_CHUNK_HEADER),
    [AT_TRAILER] = TO(AT_SIGNED_TRAILER) | TO(AT_END),
    [AT_SIGNED_TRAILER] = TO(AT_END),
    [AT_END] = TO(AT_END_LF),
    [AT_END_LF] = TO(AT_CLOSED),
    [AT_CLOSED] = 0,
    [AT_FAILED] = 0,
};

struct aws_chunked_decoder {
    enum decoder_state state;
    enum err failure; // the error that led to AT_FAILED
    bool has_signatures;
    bool is_signed; // the body has signatures, even if the decoder does not verify them
    bool has_trailer;
    bool has_decoded_length;
    uint64_t decoded_length;
    uint64_t decoded; // payload bytes passed on
    uint64_t left;    // bytes of the current chunk still to come
    uint8_t signing_key[32];
    // signature of the previous chunk; for the first chunk, that of the request's head
    char previous_signature[SIGNATURE_LEN + 1];
    char chunk_signature[SIGNATURE_LEN + 1]; // signature in the current chunk's header
    char amz_date[DATE_AMZ_LEN + 1];
    char scope[SIGV4_SCOPE_MAX + 1];
    SHA256_CTX data_hash;
    SHA256_CTX trailer_hash;
    char line[CHUNK_HEADER_MAX + 2]; // the chunk header that is being collected
    size_t line_len;
    struct buf trailer_line;
    size_t trailer_len; // length of all trailer lines together
    unsigned trailer_lines;
    struct arena *arena; // memory of `trailers`
    struct headers trailers;
};

bool aws_chunked_detect(const struct headers *headers)
{
    struct span value;
    if (headers_get(headers, SPAN("x-amz-decoded-content-length"), &value)) {
        return true;
    }
    if (headers_get(headers, SPAN("x-amz-content-sha256"), &value) &&
        span_starts_with(span_trim(value), SPAN("STREAMING-"))) {
        return true;
    }
    for (unsigned i = 0; i < headers->count; i++) {
        if (span_equal_nocase(headers->items[i].name, SPAN("content-encoding")) &&
            headers_list_has(headers->items[i].value, SPAN("aws-chunked"))) {
            return true;
        }
    }
    return false;
}

bool aws_chunked_strip(struct arena *arena, struct span value, struct span *ret_value)
{
    if (!headers_list_has(value, SPAN("aws-chunked"))) {
        *ret_value = value;
        return true;
    }
    char *out = arena_alloc(arena, value.len + 1);
    if (out == NULL) {
        return false;
    }
    size_t len = 0;
    struct span piece;
    while (span_split(&value, ',', &piece)) {
        piece = span_trim(piece);
        if (piece.len == 0 || span_equal_nocase(piece, SPAN("aws-chunked"))) {
            continue;
        }
        if (len > 0) {
            out[len++] = ',';
        }
        memcpy(out + len, piece.ptr, piece.len);
        len += piece.len;
    }
    *ret_value = (struct span){out, len};
    return true;
}

static bool is_plain(struct span coding)
{
    return coding.len == 0 || span_equal_nocase(coding, SPAN("identity")) ||
           span_equal_nocase(coding, SPAN("aws-chunked")); // it belonged to the upload
}

bool s3_answer_is_coded(const struct headers *answered)
{
    for (unsigned i = 0; i < answered->count; i++) {
        struct span coding, rest = answered->items[i].value;
        bool names_codings = span_equal_nocase(answered->items[i].name, SPAN("Content-Encoding"));
        while (names_codings && span_split(&rest, ',', &coding)) {
            if (!is_plain(span_trim(coding))) {
                return true;
            }
        }
    }
    return false;
}

// --- Decoder -------------------------------------------------------------------------------------

struct aws_chunked_decoder *aws_chunked_decoder_new(const struct aws_chunked_options *options)
{
    struct aws_chunked_decoder *d = calloc(1, sizeof(*d));
    check(d != NULL);
    d->has_signatures = options->has_signatures;
    d->has_trailer = options->has_trailer;
    d->has_decoded_length = options->has_decoded_length;
    d->decoded_length = options->decoded_length;
    buf_init(&d->trailer_line, TRAILER_MAX);
    d->arena = arena_new(4u * TRAILER_MAX);
    if (d->has_signatures) {
        check(options->amz_date.len == DATE_AMZ_LEN);
        check(options->scope.len <= SIGV4_SCOPE_MAX);
        check(options->seed_signature.len == SIGNATURE_LEN);
        memcpy(d->signing_key, options->signing_key, sizeof(d->signing_key));
        memcpy(d->amz_date, options->amz_date.ptr, options->amz_date.len);
        memcpy(d->scope, options->scope.ptr, options->scope.len);
        memcpy(d->previous_signature, options->seed_signature.ptr, SIGNATURE_LEN);
        SHA256_Init(&d->trailer_hash);
    }
    return d;
}

void aws_chunked_decoder_free(struct aws_chunked_decoder *d)
{
    if (d == NULL) {
        return;
    }
    OPENSSL_cleanse(d->signing_key, sizeof(d->signing_key));
    buf_done(&d->trailer_line);
    arena_free(d->arena);
    free(d);
}

static void enter(struct aws_chunked_decoder *d, enum decoder_state next)
{
    check(d->state < AT_FAILED);
    if (next != AT_FAILED) {
        check_step(NEXT, d->state, next);
    }
    check(d->left == 0 || next == AT_DATA || next == AT_FAILED);
    d->state = next;
}

static bool is_signature(struct span s)
{
    uint8_t bytes[SIGNATURE_LEN / 2];
    return hex_decode(s, bytes, sizeof(bytes));
}

// Verifies a chunk's or trailer's claimed signature. If it is right, it becomes the previous one.
static enum err verify_signature(struct aws_chunked_decoder *d, const char *algorithm,
                                 const char *before_hash, SHA256_CTX *hash, const char *claimed)
{
    uint8_t digest[SHA256_DIGEST_LENGTH];
    char digest_hex[SIGNATURE_LEN + 1];
    uint8_t mac[SHA256_DIGEST_LENGTH];
    char mac_hex[SIGNATURE_LEN + 1];
    SHA256_Final(digest, hash);
    hex_encode(digest, sizeof(digest), digest_hex);

    struct buf text;
    buf_init(&text, 1024);
    buf_printf(&text, "%s\n%s\n%s\n%s\n%s%s", algorithm, d->amz_date, d->scope,
               d->previous_signature, before_hash, digest_hex);
    check(buf_ok(&text));
    sigv4_hmac_sha256(d->signing_key, sizeof(d->signing_key), buf_span(&text), mac);
    buf_done(&text);
    hex_encode(mac, sizeof(mac), mac_hex);
    if (CRYPTO_memcmp(mac_hex, claimed, SIGNATURE_LEN) != 0) {
        return ERR_SIGNATURE_MISMATCH;
    }
    memcpy(d->previous_signature, mac_hex, sizeof(mac_hex));
    return ERR_OK;
}

static enum err end_chunk(struct aws_chunked_decoder *d)
{
    if (!d->has_signatures) {
        return ERR_OK;
    }
    return verify_signature(d, "AWS4-HMAC-SHA256-PAYLOAD", SIGV4_EMPTY_SHA256 "\n", &d->data_hash,
                            d->chunk_signature);
}

// Parses the chunk header "hex-size". In the signed form, ";chunk-signature=" and 64 hex digits
// follow.
static enum err parse_chunk_header(struct aws_chunked_decoder *d, struct span line)
{
    struct span size = {line.ptr, span_find(line, ';')};
    struct span extension = {NULL, 0};
    if (size.len < line.len) {
        extension = (struct span){line.ptr + size.len + 1, line.len - size.len - 1};
    }
    if (size.len == 0 || size.len > SIZE_DIGITS_MAX) {
        return ERR_BAD_REQUEST;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < size.len; i++) {
        char c = size.ptr[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) {
            return ERR_BAD_REQUEST;
        }
        value = value << 4 | (uint64_t)digit;
    }
    const struct span name = SPAN("chunk-signature=");
    d->is_signed = d->has_signatures || span_starts_with(extension, name);
    if (d->has_signatures) {
        if (!span_starts_with(extension, name)) {
            return ERR_BAD_REQUEST;
        }
        struct span signature = {extension.ptr + name.len, extension.len - name.len};
        if (!is_signature(signature)) {
            return ERR_BAD_REQUEST;
        }
        memcpy(d->chunk_signature, signature.ptr, SIGNATURE_LEN);
        SHA256_Init(&d->data_hash);
    }
    uint64_t total;
    if (!add_u64(d->decoded, value, &total) ||
        (d->has_decoded_length && total > d->decoded_length)) {
        return ERR_INCOMPLETE_BODY;
    }
    if (value == 0 && d->has_decoded_length && total != d->decoded_length) {
        return ERR_INCOMPLETE_BODY;
    }
    d->left = value;
    return ERR_OK;
}

static enum err take_chunk_header_byte(struct aws_chunked_decoder *d, char c)
{
    if (d->line_len == CHUNK_HEADER_MAX + 2) {
        return ERR_BAD_REQUEST;
    }
    d->line[d->line_len++] = c;
    bool after_cr = d->line_len >= 2 && d->line[d->line_len - 2] == '\r';
    if (c != '\n') {
        return after_cr ? ERR_BAD_REQUEST : ERR_OK;
    }
    if (!after_cr) {
        return ERR_BAD_REQUEST;
    }
    struct span line = {d->line, d->line_len - 2};
    d->line_len = 0;
    enum err err = parse_chunk_header(d, line);
    if (err != ERR_OK) {
        return err;
    }
    bool is_last = d->left == 0;
    enter(d, is_last ? AT_TRAILER : AT_DATA);
    return is_last ? end_chunk(d) : ERR_OK;
}

static enum err take_trailer_signature(struct aws_chunked_decoder *d, struct span value)
{
    if (!d->is_signed || !is_signature(value)) {
        return ERR_BAD_REQUEST;
    }
    enter(d, AT_SIGNED_TRAILER);
    // Without has_signatures nothing is verified. The trailer must have a signature, but any is
    // accepted.
    return d->has_signatures
               ? verify_signature(d, "AWS4-HMAC-SHA256-TRAILER", "", &d->trailer_hash, value.ptr)
               : ERR_OK;
}

static enum err take_trailer_line(struct aws_chunked_decoder *d, struct span line)
{
    bool has_signature = d->state == AT_SIGNED_TRAILER;
    check(has_signature || d->state == AT_TRAILER);
    if (line.len == 0) {
        // A signed trailer ends with an empty line after its signature. An empty line between the
        // other lines and the signature is ignored.
        bool waits = d->is_signed && d->trailer_lines > 0 && !has_signature;
        if (!waits) {
            if (d->has_trailer && d->has_signatures && !has_signature) {
                return ERR_SIGNATURE_MISMATCH;
            }
            enter(d, AT_END);
        }
        return ERR_OK;
    }
    if (!d->has_trailer || has_signature || ++d->trailer_lines > TRAILER_LINES_MAX) {
        return ERR_BAD_REQUEST;
    }
    size_t colon = span_find(line, ':');
    if (colon == line.len) {
        return ERR_BAD_REQUEST;
    }
    struct span name = {line.ptr, colon};
    struct span value = span_trim((struct span){line.ptr + colon + 1, line.len - colon - 1});
    if (!headers_name_is_token(name) || !headers_value_is_clean(value)) {
        return ERR_BAD_REQUEST;
    }
    if (span_equal_nocase(name, SPAN("x-amz-trailer-signature"))) {
        return take_trailer_signature(d, value);
    }
    if (d->has_signatures) {
        SHA256_Update(&d->trailer_hash, name.ptr, name.len);
        SHA256_Update(&d->trailer_hash, ":", 1);
        SHA256_Update(&d->trailer_hash, value.ptr, value.len);
        SHA256_Update(&d->trailer_hash, "\n", 1);
    }
    struct span name_copy = arena_copy(d->arena, name);
    struct span value_copy = arena_copy(d->arena, value);
    if (name_copy.ptr == NULL || value_copy.ptr == NULL ||
        !headers_add(&d->trailers, d->arena, name_copy, value_copy)) {
        return ERR_BAD_REQUEST;
    }
    return ERR_OK;
}

static enum err take_trailer_byte(struct aws_chunked_decoder *d, char c)
{
    if (++d->trailer_len > TRAILER_MAX) {
        return ERR_BAD_REQUEST;
    }
    if (c != '\n') {
        buf_append_char(&d->trailer_line, c);
        return ERR_OK;
    }
    check(buf_ok(&d->trailer_line));
    struct span line = buf_span(&d->trailer_line);
    if (line.len > 0 && line.ptr[line.len - 1] == '\r') {
        line.len--;
    }
    enum err err = take_trailer_line(d, line);
    d->trailer_line.len = 0;
    return err;
}

// Passes on the bytes of the current chunk that are in this input.
static enum err take_data(struct aws_chunked_decoder *d, struct span *input,
                          aws_chunked_data_fn *on_data, void *ctx)
{
    check(d->state == AT_DATA);
    check(d->left > 0 && input->len > 0);
    struct span data = {input->ptr, (size_t)min_u64(input->len, d->left)};
    if (d->has_signatures) {
        SHA256_Update(&d->data_hash, data.ptr, data.len);
    }
    d->left -= data.len;
    d->decoded += data.len;
    input->ptr += data.len;
    input->len -= data.len;
    if (d->left == 0) {
        enter(d, AT_DATA_CR);
    }
    return on_data(ctx, data);
}

static enum err take_byte(struct aws_chunked_decoder *d, char c)
{
    switch (d->state) {
    case AT_CHUNK_HEADER:
        return take_chunk_header_byte(d, c);
    case AT_DATA_CR:
        enter(d, AT_DATA_LF);
        return c == '\r' ? ERR_OK : ERR_BAD_REQUEST;
    case AT_DATA_LF:
        enter(d, AT_CHUNK_HEADER);
        return c == '\n' ? end_chunk(d) : ERR_BAD_REQUEST;
    case AT_TRAILER:
    case AT_SIGNED_TRAILER:
        return take_trailer_byte(d, c);
    case AT_END:
        if (c != '\r' || !d->has_trailer) {
            return ERR_BAD_REQUEST;
        }
        enter(d, AT_END_LF);
        return ERR_OK;
    case AT_END_LF:
        enter(d, AT_CLOSED);
        return c == '\n' ? ERR_OK : ERR_BAD_REQUEST;
    case AT_CLOSED:
        return ERR_BAD_REQUEST;
    case AT_DATA:
    case AT_FAILED:
        break;
    }
    check(false);
    return ERR_INTERNAL;
}

enum err aws_chunked_decode(struct aws_chunked_decoder *d, struct span input,
                            aws_chunked_data_fn *on_data, void *ctx)
{
    if (d->state == AT_FAILED) {
        return d->failure;
    }
    enum err err = ERR_OK;
    while (input.len > 0 && err == ERR_OK) {
        if (d->state == AT_DATA) {
            err = take_data(d, &input, on_data, ctx);
        } else {
            err = take_byte(d, *input.ptr);
            input.ptr++;
            input.len--;
        }
    }
    if (err != ERR_OK) {
        enter(d, AT_FAILED);
        d->failure = err;
    }
    return err;
}

bool aws_chunked_finished(const struct aws_chunked_decoder *d)
{
    return d->state == AT_END || d->state == AT_CLOSED;
}

const struct headers *aws_chunked_trailers(const struct aws_chunked_decoder *d)
{
    return &d->trailers;
}

// --- Encoder -------------------------------------------------------------------------------------

static unsigned hex_digits(uint64_t value)
{
    unsigned digits = 1;
    while (value >= 16) {
        value >>= 4;
        digits++;
    }
    return digits;
}

uint64_t aws_chunked_encoded_length(uint64_t decoded_length, uint64_t chunk_size,
                                    struct span trailer_name, size_t trailer_value_len)
{
    check(chunk_size > 0);
    uint64_t whole = decoded_length / chunk_size;
    uint64_t rest = decoded_length % chunk_size;
    uint64_t total = whole * (hex_digits(chunk_size) + chunk_size + 4);
    if (rest > 0) {
        total += hex_digits(rest) + rest + 4;
    }
    total += 3; // "0\r\n", the last chunk
    if (trailer_name.len > 0) {
        total += trailer_name.len + 1 + trailer_value_len + 2;
    }
    return total + 2;
}

void aws_chunked_chunk_head(uint64_t chunk_len, struct buf *out)
{
    buf_printf(out, "%llx\r\n", (unsigned long long)chunk_len);
}

void aws_chunked_tail(struct span trailer_name, struct span trailer_value, struct buf *out)
{
    buf_append_cstr(out, "0\r\n");
    if (trailer_name.len > 0) {
        buf_append_span(out, trailer_name);
        buf_append_char(out, ':');
        buf_append_span(out, trailer_value);
        buf_append_cstr(out, "\r\n");
    }
    buf_append_cstr(out, "\r\n");
}
