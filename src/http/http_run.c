// SPDX-License-Identifier: Apache-2.0
// Runs a connection: reads heads, moves from one exchange to the next, enforces the time limits. A
// connection stays on one worker for life. phases.def has its phases.
//
// Only connection_run() makes a connection progress, and it is never nested. Calls from handlers,
// sinks and sources only set a mark and request a run (http_connection_wake). So the handler never
// runs inside one of its own calls, and on_done never inside http_reply_start(). Pipelined bytes
// are kept until one more head is whole, then reading stops. The read event stays registered; the
// write event exists only while the socket is full.
//
// A client that shuts its sending side still gets complete replies. Everything that has arrived is
// processed, pipelined requests included. The connection ends when a phase needs more bytes. The
// socket looks the same if the client has closed it completely. Only sending bytes shows the
// difference. So an exchange that makes no progress for the idle timeout ends, too.
//
// Time limits are lazy. The timer is only ever moved to an earlier time. When it fires, the time is
// compared with deadline_us. So a request on a live connection touches no timer. The minimum rate
// counts only time spent waiting for the client: too_slow().
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "http/http_private.h"

#define LINGER_BYTES_MAX 1048576u
#define STEPS_PER_PASS 64 // steps of one connection before other connections run
#define TLS_HELLO 0x16

// --- Input ---------------------------------------------------------------------------------------

static bool body_passes_through(const struct http_exchange *x)
{
    return x->body == BODY_FLOWING || x->body == BODY_PAUSED || x->body == BODY_DROPPED;
}

