// SPDX-License-Identifier: Apache-2.0
// Proves: no request on a plain connection is lost between a server and its successor, whichever
// side stalls, and at any time. The request is answered here, or stays unread in a connection that
// is passed on.
#include "test.h"
#include "waiting.h"

#include <semaphore.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "front.h"
#include "http/http_private.h"
#include "loop/loop.h"

#define HOST "Host: localhost\r\n"
#define NEXT "GET /small HTTP/1.1\r\n" HOST "\r\n"
#define MANY 200u

// A stalled worker, like one that gets no core.
struct stall {
    struct message message;
    sem_t begun, over;
};

static void on_stall(struct worker *to, struct message *message)
{
    struct stall *stall = container_of(message, struct stall, message);
    (void)to;
    cr_assert(sem_post(&stall->begun) == 0);
    while (sem_wait(&stall->over) != 0) { // EINTR
    }
}

static void stall_begin(struct stall *stall, struct front *f, unsigned worker)
{
    *stall = (struct stall){.message = {.deliver = on_stall}};
    cr_assert(sem_init(&stall->begun, 0, 0) == 0 && sem_init(&stall->over, 0, 0) == 0);
    mailbox_send_from_any_thread(loop_worker(f->loop, worker), &stall->message);
    while (sem_wait(&stall->begun) != 0) { // EINTR
    }
}

static void stall_end(struct stall *stall)
{
    cr_assert(sem_post(&stall->over) == 0);
}

struct passing {
    int here, there; // the server's end, and that of the one that follows
};

static struct passing passing_new(void)
{
    int fds[2], size = 4 << 20;
    cr_assert(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0);
    cr_assert(setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)) == 0);
    return (struct passing){fds[0], fds[1]};
}

static void assert_answer(int fd)
{
    struct client_reply reply;
    cr_assert(client_read(fd, false, &reply) && reply.status == 200 && reply.body_len == 6);
    client_reply_done(&reply);
}

// Connections with a request each, which `clients` have sent to a previous server. They wait in its
// socket pair.
static struct passing clients_of_former(struct front *former, int clients[MANY])
{
    struct passing passing = passing_new();
    for (unsigned i = 0; i < MANY; i++) {
        clients[i] = client_connect(former->address);
        client_send_text(clients[i], NEXT);
        assert_answer(clients[i]);
    }
    http_server_pass_on(former->server, passing.here, HTTP_PASSED_AT_ONCE);
    wait_for(http_server_has_ended(former->server));
    for (unsigned i = 0; i < MANY; i++) {
        client_send_text(clients[i], NEXT);
    }
    close(passing.here);
    return passing;
}

static void assert_all_answered(int clients[MANY])
{
    for (unsigned i = 0; i < MANY; i++) {
        assert_answer(clients[i]);
        close(clients[i]);
    }
}

// The second of two upgrades begins before this server has taken the connections of the first.
Test(http_drain, taken_and_passed_on_at_once)
{
    int clients[MANY];
    struct front *former = front_new((struct http_options){0}, 2);
    struct passing first = clients_of_former(former, clients), second = passing_new();
    struct front *f = front_new((struct http_options){0}, 2);
    struct stall stall;
    stall_begin(&stall, f, 0);
    http_server_take_over(f->server, first.there);
    http_server_pass_on(f->server, second.here, 1); // as an older program takes them
    stall_end(&stall);
    struct front *last = front_new((struct http_options){0}, 2);
    http_server_take_over(last->server, second.there);
    assert_all_answered(clients);
    front_free(f);
    front_free(former);
    front_free(last);
    close(second.here);
}

// The server is to stop before it has taken the connections: their requests are answered.
Test(http_drain, taken_and_drained_at_once)
{
    int clients[MANY];
    struct front *former = front_new((struct http_options){0}, 2);
    struct passing passing = clients_of_former(former, clients);
    struct front *f = front_new((struct http_options){0}, 2);
    struct stall stall;
    stall_begin(&stall, f, 0);
    http_server_take_over(f->server, passing.there);
    http_server_drain(f->server);
    stall_end(&stall);
    assert_all_answered(clients);
    wait_for(http_server_has_ended(f->server));
    front_free(f);
    front_free(former);
}

