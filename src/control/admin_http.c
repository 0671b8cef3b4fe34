// SPDX-License-Identifier: Apache-2.0
// The admin thread: an event loop of libevent's evhttp with at most two listening sockets.
// Everything here except admin_start(), admin_halt() and admin_stop() runs on that thread. Each
// connection carries one request and is cut after 10 s of silence. Heads and bodies are bounded.
// evhttp itself answers malformed requests.
//
// At most ADMIN_CONNECTIONS_MAX connections are open. When the limit is reached, the thread closes
// the oldest connection that is silent or sends slowly. So idle connections cannot keep a probe
// waiting. Connections with an action or a stream are exempt, because calls and streams have lower
// limits of their own.
//
// evhttp does not report when a connection ends. So the thread holds a reference to each
// bufferevent. When evhttp has released a bufferevent, its callbacks are NULL. The thread then
// drops its reference, which closes the descriptor. If accept(2) fails, accepting pauses for a
// moment.
//
// Start: bind, listen, create the loop, start the thread. Stop: an eventfd wakes the loop, finished
// answers get a moment to leave, the thread is joined, and the calling thread frees everything.
#include "control/admin_private.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/listener.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "stats/stats.h"

#define HEAD_MAX_BYTES 16384
#define SILENCE_MAX_S 10
#define SWEEP_MS 10
#define ACCEPT_PAUSE_MS 100
#define STOP_LINGER_MS 100

// The admin that the current thread runs. The callbacks of a listener need it here, because evhttp
// uses their context argument itself.
static _Thread_local struct admin *admin_of_thread;

static void on_request(struct evhttp_request *req, void *ctx)
{
    admin_routes_dispatch(as_admin(ctx), req);
}

static void on_answered(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd;
    (void)what;
    admin_call_deliver(as_admin(ctx));
}

static void on_tick(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd;
    (void)what;
    admin_streams_judge(as_admin(ctx));
    admin_events_tick(as_admin(ctx));
    admin_log_tick(as_admin(ctx));
    admin_top_tick(as_admin(ctx));
    admin_stream_arm(as_admin(ctx));
}

static void on_lines(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd;
    (void)what;
    admin_log_wake(as_admin(ctx));
}

static void on_take(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd;
    (void)what;
    admin_streams_judge(as_admin(ctx));
    admin_log_take(as_admin(ctx));
}

// --- Connections ---------------------------------------------------------------------------------

static void listeners_set(struct admin *admin, bool on)
{
    for (unsigned i = 0; i < admin->listener_count; i++) {
        struct evconnlistener *l = evhttp_bound_socket_get_listener(admin->listeners[i]);
        check((on ? evconnlistener_enable(l) : evconnlistener_disable(l)) == 0);
    }
}

static void event_after(struct event *event, int delay_ms)
{
    struct timeval delay = {.tv_usec = delay_ms * 1000};
    check(event_add(event, &delay) == 0);
}

// Releases the connections that evhttp no longer uses.
static void sweep(struct admin *admin)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < admin->open_count; i++) {
        struct bufferevent *bev = admin->open[i];
        bufferevent_data_cb on_read, on_write;
        bufferevent_event_cb on_event;
        bufferevent_getcb(bev, &on_read, &on_write, &on_event, NULL);
        if (on_read == NULL && on_write == NULL && on_event == NULL) {
            (void)bufferevent_decref(bev); // this drops the last reference
            stats_sub(COUNTER_admin_connections, 1);
        } else {
            admin->open[kept++] = bev;
        }
    }
    admin->open_count = kept;
}

static_assert(ADMIN_CALLS_MAX + ADMIN_STREAMS_MAX + ADMIN_FOLLOWERS_MAX + ADMIN_RANKERS_MAX <
                  ADMIN_CONNECTIONS_MAX,
              "there is always one to be cut");

// Shuts down the oldest connection that no call or stream uses. evhttp then reads end-of-file and
// closes it.
static void cut_oldest(struct admin *admin)
{
    stats_add(COUNTER_admin_connections_cut, 1);
    log_warn_condition("admin_connection_cut", "why=too_many max=%u", ADMIN_CONNECTIONS_MAX);
    unsigned i = 0;
    while (admin_call_uses(admin, admin->open[i]) || admin_streams_use(admin, admin->open[i])) {
        i++; // terminates, because calls and streams cannot use all connections
    }
    (void)shutdown(bufferevent_getfd(admin->open[i]), SHUT_RDWR); // may be closed already
    listeners_set(admin, false);
}

