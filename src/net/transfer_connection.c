// SPDX-License-Identifier: Apache-2.0
// The connections of a lane. This file checks which addresses they may connect to, and whether an
// idle connection may be reused. Runs on the pool's worker.
//
// Between two requests, no bytes may arrive on a connection. If bytes arrive (a second answer, the
// answer to a cancelled upload, a server's goodbye), curl still takes the connection for usable,
// and would read them as the answer to the next request. So we check the connection ourselves just
// before a request is sent.
//
// At that moment curl tells us only the local port, not the descriptor. So the lane records the
// sockets that it opened. Two connections to different addresses may have the same local port. Then
// bytes on either of them count against both, which costs no more than a new connection.
//
// Under TLS, session tickets and the like are bytes too. Servers usually send them before the first
// answer, and curl reads them with it. If a server sends them later, its connection is not reused.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <string.h>
#include <sys/socket.h>

#include "net/transfer_private.h"
#include "stats/stats.h"

// --- Addresses -----------------------------------------------------------------------------------

// Addresses at which clouds hand out credentials to any local caller are the link-local addresses
// and a few others. They are also recognised if the IPv4 address is written as IPv6 (mapped,
// compatible, NAT64, 6to4).
static bool v4_is_metadata(const uint8_t a[4])
{
    static const uint8_t alibaba[4] = {100, 100, 100, 200};
    return (a[0] == 169 && a[1] == 254) || memcmp(a, alibaba, sizeof(alibaba)) == 0;
}

static bool v6_is_metadata(const struct in6_addr *v6)
{
    // fd00:ec2::254 (EC2), fd00:ec2::23 (EKS), fd20:ce::254 (Google).
    static const uint8_t known[][16] = {
        {0xfd, 0x00, 0x0e, 0xc2, [14] = 0x02, [15] = 0x54},
        {0xfd, 0x00, 0x0e, 0xc2, [15] = 0x23},
        {0xfd, 0x20, 0x00, 0xce, [14] = 0x02, [15] = 0x54},
    };
    static const uint8_t nat64[12] = {0x00, 0x64, 0xff, 0x9b};
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (memcmp(v6->s6_addr, known[i], sizeof(known[i])) == 0) {
            return true;
        }
    }
    bool holds_v4 = IN6_IS_ADDR_V4MAPPED(v6) || IN6_IS_ADDR_V4COMPAT(v6) ||
                    memcmp(v6->s6_addr, nat64, sizeof(nat64)) == 0;
    bool is_6to4 = v6->s6_addr[0] == 0x20 && v6->s6_addr[1] == 0x02;
    return IN6_IS_ADDR_LINKLOCAL(v6) || (holds_v4 && v4_is_metadata(&v6->s6_addr[12])) ||
           (is_6to4 && v4_is_metadata(&v6->s6_addr[2]));
}

bool transfer_address_is_metadata(const struct sockaddr *addr)
{
    if (addr->sa_family == AF_INET) {
        uint8_t v4[4];
        memcpy(v4, &((const struct sockaddr_in *)(const void *)addr)->sin_addr, sizeof(v4));
        return v4_is_metadata(v4);
    }
    return addr->sa_family == AF_INET6 &&
           v6_is_metadata(&((const struct sockaddr_in6 *)(const void *)addr)->sin6_addr);
}

static enum transfer_reach v4_reach(const uint8_t a[4])
{
    bool is_local = a[0] == 0 || a[0] == 127 || (a[0] == 169 && a[1] == 254);
    bool is_private = a[0] == 10 || (a[0] == 172 && (a[1] & 0xf0) == 16) ||
                      (a[0] == 192 && a[1] == 168) || (a[0] == 100 && (a[1] & 0xc0) == 64) ||
                      (a[0] == 192 && a[1] == 0 && a[2] == 0) ||
                      (a[0] == 198 && (a[1] & 0xfe) == 18);
    return is_local     ? TRANSFER_REACH_LOCAL
           : is_private ? TRANSFER_REACH_PRIVATE
                        : TRANSFER_REACH_PUBLIC;
}

static enum transfer_reach v6_reach(const struct in6_addr *v6)
{
    static const uint8_t nat64[12] = {0x00, 0x64, 0xff, 0x9b};
    const uint8_t *a = v6->s6_addr;
    if (IN6_IS_ADDR_LOOPBACK(v6) || IN6_IS_ADDR_UNSPECIFIED(v6) || IN6_IS_ADDR_LINKLOCAL(v6)) {
        return TRANSFER_REACH_LOCAL;
    }
    if (IN6_IS_ADDR_V4MAPPED(v6) || IN6_IS_ADDR_V4COMPAT(v6) ||
        memcmp(a, nat64, sizeof(nat64)) == 0) {
        return v4_reach(a + 12);
    }
    if (a[0] == 0x20 && a[1] == 0x02) { // 6to4
        return v4_reach(a + 2);
    }
    bool is_private = (a[0] & 0xfe) == 0xfc || IN6_IS_ADDR_SITELOCAL(v6);
    return is_private ? TRANSFER_REACH_PRIVATE : TRANSFER_REACH_PUBLIC;
}

