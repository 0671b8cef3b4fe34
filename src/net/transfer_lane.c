// SPDX-License-Identifier: Apache-2.0
// The lanes of a pool. A lane is a curl multi handle with some of the pool's connections, their
// sockets, and a timer for curl. Runs on the pool's worker.
//
// For each request, curl searches its connections to the host for a free one. Among a thousand
// connections, this search takes longer than the rest of the request. So a lane has at most
// LANE_CONNECTIONS. Each lane also looks names up for itself; see transfer_setup.c.
//
// A transfer runs in the first lane that has room. So few transfers use few connections, and in a
// busy lane curl soon finds the connection that became free last.
//
// curl closes connections that were idle for too long, but only while it searches for one. So this
// file closes the connections of a lane that is not used any more.
//
// Between two requests, curl does not watch the socket of a connection. This file leaves the socket
// in the event loop, so that it need not be added again for the next request. That costs nothing
// while no data comes. If data comes, the socket is removed from the event loop. The data stays in
// the socket, where transfer_connection.c finds it.
#include <event2/event.h>
#include <event2/event_struct.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/chunk.h"
#include "net/transfer_private.h"

#define UNUSED_MS_MIN 1000u // At least this, because curl counts idle time in whole seconds.

struct lane_socket {
    struct list_node node;
    struct transfer_lane *lane;
    struct transfer *transfer; // curl watches the socket for this transfer; NULL: for none of ours.
    curl_socket_t fd;
    bool is_idle; // curl does not watch the socket now.
    struct event event;
};

static struct transfer_lane *as_lane(void *ptr)
{
    struct transfer_lane *lane = ptr;
    check(lane != NULL);
    check(lane->magic == LANE_MAGIC);
    return lane;
}

// --- curl's timer and sockets --------------------------------------------------------------------

static void lane_socket_action(struct transfer_lane *lane, curl_socket_t fd, int what)
{
    int running;
    check(!lane->pool->is_in_curl);
    lane->pool->is_in_curl = true;
    CURLMcode code = curl_multi_socket_action(lane->multi, fd, what, &running);
    lane->pool->is_in_curl = false;
    check(code == CURLM_OK);
}

void transfer_lane_run_timer(struct transfer_lane *lane)
{
    if (lane->is_timeout_due) {
        lane->is_timeout_due = false;
        lane_socket_action(lane, CURL_SOCKET_TIMEOUT, 0);
    }
}

static void on_lane_timer(struct timer *timer)
{
    struct transfer_lane *lane = as_lane(container_of(timer, struct transfer_lane, timer));
    lane->is_timeout_due = true;
    transfer_lane_is_due(lane);
}

static int on_curl_timer(CURLM *multi, long timeout_ms, void *ctx)
{
    (void)multi;
    struct transfer_lane *lane = as_lane(ctx);
    timer_stop(&lane->timer);
    lane->is_timeout_due = timeout_ms == 0;
    if (timeout_ms == 0) {
        transfer_lane_is_due(lane);
    } else if (timeout_ms > 0) {
        timer_start(&lane->timer, (uint64_t)timeout_ms);
    }
    return 0;
}

static void lane_socket_free(struct lane_socket *s)
{
    check(event_del(&s->event) == 0);
    list_remove(&s->node);
    free(s);
}

static void on_socket_event(evutil_socket_t fd, short what, void *ctx)
{
    // A call into curl may free `s`, so it is not used after one.
    struct lane_socket *s = ctx;
    struct transfer_lane *lane = as_lane(s->lane);
    if (s->is_idle) {
        lane_socket_free(s);
        return;
    }
    if (s->transfer != NULL && what == EV_READ && !transfer_turn_takes(s->transfer)) {
        transfer_wait(s->transfer);
        return;
    }
    if (s->transfer != NULL && what == EV_READ && !transfer_turn_takes_socket(s->transfer)) {
        return; // the same event comes again in the next turn
    }
    uint64_t begun_us = transfer_turn_begun(lane->pool);
    lane_socket_action(lane, fd,
                       ((what & EV_READ) != 0 ? CURL_CSELECT_IN : 0) |
                           ((what & EV_WRITE) != 0 ? CURL_CSELECT_OUT : 0));
    transfer_turn_spent(lane->pool, begun_us);
    transfer_lane_is_due(lane);
    worker_event_ran(lane->pool->worker);
}

static struct lane_socket *lane_socket_new(struct transfer_lane *lane, curl_socket_t fd)
{
    struct lane_socket *s = calloc(1, sizeof(*s));
    check(s != NULL);
    s->lane = lane;
    s->fd = fd;
    list_node_init(&s->node);
    list_push_back(&lane->sockets, &s->node);
    check(curl_multi_assign(lane->multi, fd, s) == CURLM_OK);
    return s;
}

static struct lane_socket *idle_socket(struct transfer_lane *lane, curl_socket_t fd)
{
    list_for_each(node, &lane->sockets)
    {
        struct lane_socket *s = container_of(node, struct lane_socket, node);
        if (s->fd == fd && s->is_idle) {
            return s;
        }
    }
    return NULL;
}