static void on_sweep(evutil_socket_t fd, short what, void *ctx)
{
    struct admin *admin = as_admin(ctx);
    (void)fd;
    (void)what;
    sweep(admin);
    if (admin->open_count < ADMIN_CONNECTIONS_MAX &&
        !event_pending(admin->resume_event, EV_TIMEOUT, NULL)) {
        listeners_set(admin, true);
    }
    if (admin->open_count > 0) {
        event_after(admin->sweep_event, SWEEP_MS);
    }
}

// Makes the bufferevent of a connection that evhttp has accepted.
static struct bufferevent *on_accepted(struct event_base *base, void *ctx)
{
    struct admin *admin = as_admin(ctx);
    struct bufferevent *bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    check(bev != NULL);
    check(admin->open_count < ADMIN_CONNECTIONS_MAX); // all listeners are disabled at the limit
    bufferevent_incref(bev);
    admin->open[admin->open_count++] = bev;
    stats_add(COUNTER_admin_connections, 1);
    if (admin->open_count == ADMIN_CONNECTIONS_MAX) {
        cut_oldest(admin);
    }
    if (!event_pending(admin->sweep_event, EV_TIMEOUT, NULL)) {
        event_after(admin->sweep_event, SWEEP_MS);
    }
    return bev;
}

static void on_accept_failed(struct evconnlistener *listener, void *ctx)
{
    struct admin *admin = as_admin(admin_of_thread);
    (void)listener;
    (void)ctx;
    log_warn_condition("admin_accept_paused", "errno=%d pause_ms=%d", errno, ACCEPT_PAUSE_MS);
    listeners_set(admin, false);
    event_after(admin->resume_event, ACCEPT_PAUSE_MS);
}

static void on_resume(evutil_socket_t fd, short what, void *ctx)
{
    struct admin *admin = as_admin(ctx);
    (void)fd;
    (void)what;
    sweep(admin);
    if (admin->open_count < ADMIN_CONNECTIONS_MAX) {
        listeners_set(admin, true);
    }
}

// --- Listening -----------------------------------------------------------------------------------

static int bind_tcp(struct admin *admin, struct buf *ret_why)
{
    const char *host = admin->options.host;
    struct sockaddr_storage address;
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(admin->options.port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(admin->options.port)};
    socklen_t len = sizeof(v4);
    memset(&address, 0, sizeof(address));
    if (inet_pton(AF_INET, host, &v4.sin_addr) == 1) {
        memcpy(&address, &v4, sizeof(v4));
    } else {
        check(inet_pton(AF_INET6, host, &v6.sin6_addr) == 1); // config accepts no other text
        memcpy(&address, &v6, sizeof(v6));
        len = sizeof(v6);
    }
    int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int on = 1;
    bool ok = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
              bind(fd, (struct sockaddr *)&address, len) == 0 && listen(fd, 128) == 0;
    if (!ok) {
        buf_printf(
            ret_why, "admin.listen %s:%u: %s%s", host, admin->options.port, strerror(errno),
            errno == EADDRINUSE
                ? " (another server? stop it, or choose another address or off for admin.listen)"
                : "");
        if (fd >= 0) {
            (void)close(fd); // no connection came through this socket
        }
        return -1;
    }
    return fd;
}

// Sets the flags that bind_tcp() gives its socket. A service manager passes sockets in blocking
// mode unless its unit says otherwise. In that mode the thread would wait for the next connection
// alone.
static int take_inherited(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    check(flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0);
    check(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
    return fd;
}

static int listen_tcp(struct admin *admin, struct buf *ret_why)
{
    struct sockaddr_storage address;
    struct sockaddr_in v4;
    char host[INET6_ADDRSTRLEN] = "";
    socklen_t len = sizeof(address);
    int fd = admin->options.inherited_fd > 0 ? take_inherited(admin->options.inherited_fd)
                                             : bind_tcp(admin, ret_why);
    if (fd < 0) {
        return -1;
    }
    memset(&address, 0, sizeof(address));
    check(getsockname(fd, (struct sockaddr *)&address, &len) == 0);
    memcpy(&v4, &address, sizeof(v4)); // the port has the same offset in both forms
    bool is_v6 = address.ss_family == AF_INET6;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)&address;
    (void)inet_ntop(address.ss_family, is_v6 ? (const void *)&v6->sin6_addr : &v4.sin_addr, host,
                    sizeof(host));
    (void)snprintf(admin->address, sizeof(admin->address), is_v6 ? "[%s]:%u" : "%s:%u", host,
                   ntohs(v4.sin_port));
    admin->tcp_fd = fd;
    return fd;
}

