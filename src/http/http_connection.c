// SPDX-License-Identifier: Apache-2.0
// A connection's input, its socket, its counted memory and its end; http_run.c drives the
// connection through its phases. Runs on the connection's worker.
//
// Bytes are received into a buffer of the worker that is valid for one event. Bytes that are not
// consumed by then are copied to `in`. So an idle connection holds no buffer, and a request that
// arrives whole costs one copy, that of the head into its arena.
//
// Memory that clients make us hold is counted (http_connection_hold): long heads, OpenSSL's
// buffers. Above the limit a long head is refused and no handshake begins. That bounds the cost of
// clients that begin and do not finish. Short heads are always accepted.
#include <errno.h>
#include <openssl/err.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/date.h"
#include "http/http_private.h"

#define LINGER_MS 2000

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
    if (c->phase == CONNECTION_DEAD) {
        return;
    }
    if (c->run == RUN_RESTS) {
        worker_defer(c->hw->worker, &c->task);
    } else if (c->run == RUN_RUNS) {
        http_run_enter(c, RUN_WOKEN);
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
        check(c->fresh.len == 0);
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

void http_connection_keep_input(struct http_connection *c)
{
    if (c->in_used > 0) {
        memmove(c->in.ptr, c->in.ptr + c->in_used, c->in.len - c->in_used);
        c->in.len -= c->in_used;
        c->in_used = 0;
    }
    if (c->fresh.len > 0) {
        buf_append_span(&c->in, c->fresh);
        check(buf_ok(&c->in)); // input_room() limits what is received
    }
    c->fresh = (struct span){NULL, 0};
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

static void connection_free(void *ptr)
{
    struct http_connection *c = ptr;
    c->magic = 0;
    free(c);
}

// Closes the socket at once; the memory is freed at the end of the turn.
void http_connection_close(struct http_connection *c, bool reset)
{
    check(c->x.arena == NULL);
    check(c->fd >= 0);
    http_connection_enter(c, CONNECTION_DEAD);
    stats_sub(COUNTER_http_connections_idle, 1);
    check(event_del(&c->read_event) == 0);
    check(event_del(&c->write_event) == 0);
    timer_done(&c->timer);
    worker_task_cancel(&c->task);
    if (c->ssl != NULL) {
        SSL_free(c->ssl);
        c->ssl = NULL;
    }
    if (reset) {
        struct linger linger = {.l_onoff = 1, .l_linger = 0};
        // Best effort, because a plain close shows a truncated reply too, wherever the length was
        // announced.
        (void)setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
    }
    close(c->fd);
    c->fd = -1;
    c->fresh = (struct span){NULL, 0};
    buf_done(&c->in);
    list_remove(&c->node);
    unsigned before = atomic_fetch_sub_explicit(&c->hw->connection_count, 1, memory_order_relaxed);
    check(before > 0);
    http_quota_connection_leave(c->hw->quota, &c->admission, c->held_bytes);
    worker_free_later(c->hw->worker, connection_free, c);
}

void http_connection_linger(struct http_connection *c)
{
    check(c->x.arena == NULL);
    if (c->ssl != NULL) {
        ERR_clear_error();
        (void)SSL_shutdown(c->ssl); // the peer may be gone already
    }
    if (c->eof || shutdown(c->fd, SHUT_WR) != 0) {
        http_connection_close(c, false);
        return;
    }
    http_connection_enter(c, CONNECTION_LINGER);
    c->deadline_us = c->since_us + LINGER_MS * 1000;
}

void http_connection_reset_rate(struct http_connection *c)
{
    c->wait_since_us = 0;
    c->waited_us = 0;
    c->moved_bytes = 0;
    c->slow_us = 0;
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
        bool idle = (c->phase == CONNECTION_OPEN || c->phase == CONNECTION_IDLE ||
                     c->phase == CONNECTION_HEAD) &&
                    !SSL_has_pending(c->ssl);
        bytes += idle ? HTTP_TLS_IDLE_BYTES : HTTP_TLS_BUSY_BYTES;
    }
    if (bytes != c->held_bytes && !http_quota_hold(c->hw->quota, c->held_bytes, bytes, force)) {
        return false;
    }
    c->held_bytes = bytes;
    return true;
}