static void forget_socket(struct transfer_lane *lane, curl_socket_t fd)
{
    struct lane_socket *s = idle_socket(lane, fd);
    if (s != NULL) {
        lane_socket_free(s);
    }
}

// Called when curl stops watching the socket. Keeps the record if the connection may be reused, and
// frees it otherwise.
static void lane_socket_leave(struct lane_socket *s, const struct transfer *t)
{
    bool has_answered = t != NULL && t->head == HEAD_OVER && !t->body_pause.is_in_curl;
    if (has_answered && event_get_events(&s->event) == (EV_READ | EV_PERSIST)) {
        s->transfer = NULL;
        s->is_idle = true;
    } else {
        lane_socket_free(s); // the descriptor may soon be that of another connection
    }
}

static int on_curl_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *socket_ctx)
{
    struct transfer_lane *lane = as_lane(ctx);
    struct lane_socket *s = socket_ctx;
    struct transfer *t = NULL; // stays NULL for a handle that curl made for its own use
    check(curl_easy_getinfo(easy, CURLINFO_PRIVATE, (char **)&t) == CURLE_OK);
    if (what == CURL_POLL_REMOVE) {
        if (s != NULL) {
            lane_socket_leave(s, t);
        }
        if (t != NULL) {
            transfer_note_socket(t);
        }
        return 0;
    }
    bool is_watched = s != NULL;
    if (s == NULL && (s = idle_socket(lane, fd)) != NULL) {
        s->is_idle = false;
        is_watched = true;
        check(curl_multi_assign(lane->multi, fd, s) == CURLM_OK);
    } else if (s == NULL) {
        s = lane_socket_new(lane, fd);
    }
    s->transfer = t;
    short events = (short)(EV_PERSIST | ((what & CURL_POLL_IN) != 0 ? EV_READ : 0) |
                           ((what & CURL_POLL_OUT) != 0 ? EV_WRITE : 0));
    if (is_watched) {
        if (event_get_events(&s->event) == events) {
            return 0;
        }
        check(event_del(&s->event) == 0);
    }
    check(event_assign(&s->event, worker_event_base(lane->pool->worker), fd, events,
                       on_socket_event, s) == 0);
    check(event_add(&s->event, NULL) == 0);
    return 0;
}

// --- Connections ---------------------------------------------------------------------------------

static void connection_free(struct pool_connection *c)
{
    socket_room_give_back(SOCKETS_ORIGINS, &c->room);
    free(c);
}

static void connection_forget(struct transfer_lane *lane, curl_socket_t fd)
{
    list_for_each(node, &lane->connections)
    {
        struct pool_connection *c = container_of(node, struct pool_connection, node);
        if (c->fd == fd) {
            list_remove(&c->node);
            connection_free(c);
            return;
        }
    }
}

// Returns 0 if the descriptor is closed.
static ino_t inode_of(curl_socket_t fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 ? st.st_ino : 0;
}

// Forgets the sockets that were opened for the ended transfer and are closed by now. curl does not
// report the end of sockets that never connected, and they would keep their room.
static void forget_closed(struct transfer_lane *lane, const struct transfer *t)
{
    list_for_each(node, &lane->connections)
    {
        struct pool_connection *c = container_of(node, struct pool_connection, node);
        if (c->opener != t) {
            continue;
        }
        c->opener = NULL;
        if (inode_of(c->fd) != c->inode) {
            list_remove(&c->node);
            connection_free(c);
        }
    }
}

void transfer_lane_forget(struct transfer_lane *lane, const struct transfer *t)
{
    list_for_each(node, &lane->sockets)
    {
        struct lane_socket *s = container_of(node, struct lane_socket, node);
        s->transfer = s->transfer == t ? NULL : s->transfer;
    }
    forget_closed(lane, t);
}

curl_socket_t transfer_open_socket(void *ctx, curlsocktype purpose, struct curl_sockaddr *addr)
{
    struct transfer *t = ctx;
    check(t->magic == TRANSFER_MAGIC);
    struct transfer_lane *lane = t->lane;
    struct transfer_pool *pool = t->pool;
    // If this is the second socket, the first address has failed.
    lane->must_look_up = t->has_opened;
    t->has_opened = true;
    transfer_note_socket(t);
    if (purpose != CURLSOCKTYPE_IPCXN) {
        return CURL_SOCKET_BAD;
    }
    bool is_denied = pool->options.deny_link_local && transfer_address_is_metadata(&addr->addr);
    if (t->reach != TRANSFER_REACH_ANY && !t->is_proxied &&
        (is_denied || transfer_reach_of(&addr->addr) > t->reach)) {
        t->is_out_of_reach = true;
        return CURL_SOCKET_BAD;
    }
    if (is_denied) {
        return CURL_SOCKET_BAD;
    }
    int fd = socket(addr->family, addr->socktype | SOCK_CLOEXEC, addr->protocol);
    if (fd < 0) {
        return CURL_SOCKET_BAD;
    }
    struct pool_connection *c = calloc(1, sizeof(*c));
    check(c != NULL);
    for (unsigned i = 0; i < pool->lane_count; i++) {
        // The descriptor may have been that of a socket that forget_closed() has yet to forget.
        connection_forget(&pool->lanes[i], fd);
        forget_socket(&pool->lanes[i], fd);
    }
    c->fd = fd;
    c->inode = inode_of(fd);
    c->opener = t;
    check(socket_room_take(SOCKETS_ORIGINS, fd, &c->room));
    list_node_init(&c->node);
    list_push_back(&lane->connections, &c->node);
    return fd;
}

