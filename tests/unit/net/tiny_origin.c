// SPDX-License-Identifier: Apache-2.0
#include "net/tiny_origin.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "test.h"

#define CONNECTIONS_MAX 256
#define HEAD_MAX 65536
#define UNASKED "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nUNASKED"

struct tiny_origin {
    int listen_fd;
    unsigned port;
    pthread_t acceptor;
    pthread_mutex_t mutex;
    pthread_cond_t ending;
    bool is_ending, is_going_on; // by mutex
    atomic_uint connection_count, request_count;
    struct connection {
        struct tiny_origin *origin;
        pthread_mutex_t mutex; // held while fd is closed, or used by another thread than its own
        int fd;                // -1 = closed
        pthread_t thread;
        char head[HEAD_MAX + 1];
        size_t head_len, have; // head_len: without what follows it; have: bytes read
    } * connections[CONNECTIONS_MAX];
};

char tiny_origin_byte(size_t i)
{
    return (char)('!' + (i * 7 + i / 1009) % 90);
}

static bool send_all(int fd, const void *bytes, size_t len)
{
    const char *at = bytes;
    while (len > 0) {
        ssize_t n = send(fd, at, len, MSG_NOSIGNAL);
        if (n <= 0) {
            return false;
        }
        at += n;
        len -= (size_t)n;
    }
    return true;
}

static bool send_text(int fd, const char *text)
{
    return send_all(fd, text, strlen(text));
}

static bool send_pattern(int fd, size_t from, size_t count)
{
    char piece[4096];
    for (size_t done = 0; done < count;) {
        size_t len = count - done < sizeof(piece) ? count - done : sizeof(piece);
        for (size_t i = 0; i < len; i++) {
            piece[i] = tiny_origin_byte(from + done + i);
        }
        if (!send_all(fd, piece, len)) {
            return false;
        }
        done += len;
    }
    return true;
}

static bool send_head(int fd, size_t length)
{
    char head[200];
    snprintf(head, sizeof(head), "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\nX-Tiny: yes\r\n\r\n",
             length);
    return send_text(fd, head);
}