// A client that waits to be accepted when the server stops gets an answer, however late the worker
// learns of the stop.
Test(http_drain, accepted_at_the_end)
{
    int clients[MANY];
    struct front *f = front_new((struct http_options){0}, 2);
    struct stall stall;
    stall_begin(&stall, f, 0);
    for (unsigned i = 0; i < MANY; i++) {
        clients[i] = client_connect(f->address);
        client_send_text(clients[i], NEXT);
    }
    http_server_drain(f->server);
    cr_assert(!http_server_has_ended(f->server) && http_server_connections(f->server) == 0);
    stall_end(&stall);
    wait_for(http_server_has_ended(f->server));
    assert_all_answered(clients);
    front_free(f);
}

static void say_hello(void *ctx, struct http_exchange *x)
{
    struct http_reply reply = {
        .status = 200, .reason = "OK", .has_length = true, .length = 6, .body = SPAN("hello\n")};
    (void)ctx;
    http_reply_start(x, &reply);
}

static void say_nothing(void *ctx, const struct http_refusal *refusal, struct headers *headers,
                        struct buf *body)
{
    (void)ctx, (void)refusal, (void)headers, (void)body;
}

// The server is to stop before its worker has learnt that it may accept.
Test(http_drain, drained_before_it_has_started)
{
    static const char *const loopback[] = {"127.0.0.1:0"};
    struct http_options options = {.listen = loopback,
                                   .listen_count = 1,
                                   .limits.max_connections = 10,
                                   .limits.max_inflight = 10,
                                   .limits.max_inflight_in_memory = 10,
                                   .limits.header_timeout_ms = 60000,
                                   .limits.idle_timeout_ms = 60000,
                                   .handler = {NULL, say_hello, say_nothing}};
    struct front *f = front_new((struct http_options){0}, 2); // for its loop
    struct http_server *server;
    struct stall stall;
    struct buf why;
    buf_init(&why, 1000);
    stall_begin(&stall, f, 0);
    cr_assert(http_server_new(f->loop, &options, &server, &why) == ERR_OK);
    int client = client_connect(http_server_address(server, 0));
    client_send_text(client, NEXT);
    http_server_start(server);
    http_server_drain(server);
    stall_end(&stall);
    wait_for(http_server_has_ended(server));
    assert_answer(client);
    close(client);
    loop_stop(f->loop);
    http_server_free(server);
    front_free(f);
    buf_done(&why);
}

