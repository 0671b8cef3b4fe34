// SPDX-License-Identifier: Apache-2.0
// The small part of XML that we write and read. Pure; any thread.
//
// The writer only escapes and appends. The reader is expat, which decodes the encodings that XML
// allows. A document type declaration stops it at once, so only XML's own five entities exist and
// nothing is ever fetched. Depth, size and the length of a path are limited. The reader reports
// only leaf elements, and keeps the text of an element only until its end.
#include "base/chunk.h"
#include "s3/s3_private.h"

#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 16
#define PATH_MAX_BYTES 512

void s3_xml_escape(struct buf *out, struct span text)
{
    size_t plain = 0; // start of the bytes that are still to be appended
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.ptr[i];
        const char *entity = c == '&'    ? "&amp;"
                             : c == '<'  ? "&lt;"
                             : c == '>'  ? "&gt;"
                             : c == '"'  ? "&quot;"
                             : c == '\'' ? "&apos;"
                                         : NULL;
        bool control = c < 0x20 || c == 0x7f;
        if (entity == NULL && !control) {
            continue;
        }
        buf_append(out, text.ptr + plain, i - plain);
        plain = i + 1;
        if (entity != NULL) {
            buf_append_cstr(out, entity);
        } else {
            buf_printf(out, "&#x%X;", c);
        }
    }
    if (plain < text.len) {
        buf_append(out, text.ptr + plain, text.len - plain);
    }
}

// Writes a character as UTF-8, which is never longer than the reference to it. Returns the number
// of bytes; 0 if there is no such character.
static size_t utf8_put(uint32_t c, char *to)
{
    if (c > 0x10ffff) {
        return 0;
    }
    size_t len = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char FIRST[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = len; i-- > 1; c >>= 6) {
        to[i] = (char)(0x80 | (c & 0x3f));
    }
    to[0] = (char)(FIRST[len] | c);
    return len;
}

// Decodes a numeric reference such as "&#65;" or "&#x41;" at the start of `text`. Appends its
// character to `to` and adds to *len. Returns the length of the reference; 0 if there is none.
static size_t number_read(struct span text, char *to, size_t *len)
{
    size_t end = span_find(text, ';');
    if (end == text.len || end > 9 || end < 3 || !span_starts_with(text, SPAN("&#"))) {
        return 0;
    }
    bool is_hex = text.ptr[2] == 'x';
    uint32_t c = 0;
    for (size_t i = is_hex ? 3 : 2; i < end; i++) {
        char d = text.ptr[i];
        int digit = d >= '0' && d <= '9'             ? d - '0'
                    : is_hex && d >= 'a' && d <= 'f' ? d - 'a' + 10
                    : is_hex && d >= 'A' && d <= 'F' ? d - 'A' + 10
                                                     : -1;
        if (digit < 0) {
            return 0;
        }
        // no overflow, because there are at most seven digits
        c = c * (is_hex ? 16 : 10) + (uint32_t)digit;
    }
    size_t put = utf8_put(c, to + *len);
    *len += put;
    return put > 0 && end > (is_hex ? 3u : 2u) ? end + 1 : 0;
}