static bool send_chunks(int fd, size_t count, bool is_whole)
{
    if (!send_text(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")) {
        return false;
    }
    for (size_t done = 0; done < count; done += 1000) {
        size_t len = count - done < 1000 ? count - done : 1000;
        char size[32];
        snprintf(size, sizeof(size), "%zx\r\n", len);
        if (!send_text(fd, size) || !send_pattern(fd, done, len) || !send_text(fd, "\r\n")) {
            return false;
        }
    }
    return is_whole && send_text(fd, "0\r\nX-Trailer: t\r\n\r\n");
}

static void wait_for_close(int fd)
{
    char sink[4096];
    while (recv(fd, sink, sizeof(sink), 0) > 0) {
    }
}

// Reads nothing, so that the client's bytes fill the buffers of both sockets.
static void wait_for_end(struct tiny_origin *origin)
{
    cr_assert(pthread_mutex_lock(&origin->mutex) == 0);
    while (!origin->is_ending) {
        cr_assert(pthread_cond_wait(&origin->ending, &origin->mutex) == 0);
    }
    cr_assert(pthread_mutex_unlock(&origin->mutex) == 0);
}

static void wait_to_go_on(struct tiny_origin *origin)
{
    cr_assert(pthread_mutex_lock(&origin->mutex) == 0);
    while (!origin->is_going_on && !origin->is_ending) {
        cr_assert(pthread_cond_wait(&origin->ending, &origin->mutex) == 0);
    }
    cr_assert(pthread_mutex_unlock(&origin->mutex) == 0);
}

void tiny_origin_go_on(struct tiny_origin *origin)
{
    cr_assert(pthread_mutex_lock(&origin->mutex) == 0);
    origin->is_going_on = true;
    cr_assert(pthread_cond_broadcast(&origin->ending) == 0);
    cr_assert(pthread_mutex_unlock(&origin->mutex) == 0);
}

static bool answer_echo(struct connection *c, size_t length)
{
    char *body = malloc(length + 1);
    cr_assert(body != NULL);
    size_t have = c->have - c->head_len;
    cr_assert(have <= length);
    memcpy(body, c->head + c->head_len, have);
    while (have < length) {
        ssize_t n = recv(c->fd, body + have, length - have, 0);
        if (n <= 0) {
            free(body);
            return false;
        }
        have += (size_t)n;
    }
    c->have = c->head_len;
    bool is_ok = send_head(c->fd, length) && send_all(c->fd, body, length);
    free(body);
    return is_ok;
}

static bool skip_body(struct connection *c, size_t length)
{
    char sink[4096];
    size_t have = c->have - c->head_len;
    cr_assert(have <= length);
    c->have = c->head_len;
    while (have < length) {
        ssize_t n =
            recv(c->fd, sink, length - have < sizeof(sink) ? length - have : sizeof(sink), 0);
        if (n <= 0) {
            return false;
        }
        have += (size_t)n;
    }
    return true;
}

static bool send_status(int fd, size_t status)
{
    char head[200];
    snprintf(head, sizeof(head), "HTTP/1.1 %zu Because\r\nContent-Length: 2\r\n\r\nno", status);
    return send_text(fd, head);
}

// The answer and another one, in one piece.
static bool answer_twice(int fd, size_t length)
{
    char all[8192];
    size_t at = (size_t)snprintf(all, sizeof(all), "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n",
                                 length);
    cr_assert(at + length + strlen(UNASKED) < sizeof(all));
    for (size_t i = 0; i < length; i++) {
        all[at++] = tiny_origin_byte(i);
    }
    memcpy(all + at, UNASKED, strlen(UNASKED));
    return send_all(fd, all, at + strlen(UNASKED));
}

static size_t content_length(const char *head)
{
    const char *at = strstr(head, "Content-Length: ");
    return at == NULL ? 0 : strtoul(at + 16, NULL, 10);
}

// False = close.
static bool answer(struct connection *c)
{
    char head[HEAD_MAX + 1];
    memcpy(head, c->head, c->head_len);
    head[c->head_len] = '\0';
    size_t length = content_length(head);
    bool is_head = strncmp(head, "HEAD ", 5) == 0;
    const char *path = strchr(head, '/');
    cr_assert(path != NULL);
    size_t n = 0, m = 0;
    if (sscanf(path, "/bytes/%zu", &n) == 1) {
        return send_head(c->fd, n) && (is_head || send_pattern(c->fd, 0, n));
    }
    if (sscanf(path, "/once/%zu", &n) == 1) {
        (void)(send_head(c->fd, n) && send_pattern(c->fd, 0, n));
        return false;
    }
    if (sscanf(path, "/cut/%zu/%zu", &n, &m) == 2) {
        (void)(send_head(c->fd, n) && send_pattern(c->fd, 0, m));
        return false;
    }
    if (sscanf(path, "/chunked/%zu", &n) == 1) {
        return send_chunks(c->fd, n, true);
    }
    if (sscanf(path, "/chunkcut/%zu", &n) == 1) {
        return send_chunks(c->fd, n, false);
    }
    if (sscanf(path, "/stall/%zu/%zu", &n, &m) == 2) {
        (void)(send_head(c->fd, n) && send_pattern(c->fd, 0, m));
        wait_for_close(c->fd);
        return false;
    }
    if (sscanf(path, "/late/%zu/%zu", &n, &m) == 2) {
        if (!send_head(c->fd, n) || !send_pattern(c->fd, 0, m)) {
            return false;
        }
        wait_to_go_on(c->origin);
        return send_pattern(c->fd, m, n - m);
    }
    if (sscanf(path, "/interim/%zu", &n) == 1) {
        return send_text(c->fd, "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n") &&
               send_head(c->fd, n) && send_pattern(c->fd, 0, n);
    }
    if (sscanf(path, "/refuse/%zu", &n) == 1) {
        return skip_body(c, length) && send_status(c->fd, n);
    }
    if (sscanf(path, "/hasty/%zu", &n) == 1) {
        return send_status(c->fd, n) && skip_body(c, length);
    }
    if (sscanf(path, "/granted/%zu", &n) == 1) {
        char heads[200];
        snprintf(heads, sizeof(heads),
                 "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 %zu Status\r\nContent-Length: 2\r\n\r\nno",
                 n);
        return send_text(c->fd, heads) && skip_body(c, length);
    }
    if (sscanf(path, "/stray/%zu", &n) == 1) {
        return answer_twice(c->fd, n);
    }
    if (strncmp(path, "/silent", 7) == 0) {
        wait_for_close(c->fd);
        return false;
    }
    if (strncmp(path, "/nobody", 7) == 0) {
        wait_for_end(c->origin);
        return false;
    }
    if (strncmp(path, "/early", 6) == 0) {
        (void)send_text(c->fd, "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n"
                               "Connection: close\r\n\r\nno");
        shutdown(c->fd, SHUT_WR);
        wait_for_close(c->fd);
        return false;
    }
    if (strncmp(path, "/none", 5) == 0) {
        return send_text(c->fd, "HTTP/1.1 204 No Content\r\n\r\n");
    }
    if (strncmp(path, "/echo", 5) == 0) {
        return answer_echo(c, length);
    }
    return send_head(c->fd, strlen(head)) && send_text(c->fd, head); // "/head" and all others
}

static void *end_connection(struct connection *c)
{
    cr_assert(pthread_mutex_lock(&c->mutex) == 0);
    close(c->fd);
    c->fd = -1;
    cr_assert(pthread_mutex_unlock(&c->mutex) == 0);
    return NULL;
}

static void *serve_connection(void *ctx)
{
    struct connection *c = ctx;
    for (;;) {
        char *end;
        while (c->head[c->have] = '\0', (end = strstr(c->head, "\r\n\r\n")) == NULL) {
            ssize_t n = recv(c->fd, c->head + c->have, HEAD_MAX - c->have, 0);
            if (n <= 0) {
                return end_connection(c);
            }
            c->have += (size_t)n;
        }
        c->head_len = (size_t)(end + 4 - c->head);
        atomic_fetch_add(&c->origin->request_count, 1);
        if (!answer(c)) {
            return end_connection(c);
        }
        memmove(c->head, c->head + c->head_len, c->have - c->head_len);
        c->have -= c->head_len;
    }
}

static void *accept_connections(void *ctx)
{
    struct tiny_origin *origin = ctx;
    int fd;
    while ((fd = accept(origin->listen_fd, NULL, NULL)) >= 0) {
        unsigned index = atomic_load(&origin->connection_count);
        cr_assert(index < CONNECTIONS_MAX);
        struct connection *c = calloc(1, sizeof(*c));
        cr_assert(c != NULL);
        c->origin = origin;
        c->fd = fd;
        cr_assert(pthread_mutex_init(&c->mutex, NULL) == 0);
        origin->connections[index] = c;
        atomic_fetch_add(&origin->connection_count, 1);
        cr_assert(pthread_create(&c->thread, NULL, serve_connection, c) == 0);
    }
    return NULL;
}

static struct tiny_origin *new_origin(const char *unix_path, uint32_t host, unsigned port)
{
    struct tiny_origin *origin = calloc(1, sizeof(*origin));
    cr_assert(origin != NULL);
    if (unix_path != NULL) {
        struct sockaddr_un addr = {.sun_family = AF_UNIX};
        snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", unix_path);
        origin->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        cr_assert(bind(origin->listen_fd, (struct sockaddr *)&addr, sizeof(addr)) == 0);
    } else {
        struct sockaddr_in addr = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)port),
                                   .sin_addr.s_addr = htonl(host)};
        socklen_t len = sizeof(addr);
        origin->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        cr_assert(bind(origin->listen_fd, (struct sockaddr *)&addr, len) == 0);
        cr_assert(getsockname(origin->listen_fd, (struct sockaddr *)&addr, &len) == 0);
        origin->port = ntohs(addr.sin_port);
    }
    cr_assert(listen(origin->listen_fd, CONNECTIONS_MAX) == 0);
    cr_assert(pthread_mutex_init(&origin->mutex, NULL) == 0);
    cr_assert(pthread_cond_init(&origin->ending, NULL) == 0);
    cr_assert(pthread_create(&origin->acceptor, NULL, accept_connections, origin) == 0);
    return origin;
}

