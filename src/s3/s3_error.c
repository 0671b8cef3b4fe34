// SPDX-License-Identifier: Apache-2.0
// Error documents: from an error of ours to the XML that an S3 client reads. Status and code stand
// in base/errors.def. Pure; any thread.
#include "s3/s3.h"

// Is this UTF-8 (no overlong forms, no surrogates)? An error document must stay well-formed
// whatever bytes a client put into its key.
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
    s3_xml_element(out, "Code", span_from_cstr(row->s3_code));
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
    element_if_any(out, "Resource", d->resource);
    element_if_any(out, "RequestId", d->request_id);
    element_if_any(out, "HostId", d->host_id);
    buf_append_cstr(out, "</Error>");
}

const char *s3_status_reason(unsigned status)
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
        {503, "Slow Down"},
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
    for (size_t i = 0; i < ARRAY_LEN(REASONS); i++) {
        if (REASONS[i].status == status) {
            return REASONS[i].reason;
        }
    }
    return "Unknown";
}
