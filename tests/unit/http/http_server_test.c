// SPDX-License-Identifier: Apache-2.0
// Proves: addresses and their errors, even spread over workers, limits, drain,
// unix sockets, TLS and its reload.
#include "test.h"
#include "waiting.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "front.h"
#include "http/http_private.h"
#include "stats/stats.h"

#define HOST "Host: localhost\r\n"
#define NEXT "GET /small HTTP/1.1\r\n" HOST "\r\n"

static void temp_path(char *ret_path, size_t size, const char *name)
{
    const char *dir = getenv("TMPDIR");
    snprintf(ret_path, size, "%s/forebay-%ld-%s", dir == NULL ? "/tmp" : dir, (long)getpid(), name);
}

static void assert_small(int fd)
{
    struct client_reply reply;
    client_send_text(fd, NEXT);
    cr_assert(client_read(fd, false, &reply) && reply.status == 200 && reply.body_len == 6);
    client_reply_done(&reply);
}

// The one refusal was counted for this reason, and the handler learnt of it.
static void assert_reported(struct front *f, enum counter why)
{
    cr_assert(front_counted(f, why) == 1);
    cr_assert(f->refusals == 1 && f->refused_for == (unsigned)why);
}

static void assert_listen_fails(const char *address, enum err want)
{
    struct loop_options loop_options = {.worker_count = 1, .engine = DISK_ENGINE_THREADS};
    struct loop *loop;
    struct http_server *server;
    struct front *f = front_new((struct http_options){0}, 1);
    struct buf why;
    buf_init(&why, 4096);
    cr_assert(loop_new(&loop_options, &loop, &why) == ERR_OK);
    struct http_options options = {.listen = &address, .listen_count = 1};
    if (address == NULL) {
        options.listen = &f->address;
    }
    options.handler.on_request = (void (*)(void *, struct http_exchange *))(uintptr_t)1;
    options.handler.on_refused =
        (void (*)(void *, const struct http_refusal *, struct headers *, struct buf *))(uintptr_t)1;
    enum err err = http_server_new(loop, &options, &server, &why);
    cr_assert(err == want, "%s: %s", address, error_name(err));
    cr_assert(buf_ok(&why) && why.len > 0 && memchr(why.ptr, '\n', why.len) == NULL);
    buf_done(&why);
    loop_free(loop);
    front_free(f);
}

// Each wrong address is reported in one line.
Test(http_server, wrong_addresses)
{
    assert_listen_fails(NULL, ERR_IN_USE);
    static const char *const rows[] = {"",      "127.0.0.1",       "127.0.0.1:",    "127.0.0.1:x",
                                       ":9000", "127.0.0.1:70000", "::1:9000",      "[::1:9000",
                                       "unix:", "tls:127.0.0.1:0", "203.0.113.7:0", "[]:0"};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        assert_listen_fails(rows[i], ERR_INVALID);
    }
}

// For port 0 the kernel chooses, and the server reports the choice. Several listeners keep their
// order.
Test(http_server, addresses)
{
    static const char *const listen[] = {"127.0.0.1:0", "localhost:0"};
    struct front *f = front_new((struct http_options){.listen = listen, .listen_count = 2}, 1);
    cr_assert(strncmp(http_server_address(f->server, 0), "127.0.0.1:", 10) == 0);
    cr_assert(strcmp(http_server_address(f->server, 0), "127.0.0.1:0") != 0);
    cr_assert(http_server_address(f->server, 2) == NULL);
    for (unsigned i = 0; i < 2; i++) {
        int fd = client_connect(http_server_address(f->server, i));
        assert_small(fd);
        close(fd);
    }
    front_free(f);
}

