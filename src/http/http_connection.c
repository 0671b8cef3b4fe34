// SPDX-License-Identifier: Apache-2.0
// One client socket: reads heads, moves from one exchange to the next, enforces the time limits. A
// connection stays on one worker for life.
//
// States, and what ends them (enum connection_state):
//   HANDSHAKE  TLS only.
//   HEAD       between requests, or a part of a head has arrived. A whole head that is accepted
//              begins an exchange (http_exchange.c). One that is refused is answered by the
//              handler's on_refused and is the connection's last.
//   EXCHANGE   from on_request to on_done. The body goes to its sink or waits in the socket; the
//              reply is sent. Pipelined bytes are kept until one more head is whole, then reading
//              stops.
//   DRAIN      the reply was sent, and the short rest of the request's body is discarded. Then
//              HEAD.
//   LINGER     our side is shut. Bytes that still arrive are discarded for a moment, because
//              closing over unread bytes would reset the connection and could destroy the reply
//              on its way.
//   DEAD       closed; freed at the end of the turn.
//
// A client that shuts its sending side still gets complete replies. Everything that has arrived is
// processed, pipelined requests included. The connection ends when a state needs more bytes. Such a
// client looks like one that has closed, until bytes are sent to it. So a reply that does not move
// within the idle timeout ends too.
//
// Only connection_run() moves a connection on, and it is never nested. Calls from handlers, sinks
// and sources only set a mark and request a run (http_connection_wake). So the handler never runs
// inside one of its own calls, and on_done never inside http_reply_start().
//
// Bytes are received into a buffer of the worker that is valid for one event. Bytes that are not
// consumed by then are copied to `in`. So an idle connection holds no buffer, and a request that
// arrives whole costs one copy, that of the head into its arena. The read event stays registered;
// the write event exists only while the socket is full.
//
// Memory that clients make us hold is counted (http_connection_hold): long heads, OpenSSL's
// buffers. Above the limit a long head is refused and no handshake begins. That bounds the cost of
// clients that begin and do not finish. Short heads are always accepted.
//
// Time limits are lazy. The timer is only ever moved to an earlier time, and compares with
// deadline_us when it fires, so that a request on a live connection touches no timer. The minimum
// rate counts only time spent waiting for the client: too_slow().
#include <errno.h>
#include <openssl/err.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/date.h"
#include "base/log.h"
#include "http/http_private.h"
#include "stats/stats.h"

#define LINGER_MS 2000
#define LINGER_BYTES_MAX 1048576u
#define STEPS_PER_PASS 64 // pipelined requests of a connection before others run
#define TLS_HELLO 0x16

// --- Small parts ---------------------------------------------------------------------------------

const char *http_connection_date(struct http_worker *hw)
{
    int64_t now_s = clock_wall_s();
    if (now_s != hw->date_s) {
        hw->date_s = now_s;
        date_format_http((time_t)now_s, hw->date);
    }
    return hw->date;
}

void http_connection_note_moved(struct http_connection *c, uint64_t bytes)
{
    c->moved_bytes += bytes;
    if (c->eof && bytes > 0) {
        c->since_us = connection_now_us(c);
    }
}

void http_connection_wake(struct http_connection *c)
{
    if (c->state != CONNECTION_DEAD) {
        c->wake_again = true;
        if (!c->running) {
            worker_defer(c->hw->worker, &c->task);
        }
    }
}

// --- Input ---------------------------------------------------------------------------------------

// Bytes received and not consumed yet: either all in `fresh` or all in `in`.
struct span http_connection_input(const struct http_connection *c)
{
    if (c->in.len > c->in_used) {
        return (struct span){c->in.ptr + c->in_used, c->in.len - c->in_used};
    }
    return c->fresh;
}

void http_connection_consume(struct http_connection *c, size_t len)
{
    check(len <= http_connection_input(c).len);
    if (c->in.len > c->in_used) {
        c->in_used += len;
        if (c->in_used == c->in.len) {
            buf_done(&c->in);
            c->in_used = 0;
        }
    } else if (len > 0) {
        c->fresh.ptr += len;
        c->fresh.len -= len;
    }
}

