// SPDX-License-Identifier: Apache-2.0
// ListObjects, ListObjectsV2, ListBuckets and GetBucketLocation for origins without S3: parses the
// request and renders the answer. Pure; any thread.
//
// A continuation token made here is "1" followed by the last name of the page in hexadecimal.
// Clients send it back unchanged. A client may make up a token, which does no harm: the token holds
// no secret, and a listing may start after any name.
#include "base/date.h"
#include "s3/s3_private.h"

#define MAX_KEYS 1000u
#define TOKEN_VERSION '1'
#define XML_DECLARATION "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
#define XML_NAMESPACE " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\""
#define OWNER "<Owner><ID>forebay</ID><DisplayName>forebay</DisplayName></Owner>"

static enum err token_decode(struct arena *arena, struct span token, struct span *ret_name)
{
    if (token.len < 1 || token.ptr[0] != TOKEN_VERSION || token.len % 2 == 0) {
        return ERR_INVALID_ARGUMENT;
    }
    size_t len = (token.len - 1) / 2;
    if (len > S3_KEY_MAX) {
        return ERR_INVALID_ARGUMENT;
    }
    char *bytes = arena_alloc(arena, len + 1);
    if (bytes == NULL) {
        return ERR_NO_MEMORY;
    }
    if (!hex_decode((struct span){token.ptr + 1, token.len - 1}, (uint8_t *)bytes, len)) {
        return ERR_INVALID_ARGUMENT;
    }
    *ret_name = (struct span){bytes, len};
    return ERR_OK;
}

void s3_listing_token(struct span last_name, struct buf *out)
{
    static const char DIGITS[] = "0123456789abcdef";
    buf_append_char(out, TOKEN_VERSION);
    for (size_t i = 0; i < last_name.len; i++) {
        unsigned char c = (unsigned char)last_name.ptr[i];
        buf_append_char(out, DIGITS[c >> 4]);
        buf_append_char(out, DIGITS[c & 15]);
    }
}

static struct span param_value(const struct s3_request *r, const char *name, bool *ret_has)
{
    const struct s3_param *p = s3_param_find(r, name);
    if (ret_has != NULL) {
        *ret_has = p != NULL;
    }
    return p != NULL ? p->value : (struct span){NULL, 0};
}

static enum err refuse(struct s3_error_detail *detail, const char *name, struct span value,
                       const char *message)
{
    detail->argument_name = span_from_cstr(name);
    detail->argument_value = value;
    detail->message = span_from_cstr(message);
    return ERR_INVALID_ARGUMENT;
}

// Parses max-keys. The error messages are those of S3.
static enum err parse_max_keys(struct span text, unsigned *ret_max_keys,
                               struct s3_error_detail *detail)
{
    uint64_t value;
    if (text.len == 0) {
        return ERR_OK;
    }
    if (span_to_u64(text, &value)) {
        *ret_max_keys = (unsigned)min_u64(value, MAX_KEYS);
        return ERR_OK;
    }
    return refuse(detail, "max-keys", text,
                  text.ptr[0] == '-' && span_to_u64(span_after(text, 1), &value)
                      ? "Argument maxKeys must be an integer between 0 and 2147483647"
                      : "Provided max-keys not an integer or within integer range");
}

enum err s3_listing_parse(struct arena *arena, const struct s3_request *r,
                          struct s3_listing_query *ret_query, struct s3_error_detail *detail)
{
    check(r->operation == S3_ListObjects || r->operation == S3_ListObjectsV2);
    struct s3_listing_query q = {.v2 = r->operation == S3_ListObjectsV2,
                                 .bucket = r->bucket,
                                 .prefix = param_value(r, "prefix", NULL),
                                 .delimiter = param_value(r, "delimiter", NULL),
                                 .max_keys = MAX_KEYS};
    enum err err = parse_max_keys(param_value(r, "max-keys", NULL), &q.max_keys, detail);
    if (err != ERR_OK) {
        return err;
    }
    struct span encoding = param_value(r, "encoding-type", NULL);
    if (encoding.len > 0 && !span_equal_nocase(encoding, SPAN("url"))) {
        return refuse(detail, "encoding-type", encoding,
                      "Invalid Encoding Method specified in Request");
    }
    q.encoding_url = encoding.len > 0;

    if (!q.v2) {
        q.marker = param_value(r, "marker", &q.has_marker);
        q.after = q.marker;
        *ret_query = q;
        return ERR_OK;
    }
    q.fetch_owner = span_equal_nocase(param_value(r, "fetch-owner", NULL), SPAN("true"));
    q.start_after = param_value(r, "start-after", &q.has_start_after);
    q.has_start_after = q.start_after.len > 0; // an empty value counts as absent
    q.continuation_token = param_value(r, "continuation-token", &q.has_continuation_token);
    q.after = q.start_after;
    if (q.continuation_token.len > 0) {
        err = token_decode(arena, q.continuation_token, &q.after);
        if (err != ERR_OK) {
            return err == ERR_INVALID_ARGUMENT
                       ? refuse(detail, "continuation-token", q.continuation_token,
                                "The continuation token provided is incorrect")
                       : err;
        }
    }
    *ret_query = q;
    return ERR_OK;
}

