// SPDX-License-Identifier: Apache-2.0
// Replies: sends head and body to the socket, with back-pressure towards the source. Runs on the
// connection's worker.
//
// The parts of a reply are sent in this order: the rest of "100 Continue", the rest of the head,
// the rest of a whole small body, the queue. The queue is a ring of slices in the request's arena.
// Its slices in memory have at most HTTP_OUT_HIGH bytes, or less while memory is short. The last
// slice may be a file range.
//
// A call of http_reply_write() first sends the head together with everything in memory. Then
// sendfile sends the next bytes of the file range, if they are resident. The source or this file
// must have confirmed that during the call. If they are not resident, the range returns to its
// source (recall), which delivers the bytes in another way.
//
// Nothing here calls the handler: http_reply_write() tells the connection how far it got, and the
// connection ends the exchange. Only http_reply_write() asks the source, so the source is never
// called inside http_reply_start().
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/chunk.h"
#include "base/clock.h"
#include "base/log.h"
#include "http/http_private.h"
#include "stats/stats.h"

#define IOV_MAX_HERE (3 + 2 * REPLY_QUEUE_MAX)

// --- Head ----------------------------------------------------------------------------------------

const char *http_reason(unsigned status)
{
    static const struct {
        unsigned status;
        const char *reason;
    } rows[] = {
        {400, "Bad Request"},
        {403, "Forbidden"},
        {405, "Method Not Allowed"},
        {411, "Length Required"},
        {414, "URI Too Long"},
        {417, "Expectation Failed"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (rows[i].status == status) {
            return rows[i].reason;
        }
    }
    return "";
}

// Returns true for a header that this file adds itself. The handler's list must not add it again.
static bool is_ours(struct span name)
{
    switch (name.len) {
    case 4:
        return span_equal_nocase(name, SPAN("Date"));
    case 10:
        return span_equal_nocase(name, SPAN("Connection")) ||
               span_equal_nocase(name, SPAN("Keep-Alive"));
    case 14:
        return span_equal_nocase(name, SPAN("Content-Length"));
    case 17:
        return span_equal_nocase(name, SPAN("Transfer-Encoding"));
    default:
        return false;
    }
}

static void put_headers(struct span_writer *w, const struct headers *headers)
{
    for (unsigned i = 0; headers != NULL && i < headers->count; i++) {
        const struct header *h = &headers->items[i];
        if (is_ours(h->name)) {
            continue;
        }
        if (!headers_name_is_token(h->name) || !headers_value_is_clean(h->value)) {
            stats_add(COUNTER_http_headers_dropped, 1);
            continue;
        }
        span_writer_put(w, h->name);
        span_writer_put(w, SPAN(": "));
        span_writer_put(w, h->value);
        span_writer_put(w, SPAN("\r\n"));
    }
}

static size_t headers_size(const struct headers *headers)
{
    size_t size = 0;
    for (unsigned i = 0; headers != NULL && i < headers->count; i++) {
        size += headers->items[i].name.len + headers->items[i].value.len + 4;
    }
    return size;
}

// Renders the head into the arena. Returns false if the arena is used up.
static bool render_head(struct http_exchange *x, const struct http_reply *reply, bool bodiless)
{
    struct http_connection *c = connection_of(x);
    struct reply_state *r = &x->reply;
    struct span reason = span_from_cstr(reply->reason);
    size_t size = 256 + reason.len + headers_size(reply->headers) + reply->rendered.len;
    char *bytes = arena_take(x->arena, size);
    if (bytes == NULL) {
        return false;
    }
    struct span_writer w = {bytes, bytes + size};
    span_writer_put(&w, SPAN("HTTP/1.1 "));
    span_writer_put_u64(&w, reply->status);
    span_writer_put(&w, SPAN(" "));
    span_writer_put(&w, reason);
    span_writer_put(&w, SPAN("\r\n"));
    put_headers(&w, reply->headers);
    span_writer_put(&w, reply->rendered);
    span_writer_put(&w, SPAN("Date: "));
    span_writer_put(&w, span_from_cstr(http_connection_date(c->hw)));
    span_writer_put(&w, SPAN("\r\n"));
    if (r->framing == REPLY_BY_LENGTH && !reply->no_length) {
        span_writer_put(&w, SPAN("Content-Length: "));
        span_writer_put_u64(&w, r->length);
        span_writer_put(&w, SPAN("\r\n"));
    } else if (r->framing == REPLY_BY_CHUNKS && !bodiless) {
        span_writer_put(&w, SPAN("Transfer-Encoding: chunked\r\n"));
    }
    if (r->close) {
        span_writer_put(&w, SPAN("Connection: close\r\n"));
    } else if (x->request.version_minor == 0) {
        span_writer_put(&w, SPAN("Connection: keep-alive\r\n"));
    }
    span_writer_put(&w, SPAN("\r\n"));
    r->head = (struct span){bytes, (size_t)(w.at - bytes)};
    return true;
}

// Returns true if the rest of the request's body cannot be discarded, because it is or may be too
// long, or its framing is broken. This reply is then the connection's last.
static bool body_forces_close(const struct http_exchange *x)
{
    return x->body == BODY_BROKEN ||
           (x->body != BODY_NONE && (x->request.framing == HTTP_BODY_CHUNKS ||
                                     x->body_left > HTTP_DRAIN_MAX || x->request.expects_continue));
}

// Entries are initialised when they are used, because all of them are nearly 3 KiB.
static struct reply_queue *queue_new(struct arena *arena)
{
    struct reply_queue *q = arena_take(arena, sizeof(*q));
    if (q != NULL) {
        q->first = q->count = 0;
        q->queued_bytes = 0;
    }
    return q;
}

void http_reply_start(struct http_exchange *x, const struct http_reply *reply)
{
    struct http_connection *c = connection_of(x);
    struct reply_state *r = &x->reply;
    check(c->phase == CONNECTION_EXCHANGE);
    check(r->phase == REPLY_NONE);
    check(reply->status >= 200 && reply->status <= 599);
    check(reply->source == NULL || reply->body.len == 0);
    bool bodiless = x->request.is_head || reply->no_length;
    bool has_length = reply->has_length || (reply->source == NULL && !bodiless);
    r->framing = has_length                      ? REPLY_BY_LENGTH
                 : x->request.version_minor == 1 ? REPLY_BY_CHUNKS
                                                 : REPLY_BY_CLOSE;
    r->length = reply->has_length ? reply->length : reply->body.len;
    r->close = reply->close || !x->request.keep_alive || c->hw->draining || body_forces_close(x) ||
               (!bodiless && r->framing == REPLY_BY_CLOSE);
    // A client that expects "100 Continue" waits for it even before an empty body.
    if (x->request.expects_continue && !http_request_has_body(&x->request)) {
        x->request.expects_continue = false;
        r->interim = SPAN("HTTP/1.1 100 Continue\r\n\r\n");
    }
    if (!render_head(x, reply, bodiless)) {
        log_warn("reply_too_large", "status=%u", reply->status);
        x->cut = true;
    } else if (!bodiless && reply->source != NULL) {
        r->source = reply->source;
        r->queue = queue_new(x->arena);
        x->cut |= r->queue == NULL;
    } else if (!bodiless) {
        r->body = reply->body;
        if (r->length != reply->body.len) {
            log_error("reply_length_wrong", "status=%u announced=%llu given=%zu", reply->status,
                      (unsigned long long)r->length, reply->body.len);
            x->cut = true;
        }
    }
    bool pulls = r->source != NULL && !(has_length && r->length == 0);
    http_reply_enter(r, pulls ? REPLY_PULLS : REPLY_ENDED);
    http_connection_wake(c);
}

void http_reply_ready(struct http_exchange *x)
{
    struct reply_state *r = &x->reply;
    if (r->phase == REPLY_NONE || r->phase == REPLY_ENDED) {
        return;
    }
    if (r->phase == REPLY_WAITS) {
        http_reply_enter(r, REPLY_PULLS);
    }
    http_connection_wake(connection_of(x));
}

void http_reply_cut(struct http_exchange *x)
{
    x->cut = true;
    http_connection_wake(connection_of(x));
}

bool http_exchange_can_sendfile(const struct http_exchange *x)
{
    return connection_of(x)->ssl == NULL;
}

bool http_reply_head_sent(const struct http_exchange *x)
{
    return x->reply.head_sent;
}

uint64_t http_reply_body_bytes(const struct http_exchange *x)
{
    return x->reply.body_bytes;
}

uint64_t http_reply_first_byte_us(const struct http_exchange *x)
{
    return x->reply.first_byte_us;
}

// --- Queue ---------------------------------------------------------------------------------------

static struct reply_entry *queue_at(struct reply_queue *q, unsigned i)
{
    check(i < q->count);
    return &q->entries[(q->first + i) % REPLY_QUEUE_MAX];
}

static void slice_release(struct http_slice *slice)
{
    if (slice->kind == HTTP_SLICE_BYTES) {
        if (slice->release != NULL) {
            slice->release(slice->release_ctx);
        }
    } else if (slice->range.release != NULL) {
        slice->range.release(slice->range.release_ctx);
    }
}

static uint64_t slice_len(const struct http_slice *slice)
{
    return slice->kind == HTTP_SLICE_BYTES ? slice->bytes.len : slice->range.len;
}

// Removes the front entry before its release, because the release may call functions of this room.
static void queue_pop(struct reply_queue *q)
{
    struct reply_entry *e = queue_at(q, 0);
    struct http_slice slice = e->slice;
    check(q->queued_bytes >= slice_len(&slice) - e->sent);
    q->queued_bytes -= slice_len(&slice) - e->sent;
    q->first = (q->first + 1) % REPLY_QUEUE_MAX;
    q->count--;
    slice_release(&slice);
}

void http_reply_release(struct http_exchange *x)
{
    struct reply_queue *q = x->reply.queue;
    while (q != NULL && q->count > 0) {
        queue_pop(q);
    }
    x->reply.source = NULL;
}

bool http_reply_holds_memory(const struct http_exchange *x)
{
    const struct reply_queue *q = x->reply.queue; // only the last slice can be a FILE
    return q != NULL && q->count > 0 && q->entries[q->first].slice.kind == HTTP_SLICE_BYTES;
}

static bool queue_has_room(const struct reply_queue *q)
{
    if (q->count == 0) {
        return true;
    }
    const struct reply_entry *last = &q->entries[(q->first + q->count - 1) % REPLY_QUEUE_MAX];
    return q->count < REPLY_QUEUE_MAX && q->queued_bytes < chunk_budget_share(HTTP_OUT_HIGH) &&
           last->slice.kind == HTTP_SLICE_BYTES;
}

static struct reply_entry *queue_push(struct reply_state *r, const struct http_slice *slice)
{
    struct reply_queue *q = r->queue;
    check(q->count < REPLY_QUEUE_MAX);
    q->count++;
    struct reply_entry *e = queue_at(q, q->count - 1);
    *e = (struct reply_entry){.slice = *slice};
    q->queued_bytes += slice_len(slice);
    return e;
}

static void entry_set_prefix(struct reply_entry *e, struct span prefix)
{
    check(prefix.len <= sizeof(e->prefix));
    memcpy(e->prefix, prefix.ptr, prefix.len);
    e->prefix_len = (uint8_t)prefix.len;
}

static void queue_push_slice(struct http_exchange *x, struct http_slice *slice)
{
    struct reply_state *r = &x->reply;
    uint64_t len = slice_len(slice);
    if (slice->kind == HTTP_SLICE_FILE) {
        check(len <= HTTP_FILE_SLICE_MAX);
        check(http_exchange_can_sendfile(x));
        check(r->framing != REPLY_BY_CHUNKS); // bytes from files have a known length
    }
    if (len == 0 || (r->framing == REPLY_BY_LENGTH && len > r->length - r->pulled)) {
        if (len > 0) {
            log_error("reply_length_wrong", "announced=%llu given=%llu",
                      (unsigned long long)r->length, (unsigned long long)(r->pulled + len));
            x->cut = true;
        }
        slice_release(slice);
        return;
    }
    struct reply_entry *e = queue_push(r, slice);
    e->asked = slice->kind == HTTP_SLICE_FILE && slice->range.was_ready ? r->pass : 0;
    r->pulled += len;
    check(r->framing != REPLY_BY_LENGTH || r->pulled <= r->length);
    if (r->framing == REPLY_BY_CHUNKS) {
        char prefix[REPLY_PREFIX_MAX];
        int n = snprintf(prefix, sizeof(prefix), "%s%llx\r\n", r->pulled > len ? "\r\n" : "",
                         (unsigned long long)len);
        entry_set_prefix(e, (struct span){prefix, (size_t)n});
    }
    if (r->framing == REPLY_BY_LENGTH && r->pulled == r->length) {
        http_reply_enter(r, REPLY_ENDED);
    }
}

static void queue_push_end(struct http_exchange *x)
{
    struct reply_state *r = &x->reply;
    check(r->queue->count < REPLY_QUEUE_MAX);
    if (r->framing == REPLY_BY_LENGTH && r->pulled != r->length) {
        log_error("reply_length_wrong", "announced=%llu given=%llu", (unsigned long long)r->length,
                  (unsigned long long)r->pulled);
        x->cut = true;
        return;
    }
    http_reply_enter(r, REPLY_ENDED);
    if (r->framing == REPLY_BY_CHUNKS) {
        struct http_slice none = {.kind = HTTP_SLICE_BYTES};
        entry_set_prefix(queue_push(r, &none),
                         r->pulled > 0 ? SPAN("\r\n0\r\n\r\n") : SPAN("0\r\n\r\n"));
    }
}

// Pulls from the source until the queue is full or the source has nothing now.
static void reply_pull(struct http_exchange *x)
{
    struct reply_state *r = &x->reply;
    while (r->source != NULL && r->phase == REPLY_PULLS && !x->cut && queue_has_room(r->queue)) {
        struct http_slice slice = {0};
        // Enter REPLY_WAITS before the call, because pull() may call http_reply_ready(), which
        // leaves that phase.
        http_reply_enter(r, REPLY_WAITS);
        switch (r->source->pull(r->source, &slice)) {
        case HTTP_PULL_SLICE:
            if (r->phase == REPLY_WAITS) {
                http_reply_enter(r, REPLY_PULLS);
            }
            queue_push_slice(x, &slice);
            break;
        case HTTP_PULL_WAIT:
            return; // if the source is ready already, connection_run() calls this again
        case HTTP_PULL_END:
            queue_push_end(x);
            break;
        default:
            x->cut = true;
            break;
        }
    }
}

// --- Sending -------------------------------------------------------------------------------------

static unsigned add_iov(struct iovec *iov, unsigned count, const char *ptr, size_t len)
{
    if (len > 0) {
        iov[count].iov_base = (void *)(uintptr_t)ptr;
        iov[count].iov_len = len;
        count++;
    }
    return count;
}

// Collects everything in memory, up to the file range.
static unsigned gather(struct reply_state *r, struct iovec *iov)
{
    unsigned count = add_iov(iov, 0, r->interim.ptr, r->interim.len);
    if (r->phase == REPLY_NONE) {
        return count;
    }
    count = add_iov(iov, count, r->head.ptr, r->head.len);
    count = add_iov(iov, count, r->body.ptr, r->body.len);
    for (unsigned i = 0; r->queue != NULL && i < r->queue->count; i++) {
        struct reply_entry *e = queue_at(r->queue, i);
        count = add_iov(iov, count, e->prefix + e->prefix_sent,
                        (size_t)(e->prefix_len - e->prefix_sent));
        if (e->slice.kind == HTTP_SLICE_FILE) {
            break;
        }
        count = add_iov(iov, count, e->slice.bytes.ptr + e->sent, e->slice.bytes.len - e->sent);
    }
    return count;
}

static uint64_t take_span(struct span *s, uint64_t sent)
{
    uint64_t n = min_u64(s->len, sent);
    if (n > 0) {
        s->ptr += n;
        s->len -= n;
    }
    return n;
}

static void note_sent(struct http_exchange *x, uint64_t sent)
{
    struct reply_state *r = &x->reply;
    http_connection_note_moved(connection_of(x), sent);
    sent -= take_span(&r->interim, sent);
    if (sent > 0 && !r->head_sent) {
        r->head_sent = true;
        r->first_byte_us = clock_monotonic_us(); // worker_now_us() is the same all turn long
    }
    sent -= take_span(&r->head, sent);
    uint64_t body = take_span(&r->body, sent);
    r->body_bytes += body;
    sent -= body;
    while (r->queue != NULL && r->queue->count > 0) {
        struct reply_entry *e = queue_at(r->queue, 0);
        uint64_t prefix = min_u64(sent, (uint64_t)(e->prefix_len - e->prefix_sent));
        e->prefix_sent = (uint8_t)(e->prefix_sent + prefix);
        sent -= prefix;
        uint64_t bytes = min_u64(sent, slice_len(&e->slice) - e->sent);
        e->sent += bytes;
        sent -= bytes;
        r->body_bytes += bytes;
        r->queue->queued_bytes -= bytes;
        if (e->prefix_sent < e->prefix_len || e->sent < slice_len(&e->slice)) {
            break;
        }
        queue_pop(r->queue);
    }
    check(sent == 0);
}

static struct reply_entry *file_entry(struct reply_state *r)
{
    if (r->queue == NULL || r->queue->count == 0) {
        return NULL;
    }
    struct reply_entry *last = queue_at(r->queue, r->queue->count - 1);
    return last->slice.kind == HTTP_SLICE_FILE ? last : NULL;
}

static void recall(struct http_exchange *x, struct reply_entry *e)
{
    struct reply_state *r = &x->reply;
    uint64_t unsent = e->slice.range.len - e->sent;
    struct http_slice slice = e->slice;
    stats_add(COUNTER_http_range_recalled, 1);
    check(e == queue_at(r->queue, r->queue->count - 1));
    check(r->pulled >= unsent);
    check(r->queue->queued_bytes >= unsent);
    r->queue->queued_bytes -= unsent;
    r->queue->count--; // a FILE slice is always the last one
    r->pulled -= unsent;
    if (r->phase != REPLY_PULLS) {
        http_reply_enter(r, REPLY_PULLS);
    }
    slice_release(&slice);
    r->source->recall(r->source, unsent);
}

enum file_result { FILE_SENT, FILE_BLOCKED, FILE_RECALL, FILE_GONE };

static enum file_result send_file(struct http_exchange *x, struct reply_entry *e, uint64_t max)
{
    uint64_t want = min_u64(e->slice.range.len - e->sent, max);
    int64_t n = file_send_range(connection_of(x)->hw->worker, &e->slice.range, e->sent, want,
                                connection_of(x)->fd);
    if (n >= 0) {
        note_sent(x, (uint64_t)n);
        // Less than requested: the socket is full, and another try would only confirm it.
        return (uint64_t)n < want ? FILE_BLOCKED : FILE_SENT;
    }
    switch (n) {
    case -EAGAIN:
        return FILE_BLOCKED;
    case -EPIPE:
    case -ECONNRESET:
    case -ETIMEDOUT:
    case -ENOTCONN:
        return FILE_GONE;
    default:
        return FILE_RECALL; // the source then reads the bytes and detects the error
    }
}

// Cuts the pieces to `max` bytes together. Returns how many remain.
static unsigned iov_cut(struct iovec *iov, unsigned count, uint64_t max)
{
    for (unsigned i = 0; i < count; i++) {
        if (iov[i].iov_len >= max) {
            iov[i].iov_len = (size_t)max;
            return i + 1;
        }
        max -= iov[i].iov_len;
    }
    return count;
}

static uint64_t iov_bytes(const struct iovec *iov, unsigned count)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < count; i++) {
        bytes += iov[i].iov_len;
    }
    return bytes;
}

