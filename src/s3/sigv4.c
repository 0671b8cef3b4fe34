// SPDX-License-Identifier: Apache-2.0
// Signature version 4: signs requests to an origin and verifies those of clients. Both build the
// same canonical request from a method, a path, a query, a list of signed headers, and a payload
// hash. Any thread.
//
//   StringToSign = "AWS4-HMAC-SHA256" \n date-time \n scope \n hex(SHA256(CanonicalRequest))
//   key          = HMAC(HMAC(HMAC(HMAC("AWS4" secret, date), region), service), "aws4_request")
//
// The verifier uses the raw target and the raw headers, because it must check exactly what was
// sent. Headers come in the order of the client's SignedHeaders. S3's form of the path is decoded
// once, encoded once, and not normalised. Signers disagree on three bytes, so the verifier tries
// each form:
//   a raw '+' in the path       signed as %2B or %20
//   an escaped slash            signed as %2F or '/'
//   a tab in a header's value   folded with the white space around it into one space (botocore, the
//                               SDKs for Java and JavaScript, MinIO, SeaweedFS), or kept (the SDK
//                               for Go)
// None of these forms opens another key: an escaped slash and a tab do not change the key, and
// after a match with '+' as %20 the key is decoded again to fit (s3_request_plus_is_space). Our
// signer folds tabs.
//
// The canonical request is hashed in pieces of a few hundred bytes. It is written out as text only
// for an error document. Signing keys are cached (sigv4_keys.c). This file uses OpenSSL's low-level
// SHA-256 calls, because fetching an EVP digest costs more than hashing so few bytes.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "s3/s3.h"

#include "base/date.h"
#include "base/headers_index.h"
#include "s3/s3_private.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <stdlib.h>
#include <string.h>

#define ALGORITHM "AWS4-HMAC-SHA256"
#define CANONICAL_TEXT_MAX (64u << 10)
#define STRING_TO_SIGN_MAX 512

// --- SHA-256 and HMAC ----------------------------------------------------------------------------

void sigv4_sha256_hex(struct span data, char *ret_hex)
{
    SHA256_CTX ctx;
    uint8_t digest[SHA256_DIGEST_LENGTH];
    SHA256_Init(&ctx);
    SHA256_Update(&ctx, data.ptr, data.len);
    SHA256_Final(digest, &ctx);
    hex_encode(digest, sizeof(digest), ret_hex);
}

void sigv4_hmac_sha256(const void *key, size_t key_len, struct span data, uint8_t *ret_mac)
{
    uint8_t block[SHA256_CBLOCK] = {0};
    uint8_t pad[SHA256_CBLOCK];
    SHA256_CTX ctx;
    if (key_len > sizeof(block)) {
        SHA256_Init(&ctx);
        SHA256_Update(&ctx, key, key_len);
        SHA256_Final(block, &ctx);
    } else if (key_len > 0) {
        memcpy(block, key, key_len);
    }
    for (size_t i = 0; i < sizeof(block); i++) {
        pad[i] = block[i] ^ 0x36;
    }
    SHA256_Init(&ctx);
    SHA256_Update(&ctx, pad, sizeof(pad));
    SHA256_Update(&ctx, data.ptr, data.len);
    SHA256_Final(ret_mac, &ctx);
    for (size_t i = 0; i < sizeof(block); i++) {
        pad[i] = block[i] ^ 0x5c;
    }
    SHA256_Init(&ctx);
    SHA256_Update(&ctx, pad, sizeof(pad));
    SHA256_Update(&ctx, ret_mac, SHA256_DIGEST_LENGTH);
    SHA256_Final(ret_mac, &ctx);
    OPENSSL_cleanse(block, sizeof(block));
    OPENSSL_cleanse(pad, sizeof(pad));
}

// --- Canonical path and query --------------------------------------------------------------------

// How to encode the two bytes of a path on which signers disagree.
struct path_form {
    bool plus_as_space;
    bool keep_escaped_slash;
};

static bool is_unreserved(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_' || c == '~';
}