// A few long-lived connections are spread evenly, also when some leave.
Test(http_server, even_spread)
{
    enum { WORKERS = 4, EACH = 8 };
    struct front *f = front_new((struct http_options){0}, WORKERS);
    int fds[WORKERS * EACH];
    unsigned per_worker[WORKERS] = {0};
    for (unsigned i = 0; i < WORKERS * EACH; i++) {
        fds[i] = client_connect(f->address);
    }
    for (unsigned i = 0; i < WORKERS * EACH; i++) {
        struct client_reply reply;
        char worker[16];
        client_send_text(fds[i], NEXT);
        cr_assert(client_read(fds[i], false, &reply));
        cr_assert(client_header(&reply, "X-Worker", worker, sizeof(worker)));
        per_worker[strtoul(worker, NULL, 10)]++;
        client_reply_done(&reply);
    }
    for (unsigned i = 0; i < WORKERS; i++) {
        cr_assert(per_worker[i] == EACH, "worker %u has %u", i, per_worker[i]);
    }
    cr_assert(http_server_connections(f->server) == WORKERS * EACH);
    for (unsigned i = 0; i < WORKERS * EACH; i++) {
        close(fds[i]);
    }
    wait_for(http_server_connections(f->server) == 0);
    front_free(f);
}

// max_connections at its limit and one above: 503 and a close, and the others continue.
Test(http_server, connection_limit)
{
    struct front *f = front_new((struct http_options){.limits.max_connections = 4}, 2);
    int fds[4];
    for (unsigned i = 0; i < 4; i++) {
        fds[i] = client_connect(f->address);
        assert_small(fds[i]);
    }
    int fd = client_connect(f->address);
    struct client_reply reply;
    char value[64];
    cr_assert(client_read(fd, false, &reply) && reply.status == 503 && reply.close &&
              reply.complete);
    cr_assert(client_header(&reply, "Content-Type", value, sizeof(value)));
    client_reply_done(&reply);
    cr_assert(client_at_end(fd));
    close(fd);
    assert_reported(f, COUNTER_http_shed_connections);
    assert_small(fds[0]);
    close(fds[1]);
    wait_for(http_server_connections(f->server) <= 3);
    fd = client_connect(f->address);
    assert_small(fd);
    close(fd);
    for (unsigned i = 0; i < 4; i++) {
        if (i != 1) {
            close(fds[i]);
        }
    }
    front_free(f);
}

static void wait_held(const struct front *f, unsigned long least, unsigned long most)
{
    unsigned long held;
    wait_for((held = front_counted(f, COUNTER_http_held_bytes)) >= least && held <= most);
}

static int send_long_head(const struct front *f)
{
    char part[9000];
    int fd = client_connect(f->address);
    memset(part, 'x', sizeof(part));
    client_send_text(fd, "GET /small HTTP/1.1\r\n" HOST "X: ");
    client_send(fd, part, sizeof(part));
    return fd;
}

// Many headers are counted with their cost beyond their bytes, and are given back with their
// exchange.
Test(http_server, many_headers_are_counted_and_refused_above_the_limit)
{
    struct front *f = front_new((struct http_options){.limits.max_held_bytes = 40000}, 2);
    struct client_reply reply;
    struct buf b;
    buf_init(&b, 1 << 16);
    buf_append_cstr(&b, "GET /never HTTP/1.1\r\n" HOST);
    for (unsigned i = 1; i < 2 * HTTP_HEADERS_FREE; i++) {
        buf_append_cstr(&b, "a:\r\n");
    }
    buf_append_cstr(&b, "\r\n");
    uint64_t each = 2 * (b.len + 2 * HTTP_HEADERS_FREE * HTTP_HEADER_BYTES);
    int first = client_connect(f->address), second = client_connect(f->address);
    client_send(first, b.ptr, b.len);
    wait_held(f, each, each);
    client_send(second, b.ptr, b.len);
    cr_assert(client_read(second, false, &reply) && reply.status == 503);
    client_reply_done(&reply);
    assert_reported(f, COUNTER_http_shed_memory);
    assert_small(second);
    client_reset(first);
    wait_held(f, 0, 0);
    close(second);
    buf_done(&b);
    front_free(f);
}

