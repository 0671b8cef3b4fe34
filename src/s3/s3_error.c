// SPDX-License-Identifier: Apache-2.0
// Error documents. Renders one of our errors as the XML that an S3 client reads; base/errors.def
// has its status and code. Also packs an origin's error for sending between workers, and selects
// the parts of it that a client may read. Pure; any thread.
//
// Packed form: the status in decimal, one line for each header, an empty line, and then the
// document. A line feed ends each line.
#include "s3/s3.h"

#include <string.h>

#define ELEMENTS_MAX 16384u // most bytes of elements that are copied from an origin's error

// Returns true for valid UTF-8 (no overlong forms, no surrogates). Other bytes would make the
// document ill-formed, and a client may put any bytes into its key.
static bool utf8_is_valid(struct span s)
{
    size_t i = 0;
    while (i < s.len) {
        unsigned char c = (unsigned char)s.ptr[i];
        size_t more = c < 0x80 ? 0 : c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : 1;
        if ((c >= 0x80 && c < 0xc2) || c > 0xf4 || s.len - i <= more) {
            return false;
        }
        unsigned long point = more == 0 ? c : c & (0x3fu >> more);
        for (size_t j = 1; j <= more; j++) {
            unsigned char next = (unsigned char)s.ptr[i + j];
            if ((next & 0xc0) != 0x80) {
                return false;
            }
            point = point << 6 | (next & 0x3f);
        }
        if ((more == 2 && point < 0x800) || (more == 3 && (point < 0x10000 || point > 0x10ffff)) ||
            (point >= 0xd800 && point <= 0xdfff)) {
            return false;
        }
        i += more + 1;
    }
    return true;
}

static void element_if_any(struct buf *out, const char *name, struct span text)
{
    if (text.len == 0) {
        return;
    }
    if (utf8_is_valid(text)) {
        s3_xml_element(out, name, text);
        return;
    }
    buf_printf(out, "<%s>", name);
    buf_append_uri_encoded(out, text, true);
    buf_printf(out, "</%s>", name);
}

