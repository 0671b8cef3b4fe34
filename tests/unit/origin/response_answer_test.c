// SPDX-License-Identifier: Apache-2.0
// The judgement of a response head: an answer that is inconsistent in its framing, its range, its
// length or its version is never reported as storable.
#include <string.h>

#include "origin/response_answer.h"
#include "test.h"

enum verdict { STORE, PASS, REFUSE, CHANGED, UNFIT };

struct row {
    const char *name;
    const char *head; // lines, each with its own end; an empty line is added
    bool range;       // bytes=100-199 was asked for, else the whole object
    bool is_head;
    const char *if_match;
    enum verdict verdict;
};

#define E "ETag: \"e\"\r\n"
#define OK200 "HTTP/1.1 200 OK\r\n"
#define OK206 "HTTP/1.1 206 Partial Content\r\n"
#define R "Content-Range: bytes 100-199/1000\r\n"
#define L "Content-Length: 100\r\n"

static const struct row rows[] = {
    {"plain", OK200 E L, false, false, NULL, STORE},
    {"plain range", OK206 E L R, true, false, NULL, STORE},
    {"HTTP/1.0 with a length", "HTTP/1.0 200 OK\r\n" E L, false, false, NULL, STORE},
    {"no reason phrase", "HTTP/1.1 200\r\n" E L, false, false, NULL, STORE},
    {"HEAD", OK200 E L, false, true, NULL, STORE},
    {"If-Match holds", OK200 E L, false, false, "\"e\"", STORE},
    {"interim heads",
     "HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" OK200 E L, false, false,
     NULL, STORE},
    {"empty object to a range", OK200 E "Content-Length: 0\r\n", false, false, NULL, STORE},
    {"fixed Vary", OK200 E L "Vary: Origin, Accept-Encoding\r\n", false, false, NULL, STORE},
    {"no-store of S3", OK200 E L "x-amz-id-2: x\r\nCache-Control: no-store\r\n", false, false, NULL,
     STORE},
    {"range at the end", OK206 E "Content-Length: 50\r\nContent-Range: bytes 100-149/150\r\n", true,
     false, NULL, STORE},
    // Framing
    {"two different lengths", OK200 E L "Content-Length: 101\r\n", false, false, NULL, REFUSE},
    {"two equal lengths", OK200 E L L, false, false, NULL, PASS},
    {"length list", OK200 E "Content-Length: 100, 100\r\n", false, false, NULL, REFUSE},
    {"length list, differing", OK200 E "Content-Length: 3, 5\r\n", false, false, NULL, REFUSE},
    {"length with a tail", OK200 E "Content-Length: 100x\r\n", false, false, NULL, REFUSE},
    {"length with a sign", OK200 E "Content-Length: +100\r\n", false, false, NULL, REFUSE},
    {"negative length", OK200 E "Content-Length: -1\r\n", false, false, NULL, REFUSE},
    {"empty length", OK200 E "Content-Length:\r\n", false, false, NULL, REFUSE},
    {"hex length", OK200 E "Content-Length: 0x64\r\n", false, false, NULL, REFUSE},
    {"length overflow", OK200 E "Content-Length: 18446744073709551616\r\n", false, false, NULL,
     REFUSE},
    {"length above signed", OK200 E "Content-Length: 9223372036854775808\r\n", false, false, NULL,
     REFUSE},
    {"length with a space before the colon", OK200 E "Content-Length : 100\r\n", false, false, NULL,
     REFUSE},
    {"length folded", OK200 E "Content-Length: 10\r\n 0\r\n", false, false, NULL, REFUSE},
    {"length with CR inside", OK200 E "Content-Length: 1\r0\r\n", false, false, NULL, REFUSE},
    {"length and chunked", OK200 E L "Transfer-Encoding: chunked\r\n", false, false, NULL, REFUSE},
    {"chunked and length", OK200 E "Transfer-Encoding: chunked\r\n" L, false, false, NULL, REFUSE},
    {"chunked twice", OK206 E R "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
     true, false, NULL, REFUSE},
    {"chunked in HTTP/1.0", "HTTP/1.0 206 OK\r\n" E R "Transfer-Encoding: chunked\r\n", true, false,
     NULL, REFUSE},
    {"unknown coding", OK206 E R "Transfer-Encoding: gzip\r\n", true, false, NULL, REFUSE},
    {"coding list", OK206 E R "Transfer-Encoding: gzip, chunked\r\n", true, false, NULL, REFUSE},
    {"coding identity", OK206 E R "Transfer-Encoding: identity\r\n", true, false, NULL, REFUSE},
    {"coding xchunked", OK206 E R "Transfer-Encoding: xchunked\r\n", true, false, NULL, REFUSE},
    {"coding folded", OK206 E R "Transfer-Encoding:\r\n chunked\r\n", true, false, NULL, REFUSE},
    {"chunked range", OK206 E R "Transfer-Encoding: chunked\r\n", true, false, NULL, PASS},
    {"chunked object", OK200 E "Transfer-Encoding: chunked\r\n", false, false, NULL, UNFIT},
    {"range without length", OK206 E R, true, false, NULL, PASS},
    {"object without length", OK200 E, false, false, NULL, UNFIT},
    {"HEAD without length", OK200 E, false, true, NULL, UNFIT},
    // Lines
    {"bare line feed in the status line", "HTTP/1.1 200 OK\n" E L, false, false, NULL, PASS},
    {"bare line feed in a header", OK200 "ETag: \"e\"\n" L, false, false, NULL, PASS},
    {"bare line feed after the length", OK200 E "Content-Length: 100\n", false, false, NULL, PASS},
    {"folded header", OK200 E L "x-amz-meta-a: b\r\n c\r\n", false, false, NULL, PASS},
    {"folded first line", OK200 " folded: x\r\n" E L, false, false, NULL, PASS},
    {"CR in a value", OK200 E L "x-amz-meta-a: b\rc\r\n", false, false, NULL, PASS},
    {"control byte in a value", OK200 E L "x-amz-meta-a: b\001c\r\n", false, false, NULL, PASS},
    {"no colon", OK200 E L "nonsense\r\n", false, false, NULL, PASS},
    {"space in a name", OK200 E L "x amz: b\r\n", false, false, NULL, PASS},
    {"empty name", OK200 E L ": b\r\n", false, false, NULL, PASS},
    {"HTTP/2", "HTTP/2 200 OK\r\n" E L, false, false, NULL, REFUSE},
    {"HTTP/1.2", "HTTP/1.2 200 OK\r\n" E L, false, false, NULL, REFUSE},
    {"HTTP/0.9", "<html>\r\n", false, false, NULL, REFUSE},
    {"ICY", "ICY 200 OK\r\n" E L, false, false, NULL, REFUSE},
    {"status of two digits", "HTTP/1.1 20 OK\r\n" E L, false, false, NULL, REFUSE},
    {"status of four digits", "HTTP/1.1 2000 OK\r\n" E L, false, false, NULL, REFUSE},
    {"status 099", "HTTP/1.1 099 OK\r\n" E L, false, false, NULL, REFUSE},
    {"status 600", "HTTP/1.1 600 OK\r\n" E L, false, false, NULL, REFUSE},
    {"status with letters", "HTTP/1.1 2x0 OK\r\n" E L, false, false, NULL, REFUSE},
    {"two spaces", "HTTP/1.1  200 OK\r\n" E L, false, false, NULL, REFUSE},
    {"101", "HTTP/1.1 101 Switching Protocols\r\n\r\n" OK200 E L, false, false, NULL, REFUSE},
    {"203", "HTTP/1.1 203 Non-Authoritative\r\n" E L, false, false, NULL, REFUSE},
    {"204", "HTTP/1.1 204 No Content\r\n" E, false, false, NULL, REFUSE},
    // Range
    {"200 to a range", OK200 E "Content-Length: 1000\r\n", true, false, NULL, UNFIT},
    {"200 of the right length to a range", OK200 E L, true, false, NULL, UNFIT},
    {"206 without a range asked", OK206 E L R, false, false, NULL, REFUSE},
    {"206 to HEAD", OK206 E L R, true, true, NULL, UNFIT},
    {"206 without Content-Range", OK206 E L, true, false, NULL, REFUSE},
    {"two Content-Ranges", OK206 E L R R, true, false, NULL, REFUSE},
    {"other first byte", OK206 E L "Content-Range: bytes 0-99/1000\r\n", true, false, NULL, REFUSE},
    {"other last byte", OK206 E "Content-Range: bytes 100-198/1000\r\nContent-Length: 99\r\n", true,
     false, NULL, UNFIT},
    {"longer than asked", OK206 E "Content-Range: bytes 100-200/1000\r\nContent-Length: 101\r\n",
     true, false, NULL, REFUSE},
    {"length differs from the range", OK206 E R "Content-Length: 99\r\n", true, false, NULL,
     REFUSE},
    {"unknown total", OK206 E L "Content-Range: bytes 100-199/*\r\n", true, false, NULL, UNFIT},
    {"total inside the range", OK206 E L "Content-Range: bytes 100-199/150\r\n", true, false, NULL,
     REFUSE},
    {"total zero", OK206 E L "Content-Range: bytes 100-199/0\r\n", true, false, NULL, REFUSE},
    {"other unit", OK206 E L "Content-Range: items 100-199/1000\r\n", true, false, NULL, REFUSE},
    {"no unit", OK206 E L "Content-Range: 100-199/1000\r\n", true, false, NULL, REFUSE},
    {"reversed range", OK206 E L "Content-Range: bytes 199-100/1000\r\n", true, false, NULL,
     REFUSE},
    {"signed range", OK206 E L "Content-Range: bytes +100-199/1000\r\n", true, false, NULL, REFUSE},
    {"blanks in the range", OK206 E L "Content-Range: bytes 100 - 199/1000\r\n", true, false, NULL,
     REFUSE},
    {"tail after the range", OK206 E L "Content-Range: bytes 100-199/1000, x\r\n", true, false,
     NULL, REFUSE},
    {"range overflow", OK206 E L "Content-Range: bytes 100-199/18446744073709551616\r\n", true,
     false, NULL, REFUSE},
    {"total above signed", OK206 E L "Content-Range: bytes 100-199/9223372036854775808\r\n", true,
     false, NULL, UNFIT},
    {"folded range", OK206 E L "Content-Range: bytes 100-199\r\n /1000\r\n", true, false, NULL,
     REFUSE},
    {"Content-Range in a 200", OK200 E L R, false, false, NULL, UNFIT},
    {"all of the object as a range", OK206 E L "Content-Range: bytes 0-99/100\r\n", false, false,
     NULL, STORE},
    {"a part of the object that was asked for whole",
     OK206 E L "Content-Range: bytes 0-99/1000\r\n", false, false, NULL, UNFIT},
    {"unit in capitals", OK206 E L "Content-Range: BYTES 100-199/1000\r\n", true, false, NULL,
     STORE},
    {"blanks after the unit", OK206 E L "content-range:bytes  \t100-199/1000\r\n", true, false,
     NULL, STORE},
    {"leading zeros", OK206 E L "Content-Range: bytes 0100-0199/01000\r\n", true, false, NULL,
     STORE},
    {"unknown total of other bytes", OK206 E L "Content-Range: bytes 0-99/*\r\n", true, false, NULL,
     REFUSE},
    {"unknown total of another length", OK206 E L "Content-Range: bytes 100-198/*\r\n", true, false,
     NULL, REFUSE},
    {"unsatisfied range in a 206", OK206 E L "Content-Range: bytes */1000\r\n", true, false, NULL,
     REFUSE},
    {"multipart", OK206 E L R "Content-Type: multipart/byteranges; boundary=x\r\n", true, false,
     NULL, REFUSE},
    // Version
    {"other ETag than If-Match", OK206 "ETag: \"f\"\r\n" L R, true, false, "\"e\"", CHANGED},
    {"no ETag to If-Match", OK206 L R, true, false, "\"e\"", CHANGED},
    {"no ETag", OK200 L, false, false, NULL, PASS},
    {"weak ETag", OK200 "ETag: W/\"e\"\r\n" L, false, false, NULL, PASS},
    {"unquoted ETag", OK200 "ETag: e\r\n" L, false, false, NULL, PASS},
    {"half-quoted ETag", OK200 "ETag: \"e\r\n" L, false, false, NULL, PASS},
    {"empty ETag", OK200 "ETag: \"\"\r\n" L, false, false, NULL, PASS},
    {"quote inside", OK200 "ETag: \"a\"b\"\r\n" L, false, false, NULL, PASS},
    {"two ETags", OK200 E "ETag: \"f\"\r\n" L, false, false, NULL, PASS},
    {"folded ETag", OK200 "ETag: \"e\r\n f\"\r\n" L, false, false, NULL, PASS},
    // Answers that must not be kept
    {"Vary *", OK200 E L "Vary: *\r\n", false, false, NULL, PASS},
    {"Vary Cookie", OK200 E L "Vary: Origin, Cookie\r\n", false, false, NULL, PASS},
    {"second Vary", OK200 E L "Vary: Origin\r\nVary: User-Agent\r\n", false, false, NULL, PASS},
    {"SSE-C", OK200 E L "x-amz-server-side-encryption-customer-algorithm: AES256\r\n", false, false,
     NULL, PASS},
    {"Set-Cookie", OK200 E L "Set-Cookie: a=b\r\n", false, false, NULL, PASS},
    {"Set-Cookie of a balancer", OK200 E L "x-amz-request-id: 1\r\nSet-Cookie: a=b\r\n", false,
     false, NULL, STORE},
    {"Set-Cookie before Google's store", OK200 E L "Set-Cookie: a=b\r\nx-goog-generation: 1\r\n",
     false, false, NULL, STORE},
    {"SSE-C with a cookie",
     OK200 E L "Set-Cookie: a\r\nx-amz-server-side-encryption-customer-key-MD5: a\r\n", false,
     false, NULL, PASS},
    {"no-store of a plain server", OK200 E L "Cache-Control: no-store\r\n", false, false, NULL,
     PASS},
    {"private of a plain server", OK200 E L "Cache-Control: max-age=5, private\r\n", false, false,
     NULL, PASS},
    {"coded by a plain server", OK200 E L "Content-Encoding: gzip\r\n", false, false, NULL, PASS},
};

