// SPDX-License-Identifier: Apache-2.0
// Detects answers that libcurl accepts but a cache must not trust. Examples are two
// Content-Lengths, Content-Length together with Transfer-Encoding, malformed numbers, bare line
// feeds or folded lines.
//
// If there is any doubt where the body ends, the answer is an error at once. Other malformed lines
// are dropped and never sent to a client. An answer with such lines must not be stored.
#include <string.h>

#include "net/net.h"

void response_head_init(struct response_head *h, struct arena *arena, bool is_head_request)
{
    memset(h, 0, sizeof(*h));
    h->arena = arena;
    h->is_head_request = is_head_request;
    h->is_strict = true;
}

// --- Lines ---------------------------------------------------------------------------------------

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

// Reads "HTTP/1.x NNN[ reason]".
static enum err take_status_line(struct response_head *h, struct span line)
{
    if (line.len < 12 || memcmp(line.ptr, "HTTP/1.", 7) != 0 ||
        (line.ptr[7] != '0' && line.ptr[7] != '1') || line.ptr[8] != ' ' ||
        (line.len > 12 && line.ptr[12] != ' ')) {
        return ERR_ORIGIN_PROTOCOL;
    }
    h->version_minor = (unsigned)(line.ptr[7] - '0');
    h->status = 0;
    for (int i = 9; i < 12; i++) {
        if (!is_digit(line.ptr[i])) {
            return ERR_ORIGIN_PROTOCOL;
        }
        h->status = h->status * 10 + (unsigned)(line.ptr[i] - '0');
    }
    if (h->status == 101 || h->status < 100 || h->status > 599) {
        return ERR_ORIGIN_PROTOCOL;
    }
    if (!headers_value_is_clean(line)) {
        h->is_strict = false;
    }
    struct span reason = span_trim((struct span){line.ptr + 12, line.len - 12});
    h->says_slow_down = span_equal_nocase(reason, SPAN("Slow Down"));
    if (h->status < 200) {
        h->state = RESPONSE_INTERIM;
        return ++h->interim_count > RESPONSE_INTERIM_MAX ? ERR_ORIGIN_PROTOCOL : ERR_OK;
    }
    h->state = RESPONSE_HEADERS;
    return ERR_OK;
}

static enum err take_length(struct response_head *h, struct span value)
{
    uint64_t length = 0;
    if (h->is_chunked || !span_to_u64(value, &length) || length > INT64_MAX) {
        return ERR_ORIGIN_PROTOCOL;
    }
    if (h->has_length) {
        h->is_strict = false;
        return length == h->length ? ERR_OK : ERR_ORIGIN_PROTOCOL;
    }
    h->has_length = true;
    h->length = length;
    return ERR_OK;
}

static enum err take_transfer_encoding(struct response_head *h, struct span value)
{
    if (h->has_length || h->is_chunked || h->version_minor == 0 ||
        !span_equal_nocase(value, SPAN("chunked"))) {
        return ERR_ORIGIN_PROTOCOL;
    }
    h->is_chunked = true;
    return ERR_OK;
}

// Returns true for headers that decide where the body ends or which bytes of the object it has.
static bool is_framing_name(struct span name)
{
    return span_equal_nocase(name, SPAN("Content-Length")) ||
           span_equal_nocase(name, SPAN("Transfer-Encoding")) ||
           span_equal_nocase(name, SPAN("Content-Range"));
}

static enum err take_folded(struct response_head *h)
{
    h->is_strict = false;
    if (h->previous == PREVIOUS_FRAMING) {
        return ERR_ORIGIN_PROTOCOL;
    }
    if (h->previous == PREVIOUS_KEPT) {
        // Drop the previous header, because the rest of its value is in this ignored line.
        check(h->headers.count > 0);
        h->headers.count--;
        h->previous = PREVIOUS_NOT_KEPT;
    }
    return ERR_OK;
}

