// SPDX-License-Identifier: Apache-2.0
// Builds other than a release parse each head that request_head_accept() has accepted a second
// time. llhttp, strict and without any lenient flag, must read the same. If not, the process
// aborts, so that a test or a fuzzer shows the head. Pure; any thread.
#include "http/http_private.h"

#ifdef FOREBAY_FAULTS

#include <llhttp.h>
#include <string.h>

struct other {
    const struct http_request *request;
    struct span target, name, value;
    unsigned count;
    bool is_complete;
};

static void extend(struct span *s, const char *at, size_t len)
{
    if (s->ptr == NULL) {
        *s = (struct span){at, len};
        return;
    }
    s->len += len;
    check(s->ptr + s->len == at + len); // pieces of one item are adjacent
}

static int on_url(llhttp_t *parser, const char *at, size_t len)
{
    struct other *o = parser->data;
    extend(&o->target, at, len);
    return 0;
}

static int on_header_field(llhttp_t *parser, const char *at, size_t len)
{
    struct other *o = parser->data;
    extend(&o->name, at, len);
    return 0;
}

static int on_header_value(llhttp_t *parser, const char *at, size_t len)
{
    struct other *o = parser->data;
    extend(&o->value, at, len);
    return 0;
}

static int on_header_value_complete(llhttp_t *parser)
{
    struct other *o = parser->data;
    check(o->count < o->request->headers.count);
    const struct header *ours = &o->request->headers.items[o->count++];
    check(span_equal(ours->name, o->name));
    check(span_equal(ours->value, span_trim(o->value)));
    o->name = o->value = (struct span){NULL, 0};
    return 0;
}

static int on_headers_complete(llhttp_t *parser)
{
    struct other *o = parser->data;
    o->is_complete = true;
    return HPE_PAUSED; // llhttp must not read the body
}

static const llhttp_settings_t settings = {
    .on_url = on_url,
    .on_header_field = on_header_field,
    .on_header_value = on_header_value,
    .on_header_value_complete = on_header_value_complete,
    .on_headers_complete = on_headers_complete,
};

void request_head_check(struct span head, const struct http_request *r)
{
    struct other o = {.request = r};
    llhttp_t parser;
    llhttp_init(&parser, HTTP_REQUEST, &settings);
    parser.data = &o;
    check(llhttp_execute(&parser, head.ptr, head.len) == HPE_PAUSED);
    check(o.is_complete && o.count == r->headers.count);
    check(parser.http_major == 1 && parser.http_minor == r->version_minor);
    check(span_equal_cstr(r->method, llhttp_method_name((llhttp_method_t)parser.method)));
    check(span_ends_with(o.target, r->target) || span_equal(r->target, SPAN("/"))); // absolute form
    check(r->framing != HTTP_BODY_LENGTH || parser.content_length == 0 ||
          parser.content_length == r->content_length);
}

#endif