// max_held_bytes: above it, a long incomplete head is refused, but short ones never are. Admitted
// requests are answered, and room is freed when they end.
Test(http_server, memory_limit)
{
    struct front *f = front_new((struct http_options){.limits.max_held_bytes = 40000}, 2);
    struct client_reply reply;
    int first = send_long_head(f), second = send_long_head(f);
    wait_held(f, 36000, 40000);
    int third = send_long_head(f);
    cr_assert(client_read(third, false, &reply) && reply.status == 503 && reply.close);
    client_reply_done(&reply);
    cr_assert(client_at_end(third));
    close(third);
    assert_reported(f, COUNTER_http_shed_memory);
    third = client_connect(f->address);
    assert_small(third);
    client_reset(first);
    wait_held(f, 18000, 20000);
    client_send_text(second, "\r\n\r\n");
    cr_assert(client_read(second, false, &reply) && reply.status == 200);
    client_reply_done(&reply);
    wait_held(f, 0, 0);
    assert_small(second);
    close(second);
    close(third);
    front_free(f);
}

// Two requests are in flight, and one more gets 503, which `why` counts. Its connection is kept.
static void refuses_the_third_request(const struct http_limits *limits, enum counter why)
{
    struct front *f = front_new((struct http_options){.limits = *limits}, 2);
    int held[2];
    for (unsigned i = 0; i < 2; i++) {
        held[i] = client_connect(f->address);
        client_send_text(held[i], "GET /never HTTP/1.1\r\n" HOST "\r\n");
    }
    wait_for(f->requests >= 2);
    int fd = client_connect(f->address);
    struct client_reply reply;
    client_send_text(fd, NEXT);
    cr_assert(client_read(fd, false, &reply) && reply.status == 503 && !reply.close);
    client_reply_done(&reply);
    assert_reported(f, why);
    cr_assert(f->requests == 2);
    client_reset(held[0]);
    wait_for(f->gone >= 1);
    assert_small(fd);
    close(fd);
    client_reset(held[1]);
    wait_for(f->gone >= 2);
    front_free(f);
}

Test(http_server, request_above_max_inflight_is_refused)
{
    refuses_the_third_request(&(struct http_limits){.max_inflight = 2}, COUNTER_http_shed_inflight);
}

Test(http_server, request_without_memory_counts_as_refused_for_memory)
{
    refuses_the_third_request(&(struct http_limits){.max_inflight_in_memory = 2},
                              COUNTER_http_shed_memory);
}

// Drain: idle connections close, the listener is removed, and requests in flight end whole and then
// close.
Test(http_server, drain)
{
    struct front *f = front_new((struct http_options){0}, 2);
    int idle = client_connect(f->address), busy = client_connect(f->address);
    assert_small(idle);
    assert_small(busy);
    client_send_text(busy, "GET /bytes?n=30000000&slice=65536&wait=2 HTTP/1.1\r\n" HOST "\r\n");
    char first[512];
    client_read_exactly(busy, first, 20);
    http_server_drain(f->server);
    http_server_drain(f->server);
    cr_assert(client_at_end(idle));
    size_t have = 20;
    while (have < 4 || memcmp(first + have - 4, "\r\n\r\n", 4) != 0) {
        client_read_exactly(busy, first + have++, 1);
    }
    char *body = malloc(30000000);
    client_read_exactly(busy, body, 30000000);
    for (size_t i = 0; i < 30000000; i++) {
        cr_assert(body[i] == front_pattern(i));
    }
    free(body);
    client_send_text(busy, NEXT);
    struct client_reply reply;
    if (client_read(busy, false,
                    &reply)) { // answered with a close, as the earlier head
                               // announced none
        cr_assert(reply.close);
        client_reply_done(&reply);
    }
    cr_assert(client_at_end(busy));
    cr_assert(client_connect(f->address) < 0);
    close(idle);
    close(busy);
    wait_for(http_server_connections(f->server) == 0);
    front_free(f);
}

