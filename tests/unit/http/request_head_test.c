// SPDX-License-Identifier: Apache-2.0
// Proves that the scan of a request head refuses heads that two parsers could read differently. Its
// verdict does not depend on how the bytes were cut. It accepts heads that clients really send.
#include "test.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "http/http_private.h"
#include "malformed.h"

// The verdict as a connection gets it: bytes arrive in pieces of `piece` (0: whole).
static enum err judge(struct span bytes, size_t piece, struct arena *arena,
                      struct http_request *ret_request)
{
    struct request_head scan;
    request_head_init(&scan);
    size_t have = 0;
    do {
        size_t step = piece == 0 || bytes.len - have < piece ? bytes.len - have : piece;
        have += step;
        enum request_head_verdict verdict =
            request_head_scan(&scan, (struct span){bytes.ptr, have});
        if (verdict == REQUEST_HEAD_REFUSED) {
            return scan.err;
        }
        if (verdict == REQUEST_HEAD_COMPLETE) {
            struct span head = arena_copy(arena, (struct span){bytes.ptr, scan.at});
            return request_head_accept(&scan, head, arena, ret_request);
        }
    } while (have < bytes.len);
    return ERR_AGAIN;
}

// Every row is refused with its expected error, and with the same one wherever it is cut.
Test(request_head, malformed_rows)
{
    cr_assert(malformed_count() >= 300);
    struct arena *arena = arena_new(1 << 20);
    struct http_request request;
    for (unsigned i = 0; i < malformed_count(); i++) {
        struct buf b;
        enum err want;
        buf_init(&b, 1 << 20);
        malformed_append(i, &b, &want);
        cr_assert(buf_ok(&b));
        enum err whole = judge(buf_span(&b), 0, arena, &request);
        cr_assert(whole != ERR_OK && whole != ERR_AGAIN, "row %u let through: %s", i,
                  log_quote(buf_span(&b)));
        cr_assert(want == ERR_OK || whole == want, "row %u: %s", i, error_name(whole));
        for (size_t piece = 1; piece < 8; piece++) {
            enum err pieces = judge(buf_span(&b), piece, arena, &request);
            cr_assert(pieces == whole, "row %u in pieces of %zu: %s, whole: %s", i, piece,
                      error_name(pieces), error_name(whole));
        }
        arena_reset(arena);
        buf_done(&b);
    }
    arena_free(arena);
}

static struct http_request accepted(const char *text, struct arena *arena)
{
    struct http_request request = {0};
    struct span bytes = span_from_cstr(text);
    for (size_t piece = 1; piece <= bytes.len; piece++) {
        enum err err = judge(bytes, piece, arena, &request);
        cr_assert(err == ERR_OK, "%s in pieces of %zu: %s", text, piece, error_name(err));
    }
    return request;
}

