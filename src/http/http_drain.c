// SPDX-License-Identifier: Apache-2.0
// Connections at the end of a server's life: idle ones are closed, or go on in the process that follows.
//
// Between two requests a plain connection is a descriptor and nothing else, so it can be sent through a unix
// socket, one a message, and be accepted on the other side as if it were new: what its client has sent and nobody
// has read waits in the kernel. The messages, too, wait there until the process that follows serves. Its queue
// is bounded by the kernel; a connection that does not fit stays, and its next reply says close. So does one
// with TLS, whose keys are here. Workers send; worker 0 of the other process receives.
//
// No request gets lost on the way, however long a worker or the other process stands still: what a worker has begun to
// read it answers, and all else is passed on, at the latest when the server is closed. What a process was left by the
// one before and has not taken yet when it is to go itself goes on unopened.
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "http/http_private.h"
#include "stats/stats.h"

#define TAKEN_PER_EVENT 64

// --- leaving -------------------------------------------------------------------------------------

// Nothing of a request has been read.
static bool is_between_requests(const struct http_connection *c)
{
    return c->state == CONNECTION_HEAD && c->head_started_us == 0 &&
           http_connection_input(c).len == 0;
}

static bool has_unread(const struct http_connection *c)
{
    char byte;
    return (c->ssl != NULL && SSL_pending(c->ssl) > 0) ||
           recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

static bool pass_on(int to_fd, int fd)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    char word = 'c';
    struct iovec iov = {.iov_base = &word, .iov_len = 1};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(part), &fd, sizeof(fd));
    return sendmsg(to_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

bool http_connection_leave(struct http_connection *c)
{
    int passing_fd = c->hw->passing_fd;
    if (!c->hw->draining || !is_between_requests(c)) {
        return false;
    }
    bool is_followed = passing_fd >= 0;
    if (is_followed ? c->ssl != NULL || c->eof || !pass_on(passing_fd, c->fd) : has_unread(c)) {
        return false;
    }
    stats_add(COUNTER_http_passed_on, is_followed);
    http_connection_close(c, false);
    return true;
}

void http_connection_drain_all(struct http_worker *hw, int passing_fd)
{
    hw->draining = true;
    hw->passing_fd = passing_fd;
    list_for_each(node, &hw->connections)
    {
        (void)http_connection_leave(container_of(node, struct http_connection, node));
    }
}

void http_connection_end_waiting(struct http_worker *hw)
{
    list_for_each(node, &hw->connections)
    {
        struct http_connection *c = container_of(node, struct http_connection, node);
        if (!http_connection_leave(c) && c->state != CONNECTION_EXCHANGE && !has_unread(c)) {
            http_connection_close(c, false);
        }
    }
}

// --- taking over ---------------------------------------------------------------------------------

struct http_taking {
    struct message message;
    struct http_server *server;
    int fd; // -1: over
    struct event event;
};

static void taking_end(struct http_taking *t)
{
    check(event_del(&t->event) == 0);
    (void)close(t->fd); // what is still in it is closed with it
    t->fd = -1;
}

// The descriptor of the next message; -1: none came with it. False: there is no message, *ret_over: and never
// will be.
static bool take_one(int from_fd, int *ret_fd, bool *ret_over)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    char word;
    struct iovec iov = {.iov_base = &word, .iov_len = 1};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    ssize_t len = recvmsg(from_fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    *ret_over = len == 0 || (len < 0 && errno != EAGAIN && errno != EINTR);
    *ret_fd = -1;
    struct cmsghdr *part = len > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (part != NULL && part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS &&
        part->cmsg_len == CMSG_LEN(sizeof(int))) {
        memcpy(ret_fd, CMSG_DATA(part), sizeof(*ret_fd));
    }
    return len > 0;
}

// Up to `max` connections go to `passing_fd`, or where that is -1 or takes no more, are accepted.
static void take(struct http_taking *t, unsigned max, int passing_fd, bool *ret_over)
{
    int fd;
    for (unsigned i = 0; i < max && take_one(t->fd, &fd, ret_over); i++) {
        if (fd < 0) {
            log_warn_condition("connection_not_taken", "why=\"out of file descriptors\"");
        } else if (passing_fd >= 0 && pass_on(passing_fd, fd)) {
            stats_add(COUNTER_http_passed_on, 1);
            (void)close(fd); // the process that follows has its own
        } else {
            http_server_adopt(t->server, fd);
        }
    }
}

static void on_passed(evutil_socket_t from_fd, short what, void *ctx)
{
    struct http_taking *t = ctx;
    bool over = false;
    (void)from_fd;
    (void)what;
    take(t, TAKEN_PER_EVENT, -1, &over);
    if (over) {
        taking_end(t);
    }
}

void http_taking_drain(struct http_taking *t, int passing_fd)
{
    bool over;
    if (t != NULL && t->fd >= 0) {
        take(t, UINT_MAX, passing_fd, &over); // as many as the kernel's queue has
        taking_end(t);
    }
}

static void on_taking(struct worker *to, struct message *message)
{
    struct http_taking *t = container_of(message, struct http_taking, message);
    check(event_assign(&t->event, worker_event_base(to), t->fd, EV_READ | EV_PERSIST, on_passed,
                       t) == 0);
    check(event_add(&t->event, NULL) == 0);
}

struct http_taking *http_taking_start(struct http_server *server, struct worker *w, int fd)
{
    struct http_taking *t = calloc(1, sizeof(*t));
    check(t != NULL);
    t->message.deliver = on_taking;
    t->server = server;
    t->fd = fd;
    mailbox_send_from_any_thread(w, &t->message);
    return t;
}

void http_taking_free(struct http_taking *t)
{
    if (t != NULL && t->fd >= 0) {
        (void)close(t->fd); // what is still in it is closed with it
    }
    free(t);
}