static int listen_unix(struct admin *admin, struct buf *ret_why)
{
    struct buf why;
    buf_init(&why, ADMIN_WHY_MAX_BYTES);
    enum err err = unix_socket_open(admin->options.socket_path, 0600, &admin->name, &why);
    if (err != ERR_OK) {
        buf_printf(ret_why, "admin.socket %s", buf_cstr(&why));
    }
    buf_done(&why);
    return err == ERR_OK ? admin->name.fd : -1;
}

// Accepts connections from the listening socket `fd`, and takes ownership of it.
static void accept_from(struct admin *admin, int fd)
{
    check(admin->listener_count < ADMIN_LISTENERS_MAX);
    struct evconnlistener *listener = evconnlistener_new(
        admin->base, NULL, NULL, LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_CLOSE_ON_FREE, 0, fd);
    check(listener != NULL);
    struct evhttp_bound_socket *bound = evhttp_bind_listener(admin->http, listener);
    check(bound != NULL);
    evconnlistener_set_error_cb(listener, on_accept_failed);
    admin->listeners[admin->listener_count++] = bound;
}

static bool listen_all(struct admin *admin, struct buf *ret_why)
{
    if (admin->options.host != NULL) {
        int fd = listen_tcp(admin, ret_why);
        if (fd < 0) {
            return false;
        }
        accept_from(admin, fd);
    }
    if (admin->options.socket_path != NULL) {
        struct buf why;
        buf_init(&why, ADMIN_WHY_MAX_BYTES);
        int fd = listen_unix(admin, &why);
        if (fd >= 0) {
            accept_from(admin, fd);
        } else if (admin->options.socket_optional) {
            log_warn("admin_socket_failed", "reason=%s", log_quote(buf_span(&why)));
        } else {
            buf_append_span(ret_why, buf_span(&why));
        }
        buf_done(&why);
        return fd >= 0 || admin->options.socket_optional;
    }
    return true;
}

// --- Start and stop ------------------------------------------------------------------------------

static bool owes_bytes(const struct admin *admin)
{
    bool owes = false;
    for (unsigned i = 0; i < admin->open_count; i++) {
        owes |= evbuffer_get_length(bufferevent_get_output(admin->open[i])) > 0;
    }
    return owes;
}

// Stops the loop. Unsent answers get STOP_LINGER_MS first, such as the answer to a drain request.
static void on_stop(evutil_socket_t fd, short what, void *ctx)
{
    struct admin *admin = as_admin(ctx);
    struct timeval linger = {.tv_usec = STOP_LINGER_MS * 1000};
    (void)fd;
    (void)what;
    admin_call_deliver(admin);
    // Both calls fail only without a loop.
    (void)(owes_bytes(admin) ? event_base_loopexit(admin->base, &linger)
                             : event_base_loopbreak(admin->base));
}

static void *thread_main(void *ctx)
{
    struct admin *admin = as_admin(ctx);
    thread_begin("admin", THREAD_BEHIND);
    admin_of_thread = admin;
    (void)event_base_dispatch(admin->base); // returns when the loop is broken by on_stop()
    return NULL;
}

