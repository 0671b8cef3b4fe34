// SPDX-License-Identifier: Apache-2.0
// Listening sockets: created at an address, or inherited from another process. Runs at the start,
// on the main thread.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "http/http_private.h"

#define BACKLOG 4096

// Writes "127.0.0.1:5000", "[::1]:5000" or "unix:PATH".
void http_address_format(const struct sockaddr_storage *addr, socklen_t len, char *ret_text,
                         size_t size)
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (addr->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)addr;
        (void)inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
        snprintf(ret_text, size, "%s:%u", host, ntohs(in->sin_port));
    } else if (addr->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)addr;
        (void)inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
        snprintf(ret_text, size, "[%s]:%u", host, ntohs(in6->sin6_port));
    } else {
        const struct sockaddr_un *un = (const struct sockaddr_un *)addr;
        bool named = len > offsetof(struct sockaddr_un, sun_path) && un->sun_path[0] == '/';
        snprintf(ret_text, size, "unix:%.*s", named ? (int)sizeof(un->sun_path) : 0, un->sun_path);
    }
}

bool http_address_is_loopback(const struct sockaddr_storage *addr)
{
    if (addr->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)addr;
        return (ntohl(in->sin_addr.s_addr) >> 24) == 127;
    }
    if (addr->ss_family == AF_INET6) {
        const struct in6_addr *in6 = &((const struct sockaddr_in6 *)addr)->sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(in6) || (IN6_IS_ADDR_V4MAPPED(in6) && in6->s6_addr[12] == 127);
    }
    return addr->ss_family == AF_UNIX;
}

static enum err listen_failed(struct listener *l, const char *address, struct buf *ret_why)
{
    int error = errno;
    const char *remedy =
        error == EADDRINUSE ? " (another server? stop it, or choose another port for "
                              "listen; port 0 lets the kernel choose)"
        : error == EADDRNOTAVAIL
            ? " (this host does not have it: listen on 127.0.0.1, 0.0.0.0 or one "
              "of its own)"
        : error == EACCES ? " (ports below 1024 are for root: choose another for listen)"
                          : "";
    buf_printf(ret_why, "cannot listen on %s: %s%s", address, strerror(error), remedy);
    if (l->fd >= 0) {
        close(l->fd);
        l->fd = -1;
    }
    if (error == EADDRINUSE) {
        return ERR_IN_USE;
    }
    return error == EACCES || error == EPERM ? ERR_PERMISSION : ERR_INVALID;
}

static enum err listen_on(struct listener *l, const struct sockaddr *addr, socklen_t len,
                          const char *address, struct buf *ret_why)
{
    int on = 1;
    l->fd = socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l->fd < 0 || setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        bind(l->fd, addr, len) != 0 || listen(l->fd, BACKLOG) != 0) {
        return listen_failed(l, address, ret_why);
    }
    return ERR_OK;
}

static enum err listen_unix(struct listener *l, const char *address, unsigned mode,
                            struct buf *ret_why)
{
    struct buf why;
    buf_init(&why, 512);
    l->is_unix = true;
    enum err err = unix_socket_open(address + strlen("unix:"), mode, &l->name, &why);
    if (err == ERR_OK) {
        l->fd = l->name.fd;
        snprintf(l->address, sizeof(l->address), "%s", address);
    } else {
        buf_printf(ret_why, "cannot listen on unix:%s", buf_cstr(&why));
    }
    buf_done(&why);
    return err;
}

// Splits "host:port" or "[host]:port". Copies the host, which must fit into `host_size` bytes. The
// port points into `address`. Returns false if the address is malformed.
static bool split_host_port(const char *address, char *ret_host, size_t host_size,
                            const char **ret_port)
{
    const char *colon = strrchr(address, ':');
    if (colon == NULL || colon == address || colon[1] == '\0') {
        return false;
    }
    const char *begin = address, *end = colon;
    if (address[0] == '[') {
        if (colon[-1] != ']') {
            return false;
        }
        begin++;
        end--;
    } else if (memchr(address, ':', (size_t)(colon - address)) != NULL) {
        return false; // IPv6 without brackets
    }
    size_t len = (size_t)(end - begin);
    uint64_t port;
    if (len == 0 || len >= host_size || !span_to_u64(span_from_cstr(colon + 1), &port) ||
        port > 65535) {
        return false;
    }
    memcpy(ret_host, begin, len);
    ret_host[len] = '\0';
    *ret_port = colon + 1;
    return true;
}