// Appends the bytes that just arrived to the bytes left over.
static void input_keep(struct http_connection *c)
{
    if (c->in_used > 0) {
        memmove(c->in.ptr, c->in.ptr + c->in_used, c->in.len - c->in_used);
        c->in.len -= c->in_used;
        c->in_used = 0;
    }
    if (c->fresh.len > 0) {
        buf_append_span(&c->in, c->fresh);
        check(buf_ok(&c->in)); // never more is received than fits
    }
    c->fresh = (struct span){NULL, 0};
}

static bool body_passes_through(const struct http_exchange *x)
{
    return x->body == BODY_FLOWING || x->body == BODY_DROPPED;
}

// How many bytes may be received at once. While memory is short: few, even if the client sends
// requests ahead.
static size_t input_room(const struct http_connection *c)
{
    size_t room = HTTP_IN_MAX - (c->in.len - c->in_used);
    bool is_kept = c->state != CONNECTION_EXCHANGE || !body_passes_through(&c->x);
    return is_kept && http_server_memory_is_full(c->hw->server) ? min_u64(room, HTTP_HELD_FREE)
                                                                : room;
}

// --- Socket --------------------------------------------------------------------------------------

int64_t http_connection_send(struct http_connection *c, const struct iovec *iov, unsigned iov_count,
                             bool more)
{
    if (c->ssl != NULL) {
        return http_tls_send(c->ssl, c->hw->record, iov, iov_count);
    }
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = iov_count};
    ssize_t n;
    do {
        n = sendmsg(c->fd, &message, MSG_NOSIGNAL | (more ? MSG_MORE : 0));
    } while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