bool s3_xml_unescape(struct span text, char *ret_bytes, size_t *ret_len)
{
    static const struct {
        const char *name;
        char c;
    } ENTITIES[] = {
        {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
    size_t len = 0;
    while (text.len > 0) {
        size_t taken = text.ptr[0] == '&' ? number_read(text, ret_bytes, &len) : 1;
        if (text.ptr[0] != '&') {
            ret_bytes[len++] = text.ptr[0];
        }
        for (size_t i = 0; i < ARRAY_LEN(ENTITIES) && taken == 0; i++) {
            if (span_starts_with(text, span_from_cstr(ENTITIES[i].name))) {
                ret_bytes[len++] = ENTITIES[i].c;
                taken = strlen(ENTITIES[i].name);
            }
        }
        if (taken == 0) {
            return false;
        }
        text.ptr += taken;
        text.len -= taken;
    }
    *ret_len = len;
    return true;
}

void s3_xml_element(struct buf *out, const char *name, struct span text)
{
    buf_append_char(out, '<');
    buf_append_cstr(out, name);
    buf_append_char(out, '>');
    s3_xml_escape(out, text);
    buf_append_cstr(out, "</");
    buf_append_cstr(out, name);
    buf_append_char(out, '>');
}

void s3_xml_element_u64(struct buf *out, const char *name, uint64_t value)
{
    buf_printf(out, "<%s>%llu</%s>", name, (unsigned long long)value, name);
}

// --- Reader --------------------------------------------------------------------------------------

struct leaf_reader {
    struct s3_xml_parser parser;
    s3_xml_leaf_fn *on_leaf;
    void *ctx;
    struct buf text;
    char path[PATH_MAX_BYTES];
    size_t path_len;
    size_t path_len_at[DEPTH_MAX]; // length of the path before the element of that depth began
    unsigned depth;
    bool leaf; // the last tag was a start tag, so the open element may be a leaf
    enum err err;
};

static void reader_stop(struct leaf_reader *reader, enum err err)
{
    if (reader->err == ERR_OK) {
        reader->err = err;
    }
    (void)XML_StopParser(reader->parser.expat, XML_FALSE); // fails only if it is already stopped
}

static void on_start(void *ctx, const XML_Char *name, const XML_Char **attributes)
{
    (void)attributes;
    struct leaf_reader *reader = ctx;
    if (reader->err != ERR_OK) {
        return;
    }
    const char *colon = strchr(name, ':');
    const char *local = colon != NULL ? colon + 1 : name;
    size_t len = strlen(local);
    if (reader->depth == DEPTH_MAX || reader->path_len + len + 2 > sizeof(reader->path)) {
        reader_stop(reader, ERR_MALFORMED_XML);
        return;
    }
    reader->path_len_at[reader->depth++] = reader->path_len;
    if (reader->path_len > 0) {
        reader->path[reader->path_len++] = '/';
    }
    memcpy(reader->path + reader->path_len, local, len + 1);
    reader->path_len += len;
    reader->text.len = 0;
    reader->leaf = true;
}

static void on_end(void *ctx, const XML_Char *name)
{
    (void)name;
    struct leaf_reader *reader = ctx;
    if (reader->err != ERR_OK) {
        return;
    }
    check(reader->depth > 0);
    if (reader->leaf) {
        reader->on_leaf(reader->ctx, reader->path, buf_span(&reader->text));
    }
    reader->leaf = false;
    reader->text.len = 0;
    reader->path_len = reader->path_len_at[--reader->depth];
    reader->path[reader->path_len] = '\0';
}

static void on_text(void *ctx, const XML_Char *text, int len)
{
    struct leaf_reader *reader = ctx;
    if (reader->err != ERR_OK || !reader->leaf) {
        return;
    }
    buf_append(&reader->text, text, (size_t)len);
    if (!buf_ok(&reader->text)) {
        reader_stop(reader, ERR_NO_MEMORY);
    }
}

static void on_doctype(void *ctx, const XML_Char *name, const XML_Char *system_id,
                       const XML_Char *public_id, int has_internal_subset)
{
    (void)name;
    (void)system_id;
    (void)public_id;
    (void)has_internal_subset;
    reader_stop(ctx, ERR_MALFORMED_XML);
}

// Skips white space before the document. Servers that begin an answer before they know the outcome
// send it to keep the connection alive.
static struct span skip_leading_blanks(struct span s)
{
    while (s.len > 0 &&
           (s.ptr[0] == ' ' || s.ptr[0] == '\n' || s.ptr[0] == '\r' || s.ptr[0] == '\t')) {
        s.ptr++;
        s.len--;
    }
    return s;
}

enum err s3_xml_read(struct span document, s3_xml_leaf_fn *on_leaf, void *ctx)
{
    if (document.len > S3_XML_BODY_MAX) {
        return ERR_MALFORMED_XML;
    }
    struct leaf_reader reader = {.on_leaf = on_leaf, .ctx = ctx};
    s3_xml_parser_init(&reader.parser, NULL, NULL);
    // Decoding to UTF-8 may turn one byte into two.
    buf_init_counted(&reader.text, S3_XML_BODY_MAX * 2, BUDGET_BODIES);
    XML_Parser expat = reader.parser.expat;
    XML_SetUserData(expat, &reader);
    XML_SetElementHandler(expat, on_start, on_end);
    XML_SetCharacterDataHandler(expat, on_text);
    XML_SetStartDoctypeDeclHandler(expat, on_doctype);
    enum err err = s3_xml_parser_read(&reader.parser, skip_leading_blanks(document), &reader.err);
    buf_done(&reader.text);
    return err;
}

// --- Documents -----------------------------------------------------------------------------------

struct error_reading {
    struct arena *arena;
    struct s3_error_body body;
    bool is_error;
};

static void on_error_leaf(void *ctx, const char *path, struct span text)
{
    struct error_reading *reading = ctx;
    if (strcmp(path, "Error") == 0 || strncmp(path, "Error/", 6) == 0) {
        reading->is_error = true;
    }
    struct span *target = strcmp(path, "Error/Code") == 0       ? &reading->body.code
                          : strcmp(path, "Error/Message") == 0  ? &reading->body.message
                          : strcmp(path, "Error/Region") == 0   ? &reading->body.region
                          : strcmp(path, "Error/Endpoint") == 0 ? &reading->body.endpoint
                                                                : NULL;
    if (target != NULL && target->len == 0) {
        struct span copy = arena_copy(reading->arena, text);
        if (copy.ptr != NULL) {
            *target = copy;
        }
    }
}

bool s3_error_read(struct arena *arena, struct span document, struct s3_error_body *ret_body)
{
    struct error_reading reading = {.arena = arena};
    if (s3_xml_read(document, on_error_leaf, &reading) != ERR_OK || !reading.is_error) {
        return false;
    }
    *ret_body = reading.body;
    return true;
}