// Workers are stalled for the whole time that connections are given, with requests in their
// sockets. There are more of them than an unprivileged process may send messages.
Test(http_drain, workers_stall_until_the_end)
{
    enum { MORE = 800 };
    static int clients[MORE];
    struct front *f = front_new((struct http_options){0}, 2);
    struct passing passing = passing_new();
    int size = 212992;
    struct rlimit limit;
    cr_assert(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    cr_assert(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    cr_assert(setsockopt(passing.here, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)) == 0);
    for (unsigned i = 0; i < MORE; i++) {
        clients[i] = client_connect(f->address);
        client_send_text(clients[i], NEXT);
        assert_answer(clients[i]);
    }
    struct stall stalls[2];
    stall_begin(&stalls[0], f, 0);
    stall_begin(&stalls[1], f, 1);
    for (unsigned i = 0; i < MORE; i++) {
        client_send_text(clients[i], NEXT);
    }
    http_server_pass_on(f->server, passing.here, HTTP_PASSED_AT_ONCE);
    http_server_close(f->server);
    stall_end(&stalls[0]);
    stall_end(&stalls[1]);
    struct front *last = front_new((struct http_options){0}, 2);
    http_server_take_over(last->server, passing.there);
    for (unsigned i = 0; i < MORE; i++) {
        assert_answer(clients[i]);
        close(clients[i]);
    }
    front_free(f);
    front_free(last);
    close(passing.here);
}

// Clients that have sent everything: one request or two, on new connections and used ones.
static void assert_half_closed_are_answered(bool is_followed, unsigned workers)
{
    int clients[MANY];
    struct stall stalls[16];
    struct front *f = front_new((struct http_options){0}, workers);
    struct front *last = front_new((struct http_options){0}, workers);
    struct passing passing = passing_new();
    for (unsigned i = 0; i < MANY; i++) {
        clients[i] = client_connect(f->address);
        if (i % 2 == 0) {
            client_send_text(clients[i], NEXT);
            assert_answer(clients[i]);
        }
    }
    wait_for(http_server_connections(f->server) == MANY);
    for (unsigned i = 0; i < workers; i++) {
        stall_begin(&stalls[i], f, i);
    }
    for (unsigned i = 0; i < MANY; i++) {
        client_send_text(clients[i], i % 3 == 0 && is_followed ? NEXT NEXT : NEXT);
        cr_assert(i % 5 == 0 || shutdown(clients[i], SHUT_WR) == 0);
    }
    if (is_followed) {
        http_server_pass_on(f->server, passing.here, HTTP_PASSED_AT_ONCE);
        http_server_take_over(last->server, passing.there);
    } else {
        http_server_drain(f->server);
    }
    for (unsigned i = 0; i < workers; i++) {
        stall_end(&stalls[i]);
    }
    for (unsigned i = 0; i < MANY; i++) {
        assert_answer(clients[i]);
        if (i % 3 == 0 && is_followed) {
            assert_answer(clients[i]);
        }
        close(clients[i]);
    }
    wait_for(http_server_has_ended(f->server) && http_server_connections(last->server) == 0);
    cr_assert(stats_sum(COUNTER_http_connections_idle) == 0 &&
              stats_sum(COUNTER_http_connections_active) == 0 &&
              stats_sum(COUNTER_http_held_bytes) == 0);
    front_free(f);
    front_free(last);
    close(passing.here);
    if (!is_followed) {
        close(passing.there);
    }
}

Test(http_drain, half_closed)
{
    assert_half_closed_are_answered(true, 1);
    assert_half_closed_are_answered(true, 16);
    assert_half_closed_are_answered(false, 1);
    assert_half_closed_are_answered(false, 16);
}

// No successor comes after all. Connections that were passed on or are on their way, and clients
// that wait to be accepted, are answered here.
Test(http_drain, called_off)
{
    int clients[MANY];
    struct front *f = front_new((struct http_options){0}, 2);
    struct passing passing = passing_new();
    struct stall stall;
    for (unsigned i = 0; i < MANY; i++) {
        clients[i] = client_connect(f->address);
        client_send_text(clients[i], NEXT);
        assert_answer(clients[i]);
    }
    stall_begin(&stall, f, 1);
    http_server_pass_on(f->server, passing.here, HTTP_PASSED_AT_ONCE);
    wait_for(front_counted(f, COUNTER_http_passed_on) >= MANY / 2); // worker 0's
    for (unsigned i = 0; i < MANY; i++) {
        client_send_text(clients[i], NEXT);
    }
    int waits = client_connect(f->address);
    client_send_text(waits, NEXT);
    http_server_call_off(f->server, passing.there);
    cr_assert(!http_server_has_ended(f->server));
    stall_end(&stall);
    assert_all_answered(clients);
    assert_answer(waits);
    wait_for(http_server_has_ended(f->server));
    cr_assert(client_connect(f->address) < 0);
    close(waits);
    close(passing.here);
    close(passing.there);
    front_free(f);
}

// There are too few descriptors for the connections of a former process: they wait until there are
// enough.
Test(http_drain, taken_without_descriptors)
{
    int clients[MANY];
    struct front *former = front_new((struct http_options){0}, 2);
    struct passing passing = clients_of_former(former, clients);
    struct front *f = front_new((struct http_options){0}, 2);
    struct rlimit was, few;
    cr_assert(getrlimit(RLIMIT_NOFILE, &was) == 0);
    int next = dup(STDIN_FILENO);
    close(next);
    few = (struct rlimit){.rlim_cur = (rlim_t)next + 20, .rlim_max = was.rlim_max};
    cr_assert(setrlimit(RLIMIT_NOFILE, &few) == 0);
    http_server_take_over(f->server, passing.there);
    wait_for(front_counted(f, COUNTER_http_accept_paused) > 0);
    cr_assert(setrlimit(RLIMIT_NOFILE, &was) == 0);
    assert_all_answered(clients);
    front_free(f);
    front_free(former);
}

#define LAST_REQUEST_US 1000000u

// A client that has sent half a head may finish it within a second. After the second, the rest
// still counts until the worker has looked for it in vain.
Test(http_drain, half_a_head)
{
    static const char half[] = "GET /small HTTP/1.1\r\n" HOST "X: ";
    static char filling[2 * HTTP_HELD_FREE];
    int clients[3];
    struct front *f = front_new((struct http_options){0}, 1);
    struct passing passing = passing_new();
    memset(filling, 'x', sizeof(filling));
    for (unsigned i = 0; i < 3; i++) {
        clients[i] = client_connect(f->address);
        client_send_text(clients[i], half);
        client_send(clients[i], filling, sizeof(filling));
    }
    wait_for(front_counted(f, COUNTER_http_held_bytes) >= 3 * 2 * sizeof(filling)); // all are read
    int idle = client_connect(f->address);
    client_send_text(idle, NEXT);
    assert_answer(idle);
    http_server_pass_on(f->server, passing.here, HTTP_PASSED_AT_ONCE);
    wait_for(front_counted(f, COUNTER_http_passed_on) == 1); // the worker has begun
    http_server_end_waiting(f->server);
    client_send_text(clients[0], "\r\n\r\n");
    assert_answer(clients[0]);
    struct stall stall;
    stall_begin(&stall, f, 0);
    client_send_text(clients[1], "\r\n\r\n");
    clock_test_advance_us(LAST_REQUEST_US);
    http_server_end_waiting(f->server);
    stall_end(&stall);
    assert_answer(clients[1]);
    wait_for(http_server_has_ended(f->server));
    cr_assert(front_counted(f, COUNTER_http_passed_on) == 1);
    close(idle);
    for (unsigned i = 0; i < 3; i++) {
        cr_assert(client_at_end(clients[i]));
        close(clients[i]);
    }
    close(passing.here);
    close(passing.there);
    front_free(f);
}

#define LINGER_SILENT_US 200000u

// Returns false if this test was descheduled for so long that the time was really over.
static bool try_upload_that_is_refused(void)
{
    static char body[50000];
    struct client_reply reply;
    struct stall stall;
    struct front *f = front_new((struct http_options){0}, 1);
    struct passing passing = passing_new();
    int client = client_connect(f->address);
    uint64_t begun_us = clock_monotonic_us();
    client_send_text(client, "PUT /early HTTP/1.1\r\n" HOST "Content-Length: 500000\r\n\r\nx");
    wait_for(f->done == 1);
    http_server_pass_on(f->server, passing.here, HTTP_PASSED_AT_ONCE);
    http_server_end_waiting(f->server);
    stall_begin(&stall, f, 0); // behind it
    bool is_in_time = clock_monotonic_us() - begun_us < LINGER_SILENT_US;
    cr_assert(!is_in_time || http_server_connections(f->server) == 1);
    stall_end(&stall);
    if (is_in_time) {
        client_send(client, body, sizeof(body));
        client_send(client, body, sizeof(body));
        cr_assert(client_read(client, false, &reply) && reply.status == 503 && reply.close);
        client_reply_done(&reply);
    }
    clock_test_advance_us(LAST_REQUEST_US);
    http_server_end_waiting(f->server);
    wait_for(http_server_has_ended(f->server));
    close(client);
    close(passing.here);
    close(passing.there);
    front_free(f);
    return is_in_time;
}

// A client that goes on sending a body that was refused early gets time to read the reply.
Test(http_drain, an_upload_that_is_refused)
{
    bool is_seen = false;
    for (unsigned i = 0; i < 100 && !is_seen; i++) {
        is_seen = try_upload_that_is_refused();
    }
    cr_assert(is_seen);
}
