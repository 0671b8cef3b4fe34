// SPDX-License-Identifier: Apache-2.0
// Judges each name in an origin's listing before the name's bytes reach the client, because an
// origin may list more than the request asked for. Pure; any thread; memory is limited to the
// struct.
//
// The names are keys, common prefixes, and the position where the next page begins. Parameters that
// the origin repeats are judged too, unless they equal those of the request. A name may arrive in
// pieces of any size. A name that cannot be decoded or is too long counts as bad. Some origins use
// a plain name as continuation token, which is then judged. A token that looks encoded is accepted
// without a look inside.
//
// The scan reads XML in UTF-8 only. A document in another coding of characters, a compressed one,
// one that is not XML, and one with a document type, which may define entities, is unreadable: a
// client might read names in it that the scan does not see.
#include "s3/s3_private.h"

#include <string.h>

#define BEFORE_XML " \t\r\n\xef\xbb\xbf" // white space, and the byte order mark of UTF-8

enum name_kind {
    NAME_LISTED,   // a key or common prefix, never empty
    NAME_POSITION, // where the next page begins; this kind and those below may be empty
    NAME_TOKEN,
    NAME_ECHO // repeats a parameter of the request
};

struct s3_list_element {
    const char *tag;
    enum name_kind kind;
    const char *param; // the parameter that the element repeats; NULL: none
};

static const struct s3_list_element ELEMENTS[] = {
    {"Key", NAME_LISTED, NULL},
    {"NextMarker", NAME_POSITION, NULL},
    {"NextKeyMarker", NAME_POSITION, NULL},
    {"NextContinuationToken", NAME_TOKEN, NULL},
    {"Prefix", NAME_ECHO, "prefix"},
    {"Marker", NAME_ECHO, "marker"},
    {"KeyMarker", NAME_ECHO, "key-marker"},
    {"StartAfter", NAME_ECHO, "start-after"},
    {"ContinuationToken", NAME_ECHO, "continuation-token"},
};
static const struct s3_list_element COMMON_PREFIX = {"Prefix", NAME_LISTED, NULL};

void s3_list_names_begin(struct s3_list_names *names, const struct s3_request *asked,
                         bool is_encoded)
{
    *names = (struct s3_list_names){.asked = asked, .is_encoded = is_encoded};
}

static const struct s3_list_element *element_find(const struct s3_list_names *names,
                                                  struct span tag)
{
    for (size_t i = 0; i < ARRAY_LEN(ELEMENTS); i++) {
        if (span_equal_cstr(tag, ELEMENTS[i].tag)) {
            bool is_common = names->in_common && ELEMENTS[i].kind == NAME_ECHO &&
                             span_equal_cstr(tag, COMMON_PREFIX.tag);
            return is_common ? &COMMON_PREFIX : &ELEMENTS[i];
        }
    }
    return NULL;
}

// Returns true if the token looks like base64 or a number, as opaque tokens do. A token with a
// slash must also end in padding, or have digits and letters of both cases.
static bool is_opaque(struct span token)
{
    bool has_lower = false, has_upper = false, has_digit = false, has_slash = false;
    for (size_t i = 0; i < token.len; i++) {
        char c = token.ptr[i];
        bool is_lower = c >= 'a' && c <= 'z', is_upper = c >= 'A' && c <= 'Z';
        bool is_digit = c >= '0' && c <= '9';
        if (!is_lower && !is_upper && !is_digit && c != '+' && c != '/' && c != '=' && c != '_' &&
            c != '-') {
            return false;
        }
        has_lower = has_lower || is_lower;
        has_upper = has_upper || is_upper;
        has_digit = has_digit || is_digit;
        has_slash = has_slash || c == '/';
    }
    return !has_slash || span_ends_with(token, SPAN("=")) || (has_lower && has_upper && has_digit);
}

static bool is_allowed(const struct s3_list_names *names, struct span name,
                       s3_list_names_fn *may_show, void *ctx)
{
    const struct s3_list_element *open = names->open;
    const struct s3_param *said = open->param != NULL && names->asked != NULL
                                      ? s3_param_find(names->asked, open->param)
                                      : NULL;
    return (said != NULL && span_equal(said->value, name)) ||
           (open->kind == NAME_TOKEN && is_opaque(name)) || may_show(ctx, name);
}

// Judges the name as it is. If that fails and the request asked for encoding, judges the
// percent-decoded name too, because not every origin encodes.
static bool judge(struct s3_list_names *names, s3_list_names_fn *may_show, void *ctx)
{
    size_t len;
    if (names->text_len > sizeof(names->text) ||
        !s3_xml_unescape((struct span){names->text, names->text_len}, names->name, &len)) {
        return false;
    }
    if (len == 0) {
        return names->open->kind != NAME_LISTED;
    }
    if (is_allowed(names, (struct span){names->name, len}, may_show, ctx)) {
        return true;
    }
    for (size_t i = 0; i < len; i++) {
        names->name[i] = names->name[i] == '+' ? ' ' : names->name[i];
    }
    return names->is_encoded &&
           span_uri_decode((struct span){names->name, len}, names->name, &len) &&
           is_allowed(names, (struct span){names->name, len}, may_show, ctx);
}

