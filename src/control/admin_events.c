// SPDX-License-Identifier: Apache-2.0
// GET /api/v1/events: sends the totals of admin_summary.c as server-sent events, once a second, to
// each watching client. Runs on the admin thread.
//
// A client with more than OUTPUT_MAX unread bytes is disconnected. At most ADMIN_STREAMS_MAX
// clients watch at once. The text is rendered once for all that may see detail, and once for the
// others.
#include "control/admin_private.h"

#include <sys/socket.h>

#include "stats/stats.h"

#define OUTPUT_MAX (64u << 10)

static void event_text(const struct admin *admin, bool detail, struct buf *out)
{
    buf_append_cstr(out, "event: summary\ndata: ");
    admin_json_append(out, admin_summary(admin, detail));
    buf_append_cstr(out, "\n\n");
    check(buf_ok(out)); // the summary is much shorter than the limit
}

static void stream_send(struct admin_stream *stream, struct span text)
{
    if (admin_stream_waiting(stream) + text.len > OUTPUT_MAX) {
        stats_add(COUNTER_admin_connections_cut, 1);
        (void)shutdown(bufferevent_getfd(stream->bev), SHUT_RDWR); // evhttp sees the end
        return;
    }
    admin_stream_add(stream, text);
    admin_stream_send(stream);
}

void admin_page_events(struct admin *admin, struct evhttp_request *req)
{
    struct admin_stream *stream =
        admin_stream_begin(admin, req, ADMIN_STREAM_EVENTS, "text/event-stream");
    if (stream != NULL) {
        struct buf text;
        buf_init(&text, OUTPUT_MAX);
        stream->sees_detail = admin_access_sees_detail(admin, req);
        event_text(admin, stream->sees_detail, &text);
        stream_send(stream, buf_span(&text));
        buf_done(&text);
    }
}

// Sends the totals to all clients that may see detail, or to all others.
static void send_to_those(struct admin *admin, bool detail)
{
    struct buf text;
    buf_init(&text, OUTPUT_MAX);
    list_for_each(node, &admin->streams)
    {
        struct admin_stream *stream = container_of(node, struct admin_stream, node);
        if (stream->kind != ADMIN_STREAM_EVENTS || stream->sees_detail != detail) {
            continue;
        }
        if (text.len == 0) {
            event_text(admin, detail, &text);
        }
        stream_send(stream, buf_span(&text));
    }
    buf_done(&text);
}

void admin_events_tick(struct admin *admin)
{
    send_to_those(admin, true);
    send_to_those(admin, false);
}
