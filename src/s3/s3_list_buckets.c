// SPDX-License-Identifier: Apache-2.0
// Leaves out of an origin's list of buckets those that the client may not see. Pure; any thread.
//
// expat reads the document as it comes, and the elements are written again as they end. The element
// of a bucket is collected until its end, because only then all of its name is known. Everything
// outside the list, such as the token for the next page, is written at once. The document may have
// any length: memory is limited by DEPTH_MAX, ENTRY_MAX and that of the parser. A document that
// exceeds them, that has a document type, or that is no list of buckets is bad, and nothing more of
// it is shown.
#include <stdlib.h>
#include <string.h>

#include "s3/s3_private.h"

#define DEPTH_MAX 16u
#define ENTRY_MAX 8192u  // bytes of the element of one bucket
#define SHOWN_MAX 65536u // a piece grows at most sixfold, by escapes
#define LISTED_DEPTH 3u  // ListAllMyBucketsResult/Buckets/Bucket
#define NAME_DEPTH 4u    // and its Name

struct s3_list_buckets {
    struct s3_xml_parser parser;
    s3_list_names_fn *may_show;
    void *ctx;
    bool has_begun, is_bad;
    bool in_list, in_entry, in_name;
    unsigned depth;
    struct buf shown, entry, name;
};

static void give_up(struct s3_list_buckets *list)
{
    list->is_bad = true;
    (void)XML_StopParser(list->parser.expat, XML_FALSE); // fails if it has stopped already
}

// Returns the buffer for what is read now.
static struct buf *target(struct s3_list_buckets *list)
{
    return list->in_entry ? &list->entry : &list->shown;
}

static const char *without_prefix(const char *name)
{
    const char *colon = strchr(name, ':');
    return colon != NULL ? colon + 1 : name;
}

static void write_start(struct buf *out, const char *name, const char **attributes)
{
    buf_printf(out, "<%s", name);
    for (size_t i = 0; attributes[i] != NULL; i += 2) {
        buf_printf(out, " %s=\"", attributes[i]);
        s3_xml_escape(out, span_from_cstr(attributes[i + 1]));
        buf_append_char(out, '"');
    }
    buf_append_char(out, '>');
}

static void on_start(void *ctx, const XML_Char *name, const XML_Char **attributes)
{
    struct s3_list_buckets *list = ctx;
    const char *bare = without_prefix(name);
    unsigned depth = ++list->depth;
    if (depth > DEPTH_MAX || (depth == 1 && strncmp(bare, "ListAllMy", 9) != 0)) {
        give_up(list);
        return;
    }
    if (depth == 1) {
        buf_append_cstr(&list->shown, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    } else if (depth == LISTED_DEPTH - 1) {
        list->in_list = strcmp(bare, "Buckets") == 0;
    } else if (depth == LISTED_DEPTH && list->in_list) {
        list->in_entry = true;
        list->entry.len = list->name.len = 0;
    } else if (depth == NAME_DEPTH && list->in_entry) {
        list->in_name = strcmp(bare, "Name") == 0;
    }
    write_start(target(list), name, attributes);
}

static void on_text(void *ctx, const XML_Char *text, int len)
{
    struct s3_list_buckets *list = ctx;
    struct span span = {text, (size_t)len};
    s3_xml_escape(target(list), span);
    if (list->in_name) {
        buf_append_span(&list->name, span);
    }
}

static void on_end(void *ctx, const XML_Char *name)
{
    struct s3_list_buckets *list = ctx;
    buf_printf(target(list), "</%s>", name);
    if (list->depth == NAME_DEPTH) {
        list->in_name = false;
    } else if (list->depth == LISTED_DEPTH && list->in_entry) {
        list->in_entry = false;
        if (!buf_ok(&list->entry) || !buf_ok(&list->name)) {
            give_up(list);
        } else if (list->may_show(list->ctx, buf_span(&list->name))) {
            buf_append_span(&list->shown, buf_span(&list->entry));
        }
    }
    list->depth--;
}

static void on_doctype(void *ctx, const XML_Char *name, const XML_Char *system_id,
                       const XML_Char *public_id, int has_internal_subset)
{
    (void)name;
    (void)system_id;
    (void)public_id;
    (void)has_internal_subset;
    give_up(ctx);
}

struct s3_list_buckets *s3_list_buckets_new(s3_list_names_fn *may_show, void *ctx)
{
    struct s3_list_buckets *list = calloc(1, sizeof(*list));
    check(list != NULL);
    s3_xml_parser_init(&list->parser, NULL, NULL);
    list->may_show = may_show;
    list->ctx = ctx;
    buf_init(&list->shown, SHOWN_MAX);
    buf_init(&list->entry, ENTRY_MAX);
    buf_init(&list->name, ENTRY_MAX);
    XML_Parser expat = list->parser.expat;
    XML_SetUserData(expat, list);
    XML_SetElementHandler(expat, on_start, on_end);
    XML_SetCharacterDataHandler(expat, on_text);
    XML_SetStartDoctypeDeclHandler(expat, on_doctype);
    return list;
}

void s3_list_buckets_free(struct s3_list_buckets *list)
{
    if (list != NULL) {
        s3_xml_parser_done(&list->parser);
        buf_done(&list->shown);
        buf_done(&list->entry);
        buf_done(&list->name);
        free(list);
    }
}

bool s3_list_buckets_feed(struct s3_list_buckets *list, struct span piece, struct span *ret_shown)
{
    check(piece.len <= S3_LIST_BUCKETS_PIECE);
    list->shown.len = 0;
    // Servers send white space before the document while they work on the answer.
    while (!list->has_begun && piece.len > 0 && span_find(SPAN(" \t\r\n"), piece.ptr[0]) < 4) {
        piece = span_after(piece, 1);
    }
    list->has_begun = list->has_begun || piece.len > 0;
    list->is_bad =
        list->is_bad || !s3_xml_parser_feed(&list->parser, piece, false) || !buf_ok(&list->shown);
    *ret_shown = list->is_bad ? (struct span){NULL, 0} : buf_span(&list->shown);
    return !list->is_bad;
}

bool s3_list_buckets_end(struct s3_list_buckets *list)
{
    return !list->is_bad && s3_xml_parser_feed(&list->parser, SPAN(""), true);
}

bool s3_list_buckets_is_full(const struct s3_list_buckets *list)
{
    return list->parser.is_full;
}