// Sends one piece of the reply. REPLY_DONE means that this piece was handled, not that the reply
// has ended: call it again for the next piece.
static enum reply_progress send_some(struct http_exchange *x, uint64_t *budget)
{
    struct reply_state *r = &x->reply;
    struct iovec iov[IOV_MAX_HERE];
    unsigned count = gather(r, iov);
    struct reply_entry *file = r->phase != REPLY_NONE ? file_entry(r) : NULL;
    if (file != NULL) {
        // Check the range before the head is sent. Otherwise the kernel would hold back the head
        // (MSG_MORE) for a range that is no longer resident.
        uint64_t len = min_u64(file->slice.range.len - file->sent, *budget);
        if (file->asked != r->pass && !file_send_ready(&file->slice.range, file->sent, len)) {
            recall(x, file);
            return REPLY_DONE;
        }
    }
    if (count > 0) {
        uint64_t all = iov_bytes(iov, count);
        unsigned piece = connection_of(x)->admission.room.piece;
        count = piece > 0 ? iov_cut(iov, count, piece) : count;
        uint64_t want = iov_bytes(iov, count);
        bool more = file != NULL && want == all;
        int64_t n = http_connection_send(connection_of(x), iov, count, more);
        if (n < 0) {
            return n == -EAGAIN ? REPLY_BLOCKED : REPLY_GONE;
        }
        note_sent(x, (uint64_t)n);
        *budget -= min_u64(*budget, (uint64_t)n);
        if ((uint64_t)n < want && connection_of(x)->ssl == NULL) {
            return REPLY_BLOCKED;
        }
        if ((uint64_t)n < want || file == NULL || *budget == 0) {
            return REPLY_DONE;
        }
    }
    check(file != NULL); // otherwise has_output() returned false
    uint64_t before = r->body_bytes;
    switch (send_file(x, file, min_u64(HTTP_FILE_SLICE_MAX, *budget))) {
    case FILE_SENT:
        *budget -= r->body_bytes - before;
        return REPLY_DONE;
    case FILE_RECALL:
        recall(x, file);
        return REPLY_DONE;
    case FILE_GONE:
        return REPLY_GONE;
    default:
        return REPLY_BLOCKED;
    }
}

