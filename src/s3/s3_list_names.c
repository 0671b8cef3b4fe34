// SPDX-License-Identifier: Apache-2.0
// The names in a listing (keys and common prefixes), each judged before its bytes are passed on: an origin may
// list what was not asked for. Pure; any thread; bounded by the struct.
//
// Takes <Key>NAME</Key> wherever it stands, and <Prefix>NAME</Prefix> in CommonPrefixes, in whatever pieces they
// come. A name that is not plain text, or is longer than any, is a bad one.
#include "s3/s3_private.h"

void s3_list_names_begin(struct s3_list_names *names, bool is_encoded)
{
    *names = (struct s3_list_names){.is_encoded = is_encoded};
}

// Which coding it has depends on the origin: not each heeds what was asked for.
static bool judge(struct s3_list_names *names, s3_list_names_fn *may_show, void *ctx)
{
    size_t len;
    if (names->text_len > sizeof(names->text) ||
        !s3_xml_unescape((struct span){names->text, names->text_len}, names->name, &len) ||
        len == 0) {
        return false;
    }
    if (may_show(ctx, (struct span){names->name, len})) {
        return true;
    }
    for (size_t i = 0; i < len; i++) {
        names->name[i] = names->name[i] == '+' ? ' ' : names->name[i];
    }
    return names->is_encoded &&
           span_uri_decode((struct span){names->name, len}, names->name, &len) &&
           may_show(ctx, (struct span){names->name, len});
}

static void on_tag(struct s3_list_names *names, s3_list_names_fn *may_show, void *ctx)
{
    struct span tag = {names->tag, min_u64(names->tag_len, sizeof(names->tag))};
    bool is_end =
        span_equal_cstr(tag, "/Key") || (names->in_common && span_equal_cstr(tag, "/Prefix"));
    if (is_end || names->in_name) {
        names->is_bad = !is_end || !names->in_name || !judge(names, may_show, ctx);
        names->in_name = false;
        names->pending_bytes = names->is_bad ? names->pending_bytes : 0;
    } else if (span_equal_cstr(tag, "Key") ||
               (names->in_common && span_equal_cstr(tag, "Prefix"))) {
        names->in_name = true;
        names->text_len = 0;
    } else if (span_equal_cstr(tag, "CommonPrefixes")) {
        names->in_common = true;
    } else if (span_equal_cstr(tag, "/CommonPrefixes")) {
        names->in_common = false;
    }
}

bool s3_list_names_feed(struct s3_list_names *names, struct span data, s3_list_names_fn *may_show,
                        void *ctx)
{
    while (data.len > 0 && !names->is_bad) {
        size_t at = span_find(data, names->in_tag ? '>' : '<');
        size_t taken = min_u64(at + 1, data.len);
        struct span piece = {data.ptr, at};
        names->pending_bytes += names->in_name ? taken : 0;
        if (names->in_tag) {
            s3_list_append(names->tag, sizeof(names->tag), &names->tag_len, piece);
        } else if (names->in_name) {
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