static int hex_value(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static char *put_escaped(char *out, unsigned char c)
{
    static const char DIGITS[] = "0123456789ABCDEF";
    *out++ = '%';
    *out++ = DIGITS[c >> 4];
    *out++ = DIGITS[c & 15];
    return out;
}

// Writes `raw` in the canonical encoding: decoded once and encoded once. `out` must have room for
// three times raw.len. Returns the end, or NULL for a broken escape.
static char *put_canonical(char *out, struct span raw, bool keep_slash, struct path_form form)
{
    for (size_t i = 0; i < raw.len; i++) {
        char c = raw.ptr[i];
        if (c == '%') {
            int high = raw.len - i >= 3 ? hex_value(raw.ptr[i + 1]) : -1;
            int low = high >= 0 ? hex_value(raw.ptr[i + 2]) : -1;
            if (low < 0) {
                return NULL;
            }
            c = (char)(high << 4 | low);
            i += 2;
            if (is_unreserved(c) || (c == '/' && keep_slash && !form.keep_escaped_slash)) {
                *out++ = c;
            } else {
                out = put_escaped(out, (unsigned char)c);
            }
        } else if (is_unreserved(c) || (c == '/' && keep_slash)) {
            *out++ = c;
        } else if (c == '+' && form.plus_as_space) {
            out = put_escaped(out, ' ');
        } else {
            out = put_escaped(out, (unsigned char)c);
        }
    }
    return out;
}

static enum err canonical_path(struct arena *arena, struct span raw, struct path_form form,
                               struct span *ret_path)
{
    size_t plain = 0;
    while (plain < raw.len && (is_unreserved(raw.ptr[plain]) || raw.ptr[plain] == '/')) {
        plain++;
    }
    if (plain == raw.len) {
        *ret_path = raw;
        return ERR_OK;
    }
    char *text = arena_alloc(arena, raw.len * 3);
    if (text == NULL) {
        return ERR_NO_MEMORY;
    }
    char *end = put_canonical(text, raw, true, form);
    if (end == NULL) {
        return ERR_INVALID_URI;
    }
    *ret_path = (struct span){text, (size_t)(end - text)};
    return ERR_OK;
}

struct canonical_param {
    struct span name, value;
};

// Inserts a parameter into the array, which is sorted by encoded name, then value. It has at most
// S3_QUERY_PARAMS_MAX entries, so insertion sort is fast enough.
static void insert_param(struct canonical_param *params, unsigned count,
                         struct canonical_param added)
{
    unsigned at = count;
    while (at > 0) {
        int order = span_compare(params[at - 1].name, added.name);
        if (order < 0 || (order == 0 && span_compare(params[at - 1].value, added.value) <= 0)) {
            break;
        }
        params[at] = params[at - 1];
        at--;
    }
    params[at] = added;
}

enum err sigv4_canonical_query(struct arena *arena, struct span raw_query, bool skip_signature,
                               struct span *ret_query)
{
    if (raw_query.len == 0) {
        *ret_query = (struct span){NULL, 0};
        return ERR_OK;
    }
    const struct path_form form = {.plus_as_space = true}; // in a query, '+' is a space
    struct canonical_param params[S3_QUERY_PARAMS_MAX];
    unsigned count = 0;
    // `pieces` receives the encoded names and values, `text` the joined query.
    char *pieces = arena_alloc(arena, raw_query.len * 3);
    char *text = arena_alloc(arena, raw_query.len * 3 + 2 * S3_QUERY_PARAMS_MAX);
    if (pieces == NULL || text == NULL) {
        return ERR_NO_MEMORY;
    }
    struct span rest = raw_query;
    struct span piece;
    while (span_split(&rest, '&', &piece)) {
        if (piece.len == 0) {
            continue;
        }
        size_t equals = span_find(piece, '=');
        struct span raw_name = {piece.ptr, equals};
        struct span raw_value = {NULL, 0};
        if (equals < piece.len) {
            raw_value = (struct span){piece.ptr + equals + 1, piece.len - equals - 1};
        }
        char *name_end = put_canonical(pieces, raw_name, false, form);
        char *value_end = name_end != NULL ? put_canonical(name_end, raw_value, false, form) : NULL;
        if (value_end == NULL || count == S3_QUERY_PARAMS_MAX) {
            return ERR_INVALID_URI;
        }
        struct canonical_param param = {{pieces, (size_t)(name_end - pieces)},
                                        {name_end, (size_t)(value_end - name_end)}};
        pieces = value_end;
        if (!skip_signature || !span_equal_cstr(param.name, "X-Amz-Signature")) {
            insert_param(params, count++, param);
        }
    }
    char *end = text;
    for (unsigned i = 0; i < count; i++) {
        if (i > 0) {
            *end++ = '&';
        }
        memcpy(end, params[i].name.ptr, params[i].name.len);
        end += params[i].name.len;
        *end++ = '=';
        memcpy(end, params[i].value.ptr, params[i].value.len);
        end += params[i].value.len;
    }
    *ret_query = (struct span){text, (size_t)(end - text)};
    return ERR_OK;
}

// --- Canonical request ---------------------------------------------------------------------------

struct canonical_request {
    struct span method, path, query;
    const struct headers_index *headers;
    struct span signed_headers; // "a;b;c", lower case, in the signer's order
    struct span payload_hash;
    bool keeps_tabs; // tabs in header values are kept; only spaces are folded
};

#define SINK_BYTES 1024

// The destination of a canonical request: a text buffer or a SHA-256 hash. For the hash, small
// pieces are first collected in `bytes`, because a call of SHA-256 with a few bytes costs as much
// as hashing them.
struct sink {
    struct buf *text; // destination; NULL: the bytes are hashed
    SHA256_CTX sha;
    size_t len;
    char bytes[SINK_BYTES];
};

static void sink_flush(struct sink *sink)
{
    SHA256_Update(&sink->sha, sink->bytes, sink->len);
    sink->len = 0;
}

static void put_long(struct sink *sink, struct span piece)
{
    if (sink->text != NULL) {
        buf_append_span(sink->text, piece);
        return;
    }
    sink_flush(sink);
    SHA256_Update(&sink->sha, piece.ptr, piece.len);
}

static inline void put(struct sink *sink, struct span piece)
{
    if (piece.len == 0) {
        return;
    }
    if (sink->text != NULL || piece.len > SINK_BYTES - sink->len) {
        put_long(sink, piece);
        return;
    }
    memcpy(sink->bytes + sink->len, piece.ptr, piece.len);
    sink->len += piece.len;
}

static inline bool is_folded(char c, bool keeps_tabs)
{
    return c == ' ' || (c == '\t' && !keeps_tabs);
}

// Writes a header's value in the specification's Trimall form: trimmed, with each inner run of
// white space folded into one space.
static void put_header_value(struct sink *sink, struct span value, bool keeps_tabs)
{
    value = span_trim(value);
    size_t begin = 0;
    for (size_t i = keeps_tabs ? span_find(value, ' ') : 0; i < value.len; i++) {
        if (!is_folded(value.ptr[i], keeps_tabs)) {
            continue;
        }
        size_t run = i;
        while (i + 1 < value.len && is_folded(value.ptr[i + 1], keeps_tabs)) {
            i++;
        }
        if (i > run || value.ptr[run] == '\t') {
            put(sink, (struct span){value.ptr + begin, run - begin});
            put(sink, SPAN(" "));
            begin = i + 1;
        }
    }
    put(sink, (struct span){value.ptr + begin, value.len - begin});
}

// Writes the canonical request. Returns false if the request lacks a header of the list.
static bool put_canonical_request(struct sink *sink, const struct canonical_request *c)
{
    put(sink, c->method);
    put(sink, SPAN("\n"));
    put(sink, c->path);
    put(sink, SPAN("\n"));
    put(sink, c->query);
    put(sink, SPAN("\n"));
    bool all_there = true;
    struct span rest = c->signed_headers;
    struct span name;
    while (span_split(&rest, ';', &name)) {
        put(sink, name);
        unsigned i = headers_index_find(c->headers, name);
        all_there = all_there && i != HEADERS_INDEX_NONE;
        put(sink, SPAN(":"));
        while (i != HEADERS_INDEX_NONE) {
            put_header_value(sink, c->headers->headers->items[i].value, c->keeps_tabs);
            i = headers_index_next(c->headers, i);
            put(sink, i != HEADERS_INDEX_NONE ? SPAN(",") : SPAN(""));
        }
        put(sink, SPAN("\n"));
    }
    put(sink, SPAN("\n"));
    put(sink, c->signed_headers);
    put(sink, SPAN("\n"));
    put(sink, c->payload_hash);
    return all_there;
}

// Builds the string to sign. `ret_text` must have room for STRING_TO_SIGN_MAX bytes. Returns false
// if the request lacks a header of the list.
static bool string_to_sign(const struct canonical_request *c, const char *amz_date,
                           const struct sigv4_scope *scope, char *ret_text, size_t *ret_len)
{
    uint8_t digest[SHA256_DIGEST_LENGTH];
    char digest_hex[2 * SHA256_DIGEST_LENGTH + 1];
    struct sink sink;
    sink.text = NULL;
    sink.len = 0;
    SHA256_Init(&sink.sha);
    bool all_there = put_canonical_request(&sink, c);
    sink_flush(&sink);
    SHA256_Final(digest, &sink.sha);
    hex_encode(digest, sizeof(digest), digest_hex);

    check(scope->region.len <= SIGV4_REGION_MAX);
    check(scope->service.len <= SIGV4_SERVICE_MAX);
    char *out = ret_text;
    const struct span pieces[] = {SPAN(ALGORITHM "\n"),
                                  {amz_date, DATE_AMZ_LEN},
                                  SPAN("\n"),
                                  {amz_date, 8},
                                  SPAN("/"),
                                  scope->region,
                                  SPAN("/"),
                                  scope->service,
                                  SPAN("/aws4_request\n"),
                                  {digest_hex, sizeof(digest_hex) - 1}};
    for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
        if (pieces[i].len > 0) {
            memcpy(out, pieces[i].ptr, pieces[i].len);
            out += pieces[i].len;
        }
    }
    *ret_len = (size_t)(out - ret_text);
    return all_there;
}