static bool has_output(const struct reply_state *r)
{
    return r->interim.len > 0 ||
           (r->phase != REPLY_NONE &&
            (r->head.len > 0 || r->body.len > 0 || (r->queue != NULL && r->queue->count > 0)));
}

static enum reply_progress reply_write(struct http_exchange *x, uint64_t *budget)
{
    struct reply_state *r = &x->reply;
    r->pass++;
    for (;;) {
        reply_pull(x);
        if (x->cut) {
            return REPLY_CUT;
        }
        if (!has_output(r)) {
            return r->phase == REPLY_ENDED ? REPLY_DONE : REPLY_IDLE;
        }
        if (*budget == 0) {
            return REPLY_BLOCKED;
        }
        enum reply_progress progress = send_some(x, budget);
        if (progress != REPLY_DONE) {
            return progress;
        }
    }
}

// Returns how many bytes the connection may send now: its share of the turn, or less if its socket
// has small buffers.
static uint64_t sendable(const struct http_connection *c)
{
    unsigned piece = c->admission.room.piece;
    if (piece == 0) {
        return c->share.left;
    }
    struct pollfd poll_fd = {.fd = c->fd, .events = POLLOUT};
    return poll(&poll_fd, 1, 0) == 0 ? 0 : min_u64(c->share.left, piece);
}

enum reply_progress http_reply_write(struct http_exchange *x)
{
    struct http_connection *c = connection_of(x);
    check(c->phase == CONNECTION_EXCHANGE);
    uint64_t now_us = connection_now_us(c);
    (void)http_share_left(&c->hw->turn, &c->share, now_us);
    uint64_t given, left;
    enum reply_progress progress;
    do {
        given = left = sendable(c);
        progress = reply_write(x, &left);
        c->share.left -= given - left;
        // A small buffer may take the next piece at once.
    } while (progress == REPLY_BLOCKED && given > 0 && left == 0 && c->share.left > 0);
    if (progress == REPLY_DONE) {
        http_share_note_reply(&c->hw->turn, x->reply.body_bytes, now_us);
        worker_expect_short(c->hw->worker, c->hw->turn.small_until_us);
        if (x->request.started_us == now_us && x->reply.body_bytes <= HTTP_SHARE_LEAST) {
            worker_note_quick(c->hw->worker);
        }
    }
    return progress;
}
