// SPDX-License-Identifier: Apache-2.0
// Proves: whoever stalls, and whenever, no request on a plain connection is lost between a server and the one that
// follows it: it is answered here, or sits unread in a connection that is passed on.
#include "test.h"
#include "waiting.h"

#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "front.h"
#include "http/http_private.h"
#include "loop/loop.h"

#define HOST "Host: localhost\r\n"
#define NEXT "GET /small HTTP/1.1\r\n" HOST "\r\n"
#define MANY 200u

// A worker that stands still, as one that gets no core does.
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

// Connections with a request each, as `clients` have sent them to a server before this one: they wait in its pair.
static struct passing clients_of_former(struct front *former, int clients[MANY])
{
    struct passing passing = passing_new();
    for (unsigned i = 0; i < MANY; i++) {
        clients[i] = client_connect(former->address);
        client_send_text(clients[i], NEXT);
        assert_answer(clients[i]);
    }
    http_server_pass_on(former->server, passing.here);
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

// The second of two upgrades begins before this server has taken what the first has left it.
Test(http_drain, taken_and_passed_on_at_once)
{
    int clients[MANY];
    struct front *former = front_new((struct http_options){0}, 2);
    struct passing first = clients_of_former(former, clients), second = passing_new();
    struct front *f = front_new((struct http_options){0}, 2);
    struct stall stall;
    stall_begin(&stall, f, 0);
    http_server_take_over(f->server, first.there);
    http_server_pass_on(f->server, second.here);
    stall_end(&stall);
    struct front *last = front_new((struct http_options){0}, 2);
    http_server_take_over(last->server, second.there);
    assert_all_answered(clients);
    front_free(f);
    front_free(former);
    front_free(last);
    close(second.here);
}

// It is to stop before it has taken them: what they have asked is answered.
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

// Who waits to be accepted when the server is to stop is answered, however late the worker is told.
Test(http_drain, accepted_at_the_end)
{
    struct front *f = front_new((struct http_options){0}, 2);
    struct stall stall;
    stall_begin(&stall, f, 0);
    int client = client_connect(f->address);
    client_send_text(client, NEXT);
    http_server_drain(f->server);
    cr_assert(!http_server_has_ended(f->server) && http_server_connections(f->server) == 0);
    stall_end(&stall);
    wait_for(http_server_has_ended(f->server));
    assert_answer(client);
    cr_assert(client_at_end(client));
    close(client);
    front_free(f);
}

// A worker stands still for all of the time that connections are given, with requests in their sockets.
Test(http_drain, a_worker_stalls_until_the_end)
{
    int clients[MANY];
    struct front *f = front_new((struct http_options){0}, 2);
    struct passing passing = passing_new();
    for (unsigned i = 0; i < MANY; i++) {
        clients[i] = client_connect(f->address);
        client_send_text(clients[i], NEXT);
        assert_answer(clients[i]);
    }
    struct stall stalls[2];
    stall_begin(&stalls[0], f, 0);
    stall_begin(&stalls[1], f, 1);
    for (unsigned i = 0; i < MANY; i++) {
        client_send_text(clients[i], NEXT);
    }
    http_server_pass_on(f->server, passing.here);
    http_server_close(f->server);
    stall_end(&stalls[0]);
    stall_end(&stalls[1]);
    struct front *last = front_new((struct http_options){0}, 2);
    http_server_take_over(last->server, passing.there);
    assert_all_answered(clients);
    front_free(f);
    front_free(last);
    close(passing.here);
}

// Who has sent half a head may end it as long as the worker has not looked for the rest in vain.
Test(http_drain, half_a_head)
{
    static const char half[] = "GET /small HTTP/1.1\r\n" HOST "X: ";
    static char filling[2 * HTTP_HELD_FREE];
    int clients[2];
    struct front *f = front_new((struct http_options){0}, 1);
    struct passing passing = passing_new();
    memset(filling, 'x', sizeof(filling));
    for (unsigned i = 0; i < 2; i++) {
        clients[i] = client_connect(f->address);
        client_send_text(clients[i], half);
        client_send(clients[i], filling, sizeof(filling));
    }
    wait_for(front_counted(f, COUNTER_http_held_bytes) >= 2 * 2 * sizeof(filling)); // both are read
    http_server_pass_on(f->server, passing.here);
    struct stall stall;
    stall_begin(&stall, f, 0);
    client_send_text(clients[0], "\r\n\r\n");
    http_server_end_waiting(f->server);
    stall_end(&stall);
    assert_answer(clients[0]);
    cr_assert(client_at_end(clients[0]) && client_at_end(clients[1]));
    wait_for(http_server_has_ended(f->server));
    cr_assert(front_counted(f, COUNTER_http_passed_on) == 0);
    close(clients[0]);
    close(clients[1]);
    close(passing.here);
    close(passing.there);
    front_free(f);
}