// Stopping without draining cuts requests in flight: on_done still runs once, and nothing leaks.
Test(http_server, free_with_open_exchanges)
{
    struct front *f = front_new((struct http_options){0}, 2);
    int fds[6];
    for (unsigned i = 0; i < 6; i++) {
        fds[i] = client_connect(f->address);
        client_send_text(fds[i], i % 3 == 0   ? "GET /never HTTP/1.1\r\n" HOST "\r\n"
                                 : i % 3 == 1 ? "GET /bytes?n=100000000 HTTP/1.1\r\n" HOST "\r\n"
                                              : "PUT /put HTTP/1.1\r\n" HOST
                                                "Content-Length: 9\r\n\r\n");
    }
    wait_for(f->requests >= 6);
    front_free(f);
    for (unsigned i = 0; i < 6; i++) {
        close(fds[i]);
    }
}

// A unix socket works, replaces a file left by a killed process, and refuses
// one that is in use.
Test(http_server, unix_socket)
{
    char path[200], address[256];
    temp_path(path, sizeof(path), "sock");
    snprintf(address, sizeof(address), "unix:%s", path);
    const char *listen[] = {address};
    struct http_options options = {.listen = listen, .listen_count = 1};
    struct front *f = front_new(options, 1);
    int fd = client_connect(f->address);
    assert_small(fd);
    struct client_reply reply;
    client_send_text(fd, "GET /file?n=300000 HTTP/1.1\r\n" HOST "\r\n");
    cr_assert(client_read(fd, false, &reply) && reply.complete && reply.body_len == 300000);
    client_reply_done(&reply);
    assert_listen_fails(address, ERR_IN_USE);
    close(fd);
    front_free(f);
    cr_assert(access(path, F_OK) != 0);
    // A killed process leaves a socket file that is bound, but nobody listens.
    int stale = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    cr_assert(strlen(path) < sizeof(un.sun_path));
    memcpy(un.sun_path, path, strlen(path));
    cr_assert(bind(stale, (const struct sockaddr *)&un, sizeof(un)) == 0);
    close(stale);
    f = front_new(options, 1);
    fd = client_connect(f->address);
    assert_small(fd);
    close(fd);
    front_free(f);
}

// An inherited listening socket is used. A descriptor that is no socket is refused.
Test(http_server, inherited)
{
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert(listen(listening, 16) == 0);
    struct http_inherited inherited = {.fd = listening};
    struct front *f =
        front_new((struct http_options){.inherited = &inherited, .inherited_count = 1}, 1);
    cr_assert(strncmp(f->address, "0.0.0.0:", 8) == 0);
    int fd = client_connect(f->address);
    assert_small(fd);
    cr_assert(fcntl(listening, F_GETFL) & O_NONBLOCK);
    cr_assert(fcntl(listening, F_GETFD) & FD_CLOEXEC);
    close(fd);
    front_free(f);
}

// Writes the name of the algorithm that decides how fast the socket sends.
static void congestion_control(int fd, char *ret_name, socklen_t size)
{
    memset(ret_name, 0, size);
    cr_assert(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, ret_name, &size) == 0);
}

// Starts a server on a listener that is bound to `host`, and writes the listener's algorithm.
static void congestion_control_of_listener(uint32_t host, char *ret_name, socklen_t size)
{
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(host)};
    cr_assert(bind(listening, (const struct sockaddr *)&addr, sizeof(addr)) == 0);
    cr_assert(listen(listening, 16) == 0);
    struct http_inherited inherited = {.fd = listening};
    struct front *f =
        front_new((struct http_options){.inherited = &inherited, .inherited_count = 1}, 1);
    congestion_control(listening, ret_name, size);
    front_free(f);
}

Test(http_server, listener_on_loopback_does_not_pace_what_it_sends)
{
    char systems[16], name[16];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    congestion_control(fd, systems, sizeof(systems));
    close(fd);
    congestion_control_of_listener(INADDR_LOOPBACK, name, sizeof(name));
    cr_assert_str_eq(name, "reno");
    congestion_control_of_listener(INADDR_ANY, name, sizeof(name));
    cr_assert_str_eq(name, systems);
}