// Heads as SDKs send them are accepted and parsed right.
Test(request_head, fields)
{
    struct arena *arena = arena_new(1 << 24);
    struct http_request r =
        accepted("GET /b/k%20x?list-type=2 HTTP/1.1\r\nHost: localhost:9000\r\nUser-Agent: "
                 "aws-sdk\r\nX-Empty:\r\nx-amz-meta-n: \t b\xc3\xbc  \r\nRange: bytes=0-1\r\n\r\n",
                 arena);
    cr_assert(span_equal_cstr(r.method, "GET"));
    cr_assert(span_equal_cstr(r.target, "/b/k%20x?list-type=2"));
    cr_assert(span_equal_cstr(r.host, "localhost:9000"));
    cr_assert(r.headers.count == 5);
    cr_assert(span_equal_cstr(r.headers.items[2].name, "X-Empty"));
    cr_assert(r.headers.items[2].value.len == 0);
    cr_assert(span_equal_cstr(r.headers.items[3].value, "b\xc3\xbc"));
    cr_assert(r.keep_alive && !http_request_has_body(&r) && !r.is_head && r.version_minor == 1);

    r = accepted("PUT /b/k HTTP/1.1\r\nhost: [::1]:9000\r\nTransfer-Encoding: Chunked\r\nExpect: "
                 "100-Continue\r\nConnection: x, Close\r\n\r\n",
                 arena);
    cr_assert(r.framing == HTTP_BODY_CHUNKS && http_request_has_body(&r) &&
              r.framing != HTTP_BODY_LENGTH && r.expects_continue);
    cr_assert(!r.keep_alive);
    cr_assert(span_equal_cstr(r.host, "[::1]:9000"));

    r = accepted("GET /b/k HTTP/1.1\r\nHost: h\r\nConnection: TE, Keep-Alive, absent,, \r\nTE: "
                 "trailers\r\nKeep-Alive: timeout=5\r\nx-amz-acl: private\r\n\r\n",
                 arena);
    cr_assert(r.keep_alive && r.headers.count == 5);

    r = accepted("PUT /b/k HTTP/1.1\r\nHost: b.localhost\r\nContent-Length: "
                 "9223372036854775807\r\n\r\n",
                 arena);
    cr_assert(r.framing == HTTP_BODY_LENGTH && r.content_length == INT64_MAX &&
              http_request_has_body(&r));
    r = accepted("PUT /b/k HTTP/1.1\r\nHost: my_bucket.localhost\r\nContent-Length: 0\r\n\r\n",
                 arena);
    cr_assert(r.framing == HTTP_BODY_LENGTH && r.content_length == 0 && !http_request_has_body(&r));

    r = accepted("\r\nHEAD / HTTP/1.0\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\n\r\n", arena);
    cr_assert(r.is_head && r.version_minor == 0 && !r.keep_alive && !r.expects_continue);
    r = accepted("GET / HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\n\r\n", arena);
    cr_assert(r.keep_alive);
    for (const char *const *m = (const char *const[]){"POST", "DELETE", "OPTIONS", NULL}; *m; m++) {
        char text[128];
        snprintf(text, sizeof(text), "%s /b?delete HTTP/1.1\r\nHost: h\r\n\r\n", *m);
        r = accepted(text, arena);
        cr_assert(span_equal_cstr(r.method, *m));
    }
    arena_free(arena);
}

// Upgrade is ignored (RFC 9110 7.8): the request is answered as if the header were not there.
Test(request_head, upgrade_and_its_companions_are_ignored)
{
    static const char *const heads[] = {
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
        "Connection: keep-alive, Upgrade\r\nUpgrade: h2c, websocket\r\nUpgrade: TLS/1.2\r\n",
        "Upgrade: h2c\r\n",
        "Upgrade:\r\n",
        "HTTP2-Settings: AAMAAABk\r\n",
        "Connection: TE, trailers\r\nTE: trailers\r\n",
        "Proxy-Connection: Keep-Alive\r\nKeep-Alive: timeout=5, max=100\r\n",
        "Connection: proxy-connection\r\nProxy-Connection: close\r\n",
    };
    struct arena *arena = arena_new(1 << 24);
    for (size_t i = 0; i < ARRAY_LEN(heads); i++) {
        char text[512];
        snprintf(text, sizeof(text), "GET /b/k HTTP/1.1\r\nHost: h\r\n%s\r\n", heads[i]);
        struct http_request r = accepted(text, arena);
        cr_assert(r.keep_alive && !http_request_has_body(&r) && span_equal_cstr(r.target, "/b/k"));
        snprintf(text, sizeof(text), "PUT /b/k HTTP/1.1\r\nHost: h\r\n%sContent-Length: 7\r\n\r\n",
                 heads[i]);
        r = accepted(text, arena);
        cr_assert(r.keep_alive && http_request_has_body(&r) && r.content_length == 7);
    }
    arena_free(arena);
}

