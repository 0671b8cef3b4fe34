// SPDX-License-Identifier: Apache-2.0
// The key of a form upload (POST to a bucket): the field `key` stands before the file in the
// multipart body, so the beginning of it is enough. Pure; any thread. Nothing is read but the key
// and whether the form is signed; the form goes to the origin as it came.
#include "proxy/pass_private.h"

#include <string.h>

#define BOUNDARY_MAX 70u // RFC 2046

static struct span after(struct span s, size_t n)
{
    // Nothing may lie nowhere, and there not even 0 can be added.
    return n == 0 ? s : (struct span){s.ptr + n, s.len - n};
}

// Offset of `what`, or s.len.
static size_t find(struct span s, struct span what)
{
    const char *at = s.len > 0 ? memmem(s.ptr, s.len, what.ptr, what.len) : NULL;
    return at != NULL ? (size_t)(at - s.ptr) : s.len;
}

// The value of parameter `name` in `a; b="c"; name=value`; false when absent. Quoted values may
// hold \" and \\.
static bool parameter_get(struct arena *arena, struct span text, struct span name,
                          struct span *ret_value)
{
    size_t at = span_find(text, ';');
    while (at < text.len) {
        struct span rest = after(text, at + 1);
        struct span trimmed = span_trim(rest);
        size_t equals = span_find(trimmed, '=');
        if (equals == trimmed.len) {
            return false;
        }
        struct span found = span_trim((struct span){trimmed.ptr, equals});
        struct span value = after(trimmed, equals + 1);
        bool quoted = value.len > 0 && value.ptr[0] == '"';
        char *out = arena_alloc(arena, value.len + 1);
        if (out == NULL) {
            return false;
        }
        size_t len = 0, i = quoted ? 1 : 0;
        for (; i < value.len && value.ptr[i] != (quoted ? '"' : ';'); i++) {
            if (quoted && value.ptr[i] == '\\' && i + 1 < value.len &&
                (value.ptr[i + 1] == '"' || value.ptr[i + 1] == '\\')) {
                i++;
            }
            out[len++] = value.ptr[i];
        }
        if (span_equal_nocase(found, name)) {
            *ret_value = quoted ? (struct span){out, len} : span_trim((struct span){out, len});
            return true;
        }
        struct span left = after(value, min_u64(i + (quoted ? 1 : 0), value.len));
        text = left;
        at = span_find(text, ';');
    }
    return false;
}

// Content-Disposition among a part's header lines.
static struct span disposition_of(struct span lines)
{
    static const char NAME[] = "content-disposition:";
    while (lines.len > 0) {
        size_t end = find(lines, SPAN("\r\n"));
        struct span line = {lines.ptr, end};
        if (line.len >= sizeof(NAME) - 1 &&
            span_equal_nocase((struct span){line.ptr, sizeof(NAME) - 1}, SPAN(NAME))) {
            return after(line, sizeof(NAME) - 1);
        }
        lines = end < lines.len ? after(lines, end + 2) : (struct span){NULL, 0};
    }
    return (struct span){NULL, 0};
}

// S3 takes the last part of what the browser says of the file's name.
static struct span base_name(struct span name)
{
    size_t start = 0;
    for (size_t i = 0; i < name.len; i++) {
        if (name.ptr[i] == '/' || name.ptr[i] == '\\') {
            start = i + 1;
        }
    }
    return after(name, start);
}

static bool key_fill_in(struct arena *arena, struct span key, struct span file_name,
                        struct span *ret_key)
{
    static const char VARIABLE[] = "${filename}";
    struct buf out;
    buf_init(&out, S3_KEY_MAX + 1);
    while (key.len > 0) {
        size_t at = find(key, SPAN(VARIABLE));
        buf_append(&out, key.ptr, at);
        if (at == key.len) {
            break;
        }
        buf_append_span(&out, base_name(file_name));
        key = after(key, at + sizeof(VARIABLE) - 1);
    }
    bool ok = buf_ok(&out) && out.len > 0;
    if (ok) {
        *ret_key = arena_copy(arena, buf_span(&out));
        ok = ret_key->ptr != NULL;
    }
    buf_done(&out);
    return ok;
}

// Fields that only a form with a signed policy has.
static bool is_of_signature(struct span name)
{
    static const char *const NAMES[] = {"policy", "signature", "awsaccesskeyid", "x-amz-signature",
                                        "x-amz-credential"};
    for (size_t i = 0; i < ARRAY_LEN(NAMES); i++) {
        if (span_equal_nocase(name, span_from_cstr(NAMES[i]))) {
            return true;
        }
    }
    return false;
}

enum pass_form_state pass_form_find_key(struct arena *arena, struct span content_type,
                                        struct span head, struct span *ret_key, bool *ret_is_signed)
{
    static const char TYPE[] = "multipart/form-data";
    struct span boundary;
    if (content_type.len < sizeof(TYPE) - 1 ||
        !span_equal_nocase((struct span){content_type.ptr, sizeof(TYPE) - 1}, SPAN(TYPE)) ||
        !parameter_get(arena, content_type, SPAN("boundary"), &boundary) || boundary.len == 0 ||
        boundary.len > BOUNDARY_MAX) {
        return PASS_FORM_MISSING;
    }
    char mark[BOUNDARY_MAX + 5];
    memcpy(mark, "\r\n--", 4);
    memcpy(mark + 4, boundary.ptr, boundary.len);
    struct span delimiter = {mark, boundary.len + 4};
    struct span first = after(delimiter, 2);

    // The first delimiter may stand at the very beginning, without the line end before it.
    size_t at =
        head.len >= first.len && span_starts_with(head, first) ? first.len : find(head, delimiter);
    if (at == head.len) {
        return PASS_FORM_MORE;
    }
    if (at != first.len || !span_starts_with(head, first)) {
        at += delimiter.len;
    }
    bool has_key = false;
    struct span key = {NULL, 0};
    *ret_is_signed = false;
    for (struct span rest = after(head, at);;) {
        if (rest.len < 2) {
            return PASS_FORM_MORE;
        }
        if (rest.ptr[0] == '-' && rest.ptr[1] == '-') {
            return PASS_FORM_MISSING;
        }
        size_t head_end = find(rest, SPAN("\r\n\r\n"));
        if (head_end == rest.len) {
            return PASS_FORM_MORE;
        }
        struct span disposition = disposition_of((struct span){rest.ptr, head_end});
        struct span name = {NULL, 0}, file_name = {NULL, 0};
        (void)parameter_get(arena, disposition, SPAN("name"), &name);
        bool is_file = span_equal_nocase(name, SPAN("file"));
        if (is_file) {
            (void)parameter_get(arena, disposition, SPAN("filename"), &file_name);
            return has_key && key_fill_in(arena, key, file_name, ret_key) ? PASS_FORM_KEY
                                                                          : PASS_FORM_MISSING;
        }
        struct span value = after(rest, head_end + 4);
        size_t value_end = find(value, delimiter);
        if (value_end == value.len) {
            return PASS_FORM_MORE;
        }
        *ret_is_signed = *ret_is_signed || is_of_signature(name);
        if (span_equal_nocase(name, SPAN("key"))) {
            if (has_key) {
                return PASS_FORM_MISSING; // which of two would count is the origin's secret
            }
            has_key = true;
            key = (struct span){value.ptr, value_end};
        }
        rest = after(value, value_end + delimiter.len);
    }
}
