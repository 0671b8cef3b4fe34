// SPDX-License-Identifier: Apache-2.0
// The strict check of a request head: it refuses everything that two parsers could read
// differently.
//
// Three steps, all pure, on the connection's worker:
//   1. request_head_scan() reads each byte once as it arrives: the request line's shape, CRLF
//      line ends only, no control, no fold, legal names, the limits. The first offending byte
//      fixes its verdict, so that it does not depend on how the bytes were cut.
//   2. The whole head is split into its lines. This cannot fail any more.
//   3. The result is judged: method, exactly one Host, framing = none, one all-digit
//      Content-Length, or exactly one `chunked` on HTTP/1.1; Expect, target form. Upgrade is
//      ignored (RFC 9110 7.8).
// Except in a release, llhttp then reads an accepted head as well, strict and without any lenient
// flag (request_head_check.c). Tests and fuzzers stop if llhttp reads the head differently, or not
// at all. In a release a second parse before each hit would cost more than these three steps. A
// refused request is answered once and its connection closed; nothing searches for the next request
// in it.
#include "http/http_private.h"

#include <assert.h>
#include <string.h>

#define METHOD_MAX 32
#define VERSION_LEN 8 // "HTTP/1.1"
#define CONNECTION_OPTIONS_MAX 32

static_assert(HTTP_HEADER_COUNT_MAX + 64 <= HEADERS_MAX, "room for what is added on the way");

enum {
    BYTE_TOKEN = 1,
    BYTE_VALUE = 2, // header values: visible, blank, tab, 0x80..0xff
    BYTE_TARGET = 4 // visible ASCII except '#'
};

#define A (BYTE_TOKEN | BYTE_VALUE | BYTE_TARGET)
#define B (BYTE_VALUE | BYTE_TARGET)
#define C BYTE_VALUE
static const uint8_t byte_class[256] = {
    [0x09] = C,
    [0x20] = C,
    ['!'] = A,
    ['"'] = B,
    ['#'] = A & ~BYTE_TARGET,
    ['$' ... '\''] = A,
    ['(' ... ')'] = B,
    ['*' ... '+'] = A,
    [','] = B,
    ['-' ... '.'] = A,
    ['/'] = B,
    ['0' ... '9'] = A,
    [':' ... '@'] = B,
    ['A' ... 'Z'] = A,
    ['[' ... ']'] = B,
    ['^' ... '`'] = A,
    ['a' ... 'z'] = A,
    ['{'] = B,
    ['|'] = A,
    ['}'] = B,
    ['~'] = A,
    [0x80 ... 0xff] = C,
};
#undef A
#undef B
#undef C

bool request_head_byte_is_token(unsigned char b)
{
    return (byte_class[b] & BYTE_TOKEN) != 0;
}

bool request_head_byte_is_value(unsigned char b)
{
    return (byte_class[b] & BYTE_VALUE) != 0;
}

// --- Step 1: bytes -------------------------------------------------------------------------------

enum scan_state {
    SCAN_START,
    SCAN_START_LF,
    SCAN_METHOD,
    SCAN_TARGET,
    SCAN_VERSION,
    SCAN_VERSION_LF,
    SCAN_LINE,
    SCAN_NAME,
    SCAN_VALUE,
    SCAN_VALUE_LF,
    SCAN_END_LF,
    SCAN_DONE
};

void request_head_init(struct request_head *h)
{
    *h = (struct request_head){.state = SCAN_START};
}

static enum err judge_version(struct request_head *h, const char *bytes)
{
    const char *v = bytes + h->mark;
    if (h->at - h->mark != VERSION_LEN || memcmp(v, "HTTP/", 5) != 0 || v[6] != '.' || v[5] < '0' ||
        v[5] > '9' || v[7] < '0' || v[7] > '9') {
        return ERR_BAD_REQUEST;
    }
    if (v[5] != '1' || (v[7] != '0' && v[7] != '1')) {
        return ERR_HTTP_VERSION;
    }
    h->version_minor = (uint8_t)(v[7] - '0');
    return ERR_OK;
}

#define EACH(byte) (0x0101010101010101u * (byte))
#define HIGH EACH(0x80u)

// Returns a value other than 0 if one of the eight bytes is below `least`, which is at most 0x80.
static inline uint64_t any_below(uint64_t word, uint8_t least)
{
    return (word - EACH(least)) & ~word & HIGH;
}