// --- Signing -------------------------------------------------------------------------------------

static bool starts_with_nocase(struct span s, struct span prefix)
{
    return s.len >= prefix.len && span_equal_nocase((struct span){s.ptr, prefix.len}, prefix);
}

// Returns true for a header that botocore never signs, because an intermediary may change it.
static bool header_is_never_signed(struct span name)
{
    static const char *const NEVER[] = {"authorization", "expect", "user-agent", "accept-encoding",
                                        "x-amzn-trace-id"};
    for (size_t i = 0; i < ARRAY_LEN(NEVER); i++) {
        if (span_equal_nocase(name, span_from_cstr(NEVER[i]))) {
            return true;
        }
    }
    return headers_is_hop_by_hop(name);
}

static bool header_is_signed(struct span name, bool is_s3)
{
    if (header_is_never_signed(name)) {
        return false;
    }
    return !is_s3 || span_equal_nocase(name, SPAN("host")) ||
           starts_with_nocase(name, SPAN("x-amz-")) || starts_with_nocase(name, SPAN("if-")) ||
           span_equal_nocase(name, SPAN("range")) || span_equal_nocase(name, SPAN("content-md5")) ||
           span_equal_nocase(name, SPAN("content-type"));
}

static int compare_names(const void *a, const void *b)
{
    return span_compare(*(const struct span *)a, *(const struct span *)b);
}

