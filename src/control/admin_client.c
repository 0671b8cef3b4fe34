// SPDX-License-Identifier: Apache-2.0
// Sends requests to the admin port, for commands. The calls block, so workers must not use them. No
// state.
#include "control/admin.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"

#define ANSWER_MAX_BYTES (ADMIN_ANSWER_MAX + 65536u)
#define HEAD_MAX_BYTES 16384u
#define LINE_MAX_BYTES (128u << 10) // more than the longest line and one piece of recv()

static void set_timeouts(int fd, unsigned timeout_ms)
{
    struct timeval t = {.tv_sec = timeout_ms / 1000,
                        .tv_usec = (suseconds_t)(timeout_ms % 1000) * 1000};
    // Ignores failures, because without timeouts the request still ends when the server closes.
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t));
}

// Connects, also if signals arrive meanwhile. A socket with a timeout ends connect(2) with EINTR
// even if the handlers have SA_RESTART. On Linux the next call goes on with the same connection.
static bool connect_through_signals(int fd, const struct sockaddr *address, socklen_t len)
{
    int failed;
    do {
        failed = connect(fd, address, len);
    } while (failed != 0 && errno == EINTR);
    return failed == 0;
}

static int connect_unix(const char *path, unsigned timeout_ms)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = strlen(path);
    if (len >= sizeof(address.sun_path)) {
        return -1;
    }
    memcpy(address.sun_path, path, len + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    set_timeouts(fd, timeout_ms);
    if (!connect_through_signals(fd, (struct sockaddr *)&address, sizeof(address))) {
        (void)close(fd); // nothing was sent through this socket
        return -1;
    }
    return fd;
}

// Connects to "HOST:PORT" or "[HOST]:PORT". Returns -1 on failure.
static int connect_tcp(struct span address, unsigned timeout_ms)
{
    char host[256], port[8];
    size_t colon = address.len;
    while (colon > 0 && address.ptr[colon - 1] != ':') {
        colon--;
    }
    if (colon == 0 || colon > sizeof(host) || address.len - colon >= sizeof(port)) {
        return -1;
    }
    struct span name = {address.ptr, colon - 1};
    if (name.len >= 2 && name.ptr[0] == '[') {
        name = (struct span){name.ptr + 1, name.len - 2};
    }
    (void)snprintf(host, sizeof(host), "%.*s", (int)name.len, name.ptr);
    (void)snprintf(port, sizeof(port), "%.*s", (int)(address.len - colon), address.ptr + colon);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    if (getaddrinfo(host, port, &hints, &found) != 0) {
        return -1;
    }
    int fd = -1;
    for (struct addrinfo *a = found; a != NULL && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd >= 0) {
            set_timeouts(fd, timeout_ms);
            if (!connect_through_signals(fd, a->ai_addr, a->ai_addrlen)) {
                (void)close(fd); // nothing was sent through this socket
                fd = -1;
            }
        }
    }
    freeaddrinfo(found);
    return fd;
}

static bool send_all(int fd, struct span bytes)
{
    while (bytes.len > 0) {
        ssize_t sent = send(fd, bytes.ptr, bytes.len, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR) {
            return false;
        }
        bytes.ptr += sent > 0 ? sent : 0;
        bytes.len -= sent > 0 ? (size_t)sent : 0;
    }
    return true;
}

// Receives until the server closes the connection.
static enum err receive_all(int fd, struct buf *answer, unsigned timeout_ms)
{
    char piece[16384];
    uint64_t end_ms = clock_monotonic_ms() + timeout_ms;
    while (buf_ok(answer) && clock_monotonic_ms() <= end_ms) {
        ssize_t got = recv(fd, piece, sizeof(piece), 0);
        if (got == 0) {
            return ERR_OK;
        }
        if (got < 0 && errno != EINTR) {
            return errno == EAGAIN || errno == EWOULDBLOCK ? ERR_ORIGIN_TIMEOUT : ERR_ORIGIN_RESET;
        }
        buf_append(answer, piece, got > 0 ? (size_t)got : 0);
    }
    return buf_ok(answer) ? ERR_ORIGIN_TIMEOUT : ERR_ORIGIN_PROTOCOL;
}