static enum verdict run(const struct row *row, uint64_t suffix, struct arena *arena,
                        struct response_answer *answer)
{
    struct response_head head;
    struct span rest = span_from_cstr(row->head);
    bool done = false;
    response_head_init(&head, arena, row->is_head);
    while (rest.len > 0) {
        size_t end = span_find(rest, '\n');
        struct span line = {rest.ptr, end < rest.len ? end + 1 : rest.len};
        if (response_head_line(&head, line, &done) != ERR_OK) {
            return REFUSE;
        }
        rest = (struct span){rest.ptr + line.len, rest.len - line.len};
    }
    if (response_head_line(&head, SPAN("\r\n"), &done) != ERR_OK) {
        return REFUSE;
    }
    cr_assert(done, "%s", row->name);
    struct response_asked asked = {.head = row->is_head,
                                   .has_range = row->range,
                                   .first = 100,
                                   .last = 199,
                                   .suffix = suffix,
                                   .if_match = span_from_cstr(row->if_match)};
    enum err err = response_answer_judge(&head, &asked, answer);
    return err == ERR_ORIGIN_CHANGED                   ? CHANGED
           : err == ERR_ORIGIN_UNFIT                   ? UNFIT
           : err != ERR_OK                             ? REFUSE
           : answer->forbids == ORIGIN_FORBIDS_NOTHING ? STORE
                                                       : PASS;
}

