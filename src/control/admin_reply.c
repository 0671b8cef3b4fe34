// SPDX-License-Identifier: Apache-2.0
// Queries of the admin port's requests, and heads and bodies of its answers. Each connection
// carries one request. Runs on the admin thread; JSON may be made on any thread.
#include "control/admin_private.h"

#include <event2/buffer.h>
#include <event2/keyvalq_struct.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool admin_reply_query(struct evhttp_request *req, struct evkeyvalq *ret_parameters)
{
    const char *query = evhttp_uri_get_query(evhttp_request_get_evhttp_uri(req));
    ret_parameters->tqh_first = NULL;
    ret_parameters->tqh_last = &ret_parameters->tqh_first;
    return query == NULL || query[0] == '\0' ||
           (strstr(query, "%00") == NULL && evhttp_parse_query_str(query, ret_parameters) == 0);
}

void admin_reply_headers(struct evhttp_request *req, const char *type)
{
    struct evkeyvalq *headers = evhttp_request_get_output_headers(req);
    check(evhttp_add_header(headers, "Content-Type", type) == 0);
    check(evhttp_add_header(headers, "Connection", "close") == 0);
    check(evhttp_add_header(headers, "Cache-Control", "no-store") == 0);
    check(evhttp_add_header(headers, "X-Content-Type-Options", "nosniff") == 0);
}

void admin_reply_text(struct evhttp_request *req, unsigned status, const char *type,
                      struct span body)
{
    struct evkeyvalq *headers = evhttp_request_get_output_headers(req);
    struct evbuffer *out = evhttp_request_get_output_buffer(req);
    admin_reply_headers(req, type);
    if (evhttp_request_get_command(req) == EVHTTP_REQ_HEAD) { // evhttp would send a body too
        char length[24];
        (void)snprintf(length, sizeof(length), "%zu", body.len); // always fits
        check(evhttp_add_header(headers, "Content-Length", length) == 0);
    } else {
        check(evbuffer_add(out, body.ptr, body.len) == 0);
    }
    evhttp_send_reply(req, (int)status, NULL, NULL);
}

void admin_json_append(struct buf *out, json_t *json)
{
    char *text = json_dumps(json, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(15));
    check(text != NULL);
    json_decref(json);
    buf_append_cstr(out, text);
    free(text);
}

void admin_reply_json(struct evhttp_request *req, unsigned status, json_t *json)
{
    struct buf line;
    buf_init(&line, ADMIN_ANSWER_MAX);
    admin_json_append(&line, json);
    buf_append_char(&line, '\n');
    if (buf_ok(&line)) {
        admin_reply_text(req, status, "application/json", buf_span(&line));
    } else {
        admin_reply_text(req, HTTP_INTERNAL, "application/json",
                         SPAN("{\"status\":\"refused\",\"reason\":\"the answer is too long\"}\n"));
    }
    buf_done(&line);
}

json_t *admin_json_text(struct span text)
{
    json_t *json = json_stringn(text.ptr != NULL ? text.ptr : "", text.len);
    if (json != NULL) {
        return json;
    }
    struct buf ascii;
    buf_init(&ascii, 4 * text.len + 1);
    for (size_t i = 0; i < text.len; i++) {
        bool is_plain = text.ptr[i] >= 0x20 && text.ptr[i] < 0x7f;
        buf_append_cstr(&ascii, is_plain ? "" : "\xef\xbf\xbd");
        buf_append(&ascii, &text.ptr[i], is_plain ? 1 : 0);
    }
    json = json_stringn(buf_cstr(&ascii), ascii.len);
    check(json != NULL);
    buf_done(&ascii);
    return json;
}

json_t *admin_refusal(const char *why)
{
    json_t *json = json_pack("{s:s, s:o}", "status", "refused", "reason",
                             admin_json_text(span_from_cstr(why)));
    check(json != NULL);
    return json;
}

void admin_reply_refusal(struct evhttp_request *req, unsigned status, const char *why)
{
    admin_reply_json(req, status, admin_refusal(why));
}
