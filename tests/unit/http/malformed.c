// SPDX-License-Identifier: Apache-2.0
// The rows of malformed.h: first the tables, then bytes by position, then sizes.
#include "malformed.h"

#include "http/http.h"

#include <string.h>

#define GET "GET /b/k HTTP/1.1\r\n"
#define PUT "PUT /b/k HTTP/1.1\r\n"
#define HOST "Host: localhost\r\n"
#define END "\r\n"

struct raw_row {
    struct span bytes;
    enum err want;
};
#define RAW(text, err)                                                                             \
    {                                                                                              \
        {text, sizeof(text) - 1}, err                                                              \
    }

static const struct raw_row raw_rows[] = {
    // Line ends.
    RAW("GET /b/k HTTP/1.1\nHost: localhost\n\n", ERR_BAD_REQUEST),
    RAW("GET /b/k HTTP/1.1\n" HOST END, ERR_BAD_REQUEST),
    RAW(GET "Host: localhost\nX: y\r\n" END, ERR_BAD_REQUEST),
    RAW(GET HOST "\n", ERR_BAD_REQUEST),
    RAW("GET /b/k HTTP/1.1\rHost: localhost\r\r\n\r\n", ERR_BAD_REQUEST),
    RAW(GET HOST "\rX\r\n\r\n", ERR_BAD_REQUEST),
    RAW("GET /b/k HTTP/1.1\r\r\n" HOST END, ERR_BAD_REQUEST),
    RAW(GET HOST "X: a\rb\r\n" END, ERR_BAD_REQUEST),
    RAW(GET HOST "X: a\rTransfer-Encoding: chunked\r\n" END, ERR_BAD_REQUEST),
    RAW("\r\n\r\n" GET HOST END, ERR_BAD_REQUEST),
    RAW("\n" GET HOST END, ERR_BAD_REQUEST),
    RAW("\rX" GET HOST END, ERR_BAD_REQUEST),
    RAW("  " GET HOST END, ERR_BAD_REQUEST),
    // Folds.
    RAW(GET HOST "X: a\r\n b\r\n" END, ERR_BAD_REQUEST),
    RAW(GET HOST "X: a\r\n\tb\r\n" END, ERR_BAD_REQUEST),
    RAW(GET " X: a\r\n" HOST END, ERR_BAD_REQUEST),
    RAW(GET HOST "X: y\r\n Transfer-Encoding: chunked\r\n" END, ERR_BAD_REQUEST),
    RAW(GET HOST "Content-Length: 1\r\n 5\r\n" END, ERR_BAD_REQUEST),
    RAW(GET HOST "Content-Length:\r\n 5\r\n" END, ERR_BAD_REQUEST),
    // A Connection that takes off what stands beside it.
    RAW(GET HOST "Connection: x-amz-acl\r\nx-amz-acl: private\r\n" END, ERR_BAD_REQUEST),
    RAW(GET HOST "Connection: close, X-AMZ-acl\r\nx-amz-acl:\r\n" END, ERR_BAD_REQUEST),
    RAW(GET HOST "Connection: close\r\nIf-None-Match: *\r\nConnection: if-none-match\r\n" END,
        ERR_BAD_REQUEST),
    RAW(GET HOST "Connection: host\r\n" END, ERR_BAD_REQUEST),
    RAW(GET HOST "Connection: Connection, authorization\r\nAuthorization: x\r\n" END,
        ERR_BAD_REQUEST),
    RAW(PUT HOST "Content-Length: 1\r\nConnection: ,content-length\r\n" END, ERR_BAD_REQUEST),
    RAW(GET HOST "Connection: x-own\r\nx-own: 1\r\n" END, ERR_BAD_REQUEST),
    // Header lines.
    RAW(GET HOST ": no name\r\n" END, ERR_BAD_REQUEST),
    RAW(GET HOST "no colon\r\n" END, ERR_BAD_REQUEST),
    RAW(GET HOST "nocolon\r\n" END, ERR_BAD_REQUEST),
    RAW(GET HOST "X : y\r\n" END, ERR_BAD_REQUEST),
    RAW(GET HOST "X\t: y\r\n" END, ERR_BAD_REQUEST),
    RAW(GET "Host : localhost\r\n" END, ERR_BAD_REQUEST),
    RAW(GET HOST "X: a\0b\r\n" END, ERR_BAD_REQUEST),
    RAW(GET HOST "\0: b\r\n" END, ERR_BAD_REQUEST),
    // Request lines.
    RAW("GET /b/k\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET /\r\n", ERR_BAD_REQUEST),
    RAW("GET  /b/k HTTP/1.1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET /b/k  HTTP/1.1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET /b/k HTTP/1.1 \r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET\t/b/k HTTP/1.1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET /b/k\tHTTP/1.1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET \r\n" HOST END, ERR_BAD_REQUEST),
    RAW("/b/k HTTP/1.1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET b/k HTTP/1.1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET ? HTTP/1.1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET * HTTP/1.1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("OPTIONS * HTTP/1.1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET /b/k#f HTTP/1.1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET /b/%zz HTTP/1.1\r\n" HOST END, ERR_INVALID_URI),
    RAW("GET /b/%2 HTTP/1.1\r\n" HOST END, ERR_INVALID_URI),
    RAW("GET /b/% HTTP/1.1\r\n" HOST END, ERR_INVALID_URI),
    RAW("GET /b?x=%g0 HTTP/1.1\r\n" HOST END, ERR_INVALID_URI),
    RAW("GET http://evil/b/k HTTP/1.1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET http:///b/k HTTP/1.1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET http://localhost:80/b/k HTTP/1.1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET http://localhost@evil/b HTTP/1.1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET http://localhost?x HTTP/1.1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET ftp://localhost/b HTTP/1.1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET http:/b/k HTTP/1.1\r\n" HOST END, ERR_BAD_REQUEST),
    // Versions.
    RAW("GET /b/k HTTP/0.9\r\n" HOST END, ERR_HTTP_VERSION),
    RAW("GET /b/k HTTP/1.2\r\n" HOST END, ERR_HTTP_VERSION),
    RAW("GET /b/k HTTP/1.9\r\n" HOST END, ERR_HTTP_VERSION),
    RAW("GET /b/k HTTP/2.0\r\n" HOST END, ERR_HTTP_VERSION),
    RAW("GET /b/k HTTP/3.0\r\n" HOST END, ERR_HTTP_VERSION),
    RAW("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ERR_HTTP_VERSION),
    RAW("GET /b/k HTTP/3\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET /b/k HTTP/1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET /b/k HTTP/1.\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET /b/k HTTP/.1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET /b/k HTTP/11.1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET /b/k HTTP/1.01\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET /b/k HTTP/1.1x\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET /b/k HTTP/1,1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET /b/k http/1.1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET /b/k XTTP/1.1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET /b/k RTSP/1.0\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET /b/k HTTP/-1.1\r\n" HOST END, ERR_BAD_REQUEST),
    RAW("GET /b/k HTTP/a.b\r\n" HOST END, ERR_BAD_REQUEST),
    // Methods.
    RAW("get /b/k HTTP/1.1\r\n" HOST END, ERR_METHOD_NOT_ALLOWED),
    RAW("Get /b/k HTTP/1.1\r\n" HOST END, ERR_METHOD_NOT_ALLOWED),
    RAW("GETS /b/k HTTP/1.1\r\n" HOST END, ERR_METHOD_NOT_ALLOWED),
    RAW("FOO /b/k HTTP/1.1\r\n" HOST END, ERR_METHOD_NOT_ALLOWED),
    RAW("CONNECT localhost:80 HTTP/1.1\r\n" HOST END, ERR_METHOD_NOT_ALLOWED),
    RAW("TRACE /b/k HTTP/1.1\r\n" HOST END, ERR_METHOD_NOT_ALLOWED),
    RAW("PATCH /b/k HTTP/1.1\r\n" HOST END, ERR_METHOD_NOT_ALLOWED),
    RAW("SOURCE /b/k HTTP/1.1\r\n" HOST END, ERR_METHOD_NOT_ALLOWED),
    RAW("DESCRIBE /b/k HTTP/1.1\r\n" HOST END, ERR_METHOD_NOT_ALLOWED),
    RAW("M-SEARCH * HTTP/1.1\r\n" HOST END, ERR_METHOD_NOT_ALLOWED),
    RAW("XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX /b/k HTTP/1.1\r\n" HOST END, ERR_BAD_REQUEST),
    // An ignored Upgrade loosens no other check.
    RAW(GET HOST "Connection: Upgrade, x-amz-acl\r\nUpgrade: h2c\r\nx-amz-acl: private\r\n" END,
        ERR_BAD_REQUEST),
    RAW(PUT HOST "Connection: Upgrade, Content-Length\r\nUpgrade: h2c\r\nContent-Length: 5\r\n" END,
        ERR_BAD_REQUEST),
    RAW(PUT HOST "Upgrade: h2c\r\nTransfer-Encoding: h2c\r\n" END, ERR_BAD_REQUEST),
    RAW(GET HOST "Upgrade: h2c\r\nUpgrade : h2c\r\n" END, ERR_BAD_REQUEST),
    // Hosts.
    RAW(GET END, ERR_BAD_REQUEST),
    RAW("GET /b/k HTTP/1.0\r\n" END, ERR_BAD_REQUEST),
    RAW(GET HOST HOST END, ERR_BAD_REQUEST),
    RAW(GET HOST "Host: other\r\n" END, ERR_BAD_REQUEST),
    RAW(GET HOST "host: other\r\n" END, ERR_BAD_REQUEST),
    RAW(GET "Host:\r\n" END, ERR_BAD_REQUEST),
    // Framing.
    RAW(PUT HOST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n" END, ERR_BAD_REQUEST),
    RAW(PUT HOST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n" END, ERR_BAD_REQUEST),
    RAW(PUT HOST "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n" END, ERR_BAD_REQUEST),
    RAW(PUT HOST "Content-Length: 5\r\nContent-Length: 5\r\n" END, ERR_BAD_REQUEST),
    RAW(PUT HOST "Content-Length: 5\r\nContent-Length: 6\r\n" END, ERR_BAD_REQUEST),
    RAW(PUT HOST "Content-Length: 0\r\ncontent-length: 0\r\n" END, ERR_BAD_REQUEST),
    RAW(PUT HOST "Content-Length : 5\r\n" END, ERR_BAD_REQUEST),
    RAW(PUT HOST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n" END,
        ERR_BAD_REQUEST),
    RAW(PUT HOST "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n" END,
        ERR_BAD_REQUEST),
    RAW(PUT HOST "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n" END,
        ERR_BAD_REQUEST),
    RAW("PUT /b/k HTTP/1.0\r\n" HOST "Transfer-Encoding: chunked\r\n" END, ERR_BAD_REQUEST),
    RAW("GET /b/k HTTP/1.0\r\n" HOST "Transfer-Encoding: chunked\r\n" END, ERR_BAD_REQUEST),
    RAW(GET HOST "Expect: 100-continue\r\nExpect: 100-continue\r\n" END, ERR_EXPECTATION_FAILED),
};

// One header of a fixed name with each of these values.
struct value_row {
    const char *name;
    struct span value;
    enum err want;
};
#define VALUE(name, text, err)                                                                     \
    {                                                                                              \
        name, {text, sizeof(text) - 1}, err                                                        \
    }
#define CODING(text) VALUE("Transfer-Encoding", text, ERR_BAD_REQUEST)
#define LENGTH(text) VALUE("Content-Length", text, ERR_BAD_REQUEST)
#define EXPECT(text) VALUE("Expect", text, ERR_EXPECTATION_FAILED)
#define HOST_IS(text) VALUE("Host", text, ERR_BAD_REQUEST)

static const struct value_row value_rows[] = {
    CODING("cow"),
    CODING("chunked, cow"),
    CODING("cow, chunked"),
    CODING("chunked, chunked"),
    CODING(",chunked"),
    CODING("chunked,"),
    CODING("chunked ,"),
    CODING(", chunked"),
    CODING("chunked;q=1"),
    CODING("\"chunked\""),
    CODING("'chunked'"),
    CODING("chunked\x0b"),
    CODING("\x0b"
           "chunked"),
    CODING("\x0c"
           "chunked"),
    CODING("x chunked"),
    CODING("chunke"),
    CODING("xchunked"),
    CODING("chunkedx"),
    CODING("identity"),
    CODING("identity, chunked"),
    CODING("gzip"),
    CODING("gzip, chunked"),
    CODING("deflate"),
    CODING(""),
    CODING(" "),
    CODING("chunked\0"),
    CODING("chunked\x7f"),
    CODING("chun\tked"),
    CODING("[chunked]"),
    CODING("(chunked)"),
    CODING("chunked=1"),
    CODING("chunked|"),
    CODING("chunked\xa0"),
    CODING("\xef\xbd\x83hunked"),
    CODING("chunked \x01"),
    CODING("CHUNKED, CHUNKED"),
    LENGTH("+5"),
    LENGTH("-5"),
    LENGTH("-0"),
    LENGTH("0x5"),
    LENGTH("5, 5"),
    LENGTH("5,5"),
    LENGTH("5,6"),
    LENGTH("5 5"),
    LENGTH("5\t"),
    LENGTH("5 \t "),
    LENGTH(""),
    LENGTH("5;"),
    LENGTH("5.0"),
    LENGTH("1e3"),
    LENGTH("abc"),
    LENGTH("5a"),
    LENGTH("a5"),
    LENGTH("\0"
           "5"),
    LENGTH("5\0"),
    LENGTH("5\x0b"),
    LENGTH("\xb2"),
    LENGTH("9223372036854775808"),
    LENGTH("18446744073709551616"),
    LENGTH("99999999999999999999999999"),
    LENGTH("00000000000000000005"),
    LENGTH("_5"),
    LENGTH("5_0"),
    LENGTH("'5'"),
    LENGTH("\"5\""),
    LENGTH("5,"),
    LENGTH(",5"),
    LENGTH("\xef\xbc\x95"),
    EXPECT("200-ok"),
    EXPECT("100-continued"),
    EXPECT("x"),
    EXPECT("100-continue, x"),
    EXPECT(""),
    EXPECT("100-continue;q"),
    EXPECT("100"),
    EXPECT("100 continue"),
    EXPECT("\"100-continue\""),
    HOST_IS("a@localhost"),
    HOST_IS("localhost, other"),
    HOST_IS("localhost:x"),
    HOST_IS("localhost:99999"),
    HOST_IS("localhost:65536"),
    HOST_IS("localhost:80:80"),
    HOST_IS("localhost/"),
    HOST_IS("localhost?x"),
    HOST_IS("localhost#x"),
    HOST_IS("http://localhost"),
    HOST_IS("[::1"),
    HOST_IS("::1]"),
    HOST_IS("::1"),
    HOST_IS("localhost:-1"),
    HOST_IS("localhost:"),
    HOST_IS("localhost: 80"),
    HOST_IS("localhost\\x"),
    HOST_IS("%31.0.0.1"),
    HOST_IS("localhost;x"),
    HOST_IS("<x>"),
    HOST_IS("[]"),
    HOST_IS("[::g]"),
    HOST_IS("[::1]x"),
    HOST_IS("[::1]80"),
    HOST_IS("a b"),
    HOST_IS(":80"),
    HOST_IS("b\xc3\xbc"
            "cket"),
    HOST_IS("localhost:+80"),
    HOST_IS("localhost:000080"),
};

// A byte put between `before` and `after` must be refused when it is none of `legal`.
struct byte_row {
    const char *before, *after;
    bool (*is_legal)(unsigned char b);
};

static bool is_token(unsigned char b)
{
    return (b >= '0' && b <= '9') || (b >= 'A' && b <= 'Z') || (b >= 'a' && b <= 'z') ||
           (b != 0 && strchr("!#$%&'*+-.^_`|~", b) != NULL);
}

static bool is_token_or_colon(unsigned char b)
{
    return is_token(b) || b == ':';
}

static bool is_value(unsigned char b)
{
    return b == '\t' || (b >= 0x20 && b != 0x7f);
}

static bool is_target(unsigned char b)
{
    return b > 0x20 && b < 0x7f && b != '#' && b != '%';
}

static bool is_nothing(unsigned char b)
{
    (void)b;
    return false;
}

static bool is_lf(unsigned char b)
{
    return b == '\n';
}

static bool is_cr(unsigned char b)
{
    return b == '\r';
}

static bool is_value_or_cr(unsigned char b)
{
    return is_value(b) || b == '\r'; // a CR here ends the line
}

static const struct byte_row byte_rows[] = {
    {"G", "ET /b/k HTTP/1.1\r\n" HOST END, is_nothing},
    {"GET /b/", "k HTTP/1.1\r\n" HOST END, is_target},
    {"GET /b/k HTTP/1.1", "\r\n" HOST END, is_nothing},
    {GET HOST, "X: y\r\n" END, is_token},
    {GET HOST "X", "Y: z\r\n" END, is_token_or_colon},
    {GET HOST "X: ", "y\r\n" END, is_value},
    {GET HOST "X: a", "b\r\n" END, is_value},
    {GET HOST "X: a", "\n" END, is_value_or_cr},
    {GET HOST "X: a\r", "\r\n" END, is_lf},
    {GET HOST "X: a\r\n", "\n", is_cr},
};

struct size_row {
    const char *before;
    size_t fill;
    const char *after;
    enum err want;
};

static const struct size_row size_rows[] = {
    {"GET /", HTTP_TARGET_MAX, " HTTP/1.1\r\n" HOST END, ERR_URI_TOO_LONG},
    {"GET /", 200000, " HTTP/1.1\r\n" HOST END, ERR_URI_TOO_LONG},
    {GET HOST "X:", HTTP_HEADER_MAX - 1, "\r\n" END, ERR_HEADERS_TOO_LARGE},
    {GET HOST, HTTP_HEADER_MAX + 1, ": y\r\n" END, ERR_HEADERS_TOO_LARGE},
    {GET HOST, 200000, ": y\r\n" END, ERR_HEADERS_TOO_LARGE},
};

static unsigned byte_count(void)
{
    return ARRAY_LEN(byte_rows) * 256;
}

unsigned malformed_count(void)
{
    return ARRAY_LEN(raw_rows) + ARRAY_LEN(value_rows) + ARRAY_LEN(size_rows) + 3 + byte_count();
}

static void append_value_row(const struct value_row *row, struct buf *out)
{
    buf_append_cstr(out, PUT);
    if (strcmp(row->name, "Host") != 0) {
        buf_append_cstr(out, HOST);
    }
    buf_append_cstr(out, row->name);
    buf_append_cstr(out, ": ");
    buf_append_span(out, row->value);
    buf_append_cstr(out, "\r\n\r\n");
}

static void append_byte_row(unsigned i, struct buf *out)
{
    const struct byte_row *row = &byte_rows[i / 256];
    unsigned char b = (unsigned char)(i % 256);
    buf_append_cstr(out, row->before);
    // Where the byte is legal a NUL takes its place, so that each row has a bad byte.
    buf_append_char(out, row->is_legal(b) ? '\0' : (char)b);
    buf_append_cstr(out, row->after);
}

static void append_large_row(unsigned i, struct buf *out, enum err *ret_want)
{
    buf_append_cstr(out, GET HOST);
    *ret_want = ERR_HEADERS_TOO_LARGE;
    unsigned count = i == 0 ? HTTP_HEADER_COUNT_MAX : i == 1 ? 9000 : 12;
    for (unsigned n = 0; n < count; n++) {
        buf_append_cstr(out, "X:");
        for (unsigned k = 0; i == 2 && k < 4200; k++) {
            buf_append_char(out, 'x');
        }
        buf_append_cstr(out, "\r\n");
    }
    buf_append_cstr(out, END);
}

void malformed_append(unsigned i, struct buf *out, enum err *ret_want)
{
    *ret_want = ERR_OK;
    if (i < ARRAY_LEN(raw_rows)) {
        buf_append_span(out, raw_rows[i].bytes);
        *ret_want = raw_rows[i].want;
        return;
    }
    i -= ARRAY_LEN(raw_rows);
    if (i < ARRAY_LEN(value_rows)) {
        append_value_row(&value_rows[i], out);
        *ret_want = value_rows[i].want;
        return;
    }
    i -= ARRAY_LEN(value_rows);
    if (i < ARRAY_LEN(size_rows)) {
        buf_append_cstr(out, size_rows[i].before);
        for (size_t n = 0; n < size_rows[i].fill; n++) {
            buf_append_char(out, 'a');
        }
        buf_append_cstr(out, size_rows[i].after);
        *ret_want = size_rows[i].want;
        return;
    }
    i -= ARRAY_LEN(size_rows);
    if (i < 3) {
        append_large_row(i, out, ret_want);
        return;
    }
    append_byte_row(i - 3, out);
}
