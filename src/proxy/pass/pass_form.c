// SPDX-License-Identifier: Apache-2.0
// Parses a form upload (POST to a bucket): the subset of RFC 7578 that browsers and SDKs write.
// Refuses any text that the origin might parse differently. Pure; any thread.
//
//   --B CRLF
//   Content-Disposition: form-data; name="key" CRLF CRLF value CRLF      fields, the key among them
//   --B CRLF
//   Content-Disposition: form-data; name="file"; filename="f" CRLF
//   Content-Type: ... CRLF CRLF bytes CRLF                               the file
//   --B CRLF ... CRLF                                                    a button, after it
//   --B-- CRLF
//
// Not allowed: a preamble, folded or unknown header lines, and other parameters. Parameters are
// quoted and have no escapes. The text --B may occur only on a delimiter line, and not even inside
// the file. pass_form_read() parses the head, up to the file, in one piece. pass_form_tail_feed()
// scans the file and everything after it while it passes.
#include "proxy/pass/pass_private.h"

#include <string.h>

static struct span after(struct span s, size_t n)
{
    check(n <= s.len);
    // An empty span may have a NULL pointer, and C does not allow even adding 0 to NULL.
    return n == 0 ? s : (struct span){s.ptr + n, s.len - n};
}

static bool take(struct span *s, struct span what)
{
    if (!span_starts_with_nocase(*s, what)) {
        return false;
    }
    *s = after(*s, what.len);
    return true;
}

static void skip_blanks(struct span *s)
{
    while (s->len > 0 && *s->ptr == ' ') {
        *s = after(*s, 1);
    }
}

// Parses `; name="value"` without escapes.
static bool take_parameter(struct span *s, struct span name, struct span *ret_value)
{
    skip_blanks(s);
    if (!take(s, SPAN(";"))) {
        return false;
    }
    skip_blanks(s);
    if (!take(s, name) || !take(s, SPAN("=\""))) {
        return false;
    }
    size_t end = span_find(*s, '"');
    if (end == s->len || memchr(s->ptr, '\\', end) != NULL) {
        return false;
    }
    *ret_value = (struct span){s->ptr, end};
    *s = after(*s, end + 1);
    return true;
}

static bool boundary_read(const struct headers *headers, struct span *ret_boundary)
{
    struct span type = {NULL, 0};
    if (headers_count(headers, SPAN("content-type")) != 1 ||
        !headers_get(headers, SPAN("content-type"), &type) ||
        !take(&type, SPAN("multipart/form-data"))) {
        return false;
    }
    struct span quoted = type;
    if (take_parameter(&quoted, SPAN("boundary"), ret_boundary)) {
        type = quoted;
    } else {
        skip_blanks(&type);
        if (!take(&type, SPAN(";"))) {
            return false;
        }
        skip_blanks(&type);
        if (!take(&type, SPAN("boundary="))) {
            return false;
        }
        *ret_boundary = type;
        type.len = 0;
    }
    bool ok = type.len == 0 && ret_boundary->len > 0 && ret_boundary->len <= PASS_BOUNDARY_MAX;
    for (size_t i = 0; ok && i < ret_boundary->len; i++) {
        char c = ret_boundary->ptr[i];
        bool alnum = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        ok = alnum || (c != '\0' && strchr("'()+_,-./:=?", c) != NULL);
    }
    return ok;
}

// --- one part ------------------------------------------------------------------------------------

struct part {
    struct span name, file_name;
    bool has_file_name, has_type;
};

static bool is_file(const struct part *part)
{
    return span_equal_nocase(part->name, SPAN("file"));
}

static bool disposition_read(struct span value, struct part *part)
{
    value = span_trim(value);
    if (!take(&value, SPAN("form-data")) || !take_parameter(&value, SPAN("name"), &part->name)) {
        return false;
    }
    part->has_file_name =
        value.len > 0 && take_parameter(&value, SPAN("filename"), &part->file_name);
    return value.len == 0 && part->name.len > 0;
}

// Parses a part's header lines: one Content-Disposition and, for the file, Content-Type.
static bool part_read(struct span lines, struct part *ret_part)
{
    struct part part = {0};
    bool has_disposition = false;
    while (lines.len > 0) {
        size_t end = span_find_text(lines, SPAN("\r\n"));
        struct span line = {lines.ptr, end};
        lines = end < lines.len ? after(lines, end + 2) : (struct span){NULL, 0};
        if (!headers_value_is_clean(line) || memchr(line.ptr, '\t', line.len) != NULL) {
            return false;
        }
        if (take(&line, SPAN("Content-Disposition:"))) {
            if (has_disposition || !disposition_read(line, &part)) {
                return false;
            }
            has_disposition = true;
        } else if (take(&line, SPAN("Content-Type:")) && !part.has_type) {
            part.has_type = true;
        } else {
            return false;
        }
    }
    *ret_part = part;
    return has_disposition && (is_file(&part) || (!part.has_type && !part.has_file_name));
}

