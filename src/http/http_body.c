// SPDX-License-Identifier: Apache-2.0
// Request bodies: removes the framing, delivers bytes to the sink, pauses, and discards bodies that
// have no sink. Runs on the connection's worker, only from connection_run(); the handler's calls
// only change the phase. A pause takes effect at the next piece, so one call delivers at most one
// received piece (HTTP_RECEIVE_SIZE).
#include "http/http_private.h"

void http_body_start(struct http_exchange *x, struct http_sink *sink)
{
    check(x->sink == NULL && sink != NULL);
    check(x->body == BODY_NONE || x->body == BODY_HELD);
    x->sink = sink;
    if (x->request.expects_continue && x->reply.phase == REPLY_NONE) {
        x->request.expects_continue = false;
        x->reply.interim = SPAN("HTTP/1.1 100 Continue\r\n\r\n");
    }
    if (x->body == BODY_HELD) {
        http_body_enter(x, BODY_FLOWING);
    }
    http_connection_wake(connection_of(x));
}

void http_body_pause(struct http_exchange *x)
{
    if (x->body == BODY_FLOWING) {
        http_body_enter(x, BODY_PAUSED);
    }
}

void http_body_resume(struct http_exchange *x)
{
    if (x->body == BODY_PAUSED) {
        http_body_enter(x, BODY_FLOWING);
        http_connection_wake(connection_of(x));
    }
}

void http_body_end(struct http_exchange *x, enum err err)
{
    struct http_sink *sink = x->sink;
    x->sink = NULL;
    if (sink != NULL) {
        sink->on_end(sink, err);
    }
}

static void body_ended(struct http_exchange *x)
{
    check(x->request.framing == HTTP_BODY_CHUNKS || x->body_left == 0);
    http_body_enter(x, BODY_NONE);
    http_body_end(x, ERR_OK);
}

static void body_broken(struct http_connection *c)
{
    http_body_enter(&c->x, BODY_BROKEN);
    http_connection_consume(c, http_connection_input(c).len);
    http_body_end(&c->x, ERR_BAD_REQUEST);
}

static void body_deliver(struct http_exchange *x, struct span data)
{
    if (x->sink == NULL || data.len == 0) {
        return;
    }
    enum err err = x->sink->on_data(x->sink, data);
    if (err != ERR_OK) {
        if (x->body != BODY_DROPPED) {
            http_body_enter(x, BODY_DROPPED);
        }
        http_body_end(x, err);
    }
}

bool http_body_step(struct http_connection *c)
{
    struct http_exchange *x = &c->x;
    struct span rest = http_connection_input(c);
    check(x->body == BODY_FLOWING || x->body == BODY_DROPPED);
    if (x->request.framing == HTTP_BODY_CHUNKS) {
        if (rest.len == 0) {
            return false;
        }
        struct span before = rest, data = {NULL, 0};
        enum http_chunked_step step = http_chunked_next(&x->chunked, &rest, &data);
        // Deliver the data before consuming it, because consuming may free its buffer.
        body_deliver(x, data);
        http_connection_consume(c, before.len - rest.len);
        http_connection_note_moved(c, before.len - rest.len);
        c->drained_bytes += before.len - rest.len;
        if (step == HTTP_CHUNKED_END) {
            body_ended(x);
        } else if (step == HTTP_CHUNKED_BAD) {
            body_broken(c);
        }
        return true;
    }
    rest.len = (size_t)min_u64(rest.len, x->body_left);
    if (rest.len > 0) {
        x->body_left -= rest.len;
        body_deliver(x, rest);
        http_connection_consume(c, rest.len);
        http_connection_note_moved(c, rest.len);
        c->drained_bytes += rest.len;
    }
    if (x->body_left == 0) {
        body_ended(x);
        return true;
    }
    return rest.len > 0;
}
