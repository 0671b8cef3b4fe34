// SPDX-License-Identifier: Apache-2.0
// Parses a request's claim: who signed it, and how the signature covers the body. This file
// verifies nothing and needs no secret. Pure; any thread; the results are views into headers and
// query.
#include "base/date.h"
#include "s3/s3_private.h"

#include <string.h>

#define ALGORITHM "AWS4-HMAC-SHA256"
#define ALGORITHM_V4A "AWS4-ECDSA-P256-SHA256"
#define ACCESS_KEY_MAX 256
#define EXPIRES_MAX_S 604800
#define SIGNATURE_LEN 64

static struct span span_behind(struct span s, size_t offset)
{
    return (struct span){s.ptr + offset, s.len - offset};
}

// --- Payload -------------------------------------------------------------------------------------

static enum err payload_from_value(struct span value, enum sigv4_payload *ret_payload)
{
    static const struct {
        struct span value;
        enum sigv4_payload payload;
    } WORDS[] = {
#define WORD(text, payload) {{text, sizeof(text) - 1}, payload}
        WORD(SIGV4_EMPTY_SHA256, SIGV4_PAYLOAD_HASH), // nearly every GET has this value
        WORD(SIGV4_UNSIGNED_PAYLOAD, SIGV4_PAYLOAD_UNSIGNED),
        WORD("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", SIGV4_PAYLOAD_STREAMING),
        WORD("STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", SIGV4_PAYLOAD_STREAMING_TRAILER),
        WORD("STREAMING-UNSIGNED-PAYLOAD-TRAILER", SIGV4_PAYLOAD_UNSIGNED_TRAILER),
#undef WORD
    };
    for (size_t i = 0; i < ARRAY_LEN(WORDS); i++) {
        if (span_equal(value, WORDS[i].value)) {
            *ret_payload = WORDS[i].payload;
            return ERR_OK;
        }
    }
    if (span_starts_with(value, SPAN("STREAMING-AWS4-ECDSA-"))) {
        return ERR_NOT_IMPLEMENTED;
    }
    uint8_t hash[32];
    if (!hex_decode(value, hash, sizeof(hash))) {
        return ERR_INVALID_ARGUMENT;
    }
    *ret_payload = SIGV4_PAYLOAD_HASH;
    return ERR_OK;
}

enum err sigv4_payload_parse(const struct headers *headers, bool presigned,
                             enum sigv4_payload *ret_payload, struct span *ret_hash)
{
    struct span value;
    unsigned count = headers_find(headers, SPAN("x-amz-content-sha256"), &value);
    if (count == 0) {
        *ret_payload = presigned ? SIGV4_PAYLOAD_UNSIGNED : SIGV4_PAYLOAD_NONE;
        *ret_hash = presigned ? SPAN(SIGV4_UNSIGNED_PAYLOAD) : (struct span){NULL, 0};
        return ERR_OK;
    }
    if (count != 1) {
        return ERR_INVALID_ARGUMENT;
    }
    value = span_trim(value);
    enum err err = payload_from_value(value, ret_payload);
    if (err == ERR_OK) {
        *ret_hash = value;
    }
    return err;
}

// --- Pieces of a claim ---------------------------------------------------------------------------

// Parses "AK/20130524/us-east-1/s3/aws4_request". Starts at the right end, because an access key
// may contain slashes.
static bool parse_credential(struct span credential, struct sigv4_claim *claim)
{
    const char *end = credential.ptr + credential.len;
    struct span parts[4]; // split from the right: "aws4_request", service, region, date
    for (unsigned i = 0; i < ARRAY_LEN(parts); i++) {
        const char *slash =
            credential.len > 0 ? memrchr(credential.ptr, '/', credential.len) : NULL;
        if (slash == NULL) {
            return false;
        }
        size_t at = (size_t)(slash - credential.ptr) + 1;
        parts[i] = span_behind(credential, at);
        credential.len = at - 1;
    }
    claim->access_key = credential;
    claim->scope = (struct span){parts[3].ptr, (size_t)(end - parts[3].ptr)};
    claim->date = parts[3];
    claim->region = parts[2];
    claim->service = parts[1];
    uint64_t date;
    return claim->access_key.len > 0 && claim->access_key.len <= ACCESS_KEY_MAX &&
           claim->date.len == 8 && span_to_u64(claim->date, &date) &&
           claim->region.len <= SIGV4_REGION_MAX &&
           (span_equal_cstr(claim->service, "s3") ||
            span_equal_cstr(claim->service, "s3express")) &&
           span_equal_cstr(parts[0], "aws4_request");
}