static inline uint64_t any_is(uint64_t word, uint8_t byte)
{
    return any_below(word ^ EACH(byte), 1);
}

// Returns true if all eight bytes are certainly of the class `wanted`. Otherwise the table decides.
static inline bool eight_are(const char *bytes, uint8_t wanted)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof(word));
    if (wanted == BYTE_VALUE) {
        return (any_below(word, 0x20) | any_is(word, 0x7f)) == 0; // the table allows tabs
    }
    return wanted == BYTE_TARGET &&
           (any_below(word, 0x21) | any_is(word, 0x7f) | any_is(word, '#') | (word & HIGH)) == 0;
}

// Returns the position of the first byte that is not in the class `wanted`; `end` if all are. It is
// inline, so that each class gets a loop of its own.
static inline uint32_t skip_class(const char *bytes, uint32_t at, uint32_t end, uint8_t wanted)
{
    while (wanted != BYTE_TOKEN && at + sizeof(uint64_t) <= end && eight_are(bytes + at, wanted)) {
        at += (uint32_t)sizeof(uint64_t);
    }
    while (at < end && (byte_class[(unsigned char)bytes[at]] & wanted) != 0) {
        at++;
    }
    return at;
}

// Scans method, target and version. h->at is the position of byte `b`.
static enum err scan_request_line(struct request_head *h, const char *bytes, uint32_t end)
{
    char b = bytes[h->at];
    switch (h->state) {
    case SCAN_START:
        if (b == '\r' && h->start == 0) {
            h->state = SCAN_START_LF;
            h->at++;
            return ERR_OK;
        }
        if (!request_head_byte_is_token((unsigned char)b)) {
            return ERR_BAD_REQUEST;
        }
        h->state = SCAN_METHOD;
        return ERR_OK;
    case SCAN_START_LF:
        h->state = SCAN_START;
        h->start = ++h->at;
        return b == '\n' ? ERR_OK : ERR_BAD_REQUEST;
    case SCAN_METHOD:
        h->at = skip_class(bytes, h->at, min_u32(end, h->start + METHOD_MAX + 1), BYTE_TOKEN);
        if (h->at - h->start > METHOD_MAX) {
            return ERR_BAD_REQUEST;
        }
        if (h->at == end) {
            return ERR_OK;
        }
        h->method_len = (uint8_t)(h->at - h->start);
        h->mark = h->at + 1;
        h->state = SCAN_TARGET;
        return bytes[h->at++] == ' ' ? ERR_OK : ERR_BAD_REQUEST;
    case SCAN_TARGET:
        h->at = skip_class(bytes, h->at, min_u32(end, h->mark + HTTP_TARGET_MAX + 1), BYTE_TARGET);
        if (h->at - h->mark > HTTP_TARGET_MAX) {
            return ERR_URI_TOO_LONG;
        }
        if (h->at == end) {
            return ERR_OK;
        }
        h->target = h->mark;
        h->target_len = h->at - h->mark;
        h->state = SCAN_VERSION;
        h->mark = h->at + 1;
        return bytes[h->at++] == ' ' && h->target_len > 0 ? ERR_OK : ERR_BAD_REQUEST;
    case SCAN_VERSION:
        h->at = skip_class(bytes, h->at, min_u32(end, h->mark + VERSION_LEN + 1), BYTE_TARGET);
        if (h->at - h->mark > VERSION_LEN) {
            return ERR_BAD_REQUEST;
        }
        if (h->at == end) {
            return ERR_OK;
        }
        if (bytes[h->at] != '\r') {
            return ERR_BAD_REQUEST;
        }
        h->state = SCAN_VERSION_LF;
        enum err err = judge_version(h, bytes);
        h->at++;
        return err;
    default: // SCAN_VERSION_LF
        h->state = SCAN_LINE;
        return bytes[h->at++] == '\n' ? ERR_OK : ERR_BAD_REQUEST;
    }
}

