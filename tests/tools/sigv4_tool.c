// SPDX-License-Identifier: Apache-2.0
// Lets a test of another language drive the signer and the verifier. One request per line on stdin,
// one answer per line on stdout; fields are separated by blanks, each in hexadecimal, "-" when
// empty.
//
//   sign TIME ACCESS_KEY SECRET TOKEN REGION SERVICE GENERAL METHOD PATH QUERY PAYLOAD_HASH [NAME
//   VALUE]...
//        -> ok AUTHORIZATION          GENERAL is "1" for services that normalise and encode the
//        path
//   verify TIME SECRET METHOD HOST TARGET [NAME VALUE]...
//        -> ERROR_NAME PLUS_IS_SPACE STRING_TO_SIGN CANONICAL_REQUEST
//   explain TIME REGION SERVICE METHOD PATH QUERY PAYLOAD_HASH SIGNED_HEADERS [NAME VALUE]...
//        -> ok STRING_TO_SIGN CANONICAL_REQUEST
#include "base/date.h"
#include "s3/s3.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIELDS_MAX 300

static struct arena *arena;
static struct span fields[FIELDS_MAX];
static unsigned field_count;

static struct span field_decode(struct span hex)
{
    if (span_equal_cstr(hex, "-")) {
        return (struct span){NULL, 0};
    }
    size_t len = hex.len / 2;
    char *bytes = arena_alloc(arena, len + 1);
    check(bytes != NULL);
    check(hex_decode(hex, (uint8_t *)bytes, len));
    return (struct span){bytes, len};
}

static void answer_field(struct span s)
{
    if (s.len == 0) {
        fputs(" -", stdout);
        return;
    }
    putchar(' ');
    for (size_t i = 0; i < s.len; i++) {
        printf("%02x", (unsigned char)s.ptr[i]);
    }
}

static void read_headers(unsigned from, struct headers *headers)
{
    check((field_count - from) % 2 == 0);
    for (unsigned i = from; i < field_count; i += 2) {
        check(headers_add(headers, arena, fields[i], fields[i + 1]));
    }
}

static time_t time_field(unsigned index)
{
    uint64_t value;
    check(span_to_u64(fields[index], &value));
    return (time_t)value;
}

static void do_sign(void)
{
    check(field_count >= 11);
    bool general = span_equal_cstr(fields[6], "1");
    const struct sigv4_credentials credentials = {fields[1], fields[2], fields[3]};
    const struct sigv4_scope scope = {fields[4], fields[5], general, general};
    struct headers headers = {0};
    read_headers(11, &headers);
    struct span query;
    enum err err = sigv4_canonical_query(arena, fields[9], false, &query);
    if (err == ERR_OK) {
        err = sigv4_sign(arena, &credentials, &scope, time_field(0), fields[7], fields[8], query,
                         &headers, fields[10], NULL);
    }
    struct span authorization = {NULL, 0};
    if (err == ERR_OK) {
        check(headers_get(&headers, SPAN("authorization"), &authorization));
    }
    fputs(err == ERR_OK ? "ok" : error_name(err), stdout);
    answer_field(authorization);
}

static void do_verify(void)
{
    check(field_count >= 5);
    struct headers headers = {0};
    read_headers(5, &headers);
    struct s3_request request;
    struct sigv4_claim claim;
    struct sigv4_mismatch mismatch = {.plus_is_space = false};
    enum err err =
        s3_request_parse(arena, fields[2], fields[3], fields[4], &headers, NULL, &request);
    if (err == ERR_OK) {
        err = sigv4_claim_parse(&request, &headers, &claim);
    }
    if (err == ERR_OK && !claim.present) {
        err = claim.version2 ? ERR_SIGNATURE_V2 : ERR_ACCESS_DENIED;
    }
    if (err == ERR_OK) {
        err = sigv4_verify(arena, &claim, fields[1], time_field(0), fields[2], request.raw_path,
                           request.raw_query, &headers, NULL, &mismatch);
    }
    printf("%s %d", err == ERR_OK ? "ok" : error_name(err), mismatch.plus_is_space);
    answer_field(mismatch.string_to_sign);
    answer_field(mismatch.canonical_request);
}

static void do_explain(void)
{
    static const char NO_SIGNATURE[] =
        "0000000000000000000000000000000000000000000000000000000000000000";
    check(field_count >= 8);
    struct headers headers = {0};
    read_headers(8, &headers);
    time_t t = time_field(0);
    char date[DATE_AMZ_LEN + 1];
    date_format_amz(t, date);
    struct sigv4_claim claim = {.present = true,
                                .access_key = SPAN("anyone"),
                                .date = {date, 8},
                                .region = fields[1],
                                .service = fields[2],
                                .signed_headers = fields[7],
                                .signature = SPAN(NO_SIGNATURE),
                                .time = t,
                                .payload_hash = fields[6]};
    memcpy(claim.amz_date, date, sizeof(date));
    struct sigv4_mismatch mismatch = {.plus_is_space = false};
    enum err err = sigv4_verify(arena, &claim, SPAN("any secret"), t, fields[3], fields[4],
                                fields[5], &headers, NULL, &mismatch);
    fputs(err == ERR_SIGNATURE_MISMATCH ? "ok" : error_name(err), stdout);
    answer_field(mismatch.string_to_sign);
    answer_field(mismatch.canonical_request);
}

int main(void)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } COMMANDS[] = {{"sign", do_sign}, {"verify", do_verify}, {"explain", do_explain}};
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    arena = arena_new(4u << 20);
    while ((len = getline(&line, &cap, stdin)) > 0) {
        struct span rest = {line, (size_t)len - (line[len - 1] == '\n')};
        struct span command, piece;
        check(span_split(&rest, ' ', &command));
        field_count = 0;
        while (span_split(&rest, ' ', &piece)) {
            check(field_count < FIELDS_MAX);
            fields[field_count++] = field_decode(piece);
        }
        for (size_t i = 0; i < ARRAY_LEN(COMMANDS); i++) {
            if (span_equal_cstr(command, COMMANDS[i].name)) {
                COMMANDS[i].run();
            }
        }
        putchar('\n');
        fflush(stdout);
        arena_reset(arena);
    }
    free(line);
    arena_free(arena);
    return 0;
}