// Splits "HTTP/1.1 200 OK\r\n...\r\n\r\nBODY" into the status and the body.
static enum err parse_answer(struct span answer, unsigned *ret_status, struct buf *ret_body)
{
    uint64_t status;
    const char *end = answer.len > 0 ? memmem(answer.ptr, answer.len, "\r\n\r\n", 4) : NULL;
    if (end == NULL || answer.len < 12 || !span_starts_with(answer, SPAN("HTTP/1.")) ||
        !span_to_u64((struct span){answer.ptr + 9, 3}, &status)) {
        return ERR_ORIGIN_PROTOCOL;
    }
    *ret_status = (unsigned)status;
    size_t head = (size_t)(end - answer.ptr) + 4;
    buf_append(ret_body, answer.ptr + head, answer.len - head);
    return ERR_OK;
}

// Returns the path of a Unix socket: of unix:/PATH, or of /PATH alone, as admin.socket has it.
// NULL: the address is another.
static const char *socket_path(const char *address)
{
    const char *path = strncmp(address, "unix:", 5) == 0 ? address + 5 : address;
    return path != address || path[0] == '/' ? path : NULL;
}

static int connect_to(const char *address, unsigned timeout_ms)
{
    struct span where = span_from_cstr(address);
    const char *path = socket_path(address);
    if (path != NULL) {
        return connect_unix(path, timeout_ms);
    }
    if (span_starts_with(where, SPAN("http://"))) {
        where = (struct span){where.ptr + 7, where.len - 7};
    }
    where.len = span_find(where, '/');
    return connect_tcp(where, timeout_ms);
}

// Renders the request head. Host is the name in the address, so that admin.allowed_hosts applies to
// it.
static void render_head(const struct admin_client_request *request, unsigned minor, struct buf *out)
{
    struct span host = span_from_cstr(request->address);
    if (socket_path(request->address) != NULL) {
        host = SPAN("localhost");
    } else if (span_starts_with(host, SPAN("http://"))) {
        host = (struct span){host.ptr + 7, host.len - 7};
    }
    host.len = span_find(host, '/');
    buf_printf(out, "%s %s HTTP/1.%u\r\nHost: %.*s\r\nConnection: close\r\n", request->method,
               request->path, minor, (int)host.len, host.ptr);
    if (strcmp(request->method, "GET") != 0) {
        buf_append_cstr(out, "X-Forebay-Control: 1\r\n");
    }
    if (request->token != NULL) {
        buf_printf(out, "Authorization: Bearer %s\r\n", request->token);
    }
    if (strcmp(request->method, "POST") == 0) {
        buf_printf(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                   request->body.len);
    }
    buf_append_cstr(out, "\r\n");
    buf_append_span(out, request->body);
}

enum err admin_client_send(const struct admin_client_request *request, unsigned *ret_status,
                           struct buf *ret_body)
{
    int fd = connect_to(request->address, request->timeout_ms);
    if (fd < 0) {
        return ERR_ORIGIN_CONNECT;
    }
    struct buf head, answer;
    buf_init(&head, HEAD_MAX_BYTES + request->body.len);
    buf_init(&answer, ANSWER_MAX_BYTES);
    render_head(request, 1, &head);
    enum err err = buf_ok(&head) && send_all(fd, buf_span(&head)) ? ERR_OK : ERR_ORIGIN_RESET;
    if (err == ERR_OK) {
        err = receive_all(fd, &answer, request->timeout_ms);
    }
    if (err == ERR_OK) {
        err = answer.len > 0 ? parse_answer(buf_span(&answer), ret_status, ret_body)
                             : ERR_ORIGIN_RESET;
    }
    (void)close(fd); // the whole answer has been read
    buf_done(&head);
    buf_done(&answer);
    return err;
}

