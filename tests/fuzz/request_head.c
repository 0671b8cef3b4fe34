// SPDX-License-Identifier: Apache-2.0
// The scan of a request head: the verdict does not depend on where the bytes were cut. An accepted
// head also passes a reference grammar written line by line. Serialised again, it parses to the
// same request. The same holds for chunked bodies.
#include <stdlib.h>
#include <string.h>

#include "http/http_private.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum err judge(struct span bytes, size_t piece, struct arena *arena, uint32_t *ret_head_len,
                      struct http_request *ret_request)
{
    struct request_head scan;
    request_head_init(&scan);
    size_t have = 0;
    for (;;) {
        size_t step = bytes.len - have < piece ? bytes.len - have : piece;
        have += step;
        // A copy of its own, so that ASan finds reads past the bytes that have arrived.
        struct span arrived = arena_copy(arena, (struct span){bytes.ptr, have});
        check(arrived.ptr != NULL);
        enum request_head_verdict verdict = request_head_scan(&scan, arrived);
        if (verdict == REQUEST_HEAD_REFUSED) {
            return scan.err;
        }
        if (verdict == REQUEST_HEAD_COMPLETE) {
            *ret_head_len = scan.at;
            return request_head_accept(&scan, (struct span){arrived.ptr, scan.at}, arena,
                                       ret_request);
        }
        if (have == bytes.len) {
            return ERR_AGAIN;
        }
    }
}

// --- the reference: what a head must look like at least ------------------------------------------

static bool take_line(struct span *rest, struct span *ret_line)
{
    for (size_t i = 0; i + 1 < rest->len; i++) {
        if (rest->ptr[i] == '\r' && rest->ptr[i + 1] == '\n') {
            *ret_line = (struct span){rest->ptr, i};
            rest->ptr += i + 2;
            rest->len -= i + 2;
            return true;
        }
    }
    return false;
}

static bool is_request_line(struct span line)
{
    struct span method, target;
    if (!span_split(&line, ' ', &method) || !span_split(&line, ' ', &target)) {
        return false;
    }
    if (!span_equal_cstr(line, "HTTP/1.0") && !span_equal_cstr(line, "HTTP/1.1")) {
        return false;
    }
    for (size_t i = 0; i < target.len; i++) {
        if (target.ptr[i] <= ' ' || target.ptr[i] > '~' || target.ptr[i] == '#') {
            return false;
        }
    }
    return headers_name_is_token(method) && target.len > 0 && target.len <= HTTP_TARGET_MAX;
}

static void check_reference(struct span head, const struct http_request *r)
{
    struct span line;
    unsigned hosts = 0, lengths = 0, codings = 0, count = 0;
    check(head.len <= HTTP_HEAD_MAX + 2);
    check(take_line(&head, &line));
    if (line.len == 0) {
        check(take_line(&head, &line)); // the one empty line that is forgiven
    }
    check(is_request_line(line));
    for (;;) {
        check(take_line(&head, &line));
        if (line.len == 0) {
            break;
        }
        size_t colon = span_find(line, ':');
        struct span name = {line.ptr, colon};
        check(colon < line.len && line.len <= HTTP_HEADER_MAX);
        struct span value = span_trim((struct span){line.ptr + colon + 1, line.len - colon - 1});
        check(headers_name_is_token(name) && headers_value_is_clean(value));
        check(count < r->headers.count);
        check(span_equal(r->headers.items[count].name, name));
        check(span_equal(r->headers.items[count].value, value));
        count++;
        hosts += span_equal_nocase(name, SPAN("host"));
        lengths += span_equal_nocase(name, SPAN("content-length"));
        codings += span_equal_nocase(name, SPAN("transfer-encoding"));
        check(!span_equal_nocase(name, SPAN("upgrade")));
    }
    check(head.len == 0);
    check(count == r->headers.count && count <= HTTP_HEADER_COUNT_MAX);
    check(hosts == 1 && lengths + codings <= 1);
    check((r->framing == HTTP_BODY_CHUNKS) == (codings == 1) &&
          (r->framing == HTTP_BODY_LENGTH) == (lengths == 1));
    check(r->framing != HTTP_BODY_CHUNKS || r->version_minor == 1);
    check(r->target.len > 0 && r->target.ptr[0] == '/');
}

static void check_again(const struct http_request *r, struct arena *arena)
{
    struct buf b;
    struct http_request again = {0};
    uint32_t head_len = 0;
    buf_init(&b, 1 << 20);
    buf_append_span(&b, r->method);
    buf_append_char(&b, ' ');
    buf_append_span(&b, r->target);
    buf_append_cstr(&b, r->version_minor == 1 ? " HTTP/1.1\r\n" : " HTTP/1.0\r\n");
    for (unsigned i = 0; i < r->headers.count; i++) {
        buf_append_span(&b, r->headers.items[i].name);
        buf_append_char(&b, ':');
        buf_append_span(&b, r->headers.items[i].value);
        buf_append_cstr(&b, "\r\n");
    }
    buf_append_cstr(&b, "\r\n");
    check(judge(buf_span(&b), b.len, arena, &head_len, &again) == ERR_OK);
    check(head_len == b.len);
    check(span_equal(again.target, r->target) && span_equal(again.host, r->host));
    check(again.content_length == r->content_length && again.framing == r->framing);
    check(again.keep_alive == r->keep_alive &&
          http_request_has_body(&again) == http_request_has_body(r));
    check(again.expects_continue == r->expects_continue && again.is_head == r->is_head);
    check(again.headers.count == r->headers.count);
    buf_done(&b);
}

// --- chunked bodies ------------------------------------------------------------------------------

struct decoded {
    enum http_chunked_step end;
    uint64_t sum;
    size_t data_len, used;
};

static struct decoded decode(struct span bytes, size_t piece)
{
    struct http_chunked c;
    struct decoded d = {.end = HTTP_CHUNKED_MORE};
    http_chunked_init(&c);
    while (d.used < bytes.len && d.end == HTTP_CHUNKED_MORE) {
        size_t len = bytes.len - d.used < piece ? bytes.len - d.used : piece;
        struct span rest = {bytes.ptr + d.used, len}, part;
        while ((d.end = http_chunked_next(&c, &rest, &part)) == HTTP_CHUNKED_DATA) {
            check(part.len > 0 && part.ptr >= bytes.ptr + d.used);
            check(part.ptr + part.len <= bytes.ptr + d.used + len);
            for (size_t i = 0; i < part.len; i++) {
                d.sum = d.sum * 31 + (unsigned char)part.ptr[i];
            }
            d.data_len += part.len;
        }
        d.used += len - rest.len;
    }
    return d;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > 70000) {
        return 0;
    }
    size_t piece = data[0] % 64 + 1;
    struct span bytes = {(const char *)data + 1, size - 1};
    if (bytes.len / piece > 200) {
        piece = bytes.len / 200 + 1;
    }
    struct arena *arena = arena_new(64u << 20);
    struct http_request whole = {0}, pieces = {0};
    uint32_t whole_len = 0, pieces_len = 0;
    enum err err = judge(bytes, bytes.len, arena, &whole_len, &whole);
    check(judge(bytes, piece, arena, &pieces_len, &pieces) == err && whole_len == pieces_len);
    if (err == ERR_OK) {
        check_reference((struct span){bytes.ptr, whole_len}, &whole);
        check_again(&whole, arena);
    }
    arena_free(arena);
    struct decoded a = decode(bytes, bytes.len), b = decode(bytes, piece);
    check(a.end == b.end && a.sum == b.sum && a.data_len == b.data_len && a.used == b.used);
    return 0;
}
