// SPDX-License-Identifier: Apache-2.0
// The server: binds, accepts, gives each connection to the worker with the fewest connections,
// enforces the limits, drains.
//
// Worker 0 accepts. With one accepting thread the counts are exact, so that a few long-lived
// connections spread evenly. A connection is counted for its worker before it is sent there, so
// that a burst spreads too. Threads share only the counts and the state of draining.
//
// If descriptors run out, the server closes a reserved one, so that it can accept waiting
// connections and close them. A client whose connection closes retries sooner than one that waits.
// Then accepting pauses for a moment, so that the worker does not spin.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "http/http_private.h"
#include "stats/stats.h"

#define ACCEPTS_PER_EVENT 64u
#define QUEUE_MAX 65535u // connections that may wait in an accept queue when the server stops
#define SHED_WITHOUT_DESCRIPTORS_MAX 16
#define ACCEPT_PAUSE_MS 100
#define PEER_MAX 128

struct http_server {
    struct loop *loop;
    struct http_options options;
    struct http_quota quota;
    struct listener listeners[HTTP_LISTENERS_MAX];
    struct listener former; // stands for the listener of connections that a former process accepted
    unsigned listener_count;
    struct http_worker *workers;
    unsigned worker_count, next_worker;
    struct http_tls *tls;
    int spare_fd;
    struct timer pause;
    atomic_bool is_draining;
    atomic_uint undrained_count; // orders to drain or to recall that were not carried out yet
    atomic_int passing_fd;   // socket on which idle connections are passed on; -1: they are closed
    unsigned passed_at_once; // maximum connections per message; set before the orders are sent
    int recalled_fd;         // the other end, to take connections back; set before the orders
    bool is_started;         // http_server_start() was called; used by the main thread only
    struct http_taking *taking; // NULL: there was no former process
};

void http_server_set_limits(struct http_server *server, const struct http_limits *limits)
{
    http_quota_set(&server->quota, limits);
}

struct http_limits http_server_limits(const struct http_server *server)
{
    return http_quota_limits(&server->quota);
}

unsigned http_server_connections(const struct http_server *server)
{
    return atomic_load_explicit(&server->quota.connection_count, memory_order_relaxed);
}

bool http_server_has_ended(const struct http_server *server)
{
    return atomic_load(&server->undrained_count) == 0 && http_server_connections(server) == 0;
}

// --- Accepting -----------------------------------------------------------------------------------

struct handover {
    struct message message;
    struct http_worker *hw;
    int fd;
    SSL *ssl;
    bool loopback;
    struct http_admission admission;
    char peer[PEER_MAX];
};

static void on_handover(struct worker *to, struct message *message)
{
    struct handover *h = container_of(message, struct handover, message);
    check(h->hw->worker == to);
    http_run_start(h->hw, h->fd, h->ssl, h->peer, h->loopback, &h->admission);
    free(h);
}

static struct http_worker *worker_with_fewest(struct http_server *server)
{
    unsigned best = server->next_worker;
    unsigned best_count = UINT32_MAX;
    for (unsigned i = 0; i < server->worker_count; i++) {
        unsigned at = (server->next_worker + i) % server->worker_count;
        unsigned count =
            atomic_load_explicit(&server->workers[at].connection_count, memory_order_relaxed);
        if (count < best_count) {
            best = at;
            best_count = count;
        }
    }
    server->next_worker = (best + 1) % server->worker_count;
    return &server->workers[best];
}

static void append_refusal(struct http_server *server, const struct http_refusal *refusal,
                           struct buf *out)
{
    struct headers headers = {0};
    struct buf body;
    buf_init(&body, 16384);
    server->options.handler.on_refused(server->options.handler.ctx, refusal, &headers, &body);
    buf_append_cstr(out, "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n");
    for (unsigned i = 0; i < headers.count; i++) {
        buf_append_span(out, headers.items[i].name);
        buf_append_cstr(out, ": ");
        buf_append_span(out, headers.items[i].value);
        buf_append_cstr(out, "\r\n");
    }
    buf_printf(out, "Content-Length: %zu\r\n\r\n", body.len);
    buf_append_span(out, buf_span(&body));
    buf_done(&body);
}