enum err admin_client_get(const char *address, const char *path, unsigned timeout_ms,
                          unsigned *ret_status, struct buf *ret_body)
{
    struct admin_client_request request = {
        .address = address, .method = "GET", .path = path, .timeout_ms = timeout_ms};
    return admin_client_send(&request, ret_status, ret_body);
}

// --- following -----------------------------------------------------------------------------------

// Calls on_line() for each whole line of `text`, and keeps the rest. Returns false as soon as
// on_line() does.
static bool hand_out(struct buf *text, admin_client_line_fn on_line, void *ctx)
{
    struct span rest = buf_span(text);
    size_t len;
    while ((len = span_find(rest, '\n')) < rest.len) {
        if (!on_line(ctx, (struct span){rest.ptr, len})) {
            return false;
        }
        rest = (struct span){rest.ptr + len + 1, rest.len - len - 1};
    }
    memmove(text->ptr, rest.ptr, rest.len);
    text->len = rest.len;
    return true;
}

// Passes on lines until on_line() returns false, the answer ends or recv() times out. Returns
// ERR_OK only in the first case.
static enum err follow(int fd, struct buf *text, admin_client_line_fn on_line, void *ctx)
{
    char piece[16384];
    while (hand_out(text, on_line, ctx)) {
        ssize_t got = recv(fd, piece, sizeof(piece), 0);
        if (got < 0 && errno == EINTR) {
            if (!on_line(ctx, SPAN(""))) {
                return ERR_OK;
            }
        } else if (got <= 0) {
            bool is_silent = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
            return is_silent ? ERR_ORIGIN_TIMEOUT : ERR_ORIGIN_RESET;
        }
        buf_append(text, piece, got > 0 ? (size_t)got : 0);
        if (!buf_ok(text)) {
            return ERR_ORIGIN_PROTOCOL;
        }
    }
    return ERR_OK;
}

// Reads the head byte by byte, so that the first byte of the body stays in the socket.
static enum err read_head(int fd, struct buf *answer, unsigned *ret_status)
{
    struct buf body;
    enum err err = ERR_ORIGIN_PROTOCOL;
    buf_init(&body, ANSWER_MAX_BYTES);
    while (err != ERR_OK && buf_ok(answer)) {
        char byte;
        ssize_t got = recv(fd, &byte, 1, 0);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            break;
        }
        buf_append(answer, &byte, 1);
        err = byte == '\n' ? parse_answer(buf_span(answer), ret_status, &body) : err;
    }
    answer->len = 0;
    buf_done(&body);
    return err;
}

// Uses HTTP/1.0, so that the body is not chunked.
enum err admin_client_follow(const struct admin_client_request *request, unsigned silence_max_ms,
                             admin_client_line_fn on_line, void *ctx, unsigned *ret_status,
                             struct buf *ret_body)
{
    int fd = connect_to(request->address, request->timeout_ms);
    if (fd < 0) {
        return ERR_ORIGIN_CONNECT;
    }
    struct buf head, text;
    buf_init(&head, HEAD_MAX_BYTES + request->body.len);
    buf_init(&text, LINE_MAX_BYTES);
    render_head(request, 0, &head);
    enum err err = ERR_ORIGIN_CONNECT;
    if (buf_ok(&head) && send_all(fd, buf_span(&head))) {
        err = read_head(fd, &text, ret_status);
    }
    if (err == ERR_OK && *ret_status == 200) {
        set_timeouts(fd, silence_max_ms);
        err = follow(fd, &text, on_line, ctx);
    } else if (err == ERR_OK && receive_all(fd, ret_body, request->timeout_ms) != ERR_OK) {
        err = ERR_ORIGIN_CONNECT;
    }
    (void)close(fd); // any further bytes are not wanted
    buf_done(&head);
    buf_done(&text);
    return err;
}