static bool signature_is_sane(const struct sigv4_claim *claim)
{
    return claim->signature.len == SIGNATURE_LEN && hex_is_lower(claim->signature) &&
           claim->signed_headers.len > 0;
}

static bool parse_amz_date(struct span value, struct sigv4_claim *claim)
{
    if (!date_parse_amz(value, &claim->time)) {
        return false;
    }
    check(value.len == DATE_AMZ_LEN);
    memcpy(claim->amz_date, value.ptr, DATE_AMZ_LEN);
    return true;
}

static enum err parse_header_date(const struct headers *headers, struct sigv4_claim *claim)
{
    struct span value;
    unsigned count = headers_find(headers, SPAN("x-amz-date"), &value);
    if (count > 0) {
        bool good = count == 1 && parse_amz_date(span_trim(value), claim);
        return good ? ERR_OK : ERR_ACCESS_DENIED;
    }
    if (headers_find(headers, SPAN("date"), &value) != 1) {
        return ERR_ACCESS_DENIED;
    }
    value = span_trim(value);
    if (parse_amz_date(value, claim)) {
        return ERR_OK;
    }
    if (!date_parse_http(value, &claim->time)) {
        return ERR_ACCESS_DENIED;
    }
    date_format_amz(claim->time, claim->amz_date);
    return ERR_OK;
}

// --- Header form ---------------------------------------------------------------------------------

// Parses "Credential=..., SignedHeaders=..., Signature=...". The three parts may come in any order;
// spaces after commas are optional.
static bool parse_authorization(struct span rest, struct sigv4_claim *claim)
{
    struct span credential = {NULL, 0};
    unsigned seen = 0;
    struct span piece;
    while (span_split(&rest, ',', &piece)) {
        piece = span_trim(piece);
        size_t equals = span_find(piece, '=');
        if (equals == piece.len) {
            return false;
        }
        struct span name = {piece.ptr, equals};
        struct span value = span_behind(piece, equals + 1);
        unsigned bit;
        if (span_equal_cstr(name, "Credential")) {
            bit = 1;
            credential = value;
        } else if (span_equal_cstr(name, "SignedHeaders")) {
            bit = 2;
            claim->signed_headers = value;
        } else if (span_equal_cstr(name, "Signature")) {
            bit = 4;
            claim->signature = value;
        } else {
            return false;
        }
        if ((seen & bit) != 0) {
            return false;
        }
        seen |= bit;
    }
    return seen == 7 && parse_credential(credential, claim) && signature_is_sane(claim);
}

static enum err parse_header_claim(struct span authorization, const struct headers *headers,
                                   struct sigv4_claim *claim)
{
    authorization = span_trim(authorization);
    size_t blank = span_find(authorization, ' ');
    struct span algorithm = {authorization.ptr, blank};
    if (span_equal_cstr(algorithm, "AWS")) {
        claim->version2 = true;
        return sigv4_payload_parse(headers, false, &claim->payload, &claim->payload_hash);
    }
    if (span_equal_cstr(algorithm, ALGORITHM_V4A)) {
        return ERR_NOT_IMPLEMENTED;
    }
    if (!span_equal_cstr(algorithm, ALGORITHM) || blank == authorization.len ||
        !parse_authorization(span_behind(authorization, blank + 1), claim)) {
        return ERR_AUTHORIZATION_MALFORMED;
    }
    claim->present = true;
    // the token is optional
    (void)headers_get(headers, SPAN("x-amz-security-token"), &claim->security_token);
    enum err err = sigv4_payload_parse(headers, false, &claim->payload, &claim->payload_hash);
    if (err == ERR_OK && claim->payload == SIGV4_PAYLOAD_NONE) {
        err = ERR_MISSING_SECURITY_HEADER;
    }
    return err == ERR_OK ? parse_header_date(headers, claim) : err;
}

// --- Query form ----------------------------------------------------------------------------------