// Scans one line, or the part of it that has arrived. bytes[h->at] must have arrived.
static enum err scan_header_line(struct request_head *h, const char *bytes, uint32_t end)
{
    uint32_t line_end;
    switch (h->state) {
    case SCAN_LINE:
        if (bytes[h->at] == '\r') {
            h->state = SCAN_END_LF;
            h->at++;
            return ERR_OK;
        }
        if (!request_head_byte_is_token((unsigned char)bytes[h->at])) {
            return ERR_BAD_REQUEST; // a fold, an empty name, a control
        }
        if (++h->header_count > HTTP_HEADER_COUNT_MAX) {
            return ERR_HEADERS_TOO_LARGE;
        }
        h->mark = h->at;
        h->state = SCAN_NAME;
        __attribute__((fallthrough));
    case SCAN_NAME:
        line_end = min_u32(end, h->mark + HTTP_HEADER_MAX + 1);
        h->at = skip_class(bytes, h->at, line_end, BYTE_TOKEN);
        if (h->at - h->mark > HTTP_HEADER_MAX) {
            return ERR_HEADERS_TOO_LARGE;
        }
        if (h->at == end) {
            return ERR_OK;
        }
        h->state = SCAN_VALUE;
        if (bytes[h->at] != ':') {
            return ERR_BAD_REQUEST;
        }
        h->at++;
        if (h->at - h->mark > HTTP_HEADER_MAX) {
            return ERR_HEADERS_TOO_LARGE;
        }
        __attribute__((fallthrough));
    case SCAN_VALUE:
        line_end = min_u32(end, h->mark + HTTP_HEADER_MAX + 1);
        h->at = skip_class(bytes, h->at, line_end, BYTE_VALUE);
        if (h->at - h->mark > HTTP_HEADER_MAX) {
            return ERR_HEADERS_TOO_LARGE;
        }
        if (h->at == end) {
            return ERR_OK;
        }
        h->state = SCAN_VALUE_LF;
        if (bytes[h->at++] != '\r') {
            return ERR_BAD_REQUEST;
        }
        if (h->at == end) {
            return ERR_OK;
        }
        __attribute__((fallthrough));
    case SCAN_VALUE_LF:
        h->state = SCAN_LINE;
        return bytes[h->at++] == '\n' ? ERR_OK : ERR_BAD_REQUEST;
    default: // SCAN_END_LF
        h->state = SCAN_DONE;
        return bytes[h->at++] == '\n' ? ERR_OK : ERR_BAD_REQUEST;
    }
}

enum request_head_verdict request_head_scan(struct request_head *h, struct span buffered)
{
    if (h->err != ERR_OK) {
        return REQUEST_HEAD_REFUSED;
    }
    while (h->state != SCAN_DONE) {
        // No byte beyond the limit is read, so the verdict does not depend on how much has arrived.
        uint32_t limit = h->start + HTTP_HEAD_MAX;
        uint32_t end = (uint32_t)min_u64(buffered.len, limit);
        if (h->at >= end) {
            if (buffered.len <= limit) {
                return REQUEST_HEAD_MORE;
            }
            h->err = ERR_HEADERS_TOO_LARGE;
            return REQUEST_HEAD_REFUSED;
        }
        h->err = h->state < SCAN_LINE ? scan_request_line(h, buffered.ptr, end)
                                      : scan_header_line(h, buffered.ptr, end);
        if (h->err != ERR_OK) {
            return REQUEST_HEAD_REFUSED;
        }
    }
    return REQUEST_HEAD_COMPLETE;
}

// --- Step 2: lines -------------------------------------------------------------------------------

// Splits the lines that step 1 has checked byte by byte. Returns false if there is no memory.
static bool cut_headers(const struct request_head *h, struct span head, struct arena *arena,
                        struct headers *ret_headers)
{
    const char *at = head.ptr + h->target + h->target_len + sizeof(" HTTP/1.1\r\n") - 1;
    const char *end = head.ptr + head.len;
    if (!headers_reserve(ret_headers, arena, h->header_count)) {
        return false;
    }
    for (uint32_t i = 0; i < h->header_count; i++) {
        const char *colon = memchr(at, ':', (size_t)(end - at));
        const char *cr = colon != NULL ? memchr(colon, '\r', (size_t)(end - colon)) : NULL;
        check(cr != NULL);
        struct span value = span_trim((struct span){colon + 1, (size_t)(cr - colon - 1)});
        if (!headers_add(ret_headers, arena, (struct span){at, (size_t)(colon - at)}, value)) {
            return false;
        }
        at = cr + 2;
    }
    check(end - at == 2); // the empty line
    return true;
}

// --- Step 3: meaning -----------------------------------------------------------------------------