// Chooses how fast connections from this host are sent to. Some systems default to BBR, which
// starts a timer for every few packets to pace them. On the loopback, that costs almost as much CPU
// time as sending itself, and avoids no loss. Reno has no timer, and each kernel has it. A
// connection gets its algorithm from the listener, and would keep the timer if it were changed
// later.
static void listener_avoid_pacing(const struct listener *l, const struct sockaddr_storage *addr)
{
    if (!l->is_unix && http_address_is_loopback(addr)) {
        static const char reno[] = "reno";
        // A failure only makes replies cost more.
        (void)setsockopt(l->fd, IPPROTO_TCP, TCP_CONGESTION, reno, sizeof(reno) - 1);
    }
}

// Sets l->address from the socket. Returns false for an unknown address family.
static bool remember_address(struct listener *l)
{
    struct sockaddr_storage addr = {0};
    socklen_t len = sizeof(addr);
    char text[120];
    check(getsockname(l->fd, (struct sockaddr *)&addr, &len) == 0);
    l->is_unix = addr.ss_family == AF_UNIX;
    if (!l->is_unix && addr.ss_family != AF_INET && addr.ss_family != AF_INET6) {
        return false;
    }
    http_address_format(&addr, len, text, sizeof(text));
    snprintf(l->address, sizeof(l->address), "%s%s", l->is_tls ? "tls:" : "", text);
    listener_avoid_pacing(l, &addr);
    return true;
}

static enum err listen_tcp(struct listener *l, const char *address, struct buf *ret_why)
{
    char host[256];
    const char *port = NULL;
    const char *bare = l->is_tls ? address + strlen("tls:") : address;
    if (!split_host_port(bare, host, sizeof(host), &port)) {
        buf_printf(ret_why,
                   "cannot listen on %s: use HOST:PORT, [IPV6]:PORT, unix:/PATH or tls:HOST:PORT",
                   address);
        return ERR_INVALID;
    }
    // Names are not resolved, except that localhost is 127.0.0.1 (RFC 6761).
    bool is_localhost = span_equal_nocase(span_from_cstr(host), SPAN("localhost"));
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV | AI_NUMERICHOST};
    struct addrinfo *list = NULL;
    int rc = getaddrinfo(is_localhost ? "127.0.0.1" : host, port, &hints, &list);
    if (rc != 0) {
        buf_printf(ret_why, "cannot listen on %s: %s", address, gai_strerror(rc));
        return ERR_INVALID;
    }
    enum err err = listen_on(l, list->ai_addr, list->ai_addrlen, address, ret_why);
    freeaddrinfo(list);
    if (err == ERR_OK) {
        check(remember_address(l));
    }
    return err;
}

enum err http_listener_open(struct listener *l, const char *address, unsigned unix_mode,
                            struct buf *ret_why)
{
    return span_starts_with(span_from_cstr(address), SPAN("unix:"))
               ? listen_unix(l, address, unix_mode, ret_why)
               : listen_tcp(l, address, ret_why);
}

static void own_name(struct listener *l)
{
    struct stat st;
    const char *path = l->address + strlen("unix:");
    if (path[0] == '/' && lstat(path, &st) == 0) {
        l->name = (struct unix_listener){.fd = l->fd, .dev = st.st_dev, .ino = st.st_ino};
        (void)snprintf(l->name.path, sizeof(l->name.path), "%s", path);
    }
}

enum err http_listener_inherit(struct listener *l, const struct http_inherited *inherited,
                               struct buf *ret_why)
{
    int fd = inherited->fd;
    int type = 0, accepting = 0;
    socklen_t type_len = sizeof(type), len = sizeof(accepting);
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_len) != 0 ||
        type != SOCK_STREAM || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepting, &len) != 0 ||
        accepting == 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
        buf_printf(ret_why, "inherited descriptor %d is not a listening socket", fd);
        return ERR_INVALID;
    }
    l->fd = fd;
    l->is_inherited = true;
    if (!remember_address(l)) {
        buf_printf(ret_why, "inherited descriptor %d is of an unknown family", fd);
        return ERR_INVALID;
    }
    if (l->is_unix && inherited->owns_name) {
        own_name(l);
    }
    return ERR_OK;
}
