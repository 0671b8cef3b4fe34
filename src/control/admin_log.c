// SPDX-License-Identifier: Apache-2.0
// GET /api/v1/log: sends requests as they end, one line of JSON each, to at most
// ADMIN_FOLLOWERS_MAX followers. With `where` it sends only matching requests (admin_where.c). Runs
// on the admin thread.
//
// No thread waits for a follower. At most OUTPUT_MAX unread bytes are kept for it. Further lines
// are counted, and when there is room again, a line {"dropped": COUNT} reports them. An empty line
// after some seconds of silence detects a client that has left.
#include "control/admin_private.h"

#include <event2/keyvalq_struct.h>
#include <stdio.h>
#include <stdlib.h>

#include "stats/stats.h"

#define OUTPUT_MAX (256u << 10)
#define LINGER_MS 10 // collects lines for this long, to send many at once
#define SILENCE_S 5u

static void follower_line(struct admin_stream *stream, struct span line)
{
    char told[64];
    if (stream->where != NULL && !admin_where_holds(stream->where, line)) {
        return;
    }
    if (admin_stream_waiting(stream) + line.len + sizeof(told) > OUTPUT_MAX) {
        stream->lost++;
        stats_add(COUNTER_live_log_dropped, 1);
        return;
    }
    if (stream->lost > 0) {
        int len =
            snprintf(told, sizeof(told), "{\"dropped\":%llu}\n", (unsigned long long)stream->lost);
        admin_stream_add(stream, (struct span){told, (size_t)len});
        stream->lost = 0;
    }
    admin_stream_add(stream, line);
}

static void on_lines(void *ctx, struct span lines)
{
    struct admin *admin = as_admin(ctx);
    while (lines.len > 0) {
        size_t len = span_find(lines, '\n') + 1; // each line has its line end
        list_for_each(node, &admin->streams)
        {
            struct admin_stream *stream = container_of(node, struct admin_stream, node);
            if (stream->line != NULL) {
                stream->line(stream, (struct span){lines.ptr, len});
            }
        }
        lines = (struct span){lines.ptr + len, lines.len - len};
    }
}

void admin_log_take(struct admin *admin)
{
    const struct admin_lines *lines = &admin->options.lines;
    uint64_t lost = lines->take(lines->ctx, on_lines, admin);
    list_for_each(node, &admin->streams)
    {
        struct admin_stream *stream = container_of(node, struct admin_stream, node);
        if (stream->kind == ADMIN_STREAM_LOG) {
            stream->lost += lost;
            stream->silence_s = 0;
            admin_stream_send(stream);
        } else if (stream->kind == ADMIN_STREAM_TOP) {
            stream->lost += lost;
        }
    }
    check(event_add(admin->lines_event, NULL) == 0);
}

void admin_log_wake(struct admin *admin)
{
    struct timeval linger = {.tv_usec = LINGER_MS * 1000};
    check(event_add(admin->take_event, &linger) == 0);
}

void admin_log_tick(struct admin *admin)
{
    list_for_each(node, &admin->streams)
    {
        struct admin_stream *stream = container_of(node, struct admin_stream, node);
        if (stream->kind == ADMIN_STREAM_LOG && ++stream->silence_s >= SILENCE_S &&
            admin_stream_waiting(stream) == 0) {
            stream->silence_s = 0;
            admin_stream_add(stream, SPAN("\n"));
            admin_stream_send(stream);
        }
    }
}

static unsigned lines_wanted(const struct admin *admin)
{
    return admin->stream_counts[ADMIN_STREAM_LOG] + admin->stream_counts[ADMIN_STREAM_TOP];
}

static void on_left(struct admin *admin)
{
    if (lines_wanted(admin) == 0) {
        admin->options.lines.turn(admin->options.lines.ctx, false);
        check(event_del(admin->lines_event) == 0 && event_del(admin->take_event) == 0);
    }
}

void admin_log_follow(struct admin *admin, struct evhttp_request *req,
                      const struct evkeyvalq *parameters, struct admin_top *top,
                      admin_line_fn *on_line)
{
    char why[ADMIN_WHERE_WHY_MAX];
    const char *text = evhttp_find_header(parameters, "where");
    struct admin_where *where = text != NULL ? admin_where_new(text, why) : NULL;
    struct admin_stream *stream = NULL;
    if (text != NULL && where == NULL) {
        admin_reply_refusal(req, HTTP_BADREQUEST, why);
    } else {
        stream = admin_stream_begin(admin, req, top != NULL ? ADMIN_STREAM_TOP : ADMIN_STREAM_LOG,
                                    "application/x-ndjson");
    }
    if (stream == NULL) {
        admin_where_free(where);
        free(top);
        return;
    }
    stream->where = where;
    stream->top = top;
    stream->line = on_line;
    stream->left = on_left;
    if (lines_wanted(admin) == 1) {
        admin->options.lines.turn(admin->options.lines.ctx, true);
        check(event_add(admin->lines_event, NULL) == 0);
    }
    admin_stream_add(stream, SPAN("\n")); // tells the follower that it misses nothing from now on
    admin_stream_send(stream);
}

void admin_page_log(struct admin *admin, struct evhttp_request *req)
{
    struct evkeyvalq parameters;
    (void)admin_reply_query(req, &parameters); // the dispatcher has checked it
    admin_log_follow(admin, req, &parameters, NULL, follower_line);
    evhttp_clear_headers(&parameters);
}