// The framing and connection headers that were seen.
struct seen {
    unsigned host_count, length_count, coding_count, expect_count;
    struct span length, coding, expect;
    bool close, keep_alive;
};

static bool method_is_known(struct span method)
{
    static const struct span methods[] = {{"GET", 3},  {"HEAD", 4},   {"PUT", 3},
                                          {"POST", 4}, {"DELETE", 6}, {"OPTIONS", 7}};
    for (size_t i = 0; i < ARRAY_LEN(methods); i++) {
        if (span_equal(method, methods[i])) {
            return true;
        }
    }
    return false;
}

static void note_connection(struct seen *seen, struct span value)
{
    seen->close |= headers_list_has(value, SPAN("close"));
    seen->keep_alive |= headers_list_has(value, SPAN("keep-alive"));
}

static void note_header(struct http_request *r, struct seen *seen, const struct header *h)
{
    switch (h->name.len) {
    case 4:
        if (span_equal_nocase(h->name, SPAN("Host"))) {
            r->host = h->value;
            seen->host_count++;
        }
        return;
    case 6:
        if (span_equal_nocase(h->name, SPAN("Expect"))) {
            seen->expect = h->value;
            seen->expect_count++;
        }
        return;
    case 10:
        if (span_equal_nocase(h->name, SPAN("Connection"))) {
            note_connection(seen, h->value);
        }
        return;
    case 14:
        if (span_equal_nocase(h->name, SPAN("Content-Length"))) {
            seen->length = h->value;
            seen->length_count++;
        }
        return;
    case 17:
        if (span_equal_nocase(h->name, SPAN("Transfer-Encoding"))) {
            seen->coding = h->value;
            seen->coding_count++;
        }
        return;
    default:
        return;
    }
}

static bool port_is_legal(struct span port)
{
    uint64_t value;
    return port.len <= 5 && span_to_u64(port, &value) && value <= 65535;
}

// Returns true for a name, IPv4 or [IPv6], with an optional port. A user part, a list or blanks are
// illegal.
static bool host_is_legal(struct span host)
{
    size_t i = 0;
    if (host.len > 0 && host.ptr[0] == '[') {
        for (i = 1; i < host.len && host.ptr[i] != ']'; i++) {
            char c = host.ptr[i];
            bool hex = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
            if (!hex && c != ':' && c != '.') {
                return false;
            }
        }
        if (i == host.len || i < 3) {
            return false;
        }
        i++;
    } else {
        for (; i < host.len && host.ptr[i] != ':'; i++) {
            char c = host.ptr[i];
            bool alnum = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
            if (!alnum && c != '-' && c != '.' && c != '_') {
                return false;
            }
        }
        if (i == 0) {
            return false;
        }
    }
    if (i == host.len) {
        return true;
    }
    return host.ptr[i] == ':' && port_is_legal((struct span){host.ptr + i + 1, host.len - i - 1});
}

// Returns true if a tab follows the value, after any spaces. A length may not have one, because a
// tab is a blank to some parsers and an error to others.
static bool tab_follows(struct span value)
{
    const char *at = value.ptr + value.len;
    while (*at == ' ') {
        at++;
    }
    return *at == '\t';
}

static enum err judge_framing(struct http_request *r, const struct seen *seen)
{
    if (seen->length_count > 1 || seen->coding_count > 1 ||
        (seen->length_count > 0 && seen->coding_count > 0)) {
        return ERR_BAD_REQUEST;
    }
    if (seen->coding_count == 1) {
        if (r->version_minor != 1 || !span_equal_nocase(seen->coding, SPAN("chunked"))) {
            return ERR_BAD_REQUEST;
        }
        r->framing = HTTP_BODY_CHUNKS;
    }
    if (seen->length_count == 1) {
        if (seen->length.len > 19 || !span_to_u64(seen->length, &r->content_length) ||
            r->content_length > INT64_MAX || tab_follows(seen->length)) {
            return ERR_BAD_REQUEST;
        }
        r->framing = HTTP_BODY_LENGTH;
    }
    return ERR_OK;
}

// Returns true if a Connection header names an end-to-end header of this request. Two parsers would
// read such a request in two ways: one removes the named header, the other verifies a signature
// over it. Also returns true for more than CONNECTION_OPTIONS_MAX options, which bounds the work.
static bool connection_names_another(const struct headers *headers, struct span options,
                                     unsigned *option_count)
{
    struct span option;
    while (span_split(&options, ',', &option)) {
        option = span_trim(option);
        if (++*option_count > CONNECTION_OPTIONS_MAX) {
            return true;
        }
        if (!headers_is_hop_by_hop(option) && !span_equal_nocase(option, SPAN("close")) &&
            headers_count(headers, option) > 0) {
            return true;
        }
    }
    return false;
}