static void make_loop(struct admin *admin)
{
    struct event_config *config = event_config_new();
    check(config != NULL);
    check(event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK) == 0); // only one thread uses it
    admin->base = event_base_new_with_config(config);
    event_config_free(config);
    check(admin->base != NULL);
    admin->http = evhttp_new(admin->base);
    check(admin->http != NULL);
    evhttp_set_max_headers_size(admin->http, HEAD_MAX_BYTES);
    evhttp_set_max_body_size(admin->http, ADMIN_BODY_MAX);
    evhttp_set_timeout(admin->http, SILENCE_MAX_S);
    evhttp_set_allowed_methods(admin->http, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD | EVHTTP_REQ_POST |
                                                EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE);
    evhttp_set_gencb(admin->http, on_request, admin);
    evhttp_set_bevcb(admin->http, on_accepted, admin);
    admin->sweep_event = event_new(admin->base, -1, 0, on_sweep, admin);
    admin->resume_event = event_new(admin->base, -1, 0, on_resume, admin);
    admin->tick_event = event_new(admin->base, -1, 0, on_tick, admin);
    admin->lines_event = event_new(admin->base, admin->options.lines.fd, EV_READ, on_lines, admin);
    admin->take_event = event_new(admin->base, -1, 0, on_take, admin);
    check(admin->sweep_event != NULL && admin->resume_event != NULL && admin->tick_event != NULL);
    check(admin->lines_event != NULL && admin->take_event != NULL);
    admin->history = admin_history_new(admin->base, admin->options.conditions);
    admin->hub = admin_hub_new();
    admin->answer_event =
        event_new(admin->base, admin_hub_fd(admin->hub), EV_READ | EV_PERSIST, on_answered, admin);
    check(admin->answer_event != NULL && event_add(admin->answer_event, NULL) == 0);
    admin->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    check(admin->stop_fd >= 0);
    admin->stop_event = event_new(admin->base, admin->stop_fd, EV_READ, on_stop, admin);
    check(admin->stop_event != NULL && event_add(admin->stop_event, NULL) == 0);
}

// Blocks all signals in the new thread, because the main thread handles them.
static bool start_thread(struct admin *admin)
{
    sigset_t all, before;
    sigfillset(&all);
    check(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
    admin->thread_runs = pthread_create(&admin->thread, NULL, thread_main, admin) == 0;
    check(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    return admin->thread_runs;
}

enum err admin_start(const struct admin_options *options, struct admin **ret_admin,
                     struct buf *ret_why)
{
    struct admin *admin = calloc(1, sizeof(*admin));
    check(admin != NULL);
    admin->magic = ADMIN_MAGIC;
    admin->options = *options;
    if (admin->options.lines.turn == NULL) {
        admin->options.lines.fd = -1;
    }
    admin->tcp_fd = -1;
    if (admin->options.io_engine == NULL) {
        admin->options.io_engine = "unknown";
    }
    if (admin->options.auth == NULL) {
        admin->options.auth = "unknown";
    }
    list_init(&admin->calls);
    list_init(&admin->streams);
    admin->started_us = clock_monotonic_us();
    make_loop(admin);
    check(pthread_mutex_init(&admin->guarded.lock, NULL) == 0);
    admin->guarded.access = admin_access_new(&options->access, ret_why);
    if (admin->guarded.access == NULL) {
        admin_stop(admin);
        return ERR_INVALID;
    }
    if (!listen_all(admin, ret_why)) {
        admin_stop(admin);
        return ERR_IN_USE;
    }
    if (!start_thread(admin)) {
        buf_append_cstr(ret_why, "the admin thread could not be started");
        admin_stop(admin);
        return ERR_NO_MEMORY;
    }
    *ret_admin = admin;
    return ERR_OK;
}

int admin_listen_fd(const struct admin *admin)
{
    return admin->tcp_fd;
}

const char *admin_listen_address(const struct admin *admin)
{
    return admin->address;
}

void admin_halt(struct admin *admin)
{
    if (admin == NULL || admin->is_halted) {
        return;
    }
    check(admin->magic == ADMIN_MAGIC);
    admin->is_halted = true;
    if (admin->thread_runs) {
        uint64_t one = 1;
        check(write(admin->stop_fd, &one, sizeof(one)) == sizeof(one));
        check(pthread_join(admin->thread, NULL) == 0);
    }
    unix_socket_remove(&admin->name);
    for (unsigned i = 0; i < admin->listener_count; i++) {
        evhttp_del_accept_socket(admin->http, admin->listeners[i]);
    }
    admin->tcp_fd = -1;
    event_free(admin->stop_event);
    event_free(admin->sweep_event);
    event_free(admin->resume_event);
    event_free(admin->tick_event);
    event_free(admin->answer_event);
    admin_history_free(admin->history);
    admin_calls_forget(admin);
    admin_streams_forget(admin);
    event_free(admin->lines_event);
    event_free(admin->take_event);
}

void admin_stop(struct admin *admin)
{
    if (admin == NULL) {
        return;
    }
    admin_halt(admin);
    evhttp_free(admin->http);
    sweep(admin);
    event_base_free(admin->base);
    (void)close(admin->stop_fd); // no thread writes to it any more
    admin_hub_unref(admin->hub);
    admin_access_free(admin->guarded.access);
    check(pthread_mutex_destroy(&admin->guarded.lock) == 0);
    admin->magic = 0;
    free(admin);
}
