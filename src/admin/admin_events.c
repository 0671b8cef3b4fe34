// SPDX-License-Identifier: Apache-2.0
// GET /api/v1/events: the totals of admin_summary.c as server-sent events, once a second, to each who
// watches. On the admin thread.
//
// Who does not take what is sent is cut: more than OUTPUT_MAX waits for it. At most ADMIN_STREAMS_MAX watch
// at once. A stream ends when its connection does; evhttp reads nothing meanwhile, so that a watcher has
// gone is found out with the next event. What is sent is made once for all.
#include "admin/admin_private.h"

#include <event2/buffer.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "stats/stats.h"

#define OUTPUT_MAX (64u << 10)
#define TICK_S 1

struct admin_stream {
    struct list_node node;
    struct admin *admin;
    struct evhttp_request *req;
    struct bufferevent *bev; // of its connection
};

static void event_text(const struct admin *admin, struct buf *out)
{
    json_t *json = admin_summary(admin);
    char *text = json_dumps(json, JSON_COMPACT | JSON_PRESERVE_ORDER);
    check(text != NULL);
    json_decref(json);
    buf_init(out, OUTPUT_MAX);
    buf_append_cstr(out, "event: summary\ndata: ");
    buf_append_cstr(out, text);
    buf_append_cstr(out, "\n\n");
    check(buf_ok(out)); // counters.def is short
    free(text);
}

static void stream_send(struct admin_stream *stream, struct span text)
{
    if (evbuffer_get_length(bufferevent_get_output(stream->bev)) + text.len > OUTPUT_MAX) {
        stats_add(COUNTER_admin_connections_cut, 1);
        (void)shutdown(bufferevent_getfd(stream->bev), SHUT_RDWR); // evhttp finds out
        return;
    }
    struct evbuffer *piece = evbuffer_new();
    check(piece != NULL && evbuffer_add(piece, text.ptr, text.len) == 0);
    evhttp_send_reply_chunk(stream->req, piece);
    evbuffer_free(piece);
}

static void stream_free(struct admin_stream *stream)
{
    list_remove(&stream->node);
    stream->admin->stream_count--;
    free(stream);
}

static void on_closed(struct evhttp_connection *connection, void *ctx)
{
    struct admin_stream *stream = ctx;
    (void)connection;
    if (evhttp_request_get_connection(stream->req) == NULL) {
        evhttp_send_reply_end(stream->req); // nobody else frees it now
    }
    stream_free(stream);
}

void admin_page_events(struct admin *admin, struct evhttp_request *req)
{
    if (evhttp_request_get_command(req) == EVHTTP_REQ_HEAD) {
        admin_reply_text(req, HTTP_OK, "text/event-stream", SPAN(""));
        return;
    }
    if (admin->stream_count >= ADMIN_STREAMS_MAX) {
        admin_reply_refusal(req, HTTP_SERVUNAVAIL, "too many watch already");
        return;
    }
    struct admin_stream *stream = calloc(1, sizeof(*stream));
    check(stream != NULL);
    struct evhttp_connection *connection = evhttp_request_get_connection(req);
    stream->admin = admin;
    stream->req = req;
    stream->bev = evhttp_connection_get_bufferevent(connection);
    list_node_init(&stream->node);
    list_push_back(&admin->streams, &stream->node);
    admin->stream_count++;
    evhttp_connection_set_closecb(connection, on_closed, stream);
    admin_reply_headers(req, "text/event-stream");
    evhttp_send_reply_start(req, HTTP_OK, "OK");
    struct buf text;
    event_text(admin, &text);
    stream_send(stream, buf_span(&text));
    buf_done(&text);
    if (!event_pending(admin->tick_event, EV_TIMEOUT, NULL)) {
        struct timeval tick = {.tv_sec = TICK_S};
        check(event_add(admin->tick_event, &tick) == 0);
    }
}

void admin_events_tick(struct admin *admin)
{
    if (list_empty(&admin->streams)) {
        return;
    }
    struct buf text;
    event_text(admin, &text);
    list_for_each(node, &admin->streams)
    {
        stream_send(container_of(node, struct admin_stream, node), buf_span(&text));
    }
    buf_done(&text);
    struct timeval tick = {.tv_sec = TICK_S};
    check(event_add(admin->tick_event, &tick) == 0);
}

void admin_events_forget(struct admin *admin)
{
    struct list_node *node;
    while ((node = list_first(&admin->streams)) != NULL) {
        struct admin_stream *stream = container_of(node, struct admin_stream, node);
        evhttp_connection_set_closecb(evhttp_request_get_connection(stream->req), NULL, NULL);
        stream_free(stream); // its request ends with its connection
    }
}

bool admin_events_uses(struct admin *admin, const struct bufferevent *bev)
{
    list_for_each(node, &admin->streams)
    {
        if (container_of(node, struct admin_stream, node)->bev == bev) {
            return true;
        }
    }
    return false;
}