// Without descriptors, new connections are shed and accepting pauses instead of spinning. Then it
// recovers.
Test(http_server, out_of_descriptors)
{
    struct front *f = front_new((struct http_options){0}, 1);
    int held = client_connect(f->address);
    assert_small(held);
    struct rlimit old;
    cr_assert(getrlimit(RLIMIT_NOFILE, &old) == 0);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    close(client);
    struct rlimit tight = {(rlim_t)client + 1, old.rlim_max};
    cr_assert(setrlimit(RLIMIT_NOFILE, &tight) == 0);
    int fd =
        client_connect(f->address); // takes the last descriptor: the server has none for its end
    cr_assert(fd >= 0);
    cr_assert(client_at_end(fd) || true); // shed: 503 bytes or a close
    close(fd);
    cr_assert(front_counted(f, COUNTER_http_accept_paused) >= 1);
    assert_small(held);
    cr_assert(setrlimit(RLIMIT_NOFILE, &old) == 0);
    fd = client_connect(f->address);
    assert_small(fd);
    close(fd);
    close(held);
    front_free(f);
}

// --- TLS
// -----------------------------------------------------------------------------------------

// A self-signed certificate for CN `name`.
static void write_certificate(const char *cert_path, const char *key_path, const char *name)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *x509 = X509_new();
    cr_assert(key != NULL && x509 != NULL);
    ASN1_INTEGER_set(X509_get_serialNumber(x509), 1);
    X509_gmtime_adj(X509_getm_notBefore(x509), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x509), 86400);
    X509_set_pubkey(x509, key);
    X509_NAME *subject = X509_get_subject_name(x509);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(x509, subject);
    cr_assert(X509_sign(x509, key, EVP_sha256()) > 0);
    FILE *file = fopen(cert_path, "w");
    cr_assert(file != NULL && PEM_write_X509(file, x509) == 1);
    fclose(file);
    file = fopen(key_path, "w");
    cr_assert(file != NULL && PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) == 1);
    fclose(file);
    X509_free(x509);
    EVP_PKEY_free(key);
}

struct tls_client {
    int fd;
    SSL_CTX *ctx;
    SSL *ssl;
};

static bool tls_connect(const char *address, int max_version, struct tls_client *c)
{
    c->fd = client_connect(address);
    c->ctx = SSL_CTX_new(TLS_client_method());
    if (max_version != 0) {
        SSL_CTX_set_max_proto_version(c->ctx, max_version);
        SSL_CTX_set_security_level(c->ctx, 0);
    }
    c->ssl = SSL_new(c->ctx);
    SSL_set_fd(c->ssl, c->fd);
    return SSL_connect(c->ssl) == 1;
}

static void tls_close(struct tls_client *c)
{
    SSL_free(c->ssl);
    SSL_CTX_free(c->ctx);
    close(c->fd);
}

static void tls_read_exactly(struct tls_client *c, char *bytes, size_t len)
{
    while (len > 0) {
        int n = SSL_read(c->ssl, bytes, (int)len);
        cr_assert(n > 0, "TLS read failed with %zu bytes missing", len);
        bytes += n;
        len -= (size_t)n;
    }
}

static void tls_get(struct tls_client *c, const char *head, char *ret_body, size_t len)
{
    int head_len = (int)strlen(head);
    cr_assert(head_len == 0 || SSL_write(c->ssl, head, head_len) == head_len);
    char text[1024];
    size_t have = 0;
    while (have < 4 || memcmp(text + have - 4, "\r\n\r\n", 4) != 0) {
        tls_read_exactly(c, text + have++, 1);
    }
    cr_assert(strncmp(text, "HTTP/1.1 200 ", 13) == 0);
    tls_read_exactly(c, ret_body, len);
}

static void tls_name(struct tls_client *c, char *ret_name, size_t size)
{
    X509 *x509 = SSL_get1_peer_certificate(c->ssl);
    X509_NAME_get_text_by_NID(X509_get_subject_name(x509), NID_commonName, ret_name, (int)size);
    X509_free(x509);
}

// Whether a new connection is served with a certificate of that name.
static bool tls_serves_as(struct front *f, const char *want)
{
    struct tls_client c;
    char name[64], body[6];
    cr_assert(tls_connect(f->address, 0, &c));
    tls_name(&c, name, sizeof(name));
    tls_get(&c, NEXT, body, sizeof(body));
    tls_close(&c);
    return strcmp(name, want) == 0;
}