#define S(bytes) "Content-Range: bytes " bytes "\r\n"
// The last 100 bytes were asked for.
static const struct row suffixes[] = {
    {"suffix", OK206 E L S("900-999/1000"), true, false, NULL, STORE},
    {"suffix of a short object", OK206 E "Content-Length: 7\r\n" S("0-6/7"), true, false, NULL,
     STORE},
    {"suffix, empty object", OK200 E "Content-Length: 0\r\n", true, false, NULL, STORE},
    {"first bytes to a suffix", OK206 E L S("0-99/1000"), true, false, NULL, REFUSE},
    {"more than the suffix", OK206 E "Content-Length: 101\r\n" S("899-999/1000"), true, false, NULL,
     REFUSE},
    {"less than the suffix", OK206 E "Content-Length: 99\r\n" S("901-999/1000"), true, false, NULL,
     REFUSE},
    {"suffix of unknown size", OK206 E L S("900-999/*"), true, false, NULL, UNFIT},
    {"whole to a suffix", OK200 E "Content-Length: 1000\r\n", true, false, NULL, UNFIT}};

// An answer to a suffix is exactly the last bytes of the object.
Test(response_answer, suffix)
{
    for (size_t i = 0; i < ARRAY_LEN(suffixes); i++) {
        struct arena *arena = arena_new(1 << 20);
        struct response_answer answer;
        enum verdict verdict = run(&suffixes[i], 100, arena, &answer);
        cr_assert_eq(verdict, suffixes[i].verdict, "%s: %d", suffixes[i].name, (int)verdict);
        arena_free(arena);
    }
}