// Returns the tag's name without attributes and namespace prefix. *ret_is_closed is true for a
// self-closing element, which has no text.
static struct span tag_name(struct span tag, bool *ret_is_end, bool *ret_is_closed)
{
    *ret_is_end = span_starts_with(tag, SPAN("/"));
    *ret_is_closed = span_ends_with(tag, SPAN("/"));
    tag = *ret_is_end ? span_after(tag, 1) : tag;
    size_t len = 0;
    while (len < tag.len && span_find(SPAN(" \t\r\n/"), tag.ptr[len]) == 5) {
        len++;
    }
    tag.len = len;
    size_t colon = span_find(tag, ':');
    return colon < tag.len ? span_after(tag, colon + 1) : tag;
}

// Returns true if the XML declaration names UTF-8, a part of it, or no encoding.
static bool declares_utf8(struct span declaration)
{
    size_t at = span_find_text(declaration, SPAN("encoding"));
    if (at == declaration.len) {
        return true;
    }
    struct span value = span_after(declaration, at + sizeof("encoding") - 1);
    while (value.len > 0 && span_find(SPAN(" \t\r\n=\"'"), value.ptr[0]) < 7) {
        value = span_after(value, 1);
    }
    value.len = min_u64(span_find(value, '"'), span_find(value, '\''));
    return span_equal_nocase(value, SPAN("UTF-8")) || span_equal_nocase(value, SPAN("US-ASCII"));
}

// `text` is the tag without its brackets, or the beginning of a longer one; `name` is its name.
static bool is_readable(const struct s3_list_names *names, struct span text, struct span name)
{
    bool is_cut = names->tag_len > sizeof(names->tag);
    if (span_starts_with(text, SPAN("!"))) { // a comment, CDATA, or a document type
        return !span_starts_with(text, SPAN("!DOCTYPE"));
    }
    if (span_equal_cstr(name, "?xml")) {
        return !is_cut && declares_utf8(text);
    }
    return !is_cut || name.ptr + name.len < text.ptr + text.len;
}

static void on_tag(struct s3_list_names *names, s3_list_names_fn *may_show, void *ctx)
{
    bool is_end, is_closed;
    struct span text = {names->tag, min_u64(names->tag_len, sizeof(names->tag))};
    struct span tag = tag_name(text, &is_end, &is_closed);
    const struct s3_list_element *element = element_find(names, tag);
    if (!is_readable(names, text, tag)) {
        names->is_bad = names->is_unreadable = true;
    } else if (names->open != NULL) {
        names->is_bad = !is_end || element != names->open || !judge(names, may_show, ctx);
        names->open = NULL;
        names->pending_bytes = names->is_bad ? names->pending_bytes : 0;
    } else if (element != NULL && is_end) {
        names->is_bad = true;
    } else if (element != NULL && !is_closed) {
        names->open = element;
        names->text_len = 0;
    } else if (span_equal_cstr(tag, "CommonPrefixes")) {
        names->in_common = !is_end && !is_closed;
    }
}

// Returns true if the bytes may belong to XML in UTF-8. Others are in UTF-16 or UTF-32, or come
// before the first tag.
static bool may_be_xml(struct s3_list_names *names, struct span data)
{
    struct span before = {data.ptr, names->has_begun ? 0 : span_find(data, '<')};
    bool is_blank = true;
    for (size_t i = 0; i < before.len && is_blank; i++) {
        is_blank = memchr(BEFORE_XML, before.ptr[i], sizeof(BEFORE_XML) - 1) != NULL;
    }
    names->has_begun = names->has_begun || before.len < data.len;
    return is_blank && span_find(data, '\0') == data.len;
}

bool s3_list_names_feed(struct s3_list_names *names, struct span data, s3_list_names_fn *may_show,
                        void *ctx)
{
    if (!names->is_bad && !may_be_xml(names, data)) {
        names->is_bad = names->is_unreadable = true;
    }
    while (data.len > 0 && !names->is_bad) {
        size_t at = span_find(data, names->in_tag ? '>' : '<');
        size_t taken = min_u64(at + 1, data.len);
        struct span piece = {data.ptr, at};
        names->pending_bytes += names->open != NULL ? taken : 0;
        if (names->in_tag) {
            s3_list_append(names->tag, sizeof(names->tag), &names->tag_len, piece);
        } else if (names->open != NULL) {
            s3_list_append(names->text, sizeof(names->text), &names->text_len, piece);
        }
        if (at < data.len) {
            if (names->in_tag) {
                on_tag(names, may_show, ctx);
            }
            names->in_tag = !names->in_tag;
            names->tag_len = 0;
        }
        data.ptr += taken;
        data.len -= taken;
    }
    names->is_bad = names->is_bad || names->text_len > sizeof(names->text);
    return !names->is_bad;
}