static enum err judge_connection(const struct http_request *r)
{
    unsigned option_count = 0;
    for (unsigned i = 0; i < r->headers.count; i++) {
        const struct header *h = &r->headers.items[i];
        if (span_equal_nocase(h->name, SPAN("Connection")) &&
            connection_names_another(&r->headers, h->value, &option_count)) {
            return ERR_BAD_REQUEST;
        }
    }
    return ERR_OK;
}

static enum err judge_expect(struct http_request *r, const struct seen *seen)
{
    if (seen->expect_count == 0 || r->version_minor == 0) {
        return ERR_OK; // RFC 9110 10.1.1: Expect of HTTP/1.0 is ignored
    }
    if (seen->expect_count > 1 || !span_equal_nocase(seen->expect, SPAN("100-continue"))) {
        return ERR_EXPECTATION_FAILED;
    }
    r->expects_continue = true;
    return ERR_OK;
}

static bool escapes_are_whole(struct span target)
{
    for (size_t i = 0; i < target.len; i++) {
        uint8_t byte;
        if (target.ptr[i] == '%' &&
            (target.len - i < 3 || !hex_decode((struct span){target.ptr + i + 1, 2}, &byte, 1))) {
            return false;
        }
    }
    return true;
}

// Accepts origin form, or absolute form whose authority equals Host; the latter is reduced to its
// path.
static enum err judge_target(struct http_request *r)
{
    if (!escapes_are_whole(r->target)) {
        return ERR_INVALID_URI;
    }
    if (r->target.ptr[0] == '/') {
        return ERR_OK;
    }
    static const struct span schemes[] = {{"http://", 7}, {"https://", 8}};
    for (size_t i = 0; i < ARRAY_LEN(schemes); i++) {
        size_t skip = schemes[i].len;
        if (r->target.len < skip ||
            !span_equal_nocase((struct span){r->target.ptr, skip}, schemes[i])) {
            continue;
        }
        struct span rest = {r->target.ptr + skip, r->target.len - skip};
        size_t slash = span_find(rest, '/');
        if (!span_equal_nocase((struct span){rest.ptr, slash}, r->host)) {
            return ERR_BAD_REQUEST;
        }
        r->target =
            slash == rest.len ? SPAN("/") : (struct span){rest.ptr + slash, rest.len - slash};
        return ERR_OK;
    }
    return ERR_BAD_REQUEST;
}

enum err request_head_accept(const struct request_head *h, struct span head, struct arena *arena,
                             struct http_request *ret_request)
{
    check(h->state == SCAN_DONE && h->err == ERR_OK);
    check(head.len == h->at);
    struct http_request r = {
        .method = {head.ptr + h->start, h->method_len},
        .target = {head.ptr + h->target, h->target_len},
        .version_minor = h->version_minor,
    };
    if (!method_is_known(r.method)) {
        return ERR_METHOD_NOT_ALLOWED;
    }
    if (!cut_headers(h, head, arena, &r.headers)) {
        return ERR_BAD_REQUEST;
    }
    struct seen seen = {0};
    for (unsigned i = 0; i < r.headers.count; i++) {
        note_header(&r, &seen, &r.headers.items[i]);
    }
    if (seen.host_count != 1 || !host_is_legal(r.host)) {
        return ERR_BAD_REQUEST;
    }
    enum err err = judge_framing(&r, &seen);
    if (err == ERR_OK) {
        err = judge_connection(&r);
    }
    if (err == ERR_OK) {
        err = judge_expect(&r, &seen);
    }
    if (err == ERR_OK) {
        err = judge_target(&r);
    }
    if (err != ERR_OK) {
        return err;
    }
    r.keep_alive = !seen.close && (r.version_minor == 1 || seen.keep_alive);
    r.is_head = span_equal(r.method, SPAN("HEAD"));
#ifdef FOREBAY_FAULTS
    request_head_check((struct span){head.ptr + h->start, head.len - h->start}, &r);
#endif
    *ret_request = r;
    return ERR_OK;
}
