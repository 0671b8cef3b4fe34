// SPDX-License-Identifier: Apache-2.0
// One request and its reply on a connection: how an exchange begins, from a head that was accepted
// or refused, and how it ends. Runs on the connection's worker.
#include "http/http_private.h"
#include "stats/stats.h"

#define ARENA_MAX (1u << 20)
#define REFUSAL_MAX 16384

static struct arena *spare_take(struct http_worker *hw)
{
    return hw->spare_count > 0 ? hw->spares[--hw->spare_count] : arena_new(ARENA_MAX);
}

static void spare_give(struct http_worker *hw, struct arena *arena)
{
    if (hw->spare_count == HTTP_ARENA_SPARES) {
        arena_free(arena);
        return;
    }
    arena_reset(arena);
    hw->spares[hw->spare_count++] = arena;
}

const struct http_request *http_exchange_request(const struct http_exchange *x)
{
    return &x->request;
}

struct arena *http_exchange_arena(const struct http_exchange *x)
{
    return x->arena;
}

struct worker *http_exchange_worker(const struct http_exchange *x)
{
    return connection_of(x)->hw->worker;
}

void http_exchange_set_user(struct http_exchange *x, struct http_user *user)
{
    check(x->user == NULL);
    x->user = user;
}

static struct http_refusal refusal_of(const struct http_exchange *x, enum err err, enum counter why)
{
    return (struct http_refusal){.err = err,
                                 .why = why,
                                 .worker = http_exchange_worker(x),
                                 .arena = x->arena,
                                 .request = &x->request};
}

// Counts a request that the handler never sees, and sends an error reply. `close`: the connection
// ends after it.
static void refuse(struct http_connection *c, enum err err, enum counter why, bool close)
{
    struct http_exchange *x = &c->x;
    struct headers headers = {0};
    struct buf body;
    const struct error_row *row = error_row(err);
    const struct http_refusal refusal = refusal_of(x, err, why);
    stats_add(why, 1);
    buf_init(&body, REFUSAL_MAX);
    const struct http_handler *handler = &connection_options(c)->handler;
    handler->on_refused(handler->ctx, &refusal, &headers, &body);
    struct span copy = arena_copy(x->arena, buf_span(&body));
    buf_done(&body);
    struct http_reply reply = {
        .status = row->status,
        .reason = http_reason(row->status),
        .headers = &headers,
        .has_length = true,
        .length = copy.len,
        .body = x->request.is_head ? (struct span){NULL, 0} : copy,
        .close = close,
    };
    http_reply_start(x, &reply);
}

static void note_client(struct http_connection *c, uint64_t started_us)
{
    struct http_request *r = &c->x.request;
    r->loopback = c->loopback;
    r->tls = c->ssl != NULL;
    r->peer = span_from_cstr(c->peer);
    r->started_us = started_us;
}

static void exchange_begin(struct http_connection *c)
{
    check(c->x.arena == NULL);
    c->x = (struct http_exchange){.arena = spare_take(c->hw)};
    note_client(c, c->since_us);
    http_connection_enter(c, CONNECTION_EXCHANGE);
    http_connection_reset_rate(c);
    stats_sub(COUNTER_http_connections_idle, 1);
    stats_add(COUNTER_http_connections_active, 1);
}

// Refuses a head of which nothing is known but its client.
static void refuse_head(struct http_connection *c, enum err err, enum counter why)
{
    struct span bytes = http_connection_input(c);
    c->x.request.version_minor = 1;
    c->x.request.is_head = span_starts_with(bytes, SPAN("HEAD "));
    http_connection_consume(c, bytes.len);
    if (err == ERR_HEADERS_TOO_LARGE || err == ERR_URI_TOO_LONG) {
        stats_add(COUNTER_http_too_large, 1);
    }
    refuse(c, err, why, true);
}

void http_exchange_refuse_head(struct http_connection *c, enum err err, enum counter why)
{
    exchange_begin(c);
    refuse_head(c, err, why);
}

void http_exchange_refuse_silently(struct http_connection *c, enum err err, enum counter why)
{
    check(c->x.arena == NULL);
    c->x.arena = spare_take(c->hw);
    note_client(c, c->since_us);
    const struct http_refusal refusal = refusal_of(&c->x, err, why);
    const struct http_handler *handler = &connection_options(c)->handler;
    stats_add(why, 1);
    handler->on_refused(handler->ctx, &refusal, NULL, NULL);
    spare_give(c->hw, c->x.arena);
    c->x = (struct http_exchange){.arena = NULL};
}

static void note_request(struct http_connection *c)
{
    struct http_request *r = &c->x.request;
    note_client(c, connection_now_us(c));
    c->x.body = http_request_has_body(r) ? BODY_HELD : BODY_NONE;
    c->x.body_left = r->content_length;
    http_chunked_init(&c->x.chunked);
}

static uint32_t headers_bytes(unsigned count)
{
    return count > HTTP_HEADERS_FREE ? count * HTTP_HEADER_BYTES : 0;
}