static void format_peer(const struct listener *l, const struct sockaddr_storage *addr,
                        socklen_t addr_len, char *ret_text, size_t size)
{
    if (l->is_unix) {
        snprintf(ret_text, size, "unix:");
    } else {
        http_address_format(addr, addr_len, ret_text, size);
    }
}

// Refuses a connection beyond the limits: sends 503 and closes, and never waits for the client. A
// client that expects TLS cannot read a reply, so none is sent.
static void shed(struct listener *l, int fd, const struct sockaddr_storage *addr,
                 socklen_t addr_len, enum counter why)
{
    struct http_server *server = l->server;
    struct worker *worker = server->workers[0].worker;
    char peer[PEER_MAX];
    format_peer(l, addr, addr_len, peer, sizeof(peer));
    const struct http_request request = {.version_minor = 1,
                                         .tls = l->is_tls,
                                         .peer = span_from_cstr(peer),
                                         .started_us = worker_now_us(worker)};
    const struct http_refusal refusal = {.err = ERR_OVERLOAD,
                                         .why = why,
                                         .worker = worker,
                                         .arena = arena_new(65536),
                                         .request = &request};
    stats_add(why, 1);
    if (l->is_tls) {
        server->options.handler.on_refused(server->options.handler.ctx, &refusal, NULL, NULL);
    } else {
        struct buf out;
        buf_init(&out, 32768);
        append_refusal(server, &refusal, &out);
        // Best effort. Reads the bytes that have arrived, because otherwise the close is a reset.
        (void)send(fd, out.ptr, out.len, MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)shutdown(fd, SHUT_WR);
        (void)recv(fd, server->workers[0].receive, HTTP_RECEIVE_SIZE, MSG_DONTWAIT);
        buf_done(&out);
    }
    arena_free(refusal.arena);
    close(fd);
}

// Gives the receive buffers of future connections the size that the room for sockets allows now.
static void listeners_follow_room(struct http_server *server)
{
    for (unsigned i = 0; i < server->listener_count; i++) {
        struct listener *l = &server->listeners[i];
        if (l->fd >= 0) {
            socket_room_apply_listener(l->fd, &l->room);
        }
    }
}

static void hand_over(struct listener *l, int fd, const struct sockaddr_storage *addr,
                      socklen_t addr_len)
{
    struct http_server *server = l->server;
    check(worker_is_mine(server->workers[0].worker));
    struct http_admission admission;
    uint64_t held = l->is_tls ? HTTP_TLS_BUSY_BYTES : 0;
    enum counter why;
    if (!http_quota_connection_enter(&server->quota, addr, fd, held, &admission, &why)) {
        shed(l, fd, addr, addr_len, why);
        return;
    }
    SSL *ssl = NULL;
    if (l->is_tls) {
        ssl = http_tls_accept(server->tls, fd);
        if (ssl == NULL) {
            http_quota_connection_leave(&server->quota, &admission, held);
            shed(l, fd, addr, addr_len, COUNTER_http_shed_connections);
            return;
        }
    }
    if (!l->is_unix) {
        int on = 1;
        // A failure only makes replies slower and delays the detection of dead peers.
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    }
    listeners_follow_room(server);
    struct handover *h = calloc(1, sizeof(*h));
    check(h != NULL);
    h->message.deliver = on_handover;
    h->hw = worker_with_fewest(server);
    h->fd = fd;
    h->ssl = ssl;
    h->admission = admission;
    h->loopback = l->is_unix || http_address_is_loopback(addr);
    format_peer(l, addr, addr_len, h->peer, sizeof(h->peer));
    atomic_fetch_add_explicit(&h->hw->connection_count, 1, memory_order_relaxed);
    mailbox_send(h->hw->worker, &h->message);
}

static void listeners_set(struct http_server *server, bool on)
{
    for (unsigned i = 0; i < server->listener_count; i++) {
        struct listener *l = &server->listeners[i];
        if (l->fd >= 0 && l->event_on != on) {
            check((on ? event_add(&l->event, NULL) : event_del(&l->event)) == 0);
            l->event_on = on;
        }
    }
}