// Finds the value of a query parameter. Returns false if the parameter is absent or repeated.
static bool query_value(const struct s3_request *r, const char *name, struct span *ret_value)
{
    unsigned found = 0;
    for (unsigned i = 0; i < r->param_count; i++) {
        if (span_equal_cstr(r->params[i].name, name)) {
            *ret_value = r->params[i].value;
            found++;
        }
    }
    return found == 1;
}

static enum err query_payload(const struct s3_request *r, const struct headers *headers,
                              struct sigv4_claim *claim)
{
    // If x-amz-content-sha256 is a header, it overrides the parameter. sigv4_verify() makes sure
    // that the header is signed.
    enum err err = sigv4_payload_parse(headers, true, &claim->payload, &claim->payload_hash);
    struct span value;
    if (err != ERR_OK || headers_get(headers, SPAN("x-amz-content-sha256"), &value)) {
        return err;
    }
    for (unsigned i = 0; i < r->param_count; i++) {
        if (span_equal_nocase(r->params[i].name, SPAN("x-amz-content-sha256"))) {
            claim->payload_hash = r->params[i].value;
            return payload_from_value(r->params[i].value, &claim->payload);
        }
    }
    return ERR_OK;
}

static enum err parse_query_claim(const struct s3_request *r, const struct headers *headers,
                                  struct sigv4_claim *claim)
{
    struct span algorithm;
    struct span credential = {NULL, 0};
    struct span date = {NULL, 0};
    struct span expires = {NULL, 0};
    if (!query_value(r, "X-Amz-Algorithm", &algorithm)) {
        return ERR_AUTHORIZATION_QUERY;
    }
    if (span_equal_cstr(algorithm, ALGORITHM_V4A)) {
        return ERR_NOT_IMPLEMENTED;
    }
    if (!span_equal_cstr(algorithm, ALGORITHM) ||
        !query_value(r, "X-Amz-Credential", &credential) || !query_value(r, "X-Amz-Date", &date) ||
        !query_value(r, "X-Amz-Expires", &expires) ||
        !query_value(r, "X-Amz-SignedHeaders", &claim->signed_headers) ||
        !query_value(r, "X-Amz-Signature", &claim->signature)) {
        return ERR_AUTHORIZATION_QUERY;
    }
    if (!parse_credential(credential, claim) || !signature_is_sane(claim) ||
        !parse_amz_date(date, claim) || !span_to_u64(expires, &claim->expires_s) ||
        claim->expires_s < 1 || claim->expires_s > EXPIRES_MAX_S) {
        return ERR_AUTHORIZATION_QUERY;
    }
    struct span token;
    if (s3_param_find(r, "X-Amz-Security-Token") != NULL) {
        if (!query_value(r, "X-Amz-Security-Token", &token)) {
            return ERR_AUTHORIZATION_QUERY;
        }
        claim->security_token = token;
    }
    claim->present = true;
    claim->presigned = true;
    return query_payload(r, headers, claim);
}

enum err sigv4_claim_parse(const struct s3_request *r, const struct headers *headers,
                           struct sigv4_claim *ret_claim)
{
    struct sigv4_claim claim = {.payload = SIGV4_PAYLOAD_NONE};
    struct span authorization;
    unsigned in_headers = headers_find(headers, SPAN("authorization"), &authorization);
    bool in_header = in_headers > 0;
    bool in_query = s3_param_find(r, "X-Amz-Signature") != NULL ||
                    s3_param_find(r, "X-Amz-Algorithm") != NULL ||
                    s3_param_find(r, "X-Amz-Credential") != NULL;
    bool version2_query =
        s3_param_find(r, "AWSAccessKeyId") != NULL || s3_param_find(r, "Signature") != NULL;
    if ((in_header && (in_query || version2_query)) || (in_query && version2_query)) {
        return ERR_INVALID_ARGUMENT;
    }
    enum err err;
    if (in_header) {
        err = in_headers == 1 ? parse_header_claim(authorization, headers, &claim)
                              : ERR_AUTHORIZATION_MALFORMED;
    } else if (in_query) {
        err = parse_query_claim(r, headers, &claim);
    } else {
        claim.version2 = version2_query;
        err = sigv4_payload_parse(headers, version2_query, &claim.payload, &claim.payload_hash);
    }
    if (err == ERR_OK) {
        *ret_claim = claim;
    }
    return err;
}