// Requests, large bodies and uploads over TLS. Old versions are refused. New connections get a
// certificate that was loaded later.
Test(http_server, tls)
{
    char cert[200], key[200];
    temp_path(cert, sizeof(cert), "cert.pem");
    temp_path(key, sizeof(key), "key.pem");
    struct http_tls *tls = NULL;
    write_certificate(cert, key, "first");
    cr_assert_eq(http_tls_new(cert, key, &tls, NULL), ERR_OK);
    static const char *const listen[] = {"tls:127.0.0.1:0"};
    struct http_options options = {.listen = listen, .listen_count = 1, .tls = tls};
    struct front *f = front_new(options, 2);
    cr_assert(strncmp(f->address, "tls:127.0.0.1:", 14) == 0);
    struct tls_client c;
    char *body = malloc(3000000);
    char name[64];
    cr_assert(tls_connect(f->address, 0, &c));
    cr_assert(SSL_version(c.ssl) >= TLS1_2_VERSION);
    tls_name(&c, name, sizeof(name));
    cr_assert_str_eq(name, "first");
    for (unsigned i = 0; i < 3; i++) {
        tls_get(&c, NEXT, body, 6);
        tls_get(&c, "GET /bytes?n=3000000&wait=5 HTTP/1.1\r\n" HOST "\r\n", body, 3000000);
        for (size_t k = 0; k < 3000000; k++) {
            cr_assert(body[k] == front_pattern(k));
        }
    }
    const char *head = "PUT /slowput HTTP/1.1\r\n" HOST "Content-Length: 1000000\r\n\r\n";
    cr_assert(SSL_write(c.ssl, head, (int)strlen(head)) > 0);
    for (unsigned i = 0; i < 20; i++) {
        cr_assert(SSL_write(c.ssl, body, 50000) == 50000);
    }
    tls_get(&c, "", body, 8);
    cr_assert(strncmp(body, "1000000 ", 8) == 0);
    tls_close(&c);

    cr_assert(!tls_connect(f->address, TLS1_1_VERSION, &c));
    tls_close(&c);
    wait_for(front_counted(f, COUNTER_http_tls_failed) > 0);
    cr_assert(front_counted(f, COUNTER_http_tls_failed) == 1);

    char other_cert[200], other_key[200];
    struct http_certificate *other;
    struct buf why;
    temp_path(other_cert, sizeof(other_cert), "other-cert.pem");
    temp_path(other_key, sizeof(other_key), "other-key.pem");
    write_certificate(other_cert, other_key, "second");
    buf_init(&why, 1000);
    cr_assert(http_certificate_load(f->server, other_cert, key, &other, &why) == ERR_INVALID);
    cr_assert(why.len > 0 && tls_serves_as(f, "first"));
    cr_assert(http_certificate_load(f->server, other_cert, other_key, &other, &why) == ERR_OK);
    http_certificate_use(f->server, other);
    wait_for(tls_serves_as(f, "second"));
    buf_done(&why);
    unlink(other_cert);
    unlink(other_key);
    free(body);
    front_free(f);
    unlink(cert);
    unlink(key);
}

// Close: requests in flight are cut and their handlers are informed. Idle connections end, and
// nothing is left.
Test(http_server, close)
{
    struct front *f = front_new((struct http_options){0}, 2);
    int idle = client_connect(f->address), busy = client_connect(f->address);
    assert_small(idle);
    client_send_text(busy, "GET /bytes?n=30000000&slice=65536&wait=2 HTTP/1.1\r\n" HOST "\r\n");
    char first[20];
    client_read_exactly(busy, first, sizeof(first));
    http_server_drain(f->server);
    http_server_close(f->server);
    cr_assert(client_at_end(idle));
    wait_for(http_server_connections(f->server) == 0);
    wait_for(f->cut >= 1);
    cr_assert(front_counted(f, COUNTER_http_cut) == 1);
    close(idle);
    close(busy);
    front_free(f);
}
