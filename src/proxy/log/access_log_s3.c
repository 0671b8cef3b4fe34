// SPDX-License-Identifier: Apache-2.0
// The access log in the format of S3's own server access log: its fields, in its order. Fields that
// only S3's servers know (bucket owner, cipher suite, access point) are "-". Pure.
#include "proxy/log/access_log_private.h"

#define REQUEST_LINE_MAX                                                                           \
    20000u // maximum bytes of a target; a line has room for it and the longest other fields

// Appends the operation as S3 writes it, for example "REST.GET.OBJECT".
static void put_s3_operation(struct access_log_line *line, const struct request *r)
{
    static const struct {
        enum s3_operation operation;
        const char *name;
    } NAMES[] = {
        {S3_DeleteObjects, "REST.POST.MULTI_OBJECT_DELETE"},
        {S3_CopyObject, "REST.COPY.OBJECT"},
        {S3_UploadPart, "REST.PUT.PART"},
        {S3_UploadPartCopy, "REST.COPY.PART"},
        {S3_CreateMultipartUpload, "REST.POST.UPLOADS"},
        {S3_CompleteMultipartUpload, "REST.POST.UPLOAD"},
        {S3_AbortMultipartUpload, "REST.DELETE.UPLOAD"},
        {S3_ListParts, "REST.GET.UPLOAD"},
        {S3_ListMultipartUploads, "REST.GET.UPLOADS"},
        {S3_ListObjectVersions, "REST.GET.BUCKETVERSIONS"},
        {S3_GetBucketLocation, "REST.GET.LOCATION"},
        {S3_GetBucketVersioning, "REST.GET.VERSIONING"},
        {S3_GetObjectAcl, "REST.GET.ACL"},
        {S3_PutObjectAcl, "REST.PUT.ACL"},
        {S3_GetBucketAcl, "REST.GET.ACL"},
        {S3_PutBucketAcl, "REST.PUT.ACL"},
        {S3_GetObjectTagging, "REST.GET.OBJECT_TAGGING"},
        {S3_PutObjectTagging, "REST.PUT.OBJECT_TAGGING"},
        {S3_DeleteObjectTagging, "REST.DELETE.OBJECT_TAGGING"},
        {S3_GetObjectAttributes, "REST.GET.OBJECT_ATTRIBUTES"},
        {S3_RestoreObject, "REST.POST.RESTORE"},
    };
    for (size_t i = 0; i < ARRAY_LEN(NAMES); i++) {
        if (NAMES[i].operation == r->s3.operation) {
            access_log_line_text(line, NAMES[i].name);
            return;
        }
    }
    if (r->http->method.len == 0) {
        access_log_line_literal(line, "-");
        return;
    }
    access_log_line_literal(line, "REST.");
    access_log_line_coded(line, r->http->method, false);
    access_log_line_text(line, r->s3.key.len > 0      ? ".OBJECT"
                               : r->s3.bucket.len > 0 ? ".BUCKET"
                                                      : ".SERVICE");
}

static void put_s3_field(struct access_log_line *line, struct span value)
{
    access_log_line_literal(line, " ");
    if (value.len == 0) {
        access_log_line_literal(line, "-");
    } else {
        access_log_line_coded(line, value, false);
    }
}

static void put_s3_quoted(struct access_log_line *line, struct span value)
{
    if (value.len == 0) {
        access_log_line_literal(line, " \"-\"");
        return;
    }
    access_log_line_literal(line, " \"");
    access_log_line_coded(line, value, true);
    access_log_line_literal(line, "\"");
}

static void put_s3_number(struct access_log_line *line, uint64_t value, bool is_known)
{
    if (!is_known) {
        access_log_line_literal(line, " -");
        return;
    }
    access_log_line_literal(line, " ");
    access_log_line_u64(line, value);
}