// Every row of the table gets its verdict.
Test(response_answer, table)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct arena *arena = arena_new(1 << 20);
        struct response_answer answer;
        enum verdict verdict = run(&rows[i], 0, arena, &answer);
        cr_assert_eq(verdict, rows[i].verdict, "%s: %d", rows[i].name, (int)verdict);
        arena_free(arena);
    }
}

// The headers that a reply from cache repeats are collected, with their spelling, and no others.
Test(response_answer, replayed)
{
    static const struct row row = {
        "replayed",
        OK200 E L
        "content-type: image/png\r\nContent-Encoding: aws-chunked,gzip\r\n"
        "x-amz-meta-mtime: 5\r\nX-Amz-Meta-A: 1\r\nx-amz-meta-a: 2\r\nConnection: close\r\n"
        "x-amz-request-id: 1\r\nSet-Cookie: a=b\r\nDate: Thu, 01 Jan 1970 00:00:10 GMT\r\nServer: "
        "x\r\n"
        "Last-Modified: Thu, 01 Jan 1970 00:00:10 GMT\r\nx-amz-checksum-crc32: AAAA\r\n"
        "x-amz-checksum-type: FULL_OBJECT\r\nx-amz-version-id: v1\r\nAccept-Ranges: bytes\r\n"
        "x-amz-server-side-encryption: AES256\r\nx-amz-storage-class: STANDARD\r\n",
        false,
        false,
        NULL,
        STORE};
    static const char *const names[] = {"ETag",
                                        "content-type",
                                        "Content-Encoding",
                                        "x-amz-meta-mtime",
                                        "X-Amz-Meta-A",
                                        "x-amz-meta-a",
                                        "Last-Modified",
                                        "x-amz-version-id",
                                        "x-amz-server-side-encryption",
                                        "x-amz-storage-class"};
    struct arena *arena = arena_new(1 << 20);
    struct response_answer answer;
    struct span value;
    cr_assert_eq(run(&row, 0, arena, &answer), STORE);
    cr_assert_eq(answer.headers.count, ARRAY_LEN(names));
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        cr_assert(span_equal_cstr(answer.headers.items[i].name, names[i]));
    }
    cr_assert(headers_get(&answer.headers, SPAN("Content-Encoding"), &value));
    cr_assert(span_equal_cstr(value, "gzip"));
    cr_assert_eq(answer.checksums.count, 2);
    cr_assert_eq(answer.last_modified, 10);
    cr_assert(span_equal_cstr(answer.version_id, "v1"));
    arena_free(arena);
}