struct tiny_origin *tiny_origin_new(const char *unix_path)
{
    return new_origin(unix_path, INADDR_LOOPBACK, 0);
}

struct tiny_origin *tiny_origin_new_beside(const struct tiny_origin *origin)
{
    return new_origin(NULL, INADDR_LOOPBACK + 1, origin->port);
}

void tiny_origin_free(struct tiny_origin *origin)
{
    cr_assert(pthread_mutex_lock(&origin->mutex) == 0);
    origin->is_ending = true;
    cr_assert(pthread_cond_broadcast(&origin->ending) == 0);
    cr_assert(pthread_mutex_unlock(&origin->mutex) == 0);
    shutdown(origin->listen_fd, SHUT_RDWR); // ends accept()
    cr_assert(pthread_join(origin->acceptor, NULL) == 0);
    close(origin->listen_fd);
    for (unsigned i = 0; i < atomic_load(&origin->connection_count); i++) {
        cr_assert(pthread_join(origin->connections[i]->thread, NULL) == 0);
        free(origin->connections[i]);
    }
    free(origin);
}

unsigned tiny_origin_port(const struct tiny_origin *origin)
{
    return origin->port;
}

unsigned tiny_origin_connections(const struct tiny_origin *origin)
{
    return atomic_load(&origin->connection_count);
}

unsigned tiny_origin_requests(const struct tiny_origin *origin)
{
    return atomic_load(&origin->request_count);
}

void tiny_origin_answer_in_plain(struct tiny_origin *origin)
{
    cr_assert(tiny_origin_connections(origin) > 0);
    struct connection *c = origin->connections[0];
    cr_assert(pthread_mutex_lock(&c->mutex) == 0);
    cr_assert(c->fd >= 0 && send_head(c->fd, 0));
    cr_assert(pthread_mutex_unlock(&c->mutex) == 0);
}

void tiny_origin_answer_unasked(struct tiny_origin *origin)
{
    unsigned count = tiny_origin_connections(origin);
    cr_assert(count > 0);
    struct connection *c = origin->connections[count - 1];
    cr_assert(pthread_mutex_lock(&c->mutex) == 0);
    cr_assert(c->fd >= 0 && send_text(c->fd, UNASKED));
    int left = 1;
    while (left > 0) { // until the client's kernel has acknowledged all of it
        cr_assert(ioctl(c->fd, SIOCOUTQ, &left) == 0);
    }
    cr_assert(pthread_mutex_unlock(&c->mutex) == 0);
}