// Returns the number of bytes, 0 at the end of the stream, or a negative errno.
static int64_t connection_receive(struct http_connection *c, char *bytes, size_t max)
{
    if (c->ssl != NULL) {
        return http_tls_receive(c->ssl, bytes, max);
    }
    ssize_t n;
    do {
        n = recv(c->fd, bytes, max, 0);
    } while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

static void set_events(struct http_connection *c, bool want_read, bool want_write)
{
    if (want_read != c->read_on) {
        check((want_read ? event_add(&c->read_event, NULL) : event_del(&c->read_event)) == 0);
        c->read_on = want_read;
    }
    if (want_write != c->write_on) {
        check((want_write ? event_add(&c->write_event, NULL) : event_del(&c->write_event)) == 0);
        c->write_on = want_write;
    }
}

static void connection_free(void *ptr)
{
    struct http_connection *c = ptr;
    c->magic = 0;
    free(c);
}

// Closes the socket at once; the memory is freed at the end of the turn.
void http_connection_close(struct http_connection *c, bool reset)
{
    check(c->state != CONNECTION_DEAD);
    check(c->x.arena == NULL);
    c->state = CONNECTION_DEAD;
    stats_sub(COUNTER_http_connections_idle, 1);
    set_events(c, false, false);
    timer_done(&c->timer);
    worker_task_cancel(&c->task);
    if (c->ssl != NULL) {
        SSL_free(c->ssl);
        c->ssl = NULL;
    }
    if (reset) {
        struct linger linger = {.l_onoff = 1, .l_linger = 0};
        // Best effort: a plain close shows a cut too, wherever the length was announced.
        (void)setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
    }
    close(c->fd);
    c->fd = -1;
    c->fresh = (struct span){NULL, 0};
    buf_done(&c->in);
    list_remove(&c->node);
    (void)http_server_hold(c->hw->server, c->held_bytes, 0, true);
    http_server_connection_closed(c->hw->server, c->hw, c->source);
    worker_free_later(c->hw->worker, connection_free, c);
}

void http_connection_linger(struct http_connection *c)
{
    if (c->ssl != NULL) {
        ERR_clear_error();
        (void)SSL_shutdown(c->ssl); // the peer may be gone already
    }
    if (c->eof || shutdown(c->fd, SHUT_WR) != 0) {
        http_connection_close(c, false);
        return;
    }
    c->state = CONNECTION_LINGER;
    c->drained_bytes = 0;
    c->since_us = connection_now_us(c);
    c->deadline_us = c->since_us + LINGER_MS * 1000;
}

// --- Memory --------------------------------------------------------------------------------------

static uint64_t bytes_above_free(uint64_t bytes)
{
    return bytes > HTTP_HELD_FREE ? bytes : 0;
}

bool http_connection_hold(struct http_connection *c, bool force)
{
    uint64_t bytes = 2 * (bytes_above_free(c->in.len) + bytes_above_free(c->x.head_bytes));
    if (c->ssl != NULL) {
        bool idle = c->state == CONNECTION_HEAD && !SSL_has_pending(c->ssl);
        bytes += idle ? HTTP_TLS_IDLE_BYTES : HTTP_TLS_BUSY_BYTES;
    }
    if (bytes != c->held_bytes && !http_server_hold(c->hw->server, c->held_bytes, bytes, force)) {
        return false;
    }
    c->held_bytes = bytes;
    return true;
}

// --- Time limits ---------------------------------------------------------------------------------

static void set_deadline(struct http_connection *c, uint64_t deadline_us)
{
    c->deadline_us = deadline_us;
    if (deadline_us == 0 || (c->timer_due_us != 0 && c->timer_due_us <= deadline_us)) {
        return;
    }
    uint64_t now = connection_now_us(c);
    uint64_t delay_ms = deadline_us > now ? (deadline_us - now + 999) / 1000 : 0;
    timer_start(&c->timer, delay_ms);
    c->timer_due_us = now + delay_ms * 1000;
}

// Adds up the time in which only the client could have made progress.
static void note_waiting(struct http_connection *c, bool waits)
{
    uint64_t now = connection_now_us(c);
    if (c->wait_since_us != 0) {
        c->waited_us += now - c->wait_since_us;
    }
    c->wait_since_us = waits ? now : 0;
}

void http_connection_reset_rate(struct http_connection *c)
{
    c->wait_since_us = 0;
    c->waited_us = 0;
    c->moved_bytes = 0;
    c->slow_us = 0;
}

// A reader that pauses costs a connection, a request and a pinned segment, or some memory. While
// none of these is short, it may pause for long. An upload holds up an origin's connection.
static bool may_pause(const struct http_connection *c)
{
    bool memory = http_reply_holds_memory(&c->x) && chunk_budget_is_short();
    return c->blocked && c->x.body != BODY_FLOWING && !memory &&
           !http_server_is_crowded(c->hw->server);
}

// Bytes per second that a client must send or read.
static uint64_t least_rate(const struct http_connection *c)
{
    const struct http_sink *sink = c->x.sink;
    bool holds_up = sink != NULL && sink->is_collected && chunk_budget_kind_is_short(BUDGET_BODIES);
    return connection_limits(c)->min_rate_bytes * (holds_up ? HTTP_COLLECTED_RATE : 1);
}

// Judges each window of min_rate_grace_ms that was spent waiting for the client.
static bool too_slow(struct http_connection *c)
{
    const struct http_options *options = connection_options(c);
    note_waiting(c, c->wait_since_us != 0);
    if (c->waited_us < options->min_rate_grace_ms * 1000) {
        return false;
    }
    double least = (double)least_rate(c) * (double)c->waited_us / 1e6;
    bool is_slow = (double)c->moved_bytes < least;
    c->slow_us = is_slow ? c->slow_us + c->waited_us : 0;
    c->waited_us = 0;
    c->moved_bytes = 0;
    if (!is_slow || (may_pause(c) && c->slow_us < options->min_rate_patience_ms * 1000)) {
        stats_add(COUNTER_http_slow_kept, is_slow ? 1 : 0);
        return false;
    }
    return true;
}

// The deadline while the client may have left unnoticed; 0: none.
static uint64_t deadline_of_eof(const struct http_connection *c)
{
    return c->eof ? c->since_us + connection_limits(c)->idle_timeout_ms * 1000 : 0;
}

static uint64_t deadline_of_rate(const struct http_connection *c, bool waits)
{
    uint64_t grace_us = connection_options(c)->min_rate_grace_ms * 1000;
    if (!waits || connection_limits(c)->min_rate_bytes == 0) {
        return 0;
    }
    return connection_now_us(c) + grace_us - min_u64(c->waited_us, grace_us);
}

static uint64_t deadline_of_state(struct http_connection *c, bool waits)
{
    uint64_t header_us = connection_limits(c)->header_timeout_ms * 1000;
    uint64_t eof_us, rate_us;
    switch (c->state) {
    case CONNECTION_HANDSHAKE:
        return c->since_us + header_us;
    case CONNECTION_HEAD:
        if (c->head_started_us != 0) {
            return c->head_started_us + header_us;
        }
        return c->since_us +
               (c->first_bytes_seen ? connection_limits(c)->idle_timeout_ms * 1000 : header_us);
    case CONNECTION_EXCHANGE:
        eof_us = deadline_of_eof(c);
        rate_us = deadline_of_rate(c, waits);
        return eof_us == 0 || rate_us == 0 ? eof_us + rate_us : min_u64(eof_us, rate_us);
    case CONNECTION_DRAIN:
        return c->since_us + header_us;
    default:
        return c->deadline_us;
    }
}

// --- Moving on -----------------------------------------------------------------------------------

void http_connection_enter_head(struct http_connection *c)
{
    c->state = CONNECTION_HEAD;
    c->since_us = connection_now_us(c);
    c->head_started_us = 0;
}

// A client that speaks TLS here reports only a reset, so the log states the reason.
static void refuse_tls_hello(struct http_connection *c)
{
    stats_add(COUNTER_http_tls_hello_on_plain, 1);
    log_warn_condition(
        "tls_hello_on_plain_port",
        "client=%s hint=\"this client speaks https here, or switched to the CRT transfer "
        "manager, which may do so: give it an http:// endpoint, htslib s3+http:// names, or set "
        "preferred_transfer_client = classic\"",
        c->peer);
    http_connection_close(c, true);
}

// Is this part of a head, or of a TLS record before one, for which there may be no memory?
static bool head_waits(struct http_connection *c)
{
    input_keep(c);
    if (http_connection_hold(c, false)) {
        return false;
    }
    stats_add(COUNTER_http_shed_memory, 1);
    if (c->head_started_us == 0) {
        http_connection_close(c, false);
        return false;
    }
    http_exchange_refuse_head(c, ERR_OVERLOAD);
    return true;
}

static bool head_step(struct http_connection *c)
{
    struct span bytes = http_connection_input(c);
    if (bytes.len == 0) {
        return head_waits(c);
    }
    if (!c->first_bytes_seen) {
        c->first_bytes_seen = true;
        if (c->ssl == NULL && bytes.ptr[0] == TLS_HELLO) {
            refuse_tls_hello(c);
            return false;
        }
    }
    if (c->head_started_us == 0) {
        c->head_started_us = connection_now_us(c);
    }
    switch (request_head_scan(&c->request_head, bytes)) {
    case REQUEST_HEAD_MORE:
        return head_waits(c);
    case REQUEST_HEAD_REFUSED:
        http_exchange_refuse_head(c, c->request_head.err);
        return true;
    default:
        http_exchange_accept_head(c);
        return true;
    }
}

static bool exchange_step(struct http_connection *c)
{
    struct http_exchange *x = &c->x;
    bool moved = false;
    if ((x->body == BODY_FLOWING && !x->paused) || x->body == BODY_DROPPED) {
        moved = http_body_step(c);
    } else if (x->body == BODY_NONE && x->sink != NULL) {
        http_body_end(x, ERR_OK); // a sink for a body of no bytes
        moved = true;
    }
    c->blocked = false;
    switch (http_reply_write(x)) {
    case REPLY_DONE:
        http_exchange_done(c);
        return true;
    case REPLY_GONE:
        http_exchange_gone(c, false);
        return false;
    case REPLY_CUT:
        http_exchange_cut(c);
        return false;
    case REPLY_BLOCKED:
        c->blocked = true;
        return moved;
    default:
        return moved;
    }
}

static bool drain_step(struct http_connection *c)
{
    struct http_exchange *x = &c->x;
    bool moved = http_body_step(c);
    if (x->bad_body || c->drained_bytes > HTTP_DRAIN_MAX + HTTP_RECEIVE_SIZE) {
        http_connection_linger(c);
        return false;
    }
    if (x->body == BODY_NONE) {
        http_connection_enter_head(c);
        return !http_connection_leave(c);
    }
    return moved;
}

static void refuse_plain_client(const struct http_connection *c)
{
    static const char reply[] = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n"
                                "Content-Type: text/plain\r\nContent-Length: 43\r\n\r\n"
                                "This port speaks TLS: write https:// here.\n";
    log_warn_condition(
        "plain_http_on_tls_port",
        "client=%s hint=\"this client speaks http here: give it an https:// endpoint\"", c->peer);
    char rest[4096]; // an unread request would reset the connection and lose the reply
    (void)!recv(c->fd, rest, sizeof(rest), MSG_DONTWAIT);
    (void)!send(c->fd, reply, sizeof(reply) - 1, MSG_NOSIGNAL); // it may have left
}

static void handshake_step(struct http_connection *c)
{
    int rc = http_tls_handshake(c->ssl);
    if (rc == 1) {
        http_connection_enter_head(c);
    } else if (rc != -EAGAIN) {
        stats_add(COUNTER_http_tls_failed, 1);
        if (rc == -EPROTONOSUPPORT) {
            refuse_plain_client(c);
        }
        http_connection_close(c, false);
    }
}

static bool connection_step(struct http_connection *c)
{
    switch (c->state) {
    case CONNECTION_HANDSHAKE:
        handshake_step(c);
        return c->state == CONNECTION_HEAD;
    case CONNECTION_HEAD:
        return head_step(c);
    case CONNECTION_EXCHANGE:
        return exchange_step(c);
    case CONNECTION_DRAIN:
        return drain_step(c);
    case CONNECTION_LINGER:
        c->drained_bytes += http_connection_input(c).len;
        c->since_us = http_connection_input(c).len > 0 ? connection_now_us(c) : c->since_us;
        http_connection_consume(c, http_connection_input(c).len);
        if (c->drained_bytes > LINGER_BYTES_MAX) {
            http_connection_close(c, false);
        }
        return false;
    default:
        return false;
    }
}

// Is there a reason to read more bytes from the socket?
static bool wants_read(struct http_connection *c)
{
    if (c->eof) {
        return false;
    }
    if (c->state != CONNECTION_EXCHANGE) {
        return true;
    }
    struct http_exchange *x = &c->x;
    if (x->body == BODY_FLOWING) {
        return !x->paused;
    }
    if (x->body == BODY_DROPPED) {
        return true;
    }
    size_t kept_max = http_server_memory_is_full(c->hw->server)
                          ? HTTP_HELD_FREE
                          : HTTP_IN_MAX - HTTP_RECEIVE_SIZE / 2;
    if (c->in.len - c->in_used > kept_max) {
        return false;
    }
    // A held body, or bytes of the next request: one head's worth is enough. Until then, reading
    // detects a client that leaves.
    return x->body == BODY_HELD ||
           request_head_scan(&c->request_head, http_connection_input(c)) == REQUEST_HEAD_MORE;
}

// Sets events, deadline and left-over bytes as the current state needs them.
static void connection_settle(struct http_connection *c)
{
    input_keep(c);
    (void)http_connection_hold(c, true);
    if (c->state == CONNECTION_EXCHANGE) {
        http_exchange_charge(&c->x);
    }
    bool want_read = wants_read(c);
    bool want_write = false;
    bool waits = false;
    if (c->state == CONNECTION_EXCHANGE) {
        want_write = c->blocked;
        waits = c->blocked || (c->x.body == BODY_FLOWING && !c->x.paused);
    } else if (c->state == CONNECTION_HANDSHAKE) {
        want_write = SSL_want_write(c->ssl);
    }
    set_events(c, want_read, want_write);
    if (want_read && c->ssl != NULL && c->read_again) {
        worker_defer(c->hw->worker, &c->task);
    }
    note_waiting(c, waits);
    set_deadline(c, deadline_of_state(c, waits));
}

// Nothing moves by itself, and the client has sent all that it will. Only a reply can be due.
static void connection_at_eof(struct http_connection *c)
{
    const struct http_exchange *x = &c->x;
    if (c->state != CONNECTION_EXCHANGE) {
        http_connection_close(c, false);
        return;
    }
    bool body_is_cut =
        body_passes_through(x) && http_connection_input(c).len == 0; // else its sink has paused
    if (body_is_cut && x->reply.phase == REPLY_NONE) {
        http_exchange_gone(c, false);
    }
}

static void connection_run(struct http_connection *c)
{
    check(!c->running);
    c->running = true;
    for (unsigned steps = 0; c->state != CONNECTION_DEAD; steps++) {
        if (steps == STEPS_PER_PASS) {
            worker_defer(c->hw->worker, &c->task);
            break;
        }
        c->wake_again = false;
        if (!connection_step(c) && !c->wake_again) {
            if (c->eof && c->state != CONNECTION_DEAD) {
                connection_at_eof(c);
            }
            break;
        }
    }
    c->running = false;
    if (c->state != CONNECTION_DEAD) {
        connection_settle(c);
    }
}

static bool both_sides_are_closed(const struct http_connection *c)
{
    struct pollfd end = {.fd = c->fd};
    return poll(&end, 1, 0) > 0 && (end.revents & (POLLHUP | POLLERR)) != 0;
}

static void connection_ended(struct http_connection *c, bool error)
{
    if (!error && !both_sides_are_closed(c)) {
        c->eof = true;
        c->since_us = connection_now_us(c);
        connection_run(c);
    } else if (c->state == CONNECTION_EXCHANGE) {
        http_exchange_gone(c, error);
    } else {
        http_connection_close(c, false);
    }
}

static void connection_read(struct http_connection *c)
{
    c->read_again = false;
    if (c->state == CONNECTION_HANDSHAKE) {
        connection_run(c);
        return;
    }
    size_t max = (size_t)min_u64(HTTP_RECEIVE_SIZE, input_room(c));
    if (max == 0) {
        connection_run(c);
        return;
    }
    int64_t n = connection_receive(c, c->hw->receive, max);
    if (n == -EAGAIN) {
        connection_run(c);
        return;
    }
    if (n <= 0) {
        connection_ended(c, n < 0);
        return;
    }
    c->read_again = c->ssl != NULL && SSL_pending(c->ssl) > 0;
    c->fresh = (struct span){c->hw->receive, (size_t)n};
    if (c->in.len > c->in_used) {
        input_keep(c);
    }
    connection_run(c);
}

static struct http_connection *as_connection(void *ptr)
{
    struct http_connection *c = ptr;
    check(c->magic == HTTP_CONNECTION_MAGIC);
    return c;
}

static void on_readable(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd;
    (void)what;
    connection_read(as_connection(ctx));
}

static void on_writable(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd;
    (void)what;
    connection_run(as_connection(ctx));
}

static void on_task(struct task *task)
{
    struct http_connection *c = container_of(task, struct http_connection, task);
    check(c->magic == HTTP_CONNECTION_MAGIC);
    if (c->read_again && wants_read(c)) {
        connection_read(c);
    } else {
        connection_run(c);
    }
}

static void head_timed_out(struct http_connection *c)
{
    bool idle = c->head_started_us == 0 && c->first_bytes_seen;
    stats_add(idle ? COUNTER_http_timeout_idle : COUNTER_http_timeout_header, 1);
    if (c->head_started_us == 0 || c->hw->draining) {
        http_connection_close(c, false);
        return;
    }
    http_exchange_refuse_head(c, ERR_REQUEST_TIMEOUT);
    connection_run(c);
}

static void on_deadline(struct timer *timer)
{
    struct http_connection *c = container_of(timer, struct http_connection, timer);
    check(c->magic == HTTP_CONNECTION_MAGIC);
    c->timer_due_us = 0;
    if (c->deadline_us == 0 || connection_now_us(c) < c->deadline_us) {
        set_deadline(c, c->deadline_us);
        return;
    }
    switch (c->state) {
    case CONNECTION_HEAD:
        head_timed_out(c);
        return;
    case CONNECTION_EXCHANGE:
        if (c->eof && connection_now_us(c) >= deadline_of_eof(c)) {
            stats_add(COUNTER_http_timeout_idle, 1);
            http_exchange_timed_out(c, HTTP_CLIENT_GONE);
        } else if (too_slow(c)) {
            stats_add(COUNTER_http_timeout_rate, 1);
            http_exchange_timed_out(c, HTTP_CLIENT_SLOW);
        } else {
            set_deadline(c, deadline_of_state(c, c->wait_since_us != 0));
            return;
        }
        connection_run(c);
        return;
    case CONNECTION_LINGER:
        http_connection_close(c, false);
        return;
    default: // HANDSHAKE, DRAIN
        stats_add(COUNTER_http_timeout_header, 1);
        http_connection_close(c, false);
        return;
    }
}

// --- Birth and end -------------------------------------------------------------------------------

void http_connection_start(struct http_worker *hw, int fd, SSL *ssl, const char *peer,
                           bool loopback, unsigned source)
{
    struct http_connection *c = calloc(1, sizeof(*c));
    check(c != NULL);
    c->magic = HTTP_CONNECTION_MAGIC;
    c->hw = hw;
    c->fd = fd;
    c->ssl = ssl;
    c->loopback = loopback;
    c->source = source;
    c->held_bytes = ssl != NULL ? HTTP_TLS_BUSY_BYTES : 0;
    snprintf(c->peer, sizeof(c->peer), "%s", peer);
    list_node_init(&c->node);
    list_push_back(&hw->connections, &c->node);
    buf_init(&c->in, HTTP_IN_MAX);
    request_head_init(&c->request_head);
    worker_task_init(&c->task, on_task);
    timer_init(hw->worker, &c->timer, on_deadline);
    struct event_base *base = worker_event_base(hw->worker);
    check(event_assign(&c->read_event, base, fd, EV_READ | EV_PERSIST, on_readable, c) == 0);
    check(event_assign(&c->write_event, base, fd, EV_WRITE | EV_PERSIST, on_writable, c) == 0);
    stats_add(COUNTER_http_connections_idle, 1);
    c->state = ssl != NULL ? CONNECTION_HANDSHAKE : CONNECTION_HEAD;
    c->since_us = connection_now_us(c);
    if (http_connection_leave(c)) { // where the server drains
        return;
    }
    if (hw->is_closed) {
        http_connection_close(c, false);
    } else {
        connection_read(c); // mostly the request is here already
    }
}

void http_connection_free_all(struct http_worker *hw)
{
    list_for_each(node, &hw->connections)
    {
        struct http_connection *c = container_of(node, struct http_connection, node);
        if (c->state == CONNECTION_EXCHANGE) {
            http_exchange_end(c, HTTP_CUT);
        }
        http_connection_close(c, false);
    }
    while (hw->spare_count > 0) {
        arena_free(hw->spares[--hw->spare_count]);
    }
}