// --- the head ------------------------------------------------------------------------------------

// Replaces ${filename} in the key. The file's name must not contain a path, because origins differ
// in which part of a path they use.
static bool key_fill_in(struct arena *arena, struct span key, struct span file_name,
                        struct span *ret_key)
{
    static const char VARIABLE[] = "${filename}";
    bool is_plain = file_name.len > 0 && memchr(file_name.ptr, '/', file_name.len) == NULL &&
                    memchr(file_name.ptr, '%', file_name.len) == NULL;
    struct buf out;
    buf_init(&out, S3_KEY_MAX + 1);
    bool ok = headers_value_is_clean(key) && memchr(key.ptr, '\t', key.len) == NULL;
    while (ok && key.len > 0) {
        size_t at = span_find_text(key, SPAN(VARIABLE));
        buf_append(&out, key.ptr, at);
        if (at == key.len) {
            break;
        }
        ok = is_plain;
        buf_append_span(&out, file_name);
        key = after(key, at + sizeof(VARIABLE) - 1);
    }
    ok = ok && buf_ok(&out) && out.len > 0;
    if (ok) {
        *ret_key = arena_copy(arena, buf_span(&out));
        ok = ret_key->ptr != NULL;
    }
    buf_done(&out);
    return ok;
}

// Returns true for a field that only forms with a signed policy have.
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

// Returns true for a field that names a source to copy from. S3 defines no such field. If an origin
// accepted one, it would read a key for which Forebay has checked no right.
static bool is_source(struct span name)
{
    struct span copy = SPAN("x-amz-copy-source"), rename = SPAN("x-amz-rename-source");
    return take(&name, copy) || take(&name, rename);
}

// Handles a field before the file. Returns false if the form must be refused.
static bool field_read(struct pass_form *form, struct span bucket, struct span name,
                       struct span value)
{
    form->is_signed = form->is_signed || is_of_signature(name);
    if (span_equal_nocase(name, SPAN("key"))) {
        bool is_first = form->key.len == 0 && value.len > 0;
        form->key = value;
        return is_first; // origins disagree about which of two keys to use
    }
    if (span_equal_nocase(name, SPAN("bucket"))) {
        return span_equal(value, bucket);
    }
    return !is_source(name);
}

enum pass_form_state pass_form_read(struct arena *arena, const struct headers *headers,
                                    struct span bucket, struct span head,
                                    struct pass_form *ret_form)
{
    struct pass_form form = {0};
    if (!boundary_read(headers, &form.boundary)) {
        return PASS_FORM_REFUSED;
    }
    char mark[PASS_BOUNDARY_MAX + 3] = "--";
    check(form.boundary.len > 0);
    check(form.boundary.len <= PASS_BOUNDARY_MAX);
    memcpy(mark + 2, form.boundary.ptr, form.boundary.len);
    struct span delimiter = {mark, form.boundary.len + 2};
    if (head.len < delimiter.len) {
        return PASS_FORM_MORE;
    }
    if (!span_starts_with(head, delimiter)) {
        return PASS_FORM_REFUSED;
    }
    for (struct span rest = after(head, delimiter.len);;) {
        if (rest.len < 2) {
            return PASS_FORM_MORE;
        }
        if (!take(&rest, SPAN("\r\n"))) {
            return PASS_FORM_REFUSED; // the closing delimiter without a file, or no delimiter line
        }
        size_t lines_end = span_find_text(rest, SPAN("\r\n\r\n"));
        if (lines_end == rest.len) {
            return PASS_FORM_MORE;
        }
        struct part part;
        struct span lines = {rest.ptr, lines_end};
        if (span_find_text(lines, delimiter) < lines.len || !part_read(lines, &part)) {
            return PASS_FORM_REFUSED;
        }
        struct span value = after(rest, lines_end + 4);
        if (is_file(&part)) {
            form.file_at = (size_t)(value.ptr - head.ptr);
            if (form.key.len == 0 || !key_fill_in(arena, form.key, part.file_name, &form.key)) {
                return PASS_FORM_REFUSED;
            }
            *ret_form = form;
            return PASS_FORM_KEY;
        }
        size_t value_end = span_find_text(value, delimiter);
        if (value_end == value.len) {
            return PASS_FORM_MORE;
        }
        if (value_end < 2 || memcmp(value.ptr + value_end - 2, "\r\n", 2) != 0 ||
            !field_read(&form, bucket, part.name, (struct span){value.ptr, value_end - 2})) {
            return PASS_FORM_REFUSED;
        }
        rest = after(value, value_end + delimiter.len);
    }
}

