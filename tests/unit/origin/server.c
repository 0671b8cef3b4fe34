// SPDX-License-Identifier: Apache-2.0
#include "server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "test.h"

struct connection {
    struct server *server;
    int fd;
};

static void lock(struct server *s)
{
    pthread_mutex_lock(&s->mutex);
}

static void unlock(struct server *s)
{
    pthread_mutex_unlock(&s->mutex);
}

// Reads one whole request with its body (Content-Length only) into `buf`. Returns 0 at the end of
// the connection.
static size_t read_request(int fd, char *buf, size_t max)
{
    size_t len = 0, need = 0;
    while (len + 1 < max) {
        ssize_t got = read(fd, buf + len, need > 0 ? need - len : 1);
        if (got <= 0) {
            return need > 0 ? len : 0;
        }
        len += (size_t)got;
        buf[len] = '\0';
        if (need == 0 && len >= 4 && memcmp(buf + len - 4, "\r\n\r\n", 4) == 0) {
            const char *at = strcasestr(buf, "\r\ncontent-length:");
            need = len + (at != NULL ? strtoul(at + 17, NULL, 10) : 0);
        }
        if (need > 0 && len == need) {
            return len;
        }
    }
    return len;
}

static bool answer(struct server *s, int fd, const char *request, unsigned number)
{
    const struct server_row *row = &s->rows[number < s->row_count ? number : s->row_count - 1];
    const char *text = row->answer;
    size_t len = row->len;
    if (row->when != NULL && strstr(request, row->when) == NULL) {
        text = row->other;
        len = 0;
    }
    if (text != NULL) {
        len = len > 0 ? len : strlen(text);
        while (len > 0) {
            ssize_t put = send(fd, text, len, MSG_NOSIGNAL);
            if (put <= 0) {
                return false;
            }
            text += put;
            len -= (size_t)put;
        }
    }
    if (row->reset) {
        struct linger linger = {.l_onoff = 1, .l_linger = 0};
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
    }
    return row->answer != NULL && !row->close && !row->reset;
}

static void *connection_run(void *ctx)
{
    struct connection *c = ctx;
    struct server *s = c->server;
    size_t max = 4u << 20, len = 0;
    char *buf = malloc(max);
    bool go_on = true;
    while (go_on && (len = read_request(c->fd, buf, max)) > 0) {
        lock(s);
        unsigned number = s->request_count;
        cr_assert_lt(number, SERVER_ROWS_MAX);
        s->requests[s->request_count++] = strndup(buf, len);
        unlock(s);
        go_on = answer(s, c->fd, buf, number);
    }
    lock(s);
    for (unsigned i = 0; i < s->connection_count; i++) {
        if (s->connections[i] == c->fd) {
            s->connections[i] = -1;
        }
    }
    close(c->fd);
    unlock(s);
    free(buf);
    free(c);
    return NULL;
}

static void *server_run(void *ctx)
{
    struct server *s = ctx;
    while (true) {
        int fd = accept(s->fd, NULL, NULL);
        if (fd < 0) {
            return NULL;
        }
        struct connection *c = malloc(sizeof(*c));
        c->server = s;
        c->fd = fd;
        lock(s);
        cr_assert_lt(s->connection_count, SERVER_ROWS_MAX);
        unsigned i = s->connection_count++;
        s->connections[i] = fd;
        pthread_create(&s->connection_threads[i], NULL, connection_run, c);
        unlock(s);
    }
}

void server_start(struct server *s, const struct server_row *rows, unsigned row_count)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t addr_len = sizeof(addr);
    memset(s, 0, sizeof(*s));
    s->rows = rows;
    s->row_count = row_count;
    pthread_mutex_init(&s->mutex, NULL);
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_geq(s->fd, 0);
    cr_assert_eq(bind(s->fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    cr_assert_eq(listen(s->fd, 16), 0);
    cr_assert_eq(getsockname(s->fd, (struct sockaddr *)&addr, &addr_len), 0);
    s->port = ntohs(addr.sin_port);
    snprintf(s->endpoint, sizeof(s->endpoint), "http://127.0.0.1:%u", s->port);
    pthread_create(&s->thread, NULL, server_run, s);
}

void server_stop(struct server *s)
{
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    lock(s);
    unsigned count = s->connection_count;
    for (unsigned i = 0; i < count; i++) {
        if (s->connections[i] >= 0) {
            shutdown(s->connections[i], SHUT_RDWR);
        }
    }
    unlock(s);
    for (unsigned i = 0; i < count; i++) {
        pthread_join(s->connection_threads[i], NULL);
    }
    close(s->fd);
}

void server_done(struct server *s)
{
    for (unsigned i = 0; i < s->request_count; i++) {
        free(s->requests[i]);
    }
    pthread_mutex_destroy(&s->mutex);
}

unsigned server_requests(struct server *s)
{
    lock(s);
    unsigned count = s->request_count;
    unlock(s);
    return count;
}

unsigned server_connections(struct server *s)
{
    lock(s);
    unsigned count = s->connection_count;
    unlock(s);
    return count;
}

const char *server_request(struct server *s, unsigned i)
{
    lock(s);
    cr_assert_lt(i, s->request_count);
    const char *request = s->requests[i];
    unlock(s);
    return request;
}
