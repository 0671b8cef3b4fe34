// SPDX-License-Identifier: Apache-2.0
// Endless answers. A stream sends pieces of its answer until the connection ends. evhttp does not
// read from the connection during the answer. So a disconnected client is noticed only when the
// next piece is sent. evhttp disconnects a client that reads nothing for a long time. Runs on the
// admin thread.
#include "control/admin_private.h"

#include <event2/buffer.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "stats/stats.h"

static void stream_free(struct admin_stream *stream)
{
    struct admin *admin = stream->admin;
    void (*left)(struct admin * admin) = stream->left;
    list_remove(&stream->node);
    admin->stream_counts[stream->kind]--;
    stats_sub(COUNTER_admin_streams, 1);
    evbuffer_free(stream->pending);
    admin_where_free(stream->where);
    free(stream->top);
    free(stream);
    if (left != NULL) {
        left(admin);
    }
}

static void on_closed(struct evhttp_connection *connection, void *ctx)
{
    struct admin_stream *stream = ctx;
    (void)connection;
    if (evhttp_request_get_connection(stream->req) == NULL) {
        evhttp_send_reply_end(stream->req); // without a connection, nothing else frees it
    }
    stream_free(stream);
}

struct admin_stream *admin_stream_begin(struct admin *admin, struct evhttp_request *req,
                                        enum admin_stream_kind kind, const char *type)
{
    static const unsigned max[] = {[ADMIN_STREAM_EVENTS] = ADMIN_STREAMS_MAX,
                                   [ADMIN_STREAM_LOG] = ADMIN_FOLLOWERS_MAX,
                                   [ADMIN_STREAM_TOP] = ADMIN_RANKERS_MAX};
    if (evhttp_request_get_command(req) == EVHTTP_REQ_HEAD) {
        admin_reply_text(req, HTTP_OK, type, SPAN(""));
        return NULL;
    }
    if (admin->stream_counts[kind] >= max[kind]) {
        admin_reply_refusal(req, HTTP_SERVUNAVAIL,
                            "too many clients watch already; try again later");
        return NULL;
    }
    struct admin_stream *stream = calloc(1, sizeof(*stream));
    check(stream != NULL);
    struct evhttp_connection *connection = evhttp_request_get_connection(req);
    stream->admin = admin;
    stream->kind = kind;
    stream->req = req;
    stream->bev = evhttp_connection_get_bufferevent(connection);
    stream->pending = evbuffer_new();
    check(stream->pending != NULL);
    list_node_init(&stream->node);
    list_push_back(&admin->streams, &stream->node);
    admin->stream_counts[kind]++;
    stats_add(COUNTER_admin_streams, 1);
    evhttp_connection_set_closecb(connection, on_closed, stream);
    admin_reply_headers(req, type);
    evhttp_send_reply_start(req, HTTP_OK, "OK");
    admin_stream_arm(admin);
    return stream;
}

size_t admin_stream_waiting(const struct admin_stream *stream)
{
    return evbuffer_get_length(bufferevent_get_output(stream->bev)) +
           evbuffer_get_length(stream->pending);
}

void admin_stream_add(struct admin_stream *stream, struct span text)
{
    check(evbuffer_add(stream->pending, text.ptr, text.len) == 0);
}

void admin_stream_send(struct admin_stream *stream)
{
    if (evbuffer_get_length(stream->pending) > 0) {
        evhttp_send_reply_chunk(stream->req, stream->pending);
    }
}

void admin_streams_judge(struct admin *admin)
{
    list_for_each(node, &admin->streams)
    {
        struct admin_stream *stream = container_of(node, struct admin_stream, node);
        stream->sees_detail = admin_access_sees_detail(admin, stream->req);
        if (!stream->sees_detail && stream->kind != ADMIN_STREAM_EVENTS) {
            (void)shutdown(bufferevent_getfd(stream->bev), SHUT_RDWR);
            admin_stream_add(stream, SPAN("\n")); // the write fails, so evhttp sees the end
            admin_stream_send(stream);
        }
    }
}

void admin_stream_arm(struct admin *admin)
{
    struct timeval tick = {.tv_sec = 1};
    if (!list_empty(&admin->streams) && !event_pending(admin->tick_event, EV_TIMEOUT, NULL)) {
        check(event_add(admin->tick_event, &tick) == 0);
    }
}

void admin_streams_forget(struct admin *admin)
{
    struct list_node *node;
    while ((node = list_first(&admin->streams)) != NULL) {
        struct admin_stream *stream = container_of(node, struct admin_stream, node);
        evhttp_connection_set_closecb(evhttp_request_get_connection(stream->req), NULL, NULL);
        stream_free(stream); // the request is freed with its connection
    }
}

bool admin_streams_use(struct admin *admin, const struct bufferevent *bev)
{
    list_for_each(node, &admin->streams)
    {
        if (container_of(node, struct admin_stream, node)->bev == bev) {
            return true;
        }
    }
    return false;
}
