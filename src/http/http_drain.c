// SPDX-License-Identifier: Apache-2.0
// Connections at the end of a server's life: idle ones are closed, or go on in the process that follows.
//
// Between two requests a plain connection is a descriptor and nothing else, so it can be sent through a unix
// socket, one a message, and be accepted on the other side as if it were new: what its client sends
// meanwhile waits in the kernel. The messages, too, wait there until the process that follows serves. Its queue
// is bounded by the kernel; a connection that does not fit stays, and its next reply says close. So does one
// with TLS, whose keys are here. Workers send; worker 0 of the other process receives.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "http/http_private.h"
#include "stats/stats.h"

#define TAKEN_PER_EVENT 64

// --- leaving -------------------------------------------------------------------------------------

// Nothing of a request has arrived, not even in the socket.
static bool is_idle(const struct http_connection *c)
{
    char byte;
    return c->state == CONNECTION_HEAD && c->head_started_us == 0 &&
           http_connection_input(c).len == 0 &&
           (c->ssl != NULL || recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0);
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
    if (!c->hw->draining || !is_idle(c)) {
        return false;
    }
    if (passing_fd >= 0 && (c->ssl != NULL || c->eof || !pass_on(passing_fd, c->fd))) {
        return false;
    }
    stats_add(COUNTER_http_passed_on, passing_fd >= 0);
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

static void on_passed(evutil_socket_t from_fd, short what, void *ctx)
{
    struct http_taking *t = ctx;
    bool over = http_server_is_draining(t->server);
    (void)what;
    for (unsigned i = 0; i < TAKEN_PER_EVENT && !over; i++) {
        int fd;
        if (!take_one(from_fd, &fd, &over)) {
            break;
        }
        if (fd >= 0) {
            http_server_adopt(t->server, fd);
        } else {
            log_warn_condition("connection_not_taken", "why=\"out of file descriptors\"");
        }
    }
    if (over) {
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
