// SPDX-License-Identifier: Apache-2.0
// Actions: requests that are answered later, by another thread. An action owns its call until it
// has answered it. The answered call then returns to the admin thread through the hub, which
// consists of a lock-free list and an eventfd. The hub outlives the admin thread while a call is
// open, so that a late answer still finds it.
//
// The thread drops a caller that disconnects, or that has waited ADMIN_CALL_WAIT_MAX_MS. Its call
// still counts until the action has answered it. After a connection has ended, evhttp frees its
// request only once the request has been answered.
#include "control/admin_private.h"

#include <event2/keyvalq_struct.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "stats/stats.h"

struct admin_hub {
    atomic_uint refs; // one held by the admin thread, and one by each unanswered call
    int fd;
    _Atomic(struct admin_call *) answered;
};

struct admin_call {
    struct admin_call *next; // next in the list admin_hub.answered
    struct admin_hub *hub;
    struct evkeyvalq parameters;
    json_t *body;
    unsigned status;
    json_t *answer;
    // Only the admin thread uses the members below.
    struct admin *admin;
    struct list_node node;         // in the list admin.calls while a caller waits
    struct evhttp_request *req;    // NULL: no caller waits any more
    const struct bufferevent *bev; // compared, never dereferenced
    struct event *patience;
};

// --- the hub -------------------------------------------------------------------------------------

struct admin_hub *admin_hub_new(void)
{
    struct admin_hub *hub = calloc(1, sizeof(*hub));
    check(hub != NULL);
    atomic_init(&hub->refs, 1);
    hub->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    check(hub->fd >= 0);
    return hub;
}

int admin_hub_fd(const struct admin_hub *hub)
{
    return hub->fd;
}

static void call_free(struct admin_call *call)
{
    evhttp_clear_headers(&call->parameters);
    json_decref(call->body);
    json_decref(call->answer);
    free(call);
}

void admin_hub_unref(struct admin_hub *hub)
{
    if (hub == NULL || atomic_fetch_sub(&hub->refs, 1) != 1) {
        return;
    }
    struct admin_call *call = atomic_load(&hub->answered);
    while (call != NULL) {
        struct admin_call *next = call->next;
        call_free(call);
        call = next;
    }
    (void)close(hub->fd); // no thread writes to it any more
    free(hub);
}

// --- for actions ---------------------------------------------------------------------------------

struct span admin_call_parameter(const struct admin_call *call, const char *name)
{
    const char *text = evhttp_find_header(&call->parameters, name);
    const json_t *member = json_object_get(call->body, name);
    if (text == NULL && json_is_string(member)) {
        return (struct span){json_string_value(member), json_string_length(member)};
    }
    return span_from_cstr(text);
}

const json_t *admin_call_member(const struct admin_call *call, const char *name)
{
    return json_object_get(call->body, name);
}

void admin_call_address(const struct admin_call *call, char ret_address[ADMIN_ADDRESS_MAX])
{
    const struct admin *admin = call->admin;
    bool is_tcp = admin->address[0] != '\0' &&
                  (admin->name.path[0] == '\0' || admin_access_trusts_loopback(call->admin));
    (void)snprintf(ret_address, ADMIN_ADDRESS_MAX, "%s%s",
                   is_tcp ? "" : "unix:", is_tcp ? admin->address : admin->name.path);
}

void admin_call_answer(struct admin_call **call_place, unsigned status, json_t *json)
{
    struct admin_call *call = *call_place;
    *call_place = NULL;
    check(call != NULL && json != NULL);
    call->status = status;
    call->answer = json;
    struct admin_hub *hub = call->hub;
    call->next = atomic_load(&hub->answered);
    while (!atomic_compare_exchange_weak(&hub->answered, &call->next, call)) {
    }
    uint64_t one = 1;
    check(write(hub->fd, &one, sizeof(one)) == sizeof(one));
    admin_hub_unref(hub);
}

void admin_call_refuse(struct admin_call **call, unsigned status, const char *why)
{
    admin_call_answer(call, status, admin_refusal(why));
}

// --- on the admin thread -------------------------------------------------------------------------

// Separates the call from its HTTP request, before the caller gets an answer or because it has
// left. Returns the request, or NULL if the caller has left already.
static struct evhttp_request *call_leave(struct admin_call *call)
{
    struct evhttp_request *req = call->req;
    if (req != NULL) {
        call->req = NULL;
        list_remove(&call->node);
        event_free(call->patience);
        call->patience = NULL;
    }
    return req;
}

static void on_patience(evutil_socket_t fd, short what, void *ctx)
{
    struct evhttp_request *req = call_leave(ctx);
    (void)fd;
    (void)what;
    stats_add(COUNTER_admin_calls_late, 1);
    admin_reply_refusal(req, 504, "no answer within 60 s; the action may still complete");
}

// Moves the whole list, because evhttp_add_header() refuses values that contain line ends.
static void move_parameters(struct evkeyvalq *to, struct evkeyvalq *from)
{
    *to = *from;
    if (to->tqh_first != NULL) {
        to->tqh_first->next.tqe_prev = &to->tqh_first;
    } else {
        to->tqh_last = &to->tqh_first;
    }
    from->tqh_first = NULL;
    from->tqh_last = &from->tqh_first;
}

bool admin_call_start(struct admin *admin, struct evhttp_request *req, enum admin_action action,
                      bool is_order, struct evkeyvalq *parameters, json_t *body)
{
    if (admin->call_count >= ADMIN_CALLS_MAX - (is_order ? 0 : ADMIN_CALLS_ORDERS)) {
        evhttp_clear_headers(parameters);
        json_decref(body);
        stats_add(COUNTER_admin_calls_refused, 1);
        return false;
    }
    struct admin_call *call = calloc(1, sizeof(*call));
    check(call != NULL);
    call->hub = admin->hub;
    atomic_fetch_add(&admin->hub->refs, 1);
    move_parameters(&call->parameters, parameters);
    call->body = body;
    call->admin = admin;
    call->req = req;
    call->bev = evhttp_connection_get_bufferevent(evhttp_request_get_connection(req));
    list_node_init(&call->node);
    list_push_back(&admin->calls, &call->node);
    admin->call_count++;
    call->patience = evtimer_new(admin->base, on_patience, call);
    check(call->patience != NULL);
    struct timeval wait = {.tv_sec = ADMIN_CALL_WAIT_MAX_MS / 1000};
    check(event_add(call->patience, &wait) == 0);
    admin->options.actions[action](admin->options.action_ctx, call);
    return true;
}

void admin_call_deliver(struct admin *admin)
{
    uint64_t count;
    (void)!read(admin->hub->fd, &count, sizeof(count)); // the value is not needed: this only resets
                                                        // the eventfd
    struct admin_call *call = atomic_exchange(&admin->hub->answered, NULL);
    while (call != NULL) {
        struct admin_call *next = call->next;
        struct evhttp_request *req = call_leave(call);
        if (req != NULL) {
            json_t *answer = call->answer;
            call->answer = NULL;
            admin_reply_json(req, call->status, answer);
        }
        check(admin->call_count > 0);
        admin->call_count--;
        call_free(call);
        call = next;
    }
}

void admin_calls_forget(struct admin *admin)
{
    struct list_node *node;
    while ((node = list_first(&admin->calls)) != NULL) {
        (void)call_leave(container_of(node, struct admin_call, node)); // evhttp_free() frees it
    }
}

bool admin_call_uses(struct admin *admin, const struct bufferevent *bev)
{
    list_for_each(node, &admin->calls)
    {
        if (container_of(node, struct admin_call, node)->bev == bev) {
            return true;
        }
    }
    return false;
}
