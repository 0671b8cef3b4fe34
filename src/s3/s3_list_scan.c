// SPDX-License-Identifier: Apache-2.0
// Reads the sizes of objects from a listing (ListObjects and ListObjectsV2) while the relay passes
// its bytes on, in pieces of any size. The sizes are only a hint: the scan accepts everything that
// looks like an entry, and skips the rest. Pure; any thread; memory is limited to the struct.
#include <string.h>

#include "s3/s3_private.h"

void s3_list_scan_begin(struct s3_list_scan *scan, bool is_encoded)
{
    *scan = (struct s3_list_scan){.is_encoded = is_encoded};
}

static bool key_decode(struct s3_list_scan *scan)
{
    struct span text = {scan->text, scan->text_len};
    if (!scan->is_encoded) {
        return s3_xml_unescape(text, scan->key, &scan->key_len);
    }
    for (size_t i = 0; i < scan->text_len; i++) {
        scan->text[i] = scan->text[i] == '+' ? ' ' : scan->text[i];
    }
    return span_uri_decode(text, scan->key, &scan->key_len);
}

void s3_list_append(char *to, size_t max, size_t *len, struct span data)
{
    if (*len > max) {
        return;
    }
    size_t taken = min_u64(data.len, max - *len);
    if (taken > 0) {
        memcpy(to + *len, data.ptr, taken);
    }
    *len = taken < data.len ? max + 1 : *len + taken;
}

static void on_tag(struct s3_list_scan *scan, s3_list_scan_fn *on_entry, void *ctx)
{
    struct span tag = {scan->tag, scan->tag_len};
    bool is_end = tag.len > 0 && tag.ptr[0] == '/';
    bool has_text = is_end && scan->takes_text && scan->text_len <= sizeof(scan->text);
    scan->takes_text = false;
    if (span_equal_cstr(tag, "Contents")) {
        scan->has_key = scan->has_size = false;
    } else if (span_equal_cstr(tag, "Key") || span_equal_cstr(tag, "Size")) {
        scan->takes_text = true;
        scan->text_len = 0;
    } else if (has_text && span_equal_cstr(tag, "/Key")) {
        scan->has_key = key_decode(scan);
    } else if (has_text && span_equal_cstr(tag, "/Size")) {
        scan->has_size = span_to_u64((struct span){scan->text, scan->text_len}, &scan->size_bytes);
    } else if (span_equal_cstr(tag, "/Contents") && scan->has_key && scan->has_size) {
        on_entry(ctx, (struct span){scan->key, scan->key_len}, scan->size_bytes);
        scan->has_key = false;
    }
}

void s3_list_scan_feed(struct s3_list_scan *scan, struct span data, s3_list_scan_fn *on_entry,
                       void *ctx)
{
    while (data.len > 0) {
        size_t at = span_find(data, scan->in_tag ? '>' : '<');
        struct span piece = {data.ptr, at};
        if (scan->in_tag) {
            s3_list_append(scan->tag, sizeof(scan->tag), &scan->tag_len, piece);
        } else if (scan->takes_text) {
            s3_list_append(scan->text, sizeof(scan->text), &scan->text_len, piece);
        }
        if (at == data.len) {
            return;
        }
        data.ptr += at + 1;
        data.len -= at + 1;
        if (scan->in_tag && scan->tag_len <= sizeof(scan->tag)) {
            on_tag(scan, on_entry, ctx);
        }
        scan->in_tag = !scan->in_tag;
        scan->tag_len = 0;
    }
}