void http_exchange_accept_head(struct http_connection *c)
{
    struct span bytes = http_connection_input(c);
    check(c->request_head.at <= bytes.len);
    bytes.len = c->request_head.at;
    exchange_begin(c);
    struct http_exchange *x = &c->x;
    struct span head = arena_copy(x->arena, bytes);
    check(head.ptr != NULL); // a fresh arena has room for the longest head
    enum err err = request_head_accept(&c->request_head, head, x->arena, &x->request);
    request_head_init(&c->request_head);
    if (err != ERR_OK) {
        refuse_head(c, err, COUNTER_http_refused);
        return;
    }
    http_connection_consume(c, bytes.len);
    note_request(c);
    x->head_bytes = (uint32_t)head.len + headers_bytes(x->request.headers.count);
    if (x->head_bytes > HTTP_HELD_FREE && !http_connection_hold(c, false)) {
        refuse(c, ERR_OVERLOAD, COUNTER_http_shed_memory, false);
        return;
    }
    enum counter why;
    if (!http_quota_request_enter(c->hw->quota, &why)) {
        refuse(c, ERR_OVERLOAD, why, false);
        return;
    }
    x->counted = true;
    const struct http_handler *handler = &connection_options(c)->handler;
    handler->on_request(handler->ctx, x);
}

// A request that is answered at once is never charged, so that a hit costs no atomic operation. The
// pages of the arena are charged too, because a long head makes a large arena.
void http_exchange_charge(struct http_exchange *x)
{
    check(x->arena != NULL);
    uint64_t bytes = HTTP_EXCHANGE_BYTES + arena_page_bytes(x->arena);
    if (x->counted && bytes > x->charged_bytes) {
        chunk_budget_charge(BUDGET_CLIENTS, bytes - x->charged_bytes);
        x->charged_bytes = bytes;
    }
}

void http_exchange_end(struct http_connection *c, enum http_outcome outcome)
{
    struct http_exchange *x = &c->x;
    check(c->phase == CONNECTION_EXCHANGE);
    check(x->arena != NULL);
    http_reply_release(x);
    if (outcome == HTTP_CUT) {
        stats_add(COUNTER_http_cut, 1);
    }
    if (x->counted) {
        http_quota_request_leave(c->hw->quota);
    }
    if (x->charged_bytes > 0) {
        chunk_budget_discharge(BUDGET_CLIENTS, x->charged_bytes);
    }
    struct http_user *user = x->user;
    x->sink = NULL;
    if (user != NULL && user->on_done != NULL) {
        user->on_done(user, outcome);
    }
    spare_give(c->hw, x->arena);
    // Drop everything else, because it points into the arena or to the handler.
    *x = (struct http_exchange){.body = x->body,
                                .body_left = x->body_left,
                                .request.framing = x->request.framing,
                                .chunked = x->chunked};
    stats_sub(COUNTER_http_connections_active, 1);
    stats_add(COUNTER_http_connections_idle, 1);
}

void http_exchange_done(struct http_connection *c)
{
    struct http_exchange *x = &c->x;
    check(x->reply.phase == REPLY_ENDED);
    check(x->reply.head.len == 0 && x->reply.body.len == 0);
    bool body_left = x->body != BODY_NONE;
    bool close = x->reply.close || x->body == BODY_BROKEN;
    bool refused = !x->counted;
    http_exchange_end(c, HTTP_DONE);
    if (close) {
        // Closing with unread bytes would send a reset.
        if (body_left || refused || http_connection_input(c).len > 0 || c->ssl != NULL) {
            http_connection_linger(c);
        } else {
            http_connection_close(c, false);
        }
        return;
    }
    if (!body_left) {
        http_connection_enter(c, CONNECTION_IDLE);
        (void)http_connection_leave(c); // the drain may have begun since the head
        return;
    }
    http_connection_enter(c, CONNECTION_DRAIN);
    if (x->body != BODY_DROPPED) {
        http_body_enter(x, BODY_DROPPED);
    }
}

// Ends an exchange that cannot be completed, and its connection. Resets the connection only if
// nothing else shows that the reply is truncated, because a reset also destroys unread parts of
// earlier replies.
static void exchange_break(struct http_connection *c, enum http_outcome outcome, bool reset)
{
    bool has_begun = c->x.reply.phase != REPLY_NONE;
    http_exchange_end(c, outcome);
    if (has_begun && reset) {
        http_connection_close(c, true);
    } else {
        http_connection_linger(c);
    }
}

void http_exchange_cut(struct http_connection *c)
{
    exchange_break(c, HTTP_CUT, c->x.reply.framing == REPLY_BY_CLOSE);
}

void http_exchange_timed_out(struct http_connection *c, enum http_outcome outcome)
{
    exchange_break(c, outcome, true);
}

void http_exchange_gone(struct http_connection *c, bool reset)
{
    http_exchange_end(c, HTTP_CLIENT_GONE);
    http_connection_close(c, reset);
}
