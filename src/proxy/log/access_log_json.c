// SPDX-License-Identifier: Apache-2.0
// The access log as JSON, a line for each request. Pure.
#include "proxy/get/get.h"
#include "proxy/log/access_log_private.h"

static void put_json_string(struct access_log_line *line, struct span begin, struct span value)
{
    access_log_line_bytes(line, begin.ptr, begin.len);
    access_log_line_escaped(line, value);
    access_log_line_literal(line, "\"");
}

static void put_json_number(struct access_log_line *line, struct span begin, uint64_t value)
{
    access_log_line_bytes(line, begin.ptr, begin.len);
    access_log_line_u64(line, value);
}

// Appends a field only if it is not empty. Used for fields that nearly every request leaves empty.
static void put_json_string_if(struct access_log_line *line, struct span begin, struct span value)
{
    if (value.len > 0) {
        put_json_string(line, begin, value);
    }
}

#define put_json_text(line, name, value) put_json_string(line, SPAN(",\"" name "\":\""), value)
#define put_json_if(line, name, value) put_json_string_if(line, SPAN(",\"" name "\":\""), value)
#define put_json_u64(line, name, value) put_json_number(line, SPAN(",\"" name "\":"), value)

static void put_json_header(struct access_log_line *line, const struct request *r,
                            struct span begin, struct span name)
{
    struct span value;
    if (headers_get(&r->http->headers, name, &value)) {
        put_json_string_if(line, begin, access_log_line_shortened(value));
    }
}

void access_log_json(struct access_log_line *line, const struct log_entry *entry)
{
    const struct request *r = entry->r;
    char hash[LOG_KEY_HASH_SIZE];
    struct span value;
    access_log_line_literal(line, "{\"ts\":\"");
    access_log_line_date(line, clock_wall_us());
    access_log_line_literal(line, "\"");
    put_json_text(line, "id", span_from_cstr(r->id));
    if (headers_get(&r->http->headers, SPAN("traceparent"), &value) && value.len >= 35) {
        value = (struct span){value.ptr + 3, 32};
        put_json_text(line, "trace_id", value);
    }
    put_json_header(line, r, SPAN(",\"request_id\":\""), SPAN("x-request-id"));
    put_json_text(line, "client", r->http->peer);
    put_json_if(line, "requester", r->requester);
    put_json_if(line, "claimed_key", access_log_line_shortened(r->claimed_key));
    put_json_text(line, "op", span_from_cstr(s3_operation_name(r->s3.operation)));
    put_json_text(line, "bucket", access_log_line_shortened(r->s3.bucket));
    put_json_text(line, "key", log_key_shown(r->s3.key, hash));
    put_json_header(line, r, SPAN(",\"range\":\""), SPAN("range"));
    put_json_u64(line, "status", r->status);
    put_json_if(line, "error", span_from_cstr(log_entry_error(entry)));
    put_json_if(line, "why", span_from_cstr(log_entry_why(entry)));
    put_json_if(line, "result", span_from_cstr(request_result_name(r->result)));
    put_json_if(line, "reason", span_from_cstr(r->reason));
    put_json_if(line, "unstored", span_from_cstr(log_entry_unstored(entry)));
    put_json_if(line, "checksums", span_from_cstr(r->checksums));
    put_json_if(line, "source", span_from_cstr(request_source_name(r)));
    if (r->blocks_total > 0) {
        put_json_u64(line, "blocks_hit", r->blocks_hit);
        put_json_u64(line, "blocks_total", r->blocks_total);
    }
    put_json_u64(line, "bytes", entry->body_bytes);
    if (r->object_size_bytes > 0) {
        put_json_u64(line, "object_size", r->object_size_bytes);
    }
    put_json_if(line, "etag", serve_get_version(r));
    access_log_line_literal(line, ",\"ttfb_ms\":");
    access_log_line_ms(line, entry->first_byte_us);
    access_log_line_literal(line, ",\"total_ms\":");
    access_log_line_ms(line, entry->total_us);
    put_json_if(line, "origin_id", span_from_cstr(r->origin_id));
    if (r->origin_us > 0) {
        access_log_line_literal(line, ",\"origin_ms\":");
        access_log_line_ms(line, r->origin_us);
    }
    if (r->attempts > 0) {
        put_json_u64(line, "attempts", r->attempts);
    }
    put_json_header(line, r, SPAN(",\"ua\":\""), SPAN("user-agent"));
    access_log_line_literal(line, "}\n");
}