// Appends the request line without signatures. If the log shortens keys, also without anything else
// that might contain the key.
static void put_s3_request_line(struct access_log_line *line, const struct log_entry *entry)
{
    const struct request *r = entry->r;
    char hash[LOG_KEY_HASH_SIZE];
    if (r->http->method.len == 0) {
        access_log_line_literal(line, " \"-\""); // Forebay refused the request head
        return;
    }
    access_log_line_literal(line, " \"");
    access_log_line_coded(line, r->http->method, false);
    access_log_line_literal(line, " ");
    size_t end = line->len + REQUEST_LINE_MAX;
    if (!log_keys_are_full()) {
        access_log_line_literal(line, "/");
        access_log_line_coded(line, access_log_line_shortened(r->s3.bucket), false);
        access_log_line_literal(line, "/");
        access_log_line_coded(line, log_key_shown(r->s3.key, hash), false);
    } else {
        size_t question = span_find(r->http->target, '?');
        access_log_line_coded_up_to(line, (struct span){r->http->target.ptr, question}, false, end);
        for (unsigned i = 0; i < r->s3.param_count && line->len + 3 <= end; i++) {
            const struct s3_param *p = &r->s3.params[i];
            access_log_line_text(line, i == 0 ? "?" : "&");
            access_log_line_coded_up_to(line, p->raw_name, false, end);
            if (p->has_value) {
                access_log_line_literal(line, "=");
                access_log_line_coded_up_to(
                    line, s3_name_is_secret(p->name) ? SPAN("-") : p->raw_value, false, end);
            }
        }
    }
    access_log_line_text(line, r->http->version_minor == 0 ? " HTTP/1.0\"" : " HTTP/1.1\"");
}

void access_log_s3(struct access_log_line *line, const struct log_entry *entry)
{
    const struct request *r = entry->r;
    static const char MONTHS[][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    char hash[LOG_KEY_HASH_SIZE];
    struct span none = {NULL, 0}, referer = none, agent = none;
    struct tm tm;
    bool is_verified = r->requester.len > 0;
    time_t now = (time_t)clock_wall_s();
    (void)gmtime_r(&now, &tm);
    char *text =
        arena_printf(r->arena, "[%02d/%s/%04d:%02d:%02d:%02d +0000]", tm.tm_mday, MONTHS[tm.tm_mon],
                     tm.tm_year + 1900, tm.tm_hour, tm.tm_min, tm.tm_sec);
    struct span date = span_from_cstr(text);

    access_log_line_literal(line, "-"); // bucket owner: not known here
    put_s3_field(line, access_log_line_shortened(r->s3.bucket));
    access_log_line_literal(line, " ");
    access_log_line_bytes(line, date.ptr, date.len);
    put_s3_field(line, request_address(r));
    put_s3_field(line, r->requester);
    put_s3_field(line, span_from_cstr(r->id));
    access_log_line_literal(line, " ");
    put_s3_operation(line, r);
    put_s3_field(line, log_key_shown(r->s3.key, hash));
    put_s3_request_line(line, entry);
    put_s3_number(line, r->status, true);
    put_s3_field(line, span_from_cstr(log_entry_error(entry)));
    put_s3_number(line, entry->body_bytes, entry->body_bytes > 0);
    put_s3_number(line, r->object_size_bytes, r->object_size_bytes > 0);
    put_s3_number(line, entry->total_us / 1000, true);
    put_s3_number(line, entry->first_byte_us / 1000, entry->first_byte_us > 0);
    if (log_keys_are_full() && headers_get(&r->http->headers, SPAN("referer"), &referer)) {
        referer.len = span_find(referer, '?');
    }
    put_s3_quoted(line, access_log_line_shortened(referer));
    (void)headers_get(&r->http->headers, SPAN("user-agent"), &agent);
    put_s3_quoted(line, access_log_line_shortened(agent));
    put_s3_field(line, r->s3.has_version_id ? access_log_line_shortened(r->s3.version_id) : none);
    put_s3_field(line, span_from_cstr(r->id)); // host id
    put_s3_field(line, is_verified ? SPAN("SigV4") : none);
    access_log_line_literal(line, " -"); // cipher suite
    put_s3_field(line, !is_verified      ? none
                       : r->s3.presigned ? SPAN("QueryString")
                                         : SPAN("AuthHeader"));
    put_s3_field(line, access_log_line_shortened(r->http->host));
    access_log_line_literal(line, " - - -\n"); // TLS version, access point, ACL required
}