// Builds the list of signed headers "a;b;c": lower case, sorted, each name once.
static enum err list_signed_headers(struct arena *arena, const struct headers *headers, bool is_s3,
                                    struct span *ret_list)
{
    struct span names[HEADERS_MAX];
    unsigned count = 0;
    size_t total = 0;
    for (unsigned i = 0; i < headers->count; i++) {
        struct span name = headers->items[i].name;
        if (!header_is_signed(name, is_s3)) {
            continue;
        }
        char *lower = arena_alloc(arena, name.len + 1);
        if (lower == NULL) {
            return ERR_NO_MEMORY;
        }
        for (size_t j = 0; j < name.len; j++) {
            char c = name.ptr[j];
            lower[j] = c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
        }
        names[count++] = (struct span){lower, name.len};
        total += name.len + 1;
    }
    qsort(names, count, sizeof(names[0]), compare_names);
    char *list = arena_alloc(arena, total + 1);
    if (list == NULL) {
        return ERR_NO_MEMORY;
    }
    size_t len = 0;
    for (unsigned i = 0; i < count; i++) {
        if (i > 0 && span_equal(names[i], names[i - 1])) {
            continue; // a repeated header: the name is listed once, for all its values
        }
        if (i > 0) {
            list[len++] = ';';
        }
        memcpy(list + len, names[i].ptr, names[i].len);
        len += names[i].len;
    }
    *ret_list = (struct span){list, len};
    return ERR_OK;
}