// --- Rendering -----------------------------------------------------------------------------------

static void name_element(struct buf *out, const struct s3_listing_query *q, const char *element,
                         struct span name)
{
    if (!q->encoding_url) {
        s3_xml_element(out, element, name);
        return;
    }
    buf_printf(out, "<%s>", element);
    buf_append_uri_encoded(out, name, true);
    buf_printf(out, "</%s>", element);
}

static void date_element(struct buf *out, const char *element, time_t t, unsigned ms)
{
    char date[DATE_ISO_LEN + 1];
    date_format_iso(t, ms, date);
    s3_xml_element(out, element, span_from_cstr(date));
}

static void render_position(const struct s3_listing_query *q, const struct s3_listing_page *page,
                            struct buf *out)
{
    if (!q->v2) {
        name_element(out, q, "Marker", q->marker);
        // Without a delimiter, S3 sends no NextMarker, and a client continues after the last key.
        if (page->truncated && q->delimiter.len > 0) {
            name_element(out, q, "NextMarker", page->last_name);
        }
        return;
    }
    if (q->has_start_after) {
        name_element(out, q, "StartAfter", q->start_after);
    }
    if (q->has_continuation_token) {
        s3_xml_element(out, "ContinuationToken", q->continuation_token);
    }
    if (page->truncated) {
        buf_append_cstr(out, "<NextContinuationToken>");
        s3_listing_token(page->last_name, out);
        buf_append_cstr(out, "</NextContinuationToken>");
    }
    s3_xml_element_u64(out, "KeyCount", page->entry_count + page->common_prefix_count);
}

static void render_entry(const struct s3_listing_query *q, const struct s3_listing_entry *entry,
                         struct buf *out)
{
    buf_append_cstr(out, "<Contents>");
    name_element(out, q, "Key", entry->key);
    date_element(out, "LastModified", entry->last_modified, entry->last_modified_ms);
    buf_append_cstr(out, "<ETag>&quot;");
    s3_xml_escape(out, entry->etag);
    buf_append_cstr(out, "&quot;</ETag>");
    s3_xml_element_u64(out, "Size", entry->size);
    if (!q->v2 || q->fetch_owner) {
        buf_append_cstr(out, OWNER);
    }
    buf_append_cstr(out, "<StorageClass>STANDARD</StorageClass></Contents>");
}

void s3_listing_render(const struct s3_listing_query *q, const struct s3_listing_page *page,
                       struct buf *out)
{
    check(!page->truncated || page->last_name.len > 0);
    check(page->entry_count + page->common_prefix_count <= q->max_keys);
    buf_append_cstr(out, XML_DECLARATION "<ListBucketResult" XML_NAMESPACE ">");
    s3_xml_element(out, "Name", q->bucket);
    name_element(out, q, "Prefix", q->prefix);
    render_position(q, page, out);
    s3_xml_element_u64(out, "MaxKeys", q->max_keys);
    if (q->delimiter.len > 0) {
        name_element(out, q, "Delimiter", q->delimiter);
    }
    if (q->encoding_url) {
        buf_append_cstr(out, "<EncodingType>url</EncodingType>");
    }
    s3_xml_element(out, "IsTruncated", page->truncated ? SPAN("true") : SPAN("false"));
    for (size_t i = 0; i < page->entry_count; i++) {
        render_entry(q, &page->entries[i], out);
    }
    for (size_t i = 0; i < page->common_prefix_count; i++) {
        buf_append_cstr(out, "<CommonPrefixes>");
        name_element(out, q, "Prefix", page->common_prefixes[i]);
        buf_append_cstr(out, "</CommonPrefixes>");
    }
    buf_append_cstr(out, "</ListBucketResult>");
}

void s3_buckets_render(const struct s3_bucket_entry *buckets, size_t count, struct buf *out)
{
    buf_append_cstr(out,
                    XML_DECLARATION "<ListAllMyBucketsResult" XML_NAMESPACE ">" OWNER "<Buckets>");
    for (size_t i = 0; i < count; i++) {
        buf_append_cstr(out, "<Bucket>");
        s3_xml_element(out, "Name", buckets[i].name);
        date_element(out, "CreationDate", buckets[i].created, 0);
        buf_append_cstr(out, "</Bucket>");
    }
    buf_append_cstr(out, "</Buckets></ListAllMyBucketsResult>");
}

void s3_location_render(struct span region, struct buf *out)
{
    buf_append_cstr(out, XML_DECLARATION "<LocationConstraint" XML_NAMESPACE ">");
    if (!span_equal_cstr(region, "us-east-1")) {
        s3_xml_escape(out, region);
    }
    buf_append_cstr(out, "</LocationConstraint>");
}