int transfer_close_socket(void *ctx, curl_socket_t fd)
{
    connection_forget(as_lane(ctx), fd);
    forget_socket(as_lane(ctx), fd);
    return close(fd);
}

// Frees the records that are left after curl has closed all its sockets.
static void connections_done(struct transfer_lane *lane)
{
    struct list_node *node;
    while ((node = list_pop_front(&lane->connections)) != NULL) {
        connection_free(container_of(node, struct pool_connection, node));
    }
}

// --- Opening and closing -------------------------------------------------------------------------

static void lane_open(struct transfer_lane *lane)
{
    lane->multi = curl_multi_init();
    check(lane->multi != NULL);
    CURL_MULTI_SET(lane->multi, CURLMOPT_SOCKETFUNCTION, on_curl_socket);
    CURL_MULTI_SET(lane->multi, CURLMOPT_SOCKETDATA, lane);
    CURL_MULTI_SET(lane->multi, CURLMOPT_TIMERFUNCTION, on_curl_timer);
    CURL_MULTI_SET(lane->multi, CURLMOPT_TIMERDATA, lane);
    CURL_MULTI_SET(lane->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);
    CURL_MULTI_SET(lane->multi, CURLMOPT_MAX_HOST_CONNECTIONS, (long)lane->most);
    CURL_MULTI_SET(lane->multi, CURLMOPT_MAXCONNECTS, (long)lane->most);
}

// Closes the lane and its connections. No transfer may run in it.
static void lane_close(struct transfer_lane *lane)
{
    check(lane->running == 0);
    timer_stop(&lane->timer);
    timer_stop(&lane->unused_timer);
    list_remove(&lane->due_node);
    lane->is_timeout_due = false;
    if (lane->multi == NULL) {
        return;
    }
    lane->pool->is_in_curl = true;
    check(curl_multi_cleanup(lane->multi) == CURLM_OK);
    lane->pool->is_in_curl = false;
    lane->multi = NULL;
    struct list_node *node;
    while ((node = list_first(&lane->sockets)) != NULL) {
        lane_socket_free(container_of(node, struct lane_socket, node));
    }
    connections_done(lane);
    timer_stop(&lane->timer); // curl may have started it again
    list_remove(&lane->due_node);
    lane->is_timeout_due = false;
}

static void on_unused(struct timer *timer)
{
    lane_close(as_lane(container_of(timer, struct transfer_lane, unused_timer)));
}

// --- Choice of a lane ----------------------------------------------------------------------------

struct transfer_lane *transfer_lane_enter(struct transfer_pool *pool)
{
    struct transfer_lane *lane = &pool->lanes[0];
    for (unsigned i = 1; i < pool->lane_count && lane->running >= lane->most; i++) {
        struct transfer_lane *other = &pool->lanes[i];
        // If all lanes are full, take the one with the shortest queue.
        if (other->running < other->most ||
            other->running - other->most < lane->running - lane->most) {
            lane = other;
        }
    }
    if (lane->multi == NULL) {
        lane_open(lane);
    }
    timer_stop(&lane->unused_timer);
    lane->running++;
    return lane;
}

void transfer_lane_leave(struct transfer_lane *lane)
{
    check(lane->running > 0);
    if (--lane->running == 0) {
        timer_start(&lane->unused_timer, max_u64(lane->pool->options.keepalive_ms, UNUSED_MS_MIN));
    }
}

void transfer_lanes_init(struct transfer_pool *pool)
{
    unsigned most = pool->options.max_connections;
    check(most > 0);
    pool->lane_count = (most + LANE_CONNECTIONS - 1) / LANE_CONNECTIONS;
    pool->lanes = calloc(pool->lane_count, sizeof(*pool->lanes));
    check(pool->lanes != NULL);
    for (unsigned i = 0; i < pool->lane_count; i++) {
        struct transfer_lane *lane = &pool->lanes[i];
        lane->magic = LANE_MAGIC;
        lane->pool = pool;
        lane->most = (unsigned)min_u64(most - i * LANE_CONNECTIONS, LANE_CONNECTIONS);
        list_init(&lane->connections);
        list_init(&lane->sockets);
        list_node_init(&lane->due_node);
        timer_init(pool->worker, &lane->timer, on_lane_timer);
        timer_init(pool->worker, &lane->unused_timer, on_unused);
    }
}

void transfer_lanes_done(struct transfer_pool *pool)
{
    for (unsigned i = 0; i < pool->lane_count; i++) {
        lane_close(&pool->lanes[i]);
        timer_done(&pool->lanes[i].timer);
        timer_done(&pool->lanes[i].unused_timer);
    }
    free(pool->lanes);
    pool->lanes = NULL;
}
