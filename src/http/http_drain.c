// SPDX-License-Identifier: Apache-2.0
// Connections at the end of a server's life: idle ones are closed, or continue in the process that
// follows.
//
// Between two requests a plain connection is only a descriptor. So it can be sent through a unix
// socket and accepted on the other side as if it were new: bytes that its client has sent and
// nobody has read wait in the kernel. The messages also wait there until the process that follows
// serves. The kernel bounds that queue, to 555 messages unless net.core.wmem_max was raised. A
// message holds the connections that are idle at that time, as many as the other side accepts. A
// connection that does not fit stays, and its next reply says close. So does one with TLS, because
// its keys are in this process. Workers send; worker 0 of the other process receives.
//
// No request that is passed on gets lost, however long a worker or the other process is stalled. A
// request that nobody has begun to read is passed on when the server is closed at the latest. A
// head that has begun has a second to be complete. If a process has to end itself before it
// accepted everything from its predecessor, it forwards those connections unopened. If the other
// process does not follow after all, its queue is read here. The reader needs as many free
// descriptors as a message has. It waits for them, except for the last time.
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "http/http_private.h"
#include "stats/stats.h"

#define TAKEN_PER_EVENT 2u       // messages
#define TAKE_PAUSE_MS 100u       // while descriptors are short
#define LAST_REQUEST_US 1000000u // time for a request on a connection that cannot be passed on
#define LINGER_SILENT_US 200000u // and time to read the answer

const struct http_passing http_passing_none = {.fd = -1, .at_once = 1};

// --- leaving -------------------------------------------------------------------------------------

// Was nothing of a request consumed, nor of the bytes before the first one?
static bool is_between_requests(const struct http_connection *c)
{
    bool has_begun = c->state == CONNECTION_HANDSHAKE
                         ? SSL_get_state(c->ssl) != TLS_ST_BEFORE
                         : c->state != CONNECTION_HEAD || c->head_started_us != 0 ||
                               http_connection_input(c).len > 0;
    return !has_begun && (c->ssl == NULL || !SSL_has_pending(c->ssl));
}

static bool has_unread(const struct http_connection *c)
{
    char byte;
    return (c->ssl != NULL && SSL_pending(c->ssl) > 0) ||
           recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

// The connections of one message.
struct passed {
    int fds[HTTP_PASSED_AT_ONCE];
    unsigned count;
};

union passed_control {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(sizeof(((struct passed *)0)->fds))];
};

static bool pass_message(int to_fd, const int *fds, unsigned count)
{
    union passed_control control = {0};
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

// Returns how many of them, from the first on, were sent.
static unsigned pass_on(const struct http_passing *to, const struct passed *passed)
{
    unsigned done = 0;
    while (to->fd >= 0 && done < passed->count) {
        unsigned count = (unsigned)min_u64(to->at_once, passed->count - done);
        if (!pass_message(to->fd, passed->fds + done, count)) {
            break;
        }
        done += count;
    }
    stats_add(COUNTER_http_passed_on, done);
    return done;
}

static bool can_be_passed_on(const struct http_connection *c)
{
    return c->hw->passing.fd >= 0 && is_between_requests(c) && c->ssl == NULL && !c->eof;
}

// Returns true if all of them were sent.
static bool connections_pass_on(const struct http_passing *to, struct http_connection *const *all,
                                unsigned count)
{
    struct passed passed = {.count = count};
    for (unsigned i = 0; i < count; i++) {
        passed.fds[i] = all[i]->fd;
    }
    unsigned done = pass_on(to, &passed);
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

// Has it waited for its client's bytes in one state for as long as it may?
static bool has_waited(const struct http_connection *c)
{
    uint64_t since_us = max_u64(max_u64(c->since_us, c->head_started_us), c->hw->drain_since_us);
    uint64_t most_us = c->state == CONNECTION_LINGER ? LINGER_SILENT_US : LAST_REQUEST_US;
    return c->state != CONNECTION_EXCHANGE && worker_now_us(c->hw->worker) >= since_us + most_us &&
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

// --- taking over ---------------------------------------------------------------------------------

struct http_taking {
    struct message message;
    struct http_server *server;
    int fd; // -1: ended
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

// Peeks at the next message. *ret_passed gets copies of its descriptors; *ret_all says whether all
// of them could be copied. Returns false without a message; *ret_over: and there will be none.
static bool take_look(int from_fd, struct passed *ret_passed, bool *ret_all, bool *ret_over)
{
    union passed_control control;
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
        memcpy(ret_passed->fds, CMSG_DATA(part), bytes);
    }
    *ret_all = ret_passed->count > 0 && (message.msg_flags & MSG_CTRUNC) == 0;
    return len > 0;
}

static void take_drop(int from_fd)
{
    char word;
    check(recv(from_fd, &word, 1, MSG_DONTWAIT) == 1); // nobody else reads
}

static void passed_close(const struct passed *passed, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        (void)close(passed->fds[i]); // its owner has a copy
    }
}

// Takes up to `max` messages. Sends their connections to `passing` and accepts those that it does
// not take. Returns false if there are not enough descriptors for the next message.
static bool take(struct http_server *server, int from_fd, unsigned max,
                 const struct http_passing *passing, bool *ret_over)
{
    struct passed passed;
    bool has_all;
    for (unsigned i = 0; i < max && take_look(from_fd, &passed, &has_all, ret_over); i++) {
        if (!has_all) {
            passed_close(&passed, passed.count);
            log_warn_condition("connection_not_taken", "why=\"out of file descriptors\"");
            return false;
        }
        take_drop(from_fd);
        unsigned done = pass_on(passing, &passed);
        passed_close(&passed, done);
        for (; done < passed.count; done++) {
            http_server_adopt(server, passed.fds[done]);
        }
    }
    return true;
}

static void on_passed(evutil_socket_t from_fd, short what, void *ctx)
{
    struct http_taking *t = ctx;
    bool over = false;
    (void)what;
    if (!take(t->server, from_fd, TAKEN_PER_EVENT, &http_passing_none, &over)) {
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
        // At most the length of the kernel's queue. Connections without a descriptor are closed
        // with it.
        (void)take(t->server, t->fd, UINT_MAX, passing, &over);
        taking_end(t);
    }
}

void http_taking_recall(struct http_server *server, int fd)
{
    bool over;
    (void)take(server, fd, UINT_MAX, &http_passing_none, &over); // as above
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
    timer_init(w, &t->pause, on_taking_pause_over);
    t->server = server;
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