// --- the file and what follows -------------------------------------------------------------------

void pass_form_tail_init(struct pass_form_tail *tail, struct span boundary)
{
    check(boundary.len <= PASS_BOUNDARY_MAX);
    *tail = (struct pass_form_tail){.mark_len = boundary.len + 4, .step = PASS_FORM_IN_FILE};
    memcpy(tail->mark, "\r\n--", 4);
    memcpy(tail->mark + 4, boundary.ptr, boundary.len);
}

// Returns true if the bytes scanned so far end with the mark without its first `skip` bytes. The
// window always holds at least the last mark_len bytes.
static bool ends_with_mark(const struct pass_form_tail *tail, size_t skip)
{
    check(skip < tail->mark_len);
    check(tail->window_len <= sizeof(tail->window));
    size_t len = tail->mark_len - skip;
    return tail->window_len >= len &&
           memcmp(tail->window + tail->window_len - len, tail->mark + skip, len) == 0;
}

static void window_add(struct pass_form_tail *tail, char c)
{
    check(tail->window_len <= sizeof(tail->window));
    if (tail->window_len == sizeof(tail->window)) {
        memmove(tail->window, tail->window + sizeof(tail->window) - tail->mark_len, tail->mark_len);
        tail->window_len = tail->mark_len;
    }
    tail->window[tail->window_len++] = c;
}

// Returns true if an origin will ignore this part. After the file only a button is allowed.
static bool button_is_harmless(struct span lines)
{
    struct part part;
    struct span name;
    if (!part_read(lines, &part) || is_file(&part)) {
        return false;
    }
    name = part.name;
    return !span_equal_nocase(name, SPAN("key")) && !span_equal_nocase(name, SPAN("bucket")) &&
           !is_of_signature(name) && !take(&name, SPAN("x-amz-"));
}

static enum err tail_step(struct pass_form_tail *tail, char c)
{
    static const char ENDS[] = "--\r\n";
    switch (tail->step) {
    case PASS_FORM_IN_FILE:
        window_add(tail, c);
        if (c == tail->mark[tail->mark_len - 1] && ends_with_mark(tail, 2)) {
            tail->step = PASS_FORM_AT_MARK;
            tail->at = 0;
            return ends_with_mark(tail, 0) ? ERR_OK : ERR_INVALID_ARGUMENT;
        }
        return ERR_OK;
    case PASS_FORM_AT_MARK:
        tail->step = c == '\r' ? PASS_FORM_AT_LINE_END : PASS_FORM_AT_CLOSE;
        tail->at = 1;
        return c == '\r' || c == '-' ? ERR_OK : ERR_INVALID_ARGUMENT;
    case PASS_FORM_AT_LINE_END:
        tail->step = PASS_FORM_IN_LINES;
        tail->window_len = 0;
        return c == '\n' ? ERR_OK : ERR_INVALID_ARGUMENT;
    case PASS_FORM_IN_LINES:
        if (tail->window_len == sizeof(tail->window)) {
            return ERR_INVALID_ARGUMENT;
        }
        tail->window[tail->window_len++] = c;
        if (tail->window_len < 4 ||
            memcmp(tail->window + tail->window_len - 4, "\r\n\r\n", 4) != 0) {
            return ERR_OK;
        }
        tail->step = PASS_FORM_IN_FILE;
        bool ok = button_is_harmless((struct span){tail->window, tail->window_len - 4});
        tail->window_len = 0;
        return ok ? ERR_OK : ERR_INVALID_ARGUMENT;
    case PASS_FORM_AT_CLOSE:
        return tail->at < sizeof(ENDS) - 1 && c == ENDS[tail->at++] ? ERR_OK : ERR_INVALID_ARGUMENT;
    }
    return ERR_INVALID_ARGUMENT;
}

enum err pass_form_tail_feed(struct pass_form_tail *tail, struct span data)
{
    check(tail->mark_len > 4 && tail->mark_len <= sizeof(tail->mark));
    enum err err = ERR_OK;
    for (size_t i = 0; err == ERR_OK && i < data.len; i++) {
        err = tail_step(tail, data.ptr[i]);
    }
    return err;
}

bool pass_form_tail_is_closed(const struct pass_form_tail *tail)
{
    return tail->step == PASS_FORM_AT_CLOSE && (tail->at == 2 || tail->at == 4);
}