// Normalises a path as AWS services other than S3 do: removes empty segments and resolves "." and
// ".." (RFC 3986 section 5.2.4).
static enum err normalize_path(struct arena *arena, struct span path, struct span *ret_path)
{
    char *out = arena_alloc(arena, path.len + 2);
    if (out == NULL) {
        return ERR_NO_MEMORY;
    }
    size_t len = 0;
    bool ends_in_slash = path.len == 0 || path.ptr[path.len - 1] == '/';
    struct span rest = path;
    struct span segment;
    while (span_split(&rest, '/', &segment)) {
        if (span_equal_cstr(segment, "..")) {
            while (len > 0 && out[--len] != '/') {
            }
        } else if (segment.len > 0 && !span_equal_cstr(segment, ".")) {
            out[len++] = '/';
            memcpy(out + len, segment.ptr, segment.len);
            len += segment.len;
        }
    }
    if (len == 0 || ends_in_slash) {
        out[len++] = '/';
    }
    *ret_path = (struct span){out, len};
    return ERR_OK;
}

static enum err service_path(struct arena *arena, const struct sigv4_scope *scope, struct span path,
                             struct span *ret_path)
{
    *ret_path = path;
    if (scope->normalize_path) {
        enum err err = normalize_path(arena, path, ret_path);
        if (err != ERR_OK) {
            return err;
        }
    }
    if (!scope->double_encode) {
        return ERR_OK;
    }
    char *text = arena_alloc(arena, ret_path->len * 3 + 1);
    if (text == NULL) {
        return ERR_NO_MEMORY;
    }
    char *end = text;
    for (size_t i = 0; i < ret_path->len; i++) {
        char c = ret_path->ptr[i];
        if (is_unreserved(c) || c == '/') {
            *end++ = c;
        } else {
            end = put_escaped(end, (unsigned char)c);
        }
    }
    *ret_path = (struct span){text, (size_t)(end - text)};
    return ERR_OK;
}

static enum err add_date_and_token(struct arena *arena, const struct sigv4_credentials *credentials,
                                   const char *amz_date, struct headers *headers)
{
    struct span date = arena_copy(arena, (struct span){amz_date, DATE_AMZ_LEN});
    headers_remove(headers, SPAN("authorization"));
    headers_remove(headers, SPAN("x-amz-date"));
    headers_remove(headers, SPAN("x-amz-security-token"));
    if (date.ptr == NULL || !headers_add(headers, arena, SPAN("x-amz-date"), date)) {
        return ERR_NO_MEMORY;
    }
    if (credentials->session_token.len > 0) {
        struct span token = arena_copy(arena, credentials->session_token);
        if (token.ptr == NULL ||
            !headers_add(headers, arena, SPAN("x-amz-security-token"), token)) {
            return ERR_NO_MEMORY;
        }
    }
    return ERR_OK;
}

enum err sigv4_sign(struct arena *arena, const struct sigv4_credentials *credentials,
                    const struct sigv4_scope *scope, time_t now, struct span method,
                    struct span path, struct span canonical_query, struct headers *headers,
                    struct span payload_hash, char *ret_signature)
{
    if (scope->region.len > SIGV4_REGION_MAX || scope->service.len > SIGV4_SERVICE_MAX) {
        return ERR_INVALID;
    }
    char amz_date[DATE_AMZ_LEN + 1];
    date_format_amz(now, amz_date);
    enum err err = add_date_and_token(arena, credentials, amz_date, headers);
    if (err != ERR_OK) {
        return err;
    }
    struct headers_index index;
    headers_index_build(&index, headers);
    struct canonical_request c = {.method = method,
                                  .query = canonical_query,
                                  .headers = &index,
                                  .payload_hash = payload_hash};
    err = service_path(arena, scope, path, &c.path);
    if (err == ERR_OK) {
        err = list_signed_headers(arena, headers, span_equal_cstr(scope->service, "s3"),
                                  &c.signed_headers);
    }
    if (err != ERR_OK) {
        return err;
    }
    char text[STRING_TO_SIGN_MAX];
    size_t text_len;
    check(string_to_sign(&c, amz_date, scope, text, &text_len));
    struct sigv4_key own;
    uint8_t mac[SHA256_DIGEST_LENGTH];
    char signature[2 * SHA256_DIGEST_LENGTH + 1];
    const struct sigv4_key *key =
        sigv4_signing_key(credentials->access_key, credentials->secret_key,
                          (struct span){amz_date, 8}, scope->region, scope->service, &own);
    sigv4_key_mac(key, (struct span){text, text_len}, mac);
    if (key == &own) {
        OPENSSL_cleanse(&own, sizeof(own));
    }
    hex_encode(mac, sizeof(mac), signature);