void s3_error_render(enum err err, const struct s3_error_detail *detail, struct buf *out)
{
    static const struct s3_error_detail NOTHING;
    const struct s3_error_detail *d = detail != NULL ? detail : &NOTHING;
    const struct error_row *row = error_row(err);

    buf_append_cstr(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>");
    s3_xml_element(out, "Code", d->code.len > 0 ? d->code : span_from_cstr(row->s3_code));
    s3_xml_element(out, "Message", d->message.len > 0 ? d->message : span_from_cstr(row->text));
    element_if_any(out, "Key", d->key);
    element_if_any(out, "BucketName", d->bucket_name);
    element_if_any(out, "RangeRequested", d->range_requested);
    if (d->has_actual_object_size) {
        s3_xml_element_u64(out, "ActualObjectSize", d->actual_object_size);
    }
    element_if_any(out, "Condition", d->condition);
    element_if_any(out, "Region", d->region);
    element_if_any(out, "Endpoint", d->endpoint);
    element_if_any(out, "ArgumentName", d->argument_name);
    element_if_any(out, "ArgumentValue", d->argument_value);
    element_if_any(out, "StringToSign", d->string_to_sign);
    element_if_any(out, "CanonicalRequest", d->canonical_request);
    buf_append_span(out, d->elements);
    element_if_any(out, "Resource", d->resource);
    element_if_any(out, "RequestId", d->request_id);
    element_if_any(out, "HostId", d->host_id);
    buf_append_cstr(out, "</Error>");
}

// --- An origin's errors --------------------------------------------------------------------------

void s3_error_pack(const struct s3_error_answer *answer, struct buf *out)
{
    buf_printf(out, "%u\n", answer->status);
    for (unsigned i = 0; i < answer->headers.count; i++) {
        const struct header *h = &answer->headers.items[i];
        if (headers_name_is_token(h->name) && headers_value_is_clean(h->value)) {
            buf_append_span(out, h->name);
            buf_append_char(out, ':');
            buf_append_span(out, h->value);
            buf_append_char(out, '\n');
        }
    }
    buf_append_char(out, '\n');
    buf_append_span(out, answer->document);
}

bool s3_error_unpack(struct arena *arena, struct span packed, struct s3_error_answer *ret_answer)
{
    struct s3_error_answer answer = {0};
    uint64_t status = 0;
    size_t end = span_find(packed, '\n');
    if (!span_to_u64((struct span){packed.ptr, end}, &status) || status > 999) {
        return false;
    }
    answer.status = (unsigned)status;
    while (end < packed.len) { // each turn makes `packed` shorter, so the loop ends
        packed = (struct span){packed.ptr + end + 1, packed.len - end - 1};
        end = span_find(packed, '\n');
        if (end == packed.len) {
            return false;
        }
        if (end == 0) {
            answer.document = (struct span){packed.ptr + 1, packed.len - 1};
            *ret_answer = answer;
            return true;
        }
        struct span line = {packed.ptr, end};
        size_t colon = span_find(line, ':');
        if (colon == line.len ||
            !headers_add(&answer.headers, arena, (struct span){line.ptr, colon},
                         (struct span){line.ptr + colon + 1, line.len - colon - 1})) {
            return false;
        }
    }
    return false;
}

struct adopting {
    struct arena *arena;
    struct s3_error_detail *detail;
    struct buf elements;
    bool has_code, names_key, names_bucket;
};

// Returns true for an element that is not about the client's request, but about the origin or about
// a request that Forebay signed.
static bool is_origins_own(const char *name)
{
    static const char *const names[] = {"RequestId",
                                        "HostId",
                                        "Resource",
                                        "Endpoint",
                                        "AWSAccessKeyId",
                                        "AccessKeyId",
                                        "SignatureProvided",
                                        "StringToSign",
                                        "StringToSignBytes",
                                        "CanonicalRequest",
                                        "CanonicalRequestBytes",
                                        "Token-0"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

// Accepts a name of letters, digits and "-_.". s3_xml_read() removes only one namespace prefix, so
// a colon may be left.
static bool is_plain_name(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    static const char any[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    return strspn(name, letters) > 0 && name[strspn(name, any)] == '\0';
}

static void on_adopted_leaf(void *ctx, const char *path, struct span text)
{
    struct adopting *a = ctx;
    if (strncmp(path, "Error/", 6) != 0 || strchr(path + 6, '/') != NULL) {
        return;
    }
    const char *name = path + 6;
    if (strcmp(name, "Code") == 0) {
        a->detail->code = arena_copy(a->arena, text);
        a->has_code = text.len > 0 && a->detail->code.ptr != NULL;
    } else if (strcmp(name, "Message") == 0) {
        a->detail->message = text.len > 0 ? arena_copy(a->arena, text) : text;
    } else if (strcmp(name, "Key") == 0) {
        a->names_key = true;
    } else if (strcmp(name, "BucketName") == 0 || strcmp(name, "Bucket") == 0) {
        a->names_bucket = true;
    } else if (is_plain_name(name) && !is_origins_own(name)) {
        s3_xml_element(&a->elements, name, text);
    }
}

bool s3_error_adopt(struct arena *arena, struct span document, struct s3_error_detail *detail,
                    bool *ret_names_key, bool *ret_names_bucket)
{
    struct s3_error_detail found = *detail;
    struct adopting a = {.arena = arena, .detail = &found};
    buf_init(&a.elements, ELEMENTS_MAX);
    bool ok = s3_xml_read(document, on_adopted_leaf, &a) == ERR_OK && a.has_code;
    if (ok && buf_ok(&a.elements) && a.elements.len > 0) {
        found.elements = arena_copy(arena, buf_span(&a.elements)); // left empty if memory is short
    }
    buf_done(&a.elements);
    if (ok) {
        *detail = found;
        *ret_names_key = a.names_key;
        *ret_names_bucket = a.names_bucket;
    }
    return ok;
}

const char *s3_status_reason(unsigned status, struct span code)
{
    static const struct {
        unsigned status;
        const char *reason;
    } REASONS[] = {
        {200, "OK"},
        {206, "Partial Content"},
        {304, "Not Modified"},
        {404, "Not Found"},
        {403, "Forbidden"},
        {400, "Bad Request"},
        {416, "Requested Range Not Satisfiable"},
        {412, "Precondition Failed"},
        {503, "Service Unavailable"},
        {500, "Internal Server Error"},
        {100, "Continue"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {301, "Moved Permanently"},
        {302, "Found"},
        {303, "See Other"},
        {307, "Temporary Redirect"},
        {308, "Permanent Redirect"},
        {401, "Unauthorized"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {410, "Gone"},
        {411, "Length Required"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {421, "Misdirected Request"},
        {422, "Unprocessable Content"},
        {426, "Upgrade Required"},
        {428, "Precondition Required"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
        {507, "Insufficient Storage"},
        {508, "Loop Detected"},
    };
    if (status == 503 && span_equal_cstr(code, "SlowDown")) {
        return "Slow Down";
    }
    for (size_t i = 0; i < ARRAY_LEN(REASONS); i++) {
        if (REASONS[i].status == status) {
            return REASONS[i].reason;
        }
    }
    return "Unknown";
}
