// SPDX-License-Identifier: Apache-2.0
// Rewrites answers that say where a new object or bucket is: the header Location, and the elements
// Location and Bucket of a document. The origin sends its own endpoint and bucket name. The client
// gets the endpoint, path and bucket of its request instead. If an access key has rights only on a
// part of the bucket, elements that name anything else are removed from error documents. An error
// document with a Content-Encoding cannot be read: such a client gets the status without it.
//
// A document may come late. The origin may send blanks for minutes before it, to keep the
// connection alive; they are forwarded at once. The document is then collected until it is
// complete, up to LOCATION_DOCUMENT_MAX bytes. No operation whose location is rewritten sends that
// many bytes, so a larger document is forwarded unchanged. On the request's worker.
#include "proxy/pass/pass_private.h"

#include <string.h>

#define LOCATION_DOCUMENT_MAX 65536u // maximum bytes of a collected document

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

// Appends "http://HOST" or "https://HOST", with HOST as the client sent it. Appends nothing without
// a Host.
static void append_endpoint(const struct request *r, struct buf *out)
{
    if (r->http->host.len > 0) {
        buf_append_cstr(out, r->http->tls ? "https://" : "http://");
        buf_append_span(out, r->http->host);
    }
}

// Appends the URL of the new object or bucket, as the client addressed it. The path of the request
// already names the bucket or the key.
static void append_place(const struct pass_state *p, struct buf *out)
{
    check(p->request != NULL);
    const struct request *r = p->request;
    append_endpoint(r, out);
    buf_append_span(out, r->s3.raw_path);
    if (r->s3.operation == S3_PostObject && p->writes.key_count > 0) {
        if (!span_ends_with(r->s3.raw_path, SPAN("/"))) {
            buf_append_char(out, '/');
        }
        buf_append_uri_encoded(out, p->writes.keys[0].key, true);
    }
}

// --- The header ----------------------------------------------------------------------------------

static void mend_header(struct pass_state *p)
{
    check(p->answer == ANSWER_HEAD);
    struct request *r = p->request;
    struct span value;
    struct buf out;
    if (!headers_get(&p->answered, SPAN("Location"), &value)) {
        return;
    }
    buf_init(&out, LOCATION_DOCUMENT_MAX);
    if (r->s3.operation == S3_CreateBucket && span_starts_with(value, SPAN("/"))) {
        buf_append_char(&out, '/'); // here S3 sends the name of the bucket, not a URL
        buf_append_span(&out, r->s3.bucket);
    } else {
        append_place(p, &out);
    }
    struct span copy = buf_ok(&out) ? arena_copy(r->arena, buf_span(&out)) : (struct span){NULL, 0};
    buf_done(&out);
    headers_remove(&p->answered, SPAN("Location"));
    if (copy.ptr != NULL) {
        request_header(r, &p->answered, "Location", copy);
    }
}

void pass_location_begin(struct pass_state *p)
{
    check(p->location.phase == LOCATION_UNUSED);
    enum s3_operation operation = p->s3.operation;
    unsigned status = p->relay.status;
    bool names_it = operation == S3_CompleteMultipartUpload || operation == S3_PostObject;
    if ((!names_it && operation != S3_CreateBucket) || status < 200 || status > 299) {
        return;
    }
    mend_header(p);
    if (names_it && status != 204 && (!p->relay.has_length || p->relay.length > 0)) {
        p->location.phase = LOCATION_MENDS;
        buf_init(&p->location.document, LOCATION_DOCUMENT_MAX + 1);
    }
}

void pass_location_begin_error(struct pass_state *p)
{
    check(p->location.phase == LOCATION_UNUSED);
    check(p->answer == ANSWER_HEAD);
    p->location.phase = LOCATION_HIDES;
    buf_init(&p->location.document, LOCATION_DOCUMENT_MAX + 1);
    if (s3_answer_is_coded(&p->relay.headers_answered)) {
        headers_remove(&p->answered, SPAN("Content-Encoding"));
        buf_init(&p->location.document, 0); // takes nothing, as with a document that is too long
    }
}

// --- The document --------------------------------------------------------------------------------