// Returns how many bytes may be received now. While memory is full, that is only a few, because
// received bytes such as pipelined requests stay in memory. Bytes of a body that passes through do
// not stay, so they are received as usual.
static size_t input_room(const struct http_connection *c)
{
    size_t room = HTTP_IN_MAX - (c->in.len - c->in_used);
    bool is_kept = c->phase != CONNECTION_EXCHANGE || !body_passes_through(&c->x);
    return is_kept && http_quota_memory_is_full(c->hw->quota) ? min_u64(room, HTTP_HELD_FREE)
                                                              : room;
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

// Returns true if a client that is too slow may stay for now. A paused reader holds a connection, a
// request, and a pinned segment or some memory. It may stay while none of these is short. A paused
// upload may not, because it also holds a connection to the origin.
static bool may_pause(const struct http_connection *c)
{
    bool memory = http_reply_holds_memory(&c->x) && chunk_budget_is_short();
    const struct http_handler *handler = &connection_options(c)->handler;
    return c->blocked && c->x.body != BODY_FLOWING && c->x.body != BODY_PAUSED && !memory &&
           !(handler->files_are_short != NULL && handler->files_are_short(handler->ctx)) &&
           !http_quota_is_scarce(c->hw->quota);
}

// Returns the bytes per second that a client must send or read.
static uint64_t least_rate(const struct http_connection *c)
{
    const struct http_sink *sink = c->x.sink;
    bool holds_up = sink != NULL && sink->is_collected && chunk_budget_kind_is_short(BUDGET_BODIES);
    return c->hw->quota->min_rate_bytes * (holds_up ? HTTP_COLLECTED_RATE : 1);
}

// Returns true if the client is to be disconnected, because it is too slow. Judges each window of
// min_rate_grace_ms that was spent waiting for the client.
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

// Returns the deadline of a client that shut its sending side and may have left unnoticed; 0: none.
static uint64_t deadline_of_eof(const struct http_connection *c)
{
    return c->eof ? c->since_us + c->hw->quota->idle_timeout_ms * 1000 : 0;
}

static uint64_t deadline_of_rate(const struct http_connection *c, bool waits)
{
    uint64_t grace_us = connection_options(c)->min_rate_grace_ms * 1000;
    if (!waits || c->hw->quota->min_rate_bytes == 0) {
        return 0;
    }
    return connection_now_us(c) + grace_us - min_u64(c->waited_us, grace_us);
}

static uint64_t deadline_of_state(struct http_connection *c, bool waits)
{
    uint64_t eof_us, rate_us;
    switch (c->phase) {
    case CONNECTION_HANDSHAKE:
    case CONNECTION_OPEN:
    case CONNECTION_HEAD:
    case CONNECTION_DRAIN:
        return c->since_us + c->hw->quota->header_timeout_ms * 1000;
    case CONNECTION_IDLE:
        return c->since_us + c->hw->quota->idle_timeout_ms * 1000;
    case CONNECTION_EXCHANGE:
        eof_us = deadline_of_eof(c);
        rate_us = deadline_of_rate(c, waits);
        return eof_us == 0 || rate_us == 0 ? eof_us + rate_us : min_u64(eof_us, rate_us);
    default:
        return c->deadline_us;
    }
}

// --- Moving on -----------------------------------------------------------------------------------

// Refuses a client that speaks TLS on a port without TLS. Such a client sees only a reset, so
// the log states the reason.
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

// Keeps a received part of a head, or of a TLS record before a head. If memory is short, refuses
// the head with an error reply and returns true. If no head has begun, closes the connection
// instead. Returns false in all other cases.
static bool head_waits(struct http_connection *c)
{
    http_connection_keep_input(c);
    if (http_connection_hold(c, false)) {
        return false;
    }
    if (c->phase != CONNECTION_HEAD) {
        http_exchange_refuse_silently(c, ERR_OVERLOAD, COUNTER_http_shed_memory);
        http_connection_close(c, false);
        return false;
    }
    http_exchange_refuse_head(c, ERR_OVERLOAD, COUNTER_http_shed_memory);
    return true;
}

static bool head_step(struct http_connection *c)
{
    check(c->x.arena == NULL);
    struct span bytes = http_connection_input(c);
    if (bytes.len == 0) {
        return head_waits(c);
    }
    if (c->phase == CONNECTION_OPEN && c->ssl == NULL && bytes.ptr[0] == TLS_HELLO) {
        refuse_tls_hello(c);
        return false;
    }
    if (c->phase != CONNECTION_HEAD) {
        http_connection_enter(c, CONNECTION_HEAD);
    }
    switch (request_head_scan(&c->request_head, bytes)) {
    case REQUEST_HEAD_MORE:
        return head_waits(c);
    case REQUEST_HEAD_REFUSED:
        http_exchange_refuse_head(c, c->request_head.err, COUNTER_http_refused);
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
    check(x->arena != NULL);
    if (x->body == BODY_FLOWING || x->body == BODY_DROPPED) {
        moved = http_body_step(c);
    } else if (x->body == BODY_NONE && x->sink != NULL) {
        http_body_end(x, ERR_OK); // an empty body ends at once
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
    check(x->arena == NULL && x->sink == NULL);
    bool moved = http_body_step(c);
    if (x->body == BODY_BROKEN || c->drained_bytes > HTTP_DRAIN_MAX + HTTP_RECEIVE_SIZE) {
        http_connection_linger(c);
        return false;
    }
    if (x->body == BODY_NONE) {
        http_connection_enter(c, CONNECTION_IDLE);
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
    (void)!send(c->fd, reply, sizeof(reply) - 1, MSG_NOSIGNAL); // the client may have left
}

static void handshake_step(struct http_connection *c)
{
    check(c->ssl != NULL);
    int rc = http_tls_handshake(c->ssl);
    if (rc == 1) {
        http_connection_enter(c, CONNECTION_OPEN);
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
    switch (c->phase) {
    case CONNECTION_HANDSHAKE:
        handshake_step(c);
        return c->phase == CONNECTION_OPEN;
    case CONNECTION_OPEN:
    case CONNECTION_IDLE:
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

// Returns true if there is a reason to read more bytes from the socket.
static bool wants_read(struct http_connection *c)
{
    if (c->eof) {
        return false;
    }
    struct http_exchange *x = &c->x;
    if (c->phase != CONNECTION_EXCHANGE || x->body == BODY_FLOWING || x->body == BODY_DROPPED) {
        return true;
    }
    if (x->body == BODY_PAUSED) {
        return false;
    }
    size_t kept_max = http_quota_memory_is_full(c->hw->quota) ? HTTP_HELD_FREE
                                                              : HTTP_IN_MAX - HTTP_RECEIVE_SIZE / 2;
    if (c->in.len - c->in_used > kept_max) {
        return false;
    }
    // Read a held body or the next request only up to about the length of one head, which bounds
    // its memory. Reading that much detects a client that leaves.
    return x->body == BODY_HELD ||
           request_head_scan(&c->request_head, http_connection_input(c)) == REQUEST_HEAD_MORE;
}

static void set_event(struct event *event, bool is_wanted)
{
    if (is_wanted != (event_pending(event, EV_READ | EV_WRITE, NULL) != 0)) {
        check((is_wanted ? event_add(event, NULL) : event_del(event)) == 0);
    }
}

// Returns true if OpenSSL holds decrypted bytes, which no event of the socket announces.
static bool has_decrypted(const struct http_connection *c)
{
    return c->ssl != NULL && SSL_pending(c->ssl) > 0;
}

// Sets events, deadline and left-over bytes as the current phase needs them.
static void connection_settle(struct http_connection *c)
{
    check(c->run == RUN_RESTS);
    check((c->phase == CONNECTION_EXCHANGE) == (c->x.arena != NULL));
    http_connection_keep_input(c);
    (void)http_connection_hold(c, true);
    if (c->phase == CONNECTION_EXCHANGE) {
        http_exchange_charge(&c->x);
    }
    bool want_read = wants_read(c);
    bool want_write = false;
    bool waits = false;
    if (c->phase == CONNECTION_EXCHANGE) {
        want_write = c->blocked;
        waits = c->blocked || c->x.body == BODY_FLOWING;
    } else if (c->phase == CONNECTION_HANDSHAKE) {
        want_write = SSL_want_write(c->ssl);
    }
    set_event(&c->read_event, want_read);
    set_event(&c->write_event, want_write);
    if (want_read && has_decrypted(c)) {
        worker_defer(c->hw->worker, &c->task);
    }
    note_waiting(c, waits);
    set_deadline(c, deadline_of_state(c, waits));
}

// Called when the client has shut its sending side and no further step is possible. Closes the
// connection unless an exchange is open. Ends an exchange whose request body is cut, unless the
// reply has begun.
static void connection_at_eof(struct http_connection *c)
{
    const struct http_exchange *x = &c->x;
    if (c->phase != CONNECTION_EXCHANGE) {
        http_connection_close(c, false);
        return;
    }
    // Unread input means that the sink has paused, not that the body is cut.
    bool body_is_cut = body_passes_through(x) && http_connection_input(c).len == 0;
    if (body_is_cut && x->reply.phase == REPLY_NONE) {
        http_exchange_gone(c, false);
    }
}

static void connection_run(struct http_connection *c)
{
    http_run_enter(c, RUN_RUNS);
    for (unsigned steps = 0; c->phase != CONNECTION_DEAD; steps++) {
        if (steps == STEPS_PER_PASS) {
            worker_defer(c->hw->worker, &c->task);
            break;
        }
        if (c->run == RUN_WOKEN) {
            http_run_enter(c, RUN_RUNS);
        }
        if (!connection_step(c) && c->run != RUN_WOKEN) {
            if (c->eof && c->phase != CONNECTION_DEAD) {
                connection_at_eof(c);
            }
            break;
        }
    }
    http_run_enter(c, RUN_RESTS);
    if (c->phase != CONNECTION_DEAD) {
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
    } else if (c->phase == CONNECTION_EXCHANGE) {
        http_exchange_gone(c, error);
    } else {
        http_connection_close(c, false);
    }
}

static void connection_read(struct http_connection *c)
{
    check(c->fresh.len == 0); // the last event's bytes were consumed or copied
    if (c->phase == CONNECTION_HANDSHAKE) {
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
    c->fresh = (struct span){c->hw->receive, (size_t)n};
    if (c->in.len > c->in_used) {
        http_connection_keep_input(c);
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
    struct worker *w = as_connection(ctx)->hw->worker;
    connection_read(as_connection(ctx));
    worker_event_ran(w);
}

static void on_writable(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd;
    (void)what;
    struct worker *w = as_connection(ctx)->hw->worker;
    connection_run(as_connection(ctx));
    worker_event_ran(w);
}

static void on_task(struct task *task)
{
    struct http_connection *c = container_of(task, struct http_connection, task);
    check(c->magic == HTTP_CONNECTION_MAGIC);
    if (has_decrypted(c) && wants_read(c)) {
        connection_read(c);
    } else {
        connection_run(c);
    }
}

static void head_timed_out(struct http_connection *c)
{
    if (c->phase == CONNECTION_HEAD && !c->hw->draining) {
        http_exchange_refuse_head(c, ERR_REQUEST_TIMEOUT, COUNTER_http_timeout_header);
        connection_run(c);
        return;
    }
    stats_add(c->phase == CONNECTION_IDLE ? COUNTER_http_timeout_idle : COUNTER_http_timeout_header,
              1);
    http_connection_close(c, false);
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
    switch (c->phase) {
    case CONNECTION_OPEN:
    case CONNECTION_IDLE:
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

// --- Start and end -------------------------------------------------------------------------------

void http_run_start(struct http_worker *hw, int fd, SSL *ssl, const char *peer, bool loopback,
                    const struct http_admission *admission)
{
    check(worker_is_mine(hw->worker));
    check(fd >= 0);
    struct http_connection *c = calloc(1, sizeof(*c));
    check(c != NULL);
    c->magic = HTTP_CONNECTION_MAGIC;
    c->hw = hw;
    c->fd = fd;
    c->ssl = ssl;
    c->loopback = loopback;
    c->admission = *admission;
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
    c->phase = ssl != NULL ? CONNECTION_HANDSHAKE : CONNECTION_OPEN;
    c->since_us = connection_now_us(c);
    if (http_connection_leave(c)) { // it was ended, because the server drains
        return;
    }
    if (hw->is_closed) {
        http_connection_close(c, false);
    } else {
        connection_read(c); // the request has usually arrived by now
    }
}

void http_run_end_all(struct http_worker *hw)
{
    list_for_each(node, &hw->connections)
    {
        struct http_connection *c = container_of(node, struct http_connection, node);
        if (c->phase == CONNECTION_EXCHANGE) {
            http_exchange_end(c, HTTP_CUT);
        }
        http_connection_close(c, false);
    }
    while (hw->spare_count > 0) {
        arena_free(hw->spares[--hw->spare_count]);
    }
}