static int open_spare(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void accept_without_descriptors(struct listener *l)
{
    struct http_server *server = l->server;
    stats_add(COUNTER_http_accept_paused, 1);
    log_warn_condition("accept_paused", "why=\"out of file descriptors\" pause_ms=%d",
                       ACCEPT_PAUSE_MS);
    for (unsigned i = 0; i < SHED_WITHOUT_DESCRIPTORS_MAX && server->spare_fd >= 0; i++) {
        close(server->spare_fd);
        server->spare_fd = -1;
        struct sockaddr_storage addr = {0};
        socklen_t len = sizeof(addr);
        int fd = accept4(l->fd, (struct sockaddr *)&addr, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            break;
        }
        shed(l, fd, &addr, len, COUNTER_http_shed_connections);
        server->spare_fd = open_spare();
    }
    if (server->spare_fd < 0) {
        server->spare_fd = open_spare();
    }
    listeners_set(server, false);
    timer_start(&server->pause, ACCEPT_PAUSE_MS);
}

static void on_pause_over(struct timer *timer)
{
    struct http_server *server = container_of(timer, struct http_server, pause);
    if (server->spare_fd < 0) {
        server->spare_fd = open_spare();
    }
    if (!atomic_load(&server->is_draining)) {
        listeners_set(server, true);
    }
}

static void accept_some(struct listener *l, unsigned max)
{
    for (unsigned i = 0; i < max; i++) {
        struct sockaddr_storage addr = {0};
        socklen_t len = sizeof(addr);
        int client = accept4(l->fd, (struct sockaddr *)&addr, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (client >= 0) {
            hand_over(l, client, &addr, len);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            accept_without_descriptors(l);
            return;
        }
        if (errno == EAGAIN) {
            return;
        }
        // Any other error concerns only this connection (aborted, reset). The next one is accepted.
    }
}

static void on_acceptable(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd;
    (void)what;
    accept_some(ctx, ACCEPTS_PER_EVENT);
}

// Handles a connection as if it had just been accepted. Runs on the worker that accepts.
static void adopt(void *ctx, int fd)
{
    struct http_server *server = ctx;
    struct sockaddr_storage addr = {0};
    socklen_t len = sizeof(addr);
    if (getpeername(fd, (struct sockaddr *)&addr, &len) != 0) {
        close(fd); // the client has closed it
        return;
    }
    server->former.is_unix = addr.ss_family == AF_UNIX;
    hand_over(&server->former, fd, &addr, len);
}

void http_server_take_over(struct http_server *server, int fd)
{
    check(server->taking == NULL);
    server->taking = http_taking_start(server->workers[0].worker, fd, adopt, server);
}

// --- Listening -----------------------------------------------------------------------------------

static enum err need_tls(struct http_server *server, struct buf *ret_why)
{
    if (server->tls == NULL) {
        buf_append_cstr(ret_why, "a tls: listener needs a certificate and a key file");
        return ERR_INVALID;
    }
    return ERR_OK;
}

// Adds one listener: at `address`, or `inherited` if it is not NULL.
static enum err listen_one(struct http_server *server, const char *address,
                           const struct http_inherited *inherited, struct buf *ret_why)
{
    if (server->listener_count == HTTP_LISTENERS_MAX) {
        buf_printf(ret_why, "at most %d listeners", HTTP_LISTENERS_MAX);
        return ERR_INVALID;
    }
    struct listener *l = &server->listeners[server->listener_count];
    *l = (struct listener){.server = server, .fd = -1};
    l->is_tls = inherited != NULL ? inherited->is_tls
                                  : span_starts_with(span_from_cstr(address), SPAN("tls:"));
    enum err err = l->is_tls ? need_tls(server, ret_why) : ERR_OK;
    if (err == ERR_OK) {
        err = inherited != NULL
                  ? http_listener_inherit(l, inherited, ret_why)
                  : http_listener_open(l, address, server->options.unix_mode, ret_why);
    }
    server->listener_count += err == ERR_OK;
    listeners_follow_room(server);
    return err;
}

enum err http_certificate_load(struct http_server *server, const char *cert_file,
                               const char *key_file, struct http_certificate **ret_certificate,
                               struct buf *ret_why)
{
    *ret_certificate = NULL;
    return server->tls != NULL
               ? http_tls_load(server->tls, cert_file, key_file, ret_certificate, ret_why)
               : ERR_OK;
}

void http_certificate_use(struct http_server *server, struct http_certificate *certificate)
{
    if (certificate != NULL) {
        http_tls_use(certificate, server->workers[0].worker);
    }
}

// --- Life ----------------------------------------------------------------------------------------

static void make_workers(struct http_server *server)
{
    server->worker_count = loop_worker_count(server->loop);
    server->workers = calloc(server->worker_count, sizeof(server->workers[0]));
    check(server->workers != NULL);
    for (unsigned i = 0; i < server->worker_count; i++) {
        struct http_worker *hw = &server->workers[i];
        hw->worker = loop_worker(server->loop, i);
        hw->quota = &server->quota;
        hw->options = &server->options;
        hw->date_s = -1;
        hw->passing = http_passing_none;
        list_init(&hw->connections);
        atomic_init(&hw->connection_count, 0);
        hw->receive = malloc(HTTP_RECEIVE_SIZE);
        check(hw->receive != NULL);
        if (server->tls != NULL) {
            hw->record = malloc(HTTP_TLS_RECORD);
            check(hw->record != NULL);
        }
    }
}

enum err http_server_new(struct loop *loop, const struct http_options *options,
                         struct http_server **ret_server, struct buf *ret_why)
{
    check(options->handler.on_request != NULL);
    check(options->handler.on_refused != NULL);
    struct http_server *server = calloc(1, sizeof(*server));
    check(server != NULL);
    server->loop = loop;
    server->options = *options;
    server->tls = options->tls;
    server->former = (struct listener){.server = server, .fd = -1};
    atomic_init(&server->passing_fd, -1);
    server->spare_fd = open_spare();
    http_quota_init(&server->quota, &options->limits);
    enum err err = ERR_OK;
    for (unsigned i = 0; i < options->inherited_count && err == ERR_OK; i++) {
        err = listen_one(server, NULL, &options->inherited[i], ret_why);
    }
    for (unsigned i = 0; i < options->listen_count && err == ERR_OK; i++) {
        err = listen_one(server, options->listen[i], NULL, ret_why);
    }
    if (err != ERR_OK) {
        http_server_free(server);
        return err;
    }
    make_workers(server);
    timer_init(server->workers[0].worker, &server->pause, on_pause_over);
    struct event_base *base = worker_event_base(server->workers[0].worker);
    for (unsigned i = 0; i < server->listener_count; i++) {
        struct listener *l = &server->listeners[i];
        check(event_assign(&l->event, base, l->fd, EV_READ | EV_PERSIST, on_acceptable, l) == 0);
    }
    *ret_server = server;
    return ERR_OK;
}

// A message that makes a worker call carry_out().
struct order {
    struct message message;
    struct http_server *server;
    void (*carry_out)(struct http_server *server, unsigned worker);
};

static void on_order(struct worker *to, struct message *message)
{
    struct order *order = container_of(message, struct order, message);
    order->carry_out(order->server, worker_index(to));
    free(order);
}

static void send_order(struct http_server *server, unsigned worker,
                       void (*carry_out)(struct http_server *server, unsigned worker))
{
    struct order *order = calloc(1, sizeof(*order));
    check(order != NULL);
    order->message.deliver = on_order;
    order->server = server;
    order->carry_out = carry_out;
    mailbox_send_from_any_thread(server->workers[worker].worker, &order->message);
}

static void send_orders(struct http_server *server,
                        void (*carry_out)(struct http_server *server, unsigned worker))
{
    for (unsigned i = 0; i < server->worker_count; i++) {
        send_order(server, i, carry_out);
    }
}

static void accept_clients(struct http_server *server, unsigned worker)
{
    check(worker == 0);
    if (!atomic_load(&server->is_draining)) {
        listeners_set(server, true);
    }
}

void http_server_start(struct http_server *server)
{
    server->is_started = true;
    send_order(server, 0, accept_clients);
}

const char *http_server_address(const struct http_server *server, unsigned i)
{
    return i < server->listener_count ? server->listeners[i].address : NULL;
}

int http_server_listener(const struct http_server *server, unsigned i, bool *ret_owns_name)
{
    check(i < server->listener_count);
    *ret_owns_name = server->listeners[i].name.path[0] != '\0';
    return server->listeners[i].fd;
}

static void listener_close(struct listener *l)
{
    if (l->fd < 0) {
        return;
    }
    if (l->event_on) {
        check(event_del(&l->event) == 0);
        l->event_on = false;
    }
    unix_socket_remove(&l->name);
    l->name.path[0] = '\0';
    close(l->fd);
    l->fd = -1;
}

// Stops accepting. Closes the listeners, unless another process takes over (is_followed). That
// process keeps their names, and the clients that wait in their queues.
static void drain_listeners(struct http_server *server, bool is_followed)
{
    listeners_set(server, false);
    for (unsigned i = 0; i < server->listener_count && !is_followed; i++) {
        if (server->listeners[i].fd >= 0) {
            // Accepts connections that the kernel has completed, because closing the listener would
            // reset them.
            accept_some(&server->listeners[i], QUEUE_MAX);
            listener_close(&server->listeners[i]);
        }
    }
    timer_stop(&server->pause);
}

// Returns how many orders to drain were pending before this one was carried out.
static unsigned drain_worker(struct http_server *server, unsigned worker,
                             const struct http_passing *passing)
{
    if (worker == 0) {
        drain_listeners(server, passing->fd >= 0);
        http_taking_drain(server->taking, passing);
    }
    http_connection_drain_all(&server->workers[worker], passing);
    unsigned pending = atomic_fetch_sub(&server->undrained_count, 1);
    check(pending > 0);
    return pending;
}

static void drain(struct http_server *server, unsigned worker)
{
    struct http_passing passing = {atomic_load(&server->passing_fd), server->passed_at_once};
    (void)drain_worker(server, worker, &passing);
}

void http_server_drain(struct http_server *server)
{
    if (atomic_exchange(&server->is_draining, true)) {
        return;
    }
    atomic_fetch_add(&server->undrained_count, server->worker_count);
    send_orders(server, drain);
}

void http_server_pass_on(struct http_server *server, int fd, unsigned at_once)
{
    check(at_once > 0 && at_once <= HTTP_PASSED_AT_ONCE);
    server->passed_at_once = at_once;
    atomic_store(&server->passing_fd, fd);
    http_server_drain(server);
}

static void recall(struct http_server *server, unsigned worker)
{
    check(worker == 0);
    http_taking_recall(server->recalled_fd, adopt, server);
    atomic_fetch_sub(&server->undrained_count, 1);
}

static void call_off(struct http_server *server, unsigned worker)
{
    bool is_last = drain_worker(server, worker, &http_passing_none) == 2;
    if (is_last) { // no worker sends connections to the other process now
        send_order(server, 0, recall);
    }
}

void http_server_call_off(struct http_server *server, int fd)
{
    server->recalled_fd = fd;
    atomic_store(&server->passing_fd, -1);
    atomic_fetch_add(&server->undrained_count,
                     server->worker_count + 1); // one more for the recall, which runs last
    send_orders(server, call_off);
}

static void end_waiting(struct http_server *server, unsigned worker)
{
    http_connection_end_waiting(&server->workers[worker]);
}

void http_server_end_waiting(struct http_server *server)
{
    send_orders(server, end_waiting);
}

static void close_all(struct http_server *server, unsigned worker)
{
    struct http_worker *hw = &server->workers[worker];
    hw->is_closed = true;
    http_connection_drain_all(hw, &hw->passing); // first, because it may pass idle connections on
    http_run_end_all(hw);
}

void http_server_close(struct http_server *server)
{
    send_orders(server, close_all);
}

void http_server_free(struct http_server *server)
{
    if (server == NULL) {
        return;
    }
    bool is_followed = atomic_load(&server->passing_fd) >= 0;
    for (unsigned i = 0; i < server->listener_count; i++) {
        struct listener *l = &server->listeners[i];
        if (is_followed || (l->is_inherited && !server->is_started)) {
            l->name.path[0] =
                '\0'; // the name belongs to the process that follows, or still to the former one
        }
        listener_close(l);
    }
    for (unsigned i = 0; server->workers != NULL && i < server->worker_count; i++) {
        http_run_end_all(&server->workers[i]);
        free(server->workers[i].receive);
        free(server->workers[i].record);
    }
    if (server->workers != NULL) {
        timer_done(&server->pause);
    }
    free(server->workers);
    http_quota_done(&server->quota);
    http_taking_free(server->taking);
    http_tls_free(server->tls);
    if (server->spare_fd >= 0) {
        close(server->spare_fd);
    }
    free(server);
}
