// SPDX-License-Identifier: Apache-2.0
// Takes over connections that another process sends, as http_drain.c describes. Runs on worker 0.
//
// If this process must end before it has accepted all connections from its predecessor, it forwards
// the rest to its own successor without accepting them. If the successor fails to start, this
// process takes back the connections that it has sent. To read a message, a process needs as many
// free descriptors as the message carries. It waits for them, except in its last read.
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "http/http_private.h"

#define TAKEN_PER_EVENT 2u // maximum messages that one event reads
#define TAKE_PAUSE_MS 100u // time until the next try while descriptors are short

// The connections of one message.
struct passed {
    int fds[HTTP_PASSED_AT_ONCE];
    unsigned count;
};

struct http_taking {
    struct message message;
    void (*adopt)(void *ctx, int fd);
    void *ctx;
    int fd; // socket on which connections arrive; -1: it was closed
    struct event event;
    struct timer pause;
};

static void taking_end(struct http_taking *t)
{
    check(event_del(&t->event) == 0);
    timer_stop(&t->pause);
    (void)close(t->fd); // this also closes the connections that are still in it
    t->fd = -1;
}

// Peeks at the next message. *ret_passed gets copies of its descriptors. *ret_all is true if all of
// them could be copied. Returns false if there is no message; *ret_over is true if there will be no
// more.
static bool take_look(int from_fd, struct passed *ret_passed, bool *ret_all, bool *ret_over)
{
    union http_passed_control control;
    char word;
    struct iovec iov = {.iov_base = &word, .iov_len = 1};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    ssize_t len;
    do {
        len = recvmsg(from_fd, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (len < 0 && errno == EINTR);
    *ret_over = len == 0 || (len < 0 && errno != EAGAIN);
    ret_passed->count = 0;
    struct cmsghdr *part = len > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (part != NULL && part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS) {
        size_t bytes = part->cmsg_len - CMSG_LEN(0);
        ret_passed->count = (unsigned)(bytes / sizeof(ret_passed->fds[0]));
        check(bytes <= sizeof(ret_passed->fds)); // the kernel cuts to the buffer
        memcpy(ret_passed->fds, CMSG_DATA(part), bytes);
    }
    *ret_all = ret_passed->count > 0 && (message.msg_flags & MSG_CTRUNC) == 0;
    return len > 0;
}

static void take_drop(int from_fd)
{
    char word;
    check(recv(from_fd, &word, 1, MSG_DONTWAIT) == 1); // nobody else reads this socket
}

static void passed_close(const struct passed *passed, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        (void)close(passed->fds[i]); // the message or its receiver has its own descriptor
    }
}

// Takes up to `max` messages. Sends their connections to `passing`, and accepts those that could
// not be sent. Returns false if there are not enough descriptors for the next message.
static bool take(const struct http_taking *t, unsigned max, const struct http_passing *passing,
                 bool *ret_over)
{
    struct passed passed;
    bool has_all;
    for (unsigned i = 0; i < max && take_look(t->fd, &passed, &has_all, ret_over); i++) {
        if (!has_all) {
            passed_close(&passed, passed.count);
            log_warn_condition("connection_not_taken", "why=\"out of file descriptors\"");
            return false;
        }
        take_drop(t->fd);
        unsigned done = http_passing_send(passing, passed.fds, passed.count);
        passed_close(&passed, done);
        for (; done < passed.count; done++) {
            t->adopt(t->ctx, passed.fds[done]);
        }
    }
    return true;
}

static void on_passed(evutil_socket_t fd, short what, void *ctx)
{
    struct http_taking *t = ctx;
    bool over = false;
    (void)fd;
    (void)what;
    if (!take(t, TAKEN_PER_EVENT, &http_passing_none, &over)) {
        stats_add(COUNTER_http_accept_paused, 1);
        check(event_del(&t->event) == 0);
        timer_start(&t->pause, TAKE_PAUSE_MS);
    } else if (over) {
        taking_end(t);
    }
}

static void on_taking_pause_over(struct timer *timer)
{
    struct http_taking *t = container_of(timer, struct http_taking, pause);
    check(event_add(&t->event, NULL) == 0);
}

void http_taking_drain(struct http_taking *t, const struct http_passing *passing)
{
    bool over;
    if (t != NULL && t->fd >= 0) {
        // This ends, because the kernel's queue is bounded. Connections for which no descriptor is
        // free are closed with the socket.
        (void)take(t, UINT_MAX, passing, &over);
        taking_end(t);
    }
}

void http_taking_recall(int fd, void (*adopt)(void *ctx, int fd), void *ctx)
{
    bool over;
    const struct http_taking recall = {.adopt = adopt, .ctx = ctx, .fd = fd};
    // Ends, because the kernel's queue is bounded.
    (void)take(&recall, UINT_MAX, &http_passing_none, &over);
}

static void on_taking(struct worker *to, struct message *message)
{
    struct http_taking *t = container_of(message, struct http_taking, message);
    check(event_assign(&t->event, worker_event_base(to), t->fd, EV_READ | EV_PERSIST, on_passed,
                       t) == 0);
    check(event_add(&t->event, NULL) == 0);
}

struct http_taking *http_taking_start(struct worker *w, int fd, void (*adopt)(void *ctx, int fd),
                                      void *ctx)
{
    struct http_taking *t = calloc(1, sizeof(*t));
    check(t != NULL);
    t->message.deliver = on_taking;
    timer_init(w, &t->pause, on_taking_pause_over);
    t->adopt = adopt;
    t->ctx = ctx;
    t->fd = fd;
    mailbox_send_from_any_thread(w, &t->message);
    return t;
}

void http_taking_free(struct http_taking *t)
{
    if (t != NULL && t->fd >= 0) {
        taking_end(t);
    }
    free(t);
}