// Finds the text of an element in `document`. `open` and `close` are the element's tags. Returns
// false if the document has no such element.
static bool find_element(struct span document, struct span open, struct span close,
                         size_t *ret_start, size_t *ret_end)
{
    check(open.len > 0 && close.len > 0);
    size_t at = span_find_text(document, open);
    if (at == document.len) {
        return false;
    }
    *ret_start = at + open.len;
    struct span rest = {document.ptr + *ret_start, document.len - *ret_start};
    size_t len = span_find_text(rest, close);
    *ret_end = *ret_start + len;
    return len < rest.len;
}

// Replaces the text of an element in `document` by `text`. Does nothing if there is no such
// element.
static void replace(struct buf *document, struct span open, struct span close, struct span text)
{
    size_t start = 0, end = 0;
    struct span old = buf_span(document);
    struct buf out;
    if (!find_element(old, open, close, &start, &end)) {
        return;
    }
    buf_init(&out, 4 * LOCATION_DOCUMENT_MAX);
    check(start <= end && end <= old.len);
    buf_append(&out, old.ptr, start);
    s3_xml_escape(&out, text);
    buf_append(&out, old.ptr + end, old.len - end);
    if (buf_ok(&out)) {
        buf_done(document);
        *document = out;
    } else {
        buf_done(&out);
    }
}

static void give_up(struct pass_state *p)
{
    check(pass_location_collects(p));
    byte_queue_append(&p->down, buf_span(&p->location.document));
    p->location.document.len = 0;
    p->location.phase = LOCATION_PASSES;
}

// Names in an incomplete or too long document cannot be checked, so the client gets nothing of such
// a document.
static void hide_names(struct pass_state *p)
{
    struct pass_location *l = &p->location;
    check(l->phase == LOCATION_HIDES);
    struct buf shown;
    if (p->call.err != ERR_OK || !buf_ok(&l->document)) {
        l->document.len = 0;
        return;
    }
    buf_init(&shown, LOCATION_DOCUMENT_MAX);
    if (s3_error_hide(buf_span(&l->document), &p->s3, pass_listing_may_show, p, &shown)) {
        buf_done(&l->document);
        l->document = shown;
    } else {
        buf_done(&shown);
    }
}

bool pass_location_collects(const struct pass_state *p)
{
    return p->location.phase == LOCATION_MENDS || p->location.phase == LOCATION_HIDES;
}

void pass_location_take(struct pass_state *p, struct span data)
{
    struct pass_location *l = &p->location;
    check(pass_location_collects(p));
    check(l->document.len <= LOCATION_DOCUMENT_MAX + 1);
    size_t blanks = 0;
    while (l->document.len == 0 && blanks < data.len && is_blank(data.ptr[blanks])) {
        blanks++;
    }
    byte_queue_append(&p->down, (struct span){data.ptr, blanks});
    struct span rest = {data.ptr + blanks, data.len - blanks};
    if (l->phase == LOCATION_HIDES) {
        buf_append_span(&l->document, rest); // fails, and stays failed, if it becomes too long
        return;
    }
    if (rest.len > LOCATION_DOCUMENT_MAX - l->document.len) {
        give_up(p);
        byte_queue_append(&p->down, rest);
        return;
    }
    buf_append_span(&l->document, rest);
}

void pass_location_end(struct pass_state *p)
{
    struct pass_location *l = &p->location;
    check(p->call.phase == CALL_ENDED);
    if (!pass_location_collects(p)) {
        return;
    }
    if (p->request != NULL && l->phase == LOCATION_HIDES) {
        hide_names(p);
    } else if (p->request != NULL && p->call.err == ERR_OK) {
        struct buf place;
        buf_init(&place, LOCATION_DOCUMENT_MAX);
        append_place(p, &place);
        if (buf_ok(&place)) {
            replace(&l->document, SPAN("<Location>"), SPAN("</Location>"), buf_span(&place));
            replace(&l->document, SPAN("<Bucket>"), SPAN("</Bucket>"), p->request->s3.bucket);
        }
        buf_done(&place);
    }
    give_up(p);
}