enum transfer_reach transfer_reach_of(const struct sockaddr *addr)
{
    if (addr->sa_family == AF_INET) {
        uint8_t v4[4];
        memcpy(v4, &((const struct sockaddr_in *)(const void *)addr)->sin_addr, sizeof(v4));
        return v4_reach(v4);
    }
    return addr->sa_family == AF_INET6
               ? v6_reach(&((const struct sockaddr_in6 *)(const void *)addr)->sin6_addr)
               : TRANSFER_REACH_LOCAL;
}

enum transfer_reach transfer_reach_of_text(const char *address)
{
    uint8_t v4[4];
    struct in6_addr v6;
    return inet_pton(AF_INET, address, v4) == 1     ? v4_reach(v4)
           : inet_pton(AF_INET6, address, &v6) == 1 ? v6_reach(&v6)
                                                    : TRANSFER_REACH_ANY;
}

enum transfer_reach transfer_reach_of_peer(const struct transfer *t)
{
    char *address = NULL;
    bool known = !t->is_proxied &&
                 curl_easy_getinfo(t->easy, CURLINFO_PRIMARY_IP, &address) == CURLE_OK &&
                 address != NULL;
    enum transfer_reach reach = known ? transfer_reach_of_text(address) : TRANSFER_REACH_ANY;
    return reach != TRANSFER_REACH_ANY ? reach : TRANSFER_REACH_PUBLIC;
}

// --- Before a request ----------------------------------------------------------------------------

static int port_of(curl_socket_t fd)
{
    struct sockaddr_storage addr = {0};
    socklen_t len = sizeof(addr);
    if (getsockname(fd, (struct sockaddr *)&addr, &len) != 0) {
        return 0;
    }
    if (addr.ss_family == AF_INET) {
        return ntohs(((const struct sockaddr_in *)(const void *)&addr)->sin_port);
    }
    if (addr.ss_family == AF_INET6) {
        return ntohs(((const struct sockaddr_in6 *)(const void *)&addr)->sin6_port);
    }
    return 0;
}

// Returns true if the socket has unread bytes or an error, or if the peer has closed it.
static bool socket_has_news(curl_socket_t fd)
{
    char byte;
    ssize_t len = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return len >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

// Returns true if OpenSSL has unread bytes. curl may have read only a part of a TLS record. The
// rest is then in OpenSSL's buffer, not in the socket.
static bool tls_has_news(const struct transfer *t)
{
    const struct curl_tlssessioninfo *tls = NULL;
    if (curl_easy_getinfo(t->easy, CURLINFO_TLS_SSL_PTR, &tls) != CURLE_OK || tls == NULL ||
        tls->backend != CURLSSLBACKEND_OPENSSL || tls->internals == NULL) {
        return false;
    }
    return SSL_has_pending(tls->internals) == 1;
}

static bool is_reused(const struct transfer *t)
{
    long made = 1;
    return curl_easy_getinfo(t->easy, CURLINFO_NUM_CONNECTS, &made) == CURLE_OK && made == 0;
}

bool transfer_connection_is_clean(const struct transfer *t, int local_port)
{
    if (!is_reused(t) || local_port == 0) {
        return true;
    }
    bool has_news = tls_has_news(t);
    list_for_each(node, &t->lane->connections)
    {
        struct pool_connection *c = container_of(node, struct pool_connection, node);
        if (c->local_port == 0) {
            c->local_port = port_of(c->fd);
        }
        has_news |= c->local_port == local_port && socket_has_news(c->fd);
    }
    return !has_news;
}

bool transfer_reused_connection(const struct transfer *t)
{
    return t->wait != WAIT_CONNECT && is_reused(t);
}

// --- After its answer ----------------------------------------------------------------------------

// An origin that refuses an upload, or answers before it has received all of it, may take the rest
// of the upload for the next request. So such a connection is not reused.
void transfer_judge_upload(struct transfer *t)
{
    curl_off_t sent = 0;
    if (t->body_length == 0) {
        return;
    }
    (void)curl_easy_getinfo(t->easy, CURLINFO_SIZE_UPLOAD_T, &sent);
    if (t->status < 200 || t->status > 299 || (uint64_t)sent < t->body_length) {
        transfer_forbid_reuse(t);
        stats_add(COUNTER_origin_connections_upload, 1);
    }
}

void transfer_forbid_reuse(struct transfer *t)
{
    CURL_SET(t->easy, CURLOPT_FORBID_REUSE, 1L);
}