    char *value = arena_printf(
        arena,
        ALGORITHM " Credential=%.*s/%.8s/%.*s/%.*s/aws4_request, SignedHeaders=%.*s, Signature=%s",
        (int)credentials->access_key.len, credentials->access_key.ptr, amz_date,
        (int)scope->region.len, scope->region.ptr, (int)scope->service.len, scope->service.ptr,
        (int)c.signed_headers.len, c.signed_headers.ptr, signature);
    if (value == NULL ||
        !headers_add(headers, arena, SPAN("authorization"), span_from_cstr(value))) {
        return ERR_NO_MEMORY;
    }
    if (ret_signature != NULL) {
        memcpy(ret_signature, signature, sizeof(signature));
    }
    return ERR_OK;
}

// --- Verifying -----------------------------------------------------------------------------------

static enum err verify_time(const struct sigv4_claim *claim, time_t now)
{
    // A signing key is valid only for the day in the scope, so the request must be dated on that
    // day.
    if (!span_equal(claim->date, (struct span){claim->amz_date, 8})) {
        return claim->presigned ? ERR_AUTHORIZATION_QUERY : ERR_AUTHORIZATION_MALFORMED;
    }
    if (claim->presigned) {
        if (claim->time > now + SIGV4_SKEW_MAX_S) {
            return ERR_NOT_YET_VALID;
        }
        return now - claim->time >= (time_t)claim->expires_s ? ERR_EXPIRED : ERR_OK;
    }
    time_t skew = now > claim->time ? now - claim->time : claim->time - now;
    return skew > SIGV4_SKEW_MAX_S ? ERR_TIME_SKEWED : ERR_OK;
}

// Checks the list of signed headers, which also bounds all later work on it. Each name must occur
// once. Host must be listed, and so must every x-amz-* header of the request. A name that the
// request lacks may be repeated here; the request is refused later for lacking it.
static enum err verify_signed_headers(struct span list, const struct headers_index *index)
{
    const struct headers *headers = index->headers;
    bool is_signed[HEADERS_MAX];
    unsigned count = 0;
    bool host_signed = false;
    struct span rest = list;
    struct span name;
    memset(is_signed, 0, headers->count * sizeof(is_signed[0]));
    while (span_split(&rest, ';', &name)) {
        unsigned i = headers_index_find(index, name);
        if (count++ == HEADERS_MAX || name.len == 0 || (i != HEADERS_INDEX_NONE && is_signed[i])) {
            return ERR_SIGNATURE_MISMATCH;
        }
        for (; i != HEADERS_INDEX_NONE; i = headers_index_next(index, i)) {
            is_signed[i] = true;
        }
        host_signed = host_signed || span_equal_cstr(name, "host");
    }
    if (!host_signed || headers_count(headers, SPAN("host")) != 1) {
        return ERR_HEADERS_NOT_SIGNED;
    }
    for (unsigned i = 0; i < headers->count; i++) {
        if (!is_signed[i] && starts_with_nocase(headers->items[i].name, SPAN("x-amz-"))) {
            return ERR_HEADERS_NOT_SIGNED;
        }
    }
    return ERR_OK;
}

static bool signature_fits(const struct sigv4_key *key, const char *text, size_t text_len,
                           struct span signature)
{
    uint8_t mac[SHA256_DIGEST_LENGTH];
    char mac_hex[2 * SHA256_DIGEST_LENGTH + 1];
    sigv4_key_mac(key, (struct span){text, text_len}, mac);
    hex_encode(mac, sizeof(mac), mac_hex);
    return signature.len == sizeof(mac_hex) - 1 &&
           CRYPTO_memcmp(mac_hex, signature.ptr, signature.len) == 0;
}

static void fill_mismatch(struct arena *arena, const struct canonical_request *c, const char *text,
                          size_t text_len, struct sigv4_mismatch *ret_mismatch)
{
    struct buf canonical;
    buf_init(&canonical, CANONICAL_TEXT_MAX);
    struct sink sink;
    sink.text = &canonical;
    // a header that the request lacks is shown as an empty one
    (void)put_canonical_request(&sink, c);
    ret_mismatch->string_to_sign = arena_copy(arena, (struct span){text, text_len});
    if (buf_ok(&canonical)) {
        ret_mismatch->canonical_request = arena_copy(arena, buf_span(&canonical));
    }
    buf_done(&canonical);
}