// The number of options in all Connection lines together is bounded.
Test(request_head, connection_options_are_bounded)
{
    struct arena *arena = arena_new(1 << 24);
    for (int count = 31; count <= 33; count++) {
        struct buf b;
        struct http_request request;
        buf_init(&b, 1 << 16);
        buf_append_cstr(&b, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nConnection: x0");
        for (int i = 2; i < count; i++) {
            buf_printf(&b, ",x%d", i);
        }
        buf_append_cstr(&b, "\r\n\r\n");
        enum err err = judge(buf_span(&b), 0, arena, &request);
        cr_assert_eq(err, count > 32 ? ERR_BAD_REQUEST : ERR_OK, "%d", count);
        buf_done(&b);
    }
    arena_free(arena);
}

// Absolute form is reduced to its path when it names the same authority.
Test(request_head, absolute_form)
{
    struct arena *arena = arena_new(1 << 22);
    struct http_request r =
        accepted("GET http://Localhost:9000/b/k?x HTTP/1.1\r\nHost: localhost:9000\r\n\r\n", arena);
    cr_assert(span_equal_cstr(r.target, "/b/k?x"));
    r = accepted("GET HTTPS://h HTTP/1.1\r\nHost: h\r\n\r\n", arena);
    cr_assert(span_equal_cstr(r.target, "/"));
    arena_free(arena);
}

static void append_fill(struct buf *b, char c, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        buf_append_char(b, c);
    }
}

static enum err judge_buf(struct buf *b)
{
    struct arena *arena = arena_new(1 << 20);
    struct http_request request;
    enum err whole = judge(buf_span(b), 0, arena, &request);
    cr_assert(judge(buf_span(b), 1000, arena, &request) == whole);
    arena_free(arena);
    buf_done(b);
    return whole;
}

// Each limit at -1, 0 and +1.
Test(request_head, limits)
{
    for (int d = -1; d <= 1; d++) {
        struct buf b;
        buf_init(&b, 1 << 20);
        buf_append_cstr(&b, "GET /");
        append_fill(&b, 'a', (size_t)(HTTP_TARGET_MAX - 1 + d));
        buf_append_cstr(&b, " HTTP/1.1\r\nHost: h\r\n\r\n");
        cr_assert(judge_buf(&b) == (d > 0 ? ERR_URI_TOO_LONG : ERR_OK));

        buf_init(&b, 1 << 20);
        buf_append_cstr(&b, "GET / HTTP/1.1\r\nHost: h\r\nX: ");
        append_fill(&b, 'a', (size_t)(HTTP_HEADER_MAX - 3 + d));
        buf_append_cstr(&b, "\r\n\r\n");
        cr_assert(judge_buf(&b) == (d > 0 ? ERR_HEADERS_TOO_LARGE : ERR_OK));

        buf_init(&b, 1 << 20);
        buf_append_cstr(&b, "GET / HTTP/1.1\r\nHost: h\r\n");
        for (int i = 0; i < HTTP_HEADER_COUNT_MAX - 1 + d; i++) {
            buf_append_cstr(&b, "X: y\r\n");
        }
        buf_append_cstr(&b, "\r\n");
        cr_assert(judge_buf(&b) == (d > 0 ? ERR_HEADERS_TOO_LARGE : ERR_OK));

        buf_init(&b, 1 << 20);
        buf_append_cstr(&b, "GET / HTTP/1.1\r\nHost: h\r\nX: ");
        append_fill(&b, 'a', 16000);
        buf_append_cstr(&b, "\r\nY: ");
        append_fill(&b, 'a', 16000);
        buf_append_cstr(&b, "\r\nYY: ");
        append_fill(&b, 'a', 16000);
        buf_append_cstr(&b, "\r\nZ: ");
        append_fill(&b, 'a', (size_t)((int)(HTTP_HEAD_MAX - 4 - b.len) + d));
        buf_append_cstr(&b, "\r\n\r\n");
        cr_assert(b.len == (size_t)(HTTP_HEAD_MAX + d));
        enum err err = judge_buf(&b);
        cr_assert(err == (d > 0 ? ERR_HEADERS_TOO_LARGE : ERR_OK), "%d: %s", d, error_name(err));
    }
}

// Bytes after a refused head are never parsed.
Test(request_head, verdict_stays)
{
    struct request_head scan;
    request_head_init(&scan);
    cr_assert(request_head_scan(&scan, SPAN("GET /\n")) == REQUEST_HEAD_REFUSED);
    cr_assert(request_head_scan(&scan, SPAN("GET / HTTP/1.1\r\nHost: h\r\n\r\n")) ==
              REQUEST_HEAD_REFUSED);
}
