// SPDX-License-Identifier: Apache-2.0
// Proves: a client that shuts its sending side after its last request gets every reply that is due,
// in order, then the end. An incomplete request is not answered. A client that has gone altogether
// does not hold an exchange for ever.
#include "test.h"
#include "waiting.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "front.h"

#define HOST "Host: localhost\r\n"

static const struct {
    const char *request;
    size_t body_len; // of the reply
} ROWS[] = {
    {"GET /small HTTP/1.1\r\n" HOST "\r\n", 6},
    {"GET /late HTTP/1.1\r\n" HOST "\r\n", 6},
    {"GET /bytes?n=300000&wait=2 HTTP/1.1\r\n" HOST "\r\n", 300000},
    {"GET /chunked?n=70000&wait=1 HTTP/1.1\r\n" HOST "\r\n", 70000},
    {"GET /file?n=1048576 HTTP/1.1\r\n" HOST "\r\n", 1048576},
    {"PUT /refuse HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nabc", 3},
    {"GET /204 HTTP/1.1\r\n" HOST "\r\n", 0},
};

static void read_whole(int fd, size_t body_len)
{
    struct client_reply reply;
    cr_assert(client_read(fd, false, &reply) && reply.complete);
    cr_assert(reply.body_len == body_len, "%zu, wanted %zu", reply.body_len, body_len);
    client_reply_done(&reply);
}

// One request of each kind, after which the sender shuts its side: on TCP and on a unix socket.
Test(http_eof, one_request)
{
    char path[128];
    snprintf(path, sizeof(path), "unix:/tmp/forebay-eof-%d", (int)getpid());
    const char *const listen[] = {"127.0.0.1:0", path};
    struct front *f = front_new((struct http_options){.listen = listen, .listen_count = 2}, 1);
    for (unsigned i = 0; i < 10 * ARRAY_LEN(ROWS); i++) {
        int fd = client_connect(i % 2 == 0 ? f->address : path);
        client_send_text(fd, ROWS[i % ARRAY_LEN(ROWS)].request);
        cr_assert(shutdown(fd, SHUT_WR) == 0);
        read_whole(fd, ROWS[i % ARRAY_LEN(ROWS)].body_len);
        cr_assert(client_at_end(fd));
        close(fd);
    }
    wait_for(f->done >= 10 * ARRAY_LEN(ROWS));
    front_free(f);
}

// More pipelined requests than one turn handles and than the input buffer holds.
Test(http_eof, pipelined_requests)
{
    struct front *f = front_new((struct http_options){0}, 1);
    struct buf b;
    buf_init(&b, 1 << 20);
    unsigned count = 2500;
    for (unsigned i = 0; i < count; i++) {
        buf_append_cstr(&b, i % 100 == 99 ? ROWS[i / 100 % ARRAY_LEN(ROWS)].request
                                          : ROWS[i % 2].request);
    }
    cr_assert(b.len > 65536);
    int fd = client_connect(f->address);
    client_send(fd, b.ptr, b.len);
    cr_assert(shutdown(fd, SHUT_WR) == 0);
    for (unsigned i = 0; i < count; i++) {
        read_whole(fd, ROWS[i % 100 == 99 ? i / 100 % ARRAY_LEN(ROWS) : i % 2].body_len);
    }
    cr_assert(client_at_end(fd));
    close(fd);
    buf_done(&b);
    front_free(f);
}

// A head or a body that cannot be completed any more ends the connection. A reply that has begun
// earlier is sent whole.
Test(http_eof, cut_requests)
{
    static const char *const cut[] = {
        "GET /small HTTP/1.1\r\nHo",
        "PUT /put HTTP/1.1\r\n" HOST "Content-Length: 10\r\n\r\nabc",
        "PUT /slowput HTTP/1.1\r\n" HOST "Content-Length: 10\r\n\r\nabc",
        "PUT /put HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n3\r\nabc",
    };
    struct front *f = front_new((struct http_options){0}, 1);
    for (unsigned i = 0; i < ARRAY_LEN(cut); i++) {
        int fd = client_connect(f->address);
        read_whole((client_send_text(fd, ROWS[0].request), fd), ROWS[0].body_len);
        client_send_text(fd, cut[i]);
        cr_assert(shutdown(fd, SHUT_WR) == 0);
        cr_assert(client_at_end(fd));
        close(fd);
    }
    wait_for(f->gone >= ARRAY_LEN(cut) - 1);
    int fd = client_connect(f->address);
    client_send_text(fd, "PUT /early HTTP/1.1\r\n" HOST "Content-Length: 10\r\n\r\nabc");
    cr_assert(shutdown(fd, SHUT_WR) == 0);
    read_whole(fd, strlen("early\n"));
    cr_assert(client_at_end(fd));
    close(fd);
    front_free(f);
}

// Both sides are closed while the reply still waits. On a unix socket the server sees this at once,
// because it can tell it from half a close. On TCP it sees this when bytes are sent, or after the
// idle timeout.
Test(http_eof, closed_altogether)
{
    char path[128];
    snprintf(path, sizeof(path), "unix:/tmp/forebay-eof-%d", (int)getpid());
    const char *const listen[] = {"127.0.0.1:0", path};
    struct front *f = front_new((struct http_options){.listen = listen,
                                                      .listen_count = 2,
                                                      .limits.idle_timeout_ms = 3600000,
                                                      .min_rate_grace_ms = 7200000},
                                1);
    int fd = client_connect(path);
    client_send_text(fd, "GET /never HTTP/1.1\r\n" HOST "\r\n");
    wait_for(f->requests >= 1);
    close(fd);
    wait_for(f->gone >= 1);
    fd = client_connect(f->address);
    client_send_text(fd, "GET /bytes?n=400000000 HTTP/1.1\r\n" HOST "\r\n");
    wait_for(f->requests >= 2);
    cr_assert(shutdown(fd, SHUT_WR) == 0);
    close(fd);
    wait_for(f->gone >= 2);
    fd = client_connect(f->address);
    client_send_text(fd, "GET /never HTTP/1.1\r\n" HOST "\r\n");
    wait_for(f->requests >= 3);
    close(fd);
    fd = client_connect(f->address);
    client_send_text(fd, ROWS[0].request); // same worker: by now the close has been read
    read_whole(fd, ROWS[0].body_len);
    close(fd);
    cr_assert(f->gone == 2);
    clock_test_advance_us(3600000000);
    wait_for(f->gone >= 3);
    cr_assert(front_counted(f, COUNTER_http_timeout_idle) == 1);
    front_free(f);
}
