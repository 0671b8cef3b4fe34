// SPDX-License-Identifier: Apache-2.0
// Closes the idle connections of a server that drains, or passes them on to the process that
// replaces this one.
//
// Between two requests a plain connection is only a descriptor. So it can be sent in a message of a
// unix socket, and the other process serves it as if it were new. Bytes that its client has sent
// and nobody has read wait in the kernel. The messages wait there too, until the other process
// reads them (http_taking.c). The kernel limits this queue, to 555 messages unless
// net.core.wmem_max was raised. One message holds several idle connections, at most as many as the
// other process has said that it takes (`at_once`). If the queue is full, a connection stays here,
// and its next reply says close. So does one with TLS, because its keys are in this process.
//
// No request on a connection that is passed on gets lost, even if a worker or the other process
// stalls. If nobody has begun to read a connection's next request, the connection is passed on, at
// the latest when the server is closed. A request head that has begun to arrive has a second to be
// complete.
#include <string.h>
#include <sys/socket.h>

#include "http/http_private.h"

#define LAST_REQUEST_US 1000000u // time for a request on a connection that cannot be passed on
#define LINGER_SILENT_US 200000u // time for its client to read the last reply

const struct http_passing http_passing_none = {.fd = -1, .at_once = 1};

// Returns true if no byte of the next request, or of the TLS handshake, was read.
static bool is_between_requests(const struct http_connection *c)
{
    bool has_begun = c->phase == CONNECTION_HANDSHAKE
                         ? SSL_get_state(c->ssl) != TLS_ST_BEFORE
                         : (c->phase != CONNECTION_OPEN && c->phase != CONNECTION_IDLE) ||
                               http_connection_input(c).len > 0;
    return !has_begun && (c->ssl == NULL || !SSL_has_pending(c->ssl));
}

static bool has_unread(const struct http_connection *c)
{
    char byte;
    return (c->ssl != NULL && SSL_pending(c->ssl) > 0) ||
           recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

static bool pass_message(int to_fd, const int *fds, unsigned count)
{
    check(count > 0 && count <= HTTP_PASSED_AT_ONCE);
    union http_passed_control control = {0};
    size_t bytes = count * sizeof(*fds);
    char word = 'c';
    struct iovec iov = {.iov_base = &word, .iov_len = 1};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_SPACE(bytes)};
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(part), fds, bytes);
    return sendmsg(to_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

unsigned http_passing_send(const struct http_passing *to, const int *fds, unsigned count)
{
    unsigned done = 0;
    while (to->fd >= 0 && done < count) {
        unsigned some = (unsigned)min_u64(to->at_once, count - done);
        if (!pass_message(to->fd, fds + done, some)) {
            break;
        }
        done += some;
    }
    stats_add(COUNTER_http_passed_on, done);
    return done;
}

static bool can_be_passed_on(const struct http_connection *c)
{
    return c->hw->passing.fd >= 0 && is_between_requests(c) && c->ssl == NULL && !c->eof;
}

// Sends the connections to the process that follows, and closes those that were sent. Returns true
// if all of them were sent.
static bool connections_pass_on(const struct http_passing *to, struct http_connection *const *all,
                                unsigned count)
{
    int fds[HTTP_PASSED_AT_ONCE];
    check(count <= HTTP_PASSED_AT_ONCE);
    for (unsigned i = 0; i < count; i++) {
        fds[i] = all[i]->fd;
    }
    unsigned done = http_passing_send(to, fds, count);
    for (unsigned i = 0; i < done; i++) {
        http_connection_close(all[i], false);
    }
    return done == count;
}

bool http_connection_leave(struct http_connection *c)
{
    if (!c->hw->draining || !is_between_requests(c)) {
        return false;
    }
    if (c->hw->passing.fd >= 0) {
        return can_be_passed_on(c) && connections_pass_on(&c->hw->passing, &c, 1);
    }
    if (has_unread(c)) {
        return false;
    }
    http_connection_close(c, false);
    return true;
}

void http_connection_drain_all(struct http_worker *hw, const struct http_passing *passing)
{
    struct http_connection *going[HTTP_PASSED_AT_ONCE];
    unsigned count = 0;
    check(passing->fd < 0 || passing->at_once > 0);
    hw->drain_since_us = hw->draining ? hw->drain_since_us : worker_now_us(hw->worker);
    hw->draining = true;
    hw->passing = *passing;
    list_for_each(node, &hw->connections)
    {
        struct http_connection *c = container_of(node, struct http_connection, node);
        if (!can_be_passed_on(c)) {
            (void)http_connection_leave(c);
            continue;
        }
        going[count++] = c;
        if (count == HTTP_PASSED_AT_ONCE) {
            (void)connections_pass_on(passing, going, count);
            count = 0;
        }
    }
    (void)connections_pass_on(passing, going, count);
}

// Returns true if the connection has waited for its client's bytes in one phase for the longest
// time allowed.
static bool has_waited(const struct http_connection *c)
{
    uint64_t since_us = max_u64(c->since_us, c->hw->drain_since_us);
    uint64_t most_us = c->phase == CONNECTION_LINGER ? LINGER_SILENT_US : LAST_REQUEST_US;
    return c->phase != CONNECTION_EXCHANGE && worker_now_us(c->hw->worker) >= since_us + most_us &&
           !has_unread(c);
}

void http_connection_end_waiting(struct http_worker *hw)
{
    list_for_each(node, &hw->connections)
    {
        struct http_connection *c = container_of(node, struct http_connection, node);
        if (!http_connection_leave(c) && has_waited(c)) {
            http_connection_close(c, false);
        }
    }
}