static enum err take_header(struct response_head *h, struct span line)
{
    if (line.ptr[0] == ' ' || line.ptr[0] == '\t') {
        return take_folded(h);
    }
    size_t colon = span_find(line, ':');
    struct span name = {line.ptr, colon};
    bool is_framing = is_framing_name(span_trim(name));
    h->previous = is_framing ? PREVIOUS_FRAMING : PREVIOUS_NOT_KEPT;
    if (colon == line.len || !headers_name_is_token(name)) {
        h->is_strict = false;
        return is_framing ? ERR_ORIGIN_PROTOCOL : ERR_OK;
    }
    struct span value = span_trim((struct span){line.ptr + colon + 1, line.len - colon - 1});
    if (!headers_value_is_clean(value)) {
        h->is_strict = false;
        return is_framing ? ERR_ORIGIN_PROTOCOL : ERR_OK;
    }
    enum err err = ERR_OK;
    if (span_equal_nocase(name, SPAN("Content-Length"))) {
        err = take_length(h, value);
    } else if (span_equal_nocase(name, SPAN("Transfer-Encoding"))) {
        err = take_transfer_encoding(h, value);
    }
    if (err != ERR_OK) {
        return err;
    }
    struct span name_copy = arena_copy(h->arena, name), value_copy = arena_copy(h->arena, value);
    if (name_copy.ptr == NULL || value_copy.ptr == NULL) {
        return ERR_NO_MEMORY;
    }
    if (h->headers.count == RESPONSE_HEADERS_MAX) {
        return ERR_ORIGIN_HEAD_TOO_LARGE;
    }
    if (!headers_add(&h->headers, h->arena, name_copy, value_copy)) {
        return ERR_NO_MEMORY;
    }
    h->previous = is_framing ? PREVIOUS_FRAMING : PREVIOUS_KEPT;
    return ERR_OK;
}

static bool has_body(const struct response_head *h)
{
    return !h->is_head_request && h->status != 204 && h->status != 304;
}

static void head_complete(struct response_head *h)
{
    h->state = RESPONSE_DONE;
    if (has_body(h) && !h->has_length) {
        h->is_strict = false; // the body is chunked, or ends when the connection closes
    }
    if (!has_body(h) && h->is_chunked && !h->is_head_request) {
        h->is_strict = false;
    }
}

enum err response_head_line(struct response_head *h, struct span line, bool *ret_done)
{
    *ret_done = h->state == RESPONSE_DONE;
    if (*ret_done) {
        return ERR_OK; // a trailer, which is ignored
    }
    h->head_bytes += line.len;
    if (h->head_bytes > RESPONSE_HEAD_MAX) {
        return ERR_ORIGIN_HEAD_TOO_LARGE;
    }
    if (memchr(line.ptr, '\0', line.len) != NULL) {
        return ERR_ORIGIN_PROTOCOL;
    }
    if (line.len > 0 && line.ptr[line.len - 1] == '\n') {
        line.len--;
    } else {
        h->is_strict = false;
    }
    if (line.len > 0 && line.ptr[line.len - 1] == '\r') {
        line.len--;
    } else {
        h->is_strict = false; // a bare line feed
    }
    if (line.len > 0 && line.ptr[0] == '\r') {
        // libcurl would end the head here and take the rest for the body.
        return ERR_ORIGIN_PROTOCOL;
    }
    switch (h->state) {
    case RESPONSE_STATUS_LINE:
        return take_status_line(h, line);
    case RESPONSE_INTERIM:
        if (line.len == 0) {
            h->state = RESPONSE_STATUS_LINE;
        }
        return ERR_OK;
    case RESPONSE_HEADERS:
        if (line.len == 0) {
            head_complete(h);
            *ret_done = true;
            return ERR_OK;
        }
        return take_header(h, line);
    case RESPONSE_DONE:
        break;
    }
    return ERR_OK;
}