static bool holds_escaped_slash(struct span path)
{
    for (size_t i = 0; i + 2 < path.len; i++) {
        if (path.ptr[i] == '%' && path.ptr[i + 1] == '2' && (path.ptr[i + 2] | 0x20) == 'f') {
            return true;
        }
    }
    return false;
}

static bool any_value_holds_tab(const struct headers *headers)
{
    for (unsigned i = 0; i < headers->count; i++) {
        struct span value = headers->items[i].value;
        if (span_find(value, '\t') < value.len) {
            return true;
        }
    }
    return false;
}

// Parts of a request that signers encode in two ways: a '+' and an escaped '/' in the path, and a
// tab in a header's value. A signature is tried with each combination.
struct forms {
    bool has_plus, has_slash, has_tab;
};

static unsigned forms_count(struct forms forms)
{
    return 1u << (forms.has_plus + forms.has_slash + forms.has_tab);
}

// Returns combination `i`, counted from 0. From the lowest bit up, its bits are for plus, slash and
// tab; a part that the request lacks has no bit.
static struct path_form forms_pick(struct forms forms, unsigned i, bool *ret_keeps_tabs)
{
    bool plus_as_space = forms.has_plus && (i & 1u) != 0;
    i >>= forms.has_plus;
    bool decodes_slash = forms.has_slash && (i & 1u) != 0;
    i >>= forms.has_slash;
    // without a tab both forms are equal, and keeping tabs is cheaper
    *ret_keeps_tabs = i != 0 || !forms.has_tab;
    return (struct path_form){plus_as_space, !decodes_slash};
}

enum err sigv4_verify(struct arena *arena, const struct sigv4_claim *claim, struct span secret_key,
                      time_t now, struct span method, struct span raw_path, struct span raw_query,
                      const struct headers *headers, uint8_t *ret_signing_key,
                      struct sigv4_mismatch *ret_mismatch)
{
    check(claim->present);
    struct sigv4_mismatch mismatch = {.plus_is_space = false};
    struct headers_index index;
    headers_index_build(&index, headers);
    enum err err = verify_time(claim, now);
    if (err == ERR_OK) {
        err = verify_signed_headers(claim->signed_headers, &index);
    }
    struct canonical_request c = {.method = method,
                                  .headers = &index,
                                  .signed_headers = claim->signed_headers,
                                  .payload_hash = claim->payload_hash};
    if (err == ERR_OK) {
        err = sigv4_canonical_query(arena, raw_query, claim->presigned, &c.query);
    }
    if (err != ERR_OK) {
        return err;
    }
    const struct sigv4_scope scope = {.region = claim->region, .service = claim->service};
    struct sigv4_key own;
    const struct sigv4_key *key = sigv4_signing_key(claim->access_key, secret_key, claim->date,
                                                    claim->region, claim->service, &own);

    const struct forms forms = {.has_plus = span_find(raw_path, '+') < raw_path.len,
                                .has_slash = holds_escaped_slash(raw_path),
                                .has_tab = any_value_holds_tab(headers)};
    err = ERR_SIGNATURE_MISMATCH;
    for (unsigned i = 0; i < forms_count(forms) && err == ERR_SIGNATURE_MISMATCH; i++) {
        struct path_form form = forms_pick(forms, i, &c.keeps_tabs);
        enum err path_err = canonical_path(arena, raw_path, form, &c.path);
        if (path_err != ERR_OK) {
            err = path_err;
            break;
        }
        char text[STRING_TO_SIGN_MAX];
        size_t text_len;
        bool all_there = string_to_sign(&c, claim->amz_date, &scope, text, &text_len);
        if (signature_fits(key, text, text_len, claim->signature) && all_there) {
            mismatch.plus_is_space = form.plus_as_space;
            err = ERR_OK;
        } else if (i == 0) {
            fill_mismatch(arena, &c, text, text_len, &mismatch);
        }
    }
    if (err == ERR_OK) {
        mismatch.string_to_sign = mismatch.canonical_request = (struct span){NULL, 0};
        if (ret_signing_key != NULL) {
            memcpy(ret_signing_key, key->bytes, sizeof(key->bytes));
        }
    }
    if (key == &own) {
        OPENSSL_cleanse(&own, sizeof(own));
    }
    if (ret_mismatch != NULL && (err == ERR_OK || err == ERR_SIGNATURE_MISMATCH)) {
        *ret_mismatch = mismatch;
    }
    return err;
}