// A checksum that comes twice counts once. If the two differ, neither counts.
Test(response_answer, checksums_that_come_twice)
{
    static const struct row row = {"checksums",
                                   OK200 E L
                                   "x-amz-checksum-crc32: AAAA\r\nX-Amz-Checksum-Crc32: AAAA\r\n"
                                   "x-amz-checksum-sha1: one\r\nx-amz-checksum-sha1: other\r\n",
                                   false,
                                   false,
                                   NULL,
                                   STORE};
    struct arena *arena = arena_new(1 << 20);
    struct response_answer answer;
    cr_assert_eq(run(&row, 0, arena, &answer), STORE);
    cr_assert_eq(answer.checksums.count, 1);
    cr_assert(span_equal_cstr(answer.checksums.items[0].name, "x-amz-checksum-crc32"));
    arena_free(arena);
}

// Answers whose rest may be fetched with a request of its own: their body must be these bytes of
// one version, whatever was asked.
Test(response_answer, names_part)
{
    static const struct {
        const char *head;
        bool names;
        uint64_t first;
    } parts[] = {
        {OK200 E L, true, 0},
        {OK206 E L R, true, 100},
        {OK206 E L, false, 0},
        {OK200 E L R, false, 0},
        {OK206 E "Content-Length: 99\r\n" R, false, 0},
        {OK206 E L "Content-Range: bytes 100-199/150\r\n", false, 0},
        {OK206 E L R "Content-Type: multipart/byteranges; boundary=x\r\n", false, 0},
        {OK200 L, false, 0},
        {OK200 "ETag: W/\"e\"\r\n" L, false, 0},
        {OK200 E E L, false, 0},
        {OK200 E "Transfer-Encoding: chunked\r\n", false, 0},
        {OK200 E "Content-Length: 0\r\n", false, 0},
        {OK200 E L "Vary: User-Agent\r\n", false, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        struct arena *arena = arena_new(1 << 20);
        struct response_head h;
        struct span etag = {NULL, 0};
        uint64_t first = 0;
        bool done = false;
        response_head_init(&h, arena, false);
        struct span rest = span_from_cstr(parts[i].head);
        while (rest.len > 0) {
            size_t len = span_find(rest, '\n') + 1;
            cr_assert_eq(response_head_line(&h, (struct span){rest.ptr, len}, &done), ERR_OK);
            rest = (struct span){rest.ptr + len, rest.len - len};
        }
        cr_assert_eq(response_head_line(&h, SPAN("\r\n"), &done), ERR_OK);
        cr_assert(done);
        cr_assert_eq(response_answer_names_part(&h, &etag, &first), parts[i].names, "row %zu", i);
        cr_assert(!parts[i].names || span_equal_cstr(etag, "\"e\""));
        cr_assert_eq(first, parts[i].first, "row %zu", i);
        arena_free(arena);
    }
}
